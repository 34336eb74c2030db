"""Manifests that were changed and signed again: each is refused in one line before a native load.

The digest finds what was changed by accident. Whoever computes it again meets the other rules.
"""

import copy
import hashlib
import json
import os

import fakes
import pytest
from test_manifest import SHAPE, checkpoint

from capture.core import driver
from capture.core import manifest as manifests
from capture.core.cursor import RolloutCursor
from capture.core.errors import CheckpointError


def sign(folder, change):
    """Change the manifest's object and make its digest right."""
    path = folder / manifests.NAME
    data = json.loads(path.read_text())
    change(data)
    data.pop("digest", None)
    plain = json.dumps(data, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**data, "digest": hashlib.sha256(plain.encode()).hexdigest()}))


def refused(folder, shape=SHAPE):
    with pytest.raises(CheckpointError) as caught:
        manifests.check(folder, shape)
    text = str(caught.value)
    assert text.isprintable()
    assert str(folder) in text
    return text


def put(*place, value):
    def change(data):
        for key in place[:-1]:
            data = data[key]
        data[place[-1]] = value

    return change


HUGE = 10**400
SIGNED = {
    "a number too large for a float": (put("lr", value=HUGE), "lr: 1000"),
    "an infinite rate": (put("lr", value=float("inf")), "lr: inf"),
    "a rate that is none": (put("lr", value=float("nan")), "lr: nan"),
    "no rank": (put("world_size", value=0), "world_size: 0"),
    "ranks without number": (put("world_size", value=10**30), "missing for rank 1"),
    "a step below 0": (put("optimizer_step", value=-6), "optimizer_step: -6"),
    "a newer behaviour": (put("consumed", value=7), "consumed: 7"),
    "a cursor ahead of its draws": (put("cursor", "collection", value=4), "of collection 3, not 4"),
    "draws ahead of the cursor": (put("cursor", "drawn", value=80), "cursor.drawn is 80"),
    "a prompt that the data lacks": (
        put("cursor", "pending", 0, "prompts", value=[4, 8]),
        "prompts",
    ),
    "a response in the cursor": (put("cursor", "responses", value=[[1]]), "responses: no such key"),
    "a line break in a key": (put("a\nb", value=1), r"a\nb: no such key"),
    "a line break in a path": (put("files", 0, "path", value="train/a\nb"), "not a path"),
    "another form of a path": (put("files", 0, "path", value="train/./rank0.pt"), "not a path"),
    "the folder as a file": (put("files", 0, "path", value="."), "not a"),
    "the manifest as a file": (put("files", 0, "path", value="manifest.json"), "not a file of"),
    "a text for the files": (put("files", value="a\nb"), "not a list"),
    "no weights": (
        lambda data: data.update(files=[f for f in data["files"] if "train" in f["path"]]),
        "no weights to load",
    ),
}


@pytest.mark.parametrize("case", SIGNED)
def test_a_signed_change_is_refused_in_one_line(tmp_path, case):
    folder = checkpoint(tmp_path / "c")
    change, says = SIGNED[case]
    sign(folder, change)
    assert says in refused(folder)


def places(data, place=()):
    """Every place of an object."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*place, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*place, key))


def problem(folder):
    """Why a checkpoint is refused; None where it is whole."""
    try:
        manifests.check(folder, SHAPE)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [None, True, "x\n", -1, 1.5, [], {}, [None], "train/rank0.pt"])
def test_no_value_of_any_kind_in_any_place_is_more_than_one_line(tmp_path, value):
    """A typed-wrong value anywhere is refused, or is one that the key may have."""
    folder = checkpoint(tmp_path / "c")
    path = folder / manifests.NAME
    whole = path.read_text()
    taken = set()
    for place in list(places(json.loads(whole))):
        if place == ("digest",):
            continue
        path.write_text(whole)
        sign(folder, put(*place, value=copy.deepcopy(value)))
        text = problem(folder)
        assert text is None or text.isprintable()
        if text is None:
            taken.add(place)
    allowed = {
        "None": {("lr",), ("consumed",)},
        "True": {("cursor", "shuffle")},
        "1.5": {("lr",)},
        "train/rank0.pt": {("files", 2, "path")},  # what it is already
    }
    assert taken <= allowed.get(str(value), set()), taken


def test_links_pipes_and_strange_files_are_refused(tmp_path):
    folder = checkpoint(tmp_path / "c")
    elsewhere = tmp_path / "elsewhere"
    real = folder / "train/rank0.pt"
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    assert "a link" in refused(folder)
    real.unlink()
    elsewhere.rename(real)
    manifests.check(folder, SHAPE)
    for name in ("manifest2.json", "train/manifest.json", "manifest.x/y", ".metadata.json"):
        extra = folder / name
        extra.parent.mkdir(exist_ok=True)
        extra.write_text("{}")
        assert "not in the manifest" in refused(folder)
        extra.unlink()
    os.mkfifo(folder / "model_and_optim/pipe")
    assert "not in the manifest" in refused(folder)
    (folder / "model_and_optim/pipe").unlink()
    own = folder / manifests.NAME
    own.unlink()
    os.mkfifo(own)  # to read it would wait for ever
    assert "not a plain file" in refused(folder)


def test_a_schema_1_of_one_rank_with_files_of_two_is_refused(tmp_path):
    folder = checkpoint(tmp_path / "c", 2)
    data = {"schema": 1, "world_size": 1, "optimizer_step": 6, "collection": 3}
    (folder / manifests.NAME).write_text(json.dumps(data))
    assert "there was one rank" in refused(folder)


def test_pending_prompts_of_another_order_are_refused():
    cursor = RolloutCursor(pool=8, batch=2, seed=1)
    cursor.draw()
    state = cursor.state()
    RolloutCursor(pool=8, batch=2, seed=1).restore(state)
    state["pending"][0]["prompts"].reverse()
    with pytest.raises(CheckpointError, match=r"cursor\.pending of collection 0"):
        RolloutCursor(pool=8, batch=2, seed=1).restore(state)


def stopped(tmp_path):
    config = fakes.settings(tmp_path, miles__debug_exit_after_rollout=2)
    return driver.run(config, parts=fakes.parts(config, tmp_path)).checkpoint


def resume(tmp_path, **changes):
    config = fakes.settings(tmp_path, miles__load=str(tmp_path / "run"), **changes)
    made = fakes.parts(config, tmp_path)
    driver.run(config, parts=made)
    return made


def test_a_rate_of_zero_in_the_manifest_is_compared_like_any_other(tmp_path):
    sign(stopped(tmp_path), put("lr", value=0))
    with pytest.raises(CheckpointError, match="the manifest says 0"):
        resume(tmp_path)


def test_a_horizon_behind_the_checkpoint_is_refused(tmp_path):
    stopped(tmp_path)
    with pytest.raises(CheckpointError, match=r"rollout\.num_rollout = 1 is behind"):
        resume(tmp_path, rollout__num_rollout=1)


def test_a_schema_1_of_one_rank_goes_on_through_the_driver(tmp_path):
    folder = stopped(tmp_path)
    data = {"schema": 1, "world_size": 1, "optimizer_step": 4, "collection": 2}
    (folder / manifests.NAME).write_text(json.dumps(data))
    made = resume(tmp_path)
    assert made.actor.optimizer_step == 12
    straight = tmp_path / "straight"
    config = fakes.settings(straight)
    driver.run(config, parts=fakes.parts(config, straight))
    ends = [where / "hf/model.safetensors" for where in (tmp_path, straight)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
