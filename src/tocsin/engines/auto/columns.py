"""Columns: tables whose conjunctions have the same one or two attributes besides the key.

Typical are conditions like `firm = 'IBM' AND price BETWEEN 80 AND 90`. The cluster under a key is
sorted by the lower bounds of one attribute, the window attribute, and has the greatest upper bound
so far: two binary searches give the window, the run of rows that a value may satisfy. In it, 16
rows at a time are compared in exact cells, of the window attribute and another one, so that none
needs a check. The arrays are by column (`ColumnArrays`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import column_kernels
from tocsin.engines.auto.arrays import Codes, ColumnArrays, Conditions, Flags, Keys, Numbers
from tocsin.engines.auto.batch import PreparedBatch, Rows
from tocsin.engines.auto.output import Buffer, by_event, no_rows
from tocsin.engines.auto.part import Part, Shared, TableReport
from tocsin.engines.auto.plan import Plan
from tocsin.engines.auto.tables import Tables, no_keys, place
from tocsin.engines.ragged import RaggedIds

_MIN_ROWS = 256
"""Smaller tables have entries."""
_MIN_CLUSTER = 8
"""So have tables with fewer conjunctions per key."""
_MIN_SHARE = 0.9
"""The share of a table's conjunctions that must fit into columns."""
_MIN_CAPACITY = 1024
_NO_ROWS = no_rows(1)


@dataclass(frozen=True)
class Window:
    """A table with columns: its key, the attributes of the columns, and its conjunctions."""

    family: int
    member: int
    window: int
    other: int
    conjunctions: NDArray[np.int64]


def choose_windows(conditions: Conditions, plan: Plan, in_tables: Flags) -> list[Window]:
    """Choose the tables that have columns.

    Where the member of a table is a range, a window on it finds the same as its digits, and each
    row once; so its conjunctions are tried under the prefix alone first.
    """
    windows: dict[tuple[int, int], Window] = {}
    for f, prefix in enumerate(plan.prefixes):
        inside = np.flatnonzero(in_tables & (plan.family == f))
        members, counts = np.unique(plan.member[inside], return_counts=True)
        is_large = counts >= _MIN_ROWS  # there may be very many members, most of them small
        for member in members[is_large][np.argsort(-counts[is_large])].tolist():
            chosen = inside[plan.member[inside] == member]
            is_range = member >= 0 and not plan.coding.is_point[member]
            for under, window in ((-1, member),) * is_range + ((member, -1),):
                key = [*prefix, *([under] if under >= 0 else [])]
                table = _try_window(conditions, plan, f, under, key, window, chosen)
                if table is not None and (f, under) not in windows:
                    windows[f, under] = table
                    break
    return list(windows.values())


