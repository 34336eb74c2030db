"""health: verdicts, zeros, drift, step 0, references, and what it must not claim."""

from __future__ import annotations

import json
import math
import statistics
from random import Random

import judgelog as j
import kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.judge import (
    health,
    healthdrift,
    healthreport,
    healthrules,
    rangejudge,
    ranges,
    runload,
    setupdiff,
)
from mileskit.judge.rangejudge import FEW, HIDDEN, INSIDE, NONE, OUTSIDE
from mileskit.judge.ranges import Range

NAN = float("nan")


def judged(capsys, *args: str) -> tuple[int, dict]:
    """Exit code and report of ``health --json``."""
    rc = kit.main(["health", "--json", *args])
    return rc, json.loads(capsys.readouterr().out)


def row(report: dict, signal: str, table: str = "signals") -> dict:
    return next(r for r in report[table] if r["id"] == signal)


def made(tmp_path, name: str = "made", **series) -> str:
    return j.store(tmp_path, name, j.log(**series))


def seeds_of(tmp_path, count: int = 3, steps: int = 12, **series) -> list[str]:
    """Healthy reference runs of the recipe, one a seed, with a wobble of their own."""
    found = []
    for k in range(count):
        own = {"gap": j.wobble(0.015, steps, k), "reward": j.wobble(0.5, steps, 9 + k), **series}
        found.append(made(tmp_path, f"ref{k}", steps=steps, seed=20 + k, **own))
    return found


# -- ranges ----------------------------------------------------------------------------------------


def test_the_ranges_are_those_of_section_1_3(capsys):
    _, report = judged(
        capsys,
        "h200-miles/kill_noft",
        "--against",
        *(f"h200-miles/{name}" for name in ("plain_s1234", "plain_s4321", "plain3")),
    )
    cells = {s: row(report, s, "first_ten")["range"] for s in ("reward", "gap", "length")}
    runs = [runload.load(f"h200-miles/{n}").run for n in ("plain_s1234", "plain_s4321", "plain3")]
    for signal, column in (
        ("reward", "rollout/raw_reward"),
        ("length", "rollout/response_lengths"),
    ):
        values = [v for run in runs for v in run["rollouts"]["columns"][column][:10]]
        assert (cells[signal]["low"], cells[signal]["high"]) == (min(values), max(values))
        assert (cells[signal]["values"], cells[signal]["seeds"]) == (30, 3)
        assert cells[signal]["tier"] == "measured"


def test_a_stored_run_is_left_out_of_its_own_reference(capsys):
    _, report = judged(capsys, "h200-miles/plain3")
    names = [one["run"] for one in report["reference"]["runs"]]
    assert names == ["h200-miles/plain_s1234", "h200-miles/plain_s4321"]


def test_a_run_that_did_not_end_by_itself_is_no_default_reference(capsys):
    _, report = judged(capsys, "h200-miles/plain_s4321")
    assert "h200-miles/kill_noft" not in [one["run"] for one in report["reference"]["runs"]]


@pytest.mark.parametrize(
    ("verdict", "steps", "fit"),
    [("finished", 12, True), ("engine-dead", 12, False), ("finished", 4, False)],
)
def test_a_default_reference_ended_by_itself_and_has_five_steps(verdict, steps, fit):
    one = runload.load("h200-miles/plain3")
    run = {**one.run, "steps": {**one.run["steps"], "index": list(range(steps))}}
    assert ranges.usable(one._replace(run=run, toml={"ended": {"verdict": verdict}})) is fit


def test_without_an_equal_setup_there_is_no_range_and_the_nearest_is_shown(capsys):
    rc, report = judged(capsys, "h200-miles/topp2")
    assert report["reference"]["chosen"] == "none"
    differs = " ".join(report["reference"]["nearest"]["differs"])
    assert "rollout-top-k" in differs
    assert "rollout-top-p" in differs
    assert row(report, "reward")["verdict"] == NONE
    assert rc == 1  # its reference model is broken, whatever the ranges


