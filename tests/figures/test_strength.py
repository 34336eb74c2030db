"""Badges computed from reads, and wording held to them."""

import pytest

from figures import evidence, reported, strength, wording


def of(*reads):
    with evidence.recording() as accesses:
        for read in reads:
            read()
    return strength.of(accesses)


def test_one_run_is_one_run_one_seed_and_its_steps(lab):
    run = evidence.run(lab("a"))
    found = of(lambda: run.column("train/loss"))
    assert (found.tier, found.text) == ("measured", "1 run, 1 seed, 3 steps")
    assert found.setup_text == "tiny, sums, H200, alone on GPU, no container, Miles 2026-08-21"


def test_runs_of_one_seed_are_one_seed(lab):
    runs = [evidence.run(lab(name)) for name in ("a", "b")]
    found = of(*(lambda run=run: run.column("train/loss", [0, 1]) for run in runs))
    assert found.text == "2 runs, 1 seed, 2 steps each"


def test_a_time_without_clock_samples_is_marked(lab):
    run = evidence.run(lab("a"))
    assert "clock unknown" in of(lambda: run.column("perf/step_time")).setup_text
    assert "clock" not in of(lambda: run.column("train/loss")).setup_text


def test_a_time_with_clock_samples_is_marked_as_recorded(lab):
    run = evidence.run(lab("a", clock="gpu.csv"))
    assert "clock recorded" in of(lambda: run.column("perf/step_time")).setup_text


def test_clean_steps_are_counted_where_times_are_shown(lab):
    run = evidence.run(lab("a"))
    assert of(lambda: run.column("perf/step_time")).text == "1 run, 1 seed, 3 steps, 2 clean"


def test_two_models_are_two_setups_and_the_difference_is_named(lab):
    runs = [evidence.run(lab("a")), evidence.run(lab("b", model="small"))]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    assert len(found.setups) == 2
    assert found.setup_text.endswith("; differs: model")


def test_a_shared_gpu_is_a_circumstance_and_is_named(lab):
    runs = [evidence.run(lab("a")), evidence.run(lab("b", shared=True))]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    assert len(found.setups) == 1
    assert found.setup_text == (
        "tiny, sums, H200, GPU alone or shared, no container, Miles 2026-08-21; "
        "differs: GPU alone or shared"
    )


def test_flags_that_one_run_changed_are_named_but_seeds_are_not(lab):
    runs = [
        evidence.run(lab("a", changed=["--seed 7", "--top-p 0.9"])),
        evidence.run(lab("b", seed=2)),
    ]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    assert found.differs == ("--top-p 0.9",)


def test_reported_values_count_runs_and_seeds_of_their_source(lab):
    found = of(lambda: reported.reported("paper", "first"))
    assert (found.tier, found.text) == ("reported", "published values, 1 run, 1 seed")
    assert found.setup_text == "Qwen3-0.6B, GB10, container, Miles 2026-10-15"


def test_a_reported_run_with_another_model_has_that_model_in_its_badge(lab):
    one = of(lambda: reported.reported("paper", "killed"))
    assert one.setup_text == "Qwen3-4B, GB10, container, Miles 2026-10-15"
    both = of(
        lambda: reported.reported("paper", "killed"), lambda: reported.reported("paper", "first")
    )
    assert both.setup_text == "Qwen3-0.6B and Qwen3-4B, GB10, container, Miles 2026-10-15"
    three = of(lambda: reported.reported("paper", "fit"))
    assert three.setup_text.startswith("Qwen3-0.6B, Qwen3-1.7B and Qwen3-4B, GB10")


def test_seeds_are_left_out_when_the_source_does_not_give_them(lab):
    assert of(lambda: reported.reported("paper", "range")).text == "published values, 2 runs"


def test_a_run_that_the_source_does_not_name_is_no_second_named_run(lab):
    found = of(
        lambda: reported.reported("paper", "first"), lambda: reported.reported("paper", "orphan")
    )
    assert found.text == "published values, 1 run, a run without a name, 1 seed"
    assert not found.one_run


def test_both_tiers_are_both_named_and_two_setups(lab):
    run = evidence.run(lab("a"))
    found = of(lambda: run.column("train/loss"), lambda: reported.reported("paper", "first"))
    assert found.tier == "measured and reported"
    assert len(found.setups) == 2


@pytest.mark.parametrize(
    "text",
    [
        "In one 20-step run on an H200, the first step took 23 s.",
        "In this run, the rollout took 2 s.",
        "The plain run took 35 minutes.",
        "Our 48-step run of the same setup was shorter.",
        "In step 0 of this run, 9 groups had only wrong answers.",
    ],
)
def test_a_claim_that_speaks_of_one_run_is_accepted(lab, text):
    run = evidence.run(lab("a"))
    assert wording.claim_errors(text, of(lambda: run.column("train/loss"))) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The first step takes 23 s.", "one run"),
        ("Runs take 35 minutes on an H200.", "one run"),
        ("In this run the first step always takes longer.", "'always'"),
        ("In one run, as usual, a step usually takes 10 s.", "'usually'"),
        ("This run shows that every run has a slow first step.", "'every run'"),
        ("In general, one run has a slow first step.", "'In general'"),
    ],
)
def test_a_claim_on_one_run_may_not_be_general(lab, text, word):
    run = evidence.run(lab("a"))
    errors = wording.claim_errors(text, of(lambda: run.column("train/loss")))
    assert any(word in error for error in errors)


def test_three_runs_need_not_speak_of_one_run(lab):
    runs = [evidence.run(lab(name)) for name in "abc"]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    assert wording.claim_errors("The reward rises in each seed.", found) == []


@pytest.mark.parametrize(
    "text",
    [
        "A step takes 10 s on one and 167 s on the other, so the H200 is faster.",
        "The H200 run needs less time.",
        "The GB10 takes 16 times as long.",
        "A rollout takes half the time.",
        "Twice the reward in one run.",
    ],
)
def test_two_setups_may_not_be_compared(lab, text):
    runs = [evidence.run(lab("a")), evidence.run(lab("b", model="small"))]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    errors = wording.claim_errors(text, found)
    assert errors
    assert any("compares" in error and "model" in error for error in errors)


def test_one_setup_may_be_compared_with_itself(lab):
    runs = [evidence.run(lab("a")), evidence.run(lab("b"))]
    found = of(*(lambda run=run: run.column("train/loss") for run in runs))
    assert wording.claim_errors("The second run has a higher reward than the first.", found) == []


def test_a_run_without_miles_names_no_version_of_it():
    found = of(lambda: evidence.run("h200-core/gpu_s1").column("train/loss"))
    assert found.setup_text.endswith("OLMo-core trainer, no Miles")
