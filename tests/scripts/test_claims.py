"""Each claim rule, broken once: the check fails and names file, line and numbers."""

import pytest
from minirepo import DIAGRAM, OTHER, PAGE, FakeFigure, line_of, value

from scripts import claims
from scripts.figuredata import BookError

RECIPE = {"--rollout-batch-size": "32"}
PAGE = PAGE.replace('  - {text: "five minutes", reason: "words are left alone anyway"}\n', "")


def problems(tree, book):
    return [str(problem) for problem in claims.check_tree(tree, book, RECIPE).problems]


def only(found, *parts):
    """The single problem, which must hold all parts."""
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0], found[0]


def test_a_page_that_agrees_with_its_figures_has_no_problem(repo, book):
    report = claims.check_tree(repo(PAGE), book, RECIPE)
    assert report.problems == []
    assert report.counts["number links"] == 3
    assert report.counts["numbers in claims"] == 2
    assert report.counts["claims"] == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("[233 s]", "[234 s]"),
        ("[233 s]", "[233 min]"),
        ("[233 s]", "[233]"),
        ("[233 s]", "[233.4 s]"),
        ("[40 to 45 percent]", "[40 to 46 percent]"),
        ("[40 to 45 percent]", "[40 percent]"),
        ("[233 s]", "[some time]"),
    ],
)
def test_a_wrong_number_names_line_written_computed_and_run(repo, book, right, wrong):
    page = PAGE.replace(right, wrong)
    line = line_of(page, wrong)
    computed = "'233 s'" if "233" in right else "'40 to 45 percent'"
    only(problems(repo(page), book), f"manuals/one.md:{line}:", wrong[1:-1], computed, "lab/run")


def test_a_wrong_number_on_another_page_is_found_there(repo, book):
    found = problems(repo(PAGE, OTHER.replace("233", "232")), book)
    only(found, "manuals/two.md:3:", "'232 s'", "'233 s'")


def test_a_link_to_a_value_that_does_not_exist_names_those_that_do(repo, book):
    found = problems(repo(PAGE, OTHER.replace(":first", ":last")), book)
    only(found, "manuals/two.md:3:", "no value 'last'", "first, share, steps")


def test_a_link_to_a_figure_of_another_page_says_where_it_is(repo, book):
    found = problems(repo(PAGE, OTHER.replace("one.md#", "#")), book)
    # The link states nothing now, so its text is a number without evidence too.
    assert any("fig-a-steps is not on manuals/two.md but on manuals/one.md" in p for p in found)
    assert any("two.md:3: number without evidence: '233 s'" in p for p in found)


def test_an_unknown_name_in_a_claim_is_an_error(repo, book):
    page = PAGE.replace("took {first}.", "took {frist}.")
    found = problems(repo(page), book)
    only(found, f":{line_of(page, 'claim:')}:", "asks for {frist}")


@pytest.mark.parametrize("key", ["title", "claim", "caption"])
def test_digits_typed_in_a_figure_sentence_are_an_error(repo, book, key):
    lines = [
        f"{line} See 17." if line.startswith(f"{key}: ") and "One" not in line else line
        for line in PAGE.splitlines()
    ]
    page = "\n".join(lines) + "\n"
    if key == "title":  # the front matter has a title too
        page = page.replace("title: One step See 17.", "title: One step")
    found = problems(repo(page), book)
    only(found, f":{line_of(page, 'See 17')}:", f"{key} of fig-a-steps types '17'")


def test_typed_digits_of_a_claim_may_be_exempt(repo, book):
    entry = '  - {text: "17 bars", reason: "as it is drawn"}\n---\n# One'
    page = PAGE.replace("Bars are whole", "The 17 bars are whole").replace("---\n# One", entry)
    assert problems(repo(page), book) == []


def test_a_figure_without_code_and_code_without_a_page_are_errors(repo, book, figure):
    book.figures["fig-b"] = FakeFigure("fig-b", dict(figure.values))
    only(problems(repo(PAGE), book), "figure fig-b is on no page")
    del book.figures["fig-b"]
    page = PAGE + "\n```figure\nid: fig-c\ntitle: T\nclaim: C\n```\n"
    only(problems(repo(page), book), f":{line_of(page, 'fig-c') - 1}:", "no figure 'fig-c'")


