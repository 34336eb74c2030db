"""The figures of part 6 against the stored logs and the published values."""

import lzma
import re

import pytest

from figures import engine_death, evidence, registry
from figures.evidence import EvidenceError

LOG = "capture/gpu/out-h200-miles/kill_noft/run.log.xz"
SENDS = re.compile(rb"(12:59|13:0\d):(\d\d)\x1b\[0m .{0,260}Failed to send typed request")


def log() -> bytes:
    return lzma.decompress(evidence.read(LOG))


def build_with(text: bytes):
    with evidence.use_overlay({LOG: lzma.compress(text, preset=0)}):
        return registry.build("fig-6-3-kill")


def test_the_sends_of_the_router_are_those_of_the_log():
    found = [b":".join(m.groups()).decode() for m in SENDS.finditer(log())]
    values = registry.build("fig-6-3-kill").values
    assert values["sent_at_once"].number == found.count("12:59:51")
    assert values["sent_later"].number == len(found) - found.count("12:59:51") == 2
    assert found[-2:] == ["13:00:51", "13:01:51"]
    assert values["closed"].number == 60


def test_the_two_figures_of_the_kill_give_the_same_numbers():
    one, two = (registry.build(name).values for name in ("fig-1-2-kill", "fig-6-3-kill"))
    for first, second in (
        ("total", "total"),
        ("watched", "watched"),
        ("death_line", "death_line"),
        ("first_retry_after_kill_s", "first_failed"),
        ("max_attempt", "deepest"),
        ("steps", "steps"),
    ):
        assert one[first].number == two[second].number, first


def test_the_seconds_for_a_try_are_a_lower_bound_of_the_log():
    values = registry.build("fig-6-3-kill").values
    tries = values["deepest"].number - 1
    assert values["try_gap"].number * tries == pytest.approx(values["watched"].number)
    assert values["try_gap"].number > 1


def test_a_log_in_which_the_router_says_nothing_is_refused():
    silent = log().replace(b"Failed to send typed request", b"All is well")
    with pytest.raises(EvidenceError, match="says nothing of a dead engine"):
        build_with(silent)


def test_sends_that_are_not_evenly_spaced_are_refused():
    text = log()
    last = list(SENDS.finditer(text))[-1]
    moved = text[: last.start()] + text[last.start() :].replace(b"13:01:51", b"13:01:55", 1)
    with pytest.raises(EvidenceError, match="the router waited 60"):
        build_with(moved)


def test_health_checks_that_fail_at_odd_times_are_refused():
    text = log()
    at = text.index(b"HTTP health check failed")
    start = text.rindex(b"\n", 0, at)
    moved = text[:start] + text[start:].replace(b"13:00:38", b"13:00:30", 1)
    with pytest.raises(EvidenceError, match="not evenly spaced"):
        build_with(moved)


def test_the_router_is_read_without_its_colours():
    said = engine_death.router(evidence.run(engine_death.KILLED))
    assert len(said.health) == log().count(b"HTTP health check failed") == 4
    assert set(said.health) < {f"2026-11-29T13:0{minute}:38" for minute in range(10)}


def test_the_shares_are_the_medians_over_the_median_step():
    values = registry.build("fig-6-1-update-share").values
    run = evidence.run("h200-miles/plain_s1234")
    later = run.index[1:]
    step = run.median("perf/step_time", later)
    for name, column in (
        ("update", "perf/update_weights_time"),
        ("wait", "perf/train_wait_time"),
        ("rollout", "perf/rollout_time"),
    ):
        share = values[f"{name}_share"].number
        assert share == pytest.approx(100 * run.median(column, later) / step), name


@pytest.mark.parametrize("name", ["fig-6-2-gb10-eval", "fig-6-3-gb10-resume"])
def test_published_values_stay_reported(name):
    figure = registry.build(name)
    assert figure.tier == "reported"
    assert all(value.tier == "reported" for value in figure.values.values())
