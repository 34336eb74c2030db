"""Tables of part 8 that are made from facts files: corrections, hooks and routers.

The facts say what the code of one commit does. What a row means for the manual (which of the five
sources it addresses, its page, and who ran it) is here, and a row of the facts without an entry
here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from scripts import placementtables
from scripts.placementtables import sentences
from scripts.tree import Tree, yaml_document

CORRECTIONS = "manuals/data/miles-corrections.yaml"
HOOKS = "manuals/data/miles-hooks.yaml"

_CALL = re.compile(r"(?:async )?[A-Za-z_]\w*\([^()]*\)")
_DOTTED = re.compile(r"\bmiles(?:\.\w+)+\.(\w+)")
_SPAN = re.compile(r"(`[^`]*`)")

MOST_FLAGS = 3
NOT_RUN = "not run"
_HERE = "measured here"
_GB10 = "reported, GB10"
_CAPPED = "numbers, staleness"
_KINDS = {
    "removes a cause": "removes",
    "changes the numbers": "shrinks",
    "reweights": "reweights",
    "reweights (bypass)": "reweights",
    "reweights and masks": "reweights and drops",
    "masks": "drops",
    "baseline": "neither",
    "measures": "neither",
    "cost saving": "neither",
    "repeatability": "neither",
    "repeatability, not a correction": "neither",
}
ORDER = ("removes", "shrinks", "reweights", "reweights and drops", "drops", "neither")

# name in the facts -> (which of the five sources, page of this manual or "", who ran it)
METHODS: dict[str, tuple[str, str, str]] = {
    "recomputed old log probabilities": ("none", "", _HERE),
    "engine log probabilities as old policy": ("all five", "", NOT_RUN),
    "reuse of the training pass": ("none", "", NOT_RUN),
    "truncated importance sampling": (_CAPPED, "4-3-fp8-rollout", NOT_RUN),
    "clip-or-drop importance sampling": (_CAPPED, "", NOT_RUN),
    "masked importance sampling example": (_CAPPED, "", NOT_RUN),
    "mismatch metrics only": ("none", "", NOT_RUN),
    "off-policy sequence masking": ("staleness", "4-1-async", NOT_RUN),
    "older actor as reference point": ("staleness", "4-1-async", NOT_RUN),
    "trainer-side routing replay": ("routing", "3-4-moe-routing-replay", NOT_RUN),
    "rollout routing replay (R3)": ("routing", "3-4-moe-routing-replay", NOT_RUN),
    "indexer replay": ("routing", "", NOT_RUN),
    "sampling replay": ("sampling", "4-4-sampling-replay", _GB10),
    "score centering": ("staleness", "", NOT_RUN),
    "deterministic engine": ("none", "4-5-deterministic-inference", f"{_HERE}; {_GB10}"),
    "deterministic trainer": ("none", "4-5-deterministic-inference", NOT_RUN),
    "true on-policy contract": ("numbers", "4-6-true-on-policy", f"{_GB10}: did not start"),
    "log probabilities by prefill": ("numbers", "4-6-true-on-policy", NOT_RUN),
    "staleness limit": ("staleness", "4-1-async", NOT_RUN),
    "token-in token-out sessions": ("tokens", "3-3-agents", NOT_RUN),
    "fp16 on both sides": ("numbers", "8-3-the-gap", NOT_RUN),
}

# name in the facts -> what it is for
ROUTERS = {
    "SGLang router": "every run, unless you send text",
    "Miles router": "requests that hold text",
}
POLICIES = {
    "session server": "every turn of a conversation goes to one engine",
    "attention data parallelism": "the router sees the ranks inside an engine",
}


def facts(tree: Tree, path: str) -> Any:
    """The content of a facts file; do not change it."""
    return yaml_document(tree.read(path))


def code(text: str) -> str:
    """Text as inline code of a table cell, '' for none."""
    return f"`{text}`" if text else ""


def marked(text: str) -> str:
    """Text of the facts with calls, flags and names of code as inline code."""
    parts = _SPAN.split(_CALL.sub(lambda match: f"`{match[0]}`", text))
    return "".join(part if part[:1] == "`" else placementtables.code(part) for part in parts)


def _limits(parts: list[str]) -> str:
    return sentences([_CALL.sub(lambda match: f"`{match[0]}`", part) for part in parts])


def _flags(flags: list[str]) -> str:
    """The flags of a method; of many only the first, since its page has them all."""
    shown = flags if len(flags) <= MOST_FLAGS else flags[:1]
    cells = [code(_short(flag)) if flag.startswith("-") else flag for flag in shown]
    if len(shown) < len(flags):
        cells.append(f"and {len(flags) - len(shown)} more")
    return ", ".join(cells)


def _short(text: str) -> str:
    """Dotted import paths cut to their last name."""
    return _DOTTED.sub(r"…\1", text)


def corrections(tree: Tree) -> list[list[str]]:
    """Every method, those that remove a cause first. KeyError for a method without an entry."""
    rows = []
    for entry in facts(tree, CORRECTIONS)["corrections"]:
        sources, page, run = METHODS[entry["name"]]
        kind = _KINDS[entry["kind"]]
        flags = _flags(entry["flags"])
        version = "yes" if entry["in_snapshot"] else "no, since October"
        if not entry["in_snapshot"]:
            flags = "no flag of its own" if entry["name"] == "sampling replay" else "name not known"
        number = "-".join(page.split("-")[:2]).replace("-", ".")
        where = f"[{number}]({page}.md)" if page else ""
        rows.append([entry["name"], sources, kind, flags, version, run, where])
    rows.sort(key=lambda row: ORDER.index(row[2]))
    return [["method", "source", "kind", "flags", "in August", "run by", "page"], *rows]


def hooks(tree: Tree) -> list[list[str]]:
    """Every hook in the order of a step: flag and place, what it gets and returns."""
    rows = [["flag, when, and instead of what", "what you give, and what it must return"]]
    for entry in sorted(facts(tree, HOOKS)["hooks"], key=lambda hook: hook["order"]):
        place = entry["stage"]
        if not entry["default"].startswith("none"):
            default = _DOTTED.sub(r"`\1`", entry["default"])
            place += f", instead of {marked(default)}"
        if entry["works_on"] != "any":
            place += f", {entry['works_on']} trainer only"
        given, back = marked(entry["signature"]), marked(entry["must_return"])
        rows.append([f"{code(entry['flag'])}<br>{place}", f"{given}<br>**returns** {back}"])
    return rows


def hook_limits(tree: Tree) -> list[list[str]]:
    """What the code asks of a hook beyond its arguments: flag, limits."""
    rows = [["flag", "limits and traps"]]
    for entry in facts(tree, HOOKS)["hooks"]:
        if entry.get("constraints"):
            rows.append([code(entry["flag"]), _limits(entry["constraints"])])
    return rows


def routers(tree: Tree) -> list[list[str]]:
    """The two routers: name, how it is chosen, what it is for, what the code says of it."""
    rows = [["router", "chosen by", "for", "what the code says"]]
    for entry in placementtables.facts(tree, "router"):
        if entry["name"] in ROUTERS:
            chosen = "default" if entry.get("default") else code(entry["selected_by"])
            says = sentences(entry.get("facts"), entry.get("constraints"))
            rows.append([entry["name"], chosen, ROUTERS[entry["name"]], says])
    return rows


def router_policies(tree: Tree) -> list[list[str]]:
    """What Miles sets at the router by itself: case, what it sets, what that means."""
    rows = [["case", "what Miles sets", "what that means"]]
    for entry in placementtables.facts(tree, "router"):
        if entry["name"] not in ROUTERS:
            rows.append([entry["name"], sentences(entry["effect"]), POLICIES[entry["name"]]])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    "table-8-2-methods": corrections,
    "table-8-5-hooks": hooks,
    "table-8-5-limits": hook_limits,
    "table-8-6-routers": routers,
    "table-8-6-policies": router_policies,
}
