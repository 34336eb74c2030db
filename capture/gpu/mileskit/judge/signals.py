"""The signals of a run: where each number stands in a log, and what a zero of it means.

The table of section 5.1 in the source manual is lost; its prose names reward, gap, KL, clip
fraction, entropy, answer length and cut share.  Our eight are the five numbers of section 1.3
(reward, gap, KL, answer length with its cut share, gradient norm) and three more:

- clip fraction and entropy, because the prose names them and says what their zeros mean;
- gradient norm, among the five, because Miles replaces non-finite log-probability differences by
  0, so the gap, the KL and the clip fraction stay finite when the numbers are broken, and the
  gradient norm does not;
- the share of groups with one reward, because such a group teaches nothing, and neither the mean
  reward nor a gradient norm above 0 shows how many there are.

A number that this setup cannot show gets the verdict "not visible in this setup" with the reason,
instead of a comparison of zeros.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mileskit.judge.setupdiff import updates_per_rollout

REWARD = "rollout/raw_reward"
GAP = "train/train_rollout_logprob_abs_diff"
KL = "train/ppo_kl"
CLIP = "train/pg_clipfrac"
ENTROPY = "rollout/entropy"
ENTROPY_LOSS = "train/entropy_loss"
LENGTH = "rollout/response_lengths"
CUT = "rollout/truncated"
GRAD = "train/grad_norm"
LOSS = "train/loss"
GROUPS = "rollout/zero_std share"  # computed here, not a key of the log
_COUNT = "rollout/zero_std/count_"
_PERCENT = ("rollout/zero_std/all_zero_percentage", "rollout/zero_std/all_one_percentage")

Series = dict  # rollout number -> number (may be NaN or infinite)


class Signal(NamedTuple):
    """One signal: id, name in output, key of the log, unit, decimals, and its number of 1.3."""

    id: str
    name: str
    column: str
    unit: str
    digits: int
    five: str  # "1" ... "5" ("4a", "4b") when it is one of the five numbers, else ""
    eight: str


SIGNALS = (
    Signal("reward", "reward", REWARD, "", 3, "1", "1"),
    Signal("gap", "log-probability gap", GAP, "nats", 4, "2", "2"),
    Signal("kl", "KL (ppo_kl)", KL, "nats", 6, "3", "3"),
    Signal("length", "answer length", LENGTH, "tokens", 1, "4a", "4a"),
    Signal("cut", "cut share", CUT, "share", 3, "4b", "4b"),
    Signal("grad_norm", "gradient norm", GRAD, "", 3, "5", "5"),
    Signal("clip", "clip fraction", CLIP, "share", 6, "", "6"),
    Signal("entropy", "entropy", ENTROPY, "nats", 3, "", "7"),
    Signal("groups", "groups with one reward", GROUPS, "share", 3, "", "8"),
)
BY_ID = {signal.id: signal for signal in SIGNALS}


class Seen(NamedTuple):
    """The series of a signal in one run, why it is not visible ("" when it is), and notes."""

    series: Series
    hidden: str
    notes: tuple[str, ...]


def column(run: dict, name: str) -> Series:
    """A column by rollout number; the mean over a rollout's updates for a column of `steps`.

    Absent cells are left out.  Works for `rollouts` and `steps` columns.
    """
    table = run["rollouts"]
    if name in table["columns"]:
        cells = zip(table["index"], table["columns"][name], strict=True)
        return {n: float_of(v) for n, v in cells if v is not None}
    table = run["steps"]
    numbers = table.get("rollout") or [None] * len(table["index"])
    gathered: dict[int, list] = {}
    for step, rollout, cell in zip(
        table["index"], numbers, table["columns"].get(name, [None] * len(numbers)), strict=True
    ):
        if cell is not None:
            gathered.setdefault(step if rollout is None else rollout, []).append(float_of(cell))
    return {n: math.fsum(v) / len(v) if _finite(v) else sum(v) for n, v in gathered.items()}


def float_of(value) -> float:
    """The number as a float; whole numbers beyond its range are infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _finite(values: list) -> bool:
    return all(math.isfinite(v) for v in values)


