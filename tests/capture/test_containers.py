"""The engine calls against a stand-in client, and what each of a client's answers means."""

import sys

import pytest
from mileskit.common import command
from mileskit.host.containers import Engine, LogStream, judge, plain_image

from tests.fakes.lab import FakeLab

DAEMON = "Error response from daemon: "


@pytest.fixture
def lab(tmp_path, monkeypatch):
    lab = FakeLab(tmp_path)
    monkeypatch.setenv("FAKE_LAB", str(tmp_path))
    monkeypatch.setenv("PATH", lab.env["PATH"])
    return lab


# Words of Docker 20.10 and 28 and of Podman 4.3.
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (DAEMON + "No such container: x1", "no"),
        ("Error: No such object: x1", "no"),
        ("Error: No such container: x1", "no"),
        (DAEMON + "Container 2e29 is already paused", "no"),
        (DAEMON + "Cannot pause container 2e29: OCI runtime pause failed: unable to freeze", "no"),
        ('Error: no container with name or ID "x1" found: no such container', "no"),
        ('Error: "2e29" is not paused, can\'t unpause: container state improper', "no"),
        ("Error: container 2e29 is running or paused, refusing to clean up: improper", "no"),
        (
            "Cannot connect to the Docker daemon at unix:///d.sock. Is the docker daemon running?",
            "",
        ),
        ("error during connect: Get http://d.sock/v1.24/containers/json: EOF", ""),
        ("Got permission denied while trying to connect to the Docker daemon socket", ""),
        (DAEMON + "client version 1.51 is too new. Maximum supported API version is 1.41", ""),
        (DAEMON + "dial unix /run/containerd/containerd.sock: connect: connection refused", ""),
        ("Error: unable to connect to Podman socket: connection refused", ""),
        ("context deadline exceeded", ""),
        ("Segmentation fault", ""),
        ("", ""),
    ],
)
def test_a_refusal_is_told_from_an_engine_that_did_not_answer(words, said):
    answer = judge("docker", command.Ran(1, err=words + "\n"), 10)
    assert answer.said == (said or "nothing")
    assert answer.why


@pytest.mark.parametrize("trouble", ["timeout", "missing", "Permission denied"])
def test_a_client_that_gives_no_answer_is_silence(trouble):
    assert judge("docker", command.Ran(None, trouble=trouble), 10).silent


def test_absence_is_a_no_of_its_own_kind():
    gone = judge("docker", command.Ran(1, err=DAEMON + "No such container: x1"), 10)
    busy = judge("docker", command.Ran(1, err=DAEMON + "Container x1 is already paused"), 10)
    assert (gone.absent, busy.absent) == (True, False)


def test_a_name_is_matched_exactly(lab):
    lab.container("miles-plain-48", container_id="abcdef0123")
    engine = Engine()
    assert engine.by_name("miles-plain-48").value.id == "abcdef0123"
    for near in ("miles-plain", "abcdef", "abcdef0123", "miles-plain-4.", "miles.plain-48"):
        assert engine.by_name(near) == ("yes", None, ""), near
    assert engine.by_id("abcdef").value is None


@pytest.mark.parametrize("name", ["", "a", "-f", "--all", "a b", "x\ny", "$(id)", "é1"])
def test_what_cannot_be_a_name_is_never_sent(lab, name):
    assert Engine().by_name(name).no
    assert lab.calls() == []


def test_a_container_of_an_image_must_run(lab):
    folder = lab.container("miles-plain")
    lab.container("other-one", image="radixark/miles-like:latest")
    engine = Engine()
    assert engine.by_image("radixark/miles").value.name == "miles-plain"
    (folder / "status").write_text("paused\n")
    (folder / "image").write_text("radixark/other\n")
    found = engine.by_image("radixark/miles")
    assert found.yes
    # The stand-in gives every image one id, so the other running container matches by id.
    assert found.value.name == "other-one"


