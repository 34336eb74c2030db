"""The launcher: its command, its traps, its downloads, and a run with a stand-in for Ray."""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import miles_grpo as launcher
import pytest
import yaml
from mileskit.log import logparse

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "capture" / "gpu" / "miles_grpo.py"
FLAGS = yaml.safe_load((ROOT / "manuals" / "data" / "miles-flags.yaml").read_text())["flags"]
KNOWN = {flag["name"] for flag in FLAGS if flag["in_snapshot"]}
HOPPER = launcher.Machine(capability="9.0", cpus=16, has_miles=False)
BLACKWELL = HOPPER._replace(capability="12.1")


def command(**env):
    return launcher.default_command(env)


def values(words):
    """Each flag with the words that win."""
    return {name: rest for name, *rest in launcher.grouped(words)[1:]}


def traps(env, machine=HOPPER):
    return {one.id: one for one in launcher.check(launcher.read_settings(env), env, machine)}


# --- the command --------------------------------------------------------------------------------


def test_the_default_recipe_is_the_one_of_the_manual():
    stated = {
        "--hf-checkpoint": "/root/lab/models/Qwen3-0.6B",
        "--prompt-data": "/root/lab/datasets/gsm8k/train.parquet",
        "--rollout-batch-size": "32",
        "--n-samples-per-prompt": "8",
        "--global-batch-size": "256",
        "--rollout-max-response-len": "1024",
        "--rm-type": "math",
        "--train-backend": "fsdp",
        "--sglang-mem-fraction-static": "0.4",
        "--update-weight-buffer-size": str(512 * 2**20),
        "--save-debug-event-data": "/root/lab/runs/plain/events",
        "--actor-num-nodes": "1",
        "--actor-num-gpus-per-node": "1",
        "--num-rollout": "12",
        "--seed": "1234",
        "--rollout-seed": "42",
    }
    found = values(command())
    assert {name: found[name][0] for name in stated} == stated
    assert found["--colocate"] == []
    assert command()[:2] == ["python3", "/root/miles/train.py"]


def test_the_default_recipe_loads_no_reference_model():
    found = values(command())
    assert "--use-kl-loss" not in found
    assert float(found["--kl-coef"][0]) == 0


@pytest.mark.parametrize("flag", [*launcher.RECIPE, *launcher.TRUE_ON_POLICY], ids=lambda f: f.name)
def test_every_printed_flag_exists_in_the_snapshot_or_carries_its_date(flag):
    assert flag.name in KNOWN or re.fullmatch(r"20\d\d-\d\d-\d\d", flag.since)


def test_a_switch_has_no_value_and_every_other_flag_has_one():
    kinds = {flag["name"]: flag["type"] for flag in FLAGS}
    for flag in (*launcher.RECIPE, *launcher.TRUE_ON_POLICY):
        assert (flag.value is None) == (
            kinds[flag.name] in ("flag", "bool") or "-enable-" in flag.name
        )


def test_a_value_is_among_the_choices_of_its_flag():
    choices = {flag["name"]: flag["choices"] for flag in FLAGS if "choices" in flag}
    found = values(command(MILES_TRUE_ON_POLICY="1"))
    assert all(found[name][0] in choices[name] for name in found if name in choices)


