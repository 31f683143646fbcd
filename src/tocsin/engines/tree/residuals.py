"""LIKE patterns that are no intervals: checked on the conjunctions that the tree finds.

Enters: the patterns of a conjunction table; candidates. Leaves: the candidates whose patterns fit.
The test of such a condition holds on strings only (those with the pattern's prefix), so that a
candidate's value is always a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.normalize.lines import Line
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ConjunctionTable

Asked: TypeAlias = tuple[str, Pattern, bool]


class Residuals:
    """The patterns of conjunctions, by number: attribute, pattern, whether it must not fit."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Asked, ...]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, table: ConjunctionTable, numbers: NDArray[np.int64]) -> None:
        """Take in the patterns of a table whose conjunctions have got numbers."""
        conjunction = np.searchsorted(table.condition_start, table.pattern_condition, side="right")
        for i, at in enumerate((conjunction - 1).tolist()):
            name = table.attributes[table.attribute[table.pattern_condition[i]]]
            asked = (name, table.patterns[table.pattern_id[i]], bool(table.pattern_negated[i]))
            number = int(numbers[at])
            self._asked[number] = (*self._asked.get(number, ()), asked)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the patterns of deleted conjunctions."""
        for number in numbers:
            self._asked.pop(number, None)

    def renumber(self, new_number: NDArray[np.int64]) -> None:
        """Give conjunctions other numbers."""
        self._asked = {int(new_number[old]): asked for old, asked in self._asked.items()}

    def keep_one(self, found: NDArray[np.int32], value_of: Callable[[str], object]) -> list[int]:
        """Return those of an event's candidates whose patterns fit."""
        return [
            c
            for c in found.tolist()
            if all(
                pattern.matches(str(value_of(name))) is not negated
                for name, pattern, negated in self._asked.get(c, ())
            )
        ]

    def keep(
        self, events: EventBatch, offsets: NDArray[np.int64], found: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the candidates of a batch whose patterns fit; each string is tried once."""
        row = np.repeat(np.arange(len(events)), np.diff(offsets))
        kept = np.ones(len(found), np.bool_)
        strings: dict[str, list[str | None]] = {}
        known: dict[tuple[Pattern, str], bool] = {}
        for at in np.flatnonzero(np.isin(found, np.fromiter(self._asked, np.int32))).tolist():
            for name, pattern, negated in self._asked[int(found[at])]:
                if name not in strings:
                    strings[name] = _strings(events, name)
                text = strings[name][row[at]]
                assert text is not None, "a pattern's condition holds on strings only"
                if (pattern, text) not in known:
                    known[pattern, text] = pattern.matches(text)
                kept[at] &= known[pattern, text] is not negated
        counts = np.bincount(row[kept], minlength=len(events))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), found[kept]


def _strings(events: EventBatch, attribute: str) -> list[str | None]:
    for part in events.column(attribute).parts:
        if part.line is Line.STRING:
            return part.values.to_pylist()  # type: ignore[no-any-return]
    return [None] * len(events)