def test_stopping_a_paused_container_unpauses_it_where_the_engine_insists(lab):
    (lab.folder / "podman").touch()
    folder = lab.container("miles-plain")
    (folder / "status").write_text("paused\n")
    assert Engine().stop("miles-plain").yes
    assert lab.status("miles-plain") == "exited"
    assert [call.split()[0] for call in lab.calls()] == ["stop", "unpause", "stop"]


@pytest.mark.parametrize("fault", ["gone", "hang"])
def test_every_call_to_an_engine_that_is_away_is_silence(lab, fault):
    lab.container("miles-plain")
    for verb in ("ps", "inspect", "pause", "unpause", "stop"):
        lab.fault(verb, fault)
    engine = Engine(timeout_s=0.1)
    answers = [
        engine.ps(),
        engine.by_name("miles-plain"),
        engine.by_image("radixark/miles"),
        engine.pause("miles-plain"),
        engine.unpause("miles-plain"),
        engine.stop("miles-plain", grace_s=0),
    ]
    assert [answer.said for answer in answers] == ["nothing"] * 6


@pytest.mark.parametrize(
    ("image", "plain"),
    [
        ("radixark/miles", "radixark/miles:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("localhost/x", "x:latest"),
        ("host:5000/x", "host:5000/x:latest"),
        ("radixark/miles@sha256:ab", "radixark/miles@sha256:ab"),
    ],
)
def test_an_image_has_one_plain_name(image, plain):
    assert plain_image(image) == plain


def test_a_program_that_ignores_its_end_does_not_hold_its_caller():
    """A child that keeps the pipes open after the program was killed."""
    ran = command.run_program(["/bin/sh", "-c", "setsid sleep 3 & sleep 60"], 0.2)
    assert ran.trouble == "timeout"


def test_a_missing_program_is_said():
    assert command.run_program(["/no/such/program"], 1).trouble == "missing"
    assert not command.still_stuck("/no/such/program")


def stream_of(text: str) -> LogStream:
    return LogStream([sys.executable, "-c", text])


def read_all(stream):
    pieces = []
    while not stream.ended:
        pieces.append(stream.read(5))
    return [piece for piece in pieces if piece]


def test_a_stream_hands_out_whole_lines_and_never_mixes_two_outputs():
    text = (
        "import os, time\n"
        "for part in (b'one ', b'line\\n', b'two'):\n"
        "    os.write(1, part); os.write(2, b'E' + part); time.sleep(0.05)\n"
    )
    with stream_of(text) as stream:
        pieces = read_all(stream)
        assert stream.how_ended().yes
    lines = b"\n".join(pieces).split(b"\n")
    assert sorted(line for line in lines if line) == [b"Eone Eline", b"Etwo", b"one line", b"two"]


def test_a_line_of_many_megabytes_comes_in_pieces_of_bounded_size():
    with stream_of("import sys; sys.stdout.write('x' * 5_000_000 + '\\nend\\n')") as stream:
        pieces = read_all(stream)
    assert max(map(len, pieces)) < 2_000_000
    assert b"".join(pieces) == b"x" * 5_000_000 + b"\nend\n"


def test_a_stream_says_how_it_ended():
    refused = "import sys; sys.exit('Error response from daemon: No such container: x1')"
    away = "import sys; sys.exit('Cannot connect to the Docker daemon at x. Is it running?')"
    for text, said in ((refused, "no"), (away, "nothing")):
        with stream_of(text) as stream:
            read_all(stream)
            assert stream.how_ended().said == said
    with LogStream(["/no/such/program", "logs"]) as stream:
        assert stream.ended
        assert stream.read(1) == b""
        assert stream.how_ended().silent


def test_closing_a_stream_ends_its_client():
    with stream_of("import time; print('x', flush=True); time.sleep(60)") as stream:
        assert stream.read(10) == b"x\n"
    assert stream._client.poll() is not None


def test_a_stream_hands_out_a_progress_bar_that_never_ends_its_line():
    bar = "import sys, time; sys.stdout.write('10%\\r20%\\r3'); sys.stdout.flush(); time.sleep(60)"
    with stream_of(bar) as stream:
        assert stream.read(10) == b"10%\r20%\r"
