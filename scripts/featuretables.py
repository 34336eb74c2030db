"""The table that says what became of each feature of the older manual and of its sequel's page.

`manuals/data/features.yaml` lists them, with the keys id, seed, section, what, state, where, why.

    done        it is here; `where` says at which place
    superseded  something else is here in its place; `where` says what, `why` says why
    refused     it is not here, and `why` says why

A place is a page under `manuals/`, with an anchor or without, or a file of the repository, with
`::test_name` or without.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from scripts.tree import Tree, yaml_document

FILE = "manuals/data/features.yaml"
STATES = ("done", "superseded", "refused")
_PAGE = "miles-101/"  # the tables stand on a page of this folder
_KEYS = {"id", "seed", "section", "what", "state", "where", "why"}


def features(tree: Tree) -> list[dict[str, Any]]:
    """The features in the order of the file. ValueError names the file, the id and the value."""
    found = yaml_document(tree.text(FILE))
    seen: set[str] = set()
    for item in found:
        name = f"{FILE}: {item.get('id')!r}"
        if unknown := sorted(item.keys() - _KEYS):
            raise ValueError(f"{name}: unknown key {unknown[0]!r}")
        if item["id"] in seen:
            raise ValueError(f"{name}: is there twice")
        seen.add(item["id"])
        if item.get("state") not in STATES:
            raise ValueError(f"{name}: state {item.get('state')!r}, not one of {', '.join(STATES)}")
        places = item.get("where") or []
        if item["state"] in ("done", "superseded") and not places:
            raise ValueError(f"{name}: {item['state']} without a place")
        if item["state"] in ("superseded", "refused") and not item.get("why"):
            raise ValueError(f"{name}: {item['state']} without a reason")
        for place in places:
            _check_place(tree, name, place)
    return found


def _check_place(tree: Tree, name: str, place: str) -> None:
    page, _, _ = place.partition("#")
    path, _, test = place.partition("::")
    if page.endswith(".md") and tree.exists(f"manuals/{page}"):
        return  # the site check follows the anchor
    if not tree.exists(path):
        raise ValueError(f"{name}: no page or file {place!r}")
    if test and not re.search(rf"^\s*def {re.escape(test)}\b", tree.text(path), re.MULTILINE):
        raise ValueError(f"{name}: no test {test!r} in {path}")


def _link(tree: Tree, place: str) -> str:
    page, _, anchor = place.partition("#")
    if not (page.endswith(".md") and tree.exists(f"manuals/{page}")):
        return f"`{place}`"
    href = page.removeprefix(_PAGE) if page.startswith(_PAGE) else f"../{page}"
    front = re.search(r"^title: *[\"']?(.+?)[\"']?$", tree.text(f"manuals/{page}"), re.MULTILINE)
    return f"[{front[1] if front else page}]({href}{'#' + anchor if anchor else ''})"


def counts(tree: Tree) -> list[list[str]]:
    """How many features are in which state: document, features, and one column a state."""
    rows = [["document", "features", *STATES]]
    found = features(tree)
    for seed, title in (("000", "GB10 manual"), ("003", "page of the sequel")):
        states = Counter(item["state"] for item in found if item["seed"] == seed)
        numbers = [str(states[state]) for state in STATES]
        rows.append([title, str(sum(states.values())), *numbers])
    return rows


def _by_section(item: dict[str, Any]) -> tuple[bool, str]:
    return not item["section"][0].isdigit(), item["section"]


def table(tree: Tree, seed: str) -> list[list[str]]:
    """One row a feature of one document, in the order of its sections: what became of it, where."""
    rows = [["section", "feature", "state", "where, and why"]]
    for item in sorted(features(tree), key=_by_section):
        if item["seed"] == seed:
            places = ", ".join(_link(tree, place) for place in item.get("where") or [])
            told = " ".join(
                part for part in (f"{places}." if places else "", item.get("why")) if part
            )
            rows.append([item["section"], f"{item['what']} (`{item['id']}`)", item["state"], told])
    return rows


def first(tree: Tree) -> list[list[str]]:
    """The features of the GB10 manual."""
    return table(tree, "000")


def second(tree: Tree) -> list[list[str]]:
    """The features of the sequel's page."""
    return table(tree, "003")
