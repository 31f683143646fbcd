"""The id index: from ids to dense ids, in flat hash tables.

Enters: columns of ids, and their dense ids. Leaves: for an id, or for each id of a column, the
candidates: dense ids whose ids have the same hash. The index stores hashes only (see
`id_index_kernels`), so callers compare the ids themselves. Entries are not removed one by one: when
too many are of removed subscriptions, the tables are rebuilt.

A table that was opened from a file is never changed; new entries go into another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.catalog import id_index_kernels as kernels
from tocsin.catalog.ids import (
    FEW,
    Ids,
    are_missing_kernels,
    hash_number,
    hash_text,
    read_only,
    to_octets,
)
from tocsin.catalog.renumbering import Renumbering
from tocsin.model import SubscriptionId

_EMPTY = int(kernels.EMPTY)
_FEW_SLOTS = 64
_MOST_FILLED = 0.75
_FRESHLY_FILLED = 0.6
_NONE_SKIPPED = read_only(np.zeros(0, np.bool_))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

IsLive: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def _new_slots(n_entries: int) -> NDArray[np.uint64]:
    n_slots = (int(n_entries / _FRESHLY_FILLED) + _FEW_SLOTS) // 8 * 8
    return np.full(n_slots, kernels.EMPTY, np.uint64)


class IdTable:
    """A column of ids with a hash table of their places (if they are many), for joins.

    `missing` marks places without an id. Of equal ids the first is in the table; `repeated` are the
    places of the others. `is_few` says that they are to be looked up one by one.
    """

    def __init__(self, ids: Ids, missing: NDArray[np.bool_] | None = None) -> None:
        self.ids = ids
        self.missing = missing
        self.is_few = len(ids) <= FEW or are_missing_kernels(len(ids))
        self.slots, self.repeated = self._put_few() if self.is_few else self._put()

    def _put(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        ids = self.ids
        slots = _new_slots(len(ids))
        repeated = np.zeros(len(ids), np.bool_)
        skipped = _NONE_SKIPPED if self.missing is None else read_only(self.missing)
        if ids.texts is None:
            assert ids.numbers is not None
            kernels.put_numbers(ids.numbers, skipped, slots, repeated)
        else:
            assert ids.numbers is None, "a column that came as one has one kind"
            kernels.put_texts(*ids.octets, ids.hashes(), skipped, slots, repeated)
        return slots, np.flatnonzero(repeated)

    def _put_few(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Find repeated ids; a few ids need no table, and no kernels."""
        first: dict[SubscriptionId, int] = {}
        repeated = [
            at
            for at, name in enumerate(self.ids.to_list())
            if (self.missing is None or not self.missing[at]) and first.setdefault(name, at) != at
        ]
        return np.empty(0, np.uint64), np.array(repeated, np.int64)


class _Table:
    def __init__(self, slots: NDArray[np.uint64], n_entries: int, is_fixed: bool = False) -> None:
        self.slots = slots
        self.n_entries = n_entries
        self.is_fixed = is_fixed
        self.seen = read_only(slots)
        self.view = memoryview(self.seen)  # type: ignore[arg-type]

    def has_room(self, n_more: int) -> bool:
        return not self.is_fixed and self.n_entries + n_more <= _MOST_FILLED * len(self.slots)


