"""Rules that each registered figure keeps, on the stored evidence, in both variants."""

import csv
import functools
import io
import itertools
import re
import shlex

import kit
import pytest
from lxml import etree
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from figures import citations, registry
from figures.evidence import ROOT
from scripts import coreverbs

IDS = registry.load_all()
FIXED = {
    "fig-1-1-gb10": {"first", "median", "rollout", "train", "logprob", "update", "steps"}
    | {"duration_min", "median48", "rollout48"},
    "fig-1-1-h200-steps": {"steps", "first", "median", "first_ratio"},
    "fig-1-1-h200-phases": {"rollout", "train", "logprob", "actor_train", "update"}
    | {"sleep", "wake"},
    "fig-1-1-startup": {"weights", "kv_tokens", "k_size"},
    "fig-1-1-startup-h200": {"weights", "kv_tokens", "k_size", "weights_s", "log_to_step0"},
    "fig-1-3-gb10-ranges": {"reward", "gap", "move10", "move48"},
    "fig-1-3-h200-five": {"reward", "gap", "length", "cut", "gradnorm", "move", "mean_first5"},
    "fig-1-3-h200-zero-std": {"count_step0_zero", "count_step0_one", "groups", "share"},
    "fig-1-3-h200-noise": {"floor", "spread"},
    "fig-front-runs": {"runs", "finished", "retries_total"},
}
SVG = "{http://www.w3.org/2000/svg}"

build = functools.cache(registry.build)


def charts():
    """The figures that show values; `test_diagrams` holds the rules of the others."""
    return [figure_id for figure_id in IDS if not build(figure_id).is_diagram]


@functools.cache
def svg(figure_id, narrow):
    return build(figure_id).svg(narrow)


def drawn():
    return [figure_id for figure_id in IDS if build(figure_id).table is None]


@functools.cache
def texts(figure_id, narrow):
    """(text, left, top, right, bottom) of each drawn text in the units of the viewBox.

    Widths are those of DejaVu Sans, which is wider than the fonts that a page uses.
    """
    root = etree.fromstring(svg(figure_id, narrow))
    found = []
    for node in root.iter(f"{SVG}text"):
        look = dict(
            part.strip().split(": ", 1) for part in node.get("style").split(";") if part.strip()
        )
        size = float(look["font-size"].removesuffix("px"))
        font = FontProperties(family="DejaVu Sans", weight=look.get("font-weight", "normal"))
        width = TextPath((0, 0), node.text, size=size, prop=font).get_extents().width
        # Matplotlib places one of several lines by a transform, and a single line by x and y
        moved = re.match(r"translate\((-?[\d.]+) (-?[\d.]+)\)", node.get("transform", ""))
        x, y = map(float, moved.groups() if moved else (node.get("x"), node.get("y")))
        left = x - width * {"middle": 0.5, "end": 1.0}.get(look.get("text-anchor"), 0.0)
        box = [left, y - 0.76 * size, left + width, y + 0.2 * size]
        turned = re.search(r"rotate\((-?[\d.]+)", node.get("transform", ""))
        if turned and abs(float(turned.group(1))) == 90:
            box = [x - 0.76 * size, y - (box[2] - x), x + 0.2 * size, y - (box[0] - x)]
        found.append((node.text, *box, size))
    return root.get("viewBox"), found


def test_every_fixed_figure_and_value_is_there():
    for figure_id, names in FIXED.items():
        assert names <= set(build(figure_id).values), figure_id


@pytest.mark.parametrize("figure_id", charts())
def test_a_figure_offers_data_badges_and_a_command(figure_id):
    figure = build(figure_id)
    rows = list(csv.reader(io.StringIO(figure.csv())))
    assert len(rows) == len(figure.rows) + 1
    assert all(len(row) == len(rows[0]) for row in rows)
    assert figure.tier in ("measured", "reported", "measured and reported")
    # Values that other teams published belong to no run; each team is a setup.
    places = {access.run for access in figure.accesses}
    cited = {place for place in places if place.startswith(citations.PREFIX)}
    assert "run" in figure.strength_text or cited == places
    # Only the tables of the reference page put two tiers, and so two setups, side by side.
    assert (" and " in figure.tier) == figure_id.startswith("fig-ranges-")
    assert len(figure.setup_texts) == len(cited) + (cited != places) + (" and " in figure.tier)
    assert figure.alt("The claim.").startswith("The claim. ")
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in figure.values)


