"""What the engines here share: predicates first, then an engine's own second phase.

Enters and leaves: see `engines.protocol`. Conjunctions are kept in *slots*, which are used again
once they are free. A subscription's conjunctions know each other, so that it is reported once.
Conjunctions come and go in place. Follows Fabret et al., section 2.2.2 and Figure 2, except that
the two phases take turns over chunks of events instead of single ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.clustering import cluster_kernels as kernels
from tocsin_lab.engines.clustering import read_kernels
from tocsin_lab.engines.clustering.arrays import (
    FREE_SLOT,
    N_ACCESS,
    N_CLUSTERS,
    N_SLOTS,
    OWNER,
    POOL_USED,
    RUN,
    SIBLING,
    SIZE,
    SUBSCRIPTION,
    Arena,
)
from tocsin_lab.engines.clustering.index import CHUNK, Chunk, PredicateIndex
from tocsin_lab.engines.clustering.predicates import PredicateBook
from tocsin_lab.engines.clustering.runs import places

_N_CLASSES = 256
_STATE = 7


class TwoPhaseEngine(Engine):
    """Conjunctions in slots, and the predicates they are made of."""

    width = 1
    """How many numbers a slot keeps for each predicate."""

    def __init__(self) -> None:
        self._book = PredicateBook()
        self._index = PredicateIndex(self._book)
        self._patterns = PatternChecks()
        state = np.full(_STATE, -1, np.int64)
        state[[POOL_USED, N_SLOTS, N_CLUSTERS, N_ACCESS]] = 0
        self._arena = Arena(
            pool=np.empty(256, np.int32),
            free=np.full(_N_CLASSES, -1, np.int64),
            state=state,
            conjunctions=np.full((16, 7), -1, np.int32),
        )
        self._first_of = np.full(16, -1, np.int32)
        self._seen = np.full(16, -1, np.int64)
        self._stamp = 0
        self._n_siblings = 0
        self._out = np.empty(256, np.int32)

    # What an engine adds.

    @abstractmethod
    def _add(self, slots: NDArray[np.int32]) -> None:
        """Index conjunctions."""

    @abstractmethod
    def _remove(self, slots: NDArray[np.int32]) -> None:
        """Take conjunctions out of the index."""

    @abstractmethod
    def _match(self, chunk: Chunk) -> int:
        """Write the conjunctions that a chunk of events satisfies; return how many are done."""

    @abstractmethod
    def _explain(self, slot: int) -> str:
        """Say how one conjunction is found."""

    @abstractmethod
    def _check(self, slots: NDArray[np.int64]) -> None:
        """Verify the invariants of the second phase; `slots` are those in use."""

    @property
    @abstractmethod
    def _nbytes(self) -> int:
        """Bytes held by the second phase."""

    def _settle(self) -> None:
        """Apply pending changes before a match."""

    def _profiled(self) -> None:
        """Take note of new statistics."""

    # The protocol.

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions."""
        predicates = self._book.intern(table)
        if self._index.has_sample:
            self._index.flush()  # so that shares are measured before an engine chooses by them
        self._make_room(ids, table)
        slots = np.empty(table.n_conjunctions, np.int32)
        kernels.store(
            self._arena,
            self._first_of,
            table.subscription,
            table.condition_start,
            predicates,
            self.width,
            slots,
        )
        self._patterns.add(table, slots)
        self._n_siblings += self._count_siblings(slots)
        self._add(slots)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Remove subscriptions."""
        slots = np.empty(len(ids), np.int32)
        n = read_kernels.slots_of(self._arena, self._first_of, ids, slots)
        if n > len(slots):
            slots = np.empty(n, np.int32)
            read_kernels.slots_of(self._arena, self._first_of, ids, slots)
        slots = slots[:n]
        self._remove(slots)
        self._patterns.discard(slots.tolist())
        self._n_siblings -= self._count_siblings(slots)
        released = np.empty(self._arena.conjunctions[slots, SIZE].sum(), np.int32)
        n = kernels.forget(self._arena, self._first_of, slots, self.width, released)
        self._book.release(released[:n])

    def profile(self, events: EventBatch) -> None:
        """Measure how many events satisfy each predicate."""
        self._index.profile(events)
        self._profiled()

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch, chunk by chunk."""
        self._settle()
        self._index.flush()
        offsets, slots = self._find(self._index.encode(events), len(events))
        if len(self._patterns):
            offsets, slots = self._patterns.keep(events, RaggedIds(offsets, slots))
        return self._to_ids(offsets, slots)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event."""
        self._settle()
        self._index.flush()
        _, slots = self._find(self._index.encode_one(event), 1)
        slots = self._patterns.keep_one(event, slots)
        ids: list[int] = self._arena.conjunctions[slots, SUBSCRIPTION].tolist()
        return list(dict.fromkeys(ids)) if self._n_siblings else ids

    def explain(self, dense: int) -> str:
        """Say how a subscription is found."""
        self._settle()
        slots = []
        c = int(self._first_of[dense]) if dense < len(self._first_of) else -1
        while c >= 0:
            slots.append(c)
            c = int(self._arena.conjunctions[c, SIBLING])
        lines = [self._explain(slot) for slot in reversed(slots)]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """Say how much is held."""
        self._settle()
        return f"{type(self).__name__}: {self.nbytes} bytes"

    def check(self) -> None:
        """Verify every invariant."""
        self._settle()
        rows = self._arena.conjunctions
        slots = np.flatnonzero(rows[:, SUBSCRIPTION] >= 0)
        used = self._predicates_of(slots)
        self._book.check(np.bincount(used, minlength=self._book.room))
        self._index.check()
        owners = rows[slots, OWNER]
        assert np.array_equal(rows[owners, SUBSCRIPTION], rows[slots, SUBSCRIPTION]), "owners"
        assert self._n_siblings == np.count_nonzero(owners != slots), "siblings are miscounted"
        n_free, c = 0, int(self._arena.state[FREE_SLOT])
        while c >= 0:
            assert rows[c, SUBSCRIPTION] < 0, "a slot in use is said to be free"
            n_free, c = n_free + 1, int(rows[c, SIBLING])
        assert n_free + len(slots) == self._arena.state[N_SLOTS], "a slot is lost"
        self._check(slots)

    @property
    def nbytes(self) -> int:
        """Bytes held by predicates, conjunctions and what finds them."""
        arrays = (*self._arena, self._first_of, self._seen)
        own = sum(array.nbytes for array in arrays) + self._nbytes
        return own + self._book.nbytes + self._index.nbytes

    # For measurements.

    @property
    def predicate_index(self) -> PredicateIndex:
        """The index of the first phase."""
        return self._index

    def match_chunk(self, chunk: Chunk) -> int:
        """Run the second phase on a chunk of events; return how many of them it did."""
        return self._match(chunk)

    # Inside.

    def _find(
        self, cells: list[NDArray[np.int32]], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return offsets and conjunctions of all events; valid until the next call."""
        offsets = np.zeros(n + 1, np.int64)
        for first in range(0, n, CHUNK):
            part = offsets[first : min(first + CHUNK, n) + 1]
            satisfied = self._index.satisfied(cells, first, len(part) - 1)
            done = 0
            while (done := self._match(Chunk(satisfied, done, self._out, part))) < len(part) - 1:
                more = len(self._out) + len(self._arena.conjunctions)
                self._out = np.append(self._out, np.empty(more, np.int32))
        return offsets, self._out[: offsets[-1]]

    def _to_ids(self, offsets: NDArray[np.int64], slots: NDArray[np.int32]) -> RaggedIds:
        if not self._n_siblings:
            return RaggedIds(offsets, self._arena.conjunctions[:, SUBSCRIPTION][slots])
        ids = np.empty(len(slots), np.int32)
        read_kernels.to_ids(self._arena, offsets, slots, self._seen, self._stamp, ids)
        self._stamp += len(offsets)
        return RaggedIds(offsets, ids[: offsets[-1]])

    def _count_siblings(self, slots: NDArray[np.int32]) -> int:
        return int(np.count_nonzero(self._arena.conjunctions[slots, OWNER] != slots))

    def _predicates_of(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Return the predicates of conjunctions, one conjunction after another."""
        rows = self._arena.conjunctions[slots]
        predicates: NDArray[np.int32] = self._arena.pool[places(rows[:, RUN], rows[:, SIZE])]
        return predicates

    def _make_room(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Make room for the conjunctions of a table."""
        if len(ids) and ids.max() >= len(self._first_of):
            more = np.full(int(ids.max()) + 1, -1, np.int32)
            self._first_of = np.concatenate([self._first_of, more])
        n, n_slots = table.n_conjunctions, int(self._arena.state[N_SLOTS])
        if n_slots + n > len(self._seen):
            room = max(n_slots + n, 2 * len(self._seen))
            self._arena = self._arena._replace(conjunctions=grown(self._arena.conjunctions, room))
            self._seen = grown(self._seen, room)
        self._grow_pool(2 * self.width * (table.n_conditions + n))

    def _grow_pool(self, at_least: int) -> None:
        needed = int(self._arena.state[POOL_USED]) + at_least
        if needed > len(self._arena.pool):
            room = max(needed, 2 * len(self._arena.pool))
            self._arena = self._arena._replace(pool=grown(self._arena.pool, room))


def grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    """Return an array with more rows; new ones are -1."""
    more = np.full((room - len(array), *array.shape[1:]), -1, array.dtype)
    return np.concatenate([array, more])
