"""Shell blocks: what is checked against the kit, the launcher, the Makefile and the tree."""

import argparse
from types import SimpleNamespace

import pytest

from scripts import commands, shellwords
from scripts.chapters import Fence
from scripts.report import Report


def parser():
    made = argparse.ArgumentParser(prog="kit.py", allow_abbrev=False)
    verbs = made.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("summarize", allow_abbrev=False)
    verb.add_argument("log")
    verb.add_argument("--utc-offset")
    return made


def launcher_parser():
    made = argparse.ArgumentParser(prog="miles_grpo.py", allow_abbrev=False)
    made.add_argument("--dry-run", action="store_true")
    return made


@pytest.fixture
def programs(repo):
    tree = repo(other=None)
    (tree.root / "capture" / "gpu").mkdir(parents=True)
    for name in ("kit.py", "miles_grpo.py"):
        (tree.root / "capture" / "gpu" / name).write_text("")
    return commands.Programs(
        tree,
        settings=frozenset({"MILES_RUN", "MILES_EXTRA_ARGS"}),
        launcher=SimpleNamespace(__name__="miles_grpo", build_parser=launcher_parser),
        kit=SimpleNamespace(__name__="kit", build_parser=parser),
        targets=frozenset({"site", "check"}),
        flags=frozenset({"--rollout-top-p", "--seed"}),
    )


def problems(programs, text, language="bash"):
    report = Report()
    commands.check_fence(programs, "p.md", Fence(10, language, text + "\n"), report)
    return [str(problem) for problem in report.problems]


GOOD = [
    "python3 capture/gpu/kit.py summarize run.log",
    "python3 miles-kit.pyz summarize run.log --utc-offset +02:00",
    "xzcat a.xz | python3 capture/gpu/kit.py summarize - > out.txt 2>&1",
    "MILES_RUN=plain python3 capture/gpu/miles_grpo.py --dry-run",
    "export MILES_RUN=plain",
    "make site && make check  # both",
    'docker run --rm --gpus all -e MILES_RUN=a -e MILES_EXTRA_ARGS="--seed 7" \\\n'
    "  -v $HOME/lab:/root/lab image python3 /root/lab/miles_grpo.py > a.log 2>&1",
    '-e MILES_EXTRA_ARGS="--rollout-top-p 0.95"',
    "ls capture/gpu/*.py",
    "# since 2026-10-15: --new-flag\nMILES_EXTRA_ARGS='--new-flag 1' python3 x/miles_grpo.py",
    "cat <<'EOF' > a\nmake nonsense\nEOF\nmake site",
]
BAD = [
    ("python3 capture/gpu/kit.py sumarize run.log", 11, "invalid choice"),
    ("make site\npython3 capture/gpu/kit.py summarize run.log --utc 2", 12, "--utc"),
    ("python3 miles-kit.pyz summarize", 11, "required: log"),
    ("python3 capture/gpu/miles_grpo.py --dryrun", 11, "--dryrun"),
    ("MILES_RUNS=plain python3 capture/gpu/miles_grpo.py", 11, "MILES_RUNS is no setting"),
    ("docker run -e MILES_RUNS=a image true", 11, "MILES_RUNS is no setting"),
    ("docker run --rmm image", 11, "no option --rmm"),
    ("docker run --rm --name x", 11, "names no image"),
    ("docker run image python3 /root/lab/miles_grpo.py --fast", 11, "--fast"),
    ('-e MILES_EXTRA_ARGS="--rollout-topp 0.95"', 11, "--rollout-topp is no Miles flag"),
    ("MILES_EXTRA_ARGS='--new-flag 1' true", 11, "--new-flag is no Miles flag"),
    ("make sites", 11, "no target 'sites'"),
    ("cat capture/gpu/nothing.py", 11, "no such path"),
    ('echo "open', 10, "No closing quotation"),
    ("python3 -m scripts.nothing", 11, "no module scripts.nothing"),
]


@pytest.mark.parametrize("text", GOOD)
def test_a_command_that_works_passes(programs, text):
    assert problems(programs, text) == []


@pytest.mark.parametrize(("text", "line", "message"), BAD)
def test_a_command_that_cannot_work_names_its_line(programs, text, line, message):
    found = problems(programs, text)
    assert len(found) == 1, found
    assert found[0].startswith(f"p.md:{line}: ")
    assert message in found[0]


def test_in_a_console_block_only_prompt_lines_are_commands(programs):
    assert problems(programs, "$ make site\nmake: nonsense [output]", "console") == []
    assert len(problems(programs, "$ make sites\nok", "console")) == 1


def test_continued_lines_are_one_command():
    (found,) = shellwords.commands(Fence(1, "bash", "A=1 run \\\n  --x 2 \\\n  y\n"))
    assert found == shellwords.Command(2, (("A", "1"),), ("run", "--x", "2", "y"))


def test_a_command_named_in_prose_must_exist(programs):
    from scripts.chapters import parse

    text = "Use `make check`, `make chek`, `python3 capture/gpu/kit.py summarise x`.\n"
    report = Report()
    commands.check_inline(programs, parse("p.md", text), report)
    assert [("chek" in p.text, "summarise" in p.text) for p in report.problems] == [
        (True, False),
        (False, True),
    ]


def test_the_real_launcher_and_kit_can_be_asked():
    from scripts.tree import ROOT, Tree

    found = commands.Programs.of(Tree(ROOT))
    assert "MILES_EXTRA_ARGS" in found.settings
    assert "--rollout-batch-size" in found.flags
    assert "check-claims" in found.targets
    assert commands.parser_problem(found.kit, ["summarize", "x.log"]) is None
    assert commands.parser_problem(found.launcher, ["--dry-run"]) is None
