"""The driver with a trainer and an engine of two vectors: order, versions, resume, files."""

import json
import re
import threading
import time

import fakes
import pytest
import torch

from capture.core import driver, journal, rollouts
from capture.core.contract import read
from capture.core.cursor import Draw
from capture.core.driver import Parts
from capture.core.errors import CheckpointError, ConfigError, ContractError, PublicationError
from capture.core.publish import Serving


def run(tmp_path, boundary=None, made=None, **changes):
    config = fakes.settings(tmp_path, **changes)
    made = made or fakes.parts(config, tmp_path)
    return driver.run(config, parts=made, boundary=boundary), made


def records(tmp_path, name="training_contract_rank0.jsonl"):
    lines = list(read(tmp_path / "run" / name))
    assert all(line.problem is None for line in lines)
    return [line.record for line in lines]


def weights(path):
    from safetensors.torch import load_file

    return load_file(path / "hf/model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_parts_of_a_collection_come_in_order(tmp_path):
    seen = []
    result, _ = run(
        tmp_path, lambda name, index: seen.append((index, name)), evaluation__interval=2
    )
    expected = [(i, name) for i in range(6) for name in driver.BOUNDARIES[:-1]]
    assert seen == [*expected, (6, "exported")]
    assert (result.completed, result.collections, result.optimizer_step) == (True, 6, 12)
    assert [found.collection for found in result.evaluations] == [2, 4, 6]
    assert result.published == 12


def test_each_collection_is_generated_by_the_version_that_trains(tmp_path):
    run(tmp_path)
    found = records(tmp_path)
    assert [record.step for record in found] == list(range(1, 13))
    assert [record.versions.trained for record in found] == list(range(12))
    assert [record.versions.consumed for record in found] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert [record.versions.published for record in found] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert {record.versions.allowed_lag for record in found} == {1}
    assert [record.lr.next for record in found[:-1]] == [record.lr.used for record in found[1:]]


def test_contract_verifier_accepts_the_records(tmp_path):
    from capture.core.verify import main

    run(tmp_path)
    assert main([str(tmp_path / "run/training_contract_rank0.jsonl")]) == 0


def test_version_serves_only_the_weights_it_names(tmp_path):
    def check(name, index):
        if name in ("published", "evaluated", "checkpointed"):
            assert made.engine.version == made.actor.optimizer_step
            assert same(made.engine.weights, made.actor.weights)
        elif name == "trained":
            assert made.engine.version == made.actor.optimizer_step - 2
            assert not same(made.engine.weights, made.actor.weights)

    config = fakes.settings(tmp_path)
    made = fakes.parts(config, tmp_path)
    driver.run(config, parts=made, boundary=check)


def test_final_export_is_the_trained_policy_and_comes_at_the_horizon_only(tmp_path):
    exists = []
    _, made = run(tmp_path, lambda name, index: exists.append((tmp_path / "hf").exists()))
    assert exists == [False] * (len(exists) - 1) + [True]
    assert same(weights(tmp_path), made.actor.weights)
    assert (tmp_path / "hf/config.json").exists()


def test_export_without_a_step_is_the_import(tmp_path):
    from capture.core.export import write_hf

    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text("{}")
    (start / "model.safetensors").write_text("old weights, not copied")
    write_hf(fakes.first_weights().items(), start, tmp_path / "hf")
    assert same(weights(tmp_path), fakes.first_weights())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "start"]
    assert sorted(p.name for p in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_occupied_export_folder_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/x").write_text("")
    with pytest.raises(ConfigError, match=r"miles\.save_hf.*not empty"):
        run(tmp_path)
    assert not (tmp_path / "run").exists()


def test_failed_export_leaves_no_folder_and_can_be_made_later(tmp_path):
    config = fakes.settings(tmp_path)
    made = fakes.parts(config, tmp_path)
    export = made.actor.export

    def broken():
        if made.actor.optimizer_step == 12 and made.engine.version == 12:
            raise OSError(28, "No space left on device")
        return export()

    made.actor.export = broken
    with pytest.raises(ContractError, match="No space left"):
        driver.run(config, parts=made)
    assert not (tmp_path / "hf").exists()
    result, again = run(tmp_path, miles__load=str(tmp_path / "run"))
    assert (result.completed, result.collections, result.rewards) == (True, 6, [])
    assert same(weights(tmp_path), again.actor.weights)
    assert len(records(tmp_path)) == 12


def test_deliberate_stop_is_resumable_and_leaves_no_export_folder(tmp_path):
    straight, _ = run(tmp_path / "a")
    stop = {"miles__debug_exit_after_rollout": 2, "miles__save_interval": 0}
    first, _ = run(tmp_path / "b", **stop)
    assert (first.completed, first.collections) == (False, 2)
    assert not (tmp_path / "b/hf").exists()
    second, _ = run(tmp_path / "b", **stop, miles__load=str(tmp_path / "b/run"))
    assert (second.completed, second.collections) == (True, 6)
    assert first.rewards + second.rewards == straight.rewards
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    plain = [record.model_copy(update={"seconds": 0.0}) for record in records(tmp_path / "a")]
    both = [record.model_copy(update={"seconds": 0.0}) for record in records(tmp_path / "b")]
    assert plain == both


@pytest.mark.parametrize("stop", range(1, 6))
def test_resume_anywhere_is_bitwise(tmp_path, stop):
    run(tmp_path / "a")
    run(tmp_path / "b", miles__debug_exit_after_rollout=stop)
    run(tmp_path / "b", miles__load=str(tmp_path / "b/run"))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_nothing_native_is_loaded_before_the_manifest_is_checked(tmp_path):
    run(tmp_path, miles__debug_exit_after_rollout=2)
    newest = sorted((tmp_path / "run/checkpoints").iterdir())[-1]
    (newest / "train/rank0.pt").write_text("torn")
    config = fakes.settings(tmp_path, miles__load=str(tmp_path / "run"))
    made = fakes.parts(config, tmp_path)
    with pytest.raises(CheckpointError, match=r"rank0\.pt.*iter_0000001"):
        driver.run(config, parts=made)
    assert made.actor.calls == []


def test_resume_of_other_prompts_or_steps_is_refused(tmp_path):
    run(tmp_path, miles__debug_exit_after_rollout=2)
    for changes, says in (
        ({"rollout__rollout_batch_size": 2}, "cursor.batch"),
        ({"batch__global_batch_size": 8}, "this run would have made 2"),
    ):
        with pytest.raises(CheckpointError, match=says):
            run(tmp_path, miles__load=str(tmp_path / "run"), **changes)
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        run(tmp_path, miles__load=str(tmp_path / "nothing"))


def test_fresh_run_does_not_write_into_another_ones_folder(tmp_path):
    run(tmp_path, miles__debug_exit_after_rollout=2)
    with pytest.raises(ConfigError, match="holds a run"):
        run(tmp_path)


def test_resume_into_a_folder_of_its_own(tmp_path):
    run(tmp_path / "a")
    run(tmp_path, miles__debug_exit_after_rollout=2, miles__save_hf=None)
    result, _ = run(tmp_path / "b", miles__load=str(tmp_path / "run"))
    assert result.completed
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert [record.step for record in records(tmp_path / "b")] == list(range(5, 13))


def test_run_log_holds_every_part_and_the_records_again(tmp_path):
    run(tmp_path, evaluation__interval=3, evaluation__at_start=True)
    text = (tmp_path / "run/run.log").read_text()
    order = re.findall(r"(?:main|rank0|manager)\] \S+ - (\w+(?: end)?) (?:version )?(\d+)", text)
    assert order[:4] == [("published", "0"), ("eval", "0"), ("perf", "0"), ("rollout", "0")]
    assert [n for word, n in order if word == "step"] == [str(i) for i in range(12)]
    assert [n for word, n in order if word == "eval"] == ["0", "2", "5"]
    logged = [json.loads(line.split("training_contract ")[1].split(": ", 1)[1])
              for line in text.splitlines() if "training_contract " in line]  # fmt: skip
    path = tmp_path / "run/training_contract_rank0.jsonl"
    assert logged == [json.loads(line) for line in path.read_text().splitlines()]
    assert text.count("Saved checkpoint to checkpoints/iter_") == 6
    assert str(tmp_path) not in text
    assert re.search(r"# end \S+ rc=0 seconds=\d+\n\Z", text)


def test_an_absolute_path_is_named_by_its_last_part_alone():
    for text, kept in (
        ('{"save":"/home/me/runs/x","path":null}', '{"save":"x","path":null}'),
        ("miles.save=/data/runs/x", "miles.save=x"),
        ("--resume ~/runs/x", "--resume x"),
        ("engine.url=http://127.0.0.1:30000/v1/x", "engine.url=http://127.0.0.1:30000/v1/x"),
        ("capture/core/examples/gpu.toml", "capture/core/examples/gpu.toml"),
        ("../runs/x", "../runs/x"),
    ):
        assert journal.without_folders(text) == kept


def test_without_a_folder_nothing_is_written(tmp_path, capsys):
    config = fakes.settings()
    before = set(tmp_path.rglob("*"))
    result = driver.run(config, parts=fakes.parts(config, tmp_path / "x"))
    assert result.completed
    assert {p.name for p in set(tmp_path.rglob("*")) - before} == {"x", "start", "config.json"}
    assert "training_contract 11" in capsys.readouterr().out


# -- weight audits -------------------------------------------------------------------------------


def transfers(result):
    return [(record.version, record.repeated_version) for record in result.publications]


def test_audit_is_off_by_default(tmp_path):
    result, _ = run(tmp_path)
    assert transfers(result) == [(version, False) for version in range(0, 13, 2)]


def test_audit_without_an_interval_is_of_the_start_only(tmp_path):
    changes = {"miles__check_weight_update_equal": True}
    result, _ = run(tmp_path, **changes, miles__debug_exit_after_rollout=2)
    assert transfers(result) == [(0, False), (2, False), (4, False)]
    result, _ = run(tmp_path, **changes, miles__load=str(tmp_path / "run"))
    assert transfers(result)[:2] == [(4, False), (4, True)]
    assert [repeated for _, repeated in transfers(result)[2:]] == [False] * 4
    log = (tmp_path / "run/run.log").read_text()
    assert "equal to the HF snapshot" in log
    assert "same-version round trip" in (tmp_path / "run/run-2.log").read_text()


def test_audit_comes_at_every_nth_rollout_count(tmp_path):
    result, _ = run(tmp_path, miles__check_weight_update_equal=True, core__diagnostic_interval=3)
    repeated = [version for version, again in transfers(result) if again]
    assert repeated == [6, 12]
    assert len(result.publications) == 9


def test_fresh_run_finds_a_trainer_that_did_not_import_the_snapshot(tmp_path):
    config = fakes.settings(tmp_path, miles__check_weight_update_equal=True)
    made = fakes.parts(config, tmp_path)
    init = made.actor.init

    def other(folder):
        init(folder)
        made.actor.weights[fakes.NAMES[0]] += 1

    made.actor.init = other
    with pytest.raises(PublicationError, match="hf-snapshot"):
        driver.run(config, parts=made)


# -- async ---------------------------------------------------------------------------------------

ASYNC = {"rollout__mode": "async", "rollout__max_lag": 4, "engine__batch_size": 2}


def test_async_trains_on_older_versions_within_the_lag(tmp_path):
    result, _ = run(tmp_path, **ASYNC)
    assert result.completed
    found = records(tmp_path)
    assert [record.step for record in found] == list(range(1, 13))
    ages = [record.versions.trained - record.versions.consumed for record in found]
    assert max(ages) <= 4
    assert {record.versions.allowed_lag for record in found} == {4}


def test_async_generates_while_the_trainer_trains(tmp_path):
    config = fakes.settings(tmp_path, **ASYNC)
    made = fakes.parts(config, tmp_path)
    threads = set()
    made.engine.during = lambda: threads.add(threading.current_thread().name)
    driver.run(config, parts=made)
    assert threads == {"producer"}


def test_producer_is_paused_until_the_audit_is_done(tmp_path):
    config = fakes.settings(
        tmp_path, **ASYNC, miles__check_weight_update_equal=True, core__diagnostic_interval=1
    )
    made = fakes.parts(config, tmp_path)
    running, seen = [], []
    generate, snapshot, compare = made.engine.generate, made.engine.snapshot, made.engine.compare

    def generating(*given, **settings):
        running.append(1)
        time.sleep(0.02)
        seen.append(auditing := len(audit) % 2 == 1)
        running.pop()
        assert not auditing
        return generate(*given, **settings)

    audit = []

    def started():
        audit.append(len(running))
        snapshot()

    def ended():
        audit.append(len(running))
        return compare()

    made.engine.generate, made.engine.snapshot, made.engine.compare = generating, started, ended
    result = driver.run(config, parts=made)
    assert sum(again for _, again in transfers(result)) == 6
    assert audit == [0] * 14
    assert seen
    assert not any(seen)


def test_async_stop_keeps_pending_prompts_and_resumes_with_them(tmp_path):
    run(tmp_path, **ASYNC, miles__debug_exit_after_rollout=2, miles__save_interval=0)
    path = tmp_path / "run/checkpoints/iter_0000002/manifest.json"
    cursor = json.loads(path.read_text())["cursor"]
    assert cursor["collection"] == 2
    assert cursor["pending"]
    config = fakes.settings(tmp_path, **ASYNC, miles__load=str(tmp_path / "run"))
    made = fakes.parts(config, tmp_path)
    result = driver.run(config, parts=made)
    assert (result.completed, result.collections) == (True, 6)
    assert [record.step for record in records(tmp_path)] == list(range(1, 13))
    assert (
        json.loads((tmp_path / "run/checkpoints/iter_0000006/manifest.json").read_text())["cursor"][
            "pending"
        ]
        == []
    )


def test_death_of_the_engine_ends_an_async_run(tmp_path):
    config = fakes.settings(tmp_path, **ASYNC)
    made = fakes.parts(config, tmp_path)
    calls = []

    def during():
        calls.append(1)
        if len(calls) == 5:
            raise ConnectionError("the engine went away")

    made.engine.during = during
    with pytest.raises(ContractError, match="the engine went away"):
        driver.run(config, parts=made)
    assert "rc=1" in (tmp_path / "run/run.log").read_text()
    assert not any(thread.name == "producer" for thread in threading.enumerate())


# -- collections ---------------------------------------------------------------------------------


def collected(tmp_path, gate=None, engine=None, **changes):
    config = fakes.settings(tmp_path, **changes)
    serving = Serving(engine or fakes.Engine(), bucket_bytes=1 << 20)
    serving.publish(fakes.first_weights().items(), 3)
    return rollouts.collect(config, fakes.Task(), serving, Draw(5, (3, 1, 2, 0)), gate=gate)


def tokens(collection):
    return [sample.tokens.tolist() for sample in collection.samples]


def test_samples_keep_prompt_group_and_version(tmp_path):
    found = collected(tmp_path)
    task = fakes.Task()
    assert found.index == 5
    assert [sample.group_id for sample in found.samples] == [20, 20, 21, 21, 22, 22, 23, 23]
    assert [sample.sample_id for sample in found.samples] == list(range(40, 48))
    for sample, place in zip(found.samples, (3, 3, 1, 1, 2, 2, 0, 0), strict=True):
        assert tuple(sample.tokens[: sample.prompt_len]) == task.train[place].tokens
        assert set(sample.behaviour_version.tolist()) == {3}
        assert sample.reward == task.reward(None, sample.response.tolist())
    for group in range(20, 24):
        own = [sample.advantage for sample in found.samples if sample.group_id == group]
        assert sum(own) == pytest.approx(0)


def test_chunks_change_no_response(tmp_path):
    gates = []
    whole = collected(tmp_path)
    parts = collected(tmp_path, gate=lambda: gates.append(1), engine__batch_size=2)
    assert len(gates) == 4
    assert tokens(whole) == tokens(parts)


def test_aborted_groups_are_generated_again(tmp_path):
    from dataclasses import replace

    engine = fakes.Engine()
    generate, calls = engine.generate, []

    def aborting(prompts, **settings):
        made = generate(prompts, **settings)
        calls.append(len(prompts))
        if len(calls) == 1:
            made[3] = replace(made[3], finish="abort")
        return made

    engine.generate = aborting
    assert tokens(collected(tmp_path, engine=engine)) == tokens(collected(tmp_path))
    assert calls == [4, 4] or calls == [4, 1]


def test_engine_that_answers_too_little_is_caught(tmp_path):
    engine = fakes.Engine()
    generate = engine.generate
    engine.generate = lambda prompts, **settings: generate(prompts, **settings)[:-1]
    with pytest.raises(ContractError, match="7 responses to 4 prompts of 2"):
        collected(tmp_path, engine=engine)


def test_command_in_the_log_names_no_folder_of_this_machine(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/capture/core/__main__.py", "run", "x.toml"])
    assert journal.command(7) == ["python", "-m", "capture.core", "run", "x.toml", "--seed", "7"]
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py", "x"])
    assert journal.command(7) == ["train.py", "x", "--seed", "7"]
    monkeypatch.setattr("sys.argv", ["train.py", "--seed", "3"])
    assert journal.command(7) == ["train.py", "--seed", "3"]


def test_parts_are_what_the_driver_uses():
    assert Parts.__slots__[:4] == ("task", "hf_folder", "actor", "engine")
