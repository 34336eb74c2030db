"""Listings: what counts as a line of the stored file."""

import gzip
import lzma

import pytest

from scripts import listings
from scripts.chapters import Fence

STORED = """first line
step 0: {'loss': 0.25, 'reward': 0.5}
between
step 1: {'loss': 0.125, 'reward': 0.75}
\x1b[36m(actor)\x1b[0m coloured
bar \r 10%
last line
"""


def problems(repo, shown, name="logs/run.log", data=None):
    page = f"# P\n\n```listing\nfile: {name}\n---\n{shown}\n```\n"
    tree = repo(page, other=None)
    path = tree.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(STORED.encode() if data is None else data)
    return [str(problem) for problem in listings.check(tree.root).problems]


@pytest.mark.parametrize(
    "shown",
    [
        "first line",
        "first line\nstep 0: {'loss': 0.25, 'reward': 0.5}",
        "first line\n…\nlast line",
        "step 0: {… 'reward': 0.5}",
        "…'loss': 0.125…",
        "step 0: {'loss': 0.25, …\n…\nstep 1: {'loss': 0.125, …",
        "(actor) coloured",
        "bar  10%",
        "…\nbetween\n…",
    ],
)
def test_lines_of_the_file_in_order_pass(repo, shown):
    assert problems(repo, shown) == []


@pytest.mark.parametrize(
    ("shown", "line", "missing"),
    [
        ("first lime", 6, "first lime"),
        ("first", 6, "first"),
        ("first line\n…\nstep 0: {'loss': 0.26, …", 8, "0.26"),
        ("last line\n…\nfirst line", 8, "first line"),
        ("first line\nbetween", 7, "between"),
        ("step 0: {… 'reward': 0.75}", 6, "0.75"),
        ("step 0: {'reward': 0.5… 'loss'…", 6, "'loss'"),
        ("first line\n…\nfirst line", 8, "first line"),
    ],
)
def test_a_line_that_is_not_there_names_its_own_line(repo, shown, line, missing):
    (found,) = problems(repo, shown)
    assert found.startswith(f"manuals/one.md:{line}: logs/run.log has no such line")
    assert missing in found


def test_the_parts_of_one_line_come_from_one_stored_line(repo):
    assert problems(repo, "step 0: …'reward': 0.75}") != []


@pytest.mark.parametrize(("suffix", "pack"), [("xz", lzma.compress), ("gz", gzip.compress)])
def test_packed_files_are_read_unpacked(repo, suffix, pack):
    name = f"logs/run.log.{suffix}"
    assert problems(repo, "first line", name, pack(STORED.encode())) == []
    assert len(problems(repo, "other line", name, pack(STORED.encode()))) == 1


def test_a_file_that_is_not_here_or_outside_is_an_error(repo):
    page = "```listing\nfile: {}\n---\nx\n```\n"
    for name in ("missing.log", "/etc/hostname", "../one.md"):
        tree = repo(page.format(name), other=None)
        (found,) = listings.check(tree.root).problems
        assert "not here" in found.text


@pytest.mark.parametrize("content", ["file: a\nx\n", "title: a\n---\nx\n", "file: a\n---\n…\n"])
def test_a_listing_without_file_rule_or_lines_is_an_error(content):
    with pytest.raises(listings.ChapterError):
        listings.read("p.md", Fence(1, "listing", content))
