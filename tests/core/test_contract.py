"""The record's schema, the writer that never goes back, the reader that names each bad line."""

import gzip
import json
import lzma
import math
import subprocess
import sys
from pathlib import Path

import pytest
from contract_records import records
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from capture.core import contract, contractschema
from capture.core.contract import ContractWriter, TrainingRecord, digest, parse_line, path_for, read
from capture.core.errors import ContractError

ONE = [row[0] for row in records(steps=6, world_size=2)]


def write(path, some=ONE, **options):
    with ContractWriter(path, rank=0, world_size=2, **options) as writer:
        for record in some:
            writer.write(record)


def only(line):
    return parse_line(line.encode() + b"\n")


def changed(**parts):
    return json.dumps({**ONE[0].plain(), **parts, "digest": None})


def test_a_record_survives_its_line_exactly():
    for record in ONE:
        line = only(record.line())
        assert line.problem is None
        assert line.record == record
        assert line.sealed
        assert line.notes == []


def test_a_line_is_strict_json_on_one_line():
    text = ONE[1].line()
    assert "\n" not in text
    json.loads(text, parse_constant=pytest.fail)


def test_every_field_of_the_page_is_in_the_record():
    document = ONE[1].plain()
    names = "schema rank world_size collection optimizer_steps step seconds counts denominators"
    names += " policy auxiliary versions lr probability_error diagnostics"
    assert set(document) >= set(names.split())
    assert {"global_samples", "global_active_tokens", "global_model_tokens", "accumulation"} <= set(
        document["counts"]
    )
    assert {"policy", "auxiliary_tokens", "auxiliary_documents", "reduction"} == set(
        document["denominators"]
    )
    assert {"local", "global"} == set(document["policy"])
    assert {"consumed", "published"} <= set(document["versions"])
    assert {"used", "next"} == set(document["lr"])
    assert list(document["probability_error"]["thirds"]) == ["first", "middle", "last"]


def test_every_field_has_a_description():
    def walk(model):
        for name, info in model.model_fields.items():
            inner = info.annotation
            nested = isinstance(inner, type) and issubclass(inner, contractschema.Part)
            if nested:
                assert inner.__doc__
                yield from walk(inner)
            elif not info.description:
                yield f"{model.__name__}.{name}"

    assert list(walk(TrainingRecord)) == []


def test_the_constructor_refuses_a_misspelt_field():
    with pytest.raises(ValidationError, match="secnds"):
        TrainingRecord.model_validate({**ONE[0].model_dump(by_alias=True), "secnds": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_cannot_become_a_record(value):
    document = ONE[0].model_dump(by_alias=True)
    document["policy"] = {**document["policy"], "local": value}
    with pytest.raises(ValidationError):
        TrainingRecord.model_validate(document)


def test_a_null_quantile_stays_and_a_missing_one_stays_away():
    document = ONE[0].plain()
    segment = document["probability_error"]["all"]
    segment["counts"] = [0] * 20 + [sum(segment["counts"])]
    segment.update(max=2.0, mean=1.5, upper={"p50": None, "p95": None, "p99": None})
    del document["digest"]
    back = only(json.dumps(document)).record.plain()["probability_error"]
    assert back["all"]["upper"] == {"p50": None, "p95": None, "p99": None}
    empty = [part for part in back["lengths"].values() if not part["tokens"]]
    assert empty
    assert all(set(part) == {"tokens", "counts", "responses"} for part in empty)


def test_the_digest_ignores_order_spacing_and_the_form_of_whole_numbers():
    document = ONE[1].plain()
    assert "5.0" in json.dumps(document)
    turned = json.dumps(dict(reversed(document.items())), indent=1).replace("5.0,", "5,")
    assert digest(json.loads(turned)) == document["digest"]
    assert digest({**document, "seconds": document["seconds"] + 1e-9}) != document["digest"]


# -- reader --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "check", "text"),
    [
        (b"{}\n", "schema", "schema: missing"),
        (b'{"schema":1}\n', "schema", "schema: 1, this program reads 2"),
        (b'{"schema":"2"}\n', "schema", "schema: '2'"),
        (b"[1]\n", "json", "holds a list"),
        (b"null\n", "json", "holds a NoneType"),
        (b"{nope\n", "json", "not JSON"),
        (b"\xff\xfe\n", "json", "byte 0 is not UTF-8"),
        (b'{"schema":2,"seconds":NaN}\n', "json", "NaN is no number"),
        (b'{"schema":2,"schema":2}\n', "json", "'schema' stands twice"),
        (b"[" * 100_000 + b"\n", "json", "not JSON"),
        (b'{"schema":2}\n', "schema", "rank: Field required (and "),
        (b'{"schema":2', "truncated", "without a newline"),
    ],
)
def test_a_bad_line_gives_one_clear_error(line, check, text):
    found = parse_line(line, 7)
    assert (found.number, found.record, found.check) == (7, None, check)
    assert text in found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"rank": True}, "rank: Input should be a valid integer, not True"),
        ({"rank": "0"}, "rank: Input should be a valid integer, not '0'"),
        ({"seconds": -1}, "seconds: Input should be greater than or equal to 0, not -1"),
        ({"lr": {"used": 1e-3}}, "lr.next: Field required"),
        ({"auxiliary": [{}]}, "auxiliary[0].name: Field required"),
        ({"counts": 5}, "counts: "),
    ],
)
def test_a_known_field_of_the_wrong_type_is_named_with_its_value(parts, text):
    document = json.loads(changed(**parts))
    del document["digest"]
    assert text in only(json.dumps(document)).problem


