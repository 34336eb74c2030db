"""compare: same clean steps, every seed, and no claim stronger than the data."""

from __future__ import annotations

import csv
import io
import json

import claims
import comparison
import judgelog as j
import kit
import pytest
import quantities
import runload
import setupdiff
import sides
import summarize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sides import Member

CHANGE = "--sglang-enable-deterministic-inference"


def member(data: bytes, name: str = "made", guard: bytes | None = None) -> Member:
    """A run made from a log's bytes."""
    made = summarize.build(io.BytesIO(data), guard)
    one = runload.Loaded(
        runload.floats(made["runs"][-1]), None, name, "log", name, (), made["source"]["sha256"]
    )
    return Member(one, setupdiff.facts(one))


def compared(*members: Member, only: tuple[str, ...] = ("reward", "rollout_time")) -> dict:
    made = sides.group([[m] for m in members])
    return comparison.compare(made, [quantities.named(name) for name in only])


def quantity(found: dict, name: str) -> dict:
    return next(q for q in found["quantities"] if q["id"] == name)


def claim(found: dict, name: str) -> dict:
    (one,) = quantity(found, name)["claims"]
    return one


def arm(extra: str, reward, seeds=(1, 2), name: str = "x", **series) -> list[Member]:
    """Runs of one setting, one a seed; reward: by seed."""
    return [
        member(j.log(seed=s, extra=extra, reward=r, **series), f"{name}{s}")
        for s, r in zip(seeds, reward, strict=True)
    ]


def words(found: dict, name: str) -> str:
    return "; ".join(claim(found, name)["reasons"])


# -- properties ------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(0.05, 0.95), min_size=6, max_size=12)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(VALUES)
@SLOW
def test_a_run_compared_with_itself_shows_nothing(values):
    one = member(j.log(steps=len(values), reward=values))
    for found in (
        compared(one, one),
        compared(one, member(j.log(steps=len(values), reward=values))),
    ):
        for q in found["quantities"]:
            assert all(set(p["differences"]) == {0.0} for p in q["pairs"])
            assert q["claims"] == []


@given(VALUES, st.floats(-0.04, 0.04), st.booleans())
@SLOW
def test_the_order_of_the_sides_only_flips_signs(values, shift, far):
    shift = shift * 10 if far else shift
    n = len(values)
    a = arm("", [values, [v + 0.01 for v in values]], steps=n, name="a")
    b = arm(CHANGE, [[v + shift for v in values], [v + 0.02 + shift for v in values]],
            steps=n, name="b")  # fmt: skip
    one, two = compared(*a, *b), compared(*b, *a)
    x, y = claim(one, "reward"), claim(two, "reward")
    flipped = {"better": "worse", "worse": "better", None: None}
    assert flipped[x["word"]] == y["word"]
    assert x["reasons"] == [r.replace("A", "~").replace("B", "A").replace("~", "B")
                            for r in y["reasons"]]  # fmt: skip
    for p, q in zip(
        quantity(one, "reward")["pairs"], quantity(two, "reward")["pairs"], strict=True
    ):
        assert p["differences"] == [-d for d in q["differences"]]
        assert p["middle"] == pytest.approx(-q["middle"])


@given(st.lists(st.floats(1.0, 9.0), min_size=6, max_size=9), st.integers(0, 9), st.floats(50, 500))
@SLOW
def test_a_paused_step_more_never_changes_a_clean_median(times, at, slow):
    at = min(at, len(times))
    grown = [*times[:at], slow, *times[at:]]
    # the paused step gets the number and the place in time of the last one, so nothing else moves
    order = [*range(at), *range(at + 1, len(grown))]
    plain = j.log(rollout_s=times, numbers=order, steps=len(times))
    with_pause = j.log(rollout_s=grown, numbers=list(range(len(grown))), steps=len(grown))
    end = j.NINE + (at + 1) * j.EVERY - 15
    guard = (
        f"2026-11-29T{stamp(end - 8)}Z pause container=x temp_c=84 reason=hot\n"
        f"2026-11-29T{stamp(end - 4)}Z resume container=x temp_c=70 reason=cool paused_s=4.0\n"
    ).encode()
    q = quantities.named("rollout_time")
    whole = member(with_pause, "w", guard)
    cells, clean = quantities.cells(*whole, q), quantities.clean(whole.one, q)
    assert not clean[at]
    kept = [cells[n] for n in sorted(cells) if clean[n] and n != at]
    assert [n for n in cells if not clean[n]] == [at]
    bare = quantities.cells(*member(plain), q)
    assert quantities.middle(kept, q) == quantities.middle(list(bare.values()), q)


