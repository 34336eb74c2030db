"""The published values: form, printed text, arithmetic."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts import check_reported

pytestmark = pytest.mark.slow  # each reads every published value again

ROOT = Path(__file__).resolve().parents[2]
REPORTED = Path("capture/gpu/out-gb10/reported.toml")
TEXT = (ROOT / REPORTED).read_text(encoding="utf-8")
DATA = tomllib.loads(TEXT)
NUMBERS = {entry["id"]: entry for entry in DATA["value"] + DATA["setting"]}

SMALL = """\
schema = 1
[lab]
name = "synthetic"
tier = "reported"
source = "none"
gpu = "none"
image = "none"
miles_commit = "none"
[[run]]
id = "one"
name = "one"
section = "1.1"
line = 1
differs = "nothing"
ended = "finished"
[[value]]
id = "whole"
section = "1.1"
line = 1
run = "one"
quantity = "perf/step_time"
stat = "median"
value = 10.0
unit = "s"
printed = "10.0"
conditions = ""
[[value]]
id = "part"
section = "1.1"
line = 2
also = [{ section = "1.1", line = 3, printed = "four" }]
run = ["one"]
quantity = "rollout"
stat = "median"
value = 4
unit = "s"
printed = "4"
conditions = ""
[[value]]
id = "share"
section = "1.1"
line = 2
run = ""
quantity = "share"
stat = "median"
low = 39
high = 41
unit = "percent"
printed = "39 to 41"
conditions = ""
[[arithmetic]]
id = "share-of-whole"
formula = "part / whole * 100"
relation = "within"
result = "share"
what = "4 of 10"
"""


@pytest.fixture
def root(tmp_path):
    for path in (REPORTED, REPORTED.with_name("published.txt"), check_reported.CONTRADICTIONS):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def errors_of(root, text):
    (root / REPORTED).write_text(text, encoding="utf-8")
    return check_reported.check(root)


def edit(text, kind, name, key, value):
    """The text with one key of one entry replaced."""
    pattern = re.compile(
        rf"(^\[\[{kind}\]\]\nid = \"{re.escape(name)}\"\n(?:(?!\[\[).+\n)*?{key} = )(.+)$", re.M
    )
    out, made = pattern.subn(lambda match: match[1] + value, text)
    assert made == 1
    return out


def test_the_stored_values_are_well_formed_and_agree(root):
    assert check_reported.check(root) == []
    counts = check_reported.count(root)
    assert counts["values"] == len(DATA["value"])
    assert counts["values"] >= 205
    assert counts["arithmetic"] == len(DATA["arithmetic"])


def test_the_small_file_is_fine(root):
    assert errors_of(root, SMALL) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "part"', 'id = "whole"', "the id is taken"),
        ('id = "part"', 'id = "Part"', "not kebab-case"),
        ('unit = "percent"', 'unit = "furlong"', "unit 'furlong' is not in the list"),
        ('run = ["one"]', 'run = ["two"]', "run 'two' is in no [[run]]"),
        ('printed = "4"', 'printed = "5"', "printed '5' is not 4.0"),
        ('printed = "four"', 'printed = "five"', "printed 'five' is not 4.0"),
        ('printed = "4"', 'printed = "4 s"', "is not a number"),
        ("value = 4\n", 'value = "4"\n', "value has the wrong type"),
        ("value = 4\n", "value = 4\nlow = 3\n", "expected a value, or a low and a high"),
        ("low = 39\n", "", "expected a value, or a low and a high"),
        ('stat = "median"\n', "", "stat is missing"),
        ("line = 2\n", "line = 2\nnovel = 1\n", "unknown key 'novel'"),
        ('relation = "within"', 'relation = "near"', "relation 'near' is not in the list"),
        ("part / whole", "part / hole", "unknown id 'hole'"),
        ("part / whole * 100", "share / 2", "is a range"),
        ("part / whole * 100", "40", "the formula uses no id"),
        ('what = "4 of 10"', 'what = "4"\ncontradiction = "nothing"', "is in no list"),
        ('what = "4 of 10"', 'what = "4"\ncontradiction = "dead-groups"', "holds, so"),
        ("line = 2\n", 'line = 2\ncontradiction = "dead-groups"\n', "without its other side"),
        ("line = 2\n", 'line = 2\nother_side = ["nobody"]\n', "other side 'nobody' is no id"),
        ("line = 2\n", 'line = 2\nambiguity = "dead-groups"\n', "ambiguity 'dead-groups'"),
        ('tier = "reported"', 'tier = "measured"', "expected 'reported'"),
        ("schema = 1", "schema = 2", "expected 1"),
        ("[[run]]", "[[walk]]", "unknown table"),
        ("schema = 1", "schema =", "not TOML"),
    ],
)
def test_each_broken_form_gets_its_own_error(root, old, new, message):
    assert old in SMALL
    errors = errors_of(root, SMALL.replace(old, new, 1))
    assert any(message in error for error in errors), errors
    assert all(error.startswith(f"{REPORTED}:") for error in errors)


def test_a_relation_that_fails_is_named_with_its_line_and_both_sides(root):
    broken = SMALL.replace('printed = "10.0"', 'printed = "12.0"').replace("10.0\n", "12.0\n")
    line = broken.splitlines().index('id = "share-of-whole"') + 1
    (error,) = errors_of(root, broken)
    assert error.startswith(f"{REPORTED}:{line}: arithmetic share-of-whole: not within")
    assert "part / whole * 100" in error


def test_a_failing_relation_with_a_contradiction_is_accepted(root):
    broken = SMALL.replace('printed = "10.0"', 'printed = "12.0"').replace("10.0\n", "12.0\n")
    assert errors_of(root, broken + 'contradiction = "dead-groups"\n') == []


def test_every_stored_contradiction_entry_fails_without_its_contradiction(root):
    told = [entry for entry in DATA["arithmetic"] if "contradiction" in entry]
    assert len(told) >= 5
    for entry in told:
        text = re.sub(
            rf"(\[\[arithmetic\]\]\nid = \"{entry['id']}\"\n(?:.+\n)*?)contradiction = .+\n",
            r"\1",
            TEXT,
        )
        assert text != TEXT
        (error,) = errors_of(root, text)
        assert f"arithmetic {entry['id']}: not {entry['relation']}" in error


DERIVED = sorted(
    entry["id"]
    for entry in DATA["arithmetic"]
    if entry["relation"] == "="
    and "contradiction" not in entry
    and "value" in NUMBERS.get(entry["result"], {})
    and re.search(r"\d", NUMBERS[entry["result"]]["printed"])
)


@pytest.mark.parametrize("name", DERIVED)
def test_a_changed_leading_digit_of_a_derived_value_is_named(root, name):
    """Printed text and number are changed alike, so only the arithmetic can notice."""
    entry = next(entry for entry in DATA["arithmetic"] if entry["id"] == name)
    value = NUMBERS[entry["result"]]
    digit = re.search(r"[1-9]", value["printed"])
    old = digit[0]
    new = "7" if old in "123" else "2"
    printed = value["printed"][: digit.start()] + new + value["printed"][digit.end() :]
    kind = "value" if value in DATA["value"] else "setting"
    number = printed.replace(",", "").lstrip("+")
    text = edit(TEXT, kind, entry["result"], "value", number)
    text = edit(text, kind, entry["result"], "printed", f'"{printed}"')
    text = re.sub(
        rf"(id = \"{re.escape(entry['result'])}\"\nsection.+\nline.+\n)also = .+\n", r"\1", text
    )
    errors = errors_of(root, text)
    assert any(f"arithmetic {name}: not =" in error for error in errors), errors


def test_enough_derived_values_are_rechecked():
    assert len(DERIVED) >= 30


DIGITS = [
    (match.start(), match[0])
    for line in re.finditer(r"^(?:value|low|high) = [-\d.]+$", TEXT, re.M)
    for match in [re.compile(r"\d").search(TEXT, line.start(), line.end())]
]


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(DIGITS), st.integers(1, 9))
def test_a_changed_stored_digit_no_longer_matches_its_printed_text(root, place, shift):
    at, digit = place
    text = TEXT[:at] + str((int(digit) + shift) % 10) + TEXT[at + 1 :]
    errors = errors_of(root, text)
    assert errors
    line = TEXT.count("\n", 0, at) + 1
    start = max(i for i, row in enumerate(TEXT.splitlines()[:line]) if row.startswith("id = "))
    name = TEXT.splitlines()[start].split('"')[1]
    assert any(f" {name}: printed" in error or "not TOML" in error for error in errors) or any(
        f" {name}: low" in error for error in errors
    )


def test_exit_codes_tell_fine_wrong_bad_usage_and_nothing_inspected(root, tmp_path, capsys):
    assert check_reported.main([str(root)]) == 0
    assert "arithmetic" in capsys.readouterr().out
    (root / REPORTED).write_text(SMALL.replace('printed = "4"', 'printed = "5"'))
    assert check_reported.main([str(root)]) == 1
    assert "part: printed '5'" in capsys.readouterr().err
    assert check_reported.main([str(root / "missing")]) == 2
    (root / REPORTED).unlink()
    assert check_reported.main([str(root)]) == 3


def test_a_missing_contradictions_file_is_an_error(root):
    (root / check_reported.CONTRADICTIONS).unlink()
    (error,) = check_reported.check(root)
    assert "cannot be read" in error


def test_published_output_stands_under_headers_that_name_a_section():
    text = (ROOT / "capture/gpu/out-gb10/published.txt").read_text(encoding="utf-8")
    blocks = text.split("\n## ")[1:]
    assert len(blocks) >= 10
    for block in blocks:
        header, _, body = block.partition("\n")
        assert re.fullmatch(r"section [\w.-]+: .+", header)
        assert body.strip()


TIED = sorted(name for name, entry in NUMBERS.items() if "output" in entry)


def bumped(printed):
    """The printed text with its last digit changed, and the number of it."""
    at = max(match.start() for match in re.finditer(r"\d", printed))
    other = printed[:at] + str((int(printed[at]) + 1) % 10) + printed[at + 1 :]
    return other, other.replace(",", "")


def with_output(root, text=None):
    """Put the program output beside the values; `text` in place of the stored one."""
    place = REPORTED.with_name("published.txt")
    stored = (ROOT / place).read_text(encoding="utf-8")
    (root / place).write_text(stored if text is None else text, encoding="utf-8")
    return root


def test_enough_numbers_are_tied_to_the_published_output(root):
    assert len(TIED) >= 80
    assert check_reported.count(root)["tied to output"] == len(TIED)


@pytest.mark.parametrize("name", TIED)
def test_a_tied_number_whose_printed_text_and_value_are_changed_alike_is_named(root, name):
    entry = NUMBERS[name]
    kind = "value" if entry in DATA["value"] else "setting"
    if isinstance(entry.get("value"), str):
        printed = entry["printed"] + "x"
        text = edit(TEXT, kind, name, "value", f'"{printed}"')
    else:
        printed, number = bumped(entry["printed"])
        key, number = ("high", number.rpartition(" ")[2]) if "high" in entry else ("value", number)
        text = TEXT if entry["unit"] == "clock" else edit(TEXT, kind, name, key, number)
    text = edit(text, kind, name, "printed", f'"{printed}"')
    errors = errors_of(with_output(root), text)
    assert any(f" {name}: published.txt does not print" in error for error in errors), errors


def test_a_changed_digit_of_a_metric_in_the_published_output_is_named(root):
    stored = (ROOT / REPORTED.with_name("published.txt")).read_text(encoding="utf-8")
    numbers = list(re.finditer(r"(?<=': )\d+\.\d+", stored))
    assert len(numbers) == 12
    for number in numbers:
        text = f"{stored[: number.end() - 1]}{(int(stored[number.end() - 1]) + 1) % 10}"
        text += stored[number.end() :]
        assert errors_of(with_output(root, text), TEXT), number[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in TIED if check_reported.DISTINCT.search(NUMBERS[name]["printed"])]
)
def test_a_distinct_number_that_stands_in_the_output_must_be_tied(root, name):
    text = re.sub(
        rf"(^id = \"{re.escape(name)}\"\n(?:(?!\[\[|id = ).+\n)*?)output = .+\n",
        r"\1",
        TEXT,
        flags=re.M,
    )
    assert text != TEXT
    errors = errors_of(with_output(root), text)
    assert any(f" {name}: " in error and "tie it with `output`" in error for error in errors)


def test_an_output_needs_one_hole_for_its_number(root):
    for output in ("elapsed", "{} and {}"):
        text = edit(TEXT, "value", "plain-weights-s", "output", f'"{output}"')
        assert any("exactly one {}" in error for error in errors_of(with_output(root), text))


def test_a_number_of_another_section_does_not_count(root):
    stored = (ROOT / REPORTED.with_name("published.txt")).read_text(encoding="utf-8")
    moved = stored.replace("## section 4.5:", "## section 4.6:")
    errors = errors_of(with_output(root, moved), TEXT)
    assert any(" det-time-1: published.txt does not print" in error for error in errors)


def test_the_lab_file_and_the_values_name_the_same_machine_and_image():
    lab = tomllib.loads((ROOT / "capture/gpu/out-gb10/lab.toml").read_text(encoding="utf-8"))
    for key in ("name", "tier", "gpu", "image", "miles_commit", "miles_date", "machine"):
        assert lab["lab"][key] == DATA["lab"][key]
    assert lab["setup"]["image"] == DATA["lab"]["image"]
    assert lab["lab"]["driver"] == "not stated"