def test_a_reference_that_the_user_names_is_used_and_its_difference_said(capsys):
    _, report = judged(capsys, "h200-miles/determ", "--against", "h200-miles/plain3")
    (one,) = report["reference"]["runs"]
    assert one["differs"] == ["sglang-enable-deterministic-inference: on / (not set)"]
    assert row(report, "reward")["verdict"] == INSIDE
    assert any("one seed" in note for note in row(report, "reward")["notes"])


@pytest.mark.parametrize("name", ["plain_s1234", "plain_s4321", "plain3", "determ", "determ2"])
def test_no_number_of_a_healthy_stored_run_is_outside(capsys, name):
    _, report = judged(capsys, f"h200-miles/{name}")
    rows = [*report["first_ten"], *report["signals"]]
    assert [r["id"] for r in rows if r["verdict"] == OUTSIDE] == []
    assert row(report, "reward")["verdict"] == INSIDE


def test_published_ranges_judge_their_own_setup_and_keep_their_tier(tmp_path, capsys):
    path = made(tmp_path, command=j.GB10, reward=0.62, gap=0.0152)
    rc, report = judged(capsys, path)
    gap = row(report, "gap", "first_ten")
    assert (gap["range"]["tier"], gap["range"]["low"], gap["range"]["high"]) == (
        "reported",
        0.0141,
        0.0164,
    )
    assert gap["verdict"] == INSIDE
    assert row(report, "length", "first_ten")["verdict"] == NONE
    assert rc == 0


def test_published_ranges_do_not_judge_another_recipe(tmp_path, capsys):
    path = made(tmp_path, command=j.GB10, extra="--rollout-top-p 0.95")
    _, report = judged(capsys, path)
    assert report["reference"]["chosen"] == "none"


def test_a_gap_above_a_published_range_is_outside(tmp_path, capsys):
    rc, report = judged(capsys, made(tmp_path, command=j.GB10, reward=0.62, gap=0.05))
    assert (rc, row(report, "gap", "first_ten")["verdict"]) == (1, OUTSIDE)
    step0 = next(c for c in report["step0"] if c["name"] == "gap")
    assert step0["verdict"] == OUTSIDE


# -- the rule --------------------------------------------------------------------------------------


def test_single_steps_a_little_outside_leave_the_verdict_inside():
    range_ = Range(0.3, 0.5, 30, ("r",), 3, "measured", "")
    series = dict(enumerate([0.29, 0.4, 0.4, 0.4, 0.4, 0.52]))
    assert rangejudge.judge(series, list(series), range_).verdict == INSIDE


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.6] * 5, OUTSIDE),  # the mean
        ([0.4] * 9 + [0.8], OUTSIDE),  # one step by more than the width
        ([0.4] * 4, FEW),
        ([0.4] * 9 + [NAN], OUTSIDE),
        ([], FEW),
    ],
)
def test_the_verdict_rests_on_five_steps_or_on_one_far_step(values, verdict):
    range_ = Range(0.3, 0.5, 30, ("r",), 3, "measured", "")
    series = dict(enumerate(values))
    assert rangejudge.judge(series, list(series), range_).verdict == verdict


def test_a_range_of_one_seed_is_widened_for_the_mean():
    series = dict(enumerate([0.55] * 6))
    for seeds, verdict in ((1, INSIDE), (2, OUTSIDE)):
        range_ = Range(0.3, 0.5, 10, ("r",), seeds, "measured", "")
        assert rangejudge.judge(series, list(series), range_).verdict == verdict


@given(
    st.lists(st.floats(0.01, 1.0), min_size=5, max_size=20),
    st.floats(0.01, 100.0),
)
@settings(max_examples=60)
def test_the_verdict_does_not_depend_on_the_unit(values, factor):
    low, high = min(values) * 0.9, max(values) * 1.1
    series = dict(enumerate(values))
    scaled = {n: v * factor for n, v in series.items()}
    a = Range(low, high, 30, ("r",), 3, "measured", "")
    b = Range(low * factor, high * factor, 30, ("r",), 3, "measured", "")
    one = rangejudge.judge(series, list(series), a)
    two = rangejudge.judge(scaled, list(series), b)
    assert one.verdict == two.verdict == INSIDE
    assert two.mean == pytest.approx(one.mean * factor)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=30))
