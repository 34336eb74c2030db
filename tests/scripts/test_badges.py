"""The badges of the README say what is true now."""

from scripts import badges
from scripts.tree import ROOT


def test_every_badge_is_shown_and_true():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path, text in badges.badges().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, "run `make badges`"
        assert f"]({path})" in readme
    stored = {path.relative_to(ROOT) for path in (ROOT / badges.FOLDER).iterdir()}
    assert stored == set(badges.badges())


def test_a_badge_escapes_its_text_and_names_it_for_a_reader():
    text = badges.svg("a & b", "<1>")
    assert "&lt;1&gt;" in text
    assert 'aria-label="a &amp; b: &lt;1&gt;"' in text
