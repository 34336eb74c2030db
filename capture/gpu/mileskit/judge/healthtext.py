"""A health report as text for a terminal or a pipe."""

from __future__ import annotations

import textwrap

WIDTH = 100


def number(value: float | None, digits: int) -> str:
    """A number with fixed decimals; a small nonzero one in the e-notation; "-" for none."""
    if value is None:
        return "-"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if value == 0 and digits > 4:
        return "0"
    if value != 0 and abs(value) < 0.5 * 10**-digits:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"


def lines(report: dict) -> list[str]:
    """The lines of a report, wrapped where they are sentences."""
    return [piece for line in _all(report) for piece in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH or (not line.startswith("       ") and ": " not in line[:60]):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    )


def _all(report: dict) -> list[str]:
    out = [_title(report), *_reference(report)]
    out += [f"note: {text}" for text in report["notes"]]
    if report["first_ten"]:
        notes = _Sources()
        out += ["", "The five numbers of the first ten steps"]
        out += _table(report["first_ten"], notes)
        out += ["", "The eight signals over the steps that can be compared"]
        out += _table(report["signals"], notes)
        out += notes.lines()
    out += _noise(report["noise"])
    out += _step0(report["step0"])
    if report["findings"]:
        out += ["", "Found, whatever the ranges say"]
        out += [f"  {f['id']}: {f['text']}" for f in report["findings"]]
    out += _timing(report["timing"])
    return [*out, "", _verdict(report)]


def _title(report: dict) -> str:
    have = report["rollouts"]
    span = f" ({have[0]} to {have[-1]})" if have and report["steps"] else ""
    steps = f"{report['steps']} step" + ("" if report["steps"] == 1 else "s")
    end = f", ended: {report['ended']}" if report["ended"] else ""
    return f"{report['run']}: {report['source']}, {steps}{span}, {report['seeds']}{end}"


def _reference(report: dict) -> list[str]:
    ref = report["reference"]
    if ref["chosen"] == "none":
        out = ["reference: no stored run has this setup, so no range and no verdict on ranges"]
        if ref["nearest"]:
            near = ref["nearest"]
            out.append(f"  the nearest is {near['run']}, which differs (this run / that one) in")
            out += [f"    {text}" for text in near["differs"]]
        return out + [f"  {note}" for note in ref["notes"]]
    how = {"equal setup": "stored runs of equal setup", "named": "named with --against"}
    out = [f"reference: {how[ref['chosen']]}"]
    if ref["unstated"]:
        kind = "named with --against" if ref["chosen"] == "named" else "stored runs of equal flags"
        out = [f"reference: {kind}; not stated by this run, so not compared:"]
        out[0] += f" {', '.join(ref['unstated'])}"
    for one in ref["runs"]:
        out.append(f"  {one['run']}: {one['tier']}, {one['steps']} steps, {one['seeds']}")
        if one["differs"]:
            out.append("    differs (this run / that one) in")
            out += [f"      {text}" for text in one["differs"]]
    for name, differs in ref["lab_differs"].items():
        out.append(f"  {name}: reported; differs (this run / that lab) in")
        out += [f"      {text}" for text in differs]
    return out + [f"  {note}" for note in ref["notes"]]


class _Sources:
    """Letters for the distinct origins of ranges."""

    def __init__(self):
        self.seen: dict[str, str] = {}

    def letter(self, range_: dict | None) -> str:
        if range_ is None:
            return ""
        names = ", ".join(range_["runs"])
        seeds = f"{range_['seeds']} seed" + ("" if range_["seeds"] == 1 else "s")
        values = f", {range_['values']} values" if range_["values"] else ""
        text = f"{range_['tier']}: {names}; {seeds}; {range_['steps']}{values}"
        if range_["tier"] == "reported":
            text += f" ({range_['what']})"
        return self.seen.setdefault(text, chr(ord("a") + len(self.seen) % 26))

    def lines(self) -> list[str]:
        return [f"  [{letter}] {text}" for text, letter in self.seen.items()]


def _table(rows: list[dict], sources: _Sources) -> list[str]:
    out = []
    for row in rows:
        digits = row["digits"]
        value = "-"
        if row["n"]:
            low, high = number(row["low"], digits), number(row["high"], digits)
            value = f"{number(row['mean'], digits)} ({low} to {high})"
        range_ = row["range"]
        text = "no range"
        if range_:
            text = f"{number(range_['low'], digits)} to {number(range_['high'], digits)}"
            text += f" [{sources.letter(range_)}]"
        out.append(
            f"  {row['number']:<3}{row['name']:<24}{value:<33}{text:<28}{row['verdict']}".rstrip()
        )
        out += [f"       {text}" for text in ([row["why"]] if row["why"] else []) + row["notes"]]
    if rows:
        out.insert(0, f"  {'':<3}{'':<24}{'mean (low to high)':<33}{'range':<28}verdict")
    return out


