"""The `counting` engine: hits are counted for each conjunction.

Fabret et al., section 5 (and 6, where it is what the others are compared with): a table gives for
each predicate the subscriptions in which it occurs; each predicate that an event satisfies counts
a hit for all of them, and those whose hits are as many as their predicates match.

Deviations: hits are counted for conjunctions, of which a subscription may have several. Counters
are not set to zero before an event: each event counts from a base of its own, higher than what any
counter may hold from the event before, so a counter costs nothing unless it is touched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.clustering import cluster_kernels as kernels
from tocsin_lab.engines.clustering import read_kernels
from tocsin_lab.engines.clustering.arrays import BASE, CAPACITY, COUNT, RUN, SIZE
from tocsin_lab.engines.clustering.engine import TwoPhaseEngine, grown
from tocsin_lab.engines.clustering.index import Chunk
from tocsin_lab.engines.clustering.runs import positions

_HIGHEST = 2**31 - 1


class CountingEngine(TwoPhaseEngine):
    """An association list for each predicate, a counter for each conjunction."""

    width = 2  # each predicate, and the place in its list

    def __init__(self) -> None:
        super().__init__()
        self._lists = np.zeros((self._book.room, 3), np.int32)
        self._sizes = np.zeros(16, np.int32)
        self._hits = np.zeros(16, np.int32)
        self._base, self._step = 0, 2

    def _add(self, slots: NDArray[np.int32]) -> None:
        if self._book.room > len(self._lists):
            old, self._lists = self._lists, np.zeros((self._book.room, 3), np.int32)
            self._lists[: len(old)] = old
        if len(self._arena.conjunctions) > len(self._hits):
            self._sizes = grown(self._sizes, len(self._arena.conjunctions))
            self._hits = grown(self._hits, len(self._arena.conjunctions))
        self._sizes[slots] = sizes = self._arena.conjunctions[slots, SIZE]
        self._step = max(self._step, int(sizes.max(initial=0)) + 1)
        done = 0
        while (done := kernels.enlist(self._arena, self._lists, slots, done)) < len(slots):
            self._grow_pool(len(self._arena.pool))

    def _remove(self, slots: NDArray[np.int32]) -> None:
        kernels.delist(self._arena, self._lists, slots)

    def _match(self, chunk: Chunk) -> int:
        done, n = chunk.done, len(chunk.offsets) - 1
        if self._base + (n + 1) * self._step > _HIGHEST:
            self._hits.fill(0)
            self._base = 0
        reached = read_kernels.count_hits(
            self._arena,
            self._lists,
            self._sizes,
            *chunk.satisfied,
            self._hits,
            self._base - done * self._step,
            self._step,
            done,
            chunk.out,
            chunk.offsets,
        )
        self._base += (reached - done) * self._step
        return reached

    def _explain(self, slot: int) -> str:
        predicates = self._predicates_of(np.array([slot]))
        on_lists = self._lists[predicates, COUNT].tolist()
        lengths = ", ".join(f"{n:,}" for n in on_lists)
        return f"found by counting {len(predicates)} hits; on lists of {lengths} conjunctions"

    def _check(self, slots: NDArray[np.int64]) -> None:
        rows, pool = self._arena.conjunctions, self._arena.pool
        assert np.array_equal(self._sizes[slots], rows[slots, SIZE]), "a size is wrong"
        predicates = self._predicates_of(slots)
        counts = np.bincount(predicates, minlength=len(self._lists))
        assert np.array_equal(counts, self._lists[:, COUNT]), "a list has the wrong length"
        sizes = rows[slots, SIZE]
        owner = np.repeat(slots, sizes)
        which = positions(sizes)
        place = pool[rows[owner, RUN] + rows[owner, SIZE] + which]
        at = self._lists[predicates, BASE].astype(np.int64) + place
        assert np.array_equal(pool[at], owner), "a conjunction is not on its list"
        assert np.array_equal(pool[at + self._lists[predicates, CAPACITY]], which), "a place"
        assert self._hits.max(initial=0) < self._base + self._step, "a counter is too high"

    @property
    def _nbytes(self) -> int:
        return self._lists.nbytes + self._sizes.nbytes + self._hits.nbytes
