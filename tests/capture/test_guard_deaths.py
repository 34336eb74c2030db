"""Fatal lines: which cause wins, how long one waits, what counts as a recovery."""

import io

import minilog as m
import pytest
from guardlog import HOUR, decode, failing, judge, live, slowest, startup, steps, stops
from mileskit.guard.logdrive import load
from mileskit.guard.rules import Guard
from mileskit.log.events import JobEnd
from mileskit.log.logparse import LogParser

BASE = [*startup(), *steps(HOUR + 250, 5)]
END = HOUR + 250 + 4 * 170
DEAD = END + 20
KILLED = m.engine(DEAD, "Subprocess scheduler_0 (pid=5107) crashed with exit code -9. Triggering")
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."
OOM = f"{m.TRAINER} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
ADVICE = (
    "The actor is dead because its worker process has died. Worker exit detail: Worker "
    "unexpectedly exits. There are some potential root causes. (1) The process is killed by "
    "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called."
)


@pytest.mark.parametrize(
    "line",
    [KILLED, m.engine(DEAD, SIGQUIT), m.engine(DEAD, "SIGQUIT received. signum=None, frame=None.")],
)
def test_an_engine_that_says_it_died_is_stopped_within_ninety_seconds(line):
    outcomes = live(*BASE, line, *failing(DEAD + 5, DEAD + 200))
    assert stops(outcomes) == {"engine-dead"}
    assert 60 <= slowest(outcomes) <= 90


def test_a_death_is_stopped_though_the_trainer_finishes_its_step():
    lines = [
        *m.rollout(DEAD - 2, 5),
        KILLED,
        m.sourced(DEAD + 50, "Timer log_probs end (elapsed: 25.0s)"),
        *m.step(DEAD + 58, 5),
    ]
    outcomes = live(*BASE, *lines, now_after=40)
    assert stops(outcomes) == {"engine-dead"}
    assert slowest(outcomes) <= 90


def test_the_cause_wins_over_the_death_it_led_to():
    cause = [m.engine(DEAD, "Scheduler hit an exception: Traceback (most recent call last):"), OOM]
    lines = [*BASE, *cause, m.engine(DEAD + 2, SIGQUIT), *failing(DEAD + 4, DEAD + 200)]
    assert judge(*lines).verdict == "cuda-oom"
    assert stops(live(*lines)) == {"cuda-oom"}


def test_the_oldest_of_several_causes_wins():
    missing = [raised(HOUR + 60 + k, MISSING) for k in range(3)]
    later = [m.engine(HOUR + 90, "x"), OOM]
    assert judge(*startup(), *missing, *later).verdict == "reward-error"
    assert judge(*startup(), OOM, *missing).verdict == "cuda-oom"


def test_a_cause_stays_with_the_engine_that_it_killed_while_the_trainer_goes_on():
    lines = [
        *m.rollout(DEAD - 2, 5),
        m.engine(DEAD, "Scheduler hit an exception: Traceback (most recent call last):"),
        OOM,
        m.engine(DEAD + 2, SIGQUIT),
        *m.step(DEAD + 50, 5),
    ]
    assert judge(*BASE, *lines, now_after=40).verdict == "cuda-oom"


def test_the_rollout_that_was_ending_at_a_death_is_no_recovery():
    lines = [KILLED, *m.rollout(DEAD + 5, 5), *failing(DEAD + 6, DEAD + 200)]
    outcomes = live(*BASE, *lines)
    assert stops(outcomes) == {"engine-dead"}
    assert slowest(outcomes) <= 90


def test_an_engine_that_goes_on_generating_holds_the_stop_back():
    busy = [decode(DEAD + 20 + 10 * k) for k in range(30)]
    lines = [*BASE, m.engine(DEAD, "x"), OOM, *busy, *steps(DEAD + 430, 2, start=5)]
    assert stops(live(*lines)) == {""}


def test_the_causes_that_ray_lists_are_advice():
    assert judge(*BASE, DIED, "\tclass_name: FSDPTrainRayActor", ADVICE).verdict == "worker-died"


def test_a_memory_kill_wins_over_the_death_of_the_worker_whatever_comes_first():
    kill = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers"
    assert judge(*BASE, DIED, kill).verdict == "ray-memory-kill"
    assert judge(*BASE, kill, DIED).verdict == "ray-memory-kill"


