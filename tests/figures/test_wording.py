"""Sentences held to their evidence: each rule refuses one overclaim and lets the honest form be."""

import pytest

from figures.strength import Setup, Strength
from figures.wording import claim_errors, sentence_errors

H200 = Setup("SmolLM2-135M-Instruct, word problems, H200", (("gpu", "H200"),))
GB10 = Setup("Qwen3-0.6B, GSM8K, GB10", (("lab", "gb10"),))


def evidence(runs=1, tier="measured", setups=(H200,), seeds=None, unnamed=False):
    names = tuple(f"lab/{n}" for n in range(runs))
    return Strength(tier, names, unnamed, seeds or runs, (20, 20), None, setups, ())


HONEST = [
    ("In one run on an H200, the first step took 23 s.", evidence()),
    ("In a 20-step run the first step took 23 s.", evidence()),
    ("In three runs on an H200, the reward rose.", evidence(3)),
    ("Three runs of three seeds rose.", evidence(3)),
    ("In one reported run on a GB10, it took 233 s.", evidence(tier="reported", setups=(GB10,))),
]
OVERCLAIMS = [
    ("A GRPO run with 20 steps takes 23 s.", evidence(), "one run"),
    ("All three runs agree: in one run it took 23 s.", evidence(), "three runs"),
    ("In twenty one runs it took 23 s, as in one run.", evidence(), "twenty one runs"),
    ("In this run each GPU in the world took 23 s.", evidence(), "each GPU"),
    ("In every run on any GPU the reward rose.", evidence(3), "any GPU"),
    ("In thirty runs the reward rose.", evidence(3), "thirty runs"),
    ("In two runs the reward rose.", evidence(3), "two runs"),
    ("Over five seeds the reward rose.", evidence(3), "five seeds"),
    ("GRPO always raises the reward: in most runs it rose.", evidence(3), "always"),
    ("We measured on a GB10 in one run.", evidence(tier="reported", setups=(GB10,)), "measured"),
    ("In one reported run on an H200, 5 s.", evidence(tier="reported", setups=(GB10,)), "H200"),
    ("In one run on a B200, 5 s.", evidence(), "B200"),
    ("In one run with Qwen3-0.6B, 5 s.", evidence(), "Qwen3-0.6B"),
    ("In one run on GSM8K, 5 s.", evidence(), "GSM8K"),
    ("In one reported run it took 5 s.", evidence(), "reported"),
    ("As in this run, the first step of GRPO takes 5 s.", evidence(), "takes"),
    ("In this run it took 5 s.", evidence(tier="reported", setups=(GB10,)), "does not say so"),
]


@pytest.mark.parametrize(("text", "strength"), HONEST)
def test_an_honest_claim_passes(text, strength):
    assert claim_errors(text, strength) == []


@pytest.mark.parametrize(("text", "strength", "word"), OVERCLAIMS)
def test_a_claim_beyond_its_evidence_names_the_word(text, strength, word):
    assert any(word in error for error in claim_errors(text, strength))


@pytest.mark.parametrize(
    ("text", "strengths"),
    [
        ("The H200 always takes 23 s.", [evidence()]),
        ("Every run on every GPU needs 23 s.", [evidence()]),
        ("In every run the first step is slower.", [evidence()]),
        ("233 s against 23.1 s.", [evidence(), evidence(tier="reported", setups=(GB10,))]),
        ("The H200 is ten times faster.", [evidence(), evidence(setups=(GB10,))]),
        ("The GB10 took longer than 23 s.", [evidence()]),
        ("Four runs took 23 s.", [evidence(2), evidence(1)]),
    ],
)
def test_a_sentence_of_the_prose_is_held_to_all_its_figures(text, strengths):
    assert sentence_errors(text, strengths) != []


@pytest.mark.parametrize(
    ("text", "strengths"),
    [
        ("The first step took longer than the median.", [evidence()]),
        ("One line for each run, and two runs shared the GPU.", [evidence(3)]),
        ("In the runs that ended normally the lab found none.", [evidence(3)]),
        ("The report measured 4.8 s.", [evidence(tier="reported", setups=(GB10,))]),
        ("Thirty runs took 5 s.", [evidence(3, unnamed=True)]),
    ],
)
def test_a_sentence_within_its_evidence_passes(text, strengths):
    assert sentence_errors(text, strengths) == []


def test_a_claim_may_count_the_runs_of_one_of_its_values():
    text = "In five runs the gap was small, in the three plain runs smaller."
    assert claim_errors(text, evidence(5)) != []
    assert claim_errors(text, evidence(5), [evidence(5), evidence(3)]) == []


def test_a_sentence_without_evidence_may_not_be_general():
    assert sentence_errors("You always win faster on every run.", []) != []
    assert sentence_errors("You start a run and record each run.", []) == []