CHANGES = {
    "MILES_RUN": ("seed2", "--save-debug-event-data", ["/root/lab/runs/seed2/events"]),
    "MILES_NUM_ROLLOUT": ("48", "--num-rollout", ["48"]),
    "MILES_EXTRA_ARGS": ("--lr 5e-6", "--lr", ["5e-6"]),
    "MILES_TRUE_ON_POLICY": ("1", "--true-on-policy-mode", []),
    "MILES_SEED": ("7", "--seed", ["7"]),
    "MILES_ROLLOUT_SEED": ("8", "--rollout-seed", ["8"]),
    "MILES_MODEL": ("Qwen/Qwen3-4B", "--hf-checkpoint", ["/root/lab/models/Qwen3-4B"]),
    "MILES_DATA": ("me/sums", "--prompt-data", ["/root/lab/datasets/sums/train.parquet"]),
    "MILES_LAB": ("/lab", "--hf-checkpoint", ["/lab/models/Qwen3-0.6B"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_variable_changes_its_flag_and_nothing_that_it_does_not_name(name):
    value, flag, wanted = CHANGES[name]
    changed, plain = values(command(**{name: value})), values(command())
    assert changed[flag] == wanted
    assert plain.get(flag) != wanted
    if name in ("MILES_NUM_ROLLOUT", "MILES_SEED", "MILES_ROLLOUT_SEED"):
        assert {key for key in plain if plain[key] != changed[key]} == {flag}


def test_the_folders_of_miles_and_megatron_reach_program_and_path():
    env = {"MILES_DIR": "/opt/miles", "MILES_MEGATRON_DIR": "/opt/megatron"}
    assert command(**env)[1] == "/opt/miles/train.py"
    path = launcher.runtime_env(launcher.read_settings(env), env)["env_vars"]["PYTHONPATH"]
    assert path.split(":")[:2] == ["/opt/miles", "/opt/megatron"]


def test_every_setting_has_a_test_that_changes_it():
    tested = {*CHANGES, "MILES_DIR", "MILES_MEGATRON_DIR"}
    tested |= {"MILES_SGLANG_ATTENTION", "MILES_FSDP_ATTENTION", "MILES_SCRIPT_EXTERNAL_RAY"}
    assert {setting.name for setting in launcher.SETTINGS} == tested


def test_a_local_model_and_data_file_are_taken_as_they_are():
    found = values(command(MILES_MODEL="/m/SmolLM", MILES_DATA="/d/sums.jsonl"))
    assert found["--hf-checkpoint"] == ["/m/SmolLM"]
    assert found["--prompt-data"] == ["/d/sums.jsonl"]


def test_an_extra_flag_comes_after_ours_and_the_last_value_wins_as_argparse_reads_it():
    words = command(MILES_EXTRA_ARGS="--sglang-mem-fraction-static 0.25 --rollout-top-p 0.95")
    assert words[-4:] == ["--sglang-mem-fraction-static", "0.25", "--rollout-top-p", "0.95"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang-mem-fraction-static", type=float)
    assert parser.parse_known_args(words[2:])[0].sglang_mem_fraction_static == 0.25


def test_true_on_policy_flags_come_after_the_extra_ones_and_win():
    extra = "--sglang-attention-backend flashinfer --attn-implementation sdpa"
    words = command(MILES_EXTRA_ARGS=extra, MILES_TRUE_ON_POLICY="1")
    own = [flag.name for flag in launcher.TRUE_ON_POLICY]
    assert [group[0] for group in launcher.grouped(words)[1:]][-len(own) :] == own
    assert values(words)["--sglang-attention-backend"] == ["fa3"]
    assert values(words)["--attn-implementation"] == ["flash_attention_3"]


def test_attention_variables_act_in_true_on_policy_mode_only():
    env = {"MILES_SGLANG_ATTENTION": "triton", "MILES_FSDP_ATTENTION": "sdpa"}
    assert command(**env) == command()
    assert "attention-without-mode" in traps(env)
    found = values(command(**env, MILES_TRUE_ON_POLICY="1"))
    assert found["--sglang-attention-backend"] == ["triton"]
    assert found["--attn-implementation"] == ["sdpa"]


def test_quoted_extra_values_stay_one_word():
    words = command(
        MILES_EXTRA_ARGS="""--apply-chat-template-kwargs '{"enable_thinking": false}'"""
    )
    assert words[-1] == '{"enable_thinking": false}'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MILES_RUN", "../up"),
        ("MILES_RUN", ""),
        ("MILES_RUN", "a b"),
        ("MILES_NUM_ROLLOUT", "twelve"),
        ("MILES_NUM_ROLLOUT", "0"),
        ("MILES_NUM_ROLLOUT", "-1"),
        ("MILES_NUM_ROLLOUT", "99999999999999999999"),
        ("MILES_NUM_ROLLOUT", "\uff11"),
        ("MILES_SEED", "1.5"),
        ("MILES_ROLLOUT_SEED", str(2**31)),
        ("MILES_TRUE_ON_POLICY", "maybe"),
        ("MILES_SGLANG_ATTENTION", "fa3 --lr 1"),
        ("MILES_FSDP_ATTENTION", ""),
        ("MILES_MODEL", "Qwen3-0.6B"),
        ("MILES_DATA", "a/b/c"),
        ("MILES_LAB", "lab"),
        ("MILES_DIR", "/opt/my miles"),
        ("MILES_EXTRA_ARGS", "--lr '1"),
    ],
)
def test_a_bad_value_is_one_line_with_variable_and_value_and_exit_2(capsys, name, value):
    assert launcher.main(["--dry-run"], {name: value}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert f"{name}={value!r}" in err


SECRETS = [
    ("--wandb-key HIDDEN", "opensesame"),
    ("--wandb-key=HIDDEN", "x"),
    ("--wandb-k HIDDEN", "opensesame"),
    ("--wandb-group HIDDEN", "0123456789abcdef0123456789abcdef01234567"),
    ("--hf-checkpoint HIDDEN", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"),
    ("--note HIDDEN", "sk-proj-AbCdEfGhIjKlMnOpQr"),
    ("--sglang-api-key HIDDEN", "opensesame"),
    ("""--train-env-vars '{"WANDB_API_KEY": "HIDDEN"}'""", "opensesame"),
    ("--rm-url http://me:HIDDEN@host/score", "opensesame"),
    ("--note HIDDEN", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    ("--note 'HIDDEN", "sk-proj-AbCdEfGhIjKlMnOpQr"),
]


@pytest.mark.parametrize(("text", "hidden"), SECRETS)
def test_a_secret_is_refused_with_the_reason_and_never_printed(capsys, text, hidden):
    env = {"MILES_EXTRA_ARGS": text.replace("HIDDEN", hidden)}
    assert launcher.main(["--dry-run"], env) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "MILES_EXTRA_ARGS: holds a" in err
    assert "--env-file" in err
    assert not re.search(rf"\b{re.escape(hidden)}\b", err)


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens-per-gpu=4096 --rollout-stop-token-ids 5 --rollout-skip-special-tokens",
        "--reward-key score --input-key messages --eval-label-key label",
        "--hf-checkpoint /c/models--Qwen/snapshots/0123456789abcdef0123456789abcdef01234567",
        "--use-wandb --wandb-group plain --wandb-dir /root/lab/runs/plain/wandb",
        "--rm-url http://host:8000/score",
        "--chat-template-path /root/lab/tokenizer.jinja",
    ],
)
def test_flags_that_only_sound_like_secrets_pass(text):
    assert launcher.secret_in(text) == ""


# --- traps --------------------------------------------------------------------------------------


def extra(text, **more):
    return {"MILES_EXTRA_ARGS": text, **more}


FILTER = "--dynamic-sampling-filter-path miles.rollout.filter_hub.x.check_reward_nonzero_std"
ON_POLICY = {"MILES_TRUE_ON_POLICY": "1"}
# For each trap: (environment, machine, severity); TMP stands for a folder made by the test.
STEPS_INTO = {
    "stray-word": (extra("rollout-top-p 0.95"), HOPPER),
    "gpus": (extra("--actor-num-gpus-per-node 8"), HOPPER),
    "fa3-off-hopper": (extra("--sglang-attention-backend fa3"), BLACKWELL),
    "fa3-unknown-gpu": (
        extra("--attn-implementation flash_attention_3"),
        HOPPER._replace(capability=None),
    ),
    "model-not-in-contract": ({**ON_POLICY, "MILES_MODEL": "Qwen/Qwen3-8B"}, HOPPER),
    "attention-not-in-contract": ({**ON_POLICY, "MILES_SGLANG_ATTENTION": "flashinfer"}, HOPPER),
    "attention-without-mode": ({"MILES_SGLANG_ATTENTION": "fa3"}, HOPPER),
    "trainer-attention": (extra("--attn-implementation triton"), HOPPER),
    "save-without-interval": (extra("--save /ckpt/a"), HOPPER),
    "deepscaler-short": (extra("--rm-type deepscaler"), HOPPER),
    "boxed-prefix": (extra("--rm-type boxed_math"), HOPPER),
    "dapo-without-key": (extra("--rm-type dapo"), HOPPER),
    "unknown-reward": (extra("--rm-type maths"), HOPPER),
    "remote-without-address": (extra("--rm-type remote_rm"), HOPPER),
    "no-such-module": (
        extra("--custom-rm-path no_such_rewards.rm"),
        HOPPER._replace(has_miles=True),
    ),
    "plain-reward": (extra("--custom-rm-path plain_rm.score", PYTHONPATH="TMP"), HOPPER),
    "group-of-one-filtered": (
        extra(f"--n-samples-per-prompt 1 --global-batch-size 32 {FILTER}"),
        HOPPER,
    ),
    "group-of-one": (extra("--n-samples-per-prompt 1 --global-batch-size 32"), HOPPER),
    "kl-without-reference": (extra("--use-kl-loss --kl-loss-coef 0.1"), HOPPER),
    "kl-loss-zero": (extra("--use-kl-loss --ref-load /m"), HOPPER),
    "fsdp-ignores": (extra("--deterministic-mode"), HOPPER),
    "resume": (extra("--save TMP --save-interval 2 --load TMP"), HOPPER),
    "resume-splits": (extra("--save /a --save-interval 2 --load /b"), HOPPER),
    "group-reward-with-eval": (
        extra("--group-rm --eval-interval 5 --eval-prompt-data t /t.parquet"),
        HOPPER,
    ),
    "ray-runs": ({}, HOPPER._replace(ray_runs=True)),
    "few-cpus": ({}, HOPPER._replace(cpus=2)),
    "same-sampling-seeds": (extra("--sglang-enable-deterministic-inference"), HOPPER),
    "label-zero": ({"MILES_DATA": "TMP/zero.jsonl"}, HOPPER),
    "label-worked": ({"MILES_DATA": "TMP/worked.jsonl"}, HOPPER),
    "wandb-without-group": (extra("--use-wandb --wandb-mode offline"), HOPPER),
    "batch-too-large": (extra("--global-batch-size 512"), HOPPER),
    "batch-not-one-update": (extra("--n-samples-per-prompt 16"), HOPPER),
    "over-sampling-small": (extra("--over-sampling-batch-size 16"), HOPPER),
    "top-p-without-top-k": (extra("--rollout-top-p 0.95"), HOPPER),
    "lora-on-fsdp": (extra("--lora-rank 16 --target-modules all"), HOPPER),
    "partial-fully-async": (extra("--partial-rollout --fully-async"), HOPPER),
    "fully-async": (extra("--fully-async"), HOPPER),
    "one-engine-tolerance": (extra("--use-fault-tolerance"), HOPPER),
    "offload-level": (extra("--offload-rollout-level kvcache"), HOPPER),
    "prompt-file": (extra("--prompt-data /d/train.json"), HOPPER),
    "run-used": (extra("--save-debug-event-data TMP"), HOPPER),
    "proxy": ({"HTTP_PROXY": "http://p:1"}, HOPPER),
    "unknown-flag": (
        extra("--rollout-batch-sise 32"),
        HOPPER._replace(flag_names=frozenset(KNOWN)),
    ),
    "unknown-variable": ({"MILES_NUM_ROLLOUTS": "3"}, HOPPER),
}


@pytest.fixture
def trap_folder(tmp_path):
    (tmp_path / "zero.jsonl").write_text('{"messages": "1-1", "label": 0}\n')
    (tmp_path / "worked.jsonl").write_text('{"messages": "a", "label": "1 + 1 = 2 #### 2"}\n')
    (tmp_path / "plain_rm.py").write_text("def score(args, sample):\n    return 1.0\n")
    (tmp_path / "good_rm.py").write_text("async def score(args, sample):\n    return 1.0\n")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    (tmp_path / "main.jsonl").write_text("{}\n")
    return tmp_path


def test_every_trap_has_an_example():
    assert set(STEPS_INTO) == {trap.id for trap in launcher.TRAPS}
    assert len(STEPS_INTO) == len(launcher.TRAPS)


@pytest.mark.parametrize("trap", launcher.TRAPS, ids=lambda trap: trap.id)
def test_a_trap_fires_on_its_example_and_not_on_the_default_recipe(trap, trap_folder):
    env, machine = STEPS_INTO[trap.id]
    env = {name: value.replace("TMP", str(trap_folder)) for name, value in env.items()}
    assert trap.id in traps(env, machine)
    assert trap.id not in traps({})
    assert trap.id not in traps({}, BLACKWELL._replace(flag_names=frozenset(KNOWN)))


@pytest.mark.parametrize("trap", launcher.TRAPS, ids=lambda trap: trap.id)
def test_only_a_refused_trap_stops_the_launch(trap, trap_folder, monkeypatch, capsys):
    env, machine = STEPS_INTO[trap.id]
    env = {name: value.replace("TMP", str(trap_folder)) for name, value in env.items()}
    monkeypatch.setattr(launcher, "look", lambda settings: machine)
    monkeypatch.setattr(launcher, "_passing_as_warnings", list)
    status = launcher.main(["--dry-run"], env)
    out, err = capsys.readouterr()
    refused = [one.id for one in traps(env, machine).values() if one.severity == launcher.REFUSED]
    assert status == (2 if refused else 0)
    assert f"# {trap.severity} {trap.id}: " in out
    assert [line.split(": ")[1].split()[1] for line in err.splitlines()] == refused
    assert (trap.id in refused) == (trap.severity == launcher.REFUSED)


NEARLY = {
    "gpus": (extra("--actor-num-gpus-per-node 1 --rollout-num-gpus 8"), HOPPER),
    "fa3-off-hopper": (extra("--sglang-attention-backend fa3"), HOPPER),
    "attention-not-in-contract": (ON_POLICY, HOPPER),
    "save-without-interval": (extra("--save /a --save-interval 5"), HOPPER),
    "deepscaler-short": (extra("--rm-type deepscaler --rollout-max-response-len 8192"), HOPPER),
    "boxed-prefix": (extra("--rm-type boxed_f1"), HOPPER),
    "dapo-without-key": (extra("--rm-type dapo --reward-key score"), HOPPER),
    "unknown-reward": (extra("--rm-type boxed_f1"), HOPPER),
    "no-such-module": (
        extra("--custom-rm-path good_rm.score", PYTHONPATH="TMP"),
        HOPPER._replace(has_miles=True),
    ),
    "plain-reward": (extra("--custom-rm-path good_rm.score", PYTHONPATH="TMP"), HOPPER),
    "group-of-one-filtered": (extra(FILTER), HOPPER),
    "kl-without-reference": (extra("--use-kl-loss --ref-load /m"), HOPPER),
    "kl-loss-zero": (extra("--use-kl-loss --ref-load /m --kl-loss-coef 0.001"), HOPPER),
    "resume": (extra("--load /nowhere --save /nowhere --save-interval 2"), HOPPER),
    "wandb-without-group": (extra("--use-wandb --wandb-group plain"), HOPPER),
    "batch-not-one-update": (
        extra("--n-samples-per-prompt 16 --global-batch-size 512"),
        HOPPER,
    ),
    "top-p-without-top-k": (extra("--rollout-top-p 0.95 --rollout-top-k 64"), HOPPER),
    "ray-runs": ({"MILES_SCRIPT_EXTERNAL_RAY": "1"}, HOPPER._replace(ray_runs=True)),
    "few-cpus": ({}, HOPPER._replace(cpus=3)),
    "stray-word": (extra("--eval-prompt-data gsm8k_test /t.parquet --rollout-top-k -1"), HOPPER),
    "unknown-flag": (
        extra("--sglang-some-engine-flag 1 --router-policy x --no-offload-rollout"),
        HOPPER._replace(flag_names=frozenset(KNOWN)),
    ),
    "prompt-file": (extra("--prompt-data '/d/train.jsonl@[0:100]'"), HOPPER),
}


@pytest.mark.parametrize("trap", NEARLY)
def test_a_trap_stays_quiet_on_the_setting_that_avoids_it(trap, trap_folder):
    env, machine = NEARLY[trap]
    env = {name: value.replace("TMP", str(trap_folder)) for name, value in env.items()}
    assert trap not in traps(env, machine)


def test_each_of_the_17_traps_is_checked_or_named_as_not_visible():
    numbers = {trap.number for trap in launcher.TRAPS} - {0}
    assert numbers | set(launcher.NOT_VISIBLE) == set(range(1, 18))
    assert not numbers & set(launcher.NOT_VISIBLE)


def test_a_flag_that_wins_decides_about_a_trap():
    assert "dapo-without-key" not in traps(extra("--rm-type dapo --rm-type math"))


# --- dry run and help ---------------------------------------------------------------------------


def dry_run(env, *options):
    return subprocess.run(
        [sys.executable, str(HERE), "--dry-run", *options],
        env={"PATH": "/nowhere", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_dry_run_needs_neither_gpu_nor_miles_and_can_be_pasted_into_a_shell():
    env = extra("""--apply-chat-template-kwargs '{"enable_thinking": false}'""")
    done = dry_run(env)
    assert done.returncode == 0, done.stderr
    line = f"set -- {done.stdout.split('python3', 1)[1]}\n"
    pasted = subprocess.run(
        ["/bin/sh", "-c", line + 'printf "%s\\n" "$@"'], capture_output=True, text=True, check=True
    )
    assert pasted.stdout.splitlines() == command(**env)[1:]


def test_the_dry_run_counts_the_flags_that_it_prints():
    done = dry_run(extra("--rollout-top-p 0.9 --rollout-top-k 64"))
    printed = [line for line in done.stdout.splitlines() if line.startswith("  --")]
    assert f"# {len(printed)} flags, {len(printed) - 2} of them" in done.stdout.splitlines()[-1]
    assert len(printed) - 2 == len(launcher.RECIPE)


def test_the_dry_run_as_json_holds_command_environment_and_traps():
    body = json.loads(dry_run(extra("--save /a"), "--json").stdout)
    assert body["command"] == command(MILES_EXTRA_ARGS="--save /a")
    assert "save-without-interval" in [trap["id"] for trap in body["traps"]]
    assert body["runtime_env"]["env_vars"]["PYTHONUNBUFFERED"] == "1"


def test_the_launcher_works_copied_alone(tmp_path):
    shutil.copy(HERE, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "miles_grpo.py"), "--dry-run"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "--rollout-batch-size 32" in done.stdout


def test_the_help_lists_every_variable_and_the_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--help"], {})
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(setting.name in out for setting in launcher.SETTINGS)
    assert "Exit codes" in out


def test_python_path_reaches_the_workers_and_the_lab_folder_comes_last():
    env = {"PYTHONPATH": "/mine:/root/lab", "MILES_LAB": "/root/lab"}
    path = launcher.runtime_env(launcher.read_settings(env), env)["env_vars"]["PYTHONPATH"]
    assert path == "/root/miles:/root/Megatron-LM:/mine:/root/lab"


def test_no_key_of_the_environment_is_printed():
    env = {"WANDB_API_KEY": "opensesame", "HF_TOKEN": "opensesame"}
    assert "opensesame" not in dry_run(env, "--json").stdout


# --- downloads ----------------------------------------------------------------------------------


class Hub:
    """Stand-in for the Hugging Face client: writes the files of a small model or data set."""

    def __init__(self, leave_out=(), fails=False):
        self.calls, self.leave_out, self.fails = [], leave_out, fails

    def __call__(self, repo, kind, folder):
        self.calls.append((repo, kind))
        names = {
            "model": ("config.json", "tokenizer_config.json", "model.safetensors"),
            "dataset": ("train.parquet", "test.parquet"),
        }[kind]
        for name in names:
            if name not in self.leave_out:
                Path(folder, name).write_bytes(b"x" * 10)
        if self.fails:
            raise OSError("connection lost\nsecond line")


@pytest.fixture
def lab(tmp_path):
    return launcher.read_settings({"MILES_LAB": str(tmp_path)})


def test_the_first_call_downloads_model_and_data_and_the_second_nothing(lab, tmp_path):
    hub = Hub()
    assert launcher.prepare(lab, hub) == 2
    assert hub.calls == [("Qwen/Qwen3-0.6B", "model"), ("zhuzilin/gsm8k", "dataset")]
    assert launcher.prepare(lab, hub) == 0
    assert len(hub.calls) == 2
    assert (tmp_path / "datasets/gsm8k/test.parquet").is_file()
    assert (tmp_path / "runs/plain").is_dir()


def test_a_broken_download_is_not_taken_for_whole(lab):
    with pytest.raises(launcher.LauncherError, match=r"cannot download Qwen/Qwen3-0\.6B") as error:
        launcher.prepare(lab, Hub(fails=True))
    assert "\n" not in str(error.value)
    assert launcher.prepare(lab, Hub()) == 2


def test_a_file_that_shrank_or_went_is_fetched_again(lab, tmp_path):
    launcher.prepare(lab, Hub())
    (tmp_path / "models/Qwen3-0.6B/model.safetensors").write_bytes(b"x")
    assert launcher.prepare(lab, Hub()) == 1
    (tmp_path / "datasets/gsm8k/test.parquet").unlink()
    assert launcher.prepare(lab, Hub()) == 1


def test_a_download_without_weights_is_an_error(lab):
    with pytest.raises(launcher.LauncherError, match=r"no \*\.safetensors"):
        launcher.prepare(lab, Hub(leave_out=("model.safetensors",)))


def test_local_folders_download_nothing_and_must_be_whole(tmp_path):
    env = {"MILES_LAB": str(tmp_path), "MILES_MODEL": str(tmp_path / "m")}
    env["MILES_DATA"] = str(tmp_path / "d.jsonl")
    with pytest.raises(launcher.LauncherError, match=r"no config\.json"):
        launcher.prepare(launcher.read_settings(env), Hub())
    (tmp_path / "m").mkdir()
    for name in ("m/config.json", "m/w.safetensors", "d.jsonl"):
        (tmp_path / name).write_text("{}")
    hub = Hub()
    assert launcher.prepare(launcher.read_settings(env), hub) == 0
    assert hub.calls == []


def test_a_missing_hub_client_is_one_clear_line(lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(launcher.LauncherError, match="huggingface_hub"):
        launcher.prepare(lab)


# --- a run, with a stand-in for Ray -------------------------------------------------------------

RAY = """#!{python}
import json, os, signal, sys, time
with open("{calls}", "a") as out:
    out.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["job", "submit"]:
    wait = float(os.environ.get("FAKE_SECONDS", "0"))
    def ended(number, frame):
        print("job saw signal", number, flush=True)
        sys.exit(1)
    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    print("job runs", flush=True)
    time.sleep(wait)
    sys.stdout.write("a bar without an end of line")
    sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
"""
DRIVER = (
    "import sys, miles_grpo; miles_grpo._ray_runs = lambda: False; sys.exit(miles_grpo.main([]))"
)


@pytest.fixture
def place(tmp_path):
    """A Miles folder, a lab, a model, data and a stand-in `ray`; returns (environment, calls)."""
    for name in ("bin", "miles", "lab", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "miles/train.py").write_text("")
    for name in ("model/config.json", "model/w.safetensors", "data.jsonl"):
        (tmp_path / name).write_text('{"label": "1"}')
    calls = tmp_path / "calls"
    ray = tmp_path / "bin/ray"
    ray.write_text(RAY.format(python=sys.executable, calls=calls))
    ray.chmod(0o755)
    smi = tmp_path / "bin/nvidia-smi"
    smi.write_text(
        '#!/bin/sh\ncase "$*" in *compute_cap*) echo 9.0;; *) echo "NVIDIA H200, 580";; esac\n'
    )
    smi.chmod(0o755)
    env = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": str(HERE.parent),
        "MILES_DIR": str(tmp_path / "miles"),
        "MILES_LAB": str(tmp_path / "lab"),
        "MILES_MODEL": str(tmp_path / "model"),
        "MILES_DATA": str(tmp_path / "data.jsonl"),
    }
    return env, calls


def start(env, **more):
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**env, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ray_calls(calls):
    return [json.loads(line) for line in calls.read_text().splitlines()]


END = re.compile(r"# end 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ rc=(\d+) seconds=(\d+)")


def test_a_run_writes_both_markers_and_submits_the_printed_command(place):
    env, calls = place
    out, _ = (child := start(env, MILES_RUN="a1")).communicate(timeout=60)
    assert child.returncode == 0, out
    lines = out.splitlines()
    assert lines[0] == "# run a1"
    assert re.fullmatch(r"# date 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[1])
    wanted = launcher.default_command({**env, "MILES_RUN": "a1"})
    assert lines[2].startswith("# command: python3 ")
    assert lines[2].removeprefix("# command: ").split() == wanted
    assert "# gpu NVIDIA H200, 580" in lines
    assert END.fullmatch(lines[-1])[1] == "0"
    begin, submit, stop = ray_calls(calls)
    assert begin[:6] == ["start", "--head", "--node-ip-address", "127.0.0.1", "--num-gpus", "1"]
    assert submit[submit.index("--") + 1 :] == wanted
    assert stop[0] == "stop"
    assert [line for line in lines if line.startswith("EXEC: ")][1].endswith(" ".join(wanted))


def parsed(text):
    parser = logparse.LogParser()
    return [*parser.feed(text.encode()), *parser.close()]


def test_the_parser_of_the_kit_reads_the_markers(place):
    env, _ = place
    out, _ = start(env, MILES_RUN="a1", FAKE_STATUS="7").communicate(timeout=60)
    events = parsed(out)
    marks = {event.name: event for event in events if type(event).__name__ == "Marker"}
    assert marks["run"].text == "a1"
    assert marks["command"].text.split() == launcher.default_command({**env, "MILES_RUN": "a1"})
    assert marks["end"].status == 7
    assert marks["date"].time <= marks["end"].time
    assert [event.how for event in events if type(event).__name__ == "JobEnd"] == ["failed"]


def test_the_text_of_a_trap_in_the_log_is_no_error_for_the_parser():
    lines = [f"# {trap.severity} {trap.id}: {trap.advice}\n" for trap in launcher.TRAPS]
    assert {type(event).__name__ for event in parsed("".join(lines))} == {"Marker"}


def test_the_exit_status_of_the_job_passes_through(place):
    env, _ = place
    out, _ = (child := start(env, FAKE_STATUS="7")).communicate(timeout=60)
    assert child.returncode == 7
    assert END.fullmatch(out.splitlines()[-1])[1] == "7"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_job_and_the_end_marker_is_written(place, number):
    env, calls = place
    child = start(env, FAKE_SECONDS="60")
    seen = ""
    while "job runs" not in seen:
        seen += (line := child.stdout.readline())
        assert line, seen
    began = time.monotonic()
    child.send_signal(number)
    out, _ = child.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert child.returncode == 128 + number
    assert f"job saw signal {int(number)}" in out
    assert END.fullmatch(out.splitlines()[-1])[1] == str(128 + number)
    assert ray_calls(calls)[-1][0] == "stop"


def test_a_command_that_a_shell_would_read_goes_through_a_script(place):
    env, calls = place
    more = {"MILES_EXTRA_ARGS": """--apply-chat-template-kwargs '{"enable_thinking": false}'"""}
    start(env, **more).communicate(timeout=60)
    submit = ray_calls(calls)[1]
    script = Path(submit[-1])
    assert submit[-3:-1] == ["--", "sh"]
    shown = subprocess.run(
        ["/bin/sh", "-c", script.read_text().replace("exec python3", 'printf "%s\\n"')],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == launcher.default_command({**env, **more})[1:]


def test_a_ray_of_the_user_is_neither_started_nor_stopped(place):
    env, calls = place
    start(env, MILES_SCRIPT_EXTERNAL_RAY="1").communicate(timeout=60)
    assert [call[0] for call in ray_calls(calls)] == ["job"]


def test_a_missing_ray_ends_with_2_and_a_marker(place):
    env, _ = place
    Path(env["PATH"].split(":")[0], "ray").unlink()
    out, _ = (child := start(env)).communicate(timeout=60)
    assert child.returncode == 2
    assert "cannot run ray" in out
    assert END.fullmatch(out.splitlines()[-1])[1] == "2"


def test_a_refused_trap_starts_nothing(place):
    env, calls = place
    out, _ = (child := start(env, MILES_EXTRA_ARGS="--fully-async")).communicate(timeout=60)
    assert child.returncode == 2
    assert out.startswith("miles_grpo.py: refused fully-async: ")
    assert not calls.exists()
    assert not list(Path(env["MILES_LAB"]).iterdir())


def test_a_wrong_miles_folder_is_named(place):
    env, _ = place
    out, _ = (child := start(env, MILES_DIR="/nowhere")).communicate(timeout=60)
    assert child.returncode == 2
    assert "MILES_DIR=/nowhere" in out


def test_a_dry_run_does_not_refuse_a_ray_that_runs_now(monkeypatch, capsys):
    monkeypatch.setattr(launcher, "look", lambda s: HOPPER._replace(ray_runs=True))
    assert launcher.main(["--dry-run"], {}) == 0
    assert "# warned ray-runs: now it would be refused" in capsys.readouterr().out


def test_a_dry_run_still_refuses_what_works_nowhere(monkeypatch, capsys):
    monkeypatch.setattr(launcher, "look", lambda s: HOPPER)
    env = {"MILES_EXTRA_ARGS": "--use-kl-loss"}
    assert launcher.main(["--dry-run"], env) == 2
    assert "refused" in capsys.readouterr().err


def test_a_reader_that_closes_the_pipe_sees_no_traceback():
    done = subprocess.run(
        f"{sys.executable} {launcher.__file__} --dry-run | head -c 5",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
