"""The parser reads each kind of line of a Miles log, whatever the names and line numbers."""

from __future__ import annotations

import math

import pytest
from mileskit.log.events import (
    CutLine,
    EngineCapture,
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineReady,
    EngineWeights,
    ErrorLine,
    Eval,
    EvalSkipped,
    FaultTolerance,
    JobEnd,
    Load,
    LoadFailed,
    Marker,
    MultiTurn,
    Perf,
    Progress,
    RetriesExhausted,
    Retry,
    Rollout,
    RunStart,
    Save,
    Step,
    TaskRaised,
    Timer,
)
from mileskit.log.logparse import LogParser

from tests.capture.minilog import (
    MANAGER,
    TRAINER,
    URL,
    clock,
    engine,
    events,
    of,
    retry,
    rollout,
    sourced,
    step,
    text,
)

NOON = 1795953600.0  # 2026-11-29 12:00:00 UTC


def test_engine_start_up_gives_weights_cache_capture_and_readiness():
    log = text(
        engine(
            0,
            "Load weight end. elapsed=5.85 s, type=LlamaForCausalLM, avail mem=94.8 GB, "
            "mem usage=1.40 GB.",
        ),
        engine(
            2,
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 345645, "
            "K size: 18.46 GB, V size: 18.40 GB",
        ),
        engine(3, "Capture cuda graph begin. avail mem=50 GB"),
        engine(8, "Capture cuda graph end. Time elapsed: 5.21 s. mem usage=0.4 GB."),
        engine(9, "INFO:     Uvicorn running on http://192.0.2.1:1 (Press CTRL+C to quit)"),
    )
    (weights,), (cache,) = of(EngineWeights, log), of(EngineKvCache, log)
    assert (weights.seconds, weights.gb, weights.avail_gb) == (5.85, 1.40, 94.8)
    assert (cache.tokens, cache.k_gb, cache.v_gb) == (345645, 18.46, 18.40)
    assert [(c.phase, c.seconds) for c in of(EngineCapture, log)] == [
        ("begin", None),
        ("end", 5.21),
    ]
    assert [r.line for r in of(EngineReady, log)] == [5]


def test_combined_cache_size_is_read():
    (cache,) = of(
        EngineKvCache, text(engine(0, "KV Cache is allocated. #tokens: 10, KV size: 2.5 GB"))
    )
    assert (cache.k_gb, cache.kv_gb) == (None, 2.5)


def test_batches_give_running_requests_and_throughput():
    log = text(
        engine(
            1,
            "Decode batch, #running-req: 39, #token: 1, token usage: 0.00, "
            "cuda graph: True, gen throughput (token/s): 263.97, #queue-req: 0",
        ),
        engine(1, "Prefill batch, #new-seq: 30, #new-token: 8192, #cached-token: 0"),
    )
    assert of(EngineDecode, log)[0][2:] == (39, 263.97)
    assert of(EnginePrefill, log)[0][2:] == (30, 8192)


def test_metric_lines_become_typed_events_with_line_and_time():
    log = text(rollout(43200, 0), step(43220.25, 0))
    kinds = [type(ev) for ev in events(log)]
    assert kinds == [Perf, Rollout, Step, Perf]
    (one,) = of(Step, log)
    assert (one.line, one.index, one.time) == (3, 0, NOON + 20.25)
    assert one.metrics == {"train/loss": 0.0, "train/grad_norm": 0.5}


def test_perf_sides_are_told_by_their_keys_not_by_the_process():
    same = [
        sourced(1, f"perf 0: {{'{key}': 1.5}}") for key in ("perf/rollout_time", "perf/train_time")
    ]
    assert [p.side for p in of(Perf, text(same))] == ["rollout", "trainer"]


