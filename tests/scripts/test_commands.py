"""Shell blocks: what is checked against the kit, the launcher, the Makefile and the tree."""

import argparse
from types import SimpleNamespace

import pytest

from scripts import commands, milesflags, shellwords
from scripts import programs as known
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


def read_settings(env):
    """Stands in for the launcher's: MILES_NUM_ROLLOUT is a whole number."""
    for name, value in env.items():
        if name == "MILES_NUM_ROLLOUT" and not value.isdigit():
            raise KeyError(f"{name}={value!r}: wants a whole number")


@pytest.fixture
def programs(repo):
    tree = repo(other=None)
    (tree.root / "capture" / "gpu").mkdir(parents=True)
    for name in ("kit.py", "miles_grpo.py"):
        (tree.root / "capture" / "gpu" / name).write_text("")
    return known.Programs(
        tree,
        settings=frozenset({"MILES_RUN", "MILES_EXTRA_ARGS", "MILES_NUM_ROLLOUT"}),
        launcher=SimpleNamespace(
            __name__="miles_grpo",
            build_parser=launcher_parser,
            read_settings=read_settings,
            LauncherError=KeyError,
        ),
        kit=SimpleNamespace(__name__="kit", build_parser=parser),
        targets=frozenset({"site", "check"}),
        flags=milesflags.Flags(
            "2026-08-21",
            {
                "--rollout-top-p": {"type": "float"},
                "--seed": {"type": "int"},
                "--offload-rollout": {"type": "bool (--x / --no-x)"},
                "--keep-fp32-master": {"type": "bool", "default": True},
                "--use-tis": {"type": "bool", "default": False},
                "--advantage-estimator": {"type": "str", "choices": ["grpo", "gspo"]},
            },
        ),
    )


def problems(programs, text, language="bash"):
    report = Report()
    commands.check_fence(programs, "p.md", Fence(10, language, text + "\n"), report)
    return [str(problem) for problem in report.problems]


