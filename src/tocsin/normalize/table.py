"""Conjunction tables: the normal form of many subscriptions as flat arrays.

Enters: normal forms (objects), or arrays from the bulk kernels. Leaves: a `ConjunctionTable`, which
every engine builds from. Conjunctions are rows; each has a run of conditions, one per attribute
(in the order of attributes, until tables are joined); each condition has a run of pieces
(intervals, see `keys`), ordered. Strings are ranks in the table's own sorted vocabulary, so that
from here on every comparison is one of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.language.names import is_elements
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, Domain, Interval
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, flatten_cut, unflatten_cut
from tocsin.normalize.normal import Conjunction, NormalForm
from tocsin.normalize.patterns import Pattern

ABSENT = 1
"""Flag of a condition: an absent value satisfies it."""
PRESENT = 2
"""Flag of a condition: every present value satisfies it; it then has no pieces."""


@dataclass(frozen=True, eq=False)
class ConjunctionTable:
    """The conjunctions of many subscriptions. `subscription` is non-decreasing."""

    attributes: tuple[str, ...]
    vocabulary: pa.Array
    patterns: tuple[Pattern, ...]
    n_subscriptions: int
    subscription: NDArray[np.int64]
    condition_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    flags: NDArray[np.uint8]
    piece_start: NDArray[np.int64]
    domain: NDArray[np.uint8]
    low_key: NDArray[np.int64]
    low_offset: NDArray[np.int16]
    high_key: NDArray[np.int64]
    high_offset: NDArray[np.int16]
    pattern_condition: NDArray[np.int64]
    pattern_id: NDArray[np.int32]
    pattern_negated: NDArray[np.uint8]

    @property
    def n_conjunctions(self) -> int:
        """How many conjunctions there are."""
        return len(self.subscription)

    @property
    def n_conditions(self) -> int:
        """How many conditions there are."""
        return len(self.attribute)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays and the vocabulary."""
        values = (getattr(self, field.name) for field in fields(self))
        return sum(v.nbytes for v in values if isinstance(v, np.ndarray | pa.Array))

    @cached_property
    def strings(self) -> list[str]:
        """The vocabulary as Python strings."""
        return self.vocabulary.to_pylist()  # type: ignore[no-any-return]

    def conjunction(self, at: int) -> Conjunction:
        """Return one conjunction as an object."""
        start, end = self.condition_start[at], self.condition_start[at + 1]
        return {
            self.attributes[self.attribute[c]]: self.condition(int(c)) for c in range(start, end)
        }

    def renumbered(self, subscription: NDArray[np.int64]) -> ConjunctionTable:
        """Return the same conjunctions for other subscriptions; as `replace` does, but faster."""
        table = copy(self)
        object.__setattr__(table, "subscription", subscription)
        return table

    def form(self, subscription: int) -> NormalForm:
        """Return the normal form of one subscription."""
        first, last = np.searchsorted(self.subscription, [subscription, subscription + 1])
        return NormalForm(tuple(self.conjunction(at) for at in range(first, last)))

    def condition(self, at: int) -> Condition:
        """Return one condition as an object."""
        flags = int(self.flags[at])
        absent = bool(flags & ABSENT)
        if flags & PRESENT:
            return Condition(FULL, absent, other=True)
        by_domain: list[list[Interval]] = [[], [], [], []]
        for p in range(self.piece_start[at], self.piece_start[at + 1]):
            domain = Domain(int(self.domain[p]))
            low = unflatten_cut(
                domain, int(self.low_key[p]), int(self.low_offset[p]), self.strings.__getitem__
            )
            high = unflatten_cut(
                domain, int(self.high_key[p]), int(self.high_offset[p]), self.strings.__getitem__
            )
            by_domain[domain].append((low, high))
        first, last = np.searchsorted(self.pattern_condition, [at, at + 1])
        patterns = frozenset(
            (self.patterns[self.pattern_id[i]], bool(self.pattern_negated[i]))
            for i in range(first, last)
        )
        return Condition(tuple(map(tuple, by_domain)), absent, False, patterns)


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
    from tocsin.normalize.elements import elements_as_truths

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


def concatenate(tables: Sequence[ConjunctionTable]) -> ConjunctionTable:
    """Put tables one after another; subscriptions are renumbered accordingly."""
    n_before = _offsets(table.n_subscriptions for table in tables)
    return stack(tables, n_before[:-1], n_before[-1])


def stack(
    tables: Sequence[ConjunctionTable], first_subscriptions: Sequence[int], n_subscriptions: int
) -> ConjunctionTable:
    """Put the conjunctions of tables one after another; each adds its first to its numbers."""
    if len(tables) == 1 and first_subscriptions[0] == 0:
        return replace(tables[0], n_subscriptions=n_subscriptions)
    names = tuple(dict.fromkeys(name for table in tables for name in table.attributes))
    patterns = tuple(dict.fromkeys(p for table in tables for p in table.patterns))
    vocabulary = sort_vocabulary(pa.chunked_array([t.vocabulary for t in tables]))
    parts = [_Renumbered(table, names, patterns, vocabulary) for table in tables]
    c_before = _offsets(table.n_conditions for table in tables)[:-1]
    p_before = _offsets(len(table.domain) for table in tables)[:-1]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(table, name) for table in tables])

    def moved(name: str, before: Sequence[int]) -> list[NDArray[np.int64]]:
        return [getattr(t, name) + b for t, b in zip(tables, before, strict=True)]

    def starts(name: str, before: Sequence[int]) -> NDArray[np.int64]:
        tails = [part[1:] for part in moved(name, before)]
        return np.concatenate([np.zeros(1, np.int64), *tails])

    return ConjunctionTable(
        attributes=names,
        vocabulary=vocabulary,
        patterns=patterns,
        n_subscriptions=n_subscriptions,
        subscription=np.concatenate(moved("subscription", first_subscriptions)),
        condition_start=starts("condition_start", c_before),
        attribute=np.concatenate([part.attribute for part in parts]),
        flags=joined("flags"),
        piece_start=starts("piece_start", p_before),
        domain=joined("domain"),
        low_key=np.concatenate([part.low_key for part in parts]),
        low_offset=joined("low_offset"),
        high_key=np.concatenate([part.high_key for part in parts]),
        high_offset=joined("high_offset"),
        pattern_condition=np.concatenate(moved("pattern_condition", c_before)),
        pattern_id=np.concatenate([part.pattern_id for part in parts]),
        pattern_negated=joined("pattern_negated"),
    )


