"""A resume in one log, and the restart test of two."""

from __future__ import annotations

import json

import judgelog as j
import kit
import pytest
from mileskit.judge import runload

FOLDER = "/ckpt/run-a/iter_0000002"


def fsdp(text: str, at: float = j.NINE) -> str:
    return j.m.sourced(at, text, source="checkpoint.py:117")


LOADED = (
    fsdp(f"[FSDP] Loaded model from {FOLDER}/model"),
    fsdp(f"[FSDP] Loaded optimizer from {FOLDER}/optimizer"),
    fsdp(f"[FSDP] Loaded LR scheduler from {FOLDER}/lr_scheduler"),
    fsdp("load metadata from /ckpt/run-a/rollout/global_dataset_state_dict_1.pt"),
)
ENGINE = j.m.engine(j.NINE, "Load weight end. elapsed=5.85 s, type=Qwen3ForCausalLM,"
                    " avail mem=94.8 GB, mem usage=1.40 GB.")  # fmt: skip


def first_log(steps: int = 2, **more) -> bytes:
    saved = fsdp(f"[FSDP] Saved checkpoint to {FOLDER}", j.NINE + 5000)
    return j.log(steps=steps, end=None, **more) + j.m.text(saved)


def checked(tmp_path, capsys, first: bytes, second: bytes) -> tuple[int, dict]:
    paths = [j.store(tmp_path, "first", first), j.store(tmp_path, "second", second)]
    rc = kit.main(["health", "--json", "--resume-check", *paths])
    return rc, json.loads(capsys.readouterr().out)


def part(report: dict, name: str) -> bool | None:
    return next(c["ok"] for c in report["checks"] if c["name"] == name)


def test_a_run_that_continues_where_the_first_saved_passes(tmp_path, capsys):
    second = j.log(steps=2, first=2, head=LOADED)
    rc, report = checked(tmp_path, capsys, first_log(), second)
    assert (rc, report["passed"]) == (0, True)
    assert {c["ok"] for c in report["checks"]} == {True}


def test_a_fresh_start_is_no_resume(tmp_path, capsys):
    rc, report = checked(tmp_path, capsys, first_log(), j.log(steps=4))
    assert rc == 1
    assert part(report, "model loaded") is False
    assert part(report, "first step") is False


@pytest.mark.parametrize(("lost", "name"), [(0, "model loaded"), (1, "optimizer loaded")])
def test_a_missing_loaded_line_fails(tmp_path, capsys, lost, name):
    head = tuple(line for i, line in enumerate(LOADED) if i != lost)
    rc, report = checked(tmp_path, capsys, first_log(), j.log(steps=2, first=2, head=head))
    assert (rc, part(report, name)) == (1, False)


def test_a_failed_load_fails_even_when_the_steps_go_on(tmp_path, capsys):
    head = (*LOADED, fsdp(f"[FSDP] Failed to load optimizer from {FOLDER}/optimizer: bad magic"))
    rc, report = checked(tmp_path, capsys, first_log(), j.log(steps=2, first=2, head=head))
    assert (rc, part(report, "no failed load")) == (1, False)


def test_a_wrong_first_step_fails(tmp_path, capsys):
    rc, report = checked(tmp_path, capsys, first_log(), j.log(steps=2, first=3, head=LOADED))
    assert (rc, part(report, "first step")) == (1, False)


def test_an_older_checkpoint_than_the_newest_fails(tmp_path, capsys):
    newest = fsdp("[FSDP] Saved checkpoint to /ckpt/run-a/iter_0000004", j.NINE + 6000)
    first = first_log(4) + j.m.text(newest)
    rc, report = checked(tmp_path, capsys, first, j.log(steps=2, first=2, head=LOADED))
    assert (rc, part(report, "first step")) == (1, False)


def test_steps_after_the_save_that_run_again_are_said(tmp_path, capsys):
    rc, report = checked(tmp_path, capsys, first_log(4), j.log(steps=2, first=2, head=LOADED))
    text = next(c["text"] for c in report["checks"] if c["name"] == "first step")
    assert rc == 0
    assert "steps 2 to 3 of the first log ran again" in text


