"""A whole run with routing replay: the engine records, the trainer executes, the records agree.

Core code with CPU stand-ins: `standins` lists them.
"""

from __future__ import annotations

import json

import pytest
from routed import REPLAY
from tiny import settings

from capture.core import driver
from capture.core.verify import main as verify

RUN = {
    "model__family": "qwen3_moe",
    "model__d_model": 32,
    "model__threads": 1,
    "rollout__num_rollout": 3,
    "rollout__max_new_tokens": 5,
    "task__train_prompts": 16,
    "task__eval_prompts": 4,
    "batch__pack_tokens": 40,
    "batch__global_batch_size": 4,  # two steps a collection: the second one's ids are older
    "core__recompute": True,
    "optimizer__lr": 1e-3,
    "core__router_aux_loss_grouping": "sequence",
    "core__router_aux_loss_reduction": "response",
}


@pytest.fixture(scope="module", params=["cache", "graph"])
def replayed(request, tmp_path_factory):
    """The records and the log of a run."""
    save = tmp_path_factory.mktemp("run")
    driver.run(settings(**RUN, **REPLAY, miles__save=str(save), engine__decode=request.param))
    return save, (save / "run.log").read_text()


def test_a_run_replays_what_its_engine_recorded(replayed, capsys):
    save, _ = replayed
    path = save / "training_contract_rank0.jsonl"
    assert verify([str(path)]) == 0
    capsys.readouterr()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 6
    for record in found:
        load, counts = record["router"], record["counts"]
        assert load["replayed"]
        assert load["recorded"] == counts["global_model_tokens"] - counts["global_samples"]
        assert [term["name"] for term in record["auxiliary"]] == ["load_balancing", "z_loss"]
        assert [term["reduction"] for term in record["auxiliary"]] == ["response", "token"]
        first = record["step_in_collection"] == 0
        # engine and trainer hold the same weights in the first step, and nearly the same numbers
        assert max(load["disagreement"]) <= (0.02 if first else 0.9)
        if first:
            assert record["probability_error"]["all"]["max"] < 1e-3
    assert any(max(record["router"]["disagreement"]) > 0.02 for record in found)


def test_the_log_has_a_line_about_the_routers_of_every_step(replayed):
    lines = [line for line in replayed[1].splitlines() if " - router: " in line]
    assert len(lines) == 6
    assert all("load_balancing 0.0" in line and "times the mean load" in line for line in lines)
    assert all("live routing would move" in line for line in lines)


def test_without_replay_nothing_is_recorded(tmp_path):
    short = {**RUN, "rollout__num_rollout": 1}
    driver.run(settings(**short, miles__save=str(tmp_path)))
    for line in (tmp_path / "training_contract_rank0.jsonl").read_text().splitlines():
        load = json.loads(line)["router"]
        assert not load["replayed"]
        assert "disagreement" not in load
    assert "live routing" not in (tmp_path / "run.log").read_text()
