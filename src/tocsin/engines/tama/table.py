"""Matching tables: attribute → level → cell → conjunctions, in one flat table a portion.

Enters: items (`cells`). Leaves: a table of buckets that a kernel looks keys up in. Follows Zhao and
Wu, figure 4, with the three layers hashed into one; an entry takes eight bytes, as there. A
conjunction is taken out by striking out its entries (section III-A.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.tama import kernels
from tocsin.engines.tama.cells import Items

_PER_BUCKET = 4


class Portion:
    """The table of some conjunctions."""

    def __init__(self, slots: NDArray[np.int64], n_trees: int, items: Items) -> None:
        self.slots = slots
        self.n_gone = 0
        self.used = np.zeros(n_trees, np.int64)
        """A bit for each level that a tree has entries on."""
        self.mask = np.uint64(0)
        none = np.empty((0, 2), np.int32)
        counts = np.zeros(3, np.int32)
        self.n_entries = int(self._enter(items, kernels.COUNT, counts, none))
        n_buckets = 1 << max(self.n_entries // _PER_BUCKET, 1).bit_length()
        self.mask = np.uint64(n_buckets - 1)
        self.offsets = np.zeros(n_buckets + 2, np.int32)
        self.entries = np.empty((self.n_entries, 2), np.int32)
        self._enter(items, kernels.COUNT, self.offsets, none)
        np.cumsum(self.offsets, out=self.offsets)
        self._enter(items, kernels.FILL, self.offsets, self.entries)

    def remove(self, items: Items, n: int) -> None:
        """Strike out the entries of n conjunctions."""
        self._enter(items, kernels.REMOVE, self.offsets, self.entries)
        self.n_gone += n

    def _enter(
        self, items: Items, mode: int, offsets: NDArray[np.int32], entries: NDArray[np.int32]
    ) -> int:
        found: int = kernels.enter(*items, mode, self.mask, offsets, entries, self.used)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.offsets.nbytes + self.entries.nbytes + self.used.nbytes + self.slots.nbytes
