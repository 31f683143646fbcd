"""What a segment is built of: cells, conditions as ranges of them, ids, and LIKE patterns.

Enters: a conjunction table, or segments to be merged. Leaves: a `Content`. A merge reads the
streams of the segments and renumbers their cells; no table is kept for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.joined import join_spaces, used_bounds
from tocsin.engines.auto import stream_kernels
from tocsin.engines.auto.arrays import Conditions, Stream
from tocsin.engines.auto.layout import read_stream
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ConjunctionTable


class PatternTable(NamedTuple):
    """The LIKE patterns of conjunctions, in their order: `patterns[number[i]]` of an attribute."""

    patterns: tuple[Pattern, ...]
    conjunction: NDArray[np.int64]
    attribute: NDArray[np.int32]
    number: NDArray[np.int32]
    negated: NDArray[np.uint8]
    ignore_case: NDArray[np.bool_]
    """By pattern, not by row."""

    def none(self) -> PatternTable:
        """Return a table without patterns."""
        _, conjunction, attribute, number, negated, ignore_case = self
        none = slice(0)
        return PatternTable(
            (),
            conjunction[none],
            attribute[none],
            number[none],
            negated[none],
            ignore_case[none],
        )


@dataclass(frozen=True)
class Content:
    """The conjunctions of a segment before it is laid out; `ids` are those of subscriptions."""

    space: CellSpace
    conditions: Conditions
    ids: NDArray[np.int32]
    patterns: PatternTable

    @property
    def is_patterned(self) -> bool:
        """Whether some conjunction has LIKE patterns."""
        return len(self.patterns.conjunction) > 0


def from_table(table: ConjunctionTable) -> Content:
    """Take a conjunction table; its subscription numbers are the ids."""
    space = CellSpace(table)
    conditions = Conditions(
        table.condition_start,
        table.attribute,
        space.range_start,
        space.range_low,
        space.range_high,
    )
    space.forget_conditions()
    patterns = _patterns_of(table, table.attribute)
    return Content(space, conditions, table.subscription.astype(np.int32), patterns)


def from_table_beside(table: ConjunctionTable, space: CellSpace) -> Content | None:
    """Take a conjunction table into the cells of a space that is there, if it has all its cuts."""
    ranges = space.ranges_of(table)
    if ranges is None:
        return None
    conditions = Conditions(table.condition_start, *ranges)
    patterns = _patterns_of(table, ranges.attribute)
    return Content(space, conditions, table.subscription.astype(np.int32), patterns)


def _patterns_of(table: ConjunctionTable, attribute: NDArray[np.int32]) -> PatternTable:
    """Return the patterns of a table; `attribute` is that of each condition."""
    owner = np.searchsorted(table.condition_start, table.pattern_condition, side="right") - 1
    return PatternTable(
        table.patterns,
        owner.astype(np.int64),
        attribute[table.pattern_condition],
        table.pattern_id,
        table.pattern_negated,
        np.zeros(len(table.patterns), np.bool_),
    )


class Indexed(Protocol):
    """What a merge needs of a segment."""

    space: CellSpace
    patterns: PatternTable

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids of subscriptions, by conjunction."""

    @property
    def stream(self) -> Stream:
        """The conditions, by conjunction."""


def merged(segments: Sequence[Indexed], is_kept: Sequence[NDArray[np.bool_]]) -> Content:
    """Take the kept conjunctions of several segments, one after the other."""
    chosen = [np.flatnonzero(kept).astype(np.uint32) for kept in is_kept]
    parts = [
        read_stream(segment.stream, which) for segment, which in zip(segments, chosen, strict=True)
    ]
    used = [
        None if kept.all() else used_bounds(segment.space, *part[1:])
        for segment, part, kept in zip(segments, parts, is_kept, strict=True)
    ]
    space, moves = join_spaces([segment.space for segment in segments], used)
    for part, move in zip(parts, moves, strict=True):
        stream_kernels.move_cells(part, *move)
    return Content(
        space,
        _concatenate(parts),
        np.concatenate([s.ids[which] for s, which in zip(segments, chosen, strict=True)]),
        _merge_patterns(
            [s.patterns for s in segments], is_kept, [move.attribute for move in moves]
        ),
    )


def joined_beside(segments: Sequence[Indexed], is_kept: Sequence[NDArray[np.bool_]]) -> Content:
    """Take the kept conjunctions of several segments of one space, one after the other."""
    chosen = [np.flatnonzero(kept).astype(np.uint32) for kept in is_kept]
    streams = [segment.stream for segment in segments]
    same = np.arange(len(segments[0].space.attributes), dtype=np.int32)
    return Content(
        segments[0].space,
        _concatenate([read_stream(s, which) for s, which in zip(streams, chosen, strict=True)]),
        np.concatenate([s.ids[which] for s, which in zip(segments, chosen, strict=True)]),
        _merge_patterns([s.patterns for s in segments], is_kept, [same] * len(segments)),
    )


def _concatenate(parts: Sequence[Conditions]) -> Conditions:
    def starts(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        before = np.cumsum([0, *(array[-1] for array in arrays)])
        tails = [array[1:] + b for array, b in zip(arrays, before, strict=False)]
        return np.concatenate([np.zeros(1, np.int64), *tails])

    return Conditions(
        starts([part.start for part in parts]),
        np.concatenate([part.attribute for part in parts]),
        starts([part.range_start for part in parts]),
        np.concatenate([part.low for part in parts]),
        np.concatenate([part.high for part in parts]),
    )


def _merge_patterns(
    tables: Sequence[PatternTable],
    is_kept: Sequence[NDArray[np.bool_]],
    attributes: Sequence[NDArray[np.int32]],
) -> PatternTable:
    numbers: dict[tuple[Pattern, bool], int] = {}
    conjunction, attribute, number, negated = [], [], [], []
    n_before = 0
    for table, kept, moved in zip(tables, is_kept, attributes, strict=True):
        chosen = kept[table.conjunction]
        new = n_before + np.cumsum(kept) - 1
        renumbered = np.full(len(table.patterns), -1, np.int32)
        for at in np.unique(table.number[chosen]).tolist():
            pattern = table.patterns[at], bool(table.ignore_case[at])
            renumbered[at] = numbers.setdefault(pattern, len(numbers))
        conjunction.append(new[table.conjunction[chosen]])
        attribute.append(moved[table.attribute[chosen]])
        number.append(renumbered[table.number[chosen]])
        negated.append(table.negated[chosen])
        n_before += int(np.count_nonzero(kept))
    return PatternTable(
        tuple(pattern for pattern, _ in numbers),
        np.concatenate(conjunction).astype(np.int64),
        np.concatenate(attribute).astype(np.int32),
        np.concatenate(number).astype(np.int32),
        np.concatenate(negated).astype(np.uint8),
        np.array([ignore_case for _, ignore_case in numbers], np.bool_),
    )
