"""The calls of capture/gpu/containers.py against a real engine."""

import time

import pytest
from mileskit.host.containers import Engine


@pytest.fixture
def engine(daemon):
    return Engine("docker", timeout_s=10)


def status(engine, name):
    found = engine.by_name(name)
    assert found.yes, found
    return found.value and found.value.status


def output(stream, until, seconds=10.0):
    """What a log stream gives until `until(bytes)` holds or it ends."""
    seen, end = b"", time.monotonic() + seconds
    while not until(seen) and not stream.ended and time.monotonic() < end:
        seen += stream.read(0.2)
    return seen


def test_pause_and_unpause_freeze_and_thaw_the_container(engine, tick):
    tick("rig-tick")
    found = engine.by_name("rig-tick").value
    assert engine.pause(found.id).yes
    assert status(engine, "rig-tick") == "paused"
    frozen = engine.logs(found.id, follow=False)
    before = output(frozen, lambda _: False)
    frozen.close()
    time.sleep(0.4)
    with engine.logs(found.id, follow=False) as later:
        assert output(later, lambda _: False) == before
    assert engine.unpause(found.id).yes
    with engine.logs(found.id) as thawed:
        lines = output(thawed, lambda seen: seen.count(b"\n") > before.count(b"\n") + 2)
    assert lines.startswith(before)
    assert lines.count(b"\n") > before.count(b"\n")


def test_what_cannot_be_done_is_a_no_and_not_silence(engine, tick):
    tick("rig-tick")
    assert engine.unpause("rig-tick").no
    assert engine.pause("rig-tick").yes
    again = engine.pause("rig-tick")
    assert again.no
    assert "already paused" in again.why
    for answer in (engine.pause("rig-none"), engine.stop("rig-none"), engine.unpause("rig-none")):
        assert answer.no
        assert answer.absent


def test_a_paused_container_is_listed_and_can_be_stopped(engine, tick):
    tick("rig-tick")
    engine.pause("rig-tick")
    assert [c.name for c in engine.ps().value if c.paused] == ["rig-tick"]
    began = time.monotonic()
    assert engine.stop("rig-tick", grace_s=5).yes
    assert time.monotonic() - began < 4, "it did not end by its signal"
    assert status(engine, "rig-tick") == "exited"
    assert engine.ps().value == []


def test_names_are_exact_and_not_beginnings_of_names_or_ids(engine, tick):
    full_id = tick("rig-tick-long")
    assert status(engine, "rig-tick") is None
    assert status(engine, full_id[:12]) is None
    assert engine.by_id(full_id).value.name == "rig-tick-long"
    assert engine.by_id(full_id[:12]).value is None


def test_a_container_is_found_by_its_image_under_every_name_of_it(engine, tick, daemon, image):
    tick("rig-tick")
    daemon.docker("tag", image, "rig-other-name:2")
    for name in (image, "docker.io/" + image, "rig-other-name:2"):
        assert engine.by_image(name).value.name == "rig-tick"
    assert engine.by_image("rig-nothing:1").value is None
    assert engine.by_image("miles-101-test/busybox").value is None, "another tag"
    engine.pause("rig-tick")
    assert engine.by_image(image).value is None


def test_a_restart_and_a_new_container_of_the_same_name_are_other_lives(engine, tick, daemon):
    tick("rig-tick")
    first = engine.by_name("rig-tick").value
    daemon.docker("restart", "rig-tick")
    second = engine.by_name("rig-tick").value
    daemon.remove("rig-tick")
    tick("rig-tick")
    third = engine.by_name("rig-tick").value
    assert first.id == second.id != third.id
    assert first.same_life(first)
    assert not any((first.same_life(second), second.same_life(third)))


def test_a_log_stream_gives_both_outputs_and_ends_with_the_container(engine, run_container):
    run_container("echo out; echo err >&2; sleep 0.3; printf end; exit 7", "rig-short")
    with engine.logs("rig-short") as stream:
        output(stream, lambda _: False)
        assert stream.ended
        assert stream.how_ended().yes
    # What Docker drops at the end of a followed stream is in its store.
    with engine.logs("rig-short", follow=False) as stream:
        seen = output(stream, lambda _: False)
    assert sorted(seen.replace(b"end", b"end\n").split()) == [b"end", b"err", b"out"]
    assert engine.by_name("rig-short").value.exit_code == 7


def test_a_log_stream_from_a_time_on_leaves_the_earlier_lines_out(engine, run_container):
    run_container("echo early; sleep 2.2; echo late; sleep 60", "rig-since")
    time.sleep(1.2)
    with engine.logs("rig-since", since=str(int(time.time()))) as stream:
        assert output(stream, lambda seen: b"\n" in seen) == b"late\n"


def test_the_log_of_no_container_is_a_no(engine):
    with engine.logs("rig-none") as stream:
        output(stream, lambda _: False)
        assert stream.how_ended().no


def test_a_daemon_that_disappears_is_silence_for_every_call(engine, tick, daemon):
    tick("rig-tick")
    found = engine.by_name("rig-tick").value
    with engine.logs(found.id) as stream:
        output(stream, lambda seen: seen.count(b"\n") > 3)
        daemon.kill()
        output(stream, lambda _: False, seconds=5)
        assert stream.ended, "the stream did not notice"
    calls = {
        "by_name": engine.by_name("rig-tick"),
        "by_id": engine.by_id(found.id),
        "by_image": engine.by_image("rig"),
        "ps": engine.ps(),
        "pause": engine.pause(found.id),
        "unpause": engine.unpause(found.id),
        "stop": engine.stop(found.id, grace_s=1),
    }
    assert {name for name, answer in calls.items() if not answer.silent} == set()
    with engine.logs(found.id) as stream:
        output(stream, lambda _: False)
        assert stream.how_ended().silent


def test_a_daemon_that_hangs_is_silence_after_the_time_limit(tick, daemon):
    tick("rig-tick")
    engine = Engine("docker", timeout_s=0.5)
    daemon.freeze()
    try:
        began = time.monotonic()
        assert engine.by_name("rig-tick").silent
        assert engine.pause("rig-tick").silent
        assert time.monotonic() - began < 5
    finally:
        daemon.thaw()
    assert Engine("docker").by_name("rig-tick").yes