@settings(max_examples=80)
def test_the_trend_test_changes_its_sign_with_the_order(values):
    assert healthdrift.mann_kendall(values[::-1]) == pytest.approx(
        -healthdrift.mann_kendall(values)
    )


def test_a_gap_that_stays_while_that_of_the_reference_falls_is_outside(tmp_path, capsys):
    falls = [[g - 0.0008 * n for n, g in enumerate(j.wobble(0.020, 20, k, 0.02))] for k in range(3)]
    refs = [made(tmp_path, f"r{k}", steps=20, seed=k + 3, gap=falls[k]) for k in range(3)]
    _, report = judged(capsys, made(tmp_path, steps=20, gap=0.015), "--against", *refs)
    assert row(report, "gap", "first_ten")["verdict"] == INSIDE
    assert row(report, "gap")["verdict"] == OUTSIDE
    assert "mean of steps 15 to 19" in row(report, "gap")["why"]


def test_steps_that_a_named_reference_lacks_are_not_judged(tmp_path, capsys):
    short = made(tmp_path, "short", steps=3, seed=9)
    reward = [0.5] * 3 + [0.99] * 9
    rc, report = judged(capsys, made(tmp_path, reward=reward), "--against", short)
    for table in ("first_ten", "signals"):
        assert row(report, "reward", table)["steps"] == "steps 0 to 2"
        assert row(report, "reward", table)["verdict"] == FEW
    assert rc == 0


def test_steps_without_a_value_in_the_reference_are_not_judged(tmp_path, capsys):
    ref = made(tmp_path, "ref", seed=9, reward=[0.5] * 3 + [NAN] * 9)
    path = made(tmp_path, reward=[0.5] * 3 + [0.99] * 9)
    _, report = judged(capsys, path, "--against", ref)
    assert (row(report, "reward")["steps"], row(report, "reward")["verdict"]) == (
        "steps 0 to 2",
        FEW,
    )
    assert row(report, "gap")["n"] == 12


def test_published_ranges_of_another_setup_are_said_to_be_so(tmp_path, capsys):
    path = made(tmp_path)
    _, report = judged(capsys, path, "--against", "gb10")
    assert any("model: " in text for text in report["reference"]["lab_differs"]["gb10"])
    kit.main(["health", path, "--against", "gb10"])
    assert "another setup" in capsys.readouterr().out.splitlines()[-1]
    _, report = judged(capsys, made(tmp_path, command=j.GB10), "--against", "gb10")
    assert report["reference"]["lab_differs"] == {}


def test_what_a_run_does_not_state_is_named_and_not_called_equal(tmp_path, capsys):
    command = runload.load("h200-miles/plain3").toml["run"]["command"]
    path = made(tmp_path, command=command.replace("--seed 7", "").replace("--rollout-seed 7", ""))
    _, report = judged(capsys, path)
    assert report["reference"]["chosen"] == "equal setup"
    assert report["reference"]["unstated"] == ["Miles commit", "engine", "GPU"]
    kit.main(["health", path])
    assert "not stated by this run, so not compared: Miles commit" in capsys.readouterr().out
    _, stored = judged(capsys, "h200-miles/plain3")
    assert stored["reference"]["unstated"] == []


# -- zeros -----------------------------------------------------------------------------------------


def test_zero_kl_and_clip_fraction_are_not_visible_with_one_update(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path))
    for signal in ("kl", "clip"):
        assert row(report, signal)["verdict"] == HIDDEN
        assert "one update" in row(report, signal)["why"]


def test_zero_clip_fraction_is_a_number_with_more_updates(tmp_path, capsys):
    command = j.PLAIN.replace("--global-batch-size 256", "--global-batch-size 128")
    _, report = judged(capsys, made(tmp_path, command=command))
    assert row(report, "clip")["verdict"] == NONE
    assert "truly 0 with 2 updates" in row(report, "clip")["notes"][0]


