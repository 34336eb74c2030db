"""The figures and tables of part 3, against the stored runs and the rules of their pages."""

import json
import statistics

import pytest

from figures import evidence, registry, reported
from scripts import recipetables
from scripts.tree import ROOT, Tree

LOG = "capture/gpu/out-h200-miles/{}/summary.json"


def columns(run):
    return json.loads(evidence.read(LOG.format(run)))["runs"][0]["rollouts"]["columns"]


def toml(run):
    return evidence.run(f"h200-miles/{run}").toml["settings"]


def one_batch(dropped, sent=48, wanted=32):
    """The loop of the page on finished groups in order: how many batches of prompts are sent."""
    kept = waiting = batches = 0
    for drop in dropped:
        while kept + waiting < wanted:
            batches, waiting = batches + 1, waiting + sent
        waiting -= 1
        kept += not drop
        if kept == wanted:
            return batches
    raise AssertionError("the groups ran out before the step was full")


@pytest.mark.parametrize("run", ["n4", "plain3", "n16", "filter"])
def test_the_global_batch_is_prompts_times_answers(run):
    settings = toml(run)
    groups = settings["rollout-batch-size"]
    assert settings["global-batch-size"] == groups * settings["n-samples-per-prompt"]


def test_the_runs_of_the_group_sizes_differ_in_nothing_else():
    same = [
        {key: value for key, value in toml(run).items() if key not in recipe}
        for run in ("n4", "plain3", "n16")
        for recipe in [("n-samples-per-prompt", "global-batch-size", "sglang-router-port")]
    ]
    assert same[0] == same[1] == same[2]


@pytest.mark.parametrize(("name", "run", "size"), [("n4", "n4", 4), ("n16", "n16", 16)])
def test_gains_shares_and_tokens_are_those_of_the_log(name, run, size):
    values, found = registry.build("fig-3-1-h200").values, columns(run)
    reward = found["rollout/raw_reward"]
    gain = statistics.fmean(reward[8:12]) - statistics.fmean(reward[:4])
    assert values[f"gain_{name}"].number == pytest.approx(gain)
    zero = [
        (wrong or 0) + (right or 0)
        for wrong, right in zip(
            found["rollout/zero_std/count_0.0"], found["rollout/zero_std/count_1.0"], strict=True
        )
    ]
    assert values[f"zero_{name}"].number == pytest.approx(sum(zero) / (32 * 12) * 100)
    tokens = statistics.median(found["rollout/response_lengths"]) * 32 * size
    assert values[f"tokens_{name}"].number == pytest.approx(tokens)


def test_a_second_batch_is_sent_exactly_when_more_than_sixteen_are_dropped():
    for drops in range(49):
        order = [True] * drops + [False] * 96
        assert one_batch(order) == (1 if drops <= 16 else 2 if drops <= 64 else 3)


def test_the_steps_of_our_run_are_split_by_that_rule():
    figure = registry.build("fig-3-2-h200-drops")
    dropped = [row["dropped_all_wrong"] + row["dropped_all_right"] for row in figure.rows]
    second = [one_batch([True] * count + [False] * 64) == 2 for count in dropped]
    assert figure.values["second"].number == sum(second)
    assert figure.values["one"].number == len(second) - sum(second)


def test_the_mean_before_the_filter_lies_between_no_and_all_of_the_dropped():
    for row in registry.build("fig-3-2-h200-drops").rows:
        finished = 32 + row["dropped_all_wrong"] + row["dropped_all_right"]
        rewards = 32 * row["reward_of_kept"] + row["dropped_all_right"]
        assert row["reward_of_finished"] * finished == pytest.approx(rewards)


def test_the_kept_batches_hold_no_group_with_one_reward():
    found = columns("filter")
    assert not [key for key in found if key.startswith("rollout/zero_std/count")]
    assert registry.build("fig-3-2-h200-drops").values["left"].number == 0


def test_lost_cells_stay_lost():
    groups = registry.build("fig-3-1-gb10").rows
    assert [row["first"] for row in groups] == ["lost"] * 3
    assert groups[0]["gain"] == "lost"
    counts = registry.build("fig-3-2-gb10-counts").rows
    assert {row[key] for row in counts for key in ("right", "wrong")} == {"lost"}
    assert registry.build("fig-3-4-notes").rows[0]["gap"] == "lost"


@pytest.mark.parametrize(
    "figure_id",
    ["fig-3-1-gb10", "fig-3-2-gb10-counts", "fig-3-2-gb10-cost", "fig-3-2-gb10-reward"],
)
def test_published_values_are_those_of_the_lab(figure_id):
    for value in registry.build(figure_id).values.values():
        lab, _, value_id = value.quantity.partition(":")
        assert value.number == reported.reported(lab, value_id).number


def test_every_reward_of_the_facts_is_a_row():
    rows = recipetables.builtin_rewards(Tree(ROOT))[1:]
    assert len(rows) == 10
    assert {row[0] for row in rows} >= {"`math`", "`deepscaler`", "`dapo`", "`remote_rm`"}


def test_a_new_reward_in_the_facts_is_a_new_row():
    text = (ROOT / recipetables.REWARDS).read_text() + (
        "  - {name: new, grades: 'g; h', returns: r, needs: null}\n"
    )
    rows = recipetables.builtin_rewards(Tree(ROOT, {recipetables.REWARDS: text.encode()}))
    assert rows[-1] == ["`new`", "g, h", "r", "nothing"]


def test_the_filter_keys_name_the_version_that_writes_them():
    rows = recipetables.filter_metrics(Tree(ROOT))[1:]
    assert [row[0] for row in rows] == [
        "`rollout/dynamic_filter/drop_zero_std_0`",
        "`rollout/dynamic_filter/drop_zero_std_1`",
        "`rollout/raw_reward_unfiltered`",
    ]
    assert rows[2][2] == "absent"