def stamp(second: float) -> str:
    return j.m.clock(second)[11:]


@given(VALUES)
@SLOW
def test_values_and_units_survive_csv_and_json(values):
    a, b = member(j.log(reward=values, steps=len(values))), member(j.log(seed=2, steps=len(values)))
    found = compared(a, b)
    out = io.StringIO()
    csv.writer(out).writerows(comparison.csv_rows(found))
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    back = [float(r["value"]) for r in rows if r["kind"] == "value" and r["side"] == "A"
            and r["quantity"] == "reward"]  # fmt: skip
    assert back[: len(values)] == values
    assert {r["unit"] for r in rows if r["quantity"] == "rollout_time"} == {"s"}
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found))
    stored = json.loads(json.dumps(found))["quantities"][0]["runs"][0]["values"]
    assert stored == values


# -- refusals --------------------------------------------------------------------------------------


def test_two_seeds_on_each_side_outside_the_spread_are_better():
    found = compared(*arm("", [0.50, 0.51], name="a"), *arm(CHANGE, [0.60, 0.61], name="b"))
    one = claim(found, "reward")
    assert (one["word"], one["reasons"]) == ("better", [])
    assert one["chance"] == pytest.approx(1 / 3)


def test_a_pair_that_differs_in_two_settings_is_refused():
    extra = f"{CHANGE} --rollout-top-p 0.9"
    found = compared(*arm("", [0.50, 0.51], name="a"), *arm(extra, [0.60, 0.61], name="b"))
    assert claim(found, "reward")["word"] is None
    assert "2 settings differ: rollout-top-p, sglang-enable" in words(found, "reward")
    assert any("one of them only" in text for text in claim(found, "reward")["settle"])


def test_one_seed_on_each_side_is_refused():
    found = compared(member(j.log(reward=0.2)), member(j.log(reward=0.9, extra=CHANGE)))
    assert claim(found, "reward")["word"] is None
    assert "A has 1 seed and B has 1 seed" in words(found, "reward")


def test_two_repeats_of_one_seed_are_one_seed():
    a = [member(j.log(reward=r), f"a{r}") for r in (0.2, 0.21)]
    b = [member(j.log(reward=r, extra=CHANGE), f"b{r}") for r in (0.9, 0.91)]
    assert "A has 1 seed in 2 runs" in words(compared(*a, *b), "reward")


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        ([0.50, 0.56], [0.53, 0.58], "overlap"),
        ([0.50, 0.56], [0.57, 0.58], "not larger than the spread"),
        ([0.50, 0.50], [0.50, 0.50], "no difference"),
    ],
)
def test_a_difference_inside_the_spread_is_refused(left, right, why):
    found = compared(*arm("", left, name="a"), *arm(CHANGE, right, name="b"))
    assert claim(found, "reward")["word"] is None
    assert why in words(found, "reward")


def test_unknown_flags_are_refused():
    a = member(j.log(command=None), "a")
    b = member(j.log(command=None, reward=0.9), "b")
    found = compared(a, b)
    assert "flags of a run are unknown" in words(found, "reward")
    assert not found["differs"]["B"]["known"]


def test_fewer_than_five_common_steps_are_refused():
    a = arm("", [0.5, 0.51], steps=4, name="a")
    found = compared(*a, *arm(CHANGE, [0.6, 0.61], name="b"))
    assert "4 common clean steps" in words(found, "reward")