def test_a_kl_that_one_update_cannot_give_is_outside(tmp_path, capsys):
    refs = seeds_of(tmp_path)
    rc, report = judged(capsys, made(tmp_path, kl=1e-4), "--against", *refs)
    assert (rc, row(report, "kl")["verdict"]) == (1, OUTSIDE)


def test_zero_entropy_loss_is_said_to_be_off_and_the_rollout_entropy_is_read(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path))
    entropy = row(report, "entropy")
    assert entropy["mean"] == pytest.approx(0.3)
    assert "coefficient is off" in entropy["notes"][0]


def test_a_finite_gap_beside_a_broken_gradient_hides_nan(tmp_path, capsys):
    rc, report = judged(capsys, made(tmp_path, grad=[0.6] * 10 + [NAN] * 2, gap=0.0))
    gap = row(report, "gap")
    assert "hides NaN" in " ".join(gap["notes"])
    assert gap["n"] == 10
    assert (rc, row(report, "grad_norm")["verdict"]) == (1, OUTSIDE)


def test_an_exact_zero_gap_is_a_finding_except_in_true_on_policy_mode(tmp_path, capsys):
    rc, report = judged(capsys, made(tmp_path, gap=0.0))
    assert (rc, [f["id"] for f in report["findings"]]) == (1, ["gap-zero"])
    path = made(tmp_path, "t", gap=0.0, extra="--true-on-policy-mode")
    assert judged(capsys, path)[0] == 0
    path = made(tmp_path, "r", gap=0.0, extra="--use-rollout-logprobs")
    rc, report = judged(capsys, path)
    assert (rc, row(report, "gap")["verdict"]) == (0, HIDDEN)


def test_integer_rewards_take_their_groups_from_the_counts(tmp_path, capsys):
    text = j.log().replace(b"count_0.0", b"count_0").decode()
    lines = [
        line.split(", 'rollout/zero_std/all_zero")[0]
        + (", 'rollout/zero_std/all_zero_percentage': 0.0}" if "all_zero" in line else "")
        for line in text.splitlines()
    ]
    path = j.store(tmp_path, "ints", "\n".join([*lines, ""]).encode())
    _, report = judged(capsys, path)
    assert row(report, "groups")["mean"] == pytest.approx(3 / 32)
    assert "integer rewards" in row(report, "groups")["notes"][0]


def test_a_filter_makes_the_groups_invisible(capsys):
    _, report = judged(capsys, "h200-miles/filter")
    assert row(report, "groups")["verdict"] == HIDDEN


def test_groups_of_one_reward_for_five_steps_are_found(tmp_path, capsys):
    rc, report = judged(capsys, made(tmp_path, count=[3] * 5 + [32] * 7))
    assert (rc, [f["id"] for f in report["findings"]]) == (1, ["no-signal"])
    assert "step 5 to step 9" in report["findings"][0]["text"]


# -- drift -----------------------------------------------------------------------------------------


def creeping(steps: int, low: float, high: float, salt: int = 1) -> list[float]:
    wobbling = j.wobble(1.0, steps, salt, 0.02)
    return [w * (low + (high - low) * k / (steps - 1)) for k, w in enumerate(wobbling)]


@pytest.mark.parametrize("salt", range(5))
def test_a_gap_that_creeps_up_inside_its_range_is_outside(tmp_path, capsys, salt):
    refs = seeds_of(tmp_path, 3, 20, gap=[0.0141, 0.0164] * 10)
    path = made(tmp_path, steps=20, gap=creeping(20, 0.0142, 0.0163, salt))
    rc, report = judged(capsys, path, "--against", *refs)
    assert (rc, [f["id"] for f in report["findings"]]) == (1, ["gap-drift"])
    assert row(report, "gap", "first_ten")["verdict"] == INSIDE


@pytest.mark.parametrize("salt", range(20))
def test_a_flat_gap_is_no_drift(salt):
    gap = dict(enumerate(j.wobble(0.015, 48, salt)))
    assert healthdrift.gap_drift(gap, []) is None


def test_a_rise_that_the_reference_shows_too_is_no_drift():
    rise = dict(enumerate(creeping(20, 0.010, 0.020)))
    assert healthdrift.gap_drift(rise, []).id == "gap-drift"
    assert healthdrift.gap_drift(rise, [{n: v**2 for n, v in rise.items()}]) is None