def test_a_gap_that_jumps_after_the_load_fails(tmp_path, capsys):
    second = j.log(steps=2, first=2, head=LOADED, gap=0.09)
    rc, report = checked(tmp_path, capsys, first_log(), second)
    assert (rc, part(report, "gap")) == (1, False)


def test_another_prompt_position_fails(tmp_path, capsys):
    head = (*LOADED[:3], LOADED[3].replace("dict_1.pt", "dict_0.pt"))
    rc, report = checked(tmp_path, capsys, first_log(), j.log(steps=2, first=2, head=head))
    assert (rc, part(report, "prompt position")) == (1, False)


@pytest.mark.parametrize(
    ("after", "ok"), [(0.0145, True), (0.0087, None), (0.002, None), (0.028, False)]
)
def test_only_a_higher_gap_fails(tmp_path, capsys, after, ok):
    gap = {"gap": j.wobble(0.016, 6, 3)}
    head = resumed_at(6)
    second = j.log(steps=5, first=6, head=head, gap=after)
    rc, report = checked(tmp_path, capsys, saved_at(6, **gap), second)
    assert part(report, "gap") is ok
    assert rc == (1 if ok is False else 0)


def resumed_at(step: int) -> tuple:
    new = (f"iter_{step:07d}", f"dict_{step - 1}.pt")
    return tuple(
        line.replace("iter_0000002", new[0]).replace("dict_1.pt", new[1]) for line in LOADED
    )


def saved_at(step: int, **more) -> bytes:
    saved = fsdp(f"[FSDP] Saved checkpoint to /ckpt/run-a/iter_{step:07d}", j.NINE + 5000)
    return j.log(steps=step, end=None, **more) + j.m.text(saved)


REAL = ("plain_s1234", "plain_s4321", "plain3")


@pytest.mark.parametrize("name", REAL)
def test_a_stored_run_cut_in_two_at_any_step_is_a_resume(tmp_path, capsys, name):
    run = runload.load(f"h200-miles/{name}").run
    keys = {
        "reward": "rollout/raw_reward", "length": "rollout/response_lengths",
        "gap": "train/train_rollout_logprob_abs_diff",
    }  # fmt: skip
    tables = {**run["steps"]["columns"], **run["rollouts"]["columns"]}
    series = {short: tables[key] for short, key in keys.items()}
    count = len(series["gap"])
    for at in range(3, count - 1, 2):
        first = saved_at(at, **{k: v[:at] for k, v in series.items()})
        rest = {k: v[at:] for k, v in series.items()}
        second = j.log(steps=count - at, first=at, head=resumed_at(at), **rest)
        rc, report = checked(tmp_path, capsys, first, second)
        assert rc == 0, (at, [c for c in report["checks"] if c["ok"] is False])


@pytest.mark.parametrize(
    ("series", "extra", "name"),
    [
        ({"reward": 0.33}, "", "reward"),
        ({"length": 250.0}, "", "answer length"),
        ({"length": 3.0}, "", "answer length"),
        ({}, "--rollout-temperature 1.2", "settings"),
        ({"reward": float("nan")}, "", "reward"),
    ],
)
def test_a_wrong_resume_fails_on_the_number_that_shows_it(tmp_path, capsys, series, extra, name):
    second = j.log(steps=6, first=6, head=resumed_at(6), extra=extra, **series)
    rc, report = checked(tmp_path, capsys, saved_at(6, reward=j.wobble(0.5, 6, 2)), second)
    assert (rc, [c["name"] for c in report["checks"] if c["ok"] is False]) == (1, [name])