def test_a_resumed_run_and_a_fresh_one_differ_in_their_start():
    head = (j.m.sourced(j.NINE, "[FSDP] Loaded model from /ckpt/a/iter_0000003/model"),)
    found = compared(member(j.log(), "a"), member(j.log(head=head, reward=0.6), "b"))
    assert found["differs"]["B"]["settings"] == ["start: fresh / checkpoint"]


def test_a_shared_gpu_refuses_times_and_not_rewards():
    note = ("# gpu NVIDIA H200, 580.1, 143771 MiB, 0 MiB",
            "# other runs share this GPU at the same time: made, other (same)")  # fmt: skip
    a = arm("", [0.50, 0.51], name="a", rollout_s=10.0, head=note)
    b = arm(CHANGE, [0.60, 0.61], name="b", rollout_s=5.0, head=note)
    found = compared(*a, *b)
    assert claim(found, "reward")["word"] == "better"
    assert "GPU shared" in words(found, "rollout_time")


def timed(left, right, lengths=(30.0, 30.0)) -> dict:
    a = [member(j.log(seed=s, rollout_s=t, length=lengths[0]), f"a{s}") for s, t in enumerate(left)]
    b = [
        member(j.log(seed=s, rollout_s=t, length=lengths[1], extra=CHANGE), f"b{s}")
        for s, t in enumerate(right)
    ]
    return compared(*a, *b)


def test_a_time_outside_the_spread_is_faster_and_its_clock_unknown():
    one = claim(timed([10.0, 10.2], [8.0, 8.2]), "rollout_time")
    assert (one["word"], one["clock_unknown"]) == ("faster", True)


def test_a_time_that_follows_the_answer_length_is_refused():
    found = timed([10.0, 10.2], [8.0, 8.2], lengths=(30.0, 24.0))
    assert "per token" in words(found, "rollout_time")
    assert [r["length"] for r in quantity(found, "rollout_time")["runs"]] == [30, 30, 24, 24]


def test_a_reference_model_is_a_difference_for_times_only():
    extra = "--use-kl-loss --kl-loss-coef 0.00 --ref-load /lab/model"
    a = arm("", [0.50, 0.51], name="a")
    b = arm(f"{extra} {CHANGE}", [0.60, 0.61], name="b", rollout_s=5.0)
    found = compared(*a, *b)
    assert claim(found, "reward")["word"] == "better"
    assert "2 settings differ" in words(found, "rollout_time")


def test_a_batch_that_follows_the_group_size_is_one_difference():
    found = setupdiff.differences(
        *(setupdiff.facts(runload.load(f"h200-miles/{n}")) for n in ("n4", "n16"))
    )
    assert [d.name for d in setupdiff.own(setupdiff.metric_differences(found))] == [
        "n-samples-per-prompt"
    ]


def test_the_stored_seeds_of_a_setup_are_its_baseline():
    ones = [runload.load(f"h200-miles/{name}") for name in ("plain3", "determ")]
    made = sides.group([[Member(one, setupdiff.facts(one))] for one in ones])
    found = comparison.compare(made, [quantities.named("gap")])
    assert len(found["baseline"]) == 2
    assert "inside the range of the stored seeds" in words(found, "gap")


def test_columns_that_the_run_marks_unusable_are_not_compared(capsys):
    rc = kit.main(["compare", "--json", "--column", "rollout/ref_log_probs",
                   "h200-miles/plain_s1234", "h200-miles/plain_s4321"])  # fmt: skip
    (q,) = json.loads(capsys.readouterr().out)["quantities"]
    assert rc == 0
    assert "marks it unusable" in q["skipped"]


# -- what few seeds can show -----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m", "chance"), [(1, 1, 1), (2, 2, 1 / 3), (3, 3, 0.1)])
def test_the_chance_of_a_clean_separation_is_counted(n, m, chance):
    assert claims.chance(n, m) == pytest.approx(chance)