def test_a_trend_of_rounding_is_no_drift():
    rise = creeping(20, 1.0, 2.0)
    assert healthdrift.gap_drift({n: 1e-7 * gap for n, gap in enumerate(rise)}, []) is None
    assert (
        healthdrift.gap_drift({n: 1e-4 * gap for n, gap in enumerate(rise)}, []).id == "gap-drift"
    )


def test_the_stored_runs_have_no_drift():
    for name in runload.stored_runs():
        run = runload.load(name).run
        gap = rangejudge_gap(run)
        assert healthdrift.gap_drift(gap, []) is None, name


def rangejudge_gap(run: dict) -> dict:
    column = run["steps"]["columns"].get("train/train_rollout_logprob_abs_diff", [])
    return dict(zip(run["steps"]["index"], column, strict=False))


def test_one_high_gap_alone_is_not_two_in_a_row():
    assert healthrules.gap_high({0: 0.01, 1: 0.2, 2: 0.01, 3: 0.2}) is None
    assert "steps 1 to 2" in healthrules.gap_high({0: 0.01, 1: 0.2, 2: 0.3, 3: 0.01}).text


CREEP = {
    "from the start": lambda i, n: 1 + 0.5 * i / (n - 1),
    "after a fall": lambda i, n: max(1 - 0.9 * i / (n - 1), 0.55 + 1.2 * (i / (n - 1) - 0.5)),
    "steeply": lambda i, n: 1.0 + 1.5 * i / (n - 1),
}


def generated(random, shape, n: int, correlation: float = 0.0, size: float = 0.08) -> dict:
    """Log-normal steps around a shape; neighbours correlate."""
    x, out = random.gauss(0, size), {}
    for i in range(n):
        x = correlation * x + random.gauss(0, size * math.sqrt(1 - correlation**2))
        out[i] = 0.015 * shape(i, n) * math.exp(x)
    return out


@pytest.mark.parametrize("name", CREEP)
@pytest.mark.parametrize("n", [20, 60])
def test_a_rise_of_any_shape_is_found_in_nine_of_ten_runs(name, n):
    random = Random(1)
    found = sum(
        healthdrift.gap_drift(generated(random, CREEP[name], n), []) is not None for _ in range(40)
    )
    assert found >= 36


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("fall", [0.0, 0.6])
def test_a_healthy_gap_is_no_drift_however_its_steps_correlate(correlation, fall):
    random = Random(2)
    alarms = sum(
        healthdrift.gap_drift(
            generated(random, lambda i, n: 1 - fall * i / (n - 1), 20, correlation, 0.1), []
        )
        is not None
        for _ in range(200)
    )
    assert alarms <= 6


def test_a_gap_that_leaves_its_falling_reference_is_drift():
    steps = range(20)
    refs = [dict(zip(steps, j.wobble(1.0, 20, k, 0.05), strict=True)) for k in range(2)]
    refs = [{n: v * (0.018 - 0.0006 * n) for n, v in ref.items()} for ref in refs]
    wobble = j.wobble(0.0165, 20, 9, 0.04)
    assert healthdrift.gap_drift(dict(enumerate(wobble)), []) is None
    found = healthdrift.gap_drift(dict(enumerate(wobble)), refs)
    assert "leaves that of the reference" in found.text


# -- collapses, without any reference --------------------------------------------------------------

