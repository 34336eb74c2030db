"""Charts: scales, thinning and what is drawn."""

import doctest
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.report import svgchart, svgscale
from mileskit.report.svgchart import Lane, Line, Part

finite = st.floats(-1e12, 1e12, allow_nan=False)


def test_the_examples_hold():
    assert doctest.testmod(svgscale).failed == 0


@settings(deadline=None)
@given(finite, st.floats(1e-6, 1e12))
def test_ticks_are_few_rising_and_inside(low, span):
    high = low + span
    found = svgscale.ticks(low, high)
    if high > low and span > abs(low) * 1e-9:
        assert 2 <= len(found) <= 6
        assert found == sorted(set(found))
        room = span * 1e-6
        assert all(low - room <= t <= high + room for t in found)


@settings(deadline=None)
@given(st.lists(st.one_of(finite, st.none(), st.just(math.nan), st.just(math.inf)), max_size=2000))
def test_thinning_keeps_the_smallest_and_largest(ys):
    xs = list(range(len(ys)))
    kept_x, kept = svgscale.thin(xs, ys, 100)
    known = [y for y in ys if y is not None and math.isfinite(y)]
    assert len(kept) <= 200
    assert kept_x == sorted(kept_x)
    if known:
        assert min(known) in kept
        assert max(known) in kept


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=40))
def test_a_line_chart_of_any_numbers_is_well_formed_and_inside_its_box(ys):
    one = Line('a<b>&"', list(range(len(ys))), ys, "data", 0, True)
    root = ET.fromstring(svgchart.lines([one], 'x<y>"'))
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.get("cx")) <= svgchart.WIDTH
        assert 0 <= float(circle.get("cy")) <= svgchart.HEIGHT


def test_a_gap_breaks_the_line():
    drawn = svgchart.lines([Line("a", [0, 1, 2, 3, 4], [1, 2, None, 3, 4], "data")], "a")
    path = re.search(r'<path d="([^"]*)" class="line', drawn)[1]
    assert path.count("M") == 2


def test_bars_become_lines_when_there_are_many():
    xs = list(range(200))
    parts = [Part("p", [1.0] * 200, "data")]
    assert '<rect x="' in svgchart.stacked(xs[:20], [Part("p", [1.0] * 20, "data")], "few")
    assert '<rect x="' not in svgchart.stacked(xs, parts, "many")


def test_stacked_parts_stand_on_each_other():
    drawn = svgchart.stacked(
        [0], [Part("a", [1.0], "data"), Part("b", [3.0], "engine")], "s", top=4
    )
    boxes = [
        tuple(map(float, b))
        for b in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="f-', drawn)
    ]
    (low_y, low_h), (high_y, high_h) = boxes
    assert high_y + high_h == pytest.approx(low_y, abs=0.11)
    assert high_h == pytest.approx(3 * low_h, abs=0.4)


def test_lanes_cut_spans_to_the_axis():
    drawn = svgchart.lanes([Lane("a", [(-5, 2), (3, 99)], "data")], (0, 10), "l", "minutes")
    right = [
        float(x) + float(w)
        for x, w in re.findall(r'x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    ]
    assert max(right) <= svgchart.WIDTH
