"""LIKE patterns in engines: verify the candidates of a batch against the patterns of a segment.

`normalize.patterns` parses patterns, turns some into intervals and matches one string; here are the
patterns that are no intervals. Enters: conjunctions with patterns, and candidate pairs of an event
and a conjunction. Leaves: the pairs that match. A condition with a pattern holds for strings only,
so a candidate always has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.domains import Domain
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ConjunctionTable


class PatternCheck(NamedTuple):
    """A pattern that a conjunction asks an attribute to fit, or not to."""

    attribute: str
    pattern: Pattern
    negated: bool


class PatternChecks:
    """The patterns of conjunctions, by the engine's numbers of them."""

    def __init__(self, checks: Iterable[tuple[int, PatternCheck]] = ()) -> None:
        self._of: dict[int, list[PatternCheck]] = {}
        self._numbers: NDArray[np.int64] | None = None
        for number, check in checks:
            self._of.setdefault(number, []).append(check)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, table: ConjunctionTable, numbers: NDArray[Any]) -> None:
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

    def have(self, numbers: Iterable[int]) -> bool:
        """Whether any of some conjunctions has a pattern."""
        return bool(self._of) and any(number in self._of for number in numbers)

    def renumber(self, new_number: NDArray[np.int64]) -> None:
        """Give conjunctions other numbers."""
        self._of = {int(new_number[old]): checks for old, checks in self._of.items()}
        self._numbers = None

    def keep(self, events: EventBatch, candidates: RaggedIds) -> RaggedIds:
        """Return the candidates of a batch that fit; each string is tried once per pattern."""
        row, numbers = candidates.rows(), candidates.values
        fits = np.ones(len(numbers), np.bool_)
        answers: dict[str, _Answers] = {}
        for at in np.flatnonzero(np.isin(numbers, self._patterned())).tolist():
            for check in self._of[int(numbers[at])]:
                column = answers.get(check.attribute)
                if column is None:
                    column = answers[check.attribute] = _Answers(_strings(events, check.attribute))
                fits[at] &= column.fits(check.pattern, row[at]) is not check.negated
        counts = np.bincount(row[fits], minlength=len(events))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return RaggedIds(offsets, numbers[fits])

    def keep_one(self, event: Mapping[str, object], candidates: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates of one event whose patterns match; each pattern is tried once."""
        if not self._of:
            return candidates
        answers: dict[str, _Answers] = {}

        def fits(number: int) -> bool:
            for name, pattern, negated in self._of.get(number, ()):
                if name not in answers:
                    answers[name] = _Answers([str(read_value(event, name))])
                if answers[name].fits(pattern, 0) is negated:
                    return False
            return True

        return candidates[[fits(number) for number in candidates.tolist()]]

    def _patterned(self) -> NDArray[np.int64]:
        if self._numbers is None:
            self._numbers = np.array(sorted(self._of), np.int64)
        return self._numbers


class _Answers:
    """What patterns say of the strings of one attribute, each tried once."""

    def __init__(self, strings: list[str | None]) -> None:
        self._strings = strings
        self._of: dict[int, tuple[Pattern, dict[str, bool]]] = {}
        self._same: dict[Pattern, dict[str, bool]] = {}

    def fits(self, pattern: Pattern, row: int) -> bool:
        """Whether the string of an event fits a pattern."""
        known = self._of.get(id(pattern))
        if known is None:  # the hash of a long pattern is taken once
            known = self._of[id(pattern)] = pattern, self._same.setdefault(pattern, {})
        text, answers = self._strings[row], known[1]
        assert text is not None, "a pattern's condition holds on strings only"
        answer = answers.get(text)
        if answer is None:
            answer = answers[text] = pattern.matches(text)
        return answer


def _strings(events: EventBatch, attribute: str) -> list[str | None]:
    for part in events.column(attribute).parts:
        if part.domain is Domain.STRING:
            return part.values.to_pylist()  # type: ignore[no-any-return]
    return [None] * len(events)
