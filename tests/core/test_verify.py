"""Every single corruption of valid files is found, and the report says what it cannot see."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from contract_records import records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture.core import verify
from capture.core.contract import digest
from capture.core.histogram import ErrorHistogram, quantile_upper

STEPS = 4
SHARED_FOLDER = {
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
    "deadline": None,
}


def documents(**options):
    """By rank, the plain records of a valid run."""
    rows = records(**{"steps": STEPS, **options})
    return [[row[rank].plain() for row in rows] for rank in range(len(rows[0]))]


VALID = documents()
SHORT = [lines[:3] for lines in VALID]
SINGLE = documents(world_size=1)


def seal(document):
    bare = {key: value for key, value in document.items() if key != "digest"}
    return {**bare, "digest": digest(bare)}


def write(folder, by_rank, ranks=None):
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, lines in enumerate(by_rank):
        rank = index if ranks is None else ranks[index]
        paths.append(folder / f"training_contract_rank{rank}.jsonl")
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


def report_of(folder, by_rank, ranks=None):
    return verify.verify(write(folder, by_rank, ranks))


def leaves(value, place=(), *, every=False):
    """Places of the values of a record; of a list the first, a middle and the last, or every."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from leaves(part, (*place, key), every=every)
    elif isinstance(value, list) and value and place[-1] != "not_covered":
        chosen = range(len(value)) if every else sorted({0, len(value) // 2, len(value) - 1})
        for key in chosen:
            yield from leaves(value[key], (*place, key), every=every)
    else:
        yield place


def get(document, place):
    for key in place:
        document = document[key]
    return document


def put(document, place, change):
    """A copy in which the leaf is changed, or removed where change gives nothing."""
    document = copy.deepcopy(document)
    parent = get(document, place[:-1])
    new = change(parent[place[-1]])
    if new is REMOVED:
        del parent[place[-1]]
    else:
        parent[place[-1]] = new
    return document


REMOVED = object()


def other(value):
    """Another value of the same type."""
    if value is None:
        return 0.5
    if isinstance(value, str):
        return {"token": "response", "response": "token"}.get(value, value + "x")
    if isinstance(value, list):
        return [*value, "x"]
    return value + 1 if isinstance(value, int) else value * 1.01 + 1e-4


def smaller(value):
    return value - 1 if isinstance(value, int) else value * 0.99 - 1e-4


CHANGES = {
    "other": other,
    "removed": lambda _: REMOVED,
    "wrong type": lambda value: 5 if isinstance(value, str) else "5",
    "smaller": lambda value: smaller(value) if isinstance(value, (int, float)) else other(value),
}


def dotted(place):
    return ".".join(map(str, place))


def corrupted(by_rank, rank, index, place, change, resealed):
    lines = copy.deepcopy(by_rank)
    document = put(lines[rank][index], place, change)
    if resealed and place != ("digest",):
        document = seal(document)
    lines[rank][index] = document
    return lines


# -- valid files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "response"},
        {"world_size": 1},
        {"world_size": 4, "auxiliary": False},
        {"diagnostics": False, "optimizer_steps": 1},
        {"scale": 3.0},
        {"scale": 0.0},
        {"steps": 7, "optimizer_steps": 3},
    ],
)
def test_a_valid_run_has_no_problem_and_no_note(tmp_path, options):
    report = report_of(tmp_path, documents(**options))
    assert report.problems == []
    assert report.notes == []
    assert report.not_checked == list(verify.UNCHECKED_ALWAYS)
    assert report.exit_code == 0


def test_an_overflow_quantile_is_valid_as_null_and_only_as_null(tmp_path):
    lines = documents(scale=3.0)
    upper = lines[0][0]["probability_error"]["all"]["upper"]
    assert upper["p95"] is None
    for rank in range(2):
        upper = lines[rank][0]["probability_error"]["all"]["upper"]
        upper["p95"] = 1.0
        lines[rank][0] = seal(lines[rank][0])
    found = report_of(tmp_path, lines).problems
    assert [p.check for p in found] == ["quantile"] * 2
    assert "all.upper.p95 is 1.0, the counts say null (above 1.0)" in found[0].detail


