"""Experts on two gloo ranks: spread or whole, they train what one process trains.

Every number here is of Core code with CPU stand-ins: `standins` lists them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from moerankworker import KINDS, STEADY, data_of
from ranks import start
from test_hook import distance
from test_moe import loaded
from tiny import collection, tiny

from capture.core import moemodel
from capture.core.verify import main as verify

HERE = Path(__file__).resolve().parent
EPS = (1, 2)
CASES = [(kind, recompute) for kind in KINDS for recompute in (False, True)]
TIMEOUT = 540  # seconds


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder, and what each of the two ranks saw."""
    folder = tmp_path_factory.mktemp("moeranks")
    return folder, start("moerankworker.py", folder, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def ranks(started) -> list[dict]:
    return started[1]


@pytest.fixture(scope="module")
def alone() -> dict:
    """The same steps on one process."""
    found = {}
    for kind, changes in KINDS.items():
        actor, raw = loaded(**changes, **STEADY), {}
        actor.on_gradients = lambda number, named, raw=raw: raw.update(
            {name: p.grad.clone() for name, p in named.items()}
        )
        result = actor.train(data_of(kind), 0)[0]
        found[kind] = {
            "objective": result.objective,
            "norm": result.gradient_norm,
            "raw": raw,
            "weights": {name: value.clone() for name, value in actor.export()},
            "states": {
                key.removeprefix("module."): value.to_local().clone()
                for key, value in actor.module.optim.states.items()
            },
        }
    return found


def of_experts(name: str) -> bool:
    return ".routed_experts." in name


def joined(ranks: list[dict], case, what: str, ep: int) -> dict[str, torch.Tensor]:
    """Tensors by Core's names, whole: under EP2 each rank has half of every layer's experts."""
    first, second = (rank[ep][case][what] for rank in ranks)
    return {
        name: torch.cat([value, second[name]])
        if ep == 2 and of_experts(name) and value.dim()
        else value
        for name, value in first.items()
    }


def own(found: dict, part: bool) -> dict:
    return {name: value for name, value in found.items() if of_experts(name) is part}


@pytest.mark.parametrize("ep", EPS)
def test_every_rank_starts_from_the_whole_hf_model(ranks, ep):
    _, state = tiny("qwen3_moe")
    for rank in ranks:
        out = rank[ep]["start"]
        assert out.keys() == state.keys()
        assert all(torch.equal(out[name], state[name]) for name in state)


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("case", CASES)
def test_objective_and_gradient_norm_are_those_of_one_process(ranks, alone, case, ep):
    wanted = alone[case[0]]
    for rank in ranks:
        found = rank[ep][case]
        assert found["objective"] == pytest.approx(wanted["objective"], rel=1e-5, abs=1e-7)
        assert found["norm"] == pytest.approx(wanted["norm"], rel=1e-5)
    assert (wanted["objective"] == 0.0) is (case[0] == "auxiliary")


@pytest.mark.parametrize("case", CASES)
def test_raw_gradients_of_whole_experts_are_those_of_one_process(ranks, alone, case):
    assert distance(joined(ranks, case, "raw", 1), alone[case[0]]["raw"]) < 3e-6


@pytest.mark.parametrize("case", CASES)
def test_raw_gradients_of_spread_experts_are_twice_as_large_before_intake(ranks, alone, case):
    """Core divides them by the EP degree when its optimizer takes them in, not before.

    So a norm of local gradients, as diagnostics have it, is no norm of the global gradient. Router
    losses reach experts of a layer through the router of the next one.
    """
    raw, wanted = joined(ranks, case, "raw", 2), alone[case[0]]["raw"]
    assert distance(own(raw, False), own(wanted, False)) < 3e-6
    halved = {name: value / 2 for name, value in own(raw, True).items()}
    assert distance(halved, own(wanted, True)) < 3e-6
    if case[0] != "auxiliary":
        norm = [torch.cat([v.flatten() for v in own(g, True).values()]).norm()
                for g in (raw, wanted)]  # fmt: skip
        assert float(norm[0] / norm[1]) == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_moments_after_the_step_are_those_of_one_process(ranks, alone, case, ep):
    wanted = alone[case[0]]
    states = joined(ranks, case, "states", ep)
    assert states.keys() == wanted["states"].keys()
    for suffix, bound in (("exp_avg", 3e-6), ("exp_avg_sq", 6e-6)):
        one, two = (
            {k: v for k, v in found.items() if k.endswith("." + suffix)}
            for found in (states, wanted["states"])
        )
        assert len(one) == len(moemodel.names(2))
        assert distance(one, two) < bound
    for rank in ranks:
        found = rank[ep][case]["weights"]
        assert max(float((found[n] - value).abs().max())
                   for n, value in wanted["weights"].items()) < 5e-6  # fmt: skip
    moved = [
        n for n, v in wanted["weights"].items() if not torch.equal(v, ranks[0][ep]["start"][n])
    ]
    assert len(moved) > 15


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_recomputation_changes_nothing(ranks, kind, ep):
    for rank in ranks:
        plain, again = rank[ep][kind, False], rank[ep][kind, True]
        for what in ("raw", "weights", "states"):
            assert all(torch.equal(plain[what][k], again[what][k]) for k in plain[what])


@pytest.mark.parametrize("case", CASES)
def test_every_rank_exports_every_expert_the_same(ranks, case):
    for ep in EPS:
        first, second = (rank[ep][case]["weights"] for rank in ranks)
        assert all(torch.equal(first[name], second[name]) for name in first)
    spread = ranks[0][2][case]["weights"]
    config, _ = tiny("qwen3_moe")
    main = joined(ranks, case, "states", 2)
    names = moemodel.names(2)
    shapes = moemodel.shapes(config)
    for name, hf_name in names.items():
        value = main[f"{name}.main"]
        if of_experts(name):  # Core's layout: [E, 2 F, D] and [E, F, D]
            value = value.view(config.num_experts, -1, config.hidden_size)
            value = moemodel.to_hf(hf_name, value, config)
        else:
            value = value.view(shapes[hf_name])
        assert torch.equal(spread[hf_name], value), hf_name


@pytest.mark.parametrize("ep", EPS)
def test_scores_are_those_of_one_process(ranks, alone, ep):
    actor = loaded(**KINDS["combined"], **STEADY)
    actor.train(data_of("combined"), 0)
    wanted = actor.score(collection(9).samples[:7])
    for rank in ranks:
        assert len(rank[ep]["scores"]) == 7
        for found, other in zip(rank[ep]["scores"], wanted, strict=True):
            np.testing.assert_allclose(found, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize(
    ("what", "check"), [("gradient", "non-finite-gradient"), ("skip", "optimizer-skip")]
)
def test_one_ranks_problem_stops_both(ranks, ep, what, check):
    for rank in ranks:
        found = rank[ep]["failing"][what]
        assert found["check"] == check
        assert found["step"] == 0
    if what == "gradient":  # a skip on one rank has moved the other: the run is over
        assert all(rank[ep]["failing"][what]["same"] for rank in ranks)


@pytest.mark.parametrize("ep", EPS)
def test_a_resume_is_bitwise_and_saving_changes_nothing(ranks, ep):
    for rank in ranks:
        assert rank[ep]["resume"] == {
            "saving changed nothing": True, "weights": True, "states": True,
            "extra": {"cursor": 5},
        }  # fmt: skip


@pytest.mark.parametrize("ep", EPS)
def test_a_checkpoint_of_another_ep_degree_is_refused_before_core_loads_it(ranks, ep):
    for rank in ranks:
        assert f"ep_degree: {ep}: this run has {3 - ep};" in rank[ep]["run"]["refused"]


@pytest.mark.parametrize("ep", EPS)
def test_a_whole_run_trains_resumes_and_exports_one_tensor_an_expert(started, ep, capsys):
    from safetensors.torch import load_file

    folder, ranks = started
    found = load_file(folder / f"hf-{ep}" / "model.safetensors")
    assert "model.layers.1.mlp.experts.7.gate_proj.weight" in found
    records = sorted((folder / f"run-{ep}").glob("training_contract_rank*.jsonl"))
    assert len(records) == 2
    assert verify([str(path) for path in records]) == 0
    capsys.readouterr()
    label = f"Core code with CPU stand-ins for {6 if ep == 1 else 7} functions"
    assert f"# {label}\n" in ranks[0][ep]["run"]["log"]
    for path in records:
        lines = path.read_text().splitlines()
        assert len(lines) == 3
        assert all(f'"standins":"{label}"' in line for line in lines)
        assert all("local, not global" in line for line in lines)
