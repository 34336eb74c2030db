"""What the figures and tables of part 4 say, against the stored runs and the facts."""

import json
import lzma
import math
import statistics

import pytest
import yaml

from figures import answers, determinism, evidence, registry, sampling
from figures.evidence import EvidenceError
from scripts import levertables, tables
from scripts.tree import ROOT, Tree

FOLDER = "capture/gpu/out-h200-miles"
GAP = "train/train_rollout_logprob_abs_diff"


def summary(run):
    return json.loads(evidence.read(f"{FOLDER}/{run}/summary.json"))


def column(run, table, key):
    return summary(run)["runs"][0][table]["columns"][key]


def answers_with(run, change):
    """An overlay in which `change` has had the first answer of a run."""
    path = f"{FOLDER}/{run}/{answers.FILE}"
    lines = lzma.decompress(evidence.read(path)).decode().splitlines()
    first = json.loads(lines[0])
    change(first)
    return {path: lzma.compress("\n".join([json.dumps(first), *lines[1:]]).encode())}


def values(figure_id):
    return registry.build(figure_id).values


def test_the_pair_repeats_every_answer_and_value_of_step_zero():
    found = values("fig-4-5-repeat")
    assert found["same"].number == found["same_values"].number == found["answers"].number == 256
    assert found["later"].number < found["answers"].number


def test_one_changed_token_is_one_answer_less():
    def change(row):
        row["t"][3] += 1

    with evidence.use_overlay(answers_with("determ2", change)):
        found = values("fig-4-5-repeat")
    assert found["same"].number == found["same_values"].number == 255


def test_the_last_bit_of_one_log_probability_is_seen():
    def change(row):
        row["lp"][2] = math.nextafter(row["lp"][2], 0)

    with evidence.use_overlay(answers_with("determ2", change)):
        found = values("fig-4-5-repeat")
    assert (found["same"].number, found["same_values"].number) == (256, 255)


def test_trainers_that_disagree_at_step_zero_stop_the_figure():
    stored = summary("determ2")
    stored["runs"][0]["rollouts"]["columns"]["rollout/log_probs"][0] += 1e-12
    overlay = {f"{FOLDER}/determ2/summary.json": json.dumps(stored).encode()}
    with evidence.use_overlay(overlay), pytest.raises(EvidenceError, match="trainers"):
        registry.build("fig-4-5-repeat")


def test_an_answer_given_twice_or_with_lists_of_two_lengths_is_refused():
    run = evidence.run("h200-miles/determ")
    for change, match in (
        (lambda row: row.update(i=1), "twice"),
        (lambda row: row["lp"].pop(), "several lengths"),
        (lambda row: row.update(n=7), "several lengths"),
        (lambda row: row.update(i=9999), "255 answers of step 0"),
    ):
        with (
            evidence.use_overlay(answers_with("determ", change)),
            pytest.raises(EvidenceError, match=match),
        ):
            answers.of_step(run, 0)


def test_a_run_without_stored_answers_says_so():
    with pytest.raises(EvidenceError, match="answers-steps-0-1"):
        answers.of_step(evidence.run("h200-miles/topp2"), 0)


def test_steps_with_other_samples_cannot_be_compared():
    run = evidence.run("h200-miles/determ")
    with pytest.raises(EvidenceError, match="other sample indices"):
        answers.compare(answers.of_step(run, 0), answers.of_step(run, 1))


def test_the_pair_has_one_gap_in_step_zero_only():
    one, two = (column(run.partition("/")[2], "steps", GAP) for run in determinism.TWINS)
    equal = [step for step, (a, b) in enumerate(zip(one, two, strict=True)) if a == b]
    assert equal == [0]
    found = values("fig-4-5-gap")
    assert found["equal_steps"].number == 1
    assert found["apart"].number == max(abs(a - b) for a, b in zip(one, two, strict=True))


def test_the_peer_has_the_seeds_of_the_pair_and_no_deterministic_inference():
    runs = [evidence.run(run_id) for run_id in (*determinism.TWINS, determinism.PEER)]
    flags = [run.toml["settings"] for run in runs]
    assert len({(flag["seed"], flag["rollout-seed"]) for flag in flags}) == 1
    on = [flag.get("sglang-enable-deterministic-inference", False) for flag in flags]
    assert on == [True, True, False]


def test_the_cut_run_is_compared_over_steps_that_every_run_has():
    found = values("fig-4-4-h200")
    cut = column("topp2", "steps", GAP)[: len(sampling.STEPS)]
    assert found["cut"].number == statistics.median(cut)
    plain = [
        column(run_id.partition("/")[2], "steps", GAP)[: len(cut)] for run_id in sampling.SEEDS
    ]
    below = sum(cell < min(others) for cell, *others in zip(cut, *plain, strict=True))
    assert found["below"].number == below
    medians = [statistics.median(line) for line in plain]
    assert found["plain"].number == (min(medians), max(medians))


