"""The worked example of the router losses, by definition, and its comparison with the recording."""

import json
from fractions import Fraction

import pytest

from figures import core_router, core_router_gpu, evidence, registry
from figures.core_router import averaged, penalties
from figures.evidence import EvidenceError

EVEN = [Fraction(1, 4)] * 4
TILTED = [Fraction(3, 4), *[Fraction(1, 12)] * 3]
FINDING = "capture/core/findings/worked_example.json"


def test_even_probabilities_have_penalty_one_whatever_was_chosen():
    for chosen in ([0, 0], [3, 1]):
        for grouping in ("pack", "sequence"):
            assert penalties(4, [EVEN, EVEN], chosen, [2, 6], grouping) == [1, 1]


def test_grouping_makes_no_difference_where_all_tokens_run_one_expert():
    both = [penalties(4, [EVEN, TILTED], [0, 0], [2, 6], g) for g in ("pack", "sequence")]
    assert both == [[1, 3], [1, 3]]


def test_the_pack_averages_the_histograms_of_its_documents():
    assert penalties(4, [EVEN, TILTED], [1, 0], [2, 6], "pack") == [1, Fraction(7, 3)]
    assert penalties(4, [EVEN, TILTED], [1, 0], [2, 6], "sequence") == [1, 3]


def test_averages_are_those_of_the_page():
    assert averaged([1, 3], [2, 6], "token") == Fraction(5, 2)
    assert averaged([1, 3], [2, 6], "response") == 2


def test_a_recording_that_leaves_the_definition_is_no_figure():
    found = json.loads((evidence.ROOT / FINDING).read_text())
    found["values"]["two_experts"]["value"][1] += 0.01
    with (
        evidence.use_overlay({FINDING: json.dumps(found).encode()}),
        pytest.raises(EvidenceError, match="pack_response"),
    ):
        registry.build("fig-core-7-histograms")
    assert core_router.histograms is registry.get("fig-core-7-histograms")


def test_a_mean_over_seeds_is_that_of_the_lines_and_never_of_none():
    own = core_router_gpu.Lines(core_router_gpu.REPLAY)
    found = own.over_seeds("mean_abs", what="live", stale=0)
    assert len(found) == len(own.settings["seeds"])
    assert own.mean("mean_abs", what="live", stale=0) == pytest.approx(sum(found) / len(found))
    with pytest.raises(EvidenceError, match="no mean_abs"):
        own.over_seeds("mean_abs", what="live", stale=3)
