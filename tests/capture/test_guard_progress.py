"""The deadlines, the clocks and the warnings of the guard."""

import io

import minilog as m
import pytest
from guardlog import HOUR, OFFSETS, decode, failing, judge, live, one_step, startup, steps, stops
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.guard.guardlimits import Limits
from mileskit.guard.guardlive import LiveLog
from mileskit.guard.logdrive import drive, load
from mileskit.guard.rules import Guard
from mileskit.log.logparse import LogParser
from mileskit.summary.pauses import Pause, PauseSet

BASE = [*startup(), *steps(HOUR + 250, 5)]
END = HOUR + 250 + 4 * 170
STALL = 5 * 170  # median step 170 s


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        (startup()[:-1], 900),
        (startup(), 1200),
        (BASE, STALL),
        ([*startup(), *steps(HOUR + 100, 5, every=20)], 600),
    ],
)
def test_silence_is_no_progress_from_the_deadline_of_its_phase_on(lines, allowed):
    assert judge(*lines, now_after=allowed - 1).verdict in ("starting", "healthy")
    assert judge(*lines, now_after=allowed).verdict == "no-progress"


@pytest.mark.parametrize(
    "line",
    [
        decode(END + 800),
        m.engine(END + 800, "Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0"),
        m.sourced(END + 800, "[FSDP] Saved checkpoint to /ckpt/x"),
        m.sourced(END + 800, "eval 4: {'eval/gsm8k': 0.5}", m.MANAGER),
        f"{m.TRAINER} log_probs:  50%|#####     | 5/10 [00:05<00:05]",
    ],
)
def test_every_advancing_counter_resets_the_stall_clock(line):
    stamp = m.engine(END + 800, "x")
    assert judge(*BASE, stamp, line, now_after=STALL - 10).verdict == "healthy"
    assert judge(*BASE, stamp, line, now_after=STALL + 10).verdict == "no-progress"


@pytest.mark.parametrize(
    "line",
    [
        decode(END + 800, tokens=0.0),
        m.engine(END + 800, "Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0"),
        m.engine(END + 800, "INFO: 127.0.0.1 - GET /health HTTP/1.1 200"),
        m.sourced(END + 800, "Abort request for ['x']", m.MANAGER),
    ],
)
def test_noise_does_not_reset_it(line):
    assert judge(*BASE, line, now_after=STALL - 800).verdict == "no-progress"


def test_a_rollout_that_regenerates_for_ever_meets_the_ceiling():
    busy = [decode(END + 10 * k) for k in range(1, 500)]
    outcomes = live(*BASE, *busy)
    assert stops(outcomes) == {"no-progress"}
    assert {r.decision.missed.deadline for r in outcomes} == {"ceiling"}


def test_an_evaluation_of_eighty_minutes_whose_bar_moves_is_waited_for():
    lines = list(BASE)
    for k in range(1, 120):
        lines += [decode(END + 40 * k), f"{m.MANAGER} Eval gsm8k: {k:3}%|#| {k}/120 [00:05<00:05]"]
    lines += [m.sourced(END + 4800, "eval 4: {'eval/gsm8k': 0.5}", m.MANAGER)]
    assert stops(live(*lines, *steps(END + 5000, 2, start=5))) == {""}