def test_a_figure_whose_evidence_refuses_is_named(repo, book):
    book.figures["fig-a-steps"] = BookError("column X is unusable")
    found = problems(repo(PAGE), book)
    only(found, f":{line_of(PAGE, '```figure')}:", "cannot be computed: column X is unusable")


def test_a_value_that_nobody_states_is_an_error(repo, book, figure):
    figure.values["median"] = value("median", 167.2, "s", 0)
    only(problems(repo(PAGE), book), "value fig-a-steps:median = '167 s' is stated nowhere")


def test_a_value_in_the_table_of_its_figure_is_stated(repo, book, figure):
    figure.values["median"] = value("median", 167.2, "s", 0)
    figure.table = [["what", "value"], ["median", "167 s"]]
    assert problems(repo(PAGE), book) == []
    figure.table = [["what", "value"], ["median", "1167 s"]]
    assert len(problems(repo(PAGE), book)) == 1


def test_one_quantity_with_two_numbers_is_an_error(repo, book, figure):
    again = value("first", 233.6, "s", 0, quantity="lab/run:first")
    book.figures["fig-b"] = FakeFigure("fig-b", {"first": again})
    page = PAGE + "\n```figure\nid: fig-b\ntitle: T\nclaim: In one run {first}.\n```\n"
    only(problems(repo(page), book), "fig-b:first", "'234 s'", "fig-a-steps:first is '233 s'")


def test_a_claim_that_says_too_much_is_an_error(repo, book):
    page = PAGE.replace("In one {steps}", "In one {steps}").replace(
        "took {first}.", "always {first}."
    )
    only(problems(repo(page), book), f":{line_of(page, 'claim:')}:", "says 'always'")


@pytest.mark.parametrize(
    "text",
    [
        "It took 17 s.",
        "It took `17 s`.",
        "It took **17** s.",
        "It took 17\ns.",
        "It took 17&nbsp;s.",
        "It took [17 s](https://example.org).",
        "| a |\n| --- |\n| 17 s |",
        "## After 17 s",
        "> !!! note\n>\n>     17 s",
        "<p>17 s</p>",
        "- It had 17 retries.",
        "```text\nit took 17 s\n```",
        "```bash\nmake site  # takes 17 s\n```",
    ],
)
def test_a_number_without_evidence_is_found_wherever_it_hides(repo, book, text):
    page = PAGE + "\n" + text + "\n"
    found = problems(repo(page), book)
    only(found, "number without evidence: '17", f"one.md:{line_of(page, '17')}:")


@pytest.mark.parametrize(
    "text",
    [
        "It took seventeen seconds.",
        "```bash\nsleep 17 s\n```",
        "```listing\nfile: a\n---\n17 s\n```",
        "```bash\nmake site\n```\n\n```text\n17 s\n```",
        "See section 1.3 of 2026-08-21.",
    ],
)
def test_words_listings_and_commands_are_left_alone(repo, book, text):
    assert problems(repo(PAGE + "\n" + text + "\n"), book) == []


def test_a_number_in_the_front_matter_sentences_is_prose(repo, book):
    page = PAGE.replace("You read a step.", "You read 17 steps.")
    only(problems(repo(page), book), "one.md:3:", "'17 steps'")


def test_an_unused_exemption_is_an_error(repo, book):
    page = PAGE.replace("takes 32 prompts", "takes prompts")
    only(problems(repo(page), book), "one.md:5:", "exemption is not used: '32 prompts'")


def test_an_exempt_setting_is_compared_with_the_recipe(repo, book):
    page = PAGE.replace("32 prompts", "33 prompts")
    only(problems(repo(page), book), "one.md:5:", "'33 prompts' is written", "is '32'")
    page = PAGE.replace("--rollout-batch-size", "--rollout-batch-sice")
    only(problems(repo(page), book), "one.md:5:", "is in no recipe or run.toml")


