"""Terms: one page introduces each, in bold, and no earlier page uses it without a link."""

import pytest

from scripts import glossary, terms
from scripts.chapters import parse
from scripts.glossary import GlossaryError, Term
from scripts.tree import Tree

NAV = """site_name: x
nav:
  - First: index.md
  - Part:
      - "1.1: Two": miles-101/1-1-two.md
  - Reference:
      - Glossary: miles-101/reference-glossary.md
"""
FIRST = "# First\n\nNothing is said here.\n"
SECOND = """# Two

## The words

- **KV cache**: memory of the engine.

A **zero-variance group** teaches nothing.
"""
GLOSSARY = """schema = 1

[[term]]
name = "KV cache"
definition = "Memory of the engine."
page = "miles-101/1-1-two.md"

[[term]]
name = "zero-variance group"
definition = "A group that teaches nothing."
page = "miles-101/1-1-two.md"
aliases = ["dead group"]
{more}"""


@pytest.fixture
def tree(tmp_path):
    def make(first=FIRST, second=SECOND, more="", text=None, nav=NAV):
        files = {
            "mkdocs.yml": nav,
            "manuals/index.md": first,
            "manuals/miles-101/1-1-two.md": second,
            "manuals/miles-101/reference-glossary.md": "# Glossary\n",
            "manuals/glossary.toml": GLOSSARY.format(more=more) if text is None else text,
        }
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return Tree(tmp_path)

    return make


def problems(tree):
    return [str(problem) for problem in terms.check(tree.root).problems]


def test_a_term_is_used_after_the_page_that_introduces_it(tree):
    report = terms.check(tree().root)
    assert report.ok
    assert report.counts["terms"] == 2
    assert report.counts["pages before their term"] == 2


@pytest.mark.parametrize(
    "use",
    [
        "The KV cache is full.",
        "Two KV caches are full.",
        "A Zero-variance group is there.",
        "Many zero-variance groups are there.",
        "A dead\ngroup is there.",
        "| a | b |\n| --- | --- |\n| the KV cache | x |",
        "A *KV cache* is full, see the [KV cache](miles-101/1-1-two.md).",
    ],
)
def test_a_use_before_that_page_is_named_with_its_line_and_the_link_to_write(tree, use):
    (found,) = problems(tree(FIRST.replace("Nothing is said here.", use)))
    assert found.startswith("manuals/index.md:")
    assert "1-1-two.md introduces it; link its first use here to miles-101/reference-" in found
    assert "glossary.md#term-" in found


@pytest.mark.parametrize(
    "use",
    [
        "The [KV cache](miles-101/reference-glossary.md#term-kv-cache) and a KV cache.",
        "The [full KV cache](miles-101/1-1-two.md#the-words) and a KV cache.",
        "The line `KV cache` of the log.",
        "## The KV cache",
        "Read [about the KV cache](other.md) first.",
        "A kv cache, a KV cached thing, an XKV cache.",
        "```text\nKV cache\n```",
    ],
)
def test_a_link_code_a_heading_and_another_word_are_no_use(tree, use):
    assert problems(tree(FIRST.replace("Nothing is said here.", use))) == []


def test_an_ordinary_word_is_free_on_every_page(tree):
    more = '\n[[term]]\nname = "zoo"\ndefinition = "Many."\npage = "miles-101/1-1-two.md"\n{}'
    second = SECOND + "\nA **zoo** is many.\n"
    first = FIRST + "\nA zoo is here.\n"
    assert len(problems(tree(first, second, more.format("")))) == 1
    assert problems(tree(first, second, more.format("common = true\n"))) == []


def test_the_page_of_a_term_has_it_in_bold(tree):
    (found,) = problems(tree(second=SECOND.replace("**KV cache**", "KV cache")))
    assert found == (
        "manuals/glossary.toml:3: 'KV cache': manuals/miles-101/1-1-two.md has it nowhere in bold"
    )


def test_the_page_of_a_term_is_in_the_navigation(tree):
    found = problems(tree(nav=NAV.replace('      - "1.1: Two": miles-101/1-1-two.md\n', "")))
    assert len(found) == 2
    assert "no page manuals/miles-101/1-1-two.md in mkdocs.yml" in found[0]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("A **thing** is new.", ["thing"]),
        ("- The **outer thing** rule holds.", ["outer thing"]),
        ("**Cause**: a thing. **Since October.**", []),
        ("- **Cause**: a thing.", []),
        ("So **compare times on the same steps** only.", []),
        ("See **`code`** and a **dead group** there.", []),
    ],
)
def test_short_bold_inside_a_sentence_is_a_term(tree, text, wrong):
    found = problems(tree(second=f"{SECOND}\n{text}\n"))
    assert [one.split("'")[1] for one in found] == wrong


def test_a_link_into_the_glossary_names_a_term(tree):
    link = "[cache](miles-101/reference-glossary.md#term-cache)"
    (found,) = problems(tree(FIRST + f"\nA {link} is full.\n"))
    assert found.startswith("manuals/index.md:5: link ")
    assert "no such term" in found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('definition = "Memory of the engine."', "needs"),
        ("[[term]]", "needs schema = 1"),
        ('name = "KV cache"', "no name"),
        ("schema = 1", "needs schema = 1"),
    ],
)
def test_a_broken_glossary_is_one_problem(tree, wrong, message):
    text = GLOSSARY.format(more="").replace(wrong, "", 1)
    (found,) = problems(tree(text=text))
    assert found.startswith("manuals/glossary.toml")
    assert message.split("needs")[0] in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aliases = [", "alias = [", "unknown key 'alias'"),
        ('aliases = ["dead group"]', 'aliases = "dead"', "aliases = 'dead'"),
        ('["dead group"]', '["KV cache"]', "'kv cache' belongs to 'KV cache' already"),
        ('"KV cache"', '"zz cache"', "'zero-variance group' is not in order after 'zz cache'"),
        ("engine.", "engine", "its definition is no whole sentence"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tree, old, new, message):
    text = GLOSSARY.format(more="").replace(old, new, 1)
    with pytest.raises(GlossaryError, match=r"manuals/glossary\.toml:\d+: ") as caught:
        glossary.read(tree(text=text))
    assert message in str(caught.value)


def test_each_row_of_the_glossary_has_an_anchor_and_leads_to_the_heading_of_its_page(tree):
    _, cache, group = glossary.table(tree())
    assert cache[0] == '<span id="term-kv-cache"></span>**KV cache**'
    assert cache[2] == "[1.1](1-1-two.md#the-words)"
    assert group[0].endswith("**zero-variance group** (also: dead group)")


def test_headings_of_one_name_get_the_ids_that_the_site_gives_them():
    page = parse("x.md", "# Same\n\n## Same\n\n## The `KV` of 1.1\n\n## Same\n")
    assert [name for _, name in glossary.heading_ids(page)] == [
        "same",
        "same_1",
        "the-kv-of-11",
        "same_2",
    ]


@pytest.mark.parametrize(
    ("name", "anchor"),
    [("KV cache", "term-kv-cache"), ("torch_dist", "term-torch-dist"), ("503 X", "term-503-x")],
)
def test_an_anchor_is_made_from_the_name(name, anchor):
    assert Term(name, "x.", "x.md").anchor == anchor
