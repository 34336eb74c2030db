"""Chapters: blocks, links and fences with the right lines."""

import pytest

from scripts import figblocks
from scripts.chapters import ChapterError, fields, parse

SOURCE = """---
title: T
---
# Head

A **12** s
line with `3 s` and [a](#x).

| a | b |
| --- | --- |
| c | [4 s](d.md#fig-a:n) |

!!! note

    inside a note

<div>html
5 s</div>

- item

    ```bash
    make site
    ```
"""


def texts(chapter):
    return [block.text for block in chapter.blocks]


def test_bold_code_and_line_ends_do_not_split_a_number_from_its_unit():
    assert "A 12 s line with 3 s and a." in texts(parse("a.md", SOURCE))


def test_links_know_their_line_also_in_a_table():
    links = parse("a.md", SOURCE).links
    assert [(link.line, link.text, link.href) for link in links] == [
        (7, "a", "#x"),
        (11, "4 s", "d.md#fig-a:n"),
    ]


def test_text_in_a_note_and_in_html_is_prose():
    found = texts(parse("a.md", SOURCE))
    assert "inside a note" in found
    assert "5 s" in found


def test_a_block_gives_the_line_of_each_character():
    block = next(b for b in parse("a.md", SOURCE).blocks if b.text.startswith("A 12"))
    assert block.line_at(block.text.index("12")) == 6
    assert block.line_at(block.text.index("line with")) == 7


def test_a_fence_in_a_list_is_code():
    (fence,) = parse("a.md", SOURCE).fences
    assert (fence.language, fence.content, fence.line) == ("bash", "make site\n", 22)


def test_broken_front_matter_names_its_line():
    with pytest.raises(ChapterError, match=r"^a\.md:3: front matter is no YAML"):
        parse("a.md", "---\ntitle: x\nb: ]\n---\n")


def test_a_figure_field_may_hold_colons_and_go_on_in_the_next_line():
    text = "```figure\nid: fig-a\nclaim: In one run: {a},\n  and {b}.\n```\n"
    (fence,) = parse("a.md", text).fences
    assert fields("a.md", fence) == {"id": "fig-a", "claim": "In one run: {a}, and {b}."}


def test_a_doubled_or_stray_figure_field_names_its_line():
    (fence,) = parse("a.md", "```figure\nid: x\nid: y\n```\n").fences
    with pytest.raises(ChapterError, match=r"^a\.md:3: 'id' is given twice"):
        fields("a.md", fence)
    (fence,) = parse("a.md", "```figure\nid: x\nnonsense\n```\n").fences
    with pytest.raises(ChapterError, match=r"^a\.md:3: not a `key: text` line"):
        fields("a.md", fence)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("id: fig-a\ntitle: T\n", "no 'claim'"),
        ("id: fig-a\ntitle: T\nclaim: C\ncolour: red\n", "unknown key 'colour'"),
        ("id: Fig_A\ntitle: T\nclaim: C\n", "must look like"),
    ],
)
def test_a_malformed_figure_block_is_named(body, message):
    blocks, errors = figblocks.figure_blocks(parse("a.md", f"\n```figure\n{body}```\n"))
    assert blocks == []
    assert [(e.line, message in e.text) for e in errors] == [(2, True)]


def test_a_unit_that_the_sentence_repeats_is_dropped():
    texts = {"steps": "12 steps", "first": "233 s"}
    assert figblocks.fill("A {steps}-step run took {first}.", texts) == "A 12-step run took 233 s."
    assert figblocks.fill("{steps} and {first}", texts) == "12 steps and 233 s"
