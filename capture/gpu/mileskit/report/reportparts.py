"""The verdicts of a report: the guard's word, health, how a run ended, its errors."""

from __future__ import annotations

from collections.abc import Sequence

from mileskit.evidence import scrub
from mileskit.guard.verdicts import ABOUT, FINE
from mileskit.judge import healthtext
from mileskit.judge.clockcheck import seconds_of
from mileskit.report.reportcharts import View
from mileskit.report.reporthtml import card, cards, facts, note, notes, table, text

_NEUTRAL = frozenset(("starting", "stopped"))
_MOST_ERRORS = 12
_SEEN = {
    "finished": "the job ended by itself",
    "failed": "the job ended with an error",
    "time-limit": "a time limit ended it",
    "killed": "a signal ended it",
    "cut": "the log stops inside a line or another run follows",
    "running": "no sign of an end",
}


def masked(words: object) -> str:
    """Text of a log or command with its secrets masked, as `kit.py store` would."""
    lines = str(words).split("\n")
    scrubber = scrub.Scrubber()
    done = [scrubber.line(line.encode("utf-8", "surrogateescape")) for line in lines]
    return b"\n".join(done).decode("utf-8", "replace")


def seconds(value: float | None) -> str:
    """A duration: ``48.0 s``, ``12 min 5 s``, ``3 h 20 min``; "" for None."""
    if value is None:
        return ""
    if value < 120:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def stamp(value: str | None) -> str:
    """``2026-11-29 12:44:19 UTC`` of a time of a summary."""
    return f"{value[:19].replace('T', ' ')} UTC" if value else ""


def overview(views: Sequence[View], health: Sequence[dict | None]) -> str:
    """One card a run: what it is, its verdict words, how it ended, its badges."""
    return cards(
        [_overview(view, h, len(views) > 1) for view, h in zip(views, health, strict=True)]
    )


def _overview(view: View, health: dict | None, many: bool) -> str:
    run = view.run
    steps = run["steps"]["index"]
    span = f"{len(steps)} (step {steps[0]} to {steps[-1]})" if steps else "none"
    first, last = seconds_of(run.get("first_time")), seconds_of(run.get("last_time"))
    word, css, why = guard_word(view)
    body = f'<p><span class="word {css}">{text(word)}</span> {text(why)}</p>'
    body += facts(
        [
            ("health", _health_word(health)),
            ("ended", ended(view)),
            ("steps", span),
            ("began", stamp(run.get("started") or run.get("first_time"))),
            ("log covers", seconds(last - first) if first is not None and last is not None else ""),
            ("seeds", view.facts.seeds),
        ]
    )
    badges = [*_setup_badge(view), *view.timing.badge]
    body += '<ul class="badges">' + "".join(f"<li>{text(b)}</li>" for b in badges) + "</ul>"
    return card(view.name if many else "This run", body)


def _setup_badge(view: View) -> list[str]:
    setup = view.facts.setup
    words = [str(setup[k]) for k in ("model", "data", "gpu") if setup.get(k)]
    if setup.get("container") is False:
        words.append("no container")
    if setup.get("miles_date"):
        words.append(f"Miles {setup['miles_date']}")
    return words


def guard_word(view: View) -> tuple[str, str, str]:
    """The guard's verdict word, its look, and why."""
    found = view.input.verdict
    if found is None:
        stored = ((view.input.loaded.toml or {}).get("ended") or {}).get("verdict")
        if not stored:
            return "no verdict", "open", f"on the log: {view.input.no_log}"
        css = "good" if stored in FINE and stored not in _NEUTRAL else "open"
        css = "wrong" if stored not in FINE else css
        return str(stored), css, f"verdict stored with the run: {ABOUT.get(stored, '')}"
    word = found["verdict"]
    css = "open" if word in _NEUTRAL else "good" if word in FINE else "wrong"
    return word, css, masked(found["why"] or found["about"])


def _health_word(health: dict | None) -> str:
    if health is None:
        return "not judged: no step in this log"
    return healthtext.lines({**health, **_ONLY_VERDICT})[-1]


_ONLY_VERDICT = {"notes": []}


def ended(view: View) -> str:
    """How the run ended, by the log, else by run.toml."""
    end = view.run.get("ended") or {}
    how = end.get("how") or "running"
    status = "" if end.get("status") is None else f", status {end['status']}"
    when = f", {stamp(end.get('time'))}" if end.get("time") else ""
    line = f", line {end['line']}" if end.get("line") else ""
    words = f"{how}{status}: {_SEEN.get(how, '')}{when}{line}"
    stored = (view.input.loaded.toml or {}).get("ended") or {}
    if how in ("running", "cut") and stored.get("how") and stored["how"] != how:
        words += f"; by run.toml: {stored['how']}"
    return words


