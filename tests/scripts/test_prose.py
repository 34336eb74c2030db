"""How chapters are written: each limit is found on the line that breaks it, and nothing else is."""

import pytest

from scripts import prose
from scripts.chapters import Block, parse

LIMITS = """
words_in_a_sentence = 8
sentences_in_a_paragraph = 3
words_of_a_repeated_sentence = 4
repeated = ["This one may stand twice."]
[forbidden]
"simply" = "leave it out"
"out of the box" = "name the setting"
"""
PAGE = """---
title: A page
---
# A page

You start `kit.py run; it's x` and it goes.
The gap is 0.0135 here.
This one may stand twice.

- This one may stand twice.

| a | b |
| --- | --- |
| One thing. Two things. | The guard's log. |

```figure
id: fig-a
title: Bars
claim: In one {steps}-step run it took {first}.
caption: Bars are steps. They stand in a row.
```
"""


def problems(repo, page=PAGE, limits=LIMITS):
    tree = repo(page, other=None)
    (tree.root / "manuals" / "prose.toml").write_text(limits, encoding="utf-8")
    return [str(problem) for problem in prose.check(tree.root).problems]


def test_code_cells_captions_and_possessives_break_no_rule(repo):
    assert problems(repo) == []


@pytest.mark.parametrize(
    ("right", "wrong", "line", "says"),
    [
        ("and it goes.", "and it goes on for days and days.", 6, "words, the limit"),
        ("and it goes.", "and it goes. It stops.", 6, "two sentences"),
        ("and it goes.", "and it\ngoes.", 6, "over two lines"),
        ("and it goes.", "and it doesn't go.", 6, "contraction"),
        ("and it goes.", "and it\u2019s going.", 6, "contraction"),
        ("and it goes.", "and it goes; it stops.", 6, "semicolon"),
        ("and it goes.", "and it Simply goes.", 6, "leave it out"),
        ("The guard's log.", "Out of the box.", 14, "name the setting"),
        ("They stand in a row.", "They simply stand there.", 20, "leave it out"),
        ("title: A page", "title: A page; more", 2, "semicolon"),
        ("- This one", "The gap is 0.0135 here.\n\n- This one", 10, "stands at"),
        ("This one may stand twice.\n\n", "Three.\nFour.\n\n", 6, "paragraph of 4"),
    ],
)
def test_each_rule_names_the_line_that_breaks_it(repo, right, wrong, line, says):
    assert right in PAGE
    found = problems(repo, PAGE.replace(right, wrong, 1))
    assert [p for p in found if p.startswith(f"manuals/one.md:{line}: ") and says in p]


def test_the_same_sentence_about_other_code_is_another_sentence(repo):
    page = PAGE.replace(
        "- This one", "You read `a` in the log.\n\nYou read `b` in the log.\n\n- This one"
    )
    assert problems(repo, page) == []


def test_a_name_may_stand_in_two_lists_of_sources(repo):
    source = "- The records of the stored runs.\n"
    twice = f"\n## Sources\n\n{source}\n## Sources\n\n{source}"
    assert problems(repo, PAGE + twice) == []
    assert problems(repo, PAGE + twice.replace("## Sources", "## Steps"))


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("words_in_a_sentence = 8", "", "words_in_a_sentence is None"),
        ("words_in_a_sentence = 8", "words_in_a_sentence = 0", "is 0"),
        ("[forbidden]", "[forbiden]", "unknown key 'forbiden'"),
        ("may stand twice.", "stands nowhere.", "is on no page"),
    ],
)
def test_a_wrong_limit_is_named_with_its_file(repo, right, wrong, says):
    found = problems(repo, limits=LIMITS.replace(right, wrong))
    assert [p for p in found if p.startswith("manuals/prose.toml: ") and says in p]


def test_points_in_numbers_and_names_end_no_sentence():
    block = parse("p.md", "The gap is 0.0135 in Qwen3-0.6B at `a. B` here. It is 2 s.\n").blocks[0]
    assert [s.text for s in prose.sentences(block)] == [
        "The gap is 0.0135 in Qwen3-0.6B at a. B here.",
        "It is 2 s.",
    ]
    assert prose.sentences(block)[0].words == 9


def test_a_block_without_words_has_no_sentence():
    assert prose.sentences(Block.of("  ", 3)) == []
