"""LIKE patterns that are no intervals: checked on what an engine has found.

Enters: conjunctions with patterns, and candidate pairs of event and conjunction. Leaves: which of
the pairs fit. A condition with a pattern holds for strings only, so a candidate always has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.normalize.lines import Line
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ConjunctionTable


class PatternCheck(NamedTuple):
    """A pattern that a conjunction asks an attribute to fit, or not to."""

    attribute: str
    pattern: Pattern
    negated: bool


class PatternChecks:
    """The patterns of conjunctions, by the engine's numbers of them."""

    def __init__(self) -> None:
        self._of: dict[int, list[PatternCheck]] = {}
        self._numbers: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._of)

    def add(self, table: ConjunctionTable, numbers: NDArray[np.int32]) -> None:
        """Take in the patterns of a table; `numbers` are those of its conjunctions."""
        if not len(table.pattern_condition):
            return
        at = np.searchsorted(table.condition_start, table.pattern_condition, side="right") - 1
        for row, number in enumerate(numbers[at].tolist()):
            name = table.attributes[table.attribute[table.pattern_condition[row]]]
            pattern = table.patterns[table.pattern_id[row]]
            check = PatternCheck(name, pattern, bool(table.pattern_negated[row]))
            self._of.setdefault(number, []).append(check)
        self._numbers = None

    def discard(self, numbers: Iterable[int]) -> None:
        """Forget conjunctions."""
        if self._of:
            for number in numbers:
                self._of.pop(number, None)
            self._numbers = None

    def fits(
        self, events: EventBatch, rows: NDArray[np.int64], found: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Say which pairs of an event's row and a conjunction fit; each string is tried once."""
        fits = np.ones(len(found), np.bool_)
        known: dict[tuple[Pattern, str], bool] = {}
        strings: dict[str, list[str | None]] = {}
        for at in np.flatnonzero(np.isin(found, self._patterned())).tolist():
            for name, pattern, negated in self._of[int(found[at])]:
                if name not in strings:
                    strings[name] = _strings(events, name)
                text = strings[name][rows[at]]
                assert text is not None, "a pattern's condition holds on strings only"
                if (pattern, text) not in known:
                    known[pattern, text] = pattern.matches(text)
                fits[at] &= known[pattern, text] is not negated
        return fits

    def fits_one(self, event: Mapping[str, object], number: int) -> bool:
        """Say whether one event fits the patterns of a conjunction."""
        return all(
            pattern.matches(str(read_value(event, name))) is not negated
            for name, pattern, negated in self._of.get(number, ())
        )

    def _patterned(self) -> NDArray[np.int32]:
        if self._numbers is None:
            self._numbers = np.array(sorted(self._of), np.int32)
        return self._numbers


def _strings(events: EventBatch, attribute: str) -> list[str | None]:
    for part in events.column(attribute).parts:
        if part.line is Line.STRING:
            return part.values.to_pylist()  # type: ignore[no-any-return]
    return [None] * len(events)
