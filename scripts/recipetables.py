"""Tables of part 3: built-in rewards, the zero-variance filter by version, agent recipes.

The rows come from facts files under manuals/data; the notes of the rewards are ours.
"""

from __future__ import annotations

import re

from scripts.tree import Tree, yaml_document

REWARDS = "manuals/data/miles-rewards.yaml"
FILTER = "manuals/data/miles-zero-variance-filter.yaml"
RECIPES = "manuals/data/miles-agent-recipes.yaml"
_CODE = re.compile(r"(?<![`\w/-])(--[a-z][\w-]*|\\boxed(?:\{\})?|rm_type)(?![`\w/-])")


def _code(text: str) -> str:
    """`text` with flags and names of code in back-ticks; <think> would be read as a tag."""
    text = re.sub(r"</?think>|###Response", lambda match: f"`{match[0]}`", text)
    return _CODE.sub(r"`\1`", text).rstrip(".").replace("; ", ", ")


def builtin_rewards(tree: Tree) -> list[list[str]]:
    """Values of --rm-type: value, what it grades, what it returns, what it needs."""
    rows = [["`--rm-type`", "grades", "returns", "needs"]]
    for entry in yaml_document(tree.text(REWARDS))["rewards"]:
        needs = _code(entry["needs"]) if entry["needs"] else "nothing"
        rows.append([f"`{entry['name']}`", _code(entry["grades"]), entry["returns"], needs])
    return rows


def reward_traps(tree: Tree) -> list[list[str]]:
    """What the graders do that their names do not say: value, trap. Needs a note in the facts."""
    entries = [entry for entry in yaml_document(tree.text(REWARDS))["rewards"] if entry.get("note")]
    return [
        ["`--rm-type`", "what its name does not say"],
        *([f"`{entry['name']}`", _code(entry["note"])] for entry in entries),
    ]


def filter_paths(tree: Tree) -> list[list[str]]:
    """Import paths of the zero-variance filter: path, in August, in October."""
    rows = [["path", "Miles of 2026-08-21", "Miles of 2026-10-15"]]
    for entry in yaml_document(tree.text(FILTER))["paths"]:
        module, _, name = entry["path"].rpartition(".")
        shown = f"`…{module.rpartition('.')[2]}.{name}`"
        rows.append([shown, entry["august"], entry["october"]])
    return rows


def filter_metrics(tree: Tree) -> list[list[str]]:
    """Metrics that the filter writes: key, meaning, in August, in October."""
    rows = [["key", "meaning", "Miles of 2026-08-21", "Miles of 2026-10-15"]]
    for entry in yaml_document(tree.text(FILTER))["metrics"]:
        rows.append([f"`{entry['key']}`", entry["meaning"], entry["august"], entry["october"]])
    return rows


def agent_recipes(tree: Tree) -> list[list[str]]:
    """Agent recipes of Miles: recipe, folder, what it does, for which task to start there."""
    rows = [["recipe", "folder", "what it does", "start there for"]]
    for entry in yaml_document(tree.text(RECIPES))["recipes"]:
        rows.append([entry["name"], f"`{entry['folder']}`", entry["does"], entry["start_here"]])
    return rows


TABLES = {
    "builtin-rewards": builtin_rewards,
    "reward-traps": reward_traps,
    "filter-paths": filter_paths,
    "filter-metrics": filter_metrics,
    "agent-recipes": agent_recipes,
}
