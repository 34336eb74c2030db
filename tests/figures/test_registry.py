"""Registering and building, and what a built figure refuses."""

import dataclasses
import json

import pytest

from figures import evidence, registry, reported
from figures.evidence import EvidenceError
from figures.registry import BuiltFigure, Figure, FigureError
from figures.sources import log_distance, measured
from figures.values import Value


def value(name="x", runs=("synthetic/a",), kind="metric", number=1):
    return Value(name, number, "", 0, f"synthetic/a:{name}", runs, kind)


def built(values, rows=({"a": 1},), columns=None, draw=None, read=None):
    with evidence.recording() as accesses:
        if read:
            read()
    shown = {"a": "A"} if columns is None and draw is None else columns
    return BuiltFigure("fig-x", Figure("A table.", values, rows, shown, draw), accesses)


def test_one_id_belongs_to_one_module():
    def make():
        raise AssertionError("never built here")

    make.__module__ = "figures.elsewhere"
    registry.load_all()
    with pytest.raises(FigureError, match="fig-1-1-gb10 is registered twice"):
        registry.figure("fig-1-1-gb10")(make)


def test_an_unknown_id_is_refused():
    with pytest.raises(FigureError, match="no figure 'fig-none'"):
        registry.build("fig-none")


def test_a_value_must_name_runs_that_were_read(lab):
    lab("a")
    with pytest.raises(FigureError, match="fig-x:x: names runs that were not read"):
        built([value()])


def test_a_measured_value_that_names_no_run_is_refused(lab):
    run = evidence.run(lab("a"))
    with pytest.raises(FigureError, match="fig-x:x: a measured value that names no run"):
        built([value(runs=())], read=lambda: run.column("train/loss"))


def test_a_run_that_was_read_must_be_named_by_a_value(lab):
    """A number of one run under the name of another: the run that it is from stands nowhere."""
    runs = [evidence.run(lab(name)) for name in ("a", "b")]

    def read():
        for run in runs:
            run.column("train/loss")

    with pytest.raises(FigureError, match="reads synthetic/b, which no value names"):
        built([value()], read=read)


@pytest.mark.parametrize("unit", ["s", "min", "h", "ms", "tokens/s", "s/step", "steps per hour"])
def test_a_value_with_a_unit_of_time_is_refused_for_a_shared_gpu_whatever_its_kind(lab, unit):
    run = evidence.run(lab("a", shared=True))

    def read():
        run.column("train/loss")

    made = Value("x", 1.0, unit, 1, "synthetic/a:x", (run.id,))
    assert made.kind == "time"
    with pytest.raises(EvidenceError, match="shared its GPU"):
        built([made], read=read)
    with evidence.recording():
        read()
        made = measured("x", 1.0, unit, 1, what="x", runs=[run.id], kind="metric")
    with pytest.raises(EvidenceError, match="shared its GPU"):
        built([made], read=read)


def test_a_ratio_declared_as_a_time_is_refused_for_a_shared_gpu(lab):
    run = evidence.run(lab("a", shared=True))
    with pytest.raises(EvidenceError, match="shared its GPU"):
        built([value(kind="time")], read=lambda: run.column("train/loss"))


def test_a_typed_constant_is_refused_because_no_read_stands_behind_it(lab):
    run = evidence.run(lab("a"))
    with evidence.recording():
        with pytest.raises(EvidenceError, match="names no run"):
            measured("x", 42.0, "s", 0, what="x", runs=[])
        with pytest.raises(EvidenceError, match="nothing of synthetic/a was read before it"):
            measured("x", 42.0, "s", 0, what="x", runs=[run.id])
        run.column("train/loss")
        assert measured("x", 42.0, "s", 0, what="x", runs=[run.id]).kind == "time"


def test_a_log_distance_needs_log_lines_and_is_shown_in_the_badge(lab):
    run = evidence.run(lab("a", shared=True))

    def distance():
        return log_distance("x", 1.0, "s", 1, what="x", runs=[run.id])

    with evidence.recording():
        run.column("train/loss")
        with pytest.raises(EvidenceError, match="no log line of synthetic/a was read before it"):
            distance()
        run.log_fact("errors")
        made = distance()
    shown = built([made], read=lambda: run.log_fact("errors"))
    assert shown.strength_text.endswith("; times are distances between log lines")
    with pytest.raises(EvidenceError, match="no log lines of its runs were read"):
        built([made], read=lambda: run.column("train/loss"))
    plain = built([value()], read=lambda: run.column("train/loss"))
    assert "log lines" not in plain.strength_text