def _noise(noise: dict) -> list[str]:
    if noise["floor"] is None and noise["spread"] is None and noise["binary"]:
        return []
    out = ["", "Noise of the reward of one step, first ten steps"]
    if noise["floor"] is not None:
        out.append(
            f"  binomial floor of {noise['answers']} answers: {noise['floor']:.3f}"
            " (independent answers that score 0 or 1; answers to other prompts each step vary more)"
        )
    elif not noise["binary"]:
        out.append("  no binomial floor: the log names rewards other than 0 and 1")
    if noise["spread"] is not None:
        low, high = noise["spread_range"]
        out.append(
            f"  spread of {noise['seeds']} reference seeds, root mean square:"
            f" {noise['spread']:.3f} ({low:.3f} to {high:.3f}); widest distance in one step"
            f" {noise['widest']:.2f}"
        )
    else:
        out.append("  spread of seeds: unknown, the reference has fewer than two seeds")
    if noise["move"] is not None:
        out.append(f"  largest move of this run from one step to the next: {noise['move']:.2f}")
    return out


def _step0(checks: list[dict]) -> list[str]:
    if not checks:
        return ["", "Step 0: not in this log, so its checks do not apply"]
    out = ["", "Step 0"]
    for check in checks:
        value = number(check["value"], 4) if check["value"] else number(check["value"], 0)
        out.append(f"  {check['name']:<20}{value:<12}{check['verdict']}")
        if check["limit"] and check["verdict"] != "not visible in this setup":
            out.append(f"       must be {check['limit']}")
        if check["why"]:
            out.append(f"       {check['why']}")
    return out


def _timing(timing: dict) -> list[str]:
    out = ["", f"Times: {'; '.join(timing['badge'])}"]
    if timing["record"]:
        out.append(f"  clock record: {timing['record']}")
    without = "" if timing["left_out"] is None else f", without step {timing['left_out']}"
    for words, value, steps in (
        ("whole step", timing["step_s"], timing["clean_steps"]),
        ("rollout", timing["rollout_s"], timing["clean_rollouts"]),
    ):
        if value is not None:
            out.append(f"  median {words} {value:.1f} s over {_count(steps)}{without}")
    if timing["steps"]:
        out.append("  step  whole s  rollout s  clean  paused s  since pause s  SM MHz  temp C")
        out += [_step_time(s) for s in timing["steps"]]
    return out


def _count(steps: list) -> str:
    return f"{len(steps)} clean step" + ("" if len(steps) == 1 else "s")


def _step_time(s: dict) -> str:
    clean = {True: "yes", False: "no", None: "-"}[s["step_clean"]]
    return (
        f"  {s['step']:>4}  {number(s['step_s'], 1):>7}  {number(s['rollout_s'], 1):>9}"
        f"  {clean:>5}  {number(s['pause_s'], 1):>8}  {number(s['since_pause_s'], 0):>13}"
        f"  {number(s['clock_mhz'], 0):>6}  {number(s['temp_c'], 0):>6}"
        + ("  stuck clock" if s["stuck"] else "")
    )


def _verdict(report: dict) -> str:
    ref = report["reference"]
    unlike = bool(ref["lab_differs"]) or any(one["differs"] for one in ref["runs"])
    rows = [*report["first_ten"], *report["signals"]]
    more = " (the reference has another setup, see above)" if unlike else ""
    if report["verdict"] == "outside":
        every = [*rows, *report["step0"]]
        names = list(dict.fromkeys(r["name"] for r in every if r["verdict"] == "outside"))
        names += [f["id"] for f in report["findings"] if not f["signal"] or f["signal"] == "time"]
        return f"outside: {', '.join(names)}{more}"
    if report["verdict"] == "inside" and any(r["verdict"] == "inside" for r in rows):
        return f"nothing is outside; read what is not visible and what had not enough steps{more}"
    return "no verdict on ranges; the rules that need none found nothing"


def resume_lines(report: dict) -> list[str]:
    """The restart test as text."""
    words = {True: "ok", False: "failed", None: "not shown"}
    out = [f"{report['first']} -> {report['second']}: restart test"]
    out += [f"note: {text}" for text in report["notes"]]
    out += [f"  {c['name']:<18}{words[c['ok']]:<11}{c['text']}" for c in report["checks"]]
    return [*out, _resumed(report)]


def _resumed(report: dict) -> str:
    if not report["passed"]:
        failed = [c["name"] for c in report["checks"] if c["ok"] is False]
        return f"this is no clean resume: {', '.join(failed)}"
    if report["not_shown"]:
        missing = ", ".join(report["not_shown"])
        return f"the run was resumed, as far as these logs show; not shown: {missing}"
    return "the run was resumed"
