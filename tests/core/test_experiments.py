"""The experiments in small: they measure what they say, go on where they stopped, mix nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from capture.core import configfile, tasks, tinymodel
from capture.core.errors import ConfigError
from capture.core.experiments import decode_speed, fp32_head, gap, packing, replay
from capture.core.experiments import lines as experiment_lines
from capture.core.experiments.gapstats import gap as statistics
from capture.core.experiments.lines import Lines, read, spread


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads cost more than they save on tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny dense model that answers some sums."""
    config = configfile.parse({"model": {"warm_steps": 60, "seed": 0}})
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tinymodel.write(config, tasks.load(config), folder)
    return folder


def by_key(path, *names):
    """Values of a file's lines by these parts of their keys."""
    return {tuple(line["key"][name] for name in names): line["values"] for line in read(path)[1]}


# --- the gap -------------------------------------------------------------------------------------

GAP = ["--task=arithmetic", "--prompts=4", "--samples=4", "--new=6", "--pack=256", "--marks=0,2",
       "--lr=1e-3", "--seeds=0", "--decode=cache", "--exact-prompts=2", "--top-k=3",
       "--top-p=0.8", "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def gaps(model, tmp_path_factory):
    """The file of a tiny run."""
    path = tmp_path_factory.mktemp("gap") / "gap.jsonl"
    assert gap.main([f"--model={model}", f"--out={path}", *GAP]) == 0
    return path


def test_every_case_is_measured_at_every_mark(gaps):
    found = by_key(gaps, "step", "case")
    heads = {f"head/{name}" for name in gap.HEADS}
    cuts = {f"{one}/{way}" for one in ("top_p", "top_k") for way in ("full", "mismatch", "replay")}
    wanted = heads | cuts | {"exact", "exact/packed", "exact/plain"}
    for step in (0, 2):
        assert {case for at, case in found if at == step} >= wanted
    assert all(values["tokens"] > 0 for (_, case), values in found.items() if case in wanted)


def test_the_exact_engine_has_no_gap_and_the_ordinary_one_has(gaps):
    found = by_key(gaps, "step", "case")
    for step in (0, 2):
        assert found[step, "exact"]["max_abs"] == 0.0
        assert found[step, "exact"]["share_equal"] == 1.0
        assert found[step, "exact/plain"]["max_abs"] > 0.0
        assert found[step, "cost/exact"]["tokens"] > 0


def test_a_cut_without_replay_is_a_mismatch_and_replay_mends_it(gaps):
    found = by_key(gaps, "step", "case")
    for cut in ("top_p", "top_k"):
        mismatch, mended = (found[0, f"{cut}/{way}"] for way in ("mismatch", "replay"))
        # the kept set holds less than everything, so its tokens were likelier than the trainer says
        assert mismatch["mean_signed"] < -10 * mended["mean_abs"]
        assert mended["mean_abs"] < 0.02
        assert mended["kept_max"] <= (3 if cut == "top_k" else 96)


def test_training_moves_the_weights_between_marks(gaps):
    found = by_key(gaps, "step", "case")
    assert {step for step, case in found if case == "train"} == {1, 2}
    assert found[0, "exact"] != found[2, "exact"] or found[0, "head/both"] != found[2, "head/both"]
    assert any(found[step, "train"]["gradient_norm"] > 0 for step in (1, 2))


def test_a_finished_seed_is_not_measured_again_and_a_new_one_is_another_file(gaps, model, capsys):
    before = gaps.read_bytes()
    assert gap.main([f"--model={model}", f"--out={gaps}", *GAP]) == 0
    assert gaps.read_bytes() == before
    assert gap.main([f"--model={model}", f"--out={gaps}", *GAP, "--new=7"]) == 2
    assert "name another file" in capsys.readouterr().err
    assert gaps.read_bytes() == before


def test_a_model_that_is_not_there_is_one_line(tmp_path, capsys):
    given = [f"--model={tmp_path / 'none'}", f"--out={tmp_path / 'x.jsonl'}", *GAP]
    assert gap.main(given) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "main",
    [gap.main, packing.main, replay.main, fp32_head.main, decode_speed.main],
    ids=lambda main: main.__module__.rsplit(".", 1)[1],
)
def test_a_gpu_that_is_not_there_is_one_line(main, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = [f"--out={tmp_path / 'x.jsonl'}"]
    if main is decode_speed.main:
        out = [str(model)]
    elif main in (gap.main, packing.main):
        out.append(f"--model={model}")
    assert main([*out, "--device=cuda"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("wrong", ["--rows=3", "--rows=0", "--repeats=0"])
def test_packing_needs_whole_groups_and_a_timed_step(model, tmp_path, capsys, wrong):
    with pytest.raises(SystemExit, match="2"):
        packing.main([f"--model={model}", f"--out={tmp_path / 'x'}", wrong])
    assert "--rows is an even number" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_statistics_of_a_gap():
    found = statistics([np.array([-1.0, -2.0]), np.array([-3.0])],
                       [np.array([-1.0, -2.5]), np.array([-2.0])])  # fmt: skip
    assert found["tokens"] == 3
    assert found["mean_abs"] == pytest.approx(0.5)
    assert found["mean_signed"] == pytest.approx(-1 / 6)
    assert found["max_abs"] == 1.0
    assert found["share_equal"] == pytest.approx(1 / 3)
    weights = np.exp([0.0, 0.5, -1.0])
    assert found["kl"] == pytest.approx(np.mean(weights - 1 - [0.0, 0.5, -1.0]))
    assert found["ess"] == pytest.approx(weights.sum() ** 2 / (3 * (weights**2).sum()))
    with pytest.raises(ValueError, match="2 and 1"):
        statistics([np.zeros(2)], [np.zeros(1)])


# --- replay --------------------------------------------------------------------------------------

REPLAY = ["--dtype=float32", "--layers=3", "--experts=8", "--topk=2", "--width=64",
          "--expert-width=32", "--heads=4", "--vocabulary=96", "--std=0.15", "--rows=8",
          "--prompt=8", "--new=8", "--pack=128", "--stale=0,1", "--lr=1e-2", "--seeds=0",
          "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    """The file of a tiny run, a bfloat16 engine against a float32 trainer."""
    path = tmp_path_factory.mktemp("replay") / "replay.jsonl"
    assert replay.main([f"--out={path}", *REPLAY]) == 0
    return path


def test_routes_go_stale(routes):
    found = by_key(routes, "stale", "what")
    fresh, old = found[0, "layers"], found[1, "layers"]
    assert len(fresh["free"]) == len(fresh["replayed"]) == 3
    assert fresh["tokens"] == 8 * 15  # the last token of a sample has no recorded experts
    assert sum(old["free"]) > 2 * sum(fresh["free"])
    # nothing lies before the first layer that replay could have changed
    assert fresh["free"][0] == fresh["replayed"][0]
    assert found[1, "gradient"]["router_cosine"] < found[0, "gradient"]["router_cosine"]


def test_replay_narrows_the_gap_to_the_engine_that_recorded(routes):
    found = by_key(routes, "stale", "what")
    assert found[0, "behaviour/replay"]["mean_abs"] < found[0, "behaviour/live"]["mean_abs"]
    # an engine with the new weights chooses like a trainer that chooses itself
    assert found[1, "live"]["mean_abs"] < found[1, "replay"]["mean_abs"]


def test_two_programs_of_one_dtype_agree_on_experts_and_replay_changes_nothing(tmp_path):
    path = tmp_path / "same.jsonl"
    given = [*REPLAY, "--engine-dtype=float32", "--stale=0"]
    assert replay.main([f"--out={path}", *given]) == 0
    found = by_key(path, "what")
    assert sum(found["layers",]["free"]) == 0.0
    for what in ("live", "replay", "behaviour/live", "behaviour/replay"):
        assert found[what,]["max_abs"] < 1e-5
    assert found["gradient",]["router_cosine"] == pytest.approx(1.0, abs=1e-6)


def test_the_file_says_that_weights_are_random_and_what_stands_in(routes):
    head, _ = read(routes)
    assert head["environment"]["weights"] == "random, not trained"
    assert head["environment"]["stand_ins"].startswith("Core code with CPU stand-ins for ")


# --- packing -------------------------------------------------------------------------------------


def test_packing_measures_the_same_samples_each_way(model, tmp_path):
    path = tmp_path / "packing.jsonl"
    given = ["--rows=4", "--prompt=4", "--response=6", "--packs=0,64", "--repeats=1",
             "--dtype=float32", "--quiet"]  # fmt: skip
    assert packing.main([f"--model={model}", f"--out={path}", *given]) == 0
    found = by_key(path, "pack", "scoring")
    assert set(found) == {(pack, way) for pack in (0, 64) for way in packing.SCORING}
    assert [pack for pack, _ in found] == [64, 64, 0, 0]  # the slowest last
    assert len({values["model_tokens"] for values in found.values()}) == 1
    assert found[0, "kept"]["forwards"] == 4
    assert found[64, "kept"]["forwards"] < 4
    for values in found.values():
        assert values["seconds_low"] <= values["seconds"] <= values["seconds_high"]
        assert values["peak_bytes"] is None  # only a GPU counts


# --- lines ---------------------------------------------------------------------------------------


def test_a_cut_line_is_removed_and_measured_again(tmp_path):
    path = tmp_path / "x.jsonl"
    first = Lines(path, "x", {"a": 1}, {}, quiet=True)
    first.add({"v": 1.0}, seed=0)
    first.add({"v": 2.0}, seed=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Lines(path, "x", {"a": 1}, {"other": "machine"}, quiet=True)
    assert again.has(seed=0)
    assert not again.has(seed=1)
    again.add({"v": 9.0}, seed=0)
    again.add({"v": 2.0}, seed=1)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["no json\n", "[]\n", '{"schema": 9}\n', '{"schema": 1}\n{}\n'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.jsonl"):
        Lines(path, "x", {}, {}, quiet=True)
    assert path.read_text() == text


def test_a_line_holds_no_number_that_is_none(tmp_path):
    lines = Lines(tmp_path / "x.jsonl", "x", {}, {}, quiet=True)
    with pytest.raises(ValueError, match="Out of range"):
        lines.add({"v": float("nan")}, seed=0)
    assert not lines.has(seed=0)
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 1


def test_a_spread_is_over_seeds_of_one_case(tmp_path):
    lines = Lines(tmp_path / "x.jsonl", "x", {}, {}, quiet=True)
    for seed in range(3):
        for case in ("a", "b"):
            lines.add({"v": seed + (case == "b") * 10}, seed=seed, case=case)
    found = {key["case"]: values for key, values in spread(read(lines.path)[1], "v", "seed")}
    assert found == {"a": [0, 1, 2], "b": [10, 11, 12]}
    assert json.loads(lines.path.read_text().splitlines()[0])["experiment"] == "x"


def test_a_file_is_shown_as_a_table_and_what_it_lacks_is_one_line(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    lines = Lines(path, "x", {}, {}, quiet=True)
    for seed in range(3):
        lines.add({"v": float(seed)}, seed=seed, case="a")
    assert experiment_lines.main([str(path), "--value=v"]) == 0
    assert capsys.readouterr().out.split() == ["a", "1", "0", "to", "2,", "3", "seeds"]
    assert experiment_lines.main([str(path), "--value=w"]) == 2
    assert experiment_lines.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