# -- corruption ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_every_field_changed_without_its_digest_is_found(tmp_path, change):
    base = VALID[1][1]
    missed = []
    for place in leaves(base):
        lines = corrupted(SHORT, 1, 1, place, CHANGES[change], resealed=False)
        if change == "removed" and place == ("digest",):
            assert any("digests" in text for text in report_of(tmp_path, lines).not_checked)
            continue
        found = report_of(tmp_path, lines).problems
        if not any(p.file.endswith("rank1.jsonl") and p.line == 2 for p in found):
            missed.append(dotted(place))
    assert missed == []


UNSEEN = re.compile(
    r"seconds$"  # no second source
    r"|diagnostics\.not_covered$"  # text
    r"|diagnostics\.interval$"  # 1 also divides the step, and each rank has its own
    r"|diagnostics\.updates\.w\.(values|changed|rms|max)$"  # several fit together
)


@pytest.mark.parametrize("change", CHANGES)
def test_every_field_changed_together_with_its_digest_is_found(tmp_path, change):
    """A forged digest: what the record says twice, the files before, or the other rank show it."""
    missed = []
    for place in leaves(VALID[1][1]):
        if place == ("digest",):
            continue
        lines = corrupted(SHORT, 1, 1, place, CHANGES[change], resealed=True)
        if not report_of(tmp_path, lines).problems:
            missed.append(dotted(place))
    assert [name for name in missed if not UNSEEN.match(name)] == []
    if change == "wrong type":
        assert missed == []
    if change == "removed":
        assert missed == []


ALONE = re.compile(
    r"seconds|versions\.(published|allowed_lag)|counts\.accumulation"
    r"|probability_error\.(thirds|lengths)\..+\.max"  # within its bin, and not the largest
    r"|diagnostics\.(interval|not_covered|updates\.w\.\w+)"
)
"""What one rank alone says only once."""


def test_one_rank_alone_still_shows_most_fields(tmp_path):
    missed = []
    for place in leaves(SINGLE[0][1]):
        if place == ("digest",):
            continue
        lines = corrupted(SINGLE, 0, 1, place, other, resealed=True)
        if not report_of(tmp_path, lines).problems:
            missed.append(dotted(place))
    assert [name for name in missed if not ALONE.fullmatch(name)] == []


@settings(max_examples=150, **SHARED_FOLDER)
@given(data=st.data())
def test_any_change_of_any_field_of_any_line_is_found(tmp_path, data):
    rank = data.draw(st.integers(0, 1))
    index = data.draw(st.integers(0, STEPS - 1))
    places = [p for p in leaves(VALID[rank][index], every=True) if p != ("digest",)]
    place = data.draw(st.sampled_from(places))
    old = get(VALID[rank][index], place)
    new = data.draw(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-10, 10**6),
            st.floats(allow_nan=False),
            st.text(max_size=5),
            st.just([]),
            st.just({}),
        ).filter(lambda new: digest({"v": new}) != digest({"v": old}))
    )
    lines = corrupted(VALID, rank, index, place, lambda _: new, resealed=False)
    assert report_of(tmp_path, lines).problems