COLLAPSES = {
    "reward-falls": {"reward": [max(0.05, 0.7 - 0.04 * n) for n in range(20)]},
    "length-collapse": {"length": [max(3.0, 33 - 2.0 * n) for n in range(20)]},
    "entropy-collapse": {"entropy": [0.37 * math.exp(-0.4 * n) for n in range(20)]},
    "cut-high": {"cut": [min(1.0, n / 12) for n in range(20)]},
    "grad-spike": {"grad": [5000.0 if n == 11 else 0.6 for n in range(20)]},
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_is_outside_without_any_reference(tmp_path, capsys, name):
    series = {"reward": j.wobble(0.5, 20, 3), **COLLAPSES[name]}
    rc, report = judged(capsys, made(tmp_path, steps=20, **series))
    assert report["reference"]["chosen"] == "none"
    assert (rc, [f["id"] for f in report["findings"]]) == (1, [name])
    signal = {"reward-falls": "reward", "cut-high": "cut", "grad-spike": "grad_norm"}
    assert row(report, signal.get(name, name.split("-")[0]))["verdict"] == OUTSIDE


def test_entropy_that_falls_while_the_reward_rises_is_how_a_run_learns():
    entropy = dict(enumerate(0.37 * 0.92**n for n in range(20)))
    rising = dict(enumerate(0.3 + 0.02 * n for n in range(20)))
    assert healthrules.falls("entropy", entropy, rising, 0.03) is None
    falling = {n: 0.7 - v for n, v in rising.items()}
    assert healthrules.falls("entropy", entropy, falling, 0.03).id == "entropy-collapse"


@given(st.integers(0, 10**6), st.integers(64, 1024))
@settings(max_examples=60, deadline=None)
def test_a_steady_reward_does_not_fall(seed, answers):
    random = Random(seed)
    hits = [sum(random.random() < 0.5 for _ in range(answers)) / answers for _ in range(20)]
    floor = healthrules.binomial_floor(0.5, answers)
    assert healthrules.reward_falls(dict(enumerate(hits)), floor) is None


def healthy(random, steps: int = 20) -> dict:
    """A made run of one recipe: the reward rises, gap and entropy fall, at a pace of its own."""
    pace = math.exp(random.gauss(0, 0.12))

    def line(first, last, size):
        shift = math.exp(random.gauss(0, 0.03))
        return [
            (first + (last - first) * min(1.0, pace * i / 19)) * shift * math.exp(
                random.gauss(0, size)
            )
            for i in range(steps)
        ]  # fmt: skip

    return {
        "reward": line(0.38, 0.65, 0.07),
        "gap": line(0.018, 0.007, 0.08),
        "entropy": line(0.37, 0.12, 0.1),
        "length": line(33, 31, 0.04),
        "grad": line(0.75, 0.6, 0.15),
        "cut": [sum(random.random() < 0.004 for _ in range(256)) / 256 for _ in range(steps)],
    }


@pytest.mark.slow
def test_of_healthy_runs_few_alarm_and_every_drift_does(tmp_path):
    """Three references of 20, 16 and 12 steps, as the stored seeds are."""
    random = Random(7)
    refs = [
        made(tmp_path, f"ref{k}", steps=n, seed=k + 2, **healthy(random, n))
        for k, n in enumerate((20, 16, 12))
    ]

    def verdict(**series):
        one = runload.load(made(tmp_path, steps=20, **{**healthy(random), **series}))
        mine = setupdiff.facts(one)
        reference = ranges.choose(one, mine, refs)
        return healthreport.report(one, mine, reference, None, False)["verdict"]

    assert sum(verdict() == OUTSIDE for _ in range(40)) <= 4
    flat = {"gap": lambda: j.wobble(0.0155, 20, random.randrange(999), 0.06)}
    flat["reward"] = lambda: j.wobble(0.37, 20, random.randrange(999), 0.06)
    for name, make in flat.items():
        assert sum(verdict(**{name: make()}) == OUTSIDE for _ in range(10)) >= 9, name


def test_the_late_steps_of_one_seed_are_judged_too(tmp_path, capsys):
    rise = [0.3 + 0.02 * n for n in range(20)]
    refs = [
        made(tmp_path, f"r{k}", steps=n, seed=k + 3, reward=[v + 0.01 * k for v in rise[:n]])
        for k, n in enumerate((20, 16, 12))
    ]
    low = rise[:16] + [0.2] * 4
    rc, report = judged(capsys, made(tmp_path, steps=20, reward=low), "--against", *refs)
    assert (rc, row(report, "reward")["verdict"]) == (1, OUTSIDE)
    assert "steps 15 to 19" in row(report, "reward")["why"]


# -- step 0 ----------------------------------------------------------------------------------------

BROKEN = ("plain_s1234", "plain_s4321", "topp2", "filter", "kill_noft")


@pytest.mark.parametrize("name", BROKEN)
def test_a_reference_model_that_is_not_the_actor_at_step_0_is_caught(capsys, name):
    rc, report = judged(capsys, f"h200-miles/{name}")
    check = next(c for c in report["step0"] if c["name"] == "reference model")
    assert (rc, check["verdict"]) == (1, OUTSIDE)
    assert "train/kl_loss" in check["why"]


@pytest.mark.parametrize(
    ("value", "verdict"), [(-0.37, INSIDE), (-0.3712, INSIDE), (-2.4, OUTSIDE)]
)
def test_the_reference_model_must_equal_the_actor_within_the_gap(tmp_path, capsys, value, verdict):
    path = made(tmp_path, reference=value, extra="--use-kl-loss --ref-load /lab/model")
    _, report = judged(capsys, path)
    assert report["step0"][3]["verdict"] == verdict


def test_another_reference_model_is_not_compared(tmp_path, capsys):
    path = made(tmp_path, reference=-2.4, extra="--use-kl-loss --ref-load /lab/teacher")
    assert judged(capsys, path)[1]["step0"][3]["verdict"] == HIDDEN


@pytest.mark.parametrize(("kl", "verdict"), [(0.0, INSIDE), (9e-10, INSIDE), (1e-8, OUTSIDE)])
def test_kl_at_step_0_obeys_the_bound_of_miles(tmp_path, capsys, kl, verdict):
    _, report = judged(capsys, made(tmp_path, kl=[kl] + [0.0] * 11))
    assert report["step0"][0]["verdict"] == verdict


def test_a_zero_at_step_0_beside_a_broken_gradient_says_nothing(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path, grad=[NAN] + [0.6] * 11))
    assert [c["verdict"] for c in report["step0"][:3]] == [HIDDEN] * 3