def test_unknown_fields_are_notes_at_any_depth():
    document = ONE[0].plain()
    del document["digest"]
    document["host_note"] = {"a": 1}
    document["counts"]["images"] = 3
    document["auxiliary"][1]["kind"] = "z"
    document["probability_error"]["lengths"]["1-8"]["words"] = []
    line = only(json.dumps(document))
    assert line.problem is None
    assert line.record == ONE[0]
    assert sorted(line.notes) == [
        "auxiliary[1].kind",
        "counts.images",
        "host_note",
        "probability_error.lengths.1-8.words",
    ]


@pytest.mark.parametrize(
    "place",
    [
        ("diagnostics",),
        ("diagnostics", "updates", "w"),
        ("probability_error", "all", "upper"),
        ("versions",),
        ("lr",),
        ("denominators",),
        ("policy",),
        ("probability_error", "thirds"),
    ],
)
def test_an_unknown_field_is_a_note_in_every_table(place):
    document = ONE[1].plain()
    del document["digest"]
    table = document
    for key in place:
        table = table[key]
    table["later"] = None
    line = only(json.dumps(document))
    assert (line.problem, line.record) == (None, ONE[1])
    assert line.notes == [".".join((*place, "later"))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.data())
def test_no_line_at_all_raises(data):
    document = ONE[1].plain()
    place = data.draw(st.sampled_from(sorted(document)))
    document[place] = data.draw(JSON)
    if data.draw(st.booleans()):
        document.pop("digest", None)
    raw = json.dumps(document).encode() + b"\n"
    if data.draw(st.booleans()):
        raw = raw.replace(b"1", data.draw(st.binary(max_size=3)))
    line = parse_line(raw)
    assert (line.record is None) == (line.problem is not None and line.check != "digest")


@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, "1e999", '"\\ud800"', "1" * 6000])
@pytest.mark.parametrize("sealed", [True, False])
def test_hostile_values_are_one_error(value, sealed):
    seal = '"digest":"x",' if sealed else ""
    line = parse_line(f'{{"schema":2,{seal}"seconds":{value}}}\n'.encode())
    assert line.record is None
    assert "\n" not in line.problem


def test_unknown_fields_do_not_hide_a_wrong_known_one():
    document = {**json.loads(changed(extra=1, seconds="x"))}
    del document["digest"]
    line = only(json.dumps(document))
    assert line.record is None
    assert line.problem.startswith("seconds: ")


def test_a_wrong_digest_is_a_problem_and_the_record_is_there_to_be_looked_at():
    document = {**ONE[0].plain(), "seconds": 99.0}
    line = only(json.dumps(document))
    assert (line.check, line.sealed, line.record.seconds) == ("digest", False, 99.0)
    assert line.problem == f"{document['digest']!r} is not that of the record, {digest(document)!r}"
    line = only(json.dumps({**document, "seconds": "x"}))
    assert (line.check, line.record) == ("schema", None)
    assert line.problem.startswith("seconds: ")
    assert line.problem.endswith("not 'x'; the digest does not fit either")


