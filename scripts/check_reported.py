"""Check the published values of other people's labs: their form and their arithmetic.

Reads every ``capture/gpu/out-*/reported.toml`` under a root.  A published number has no raw log
here, so nothing is recomputed; what can be checked is that the file is well formed, that each
printed text gives the stored number, and that the numbers agree with each other within their
rounding.  Where they do not, the entry names the contradiction of
``manuals/data/seed-contradictions.yaml`` that says so; an entry whose numbers agree names none.
A number that the source also printed as program output (``published.txt``) is compared with it
there: its ``output`` is the text around it, and a number that stands there without one is an error.

Exit codes: 0 all fine, 1 something is wrong, 2 bad usage, 3 found no reported.toml.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import yaml

from scripts.intervals import RELATIONS, Interval, evaluate, names, parse_printed
from scripts.reported import BY, ID, SCHEMA, UNITS, Reported, clock, stored
from scripts.tree import yaml_document

# Numbers that stand in program output by more than chance: decimals, or four digits or more.
DISTINCT = re.compile(r"\d\.\d|\d{4}")
CONTRADICTIONS = Path("manuals/data/seed-contradictions.yaml")


def schema_errors(reported: Reported) -> None:
    """Types, required keys, unknown keys, unique ids."""
    for kind in reported.data:
        if kind not in SCHEMA and kind not in ("schema", "lab"):
            reported.error(kind, "", "unknown table")
    if reported.data.get("schema") != 1:
        reported.error("schema", reported.data.get("schema"), "expected 1")
    lab = reported.data.get("lab", {})
    for key in ("name", "tier", "source", "gpu", "image", "miles_commit"):
        if not lab.get(key):
            reported.error("lab", key, "is missing")
    if lab.get("tier") != "reported":
        reported.error("lab", "tier", f"is {lab.get('tier')!r}, expected 'reported'")
    seen: dict[tuple[str, str], str] = {}
    for kind, keys in SCHEMA.items():
        for entry in reported.table(kind):
            name = entry.get("id", entry.get("what", ""))
            for key, (types, needed) in keys.items():
                if key not in entry:
                    if needed:
                        reported.error(kind, name, f"{key} is missing")
                elif not isinstance(entry[key], types) or (
                    isinstance(entry[key], bool) and types is not bool
                ):
                    reported.error(kind, name, f"{key} has the wrong type: {entry[key]!r}")
            for key in entry.keys() - keys.keys():
                reported.error(kind, name, f"unknown key {key!r}")
            if "id" not in keys:
                continue
            if not ID.fullmatch(str(name)):
                reported.error(kind, name, "the id is not kebab-case")
            space = "number" if kind in ("value", "setting") else kind
            if (space, name) in seen:
                reported.error(kind, name, f"the id is taken by another {seen[space, name]}")
            seen[space, name] = kind


def reference_errors(reported: Reported) -> None:
    """Runs, units, sources, contradictions and other sides that exist."""
    runs = {entry.get("id") for entry in reported.table("run")}
    for kind in ("value", "setting", "arithmetic"):
        for entry in reported.table(kind):
            name = entry.get("id")
            listed = entry.get("run", "")
            for run in [listed] if isinstance(listed, str) else listed:
                if run and run not in runs:
                    reported.error(kind, name, f"run {run!r} is in no [[run]]")
            if kind != "arithmetic" and entry.get("unit") not in UNITS:
                reported.error(kind, name, f"unit {entry.get('unit')!r} is not in the list")
            if entry.get("by", "lab") not in BY:
                reported.error(kind, name, f"by {entry['by']!r} is not in the list")
            contradiction = entry.get("contradiction")
            if contradiction is not None and contradiction not in reported.contradictions:
                reported.error(kind, name, f"contradiction {contradiction!r} is in no list")
            if "ambiguity" in entry and entry["ambiguity"] not in reported.ambiguities:
                reported.error(kind, name, f"ambiguity {entry['ambiguity']!r} is in no list")
            for other in entry.get("other_side", []):
                if other not in reported.numbers:
                    reported.error(kind, name, f"other side {other!r} is no id")
            if (
                kind != "arithmetic"
                and contradiction is not None
                and not entry.get("other_side")
                and not entry.get("other_words")
            ):
                reported.error(kind, name, "a contradiction without its other side")


def printed_errors(reported: Reported) -> None:
    """Each printed text gives the stored number, in every place that prints it."""
    for kind in ("value", "setting"):
        for entry in reported.table(kind):
            name = entry["id"]
            if isinstance(entry.get("value"), str):
                if entry["value"] != entry["printed"]:
                    reported.error(kind, name, f"printed {entry['printed']!r} is another text")
                continue
            if ("value" in entry) == ("low" in entry) or ("low" in entry) != ("high" in entry):
                reported.error(kind, name, "expected a value, or a low and a high")
                continue
            numbers = stored(entry)
            if numbers[0] > numbers[-1]:
                reported.error(kind, name, f"low {entry['low']} is above high {entry['high']}")
            places = [entry, *entry.get("also", [])]
            for place in places:
                printed = place.get("printed", "")
                try:
                    if entry["unit"] == "clock":
                        read: tuple[Fraction, ...] = (clock(printed, entry.get("date")),)
                    else:
                        read = parse_printed(printed)
                except ValueError:
                    reported.error(kind, name, f"printed {printed!r} is not a number")
                    continue
                if read != numbers:
                    shown = " to ".join(str(float(number)) for number in numbers)
                    reported.error(kind, name, f"printed {printed!r} is not {shown}")


def sections(text: str) -> dict[str, str]:
    """Section -> its program output, each block with a newline before and after it."""
    found: dict[str, str] = {}
    for block in text.split("\n## section ")[1:]:
        head, _, body = block.partition("\n")
        name = head.partition(":")[0]
        found[name] = found.get(name, "") + f"\n{body}\n"
    return found


def plain(printed: str) -> str:
    """A printed number as a program prints it: without separators of thousands."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", printed)