@pytest.mark.parametrize(
    "prefix",
    ["", "(X pid=1)", "(SomeActor pid=12, ip=192.0.2.7)", "\x1b[36m(Worker pid=3)\x1b[0m"],
)
@pytest.mark.parametrize("source", ["log_utils.py:123", "renamed.py:9999"])
def test_lines_match_by_shape_not_by_name_or_line_number(prefix, source):
    line = sourced(5, "rollout 3: {'rollout/raw_reward': 0.25}", prefix, source).lstrip()
    (one,) = of(Rollout, text(line))
    assert (one.index, one.metrics) == (3, {"rollout/raw_reward": 0.25})


@pytest.mark.parametrize(
    "tag", ["main", "rollout_executor", "actor_cell00000_rank00000", "critic_cell0_rank0"]
)
def test_any_tag_is_accepted(tag):
    line = f"(A pid=1) [{clock(0)} {tag}] x.py:1 - step 0: {{'train/loss': 1.0}}"
    assert len(of(Step, text(line))) == 1


def test_a_step_line_printed_twice_counts_once():
    line = sourced(1, "step 4: {'train/loss': 0.5}")
    again = sourced(2, "step 4: {'train/loss': 0.5}", source="model.py:854")
    assert len(of(Step, text(line, again))) == 1


def test_critic_steps_are_not_actor_steps():
    log = text(sourced(1, "critic-step 0: {'critic/loss': 0.5}"), step(2, 0))
    assert [s.role for s in of(Step, log)] == ["critic", "actor"]


def test_other_numbered_lines():
    log = text(
        sourced(1, "eval 0: {'eval/gsm8k': 0.25}"),
        sourced(1, "eval 5 skipped: no data"),
        sourced(1, "multi_turn 0: {'multi_turn/round_mean': np.float64(1.5)}"),
    )
    assert of(Eval, log)[0].metrics == {"eval/gsm8k": 0.25}
    assert of(EvalSkipped, log)[0][2:] == (5, "no data")
    assert of(MultiTurn, log)[0].metrics == {"multi_turn/round_mean": 1.5}


def test_timers_saves_and_loads():
    log = text(
        sourced(1, "Timer train start"),
        sourced(2, "Timer train end (elapsed: 17.4s)"),
        sourced(3, "[FSDP] Saved checkpoint to /ckpt/iter_0000004"),
        sourced(4, "[FSDP] Loaded model from /ckpt/iter_0000004/model"),
        sourced(5, "[FSDP] Loaded LR scheduler from /ckpt/iter_0000004/lr_scheduler"),
        sourced(6, "load metadata from /ckpt/rollout/global_dataset_state_dict_4.pt"),
        sourced(7, "[FSDP] Failed to load model from /ckpt/iter_0000004/model: truncated"),
        sourced(8, "[FSDP] No tracker file at /ckpt/latest.txt; skipping load."),
    )
    assert [t[2:] for t in of(Timer, log)] == [("train", 17.4)]
    assert [s.path for s in of(Save, log)] == ["/ckpt/iter_0000004"]
    assert [x.what for x in of(Load, log)] == ["model", "scheduler", "data"]
    assert [(x.skipped, x.reason) for x in of(LoadFailed, log)] == [
        (False, "truncated"),
        (True, "no tracker file"),
    ]


# -- retries -------------------------------------------------------------------------------------


def test_two_physical_lines_are_one_retry():
    (one,) = of(Retry, text(retry(43200.5, 7)))
    assert one == (1, NOON + 0.5, 503, 7, 60, "no_available_workers", URL, 1)


