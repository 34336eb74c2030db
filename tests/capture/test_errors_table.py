"""Error lines get the kind that decides the verdict; words in prompts and arguments get none."""

from __future__ import annotations

import re

import pytest
from mileskit.guard.rule_fatal import Fatals
from mileskit.log.errors_table import ROWS, task_kind
from mileskit.log.events import ErrorLine, TaskRaised

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

# Further wordings of a kind; the public report or program of each is named in the row's source.
WORDINGS = {
    "ray-memory-kill": [
        "ray.exceptions.OutOfMemoryError: Task failed",
        "(raylet) node_manager.cc:3049: 10 Workers (tasks / actors) killed due to memory pressure "
        "(OOM), 0 Workers crashed due to other reasons at node (ID: 1, IP: 192.0.2.1)",
    ],
    "cuda-oom": [
        "torch.OutOfMemoryError",
        "cudaErrorMemoryAllocation",
        "hipErrorOutOfMemory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "[torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h "
        "func=cu_mem_create line=194",
        "[torch_memory_saver.cpp] CUresult error  result=2 file=csrc/torch_memory_saver.cpp "
        "func=cu_mem_create line=103",
        "[torch_memory_saver.cpp] cudaError error: 2 (out of memory)  file=csrc/core.cpp "
        "func=resume line=172",
        "[torch_memory_saver.cpp] hipError_t error  result=2 file=csrc/torch_memory_saver_hip.cpp",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "RuntimeError: CUDA_ERROR_OUT_OF_MEMORY: cuMemCreate failed",
        "Cuda failure 2 'out of memory'",
        "host:77:90 [0] include/alloc.h:320 NCCL WARN Cuda failure 2 'out of memory'",
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA driver error: out of memory",
        "  what():  CUDA error: out of memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
    "kernel-missing": [
        "ptxas fatal   : Ptx assembly aborted due to errors",
        "Value 'sm_121a' is not defined for option 'gpu-name'",
        "AssertionError: MLA requires SM>=90",
        "device kernel image is invalid",
        "This build only supports Hopper",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        "RuntimeError: No supported CUDA architectures found for major versions [10].",
        "ptxas /tmp/a.ptx, line 57; error   : Feature '.bf16' requires .target sm_80 or higher",
        "ptxas /tmp/a.ptx, line 57; error   : Instruction 'tcgen05.alloc' not supported on "
        ".target 'sm_121'",
        "ptxas-blackwell /tmp/a.ptx, line 5; error   : Feature '.kind::i8' not supported on "
        ".target 'sm_103a'",
        "RuntimeError: CUDA runtime error: cudaErrorNoKernelImageForDevice at attention.cu:102",
        "cudaErrorNoKernelImageForDevice (error code: 209)",
        "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
        "RuntimeError: FlashInfer requires sm75+",
        "tvm.error.InternalError: Error in function 'TllmGenFmhaRunner' at flashinfer/trtllm/fmha/"
        "fmhaRunner.cuh:37: Unsupported architecture",
        "RuntimeError: Assertion error (csrc/apis/attention.hpp:211): Unsupported architecture",
        "RuntimeError: Unsupported architecture",
        "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "RuntimeError: FlashAttention-3 requires a GPU with compute capability 9.0",
        "AssertionError: Only SM 10.x and 11.x are supported",
        "AssertionError: Unsupported compute capability. Supported: 9.x, 10.x",
        "NotImplementedError: flash_attn at sgl-kernel is only supported on sm90 and above",
        "ValueError: TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please use a "
        "different backend.",
    ],
    "port-in-use": [
        "ERROR:    [Errno 98] cannot bind",
        "Failed to bind (os error 98)",
        "Port 8265 is in use",
        "port 30000 is already occupied",
        "listen EADDRINUSE",
        "ValueError: nccl_port at 24567 is not available in 30 seconds. nccl_port is used by a "
        "process already. process.name()='python'' process.cmdline()=['a', '--waiting', 'instead']",
        "RuntimeError: Port 30000 is already occupied by another process",
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5557')",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
        "RuntimeError: The server socket has failed to listen on any local network address. The "
        "server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    ],
    "engine-died": [
        engine(1, "SIGQUIT received. signum=<Signals.SIGQUIT: 3>"),
        engine(1, "Engine process has died"),
        engine(1, "Rank 0 scheduler is dead. Please check if there are relevant logs."),
        engine(1, "Rank 0 scheduler died during initialization (exit code: -9)."),
        engine(1, "Child process unexpectedly failed with exitcode=-9. pid=5107"),
        engine(1, "Child process unexpectedly failed with exitcode=9. pid=5107"),
        engine(1, "Child process unexpectedly failed with an exit code 256. pid=97721"),
        engine(1, "Scheduler or DataParallelController 5107 terminated with -9"),
        engine(1, "Scheduler or DataParallelController 848532 terminated with 255"),
        engine(1, "TokenizerManager hit an exception: Traceback (most recent call last):"),
        engine(1, "DetokenizerManager hit an exception: Traceback (most recent call last):"),
        engine(1, "DataParallelController hit an exception: Traceback (most recent call last):"),
        engine(1, "TpModelWorkerClient hit an exception: Traceback (most recent call last):"),
        engine(1, "EAGLEWorkerClient hit an exception: Traceback (most recent call last):"),
    ],
    "engine-hang": [
        engine(1, "Scheduler watchdog timeout"),
        engine(1, "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
        engine(1, "Watchdog timeout (self.watchdog_timeout=300)"),
    ],
    "worker-died": [
        "The actor died unexpectedly before finishing this task.",
        "The actor is dead because its node has died.",
        "A worker died or was killed while executing a task by an unexpected system error.",
        "ray.exceptions.OwnerDiedError: Failed to retrieve object ffff. The object's owner has "
        "exited.",
    ],
    "disk-full": [
        "write: No space left on device",
        "Disk quota exceeded",
        "write failed (os error 28)",
    ],
    "host-oom": ["oom-kill:constraint=CONSTRAINT_NONE", "oom_reaper: reaped process 812"],
    "collective-timeout": [
        "NCCL error: remote process exited or there was a network error, NCCL version 2.20.5",
        RAY + "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
    ],
}

# Near the wordings above, and no sign that something ended.
HARMLESS = [
    "[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch "
    "allocator will free cache and retry)",
    "[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY",
    "[torch_memory_saver.cpp] CUresult error  result=1 file=csrc/torch_memory_saver.cpp",
    "[torch_memory_saver.cpp] CUresult error  result=201 file=csrc/torch_memory_saver.cpp",
    "FlashAttention only supports fp16 and bf16",
    "FlashAttention requires half precision",
    "Failed to get device capability: SM 12.x requires CUDA >= 12.9.",
    "'sm_121' is not a recognized processor for this target (ignoring processor)",
    "ptxas info    : Compiling entry function 'k' for 'sm_90a'",
    "Unsupported architecture: LlamaForCausalLM is loaded by transformers",
    "(raylet) [2026-11-29 00:00:01,188 E 1 1] (raylet) node_manager.cc:3069: 0 Workers (tasks / "
    "actors) killed due to memory pressure (OOM), 1 Workers crashed due to other reasons at node",
    engine(1, "Detokenizer watchdog timeout (self.watchdog_timeout=30, self.soft=True)"),
    engine(1, "Scheduler watchdog timeout (self.watchdog_timeout=30, self.soft=True)"),
    engine(1, "Scheduler or DataParallelController 5107 terminated with 0"),
    engine(1, "Scheduler or DataParallelController 5107 terminated with -15"),
    engine(1, "Child process unexpectedly failed with exitcode=15. pid=5107"),
    "(raylet) [2026-11-29 00:00:01,123 E 1 1] (raylet) agent_manager.cc:77: The agent failed: "
    "OSError: [Errno 98] address already in use ('0.0.0.0', 52365)",
    "2026-11-29 00:00:01,123\tWARNING services.py:2070 -- Failed to start the dashboard: "
    "[Errno 98] Address already in use",
    RAY + "[W1129 00:00:05.1 socket.cpp:436] [c10d] The server socket has failed to bind to "
    "[::]:29500 (errno: 98 - Address already in use).",
    "[W socket.cpp:464] [c10d] The server socket has failed to bind to 0.0.0.0:25641 (errno: 98 - "
    "Address already in use).",
    "[rank1]:[W1129 00:00:05.1 socket.cpp:436] [c10d] The server socket has failed to bind to "
    "[::]:29500 (errno: 98 - Address already in use).",
    engine(
        1,
        "port 24567 is in use. Waiting for 15 seconds for nccl_port to be available. nccl_port is "
        "used by a process already.",
    ),
    "Port 8080 is in use, using another port",
    "Port 8080 is in use, taking the next port",
    "Port 8080 is in use, trying 8081",
    "Port 8080 is in use; 8081 is used instead",
    "agent_manager.cc: OSError: [Errno 98]",
    "The agent on node gb10 failed with the following error: [Errno 98]",
    '(raylet, ip=192.0.2.1) E0802 07:40:46.5 63998 server_chttp2.cc:49] {"created":"@1",'
    '"os_error":"Address already in use"}',
    "(raylet) [2026-11-29 00:00:01,1 E 1 1] (raylet) main.cc:1: Address already in use",
    engine(1, "The port 24567 is in use, but we could not find the process that uses it."),
    "NCCL WARN Call to ibv_create_qp failed with error Connection timeout remote",
    "The actor died unexpectedly before finishing this task, said the director.",
    "Tool output: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
]

# Beginnings of lines that print arguments, settings and commands.
PRINTED = [
    "  on_error .... {}",
    "  sglang-on.oom ....................... {}",
    "[2026-11-29 00:00:01.000 main] arguments.py:9 -   on_error ... {}",
    "Namespace(a=1, on_error='{}')",
    "SGLangConfig(on_error='{}')",
    "Runtime env: {{'env_vars': {{'NOTE': '{}'}}}}",
    "runtime_env={{'NOTE': '{}'}}",
    "Config: {{'on_error': '{}'}}",
    "  on_error: '{}'",
    '  on-error: "{}"',
    "  on_error: {}",
    "{{'on_error': '{}', 'lr': 1}}",
    '{{"on_error": "{}"}}',
    " 'on_error': '{}',",
    "wandb: Config: on_error {}",
    "wandb:   on_error {}",
    "python3 train.py --note '{}'",
    "/usr/bin/python3.12 train.py --note '{}'",
    "+ python3 train.py --note '{}'",
    "++ echo {}",
    "NOTE='{}' python3 train.py",
    "ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --note '{}'",
    "Entrypoint: python3 train.py --note '{}'",
    "  --note '{}'",
    "  --note '{}' \\",
    "  '{}' \\",
    "EXEC: python3 train.py --note '{}' \\",
]
WORDS = [
    "CUDA out of memory",
    "torch.OutOfMemoryError",
    "Address already in use",
    "No space left on device",
    "no kernel image is available",
    "Received sigquit from a child process",
    "ActorDiedError: The actor died unexpectedly before finishing this task.",
]


@pytest.mark.parametrize(("line", "kind"), EXAMPLES)
def test_a_line_gets_its_kind(line, kind):
    assert kinds(line) == [kind]


@pytest.mark.parametrize(
    ("line", "kind"), [(line, kind) for kind, lines in WORDINGS.items() for line in lines]
)
@pytest.mark.parametrize("prefix", ["", RAY])
def test_every_wording_of_a_kind_is_recognized(prefix, line, kind):
    line = line if line.startswith("(") else prefix + line
    assert kinds(line) == [kind]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_notice_near_a_fatal_wording_is_no_fatal_line(line):
    fatal = [e.kind for e in of(ErrorLine, text(line)) if e.severity == "fatal"]
    assert fatal == []


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("shape", PRINTED)
def test_words_in_printed_arguments_and_commands_are_no_error(shape, words):
    """The same words outside of such a line are recognized."""
    assert kinds(shape.format(words)) == []
    assert kinds(RAY + shape.format(words)) == []
    assert kinds(f"RuntimeError: {words}") != []


GOES_ON = [
    "CUDA out of memory, skipping the warm-up",
    "CUDA out of memory was ignored",
    "CUDA out of memory, then retry with a smaller batch",
    "FlashAttention v3 Backend requires SM>=80 and SM<=90, triton is used instead",
    "CUDA out of memory, will retry with a smaller batch",
    "CUDA out of memory: the loader will use pinned memory",
    "CUDA out of memory, retrying",
    "CUDA_ERROR_OUT_OF_MEMORY (may not be an issue)",
    "WARNING: CUDA out of memory in a handler",
    "[W1129 00:00:05.1 alloc.cpp:43] CUDA out of memory",
    "UserWarning: no kernel image is available for execution on the device",
    "CUDA out of memory, falling back to pinned memory",
]
ENDS = [
    "RuntimeError: CUDA out of memory. Use a smaller batch instead",
    "No supported CUDA architectures found. Please use the triton backend instead",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "host:77:90 [0] include/alloc.h:320 NCCL WARN Cuda failure 2 'out of memory'",
]


def pending(line: str) -> list:
    """What the guard holds as a possible cause after a line."""
    (event,) = of(ErrorLine, text(line))
    fatals = Fatals()
    fatals.line(event, 0.0)
    return fatals.pending


@pytest.mark.parametrize("line", GOES_ON)
def test_a_program_that_says_it_goes_on_has_not_failed(line):
    assert pending(line) == []


@pytest.mark.parametrize("line", ENDS)
def test_advice_in_an_error_does_not_say_that_the_program_goes_on(line):
    assert len(pending(line)) == 1


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
