"""compare: same clean steps, every seed, and no claim stronger than the data."""

from __future__ import annotations

import csv
import io
import json
import re

import judgelog as j
import kit
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mileskit.judge import (
    claims,
    comparerows,
    comparetext,
    comparison,
    health,
    quantities,
    runload,
    setupdiff,
    sides,
)
from mileskit.judge.sides import Member
from mileskit.summary import summarize

CHANGE = "--sglang-enable-deterministic-inference"
ALONE = ("# gpu NVIDIA H200, 580.1, 143771 MiB, 0 MiB",)
THREE = (1, 2, 3)


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


def arm(extra: str, reward, seeds=None, name: str = "x", **series) -> list[Member]:
    """Runs of one setting, one a seed; reward: by seed."""
    seeds = range(1, len(reward) + 1) if seeds is None else seeds
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
@pytest.mark.slow
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
@pytest.mark.slow
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
    assert x["reasons"] == [flip(r) for r in y["reasons"]]
    for p, q in zip(
        quantity(one, "reward")["pairs"], quantity(two, "reward")["pairs"], strict=True
    ):
        assert p["differences"] == [-d for d in q["differences"]]
        assert p["middle"] == pytest.approx(-q["middle"])


def flip(reason: str) -> str:
    """The reason with the sides' letters exchanged."""
    text = re.sub(r"\b[AB]\b", lambda m: {"A": "B", "B": "A"}[m[0]], reason)
    return " and ".join(sorted(text.split(" and "))) if " has " in text else text


@given(st.sampled_from(["plain3", "plain_s1234", "topp2", "determ", "n4"]),
       st.sampled_from(["plain_s4321", "determ2", "n16", "topp2"]))  # fmt: skip
@pytest.mark.slow
@SLOW
def test_the_order_of_stored_runs_only_flips_signs_and_reasons(first, second):
    if first == second:
        return
    left, right = (stored_member(name) for name in (first, second))
    ids = tuple(q.id for q in quantities.DEFAULT)
    one, two = compared(left, right, only=ids), compared(right, left, only=ids)
    flipped = {"A": "B", "B": "A"}
    assert one["stored_runs"] == {
        flipped.get(k, k) if len(two["sides"]) > 1 else k: v
        for k, v in two["stored_runs"].items()
    }  # fmt: skip
    for p, q in zip(one["quantities"], two["quantities"], strict=True):
        assert p.get("skipped") == q.get("skipped")
        for x, y in zip(p.get("claims", []), q.get("claims", []), strict=True):
            assert {x["word"], y["word"]} == {None}
            assert [flip(r) for r in y["reasons"]] == x["reasons"]
            assert x["settle"] == y["settle"]


def stored_member(name: str) -> Member:
    one = runload.load(f"h200-miles/{name}")
    return Member(one, setupdiff.facts(one))


@given(st.sampled_from(["reward", "gap", "grad", "length", "entropy"]), st.floats(0.05, 0.4),
       st.sampled_from([float("nan"), float("inf"), float("-inf")]), st.integers(0, 11),
       st.integers(2, 4))  # fmt: skip
@pytest.mark.slow
@SLOW
def test_a_diverged_run_is_never_better(column, shift, what, at, seeds):
    base = {"gap": 0.015, "reward": 0.5, "length": 30.0, "grad": 0.6, "entropy": 0.3}
    a = arm("", [0.5 + 0.001 * k for k in range(seeds)], name="a")
    bad = [base[column]] * at + [what] * (12 - at)
    b = []
    for k in range(seeds):
        series = {"reward": 0.5 + shift + 0.001 * k, "rollout_s": 5.0, column: bad}
        b.append(member(j.log(seed=k + 1, extra=CHANGE, **series), f"b{k}"))
    found = compared(*a, *b, only=tuple(q.id for q in quantities.DEFAULT))
    text = " ".join(" ".join(comparetext.lines(found)).split())
    assert not any(c["word"] for q in found["quantities"] for c in q.get("claims", []))
    steps = "step 11" if at == 11 else f"steps {at} to 11"
    if at == 10:
        steps = "steps 10, 11".replace(", ", " and ")
    assert f"not finite in {steps}: it diverged" in text
    assert all(f"not finite: b0 in {steps}" in words(found, q["id"])
               for q in found["quantities"] if "skipped" not in q)  # fmt: skip
    assert found["claimed"]["made"] == 0


