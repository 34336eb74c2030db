"""Columns of a run, the timing rule over them, and their medians."""

from __future__ import annotations

from mileskit.summary.pauses import PauseSet, iso

_NO_MEDIAN = ("train/step", "critic/step")


class Table:
    """Rows by number, columns by name; a number or column seen later is filled with None."""

    def __init__(self):
        self.index: list[int] = []
        self.columns: dict[str, list] = {}
        self._at: dict[int, int] = {}

    def put(self, number: int, values: dict) -> None:
        """Adds values to the row of ``number``; a value already there stays."""
        at = self._at.get(number)
        if at is None:
            at = self._at[number] = len(self.index)
            self.index.append(number)
        for name, value in values.items():
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = []
            if len(column) <= at:
                column.extend([None] * (at - len(column)))
                column.append(value)
            elif column[at] is None:
                column[at] = value

    def absorb(self, other: Table) -> None:
        for at, number in enumerate(other.index):
            row = {k: v[at] for k, v in other.columns.items() if at < len(v) and v[at] is not None}
            self.put(number, row)

    def column(self, name: str) -> list:
        """The column, as long as the index."""
        got = self.columns.get(name, [])
        return got + [None] * (len(self.index) - len(got))

    def as_dict(self) -> dict:
        """``{"index", "columns"}`` with the rows in the order of their number."""
        order = sorted(range(len(self.index)), key=self.index.__getitem__)
        columns = {}
        for name in sorted(self.columns):
            full = self.column(name)
            columns[name] = [full[i] for i in order]
        return {"index": [self.index[i] for i in order], "columns": columns}


def median(values: list) -> float | None:
    """Median of the finite numbers, the mean of the middle two when their count is even."""
    finite = sorted(v for v in values if v is not None and v - v == 0)
    n = len(finite)
    if not n:
        return None
    if n % 2:
        return finite[n // 2]
    try:
        return (finite[n // 2 - 1] + finite[n // 2]) / 2
    except OverflowError:  # whole numbers beyond the range of a float
        return None


def stamp(t: float | None) -> str | None:
    """UTC text of a time, None for None."""
    return None if t is None else iso(t)


def plain(table: Table) -> dict:
    out = table.as_dict()
    out["columns"].pop("rollout", None)
    for name, column in out["columns"].items():
        if name.startswith("time/"):
            out["columns"][name] = [stamp(v) for v in column]
    return out


def timing_columns(rollouts: dict, pauses: PauseSet) -> dict:
    """The timing rule, one entry a rollout; None where a window has no end or no length.

    A rollout window ends at its rollout line and lasts perf/rollout_time; a whole step ends at
    the trainer's perf line and lasts perf/step_time.  ``since_pause_s`` counts to the start of
    the rollout window (of the step window when that is unknown).
    """
    n = len(rollouts["index"])
    cols = rollouts["columns"]

    def column(name):
        return cols.get(name, [None] * n)

    out = {
        name: []
        for name in (
            "rollout_clean",
            "step_clean",
            "rollout_pause_s",
            "step_pause_s",
            "since_pause_s",
        )
    }
    ends = zip(column("time/rollout_line"), column("time/rollout_perf_line"), strict=True)
    lengths = column("perf/rollout_time")
    steps = zip(column("time/perf_line"), column("perf/step_time"), strict=True)
    for (line, perf), length, (step_end, step_length) in zip(ends, lengths, steps, strict=True):
        window = _window(perf if line is None else line, length)
        whole = _window(step_end, step_length)
        for name, span in (("rollout", window), ("step", whole)):
            out[f"{name}_clean"].append(pauses.clean(*span) if span else None)
            out[f"{name}_pause_s"].append(round(pauses.seconds(*span), 3) if span else None)
        start = window or whole
        since = pauses.since(start[0]) if start else None
        out["since_pause_s"].append(None if since is None else round(since, 3))
    return out


def _window(end, length):
    if end is None or length is None or length - length != 0 or not 0 <= length < 1e9:
        return None
    return end - length, end


def medians_of(rollouts: dict, steps: dict, timing: dict, trainer: set) -> dict:
    """Medians of every numeric column over all rows and over the clean ones.

    Rollout-side columns take rollout_clean; trainer-side perf columns and the step table take
    step_clean (of the step's rollout).
    """
    out = {}
    step_clean = dict(zip(rollouts["index"], timing["step_clean"], strict=True))
    by_step = [step_clean.get(r) for r in steps["columns"].get("rollout", [])]
    by_step += [None] * (len(steps["index"]) - len(by_step))
    jobs = [
        (name, column, timing["step_clean"] if name in trainer else timing["rollout_clean"])
        for name, column in rollouts["columns"].items()
    ]
    jobs += [(name, column, by_step) for name, column in steps["columns"].items()]
    for name, column, clean in sorted(jobs, key=lambda job: job[0]):
        if name.startswith("time/") or name in _NO_MEDIAN or name == "rollout":
            continue
        values = [v for v in column if v is not None and v - v == 0]  # finite ones
        good = values
        if not all(clean):
            pairs = zip(column, clean, strict=True)
            good = [v for v, ok in pairs if ok and v is not None and v - v == 0]
        if not values:
            continue
        middle = median(values)
        out[name] = {
            "all": middle,
            "n_all": len(values),
            "clean": middle if good is values else median(good),
            "n_clean": len(good),
        }
    return out
