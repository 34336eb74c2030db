"""Listings: what counts as a line of the stored file."""

import gzip
import lzma

import pytest

from scripts import listinghead, listings
from scripts.chapters import Fence

STORED = """first line
step 0: {'loss': 0.25, 'reward': 0.5}
between
step 1: {'loss': 0.125, 'reward': 0.75}
\x1b[36m(actor)\x1b[0m coloured
bar \r 10%
last line
"""


def problems(repo, shown, name="capture/gpu/out-lab/r1/run.log", data=None):
    page = f"# P\n\n```listing\nfile: {name}\n---\n{shown}\n```\n"
    tree = repo(page, other=None)
    path = tree.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(STORED.encode() if data is None else data)
    return [str(problem) for problem in listings.check(tree.root).problems]


@pytest.mark.parametrize(
    "shown",
    [
        "first line",
        "first line\nstep 0: {'loss': 0.25, 'reward': 0.5}",
        "first line\n…\nlast line",
        "step 0: {… 'reward': 0.5}",
        "…'loss': 0.125, …",
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
        ("step 0: {'reward': 0.5, … 'loss'…", 6, "'loss'"),
        ("first line\n…\nfirst line", 8, "first line"),
    ],
)
def test_a_line_that_is_not_there_names_its_own_line(repo, shown, line, missing):
    (found,) = problems(repo, shown)
    assert found.startswith(
        f"manuals/one.md:{line}: capture/gpu/out-lab/r1/run.log has no such line"
    )
    assert missing in found


def test_the_parts_of_one_line_come_from_one_stored_line(repo):
    assert problems(repo, "step 0: …'reward': 0.75}") != []


@pytest.mark.parametrize(("suffix", "pack"), [("xz", lzma.compress), ("gz", gzip.compress)])
def test_packed_files_are_read_unpacked(repo, suffix, pack):
    name = f"capture/gpu/out-lab/r1/run.log.{suffix}"
    assert problems(repo, "first line", name, pack(STORED.encode())) == []
    assert len(problems(repo, "other line", name, pack(STORED.encode()))) == 1


def test_a_file_that_is_not_here_or_outside_is_an_error(repo):
    page = "```listing\nfile: {}\n---\nx\n```\n"
    for name in ("capture/missing.log", "/etc/hostname", "../one.md"):
        tree = repo(page.format(name), other=None)
        (found,) = listings.check(tree.root).problems
        assert "not here" in found.text


@pytest.mark.parametrize("content", ["file: a\nx\n", "title: a\n---\nx\n", "file: a\n---\n…\n"])
def test_a_listing_without_file_rule_or_lines_is_an_error(content):
    with pytest.raises(listings.ChapterError):
        listings.read("p.md", Fence(1, "listing", content))


@pytest.mark.parametrize(
    "shown",
    [
        "step 0: {'loss': 0…25, 'reward': 0.5}",
        "step 0: {'loss': 0.2…, 'reward': 0.5}",
        "step 0: {'loss': 0.2…",
        "step 0: {'loss': …5, 'reward': 0.5}",
        "step 0: {'loss': 0.…5, 'reward': 0.5}",
        "step 0: {'loss': 0 … 'reward': 0.5}",
        "step 1: {'loss': 0…75}",
        "step … {'loss': …125, 'reward': 0.75}",
    ],
)
def test_a_cut_through_a_number_is_an_error(repo, shown):
    assert problems(repo, shown) != []


def test_a_cut_does_not_give_a_number_another_unit(repo):
    stored = b"elapsed=5.85 s, avail mem=94.82 GB\n"
    assert problems(repo, "elapsed=5.85 s, … mem=94.82 GB", data=stored) == []
    assert problems(repo, "elapsed=5.85 … GB", data=stored) != []
    assert problems(repo, "elapsed=…4.82 GB", data=stored) != []


@pytest.mark.parametrize(
    "name", ["manuals/two.md", "README.md", "CHANGELOG.md", "notes/run.log", "build/x.log"]
)
def test_a_page_and_what_is_no_evidence_may_not_be_listed(repo, name):
    found = problems(repo, "first line", name)
    assert any("only evidence, code and fixtures may be listed" in said for said in found)


def titled(repo, title, name, shared="false"):
    page = f"# P\n\n```listing\nfile: {name}\ntitle: {title}\n---\nfirst line\n```\n"
    files = {
        "capture/gpu/out-lab/r1/run.log": STORED,
        "capture/gpu/out-lab/r1/run.toml": f'[setup]\ngpu = "NVIDIA H200"\nshared = {shared}\n'
        '[[unusable]]\ncolumn = "loss"\n',
        "capture/gpu/out-lab/r2_x/run.toml": "[setup]\n",
        "capture/gpu/out-gb10/published.txt": STORED,
        "capture/gpu/out-gb10/reported.toml": '[lab]\ngpu = "NVIDIA GB10"\n',
        "capture/gpu/kit.py": STORED,
    }
    tree = repo(page, other=None)
    for path, text in files.items():
        (tree.root / path).parent.mkdir(parents=True, exist_ok=True)
        (tree.root / path).write_text(text)
    return tree, [problem.text for problem in listings.check(tree.root).problems]


RUN, PUBLISHED, CODE = (
    "capture/gpu/out-lab/r1/run.log",
    "capture/gpu/out-gb10/published.txt",
    "capture/gpu/kit.py",
)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Measured, run r1, step 0", RUN),
        ("Measured on an H200", RUN),
        ("A run that wanted the port of another run", RUN),
        ("Reported by the GB10 lab", PUBLISHED),
        ("How the kit starts", CODE),
    ],
)
def test_a_title_that_fits_its_file_passes(repo, title, name):
    assert titled(repo, title, name)[1] == []


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Measured by us", PUBLISHED),
        ("Reported by the lab", RUN),
        ("Published", CODE),
        ("Measured", CODE),
        ("Measured, run r2_x", RUN),
        ("Run r2_x beside run r1", RUN),
        ("On a GB10", RUN),
        ("On an H200", PUBLISHED),
        ("With Qwen3-0.6B", RUN),
        ("It took 23 s", RUN),
    ],
)
def test_a_title_against_its_file_is_an_error(repo, title, name):
    assert len(titled(repo, title, name)[1]) == 1


def test_tier_run_and_warnings_of_a_head_come_from_the_path(repo):
    tree, _ = titled(repo, "x", RUN, shared="true")
    found = listinghead.source(tree, RUN)
    lines = ["perf 0: {'perf/step_time': 2.5, 'loss': 1}"]
    head = listinghead.head("the end", RUN, found, lines)
    assert head.startswith("Measured, run r1: the end: out-lab/r1/run.log (")
    assert "loss is unusable" in head
    assert "the GPU was shared, so its times are no result" in head
    assert "(" not in listinghead.head("", RUN, found, ["reward"])
    assert listinghead.head("", PUBLISHED, listinghead.source(tree, PUBLISHED), []).startswith(
        "Reported by the GB10 lab: out-gb10/"
    )
    own = listinghead.head("Measured, run r1, step 0", RUN, found, ["x"])
    assert own.startswith("Measured, run r1, step 0: out-lab")
