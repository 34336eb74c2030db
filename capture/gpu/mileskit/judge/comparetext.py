"""A comparison as text."""

from __future__ import annotations

import textwrap

from mileskit.judge.quantities import steps_text

WIDTH = 100


def lines(found: dict) -> list[str]:
    """The lines of a comparison."""
    out = []
    for side in found["sides"]:
        out.append(f"side {side['side']}: {_seeds(side)}")
        for run in side["runs"]:
            out.append(f"  {run['run']}: {_count(run['steps'], 'step')}, {run['seeds']}")
            if run["not_finite"]:
                out += _wrap(f"    not finite in {steps_text(run['not_finite'])}: it diverged")
            out += _wrap(f"    times: {'; '.join(run['badge'])}")
    out += [piece for note in found["notes"] for piece in _wrap(f"note: {note}")]
    common = found["common_steps"]
    if common:
        out += _wrap(f"common steps: {len(common)}, {steps_text(common)}")
    else:
        out.append("common steps: none")
    for name, runs in found["stored_runs"].items():
        if runs:
            out += _wrap(f"stored runs of {name}'s setup: {'; '.join(runs)}")
    for name, differs in found["differs"].items():
        out += _differs(name, differs)
    if len(found["sides"]) == 1:
        out += _wrap(_one_side(found["sides"][0]))
    for q in found["quantities"]:
        out += ["", *_quantity(q)]
    out += _step_tables(found["quantities"])
    out += ["", *[piece for note in found["sampling"] for piece in _wrap(f"note: {note}")]]
    return out + _close(found)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _seeds(side: dict) -> str:
    runs = len(side["runs"])
    more = f" in {runs} runs: repeats count once" if 0 < side["seeds"] < runs else ""
    return _count(side["seeds"], "seed") + more


def _wrap(text: str) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    )


def _one_side(side: dict) -> str:
    if side["seeds"] <= 1:
        text = "one setting and one seed: what follows is how far repeats differ, and no effect"
    else:
        text = "one setting on every run: what follows is the spread of the seeds, and no effect"
    if side["inside"]:
        text += f"; the runs differ in: {'; '.join(side['inside'])}"
    return text


def _differs(name: str, differs: dict) -> list[str]:
    if not differs["known"]:
        return [f"A and {name} differ in: unknown, a run does not say its flags"]
    out = [f"A and {name} differ in (A / {name}):" + ("" if differs["settings"] else " no setting")]
    out += [f"  {text}" for text in differs["settings"]]
    out += [f"  {text}  (can change a time, not the samples)" for text in differs["time_only"]]
    if differs["inside_a_side"]:
        out += _wrap(f"  inside one side: {'; '.join(differs['inside_a_side'])}")
    if differs["without_effect"]:
        out += _wrap(f"  seeds, lengths, names: {'; '.join(differs['without_effect'])}")
    return out


def _number(value: float, digits: int, sign: bool = False) -> str:
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def _quantity(q: dict) -> list[str]:
    unit = f", {q['unit']}" if q["unit"] not in ("", "share") else ""
    head = f"{q['name']}{unit}"
    if "skipped" in q:
        return _wrap(f"{head}: not compared: {q['skipped']}")
    digits = q["digits"]
    out = _wrap(
        f"{head}: {q['middle']} over {len(q['steps'])} clean of"
        f" {_count(q['same_steps'], 'common step')} ({steps_text(q['steps'])})"
    )
    for name, steps in q["not_finite"].items():
        out += _wrap(f"  {name}: not finite in {steps_text(steps)}")
    if q["shared"]:
        out += _wrap(f"  no timing result: GPU shared in {', '.join(q['shared'])}")
    for run in q["runs"]:
        text = f"  {run['side']}  {run['run']:<28}{_number(run['middle'], digits):>12}"
        if run["length"] is not None:
            text += f"   answers of {run['length']:.1f} tokens"
        out.append(text)
    for side in q["sides"]:
        if side["runs"] > 1:
            low, high = _number(side["low"], digits), _number(side["high"], digits)
            out.append(f"  {side['side']} ranges from {low} to {high} over {side['runs']} runs")
    for one in q["stored_runs"]:
        low, high = _number(one["low"], digits), _number(one["high"], digits)
        over = "" if one["full"] else f" in {steps_text(one['steps'])}"
        text = f"  with {', '.join(one['runs'])}, {one['side']} ranges from {low} to {high}{over}"
        out += _wrap(text)
    for pair in q["pairs"]:
        how = "same seed" if pair["matched_by_seed"] else "other seed"
        out += _wrap(
            f"  {pair['second']} minus {pair['first']} ({how}): {q['middle']} of the"
            f" differences {_number(pair['middle'], digits, True)};"
            f" higher in {_count(pair['higher'], 'step')}, lower in {pair['lower']}"
        )
    for claim in q["claims"]:
        out += _claim(claim, q)
    return out


