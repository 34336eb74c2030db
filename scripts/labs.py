"""Checks the labs: each is a page and a notebook of the same cells, stored with its outputs.

A lab is `labs/NAME.md`, which an author writes, and `labs/NAME.ipynb` beside it, which `make labs`
executes and stores. Here nothing is executed: a cell that never ran, a cell whose output is
missing, outputs that no page can show, and cells in which the two files differ are errors.
`make check-labs` runs the cells again and compares what they print.

`python3 -m scripts.labs` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import ast
import io
import json
import posixpath
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.chapters import Chapter, ChapterError, Fence, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

LANGUAGE = "python"
MAX_LINES = 24  # of one output: a reader takes in a table, not a log
MAX_COLUMNS = 88
_LONG_NUMBER = re.compile(r"(?<![\w.])\d*\.\d{11,}")
_ANSI = re.compile(r"\x1b\[")


class LabError(ValueError):
    """A notebook that cannot be read; the text names the file."""


@dataclass(frozen=True)
class Cell:
    """One cell. kind: 'code', 'markdown' or 'raw'; `ran` is its execution count or None."""

    kind: str
    source: str
    ran: int | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()

    @property
    def printed(self) -> str:
        """What the cell printed, and the value of its last line, as plain text."""
        return "".join(_text(output) for output in self.outputs)


def is_lab(path: str) -> bool:
    """True for the page of a lab; the page that lists them is none."""
    folder, name = posixpath.split(path)
    in_labs = path.startswith("manuals/") and posixpath.basename(folder) == "labs"
    return in_labs and name != "index.md"


def notebook_of(path: str) -> str:
    """Path of the notebook beside a lab's page."""
    return path.removesuffix(".md") + ".ipynb"


def pages(tree: Tree) -> list[str]:
    """The pages of all labs."""
    return [path for path in tree.chapters() if is_lab(path)]


def notebooks(tree: Tree) -> list[str]:
    """The notebooks below manuals/ that are on the disk or in the overlay."""
    found = {p.relative_to(tree.root).as_posix() for p in (tree.root / "manuals").rglob("*.ipynb")}
    found |= {path for path in tree.overlay if path.endswith(".ipynb")}
    return sorted(path for path in found if ".ipynb_checkpoints" not in path)