def test_repeated_retries_are_the_same_from_the_second_on():
    log = text(*[retry(10 + i / 8, 1 + i // 3) for i in range(30)])
    got = of(Retry, log)
    assert [r.attempt for r in got] == [1 + i // 3 for i in range(30)]
    assert [r.line for r in got] == list(range(1, 61, 2))
    assert [r.time - got[0].time for r in got] == [i / 8 for i in range(30)]


def test_halves_of_two_processes_do_not_mix():
    a, b = retry(1, 3, 503, "(A pid=1)"), retry(1, 9, 403, "(B pid=2)")
    log = text(a[0], b[0], a[1], b[1])
    assert [(r.status, r.attempt) for r in of(Retry, log)] == [(503, 3), (403, 9)]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("No available workers (all circuits open)", "No available workers (all circuits open)"),
        ('{"error":{"type":"Unavailable","message":"x"}}', "Unavailable"),
        ("<html><title>403 Forbidden</title></html>", "403 Forbidden"),
        ("None", None),
        ("{broken", "{broken"),
    ],
)
def test_router_code_from_json_or_text(body, code):
    assert of(Retry, text(retry(1, 1, 403, body=body)))[0].code == code


def test_connection_errors_have_no_status():
    tries = f"retrying... (attempt 3/60, url={URL}, response=None)"
    line = sourced(1, f"Error: All connection attempts failed, {tries}")
    (one, two) = of(Retry, text(line, line))
    assert one[2:] == two[2:] == (None, 3, 60, "All connection attempts failed", URL, 1)


def test_ray_repeats_count_k_times_on_either_half():
    first, second = retry(1, 2)
    tail = " \x1b[32m [repeated 5x across cluster]\x1b[0m"
    hint = tail.replace(
        "cluster]", "cluster] (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0)"
    )
    for log in (text(first + tail, second), text(first, second + tail), text(first, second + hint)):
        assert [r.count for r in of(Retry, log)] == [5]


def test_remembered_halves_keep_their_repeat_counts():
    tail = " [repeated 5x across cluster]"
    a, b = retry(1, 2), retry(2, 2)
    assert [r.count for r in of(Retry, text(a[0] + tail, a[1], b[0] + tail, b[1]))] == [5, 5]
    assert [r.count for r in of(Retry, text(a[0], a[1] + tail, b[0], b[1] + tail))] == [5, 5]


def test_a_half_without_its_other_half_still_counts():
    first, second = retry(1, 2)
    assert [(r.status, r.attempt) for r in of(Retry, text(first, first, second))] == [
        (503, None),
        (503, 2),
    ]
    assert [(r.status, r.attempt) for r in of(Retry, text(second))] == [(503, 2)]
    assert [(r.status, r.attempt) for r in of(Retry, text(first))] == [(503, None)]


def test_a_retry_that_a_terminal_wrapped_is_one_retry():
    first, second = retry(1, 12)
    at = second.index("retrying")
    log = text(first[:-20], first[-20:], second[: at - 1], second[at:])
    assert [(r.status, r.attempt) for r in of(Retry, log)] == [(503, 12)]


def test_giving_up_and_task_exceptions():
    log = text(
        sourced(1, f"Max retries (60) reached, failing... (url={URL})", MANAGER),
        sourced(1, "[rollout] Task raised exception: ModuleNotFoundError(\"No module named 'r'\")"),
        sourced(
            1,
            "[rollout] Task raised exception: "
            "TypeError(\"object float can't be used in 'await' expression\")",
        ),
        sourced(1, "[rollout] Task raised exception: ValueError('x')"),
        sourced(1, '[rollout] Task raised exception: HTTPStatusError("Server error \'503 ...")'),
    )
    assert of(RetriesExhausted, log)[0].limit == 60
    assert [t.kind for t in of(TaskRaised, log)] == [
        "reward-import",
        "reward-await",
        "other",
        "request",
    ]


# -- bars ----------------------------------------------------------------------------------------


def test_bars_give_progress_only_when_they_move():
    bar = "\rmodel.safetensors:  {p}%|##   | {d}/1.50G [00:10<00:12, 66MB/s]"
    log = (
        "(A pid=1) "
        + "".join(
            bar.format(p=p, d=d) for p, d in [(0, "0.00"), (10, "150M"), (10, "150M"), (45, "679M")]
        )
        + "\n"
    ).encode()
    assert [(p.label, p.done, p.total) for p in of(Progress, log)] == [
        ("model.safetensors", 150e6, 1.5e9),
        ("model.safetensors", 679e6, 1.5e9),
    ]


def test_a_capture_bar_moves_with_its_batch():
    bar = "\rCapturing batches (bs={b} avail_mem=9 GB):   3%|#  | 1/36 [00:42<24:46, 42.48s/it]"
    log = text("(A pid=1) " + bar.format(b=256), "(A pid=1) " + bar.format(b=248))
    assert len(of(Progress, log)) == 2


def test_a_record_behind_a_bar_is_read():
    bar = "\rRollout generation: 100%|##########| 256/256 [00:47<00:00]"
    record = sourced(5, "rollout 0: {'rollout/raw_reward': 0.5}")
    bare = record.removeprefix(TRAINER + " ")
    for line in (bar + record, f"{TRAINER} {bar}{bare}", f"{TRAINER} {bar} {record}"):
        assert [r.metrics for r in of(Rollout, text(line))] == [{"rollout/raw_reward": 0.5}]
        assert [p.done for p in of(Progress, text(line))] == [256.0]


# -- time ----------------------------------------------------------------------------------------


def test_a_line_without_a_timestamp_has_the_time_of_the_line_before():
    ok = engine(43201, '192.0.2.1:1 - "POST /generate HTTP/1.1" 200 OK')
    log = text(engine(43200, "Cache flushed"), ok, "RuntimeError: boom", "ValueError: next")
    for cut in (1 << 18, 7):
        assert [ev.time for ev in events(log, cut)] == [NOON + 1, NOON + 1]


def test_times_before_the_first_timestamp_are_unknown():
    assert [ev.time for ev in events(text("RuntimeError: boom"))] == [None]


def test_a_clock_that_steps_back_is_only_time():
    log = text(rollout(100, 0), rollout(50, 1))
    assert [r.index for r in of(Rollout, log)] == [0, 1]
    assert of(RunStart, log) == []


def test_the_offset_moves_local_times_and_not_utc_markers():
    from mileskit.log.logparse import LogParser

    data = text("# end 2026-11-29T12:00:00Z rc=0", sourced(50400, "step 0: {'train/loss': 0.0}"))
    got = LogParser(7200).feed(data)
    assert [ev.time for ev in got if type(ev) in (JobEnd, Step)] == [NOON, NOON]


def test_a_note_in_utc_dates_the_lines_after_it():
    from mileskit.log.logparse import LogParser

    data = text("# 2026-11-29T12:00:00.5Z killer: SIGKILL sent", "RuntimeError: boom")
    assert [ev.time for ev in LogParser(7200).feed(data)] == [NOON + 0.5, NOON + 0.5]


# -- runs and ends -------------------------------------------------------------------------------


def test_markers_and_the_exit_status_of_the_end():
    log = text("# run a", "# command: python3 x --y", "# end 2026-11-29T12:00:00Z rc=124 seconds=9")
    assert [m.name for m in of(Marker, log)] == ["run", "command", "end"]
    assert [(e.how, e.status, e.time) for e in of(JobEnd, log)] == [("time-limit", 124, NOON)]


@pytest.mark.parametrize(
    ("rc", "how"),
    [
        (0, "finished"),
        (1, "failed"),
        (2, "failed"),
        (124, "time-limit"),
        (137, "killed"),
        (143, "killed"),
        (-9, "killed"),
    ],
)
def test_how_it_ended_follows_the_status(rc, how):
    assert [e.how for e in of(JobEnd, text(f"# end 2026-11-29T12:00:00Z rc={rc}"))] == [how]


@pytest.mark.parametrize(
    ("word", "how"), [("succeeded", "finished"), ("failed", "failed"), ("was stopped", "killed")]
)
def test_the_job_client_says_how_it_ended(word, how):
    log = text("-" * 40, f"\x1b[32mJob 'raysubmit_ab12' {word}\x1b[39m", "-" * 40)
    assert [e.how for e in of(JobEnd, log)] == [how]


def test_the_copy_after_status_message_is_not_read_again():
    body = [*rollout(10, 0), *step(20, 0), *rollout(40, 1), *step(50, 1)]
    copy = [
        "Status message: Job entrypoint command failed with exit code 1, last available logs:",
        *body,
        *retry(45, 1),
        "RuntimeError: boom",
    ]
    log = text(body, "Job 'raysubmit_1' failed", copy, "# end 2026-11-29T12:00:00Z rc=1")
    for cut in (1 << 18, 100):
        assert [s.index for s in of(Step, log, cut)] == [0, 1]
        assert of(Retry, log, cut) == []
        assert of(RunStart, log, cut) == []
        assert [e.status for e in of(JobEnd, log, cut)] == [None, 1]


def test_a_run_appended_after_a_copied_tail_is_read():
    log = text(
        step(20, 0), "Status message: failed", step(20, 0), "# run b", step(90, 0), step(95, 1)
    )
    assert [s.index for s in of(Step, log)] == [0, 0, 1]
    assert [r.why for r in of(RunStart, log)] == ["marker"]


def test_a_copy_ends_where_the_clock_goes_on():
    later = [
        engine(90, "Decode batch, #running-req: 1, gen throughput (token/s): 9.0"),
        *step(99, 1),
    ]
    log = text(step(20, 0), "Status message: failed", step(20, 0), later)
    assert [s.index for s in of(Step, log)] == [0, 1]


def test_a_falling_step_number_is_a_second_run_from_its_engine_start_on():
    log = text(
        step(10, 0),
        step(20, 1),
        engine(30, "Load weight end. elapsed=1 s, type=X, avail mem=9 GB, mem usage=1 GB."),
        step(40, 0),
    )
    assert [(r.why, r.line, r.since_line) for r in of(RunStart, log)] == [("number-down", 6, 5)]


def test_a_copy_of_old_lines_without_a_notice_is_no_second_run():
    log = text(step(10, 0), step(20, 1), step(10, 0), step(20, 1), step(30, 2))
    assert of(RunStart, log) == []
    assert [s.index for s in of(Step, log)] == [0, 1, 2]


def test_a_run_marker_starts_a_new_run_even_when_the_first_never_got_going():
    log = text("# run a", "# end 2026-11-29T12:00:00Z rc=1", "# run b", "# run c")
    assert [r.line for r in of(RunStart, log)] == [3, 4]


def test_an_engine_start_after_an_end_is_a_new_run():
    start = engine(9, "server_args=ServerArgs(x=1)")
    assert [r.why for r in of(RunStart, text(step(1, 0), "# end x rc=0", start))] == ["after-end"]
    assert of(RunStart, text(step(1, 0), start, step(20, 1))) == []


def test_a_log_that_stops_inside_a_line_says_so_and_takes_no_number_from_it():
    whole = text(step(10, 0))
    cut = whole + sourced(20, "step 1: {'train/loss': 0.1").encode()
    assert [s.index for s in of(Step, cut)] == [0]
    (last,) = of(CutLine, cut)
    assert last.line == 3
    assert last.text.endswith("'train/loss': 0.1")
    assert of(CutLine, whole) == []
    assert of(JobEnd, b"# end 2026-11-29T12:00:00Z rc=12") == []
    assert of(Timer, text(step(1, 0)) + sourced(9, "Timer x end (elapsed: 1.2s)").encode()) == []


def test_a_cut_in_any_place_gives_the_same_events():
    log = text(
        rollout(10, 0),
        retry(11, 1),
        "(A pid=1) \rx:  50%|#| 1/2 [00:01<00:01]\rx: 100%|#| 2/2 [00:02<00:00]",
        step(20, 0, "nan"),
        "Traceback (most recent call last):",
        "RuntimeError: boom",
        retry(21, 2),
    )
    whole = events(log, len(log))
    for cut in (1, 2, 3, 17, 64):
        assert repr(events(log, cut)) == repr(whole)


def test_non_finite_values_and_wrapped_scalars():
    (one,) = of(
        Step,
        text(
            sourced(
                1,
                "step 0: {'a': nan, 'b': inf, 'c': -inf, 'd': np.float64(0.5), "
                "'e': 1e-06, 'f': -0.0, 'g': 3, 'h': tensor(2.5), 'i': True}",
            )
        ),
    )
    m = one.metrics
    assert math.isnan(m["a"])
    assert (m["b"], m["c"], m["d"], m["e"], m["g"], m["h"], m["i"]) == (
        math.inf,
        -math.inf,
        0.5,
        1e-06,
        3,
        2.5,
        1,
    )
    assert math.copysign(1, m["f"]) == -1


def test_dicts_with_other_objects_keep_their_numbers():
    (one,) = of(
        Step,
        text(
            sourced(
                1,
                "step 0: {'a': 0.5, 'b': <object at 0x7f>, 'c': [1, 2], "
                "'d': \"it's\", 'e': 7, 'f': tensor([1., 2.])}",
            )
        ),
    )
    assert (one.metrics["a"], one.metrics["e"]) == (0.5, 7)


def test_a_dict_that_a_terminal_wrapped_is_joined():
    line = sourced(1, "step 0: {'train/loss': 0.125, 'train/grad_norm': 0.75, 'train/step': 0}")
    log = text(line[:90], line[90:110], line[110:], step(9, 1))
    got = of(Step, log)
    assert [s.index for s in got] == [0, 1]
    assert got[0].line == 1
    assert got[0].metrics == {"train/loss": 0.125, "train/grad_norm": 0.75, "train/step": 0}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Step, "step 12: {'train/loss': 0.125, 'train/grad_norm': 0.75}"),
        (Rollout, "rollout 0: {'rollout/raw_reward': 0.5}"),
        (TaskRaised, "[rollout] Task raised exception: ModuleNotFoundError(\"No module 'r'\")"),
    ],
)
def test_a_record_is_read_wherever_a_terminal_wraps_it_behind_its_time(kind, message):
    line = sourced(1, message)
    (whole,) = of(kind, text(line))
    for at in range(line.index("] ") + 3, line.index(": ", line.index(" - ")) + 2):
        for rest in {line[at:], line[at:].lstrip()}:
            head = line[:at] if rest == line[at:] else line[:at].rstrip()
            (first, *_) = of(kind, text(head, rest, step(9, 13)))
            assert first[1:] == whole[1:], head


