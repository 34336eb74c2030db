"""The reference of flags: a row for each flag that a page names, with values from their sources."""

import importlib

import pytest

from scripts import flagnames, flagtables, milesflags
from scripts.chapters import parse
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})
PAGE = "manuals/miles-101/9-9-made-up.md"
HEAD = dict(zip(flagtables.HEAD, range(len(flagtables.HEAD)), strict=True))


def with_page(text: str) -> Tree:
    """The repository with one more chapter."""
    front = "---\ntitle: 9.9 Made up\noutcome: You test.\n---\n\n# 9.9 Made up\n\n"
    return Tree(ROOT, {PAGE: (front + text).encode()})


def row(flag: str, tree: Tree = TREE) -> list[str]:
    """The row of a flag. Fails when it has none or two."""
    found = [
        r
        for table in flagtables.rows(tree).values()
        for r in table
        if flagtables.name_of(r) == flag
    ]
    assert len(found) == 1, flag
    return found[0]


def missing(text: str) -> list[tuple[int, str]]:
    """(line, flag) of the flags of a made-up page that have no home."""
    tree = with_page(text)
    owners = flagnames.Owners.of(tree)
    return [
        (place.line, place.flag)
        for place in flagnames.on_page(tree, parse(PAGE, tree.text(PAGE)))
        if not owners.row(place.flag) and not owners.elsewhere(place.flag)
    ]


@pytest.mark.slow  # `make check` runs this check itself
def test_every_flag_that_a_page_names_has_a_row():
    report = flagtables.check(ROOT)
    assert report.problems == []
    assert report.counts["flags named"] > 300


def test_every_flag_of_the_launcher_has_a_row_with_its_value():
    launcher = importlib.import_module("miles_grpo")
    for flag in launcher.RECIPE:
        assert row(flag.name)[HEAD["Launcher"]] != flagtables.DASH, flag.name
    assert row("--rollout-batch-size")[HEAD["Launcher"]] == "`32`"
    assert row("--colocate")[HEAD["Launcher"]] == "set"


def test_the_six_tables_come_in_the_order_of_the_page():
    page = TREE.text(flagnames.REFERENCE)
    places = [page.index(f"id: {name}\n") for name in flagtables.GROUPS]
    assert places == sorted(places)
    heads = ["Model and data", "Rollout", "Reward and loss", "Placement and memory", "Engine",
             "Checks and debugging"]  # fmt: skip
    found = [page.index(f"\n## {head}\n") for head in heads]
    assert found == sorted(found)
    assert all(head < table for head, table in zip(found, places, strict=True))


def test_every_group_of_the_facts_has_one_table():
    groups = [group for name in flagtables.GROUPS for group in flagtables.GROUPS[name]]
    assert len(groups) == len(set(groups))
    entries = milesflags.read(TREE.read(milesflags.FLAGS_FILE)).entries.values()
    assert {entry["group"] for entry in entries} == set(groups)


def test_a_made_up_flag_is_named_with_its_line():
    assert missing("Set `--frobnicate-rollout 3`.\n") == [(8, "--frobnicate-rollout")]
    assert missing('```bash\n-e MILES_EXTRA_ARGS="--frob 1 --save x"\n```\n') == [(9, "--frob")]


@pytest.mark.parametrize(
    "text",
    [
        "`--no-offload-train` and `--no-offload-rollout`\n",
        "`--sglang-anything-at-all 1`, `--eval-sglang-log-level x`, `--router-policy y`\n",
        "`docker run --rm --gpus all`, and `--dry-run` of the kit\n",
        "Every name behind `--sglang-` is handed on.\n",
        "```listing\nfile: x\n---\nray start --unknown-thing 1\n```\n",
        "A dash -- as in prose -- and ---- are no flags.\n",
    ],
)
def test_forms_families_and_other_programs_need_no_row_of_their_own(text):
    assert missing(text) == []


def test_a_page_that_names_a_flag_is_linked_from_its_row():
    tree = with_page("`--disable-rewards-normalization` " * 40 + "\n")
    flag = "--disable-rewards-normalization"
    assert row(flag, tree)[0].split("<br>")[2].startswith("[9.9](9-9-made-up.md)")
    assert "9-9-made-up" not in str(flagtables.rows(TREE))


def test_the_gb10_column_holds_the_published_settings():
    column = HEAD["GB10 lab"]
    assert row("--rollout-batch-size")[column] == "32"
    assert row("--sglang-mem-fraction-static")[column] == "0.4, 0.25, 0.2, 0.02 in single runs"
    assert row("--update-weight-buffer-size")[column] == "536870912 = 512 MiB"
    assert row("--gradient-checkpointing")[column] == flagtables.DASH


def test_a_setting_of_the_documentation_is_no_setting_of_the_lab():
    text = TREE.text(flagtables.REPORTED)
    assert 'by = "miles-docs"' in text
    assert "0.8" not in flagtables.gb10_values(text)["--sglang-mem-fraction-static"]


def test_the_stored_runs_give_their_values():
    column = HEAD["H200 runs"]
    assert row("--global-batch-size")[column] == "`256`, `512`, `128`"
    assert row("--save")[column] == flagtables.DASH


def test_every_trap_of_the_launcher_is_about_a_flag_or_about_none():
    launcher = importlib.import_module("miles_grpo")
    found = flagtables.trap_flags(launcher)
    assert {trap for trap, flags in found.items() if not flags} == flagtables.NO_FLAG
    known = {trap.id for trap in launcher.TRAPS}
    assert flagtables.TRAP_FLAGS.keys() | flagtables.NO_FLAG <= known
    assert "save-without-interval" in row("--save")[HEAD["Meaning, and what to watch for"]]


def test_what_the_fsdp_trainer_ignores_says_so():
    launcher = importlib.import_module("miles_grpo")
    for flag in launcher.FSDP_IGNORES:
        shown = [
            r
            for table in flagtables.rows(TREE).values()
            for r in table
            if flagtables.name_of(r) == flag
        ]
        assert all("FSDP" in r[HEAD["Meaning, and what to watch for"]] for r in shown), flag


def test_a_row_that_is_in_the_facts_already_is_refused():
    extra = TREE.text(flagnames.EXTRA) + '\n[[flag]]\nname = "--save"\ngroup = "engine"\n'
    tree = Tree(ROOT, {flagnames.EXTRA: extra.encode()})
    with pytest.raises(ValueError, match="--save is in"):
        flagnames.Owners.of(tree)
