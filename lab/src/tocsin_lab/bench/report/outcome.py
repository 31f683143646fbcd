"""What an experiment is, and what it gives.

Enters and leaves: nothing but these classes. An experiment is a function from a scale and a
progress to an outcome; the outcome's figures have rows (a CSV file each) and perhaps a plot, its
findings say which of the paper's claims hold here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tocsin_lab.bench.plot import Plot, Series
from tocsin_lab.bench.steps import Progress

Value = str | int | float
Row = Mapping[str, Value]

PAPER_SIZE = 6_000_000
"""How many subscriptions the largest experiment has in full."""
_QUICK_SIZE = 6_000
_TELLING_SIZE = 300_000
_FEWEST = 50


@dataclass(frozen=True)
class Scale:
    """How large the experiments are: `largest` stands for six million subscriptions.

    `seconds` is about how long one timing takes.
    """

    largest: int = PAPER_SIZE
    seconds: float = 0.2
    repeats: int = 4
    seed: int = 0

    @classmethod
    def quick(cls) -> Scale:
        """Return a scale for trying out that everything runs; its figures say little."""
        return cls(_QUICK_SIZE, seconds=0.02, repeats=2)

    @property
    def is_full(self) -> bool:
        """Whether sizes are those of the papers."""
        return self.largest == PAPER_SIZE

    @property
    def is_telling(self) -> bool:
        """Whether claims that name no size can be judged."""
        return self.largest >= _TELLING_SIZE

    def size(self, n: int) -> int:
        """Return a number of subscriptions that the paper's machine would have n of."""
        return max(n * self.largest // PAPER_SIZE, _FEWEST)

    def sizes(self, *counts: int) -> tuple[int, ...]:
        """Return several of them, ascending."""
        return tuple(sorted({self.size(n) for n in counts}))


@dataclass(frozen=True)
class Figure:
    """A table, most often drawn too. `name` is that of its CSV file."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    plot: Plot | None = None


@dataclass(frozen=True)
class Finding:
    """A claim, its measurement, and whether it holds; None: this scale cannot decide."""

    claim: str
    measured: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment gives."""

    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A named measurement."""

    name: str
    run: Callable[[Scale, Progress | None], Outcome]


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments; `key` has the first author and the year."""

    key: str
    title: str
    authors: str
    experiments: tuple[Experiment, ...]


def series(rows: Sequence[Row], x: str, y: str, by: str) -> tuple[Series, ...]:
    """Return a line for each value of a column, in the order of their first rows."""
    points: dict[Value, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row[by], []).append((float(row[x]), float(row[y])))
    return tuple(Series(str(name), tuple(values)) for name, values in points.items())
