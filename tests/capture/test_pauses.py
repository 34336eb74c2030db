"""Pauses against windows: touching ends overlap, and a pause without a resume lasts."""

from __future__ import annotations

import math
import random

import pytest
from mileskit.summary.pauses import (
    Pause,
    PauseLogError,
    PauseSet,
    iso,
    pause_line,
    read_pauses,
    resume_line,
)

from tests.capture.minilog import rollout, step, summary, text

DAY = 1795910400.0  # 2026-11-29 00:00:00 UTC


def guard(*spans: tuple[float, float | None]) -> bytes:
    """A heat-guard log with pauses at seconds of the day."""
    out = "# heat guard\n"
    for start, end in spans:
        out += pause_line(DAY + start, "run", 84, "hot")
        if end is not None:
            out += resume_line(DAY + end, "run", 74, "cool", end - start)
    return out.encode()


def test_what_is_written_is_read():
    (one,) = read_pauses(guard((10.5, 60.25)))
    assert one == Pause(DAY + 10.5, DAY + 60.25, "hot")
    assert pause_line(DAY + 1.5, "c", None, "hot") == (
        "2026-11-29T00:00:01.500Z pause container=c temp_c=unknown reason=hot\n"
    )


def test_a_pause_without_a_resume_has_no_end():
    assert read_pauses(guard((10, None)))[0].end is None


def test_a_second_pause_line_inside_a_pause_is_the_same_pause():
    doubled = guard((10, None)) + guard((20, 30))
    assert read_pauses(doubled) == [Pause(DAY + 10, DAY + 30, "hot")]


def test_a_bad_line_is_named():
    with pytest.raises(
        PauseLogError, match=r"guard\.log:2: not a pause or resume line: 'nonsense'"
    ):
        read_pauses(b"# ok\nnonsense\n# ok\n", "guard.log")


def test_a_cut_last_line_is_left_out():
    assert read_pauses(guard((10, 20)) + b"2026-11-2") == [Pause(DAY + 10, DAY + 20, "hot")]


@pytest.mark.parametrize(
    ("window", "clean"),
    [
        ((0, 9.999), True),
        ((0, 10), False),
        ((20, 30), False),
        ((20.001, 30), True),
        ((12, 15), False),
        ((0, 30), False),
        ((15, 15), False),
    ],
)
def test_a_pause_touching_the_window_makes_it_unclean(window, clean):
    assert PauseSet([Pause(10, 20, "hot")]).clean(*window) is clean


def test_paused_seconds_agree_with_a_count_by_hand():
    rng = random.Random(7)
    for _ in range(200):
        pauses = [Pause(a := rng.randrange(100), a + rng.randrange(20), "x") for _ in range(4)]
        start = rng.randrange(100)
        end = start + rng.randrange(30)
        inside = sum(any(p.start <= t + 0.5 <= p.end for p in pauses) for t in range(start, end))
        assert PauseSet(pauses).seconds(start, end) == inside
        touched = any(p.start <= end and p.end >= start for p in pauses)
        assert PauseSet(pauses).clean(start, end) is not touched


def test_seconds_since_the_last_pause():
    got = PauseSet([Pause(10, 20, "x"), Pause(40, None, "x")])
    assert [got.since(t) for t in (5, 10, 15, 20, 25, 39, 41)] == [None, 0, 0, 0, 5, 19, 0]


def test_a_pause_that_lasts_covers_everything_after_it():
    got = PauseSet([Pause(10, None, "x")])
    assert got.seconds(5, 15) == 5
    assert got.spans == [(10, math.inf)]


def test_iso_agrees_with_the_calendar():
    import datetime as dt

    rng = random.Random(3)
    for _ in range(500):
        t = rng.uniform(-1e9, 4e9)
        ms = math.floor(t * 1000 + 0.5)
        want = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)
        assert iso(t) == want.isoformat(timespec="milliseconds") + "Z"


# -- the timing rule in a summary ----------------------------------------------------------------
# Rollout windows are [90, 100] and [190, 200]; whole steps are [90, 120] and [190, 220].

