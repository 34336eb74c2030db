"""Cited values: read from sources.toml, shown as printed, with a badge of their own."""

import copy
import re

import pytest

from figures import citations, evidence, reported
from figures.citations import cited, parse
from figures.evidence import EvidenceError
from figures.registry import BuiltFigure, Figure, FigureError
from figures.sources import published
from figures.values import Value

LAB = {
    "value": [
        {"id": "gap", "low": 0.0068, "high": 0.0106, "unit": "", "printed": "0.0068 to 0.0106"},
        {"id": "size", "value": 13, "unit": "parameters", "printed": "13"},
    ]
}
ENTRY = {
    "id": "a-paper",
    "rank": 5,
    "kind": "paper",
    "title": "A paper",
    "who": "some team",
    "date": "2026",
    "read": "itself",
    "value": [
        {"id": "cost", "what": "a cost", "number": 4.8, "unit": "s", "digits": 1},
        {"id": "gap", "what": "a gap", "gb10": "gap"},
        {"id": "size", "what": "a size", "gb10": "size", "power": 9, "noun": "parameters"},
    ],
}


def whole(**changes):
    return {"schema": 1, "source": [{**copy.deepcopy(ENTRY), **changes}]}


def with_value(**changes):
    return whole(value=[{**ENTRY["value"][0], **changes}])


def built(values):
    with evidence.recording() as accesses:
        made = [make() for make in values]
    return BuiltFigure("fig-x", Figure("A table.", made, [{"a": 1}], {"a": "A"}), accesses)


def test_a_number_of_the_lab_is_not_typed_a_second_time():
    (source,) = parse(whole(), LAB)
    cost, gap, size = source.values
    assert (cost.number, cost.digits) == (4.8, 1)
    assert (gap.number, gap.digits, gap.unit) == ((0.0068, 0.0106), 4, "")
    assert (size.number, size.digits, size.unit) == (13_000_000_000, 0, "parameters")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"schema": 2}, "schema is 2, not 1"),
        ({"schema": 1}, "no [[source]]"),
        ({**whole(), "extra": 1}, "unknown table 'extra'"),
        (whole(id="A Paper"), "id = 'A Paper' is no lower-case name with dashes"),
        (whole(rank=6), "source a-paper: rank = 6 is none of 1 to 5"),
        (whole(rank="5"), "rank = '5' is no int"),
        (whole(rank=True), "rank = True is no int"),
        (whole(title=" "), "title is empty"),
        (whole(url="http://x.org"), "url = 'http://x.org' is no https address"),
        (whole(lost=[""]), "lost = [''] is no list of texts"),
        (whole(hardwere="x"), "unknown key 'hardwere'"),
        (whole(value=[ENTRY["value"][0]] * 2), "value a-paper.cost is given twice"),
        (with_value(number="4.8"), "source a-paper: value cost: number = '4.8' is no number"),
        (with_value(low=1), "needs number, or low and high, or gb10; has ['low', 'number']"),
        (with_value(digits=0), "value cost: 4.8 has more than 0 decimals"),
        (with_value(digits=None), "digits = None is no whole number"),
        (with_value(unit=None), "unit = None"),
        (with_value(what=""), "no what"),
        (with_value(gb10="gap"), "gb10 gives the number already"),
        (whole(value=[{"id": "x", "what": "x", "gb10": "no"}]), "gb10 = 'no' is no id of"),
    ],
)
def test_a_broken_entry_names_file_source_and_key(broken, message):
    with pytest.raises(EvidenceError, match=re.escape(message)) as caught:
        parse(broken, LAB)
    assert str(caught.value).startswith("manuals/sources.toml: ")


@pytest.mark.parametrize("key", ["rank", "kind", "title", "who", "date", "read"])
def test_a_source_says_what_it_is_and_how_it_was_read(key):
    broken = whole()
    del broken["source"][0][key]
    with pytest.raises(EvidenceError, match=f"source a-paper: no {key}"):
        parse(broken, LAB)


def test_sources_stand_in_the_order_of_their_rank():
    one, two = whole()["source"][0], whole(id="b-run", rank=1)["source"][0]
    with pytest.raises(EvidenceError, match="b-run: rank 1 stands after rank 5"):
        parse({"schema": 1, "source": [one, two]}, LAB)
    with pytest.raises(EvidenceError, match="source a-paper is given twice"):
        parse({"schema": 1, "source": [one, one]}, LAB)


def test_the_badge_of_a_cited_value_names_team_model_and_hardware():
    figure = built([lambda: cited("gap", "miles-docs-glm.gap")])
    assert figure.tier == "reported"
    (setup,) = figure.setup_texts
    assert "Miles team" in setup
    assert "16 nodes of 4 GB300 GPUs" in setup
    assert not figure.strength.one_run
    assert not figure.runs
    assert figure.values["gap"].text == "0.0068 to 0.0106"
    assert figure.recompute == "make check-claims"


def test_a_claim_may_not_name_hardware_that_the_source_does_not():
    figure = built([lambda: cited("gap", "miles-docs-glm.gap")])
    assert figure.wording_errors("The reported gap on GB300 was small.", ["gap"]) == []
    (problem,) = figure.wording_errors("The reported gap on an H100 was small.", ["gap"])
    assert "names H100" in problem
    (problem,) = figure.wording_errors("The gap on GB300 was small.", ["gap"])
    assert "is reported and does not say so" in problem


def test_two_sources_are_two_setups():
    figure = built(
        [
            lambda: cited("long", "jet-rl.length-collapsed"),
            lambda: cited("cost", "tp-invariant.inference-cost"),
        ]
    )
    problems = figure.wording_errors("The reported cost was higher.", ["long", "cost"])
    assert any("compares across two setups" in problem for problem in problems)
    assert len(figure.claim_strength(["cost"]).setups) == 1


def test_a_source_and_a_lab_keep_their_own_badges():
    figure = built(
        [
            lambda: cited("gap", "miles-docs-glm.gap"),
            lambda: published("ours", "gb10", "healthy-gap-0"),
        ]
    )
    assert len(figure.setup_texts) == 2
    assert [setup.identity[0][0] for setup in figure.claim_strength(["gap"]).setups] == ["source"]


def test_a_cited_value_without_its_read_is_refused():
    typed = Value(
        "gap",
        0.5,
        "",
        1,
        "sources:miles-docs-glm.gap",
        ("sources:miles-docs-glm",),
        tier="reported",
    )
    with pytest.raises(FigureError, match=r"sources:miles-docs-glm\.gap was not read"):
        built([lambda: typed])
    with pytest.raises(FigureError, match="is not the number of"):
        built([lambda: (cited("x", "miles-docs-glm.gap"), typed)[1]])


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("no-such.gap", "no source 'no-such'"),
        ("miles-docs-glm.no", "has no value 'no'; there are: gap, steps, nodes"),
        ("vime", "has no value ''; there are: none"),
    ],
)
def test_an_unknown_value_lists_the_known_ones(ref, message):
    with pytest.raises(EvidenceError, match=re.escape(message)):
        cited("x", ref)


def test_every_number_of_other_teams_in_the_lab_is_a_value_of_a_source():
    """What the GB10 manual reports of others belongs to its source, not to that lab."""
    whole_lab = reported.table("gb10")
    foreign = {
        entry["id"]
        for kind in ("value", "setting")
        for entry in whole_lab[kind]
        if entry.get("by", "calculation") != "calculation"
    }
    data = evidence.parse_toml(citations.PATH, evidence.read(citations.PATH))
    linked = {v.get("gb10") for s in data["source"] for v in s.get("value", [])}
    assert foreign <= linked
