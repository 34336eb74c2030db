"""Computes the counts and medians of every stored run a second time, with pandas.

It reads the raw log with patterns of its own and shares no code with the kit's parser, so that
an error in one of the two shows as a difference. Compared with summary.json: the log's checksum;
rollouts, steps, retries (total, by status, highest attempt), the end status; and the medians
(all and clean, each with its count) of every perf/*_time column, reward, log-probability gap,
response length, truncated share and gradient norm. [ended] of run.toml is compared too.

`python3 -m scripts.second_computation` prints the differences.
Exit codes: 0 equal, 1 something differs, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import lzma
import math
import sys
import tomllib
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent

RECORD = (
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) [^\]]*\] \S+ - "
    r"(?P<kind>step|rollout|perf) (?P<number>\d+): (?P<dict>\{.*\})"
)
RETRY = r"retrying\.\.\. \(attempt (?P<attempt>\d+)/\d+"
STATUS = r"(?:Status/|error ')(?P<status>[1-5]\d\d)\b"
REPEATED = r"\[repeated (?P<times>\d+)x across cluster\]"
END = r"^# end \S+ rc=(?P<status>\d+)"
GUARD = r"^(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)Z (?P<action>pause|resume)\b"
COMPARED = (
    r"perf/.*_time|rollout/raw_reward|train/train_rollout_logprob_abs_diff|train/grad_norm"
    r"|rollout/response_lengths|rollout/response_len/.*|rollout/truncated|rollout/truncated_ratio"
)
BARE = r"(?<=: )(?:np\.\w+\()?(-?(?:nan|inf)|[-+0-9.e]+)\)?(?=[,}])"
TOLERANCE = 1e-12  # relative; both sides print floats in full


def lines_of(data: bytes) -> pd.Series:
    """The log's lines without colour codes, before the copy that Ray prints of a failed job."""
    lines = pd.Series(data.decode("utf-8", "replace").split("\n"), dtype=object)
    lines = lines.str.replace(r"\x1b\[[0-9;]*m", "", regex=True)
    copies = lines.index[lines.str.contains("Status message:", regex=False)]
    return lines.iloc[: copies[0]] if len(copies) else lines


def seconds(times: pd.Series) -> pd.Series:
    """Seconds since the epoch of times in UTC."""
    return (pd.to_datetime(times) - pd.Timestamp(0)) / pd.Timedelta(seconds=1)


def read_dict(text: str) -> dict:
    """A printed metric dict; nan, inf and numpy's wrappers become floats."""
    quoted = pd.Series([text]).str.replace(BARE, r"'=\1'", regex=True)[0]
    return {
        name: float(value[1:]) if isinstance(value, str) and value[:1] == "=" else value
        for name, value in ast.literal_eval(quoted).items()
    }


def records(lines: pd.Series) -> pd.DataFrame:
    """One row a metric line: kind, number, at (seconds), values (dict)."""
    found = lines[lines.str.contains(": {", regex=False)].str.extract(RECORD).dropna()
    return pd.DataFrame(
        {
            "kind": found["kind"],
            "number": found["number"].astype(int),
            "at": seconds(found["time"]),
            "values": found["dict"].map(read_dict),
        }
    )


def pauses(guard: bytes | None) -> list[tuple[float, float]]:
    """Start and end of each pause in the heat guard's log; an open one never ends."""
    lines = pd.Series((guard or b"").decode().split("\n"), dtype=object)
    actions = lines.str.extract(GUARD).dropna()
    found: list[tuple[float, float]] = []
    start = None
    for at, action in zip(seconds(actions["time"]), actions["action"], strict=True):
        if action == "pause" and start is None:
            start = at
        elif action == "resume" and start is not None:
            found.append((start, at))
            start = None
    return found + ([] if start is None else [(start, math.inf)])


def is_clean(end: pd.Series, length: pd.Series, spans: list[tuple[float, float]]) -> pd.Series:
    """Whether no pause overlaps or touches the window that ends at `end`; unknown is False."""
    clean = end.notna() & length.notna()
    for start, stop in spans:
        clean &= ~((end >= start) & (end - length <= stop))
    return clean