@pytest.mark.parametrize("figure_id", charts())
def test_the_command_that_recomputes_a_figure_exists(figure_id):
    command = build(figure_id).recompute
    if command.startswith("make "):
        targets = (ROOT / "Makefile").read_text()
        assert re.search(rf"^{command.removeprefix('make ')}:", targets, re.MULTILINE)
        return
    program, kit_path, *words = shlex.split(command)
    if program.startswith(".venv-core/bin/"):
        words = words[words.index("-m") + 1 :] if "-m" in words else words
        if words[0] == "capture.core":
            assert coreverbs.problem(words[1:]) is None
        else:
            assert words[0] == "capture.core.findings"
            assert (ROOT / f"capture/core/findings/{words[-1]}.py").is_file()
        return
    assert (program, kit_path) == ("python3", "capture/gpu/kit.py")
    kit.build_parser().parse_args(words)
    assert all((ROOT / folder / "summary.json").is_file() for folder in words[2:])


def test_one_quantity_has_one_number_on_all_pages():
    assert registry.quantity_conflicts() == []


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("figure_id", drawn())
def test_no_text_is_cut_off(figure_id, narrow):
    view, found = texts(figure_id, narrow)
    _, _, width, height = (float(part) for part in view.split())
    for text, left, top, right, bottom, _ in found:
        assert left >= 0, text
        assert top >= 0, text
        assert right <= width, text
        assert bottom <= height, text


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("figure_id", drawn())
def test_no_two_texts_overlap(figure_id, narrow):
    for one, other in itertools.combinations(texts(figure_id, narrow)[1], 2):
        apart = one[3] <= other[1] or other[3] <= one[1] or one[4] <= other[2] or other[4] <= one[2]
        assert apart, (one, other)


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("figure_id", drawn())
def test_text_is_large_enough_to_read(figure_id, narrow):
    """A narrow figure is 314 CSS pixels wide on a phone of 390, a wide one at least 660."""
    view, found = texts(figure_id, narrow)
    scale = (314 if narrow else 660) / float(view.split()[2])
    assert min(entry[5] for entry in found) * scale >= 11


@pytest.mark.slow
@pytest.mark.parametrize("figure_id", drawn())
def test_a_narrow_figure_is_half_as_wide(figure_id):
    wide, narrow = (float(texts(figure_id, which)[0].split()[2]) for which in (False, True))
    assert (wide, narrow) == (518.4, 259.2)


@pytest.mark.slow
@pytest.mark.parametrize("figure_id", drawn())
def test_a_drawing_is_the_same_bytes_each_time(figure_id):
    first = svg(figure_id, True)
    registry.DRAWN.clear()
    assert registry.build(figure_id).svg(narrow=True) == first


@pytest.mark.slow
@pytest.mark.parametrize("figure_id", drawn())
def test_the_two_variants_share_no_id(figure_id):
    names = [set(re.findall(r'\bid="([^"]+)"', svg(figure_id, narrow))) for narrow in (False, True)]
    assert not names[0] & names[1]
    for narrow, ids in enumerate(names):
        text = svg(figure_id, bool(narrow))
        for reference in re.findall(r'(?:url\(#|href="#)([^)"]+)', text):
            assert reference in ids


@pytest.mark.slow
@pytest.mark.parametrize("figure_id", drawn())
def test_a_drawing_has_no_fixed_colour(figure_id):
    assert not re.search(r"[:\"]\s*#[0-9a-fA-F]{3}", svg(figure_id, False))