def read(path: str, data: bytes) -> list[Cell]:
    """The cells of a notebook. LabError when it is none of format 4."""
    try:
        document = json.loads(data)
        if document["nbformat"] != 4:
            raise LabError(f"{path}: format {document['nbformat']!r} is not 4")
        return [_cell(cell) for cell in document["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, LabError):
            raise
        raise LabError(f"{path}: no notebook: {error!r}") from None


def _cell(cell: Mapping[str, Any]) -> Cell:
    code = cell["cell_type"] == "code"
    outputs = tuple(cell["outputs"]) if code else ()
    ran = cell["execution_count"] if code else None
    return Cell(cell["cell_type"], _joined(cell["source"]), ran, outputs)


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _text(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _joined(output["text"])
    text = _joined(output.get("data", {}).get("text/plain", ""))
    return text and text + "\n"


def prints(source: str) -> bool:
    """True when a cell shows something: it calls `print`, or its last line has a value.

    Only what runs with the cell counts, not the body of a function that it defines.
    """
    body = ast.parse(source).body
    if not body:
        return False
    last = body[-1]
    ends_with_value = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
    if ends_with_value and not isinstance(last.value, ast.Call | ast.Constant):
        return True
    return any(_calls_print(node) for node in body)


def _calls_print(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        return True
    return any(_calls_print(child) for child in ast.iter_child_nodes(node))


def cell_problems(cell: Cell, place: int) -> list[str]:
    """What is wrong with a stored code cell, the `place`-th of its notebook from 1."""
    try:
        shows = prints(cell.source)
    except SyntaxError as error:
        return [f"is no Python: {error.msg}"]
    if cell.ran is None:
        return ["never ran: run `make labs`"]
    found = []
    if cell.ran != place:
        found.append(f"ran as number {cell.ran}: the notebook did not run from top to bottom")
    if shows and not cell.printed.strip():
        found.append("prints, and no output is stored: run `make labs`")
    for output in cell.outputs:
        found += _output_problems(output)
    return found


def _output_problems(output: Mapping[str, Any]) -> list[str]:
    kind = output["output_type"]
    if kind == "error":
        return [f"ended with {output.get('ename')}: {output.get('evalue')}"]
    if kind == "stream" and output["name"] != "stdout":
        return [f"wrote to {output['name']}"]
    if kind != "stream" and set(output.get("data", {})) != {"text/plain"}:
        return ["has an output that is no text"]
    text = _text(output)
    lines = text.splitlines()
    found = []
    if len(lines) > MAX_LINES:
        found.append(f"prints {len(lines)} lines; the limit is {MAX_LINES}")
    if longest := [line for line in lines if len(line) > MAX_COLUMNS]:
        found.append(f"prints a line of {len(longest[0])} signs; the limit is {MAX_COLUMNS}")
    if match := _LONG_NUMBER.search(text):
        found.append(f"prints {match[0]}: round it, or the next version prints another digit")
    if _ANSI.search(text):
        found.append("prints colour codes")
    return found


def code_fences(chapter: Chapter) -> list[Fence]:
    """The blocks of a page that are code cells."""
    return [fence for fence in chapter.fences if fence.language == LANGUAGE]


def _plain(text: str) -> str:
    """Text without the empty lines, which jupytext sets between cells."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def first_difference(chapter: Chapter, source: str, cells: list[Cell]) -> tuple[int, str] | None:
    """(line of the page, what differs) where page and notebook are not the same, or None.

    The page is the notebook's text cells with the code cells as fences between them.
    """
    code = [cell for cell in cells if cell.kind == "code"]
    fences = code_fences(chapter)
    for number, (fence, cell) in enumerate(zip(fences, code, strict=False), start=1):
        if _plain(fence.content) != _plain(cell.source):
            return fence.line, f"code cell {number} differs from the notebook"
    if len(fences) != len(code):
        return 0, f"{len(fences)} code cells on the page, {len(code)} in the notebook"
    lines = source.replace("\r\n", "\n").split("\n")
    start = 0
    for number, between in enumerate(_between(cells)):
        end = fences[number].line - 1 if number < len(fences) else len(lines)
        page_text = _plain(_without_machinery("\n".join(lines[start:end])))
        if page_text != _plain(_without_machinery(between)):
            return start + 1, "the text from here on differs from the notebook"
        start = fences[number].end if number < len(fences) else end
    return None


def _between(cells: list[Cell]) -> list[str]:
    """The text before, between and after the code cells."""
    parts: list[list[str]] = [[]]
    for cell in cells:
        if cell.kind == "code":
            parts.append([])
        else:
            parts[-1].append(cell.source)
    return ["\n".join(part) for part in parts]


def _without_machinery(text: str) -> str:
    """Text without the `jupyter:` part of its front matter, which a notebook keeps elsewhere."""
    return re.sub(r"^jupyter:\n(?:[ \t]+.*\n)+", "", text, count=1, flags=re.MULTILINE)


def stored_outputs(tree: Tree, chapter: Chapter) -> list[str]:
    """What each code cell of a lab's page printed. ChapterError when that is not stored."""
    path = notebook_of(chapter.path)
    if not tree.exists(path):
        raise ChapterError(chapter.path, 0, "no notebook beside this page: run `make labs`")
    try:
        cells = read(path, tree.read(path))
    except LabError as error:
        raise ChapterError(chapter.path, 0, str(error)) from None
    different = first_difference(chapter, tree.text(chapter.path), cells)
    if different:
        raise ChapterError(chapter.path, different[0], f"{different[1]}: run `make labs`")
    return [cell.printed.rstrip("\n") for cell in cells if cell.kind == "code"]


def said(source: str) -> list[tuple[int, str]]:
    """(line from 1, text) of what a cell says to a reader: its comments and its strings.

    Numbers of the code itself are no statements, and what a cell computes and prints is compared
    by `make check-labs`. A number typed into a string would be printed as if it were computed.
    """
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return list(enumerate(source.splitlines(), start=1))
    found = [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
    formats = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec
        for part in ast.walk(node.format_spec)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in formats else None
        if isinstance(text, str):
            found += list(enumerate(text.splitlines(), start=node.lineno))
    return sorted(found)


def is_cell(path: str, fence: Fence) -> bool:
    """True when a fence of this page is a code cell of a lab."""
    return is_lab(path) and fence.language == LANGUAGE


def shown(printed: str) -> list[str]:
    """Lines of the site's page for what a cell printed; none when it printed nothing."""
    if not printed.strip():
        return []
    return ["", "````{ .text .lab-output }", *printed.split("\n"), "````"]


def with_download(text: str, path: str) -> str:
    """A rendered page with a link to its notebook under its first heading."""
    name = posixpath.basename(notebook_of(path))
    link = f"[Download this notebook]({name}){{ .lab-download download={name} }}"
    line = f"{link} and run it inside a clone of the repository. It needs no GPU."
    return re.sub(r"^# .+$", lambda head: f"{head[0]}\n\n{line}", text, count=1, flags=re.M)


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check every lab at `root` as it is stored."""
    tree = Tree(root, overlay or {})
    report = Report()
    found = pages(tree)
    for path in sorted(set(notebooks(tree)) - {notebook_of(page) for page in found}):
        report.error(path, 0, "a notebook without a page in a folder `labs`")
    for path in found:
        report.count("labs")
        try:
            chapter = parse(path, tree.text(path))
            stored_outputs(tree, chapter)
            cells = read(notebook_of(path), tree.read(notebook_of(path)))
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
            continue
        code = [cell for cell in cells if cell.kind == "code"]
        if not code:
            report.error(path, 0, "a lab without a code cell")
        for place, (fence, cell) in enumerate(zip(code_fences(chapter), code, strict=True), 1):
            report.count("code cells")
            report.count("output lines", len(cell.printed.splitlines()))
            for text in cell_problems(cell, place):
                report.error(path, fence.line, f"code cell {place} {text}")
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("labs", check, __doc__))
