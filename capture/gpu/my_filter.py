"""A group filter of your own for Miles: drops groups with one reward, and knows when to stop.

Copy this file into the lab folder and change `keep` for your task:

    cp capture/gpu/my_filter.py ~/miles-lab/
    -e PYTHONPATH=/root/lab -e MILES_EXTRA_ARGS="--dynamic-sampling-filter-path my_filter.keep"

Miles calls `keep(args, samples)` for each finished group and takes a plain True or False. It has no
limit of its own: a filter that drops every group makes a rollout that never ends. This one keeps a
group after `MOST_IN_A_ROW` drops.

`python3 my_filter.py` runs it over groups that were judged by hand.
Standard library only, one file.

Exit codes: 0 all groups are judged as by hand, 1 one differs, 2 bad usage.
"""

import argparse
import itertools
import sys
from types import SimpleNamespace
from typing import Any

MOST_IN_A_ROW = 64  # two batches of 32 prompts
SMALLEST_SPREAD = 1e-8

_dropped = 0  # groups dropped since the last one that was kept


def reward_of(args: Any, sample: Any) -> float:
    """The reward of a sample as a number; of a dict the entry that `--reward-key` names."""
    reward = sample.reward
    return float(reward[args.reward_key] if isinstance(reward, dict) else reward)


def keep(args: Any, samples: list[Any], **kwargs: Any) -> bool:
    """The function that the flag names: True for a group that the trainer shall get."""
    global _dropped
    rewards = [reward_of(args, sample) for sample in samples]
    if max(rewards) - min(rewards) > SMALLEST_SPREAD or _dropped >= MOST_IN_A_ROW:
        _dropped = 0
        return True
    _dropped += 1
    return False


# what it is, rewards of the group, kept by hand
GROUPS = (
    ("mixed", (1, 0, 0, 1), True),
    ("all right", (1, 1, 1, 1), False),
    ("all wrong", (0, 0, 0, 0), False),
    ("equal fractions", (0.3, 0.3, 0.3, 0.3), False),
    ("one answer", (1,), False),
    ("a dict each", ({"score": 1}, {"score": -1}), True),
)


def check(groups: Any = GROUPS) -> int:
    """Print one line a group, then how many drops in a row it takes; the exit code."""
    args = SimpleNamespace(reward_key="score")
    differ = 0
    for what, rewards, by_hand in groups:
        kept = keep(args, [SimpleNamespace(reward=reward) for reward in rewards])
        differ += kept != by_hand
        print(f"{what:18}{'keep' if kept else 'drop'}{'' if kept == by_hand else ': DIFFERS'}")
    keep(args, [SimpleNamespace(reward=reward) for reward in (0, 1)])  # starts the count anew
    same = [SimpleNamespace(reward=1)] * 2
    most = sum(1 for _ in itertools.takewhile(lambda _: not keep(args, same), range(10**6)))
    print(f"{len(groups)} groups, {differ} differ; after {most} drops in a row it keeps a group")
    return 1 if differ else 0


def build_parser() -> argparse.ArgumentParser:
    """The options: none but --help."""
    return argparse.ArgumentParser(
        prog="my_filter.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    build_parser().parse_args(argv)
    return check()


if __name__ == "__main__":
    sys.exit(main())
