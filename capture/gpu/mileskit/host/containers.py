"""Ask a container engine (Docker or Podman, through its client) and act on one container.

Every call returns an Answer, which keeps "the engine said no" apart from "the engine did not
answer" (time-out, daemon gone, client missing). Only the second means that sight is lost.
Containers are found by exact name or by image and then addressed by id: a client accepts the start
of an id where a name is meant, and a restarted run can reuse a name.
"""

import json
import os
import re
import selectors
import subprocess
import time
from typing import Any, NamedTuple

from mileskit.common import command

ANSWER_S = 10.0
"""Default seconds to wait for one answer (pause takes about 0.1 s on an idle engine)."""

NAME_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""What both engines accept as a container name."""

# Words of the clients when the engine behind them gave no answer (Docker 20.10 to 28, Podman 4).
_NO_ANSWER = re.compile(
    r"cannot connect to|error during connect|daemon running\?|unable to connect|connection refused"
    r"|permission denied while trying to connect|deadline exceeded|i/o timeout|connection reset"
    r"|broken pipe|\bEOF\b|no such host|dial (unix|tcp)|client version .* is too (old|new)"
    r"|TLS handshake|server misbehaving",
    re.IGNORECASE,
)
_SAID_NO = re.compile(
    r"^Error(:| response from daemon:)|no such (container|object|image)", re.I | re.M
)
_ABSENT = re.compile(r"no (such )?(container|object|image)\b|no container with", re.IGNORECASE)
_MAX_LINE = 1 << 20


class Answer(NamedTuple):
    """Result of one call.

    said: "yes" (done, `value` holds what was asked for), "no" (the engine refused, `why` holds its
    words), or "nothing" (the engine did not answer, `why` says how).
    """

    said: str
    value: Any = None
    why: str = ""

    @property
    def yes(self) -> bool:
        return self.said == "yes"

    @property
    def no(self) -> bool:
        return self.said == "no"

    @property
    def silent(self) -> bool:
        return self.said == "nothing"

    @property
    def absent(self) -> bool:
        """The engine said that there is no such container."""
        return self.no and bool(_ABSENT.search(self.why))


class Container(NamedTuple):
    """One container as the engine describes it.

    status: "running", "paused", "exited", "created", "restarting", "dead", ... in lower case.
    started_at: the engine's own text; with `id` it tells one life of a container from the next.
    """

    id: str
    name: str
    image: str
    image_id: str
    status: str
    started_at: str
    exit_code: int | None = None

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def paused(self) -> bool:
        return self.status == "paused"

    @property
    def alive(self) -> bool:
        """Its processes exist (frozen or not)."""
        return self.status in ("running", "paused")

    def same_life(self, other: "Container") -> bool:
        return (self.id, self.started_at) == (other.id, other.started_at)


class Engine:
    """One container engine, reached through the client `program` ("docker", "podman", a path)."""

    def __init__(self, program: str = "docker", timeout_s: float = ANSWER_S):
        self.program = program
        self.timeout_s = timeout_s

    def ps(self) -> Answer:
        """value: list of the running and paused containers, newest first as the client lists them.

        Podman hides paused containers from a plain `ps`, so both states are asked for by name.
        """
        filters = ("--filter", "status=running", "--filter", "status=paused")
        answer = self._ask("ps", "--no-trunc", "--quiet", *filters)
        if not answer.yes:
            return answer
        ids = answer.value.split()
        listed = self._inspect(ids) if ids else Answer("yes", [])
        return Answer("yes", []) if listed.absent else listed

    def by_name(self, name: str) -> Answer:
        """value: the Container of exactly this name in any state, or None when there is none."""
        if not NAME_PATTERN.fullmatch(name):
            return Answer("no", why=f"{name!r} cannot be a container name")
        return self._one(name, lambda container: container.name == name)

    def by_id(self, container_id: str) -> Answer:
        """value: the Container of exactly this full id, or None when it is gone."""
        return self._one(container_id, lambda container: container.id == container_id)

    def by_image(self, image: str) -> Answer:
        """value: the first running container of this image as `ps` lists them, or None.

        An image matches by its name (a missing tag means "latest"; Docker Hub's prefix and Podman's
        "localhost/" do not count) or, when its tag has moved or a digest was used, by its id.
        """
        listed = self.ps()
        if not listed.yes:
            return listed
        running = [container for container in listed.value if container.running]
        for container in running:
            if plain_image(container.image) == plain_image(image):
                return Answer("yes", container)
        if not running or image.startswith("-"):
            return Answer("yes", None)
        wanted = self._ask("image", "inspect", "--format", "{{.Id}}", image)
        if wanted.silent:
            return wanted
        image_id = wanted.value.strip().removeprefix("sha256:") if wanted.yes else None
        same = (container for container in running if container.image_id == image_id)
        return Answer("yes", next(same, None))

    def pause(self, container: str) -> Answer:
        """Freeze every process of a running container; "no" when it is paused or not running."""
        return self._ask("pause", container)

    def unpause(self, container: str) -> Answer:
        """Thaw a paused container; "no" when it is not paused."""
        return self._ask("unpause", container)

    def stop(self, container: str, grace_s: int = 10) -> Answer:
        """End a container, killing it after `grace_s` seconds; a paused one is unpaused first.

        Docker stops a paused container by itself; Podman refuses, so it is unpaused on demand.
        """
        args = ("stop", "-t", str(grace_s), container)
        answer = self._ask(*args, extra_s=grace_s)
        if answer.no and "pause" in answer.why.lower():
            thawed = self.unpause(container)
            return thawed if thawed.silent else self._ask(*args, extra_s=grace_s)
        return answer

    def logs(self, container: str, since: str = "", follow: bool = True) -> "LogStream":
        """Open the container's output from `since` on (RFC 3339 time or Unix seconds).

        A followed stream can end without the last lines of a container that just ended (Docker
        20.10 lost the last write in most tries): read those again with follow=False.
        """
        args = [self.program, "logs"]
        args += ["--follow"] if follow else []
        args += ["--since", since] if since else []
        return LogStream([*args, container])

    def _one(self, reference: str, wanted) -> Answer:
        answer = self._inspect([reference])
        if answer.absent:
            return Answer("yes", None)
        if not answer.yes:
            return answer
        return Answer("yes", next((found for found in answer.value if wanted(found)), None))

    def _inspect(self, references: list[str]) -> Answer:
        """value: Containers of the references that (still) exist; "no" when none does."""
        ran = command.run_program(
            [self.program, "container", "inspect", *references], self.timeout_s
        )
        try:
            found = [_container(entry) for entry in json.loads(ran.out or "[]")]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return Answer("nothing", why=f"{self.program} inspect printed no usable JSON ({error})")
        # A container that ended between two calls makes the client fail after printing the others.
        if found or ran.status == 0:
            return Answer("yes", found)
        return judge(self.program, ran, self.timeout_s)

    def _ask(self, *args: str, extra_s: float = 0.0) -> Answer:
        limit_s = self.timeout_s + extra_s
        return judge(self.program, command.run_program([self.program, *args], limit_s), limit_s)


def judge(program: str, ran: command.Ran, limit_s: float) -> Answer:
    """Sort what a client did into yes (value: its output), no, and nothing."""
    if ran.trouble == "timeout":
        return Answer("nothing", why=f"{program} did not answer within {limit_s:g} s")
    if ran.trouble == "missing":
        return Answer("nothing", why=f"{program} is not installed (not found in PATH)")
    if ran.trouble:
        return Answer("nothing", why=f"{program} did not start: {ran.trouble}")
    if ran.status == 0:
        return Answer("yes", ran.out)
    words = " ".join(ran.err.split()) or f"exit status {ran.status} without a message"
    if _SAID_NO.search(ran.err) and not _NO_ANSWER.search(ran.err):
        return Answer("no", why=words)
    return Answer("nothing", why=f"{program}: {words}")


def plain_image(image: str) -> str:
    """An image name without the registry that engines add, and with its tag.

    >>> plain_image("docker.io/radixark/miles"), plain_image("radixark/miles:latest")
    ('radixark/miles:latest', 'radixark/miles:latest')
    """
    for prefix in ("docker.io/library/", "docker.io/", "localhost/"):
        if image.startswith(prefix):
            image = image[len(prefix) :]
            break
    tagged = "@" in image or ":" in image.rsplit("/", 1)[-1]
    return image if tagged else image + ":latest"


def _container(entry: dict) -> Container:
    """One entry of `container inspect`, Docker's or Podman's."""
    state = entry["State"]
    return Container(
        id=entry["Id"],
        name=entry["Name"].lstrip("/"),
        image=(entry.get("Config") or {}).get("Image") or entry.get("ImageName") or "",
        image_id=entry.get("Image", "").removeprefix("sha256:"),
        status=state["Status"].lower(),
        started_at=state.get("StartedAt", ""),
        exit_code=state.get("ExitCode"),
    )


class LogStream:
    """A container's output as whole lines, while it comes.

    Standard output and standard error are read apart, so that their lines never mix, and handed
    out in the order of arrival. Close it after use; it is a context manager.
    """

    def __init__(self, args: list[str]):
        self._program = args[0]
        self._selector = selectors.DefaultSelector()
        self._parts: dict[int, bytes] = {}
        self._last_error = b""
        self._unended: int | None = None  # the pipe whose line was handed out without its end
        self._client: subprocess.Popen | None = None
        self._refused = ""
        try:
            self._client = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self._refused = "missing" if isinstance(error, FileNotFoundError) else str(error)
            return
        for pipe in (self._client.stdout, self._client.stderr):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
            self._parts[pipe.fileno()] = b""

    @property
    def ended(self) -> bool:
        """No more output will come; `how_ended` says why."""
        return self._client is None or not self._selector.get_map()

    def read(self, timeout_s: float) -> bytes:
        """Whole lines that are there, waiting at most `timeout_s` for the first; b"" for none.

        A carriage return ends a line too, since a progress bar can print nothing else for an hour.
        A line longer than 1 MiB comes in pieces. The last line of a stream can lack its newline.
        """
        until = time.monotonic() + timeout_s
        while not self.ended:
            lines = self._take(max(0.0, until - time.monotonic()))
            if lines or time.monotonic() >= until:
                return lines
        return b""

    def _take(self, timeout_s: float) -> bytes:
        """What one wait brings: ended lines, pieces of a very long one, rests at the end."""
        lines = b""
        for key, _ in self._selector.select(timeout_s):
            pipe, number = key.fileobj, key.fd
            chunk = os.read(number, 1 << 16)
            if pipe is self._client.stderr:
                self._last_error = (self._last_error + chunk)[-4096:]
            data = self._parts[number] + chunk
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not chunk or len(data) - end > _MAX_LINE:
                end = len(data)
            if not chunk:
                self._selector.unregister(pipe)
            text, self._parts[number] = data[:end], data[end:]
            if text:
                lines += b"\n" * (self._unended not in (None, number)) + text
                self._unended = None if text.endswith((b"\n", b"\r")) else number
        return lines

    def how_ended(self) -> Answer:
        """After `ended`: "yes" when the container's output is over, else as for other calls.

        Ask the engine for the container's state as well: some clients end with status 0 when the
        daemon goes away.
        """
        if self._client is None:
            return judge(self._program, command.Ran(None, trouble=self._refused), 0)
        try:
            status = self._client.wait(timeout=command.REAP_S)
        except subprocess.TimeoutExpired:
            return Answer("nothing", why=f"{self._program} logs closed its output and hangs")
        last = self._last_error.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        return judge(self._program, command.Ran(status, err=last), 0)

    def close(self) -> None:
        self._selector.close()
        if self._client is not None:
            command.end_program(self._client)

    def __enter__(self) -> "LogStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