def test_a_record_that_only_begins_swallows_no_record():
    for head in ("", "step", "step 1", "[rollout] Task"):
        log = text(sourced(1, head), "anything", sourced(2, head), step(9, 1))
        assert [s.index for s in of(Step, log)] == [1]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("engine-died", "Subprocess scheduler_0 (pid=5107) crashed with exit code -9."),
        ("engine-died", "Received sigquit from a child process. It usually means the child"),
        ("kernel-missing", "CUDA error: no kernel image is available for execution"),
    ],
)
def test_an_error_is_read_wherever_a_terminal_wraps_its_words(kind, line):
    least = {"Subprocess": 25, "Received s": 24, "CUDA error": 20}[line[:10]]
    for at in range(least, len(line)):
        for rest in {line[at:], line[at:].lstrip()}:
            kinds = [e.kind for e in of(ErrorLine, text(engine(1, line[:at].rstrip()), rest))]
            assert kind in kinds or (line[:at].endswith(" ") and rest == line[at:]), line[:at]
            assert kind in [e.kind for e in of(ErrorLine, text(engine(1, line[:at]), rest))]


@pytest.mark.parametrize("zone", ["Z", "+02:00"])
def test_a_timestamp_that_the_reader_of_the_log_put_before_each_line_changes_nothing(zone):
    lines = [
        "# run a",
        "# date 2026-11-29T00:00:00Z",
        "EXEC: python3 train.py --use-fault-tolerance",
        engine(0, "server_args=ServerArgs(x=1)"),
        *[x for k in range(4) for x in retry(5 + k, k + 1)],
        "\r".join(f"Capturing batches:  {k}0%|## | {k}/9 [00:0{k}<00:09]" for k in (1, 2, 3)),
        "(SGLangEngine pid=7) Received sigquit from a child process. It usually means",
        *step(20, 0),
        *retry(30, 1),
        *rollout(50, 1),
        "# end 2026-11-29T00:02:00Z rc=0",
    ]
    stamped = [f"2026-11-29T00:00:{k:02d}.123456789{zone} {line}" for k, line in enumerate(lines)]
    for cut in (1 << 18, 70, 7):
        assert events(text(*stamped), cut) == events(text(*lines), cut)


