"""A seeded sample of small damages, each of which a check must find and place.

Four kinds: a linked number of a chapter changed by one in its last digit, a value of a stored
summary, a digit of a metric in a stored log, a character of a listing. Everything happens in
memory through the checks' overlay; no file is written.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from functools import lru_cache

import pytest

from scripts import claims, listings, summaries
from scripts.chapters import parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

SEED = 20261129
EACH = 50
TREE = Tree(ROOT)

_LINK = re.compile(r"\[([^\]]*\d[^\]]*)\]\([^)\s]*#fig-[a-z0-9-]+:\w+\)")
_WRITTEN = re.compile(r"\d[\d,]*(?:\.\d+)?")
_JSON_NUMBER = re.compile(rb"(?<=[\[\s:,])-?\d[\d.]*(?:e-?\d+)?(?=[,\]\}\n])")
_METRIC = re.compile(rb"'(\w+/[\w/.-]+)': (-?\d[\d.]*(?:e[-+]?\d+)?)")


def step_last_digit(text: str, up: bool) -> str:
    """A written number, one more or less in its last digit: '1,999' gives '2,000'."""
    whole, _, decimals = text.replace(",", "").partition(".")
    number = int(whole + decimals) + (1 if up or int(whole + decimals) == 0 else -1)
    digits = str(number).zfill(len(decimals) + 1)
    body = digits[: len(digits) - len(decimals)]
    grouped = f"{int(body):,}" if "," in text or len(body) > 3 else body
    return f"{grouped}.{digits[len(digits) - len(decimals) :]}" if decimals else grouped


def other_digit(pick: random.Random, digit: int) -> int:
    """Another digit, as a byte."""
    return pick.choice([d for d in b"0123456789" if d != digit])


def linked_numbers() -> list[tuple[str, int, int]]:
    """(chapter, start, end) of every number inside the text of a number link."""
    found = []
    for path in TREE.chapters():
        text = TREE.text(path)
        for link in _LINK.finditer(text):
            for number in _WRITTEN.finditer(text, link.start(1), link.end(1)):
                found.append((path, number.start(), number.end()))
    return found


def listing_lines() -> list[tuple[str, int]]:
    """(chapter, line) of every listing line that shows something."""
    found = []
    for path in TREE.chapters():
        chapter = parse(path, TREE.text(path))
        for fence in chapter.of("listing"):
            shown = listings.read(path, fence).lines
            found += [(path, number) for number, text in shown if re.search(r"\w", text)]
    return found


@lru_cache
def stored_log(folder: str) -> bytes:
    return lzma.decompress(TREE.read(f"{folder}/run.log.xz"))


@lru_cache
def run_folders() -> list[str]:
    """Runs whose log holds metrics; two of the stored ones ended before their first."""
    return [f for f in summaries.run_folders(TREE) if _METRIC.search(stored_log(f))]


def summary_problems(folder: str, name: str, data: bytes) -> list[str]:
    report = Report()
    summaries.check_run(Tree(ROOT, {f"{folder}/{name}": data}), folder, report)
    return [str(problem) for problem in report.problems]


def sample(kind: str) -> list[int]:
    """Seeds of the damages of one kind."""
    return [random.Random(f"{SEED} {kind} {n}").randrange(2**32) for n in range(EACH)]


def test_the_last_digit_steps_as_it_is_written():
    assert step_last_digit("1,999", True) == "2,000"
    assert step_last_digit("0.10", False) == "0.09"
    assert step_last_digit("0", False) == "1"
    assert step_last_digit("9.9", True) == "10.0"


@pytest.mark.parametrize("up", [True, False], ids=["plus one", "minus one"])
def test_every_linked_number_off_by_one_fails_at_its_line(up):
    """All numbers of all pages at once, since each link is judged alone; each must be named."""
    changed, wanted = {}, []
    for path, start, end in reversed(linked_numbers()):
        text = changed.get(path) or TREE.text(path)
        number = step_last_digit(text[start:end], up)
        changed[path] = text[:start] + number + text[end:]
        wanted.append((path, text.count("\n", 0, start) + 1, number))
    report = claims.check(ROOT, {path: text.encode() for path, text in changed.items()})
    written = {(p.path, p.line): "" for p in report.problems}
    for p in report.problems:
        written[p.path, p.line] += p.text.split(" is written")[0] + "\n"
    for path, line, number in wanted:
        assert number in written.get((path, line), ""), (
            f"{path}:{line}: {number} was typed and nothing was found"
        )


def test_there_are_linked_numbers_to_change():
    assert len(linked_numbers()) >= 100


@pytest.mark.parametrize("seed", sample("summary"))
def test_a_changed_value_of_a_summary_fails_and_names_the_run(seed):
    pick = random.Random(seed)
    folder = pick.choice(run_folders())
    data = bytearray(TREE.read(f"{folder}/summary.json"))
    number = pick.choice(list(_JSON_NUMBER.finditer(bytes(data))))
    at = pick.choice([n for n in range(*number.span()) if chr(data[n]).isdigit()])
    line = data.count(b"\n", 0, at) + 1
    data[at] = other_digit(pick, data[at])
    found = summary_problems(folder, "summary.json", bytes(data))
    assert found
    assert found[0].startswith(f"{folder}/summary.json:{line}: ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample("log"))
def test_a_changed_metric_of_a_log_fails_and_names_the_run(seed):
    pick = random.Random(seed)
    folder = pick.choice(run_folders())
    data = bytearray(stored_log(folder))
    number = pick.choice(list(_METRIC.finditer(bytes(data))))
    at = pick.choice([n for n in range(*number.span(2)) if chr(data[n]).isdigit()])
    data[at] = other_digit(pick, data[at])
    packed = lzma.compress(bytes(data), preset=0)
    found = summary_problems(folder, "run.log.xz", packed)
    assert found
    assert found[0].startswith(f"{folder}/summary.json:")
    before, after = float(number[2]), float(data[slice(*number.span(2))])
    named = number[1].decode() in found[0]
    assert named or (before == after and "sha256" in found[0]), found[0]


@pytest.mark.parametrize("seed", sample("listing"))
def test_a_changed_listing_line_fails_at_that_line(seed):
    pick = random.Random(seed)
    path, line = pick.choice(listing_lines())
    lines = TREE.text(path).split("\n")
    text = lines[line - 1]
    at = pick.choice([n for n, char in enumerate(text) if char.isascii() and char.isalnum()])
    swap = "7" if text[at] != "7" else "8"
    lines[line - 1] = text[:at] + swap + text[at + 1 :]
    report = listings.check(ROOT, {path: "\n".join(lines).encode()})
    assert [(p.path, p.line) for p in report.problems] == [(path, line)]


def test_a_changed_summary_also_changes_the_claims_that_rest_on_it():
    folder = "capture/gpu/out-h200-miles/plain_s1234"
    summary = json.loads(TREE.read(f"{folder}/summary.json"))
    summary["runs"][0]["rollouts"]["columns"]["perf/step_time"][0] += 1.0
    report = claims.check(ROOT, {f"{folder}/summary.json": json.dumps(summary).encode()})
    assert any("is written, computed is" in p.text for p in report.problems)
