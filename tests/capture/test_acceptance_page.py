"""The page `My run` names the settings of the protocol that the kit has."""

import re

from mileskit.acceptance import acceptance, stages

from tests.fakes.lab import ROOT

PAGE = (ROOT / "manuals" / "miles-101" / "my-run.md").read_text()


def test_steps_rollout_and_limit_are_those_of_the_kit():
    assert f"{acceptance.STEPS} guarded steps" in PAGE
    assert f"once rollout {acceptance.AT} began" in PAGE
    assert f"after {acceptance.LIMIT_MINUTES} minutes" in PAGE


def test_the_stages_stand_in_their_order():
    assert tuple(re.findall(r"(?m)^\d\. `([\w-]+)`", PAGE)) == stages.NAMES


def test_every_verdict_of_a_stage_is_explained():
    rows = re.findall(r"(?m)^\| (passed|failed|not-run) \|", PAGE)
    assert rows[-3:] == [stages.PASSED, stages.FAILED, stages.NOT_RUN]
