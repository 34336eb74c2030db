"""The support matrix: each row is exercised from the table itself."""

import importlib
import json
import re
from pathlib import Path

import pytest

from capture.core import configfile, support
from capture.core.config import CoreConfig, RunConfig
from capture.core.errors import RefusedError
from capture.core.modelfacts import ModelFacts, from_dict
from capture.core.support import REFUSED_BY_SETTINGS
from capture.core.supportother import ACCEPTED, NOT_COVERED, REFUSED_ELSEWHERE
from capture.core.supportrows import router_changes

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = {
    "Trainer hookup",
    "Samples, scoring and objectives",
    "Router replay and parallelism",
    "Checkpoints and publication",
    "Training contract checks",
    "Router auxiliary objectives",
    "Supported scope and runtime",
    "FP32-output vocabulary head",
    "",
}


def settings(example):
    return configfile.validate(configfile.with_changes({}, example))


def by_id(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.id)


@by_id(REFUSED_BY_SETTINGS)
def test_a_refused_row_refuses_its_example_and_says_why(row):
    with pytest.raises(RefusedError) as caught:
        support.evaluate(settings(row.example), row.facts)
    assert caught.value.id == row.id
    assert row.reason in str(caught.value)
    assert " = " in str(caught.value)
    assert "\n" not in str(caught.value)


@by_id([row for row in REFUSED_BY_SETTINGS if row.facts is None])
def test_a_refused_example_never_becomes_settings(row):
    with pytest.raises(RefusedError):
        configfile.parse(configfile.with_changes({}, row.example))


@by_id([row for row in REFUSED_BY_SETTINGS if row.example])
def test_a_refused_row_looks_at_what_its_example_changes(row):
    """Without the right key of its example, the row no longer applies."""
    freed = []
    for key in row.example:
        rest = {name: value for name, value in row.example.items() if name != key}
        if row.id not in [item.row.id for item in support.refusals(settings(rest))]:
            freed.append(key)
    assert freed


@by_id(ACCEPTED)
def test_an_accepted_row_accepts_its_example(row):
    assert configfile.parse(configfile.with_changes({}, row.example))


@by_id(NOT_COVERED)
def test_a_row_that_is_not_covered_says_what_is_missing(row):
    assert row.reason
    assert row.when is None


@by_id(REFUSED_ELSEWHERE)
def test_a_row_refused_elsewhere_names_a_test_that_exists(row):
    path, _, name = row.by.partition("::")
    assert re.search(rf"^def {name}\b", (ROOT / path).read_text(), re.MULTILINE)


def test_ids_are_unique_and_every_row_has_a_place_on_the_page():
    ids = [row.id for row in support.ROWS]
    assert len(ids) == len(set(ids))
    assert {row.seed for row in support.ROWS} <= HEADINGS
    assert all(row.reason for row in support.ROWS if row.state != "accepted")


def test_the_defaults_are_accepted():
    support.evaluate(RunConfig())


def test_several_refusals_are_all_found_and_counted():
    config = settings({"parallel.tp": 2, "parallel.pp": 2, "core.compile_model": True})
    found = [item.row.id for item in support.refusals(config)]
    assert found == ["compile", "tensor-parallel", "pipeline-parallel"]
    with pytest.raises(RefusedError, match=r"\(and 2 more\)"):
        support.evaluate(config)


@pytest.mark.parametrize("name", [n for n in CoreConfig.model_fields if n.startswith("router_")])
def test_every_router_control_needs_the_moe_backend(name):
    changed = {
        "router_aux_loss_grouping": "sequence",
        "router_aux_loss_reduction": "response",
        "router_z_loss_reduction": "response",
        "router_aux_count_source": "router_selected",
        "router_aux_loss_weight": 0.0,
        "router_z_loss_weight": 0.0,
    }[name]
    config = settings({f"core.{name}": changed})
    assert router_changes(config.core) == [f"core.{name}"]
    assert [item.row.id for item in support.refusals(config)] == ["router-dense"]
    moe = settings({f"core.{name}": changed, "model.family": "qwen3_moe"})
    assert support.refusals(moe) == []