@given(st.floats(0.001, 0.06), st.booleans(), st.integers(2, 6))
@pytest.mark.slow
@SLOW
def test_a_difference_inside_the_spread_of_the_stored_runs_is_never_a_claim(size, up, seeds):
    shift = size if up else -size  # downwards the other side leaves the stored range
    one = stored_member("plain3")
    columns = one.one.run["rollouts"]["columns"]
    series = columns["rollout/raw_reward"]

    def moved(seed: int, by: float, change: bool) -> Member:
        cells = {**columns, "rollout/raw_reward": [v + by for v in series]}
        table = {**one.one.run["rollouts"], "columns": cells}
        settings_ = {**one.facts.settings, **({"lr": 2e-5} if change else {})}
        loaded = one.one._replace(run={**one.one.run, "rollouts": table}, name=f"{change}{seed}",
                                  sha256=f"{change}{seed}")  # fmt: skip
        return Member(loaded, one.facts._replace(settings=settings_, seed=seed))

    a = [moved(k, 1e-5 * k, False) for k in range(seeds)]
    b = [moved(k, shift + 1e-5 * k, True) for k in range(seeds)]
    others = [stored_member(n) for n in ("plain3", "plain_s1234", "plain_s4321")]
    q = quantities.named("reward")
    means = [quantities.middle([quantities.cells(*m, q)[n] for n in range(12)], q) for m in others]
    found = claim(compared(*a, *b, only=("reward",)), "reward")
    if size <= max(means) - min(means):
        assert found["word"] is None
        assert any("stored runs" in r for r in found["reasons"])
    back = claim(compared(*b, *a, only=("reward",)), "reward")
    assert (found["word"] is None) == (back["word"] is None)
    assert [flip(r) for r in back["reasons"]] == found["reasons"]


@given(st.lists(st.floats(0.0, 0.02), min_size=2, max_size=4), st.floats(0.05, 0.3),
       st.lists(st.integers(0, 3), min_size=1, max_size=4))  # fmt: skip
@pytest.mark.slow
@SLOW
def test_repeats_of_one_seed_add_nothing(noise, shift, again):
    a = arm("", [0.4 + v for v in noise], name="a")
    b = arm(CHANGE, [0.4 + shift + v for v in noise], name="b")
    more_a = [a[k % len(a)] for k in again]
    more_b = [b[k % len(b)] for k in again]
    once, often = compared(*a, *b), compared(*a, *more_a, *b, *more_b)
    x, y = claim(once, "reward"), claim(often, "reward")
    for key in ("word", "reasons", "settle", "chance", "seeds"):
        assert x[key] == y[key]
    ranges_of = [[(s["low"], s["high"]) for s in quantity(f, "reward")["sides"]]
                 for f in (once, often)]  # fmt: skip
    assert ranges_of[0] == ranges_of[1]


@given(st.lists(st.floats(0.05, 0.95), min_size=4, max_size=4), st.floats(1.0, 50.0))
@pytest.mark.slow
@SLOW
def test_two_seeds_against_two_never_say_better(rewards, seconds):
    a = arm("", rewards[:2], name="a", head=ALONE, rollout_s=10.0)
    b = arm(CHANGE, rewards[2:], name="b", head=ALONE, rollout_s=seconds, grad=0.1, gap=0.001)
    found = compared(*a, *b, only=tuple(q.id for q in quantities.DEFAULT))
    assert not any(c["word"] for q in found["quantities"] for c in q.get("claims", []))
    assert comparetext.lines(found)[-1].startswith("no difference here may be called")


@given(st.lists(st.floats(1.0, 9.0), min_size=6, max_size=9), st.integers(0, 9), st.floats(50, 500))
@pytest.mark.slow
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
    assert {n for n in cells if not clean[n]} == {0, at}  # step 0 is never clean for a time
    bare = member(plain)
    cells, clean = quantities.cells(*bare, q), quantities.clean(bare.one, q)
    assert quantities.middle(kept, q) == quantities.middle([cells[n] for n in cells if clean[n]], q)


def stamp(second: float) -> str:
    return j.m.clock(second)[11:]


@given(VALUES)
@pytest.mark.slow
@SLOW
def test_values_and_units_survive_csv_and_json(values):
    a, b = member(j.log(reward=values, steps=len(values))), member(j.log(seed=2, steps=len(values)))
    found = compared(a, b)
    out = io.StringIO()
    csv.writer(out).writerows(comparerows.csv_rows(found))
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    back = [float(r["value"]) for r in rows if r["kind"] == "value" and r["side"] == "A"
            and r["quantity"] == "reward"]  # fmt: skip
    assert back[: len(values)] == values
    assert {r["unit"] for r in rows if r["quantity"] == "rollout_time"} == {"s"}
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found))
    stored = json.loads(json.dumps(found))["quantities"][0]["runs"][0]["values"]
    assert stored == values


