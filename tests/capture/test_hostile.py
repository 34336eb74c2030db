"""Hostile logs: no traceback, right events, constant memory."""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.log.events import ErrorLine, JobEnd, Progress, Retry, Rollout, Step
from mileskit.log.logparse import MAX_LINE, LogParser
from mileskit.summary.summarize import to_bytes

from tests.capture.minilog import MANAGER, events, of, retry, rollout, sourced, step, summary, text

RECORDS = text(
    "# run a",
    rollout(10, 0),
    retry(12, 3),
    "(A pid=1) \rx:  50%|#####     | 1/2 [00:01<00:01]\rx: 100%|##########| 2/2 [00:02<00:00]",
    step(20, 0, "nan"),
    "\x1b[36m(A pid=1)\x1b[0m RuntimeError: boom [repeated 3x across cluster]",
    "# end 2026-11-29T00:01:00Z rc=1",
)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_survived(data):
    json.loads(to_bytes(summary(data)))


@given(st.lists(st.tuples(st.integers(0, len(RECORDS) - 1), st.binary(max_size=3)), max_size=8))
@settings(max_examples=300, deadline=None)
def test_a_log_with_changed_bytes_is_survived(changes):
    data = bytearray(RECORDS)
    for at, new in changes:
        data[at : at + len(new)] = new
    json.loads(to_bytes(summary(bytes(data))))


@given(st.integers(0, len(RECORDS)), st.integers(0, len(RECORDS)))
@settings(max_examples=200, deadline=None)
def test_a_slice_of_a_log_is_survived(a, b):
    json.loads(to_bytes(summary(RECORDS[min(a, b) : max(a, b)])))


def test_lines_that_are_not_utf8_are_read():
    line = sourced(1, "step 0: {'train/loss': 0.5}").encode()
    bad = b"\xff\xfe\x80 garbage\n" + line + b"\n\xc3(\n"
    assert [s.metrics for s in of(Step, bad)] == [{"train/loss": 0.5}]
    key = line.replace(b"train/loss", b"train/\xff\xfe")
    assert len(of(Step, key + b"\n")) == 1


def test_colours_carriage_returns_and_windows_line_ends():
    log = text(rollout(10, 0), retry(11, 1), step(20, 0))
    assert events(log.replace(b"\n", b"\r\n")) == events(log)
    colour = log.replace(b"(", b"\x1b[36m(").replace(b"pid=9)", b"pid=9)\x1b[0m")
    assert len(of(Step, colour)) == len(of(Rollout, colour)) == 1
    assert len(of(Retry, colour)) == 1


@pytest.mark.parametrize(
    "line",
    [
        sourced(
            1,
            "First rollout sample: text_preview=[2026-11-29 00:00:01.000 a] a.py:1 - "
            "step 9: {'train/loss': 9.0}",
            MANAGER,
        ),
        sourced(1, "Finish rollout: text_preview=step 9: {'train/loss': 9.0}", MANAGER),
        sourced(1, "eval samples: ['rollout 9: {}', \"perf 9: {'perf/step_time': 1.0}\"]"),
        "EXEC: python3 train.py --note \"[2026-11-29 00:00:01.000 a] a.py:1 - step 9: {'x': 1}\"",
        "# command: x [2026-11-29 00:00:01.000 a] a.py:1 - step 9: {'train/loss': 9.0}",
        "(E pid=1) [2026-11-29 00:00:01] server_args=ServerArgs(note=\"step 9: {'x': 1}\")",
        sourced(1, "[Rank 0] Memory-Usage after wake_up model: {'gpu': '0', 'total_GB': 139.8}"),
        "step 9: {'train/loss': 9.0}",
        f"{MANAGER} the answer is: perf 9: {{'perf/step_time': 1.0}}",
        f"{MANAGER} quoted [2026-11-29 00:00:01.000 a] a.py:1 - step 9: {{'train/loss': 9.0}}",
        sourced(1, "printed text: Error: Server error '503 Service Unavailable' for url 'x'"),
    ],
)
def test_text_that_looks_like_a_record_is_no_record(line):
    kinds = {type(ev) for ev in events(text(line))}
    assert not kinds & {Step, Rollout, Retry, ErrorLine, JobEnd}
    assert summary(text(line, step(5, 0)))["runs"][0]["steps"]["index"] == [0]