def tables(found: pd.DataFrame, spans: list[tuple[float, float]]) -> tuple:
    """(frame, clean) for rollout-side columns, trainer-side perf columns and steps."""
    trainer = found["values"].map(lambda values: "perf/step_time" in values)
    perf = found["kind"] == "perf"
    parts = {
        "engine": found[perf & ~trainer],
        "rollout": found[found["kind"] == "rollout"],
        "trainer": found[perf & trainer],
        "step": found[found["kind"] == "step"],
    }
    frames = {
        name: pd.DataFrame(list(part["values"]), index=part["number"]).assign(at=list(part["at"]))
        for name, part in parts.items()
    }
    frames = {name: frame[~frame.index.duplicated()] for name, frame in frames.items()}
    index = sorted(set().union(*(frames[n].index for n in ("engine", "rollout", "trainer"))))
    ends = frames["rollout"]["at"].reindex(index)
    ends = ends.fillna(frames["engine"]["at"].reindex(index))
    lengths = column(frames["engine"], "perf/rollout_time").reindex(index)
    rollout_clean = is_clean(ends, lengths, spans)
    step_lengths = column(frames["trainer"], "perf/step_time").reindex(index)
    step_clean = is_clean(frames["trainer"]["at"].reindex(index), step_lengths, spans)
    # A step belongs to the newest rollout line before it.
    order = found[found["kind"].isin(["rollout", "step"])]
    owner = order["number"].where(order["kind"] == "rollout").ffill()[order["kind"] == "step"]
    owner.index = order["number"][order["kind"] == "step"]
    owner = owner[~owner.index.duplicated()]
    of_step = owner.map(step_clean).fillna(False).astype(bool)
    return (
        (frames["engine"], rollout_clean),
        (frames["rollout"], rollout_clean),
        (frames["trainer"], step_clean),
        (frames["step"], of_step),
    )


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column as floats; all missing when the frame has none."""
    if name in frame:
        return frame[name].astype(float)
    return pd.Series(math.nan, index=frame.index, dtype=float)


def medians(parts: tuple) -> dict[str, float | int | None]:
    """`COLUMN median all`, `n_all`, `clean`, `n_clean` of the compared columns."""
    result: dict[str, float | int | None] = {}
    for frame, clean in parts:
        for name in frame.columns[frame.columns.str.fullmatch(COMPARED)]:
            values = column(frame, name).replace([math.inf, -math.inf], math.nan).dropna()
            good = values[clean.reindex(values.index, fill_value=False)]
            for which, some in (("all", values), ("clean", good)):
                result[f"{name} median {which}"] = float(some.median()) if len(some) else None
                result[f"{name} n_{which}"] = len(some)
    return result


def recompute(log: bytes, guard: bytes | None) -> dict[str, object]:
    """Every compared quantity of a run, by name, from its raw log and heat-guard log."""
    lines = lines_of(log)
    parts = tables(records(lines), pauses(guard))
    rows = lines[lines.str.contains("retrying... (attempt", regex=False)]
    times = rows.str.extract(REPEATED)["times"].fillna(1).astype(int)
    status = rows.str.extract(STATUS)["status"].fillna("none")
    attempts = rows.str.extract(RETRY)["attempt"].dropna().astype(int)
    ends = lines.str.extract(END)["status"].dropna()
    result: dict[str, object] = {
        "source sha256": hashlib.sha256(log).hexdigest(),
        "rollouts": len(set(parts[0][0].index) | set(parts[1][0].index)),
        "steps": len(parts[3][0]),
        "retries total": int(times.sum()),
        "retries max_attempt": int(attempts.max()) if len(attempts) else 0,
        "ended status": int(ends.iloc[-1]) if len(ends) else None,
    }
    for name, number in times.groupby(status).sum().items():
        result[f"retries with status {name}"] = int(number)
    return result | medians(parts)


def stored_values(summary: dict) -> dict[str, object]:
    """The same quantities as summary.json has them."""
    run = summary["runs"][0]
    result: dict[str, object] = {
        "source sha256": summary["source"]["sha256"],
        "rollouts": len(run["rollouts"]["index"]),
        "steps": len(run["steps"]["index"]),
        "retries total": run["retries"]["total"],
        "retries max_attempt": run["retries"]["max_attempt"],
        "ended status": run["ended"]["status"],
    }
    for name, number in run["retries"]["by_status"].items():
        result[f"retries with status {name}"] = number
    names = pd.Series(list(run["medians"]), dtype=object)
    for name in names[names.str.fullmatch(COMPARED)]:
        row = run["medians"][name]
        for which in ("all", "clean"):
            result[f"{name} median {which}"] = row[which]
            result[f"{name} n_{which}"] = row[f"n_{which}"]
    return result


def same(one: object, other: object) -> bool:
    """Equality; floats within the tolerance."""
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=0.0)
    return one == other


def differences(mine: dict, stored: dict) -> list[tuple[str, object, object]]:
    """(quantity, computed, stored) where the two differ; "nothing" where one lacks it."""
    pairs = [
        (quantity, mine.get(quantity, "nothing"), stored.get(quantity, "nothing"))
        for quantity in sorted(mine.keys() | stored.keys())
    ]
    return [(quantity, one, other) for quantity, one, other in pairs if not same(one, other)]


def place(text: str, quantity: str) -> int:
    """1-based line of summary.json that holds the quantity; 1 when it is not found."""
    name = quantity.split(" ")[0]
    marks = [f'"{name}": {{"all"', f'"{name}"']
    for mark in marks:
        for number, line in enumerate(text.split("\n"), 1):
            if mark in line:
                return number
    return 1


def compare_run(folder: Path, root: Path) -> tuple[int, list[str]]:
    """Number of quantities compared for one run, and `path:line: text` for each difference."""
    name = f"{folder.parent.name.removeprefix('out-')}/{folder.name}"
    path = folder / "summary.json"
    shown = path.relative_to(root).as_posix()
    try:
        text = path.read_text(encoding="utf-8")
        stored = stored_values(json.loads(text))
        ended = tomllib.loads((folder / "run.toml").read_text(encoding="utf-8"))["ended"]
        with lzma.open(folder / "run.log.xz") as stream:
            log = stream.read()
        guard = folder / "heat-guard.log"
        mine = recompute(log, guard.read_bytes() if guard.exists() else None)
    except (OSError, ValueError, KeyError, IndexError, TypeError, lzma.LZMAError) as error:
        return 0, [f"{shown}:1: run {name} cannot be compared: {type(error).__name__}: {error}"]
    errors = [
        f"{shown}:{place(text, quantity)}: run {name}, {quantity}: stored {other}, computed {one}"
        for quantity, one, other in differences(mine, stored)
    ]
    for field, quantity in (("steps", "steps"), ("status", "ended status")):
        if ended.get(field) != mine[quantity]:
            where = (folder / "run.toml").relative_to(root).as_posix()
            errors.append(
                f"{where}:1: run {name}, [ended] {field}: stored {ended.get(field)}, "
                f"computed {mine[quantity]}"
            )
    return len(mine.keys() | stored.keys()) + 2, errors


def compare(root: Path) -> tuple[int, list[str]]:
    """Quantities compared over all stored runs under `root`, and the differences."""
    total, errors = 0, []
    for folder in run_folders(root):
        number, wrong = compare_run(folder, root)
        total += number
        errors += wrong
    return total, errors


def run_folders(root: Path) -> list[Path]:
    """Folders of stored runs, sorted."""
    return sorted(path.parent for path in root.glob("capture/gpu/out-*/*/run.toml"))


_compared: dict[Path, int] = {}


def check(root: Path) -> list[str]:
    """The differences, as `path:line: text`."""
    _compared[root], errors = compare(root)
    return errors


def count(root: Path) -> dict[str, int]:
    """What the last `check` of this root compared."""
    if root not in _compared:
        check(root)
    return {"runs": len(run_folders(root)), "quantities": _compared[root]}


def main(argv: list[str] | None = None) -> int:
    """Print the differences; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.second_computation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    total, errors = compare(ROOT)
    print(*errors, sep="\n", end="\n" if errors else "")
    print(f"second_computation: {total:,} quantities of {len(run_folders(ROOT))} runs compared")
    if errors:
        return 1
    return 0 if total else 3


if __name__ == "__main__":
    sys.exit(main())
