"""The layout of a segment: the flat arrays of all its parts, as they are matched and stored.

Enters: conditions as ranges of cells, and where the plan puts each conjunction. Leaves: a
`Layout`: the arrays that the parts lay out (`entries`, `groups`, `columns`, `bitmaps`), and the
stream, which has all conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from tocsin.engines.auto import bitmaps, columns, entries, groups, stream_kernels
from tocsin.engines.auto.arrays import (
    NUMBER,
    BitmapArrays,
    ColumnArrays,
    Conditions,
    Integers,
    Keys,
    Numbers,
    Slots,
    Stream,
    Words,
)
from tocsin.engines.auto.plan import Plan
from tocsin.engines.auto.tables import check_capacity


@dataclass(frozen=True)
class Layout:
    """The flat arrays of a segment. `grouped` is the family that `slots` is of, or -1."""

    stream: Stream
    keys: Keys
    entries: Words
    grouped: int
    slots: Slots
    column_keys: Keys
    columns: ColumnArrays
    bitmaps: BitmapArrays
    pattern_rows: Integers
    """The rows of the `PatternTable` under whose patterns conjunctions are."""

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        values = (getattr(self, field.name) for field in fields(self))
        arrays = (array for value in values if isinstance(value, tuple) for array in value)
        alone = self.entries.nbytes + self.pattern_rows.nbytes
        return int(alone + sum(array.nbytes for array in arrays))


def lay_out(conditions: Conditions, plan: Plan, has_columns: bool = True) -> Layout:
    """Lay out the conjunctions of a plan; without `has_columns`, all tables have entries."""
    in_tables = plan.family >= 0
    check_capacity(len(in_tables), "conjunctions", int(NUMBER))
    windows = columns.choose_windows(conditions, plan, in_tables) if has_columns else []
    in_columns = np.zeros(len(in_tables), np.bool_)
    member = plan.member.copy()
    for window in windows:
        in_columns[window.conjunctions] = True
        member[window.conjunctions] = window.member
    plan = replace(plan, member=member)
    keys, rows = entries.build(conditions, plan, in_tables & ~in_columns)
    grouped = groups.choose_family(keys)
    in_bitmaps = ~in_tables & ~plan.in_patterns
    in_words = bitmaps.order(conditions, np.flatnonzero(in_bitmaps).astype(np.uint32))
    order = np.concatenate([in_words, np.flatnonzero(~in_bitmaps).astype(np.uint32)])
    return Layout(
        make_stream(conditions, order),
        keys,
        rows,
        grouped,
        groups.build(plan.coding, keys, grouped, len(rows)),
        *columns.build(conditions, plan, in_columns, windows),
        bitmaps.build(conditions, plan.coding, in_words),
        plan.pattern_rows,
    )


def make_stream(conditions: Conditions, order: Numbers) -> Stream:
    """Write all conditions as a stream, conjunctions in some order."""
    start = np.empty(len(order), np.uint32)
    n_words = stream_kernels.measure_stream(conditions, order, start)
    check_capacity(n_words, "words of conditions")
    stream = Stream(start, np.empty(n_words, np.uint16))
    stream_kernels.write_stream(conditions, stream)
    return stream


def read_stream(stream: Stream, selected: Numbers) -> Conditions:
    """Return the conditions of some conjunctions of a stream."""
    none = np.empty(0, np.int64)
    empty = Conditions(none, np.empty(0, np.int32), none, *(np.empty(0, np.int32),) * 2)
    n_conditions, n_ranges = stream_kernels.read_stream(stream, selected, empty)
    conditions = Conditions(
        np.zeros(len(selected) + 1, np.int64),
        np.empty(n_conditions, np.int32),
        np.zeros(n_conditions + 1, np.int64),
        np.empty(n_ranges, np.int32),
        np.empty(n_ranges, np.int32),
    )
    if n_conditions:
        stream_kernels.read_stream(stream, selected, conditions)
    return conditions
