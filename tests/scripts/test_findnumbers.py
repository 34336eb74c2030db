"""Which numbers of a text look measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.findnumbers import (
    find_hidden,
    find_in_column,
    find_measured,
    find_numbers,
    flag_values,
)


@pytest.mark.parametrize(
    "text",
    [
        "233 s",
        "12-step",
        "20 whole steps",
        "5 GB",
        "0.53",
        "40 to 45 percent",
        "5%",
        "84 \u00b0C",
        "1.5 times",
        "32 of 64 groups",
        "200,533 retries",
        "16 answers",
        "1 run",
        "1.5 million tokens",
        "2 CUDA errors",
        "0.0141",
        "3.7e-09",
        "35 minutes",
        "24 hours",
        "84 C",
        "84C",
        "0.4",
        ".77",
        "10.31",
        "77/100",
        "9 of 32",
        "9/32",
        "0.3M tokens",
        "1:20:05",
        "3:03",
        "1h20",
        "1 h 20",
        "20G",
        "x20",
        "factor of 20",
        "23,1 s",
        "3 kW",
        "3 ns",
        "2 weeks",
        "3 PB",
        "20 dollars",
        "$20",
        "5 TFLOPS",
        "3 files",
        "4 GPUs",
        "256 answers",
    ],
)
def test_a_measured_looking_number_is_found_whole(text):
    sentence = f"Then {text} came."
    assert [sentence[a:b] for a, b in find_measured(sentence)] == [text]


@pytest.mark.parametrize(
    "text",
    [
        "an H200 and a GB10",
        "SmolLM2-135M-Instruct",
        "SGLang 0.5.16 and torch 2.11.0",
        "Python 3.11",
        "on 2026-08-21",
        "section 1.3 steps aside",
        "step 12 and line perf 0 line",
        "Qwen3-0.6B",
        "twelve steps in five minutes",
        "bf16",
        "HTTP 503 errors",
        "section 3 errors",
        "Part 1 runs",
        "Table 2 groups",
        "on October 15 runs",
        "in 2026 runs",
        "Port 20035 answers",
        "version 0.77",
        "Ray from before and after 2.55",
        "NCCL 2.29 and 2.30",
        "sections 1.2, 3.1 and 7.1",
    ],
)
def test_names_versions_dates_and_words_are_left_alone(text):
    assert find_measured(f"Then {text} came.") == []


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(["s", "GB", "steps", "tokens"]))
def test_any_number_with_a_unit_is_found(number, unit):
    text = f"It took {number:,} {unit}."
    assert [text[a:b] for a, b in find_measured(text)] == [f"{number:,} {unit}"]


def test_digits_of_names_are_no_numbers_of_a_caption():
    text = "On an H200, plain_s1234 shows 48 bars of SmolLM2-135M."
    assert [text[a:b] for a, b in find_numbers(text)] == ["48"]


@pytest.mark.parametrize("text", ["12 step run", "2 seed average"])
def test_a_count_before_a_singular_noun_is_found(text):
    assert find_measured(f"In a {text} it rose.") != []


def test_the_number_of_a_heading_is_no_metric():
    assert find_measured("1.3 Five numbers of the first ten steps") == []
    assert find_measured("Reward 1.3 Five") != []


def test_a_bare_number_is_found_in_a_column_that_names_a_unit():
    assert find_in_column("Step time, s", "17") == [(0, 2)]
    assert find_in_column("tokens", "17") == [(0, 2)]
    assert find_in_column("time (min)", "17") == [(0, 2)]
    assert find_in_column("sign in the first ten steps", "reward is 0") == []
    assert find_in_column("code", "0") == []


@pytest.mark.parametrize(
    "text",
    ["1\u200b7 s", "\uff11\uff17 s", "17\u00b2", "$17\\,s$", "17\\ s", "\u0661 s", "\u00bd s"],
)
def test_a_character_that_hides_a_number_is_found(text):
    assert find_hidden(text) != []
    assert find_hidden("17 s, \u03b1 and 5 \u00b0C \u2013 \u201cso\u201d \u00b1") == []


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("--rollout-top-p 0.95", "0.95"),
        ("--lr 1e-5", "1e-5"),
        ("--lr=1e-5", "1e-5"),
        ("timeout 600 s", "600 s"),
    ],
)
def test_the_value_of_a_flag_is_no_claim(code, value):
    assert [code[a:b] for a, b in flag_values(code)] == [value]
    assert flag_values("--top-p 17 s") == []
    assert flag_values("17 s") == []