def test_a_resumed_run_has_no_step_0(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path, first=20))
    assert report["step0"] == []


# -- noise -----------------------------------------------------------------------------------------


def test_the_binomial_floor_stands_beside_the_seed_spread(tmp_path, capsys):
    refs = seeds_of(tmp_path)
    _, report = judged(capsys, made(tmp_path, reward=0.5), "--against", *refs)
    assert report["noise"]["floor"] == pytest.approx(math.sqrt(0.25 / 256))
    assert report["noise"]["seeds"] == 3
    assert 0 < report["noise"]["spread"] < report["noise"]["widest"]


def test_the_spread_of_seeds_is_not_the_low_median_of_deviations(tmp_path, capsys):
    """Two seeds of one distribution: the median of their deviations is a third too low."""
    random = Random(5)
    refs = [
        made(tmp_path, f"s{k}", seed=k + 2, reward=[random.gauss(0.5, 0.03) for _ in range(12)])
        for k in range(2)
    ]
    _, report = judged(capsys, made(tmp_path), "--against", *refs)
    rows = zip(*(runload.load(p).run["rollouts"]["columns"]["rollout/raw_reward"][:10]
                 for p in refs), strict=True)  # fmt: skip
    mean_square = statistics.fmean(statistics.variance(r) for r in rows)
    assert report["noise"]["spread"] == pytest.approx(math.sqrt(mean_square))


def test_other_rewards_than_0_and_1_have_no_binomial_floor(tmp_path, capsys):
    path = j.store(tmp_path, "frac", j.log().replace(b"count_0.0", b"count_0.1"))
    _, report = judged(capsys, path)
    assert (report["noise"]["floor"], report["noise"]["binary"]) == (None, False)
    text = " ".join(row(report, "groups")["notes"])
    assert "integer" not in text


# -- shapes of a log -------------------------------------------------------------------------------


def test_a_run_without_a_step_is_not_judged(capsys, tmp_path):
    path = made(tmp_path, steps=0)
    assert kit.main(["health", path]) == 3
    assert "no step in this run" in capsys.readouterr().err


