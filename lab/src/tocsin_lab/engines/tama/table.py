"""Matching tables: attribute → level → cell → conjunctions, in one flat table a portion.

Enters: items (`cells`). Leaves: a table of buckets that a kernel looks keys up in. Follows Zhao and
Wu, figure 4, with the three layers hashed into one. An entry takes four bytes, and its key four
more; in the paper it is eight. A conjunction is taken out by striking out its entries (section
III-A.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.tama import kernels
from tocsin_lab.engines.tama.cells import Items

_PER_BUCKET = 4
"""How many entries are expected in a bucket before they are packed."""
_RUNS_PER_BUCKET = 2
_NO_ENTRIES = np.empty((0, 2), np.int32)


class Portion:
    """The table of some conjunctions."""

    def __init__(self, slots: NDArray[np.int64], n_trees: int, items: Items) -> None:
        self.slots = slots
        self.n_gone = 0
        self.used = np.zeros(n_trees, np.int64)
        """A bit for each level that a tree has entries on."""
        self.mask = np.uint64(0)
        self.words = np.empty(0, np.uint32)
        self.n_entries = int(self._enter(items, kernels.COUNT, np.zeros(3, np.int32)))
        n_buckets = 1 << max(self.n_entries // _PER_BUCKET, 1).bit_length()
        self.mask = np.uint64(n_buckets - 1)
        self.offsets = np.zeros(n_buckets + 2, np.int32)
        entries = np.empty((self.n_entries, 2), np.int32)
        self._enter(items, kernels.COUNT, self.offsets)
        np.cumsum(self.offsets, out=self.offsets)
        self._enter(items, kernels.FILL, self.offsets, entries)
        self._pack(entries)

    def _pack(self, entries: NDArray[np.int32]) -> None:
        """Make runs of the entries, in about half as many buckets as there are runs, or fewer."""
        n_old = len(self.offsets) - 2
        starts = np.zeros(n_old + 1, np.int32)
        kernels.pack(self.offsets, entries, n_old, False, starts, self.words)
        n_words = int(starts.sum(dtype=np.int64))
        n_runs = n_words - self.n_entries
        n_buckets = min(1 << max(n_runs // _RUNS_PER_BUCKET, 1).bit_length(), n_old)
        folded = np.zeros(n_buckets + 1, np.int32)
        folded[1:] = starts[1:].reshape(-1, n_buckets).sum(axis=0).cumsum()
        self.words = np.empty(n_words, np.uint32)
        kernels.pack(self.offsets, entries, n_buckets, True, folded, self.words)
        self.mask, self.offsets = np.uint64(n_buckets - 1), folded

    def count_entries(self, n_slots: int) -> NDArray[np.int64]:
        """Return under how many keys each conjunction is entered, by slot."""
        counts = np.zeros(n_slots, np.int64)
        kernels.count_entries(self.words, counts)
        return counts

    def remove(self, items: Items, n: int) -> None:
        """Strike out the entries of n conjunctions."""
        self._enter(items, kernels.REMOVE, self.offsets)
        self.n_gone += n

    def _enter(
        self,
        items: Items,
        mode: int,
        offsets: NDArray[np.int32],
        entries: NDArray[np.int32] = _NO_ENTRIES,
    ) -> int:
        n: int = kernels.enter(*items, mode, self.mask, offsets, entries, self.words, self.used)
        return n

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.offsets.nbytes + self.words.nbytes + self.used.nbytes + self.slots.nbytes
