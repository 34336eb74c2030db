"""Both TOML readers give the same values, and what is written is read back."""

import datetime as dt
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mileskit.common import tomlio, tomlread

ROOT = Path(__file__).resolve().parents[2]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
zones = st.builds(lambda m: dt.timezone(dt.timedelta(minutes=m)), st.integers(-1439, 1439))
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    text,
    st.dates(),
    st.times(),
    st.datetimes(timezones=st.none() | zones),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(text, values, max_size=6)


def same(left, right) -> bool:
    """Equality by type too, NaN equal to itself, zero signs apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, dt.datetime | dt.time):
        return left == right and left.utcoffset() == right.utcoffset()
    return left == right


def outcome(reader, document):
    try:
        return reader(document)
    except ValueError:
        return None


def stored_files():
    return sorted(p for folder in ("capture", "manuals") for p in (ROOT / folder).rglob("*.toml"))


def test_both_readers_agree_on_every_stored_toml_file():
    files = stored_files()
    assert len(files) >= 13
    for path in files:
        document = path.read_text(encoding="utf-8")
        assert same(tomlread.parse(document), tomllib.loads(document)), path


@given(documents)
@example({"a": [], "b": [{}], "c": [{"d": {"e": [{"f": math.nan}]}}]})
@example({"x": -0.0, "big": 1e22, "small": 5e-324, "": "\x7f\x00\r\n\"\\'''"})
def test_what_is_written_is_read_back_by_both_readers(document):
    written = tomlio.dumps(document)
    # Tables follow plain values in TOML, so the order of the top level may change.
    ours = tomlread.parse(written)
    theirs = tomllib.loads(written)
    assert same(ours, theirs)
    assert ours.keys() == document.keys()
    assert all(same(ours[k], document[k]) for k in document)
    assert tomlio.dumps(ours) == written


FRAGMENTS = [
    'a = 1', 'a.b = 2', 'a.b.c = 3', 'b = {c = 1}', 'b.d = 2', '[a]', '[a.b]', '[[a]]',
    '[[a.b]]', '[b]', '[b.c]', '[ \'q r\' . "s" ]', 'c = [1, 2, # x\n 3,]', 'c = [[], [{}],]',
    'c = [1 2]', 'd = 0x_1', 'd = 0xDEAD_beef', 'd = 0o17', 'd = 0b1_0', 'd = +0', 'd = 01',
    'd = 1_000', 'd = 1__0', 'd = -1.5e+0_3', 'd = 1.', 'd = .5', 'd = inf', 'd = -nan',
    'd = +inf', 'e = "a\\u00e9\\U0001F600"', 'e = "\\ud800"', 'e = "\\x"',
    'e = """\nx\\\n  y"""', "e = '''\n'a''''''", 'e = """a"""""', 'e = """a""""""',
    "e = 'it\tis'", 'e = "open', "e = '''open", 'f = 2026-11-29', 'f = 2026-02-30',
    'f = 2026-11-29T13:27:19Z', 'f = 2026-11-29 13:27:19.1234567',
    'f = 2026-11-29t13:27:19-23:59', 'f = 13:27:19', 'f = 24:00:00', 'f = 2026-11-29T',
    'f = 13:27', 'g = true', 'g = tru', 'g = truex', 'h = {a.b = 1, a.c = 2}', 'h = {a = 1,}',
    'h = {\n}', 'h.i = 1', 'i = {}', '[i]', '# comment', '# bad \x01', 'j = 1 # c', '= 1',
    "'' = 1", 'k 1', '\tl\t=\t1\t', '[h]', '[h.a]', '[[b]]', '[c]', '\r', 'm = "a\rb"',
    '[a.b.c.d]', "a . 'b' = 1", '[]', '[[n]', 'n = 1 1',
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6), st.sampled_from(["\n", "\r\n", " \n\n"]))
@example(["e = '''a\rb'''"], "\n")
def test_both_readers_accept_and_refuse_the_same_documents(parts, end):
    document = end.join(parts)
    ours, theirs = outcome(tomlread.parse, document), outcome(tomllib.loads, document)
    assert (ours is None) == (theirs is None)
    assert ours is None or same(ours, theirs)


STRUCTURE = [
    "[a]", "[a.b]", "[a.b.c]", "[[a]]", "[[a.b]]", "b.c = 1", "b = 2", "c.d = 3", "b.d = 4",
    "a.b.c = 5", "a = {b.c = 6}", "b = {}", "a = [{b = 7}]",
]  # fmt: skip


@given(st.lists(st.sampled_from(STRUCTURE), min_size=2, max_size=5))
@example(["[a.b]", "[a]", "b.c = 1"])
@example(["[a.b.c]", "[a]", "b.c.d = 1"])
@example(["a.b.c = 5", "[a.b]"])
@example(["[[a]]", "[a.b]", "[[a]]", "[a.b]"])
def test_both_readers_agree_on_what_may_be_defined_twice(parts):
    document = "\n".join(parts)
    ours, theirs = outcome(tomlread.parse, document), outcome(tomllib.loads, document)
    assert (ours is None) == (theirs is None)
    assert ours is None or same(ours, theirs)


@given(st.text(st.sampled_from("ab.=[]{}\"'\\#, \n\t01-:TZe_+"), max_size=25))
def test_both_readers_agree_on_noise(document):
    ours, theirs = outcome(tomlread.parse, document), outcome(tomllib.loads, document)
    assert (ours is None) == (theirs is None)
    assert ours is None or same(ours, theirs)


def test_the_kit_reads_with_its_own_reader_where_python_has_none(monkeypatch):
    monkeypatch.setattr(tomlio, "tomllib", None)
    assert tomlio.loads("a = 2026-11-29T13:27:19Z")["a"].utcoffset() == dt.timedelta(0)
    with pytest.raises(tomlio.TomlError, match="line 2"):
        tomlio.loads("a = 1\nb =")


def test_a_broken_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("a = 1\nb = \n")
    with pytest.raises(tomlio.TomlError, match=r"run\.toml: .*line 2"):
        tomlio.load(path)
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(tomlio.TomlError, match=r"run\.toml: not UTF-8 at byte 5"):
        tomlio.load(path)


@pytest.mark.parametrize(
    "value", [None, (1,), "\ud800", {1: 2}, dt.time(1, tzinfo=dt.UTC), b"x", object()]
)
def test_what_toml_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match="TOML"):
        tomlio.dumps({"a": value})


def test_long_arrays_are_written_one_item_a_line():
    written = tomlio.dumps({"a": {"b": ["x" * 60, "y" * 60]}})
    assert written.splitlines()[1:4] == ["b = [", f'    "{"x" * 60}",', f'    "{"y" * 60}",']
