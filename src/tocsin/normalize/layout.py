"""Normal forms (objects) → a conjunction table.

Enters: normal forms. Leaves: a `ConjunctionTable`, in which conditions on elements are booleans
that must be true (see `elements`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tocsin.language.names import is_elements
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import Domain
from tocsin.normalize.elements import elements_as_truths
from tocsin.normalize.keys import flatten_cut
from tocsin.normalize.normal import NormalForm
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable


def from_forms(forms: Sequence[NormalForm]) -> ConjunctionTable:
    """Lay out normal forms in arrays; subscription i is the i-th form."""
    names: dict[str, int] = {}
    strings: set[str] = set()
    seen: set[int] = set()
    for form in forms:
        for conjunction in form:
            for name, condition in conjunction.items():
                names.setdefault(name, len(names))
                if id(condition) not in seen:  # the conjunctions of a form share conditions
                    seen.add(id(condition))
                    for low, high in condition.intervals[Domain.STRING]:
                        strings.update(key for key, _ in (low, high) if isinstance(key, str))
    table = _Layout(names, sorted(strings)).lay_out(forms)
    if not any(map(is_elements, names)):
        return table
    return elements_as_truths(table)


class _Flat(NamedTuple):
    """A condition in flat cuts."""

    pieces: list[tuple[int, int, int, int, int]]
    patterns: list[tuple[int, bool]]
    flags: int


class _Layout:
    def __init__(self, names: dict[str, int], strings: list[str]) -> None:
        self.names = names
        self.strings = strings
        self.rank_of = {text: rank for rank, text in enumerate(strings)}.__getitem__
        self.patterns: dict[Pattern, int] = {}
        self.pieces: list[tuple[int, int, int, int, int]] = []
        self.pattern_rows: list[tuple[int, int, bool]] = []
        self.flat: dict[int, _Flat] = {}
        self.attribute: list[int] = []
        self.flags: list[int] = []
        self.piece_start: list[int] = [0]

    def lay_out(self, forms: Sequence[NormalForm]) -> ConjunctionTable:
        subscription: list[int] = []
        condition_start: list[int] = [0]
        for i, form in enumerate(forms):
            for conjunction in form:
                for name in sorted(conjunction, key=self.names.__getitem__):
                    self.add_condition(self.names[name], conjunction[name])
                subscription.append(i)
                condition_start.append(len(self.attribute))
        pieces = np.array(self.pieces, np.int64).reshape(-1, 5)
        rows = np.array(self.pattern_rows, np.int64).reshape(-1, 3)
        return ConjunctionTable(
            attributes=tuple(self.names),
            vocabulary=pa.array(self.strings, pa.large_string()),
            patterns=tuple(self.patterns),
            n_subscriptions=len(forms),
            subscription=np.array(subscription, np.int64),
            condition_start=np.array(condition_start, np.int64),
            attribute=np.array(self.attribute, np.int32),
            flags=np.array(self.flags, np.uint8),
            piece_start=np.array(self.piece_start, np.int64),
            domain=pieces[:, 0].astype(np.uint8),
            low_key=np.ascontiguousarray(pieces[:, 1]),
            low_offset=pieces[:, 2].astype(np.int16),
            high_key=np.ascontiguousarray(pieces[:, 3]),
            high_offset=pieces[:, 4].astype(np.int16),
            pattern_condition=np.ascontiguousarray(rows[:, 0]),
            pattern_id=rows[:, 1].astype(np.int32),
            pattern_negated=rows[:, 2].astype(np.uint8),
        )

    def add_condition(self, attribute: int, condition: Condition) -> None:
        flat = self.flat.get(id(condition))
        if flat is None:
            flat = self.flat[id(condition)] = self.flatten(condition)
        self.pieces += flat.pieces
        for number, negated in flat.patterns:
            self.pattern_rows.append((len(self.attribute), number, negated))
        self.attribute.append(attribute)
        self.flags.append(flat.flags)
        self.piece_start.append(len(self.pieces))

    def flatten(self, condition: Condition) -> _Flat:
        pieces = [
            (
                int(domain),
                *flatten_cut(domain, low, self.rank_of),
                *flatten_cut(domain, high, self.rank_of),
            )
            for domain in (Domain if not condition.other else ())
            for low, high in condition.intervals[domain]
        ]
        patterns = [
            (self.patterns.setdefault(pattern, len(self.patterns)), negated)
            for pattern, negated in condition.patterns
        ]
        return _Flat(pieces, patterns, ABSENT * condition.absent + PRESENT * condition.other)
