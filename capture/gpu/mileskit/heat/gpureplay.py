"""Read stored GPU samples back: JSON lines of the heat guard, or the CSV of `nvidia-smi -l`."""

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import chain

from mileskit.heat.gpusample import QUERIES, THROTTLE_QUERIES, Reading, Sample, make_sample

SAME_TIME_S = 1.0
"""Lines of different GPUs within this many seconds belong to one reading."""


class SampleError(ValueError):
    """A line that is no sample; the text names file, line and value."""


def read_readings(lines: Iterable[str], name: str) -> Iterator[Reading]:
    """Readings in file order from an open text file; `name` is used in errors.

    A last line without a newline that does not parse is what a killed writer leaves: it is dropped.
    """
    numbered = enumerate(lines, 1)
    number, first = next(numbered, (0, ""))
    while number and not first.strip():
        number, first = next(numbered, (0, ""))
    if not number:
        return
    if first.lstrip().startswith("{"):
        samples = _from_json(chain([(number, first)], numbered), name)
    else:
        samples = _from_csv(first, numbered, name)
    yield from _grouped(samples)


def _from_json(numbered, name: str) -> Iterator[Sample | Reading]:
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            yield _json_line(line, number, name)
        except SampleError:
            if line.endswith("\n"):
                raise


def _json_line(line: str, number: int, name: str) -> Sample | Reading:
    try:
        fields = json.loads(line)
        when = _time(fields["time"])
        cells = {key: str(fields[key]) for key in (*QUERIES, "trouble") if key in fields}
        throttle = fields.get("throttle")
    except (ValueError, KeyError, TypeError) as error:
        raise SampleError(f"{name}:{number}: not a sample: {line.strip()[:80]!r}") from error
    if "trouble" in cells:
        return Reading(when, trouble=cells["trouble"])
    sample = make_sample(when, cells)
    return sample._replace(throttle=None if throttle is None else tuple(map(str, throttle)))


def _from_csv(header: str, numbered, name: str) -> Iterator[Sample]:
    titles = [title.split("[")[0].strip() for title in next(csv.reader([header]))]
    known = {query: key for key, query in QUERIES.items()}
    known.update(dict.fromkeys(THROTTLE_QUERIES, "throttle"))
    if "timestamp" not in titles or "temperature.gpu" not in titles:
        raise SampleError(
            f"{name}:1: neither JSON lines nor a header with timestamp and temperature.gpu: "
            f"{header.strip()[:80]!r}"
        )
    for number, line in numbered:
        if not line.strip():
            continue
        row = dict(zip(titles, next(csv.reader([line])), strict=False))
        try:
            when = _time(row["timestamp"].strip())
        except ValueError as error:
            if not line.endswith("\n"):
                return
            raise SampleError(f"{name}:{number}: not a time: {row['timestamp']!r}") from error
        if len(row) < len(titles) and not line.endswith("\n"):
            return
        cells = {known[title]: _bare(cell) for title, cell in row.items() if title in known}
        yield make_sample(when, cells)


def _bare(cell: str) -> str:
    """A cell without its unit ("79.59 W" when nounits was not asked for)."""
    parts = cell.split()
    return parts[0] if parts else ""


def _grouped(samples: Iterable[Sample | Reading]) -> Iterator[Reading]:
    group: list[Sample] = []
    for sample in samples:
        same = (
            group
            and isinstance(sample, Sample)
            and sample.gpu not in {other.gpu for other in group}
            and abs(sample.time - group[0].time) < SAME_TIME_S
        )
        if group and not same:
            yield Reading(group[0].time, tuple(group))
            group = []
        if isinstance(sample, Reading):
            yield sample
        else:
            group.append(sample)
    if group:
        yield Reading(group[0].time, tuple(group))


def _time(text: str) -> float:
    """Unix seconds of ISO time or of nvidia-smi's "2026/11/29 13:25:49.830" (taken as UTC)."""
    text = str(text).replace("/", "-")
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
