"""What a check found: problems with file and line, counts, and what it did not check."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Problem:
    """One error. `line` is 1-based; 0 means the file as a whole."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.text}"


@dataclass
class Report:
    """Result of one check.

    counts: what was checked -> how many. unchecked: sentences. notes: lines worth printing.
    """

    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems

    def error(self, path: str, line: int, text: str) -> None:
        """Record one problem."""
        self.problems.append(Problem(path, line, text))

    def count(self, what: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counts[what] = self.counts.get(what, 0) + number

    def merge(self, other: Report) -> None:
        """Take everything from another report."""
        self.problems += other.problems
        self.unchecked += other.unchecked
        self.notes += other.notes
        for what, number in other.counts.items():
            self.count(what, number)