def numbers(run: dict) -> list[int]:
    """Every rollout number of the run that has a rollout line or a step, sorted."""
    table = run["steps"]
    own = table.get("rollout") or [None] * len(table["index"])
    steps = {s if r is None else r for s, r in zip(table["index"], own, strict=True)}
    return sorted(steps | set(run["rollouts"]["index"]))


def see(run: dict, signal: Signal, settings: dict | None) -> Seen:
    """The series of a signal, and what this setup hides of it.

    settings: the run's flags, None when they are unknown.
    """
    maker = _MAKERS.get(signal.id, _plain)
    return maker(run, signal, {"": "unknown"} if settings is None else settings)


def _plain(run, signal, settings) -> Seen:
    series = column(run, signal.column)
    return Seen(series, "" if series else _absent(run, signal.column), ())


def _absent(run: dict, name: str, more: str = "") -> str:
    """Why a key is absent: "" while the log has no line of its kind at all."""
    if name.startswith("train/"):
        lines = run["steps"]["index"]
    else:
        lines = [t for t in run["rollouts"]["columns"].get("time/rollout_line", []) if t]
    return f"no {name} in this log{more}" if lines else ""


def _zero(series: Series) -> bool:
    return bool(series) and all(v == 0 for v in series.values())


def broken_steps(run: dict) -> list[int]:
    """Rollouts in which loss, gradient norm or a log-probability is NaN or infinite."""
    bad = set()
    for name in (LOSS, GRAD, "rollout/log_probs", "rollout/rollout_log_probs", ENTROPY):
        bad |= {n for n, v in column(run, name).items() if not math.isfinite(v)}
    return sorted(bad)


def _gap(run, signal, settings) -> Seen:
    series = column(run, GAP)
    if not series:
        why = _absent(run, GAP, ": the engine gave no log-probabilities")
        return Seen(series, why, ())
    broken = [n for n in broken_steps(run) if n in series and math.isfinite(series[n])]
    notes = ()
    if broken:
        notes = (
            f"non-finite loss, gradient norm or log-probability in {steps_text(broken)}: Miles"
            " sets non-finite differences to 0, so the gap of those steps hides NaN",
        )
        if len(broken) == len(series):
            return Seen(series, "every gap hides NaN: non-finite values were set to 0", notes)
        series = {n: v for n, v in series.items() if n not in broken}
    if _zero(series):
        if settings.get("use-rollout-logprobs"):
            return Seen(series, "0 because --use-rollout-logprobs puts the engine's on both sides",
                        notes)  # fmt: skip
        if settings.get("true-on-policy-mode"):
            return Seen(series, "", (*notes, "truly 0: true on-policy mode"))
        notes += ("exactly 0 in every step outside true on-policy mode: masked, not agreement",)
    return Seen(series, "", notes)


def _kl(run, signal, settings) -> Seen:
    return _one_update(run, signal, settings, "says that the trainer's two passes agree")


def _clip(run, signal, settings) -> Seen:
    return _one_update(run, signal, settings, "nothing can be clipped")


def _one_update(run, signal, settings, why: str) -> Seen:
    series = column(run, signal.column)
    if not series:
        return Seen(series, _absent(run, signal.column), ())
    if not _zero(series):
        return Seen(series, "", ())
    updates = updates_per_rollout(settings) or updates_seen(run)
    if updates is not None and updates <= 1:
        return Seen(series, f"0 because one update follows each rollout: {why}", ())
    if updates is None:
        return Seen(series, "0, and the log does not say how many updates a rollout gets", ())
    return Seen(series, "", (f"truly 0 with {updates:g} updates a rollout",))


def updates_seen(run: dict) -> float | None:
    """Updates per rollout by the numbers of the step lines; None without two rollouts."""
    own = [r for r in run["steps"].get("rollout") or [] if r is not None]
    if len(set(own)) < 2:
        return None
    return len(own) / len(set(own))