def test_a_line_that_begins_with_its_own_time_is_no_log_with_outer_timestamps():
    own = "2026-11-29T00:00:01.123456Z  INFO sglang_router::server: x"
    log = text(step(1, 0), own, step(9, 1), f"{own[:28]}Traceback", step(20, 2))
    assert [s.index for s in of(Step, log)] == [0, 1, 2]
    parser = LogParser()
    parser.feed(text(own))
    assert parser.time is not None


@pytest.mark.parametrize(
    ("end", "how"),
    [("rc=0", "finished"), ("rc=1", "failed"), ("rc=137", "killed"), ("rc=124", "time-limit")],
)
def test_an_end_with_its_status_needs_no_newline(end, how):
    log = text(step(1, 0)) + f"# end 2026-11-29T00:02:00Z {end}".encode()
    assert [e.how for e in of(JobEnd, log)] == [how]
    for cut in ("", "rc", "rc=", "rc=12", "rc=13"):
        assert of(JobEnd, text(step(1, 0)) + f"# end 2026-11-29T00:02:00Z {cut}".encode()) == []


def test_only_a_status_of_a_signal_is_a_kill():
    ends = [(f"# end x rc={n}", n) for n in (1, 125, 128, 129, 143, 192, 193, 255)]
    hows = {n: of(JobEnd, text(line))[0].how for line, n in ends}
    assert [n for n, how in hows.items() if how == "killed"] == [129, 143, 192]


