"""Spelling: unknown words, and a dictionary that holds only what is needed."""

import pytest

from scripts import spelling

PAGE = """---
title: A wonderful page
---
# A page

The rollout is good, and `rollut` is code, --rollout-x a flag and miles/rolout.py a path.

```figure
id: fig-a
title: Bars
claim: In one {xyzzy} run of Qwen3-0.6B.
```
"""


def problems(repo, page=PAGE, dictionary="rollout\n"):
    tree = repo(page, other=None)
    (tree.root / "manuals" / "dictionary.txt").write_text(dictionary, encoding="utf-8")
    return [str(problem) for problem in spelling.check(tree.root).problems]


def test_code_paths_flags_names_and_holes_are_no_words(repo):
    assert problems(repo) == []


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("is good", "is goood", 6),
        ("# A page", "# A pagge", 4),
        ("title: Bars", "title: Barss", 10),
        ("A wonderful page", "A wonderfull page", 2),
    ],
)
def test_an_unknown_word_names_its_line(repo, right, wrong, line):
    (found,) = problems(repo, PAGE.replace(right, wrong))
    assert found.startswith(f"manuals/one.md:{line}: unknown word")


@pytest.mark.parametrize(
    ("dictionary", "message"),
    [
        ("rollout\nzzyx\n", "dictionary.txt:2: 'zzyx' is used on no page"),
        ("good\nrollout\n", "dictionary.txt:1: 'good' is in the English list already"),
        ("rollout\nrollout\n", "dictionary.txt:2: 'rollout' is there twice"),
        ("", "manuals/one.md:6: unknown word 'rollout'"),
        ("Rollout\n", "manuals/one.md:6: unknown word 'rollout'"),
    ],
)
def test_the_dictionary_holds_each_needed_word_once(repo, dictionary, message):
    assert any(message in found for found in problems(repo, dictionary=dictionary))


def test_the_dictionary_is_sorted(repo):
    page = PAGE.replace("is good", "is GRPO")
    assert problems(repo, page, "GRPO\nrollout\n") == []
    (found,) = problems(repo, page, "rollout\nGRPO\n")
    assert "'GRPO' is not in order after 'rollout'" in found