class IdIndex:
    """Hash tables from ids to dense ids; the last one takes new entries."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    @staticmethod
    def opened(tables: Iterable[tuple[NDArray[np.uint64], int]]) -> IdIndex:
        """Return an index over immutable tables, each slots and a number of entries."""
        index = IdIndex()
        index._tables = [_Table(slots, n, is_fixed=True) for slots, n in tables if n]
        return index

    @property
    def n_entries(self) -> int:
        """The number of entries, including those of removed subscriptions."""
        return sum(table.n_entries for table in self._tables)

    def candidates(self, name: SubscriptionId, octets: bytes | None) -> list[int]:
        """Return the dense ids that an id may have; `octets` are its bytes when it is a string."""
        hashed = hash_text(octets) if octets is not None else hash_number(name)  # type: ignore[arg-type]
        candidates = []
        for table in self._tables:
            view = table.view
            n_slots = len(view)
            place = hashed * n_slots >> 32
            while (entry := view[place]) != _EMPTY:
                if entry >> 32 == hashed:
                    candidates.append(entry & 0xFFFFFFFF)
                place += 1
                if place == n_slots:
                    place = 0
        return candidates

    def pairs(self, column: IdTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return candidates for all ids of a column, as places and dense ids."""
        places, dense = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        entries = read_only(column.slots)
        for table in self._tables:
            first, capacity = 0, len(column.ids) // 8 + 256
            while first < len(entries):
                some, others = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
                n_pairs, first = kernels.pair(entries, first, table.seen, some, others)
                places.append(some[:n_pairs])
                dense.append(others[:n_pairs])
                capacity *= 2
        return np.concatenate(places), np.concatenate(dense)

    def add(self, ids: Ids, dense: NDArray[np.int64]) -> None:
        """Add ids that have no entry yet."""
        table = self._table_for(len(ids))
        hashes = ids.hashes()
        if are_missing_kernels(len(ids)):
            _enter(hashes << _HALF | dense.astype(np.uint64), table.slots)
        else:
            kernels.put(table.slots, hashes, dense)
        table.n_entries += len(ids)

    def add_table(self, added: IdTable, dense: NDArray[np.int64], n_added: int) -> None:
        """Add the distinct ids of a column, except those whose dense id is -1.

        The index may take over the table of the column, which is empty then.
        """
        if not self._tables and n_added == len(added.ids) and not dense[0]:  # places are dense ids
            slots, added.slots = added.slots, _new_slots(0)
            self._tables = [_Table(slots, n_added)]
            return
        table = self._table_for(n_added)
        kernels.copy_numbered(read_only(added.slots), dense, table.slots)
        table.n_entries += n_added

    def rebuild(self, is_live: IsLive) -> None:
        """Rebuild the table without the entries of removed subscriptions."""
        self._tables = [_filled(self._live(is_live))]

    def renumbered(self, is_live: IsLive, new_of: Renumbering) -> IdIndex:
        """Return an index of the live subscriptions, with new dense ids."""
        entries = self._live(is_live)
        numbers = new_of((entries & _LOW).astype(np.int64)).astype(np.uint64)
        index = IdIndex()
        index._tables = [_filled(entries & ~_LOW | numbers)] if len(entries) else []
        return index

    def _live(self, is_live: IsLive) -> NDArray[np.uint64]:
        """Return the entries of live subscriptions, unordered."""
        none = np.empty(0, np.uint64)
        entries = np.concatenate([none, *(t.slots[t.slots != kernels.EMPTY] for t in self._tables)])
        return entries[is_live((entries & _LOW).astype(np.int64))]

    def joined(self) -> NDArray[np.uint64]:
        """Return the slots of one table of all entries, which later additions do not change."""
        if len(self._tables) == 1 and self._tables[0].is_fixed:
            return self._tables[0].seen
        return _join(self._tables, 0).seen

    def _table_for(self, n_more: int) -> _Table:
        """Return a table with capacity for n more entries; others may be merged into it."""
        if self._tables and self._tables[-1].has_room(n_more):
            return self._tables[-1]
        joined, n_entries = [], n_more
        for table in reversed(self._tables):
            # An opened table is copied only when a good part of the entries is newer.
            if not table.is_fixed or 4 * n_entries > table.n_entries:
                joined.append(table)
                n_entries += table.n_entries
        others = [table for table in self._tables if table not in joined]
        self._tables = [*others, _join(joined, n_more)]
        return self._tables[-1]


def _filled(entries: NDArray[np.uint64]) -> _Table:
    """Return a new table of some entries."""
    table = _Table(_new_slots(len(entries)), len(entries))
    kernels.copy_entries(read_only(entries), table.slots)
    return table


def _join(tables: list[_Table], n_more: int) -> _Table:
    """Copy tables into a new one with capacity for n more entries."""
    n_entries = sum(table.n_entries for table in tables)
    made = _Table(_new_slots(n_entries + n_more), n_entries)
    for table in tables:
        if are_missing_kernels(table.n_entries):
            _enter(table.slots[table.slots != kernels.EMPTY], made.slots)
        else:
            kernels.copy_entries(table.seen, made.slots)
    return made


def _enter(entries: NDArray[np.uint64], slots: NDArray[np.uint64]) -> None:
    """Add entries to a table with enough capacity, without kernels."""
    view, n_slots = memoryview(slots), len(slots)  # type: ignore[arg-type]
    for entry in entries.tolist():
        place = (entry >> 32) * n_slots >> 32
        while view[place] != _EMPTY:
            place = (place + 1) % n_slots
        view[place] = entry


def octets_of(name: SubscriptionId) -> bytes | None:
    """Return the bytes of an id that is a string, None for an integer."""
    return to_octets(name) if isinstance(name, str) else None