def test_only_the_cut_run_of_the_four_cuts_its_sampler():
    for run_id in (*sampling.SEEDS, sampling.CUT):
        settings = evidence.run(run_id).toml["settings"]
        assert ("rollout-top-p" in settings) == (run_id == sampling.CUT)


def test_a_report_over_the_kept_set_would_have_moved_the_mean_further_than_the_cut_run_moves():
    found = values("fig-4-4-h200")
    path = f"{FOLDER}/{sampling.STORED.partition('/')[2]}/{answers.FILE}"
    stored = [json.loads(line) for line in lzma.decompress(evidence.read(path)).splitlines()]
    means = []
    for step in (stored[: len(stored) // 2], stored[len(stored) // 2 :]):
        of_answers = []
        for row in step:
            certain = [lp for lp in row["lp"] if math.exp(lp) >= sampling.TOP_P]
            of_answers.append(-sum(certain) / row["n"])
        means.append(statistics.fmean(of_answers))
    assert found["would"].number == pytest.approx((min(means), max(means)))
    assert found["would"].low > found["cut_signed"].high
    assert evidence.run(sampling.CUT).setting("rollout-top-p") == sampling.TOP_P


def test_the_signed_difference_is_engine_minus_trainer():
    for row in registry.build("fig-4-4-h200").rows:
        engine, trainer = (
            column(row["run"], "rollouts", key)[row["step"]]
            for key in ("rollout/rollout_log_probs", "rollout/log_probs")
        )
        assert row["engine_minus_trainer"] == engine - trainer


def test_synchronous_runs_have_no_old_sample_and_a_later_one_shows():
    found = values("fig-4-1-ages")
    assert [found[name].number for name in ("age", "spread", "mixed")] == [0, 0, 0]
    stored = summary("plain3")
    stored["runs"][0]["rollouts"]["columns"]["rollout/weight_version/min"][5] -= 2
    overlay = {f"{FOLDER}/plain3/summary.json": json.dumps(stored).encode()}
    with evidence.use_overlay(overlay):
        found = values("fig-4-1-ages")
    assert (found["age"].number, found["spread"].number) == (2, 2)


def test_the_longest_answer_of_each_step_is_that_of_the_log():
    figure = registry.build("fig-4-2-h200")
    limit = figure.values["limit"].number
    for row in figure.rows:
        stored = column(row["run"], "rollouts", "rollout/response_len/max")[row["step"]]
        assert row["longest_tokens"] == stored <= limit
    cut = sum(row["cut_share"] > 0 for row in figure.rows)
    assert figure.values["steps_cut"].number == cut


def test_cells_of_lost_tables_hold_no_number():
    rows = registry.build("fig-4-5-gb10-runs").rows
    assert [row["gap"] for row in rows].count("lost") == 3
    assert {row["range"] for row in registry.build("fig-4-4-gap").rows} == {"lost", ""}


@pytest.mark.parametrize("name", sorted(levertables.TABLES))
def test_each_table_of_part_4_is_registered_and_has_even_rows(name):
    rows = tables.TABLES[name](Tree(ROOT))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}


def test_a_flag_that_the_facts_lose_is_an_error(monkeypatch):
    monkeypatch.setitem(levertables.ASYNC_FLAGS, "--no-such-flag", ("what", "note"))
    with pytest.raises(KeyError, match="no-such-flag"):
        levertables.async_flags(Tree(ROOT))


def test_the_kept_mass_table_holds_the_published_example():
    shown = {row[0]: row[1] for row in levertables.kept_mass(Tree(ROOT))[1:]}
    found = values("fig-4-4-mass")
    assert shown[found["mass"].bare] == found["shift"].bare


def test_only_a_hopper_passes_both_gates():
    rows = levertables.fa3_gates(Tree(ROOT))[1:]
    assert [row[1] for row in rows if row[4] == "can start"] == ["9.0"]
    assert [row[1] for row in rows if row[2] == "passes"] == ["8.0", "8.9", "9.0"]


def test_modes_three_and_four_list_no_hopper_and_no_list_has_a_gb10():
    modes = levertables.precision_modes(Tree(ROOT))[1:]
    assert [row[0] for row in modes if "H200" in row[4]] == ["1", "2"]
    assert not any("GB10" in row[4] for row in modes)
    facts = yaml.safe_load((ROOT / levertables.PRECISION).read_text())
    assert {mode["gpus"] for mode in facts["modes"]} <= {f["name"] for f in facts["formats"]}


def test_a_contract_without_its_models_is_an_error():
    text = (ROOT / levertables.CORRECTIONS).read_text().replace("profile names:", "names:")
    with pytest.raises(KeyError, match="profile names"):
        levertables.contract(Tree(ROOT, {levertables.CORRECTIONS: text.encode()}))
