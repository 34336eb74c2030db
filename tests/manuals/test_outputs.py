"""The output that a chapter prints under a command is what the command prints.

`scripts.outputs` says which blocks are outputs, here and in the claim check.
"""

from __future__ import annotations

import re
import shutil

import pytest

from scripts import outputs
from scripts.tree import ROOT

FOUND = list(outputs.of_all_pages())


@pytest.mark.parametrize(
    "output", [pytest.param(o, id=f"{page}:{o.printed.line}") for page, o in FOUND]
)
def test_a_printed_output_is_what_its_command_prints(output):
    now = outputs.printed_by(output.command.content)
    assert outputs.trimmed(now) == outputs.trimmed(output.printed.content)


def test_the_chapters_print_outputs():
    assert len(FOUND) >= 2


def test_a_changed_digit_is_seen_and_written_back(tmp_path):
    page, output = FOUND[0]
    for name in ("manuals", "capture"):
        (tmp_path / name).mkdir()
    shutil.copytree(ROOT / "capture" / "gpu", tmp_path / "capture" / "gpu")
    copy = tmp_path / page
    copy.parent.mkdir(parents=True, exist_ok=True)
    source = (ROOT / page).read_text(encoding="utf-8")
    lines = source.split("\n")
    row = output.printed.line
    while not re.search(r"\d", lines[row]):
        row += 1
    lines[row] = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), lines[row], count=1)
    copy.write_text("\n".join(lines), encoding="utf-8")
    assert outputs.rewrite(tmp_path) == [f"{page}:{output.printed.line}"]
    assert copy.read_text(encoding="utf-8") == source


def test_a_command_that_cannot_be_run_here_is_named():
    with pytest.raises(outputs.OutputError, match="cannot be run here: docker ps"):
        outputs.printed_by("docker ps")
