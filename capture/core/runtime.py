"""The lock of the runtime: exact versions, and the private signatures this trainer stands on.

`runtime.lock.json` holds, for each package, the version, the sha256 of the wheels it may come from
and one digest over the `RECORD` of its Python files; and for each private name of OLMo-core that a
module here uses or overrides, its parameters. `check` compares both with what is installed and
names what changed, before a model is built.

`packages` is what the tests run on. `accepted` holds further sets of versions that the same
signatures were compared with: each names the packages in which it differs. A runtime must be one
whole set; where none fits, the nearest one says what is wrong.
"""

from __future__ import annotations

import argparse
import base64
import enum
import hashlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .errors import RuntimeLockError

LOCK = Path(__file__).with_name("runtime.lock.json")
SCHEMA = 1
TESTED = "tested"
"""Name of the set that `packages` is."""


def read(path: Path = LOCK) -> dict[str, Any]:
    """The lock. RuntimeLockError names the file where it is missing or damaged."""
    try:
        lock = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RuntimeLockError(f"{path.name}: cannot be read: {error}") from None
    if not isinstance(lock, dict) or lock.get("schema") != SCHEMA:
        found = lock.get("schema") if isinstance(lock, dict) else None
        raise RuntimeLockError(f"{path.name}: schema: {found!r}: not {SCHEMA}")
    return lock


def lock_hash(lock: Mapping[str, Any] | None = None) -> str:
    """sha256 over the lock's content, whatever its layout: what a checkpoint's manifest records."""
    text = json.dumps(read() if lock is None else lock, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def record_digest(name: str) -> str | None:
    """sha256 over (path, hash) of the Python files in a distribution's RECORD; None without one.

    It says what pip put there, and is the same for every machine that installed the same wheel.
    """
    files = metadata.distribution(name).files or []
    lines = sorted(
        f"{file}:{file.hash.value}" for file in files if file.suffix == ".py" and file.hash
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def changed_files(lock: Mapping[str, Any]) -> list[str]:
    """Modules of the locked private names whose file is not the one that the wheel installed."""
    found = []
    for name in lock["packages"]:
        recorded = {str(file): file for file in metadata.distribution(name).files or []}
        for module in sorted({path.partition(":")[0] for path in lock["signatures"]}):
            file = recorded.get(module.replace(".", "/") + ".py")
            if file is None or file.hash is None:
                continue
            try:
                digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
            except OSError as error:
                found.append(f"{name}: {file}: {error.strerror}")
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                found.append(f"{name}: {file}: edited after it was installed")
    return found


def sets(lock: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of each accepted set to its packages; the tested one comes first."""
    found = {TESTED: dict(lock["packages"])}
    for name, entry in lock.get("accepted", {}).items():
        found[name] = {**lock["packages"], **entry["packages"]}
    return found


def differences(packages: Mapping[str, Any]) -> list[str]:
    """In what the installed packages are not these, one line each. Imports none of them."""
    found = []
    for name, entry in packages.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"{name}: not installed; the lock has {entry['version']}")
            continue
        public = installed.partition("+")[0]  # torch names its build after a plus
        if public != entry["version"]:
            found.append(f"{name}: version {installed}; the lock has {entry['version']}")
        elif entry.get("record") and record_digest(name) != entry["record"]:
            found.append(f"{name}: other files than those of the locked {entry['version']} wheel")
    return found


def nearest(lock: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(name, differences) of the set with the fewest differences, the first of equals."""
    found = {name: differences(packages) for name, packages in sets(lock).items()}
    name = min(found, key=lambda own: len(found[own]))
    return name, found[name]


def versions(lock: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with the installed packages, one line each. Imports none of them."""
    lock = read() if lock is None else lock
    return nearest(lock)[1] or changed_files(lock)


def signature(path: str) -> str:
    """`(name, name=default, ...)` of `module:attribute.path`, without annotations.

    An enumeration gives its members, anything that cannot be called "value". RuntimeLockError
    where the name is gone.
    """
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = inspect.getattr_static(found, attribute)
    except (ImportError, AttributeError):
        raise RuntimeLockError(f"{path}: is gone") from None
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if isinstance(found, enum.EnumMeta):
        return " | ".join(found.__members__)
    if isinstance(found, property) or not callable(found):
        return "value"
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return "value"
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(plain)))


def signatures(lock: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with the private names, one line each. Imports OLMo-core."""
    found = []
    for path, expected in (read() if lock is None else lock)["signatures"].items():
        try:
            now = signature(path)
        except RuntimeLockError as error:
            found.append(str(error))
            continue
        if now != expected:
            found.append(f"{path}: is {now}; the lock has {expected}")
    return found


_checked = False


def check(*, again: bool = False) -> None:
    """Raise RuntimeLockError for the first difference from the lock, counting the others.

    Once per process is enough unless `again`. Versions come first, without importing anything.
    """
    global _checked
    if _checked and not again:
        return
    lock = read()
    for problems in (versions(lock), None):
        problems = signatures(lock) if problems is None else problems
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise RuntimeLockError(f"{LOCK.name}: {problems[0]}{more}")
    _checked = True


def refreshed(lock: Mapping[str, Any]) -> dict[str, Any]:
    """The lock with the record digests and signatures of what is installed now.

    What is installed goes into the set whose versions it has, else into the tested one.
    """
    own = next((n for n, packages in sets(lock).items() if _has_versions(packages)), TESTED)
    if own == TESTED:
        fresh = {"packages": _installed(lock["packages"])}
    else:
        entry = lock["accepted"][own]
        fresh = {
            "accepted": {
                **lock["accepted"],
                own: {**entry, "packages": _installed(entry["packages"])},
            }
        }
    names = sorted(lock["signatures"])
    return {**lock, **fresh, "signatures": {name: signature(name) for name in names}}


def _has_versions(packages: Mapping[str, Any]) -> bool:
    return all(metadata.version(n).partition("+")[0] == e["version"] for n, e in packages.items())


def _installed(packages: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, entry in packages.items():
        found[name] = {**entry, "version": metadata.version(name).partition("+")[0]}
        if "record" in entry:
            found[name]["record"] = record_digest(name)
    return found


def main(argv: Sequence[str]) -> int:
    """`runtime`: compare what is installed with the lock."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core runtime",
        description="Compare the installed packages and Core's private signatures with the lock.",
        epilog="Exit codes: 0 as locked, 1 something differs, 2 bad usage or no lock.",
    )
    parser.add_argument("--write", action="store_true", help="lock what is installed now")
    arguments = parser.parse_args(argv)
    lock = read()
    if arguments.write:
        part = LOCK.with_suffix(".part")
        part.write_text(json.dumps(refreshed(lock), indent=1) + "\n", "utf-8")
        part.replace(LOCK)
        lock = read()
    problems = versions(lock)
    problems += [] if problems else signatures(lock)
    for problem in problems:
        print(f"{LOCK.name}: {problem}", file=sys.stderr)
    if not problems:
        count = len(lock["packages"])
        name = nearest(lock)[0]
        print(f"{count} packages and {len(lock['signatures'])} signatures as locked, set {name}")
        print(f"lock {lock_hash(lock)}")
    return 1 if problems else 0
