"""The speed program measures what it says, on a tiny model."""

from __future__ import annotations

import json

import pytest
from tiny import hf_model, tiny

from capture.core.experiments import decode_speed

SMALL = ["--rows", "8", "--prompt", "4", "--new", "5", "--packs", "32", "--document", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("speed") / "hf"
    hf_model(*tiny()).save_pretrained(str(path))
    return path


def test_every_part_gives_its_lines(folder, capsys):
    ways = ["--decode", "graph,cache,core"]
    assert decode_speed.main([str(folder), "--repeat", "1", *ways, *SMALL]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]
    assert [line["what"] for line in lines] == [
        "setup", "decode_check", "exact_check", *["decode"] * 3, "train",
    ]  # fmt: skip
    check, exact, *decoded, train = lines[1:]
    assert check["graph_mean_gap"] <= 2 * check["cache_mean_gap"] + 1e-4
    assert exact["score_max_gap"] == exact["train_max_gap"] == 0.0
    assert exact["tokens"] == 8 * 5
    assert [line["decode"] for line in decoded] == ["graph", "cache", "core"]
    for line in decoded:
        assert line["rows"] == 8
        assert line["tokens_per_second"] == pytest.approx(8 * 5 / min(line["seconds"]))
        assert line["ms_per_step"] == pytest.approx(1000 * min(line["seconds"]) / 5)
    assert train["attention"] == "mask"
    assert train["tokens_per_second"] == pytest.approx(64 / min(train["seconds"]))


def test_a_folder_without_a_model_is_one_line(tmp_path, capsys):
    assert decode_speed.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
