"""A batch in the cells of one space, prepared once for all segments that share the space.

Enters: events and a cell space. Leaves, each computed on first use: cells by attribute; codes and
cells by event, in the order of the batch or sorted by the prefix of a family.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace, Present
from tocsin.encode.events import EventBatch
from tocsin.engines.auto import row_kernels
from tocsin.engines.auto.arrays import Coding, Keys
from tocsin.engines.auto.buffer_pool import BufferPool

_IN_PLACE = np.empty(0, np.int32)


class Rows(NamedTuple):
    """Events by row: their codes, and their cells, or none where codes are cells."""

    codes: NDArray[np.uint16]
    cells: NDArray[np.int32]


class OrderedRows(NamedTuple):
    """Events in another order: the k-th row is that of event `order[k]`, with its prefix."""

    rows: Rows
    order: NDArray[np.int32]
    prefix_of: NDArray[np.int64]


class PreparedBatch:
    """A batch in the cells of one space; for one thread."""

    def __init__(
        self, events: EventBatch, space: CellSpace, pool: BufferPool | None = None
    ) -> None:
        self.events = events
        self._pool = pool or BufferPool()
        self._space = space
        self._rows: tuple[Coding, Rows] | None = None
        self._ordered: tuple[Coding, tuple[int, ...], OrderedRows] | None = None

    @cached_property
    def cells(self) -> NDArray[np.int32]:
        """The cells of the batch: a row per attribute, a column per event."""
        shape = len(self._space.attributes), len(self.events)
        return self._space.encode(self.events, _acquire(self._pool, shape, np.int32))

    @cached_property
    def present(self) -> Present:
        """The cells of the present values, by attribute."""
        return self._space.encode_present(self.events)

    def rows_of(self, events: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the cells of some events, which are sorted and distinct, by row."""
        row_of = np.full(len(self.events), -1, np.int32)
        row_of[events] = np.arange(len(events), dtype=np.int32)
        rows = np.zeros((len(events), len(self._space.attributes)), np.int32)
        row_kernels.fill_rows(*self.present, row_of, rows)
        return rows

    def rows(self, coding: Coding, needs_cells: bool) -> Rows:
        """Return the batch by event."""
        if self._rows is None or self._rows[0] is not coding:
            self._rows = coding, to_rows(coding, self.cells, _IN_PLACE, needs_cells, self._pool)
        return self._rows[1]

    def ordered(self, coding: Coding, keys: Keys, f: int, needs_cells: bool) -> OrderedRows:
        """Return the batch sorted by the prefix of a family."""
        prefix = tuple(keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]].tolist())
        cached = self._ordered
        if cached is None or cached[0] is not coding or cached[1] != prefix:
            n = len(self.events)
            order, place = np.empty(n, np.int32), np.empty(n, np.int32)
            prefix_of = np.empty(n, np.int64)
            row_kernels.sort_events(coding, keys, f, self.cells, order, place, prefix_of)
            rows = to_rows(coding, self.cells, place, needs_cells, self._pool)
            cached = self._ordered = coding, prefix, OrderedRows(rows, order, prefix_of)
        return cached[2]


def to_rows(
    coding: Coding,
    cells: NDArray[np.int32],
    place: NDArray[np.int32] = _IN_PLACE,
    needs_cells: bool = False,
    pool: BufferPool | None = None,
) -> Rows:
    """Return events by row; event e becomes row `place[e]`, or row e where `place` is empty."""
    n_attributes, n = cells.shape
    pool = pool or BufferPool()
    codes = _acquire(pool, (n, max(n_attributes, 1)), np.uint16)
    if not n_attributes:
        codes[:] = 0
    rows = _acquire(pool, (n if needs_cells else 0, codes.shape[1]), np.int32)
    row_kernels.to_rows(coding, cells, place, codes, rows)
    return Rows(codes, rows)


def _acquire(pool: BufferPool, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """Return an uninitialized matrix."""
    n = shape[0] * shape[1]
    return pool.acquire(n, dtype)[:n].reshape(shape)
