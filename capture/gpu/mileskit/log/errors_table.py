"""Kinds of error lines: one row each, with what set it.

Severity
    fatal    the process or the run cannot go on; root causes are searched among these
    error    something failed; fatal only together with other evidence
    cascade  follows from another error (Ray's own wrappers, closed connections)
    warn     worth showing, the run goes on

``where``
    start    the pattern must match where the message starts (after all prefixes)
    text     anywhere in the first 1,200 bytes of the message, unless the line carries a prompt or
             arguments (see :mod:`notevidence`)

``needs`` are literals of which the pattern always contains one.

Rows are tried in order; the first that matches names the line, so specific rows come first.
Ray's lists of possible causes ("There are some potential root causes ...") are advice and match
no row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mileskit.log.notevidence import TEXT_SIGN, is_carried, other_port


class Row(NamedTuple):
    kind: str
    severity: str
    where: str
    needs: tuple[bytes, ...]
    pattern: re.Pattern
    source: str


# Optional rank tag and the dotted class name that ends a traceback.
EXCEPTION = rb"(?:\[rank\d+\]:? ?)?(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)"
# A word that names a GPU or its generation.
_GPU = rb"GPU|(?:SM|sm)[ _]?[\d<>=]|Turing|Ampere|Hopper|Blackwell|(?:compute|CUDA) capability"
_EXC_LINE = rb"(?:" + EXCEPTION + rb")(?:\([^)]{0,80}\))?(?::|\s*$)"


def _row(kind: str, severity: str, where: str, needs: str, pattern: bytes, source: str) -> Row:
    literals = tuple(text.encode() for text in needs.split("|"))
    return Row(kind, severity, where, literals, re.compile(pattern), source)


ROWS: tuple[Row, ...] = (
    _row(
        "ray-memory-kill",
        "fatal",
        "text",
        "killed due to|OutOfMemoryError",
        rb"killed due to the node running low on memory"
        rb"|(?<!\b0 Workers \(tasks / actors\) )killed due to memory pressure \(OOM\)"
        rb"|ray\.exceptions\.OutOfMemoryError",
        "Ray 2.55 and later, Ray up to 2.54, raylet summary line (it counts other crashes too, "
        "with 0 for memory); reference manual 2.3, verl#1335",
    ),
    _row(
        "cuda-oom",
        "fatal",
        "text",
        "out of memory|OutOfMemory|MemoryAllocation|ALLOC_FAILED|OUT_OF_MEMORY|result=2",
        rb"(?:CUDA|HIP) out of memory|torch\.(?:cuda\.)?OutOfMemoryError"
        rb"|CUDA (?:driver |runtime )?error: out of memory|Triton Error \[\w+\]: out of memory"
        rb"|(?:CUresult|cudaError(?:_t)?|hipError_t) error:? {1,3}(?:result=)?2\b"
        rb"|(?<!cuMemCreate )CUDA_ERROR_OUT_OF_MEMORY|Cuda failure (?:2 )?'out of memory'"
        rb"|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED",
        "PyTorch allocator and driver wordings (sglang#5285); torch_memory_saver of colocated "
        "runs, whose cuMemCreate notice alone ends nothing (sglang#14092, torch_memory_saver#4, "
        "#9, #87, #99, slime#537); Triton's and NCCL's launch wordings",
    ),
    _row(
        "kernel-missing",
        "fatal",
        "text",
        "no kernel image|ptxas fatal|gpu-name|requires |kernel image is invalid|gpu architecture"
        "|invalid device function|unsupported toolchain|only support|CUDA architectures found"
        "|supported on .target|NoKernelImage|NO_BINARY_FOR_GPU|NoBinaryForG|Unsupported arch"
        "| capability|Only SM ",
        rb"no kernel image is available|ptxas fatal|is not defined for option 'gpu-name'"
        rb"|requires SM ?[<>=]|device kernel image is invalid|CUDA error: invalid device function"
        rb"|compiled with an unsupported toolchain|only supports (?:Ampere|Hopper|Blackwell)"
        rb"|[Bb]ackend (?:is )?only supported on (?:Hopper|Blackwell|Ampere|SM)"
        rb"|FlashAttention[^.]{0,40}(?:requires|only supports) [^.]{0,40}(?:" + _GPU + rb")"
        rb"|FlashInfer requires (?:GPUs with )?sm_?\d|nvcc fatal\s*: Unsupported gpu architecture"
        rb"|No supported CUDA architectures found|requires \.target '?sm_\d"
        rb"|not supported on \.target '?sm_\d|cudaErrorNoKernelImageForDevice"
        rb"|CUDA_ERROR_NO_BINARY_FOR_GPU|hipErrorNoBinaryForG(?:pu|PU)"
        rb"|TllmGen\w*[^\n]{0,300}Unsupported architecture"
        rb"|RuntimeError: (?:Assertion error \([^)]{0,200}\): )?Unsupported architecture\s*$"
        rb"|(?:Error|Exception): [^\n]{0,300}?(?:[Uu]nsupported (?:compute|device) capability"
        rb"|only supported on (?:SM|sm)_?\d|Only SM \d[^\n]{0,40}supported)",
        "CUDA runtime, ptxas, nvcc, SGLang attention backends; reference manual 4.6; FlashInfer "
        "(flashinfer#371, #1658, #2577, #3263, #5355, #5445), DeepGEMM (sglang#23657), "
        "FlashAttention 4 (sglang#28297, MagiAttention#321), sgl-kernel (gpustack#3326)",
    ),
    _row(
        "port-in-use",
        "fatal",
        "text",
        "in use|EADDRINUSE|[Errno 98]|(os error 98)|already occupied|is not available in ",
        rb"(?:[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]|\(os error 98\)"
        rb"|[Pp]ort \d+ is (?:already )?in use|[Pp]ort \d+ is already occupied"
        rb"|\w+ at \d+ is not available in \d+ seconds)",
        "errno 98 of Python, Rust and c10d; our own run topp; SGLang's wait_port_available; "
        "checks of launch scripts",
    ),
    _row(
        "disk-full",
        "fatal",
        "text",
        "No space left|[Errno 28]|quota exceeded|(os error 28)",
        rb"No space left on device|\[Errno 28\]|Disk quota exceeded|\(os error 28\)",
        "errno 28",
    ),
    _row(
        "host-oom",
        "fatal",
        "text",
        "Killed process|oom-kill|oom_reaper",
        rb"Out of memory: Killed process|oom-kill:|oom_reaper",
        "Linux kernel log",
    ),
    _row(
        "engine-died",
        "fatal",
        "text",
        "Subprocess|sigquit|SIGQUIT|Server process|cheduler|hit an exception|ngine process"
        "|Child process",
        rb"Subprocess \S+ \(pid=\d+\) (?:crashed|exited|died)"
        rb"|[Rr]eceived sigquit from a child process|SIGQUIT received"
        rb"|Server process (?:terminated unexpectedly|died before port)"
        rb"|[Ss]cheduler(?: process)? (?:is dead|died|hit an exception)"
        rb"|(?:tokenizer|Manager|Controller|WorkerClient) hit an exception"
        rb"|Scheduler or DataParallelController (?:process (?:exited|died)"
        rb"|\d+ terminated with (?!0\b|-15\b))"
        rb"|Child process unexpectedly failed with (?:exitcode=|an exit code )-?(?!15\b)[1-9]"
        rb"|[Ee]ngine process (?:has )?died",
        "SGLang engine and Miles' engine actor; our own run kill_noft; SGLang's handler of "
        "SIGCHLD (the number may be a wait status: 256 is exit 1; sglang#5637, "
        "torch_memory_saver#35), its data-parallel controller and worker threads (sglang#4248)",
    ),
    _row(
        "engine-hang",
        "fatal",
        "text",
        "atchdog timeout",
        rb"[Ww]atchdog timeout \((?![^)]{0,200}soft=True)|Scheduler watchdog timeout(?! \()",
        "SGLang scheduler watchdog; a soft one only dumps stacks",
    ),
    _row(
        "collective-timeout",
        "fatal",
        "text",
        "Watchdog caught|NCCL error|ncclRemoteError",
        rb"Watchdog caught collective operation timeout|ncclRemoteError: "
        rb"|NCCL error[^\n]{0,300}(?:remote|[Tt]imeout)",
        "PyTorch ProcessGroupNCCL; NCCL's own WARN lines tell of attempts, too",
    ),
    _row(
        "worker-init-failed",
        "cascade",
        "text",
        "creation task",
        rb"actor died because of an error raised in its creation task"
        rb"|Exception raised in creation task",
        "Ray ActorDiedError of a constructor; the cause is printed beside it",
    ),
    _row(
        "worker-died",
        "fatal",
        "text",
        "actor died|actor is dead|ray.exceptions.|system error",
        rb"actor died unexpectedly before finishing this task\."
        rb"|actor is dead because its (?:worker process|node|owner) has died"
        rb"|ray\.exceptions\.(?:ActorDiedError|ActorUnavailableError|RayActorError"
        rb"|WorkerCrashedError|NodeDiedError|OwnerDiedError|LocalRayletDiedError)"
        rb"|worker died or was killed (?:while executing a task )?by an unexpected system error",
        "Ray 2.55 exceptions",
    ),
    _row(
        "async-misuse",
        "fatal",
        "start",
        "Fatal async",
        rb"Fatal async misuse, aborting",
        "Miles logging_utils.py:58",
    ),
    _row(
        "cuda-error",
        "fatal",
        "text",
        "CUDA error|AcceleratorError|CUBLAS_STATUS",
        rb"CUDA error: |torch\.AcceleratorError|CUBLAS_STATUS_\w+",
        "PyTorch",
    ),
    _row(
        "argument-error",
        "fatal",
        "text",
        "error: ",
        rb"\A[^\s:]{1,80}: error: |error: (?:unrecognized arguments|argument -|the following arg)",
        "argparse, exit status 2",
    ),
    _row(
        "reward-await",
        "error",
        "start",
        "'await'",
        rb"TypeError: object \w+ can't be used in 'await' expression",
        "reference manual 3.5",
    ),
    _row(
        "import-error",
        "error",
        "start",
        "NotFoundError|ImportError",
        rb"(?:[\w.]+\.)?(?:ModuleNotFoundError|ImportError)\b",
        "Python; reference manual 3.5, verl#2680",
    ),
    _row(
        "command-failed",
        "cascade",
        "start",
        "CalledProcessError",
        rb"subprocess\.CalledProcessError: ",
        "Miles launcher around ray job submit",
    ),
    _row(
        "task-error",
        "cascade",
        "start",
        "RayTaskError",
        rb"ray\.exceptions\.RayTaskError\b",
        "Ray wrapper of a remote exception",
    ),
    _row(
        "capture-failed",
        "error",
        "text",
        "graph failed",
        rb"Capture cuda graph failed",
        "SGLang; sglang#4205",
    ),
    _row(
        "router-unhealthy",
        "warn",
        "text",
        "health check failed",
        rb"HTTP health check failed for ",
        "SGLang router",
    ),
    _row(
        "exception",
        "error",
        "start",
        "Error|Exception|Exit|Interrupt",
        _EXC_LINE,
        "last line of a Python traceback",
    ),
    _row(
        "panic",
        "error",
        "start",
        "panicked at",
        rb"thread '[^']*' (?:\(\d+\) )?panicked at ",
        "Rust runtime (router)",
    ),
)

# A message that says itself that it reports an error.
_SAYS_ERROR = re.compile(
    _EXC_LINE + rb"|(?:[A-Z]\w* )?(?:[Ee]rror|ERROR|[Ff]ailed|[Ff]atal|[Ee]xception|[Uu]nhandled)\b"
)
# Every row's wording contains one of these. The pattern's alternatives begin with bytes that are
# rare in logs, because a search stops at every such byte; the others are searched one by one.
_RARE = re.compile(
    rb"Error|Exception|Exit|EADDR|Interrupt|xception|xas fatal|xpected system|CUDA[ _]|CUBLAS"
    rb"|CUresult|Child process|Capture |MemoryAlloc|Killed process|_reaper|-name'|SIGQUIT"
    rb"|Subprocess|Scheduler or|Server process|No space|NCCL|Fatal async|Feature '|Instruction '"
    rb"|Unsupported |\(os error|\[Errno|'await'|: error: "
)
_COMMON = (
    b"killed due",
    b"kernel image",
    b"health check",
    b"panicked",
    b"kill:",
    b"of memory",
    b"occupied",
    b"quires ",
    b"quota",
    b"sigquit",
    b" in use",
    b"only support",
    b"died",
    b"dead",
    b"atchdog",
    b"toolchain",
)


def suspicious(message: bytes) -> bool:
    """True when a row may fit; False for almost every line, at little cost."""
    if _RARE.search(message, 0, 1200):
        return True
    for text in _COMMON:  # noqa: SIM110 - a loop is twice as fast as any() here
        if text in message:
            return True
    return False


_LITERALS = tuple(dict.fromkeys(text for row in ROWS for text in row.needs))

_CALLED_PROCESS = b"subprocess.CalledProcessError: "
_ROW = {row.kind: row for row in ROWS}

# Beginnings of wordings that a terminal may have wrapped into the next line.
WRAP_ENDS = (b"already", b"no kernel", b"was", b"were", b"killed", b"actor", b"CUDA")
WRAP_HINT = re.compile(
    rb"killed due|OutOfMemory|were killed|was killed|CUDA out|CUDA error|no kernel|already$"
    rb"|actor died|Address|sigquit|Subprocess|out of$|(?:was|were|killed|actor|CUDA)$"
)


def classify(message: bytes, *, anchored: bool = False) -> Row | None:
    """First row that fits a message without prefixes, or None.

    ``anchored``: the message comes from a logger that prints its own texts (a Miles record with
    file and line), so a row must fit at its start or at the start of an exception line.
    """
    head = message[:1200]
    if not suspicious(head):
        return None
    if is_carried(head):
        return _ROW["command-failed"] if head.startswith(_CALLED_PROCESS) else None
    found = {text for text in _LITERALS if text in head}
    says = not (anchored or TEXT_SIGN.search(head)) or _SAYS_ERROR.match(head)
    for row in ROWS:
        if any(text in found for text in row.needs):
            anywhere = row.where == "text" and says
            hit = row.pattern.search(head) if anywhere else row.pattern.match(head)
            if hit and not (row.kind == "port-in-use" and other_port(head)):
                return row
    return None


def task_kind(exception: str, text: str) -> str:
    """Kind of an exception that a rollout task raised (see :class:`events.TaskRaised`)."""
    if exception in ("ModuleNotFoundError", "ImportError", "AttributeError"):
        return "reward-import"
    if exception == "TypeError" and "await" in text:
        return "reward-await"
    if exception == "NotImplementedError":
        return "reward-type"
    if exception in (
        "HTTPStatusError",
        "ConnectError",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "ConnectTimeout",
        "PoolTimeout",
        "WriteError",
    ):
        return "request"
    return "other"
