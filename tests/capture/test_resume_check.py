"""A resume in one log, and the restart test of two."""

from __future__ import annotations

import json

import judgelog as j
import kit
import pytest

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
    assert (rc, found) == (1, ["resume-step"])


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
