"""What the engines that split conjunctions by attribute share, by name: rows, slots, events.

A *row* is one interval of one condition: an attribute, a kind, and two bounds. Rows of one
conjunction lie together, those of one attribute next to each other; a condition holds if one of its
rows does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STRING = 1
"""Kinds 0 to 3 are intervals of a line (`normalize.domains.Line`); this one is of strings."""
ABSENT = 4
PRESENT = 5
POINT = 6
"""One string alone; its cut is the lower bound."""

WHAT, LOW, HIGH, TAILS = range(4)
"""Where a stored row has its attribute and kind, its bounds, and the tails of these."""
RUN, SEEN = range(2)
"""Where a slot has the place of its rows, and the stamp of the event that last looked at it."""
SIZE_BITS = 24
"""A run is the place of the first row with the number of rows in its lowest bits."""
SIZE_MASK = (1 << SIZE_BITS) - 1


class Rows(NamedTuple):
    """Intervals of conjunctions by the column, as they come."""

    attribute: NDArray[np.int32]
    kind: NDArray[np.int8]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    low_offset: NDArray[np.int16]
    high_offset: NDArray[np.int16]


def pack(rows: Rows) -> NDArray[np.int64]:
    """Return rows as they are stored: four numbers each."""
    packed = np.empty((len(rows.kind), 4), np.int64)
    packed[:, WHAT] = rows.attribute.astype(np.int64) << 8 | rows.kind
    packed[:, LOW], packed[:, HIGH] = rows.low, rows.high
    packed[:, TAILS] = rows.low_offset.astype(np.int64) << 16 | rows.high_offset
    return packed


def unpack(packed: NDArray[np.int64]) -> Rows:
    """Undo `pack`."""
    return Rows(
        (packed[:, WHAT] >> 8).astype(np.int32),
        (packed[:, WHAT] & 0xFF).astype(np.int8),
        packed[:, LOW],
        packed[:, HIGH],
        (packed[:, TAILS] >> 16).astype(np.int16),
        (packed[:, TAILS] & 0xFFFF).astype(np.int16),
    )


def take_rows(rows: Rows, chosen: NDArray[Any]) -> Rows:
    """Return some of the rows."""
    return Rows._make(array[chosen] for array in rows)


class Events(NamedTuple):
    """Encoded events, a row each: where the value of each attribute lies.

    `kind` is the line, `ABSENT`, or `PRESENT` for a value of no line. The key of a string is the
    number of the last cut at or before it.
    """

    kind: NDArray[np.int8]
    key: NDArray[np.int64]
    offset: NDArray[np.int16]


class RowArrays(NamedTuple):
    """The rows of all conjunctions, their slots, and how many entries of nodes name each."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    n_entries: NDArray[np.int32]

    def sizes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows conjunctions have."""
        sizes: NDArray[np.int64] = self.slots[slots, RUN] & SIZE_MASK
        return sizes

    def places(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the rows of conjunctions are, one conjunction after another."""
        sizes = self.sizes(slots)
        start = (self.slots[slots, RUN] >> SIZE_BITS) - np.cumsum(sizes) + sizes
        return np.repeat(start, sizes) + np.arange(sizes.sum())