def test_an_exempt_setting_of_a_run_is_compared_with_its_record(repo, book):
    page = PAGE.replace("--rollout-batch-size", "lab/run --rollout-batch-size")
    tree = repo(page, capture__gpu__out_lab=" ")
    folder = tree.root / "capture/gpu/out-lab/run"
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text("[settings]\nrollout-batch-size = 32\n")
    assert problems(tree, book) == []
    (folder / "run.toml").write_text("[settings]\nrollout-batch-size = 16\n")
    only(problems(tree, book), "one.md:5:", "lab/run --rollout-batch-size is '16'")


@pytest.mark.parametrize(
    "entry",
    ['{text: "32 prompts"}', '{text: "32 prompts", setting: "--a", reason: "b"}', '"32 prompts"'],
)
def test_an_exemption_gives_a_setting_or_a_reason(repo, book, entry):
    page = PAGE.replace('{text: "32 prompts", setting: "--rollout-batch-size"}', entry)
    found = problems(repo(page), book)
    assert any("exemption needs `text` and one of" in p for p in found)


def test_a_figure_twice_on_a_page_is_an_error(repo, book):
    block = PAGE[PAGE.index("```figure") :]
    only(problems(repo(PAGE + "\n" + block), book), "figure fig-a-steps is on line 12 already")


def test_the_overlay_replaces_a_chapter_in_memory(repo, book):
    tree = repo(PAGE)
    changed = type(tree)(tree.root, {"manuals/two.md": OTHER.replace("233", "231").encode()})
    only(problems(changed, book), "manuals/two.md:3:", "'231 s'")
    assert problems(tree, book) == []


@pytest.mark.parametrize(
    "text",
    [
        "The H200 always took [233 s](#fig-a-steps:first).",
        "The B200 took [233 s](#fig-a-steps:first).",
        "In four runs it took [233 s](#fig-a-steps:first).",
        "The reported step took [233 s](#fig-a-steps:first).",
        "It took [233 s](#fig-a-steps:first) hours.",
        "It took 9[233 s](#fig-a-steps:first).",
        "It made [12](#fig-a-steps:steps) errors.",
        "It made [12 errors](#fig-a-steps:steps).",
        "It made [12](#fig-a-steps:steps)0.",
    ],
)
def test_a_sentence_around_a_link_is_held_to_it(repo, book, text):
    page = PAGE + f"\n{text}\n"
    only(problems(repo(page), book), f"one.md:{line_of(page, text)}:")


def test_only_the_sentence_with_the_link_is_held_to_it(repo, book):
    text = "The B200 always waits. It took [233 s](#fig-a-steps:first). Never mind."
    assert problems(repo(PAGE + f"\n{text}\n"), book) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{first}.", "{first} hours."),
        ("took {first}", "took -{first}"),
        ("{steps}-step run", "{steps}-error run"),
        ("{steps}-step run", "{steps} million step run"),
        ("Bars are whole steps.", "That GPU always does that."),
        ("title: The first step", "title: The first step of every GPU"),
    ],
)
def test_a_hole_and_its_neighbours_are_one_statement(repo, book, old, new):
    assert old in PAGE
    only(problems(repo(PAGE.replace(old, new)), book), " of fig-a-steps ")


def test_a_count_without_a_noun_is_an_error(repo, book, figure):
    figure.values["steps"] = value("steps", 12, "", 0, kind="count")
    found = problems(repo(PAGE), book)
    assert any("fig-a-steps:steps counts something without a noun" in p for p in found)


@pytest.mark.parametrize(
    "text",
    [
        "It was 84 C.",
        "17\u200b",
        "| step time, s |\n| --- |\n| 17 |",
        '[x](https://example.org "took 17 s")',
        '<img src="a.svg" alt="took 17 s">',
        "```bash\necho 17 s\n```",
        "```bash\nmake site #took 17 s\n```",
        "```bash\ncat <<EOF\n17 s\nEOF\n```",
        "```console\n$ make site\n17 s\n```",
        "```text\nstep took 17 s\n```",
        "The flag `--x 17 s` is long.",
    ],
)
def test_a_number_hides_in_no_corner_of_a_page(repo, book, text):
    assert len(problems(repo(PAGE + f"\n{text}\n"), book)) == 1