@settings(max_examples=100, **SHARED_FOLDER)
@given(data=st.data())
def test_any_flipped_bit_of_a_file_is_found_or_changes_no_value(tmp_path, data):
    paths = write(tmp_path, VALID)
    raw = bytearray(paths[0].read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    paths[0].write_bytes(raw)
    report = verify.verify(paths)
    try:
        same = [json.loads(line) for line in raw.splitlines() if line.strip()] == VALID[0]
    except ValueError:
        same = False
    # a damaged key "digest" is an unknown field of a record without a seal, and said to be so
    told = any("digests" in text for text in report.not_checked) and report.notes
    assert same or report.problems or told


@pytest.mark.parametrize("index", range(STEPS))
def test_a_missing_line_is_found_in_one_rank_and_in_all(tmp_path, index):
    one = copy.deepcopy(VALID)
    del one[0][index]
    assert report_of(tmp_path / "one", one).problems
    both = [lines[:index] + lines[index + 1 :] for lines in VALID]
    report = report_of(tmp_path / "both", both)
    if index in (0, STEPS - 1):  # a later begin and an earlier end are legitimate
        assert report.problems == []
        assert index or any("steps before 2" in text for text in report.not_checked)
    else:
        assert {p.check for p in report.problems} >= {"steps"}


@pytest.mark.parametrize(
    ("order", "text"),
    [((0, 1, 1, 2, 3), "step 2 twice"), ((0, 2, 1, 3), "goes backwards"), ((0, 1, 3), "a gap")],
)
def test_repeated_swapped_and_lost_lines_are_named(tmp_path, order, text):
    found = report_of(tmp_path, [[lines[i] for i in order] for lines in VALID]).problems
    assert any(text in str(p) for p in found)
    assert all(p.check in ("steps", "lr", "versions", "schedule", "ranks") for p in found)


def test_a_truncated_last_line_is_one_problem(tmp_path):
    paths = write(tmp_path, VALID)
    paths[1].write_bytes(paths[1].read_bytes()[:-30])
    report = verify.verify(paths)
    (problem,) = report.problems
    assert (problem.check, problem.line) == ("truncated", STEPS)
    assert any("unreadable" in text for text in report.not_checked)


def test_a_bad_line_is_one_problem_and_no_gap(tmp_path):
    paths = write(tmp_path, VALID)
    lines = paths[0].read_text().splitlines(keepends=True)
    lines[1] = "{oops\n"
    paths[0].write_text("".join(lines))
    (problem,) = verify.verify(paths).problems
    assert str(problem).startswith(f"{paths[0]}:2: json: not JSON")


def test_a_rank_that_stops_early_is_found(tmp_path):
    found = report_of(tmp_path, [VALID[0], VALID[1][:-1]]).problems
    assert [p.check for p in found] == ["ranks"]
    assert f"no record of step {STEPS}" in found[0].detail


def test_swapped_file_names_are_found(tmp_path):
    found = report_of(tmp_path, VALID, ranks=[1, 0]).problems
    assert [p.check for p in found] == ["rank", "rank"]


def test_a_file_of_another_run_is_found(tmp_path):
    assert report_of(tmp_path, [VALID[0], documents(seed=5)[1]]).problems


def both(change, **options):
    """A valid run whose every record, of every rank, went through a change, and is sealed."""
    lines = documents(**options)
    for rank in lines:
        for document in rank:
            change(document)
            document.update(seal(document))
    return lines


def errors(document):
    return document["probability_error"]


def at(step, change):
    return lambda document: change(document) if document["step"] == step else None


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("denominators", lambda d: d["denominators"].update(policy=d["counts"]["global_samples"])),
        ("denominators", lambda d: d["denominators"].update(auxiliary_tokens=7)),
        ("versions", at(3, lambda d: d["versions"].update(consumed=3, published=2))),
        ("versions", at(3, lambda d: d["versions"].update(published=3))),
        ("versions", at(4, lambda d: d["versions"].update(published=1, consumed=1))),
        ("versions", at(3, lambda d: d["versions"].update(consumed=0, allowed_lag=1))),
        ("versions", at(2, lambda d: d["versions"].update(trained=2))),
        ("lr", at(3, lambda d: d["lr"].update(used=d["lr"]["used"] * (1 + 1e-9)))),
        ("lr", at(2, lambda d: d["lr"].update(next=0.0))),
        ("schedule", at(2, lambda d: d.update(step_in_collection=0))),
        ("schedule", at(3, lambda d: d.update(collection=2))),
        ("objective", at(1, lambda d: d["policy"].update({"global": 7.0}))),
        ("objective", at(1, lambda d: d["auxiliary"][1].update({"global": 0.5}))),
        ("auxiliary", at(2, lambda d: d["auxiliary"].pop())),
        ("auxiliary", at(1, lambda d: d["auxiliary"][0].update(coefficient=0.0))),
        ("run", at(2, lambda d: d.update(world_size=3))),
        ("counts", at(1, lambda d: d["counts"].update(local_samples=5))),
        ("histogram", at(1, lambda d: errors(d)["bounds"].__setitem__(1, 2e-6))),
        ("quantile", at(1, lambda d: errors(d)["all"]["upper"].update(p99=None))),
        (
            "histogram",
            at(1, lambda d: errors(d)["thirds"].update(first=errors(d)["thirds"]["last"])),
        ),
        ("histogram", at(1, lambda d: errors(d)["all"].pop("upper"))),
        ("histogram", at(1, lambda d: errors(d)["lengths"]["8193+"].update(max=0.0, mean=0.0))),
        ("diagnostics", at(4, lambda d: d.pop("diagnostics"))),
        ("diagnostics", at(4, lambda d: d["diagnostics"].update(interval=4))),
        ("diagnostics", at(2, lambda d: d["diagnostics"]["updates"]["w"].update(changed=257))),
        ("diagnostics", at(2, lambda d: d["diagnostics"]["updates"]["w"].update(rms=1.0))),
        ("diagnostics", at(2, lambda d: d["diagnostics"]["updates"]["w"].update(changed=0))),
        ("kept-sets", lambda d: d.update(kept_sets={"tokens": 7, "mean": 2.0, "max": 3})),
        (
            "kept-sets",
            lambda d: d.update(
                kept_sets={"tokens": d["counts"]["global_active_tokens"], "mean": 3.5, "max": 3}
            ),
        ),
        ("counts", at(1, lambda d: d["counts"].update(global_active_tokens=11))),
        ("counts", at(1, lambda d: d["counts"].update(local_active_tokens=0))),
        ("counts", at(1, lambda d: d["counts"].update(local_model_tokens=1))),
        ("counts", at(1, lambda d: d["counts"].update(global_samples=11))),
        ("counts", at(1, lambda d: d["counts"].update(accumulation=13))),
        ("auxiliary", at(1, lambda d: d["auxiliary"][1].update(name="load_balancing"))),
        ("histogram", at(1, lambda d: errors(d)["all"].update(max=0.9))),
        ("histogram", at(1, lambda d: errors(d)["all"].update(mean=0.5))),
        (
            "histogram",
            at(1, lambda d: errors(d)["all"].update(mean=errors(d)["all"]["mean"] * 1.001)),
        ),
        ("diagnostics", at(2, lambda d: d["diagnostics"].update(gradient_norm=5.1))),
    ],
)
def test_what_all_ranks_say_wrongly_together_is_found_by_its_check(tmp_path, check, change):
    lines = both(change)
    found = {problem.check for problem in report_of(tmp_path, lines).problems}
    assert check in found


