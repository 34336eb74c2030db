"""A page, another page and a figure registry for tests that break one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from figures.strength import Setup, Strength
from figures.values import Value
from scripts.figuredata import BookError

PAGE = """---
title: One step
outcome: You read a step.
exempt:
  - {text: "32 prompts", setting: "--rollout-batch-size"}
  - {text: "five minutes", reason: "words are left alone anyway"}
---
# One step

The first step took [233 s](#fig-a-steps:first), and a rollout takes 32 prompts.
The share was [40 to 45 percent](#fig-a-steps:share), within five minutes.

```figure
id: fig-a-steps
title: The first step
claim: In one {steps}-step run the first step took {first}.
caption: Bars are whole steps.
```
"""
DIAGRAM = """
```figure
id: fig-d
title: The way of a request
claim: Each request goes through the router.
caption: The code of one version.
```
"""
OTHER = """# Other

It took [233 s](one.md#fig-a-steps:first).
"""


@dataclass
class FakeFigure:
    """The parts of a built figure that the claim checks read."""

    id: str
    values: dict[str, Value]
    tier: str = "measured"
    runs: tuple[str, ...] = ("lab/run",)
    table: list[list[str]] | None = None
    strength_text: str = "1 run, 1 seed, 12 steps"
    setup_texts: list[str] = field(default_factory=lambda: ["a model, a GPU"])
    strength: Strength = field(default_factory=lambda: strength())
    recompute: str = "make check-claims"
    accesses: tuple = ()

    def wording_errors(self, text, names=()):
        return ["says 'always'"] if "always" in text else []

    def claim_strength(self, names):
        return self.strength

    def svg(self, narrow=False, claim="", title=""):
        side = "narrow" if narrow else "wide"
        return f'<svg class="fig-{side}"><title>{title}</title><desc>{claim}</desc></svg>'

    def csv(self):
        return "step,seconds\n0,233\n"


@dataclass
class FakeBook:
    """A registry of ready-made figures; an exception as a figure is raised when it is built."""

    figures: dict[str, object]

    def ids(self):
        return sorted(self.figures)

    def build(self, figure_id):
        figure = self.figures[figure_id]
        if isinstance(figure, BookError):
            raise figure
        return figure


def strength(tier="measured", runs=("lab/run",), setups=("a model, H200",), seeds=1):
    """Evidence of some runs in some setups."""
    found = tuple(Setup(text, (("setup", text),)) for text in setups)
    return Strength(tier, tuple(runs), False, seeds, (12, 12), None, found, ())


def value(name, number, unit, digits, quantity=None, kind="", noun=""):
    """A value of run lab/run."""
    quantity = quantity or f"lab/run:{name}"
    kind = kind or ("time" if unit == "s" else "metric")
    return Value(name, number, unit, digits, quantity, ("lab/run",), kind, noun=noun)


def line_of(text: str, needle: str) -> int:
    """1-based line of the first line that holds `needle`."""
    return next(n for n, line in enumerate(text.splitlines(), start=1) if needle in line)