def test_a_worker_that_took_the_engine_along_is_a_dead_engine():
    lines = [*BASE, DIED, "\tclass_name: SGLangEngine", *failing(DEAD, DEAD + 200)]
    assert judge(*lines).verdict == "engine-dead"


def test_a_line_that_the_run_survives_is_forgotten():
    note = m.engine(HOUR + 7, "Tried: torch.OutOfMemoryError: CUDA out of memory")
    lines = [*startup()[:-1], note, startup()[-1], *steps(HOUR + 250, 3)]
    assert stops(live(*lines)) == {""}
    assert judge(*lines).verdict == "healthy"


TOOL = f"{m.MANAGER} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error."
)


@pytest.mark.parametrize("line", [TOOL, RAYLET])
@pytest.mark.parametrize("before", [0.1, 1, 5, 14])
@pytest.mark.parametrize("training", [110, 230])
def test_a_line_just_before_a_rollout_waits_for_the_training_that_follows(line, before, training):
    at = END + 120
    then = [m.sourced(at - before, "x"), line, *m.rollout(at, 5)]
    then += m.step(at + training, 5)
    assert stops(live(*BASE, *then, *steps(at + training + 170, 2, start=6))) == {""}
    gone = live(*BASE, *then[:4], now_after=900)
    assert stops(gone) <= {"cuda-oom", "worker-died"}
    assert slowest(gone) <= 1.5 * 170 + 30


@pytest.mark.parametrize("line", [TOOL, RAYLET])
def test_a_line_just_before_a_rollout_waits_no_longer_once_a_death_is_told(line):
    then = [line, *m.rollout(END + 5, 5), m.sourced(END + 10, "x"), DIED]
    outcomes = live(*BASE, *then, now_after=900)
    assert "" not in stops(outcomes)
    assert slowest(outcomes) <= 100


def test_a_condition_that_the_program_went_round_is_no_failure():
    notes = [
        m.engine(HOUR + 12, "Autotune: CUDA out of memory in config 3, skipping"),
        m.engine(HOUR + 13, "FlashAttention 3 requires SM 90, falling back to triton"),
        m.engine(HOUR + 14, "WARNING: port 6500 is in use"),
    ]
    lines = [*startup(), *notes, *steps(HOUR + 300, 3)]
    assert stops(live(*lines)) == {""}


def test_a_restart_after_a_death_is_waited_for_and_clears_it():
    back = [*startup(DEAD + 40), decode(DEAD + 60), *steps(DEAD + 200, 2, start=5)]
    lines = [*BASE, KILLED, *failing(DEAD + 5, DEAD + 40), *back]
    assert stops(live(*lines)) == {""}
    assert judge(*lines).verdict == "healthy"


def test_what_was_under_way_at_a_death_is_no_recovery():
    lines = [*BASE, KILLED, decode(DEAD + 1), *failing(DEAD + 5, DEAD + 200)]
    assert stops(live(*lines)) == {"engine-dead"}


def test_fault_tolerance_is_read_from_the_command_and_waits_longer():
    head = ["# run x", "# date 2026-11-29T08:59:50Z", "# command train.py --use-fault-tolerance"]
    outcomes = live(*head, *BASE, KILLED, *failing(DEAD + 5, DEAD + 600))
    assert stops(outcomes) == {"engine-dead"}
    assert 300 <= min(r.seconds for r in outcomes) <= slowest(outcomes) <= 330


@pytest.mark.parametrize(
    "line",
    [
        "EXEC: ray job submit -- python3 train.py --use-fault-tolerance",
        m.sourced(HOUR - 5, "  use_fault_tolerance ... True"),
    ],
)
def test_fault_tolerance_in_the_output_is_that_of_the_run_that_it_begins(line):
    back = [*startup(DEAD + 200), decode(DEAD + 215), *steps(DEAD + 400, 2, start=5)]
    lines = [*BASE, KILLED, *failing(DEAD + 5, DEAD + 190), *back]
    assert stops(live(line, *lines)) == {""}
    assert stops(live(*lines)) == {"engine-dead"}
    # A launcher prints its command before the line that shows that a further run begins.
    job, before = "Job 'raysubmit_x' submitted successfully", steps(HOUR - 3600, 3)
    assert stops(live(*before, line, job, *lines)) == {""}
    assert stops(live(line, *before, job, *lines)) == {"engine-dead"}
    for head, wanted in (([*before, line], True), ([line, *before], False)):
        guard = Guard()
        for event in LogParser().feed(m.text(*head, job, *BASE)):
            guard.observe(event, event.time or HOUR - 3700)
        assert guard.fatals.fault_tolerance is wanted