SERIES = st.lists(
    st.one_of(st.floats(0.05, 0.95), st.just(float("nan"))), min_size=6, max_size=9
)  # fmt: skip


@given(SERIES, st.integers(1, 3))
@pytest.mark.slow
@SLOW
def test_text_json_and_csv_say_the_same(values, seeds):
    a = arm("", [values] * seeds, steps=len(values), name="a", head=ALONE)
    b = arm(CHANGE, [0.99] * seeds, steps=len(values), name="b", head=ALONE)
    found = compared(*a, *b, only=("reward", "gap", "rollout_time"))
    said = json.loads(json.dumps(health.plain(found)))
    text = " ".join(" ".join(comparetext.lines(found)).split())
    rows = comparerows.csv_rows(found)
    for q in said["quantities"]:
        (c,) = q["claims"]
        last = c["word"] or "no claim: " + "; ".join(c["reasons"])
        assert [r[-1] for r in rows if r[0] == "claim" and r[1] == q["id"]] == [last]
        assert (f"B is {c['word']} than A" if c["word"] else f"no claim for B: {last[10:]}") in text
        middles = [float(r[-1]) for r in rows if r[0] == "middle" and r[1] == q["id"]]
        assert list(map(str, middles)) == [str(float(r["middle"])) for r in q["runs"]]
        for one, run in zip(middles, q["runs"], strict=True):
            assert f"{run['run']} {one:.{q['digits']}f}" in text
        bad = {r[6] for r in rows if r[0] == "not-finite" and r[1] == q["id"]}
        assert bad == set(q["not_finite"])


# -- refusals --------------------------------------------------------------------------------------


def test_three_seeds_on_each_side_outside_the_spread_are_better():
    found = compared(
        *arm("", [0.50, 0.51, 0.52], name="a"), *arm(CHANGE, [0.60, 0.61, 0.62], name="b")
    )
    one = claim(found, "reward")
    assert (one["word"], one["reasons"]) == ("better", [])
    assert one["chance"] == pytest.approx(0.1)
    close = " ".join(" ".join(comparetext.lines(found)).split()).rpartition("outside the spread")[2]
    assert "of the seeds, 1 of 2 comparisons here: reward: B better." in close
    assert "at most 1 of 10, so up to 0.2 of these 2." in close


def test_two_seeds_on_each_side_say_how_often_chance_does_it():
    found = compared(*arm("", [0.50, 0.51], name="a"), *arm(CHANGE, [0.60, 0.61], name="b"))
    one = claim(found, "reward")
    assert one["word"] is None
    assert one["reasons"] == [
        "the sides are apart, and so few seeds are so by chance in 1 of 3 comparisons"
    ]
    assert one["settle"] == [claims.MORE_SEEDS]


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
    note = (*ALONE, "# other runs share this GPU at the same time: made, other (same)")
    a = arm("", [0.50, 0.51, 0.52], name="a", rollout_s=10.0, head=note)
    b = arm(CHANGE, [0.60, 0.61, 0.62], name="b", rollout_s=5.0, head=note)
    found = compared(*a, *b)
    assert claim(found, "reward")["word"] == "better"
    assert "GPU shared" in words(found, "rollout_time")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ((), "nothing says whether the GPU was shared in a0, a1, a2, b0, b1, b2"),
        (("# gpu NVIDIA H200, 580.1, 143771 MiB, 9000 MiB",),
         "a0 (9,000 MiB in use at its start: maybe shared), a1"),
    ],
)  # fmt: skip
def test_a_gpu_that_nothing_calls_alone_refuses_times(head, said):
    assert said in words(timed([10.0, 10.1, 10.2], [8.0, 8.1, 8.2], head=head), "rollout_time")


TEN, EIGHT = [10.0, 10.1, 10.2], [8.0, 8.1, 8.2]


def timed(left, right, lengths=(30.0, 30.0), head=ALONE, change=CHANGE, name="rollout") -> dict:
    """Runs with these rollout times (or whole steps) and answer lengths of A and B."""
    sides_ = []
    for letter, times, length, extra in (("a", left, lengths[0], ""),
                                         ("b", right, lengths[1], change)):  # fmt: skip
        sides_ += [
            member(
                j.log(seed=s, extra=extra, length=length, head=head, **{f"{name}_s": t}),
                f"{letter}{s}",
            )
            for s, t in enumerate(times)
        ]
    return compared(*sides_, only=("reward", f"{name}_time"))