@pytest.mark.parametrize(
    "opening",
    ["~~~bash\nmake\n~~~", '```bash title="x"\nmake\n```', "```bash\nmake\n``` "],
)
def test_an_output_is_what_the_output_test_runs(repo, book, opening):
    from scripts.chapters import parse
    from scripts.outputs import outputs

    page = PAGE + f"\n{opening}\n\n```text\n17 s\n```\n"
    assert problems(repo(page), book) == []
    (found,) = outputs(parse("p.md", page))
    assert (found.command.content, found.printed.content) == ("make\n", "17 s\n")
    apart = PAGE + f"\n{opening}\n\nthen\n\n```text\n17 s\n```\n"
    assert len(problems(repo(apart), book)) == 1
    assert outputs(parse("p.md", apart)) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("32 percent", "unit"),
        ("32 errors", "errors"),
        ("32 thousand prompts", "thousand"),
        ("32 of 64 prompts", "exactly one number"),
    ],
)
def test_a_setting_exempts_its_own_noun_and_one_number(repo, book, text, wrong):
    found = problems(repo(PAGE.replace("32 prompts", text)), book)
    assert any(wrong in p and "one.md:5" in p for p in found), found


def test_a_reason_exempts_one_number(repo, book):
    entry = '  - {text: "17 s and 18 s", reason: "a limit of the code"}\n---\n# One'
    page = PAGE.replace("---\n# One", entry) + "\nIt took 17 s and 18 s.\n"
    only(problems(repo(page), book), "more than one number")


def test_a_published_setting_is_compared_with_its_source(repo, book):
    page = PAGE.replace("32 prompts", "84 C").replace("--rollout-batch-size", "paper:hot")
    source = '[[setting]]\nid = "hot"\nprinted = "84"\nunit = "C"\n'
    tree = repo(page)
    folder = tree.root / "capture/gpu/out-paper"
    folder.mkdir(parents=True)
    (folder / "reported.toml").write_text(source)
    assert problems(tree, book) == []
    (folder / "reported.toml").write_text(source.replace('"C"', '"s"'))
    only(problems(tree, book), "'84 C' is no value of paper:hot")
    (folder / "reported.toml").write_text(source.replace("84", "85"))
    only(problems(tree, book), "is '85'")


def test_the_outcome_of_a_page_may_not_be_general(repo, book):
    page = PAGE.replace("You read a step.", "You always read a step.")
    only(problems(repo(page), book), "one.md:3:", "outcome of the page", "'always'")


def test_an_exemption_ends_where_its_text_ends(repo, book):
    page = PAGE + "\nIt writes 32 prompts/s.\n"
    only(problems(repo(page), book), "number without evidence: '32 prompts'")


def test_a_diagram_states_no_number_and_is_linked_as_a_whole(repo, book, diagram):
    page = PAGE + DIAGRAM + "\nThe [drawing](#fig-d) shows it.\n"
    assert problems(repo(page), book) == []


@pytest.mark.parametrize("key", ["title: The way", "claim: Each", "caption: The code"])
def test_a_number_with_a_unit_in_a_diagram_is_an_error_exempt_or_not(repo, book, diagram, key):
    entry = '  - {text: "17 s", reason: "a limit of the code"}\n---\n# One'
    page = PAGE.replace("---\n# One", entry) + DIAGRAM.replace(key, f"{key} 17 s")
    what = f"{key.partition(':')[0]} of fig-d states '17 s', and a diagram shows no number"
    only(problems(repo(page), book), f":{line_of(page, key)}:", what)


def test_a_hole_in_the_claim_of_a_diagram_is_an_error(repo, book, diagram):
    page = PAGE + DIAGRAM.replace("Each request", "Each of {requests}")
    only(problems(repo(page), book), "asks for {requests}; the figure has no values")


def test_a_link_to_a_value_of_a_diagram_is_an_error(repo, book, diagram):
    page = PAGE + DIAGRAM + "\nIt took [17 s](#fig-d:first).\n"
    only(problems(repo(page), book), "no value 'first'; there are none")
