"""Runs of the real trainer and engine on a tiny model, for the tests: prints what came of them.

`real_run.py FOLDER kill` trains and kills itself inside a collection; `real_run.py FOLDER rest`
does everything else.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from capture.core import configfile, driver, verify
from capture.core.tasks.arithmetic import Arithmetic

ROOT = Path(sys.argv[1])


def reward(self, prompt, response) -> float:
    """The share of even tokens: groups of a random model differ in it, so that weights move."""
    return sum(token % 2 == 0 for token in response) / len(response)


Arithmetic.reward = reward


def config(name, **changes):
    data = {
        "rollout": {
            "num_rollout": 4,
            "rollout_batch_size": 3,
            "n_samples_per_prompt": 4,
            "max_new_tokens": 4,
        },
        "batch": {"global_batch_size": 6, "pack_tokens": 64},
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn": 16},
        "optimizer": {"lr": 1e-3},
        "schedule": {"kind": "cosine", "warmup_steps": 2},
        "task": {"eval_prompts": 4},
        "evaluation": {"interval": 2},
        "core": {"diagnostic_interval": 2},
        "miles": {
            "save": str(ROOT / name),
            "save_hf": str(ROOT / f"{name}-hf"),
            "save_interval": 1,
            "check_weight_update_equal": True,
        },
    }
    for key, value in changes.items():
        section, field = key.split("__")
        data.setdefault(section, {})[field] = value
    return configfile.parse(data)


def resume(name, **changes):
    return driver.run(config(name, miles__load=str(ROOT / name), **changes))


def weights(name):
    return load_file(ROOT / f"{name}-hf/model.safetensors")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def records(name):
    found = []
    for line in (ROOT / name / "training_contract_rank0.jsonl").read_text().splitlines():
        document = json.loads(line)
        found.append({k: v for k, v in document.items() if k not in ("seconds", "digest")})
    return found


def kill():
    def boundary(name, index):
        if (name, index) == ("trained", 2):
            os.kill(os.getpid(), signal.SIGKILL)

    driver.run(config("killed"), boundary=boundary)


def rest():
    straight = driver.run(config("straight"))
    stopped = driver.run(config("stopped", miles__debug_exit_after_rollout=2))
    early = (ROOT / "stopped-hf").exists()
    resumed = resume("stopped")
    resume("killed")
    single = {"batch__global_batch_size": 12, "scoring__compare_interval": 100}
    driver.run(config("one", **single))
    driver.run(config("two", **single, miles__debug_exit_after_rollout=2))
    resume("two", **single)
    lagging = driver.run(config("async", rollout__mode="async", rollout__max_lag=3))
    first = load_file(ROOT / "straight/start-model/model.safetensors")
    found = {
        "completed": [straight.completed, stopped.completed, resumed.completed, lagging.completed],
        "export before the horizon": early,
        "weights moved": not equal(weights("straight"), first),
        "stop and resume": equal(weights("straight"), weights("stopped")),
        "kill and resume": equal(weights("straight"), weights("killed")),
        "records": records("straight") == records("stopped") == records("killed"),
        "one step a collection": equal(weights("one"), weights("two")),
        "verified": verify.main(
            [
                str(ROOT / n / "training_contract_rank0.jsonl")
                for n in ("straight", "stopped", "killed", "async")
            ]
        ),
        "diagnostics": [r["step"] for r in records("straight") if "diagnostics" in r],
        "repeated": [p.version for p in straight.publications if p.repeated_version],
        "rewards": straight.rewards == stopped.rewards + resumed.rewards,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    {"kill": kill, "rest": rest}[sys.argv[2]]()