def test_a_line_of_many_megabytes_is_dropped_and_the_next_is_read():
    parser = LogParser()
    tracemalloc.start()
    got = parser.feed(b"(A pid=1) [2026-11-29 00:00:01] prompt: ")
    for _ in range(200):
        got += parser.feed(b"x" * 100_000)
    got += parser.feed(b"\n" + text(step(5, 0)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(ev) for ev in got][:1] == [Step]
    assert got[0].line == 2
    assert peak < 8 * MAX_LINE


def test_a_metric_line_of_a_megabyte_in_one_piece_is_read_or_left_out_but_never_halved():
    keys = ", ".join(f"'k{i}': {i}.5" for i in range(60_000))
    line = sourced(1, f"step 0: {{{keys}}}").encode() + b"\n"
    assert len(line) > 2 * MAX_LINE
    for cut in (len(line), 1 << 16):
        for s in of(Step, line, cut):
            assert len(s.metrics) == 60_000


def test_a_bar_that_redraws_for_ever_without_a_newline_is_seen_live():
    parser = LogParser()
    got = parser.feed(b"(A pid=1) ")
    for i in range(20_000):
        got += parser.feed(b"\rgen: %3d%%|##| %d/20000 [00:01<00:01, 9it/s]" % (i // 200, i))
    moved = [ev for ev in got if type(ev) is Progress]
    assert len(moved) > 19_990
    assert {ev.line for ev in moved} == {1}
    assert parser.partial < 200


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log():
    parser = LogParser()
    block = b"".join(
        text(retry(i % 3600, i % 60 + 1, prefix=f"(A pid={i})"), f"RuntimeError: {i}", f"note {i}")
        for i in range(2000)
    )

    def pass_once(times):
        tracemalloc.start()
        for _ in range(times):
            for at in range(0, len(block), 1 << 16):
                parser.feed(block[at : at + (1 << 16)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    first = pass_once(1)
    assert pass_once(6) < first * 1.5


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "1e999", "-" * 3, "0x10", "007", "1_0"])
def test_odd_numbers_are_survived(number):
    log = text(
        sourced(1, f"step 0: {{'a': {number}, 'b': 0.5}}"),
        sourced(2, "step 1: {'a': 1}"),
        sourced(3, f"perf 0: {{'perf/step_time': {number}}}"),
    )
    made = json.loads(to_bytes(summary(log)))
    assert made["runs"][0]["steps"]["columns"]["b"][0] == 0.5


def test_deep_and_odd_dicts_are_survived():
    deep = "{'a': " * 3000 + "1" + "}" * 3000
    for body in (deep, "{" * 5000, "{'a': 'b}", "{'a': {'b': 1.5}}", '{"a": 0.5}', "{}"):
        to_bytes(summary(text(sourced(1, f"step 0: {body}"))))


def test_impossible_dates_and_numbers_are_survived():
    log = text(
        "(A pid=1) [9999-99-99 99:99:99.999 a] a.py:1 - step 0: {'x': 1.0}",
        "(A pid=1) [2026-02-31 00:00:01.000 a] a.py:1 - step 1: {'x': 1.0}",
        sourced(1, "step 123456789012345678901234567890: {'x': 1.0}"),
        "# end 2026-11-29T00:00:00Z rc=99999999999999",
    )
    assert of(Step, log)[0].index == 0
    to_bytes(summary(log))


def test_random_lines_of_a_real_shape_agree_however_they_are_cut():
    rng = random.Random(11)
    pieces = [text(retry(i, 1 + i % 60)) for i in range(40)]
    pieces += [text(step(100 + i, i)) for i in range(20)]
    pieces += [b"\r", b"\n", b"(A pid=1) \r  5%|#| 1/20 [00:00<?]\r 10%|#| 2/20 [00:00<?]\n"] * 5
    for _ in range(20):
        log = b"".join(rng.choice(pieces) for _ in range(60))
        whole = repr(events(log, len(log)))
        assert repr(events(log, rng.randrange(1, 300))) == whole