def test_the_kill_of_the_health_monitor_shows_fault_tolerance():
    told = m.sourced(DEAD + 30, "Health check failed for rollout engine 0 (ray). Killing actor.")
    back = [*startup(DEAD + 200), decode(DEAD + 215), *steps(DEAD + 400, 2, start=5)]
    assert stops(live(*BASE, KILLED, told, *failing(DEAD + 31, DEAD + 190), *back)) == {""}


def test_servers_that_die_at_a_clean_end_belong_to_the_end():
    quit_line = m.engine(END + 5, "SIGQUIT received. signum=None, frame=None.")
    assert judge(*BASE, quit_line, "# end 2026-11-29T09:16:30Z rc=0").verdict == "finished"


def test_a_clean_end_amid_failing_requests_does_not_hide_a_death():
    lines = [*BASE, KILLED, *failing(DEAD + 5, DEAD + 30), "# end 2026-11-29T09:16:25Z rc=0"]
    assert judge(*lines).verdict == "engine-dead"


def test_a_clean_status_does_not_hide_a_death():
    """The status of `run | tee` is that of tee."""
    lines = [*BASE, KILLED, *failing(DEAD + 5, DEAD + 300), "# end 2026-11-29T09:25:30Z rc=0"]
    assert judge(*lines).verdict == "engine-dead"


def raised(at, text):
    return m.sourced(at, f"[rollout] Task raised exception: {text}", m.MANAGER)


MISSING = "ModuleNotFoundError(\"No module named 'my_rewards'\")"
NO_ATTRIBUTE = "AttributeError(\"module 'my_rewards' has no attribute 'reward'\")"
AWAIT = "TypeError(\"object float can't be used in 'await' expression\")"


@pytest.mark.parametrize("text", [MISSING, NO_ATTRIBUTE, AWAIT, "NotImplementedError('rm')"])
def test_a_reward_that_cannot_work_is_stopped(text):
    outcomes = live(*startup(), *[raised(HOUR + 60 + 60 * k, text) for k in range(5)])
    assert stops(outcomes) == {"reward-error"}
    assert slowest(outcomes) <= 180


@pytest.mark.parametrize(
    "text", ["AttributeError(\"'NoneType' object has no attribute 'strip'\")", "ValueError('x')"]
)
def test_a_reward_that_fails_on_some_answers_is_not(text):
    lines = [*startup(), *[raised(HOUR + 30 + k, text) for k in range(9)], *steps(HOUR + 250, 2)]
    assert stops(live(*lines)) == {""}
    assert judge(*lines).verdict == "healthy"


def generation(done):
    return f"{m.MANAGER} Rollout generation: {done * 3}%|#| {done}/32 [00:{done:02d}<00:40]"


def test_a_reward_that_works_for_some_samples_is_not_stopped():
    errors = [raised(HOUR + 60 + k, MISSING) for k in range(2)]
    lines = [*startup(), generation(4), *errors, m.engine(HOUR + 80, "x"), generation(5)]
    assert stops(live(*lines, now_after=600)) == {""}
    assert judge(*lines).verdict == "starting"
    still = [*startup(), generation(4), *errors, m.engine(HOUR + 80, "x"), generation(4)]
    outcomes = live(*still, now_after=600)
    assert stops(outcomes) == {"reward-error"}
    assert slowest(outcomes) <= 180


def test_a_rollout_that_comes_within_two_minutes_shows_that_the_reward_works():
    lines = [*startup(), *[raised(HOUR + 60 + k, MISSING) for k in range(3)]]
    assert stops(live(*lines, *m.rollout(HOUR + 60 + 125, 0), *steps(HOUR + 300, 2))) == {""}


def test_one_import_error_alone_is_not_yet_a_reward_that_cannot_work():
    assert judge(*startup(), raised(HOUR + 60, MISSING), now_after=600).verdict == "starting"