def test_a_shifted_observation_is_found_even_when_all_counts_still_add_up(tmp_path):
    def shift(document):
        counts = document["probability_error"]["all"]["counts"]
        filled = next(i for i, n in enumerate(counts) if n)
        counts[filled] -= 1
        counts[filled + 1] += 1
        for name, part in {"p50": (1, 2), "p95": (19, 20), "p99": (99, 100)}.items():
            document["probability_error"]["all"]["upper"][name] = quantile_upper(counts, part)

    details = [p.detail for p in report_of(tmp_path, both(shift)).problems]
    assert any("thirds: bin" in text for text in details)
    assert any("lengths: bin" in text for text in details)


def test_the_mean_over_ranks_is_the_global_objective(tmp_path):
    """Worked case local-objective-average: 0.2 and 0.6 make 0.4, not their sum, not one of them."""
    for value, wrong in ((0.4, False), (0.8, True), (0.2, True)):
        lines = documents(auxiliary=False)
        for rank, local in enumerate((0.2, 0.6)):
            lines[rank][0]["policy"] = {"local": local, "global": value}
            lines[rank][0] = seal(lines[rank][0])
        assert bool(report_of(tmp_path, lines).problems) == wrong


def full_responses(document):
    """Responses of 8 tokens, all active: 3, 3 and 2 positions in the thirds."""
    found = ErrorHistogram()
    for _ in range(document["counts"]["global_samples"]):
        found.add(np.linspace(0, 1, 8), np.zeros(8), np.ones(8, bool))
    document["probability_error"] = found.summary()
    counts = document["counts"]
    for scope, samples in (("global", counts["global_samples"]), ("local", 6)):
        counts[f"{scope}_active_tokens"] = 8 * samples
        counts[f"{scope}_model_tokens"] = 13 * samples
    document["denominators"].update(
        policy=counts["global_active_tokens"], auxiliary_tokens=counts["global_model_tokens"]
    )
    document["auxiliary"] = []


