"""A reward of your own for Miles: the last number of an answer against the label, as a value.

Copy this file into the lab folder and change `last_number` or `score` for your task:

    cp capture/gpu/my_rewards.py ~/miles-lab/
    -e PYTHONPATH=/root/lab -e MILES_EXTRA_ARGS="--custom-rm-path my_rewards.custom_rm"

Miles awaits `custom_rm(args, sample)`, and hands it a list of samples with `--group-rm` or when a
generate function makes several samples. It reads `response` and `label` of a sample and nothing
else, so a stand-in with these two fields is enough to test it.

`python3 my_rewards.py` scores ten answers that were scored by hand. Change them with the function.
Standard library only, one file.

Exit codes: 0 all ten scores are right, 1 one differs, 2 bad usage.
"""

import argparse
import asyncio
import math
import re
import sys
from types import SimpleNamespace
from typing import Any

_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-+])?"  # the minus of "10-3" is no sign
    r"(?P<digits>\d+(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<![\d.])\.\d+)"
    r"(?P<power>[eE][-+]?\d+)?"
)
_MINUS = str.maketrans("\u2212\u2010\u2011", "---")  # minus signs and hyphens that models write


def last_number(text: Any) -> float | None:
    """The value of the last number in `text`; None when there is none, or when it is not finite.

    Takes 1,234 and .5 and -2 and 1e3; the words nan and inf are no numbers.
    """
    found = list(_NUMBER.finditer(str("" if text is None else text).translate(_MINUS)))
    if not found:
        return None
    sign, digits, power = found[-1].group("sign", "digits", "power")
    value = float((sign or "") + digits.replace(",", "") + (power or ""))
    return value if math.isfinite(value) else None


def score(sample: Any) -> float:
    """1.0 when the last number of the answer equals the last number of the label, else 0.0."""
    answer, label = last_number(sample.response), last_number(sample.label)
    return 1.0 if answer is not None and answer == label else 0.0


async def custom_rm(args: Any, sample: Any, **kwargs: Any) -> float | list[float]:
    """The function that `--custom-rm-path` names: one reward, or one for each sample of a list."""
    if isinstance(sample, list):
        return [score(one) for one in sample]
    return score(sample)


# what it is, answer, label, reward by hand
TEN = (
    ("correct", "So the answer is 42.", "42", 1.0),
    ("wrong", "So the answer is 41.", "42", 0.0),
    ("ends like the label", "So the answer is 142.", "42", 0.0),
    ("empty", "", "42", 0.0),
    ("cut at the limit", "Ann has 30 apples and buys 12 more, which makes 4", "42", 0.0),
    ("thousands and decimals", "The total is $1,234.00", "1234", 1.0),
    ("negative", "The change is -7 degrees", "7", 0.0),
    ("scientific notation", "That is 1.5e3 meters", "1500", 1.0),
    ("no number", "The answer is nan, or inf", "42", 0.0),
    ("label zero", "Nothing is left, so 0", 0, 1.0),
)


def check(answers: Any = TEN) -> int:
    """Print one line an answer and a verdict; the exit code."""
    differ = 0
    for what, response, label, by_hand in answers:
        sample = SimpleNamespace(response=response, label=label)
        try:
            got = asyncio.run(custom_rm(None, sample))
            said = f"{got:g}" if got == by_hand else f"{got!r}, by hand {by_hand:g}: DIFFERS"
        except Exception as error:  # a reward that raises loses its whole group
            got, said = None, f"raised {type(error).__name__}: {error}: DIFFERS"
        differ += got != by_hand
        print(f"{what:24}{said}")
    print(f"{len(answers)} answers, {len(answers) - differ} as scored by hand, {differ} differ")
    return 1 if differ else 0


def build_parser() -> argparse.ArgumentParser:
    """The options: none but --help."""
    return argparse.ArgumentParser(
        prog="my_rewards.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    build_parser().parse_args(argv)
    return check()


if __name__ == "__main__":
    sys.exit(main())