def test_one_import_error_and_then_a_rollout_is_healthy():
    lines = [*startup(), raised(HOUR + 30, MISSING), *steps(HOUR + 250, 2)]
    assert judge(*lines).verdict == "healthy"


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ("# end 2026-11-29T09:20:00Z rc=0", "finished"),
        ("# end 2026-11-29T09:20:00Z rc=124", "stopped"),
        ("# end 2026-11-29T09:20:00Z rc=137", "stopped"),
        ("# end 2026-11-29T09:20:00Z rc=1", "failed"),
        ("Job 'raysubmit_x' succeeded", "finished"),
        ("Job 'raysubmit_x' failed", "failed"),
        ("Job 'raysubmit_x' was stopped", "stopped"),
    ],
)
def test_an_end_gives_its_verdict_when_no_cause_is_seen(end, verdict):
    assert judge(*BASE, end).verdict == verdict


def test_a_failed_job_is_told_with_its_first_error():
    error = "ValueError: the model has no such layer"
    decision = judge(*BASE, error, "Job 'raysubmit_x' failed")
    assert decision.verdict == "failed"
    assert decision.root.text == error


def test_an_error_that_steps_followed_is_not_the_root_of_a_later_end():
    decision = judge(
        *startup(), "ValueError: old", *steps(HOUR + 250, 3), "Job 'raysubmit_x' failed"
    )
    assert type(decision.root) is JobEnd


def test_a_second_run_without_a_marker_forgets_the_first_as_it_streams():
    first = [*steps(HOUR + 250, 5), m.engine(HOUR + 950, SIGQUIT)]
    text = m.text(*startup(), *first, *startup(HOUR + 2000)[:-1], *steps(HOUR + 2300, 3))
    guard, parser = Guard(), LogParser()
    now = HOUR
    for event in [*parser.feed(text), *parser.close()]:
        now = max(now, event.time or now)
        guard.observe(event, now)
    assert (guard.final(now).verdict, guard.runs, guard.training.steps) == ("healthy", 2, 3)


def test_a_marker_ends_what_waited_in_the_run_before_it():
    text = m.text(*BASE, KILLED, "# run second", *startup(DEAD + 600)[:1])
    guard, now = Guard(), HOUR
    for event in LogParser().feed(text):
        now = max(now, event.time or now)
        guard.observe(event, now)
    assert (guard.final(now).verdict, guard.runs) == ("starting", 2)


def test_the_second_run_of_a_file_begins_with_its_own_first_line():
    lines = [*BASE, *startup(HOUR + 3610), *steps(HOUR + 3900, 3)]
    second = load(io.BytesIO(m.text(*lines))).runs[1]
    assert second.events[0].line == second.first_line == len(BASE) + 1


@pytest.mark.parametrize(
    "head",
    [
        ["Job 'raysubmit_x' submitted successfully"],
        ["# run again", "Job 'raysubmit_x' submitted successfully"],
        ["# run again", "(autoscaler +1m) Warning: cannot be scheduled"],
    ],
)
def test_a_second_run_whose_first_line_has_no_timestamp_begins_at_its_own_time(head):
    later = END + 4 * 3600
    first = [*BASE, DIED, *failing(END + 30, END + 60)]
    again = [*head, *startup(later), *steps(later + 250, 3)]
    assert judge(*first, *again).verdict == "healthy"
    assert stops(live(*first, *again)) == {""}
    waits = [m.sourced(later + 60 * k, "waiting") for k in range(20)]
    assert judge(*first, *head, *waits[:14]).verdict == "starting"
    assert stops(live(*first, *head, *waits)) == {"no-progress"}


def test_a_second_run_begins_without_the_deaths_of_the_first():
    first = [*BASE, KILLED, *failing(DEAD + 5, DEAD + 30)]
    for head in (["# run second", "# date 2026-11-29T10:00:00Z"], []):
        lines = [*first, *head, *startup(HOUR + 3610), *steps(HOUR + 3900, 3)]
        assert judge(*lines).verdict == "healthy"
        assert stops(live(*lines)) == {""}


def test_a_second_run_that_dies_is_told():
    lines = [
        *BASE,
        "# end 2026-11-29T09:30:00Z rc=0",
        "# run second",
        "# date 2026-11-29T10:00:00Z",
        *startup(HOUR + 3610),
        m.engine(HOUR + 3625, SIGQUIT),
    ]
    assert judge(*lines).verdict == "engine-dead"
