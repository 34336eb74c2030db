"""A small made-up lab for the rules; figures themselves are tested on the stored evidence."""

import json

import pytest

from figures import evidence

# No run gave this: it exists to break rules with.
SUMMARY = {
    "schema": 1,
    "runs": [
        {
            "first_time": "2026-01-01T00:00:00.000Z",
            "startup": {"kv_cache": {"tokens": 1000, "seconds": 2.5}},
            "rollouts": {
                "index": [0, 1, 2],
                "columns": {
                    "rollout/raw_reward": [0.25, 0.5, "nan"],
                    "rollout/ref_log_probs": [-1.0, -1.0, -1.0],
                    "rollout/zero_std/count_1.0": [None, 2, 3],
                    "perf/step_time": [9.0, 4.0, 5.0],
                },
            },
            "steps": {
                "index": [0, 1, 2],
                "rollout": [0, 1, 2],
                "columns": {"train/loss": [0.0, 0.1, 0.2]},
            },
            "retries": {"total": 4},
            "errors": [{"kind": "oom", "first_time": "2026-01-01T00:00:01.000Z"}],
            "timers": {"train": {"n": 3, "total_s": 12.0}},
            "timing": {"step_clean": [True, False, True]},
            "medians": {
                "perf/step_time": {"all": 5.0, "n_all": 3},
                "rollout/raw_reward": {"all": 0.375, "n_all": 2},
                "rollout/ref_log_probs": {"all": -1.0, "n_all": 3},
            },
            "ended": {"how": "finished"},
        }
    ],
}

TOML = """\
schema = 1
[run]
lab = "synthetic"
name = "{name}"
seed = {seed}
changed = {changed}
[setup]
model = "{model}"
data = "sums"
gpu = "NVIDIA H200"
container = false
miles_date = 2026-08-21
shared = {shared}
clock_record = "{clock}"
[settings]
rollout_batch_size = 32
[[unusable]]
column = "rollout/ref_log_probs"
reason = "attends across sequences"
"""

REPORTED = """\
schema = 1
[lab]
name = "paper"
gpu = "NVIDIA GB10"
image = "x@sha256:0"
miles_date = 2026-10-15
[[run]]
id = "plain"
seed = "default (1234)"
[[run]]
id = "large"
differs = "Qwen3-4B, memory fraction 0.2"
[[run]]
id = "middle"
differs = "Qwen3-1.7B, answers cut at 256 tokens"
[[setting]]
id = "model"
value = "Qwen3-0.6B"
unit = ""
printed = "Qwen3-0.6B"
section = "1.1"
[[value]]
id = "first"
run = "plain"
value = 233
unit = "s"
printed = "233"
section = "1.1"
contradiction = "one-exception"
[[value]]
id = "range"
run = ["plain", "other"]
low = 0.53
high = 0.7
unit = ""
printed = "0.53 to 0.70"
section = "1.3"
[[value]]
id = "killed"
run = "large"
value = 119
unit = "GB"
printed = "119"
section = "2.3"
[[value]]
id = "fit"
run = ["plain", "middle", "large"]
value = 4
unit = "steps"
printed = "4"
section = "2.1"
[[value]]
id = "orphan"
run = ""
value = 3
unit = "groups"
printed = "3"
section = "1.3"
"""


@pytest.fixture
def lab(tmp_path):
    """Write synthetic runs below a temporary root, and read evidence from there."""

    def add(name, seed=1, model="tiny", shared=False, clock="", changed=(), summary=SUMMARY):
        folder = tmp_path / "capture/gpu/out-synthetic" / name
        folder.mkdir(parents=True)
        text = TOML.format(
            name=name,
            seed=seed,
            model=model,
            shared=str(shared).lower(),
            clock=clock,
            changed=json.dumps(list(changed)),
        )
        (folder / "run.toml").write_text(text)
        (folder / "summary.json").write_text(json.dumps(summary))
        return f"synthetic/{name}"

    paper = tmp_path / "capture/gpu/out-paper"
    paper.mkdir(parents=True)
    (paper / "reported.toml").write_text(REPORTED)
    with evidence.use_root(tmp_path):
        yield add
