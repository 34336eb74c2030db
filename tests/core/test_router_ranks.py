"""Replay and router losses on two gloo ranks, experts whole and spread: what one process does.

Every number here is of Core code with CPU stand-ins: `standins` lists them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import start
from routed import TOPK
from routerrankworker import CASES, MOE, PACK_TOKENS, data_of
from test_hook import distance
from test_moe import loaded

from capture.core import records
from capture.core.verify import main as verify

HERE = Path(__file__).resolve().parent
EPS = (1, 2)
TIMEOUT = 300  # seconds


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder, and what each of the two ranks saw."""
    folder = tmp_path_factory.mktemp("routerranks")
    return folder, start("routerrankworker.py", folder, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def ranks(started) -> list[dict]:
    return started[1]


@pytest.fixture(scope="module")
def alone() -> dict:
    """The same steps on one process."""
    found, data = {}, data_of()
    for case, changes in CASES.items():
        actor = loaded(**MOE, **changes, batch__pack_tokens=PACK_TOKENS)
        result = actor.train(data, 0)[0]
        found[case] = {
            "terms": [term["global"] for term in records.auxiliary_terms(result, actor.config)],
            "weights": {name: value.clone() for name, value in actor.export()},
            "packs": [(pack.sample_indexes, pack.doc_lens) for pack in result.plan.ranks[0]],
            "counts": result.router.counts,
            "disagreement": result.router.disagreement,
        }
    return found


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_runs_the_experts_recorded_for_its_own_packs(ranks, case, ep):
    samples, seen = data_of().samples, set()
    assert sum(rank[ep][case]["fillers"] for rank in ranks) > 0
    for rank in ranks:
        found = rank[ep][case]
        for (indexes, doc_lens), ids in zip(found["packs"], found["ids"], strict=True):
            tail = [np.tile(np.arange(TOPK), (1, *ids.shape[1:2], 1))]
            if not indexes:
                assert (ids == tail[0]).all()
                continue
            rows = [part for index in indexes for part in (samples[index].routes, *tail)]
            assert (ids == np.concatenate(rows)).all()
            assert len(ids) == sum(doc_lens)
            seen.update(indexes)
    assert seen == set(range(len(samples)))


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("case", CASES)
def test_local_terms_average_to_the_global_ones_and_records_pass_their_checks(
    started, ranks, case, ep, capsys
):
    one, other = (rank[ep][case]["terms"] for rank in ranks)
    for (name, first, whole), (_, second, same) in zip(one, other, strict=True):
        assert whole == same
        assert (first + second) / 2 == pytest.approx(whole, rel=1e-12)
        assert abs(first - second) > 1e-2 * whole, name
    paths = sorted(str(path) for path in (started[0] / f"{case}-{ep}").iterdir())
    assert len(paths) == 2
    assert verify(paths) == 0
    capsys.readouterr()
    assert ranks[0][ep][case]["load"] == ranks[1][ep][case]["load"]


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("case", CASES)
def test_objective_loads_and_weights_are_those_of_one_process(ranks, alone, case, ep):
    wanted = alone[case]
    for rank in ranks:
        found = rank[ep][case]
        assert torch.equal(found["counts"], wanted["counts"])
        assert found["load"]["disagreement"] == pytest.approx(wanted["disagreement"].tolist())
        for (_, _, value), one in zip(found["terms"], wanted["terms"], strict=True):
            assert value == pytest.approx(one, rel=1e-5)
        assert distance(found["weights"], wanted["weights"]) < 1e-5


def test_packs_of_one_process_that_differ_change_the_objective_of_packs_alone(ranks, alone):
    """The comparison above needs the same packs, which these samples happen to get."""
    packs = [pack for rank in ranks for pack in rank[1]["pack-token"]["packs"] if pack[0]]
    assert sorted(packs) == sorted(alone["pack-token"]["packs"])
    for case, changes in CASES.items():
        actor = loaded(**MOE, **changes, batch__pack_tokens=200)
        result = actor.train(data_of(), 0)[0]
        value = records.auxiliary_terms(result, actor.config)[0]["global"]
        apart = abs(value - alone[case]["terms"][0]) / value
        assert apart < 1e-5 if case.startswith("sequence") else apart > 1e-3


@pytest.mark.parametrize("ep", EPS)
def test_ids_missing_on_one_rank_stop_both(ranks, ep):
    for rank in ranks:
        check, detail, step = rank[ep]["missing"]
        assert (check, step) == ("routes", 0)
        assert "sample 0: no recorded expert ids" in detail