def test_swapped_thirds_are_found_where_no_response_has_room_for_them(tmp_path):
    def swap(document):
        full_responses(document)
        thirds = document["probability_error"]["thirds"]
        thirds["first"], thirds["last"] = thirds["last"], thirds["first"]

    assert report_of(tmp_path / "a", both(full_responses)).problems == []
    found = report_of(tmp_path / "b", both(swap)).problems
    assert {p.check for p in found} == {"histogram"}
    assert found[0].detail == (
        "thirds.last: 36 active tokens, responses of these lengths have at most 24 positions there"
    )


def test_a_change_without_its_digest_names_the_field_and_both_values(tmp_path):
    lines = copy.deepcopy(VALID)
    for rank in lines:
        rank[1]["probability_error"]["all"]["upper"]["p99"] = None
    found = report_of(tmp_path, lines).problems
    assert [p.check for p in found] == ["digest", "quantile"] * 2
    assert [(p.line, p.step) for p in found] == [(2, 2)] * 4
    assert "all.upper.p99 is null (above 1.0), the counts say " in found[1].detail


def test_values_near_the_end_of_floats_do_not_stop_the_check(tmp_path):
    lines = both(at(1, lambda d: d["policy"].update(local=1.7e308)))
    assert {p.check for p in report_of(tmp_path, lines).problems} == {"objective"}


