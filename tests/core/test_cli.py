"""The command line: exit codes, one line of error, and what a verb loads."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from test_manifest import checkpoint

from capture.core import cli, configfile, resuming, runtime, tasks, tinymodel
from capture.core.errors import CheckpointError, ConfigError, ContractError

ROOT = Path(__file__).resolve().parents[2]
EARLY = cli.early
LONGEST = max(len(prompt.tokens) for prompt in tasks.load(configfile.parse({})).train)


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f'name = "x"\n[miles]\nsave = "{tmp_path}/out"\n')
    return path


@pytest.fixture
def driver(monkeypatch):
    """A driver that keeps the settings it is given and does what `action` says."""
    fake = types.ModuleType("capture.core.driver")
    fake.seen, fake.action = [], lambda: 0

    def main(config):
        fake.seen.append(config)
        return fake.action()

    fake.main = main
    monkeypatch.setitem(sys.modules, "capture.core.driver", fake)
    monkeypatch.setattr(runtime, "check", lambda: None)
    monkeypatch.setattr(cli, "early", lambda config: None)
    return fake


def test_run_gives_the_driver_checked_settings(run_file, driver):
    assert cli.main(["run", str(run_file), "--seed", "5", "--set", "optimizer.lr=1e-3"]) == 0
    (config,) = driver.seen
    assert (config.name, config.seed, config.optimizer.lr) == ("x", 5, 1e-3)
    assert config.miles.load is None


def test_resume_loads_from_where_the_run_saves(run_file, driver):
    assert cli.main(["run", str(run_file), "--resume"]) == 0
    (config,) = driver.seen
    assert config.miles.load == config.miles.save


def test_resume_without_a_folder_is_bad_usage(run_file, driver, capsys):
    run_file.write_text("")
    assert cli.main(["run", str(run_file), "--resume"]) == 2
    assert "miles.save: unset" in capsys.readouterr().err
    assert not driver.seen


def test_a_dry_run_starts_nothing(run_file, driver, capsys):
    assert cli.main(["run", str(run_file), "--dry-run"]) == 0
    assert "10 collections of 8 x 8 samples" in capsys.readouterr().out
    assert not driver.seen


@pytest.mark.parametrize(
    ("error", "code"),
    [(ContractError("loss", "nan\nin step 3"), 1), (CheckpointError("torn"), 1)],
)
def test_a_failure_of_a_run_is_one_line(run_file, driver, capsys, error, code):
    def fail():
        raise error

    driver.action = fail
    assert cli.main(["run", str(run_file)]) == code
    found = capsys.readouterr().err
    assert found.startswith("run: ")
    assert found.count("\n") == 1


def test_refused_settings_never_reach_the_driver(run_file, driver, capsys):
    assert cli.main(["run", str(run_file), "--set", "parallel.tp=2"]) == 2
    assert "tensor-parallel" in capsys.readouterr().err
    assert not driver.seen


def test_another_runtime_never_reaches_the_driver(run_file, driver, monkeypatch, capsys):
    def differs():
        raise runtime.RuntimeLockError("torch: version 1.0")

    monkeypatch.setattr(runtime, "check", differs)
    assert cli.main(["run", str(run_file)]) == 2
    assert capsys.readouterr().err == "run: torch: version 1.0\n"
    assert not driver.seen


@pytest.mark.parametrize(("started", "wanted"), [(None, 2), ("2", 1), ("4", 2)])
def test_ranks_that_were_not_started_are_refused(
    run_file, driver, monkeypatch, capsys, started, wanted
):
    if started is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", started)
    assert cli.main(["run", str(run_file), "--set", f"parallel.world_size={wanted}"]) == 2
    assert f"torchrun --nproc-per-node {wanted}" in capsys.readouterr().err
    assert not driver.seen


def test_as_many_ranks_as_were_started_run(run_file, driver, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["run", str(run_file), "--set", "parallel.world_size=2"]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--help"], 0),
        (["no-such-verb"], 2),
        (["run"], 2),
        (["run", "--help"], 0),
        (["run", "no-such-file.toml"], 2),
        (["run", "no-such-file.toml", "--seed", "x"], 2),
        (["config"], 0),
        (["config", "--markdown"], 0),
        (["config", "no-such-file.toml"], 2),
        (["support"], 0),
        (["support", "no-such-file.toml"], 2),
        (["contract", "no-such-file.jsonl"], 2),
        (["verify-checkpoint", "no-such-folder"], 2),
    ],
)
def test_exit_codes(words, code):
    assert cli.main(words) == code


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_with_exit_codes(verb, capsys):
    assert cli.main([verb, "--help"]) == 0
    assert "exit codes: 0" in " ".join(capsys.readouterr().out.lower().split())


def test_the_help_lists_every_verb(capsys):
    cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in cli.VERBS)


def test_an_interrupt_is_no_traceback(run_file, driver, capsys):
    def interrupt():
        raise KeyboardInterrupt

    driver.action = interrupt
    assert cli.main(["run", str(run_file)]) == 130
    assert capsys.readouterr().err == "run: interrupted\n"


def test_a_closed_pipe_is_no_traceback():
    program = f"{sys.executable} -m capture.core config | head -n 1"
    done = subprocess.run(
        ["bash", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == 'name = "run"  # name of the run\n'
    assert "Traceback" not in done.stderr


def test_light_verbs_load_nothing_heavy():
    program = (
        "import sys\nfrom capture.core.cli import main\n"
        "codes = [main(words) for words in (['config'], ['support'], ['--help'])]\n"
        "heavy = {'torch', 'olmo_core', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy or any(codes) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def early(folder, **changes):
    data = {"miles.save": str(folder / "out"), **changes}
    return resuming.early(configfile.parse(configfile.with_changes({}, data)))


def test_folders_are_looked_at_before_anything_heavy_is_loaded(tmp_path):
    early(tmp_path)
    with pytest.raises(CheckpointError, match="no finished checkpoint; start without --resume"):
        early(tmp_path, **{"miles.load": str(tmp_path / "out")})
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        early(tmp_path)
    (tmp_path / "out").unlink()
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/x").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        early(tmp_path, **{"miles.save_hf": str(tmp_path / "hf")})
    checkpoint(tmp_path / "out/checkpoints/iter_0000003")
    with pytest.raises(ConfigError, match="holds a run; resume it with --resume"):
        early(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("seed", 2, "seed was 1 and is 2"),
        ("rollout.rollout_batch_size", 4, "rollout.rollout_batch_size was 2 and is 4"),
        ("rollout.shuffle", False, "rollout.shuffle was True and is False"),
        ("batch.global_batch_size", 8, "resume with the old batch sizes"),
        ("rollout.num_rollout", 2, "is behind them"),
        ("parallel.world_size", 2, "topology changes"),
        ("model.d_model", 32, "model.d_model was 64 and is 32"),
        ("task.max_operand", 9, "task.max_operand was 29 and is 9"),
        ("name", "other", None),
        ("objective.eps_clip", 0.1, None),
    ],
)
def test_a_resume_with_changed_settings_names_the_setting(tmp_path, key, value, says):
    base = {
        "seed": 1, "rollout.rollout_batch_size": 2, "rollout.n_samples_per_prompt": 4,
        "batch.global_batch_size": 4, "miles.load": str(tmp_path / "out"),
    }  # fmt: skip
    checkpoint(tmp_path / "out/checkpoints/iter_0000003")
    start = tmp_path / "out/start-model"
    start.mkdir()
    config = configfile.parse(configfile.with_changes({}, base))
    (start / tinymodel.FACTS).write_text(json.dumps(tinymodel.facts_of(config)))
    early(tmp_path, **base)
    changed = {**base, key: value}
    if says is None:
        early(tmp_path, **changed)
        return
    with pytest.raises(CheckpointError) as caught:
        early(tmp_path, **changed)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_that_is_none_is_refused_before_the_runtime_is_looked_at(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text('[task]\nname = "aritmetic"\n')
    assert cli.main(["run", str(path)]) == 2
    assert "task.name: 'aritmetic'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("batch", "kind", "fits"),
    [
        ({"pack_tokens": LONGEST + 16}, "transformers", True),
        ({"pack_tokens": LONGEST + 15}, "transformers", False),
        ({"document_tokens": LONGEST + 16, "pack_tokens": 2 * (LONGEST + 16)}, "core", True),
        ({"document_tokens": LONGEST + 15, "pack_tokens": 2 * (LONGEST + 15)}, "core", False),
        ({}, "transformers", True),
    ],
)
def test_a_prompt_that_with_its_longest_response_fits_nowhere_is_refused_at_once(
    tmp_path, driver, capsys, monkeypatch, batch, kind, fits
):
    monkeypatch.setattr(cli, "early", EARLY)
    path = tmp_path / "run.toml"
    lines = [f'[engine]\nkind = "{kind}"', "[rollout]\nmax_new_tokens = 16", "[batch]"]
    path.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in batch.items())]))
    assert cli.main(["run", str(path)]) == (0 if fits else 2)
    said = capsys.readouterr().err
    assert len(driver.seen) == fits
    if not fits:
        assert f"the longest prompt has {LONGEST} tokens" in said
        assert said.count("\n") == 1
        assert not (tmp_path / "out").exists()