def _entropy(run, signal, settings) -> Seen:
    loss = column(run, ENTROPY_LOSS)
    series = column(run, ENTROPY)
    off = not settings.get("entropy-coef") and not settings.get("observe-training-entropy")
    why = "because its coefficient is off"
    if "" in settings:
        why = "as it is while its coefficient is off (the flags of this run are unknown)"
    notes = ()
    if _zero(loss) and off:
        notes = (f"train/entropy_loss is 0 {why}; this is rollout/entropy",)
    elif loss and not series:
        return Seen(loss, "", ("train/entropy_loss: this log has no rollout/entropy",))
    if not series:
        reason = _absent(run, ENTROPY)
        if loss:
            reason = f"no {ENTROPY} here, and train/entropy_loss is 0 {why}"
        return Seen(series, reason, ())
    if _zero(series):
        notes += ("truly 0: every token was certain",)
    return Seen(series, "", notes)


def _groups(run, signal, settings) -> Seen:
    """Share of groups with one reward: from the counts; from the percentages without a batch size.

    Miles leaves a count out when no group has it, and its percentage keys look up the texts 0.0
    and 1.0, so they stay 0 for integer rewards (count_0) and for any other reward (count_0.1).
    """
    names = run["rollouts"]["columns"]
    index = run["rollouts"]["index"]
    counts = [name for name in names if name.startswith(_COUNT)]
    filtered = settings.get("dynamic-sampling-filter-path") or any(
        name.startswith("rollout/dynamic_filter/drop") for name in names
    )
    if filtered:
        return Seen({}, "a filter drops such groups before they count", ())
    per = [column(run, name) for name in counts]
    percents = [column(run, name) for name in _PERCENT if name in names]
    if not counts and not percents:
        return Seen({}, "no rollout/zero_std keys in this log", ())
    groups = settings.get("rollout-batch-size")
    rows = [n for n in index if any(n in series for series in (*per, *percents))]
    if counts and isinstance(groups, int) and groups > 0:
        series = {n: sum(s.get(n, 0.0) for s in per) / groups for n in rows}
        if percents and all(_zero(s) for s in percents) and any(series.values()):
            note = f"from the counts: the percentage keys stay 0 for {_kind_of(counts)} rewards"
            return Seen(series, "", (note,))
        return Seen(series, "", ())
    series = {n: sum(s.get(n, 0.0) for s in percents) for n in rows}
    if counts and not any(series.values()):
        return Seen({}, f"the percentages are 0 for {_kind_of(counts)} rewards, and the log does"
                    " not say how many groups a step has", ())  # fmt: skip
    return Seen(series, "", ())


def _kind_of(counts: list[str]) -> str:
    """``integer``, or ``fractional`` when a count names a reward that is no whole number."""
    names = [name[len(_COUNT) :] for name in counts]
    return "integer" if all(name.lstrip("-").isdigit() for name in names) else "fractional"


def rewards_named(run: dict) -> set[float] | None:
    """Rewards that whole groups got by the keys of the log; None without such a key."""
    names = [n[len(_COUNT) :] for n in run["rollouts"]["columns"] if n.startswith(_COUNT)]
    found = set()
    for name in names:
        try:
            found.add(float(name))
        except ValueError:
            found.add(math.nan)
    return found or None


_MAKERS = {"gap": _gap, "kl": _kl, "clip": _clip, "entropy": _entropy, "groups": _groups}


def steps_text(steps: list[int]) -> str:
    """``step 3``, ``steps 3 to 7``, ``steps 1, 4 and 9``; long lists are cut."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps == list(range(steps[0], steps[-1] + 1)):
        return f"steps {steps[0]} to {steps[-1]}"
    shown = ", ".join(map(str, steps[:12]))
    return f"steps {shown}" + (f" and {len(steps) - 12} more" if len(steps) > 12 else "")
