"""Makes build/docs from manuals/: figures, listings and tables become what MkDocs can show.

`python3 -m scripts.render` writes build/docs; `--site FOLDER` also builds the site there with
`mkdocs build --strict` and counts its figures. Only files that changed are written again.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 no chapter found.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import citations
from scripts import (
    claims,
    claimsjson,
    drawncache,
    figurehtml,
    fonts,
    generated,
    holds,
    labs,
    listinghead,
    listings,
    make_kit,
    navigation,
    pageframe,
    partpages,
    setaside,
    sitefinish,
    sourcetables,
    tables,
)
from scripts.chapters import Chapter, ChapterError, Fence, fields
from scripts.figuredata import open_book
from scripts.report import Report
from scripts.tree import ROOT, Tree, toml

DOCS = Path("build/docs")
_NUMBER_LINK = re.compile(r"\]\((?P<href>[\w./-]*#fig-[a-z0-9-]+:\w+)\)")
_FIGURE_TAG = re.compile(rb'<figure class="?fig"?[ >]')


class RenderError(ValueError):
    """A page that cannot be rendered; the text names file and line."""


@dataclass
class Output:
    """Files to be, by path below the docs folder, and the parts of pages that were set aside."""

    files: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    pages: claims.Pages | None = None

    def write(self, folder: Path) -> int:
        """Make `folder` hold exactly these files; returns how many were written."""
        written = 0
        for name, data in self.files.items():
            path = folder / name
            if path.is_file() and path.read_bytes() == data:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".part")
            partial.write_bytes(data)
            partial.replace(path)
            written += 1
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file() and path.relative_to(folder).as_posix() not in self.files:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        return written


def page_name(path: str) -> str:
    """Path of a chapter below the docs folder."""
    return path.removeprefix("manuals/")


def link_numbers(line: str, pages: claims.Pages, path: str) -> str:
    """A source line whose number links carry their class, and value, tier, runs and setup."""

    def mark(match: re.Match[str]) -> str:
        target = claims.FIGURE_LINK.fullmatch(match["href"])
        figure = pages.figures.get(target["id"]) if target else None
        if figure is None or target["name"] not in figure.values:
            return match[0]
        shown = figurehtml.origin(figure, target["name"])
        shown["aria-description"] = figurehtml.description(shown)
        css = figurehtml.tier_class(figure, target["name"])
        attributes = " ".join(f'{key}="{text}"' for key, text in shown.items())
        return f"{match[0]}{{ .num .{css} {attributes} }}"

    return _NUMBER_LINK.sub(mark, line)


def _listing(tree: Tree, chapter: Chapter, fence: Fence) -> str:
    listing = listings.read(chapter.path, fence)
    lines = [text for _, text in listing.lines]
    found = listinghead.source(tree, listing.file)
    title = listinghead.head(listing.title, listing.file, found, lines)
    body = "\n".join(lines)
    return f'````text title="{title.replace(chr(34), chr(39))}"\n{body}\n````'


def _table(tree: Tree, chapter: Chapter, fence: Fence) -> str:
    head = fields(chapter.path, fence)
    table_id = head.get("id", "")
    if table_id not in tables.TABLES:
        known = ", ".join(sorted(tables.TABLES))
        raise ChapterError(chapter.path, fence.line, f"no table {table_id!r}; there are {known}")
    rows = tables.TABLES[table_id](tree)
    if head.get("tier"):
        return figurehtml.plain_table(table_id, rows, head["tier"], head.get("title", ""))
    return tables.markdown(rows)


def _figure(tree: Tree, chapter: Chapter, fence: Fence, pages: claims.Pages) -> str:
    figure_id = fields(chapter.path, fence).get("id", "")
    shown = pages.blocks.get((chapter.path, figure_id))
    figure = pages.figures.get(figure_id)
    if shown is None or figure is None:
        raise ChapterError(chapter.path, fence.line, f"figure {figure_id!r} was not built")
    up = "../" * page_name(chapter.path).count("/")
    try:
        source = source_of(tree, figure, chapter.path)
        return figurehtml.block(shown, figure, f"{up}data/{figure_id}.csv", source)
    except KeyError as error:
        raise ChapterError(chapter.path, fence.line, f"no value {error} in {figure_id}") from None


def source_of(tree: Tree, figure: Any, page: str) -> str:
    """Where a figure's reported values come from, as HTML: a source of sources.toml with a link to
    its row, or what the lab.toml of their lab says.
    """
    labs = sorted({a.run.partition("/")[0] for a in figure.accesses if a.tier == "reported"})
    found = []
    for lab in labs:
        if lab.startswith(citations.PREFIX):
            source = citations.source(lab.removeprefix(citations.PREFIX))
            listed = sourcetables.page_of(source)
            href = navigation.relative(page, listed).replace(".md", ".html")
            found.append(f'<a href="{href}#{source.id}">{html.escape(source.title)}</a>')
            continue
        path = f"capture/gpu/out-{lab}/lab.toml"
        record = toml(tree.text(path)).get("lab", {}) if tree.exists(path) else {}
        found.append(html.escape(str(record.get("source", lab))))
    return "; ".join(found)


def page(tree: Tree, chapter: Chapter, source: str, pages: claims.Pages) -> str:
    """The Markdown of one page with its fences replaced. ChapterError names what cannot be."""
    lines = source.replace("\r\n", "\n").split("\n")
    out: list[str] = []
    printed = iter(labs.stored_outputs(tree, chapter) if labs.is_lab(chapter.path) else [])
    at = 0
    for fence in chapter.fences:
        start = fence.line - 1
        end = start + 2 + fence.content.count("\n")
        out += [link_numbers(text, pages, chapter.path) for text in lines[at:start]]
        if fence.language == "figure":
            out += ["", _figure(tree, chapter, fence, pages), ""]
        elif fence.language == "listing":
            out += [_listing(tree, chapter, fence)]
        elif fence.language == "table":
            out += ["", _table(tree, chapter, fence), ""]
        elif fence.language == "sections":
            cards = partpages.cards(tree, chapter, pages).split("\n")
            out += ["", *(link_numbers(text, pages, chapter.path) for text in cards), ""]
        else:
            out += lines[start:end]
            out += labs.shown(next(printed)) if labs.is_cell(chapter.path, fence) else []
        at = end
    out += [link_numbers(text, pages, chapter.path) for text in lines[at:]]
    held = holds.of(pages, chapter.path)
    text = "\n".join(out)
    if labs.is_lab(chapter.path):
        text = labs.with_download(text, chapter.path)
    text = pageframe.with_head(text, pageframe.head(chapter, held))
    return text + pageframe.foot(chapter.path, held)


def docs(tree: Tree, book: Any, report: Report) -> Output:
    """Every file of the docs folder. What cannot be rendered becomes a problem."""
    from figures import style

    output = Output()
    pages = claims.load(tree, report)
    claims.build_figures(pages, book, report)
    output.pages = pages
    for path, chapter in pages.chapters.items():
        try:
            text = page(tree, chapter, tree.text(path), pages)
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
            continue
        text, parts = setaside.taken(text)
        output.parts.update(parts)
        output.files[page_name(path)] = text.encode()
        output.figures[page_name(path)] = len(chapter.of("figure"))
    for path in labs.notebooks(tree):
        output.files[page_name(path)] = tree.read(path)
    for figure_id, figure in pages.figures.items():
        output.files[f"data/{figure_id}.csv"] = figure.csv().encode()
    output.files["figure-index.md"] = generated.figure_index(pages).encode()
    output.files["claim-ledger.md"] = generated.claim_ledger(pages).encode()
    output.files["claims-json.md"] = generated.claims_json().encode()
    output.files["claims.json"] = claimsjson.document(pages).encode()
    output.files["assets/figures.css"] = style.css().encode()
    output.files["assets/fonts.css"] = fonts.css(tree).encode()
    assets = tree.root / "manuals" / "assets"
    for path in sorted(assets.rglob("*")) if assets.is_dir() else []:
        if path.is_file() and path.suffix != ".woff2":  # fonts.css holds them
            name = path.relative_to(tree.root / "manuals").as_posix()
            output.files[name] = path.read_bytes()
    if tree.exists("capture/gpu/kit.py"):
        output.files.update(downloads(tree))
    report.count("pages", sum(name.endswith(".md") for name in output.files))
    report.count("figure blocks", sum(output.figures.values()))
    return output


def downloads(tree: Tree) -> dict[str, bytes]:
    """The one-file kit, and its checksum in the form that `sha256sum -c` reads."""
    kit = make_kit.pack(make_kit.members(tree.root))
    name = Path(make_kit.OUT).name
    line = f"{hashlib.sha256(kit).hexdigest()}  {name}\n"
    return {f"downloads/{name}": kit, f"downloads/{name}.sha256": line.encode()}


def start_mkdocs(root: Path, site: Path) -> subprocess.Popen[str]:
    """Start `mkdocs build --strict` from build/docs into `site`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        [*command, "--site-dir", str(site)], cwd=root, env=env, text=True, **pipes
    )