@pytest.mark.parametrize("place", [("step",), ("counts", "accumulation")])
def test_a_whole_number_that_readers_would_round_is_refused(place):
    document = ONE[0].plain()
    table = document if len(place) == 1 else document[place[0]]
    table[place[-1]] = 2**53
    problem = only(json.dumps(document)).problem
    assert problem.startswith(".".join(place) + ": Input should be less than or equal to")
    table[place[-1]] = 10**400
    assert len(only(json.dumps(document)).problem) < 300


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xef\xbb\xbf{}\n", "begins with a byte order mark"),
        (b"\0" * 4096, "4096 zero bytes"),
        (b'{"schema":2}\r{"schema":2}\r', "carriage return alone"),
        (b'{"schema":2,"seconds":' + b"9" * 6000 + b"}\n", "a number of thousands of digits"),
        (b"[{}]\n", "holds a list, no object; one record stands on a line"),
        (b'{"rank":0,"step":1,"samples":8}\n', "that it needs the line has rank, step"),
        (b'{"samples":8}\n', "schema: missing, this program reads 2; of the 14 fields that it"),
        (b'{"schema":3}\n', "needs the line has none"),
    ],
)
def test_a_file_that_something_else_wrote_is_told_what_it_is(raw, text):
    assert text in parse_line(raw).problem


def test_crlf_changes_nothing():
    line = parse_line(ONE[0].line().encode() + b"\r\n")
    assert (line.record, line.sealed) == (ONE[0], True)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_cut_archive_names_its_file_and_how_far_it_went(tmp_path, pack):
    path = tmp_path / "training_contract_rank0.jsonl.gz"
    path.write_bytes(pack("".join(r.line() + "\n" for r in ONE).encode())[:-30])
    with pytest.raises(OSError, match=r"\(after line \d\)") as caught:
        list(read(path))
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_what_a_file_holds_counts_and_not_its_suffix(tmp_path, pack):
    for suffix in ("", ".gz", ".xz"):
        path = tmp_path / f"training_contract_rank0.jsonl{suffix}"
        path.write_bytes(pack("".join(r.line() + "\n" for r in ONE).encode()))
        assert [line.record for line in read(path)] == ONE


def test_a_record_without_a_digest_is_read_and_not_sealed():
    document = ONE[0].plain()
    del document["digest"]
    line = only(json.dumps(document))
    assert line.record == ONE[0]
    assert not line.sealed


@pytest.mark.parametrize("opener", [gzip.open, lzma.open, open])
def test_compressed_files_read_the_same(tmp_path, opener):
    suffix = {gzip.open: ".gz", lzma.open: ".xz"}.get(opener, "")
    path = tmp_path / f"training_contract_rank0.jsonl{suffix}"
    with opener(path, "wb") as stream:
        stream.write("".join(r.line() + "\n" for r in ONE).encode())
    assert [line.record for line in read(path)] == ONE


def test_the_reader_holds_one_line_at_a_time(tmp_path):
    path = tmp_path / "f"
    write(path)
    lines = read(path)
    assert next(lines).number == 1
    path.unlink()
    assert next(lines).number == 2


def test_an_endless_line_ends_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(contract, "LONGEST_LINE", 100)
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    (line,) = read(path)
    assert line.problem == "longer than 100 bytes"


# -- writer --------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path):
    path = path_for(tmp_path / "new" / "folder", 0)
    write(path, fsync=True)
    assert path.name == "training_contract_rank0.jsonl"
    assert [line.record for line in read(path)] == ONE


@pytest.mark.parametrize("order", [[0, 0], [1, 0], [0, 2]])
def test_the_writer_takes_the_next_step_and_no_other(tmp_path, order):
    path = tmp_path / "f"
    with ContractWriter(path, rank=0, world_size=2) as writer:
        if order[0]:
            with pytest.raises(ContractError, match="step 2 after step 0"):
                writer.write(ONE[1])
            return
        writer.write(ONE[0])
        before = path.read_bytes()
        with pytest.raises(ContractError, match=f"step {order[1] + 1} after step 1"):
            writer.write(ONE[order[1]])
        assert path.read_bytes() == before


def test_the_writer_refuses_another_rank(tmp_path):
    with (
        ContractWriter(tmp_path / "f", rank=1, world_size=2) as writer,
        pytest.raises(ContractError, match="rank 0 of 2 in the file of rank 1 of 2"),
    ):
        writer.write(ONE[0])