class _Renumbered:
    """One table's attribute, string and pattern numbers in terms of the joined table."""

    def __init__(
        self,
        table: ConjunctionTable,
        names: tuple[str, ...],
        patterns: tuple[Pattern, ...],
        vocabulary: pa.Array,
    ) -> None:
        at = {name: i for i, name in enumerate(names)}
        attribute_of = np.array([at[name] for name in table.attributes], np.int32)
        self.attribute = attribute_of[table.attribute]
        number = {pattern: i for i, pattern in enumerate(patterns)}
        pattern_of = np.array([number[p] for p in table.patterns], np.int32)
        self.pattern_id = pattern_of[table.pattern_id]
        if table.vocabulary.equals(vocabulary):
            self.low_key, self.high_key = table.low_key, table.high_key
            return
        rank_of = pc.index_in(table.vocabulary, value_set=vocabulary).to_numpy()
        is_string = table.domain == Domain.STRING
        self.low_key = _renumber(table.low_key, is_string & ~_is(table, "low", LOW_CUT), rank_of)
        self.high_key = _renumber(
            table.high_key, is_string & ~_is(table, "high", HIGH_CUT), rank_of
        )


def _is(table: ConjunctionTable, end: str, cut: tuple[int, int]) -> NDArray[np.bool_]:
    is_cut = (getattr(table, f"{end}_key") == cut[0]) & (getattr(table, f"{end}_offset") == cut[1])
    return np.asarray(is_cut)


def _renumber(
    keys: NDArray[np.int64], is_rank: NDArray[np.bool_], rank_of: NDArray[Any]
) -> NDArray[np.int64]:
    renumbered = keys.copy()
    renumbered[is_rank] = rank_of[keys[is_rank]]
    return renumbered


def _offsets(counts: Any) -> list[int]:
    return [0, *np.cumsum(list(counts)).tolist()]


def sort_vocabulary(strings: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the distinct strings in code-point order (which is the order of their bytes)."""
    distinct = pc.unique(strings.cast(pa.large_string()))
    return distinct.take(pc.sort_indices(distinct))


def take(table: ConjunctionTable, rows: NDArray[np.int64]) -> ConjunctionTable:
    """Take some of the conjunctions, in a given order; subscriptions keep their numbers."""
    conditions, condition_start = _runs(table.condition_start, rows)
    pieces, piece_start = _runs(table.piece_start, conditions)
    moved_to = np.full(table.n_conditions, -1, np.int64)
    moved_to[conditions] = np.arange(len(conditions))
    moved = moved_to[table.pattern_condition]
    order = np.argsort(moved, kind="stable")[np.count_nonzero(moved < 0) :]
    return ConjunctionTable(
        attributes=table.attributes,
        vocabulary=table.vocabulary,
        patterns=table.patterns,
        n_subscriptions=table.n_subscriptions,
        subscription=table.subscription[rows],
        condition_start=condition_start,
        attribute=table.attribute[conditions],
        flags=table.flags[conditions],
        piece_start=piece_start,
        domain=table.domain[pieces],
        low_key=table.low_key[pieces],
        low_offset=table.low_offset[pieces],
        high_key=table.high_key[pieces],
        high_offset=table.high_offset[pieces],
        pattern_condition=moved[order],
        pattern_id=table.pattern_id[order],
        pattern_negated=table.pattern_negated[order],
    )


def without_conditions(table: ConjunctionTable, dropped: NDArray[np.bool_]) -> ConjunctionTable:
    """Return a table without some conditions, and without attributes that have none left."""
    kept = np.flatnonzero(~dropped)
    pieces, piece_start = _runs(table.piece_start, kept)
    used, attribute = np.unique(table.attribute[kept], return_inverse=True)
    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))[kept]
    condition_start = np.zeros(table.n_conjunctions + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=table.n_conjunctions), out=condition_start[1:])
    moved_to = np.full(table.n_conditions, -1, np.int64)
    moved_to[kept] = np.arange(len(kept))
    moved = moved_to[table.pattern_condition]
    return replace(
        table,
        attributes=tuple(table.attributes[at] for at in used.tolist()),
        condition_start=condition_start,
        attribute=attribute.astype(np.int32),
        flags=table.flags[kept],
        piece_start=piece_start,
        domain=table.domain[pieces],
        low_key=table.low_key[pieces],
        low_offset=table.low_offset[pieces],
        high_key=table.high_key[pieces],
        high_offset=table.high_offset[pieces],
        pattern_condition=moved[moved >= 0],
        pattern_id=table.pattern_id[moved >= 0],
        pattern_negated=table.pattern_negated[moved >= 0],
    )


def _runs(
    starts: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the members of some runs, one run after the other, and the new starts."""
    lengths = starts[rows + 1] - starts[rows]
    new_start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=new_start[1:])
    inside = np.arange(new_start[-1]) + np.repeat(starts[rows] - new_start[:-1], lengths)
    return inside, new_start
