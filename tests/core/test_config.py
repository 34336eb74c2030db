"""The settings of a run: every field with its default, and errors on one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from capture.core import configfile, configtext
from capture.core.config import RunConfig
from capture.core.errors import ConfigError, CoreRunError, RefusedError

ROOT = Path(__file__).resolve().parents[2]
#: the fields that the page names, with the defaults it gives
PAGE = {
    "core.router_aux_loss_grouping": "pack",
    "core.router_aux_loss_reduction": "token",
    "core.router_z_loss_reduction": "token",
    "core.router_aux_count_source": "executed",
    "core.router_aux_loss_weight": 0.01,
    "core.router_z_loss_weight": 1e-5,
    "core.compile_model": False,
    "core.diagnostic_interval": 0,
    "core.fp32_lm_head": False,
    "trainer.fp32_lm_head": False,
    "engine.enable_fp32_lm_head": None,
    "engine.refresh": "mixed",
    "batch.microbatch_size": 1,
    "parallel.tp": 1,
    "parallel.pp": 1,
    "parallel.cp": 1,
    "parallel.ep": 1,
    "rollout.max_lag": 0,
    "miles.save": None,
    "miles.debug_exit_after_rollout": None,
    "miles.check_weight_update_equal": False,
    "miles.use_rollout_routing_replay": False,
    "miles.use_miles_router": False,
}
SPELLED_OUT = """
[core]
router_aux_loss_grouping = "pack"
router_aux_loss_reduction = "token"
router_z_loss_reduction = "token"
router_aux_count_source = "executed"
router_aux_loss_weight = 0.01
router_z_loss_weight = 1e-5
"""
RESPONSE = """
[core]
compile_model = false
router_aux_loss_grouping = "sequence"
router_aux_loss_reduction = "response"
router_aux_count_source = "router_selected"
"""


def value(config, dotted):
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def write(folder, text):
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("dotted", PAGE)
def test_fields_of_the_page_have_its_defaults(dotted):
    assert value(RunConfig(), dotted) == PAGE[dotted]


def test_an_empty_file_is_a_run_with_all_defaults(tmp_path):
    assert configfile.load(write(tmp_path, "")) == RunConfig()


def test_router_fields_spelled_out_are_the_defaults(tmp_path):
    assert configfile.load(write(tmp_path, SPELLED_OUT)) == RunConfig()


def test_the_response_example_leaves_the_z_loss_at_tokens(tmp_path):
    assert configfile.read(write(tmp_path, RESPONSE)).core.router_z_loss_reduction == "token"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[core]\ncompile = true\n", 2, "core.compile: True: no such key"),
        ("bogus = 1\n", 1, "bogus: 1: no such key"),
        ("[bogus]\nx = 1\n", 1, "bogus: {'x': 1}: no such key"),
        ("\n[optimizer]\n\nlr = '1e-6'\n", 4, "optimizer.lr: '1e-6': should be a valid number"),
        ("[optimizer]\nlr = nan\n", 2, "optimizer.lr: nan: should be a finite number"),
        ("[optimizer]\nlr = 0.0\n", 2, "optimizer.lr: 0.0: should be greater than 0"),
        ("optimizer.lr = -1.0\n", 1, "optimizer.lr: -1.0: should be greater than 0"),
        ("[parallel]\nworld_size = true\n", 2, "parallel.world_size: True: should be a valid int"),
        ("[parallel]\nworld_size = 1.0\n", 2, "parallel.world_size: 1.0: should be a valid int"),
        ("[objective]\ntis = 1\n", 2, "objective.tis: 1: should be a valid boolean"),
        ("[objective]\neps_clip_high = 'x'\n", 2, "objective.eps_clip_high: 'x': should be"),
        ("[core]\nrouter_aux_loss_grouping = 'x'\n", 2, "'x': should be 'pack' or 'sequence'"),
        ("[core]\nrouter_aux_loss_weight = -0.01\n", 2, "core.router_aux_loss_weight: -0.01: "),
        ("[engine]\nrefresh = 'x'\n", 2, "should be 'mixed', 'barrier' or 'drain'"),
        ("model = 3\n", 1, "model: 3: should be a table"),
        ("[miles]\nsave = ''\n", 2, "miles.save: ''"),
        ("[miles]\ndebug_exit_after_rollout = 0\n", 2, "miles.debug_exit_after_rollout: 0"),
    ],
)
def test_a_wrong_value_names_file_line_key_and_value(tmp_path, text, line, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        configfile.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_problems_are_counted(tmp_path):
    with pytest.raises(ConfigError, match=r"x: 1: no such key \(and 2 more\)"):
        configfile.load(write(tmp_path, "x = 1\ny = 2\nz = 3\n"))


def test_a_long_or_hostile_value_stays_on_one_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        configfile.load(write(tmp_path, f'seed = "\\n\\u001b[31m{"a" * 9999}"\n'))
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[core\n", b"a = 1\na = 2\n", b"seed = \0"])
def test_a_file_that_is_no_toml_is_one_line(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        configfile.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            configfile.load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no readable config.json"),
        ("{", "not JSON"),
        ("[]", "model_type"),
        ("{}", "model_type"),
        ('{"model_type": "llama", "num_experts": "many"}', "a number of experts"),
        ('{"model_type": "llama", "attention_dropout": [1]}', "a number of experts or a dropout"),
    ],
)
def test_a_model_folder_that_is_none_is_named(tmp_path, content, words):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=words):
        configfile.parse({"model": {"path": str(tmp_path)}})


def test_a_mixture_of_experts_folder_is_found_in_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 8}')
    with pytest.raises(RefusedError) as caught:
        configfile.parse({"model": {"path": str(tmp_path)}})
    assert caught.value.id == "moe-family"
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe", "num_experts": 8}')
    assert configfile.parse({"model": {"path": str(tmp_path)}})


def test_settings_cannot_change_after_they_were_checked():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().parallel.tp = 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seed=7", ("seed", 7)),
        ("core.compile_model=true", ("core.compile_model", True)),
        ("miles.save=runs/x", ("miles.save", "runs/x")),
        ('miles.save="3"', ("miles.save", "3")),
        ("optimizer.lr=1e-3", ("optimizer.lr", 1e-3)),
    ],
)
def test_a_change_is_toml_or_else_a_string(text, found):
    assert configfile.change(text) == found


@pytest.mark.parametrize("text", ["seed", "=1", "a.b.c=1", "A=1", "core.x y=1", "seed=1\nname=2"])
def test_a_change_of_another_form_is_refused(text):
    with pytest.raises(ConfigError, match="--set"):
        configfile.change(text)


def test_changes_replace_and_remove(tmp_path):
    path = write(tmp_path, "[miles]\nsave = 'a'\n")
    assert configfile.load(path, {"miles.save": "b"}).miles.save == "b"
    assert configfile.load(path, {"miles.save": None}).miles.save is None
    with pytest.raises(ConfigError, match="seed: 1: is a value"):
        configfile.with_changes({"seed": 1}, {"seed.x": 2})


def test_the_printed_settings_load_to_themselves(tmp_path):
    changes = {"miles.save": 'a "b" \\ c', "optimizer.lr": 3e-4, "objective.tis": True}
    config = configfile.validate(configfile.with_changes({}, changes))
    assert configfile.load(write(tmp_path, configtext.toml(config))) == config


def test_every_field_has_a_description_and_stands_in_the_table():
    rows = list(configtext.rows())
    assert len(rows) > 80
    assert all(text for _, _, _, text in rows)
    assert all(f"| `{key}` |" in configtext.markdown() for key, _, _, _ in rows)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"batch.global_batch_size": 32}, False),
        ({"objective.kl_coef": 0.1}, False),
        ({"model.dropout": 0.1}, False),
        ({"scoring.force": True}, False),
    ],
)
def test_the_training_forward_is_the_anchor_only_under_the_three_conditions(changes, may):
    assert configfile.validate(configfile.with_changes({}, changes)).anchor_may_skip is may


def test_counts_of_a_run_follow_from_its_fields():
    config = configfile.parse(
        {
            "rollout": {"num_rollout": 3, "rollout_batch_size": 4, "n_samples_per_prompt": 6},
            "batch": {"global_batch_size": 8},
        }
    )
    assert config.samples_per_collection == 24
    assert (config.steps_per_collection, config.total_steps) == (3, 9)
    assert "3 collections of 4 x 6 samples, 3 optimizer steps each, 9 in all" in configtext.plan(
        config
    )


def test_every_error_has_an_exit_code():
    kinds = [CoreRunError, *CoreRunError.__subclasses__()]
    assert {kind.exit_code for kind in kinds} == {1, 2}


def test_nothing_heavy_is_loaded_to_check_a_run(tmp_path):
    path = write(tmp_path, "[parallel]\ntp = 2\n")
    program = (
        "import sys\nfrom capture.core.cli import main\n"
        f"code = main(['run', {str(path)!r}])\n"
        "heavy = {'torch', 'olmo_core', 'transformers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(0 if code == 2 and not heavy else f'{code} {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