def _step_tables(found: list[dict]) -> list[str]:
    """One table a pair of runs: the difference of every quantity in every step."""
    shown = [q for q in found if "skipped" not in q]
    names = list(dict.fromkeys((p["first"], p["second"]) for q in shown for p in q["pairs"]))
    out = []
    for first, second in names:
        columns = []
        for q in shown:
            pair = next(p for p in q["pairs"] if (p["first"], p["second"]) == (first, second))
            columns.append((q, dict(zip(q["steps"], pair["differences"], strict=True))))
        steps = sorted({n for _, cells in columns for n in cells})
        out += ["", *_wrap(f"{second} minus {first}, step by step (- : not clean or not there)")]
        out.append("  step" + "".join(f"{_short(q['id']):>10}" for q, _ in columns))
        for n in steps:
            cells = [
                _number(cells[n], min(q["digits"], 5), True) if n in cells else "-"
                for q, cells in columns
            ]
            out.append(f"  {n:>4}" + "".join(f"{cell:>10}" for cell in cells))
    return out


def _short(name: str) -> str:
    """A heading of nine characters at most."""
    name = name.rsplit("/", 1)[-1].replace("_time", " s")
    return name if len(name) <= 9 else name[:8] + "."


def _claim(claim: dict, q: dict) -> list[str]:
    if claim["word"] is None:
        out = _wrap(f"  no claim for {claim['side']}: {'; '.join(claim['reasons'])}")
        if claim["settle"]:
            out += _wrap(f"    what would settle it: {'; '.join(claim['settle'])}")
        return out
    one_in = 1 / claim["chance"]
    text = (
        f"  {claim['side']} is {claim['word']} than {claim['against']} in these runs: no run of one"
        f" side lies in the range of the other, and the difference is larger than either spread."
        f" Without any effect, runs separate like this in at most 1 of {one_in:.3g} comparisons."
    )
    if claim["sign_flip_p"] is not None:
        text += f" Exact sign-flip test over the pairs: p = {claim['sign_flip_p']:.3g}."
    if claim["clock_unknown"]:
        text += f" Clock unknown: {', '.join(claim['clock_unknown'])}."
    if claim["pauses_unknown"]:
        text += f" Pauses unknown (no heat-guard log): {', '.join(claim['pauses_unknown'])}."
    out = _wrap(text)
    if claim["settle"]:
        out += _wrap(f"    what would strengthen it: {'; '.join(claim['settle'])}")
    return out


def _close(found: dict) -> list[str]:
    if len(found["sides"]) == 1:
        return ["", "nothing to claim: there is one setting"]
    made = [
        f"{q['name']}: {c['side']} {c['word']}{_unknown(c)}"
        for q in found["quantities"]
        for c in q.get("claims", [])
        if c["word"]
    ]
    count = found["claimed"]
    if not made:
        return ["", "no difference here may be called an effect of the setting"]
    text = (
        f"outside the spread of the seeds, {count['made']} of"
        f" {_count(count['judged'], 'comparison')} here: {'; '.join(made)}. Chance alone separates"
        f" at most 1 of {1 / count['chance']:.3g}, so up to {count['by_chance_up_to']:.2g} of these"
        f" {count['judged']}."
    )
    return ["", *_wrap(text)]


def _unknown(claim: dict) -> str:
    words = [w for w in ("clock", "pauses") if claim[f"{w}_unknown"]]
    return f" ({' and '.join(words)} unknown)" if words else ""