def test_a_time_outside_the_spread_is_faster_and_its_clock_and_pauses_are_unknown():
    found = timed(TEN, EIGHT)
    one = claim(found, "rollout_time")
    runs = ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert (one["word"], one["clock_unknown"], one["pauses_unknown"]) == ("faster", runs, runs)
    text = " ".join(" ".join(comparetext.lines(found)).split())
    assert "Pauses unknown (no heat-guard log): a0, a1" in text
    assert "rollout time: B faster (clock and pauses unknown)" in text


@pytest.mark.parametrize(
    ("left", "right", "lengths", "why"),
    [
        (TEN, EIGHT, (30.0, 24.0), "per token of it the sides overlap"),
        (TEN, [11.5, 11.6, 11.7], (30.0, 60.0), "per token of it the order is the other one"),
        ([11.5, 11.6, 11.7], TEN, (60.0, 30.0), "per token of it the order is the other one"),
    ],
)
@pytest.mark.parametrize("name", ["rollout", "step"])
def test_a_time_that_follows_the_answer_length_is_refused(left, right, lengths, why, name):
    found = timed(left, right, lengths, name=name)
    assert why in words(found, f"{name}_time")
    shown = [r["length"] for r in quantity(found, f"{name}_time")["runs"]]
    assert shown == [lengths[0]] * 3 + [lengths[1]] * 3


@pytest.mark.parametrize(
    "more",
    ["--save /ckpt --save-interval 2", "--eval-interval 1 --n-samples-per-eval-prompt 4",
     "--save-debug-rollout-data /d/x", "--dump-details /d"],
)  # fmt: skip
def test_saving_and_evaluating_are_a_difference_for_times_only(more):
    found = timed(TEN, EIGHT, change=f"{CHANGE} {more}")
    name = more.split()[0][2:]
    assert f"2 settings differ: sglang-enable-deterministic-inference, {name}" in words(
        found, "rollout_time"
    )
    a = arm("", [0.50, 0.51, 0.52], name="a")
    b = arm(f"{CHANGE} {more}", [0.60, 0.61, 0.62], name="b")
    assert claim(compared(*a, *b), "reward")["word"] == "better"


def test_another_folder_to_save_in_is_no_difference():
    same = "--save-interval 2 --save /ckpt/"
    found = timed(TEN, EIGHT, change=f"{CHANGE} {same}b")
    assert "with" in words(found, "rollout_time")
    a = [
        member(j.log(seed=s, extra=f"{same}a", head=ALONE, rollout_s=t)) for s, t in enumerate(TEN)
    ]
    b = [
        member(j.log(seed=s, extra=f"{same}b {CHANGE}", head=ALONE, rollout_s=t))
        for s, t in enumerate(EIGHT)
    ]
    assert claim(compared(*a, *b), "rollout_time")["word"] == "faster"


def test_runs_of_one_setting_that_differ_in_time_only_say_so():
    found = compared(member(j.log()), member(j.log(seed=2, extra="--save /c --save-interval 2")))
    text = " ".join(" ".join(comparetext.lines(found)).split())
    assert "the runs differ in: save: (not set) / /c; save-interval: (not set) / 2" in text


def test_a_reference_model_is_a_difference_for_times_only():
    extra = "--use-kl-loss --kl-loss-coef 0.00 --ref-load /lab/model"
    a = arm("", [0.50, 0.51, 0.52], name="a", head=ALONE)
    b = arm(f"{extra} {CHANGE}", [0.60, 0.61, 0.62], name="b", rollout_s=5.0, head=ALONE)
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


def test_the_stored_runs_of_a_setup_are_its_baseline():
    ones = [runload.load(f"h200-miles/{name}") for name in ("plain3", "determ")]
    made = sides.group([[Member(one, setupdiff.facts(one))] for one in ones])
    found = comparison.compare(made, [quantities.named("gap")])
    assert [len(found["stored_runs"][side]) for side in "AB"] == [2, 1]
    assert "inside the range of the stored runs" in words(found, "gap")