def test_a_fresh_run_does_not_append_to_another_runs_records(tmp_path):
    path = tmp_path / "f"
    write(path)
    before = path.read_bytes()
    with pytest.raises(ContractError, match="earlier run"):
        ContractWriter(path, rank=0, world_size=2)
    assert path.read_bytes() == before


@pytest.mark.parametrize("completed", range(7))
def test_a_resume_keeps_every_line_in_one_of_two_files(tmp_path, completed):
    path = tmp_path / "f"
    write(path)
    lines = path.read_bytes().splitlines()
    with ContractWriter(path, rank=0, world_size=2, completed_step=completed) as writer:
        assert writer.last_step == completed
        for record in ONE[completed:]:
            writer.write(record)
    assert path.read_bytes().splitlines() == lines
    aside = path.with_name("f.superseded")
    assert (aside.read_bytes().splitlines() if aside.exists() else []) == lines[completed:]
    assert not path.with_name("f.tmp").exists()


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_cut_last_line_is_moved_aside_by_a_resume(tmp_path, cut):
    path = tmp_path / "f"
    write(path, ONE[:3])
    whole = path.read_bytes()
    path.write_bytes(whole + ONE[3].line().encode()[:cut])
    *_, last = read(path)
    assert last.check == "truncated"
    with ContractWriter(path, rank=0, world_size=2, completed_step=3) as writer:
        writer.write(ONE[3])
    assert [line.record for line in read(path)] == ONE[:4]
    assert path.with_name("f.superseded").read_bytes() == ONE[3].line().encode()[:cut] + b"\n"


def test_a_resume_behind_missing_records_is_refused(tmp_path):
    path = tmp_path / "f"
    write(path, ONE[:2])
    with pytest.raises(ContractError, match="ends at step 2, the checkpoint is at step 4"):
        ContractWriter(path, rank=0, world_size=2, completed_step=4)


def test_a_resume_over_a_damaged_line_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "f"
    write(path, ONE[:2])
    path.write_bytes(b"{}\n" + path.read_bytes())
    before = path.read_bytes()
    with pytest.raises(ContractError, match=":1: schema"):
        ContractWriter(path, rank=0, world_size=2, completed_step=1)
    assert path.read_bytes() == before


def test_a_resume_over_a_changed_record_is_refused(tmp_path):
    path = tmp_path / "f"
    write(path, ONE[:2])
    path.write_text(path.read_text().replace('"seconds":0.5', '"seconds":0.75', 1))
    with pytest.raises(ContractError, match=":1: digest: "):
        ContractWriter(path, rank=0, world_size=2, completed_step=2)


def test_a_closed_writer_says_so(tmp_path):
    writer = ContractWriter(tmp_path / "f", rank=0, world_size=2)
    writer.close()
    writer.close()
    with pytest.raises(ContractError, match="is closed"):
        writer.write(ONE[0])


def test_a_kill_between_lines_leaves_whole_lines(tmp_path):
    path = tmp_path / "f"
    program = (
        f"import os, sys; sys.path[:0] = {sys.path[:2]}\n"
        "from contract_records import records\n"
        "from capture.core.contract import ContractWriter\n"
        "w = ContractWriter(sys.argv[1], rank=0, world_size=2)\n"
        "for row in records(steps=6)[:4]: w.write(row[0])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -9
    assert [line.record.step for line in read(path)] == [1, 2, 3, 4]


def test_a_full_disk_is_an_error_and_not_a_half_step(tmp_path, monkeypatch):
    path = tmp_path / "f"
    writer = ContractWriter(path, rank=0, world_size=2)
    writer.write(ONE[0])
    real = contract.os.write
    monkeypatch.setattr(contract.os, "write", lambda fd, data: real(fd, data[:50]))
    with pytest.raises(OSError, match="50 of"):
        writer.write(ONE[1])
    assert writer.last_step == 1
    writer.close()


def test_importing_the_contract_loads_no_torch():
    names = "contract", "histogram", "runlog", "runmetrics", "verify"
    program = "import sys; " + "; ".join(f"import capture.core.{n}" for n in names)
    program += "; sys.exit('torch' in sys.modules)"
    root = Path(contract.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False)
    assert done.returncode == 0