@pytest.mark.parametrize("switch", ["use_rollout_routing_replay", "use_miles_router"])
def test_either_replay_switch_alone_is_refused(switch):
    found = support.refusals(settings({f"miles.{switch}": True}))
    assert [item.row.id for item in found] == ["replay-both"]


@pytest.mark.parametrize("form", ["core", "trainer"])
@pytest.mark.parametrize(
    ("serving", "ids"),
    [
        (None, []),
        (True, []),
        (False, ["fp32-conflict"]),
    ],
)
def test_the_head_of_both_sides_goes_together(form, serving, ids):
    config = settings({f"{form}.fp32_lm_head": True, "engine.enable_fp32_lm_head": serving})
    assert config.fp32_lm_head
    assert [item.row.id for item in support.refusals(config)] == ids


def test_a_serving_head_without_the_trainers_is_a_conflict_too():
    found = support.refusals(settings({"engine.enable_fp32_lm_head": True}))
    assert [item.row.id for item in found] == ["fp32-conflict"]


@pytest.mark.parametrize(
    ("batch", "world", "ok"),
    [(64, 1, True), (32, 2, True), (16, 3, False), (48, 2, False), (128, 1, False), (1, 1, True)],
)
def test_batches_divide_collections_and_ranks(batch, world, ok):
    config = settings({"batch.global_batch_size": batch, "parallel.world_size": world})
    assert bool(support.refusals(config)) is not ok


@pytest.mark.parametrize(
    ("found", "facts"),
    [
        ({"model_type": "llama"}, ModelFacts("llama")),
        ({"model_type": "llama", "num_experts": None}, ModelFacts("llama")),
        ({"model_type": "mixtral", "num_local_experts": 8}, ModelFacts("mixtral", 8)),
        ({"model_type": "qwen3", "attention_dropout": 0.1}, ModelFacts("qwen3", dropout=0.1)),
        ({"model_type": "a", "text_config": {"model_type": "qwen3"}}, ModelFacts("qwen3")),
        ({"model_type": "llama", "attention_bias": True}, ModelFacts("llama", attention_bias=True)),
    ],
)
def test_facts_of_a_model_come_from_its_configuration(found, facts):
    assert from_dict(found) == facts


def test_dropout_of_a_models_own_configuration_is_refused():
    found = support.refusals(RunConfig(), ModelFacts("llama", dropout=0.1))
    assert [str(item) for item in found] == [
        "dropout = 0.1: nothing here checks a scoring pass against a forward with dropout"
    ]


def test_the_moe_backend_is_chosen_by_the_models_own_experts():
    assert [row.row.id for row in support.refusals(RunConfig(), ModelFacts("olmoe", 64))] == [
        "moe-family"
    ]
    assert support.refusals(RunConfig(), ModelFacts("qwen3_moe", 64)) == []


def test_the_table_has_a_line_for_every_row():
    lines = support.markdown().splitlines()
    assert len(lines) == len(support.ROWS) + 2
    assert all(line.count(" | ") == 3 for line in lines)


def test_the_program_says_which_rows_refuse_a_file(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text("[parallel]\ntp = 2\n")
    assert support.main([str(path)]) == 1
    assert "refused (tensor-parallel): parallel.tp = 2" in capsys.readouterr().out
    assert support.main([str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["id"] == "tensor-parallel"
    path.write_text("")
    assert support.main([str(path)]) == 0
    assert "accepted" in capsys.readouterr().out


def test_the_program_prints_the_matrix_in_three_forms(capsys):
    for form in ([], ["--json"], ["--markdown"]):
        assert support.main(form) == 0
        text = capsys.readouterr().out
        assert "router objective controls need the Core MoE backend" in text


def test_the_actor_evaluates_the_matrix_when_it_is_built():
    actor = importlib.import_module("capture.core.actor")
    with pytest.raises(RefusedError, match="tensor-parallel"):
        actor.CoreActor(settings({"parallel.tp": 2}))