def test_columns_that_the_run_marks_unusable_are_not_compared(capsys):
    rc = kit.main(["compare", "--json", "--column", "rollout/ref_log_probs",
                   "h200-miles/plain_s1234", "h200-miles/plain_s4321"])  # fmt: skip
    (q,) = json.loads(capsys.readouterr().out)["quantities"]
    assert rc == 3
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
    found = compared(*arm("", [0.5, 0.51, 0.52], THREE, name="a"),
                     *arm(CHANGE, [0.6, 0.61, 0.62], THREE, name="b"))  # fmt: skip
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
    lengths = [30.0] * 3 + [float("nan")] + [30.0] * 8
    one, two = member(j.log(step_s=lengths)), member(j.log(seed=2), "other")
    found = compared(one, two, only=("gap", "train_time", "step_time"))
    assert quantity(found, "gap")["steps"] == list(range(12))
    assert quantity(found, "train_time")["steps"] == [1, 2, *range(4, 12)]
    assert quantity(found, "step_time")["not_finite"] == {"made": [3]}
    assert not any(run["not_finite"] for side in found["sides"] for run in side["runs"])


def test_step_0_and_the_first_step_of_a_resume_are_in_no_time():
    head = (j.m.sourced(j.NINE, "[FSDP] Loaded model from /ckpt/a/iter_0000003/model"),)
    fresh = compared(member(j.log()), member(j.log(seed=2)))
    assert quantity(fresh, "reward")["steps"] == list(range(12))
    assert quantity(fresh, "rollout_time")["steps"] == list(range(1, 12))
    resumed = compared(*(member(j.log(seed=s, first=4, head=head)) for s in THREE))
    assert quantity(resumed, "rollout_time")["steps"] == list(range(5, 16))


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


def test_a_key_that_no_run_has_is_nothing_compared(capsys):
    rc = kit.main(["compare", "h200-miles/plain3", "h200-miles/determ", "--column", "foo"])
    assert rc == 3
    assert "nothing was compared (foo: not in" in capsys.readouterr().err
    both = ["--column", "foo", "--column", "gap"]
    assert kit.main(["compare", "h200-miles/plain3", "h200-miles/determ", *both]) == 0


def test_every_step_is_listed():
    assert quantities.steps_text([4]) == "step 4"
    assert quantities.steps_text([1, 2]) == "steps 1 and 2"
    assert quantities.steps_text([0, 1, 2, 4, 5, 9]) == "steps 0 to 2, 4, 5 and 9"
    text = quantities.steps_text(list(range(0, 60, 2)))
    assert text.count(",") == 28
    assert "more" not in text


def test_runs_of_one_name_are_told_apart(tmp_path, capsys):
    paths = [j.store(tmp_path, name, j.log(seed=i)) for i, name in enumerate(("x", "made", "y"))]
    (tmp_path / "deep").mkdir()
    assert kit.main(["compare", "--json", *paths]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["run"] for r in found["sides"][0]["runs"]] == ["made (x)", "made", "made (y)"]
    deep = j.store(tmp_path / "deep", "x", j.log(seed=9))
    assert kit.main(["compare", "--json", paths[0], deep]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["run"] for r in found["sides"][0]["runs"]] == [f"made ({paths[0]})", f"made ({deep})"]
    assert kit.main(["compare", "--csv", paths[1], paths[1]]) == 0
    assert ",made (#2),made (#1)," in capsys.readouterr().out


def test_a_step_printed_again_with_other_numbers_is_said(tmp_path):
    lines = j.log().split(b"\n")
    at = next(i for i, line in enumerate(lines) if b"rollout 7:" in line)
    other = lines[at].replace(b"0.5", b"0.0")
    assert other != lines[at]
    for more, said in ((other, 1), (lines[at], 0)):
        path = j.store(tmp_path, "x", b"\n".join([*lines[: at + 1], more, *lines[at + 1 :]]))
        note = "printed more than once with different numbers, the first counts: rollout 7"
        assert runload.load(path).notes == (note,) * said


def test_what_would_settle_it_does_not_contradict_itself():
    same = compared(member(j.log()), member(j.log(extra=CHANGE)))
    assert claim(same, "reward")["settle"] == [claims.MORE_SEEDS]
    ones = [runload.load(f"h200-miles/{name}") for name in ("plain3", "determ")]
    found = compared(*(Member(one, setupdiff.facts(one)) for one in ones), only=("gap",))
    assert claim(found, "gap")["settle"]


def test_runs_joined_by_a_comma_stand_on_one_side(capsys):
    joined = "h200-miles/plain3,h200-miles/n4"
    assert kit.main(["compare", "--json", joined, "h200-miles/determ", "--column", "gap"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(side["runs"]) for side in found["sides"]] == [2, 1]
    assert "differ in global-batch-size, n-samples" in words(found, "gap")