def test_a_stored_run_that_failed_before_its_first_step_is_not_judged(capsys):
    assert kit.main(["health", "h200-miles/smoke"]) == 3
    assert "ended: failed" in capsys.readouterr().err


def test_a_clock_record_that_is_missing_leaves_the_clock_unknown(tmp_path, capsys):
    (tmp_path / "run.log").write_bytes(j.log())
    (tmp_path / "run.toml").write_text('[setup]\nclock_record = "gone.csv"\n')
    _, report = judged(capsys, str(tmp_path))
    assert report["timing"]["record"] == "gone.csv (missing)"
    assert any("clock unknown" in word for word in report["timing"]["badge"])


def test_one_step_is_not_enough(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path, steps=1), "--against", *seeds_of(tmp_path))
    verdicts = {r["verdict"] for r in report["first_ten"]}
    assert verdicts == {FEW, HIDDEN}


def test_missing_step_numbers_are_said(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path, steps=6, numbers=[0, 1, 4, 5, 6, 9]))
    assert "steps 2, 3, 7, 8 missing in this log" in report["notes"]
    assert row(report, "gap")["n"] == 6


def test_a_repeated_step_counts_once(tmp_path, capsys):
    _, report = judged(capsys, made(tmp_path, steps=7, numbers=[0, 1, 2, 2, 3, 4, 5]))
    assert (report["steps"], row(report, "gap")["n"]) == (6, 6)


def test_the_last_of_two_runs_is_judged_and_that_is_said(tmp_path, capsys):
    path = j.store(tmp_path, "two", j.log(steps=3) + j.log(steps=7, start=j.NINE + 4000))
    _, report = judged(capsys, path)
    assert report["steps"] == 7
    assert "2 runs in this log" in report["notes"][0]


def test_steps_beyond_the_reference_are_not_judged(tmp_path, capsys):
    refs = seeds_of(tmp_path)
    rewards = [0.5] * 12 + [0.99] * 8
    rc, report = judged(capsys, made(tmp_path, steps=20, reward=rewards), "--against", *refs)
    assert (rc, row(report, "reward")["verdict"]) == (0, INSIDE)
    assert "steps 12 to 19: no reference run has them, so not judged" in report["notes"]


def test_a_log_its_summary_and_its_folder_give_the_same_report(tmp_path, capsys):
    data = j.log(grad=[0.6] * 5 + [NAN] + [0.6] * 6)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "run.log").write_bytes(data)
    first = judged(capsys, str(folder / "run.log"))
    whole = judged(capsys, str(folder))
    assert kit.main(["summarize", str(folder)]) == 0
    capsys.readouterr()
    summary = judged(capsys, str(folder / "summary.json"))
    kept = ("first_ten", "signals", "step0", "findings", "noise", "timing", "verdict")
    for rc, report in (whole, summary, judged(capsys, str(folder))):
        assert rc == first[0] == 1
        assert {k: report[k] for k in kept} == {k: first[1][k] for k in kept}


@pytest.mark.parametrize(
    ("args", "rc", "words"),
    [
        (["nowhere.log"], 2, "nowhere.log: no such file"),
        (["h200-miles/none"], 2, "no stored run"),
        ([], 2, "name one RUN"),
        (["h200-miles/plain3", "--against", "nope/x"], 2, "nope/x"),
        (["h200-miles/plain3", "--samples", "nowhere.csv"], 2, "nowhere.csv"),
        (["h200-miles/plain3", "--utc-offset", "soon", "--against", "/dev/null"], 3, "/dev/null"),
    ],
)
def test_bad_input_is_one_line(capsys, args, rc, words):
    assert kit.main(["health", *args]) == rc
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


def test_a_broken_summary_is_named(tmp_path, capsys):
    path = tmp_path / "summary.json"
    for text in ("{", '{"runs": 3}', '{"schema": 1, "runs": [{}]}', '{"schema": 9, "runs": []}'):
        path.write_text(text)
        assert kit.main(["health", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_help_lists_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        kit.main(["health", "--help"])
    assert "3  inspected nothing" in capsys.readouterr().out
    assert "no verdict on ranges" in health.EXIT_CODES
