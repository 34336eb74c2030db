"""The picture in the README is the home page as it is now; `make screenshot` renews it."""

import base64

import pytest

from scripts import screenshot

SMALL = (320, 225)  # compared at a quarter of the size, so that another Chromium may smooth letters
UNLIKE = 24  # of 255, in any colour
MOST = 0.002  # share of the points that may be unlike; a changed line of text has more

COMPARE = """async ([one, other, [wide, high]]) => {
  const points = async (data) => {
    const image = new Image();
    image.src = "data:image/png;base64," + data;
    await image.decode();
    const canvas = new OffscreenCanvas(wide, high);
    const drawing = canvas.getContext("2d");
    drawing.imageSmoothingQuality = "high";
    drawing.drawImage(image, 0, 0, wide, high);
    return [[image.width, image.height], drawing.getImageData(0, 0, wide, high).data];
  };
  const [[size, a], [otherSize, b]] = [await points(one), await points(other)];
  let unlike = 0;
  for (let at = 0; at < a.length; at += 4)
    if ([0, 1, 2].some((c) => Math.abs(a[at + c] - b[at + c]) > LIMIT)) unlike += 1;
  return { sizes: [size, otherSize], unlike: unlike / (wide * high) };
}""".replace("LIMIT", str(UNLIKE))


@pytest.fixture
def taken(chromium, site, tmp_path):
    out = tmp_path / "now.png"
    screenshot.take(chromium, site, out)
    return out


def compared(tab, one, other):
    tab.goto("about:blank")
    words = [base64.b64encode(path.read_bytes()).decode() for path in (one, other)]
    return tab.evaluate(COMPARE, [*words, list(SMALL)])


def test_the_picture_of_the_readme_shows_the_home_page_as_it_is(tab, taken):
    found = compared(tab, screenshot.PICTURE, taken)
    assert found["sizes"] == [[screenshot.WIDTH, screenshot.HEIGHT]] * 2
    assert found["unlike"] <= MOST, "the home page changed: run `make screenshot`"


def test_a_changed_line_of_the_home_page_would_be_seen(tab, site, taken, tmp_path):
    tab.goto((site / screenshot.PAGE).resolve().as_uri())
    tab.evaluate("document.querySelector('.hero li').textContent = 'Another line, for a test.'")
    tab.screenshot(path=tmp_path / "other.png")
    assert compared(tab, taken, tmp_path / "other.png")["unlike"] > MOST


def test_the_readme_shows_the_picture():
    readme = (screenshot.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({screenshot.PICTURE.relative_to(screenshot.ROOT).as_posix()})" in readme
