"""The rows of publications, and sorted lists of their bounds.

Enters: cells. Leaves: a matrix of cells for the kernels, one row for each object region; and the
rows that a box overlaps. Sorted bounds of object regions (Leung and Jacobsen, section 5.5) serve
changes of subscriptions only, and publications change far more often. So a dimension is sorted
after enough searches in it; rows that are updated later are marked dirty and scanned, until sorting
again is cheaper than these scans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.subjects import kernels
from tocsin.subjects.arrays import Boxes, RowOrder, RowUpdates
from tocsin.subjects.bound_lists import greatest
from tocsin.subjects.box_index import grown
from tocsin.subjects.dimensions import SPACE, Dimensions
from tocsin.subjects.positions import ABSENT, FIRST_DOMAIN, NOTHING, Cell, Words, point, relabel

_LOW = np.uint64(0xFFFF)
_MAX_SCANS = 4
"""Number of full scans before a dimension is sorted."""
_MIN_ORDERED = 64
"""Up to this number of rows, no dimension is sorted."""
NO_MASK = np.zeros((0, 0), np.uint8)


class _Order(NamedTuple):
    rows: RowOrder
    slot: int
    """Its row in the dirty matrix."""


class ObjectRows:
    """All object regions as rows of cells."""

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions = dimensions
        self.n_dims = 0
        self.cells: Words = np.zeros((16, max(4, len(dimensions)), 3), np.uint64)
        self.cells[:] = np.array(NOTHING, np.uint64)
        self.n = 0
        self.free: list[int] = []
        self.order_of = np.full(self.cells.shape[1], -1, np.int32)
        self.dirty = np.zeros((0, 16), np.uint8)
        self._orders: dict[int, _Order] = {}
        self._scanned: dict[int, int] = {}
        self._default: dict[int, Words] = {}
        self._n_known = 0
        self.fit()

    @property
    def n_live(self) -> int:
        """Number of rows in use."""
        return self.n - len(self.free)

    def fit(self) -> None:
        """Grow the matrix to the current number of dimensions."""
        n_dims = len(self.dimensions)
        if n_dims == self.n_dims:
            return
        if n_dims > self.cells.shape[1]:
            wider = np.empty((len(self.cells), max(n_dims, n_dims * 3 // 2), 3), np.uint64)
            wider[:] = np.array(NOTHING, np.uint64)
            wider[:, : self.n_dims] = self.cells[:, : self.n_dims]
            self.cells = wider
            self.order_of = np.full(wider.shape[1], -1, np.int32)
            for dim, order in self._orders.items():
                self.order_of[dim] = order.slot
        first, self.n_dims = self.n_dims, n_dims
        live = self.live()
        for dim in range(first, n_dims):
            dimension = self.dimensions.entries[dim]
            if not len(live) or dim == SPACE:
                continue
            if dimension.pattern is not None:
                self.cells[live, dim] = self.dimensions.fits(dim, self.cells[live, dimension.of])
                continue
            of_space = np.array(point(FIRST_DOMAIN, dimension.space), np.uint64)
            inside = np.all(self.cells[live, SPACE] == of_space, axis=1)
            self.cells[live, dim] = np.array(ABSENT, np.uint64)
            self.cells[live[inside], dim] = np.array(self.dimensions.missing, np.uint64)

    def live(self) -> NDArray[np.int32]:
        """Return all rows that are in use."""
        rows = np.arange(self.n, dtype=np.int32)
        if not self.free:
            return rows
        used = np.ones(self.n, np.bool_)
        used[self.free] = False
        return rows[used]

    def allocate(self, n: int) -> NDArray[np.int32]:
        """Return free rows; they overlap nothing until written."""
        taken = [self.free.pop() for _ in range(min(n, len(self.free)))]
        more = n - len(taken)
        if self.n + more > len(self.cells):
            old = len(self.cells)
            self.cells = grown(self.cells, self.n + more)
            self.cells[old:] = np.array(NOTHING, np.uint64)
            self.dirty = np.ascontiguousarray(
                np.pad(self.dirty, ((0, 0), (0, len(self.cells) - old)))
            )
        rows = np.concatenate([np.array(taken, np.int64), np.arange(self.n, self.n + more)])
        self.n += more
        return rows.astype(np.int32)

    def default_row(self, space: int) -> Words:
        """Return a row of a space in which every attribute is missing."""
        known = self._default.get(space)
        if known is None or len(known) != self.cells.shape[1] or self._n_known != self.n_dims:
            self._default = {} if self._n_known != self.n_dims else self._default
            self._n_known = self.n_dims
            self._default[space] = self._make_default_row(space)
        return self._default[space].copy()

    def _make_default_row(self, space: int) -> Words:
        row = np.empty((self.cells.shape[1], 3), np.uint64)
        row[:] = np.array(ABSENT, np.uint64)
        if self.dimensions.missing != ABSENT:
            for dim in self.dimensions.dims_of(space):
                if self.dimensions.entries[dim].pattern is None:
                    row[dim] = np.array(self.dimensions.missing, np.uint64)
                else:
                    row[dim] = self.dimensions.fits(
                        dim, np.array([self.dimensions.missing], np.uint64)
                    )[0]
        row[SPACE] = np.array(point(FIRST_DOMAIN, space), np.uint64)
        return row

    def write(self, rows: NDArray[np.int32], cells: Words) -> None:
        """Write whole rows."""
        self.cells[rows] = cells
        self.dirty[:, rows] = 1

    def release(self, rows: NDArray[np.int32]) -> None:
        """Free rows."""
        self.write(rows, np.array(NOTHING, np.uint64))
        self.free.extend(rows.tolist())

    def update(self, updates: RowUpdates) -> None:
        """Update some cells of some rows."""
        kernels.update_rows(self.cells, updates, self.order_of, self.dirty)

    def relabel(self, dim: int, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Replace the labels of strings in one dimension."""
        if dim >= self.n_dims:
            return
        cells = self.cells[: self.n, dim]
        low, low_end = relabel(cells[:, 0].copy(), cells[:, 2] >> np.uint64(16) & _LOW, old, new)
        high, high_end = relabel(cells[:, 1].copy(), cells[:, 2] & _LOW, old, new)
        cells[:, 0], cells[:, 1] = low, high
        cells[:, 2] = low_end << np.uint64(16) | high_end
        if dim in self._orders:
            self._sort(dim)

    # Rows by box.

    def rows_overlapping(self, boxes: Boxes, box: int) -> NDArray[np.int32]:
        """Return the rows that a box overlaps, each once."""
        out = np.empty(self.n_live, np.int32)
        dim = self._best_order(boxes, box)
        if dim is None:
            live = self.live()
            self._count_scan(boxes, box, len(live))
            return out[: kernels.overlapping_rows(self.cells, boxes, box, live, out, 0)]
        order = self._orders[dim]
        dirty = self.dirty[order.slot]
        n = 0
        for piece in _pieces(boxes, box, dim):
            n = kernels.rows_in_window(self.cells, boxes, box, piece, order.rows, dirty, out, n)
        moved = self._moved(dim)
        n = kernels.overlapping_rows(self.cells, boxes, box, moved, out, n)
        self._count_moved(dim, len(moved))
        return out[:n]

    def rows_between(self, boxes: Boxes, old: int, new: int) -> NDArray[np.int32] | None:
        """Return the rows that only one of two boxes may overlap, by the bounds between theirs.

        None unless both have the same dimensions, one piece in each, and all of them are sorted.
        """
        spans = [range(int(boxes.start[box]), int(boxes.start[box + 1])) for box in (old, new)]
        if len(spans[0]) != len(spans[1]):
            return None
        parts = []
        for p, q in zip(*spans, strict=True):
            before, after = boxes.pieces[p].tolist(), boxes.pieces[q].tolist()
            dim = before[2] >> 32
            if dim != after[2] >> 32 or (p > spans[0][0] and dim == _dim(boxes, p - 1)):
                return None
            if before == after:
                continue
            if dim not in self._orders:
                self._count_scan(boxes, new, self.n_live)
                return None
            parts += self._between(dim, before, after)
        return np.unique(np.concatenate([np.empty(0, np.int32), *parts]))

    def _between(self, dim: int, before: Cell, after: Cell) -> list[NDArray[np.int32]]:
        rows = self._orders[dim].rows
        lows = sorted(
            _position(rows.low_high, rows.low_low, words[1], words[2] & 0xFFFF)
            for words in (before, after)
        )
        ups = sorted(
            _position(rows.up_high, rows.up_low, words[0], (words[2] >> 16 & 0xFFFF) + 1)
            for words in (before, after)
        )
        moved = self._moved(dim)
        self._count_moved(dim, len(moved))
        return [rows.low_row[slice(*lows)], rows.up_row[slice(*ups)], moved]

    def _best_order(self, boxes: Boxes, box: int) -> int | None:
        """Return the sorted dimension with the fewest candidate rows; None if too many."""
        best, fewest = None, self.n_live // 2
        for piece in range(int(boxes.start[box]), int(boxes.start[box + 1])):
            dim = _dim(boxes, piece)
            if dim in self._orders:
                n = sum(self._n_overlapping(boxes, dim, p) for p in _pieces(boxes, box, dim))
                n += int(np.count_nonzero(self.dirty[self._orders[dim].slot, : self.n]))
                if n < fewest:
                    best, fewest = dim, n
        return best

    def _n_overlapping(self, boxes: Boxes, dim: int, piece: int) -> int:
        """Return how many rows overlap a piece, by the sorted bounds."""
        rows = self._orders[dim].rows
        low, high, ends = boxes.pieces[piece].tolist()
        begun = _position(rows.low_high, rows.low_low, high, ends & 0xFFFF)
        ended = _position(rows.up_high, rows.up_low, low, (ends >> 16 & 0xFFFF) + 1)
        return begun - ended

    def _moved(self, dim: int) -> NDArray[np.int32]:
        slot = self._orders[dim].slot
        return np.flatnonzero(self.dirty[slot, : self.n]).astype(np.int32)

    def _count_scan(self, boxes: Boxes, box: int, n: int) -> None:
        """Count a scan of n rows in each dimension of a box; sort dimensions scanned often."""
        for piece in range(int(boxes.start[box]), int(boxes.start[box + 1])):
            dim = _dim(boxes, piece)
            if dim not in self._orders:
                self._scanned[dim] = self._scanned.get(dim, 0) + n
                if self._scanned[dim] > _MAX_SCANS * n and n > _MIN_ORDERED:
                    self._sort(dim)

    def _count_moved(self, dim: int, n: int) -> None:
        self._scanned[dim] = self._scanned.get(dim, 0) + n
        if self._scanned[dim] > _MAX_SCANS * self.n_live:
            self._sort(dim)

    def _sort(self, dim: int) -> None:
        live = self.live()
        cells = self.cells[live, dim]
        low_end = (cells[:, 2] >> np.uint64(16)).astype(np.uint16)
        up_end = (cells[:, 2] & _LOW).astype(np.uint16)
        by_low = np.lexsort((low_end, cells[:, 0]))
        by_up = np.lexsort((up_end, cells[:, 1]))
        upper = cells[by_low, 1]
        rows = RowOrder(
            cells[by_low, 0],
            low_end[by_low],
            live[by_low],
            upper,
            cells[by_up, 1],
            up_end[by_up],
            live[by_up],
            *greatest(upper),
        )
        if dim in self._orders:
            slot = self._orders[dim].slot
            self.dirty[slot] = 0
        else:
            slot = len(self.dirty)
            fresh = np.zeros((1, len(self.cells)), np.uint8)
            self.dirty = np.concatenate([self.dirty.reshape(slot, len(self.cells)), fresh])
        self._orders[dim] = _Order(rows, slot)
        self.order_of[dim] = slot
        self._scanned[dim] = 0


def _dim(boxes: Boxes, piece: int) -> int:
    return int(boxes.pieces[piece, 2]) >> 32


def _pieces(boxes: Boxes, box: int, dim: int) -> list[int]:
    span = range(int(boxes.start[box]), int(boxes.start[box + 1]))
    return [piece for piece in span if _dim(boxes, piece) == dim]


def _position(highs: Words, lows: NDArray[np.uint16], high: int, low: int) -> int:
    """Return how many positions of a sorted list precede one."""
    first = int(np.searchsorted(highs, np.uint64(high), "left"))
    last = int(np.searchsorted(highs, np.uint64(high), "right"))
    return first + int(np.searchsorted(lows[first:last], low, "left"))