def test_another_learning_rate_fails_unless_a_schedule_moves_it(tmp_path, capsys):
    for extra, ok in (("", False), ("--lr-decay-style cosine", None)):
        second = j.log(steps=6, first=6, head=resumed_at(6), extra=extra)
        second = second.replace(b"'train/lr-pg_0': 1e-05", b"'train/lr-pg_0': 5e-06")
        rc, report = checked(tmp_path, capsys, saved_at(6, extra=extra), second)
        assert (rc, part(report, "learning rate")) == (int(ok is False), ok)


def test_what_is_not_shown_stands_in_the_verdict(tmp_path, capsys):
    first = j.store(tmp_path, "first", saved_at(6))
    second = j.store(tmp_path, "second", j.log(steps=6, first=6, head=resumed_at(6)[:3]))
    assert kit.main(["health", "--resume-check", first, second]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1].endswith("not shown: data loaded, prompt position")
    assert first in out[0]  # both logs say "# run made"
    assert second in out[0]


# -- in one log ------------------------------------------------------------------------------------


def findings(tmp_path, capsys, data: bytes) -> tuple[int, list[str]]:
    rc = kit.main(["health", "--json", j.store(tmp_path, "made", data)])
    return rc, [f["id"] for f in json.loads(capsys.readouterr().out)["findings"]]


def test_a_clean_resume_has_no_finding(tmp_path, capsys):
    data = j.log(first=2, head=(ENGINE, *LOADED))
    assert findings(tmp_path, capsys, data) == (0, [])


def test_a_start_over_after_a_failed_load_is_found(tmp_path, capsys):
    head = (ENGINE, fsdp(f"[FSDP] Failed to load model from {FOLDER}/model: no such file"))
    rc, found = findings(tmp_path, capsys, j.log(head=head))
    assert (rc, found) == (1, ["load-failed", "started-over"])


def test_a_loaded_checkpoint_that_does_not_set_the_step_is_found(tmp_path, capsys):
    rc, found = findings(tmp_path, capsys, j.log(head=(ENGINE, *LOADED)))
    assert (rc, found) == (1, ["resume-step", "prompt-position"])


def test_a_late_begin_that_nothing_explains_is_found(tmp_path, capsys):
    rc, found = findings(tmp_path, capsys, j.log(first=7, head=(ENGINE,)))
    assert (rc, found) == (1, ["begins-late"])


def test_a_log_whose_head_is_cut_off_is_no_anomaly(tmp_path, capsys):
    assert findings(tmp_path, capsys, j.log(first=7)) == (0, [])


def test_a_model_without_its_optimizer_is_found(tmp_path, capsys):
    data = j.log(first=2, head=(ENGINE, LOADED[0]))
    assert findings(tmp_path, capsys, data) == (1, ["no-optimizer"])


def test_the_checkpoints_old_learning_rate_is_found(tmp_path, capsys):
    data = j.log(first=2, head=(ENGINE, *LOADED), extra="--lr 3e-6")
    assert findings(tmp_path, capsys, data) == (1, ["old-learning-rate"])


def test_an_empty_checkpoint_folder_is_a_fresh_start_and_no_finding(tmp_path, capsys):
    head = (ENGINE, fsdp("[FSDP] No tracker file at /ckpt/run-a/latest.txt; skipping load."))
    assert findings(tmp_path, capsys, j.log(head=head)) == (0, [])


def test_a_prompt_position_of_another_rollout_is_found(tmp_path, capsys):
    head = (ENGINE, *LOADED[:3], LOADED[3].replace("dict_1.pt", "dict_0.pt"))
    assert findings(tmp_path, capsys, j.log(first=2, head=head)) == (1, ["prompt-position"])


def test_a_load_flag_that_loads_nothing_is_noted(tmp_path, capsys):
    skipped = fsdp("[FSDP] No tracker file at /ckpt/run-a/latest.txt; skipping load.")
    for head, count in (((ENGINE,), 1), ((ENGINE, skipped), 1), ((ENGINE, *LOADED), 0)):
        path = j.store(tmp_path, "made", j.log(head=head, extra="--load /ckpt/run-a"))
        kit.main(["health", "--json", path])
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert sum("nothing was loaded" in note for note in notes) == count
