"""The directory: from ids to dense ids, in flat hash tables.

Enters: columns of ids, and the dense ids they get. Leaves: for an id, or for all ids of a column,
the dense ids that may be theirs. A directory keeps hashes only (see `directory_kernels`), so
whoever asks compares the ids themselves. Entries are never taken out one by one: those of
subscriptions that are gone stay until there are too many; then the tables are made anew.

What was opened from a file is never changed: it is one table, and what is new goes into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.catalog import id_index_kernels as kernels
from tocsin.catalog.ids import FEW, Ids, hash_number, hash_text, read_only, to_octets
from tocsin.catalog.renumbering import Renumbering
from tocsin.model import SubscriptionId

_EMPTY = int(kernels.EMPTY)
_FEW_SLOTS = 64
_MOST_FILLED = 0.75
_FRESHLY_FILLED = 0.6
_NONE_SKIPPED = read_only(np.zeros(0, np.bool_))
_LOW = np.uint64(0xFFFFFFFF)

IsLive: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def _new_slots(n_entries: int) -> NDArray[np.uint64]:
    n_slots = (int(n_entries / _FRESHLY_FILLED) + _FEW_SLOTS) // 8 * 8
    return np.full(n_slots, kernels.EMPTY, np.uint64)


class IdTable:
    """A column of ids with a table of their places (if they are many), to hold against others.

    `missing` marks places without an id. Of equal ids the first is in the table; `repeated` are the
    places of the others.
    """

    def __init__(self, ids: Ids, missing: NDArray[np.bool_] | None = None) -> None:
        self.ids = ids
        self.missing = missing
        self.slots, self.repeated = self._put() if len(ids) > FEW else self._put_few()

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
        """Find what is repeated; a few ids need no table, and no kernels."""
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
    """Hash tables from ids to dense ids; the last one is open to new entries."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    @staticmethod
    def opened(tables: Iterable[tuple[NDArray[np.uint64], int]]) -> IdIndex:
        """Return a directory over tables that are never changed: slots and number of entries."""
        directory = IdIndex()
        directory._tables = [_Table(slots, n, is_fixed=True) for slots, n in tables if n]
        return directory

    @property
    def n_entries(self) -> int:
        """How many entries there are, those of subscriptions that are gone among them."""
        return sum(table.n_entries for table in self._tables)

    def candidates(self, name: SubscriptionId, octets: bytes | None) -> list[int]:
        """Return the dense ids that an id may have; `octets` are its bytes when it is a string."""
        hashed = hash_text(octets) if octets is not None else hash_number(name)  # type: ignore[arg-type]
        found = []
        for table in self._tables:
            view = table.view
            n_slots = len(view)
            place = hashed * n_slots >> 32
            while (entry := view[place]) != _EMPTY:
                if entry >> 32 == hashed:
                    found.append(entry & 0xFFFFFFFF)
                place += 1
                if place == n_slots:
                    place = 0
        return found

    def pairs(self, asked: IdTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return places of a column and the dense ids that the ids there may have."""
        places, dense = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        given = read_only(asked.slots)
        for table in self._tables:
            first, room = 0, len(asked.ids) // 8 + 256
            while first < len(given):
                some, others = np.empty(room, np.int64), np.empty(room, np.int64)
                n_pairs, first = kernels.pair(given, first, table.seen, some, others)
                places.append(some[:n_pairs])
                dense.append(others[:n_pairs])
                room *= 2
        return np.concatenate(places), np.concatenate(dense)

    def add(self, ids: Ids, dense: NDArray[np.int64]) -> None:
        """Enter ids that have no entry yet."""
        table = self._table_for(len(ids))
        kernels.put(table.slots, ids.hashes(), dense)
        table.n_entries += len(ids)

    def add_table(self, added: IdTable, dense: NDArray[np.int64], n_added: int) -> None:
        """Enter the distinct ids of a column; those whose dense id is -1 are left out.

        The column's table may become the directory's own: it is empty then.
        """
        if not self._tables and n_added == len(added.ids) and not dense[0]:  # places are dense ids
            slots, added.slots = added.slots, _new_slots(0)
            self._tables = [_Table(slots, n_added)]
            return
        table = self._table_for(n_added)
        kernels.pour_numbered(read_only(added.slots), dense, table.slots)
        table.n_entries += n_added

    def rebuild(self, is_live: IsLive) -> None:
        """Make the tables anew, without the entries of subscriptions that are gone."""
        self._tables = [_filled(self._live(is_live))]

    def renumbered(self, is_live: IsLive, new_of: Renumbering) -> IdIndex:
        """Return a directory of what is live, with new dense ids."""
        entries = self._live(is_live)
        numbers = new_of((entries & _LOW).astype(np.int64)).astype(np.uint64)
        directory = IdIndex()
        directory._tables = [_filled(entries & ~_LOW | numbers)] if len(entries) else []
        return directory

    def _live(self, is_live: IsLive) -> NDArray[np.uint64]:
        """Return the entries of subscriptions that are live, in no order."""
        none = np.empty(0, np.uint64)
        entries = np.concatenate([none, *(t.slots[t.slots != kernels.EMPTY] for t in self._tables)])
        return entries[is_live((entries & _LOW).astype(np.int64))]

    def joined(self) -> NDArray[np.uint64]:
        """Return the slots of all entries in one table, which no later entry changes."""
        if len(self._tables) == 1 and self._tables[0].is_fixed:
            return self._tables[0].seen
        return _join(self._tables, 0).seen

    def _table_for(self, n_more: int) -> _Table:
        """Return a table with room for more, of which others may have become a part."""
        if self._tables and self._tables[-1].has_room(n_more):
            return self._tables[-1]
        joined, n_entries = [], n_more
        for table in reversed(self._tables):
            # What was opened is copied only when what came later is a good part of it.
            if not table.is_fixed or 4 * n_entries > table.n_entries:
                joined.append(table)
                n_entries += table.n_entries
        left = [table for table in self._tables if table not in joined]
        self._tables = [*left, _join(joined, n_more)]
        return self._tables[-1]


def _filled(entries: NDArray[np.uint64]) -> _Table:
    """Return a new table of some entries."""
    table = _Table(_new_slots(len(entries)), len(entries))
    kernels.pour(read_only(entries), table.slots)
    return table


def _join(tables: list[_Table], n_more: int) -> _Table:
    """Pour tables into a new one with room for more."""
    n_entries = sum(table.n_entries for table in tables)
    made = _Table(_new_slots(n_entries + n_more), n_entries)
    for table in tables:
        kernels.pour(table.seen, made.slots)
    return made


def octets_of(name: SubscriptionId) -> bytes | None:
    """Return the bytes of an id that is a string, None for an integer."""
    return to_octets(name) if isinstance(name, str) else None