GOOD = [
    "MILES_EXTRA_ARGS='--no-offload-rollout --no-keep-fp32-master' true",
    "for x in a b; do python3 capture/gpu/kit.py summarize $x; done",
    "if true; then make site; fi",
    "{ make site; }",
    "timeout -k 5 60 make site",
    "ls | xargs -n 1 python3 capture/gpu/kit.py summarize a",
    "bash -c 'make site && make check'",
    "./capture/gpu/kit.py summarize run.log",
    "echo $(make site) `make check`",
    "grep '`make nope`' a.log",
    "make -C . check",
    "docker container run --rm radixark/miles true",
    "docker stop -t 10 miles-plain",
    "docker image inspect --format x radixark/miles:latest",
    "docker exec -it miles-plain env MILES_RUN=a bash",
    "MILES_NUM_ROLLOUT=12 true",
    "MILES_NUM_ROLLOUT=$N true",
    "MILES_EXTRA_ARGS='--seed 7 --advantage-estimator grpo' true",
    "ls capture/gpu/out-LAB/RUN capture/gpu/out-mine/plain",
    "python3 capture/gpu/kit.py summarize run.log",
    "python3 miles-kit.pyz summarize run.log --utc-offset +02:00",
    "xzcat a.xz | python3 capture/gpu/kit.py summarize - > out.txt 2>&1",
    "MILES_RUN=plain python3 capture/gpu/miles_grpo.py --dry-run",
    "export MILES_RUN=plain",
    "make site && make check  # both",
    'docker run --rm --gpus all -e MILES_RUN=a -e MILES_EXTRA_ARGS="--seed 7" \\\n'
    "  -v $HOME/lab:/root/lab radixark/miles:latest python3 /root/lab/miles_grpo.py > a.log 2>&1",
    '-e MILES_EXTRA_ARGS="--rollout-top-p 0.95"',
    "ls capture/gpu/*.py",
    "# since 2026-10-15: --new-flag\nMILES_EXTRA_ARGS='--new-flag 1' python3 x/miles_grpo.py",
    "cat <<'EOF' > a\nmake nonsense\nEOF\nmake site",
]
BAD = [
    ("make site\n~~~text\nstep took 99 s", 12, "a fence inside a block"),
    ("for x in a b; do python3 capture/gpu/kit.py nope; done", 11, "invalid choice"),
    ("if true; then make nope; fi", 11, "no target 'nope'"),
    ("while true; do make nope; done", 11, "no target 'nope'"),
    ("{ make nope; }", 11, "no target 'nope'"),
    ("! make nope", 11, "no target 'nope'"),
    ("echo `make nope`", 11, "no target 'nope'"),
    ('echo "$(make nope)"', 11, "no target 'nope'"),
    ("bash -c 'make nope'", 11, "no target 'nope'"),
    ("timeout -k 1 5 make nope", 11, "no target 'nope'"),
    ("ls | xargs -n 1 make nope", 11, "no target 'nope'"),
    ("sudo -u me nice -n 5 make nope", 11, "no target 'nope'"),
    ("./capture/gpu/kit.py nope", 11, "invalid choice"),
    ("python3 -m capture.gpu.kit summarize a", 11, "is no package"),
    ("docker runn", 11, "no command 'runn'"),
    ("docker container run --nope radixark/miles", 11, "no option --nope"),
    ("docker stop --nope a", 11, "no option --nope"),
    ("docker pull radixark/mils:latest", 11, "no image"),
    ("docker run radixark/miles:lastest true", 11, "no tag"),
    ("docker run radixark/miles env MILES_FOO=1 true", 11, "MILES_FOO is no setting"),
    ("docker run radixark/miles bash -c 'make nope'", 11, "no target 'nope'"),
    ("docker run radixark/miles python3 /root/lab/miles_grp.py", 11, "no such path"),
    ("MILES_NUM_ROLLOUT=abc true", 11, "wants a whole number"),
    ("docker run -e MILES_NUM_ROLLOUT=abc radixark/miles true", 11, "wants a whole number"),
    ("MILES_EXTRA_ARGS='--seed abc' true", 11, "--seed takes a number"),
    ("MILES_EXTRA_ARGS='--advantage-estimator nope' true", 11, "takes grpo, gspo"),
    ("cat capture/gpu/NOPE.py", 11, "no such path"),
    ("cat docs/nope.md", 11, "no such path"),
    ("# since 2026-01-15: --new\nMILES_EXTRA_ARGS='--new 1' true", 10, "not after the flag list"),
    ("python3 capture/gpu/kit.py sumarize run.log", 11, "invalid choice"),
    ("make site\npython3 capture/gpu/kit.py summarize run.log --utc 2", 12, "--utc"),
    ("python3 miles-kit.pyz summarize", 11, "required: log"),
    ("python3 capture/gpu/miles_grpo.py --dryrun", 11, "--dryrun"),
    ("MILES_RUNS=plain python3 capture/gpu/miles_grpo.py", 11, "MILES_RUNS is no setting"),
    ("docker run -e MILES_RUNS=a radixark/miles true", 11, "MILES_RUNS is no setting"),
    ("docker run --rmm radixark/miles", 11, "no option --rmm"),
    ("docker run --rm --name x", 11, "names no image"),
    ("docker run radixark/miles:latest python3 /root/lab/miles_grpo.py --fast", 11, "--fast"),
    ('-e MILES_EXTRA_ARGS="--rollout-topp 0.95"', 11, "--rollout-topp is no Miles flag"),
    ("MILES_EXTRA_ARGS='--no-use-tis' true", 11, "--no-use-tis is no Miles flag"),
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


@pytest.mark.parametrize("language", ["zsh", "Bash", "SHELL"])
def test_every_shell_is_checked_however_it_is_written(repo, language):
    tree = repo(f"```{language}\nmake nope\n```\n", other=None)
    assert ["nope" in p.text for p in commands.check(tree.root).problems] == [True]


def test_a_block_without_a_language_is_an_error(repo):
    tree = repo("```\nmake nope\n```\n", other=None)
    assert ["names its language" in p.text for p in commands.check(tree.root).problems] == [True]


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("MILES_FOO", "knows MILES_FOO"),
        ("MILES_NUM_ROLLOUT=abc", "wants"),
        ("capture/gpu/nope.py", "no such path"),
        ("python3 capture/gpu/kit.py diagnose a.log --nope 3", "no option --nope"),
        ("python3 capture/gpu/nope.py", "no such path"),
        ("make nope", "no target"),
    ],
)
def test_inline_code_names_only_what_is_there(code, wrong):
    from scripts.tree import ROOT, Tree

    found = known.Programs.of(Tree(ROOT))
    assert any(wrong in problem for problem in commands.inline_problems(found, code, Report()))
    for right in (
        "MILES_VERDICT",
        "MILES_NUM_ROLLOUT=12",
        "capture/gpu/kit.py",
        "python3 capture/gpu/kit.py diagnose a.log --now +1800",
        "python3 capture/gpu/kit.py doctor",
        "make check",
    ):
        assert commands.inline_problems(found, right, Report()) == []


def test_a_module_of_this_repository_is_held_to_its_own_parser():
    from scripts.tree import ROOT, Tree

    found = known.Programs.of(Tree(ROOT))
    for words, problem in (
        ("scripts.claims --nope", "--nope"),
        ("scripts.check --only claims", None),
        ("scripts.check --onyl claims", "--onyl"),
        ("scripts.tree", "is no program"),
    ):
        said = commands._python(found, ["-m", *words.split()])
        assert (said == []) if problem is None else (problem in said[0])


def test_the_real_launcher_and_kit_can_be_asked():
    from scripts.tree import ROOT, Tree

    found = known.Programs.of(Tree(ROOT))
    assert "MILES_EXTRA_ARGS" in found.settings
    assert "--rollout-batch-size" in found.flags.entries
    assert "check-claims" in found.targets
    assert known.parser_problem(found.kit, ["summarize", "x.log"]) is None
    assert known.parser_problem(found.launcher, ["--dry-run"]) is None