def test_a_published_value_is_the_number_of_its_source(lab):
    def read():
        reported.reported("paper", "first")

    first = Value("x", 233, "s", 0, "paper:first", ("paper/plain",), tier="reported")
    assert built([first], read=read).values["x"].number == 233
    with pytest.raises(FigureError, match="fig-x:x: is not the number of paper:first"):
        built([dataclasses.replace(first, number=234)], read=read)
    with pytest.raises(FigureError, match="paper:range was not read"):
        built([dataclasses.replace(first, quantity="paper:range")], read=read)
    with pytest.raises(FigureError, match="not read"):
        built([dataclasses.replace(first, tier="measured")], read=read)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "no rows"),
        ({"rows": [{"a": 1}, {"b": 1}]}, "different columns"),
        ({"columns": {"b": "B"}}, "no row has"),
        ({"columns": {"a": "A"}, "draw": print}, "not both"),
        ({"values": []}, "no values"),
        ({"values": [value(runs=()), value(runs=())]}, "two values with one name"),
    ],
)
def test_a_figure_that_breaks_its_form_is_refused(change, message):
    arguments = {"values": [value(runs=())], **change}
    with pytest.raises(FigureError, match=message):
        built(**arguments)


def test_a_table_has_heading_and_cells_as_text(lab):
    run = evidence.run(lab("a"))
    rows = [{"a": True, "b": None}, {"a": 2000, "b": "x"}]
    figure = built([value()], rows, columns={"a": "A"}, read=lambda: run.column("train/loss"))
    assert figure.table == [["A"], ["yes"], ["2,000"]]
    assert figure.svg() is None
    assert figure.csv() == "a,b\nTrue,\n2000,x\n"


def test_a_claim_on_some_values_is_held_to_their_runs(lab):
    runs = [evidence.run(lab(name)) for name in ("a", "b")]

    def read():
        for run in runs:
            run.column("train/loss")

    both = ("synthetic/a", "synthetic/b")
    figure = built([value("one"), value("two", runs=both)], read=read)
    assert figure.wording_errors("Two runs reach 1.", ["two"]) == []
    assert figure.wording_errors("A seed reaches 1.", ["one"])
    assert figure.wording_errors("One run reaches 1.", ["one"]) == []


def test_a_changed_number_in_a_summary_changes_the_value():
    path = "capture/gpu/out-h200-miles/plain_s1234/summary.json"
    before = registry.build("fig-1-1-h200-steps").values["first"]
    stored = json.loads(evidence.read(path))
    stored["runs"][0]["rollouts"]["columns"]["perf/step_time"][0] += 1
    with evidence.use_overlay({path: json.dumps(stored).encode()}):
        after = registry.build("fig-1-1-h200-steps").values["first"]
    assert after.number == pytest.approx(before.number + 1)
    assert registry.build("fig-1-1-h200-steps").values["first"] == before


def diagram(read=None, **change):
    with evidence.recording() as accesses:
        if read:
            read()
    parts = {"values": (), "draw": print, "scene": print, "drawn_from": ("code", "manual")}
    return BuiltFigure("fig-x", Figure("Boxes.", rows=[{"a": 1}], **(parts | change)), accesses)


def test_a_diagram_has_a_tier_of_its_own_and_no_number():
    made = diagram()
    assert (made.tier, made.values, made.runs, made.recompute) == ("diagram", {}, (), "")
    assert made.strength_text == (
        "drawn from Miles code of 2026-08-21, commit 31f1ca961 and GB10 manual, Miles of 2026-10-15"
    )
    assert made.table is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [value(runs=())]}, "a diagram with values"),
        ({"drawn_from": ("memory",)}, "drawn from 'memory', which is no known source"),
        ({"draw": None, "columns": {"a": "A"}}, "a diagram without a drawing"),
        ({"scene": None}, "a diagram without a drawing"),
    ],
)
def test_a_diagram_that_breaks_its_form_is_refused(change, message):
    with pytest.raises(FigureError, match=message):
        diagram(**change)


def test_a_diagram_that_reads_a_run_is_refused(lab):
    run = evidence.run(lab("a"))
    with pytest.raises(FigureError, match="a diagram that reads synthetic/a"):
        diagram(read=lambda: run.column("train/loss"))


@pytest.mark.parametrize("word", ["faster", "better", "measured", "published"])
def test_a_diagram_may_not_judge(word):
    made = diagram()
    assert made.wording_errors("Each request always goes through the router.") == []
    assert made.wording_errors(f"This way is {word}.") == [f"is of a diagram and says '{word}'"]
