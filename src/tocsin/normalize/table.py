"""Conjunction tables: the normal form of many subscriptions as flat arrays.

Enters: arrays, from `layout` or the bulk kernels. Leaves: a `ConjunctionTable`, which
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

from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, Domain, Interval
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, float_keys, unflatten_cut
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


class NewRanges(NamedTuple):
    """Conditions that are to be added to a table: that a number is in one range, or in one of two.

    `low` and `high` have a row for each range, both ends included; a range with a NaN is none.
    """

    attribute: str
    conjunction: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def with_ranges(table: ConjunctionTable, added: Sequence[NewRanges]) -> ConjunctionTable:
    """Return a table with more conditions, on attributes that their conjunctions do not have."""
    if not added:
        return table
    names = {name: at for at, name in enumerate(table.attributes)}
    numbers = [names.setdefault(new.attribute, len(names)) for new in added]
    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    owner = np.concatenate([owner, *(new.conjunction for new in added)])
    lengths = [len(new.conjunction) for new in added]
    attribute = np.concatenate([table.attribute, np.repeat(np.array(numbers, np.int32), lengths)])
    is_range = [~(np.isnan(new.low) | np.isnan(new.high)) for new in added]
    counts = [np.diff(table.piece_start), *(each.sum(axis=0) for each in is_range)]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    lows = [new.low.T[each.T] for new, each in zip(added, is_range, strict=True)]
    highs = [new.high.T[each.T] for new, each in zip(added, is_range, strict=True)]
    columns: dict[str, list[Any]] = {
        "domain": [np.full(len(low), Domain.NUMBER, np.uint8) for low in lows],
        "low_key": [_cut_keys(low, -np.inf, LOW_CUT[0]) for low in lows],
        "low_offset": [np.zeros(len(low), np.int16) for low in lows],
        "high_key": [_cut_keys(high, np.inf, HIGH_CUT[0]) for high in highs],
        "high_offset": [np.ones(len(high), np.int16) for high in highs],
    }
    order = np.lexsort((attribute, owner))
    pieces, piece_start = _runs(starts, order)
    moved_to = np.empty(len(order), np.int64)
    moved_to[order] = np.arange(len(order))
    moved = moved_to[table.pattern_condition]
    patterned = np.argsort(moved, kind="stable")
    condition_start = np.zeros(table.n_conjunctions + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=table.n_conjunctions), out=condition_start[1:])
    flags = np.concatenate([table.flags, np.zeros(sum(lengths), np.uint8)])
    return replace(
        table,
        attributes=tuple(names),
        condition_start=condition_start,
        attribute=attribute[order],
        flags=flags[order],
        piece_start=piece_start,
        **dict[str, Any](
            (name, np.concatenate([getattr(table, name), *parts])[pieces])
            for name, parts in columns.items()
        ),
        pattern_condition=moved[patterned],
        pattern_id=table.pattern_id[patterned],
        pattern_negated=table.pattern_negated[patterned],
    )


def _cut_keys(values: NDArray[np.float64], end: float, of_end: int) -> NDArray[np.int64]:
    return np.where(values == end, of_end, float_keys(values))


def _runs(
    starts: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the members of some runs, one run after the other, and the new starts."""
    lengths = starts[rows + 1] - starts[rows]
    new_start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=new_start[1:])
    inside = np.arange(new_start[-1]) + np.repeat(starts[rows] - new_start[:-1], lengths)
    return inside, new_start
