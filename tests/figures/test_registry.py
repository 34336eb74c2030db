"""Registering and building, and what a built figure refuses."""

import json

import pytest

from figures import evidence, registry
from figures.evidence import EvidenceError
from figures.registry import BuiltFigure, Figure, FigureError
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


def test_a_time_value_of_a_shared_gpu_is_refused_even_when_its_column_was_let_through(lab):
    run = evidence.run(lab("a", shared=True))

    def read():
        run.column("perf/step_time", timing_is_not_a_result=True)

    assert built([value()], read=read).values["x"].number == 1
    with pytest.raises(EvidenceError, match="shared its GPU"):
        built([value(kind="time")], read=read)


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
    figure = built(
        [value(runs=())], rows=[{"a": True, "b": None}, {"a": 2000, "b": "x"}], columns={"a": "A"}
    )
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
    assert figure.wording_errors("Two seeds reach 1.", ["two"]) == []
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