def token(text: str) -> str:
    """A pattern that finds a number as a whole, not as a part of another one."""
    return rf"(?<![\w.]){re.escape(text)}(?!\d|\.\d)"


def output_errors(reported: Reported, published: str) -> None:
    """Numbers that the published output prints otherwise, or that stand there without a tie."""
    blocks = sections(published)
    for kind in ("value", "setting"):
        for entry in reported.table(kind):
            printed, output = plain(entry["printed"]), entry.get("output")
            places = {place["section"] for place in [entry, *entry.get("also", [])]}
            near = [blocks[name] for name in sorted(places) if name in blocks]
            if output is None:
                if DISTINCT.search(printed) and any(re.search(token(printed), b) for b in near):
                    text = f"{printed!r} stands in published.txt: tie it with `output`"
                    reported.error(kind, entry["id"], text)
                continue
            head, hole, tail = output.partition("{}")
            whole = re.escape(head) + token(printed) + re.escape(tail)
            blocks_with_head = [block for block in near if head in block and tail in block]
            if not hole or "{}" in tail:
                reported.error(kind, entry["id"], f"output {output!r} needs exactly one {{}}")
            elif not blocks_with_head or not all(re.search(whole, b) for b in blocks_with_head):
                text = f"published.txt does not print {output.replace('{}', printed)!r}"
                reported.error(kind, entry["id"], f"{text} in section {', '.join(sorted(places))}")


def arithmetic_errors(reported: Reported) -> None:
    """Relations that fail without a contradiction, and contradictions that do not fail."""
    for entry in reported.table("arithmetic"):
        name, relation = entry["id"], entry["relation"]
        if relation not in RELATIONS:
            reported.error("arithmetic", name, f"relation {relation!r} is not in the list")
            continue
        try:
            if not names(entry["formula"]):
                raise ValueError("the formula uses no id")
            left = evaluate(entry["formula"], reported.interval)
            whole_range = relation == "within"
            result = entry["result"]
            right = reported.whole(result) if whole_range else evaluate(result, reported.interval)
        except ValueError as error:
            reported.error("arithmetic", name, str(error))
            continue
        holds = RELATIONS[relation](left, right)
        told = f"{entry['formula']} is {show(left)}, {entry['result']} is {show(right)}"
        if not holds and "contradiction" not in entry:
            reported.error("arithmetic", name, f"not {relation}: {told}")
        if holds and "contradiction" in entry:
            reported.error(
                "arithmetic", name, f"holds, so {entry['contradiction']!r} is not the cause: {told}"
            )


