"""What a person sees of a run: where it is on a terminal, and nothing in a pipe."""

import io
from types import SimpleNamespace

from capture.core import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def result(evaluations=(), rewards=(), completed=True):
    return SimpleNamespace(
        completed=completed,
        collections=12,
        optimizer_step=24,
        rewards=list(rewards),
        evaluations=[SimpleNamespace(mean=mean) for mean in evaluations],
    )


def test_a_terminal_shows_the_newest_rewards_on_one_line():
    out = Terminal()
    show = progress.on_terminal(2, out)
    show(1, result([0.25], [0.1, 0.5]))
    assert out.getvalue() == "\r\x1b[Kcollection 1 of 2, reward 0.500, held out 0.250"
    show(2, result())
    assert out.getvalue().endswith("\r\x1b[Kcollection 2 of 2\n")


def test_a_pipe_stays_quiet():
    out = io.StringIO()
    progress.on_terminal(2, out)(1, result([0.25], [0.5]))
    assert out.getvalue() == ""


def test_the_end_tells_both_ends_of_the_held_out_reward():
    text = progress.ending("x", result([0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 0.5, 0.6, 0.7, 0.8, 0.9]))
    assert text == (
        "x: complete: 12 collections, 24 optimizer steps; held-out reward 0.200 in the first 5"
        " evaluations, 0.700 in the last 5"
    )


def test_few_evaluations_and_a_deliberate_stop_tell_no_reward():
    text = progress.ending("x", result([0.5] * 9, completed=False))
    assert text == "x: stopped on purpose, can be resumed: 12 collections, 24 optimizer steps"