def bars(label, span, each, total=256):
    """One redrawn line: a bar that moves every ``each`` s and carries only its elapsed time."""
    parts = []
    for k in range(1, span // each + 1):
        s = k * each
        spent = f"{s // 60:02d}:{s % 60:02d}" if s < 3600 else f"1:{s // 60 % 60:02d}:{s % 60:02d}"
        parts.append(f"{label}: {k * 100 // total:3d}%|#  | {k}/{total} [{spent}<10:00, 1.2it/s]")
    return "\r".join(parts)


@pytest.mark.parametrize(
    ("before", "label", "span"),
    [
        ([m.sourced(HOUR, "loading")], "model.safetensors", 2400),
        (startup()[:3], "Capturing batches (bs=8 avail_mem=20.1 GB)", 1020),
        (startup(), "Rollout generation", 1500),
        (startup(), "Rollout generation", 4200),
    ],
)
def test_bars_without_a_timestamp_move_the_logs_clock_by_their_elapsed_time(before, label, span):
    moves = bars(label, span, 30)
    end = HOUR + 10 + span
    rest = [*(startup(end) if before != startup() else []), *steps(end + 120, 2)]
    assert judge(*before, moves, *rest).verdict == "healthy"
    assert stops(live(*before, moves, *rest)) == {""}
    # A bar that stands still is no progress, wherever it stopped.
    assert judge(*before, moves, now_after=1201).verdict == "no-progress"
    assert judge(*before, moves, now_after=800).verdict == "starting"
    late = [m.sourced(end + 3600, "waiting")]
    assert stops(live(*before, moves, *late)) == {"no-progress"}


def test_bars_never_pass_the_next_timestamp():
    lines = [*startup(), bars("Rollout generation", 3000, 30), decode(HOUR + 100)]
    log = load(io.BytesIO(m.text(*lines, bars("Rollout generation", 60, 30))))
    times = log.runs[-1].times
    assert times == sorted(times)
    assert times[-3] - times[0] == 100
    assert log.last_time == times[-1] == times[-3] + 30  # the second bar of the last loop


@pytest.mark.parametrize(
    "head", [[], ["# run x", "# date 2026-11-29T09:00:00Z"], ["# date 2026-11-29T07:00:00Z"]]
)
@pytest.mark.parametrize("source", [m.TRAINER, ""])
def test_a_start_that_only_waits_is_no_progress_after_its_deadline(head, source):
    lines = [m.sourced(HOUR + 5, "Creating placement group", source)]
    for k in range(20):
        warn = "(autoscaler) Warning: The following resource request cannot be scheduled right now"
        lines += [m.sourced(HOUR + 60 * k + 60, "waiting", source), warn]
    assert stops(live(*head, *lines)) == {"no-progress"}
    assert judge(*head, *lines[:25]).verdict == "starting"
    assert judge(*head, *lines).verdict == "no-progress"
    assert judge(*head, lines[0], now_after=901).verdict == "no-progress"


def test_downloads_that_only_move_a_bar_are_marks_of_a_start():
    lines = []
    for minute in range(90):
        bar = f"model.safetensors: {minute:3}%|#| {minute}.0G/90.0G [00:05<00:05]"
        lines += [m.engine(HOUR + 60 * minute, "x"), bar]
    assert stops(live(*lines)) == {""}
    assert judge(*lines).verdict == "starting"


def test_paused_time_is_no_silence():
    log = load(io.BytesIO(m.text(*BASE)))
    pauses = PauseSet([Pause(log.last_time + 10, log.last_time + 510, "hot")])

    def verdict(after):
        until = log.last_time + after
        return {
            drive(log.runs[-1], until=until, offset=o, pauses=pauses).decision.verdict
            for o in OFFSETS
        }

    assert verdict(STALL + 490) == {"healthy"}
    assert verdict(STALL + 530) == {"no-progress"}


def test_a_clock_that_is_set_back_or_forward_fires_no_deadline():
    after = steps(HOUR + 250 + 5 * 170, 6, start=5)
    back = [line.replace("-29 09:", "-29 08:") for line in after]
    ahead = [line.replace("-29 09:", "-29 13:") for line in after]
    for stepped in (back, ahead):
        assert stops(live(*BASE, *stepped)) == {""}
        assert judge(*BASE, *stepped).verdict == "healthy"


def test_an_outage_after_a_step_back_of_the_clock_is_seen():
    dead = [line.replace("-29 09:", "-29 08:") for line in failing(END + 20, END + 620)]
    assert stops(live(*BASE, *dead)) == {"engine-dead"}


def test_local_time_behind_utc_is_no_silence_before_the_end():
    head = ["# run x", "# date 2026-11-29T17:00:00Z", "# command x"]
    lines = [*head, *BASE, "# end 2026-11-29T17:20:00Z rc=124 seconds=5"]
    assert judge(*lines).verdict == "stopped"


def test_local_time_beside_utc_markers_fires_no_deadline():
    head = ["# run x", "# date 2026-11-29T01:00:00Z", "# command x"]
    lines = [*head, *BASE, "# end 2026-11-29T01:20:00Z rc=0 seconds=5"]
    assert judge(*lines).verdict == "finished"
    assert stops(live(*lines)) == {""}


def test_an_unfinished_line_is_a_cut_one_after_ten_minutes():
    text = m.text(*BASE) + m.sourced(END + 170, "step 5: {'train/lo").encode()
    log = load(io.BytesIO(text))

    def verdict(after):
        return drive(log.runs[-1], until=log.last_time + after, act=False).decision.verdict

    assert (verdict(599), verdict(600), verdict(5000)) == (
        "healthy",
        "ends-mid-line",
        "ends-mid-line",
    )


def test_a_bar_that_ends_the_log_is_no_cut_line():
    text = m.text(*BASE) + b"Rollout generation:  12%|#2        | 31/256 [00:05<00:40]"
    log = load(io.BytesIO(text))
    found = drive(log.runs[-1], until=log.last_time + 3000, act=False).decision
    assert found.verdict == "no-progress"


def test_two_steps_that_are_not_finite_stop_the_run_and_one_does_not():
    bad = [*steps(END + 170, 1, start=5, grad="nan"), *steps(END + 340, 3, start=6)]
    assert judge(*BASE, *bad).verdict == "healthy"
    for word in ("nan", "inf", "-inf"):
        lines = [*BASE, *steps(END + 170, 2, start=5, grad=word)]
        assert judge(*lines).verdict == "nonfinite"
        assert stops(live(*lines)) == {"nonfinite"}


def test_warnings_stop_nothing():
    drift = []
    for k in range(14):
        drift += one_step(HOUR + 250 + 170 * k, k, gap=0.012 * 1.12**k)
    for word, lines in {
        "no-signal": steps(HOUR + 250, 6, grad="0.0"),
        "gap-high": steps(HOUR + 250, 6, gap=0.12),
        "gap-drift": drift,
    }.items():
        assert judge(*startup(), *lines).verdict == word
        assert stops(live(*startup(), *lines)) == {""}


def test_streaks_that_are_too_short_warn_of_nothing():
    short = [*steps(HOUR + 250, 4, grad="0.0"), *steps(HOUR + 930, 2, start=4)]
    one = [
        *steps(HOUR + 250, 2),
        *steps(HOUR + 590, 1, start=2, gap=0.3),
        *steps(HOUR + 760, 2, start=3),
    ]
    rising = [x for k in range(12) for x in one_step(HOUR + 250 + 170 * k, k, gap=0.012 + k / 1500)]
    gaps = [0.012] * 5 + [0.05] * 5 + [0.03] * 5
    back = [x for k, gap in enumerate(gaps) for x in one_step(HOUR + 250 + 170 * k, k, gap=gap)]
    assert judge(*startup(), *rising).verdict == "healthy"
    assert judge(*startup(), *back).verdict == "healthy"
    assert judge(*startup(), *short).verdict == "healthy"
    assert judge(*startup(), *one).verdict == "healthy"


@pytest.mark.parametrize("place", [10, 12])
def test_one_step_far_off_is_no_drift_of_the_gap(place):
    gaps = [0.015] * 13
    gaps[place] = 0.3
    lines = [x for k, gap in enumerate(gaps) for x in one_step(HOUR + 250 + 170 * k, k, gap=gap)]
    assert judge(*startup(), *lines).verdict == "healthy"


@given(st.integers(0, 4), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_appended_steps_never_make_a_verdict_worse(kind, more):
    tails = [
        [],
        failing(END + 20, END + 150),
        [m.engine(END + 20, "Received sigquit from a child process. It usually means")],
        [m.sourced(END + 20, "[rollout] Task raised exception: ImportError('x')", m.MANAGER)] * 3,
        [f"{m.TRAINER} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    ]
    lines = [*BASE, *tails[kind], *steps(END + 340, more, start=5)]
    assert judge(*lines).verdict == "healthy"


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_cut_of_the_bytes_gives_the_same_decisions(data):
    killed = m.engine(END + 20, "Subprocess scheduler_0 (pid=5) crashed with exit code -9. Tr")
    text = m.text(*BASE, killed, *failing(END + 25, END + 60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    guard, parser = Guard(), LogParser()
    now = HOUR
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        for event in parser.feed(text[start:end]):
            now = max(now, event.time or now)
            guard.observe(event, now)
    for event in parser.close():
        guard.observe(event, now)
    decision = guard.final(now)
    assert (decision.verdict, decision.root.line) == ("engine-dead", len(BASE) + 1)
    assert guard.outage.total == 105


def test_a_live_guard_reads_the_past_on_the_logs_clock_and_then_counts_its_own():
    log = LiveLog(Limits(), mono=50.0, wall=0.0)
    log.feed(m.text(*BASE), 50.1)
    assert not log.live
    log.feed(b"", 50.4)
    assert log.live
    assert log.guard.deadlines.steps == [170.0] * 5
    assert log.check(51.0).verdict == "healthy"
    assert log.check(51.0 + STALL - 2).verdict == "healthy"
    assert log.check(51.0 + STALL + 2).verdict == "no-progress"


def test_a_log_that_grows_all_the_time_is_live_within_seconds():
    log = LiveLog(Limits(), mono=0.0, wall=0.0)
    second = 0
    while not log.live and second < 9:
        second += 1
        log.feed(m.text(*failing(HOUR + second, HOUR + second + 1)), float(second))
    assert second <= 3


def test_no_second_clock_is_asked_for():
    """A jump of the wall clock cannot reach the rules: they get every time from their caller."""
    from mileskit.guard import guardlive, logdrive, rules

    for module in (rules, guardlive, logdrive):
        assert not hasattr(module, "time")