def show(interval: Interval) -> str:
    """Both ends in at most eight digits."""
    low, high = (f"{float(end):.8g}" for end in interval)
    return low if low == high else f"{low} to {high}"


def known_contradictions(root: Path) -> tuple[set[str], set[str]]:
    """Ids of the contradictions and of the ambiguities in the facts file."""
    data = yaml_document((root / CONTRADICTIONS).read_text(encoding="utf-8"))
    return (
        {entry["id"] for entry in data["contradictions"]},
        {entry["id"] for entry in data["ambiguities"]},
    )


def files(root: Path) -> list[Path]:
    """Every reported.toml of the labs, sorted."""
    return sorted(root.glob("capture/gpu/out-*/reported.toml"))


def check_file(path: Path, label: str, known: tuple[set[str], set[str]]) -> list[str]:
    """Errors of one file, each with file, line and id; the form is checked first."""
    try:
        reported = Reported(path, label, known)
    except tomllib.TOMLDecodeError as error:
        return [f"{label}:1: not TOML: {error}"]
    schema_errors(reported)
    if reported.errors:
        return reported.errors
    reference_errors(reported)
    printed_errors(reported)
    sound = not reported.errors  # only then can arithmetic be trusted to mean something
    output = path.with_name("published.txt")
    output_errors(reported, output.read_text(encoding="utf-8") if output.exists() else "")
    if sound:
        arithmetic_errors(reported)
    return reported.errors


def check(root: Path) -> list[str]:
    """Errors of every reported.toml under ``root``; empty when all is well or there is no file."""
    try:
        known = known_contradictions(root)
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        return [f"{CONTRADICTIONS}:1: cannot be read: {error}"]
    return [
        error
        for path in files(root)
        for error in check_file(path, str(path.relative_to(root)), known)
    ]


def count(root: Path) -> dict[str, int]:
    """Numbers of values, printed places, settings, runs, arithmetic entries and lost tables."""
    out = dict.fromkeys(["files", "values", "places", "settings", "runs", "arithmetic"], 0)
    out["contradictions"] = out["lost"] = out["tied to output"] = 0
    for path in files(root):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        values = data.get("value", [])
        out["files"] += 1
        out["values"] += len(values)
        out["places"] += sum(1 + len(value.get("also", [])) for value in values)
        out["settings"] += len(data.get("setting", []))
        out["runs"] += len(data.get("run", []))
        out["arithmetic"] += len(data.get("arithmetic", []))
        out["contradictions"] += sum("contradiction" in e for e in data.get("arithmetic", []))
        out["lost"] += len(data.get("lost", []))
        numbers = [*values, *data.get("setting", [])]
        out["tied to output"] += sum("output" in entry for entry in numbers)
    return out


def main(argv: Iterable[str] | None = None) -> int:
    """Print the errors, or one line of counts."""
    parser = argparse.ArgumentParser(
        prog="check_reported",
        description="Check the published values: form, printed text, arithmetic.",
        epilog="Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 found no reported.toml.",
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="repository root")
    arguments = parser.parse_args(None if argv is None else list(argv))
    if not arguments.root.is_dir():
        print(f"check_reported: {arguments.root} is not a folder", file=sys.stderr)
        return 2
    if not files(arguments.root):
        print(f"check_reported: {arguments.root}: no reported.toml", file=sys.stderr)
        return 3
    errors = check(arguments.root)
    if errors:
        print("\n".join(errors), file=sys.stderr)
        return 1
    print("reported: " + ", ".join(f"{n} {what}" for what, n in count(arguments.root).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
