"""Section 6.3: what engine, router and client write after the engine of a run was killed."""

from __future__ import annotations

import lzma
import re
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from figures import evidence
from figures.evidence import Access, EvidenceError
from figures.guard import FAILED, KILLED, marks, per_second
from figures.registry import Figure, figure
from figures.sources import log_distance, measured
from figures.style import Style

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SENT = re.compile(
    r"^\(RolloutManager pid=\d+\) (\S+) +ERROR smg::routers::http::router: \S+ "
    r"Failed to send typed request",
    re.MULTILINE,
)
_HEALTH = re.compile(
    r"^\(RolloutManager pid=\d+\) (\S+) +WARN smg::core::worker: \S+ HTTP health check failed",
    re.MULTILINE,
)
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Router(NamedTuple):
    """What the router did: ISO times of whole seconds, UTC, one for each line of its log.

    sent: requests that it passed on, or tried to, and that the engine did not take.
    health: failed checks.
    """

    sent: tuple[str, ...]
    health: tuple[str, ...]


def router(run: evidence.Run) -> Router:
    """The router's lines after the kill. EvidenceError when the log has none."""
    path = run.folder / "run.log.xz"
    found = _router(str(path), evidence.read(path))
    evidence.record(Access(run.id, "run.log.xz:the router's own lines", log=True))
    return found


@lru_cache(maxsize=4)
def _router(name: str, data: bytes) -> Router:
    text = _COLOUR.sub("", lzma.decompress(data).decode("utf-8", errors="replace"))
    # the router prints "2026-11-29 12:59:51"; one word is easier to take than two
    text = re.sub(r"(?<=\) )(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)", r"\1T\2", text)
    found = Router(*(tuple(rx.findall(text)) for rx in (_SENT, _HEALTH)))
    if not found.sent or not found.health:
        raise EvidenceError(f"{name}: the router says nothing of a dead engine")
    if bad := [stamp for times in found for stamp in times if not _STAMP.fullmatch(stamp)]:
        raise EvidenceError(f"{name}: {bad[0]!r} is no time of the router")
    return found


@figure("fig-6-3-kill")
def kill() -> Figure:
    """Seconds after the kill at which engine, router and client wrote something.

    The run shared its GPU, so every second here is a distance between two lines of its log.
    """
    run = evidence.run(KILLED)
    killed_at, first_failed = marks(run)
    counts = per_second(run)
    start = run.log_fact("retries", "per_second")["start"]
    offset = evidence.seconds_between(killed_at, start)
    (death,) = [e for e in run.log_fact("errors") if e["kind"] == "engine-died"]
    said = router(run)

    def after(stamp: str) -> float:
        return evidence.seconds_between(killed_at, f"{stamp.rstrip('Z')}Z")

    sent = sorted(set(said.sent))
    if len(sent) != 3:
        raise EvidenceError(f"{KILLED}: the router tried to send in {len(sent)} seconds, not in 3")
    first, second, third = map(after, sent)
    if round(third - second, 3) != round(second - first, 3):
        raise EvidenceError(f"{KILLED}: the router waited {second - first}, then {third - second}")
    health = [after(stamp) for stamp in said.health]
    every = {round(b - a, 3) for a, b in pairwise(health)}
    if len(every) != 1:
        raise EvidenceError(f"{KILLED}: the health checks are not evenly spaced: {sorted(every)}")
    total = run.fact("retries", "total")
    deepest = run.fact("retries", "max_attempt")

    def distance(name: str, seconds: float, what: str, digits: int = 0) -> Any:
        return log_distance(name, seconds, "s", digits, what=what, runs=[KILLED])

    def count(name: str, number: float, what: str, noun: str) -> Any:
        return measured(name, number, "", 0, what=what, runs=[KILLED], kind="count", noun=noun)

    values = [
        count("total", total, "retries:total:bare", FAILED),
        count("rate", total / len(counts), "retries:total over seconds", FAILED),
        distance("watched", len(counts), "retries:per_second:length"),
        distance("death_line", after(death["first_time"]), "kill to the engine's own line"),
        distance(
            "first_failed", evidence.seconds_between(killed_at, first_failed), "kill to first retry"
        ),
        count(
            "sent_at_once",
            said.sent.count(sent[0]),
            "router:sends in the first second",
            "failed sends|sends",
        ),
        count(
            "sent_later",
            len(said.sent) - said.sent.count(sent[0]),
            "router:later sends",
            "times|sends",
        ),
        distance("second_send", second, "kill to the router's second send"),
        distance("third_send", third, "kill to the router's third send"),
        distance("closed", second - first, "router:between two sends"),
        count("health_failed", len(health), "router:failed health checks", "health checks|checks"),
        distance("health_every", every.pop(), "router:between two health checks"),
        count("deepest", deepest, "retries:max_attempt", "attempts"),
        distance("try_gap", len(counts) / (deepest - 1), "retries:seconds over tries", 1),
        count("steps", len(run.index), "steps:bare", "steps"),
    ]
    failing = [offset + at for at, n in enumerate(counts) if n]
    lanes = {
        "engine says it died": [after(death["first_time"])],
        "router cannot reach it": [first, second, third],
        "router's health check fails": health,
        "Miles logs failed requests": failing,
    }
    rows = [
        {"who": who, "seconds_after_kill": round(at, 1)} for who, ats in lanes.items() for at in ats
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(2.3, left=False, grid="x")
        roles = ("engine", "outside", "outside", "failure")
        for place, ((_, ats), role) in enumerate(zip(lanes.items(), roles, strict=True)):
            if len(ats) > 4:
                ax.broken_barh(
                    [(at, 1.0) for at in ats], (place - 0.22, 0.44), facecolor=style.colour(role)
                )
            else:
                marker = "os^D"[place]
                ax.plot(ats, [place] * len(ats), marker, color=style.colour(role), markersize=6)
        ax.axvline(0, color=style.colour("ink"), linewidth=1.2)
        ax.annotate(
            "engine killed",
            (0, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, 2),
            textcoords="offset points",
            ha="left",
            va="bottom",
        )
        short = ("engine died", "router sends", "health check", "failed requests")
        labels = short if style.narrow else list(lanes)
        ax.set_yticks(range(len(lanes)), labels)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(lanes) - 0.5, -0.6)
        ax.set_xlim(-8, max(failing) + 6)
        ax.set_xticks(range(0, 241, 60))
        ax.set_xlabel("seconds after the kill")
        return made

    return Figure(
        shape=(
            "Four lanes over the seconds after the kill: one mark of the engine, three of the "
            "router's failed sends, four of its health checks, and failed requests in most seconds."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )
