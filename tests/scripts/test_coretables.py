"""Tables of the second manual follow the trainer's code, and its commands are parsed by it."""

import re

import pytest

from capture.core import config, support, verify
from figures import corelab
from scripts import coresettings, coretables, coreverbs, outputs
from scripts.chapters import parse
from scripts.tree import ROOT, Tree, toml

TREE = Tree(ROOT)
MANUAL = "manuals/olmo-core-trainer"


def table_ids(page):
    chapter = parse(page, TREE.text(page))
    return [fence.content.split()[1] for fence in chapter.of("table")]


def test_every_row_of_the_matrix_is_in_the_table_of_its_state():
    shown = []
    for name in ("accepted", "refused", "not-covered"):
        rows = coretables.TABLES[f"core-support-{name}"](TREE)[1:]
        shown += [re.search(r'id="support-([\w-]+)"', row[0])[1] for row in rows]
    assert sorted(shown) == sorted(row.id for row in support.ROWS)
    counted = coretables.counts(TREE)[1:]
    assert sum(int(row[1]) for row in counted) == len(support.ROWS)


def test_every_section_has_its_table_on_the_page_of_fields():
    ids = table_ids(f"{MANUAL}/reference-fields.md")
    assert ids == [f"core-fields-{name}" for name in coretables.sections()]


def test_every_field_is_in_a_table_with_its_default():
    rows = [row for name in coretables.sections() for row in coretables.fields_of(name)(TREE)[1:]]
    keys = [re.search(r'id="field-([\w-]+)"', row[0])[1] for row in rows]
    wanted = [
        f"{name}-{field}"
        for name, model in coretables.sections().items()
        for field, info in model.model_fields.items()
        if field not in coretables.sections()
    ]
    assert keys == wanted
    assert all(row[2] and row[3] for row in rows)


@pytest.mark.parametrize(
    ("section", "field", "said"),
    [
        (config.ObjectiveConfig, "eps_clip", "a number above 0 and below 1"),
        (config.ObjectiveConfig, "eps_clip_high", "a number above 0, or unset"),
        (config.RolloutConfig, "top_p", "a number above 0 and to 1"),
        (config.RolloutConfig, "mode", '`"sync"`, `"async"`'),
        (config.EngineConfig, "enable_fp32_lm_head", "`true`, `false`, or unset"),
        (config.MilesConfig, "save", "a text, or unset"),
        (config.MilesConfig, "debug_exit_after_rollout", "a whole number from 1, or unset"),
    ],
)
def test_allowed_values_are_said_in_words(section, field, said):
    assert coretables.allowed(section.model_fields[field]) == said


def test_a_record_key_has_its_alias_and_its_description():
    rows = {row[0]: row for row in coretables.TABLES["core-record"](TREE)[1:]}
    assert rows["`policy.global`"][2] == "of the step over all ranks"
    assert rows["`counts.accumulation`"][1] == "whole number"
    assert all(row[2] for row in rows.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "FILE", "--resume"], None),
        (["run", "FILE", "--resme"], "unrecognized arguments: --resme"),
        (["train"], "no verb 'train'"),
        (["contract"], "required: FILE"),
        (["--help"], None),
    ],
)
def test_a_command_of_the_trainer_is_held_against_its_own_parser(words, said):
    found = coreverbs.problem(words)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        (".venv-core/bin/python -m capture.core config", True),
        ("python3 -m capture.core support FILE", True),
        (".venv-core/bin/python -m capture.core run FILE --dry-run", True),
        (".venv-core/bin/python -m capture.core run FILE", False),
        (".venv-core/bin/python -m capture.core runtime", False),
        ("python3 -m scripts.check", False),
    ],
)
def test_only_verbs_without_torch_run_for_an_output(command, runs):
    assert coreverbs.runs_here(command) is runs


def test_a_verb_prints_for_an_output_what_it_prints_for_a_reader():
    printed = outputs.printed_by(".venv-core/bin/python -m capture.core config | head -1")
    assert printed.startswith('name = "run"')


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ("core:rollout.num_rollout", str(config.RolloutConfig().num_rollout)),
        ("core/mechanics:rollout.num_rollout", "80"),
        ("core/none:rollout.num_rollout", None),
        ("core:rollout.nothing", None),
        ("core:objective.tis", None),
    ],
)
def test_a_setting_of_the_trainer_is_read_from_its_defaults_or_an_example(setting, number):
    assert coresettings.value(TREE, coresettings.SETTING.fullmatch(setting)) == number


@pytest.mark.parametrize("name", corelab.RUNS)
def test_a_recorded_run_has_whole_records_and_commands_that_parse(name):
    folder = ROOT / str(corelab.RECORDED) / name
    files = sorted(folder.glob("training_contract_rank*.jsonl.xz"))
    report = verify.verify(files)
    assert files
    assert report.records
    assert report.problems == []
    for command in toml((folder / "recorded.toml").read_text())["commands"]:
        words = command.split()
        assert coreverbs.problem(words[words.index("capture.core") + 1 :]) is None


def test_every_recorded_folder_is_known_to_the_figures():
    folders = {path.parent.name for path in ROOT.glob(f"{corelab.RECORDED}/*/recorded.toml")}
    assert folders == set(corelab.RUNS)


def test_a_time_of_a_processor_is_no_value():
    with pytest.raises(corelab.EvidenceError, match="time of a processor"):
        corelab.value("share", "scoring_cost", "share", 2)
    with pytest.raises(corelab.EvidenceError, match="time of a processor"):
        corelab.logged("mechanics", "perf/step_time")


def test_a_value_that_no_record_has_is_named():
    with pytest.raises(corelab.EvidenceError, match=r"fp32_head\.json: no value 'nothing'"):
        corelab.value("x", "fp32_head", "nothing", 1)
    with pytest.raises(corelab.EvidenceError, match="is True, no number"):
        corelab.value("x", "fp32_head", "same_backward", 1)


def test_a_mixture_on_a_processor_says_its_stand_ins():
    assert (
        "CPU stand-ins for 6 functions"
        in corelab.Recording("core-cpu/moe_import").setup["software"]
    )
    assert "stand-ins" not in corelab.Recording("core-cpu/fp32_head").setup["software"]
