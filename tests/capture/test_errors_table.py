"""Error lines get the kind that decides the verdict; words in prompts and arguments get none."""

from __future__ import annotations

import re

import pytest
from errors_table import ROWS, task_kind
from events import ErrorLine, TaskRaised

from tests.capture.minilog import engine, of, sourced, text

RAY = "(FSDPTrainRayActor pid=9) "


def kinds(*lines: str) -> list[str]:
    return [e.kind for e in of(ErrorLine, text(*lines))]


EXAMPLES = [
    (
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low "
        "on memory. Memory on the node (IP: 192.0.2.1) was 115.8GB / 121.6GB (0.95)",
        "ray-memory-kill",
    ),
    ("(raylet) Task was killed due to the node running low on memory.", "ray-memory-kill"),
    (
        "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
        "crashed due to other reasons at node (ID: 1, IP: 192.0.2.1)",
        "ray-memory-kill",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda-oom"),
    (RAY + "torch.cuda.OutOfMemoryError: CUDA out of memory.", "cuda-oom"),
    ("[rank0]: torch.OutOfMemoryError: CUDA out of memory.", "cuda-oom"),
    (
        engine(1, "Exception: Capture cuda graph failed: CUDA out of memory. Tried"),
        "cuda-oom",
    ),
    (
        engine(1, "Exception: Capture cuda graph failed: Connection closed by peer"),
        "capture-failed",
    ),
    (
        RAY + "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please "
        "use `--attention-backend flashinfer`.",
        "kernel-missing",
    ),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "kernel-missing",
    ),
    (
        RAY + "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "kernel-missing",
    ),
    (
        RAY + 'FailedToCreateHTTPListener("Address already in use (os error 98)")',
        "port-in-use",
    ),
    (
        engine(
            1,
            "ERROR:    [Errno 98] error while attempting to bind on address "
            "('192.0.2.1', 15000): address already in use",
        ),
        "port-in-use",
    ),
    ("OSError: [Errno 28] No space left on device", "disk-full"),
    (
        engine(1, "Subprocess scheduler_0 (pid=5107) crashed with exit code -9. Triggering"),
        "engine-died",
    ),
    (
        engine(1, "Received sigquit from a child process. It usually means the child failed."),
        "engine-died",
    ),
    (sourced(1, "Server process terminated unexpectedly."), "engine-died"),
    (
        engine(1, "Scheduler hit an exception: Traceback (most recent call last):"),
        "engine-died",
    ),
    (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "worker-died",
    ),
    (
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its "
        "creation task, ray::RolloutManager.__init__()",
        "worker-init-failed",
    ),
    ("ray.exceptions.RayTaskError(ValueError): ray::X.train() (pid=1)", "task-error"),
    ("ModuleNotFoundError: No module named 'megatron'", "import-error"),
    ("train.py: error: unrecognized arguments: --nope 1", "argument-error"),
    ("AssertionError: global_batch_size 3 is not a multiple", "exception"),
    ("subprocess.CalledProcessError: Command '['python']' returned 1.", "command-failed"),
    (sourced(1, "Fatal async misuse, aborting: coroutine was never awaited"), "async-misuse"),
    ("kernel: Out of memory: Killed process 812 (python3) total-vm:9kB", "host-oom"),
    (engine(1, "Scheduler watchdog timeout (self.watchdog_timeout=300)"), "engine-hang"),
    (
        RAY + "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
        "collective-timeout",
    ),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-error"),
    ("RuntimeError: CUDA error: invalid device function", "kernel-missing"),
    (
        "RuntimeError: the provided PTX was compiled with an unsupported toolchain.",
        "kernel-missing",
    ),
    ("OSError: [Errno 122] Disk quota exceeded", "disk-full"),
    ("TypeError: object float can't be used in 'await' expression", "reward-await"),
    (
        RAY + "WARN smg::core::worker: HTTP health check failed for http://192.0.2.1:1/health",
        "router-unhealthy",
    ),
    (RAY + "thread '<unnamed>' (4339) panicked at /x/metrics.rs:360:10:", "panic"),
    ("FlashAttention only supports Ampere GPUs or newer.", "kernel-missing"),
    ("KeyboardInterrupt", "exception"),
]


@pytest.mark.parametrize(("line", "kind"), EXAMPLES)
def test_a_line_gets_its_kind(line, kind):
    assert kinds(line) == [kind]


def test_rays_possible_causes_are_advice():
    assert kinds(
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: FSDPTrainRayActor",
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer "
        "due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed "
        "unexpectedly due to SIGSEGV or other unexpected errors.",
    ) == ["worker-died", "worker-died"]


@pytest.mark.parametrize(
    "line",
    [
        engine(
            1,
            "server_args=ServerArgs(custom_sigquit_handler=None, crash_dump_folder=None, "
            "note='CUDA out of memory')",
        ),
        engine(1, "Ignore import error when loading an optional kernel: No module named 'helion'"),
        sourced(1, "First rollout sample: text_preview=RuntimeError: CUDA out of memory, label=3"),
        sourced(1, "Finish rollout: text_preview=killed due to the node running low on memory"),
        sourced(1, "eval sample: ['user: what does Address already in use mean?', 'answer']"),
        sourced(1, "prompt said: torch.OutOfMemoryError: CUDA out of memory"),
        "EXEC: python3 train.py --note 'CUDA out of memory'",
        "# command: python3 train.py --note 'No space left on device'",
        RAY + "<|im_start|>user\\nWhat is a CUDA out of memory error?<|im_end|>",
        '    raise RuntimeError("Server process terminated unexpectedly.")',
        RAY + '  File "/x/y.py", line 3, in crashed_with_exit',
        "WARNING: Port 8265 is already in use, using 8266 instead",
    ],
)
def test_words_in_prompts_arguments_and_code_are_no_error(line):
    assert kinds(line) == []


@pytest.mark.parametrize("cut", [45, 66, 71])
def test_a_wrapped_memory_kill_is_recognized(cut):
    whole = "Task (id 4) on node 1 (head): it was killed due to the node running low on memory."
    at = whole.rindex(" ", 0, cut)
    assert kinds(whole[:at], whole[at + 1 :]) == ["ray-memory-kill"]


def test_repeated_errors_count_k_times():
    line = RAY + "RuntimeError: boom [repeated 7x across cluster]"
    assert [e.count for e in of(ErrorLine, text(line))] == [7]


def test_the_text_of_an_error_is_printable_and_short():
    line = "\x1b[31mRuntimeError: \x00\x07boom " + "x" * 9000 + "\x1b[0m"
    (one,) = of(ErrorLine, text(line))
    assert one.text.startswith("RuntimeError:   boom xxx")
    assert one.text.isprintable()
    assert len(one.text) <= 400


def test_a_reward_that_raises_is_told_from_one_that_cannot_be_imported():
    assert task_kind("ModuleNotFoundError", "") == "reward-import"
    assert (
        task_kind("TypeError", "object float can't be used in 'await' expression") == "reward-await"
    )
    assert task_kind("TypeError", "unsupported operand") == "other"
    line = sourced(1, "[rollout] Task raised exception: NotImplementedError('rm')")
    assert of(TaskRaised, text(line))[0].kind == "reward-type"


def test_every_row_is_documented_and_reachable():
    """A row that an earlier row hides would never name a line."""
    assert {kind for _, kind in EXAMPLES} == {row.kind for row in ROWS}
    assert all(row.source and row.severity in {"fatal", "error", "cascade", "warn"} for row in ROWS)
    assert len({row.kind for row in ROWS}) == len(ROWS)
    assert all(re.fullmatch(r"[a-z-]+", row.kind) for row in ROWS)
