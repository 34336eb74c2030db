"""The benchmark builds logs of the asked size and fails over its limits."""

from __future__ import annotations

import lzma

from scripts import bench
from scripts.bench import Measured, over_limit, repeated


def test_limits_are_those_of_the_issue():
    assert over_limit(Measured(1.99, 1.9, 59.9)) == []
    assert over_limit(Measured(2.01, 1.9, 59.9)) == ["wall 2.01 s is over 2 s"]
    assert over_limit(Measured(1.0, 1.0, 61.0)) == ["peak memory 61 MiB is over 60 MiB"]


def test_a_log_is_repeated_whole(tmp_path):
    block = b"line\n" * 100
    (tmp_path / "a.xz").write_bytes(lzma.compress(block))
    size = repeated(tmp_path / "a.xz", tmp_path / "b", 1200)
    assert size == 1500
    assert (tmp_path / "b").read_bytes() == block * 3


def test_a_small_benchmark_runs(capsys):
    assert bench.main(["--megabytes", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("summarize takes") == 2


def test_missing_evidence_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "LAB", bench.ROOT / "no-such-lab")
    assert bench.main(["--megabytes", "1"]) == 3
    assert "no-such-lab" in capsys.readouterr().err
