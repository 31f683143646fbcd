"""A batch as a segment sees it, made once for all segments that see it alike.

Enters: events and a cell space. Leaves, each when first asked for: cells by attribute; codes and
cells by event, as they stand or ordered by the prefix of a family.
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
from tocsin.engines.auto.buffer_pool import Rooms

_IN_PLACE = np.empty(0, np.int32)


class Rows(NamedTuple):
    """Events by row: their codes, and (where those say less) their cells."""

    codes: NDArray[np.uint16]
    cells: NDArray[np.int32]


class Ordered(NamedTuple):
    """Events in another order: the k-th row is that of event `order[k]`, with its prefix."""

    rows: Rows
    order: NDArray[np.int32]
    prefix_of: NDArray[np.int64]


class Prepared:
    """A batch in the cells of one space; not for several threads."""

    def __init__(self, events: EventBatch, space: CellSpace, rooms: Rooms | None = None) -> None:
        self.events = events
        self._rooms = rooms or Rooms()
        self._space = space
        self._rows: tuple[Coding, Rows] | None = None
        self._ordered: tuple[Coding, tuple[int, ...], Ordered] | None = None

    @cached_property
    def cells(self) -> NDArray[np.int32]:
        """The cells of the batch: a row per attribute, a column per event."""
        shape = len(self._space.attributes), len(self.events)
        return self._space.encode(self.events, _take(self._rooms, shape, np.int32))

    @cached_property
    def present(self) -> Present:
        """The cells of the values that are there, by attribute."""
        return self._space.encode_present(self.events)

    def rows_of(self, events: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the cells of some events, in order and without repetition, by row."""
        row_of = np.full(len(self.events), -1, np.int32)
        row_of[events] = np.arange(len(events), dtype=np.int32)
        rows = np.zeros((len(events), len(self._space.attributes)), np.int32)
        row_kernels.fill_rows(*self.present, row_of, rows)
        return rows

    def rows(self, coding: Coding, needs_cells: bool) -> Rows:
        """Return the batch by event."""
        if self._rows is None or self._rows[0] is not coding:
            self._rows = coding, to_rows(coding, self.cells, _IN_PLACE, needs_cells, self._rooms)
        return self._rows[1]

    def ordered(self, coding: Coding, keys: Keys, f: int, needs_cells: bool) -> Ordered:
        """Return the batch ordered by the prefix of a family."""
        prefix = tuple(keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]].tolist())
        known = self._ordered
        if known is None or known[0] is not coding or known[1] != prefix:
            n = len(self.events)
            order, place = np.empty(n, np.int32), np.empty(n, np.int32)
            prefix_of = np.empty(n, np.int64)
            row_kernels.sort_events(coding, keys, f, self.cells, order, place, prefix_of)
            rows = to_rows(coding, self.cells, place, needs_cells, self._rooms)
            known = self._ordered = coding, prefix, Ordered(rows, order, prefix_of)
        return known[2]


def to_rows(
    coding: Coding,
    cells: NDArray[np.int32],
    place: NDArray[np.int32] = _IN_PLACE,
    needs_cells: bool = False,
    rooms: Rooms | None = None,
) -> Rows:
    """Return events by row; event e becomes row `place[e]`, or where that is empty row e."""
    n_attributes, n = cells.shape
    rooms = rooms or Rooms()
    codes = _take(rooms, (n, max(n_attributes, 1)), np.uint16)
    if not n_attributes:
        codes[:] = 0
    rows = _take(rooms, (n if needs_cells else 0, codes.shape[1]), np.int32)
    row_kernels.to_rows(coding, cells, place, codes, rows)
    return Rows(codes, rows)


def _take(rooms: Rooms, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """Return a matrix, with anything in it."""
    n = shape[0] * shape[1]
    return rooms.take(n, dtype)[:n].reshape(shape)