def test_retries_of_older_versions_without_address_and_response_are_read():
    first, second = retry(1, 3)
    short = second.split(", url=")[0] + ")"
    log = text(
        first,
        short,
        sourced(2, "Error: All connection attempts failed, retrying... (attempt 4/60)"),
    )
    assert [(r.status, r.attempt, r.limit) for r in of(Retry, log)] == [(503, 3, 60), (None, 4, 60)]


def test_the_cause_in_the_status_message_of_a_job_is_read_and_the_copy_below_it_is_not():
    died = "Task was killed due to the node running low on memory."
    told = f"Status message: Job supervisor actor died: {died}"
    log = text(
        step(1, 0), "Job 'raysubmit_x' failed", told, sourced(1, "CUDA error: out of memory")
    )
    assert [e.kind for e in of(ErrorLine, log)] == ["ray-memory-kill"]
    plain = "Status message: Job entrypoint command failed with exit code 1, last available logs:"
    assert of(ErrorLine, text("Job 'raysubmit_x' failed", plain)) == []


@pytest.mark.parametrize(
    "line",
    [
        "EXEC: cd /root/miles && ray job submit -- python3 train.py --use-fault-tolerance --seed 1",
        sourced(1, "  use_fault_tolerance ............... True"),
        sourced(1, "Namespace(seed=1, use_fault_tolerance=True, x=2)"),
        "{'use_fault_tolerance': True}",
        sourced(1, "Health check failed for rollout engine 0 (ray timeout). Killing actor. Exc: x"),
    ],
)
def test_fault_tolerance_is_read_from_the_output_of_the_run(line):
    assert len(of(FaultTolerance, text(line))) == 1
    off = line.replace("True", "False").replace("--use-fault-tolerance", "[--use-fault-tolerance]")
    assert of(FaultTolerance, text(off.replace("Killing actor", "Retrying"))) == []
    sample = sourced(1, f"First rollout sample: {line}")
    assert of(FaultTolerance, text(sample)) == []


def test_a_dict_that_never_closes_swallows_no_record():
    log = text(sourced(1, "step 0: {'train/loss': 0.1"), step(9, 1))
    assert [s.index for s in of(Step, log)] == [1]