def verdicts(views: Sequence[View], health: Sequence[dict | None]) -> str:
    """The guard's evidence and the health tables."""
    parts = []
    for view, found in zip(views, health, strict=True):
        body = _guard(view)
        body += _health(found) if found else ""
        parts.append(card(view.name if len(views) > 1 else "Guard and health", body))
    return f'<div class="words">{"".join(parts)}</div>'


def _guard(view: View) -> str:
    found = view.input.verdict
    word, css, why = guard_word(view)
    body = f'<p>Guard: <span class="word {css}">{text(word)}</span> {text(why)}</p>'
    if found is None:
        return body + note(f"no evidence here: {view.input.no_log}")
    rows = []
    cause = "seen in" if word in FINE else "root cause"
    for title, key in ((cause, "root"), ("last progress", "last_progress")):
        spot = found.get(key)
        if spot:
            when = f", {stamp(spot['time'])}" if spot.get("time") else ""
            rows.append((title, f"line {spot['line']}{when}: {masked(spot['text'])}"))
    failed = found["failed_requests"]
    if failed["total"]:
        since = ", ".join(f"{n} x {w}" for w, n in failed["since_progress"].items())
        rows.append(
            (
                "failed requests",
                f"{failed['total']} in all; since the last progress: {since or 'none'}",
            )
        )
    rows += [(f"warning {w}", why) for w, why in found["warnings"].items()]
    return body + facts(rows)


def _health(found: dict) -> str:
    reference = found["reference"]
    names = ", ".join(one["run"] for one in reference["runs"]) or "none"
    body = f"{_subtitle('Health')}<p>{text(_health_word(found))}</p>"
    body += note(f"reference: {names} ({reference['chosen']})")
    body += notes([*found["notes"], *reference["notes"]])
    for title, rows in (
        ("First ten steps", found["first_ten"]),
        ("All steps that can be compared", found["signals"]),
    ):
        if rows:
            body += f'<p class="about" style="margin:10px 0 0"><b>{title}</b></p>'
            body += table(
                ("signal", "mean (low to high)", "range", "verdict"), [_row(r) for r in rows]
            )
            body += notes(f"{r['name']}: {w}" for r in rows for w in [r["why"], *r["notes"]] if w)
    if found["step0"]:
        body += _subtitle("Step 0")
        rows = [
            (c["name"], f"{healthtext.number(c['value'], 4)}: {c['verdict']}{_must(c)}")
            for c in found["step0"]
        ]
        body += facts(rows)
        body += notes(f"{c['name']}: {c['why']}" for c in found["step0"] if c["why"])
    if found["findings"]:
        items = "".join(
            f"<li>{text(f['id'])}: {text(masked(f['text']))}</li>" for f in found["findings"]
        )
        body += f"<ul>{items}</ul>"
    return body


_COLUMNS = ("signal", "mean (low to high)", "range", "verdict")


def _subtitle(words: str) -> str:
    return f'<p class="sub">{text(words)}</p>'


def _must(check: dict) -> str:
    return f" (must be {check['limit']})" if check["limit"] else ""


def _row(row: dict) -> tuple[str, str, str, str]:
    digits, range_ = row["digits"], row["range"]
    value = ""
    if row["n"]:
        mean, low, high = (healthtext.number(row[k], digits) for k in ("mean", "low", "high"))
        value = f"{mean} ({low} to {high})"
    span = ""
    if range_:
        low, high = (healthtext.number(range_[k], digits) for k in ("low", "high"))
        span = f"{low} to {high}, {range_['tier']}"
    return row["name"], value, span, row["verdict"]


def errors(views: Sequence[View]) -> str:
    """The errors of the logs by kind, in the order of their first line."""
    parts = []
    for view in views:
        found = view.run.get("errors") or []
        rows = "".join(
            f"<li><b>{text(e['kind'])}</b> ({text(e['severity'])}) in {text(e['count'])} lines,"
            f" first in line {text(e['first_line'])}<pre>{text(masked(e['text']))}</pre></li>"
            for e in found[:_MOST_ERRORS]
        )
        body = f"<ul>{rows}</ul>" if rows else note("no error line of a known kind")
        if len(found) > _MOST_ERRORS:
            body += note(f"{len(found) - _MOST_ERRORS} more kinds")
        parts.append(card(view.name if len(views) > 1 else "Errors by kind", body))
    return cards(parts) if len(views) > 1 else "".join(parts)
