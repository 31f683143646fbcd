"""What the engines that split conjunctions by attribute share.

Enters and leaves: see `engines.protocol`. Conjunctions are kept in *slots*, which are used again
once they are free, and so are their rows; each engine finds candidates in its own way. A
subscription's conjunctions are chained, so that it is reported once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.intervals.arrays import (
    RUN,
    SIZE_BITS,
    Events,
    RowArrays,
    Rows,
    pack,
    unpack,
)
from tocsin_lab.engines.intervals.rows import Attributes
from tocsin_lab.engines.tree import id_kernels
from tocsin_lab.engines.tree.growing import grown

_CHUNK_CELLS = 1 << 19
"""How many values are encoded at a time."""


def chunk_size(n_attributes: int) -> int:
    """Return how many events are encoded at a time."""
    return max(_CHUNK_CELLS // max(n_attributes, 1), 16)


class IntervalEngine(Engine):
    """Conjunctions in slots, and their rows."""

    def __init__(self) -> None:
        self._attributes = Attributes()
        self._patterns = PatternChecks()
        self._arrays = RowArrays(
            np.empty((64, 4), np.int64), np.full((64, 2), -1, np.int64), np.zeros(64, np.int32)
        )
        self._owner = np.full(64, -1, np.int64)
        self._group = np.empty(64, np.int32)
        self._seen = np.full(64, -1, np.int64)
        self._first_of = np.full(64, -1, np.int64)
        self._next_of = np.full(64, -1, np.int64)
        self._n_rows = self._n_slots = self._n_live = 0
        self._free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._stamp = 0
        self._out = np.empty(256, np.int32)

    # What an engine adds.

    @abstractmethod
    def _add(self, slots: NDArray[np.int64], rows: Rows, sizes: NDArray[np.int64]) -> None:
        """Index conjunctions; their rows are stored by now."""

    @abstractmethod
    def _remove(self, slots: NDArray[np.int64]) -> None:
        """Take conjunctions out of the index; their rows are still stored."""

    @abstractmethod
    def _find(self, events: Events, offsets: NDArray[np.int64]) -> None:
        """Write the conjunctions that some events match behind those found before."""

    def _settle(self) -> None:
        """Apply pending changes, after a change or before a match."""

    def _follow(self) -> None:
        """Take note of new attributes and cuts."""

    # The protocol.

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions."""
        rows, sizes = self._attributes.rows_of(table)
        self._note(ids)
        slots = self._place(rows, sizes)
        self._own(slots, table.subscription)
        self._patterns.add(table, slots)
        self._add(slots, rows, sizes)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Remove subscriptions."""
        gone = [slot for dense in ids.tolist() for slot in self._slots_of(dense)]
        self._first_of[ids] = -1
        if not gone:
            return
        slots = np.array(gone, np.int64)
        self._remove(slots)
        sizes, runs = self._arrays.sizes(slots).tolist(), self._arrays.slots[slots, RUN].tolist()
        self._owner[slots] = self._arrays.slots[slots, RUN] = -1
        self._patterns.discard(gone)
        self._n_live -= len(gone)
        for slot, size, run in zip(gone, sizes, runs, strict=True):
            self._free[size].append((slot, run))
        self._settle()

    def same(self, table: ConjunctionTable) -> list[int]:
        """Return the subscriptions that have just the conjunctions of a table, in its order."""
        rows, sizes = self._attributes.rows_of(table)
        self._follow()
        ids = self._equal_to(pack(rows), sizes) if not len(table.pattern_condition) else []
        self._settle()  # strings that were not known may have spread the marks
        return ids

    def _equal_to(self, packed: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[int]:
        if not len(sizes):
            return []
        live = self._live()
        n_first = int(sizes[0])
        alike = live[self._arrays.sizes(live) == n_first]
        for i in range(n_first):
            row = (self._arrays.slots[alike, RUN] >> SIZE_BITS) + i
            alike = alike[np.all(self._arrays.rows[row] == packed[i], axis=1)]
        return [
            dense
            for dense in np.unique(self._owner[alike]).tolist()
            if self._is_same(self._slots_of(dense), packed, sizes)
        ]

    def _is_same(
        self, slots: list[int], packed: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> bool:
        own = np.array(slots)
        if not np.array_equal(self._arrays.sizes(own), sizes) or self._patterns.have(slots):
            return False
        return np.array_equal(self._arrays.rows[self._arrays.places(own)], packed)

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch, chunk by chunk."""
        n = len(events)
        offsets = np.zeros(n + 1, np.int64)
        size = chunk_size(len(self._attributes))
        for first in range(0, n, size):
            part = offsets[first : min(first + size, n) + 1]
            self._find(self._attributes.encode(events, first, len(part) - 1), part)
        slots = self._out[: offsets[-1]]
        if len(self._patterns):
            offsets, slots = self._patterns.keep(events, RaggedIds(offsets, slots))
        ids, ends = np.empty(len(slots), np.int32), np.empty(n, np.int64)
        seen = (self._seen, self._stamp)
        id_kernels.to_ids(offsets, slots, self._owner, self._group, *seen, ids, ends)
        self._stamp += n
        return RaggedIds(np.append(np.int64(0), ends), ids[: ends[-1] if n else 0])

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event."""
        offsets = np.zeros(2, np.int64)
        self._find(self._attributes.encode_one(event), offsets)
        slots = self._patterns.keep_one(event, self._out[: offsets[-1]])
        return list(dict.fromkeys(self._owner[slots].tolist()))

    def check(self) -> None:
        """Verify every invariant."""
        live = self._live()
        assert len(live) == self._n_live, "a conjunction is lost"
        n_free = sum(len(slots) for slots in self._free.values())
        assert n_free + len(live) == self._n_slots, "a slot is lost"

    @property
    def nbytes(self) -> int:
        """Bytes held by rows and slots."""
        own = (*self._arrays, self._owner, self._group, self._seen, self._first_of, self._next_of)
        return sum(array.nbytes for array in own) + self._attributes.places.nbytes

    # Inside.

    def _note(self, ids: NDArray[np.int64]) -> None:
        """Make room for new dense ids."""
        if len(ids) and ids[-1] >= len(self._first_of):
            first = len(self._first_of)
            self._first_of = grown(self._first_of, int(ids[-1]) + 1)
            self._first_of[first:] = -1

    def _live(self) -> NDArray[np.int64]:
        """Return the slots in use."""
        return np.flatnonzero(self._owner[: self._n_slots] >= 0)

    def _place(self, rows: Rows, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give conjunctions slots, and write their rows; return the slots."""
        slots, runs = np.empty((2, len(sizes)), np.int64)
        fresh = np.ones(len(sizes), np.bool_)
        if self._free:
            for i, size in enumerate(sizes.tolist()):
                if self._free[size]:
                    (slots[i], runs[i]), fresh[i] = self._free[size].pop(), False
        n_fresh, new_sizes = int(np.count_nonzero(fresh)), sizes[fresh]
        slots[fresh] = self._n_slots + np.arange(n_fresh)
        start = self._n_rows + np.cumsum(new_sizes) - new_sizes
        runs[fresh] = start << SIZE_BITS | new_sizes
        self._n_slots += n_fresh
        self._n_rows += int(new_sizes.sum())
        self._grow()
        self._arrays.slots[slots, RUN] = runs
        self._arrays.rows[self._arrays.places(slots)] = pack(rows)
        self._n_live += len(slots)
        return slots

    def _grow(self) -> None:
        """Make room for the rows and slots that there are by now."""
        arrays, n = self._arrays, self._n_slots
        self._arrays = arrays._replace(rows=grown(arrays.rows, self._n_rows))
        first = len(self._seen)
        if n > first:
            more = {name: grown(getattr(arrays, name), n) for name in ("slots", "n_entries")}
            self._arrays = self._arrays._replace(**more)
            self._arrays.slots[first:] = -1
            for name in ("_owner", "_group", "_seen", "_next_of"):
                setattr(self, name, grown(getattr(self, name), n))
            self._owner[first:] = self._seen[first:] = -1

    def _own(self, slots: NDArray[np.int64], subscription: NDArray[np.int64]) -> None:
        """Note the subscription of each conjunction, and which ones belong together."""
        is_first = np.diff(subscription, prepend=-1) != 0
        begin = np.flatnonzero(is_first)
        group = np.cumsum(is_first) - 1
        alone = np.diff(begin, append=len(subscription)) == 1
        self._owner[slots] = subscription
        self._group[slots] = np.where(alone[group], -1, slots[begin][group])
        self._next_of[slots] = np.where(np.append(is_first[1:], True), -1, np.append(slots[1:], -1))
        self._first_of[subscription[begin]] = slots[begin]

    def _slots_of(self, dense: int) -> list[int]:
        slots = []
        slot = int(self._first_of[dense]) if dense < len(self._first_of) else -1
        while slot >= 0:
            slots.append(slot)
            slot = int(self._next_of[slot])
        return slots

    def _rows_in(self, slots: NDArray[np.int64]) -> Rows:
        return unpack(self._arrays.rows[self._arrays.places(slots)])
