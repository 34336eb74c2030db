"""The reward of section 3.5: it compares values, and no answer makes it raise."""

import ast
import asyncio
import inspect
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import minilog as m
import my_rewards
import pytest
from guardlog import HOUR, live, startup, stops
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(my_rewards.__file__)
PAGE = FILE.parents[2] / "manuals/miles-101/3-5-own-reward.md"


def reward(response, label):
    sample = SimpleNamespace(response=response, label=label)
    return asyncio.run(my_rewards.custom_rm(None, sample))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("So the answer is 42.", 42.0),
        ("142", 142.0),
        ("1,234", 1234.0),
        ("1,234,567.5", 1234567.5),
        ("3,4 and 5,6", 6.0),
        ("-7", -7.0),
        ("\u22127 degrees", -7.0),
        ("10-3", 3.0),
        ("x = +5", 5.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("2.5E-1", 0.25),
        ("$18.00", 18.0),
        ("\\boxed{42}", 42.0),
        ("_42_ or **43**", 43.0),
        ("#### 42", 42.0),
        ("4 2", 2.0),
        (42, 42.0),
        (0, 0.0),
        ("", None),
        (None, None),
        ("nan", None),
        ("inf and -inf", None),
        ("1e999", None),
        ("9" * 5000, None),
    ],
)
def test_the_last_number_is_read_as_a_value(text, value):
    assert my_rewards.last_number(text) == value


@pytest.mark.parametrize(
    ("response", "label", "expected"),
    [
        ("So the answer is 42.", "42", 1.0),
        ("So the answer is 142.", "42", 0.0),
        ("42.0", "42", 1.0),
        ("4.2e1", "42", 1.0),
        ("The total is 1,234", "1234", 1.0),
        ("-42", "42", 0.0),
        ("first 42, then 41", "42", 0.0),
        ("", "42", 0.0),
        (None, "42", 0.0),
        ("42", None, 0.0),
        ("42", "", 0.0),
        ("nan", "nan", 0.0),
        ("inf", "inf", 0.0),
        ("1e999", "1e999", 0.0),
        ("0", 0, 1.0),
        ("nothing", 0, 0.0),
        ("She has 12 + 30 = 4", "42", 0.0),
        ("72", "Natalia sold 48/2 = 24 clips.\n#### 72", 1.0),
    ],
)
def test_an_answer_is_right_when_its_last_number_is_that_of_the_label(response, label, expected):
    assert reward(response, label) == expected


@given(st.text() | st.none(), st.text() | st.integers() | st.floats() | st.none())
def test_no_answer_and_no_label_makes_it_raise(response, label):
    assert reward(response, label) in (0.0, 1.0)


@given(st.integers(-(10**12), 10**12))
def test_every_whole_number_matches_itself_in_any_dress(number):
    for text in (f"{number}", f"{number:,}", f"It is {number}.", f"{number}.0", f"{number:e}"):
        same = number if text != f"{number:e}" else float(f"{number:e}")
        assert reward(text, same) == 1.0, text


def test_a_long_answer_is_read_in_linear_time():
    text = "1,1" * 50_000 + " 12e" * 25_000
    assert math.isfinite(my_rewards.last_number(text))


def test_a_group_gets_one_reward_for_each_sample_in_order():
    group = [SimpleNamespace(response=text, label="2") for text in ("1", "2", "", "2")]
    assert asyncio.run(my_rewards.custom_rm(None, group, extra=1)) == [0.0, 1.0, 0.0, 1.0]


def test_the_function_is_awaitable_and_takes_more_keywords():
    assert inspect.iscoroutinefunction(my_rewards.custom_rm)
    assert list(inspect.signature(my_rewards.custom_rm).parameters)[:2] == ["args", "sample"]
    kinds = [p.kind for p in inspect.signature(my_rewards.custom_rm).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD in kinds


def test_the_ten_answers_hold_those_that_the_page_asks_for():
    assert len(my_rewards.TEN) == 10
    assert {"correct", "wrong", "empty", "cut at the limit"} <= {row[0] for row in my_rewards.TEN}


def test_the_check_passes_as_it_is():
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 11


def test_one_wrong_score_ends_the_check_with_one(capsys):
    what, response, label, by_hand = my_rewards.TEN[0]
    assert my_rewards.check([(what, response, label, 1 - by_hand)]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_a_function_that_raises_ends_the_check_with_one(monkeypatch, capsys):
    def broken(sample):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(my_rewards, "score", broken)
    assert my_rewards.check() == 1
    assert "raised ZeroDivisionError: boom" in capsys.readouterr().out


def test_an_unknown_option_is_bad_usage():
    with pytest.raises(SystemExit) as ended:
        my_rewards.main(["--nonsense"])
    assert ended.value.code == 2


def test_the_line_for_the_container_prints_one_point_zero():
    (line,) = [line for line in PAGE.read_text().splitlines() if "types.SimpleNamespace(" in line]
    program = line.partition(' python -c "')[2].removesuffix('"')
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=FILE.parent, capture_output=True, text=True
    )
    assert done.stdout == "1.0\n", done.stderr


def test_the_functions_on_the_page_are_those_of_the_file():
    (block,) = PAGE.read_text().split("```python\n")[1:]
    shown = ast.parse(block.partition("```")[0]).body
    real = {node.name: node for node in ast.parse(FILE.read_text()).body if hasattr(node, "name")}
    assert [node.name for node in shown] == ["score", "custom_rm"]
    for function in shown:
        kept = [node for node in real[function.name].body if not isinstance(node, ast.Expr)]
        assert [ast.dump(node) for node in function.body] == [ast.dump(node) for node in kept]


def test_it_needs_nothing_but_the_standard_library():
    names = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_forty_four_failed_requests_in_two_hours_are_no_outage():
    lines = startup()
    for k in range(44):
        lines += m.retry(HOUR + 60 + k * 7200 / 44, 1, 503)
    assert "engine-dead" not in stops(live(*lines))
    seconds = [60 + k * 7200 / 44 for k in range(44)]
    assert max(sum(at <= other < at + 60 for other in seconds) for at in seconds) < 100
