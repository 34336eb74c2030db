"""Tables of part 2 that follow from the facts files: offload of each side, and the LoRA flags."""

from __future__ import annotations

import re

from scripts.tree import Tree, yaml_document

PLACEMENT = "manuals/data/miles-placement.yaml"
FLAGS = "manuals/data/miles-flags.yaml"
LORA = ("--lora-rank", "--lora-alpha", "--target-modules", "--multi-lora-n-adapters")
_CODE = re.compile(r"(?<![`\w/-])(--[a-z][\w-]*|perf/\w+|\w+\.\w+\(\)|[a-z]+_[a-z_]+)(?![`\w/])")
_PLACE = re.compile(r"\s*\([\w/]+\.py(?::\d+)?\)")


def _load(tree: Tree, path: str) -> dict:
    return yaml_document(tree.read(path))


def _words(text: str) -> str:
    """Text of the facts: names of the code as inline code, places in the source left out."""
    return _CODE.sub(r"`\1`", _PLACE.sub("", text))


def _sentences(parts: list[str]) -> str:
    """Parts of the facts as sentences."""
    told = [_words(part) for part in parts if part]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in told)


def offload_sides(tree: Tree) -> list[list[str]]:
    """What each side gives back: side, switch, default, how and what else, timer."""
    rows = [["side", "switch", "default", "how", "timer"]]
    for side in _load(tree, PLACEMENT)["offload"]:
        how = [side["mechanism"], side.get("levels", ""), *side.get("facts", [])]
        head = [_words(side[key]) for key in ("side", "switch", "default")]
        rows.append([*head, _sentences(how), _words(side.get("timer", "not named"))])
    return rows


def lora_flags(tree: Tree) -> list[list[str]]:
    """The LoRA flags that section 2.1 names: flag, default, meaning, limits. KeyError for none."""
    known = {flag["name"]: flag for flag in _load(tree, FLAGS)["flags"]}
    rows = [["flag", "default", "meaning", "limits"]]
    for name in LORA:
        flag = known[name]
        default = "none" if flag.get("default") is None else f"`{flag['default']}`"
        limits = _sentences(flag.get("constraints", []))
        rows.append([f"`{name}`", default, _words(flag.get("meaning", "")), limits])
    return rows


TABLES = {"offload-sides": offload_sides, "lora-flags": lora_flags}