def test_a_million_problems_are_counted_and_not_held(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(verify, "KEPT", 50)
    path = tmp_path / "training_contract_rank0.jsonl"
    path.write_text("{}\n" * 300)
    report = verify.verify([path])
    assert (len(report.problems), report.further, report.exit_code) == (50, 250, 1)
    assert verify.main([str(path)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "0 records of 0 steps in 1 files: 300 problems"
    assert shown[-2] == "... and 260 more; --json lists up to 50"


def test_names_in_a_file_cannot_write_on_the_terminal(tmp_path, capsys):
    lines = copy.deepcopy(VALID)
    for rank in lines:
        rank[1].pop("digest")
        rank[0]["\x1b[2J\n"] = 1
        rank[1]["\ud800"] = 2
        rank[0]["auxiliary"][0].update(name="a\x1b[1m\nb", denominator=5)
        rank[0].pop("digest")
    paths = write(tmp_path, lines)
    assert verify.main(list(map(str, paths))) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "unknown field \\x1b[2J\\n" in shown
    assert "a key: Input should be a valid string" in shown
    assert all(":" in line for line in shown.splitlines())


# -- files from elsewhere ------------------------------------------------------------------------


def test_some_ranks_are_checked_and_the_rest_is_said(tmp_path):
    report = report_of(tmp_path, documents(world_size=4)[2:3], ranks=[2])
    assert report.exit_code == 0
    assert any("ranks 0, 1, 3 of 4 not given" in text for text in report.not_checked)


def test_unknown_fields_are_noted_once_a_file_and_wrong_known_ones_are_errors(tmp_path):
    lines = copy.deepcopy(VALID)
    for document in lines[0]:
        document["ep_degree"] = 1
        del document["digest"]
    report = report_of(tmp_path / "a", lines)
    assert report.exit_code == 0
    assert [note.split(": ")[1] for note in report.notes] == ["unknown field ep_degree"]
    assert any(f"digests; {STEPS} records carry none" in text for text in report.not_checked)
    lines[0][0]["lr"]["used"] = "fast"
    (problem,) = report_of(tmp_path / "b", lines).problems
    assert problem.check == "schema"


def test_a_file_that_begins_late_says_so(tmp_path):
    report = report_of(tmp_path, [lines[2:] for lines in VALID])
    assert report.exit_code == 0
    assert sum("steps before 3" in text for text in report.not_checked) == 2


def test_folders_are_separate_runs(tmp_path):
    paths = write(tmp_path / "a", VALID) + write(tmp_path / "b", documents(seed=9))
    report = verify.verify(paths)
    assert report.problems == []
    assert report.steps == 2 * STEPS


def test_two_files_of_one_rank_in_a_folder_are_not_compared(tmp_path):
    paths = write(tmp_path, SINGLE)
    extra = tmp_path / "copy.jsonl"
    extra.write_bytes(paths[0].read_bytes())
    report = verify.verify([*paths, extra])
    assert report.problems == []
    assert any("two files are of one rank" in text for text in report.not_checked)


# -- command line --------------------------------------------------------------------------------

ROOT = Path(verify.__file__).parents[2]


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "capture.core", "contract", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_verb_gives_its_exit_codes(tmp_path, capsys):
    good, bad = write(tmp_path / "good", VALID), write(tmp_path / "bad", VALID)
    bad[0].write_text("{}\n" + bad[0].read_text())
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    (tmp_path / "nothing").mkdir()
    torn = tmp_path / "training_contract_rank0.jsonl.gz"
    torn.write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    for words, code, error in (
        (good, 0, ""),
        ([good[0].parent], 0, ""),
        (bad, 1, ""),
        ([tmp_path / "absent"], 2, "absent: no such file"),
        ([], 2, "required: FILE"),
        ([torn], 2, "cannot be read"),
        ([empty], 3, "empty.jsonl: no record"),
        ([tmp_path / "nothing"], 3, "no training_contract_rankN.jsonl in it"),
    ):
        assert verify.main([str(word) for word in words]) == code, words
        assert error in capsys.readouterr().err


def test_the_command_prints_problems_and_what_it_did_not_check(tmp_path):
    paths = write(tmp_path, VALID)
    done = command(paths[0])
    assert done.returncode == 0, done.stderr
    assert "not checked: seconds" in done.stdout
    assert "rank 1 of 2 not given" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"{STEPS} records of {STEPS} steps in 1 files: no problem"


def test_json_holds_the_whole_report(tmp_path, capsys):
    lines = [copy.deepcopy(VALID[0]) * 30, VALID[1]]
    assert verify.main(["--json", *map(str, write(tmp_path, lines))]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert len(report["problems"]) > verify.SHOWN
    assert set(report["problems"][0]) == {"file", "line", "step", "rank", "check", "detail"}
    assert verify.main(list(map(str, write(tmp_path, lines)))) == 1
    shown = capsys.readouterr().out.splitlines()
    assert sum("jsonl:" in line for line in shown) == verify.SHOWN


def test_checking_does_not_change_the_files(tmp_path):
    paths = write(tmp_path, VALID)
    before = [path.read_bytes() for path in paths]
    verify.verify(paths)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [p.name for p in paths]