def _try_window(
    conditions: Conditions,
    plan: Plan,
    f: int,
    member: int,
    key: list[int],
    window: int,
    chosen: NDArray[np.int64],
) -> Window | None:
    """Return a table with columns for most of some conjunctions, if that pays.

    `window` is the attribute to sort by, or -1 for the most frequent one.
    """
    n_keys = int(np.prod(plan.coding.n_digits[key], dtype=np.int64))
    if len(chosen) < max(_MIN_ROWS, _MIN_CLUSTER * n_keys):
        return None
    ranked = _rank(conditions, plan, key, chosen[:: max(len(chosen) // 1000, 1)])
    window = window if window >= 0 else ranked[0]
    other = next((a for a in ranked if a != window), -1)
    if window < 0:
        return None
    fits = np.zeros(len(chosen), np.bool_)
    column_kernels.find_fitting(
        plan.coding,
        conditions,
        np.array(key, np.int64),
        window,
        other,
        chosen.astype(np.uint32),
        fits,
    )
    return Window(f, member, window, other, chosen[fits]) if fits.mean() >= _MIN_SHARE else None


def _rank(
    conditions: Conditions, plan: Plan, key: list[int], sample: NDArray[np.int64]
) -> list[int]:
    """Return the two attributes that most conjunctions have besides the key, as one range; or -1.

    Of two that are as frequent, the more selective comes first.
    """
    lengths = conditions.start[sample + 1] - conditions.start[sample]
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    at = np.arange(lengths.sum()) + np.repeat(conditions.start[sample] - firsts, lengths)
    attribute = conditions.attribute[at]
    is_decided = plan.coding.is_point & plan.coding.is_exact
    is_single = conditions.range_start[at + 1] - conditions.range_start[at] == 1
    is_free = is_single & ~(np.isin(attribute, key) & is_decided[attribute])
    votes = np.zeros(len(is_decided) + 2)
    np.add.at(votes, attribute[is_free], 1.0 - 0.5 * plan.selectivity[at][is_free])
    ranked = np.argsort(-votes, kind="stable")[:2].tolist()
    return [a if votes[a] > 0 else -1 for a in ranked]


def build(
    conditions: Conditions, plan: Plan, is_chosen: Flags, windows: list[Window]
) -> tuple[Keys, ColumnArrays]:
    """Lay out the tables with columns, each cluster sorted by its lower bounds."""
    if not windows:
        none = np.empty(0, np.uint32)
        empty = np.empty(0, np.int64)
        return no_keys(), ColumnArrays(empty, empty, none, none, none, none, none, none)
    keys, member_of, order = place(conditions, plan, is_chosen)
    by_table = {(w.family, w.member): w for w in windows}
    chosen = [
        by_table[f, int(keys.member_attribute[m])]
        for f in range(len(plan.prefixes))
        for m in range(keys.member_start[f], keys.member_start[f + 1])
    ]
    columns = ColumnArrays(
        np.array([w.window for w in chosen], np.int64),
        np.array([w.other for w in chosen], np.int64),
        *(np.empty(len(order), np.uint32) for _ in range(6)),
    )
    column_kernels.fill_columns(conditions, member_of, order, columns)
    sizes = keys.start[1:].astype(np.int64) - keys.start[:-1]
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    order = order[np.lexsort((columns.low, cluster))]
    column_kernels.fill_columns(conditions, member_of, order, columns)
    column_kernels.fill_reach(keys.start, columns.high, columns.reach)
    return keys, columns


class Columns(Part):
    """Clusters in the order of one attribute, matched event by event."""

    def __init__(self, shared: Shared, keys: Keys, columns: ColumnArrays) -> None:
        self._shared, self._columns = shared, columns
        self._arrays = (shared.coding, keys, columns)
        self._tables = Tables(keys, shared.prefixes, shared.coding)
        self._capacity = _MIN_CAPACITY

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Match all tables with columns."""
        shared, n = self._shared, len(batch.events)
        arguments = (*self._arrays, *batch.rows(shared.coding, shared.needs_cells), base, *rows)
        buffer = Buffer(shared.pool, max(self._capacity, shared.rate.expected(n)), np.uint32)
        n_rows = len(self._columns.number)
        added = by_event(column_kernels.match_columns, arguments, n, buffer, n_rows)
        self._capacity = max(self._capacity, min(len(buffer), 2 * n_rows))
        return added

    def match_event(self, rows: Rows, cells: list[int]) -> Numbers:
        """Match one event."""
        out, offsets = np.empty(self._capacity, np.uint32), np.zeros(2, np.int64)
        n_rows, arguments = len(self._columns.number), (*self._arrays, *rows, 0, *_NO_ROWS)
        while not column_kernels.match_columns(*arguments, 0, out, offsets):
            out = np.empty(2 * len(out) + n_rows, np.uint32)
            self._capacity = max(self._capacity, min(len(out), 2 * n_rows))
        return out[: offsets[1]]

    def numbers(self) -> Numbers:
        """Return the conjunction of each row."""
        return self._columns.number

    def explain(self, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say under which key a conjunction is."""
        text = self._tables.explain(self.numbers(), conjunction, name)
        return None if text is None else f"{text}, in columns"

    def describe(self, codes: Codes | None) -> list[TableReport]:
        """Report the tables."""
        return self._tables.describe("rows of columns", codes)

    def check(self) -> None:
        """Verify that clusters are in order and have all rows."""
        self._tables.check(len(self._columns.number))
