"""What the parts of a segment have in common: one part is one way of matching.

A conjunction is in one of three parts: `Entries`, `Columns` or `Bitmaps`. `Groups` and `Members`
match a family of the entries in another way, for batches for which that is faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tocsin.engines.auto.arrays import Codes, Coding, Flags, Numbers, Stream
from tocsin.engines.auto.batch import PreparedBatch, Rows
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.output import MatchRate
from tocsin.engines.ragged import RaggedIds
from tocsin.language.printer import print_attribute


class Shared(NamedTuple):
    """What all parts of a segment use."""

    coding: Coding
    stream: Stream
    prefixes: tuple[tuple[int, ...], ...]
    pool: BufferPool
    rate: MatchRate
    needs_cells: bool
    """Whether a code may stand for several cells, so that verifying needs the cells of events."""


@dataclass(frozen=True)
class TableReport:
    """What `explain` shows of a table: the attributes of its key, its rows, what an event checks.

    `checks` is the number of rows that an event is expected to find under its key.
    """

    key: tuple[int, ...]
    n_rows: int
    form: str
    checks: float

    def text(self, names: tuple[str, ...]) -> str:
        """Return a line about the table; `names` are those of the attributes."""
        attributes = ", ".join(print_attribute(names[a]) for a in self.key)
        key = f"({attributes})" if self.key else "no key"
        return f"{key}: {self.n_rows} {self.form}, {self.checks:.3g} an event"


class Part(ABC):
    """One way of matching. A part is immutable; matches may be concurrent."""

    def takes(self, n_events: int) -> bool:
        """Whether the part matches a batch of this size."""
        return True

    @abstractmethod
    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Add the conjunctions of this part to `rows`, by event, each number plus a base.

        `is_done` marks the families of entries that an earlier part has matched; a part that
        matches one marks it.
        """

    def match_event(self, rows: Rows, cells: list[int]) -> Numbers:
        """Return the conjunctions that a single event satisfies."""
        raise AssertionError("a part of large batches only matches no single event")

    def numbers(self) -> Numbers:
        """Return the conjunctions of this part, perhaps repeated; none for a second way."""
        return np.empty(0, np.uint32)

    def explain(self, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say where a conjunction is, None if not in this part; `name` is of an attribute."""
        return None

    def describe(self, codes: Codes | None) -> list[TableReport]:
        """Report the tables; `codes` are those of a sample of events by row."""
        return []

    def check(self) -> None:  # noqa: B027 - a part may have no invariants
        """Verify the invariants; raise AssertionError where one fails."""