def test_no_sign_flip_test_below_six_pairs():
    assert claims.sign_flip([1.0] * 5) is None
    assert claims.sign_flip([1.0] * 6) == pytest.approx(2 / 2**6)
    assert claims.sign_flip([1.0, -1.0] * 3) == pytest.approx(1.0)


def test_six_matched_pairs_get_an_exact_test():
    seeds = range(6)
    base = [0.50 + 0.001 * s for s in seeds]
    a = arm("", base, seeds, name="a")
    b = arm(CHANGE, [r + 0.1 for r in base], seeds, name="b")
    found = compared(*a, *b)
    assert claim(found, "reward")["sign_flip_p"] == pytest.approx(2 / 64)
    assert not any("no sign-flip" in note for note in found["sampling"])


def test_a_pair_that_repeats_a_seed_gets_no_sign_flip_test():
    seeds = (1, 1, 2, 3, 4, 5, 6)
    a = [member(j.log(seed=s, reward=0.5 + i / 100), f"a{i}") for i, s in enumerate(seeds)]
    b = arm(CHANGE, [0.8] * 6, range(1, 7), name="b")
    assert claim(compared(*a, *b), "reward")["sign_flip_p"] is None


def test_three_seeds_get_their_range_and_no_interval():
    found = compared(*arm("", [0.5, 0.51, 0.52], (1, 2, 3), name="a"),
                     *arm(CHANGE, [0.6, 0.61, 0.62], (1, 2, 3), name="b"))  # fmt: skip
    assert quantity(found, "reward")["sides"][0] | {"spread": 0} == {
        "side": "A", "runs": 3, "low": pytest.approx(0.5), "high": pytest.approx(0.52), "spread": 0,
    }  # fmt: skip
    assert any("bootstrap" in note for note in found["sampling"])
    assert [r["seeds"] for r in quantity(found, "reward")["runs"]][:2] == [
        "seed 1, rollout seed 1",
        "seed 2, rollout seed 2",
    ]


# -- steps -----------------------------------------------------------------------------------------


def test_only_common_clean_steps_count_and_their_number_is_said():
    guard = (
        b"2026-11-29T09:01:38.000Z pause container=x temp_c=84 reason=hot\n"
        b"2026-11-29T09:01:48.000Z resume container=x temp_c=70 reason=cool paused_s=10.0\n"
    )
    a = member(j.log(steps=12), "a", guard)
    b = member(j.log(steps=8, first=1, start=j.NINE + j.EVERY, seed=2), "b")
    q = quantity(compared(a, b), "rollout_time")
    assert q["steps"] == [2, 3, 4, 5, 6, 7, 8]
    assert q["same_steps"] == 8


def test_a_step_of_unknown_length_counts_for_metrics_and_not_for_times():
    lengths = [float("nan")] + [30.0] * 11
    one, two = member(j.log(step_s=lengths)), member(j.log(seed=2))
    found = compared(one, two, only=("gap", "train_time"))
    assert quantity(found, "gap")["steps"] == list(range(12))
    assert quantity(found, "train_time")["steps"] == list(range(1, 12))


def test_runs_without_a_common_step_are_said(tmp_path, capsys):
    paths = [j.store(tmp_path, "a", j.log(steps=3)), j.store(tmp_path, "b", j.log(first=9))]
    assert kit.main(["compare", *paths]) == 3
    assert "no step number in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "rc", "said"),
    [
        (["h200-miles/plain3"], 2, "at least two runs"),
        (["h200-miles/plain3", "nowhere"], 2, "nowhere"),
        (["h200-miles/plain3", "h200-miles/topp"], 3, "no step"),
    ],
)
def test_bad_input_is_one_line(capsys, args, rc, said):
    assert kit.main(["compare", *args]) == rc
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_runs_joined_by_a_comma_stand_on_one_side(capsys):
    joined = "h200-miles/plain3,h200-miles/n4"
    assert kit.main(["compare", "--json", joined, "h200-miles/determ", "--column", "gap"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(side["runs"]) for side in found["sides"]] == [2, 1]
    assert "differ in global-batch-size, n-samples" in words(found, "gap")