LOG = text(rollout(100, 0), step(120, 0, "0.1"), rollout(200, 1), step(220, 1, "0.3"))


def timing(*spans: tuple[float, float | None]) -> dict:
    return summary(LOG, guard(*spans))["runs"][0]["timing"]


def test_without_pauses_every_window_is_clean():
    got = summary(LOG)["runs"][0]
    assert got["timing"]["rollout_clean"] == got["timing"]["step_clean"] == [True, True]
    assert got["timing"]["since_pause_s"] == [None, None]


@pytest.mark.parametrize(
    ("span", "rollouts", "steps"),
    [
        ((80, 89.999), [True, True], [True, True]),
        ((80, 90), [False, True], [False, True]),
        ((100, 105), [False, True], [False, True]),
        ((100.001, 105), [True, True], [False, True]),
        ((120, 130), [True, True], [False, True]),
        ((120.001, 130), [True, True], [True, True]),
        ((150, None), [True, False], [True, False]),
    ],
)
def test_the_window_ends_at_its_line_and_lasts_as_long_as_it_says(span, rollouts, steps):
    got = timing(span)
    assert got["rollout_clean"] == rollouts
    assert got["step_clean"] == steps


def test_paused_seconds_and_seconds_since_are_columns():
    got = timing((95, 110))
    assert got["rollout_pause_s"] == [5.0, 0.0]
    assert got["step_pause_s"] == [15.0, 0.0]
    assert got["since_pause_s"] == [None, 80.0]


def test_the_rollout_line_ends_the_window_and_not_the_rollout_sides_perf_line():
    """The window is [94, 104] by the rollout line at 104 s, [90, 100] by the perf line."""
    engine_side, line = rollout(100, 0)[0], rollout(104, 0)[1]
    got = summary(text(engine_side, line, step(120, 0)), guard((102, 103)))["runs"][0]["timing"]
    assert got["rollout_clean"] == [False]
    got = summary(text(engine_side, line, step(120, 0)), guard((91, 93)))["runs"][0]["timing"]
    assert got["rollout_clean"] == [True]
    got = summary(text(engine_side, step(120, 0)), guard((91, 93)))["runs"][0]["timing"]
    assert got["rollout_clean"] == [False]


def test_medians_of_the_trainer_use_whole_steps():
    got = summary(LOG, guard((105, 106)))["runs"][0]["medians"]
    assert got["perf/rollout_time"]["n_clean"] == got["rollout/raw_reward"]["n_clean"] == 2
    assert got["perf/train_time"]["n_clean"] == got["train/grad_norm"]["n_clean"] == 1


def test_medians_count_all_and_clean_rows():
    got = summary(LOG, guard((95, 110)))["runs"][0]["medians"]
    assert got["train/grad_norm"] == {"all": 0.2, "n_all": 2, "clean": 0.3, "n_clean": 1}
    assert got["perf/rollout_time"]["n_clean"] == 1
    none = summary(LOG, guard((0, None)))["runs"][0]["medians"]
    assert none["perf/step_time"] == {"all": 30.0, "n_all": 2, "clean": None, "n_clean": 0}


def test_pauses_of_the_run_are_listed_and_others_are_not():
    ended = LOG + b"# end 2026-11-29T00:04:00Z rc=0\n"
    got = summary(ended, guard((10, 20), (95, 110), (300, 310)))["runs"][0]["pauses"]
    assert got == [
        {
            "start": "2026-11-29T00:01:35.000Z",
            "end": "2026-11-29T00:01:50.000Z",
            "seconds": 15.0,
            "reason": "hot",
        }
    ]


def test_a_pause_after_the_last_line_of_a_run_without_an_end_is_listed():
    """A paused container prints nothing: the newest pause is why the log is silent."""
    got = summary(LOG, guard((300, None)))["runs"][0]["pauses"]
    assert [(p["start"], p["end"]) for p in got] == [("2026-11-29T00:05:00.000Z", None)]
