"""Miles' own event files as a second input; the events hold what a log of the same run holds."""

from __future__ import annotations

import json

import judgelog as j
import kit
import minilog as m
import pytest
from mileskit.log import eventfiles

ROLLOUT = {"component": "rollout_executor"}
ACTOR = {"component": "actor", "cell_id": "cell0", "rank_within_cell": 0}


def event(when: str, source: dict, **metrics) -> dict:
    return {"type": "metric", "timestamp": when, "source": source, "metrics": metrics}


def events_of(run: dict) -> tuple[list[dict], list[dict]]:
    """The event lines that would hold a summary's run: rollout side and trainer side."""
    engine, trainer = [], []
    table, steps = run["rollouts"], run["steps"]
    kinds = (
        ("time/rollout_perf_line", engine, ROLLOUT, ("perf/rollout_time", "rollout/zero_std/")),
        ("time/rollout_line", trainer, ACTOR, ("rollout/r", "rollout/t", "rollout/e", "rollout/l")),
        ("time/perf_line", trainer, ACTOR, ("perf/train_time", "perf/step_time")),
    )
    for at, number in enumerate(table["index"]):
        for time, out, source, keys in kinds:
            cells = {
                k: v[at]
                for k, v in table["columns"].items()
                if k.startswith(keys) and v[at] is not None
            }
            out.append(event(table["columns"][time][at], source, **cells,
                             **{"rollout/step": number}))  # fmt: skip
        row = {k: v[at] for k, v in steps["columns"].items() if k.startswith("train/")}
        row = {k: None if v != v else v for k, v in row.items()}  # as pydantic writes NaN
        trainer.append(event(steps["columns"]["time/step_line"][at], ACTOR, **row))
    return engine, trainer


def write(folder, data: bytes):
    engine, trainer = events_of(m.summary(data)["runs"][0])
    folder.mkdir(exist_ok=True)
    other = [{"type": "env_report", "timestamp": "2026-11-29T09:00:00Z", "source": ACTOR}]
    for name, lines in (("rollout_executor", engine), ("actor_cell0_rank0", [*other, *trainer])):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def judged(capsys, *args: str) -> dict:
    kit.main(["health", "--json", *args])
    return json.loads(capsys.readouterr().out)


def test_events_and_the_log_of_one_run_get_the_same_numbers(tmp_path, capsys):
    data = j.log(gap=j.wobble(0.015, 12, 1), reward=j.wobble(0.5, 12, 2))
    from_log = judged(capsys, j.store(tmp_path, "made", data))
    from_events = judged(capsys, str(write(tmp_path / "events", data)))
    for a, b in zip(from_log["signals"], from_events["signals"], strict=True):
        if a["id"] not in ("groups", "kl", "clip"):  # these need the flags, which events lack
            assert (a["mean"], a["low"], a["high"]) == (b["mean"], b["low"], b["high"]), a["id"]
    assert from_events["timing"]["rollout_s"] == from_log["timing"]["rollout_s"]
    assert from_events["source"] == "event files"


def test_a_null_in_an_event_counts_as_nan(tmp_path, capsys):
    data = j.log(grad=[0.6] * 5 + [float("nan")] + [0.6] * 6)
    report = judged(capsys, str(write(tmp_path / "events", data)))
    assert [f["id"] for f in report["findings"]] == ["nonfinite"]


def test_one_file_alone_is_read(tmp_path):
    folder = write(tmp_path / "events", j.log())
    run, _ = eventfiles.read_files([folder / "actor_cell0_rank0.jsonl"])
    assert run["steps"]["rollout"] == list(range(12))


def test_an_event_run_has_every_key_of_a_summary_run(tmp_path):
    run, _ = eventfiles.read_folder(write(tmp_path / "events", j.log()))
    whole = m.summary(j.log())["runs"][0]
    assert {"rollouts", "steps", "timing", "medians", "ended", "loads", "startup"} <= set(run)
    assert set(run["timing"]) == set(whole["timing"])


def test_a_line_that_is_no_event_is_named(tmp_path, capsys):
    folder = write(tmp_path / "events", j.log())
    path = folder / "actor_cell0_rank0.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    assert kit.main(["health", str(folder)]) == 2
    assert "actor_cell0_rank0.jsonl:1: not an event" in capsys.readouterr().err


def test_a_cut_last_line_is_dropped(tmp_path):
    folder = write(tmp_path / "events", j.log())
    path = folder / "actor_cell0_rank0.jsonl"
    path.write_text(path.read_text()[:-20])
    run, _ = eventfiles.read_folder(folder)
    assert run["steps"]["index"] == list(range(11))


@pytest.mark.parametrize("text", ["", "\n", '{"type": "env_report"}\n'])
def test_files_without_a_metric_hold_nothing(tmp_path, capsys, text):
    (tmp_path / "a.jsonl").write_text(text)
    assert kit.main(["health", str(tmp_path)]) == 3
    assert "no metric event" in capsys.readouterr().err
