"""The driver of `make check`: its table, its last lines, and that it only reads."""

import pytest

from scripts import check, hygiene
from scripts.report import Report


def outcome(name, wrong=0, **counts):
    report = Report(counts=dict(counts))
    for number in range(wrong):
        report.error("a.md", number + 1, "wrong")
    return check.Outcome(name, report, 0.1)


def test_the_table_says_what_was_checked_and_what_was_not():
    text = check.table([outcome("claims", claims=1234), outcome("site", wrong=2)], ["tests"])
    assert "claims  ok       1,234 claims" in text
    assert "site    2 wrong" in text
    assert "GPU runs: none on this machine" in text
    assert "tests: left out by --only" in text


def test_the_last_lines_count_claims_and_tests():
    tests = check.Tests(check.ROOT, counts={"passed": 200, "failed": 1, "error": 1})
    claims = outcome("claims", wrong=2, **{"numbers in claims": 10, "number links": 5})
    assert check.totals([claims], tests) == [
        "claims: 13 passed, 2 failed",
        "tests: 200 passed, 2 failed",
    ]


def test_a_check_that_sees_nothing_is_wrong(capsys):
    assert not check.run_check("empty", Report).report.ok
    assert "inspected nothing" in capsys.readouterr().out


def test_a_file_that_changes_appears_or_goes_during_the_check_is_named():
    report = check.unchanged({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"})
    assert [problem.path for problem in report.problems] == ["b", "c", "d"]


def test_an_unknown_check_is_bad_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        check.main(["--only", "claims,clams"])
    assert stop.value.code == 2
    assert "no check 'clams'" in capsys.readouterr().err


def test_messages_with_a_place_are_taken_apart():
    assert check.split_message("a/b.toml:12: x: y") == ("a/b.toml", 12, "x: y")
    assert check.split_message("no place") == ("", 0, "no place")


def test_a_host_or_a_missing_hash_in_a_lock_file_is_named():
    good = "a==1.0 \\\n    --hash=sha256:00\n"
    assert hygiene.lock_problems(good) == []
    assert hygiene.lock_problems("--index-url http" + "://x\n" + good)[0][0] == 1
    assert hygiene.lock_problems("a==1.0\n" + good) == [(1, "a has no hash")]
    assert hygiene.lock_problems("a>=1.0 \\\n    --hash=sha256:00\n") == [(1, "a is not pinned")]


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (("x\n/wo", "rk/main/a"), "path of a working machine"),
        (("x\n/ho", "me/somebody/a"), "home folder of a user"),
        (("x\npyp", "i.org"), "host of a package registry"),
        (("x\nhf", "_" + "a" * 34), "access token"),
    ],
)
def test_what_must_not_be_in_a_tracked_file_is_found(parts, what):
    assert hygiene.text_problems("".join(parts).encode()) == [(2, what)]


def test_what_reads_like_it_but_is_fine_is_left_alone():
    text = b"/home/user/x, /root/lab, /tmp/ray/session, a PyPI wheel"
    assert hygiene.text_problems(text) == []


def test_failed_and_skipped_tests_are_wrong_and_counted():
    tests = check.Tests(check.ROOT)
    report = Report()
    tests.read("FAILED a\n2 failed, 10 passed, 1 error in 3.00s", 1, report)
    assert tests.counts == {"failed": 2, "passed": 10, "error": 1}
    assert next(problem.text for problem in report.problems) == "FAILED a"


def test_skipped_tests_are_wrong(tmp_path):
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pytest.skip('no')\n\n\ndef test_two():\n    pass\n"
    )
    report = check.Tests(tmp_path, workers=0).finish()
    assert report.counts["tests"] == 1
    assert "1 tests were skipped" in [problem.text for problem in report.problems]


def test_a_check_that_breaks_is_named_and_does_not_stop_the_others(capsys):
    outcome = check.run_check("x", lambda: 1 // 0)
    assert not outcome.report.ok
    assert "the check itself broke: ZeroDivisionError" in capsys.readouterr().out


def test_a_link_of_the_readme_to_no_file_is_named(repo):
    tree = repo()
    (tree.root / "README.md").write_text("# A\n\n![x](manuals/x.png), [y](manuals/one.md#a).\n")
    assert hygiene.readme_problems(tree) == [(3, "no such file: manuals/x.png")]
