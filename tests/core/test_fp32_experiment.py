"""The program that measures the FP32-output head, at sizes that a CPU does in a second."""

from __future__ import annotations

import json

import pytest

from capture.core.experiments import fp32_head
from capture.core.experiments.lines import read

SIZES = ["--vocabularies", "400,900", "--widths", "48", "--tokens", "16,33", "--seeds", "0"]
QUICK = [*SIZES, "--warm", "0", "--repeat", "3", "--kept", "9", "--quiet"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    out = tmp_path_factory.mktemp("fp32") / "lines.jsonl"
    assert fp32_head.main(["--out", str(out), *QUICK]) == 0
    return out


def test_every_size_scope_and_head_has_a_line_with_settings_and_environment(lines):
    head, found = read(lines)
    assert head["experiment"] == "fp32-head"
    assert head["settings"]["vocabularies"] == [400, 900]
    assert {"torch", "device", "python"} <= set(head["environment"])
    assert len(found) == 2 * 2 * 4 * 2
    for line in found:
        if line["key"]["scope"] != "error":
            assert len(line["values"]["ms_all"]) == 3
            assert line["values"]["ms"] == sorted(line["values"]["ms_all"])[1] > 0


def test_the_error_falls_and_the_bytes_double(lines):
    errors = {}
    for line in read(lines)[1]:
        if line["key"].pop("scope") == "error":
            head = line["key"].pop("head")
            errors.setdefault(json.dumps(line["key"]), {})[head] = line["values"]
    assert len(errors) == 4
    for pair in errors.values():
        assert pair["fp32"]["error_mean"] * 100 < pair["ordinary"]["error_mean"]
        assert pair["fp32"]["logit_bytes"] == 2 * pair["ordinary"]["logit_bytes"]


def test_a_file_is_gone_on_with_and_nothing_is_measured_twice(lines, monkeypatch):
    whole = lines.read_text()
    short = "".join(whole.splitlines(keepends=True)[:-3])
    lines.write_text(short + '{"key": {"vocab"')
    assert fp32_head.main(["--out", str(lines), *QUICK]) == 0
    assert lines.read_text().startswith(short)
    assert len(read(lines)[1]) == whole.count("\n") - 1
    monkeypatch.setattr(fp32_head, "Case", None)  # nothing is due
    assert fp32_head.main(["--out", str(lines), *QUICK]) == 0


def test_out_of_memory_is_a_line_of_its_own(tmp_path, monkeypatch):
    import torch

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fp32_head, "measured", full)
    out = tmp_path / "lines.jsonl"
    assert fp32_head.main(["--out", str(out), *QUICK, "--scopes", "loss"]) == 0
    found = [line["values"] for line in read(out)[1] if line["key"]["scope"] == "loss"]
    assert found == [{"out_of_memory": True}] * 8


@pytest.mark.parametrize("wrong", [["--repeat", "0"], ["--kept", "0"], ["--warm", "-1"]])
def test_bad_numbers_are_bad_usage(wrong, tmp_path, capsys):
    assert fp32_head.main(["--out", str(tmp_path / "x"), *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as caught:
        fp32_head.main(["--out", str(tmp_path / "x"), "--scopes", "all"])
    assert caught.value.code == 2
