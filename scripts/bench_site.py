"""Measures the build of the site and the weight of its pages beside a plain mkdocs-material site.

Both are built in a copy of the repository: the site without any cache, again after one chapter
changed, and a plain site with the same number of pages and the same text, whose figures are only
their source. `make bench` prints seconds, and kilobytes as gzip sends them.

exit codes: 0 within the limits, 1 over a limit, 2 bad usage, 3 inspected nothing
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.tree import ROOT, tracked_files

COLD_LIMIT_S = 60.0
CHANGED_LIMIT_S = 10.0
PAGE_LIMIT_KB = 250.0
CHAPTER = "manuals/miles-101/2-2-offload.md"
PLAIN = "site_name: plain\ndocs_dir: docs\nsite_dir: site\nuse_directory_urls: false\n"
PLAIN += "theme:\n  name: material\n  font: false\nplugins:\n  - search\n"
PLAIN += "markdown_extensions: [admonition, attr_list, tables, pymdownx.superfences]\n"


def copy(target: Path) -> None:
    """Copy every tracked file of the repository."""
    for name in tracked_files(ROOT):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path)


def seconds(words: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a Python program that must succeed."""
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPYCACHEPREFIX": str(folder / "pycache")}
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-400:]}")
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plain_site(copied: Path, target: Path) -> int:
    """Lay down a plain site of the chapters; returns how many pages it has."""
    sources = sorted((copied / "build" / "docs").rglob("*.md"))
    for path in sources:
        name = path.relative_to(copied / "build" / "docs")
        written = copied / "manuals" / name
        made = target / "docs" / name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes((written if written.is_file() else path).read_bytes())
    (target / "mkdocs.yml").write_text(PLAIN, encoding="utf-8")
    return len(sources)


def kilobytes(paths: list[Path]) -> list[float]:
    """Size of each file as gzip sends it."""
    return [len(gzip.compress(path.read_bytes(), 6)) / 1000 for path in paths]


def weights(site: Path) -> tuple[float, float, float]:
    """Kilobytes of the heaviest page, of the median page, and of all styles and fonts."""
    pages = sorted(kilobytes(list(site.rglob("*.html"))))
    return pages[-1], pages[len(pages) // 2], sum(kilobytes(list(site.rglob("*.css"))))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.bench_site",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    render = ["-m", "scripts.render", "--site", "site"]
    with tempfile.TemporaryDirectory() as folder:
        copied, plain = Path(folder) / "repository", Path(folder) / "plain"
        copy(copied)
        cold = seconds(render, copied)
        with (copied / CHAPTER).open("a", encoding="utf-8") as chapter:
            chapter.write("\nOne more sentence.\n")
        changed = seconds(render, copied)
        count = plain_site(copied, plain)
        mkdocs = ["-m", "mkdocs", "build", "--quiet"]
        other = seconds(mkdocs, plain)
        ours, theirs = weights(copied / "site"), weights(plain / "site")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"site of {count} pages on {cores} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':<28}{'this site':>12}{'plain':>12}{'limit':>12}")
    rows = [
        ("without a cache, s", cold[0], other[0], COLD_LIMIT_S),
        ("  of a processor, s", cold[1], other[1], None),
        ("after one chapter changed, s", changed[0], other[0], CHANGED_LIMIT_S),
        ("  of a processor, s", changed[1], other[1], None),
        ("heaviest page, kB", ours[0], theirs[0], PAGE_LIMIT_KB),
        ("median page, kB", ours[1], theirs[1], None),
        ("styles and fonts, kB", ours[2], theirs[2], None),
    ]
    for what, one, two, limit in rows:
        bound = f"{limit:>12.0f}" if limit else ""
        print(f"{what:<28}{one:>12.1f}{two:>12.1f}{bound}")
    over = [what for what, one, _, limit in rows if limit and one > limit]
    for what in over:
        print(f"over the limit: {what}", file=sys.stderr)
    if not count:
        return 3
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