def finish_mkdocs(
    process: subprocess.Popen[str], site: Path, parts: Mapping[str, str], report: Report
) -> None:
    """Wait for MkDocs and finish its pages; a failure is a problem."""
    said = process.communicate()[0]
    if process.returncode:
        for line in said.strip().splitlines():
            report.error("mkdocs.yml", 0, line)
        return
    sitefinish.finish(site, parts)


def verify(pages: claims.Pages | None, tree: Tree, report: Report) -> None:
    """Compare every number that the pages state with its figure: each page says that it was."""
    found = Report()
    if pages is not None:
        claims.check_pages(pages, tree, found)
    report.problems += found.problems


def count_figures(site: Path, expected: Mapping[str, int], report: Report) -> None:
    """Every page of the built site has the figures that its chapter names."""
    for name, number in expected.items():
        built = site / (name.removesuffix(".md") + ".html")
        found = len(_FIGURE_TAG.findall(built.read_bytes())) if built.is_file() else 0
        if not built.is_file():
            report.error(posixpath.join("manuals", name), 0, "the page is not in the built site")
        elif found != number:
            text = f"{number} figures in the chapter, {found} in the built page"
            report.error(posixpath.join("manuals", name), 0, text)
        report.count("figures in the site", found)


def build(root: Path = ROOT, site: Path | None = None) -> Report:
    """Render build/docs and, when `site` is given, build and count the site."""
    from figures import registry

    report = Report()
    tree = Tree(root)
    with open_book(root, {}) as book, drawncache.kept(root, registry.DRAWN):
        output = docs(tree, book, report)
        if report.problems:
            return report
        report.count("files written", output.write(root / DOCS))
        process = start_mkdocs(root, site) if site else None
        verify(output.pages, tree, report)
    if process and site:
        finish_mkdocs(process, site, output.parts, report)
        if report.ok:
            count_figures(site, output.figures, report)
    return report


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.render",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--site", type=Path, help="build the site into this folder")
    options = parser.parse_args(argv)
    site = options.site.resolve() if options.site else None
    staged = site.with_name(site.name + ".part") if site else None
    report = build(ROOT, staged)
    if report.problems:
        print("\n".join(map(str, report.problems)), file=sys.stderr)
        if staged:
            shutil.rmtree(staged, ignore_errors=True)
        return 1
    if site and staged:
        shutil.rmtree(site, ignore_errors=True)
        staged.rename(site)
    counts = ", ".join(f"{number} {what}" for what, number in report.counts.items())
    print(f"{counts}" + (f"; open {options.site}/index.html" if site else ""))
    return 0 if report.counts.get("pages") else 3


if __name__ == "__main__":
    raise SystemExit(main())
