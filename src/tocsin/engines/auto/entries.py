"""Entries: a conjunction in two words under each of its keys. The way for everything else.

An entry has the two most selective residual conditions of its conjunction, in 16-bit codes, and its
number: a miss touches one cache line, and takes a subtraction and a comparison per condition. Where
the conjunction has more conditions, or a code stands for several cells, the number is flagged
`NEEDS_CHECK` and the conjunction is verified against its conditions in the stream.

Here events are matched one by one: look up the event's keys in all families, scan the clusters,
verify. `Groups` and `Members` match a family for many events at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tocsin.engines.auto import entry_kernels
from tocsin.engines.auto.arrays import Codes, Conditions, Flags, Keys, Numbers, Words
from tocsin.engines.auto.batch import PreparedBatch, Rows
from tocsin.engines.auto.output import Buffer, by_event, join
from tocsin.engines.auto.part import Part, Shared, TableReport
from tocsin.engines.auto.plan import Plan
from tocsin.engines.auto.tables import Tables, place
from tocsin.engines.ragged import RaggedIds

_MIN_CAPACITY = 1024


def build(conditions: Conditions, plan: Plan, is_chosen: Flags) -> tuple[Keys, Words]:
    """Lay out some conjunctions as entries; return their keys, and the entries by row."""
    keys, member_of, order = place(conditions, plan, is_chosen)
    entries = np.empty((len(order), 2), np.uint64)
    entry_kernels.fill_entries(
        plan.coding, conditions, keys, plan.selectivity, plan.family, member_of, order, entries
    )
    return keys, entries


def numbers_of(entries: Words) -> Numbers:
    """Return the conjunction of each entry, with its flags."""
    numbers: Numbers = (entries[:, 1] >> np.uint64(32)).astype(np.uint32)
    return numbers


class Entries(Part):
    """Entries, matched event by event."""

    def __init__(self, shared: Shared, keys: Keys, entries: Words) -> None:
        self._shared, self._keys, self._entries = shared, keys, entries
        self._arrays = (shared.coding, shared.stream, keys, entries)
        self._tables = Tables(keys, shared.prefixes, shared.coding)
        self._nothing_done = np.zeros(len(keys.base), np.bool_)
        self._capacity = _MIN_CAPACITY
        self._n_rows = len(shared.stream.start)

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Match the families that are not done."""
        shared, n = self._shared, len(batch.events)
        if is_done.all():
            return rows
        buffer = Buffer(shared.pool, max(self._capacity, shared.rate.expected(n)), np.uint32)
        arguments = (*self._arrays, is_done, *batch.rows(shared.coding, shared.needs_cells), base)
        own = by_event(entry_kernels.match_entries, arguments, n, buffer, self._n_rows)
        self._capacity = max(self._capacity, min(len(buffer), 2 * self._n_rows))
        return join(rows, own, shared.pool)

    def match_event(self, rows: Rows, cells: list[int]) -> Numbers:
        """Match one event in all families."""
        out, offsets = np.empty(self._capacity, np.uint32), np.zeros(2, np.int64)
        kernel = entry_kernels.match_entries
        while not kernel(*self._arrays, self._nothing_done, *rows, 0, 0, out, offsets):
            out = np.empty(2 * len(out) + self._n_rows, np.uint32)
            self._capacity = max(self._capacity, min(len(out), 2 * self._n_rows))
        return out[: offsets[1]]

    def numbers(self) -> Numbers:
        """Return the conjunction of each entry."""
        return numbers_of(self._entries)

    def explain(self, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say under which key a conjunction is."""
        return self._tables.explain(self.numbers(), conjunction, name)

    def describe(self, codes: Codes | None) -> list[TableReport]:
        """Report the tables."""
        return self._tables.describe("entries", codes)

    def check(self) -> None:
        """Verify that clusters are in order and have all entries."""
        self._tables.check(len(self._entries))
