"""Numbers of the trainer on a GPU, computed once more from the stored files by other means."""

import json
import lzma
import statistics

import pytest

from figures import core_gap, core_speed, registry
from figures.evidence import ROOT, EvidenceError

LAB = ROOT / "capture" / "gpu" / "out-h200-core"


def lines(record, file):
    text = lzma.decompress((LAB / record / f"{file}.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def values(figure_id):
    return registry.build(figure_id).values


def rate(record, file):
    """Samples a second after three steps, from the rows alone."""
    steps = [row for row in lines(record, file) if row["kind"] == "step"][3:]
    return sum(row["samples"] for row in steps) / sum(row["seconds"] for row in steps)


def test_ratios_are_those_of_runs_of_one_record():
    found = values("fig-core-15-peer")
    over = rate("peer", "first-core.jsonl") / rate("peer", "first-default.jsonl")
    assert found["over_default"].number == pytest.approx(over)
    over = rate("peer-again", "second-core.jsonl") / rate("peer-again", "second-plain256.jsonl")
    assert found["over_fastest"].number == pytest.approx(over)


def test_both_sides_had_the_same_model_questions_and_lengths():
    places = [place for side in core_speed.SIDES.values() for place in side]
    sides = [lines(record.partition("/")[2], file)[0] for record, file in places]
    for key in ("model", "prompts", "samples_per_step", "max_new_tokens", "temperature", "lr",
                "forward_dtype", "master_dtype", "seed", "gpu", "torch"):  # fmt: skip
        assert len({side[key] for side in sides}) == 1, key


def test_no_configuration_that_ran_was_faster_than_the_one_called_fastest():
    rates = {name: one.number for name, one in values("fig-core-15-candidates").items()
             if name.endswith("_rate")}  # fmt: skip
    assert max(rates, key=rates.get) == "plain256_rate"


def test_the_heads_are_ranges_over_every_seed_and_mark():
    found = values("fig-core-15-heads")
    for name in core_gap.HEADS:
        cells = [line["values"]["mean_abs"] for line in lines("gap", "gap.jsonl")[1:]
                 if line["key"]["case"] == f"head/{name}"]  # fmt: skip
        assert len(cells) == 12
        assert found[name].number == (min(cells), max(cells))


def test_exact_means_that_no_token_differs():
    cells = [line["values"] for line in lines("gap", "gap.jsonl")[1:]
             if line["key"]["case"] == "exact"]  # fmt: skip
    assert {(cell["max_abs"], cell["share_equal"]) for cell in cells} == {(0.0, 1.0)}
    assert values("fig-core-15-exact")["exact"].number == 0


def test_held_out_reward_is_what_the_logs_say():
    ends = []
    for seed in (1, 2, 3):
        log = lzma.decompress((LAB / f"gpu_s{seed}" / "run.log.xz").read_bytes()).decode()
        (last,) = [line for line in log.splitlines() if " - eval 29: " in line]
        ends.append(float(last.partition("'eval/wordproblems': ")[2].partition(",")[0]))
    found = values("fig-core-2-gpu")
    assert found["held_last"].number == (min(ends), max(ends))
    assert found["last_mean"].number == pytest.approx(statistics.fmean(ends))


def test_a_case_that_nobody_measured_is_no_range():
    with pytest.raises(EvidenceError, match="no case head/other"):
        core_gap.numbers("head/other")
