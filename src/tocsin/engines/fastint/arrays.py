"""The arrays of the `fastint` engine, by name; kernels and drivers share them.

A *row* is one interval of one condition (the paper's `vals`): an attribute, a kind, and two bounds.
Rows of one conjunction lie together, those of one attribute next to each other; a condition holds
if one of its rows does. A *node* holds a set of conjunctions, in blocks. Each attribute has a tree
of nodes for each line, a node for conditions that admit an absent value and one for those that
admit any present value; each string that a condition names by itself has a node of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STRING = 1
"""Kinds 0 to 3 are intervals of a line (`normalize.lines.Line`); this one is of strings."""
ABSENT = 4
PRESENT = 5
POINT = 6
"""One string alone; its cut is the lower bound."""

WHAT, LOW, HIGH, TAILS = range(4)
"""Where a row that is held has its attribute and kind, its bounds, and the tails of these."""
RUN, SEEN = range(2)
"""Where a slot has the place of its rows, and the stamp of the event that last looked at it."""
SIZE_BITS = 24
"""A run is the place of the first row with the number of rows in its lowest bits."""

ALWAYS_NODE = 0
"""Where conjunctions without conditions are."""
BLOCK = 15
"""How many conjunctions a block holds; one more number leads to the next block."""

N_BLOCKS, N_ENTRIES, N_STALE = range(3)


class Rows(NamedTuple):
    """Intervals of conjunctions by the column, as they come."""

    attribute: NDArray[np.int32]
    kind: NDArray[np.int8]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    low_tail: NDArray[np.int16]
    high_tail: NDArray[np.int16]


def pack(rows: Rows) -> NDArray[np.int64]:
    """Return rows as they are held: four numbers each."""
    packed = np.empty((len(rows.kind), 4), np.int64)
    packed[:, WHAT] = rows.attribute.astype(np.int64) << 8 | rows.kind
    packed[:, LOW], packed[:, HIGH] = rows.low, rows.high
    packed[:, TAILS] = rows.low_tail.astype(np.int64) << 16 | rows.high_tail
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


class Trees(NamedTuple):
    """The trees: number 4 × attribute + line.

    The leaves of tree t are the intervals between `bounds[start[t] : start[t + 1]]`, as many as
    `size[t]`, a power of two, allows; its nodes are numbered as those of a heap, from
    `node[t] + 1` on. Coordinates are keys; on the line of strings they are marks of cuts.
    """

    start: NDArray[np.int64]
    bounds: NDArray[np.int64]
    size: NDArray[np.int64]
    node: NDArray[np.int64]
    mark: NDArray[np.int64]
    point_node: NDArray[np.int64]
    """By the cut before a string: its node, or -1."""
    ends_node: NDArray[np.int64]
    """By attribute: the node of conditions that admit absence; the next is that of presence."""


class Nodes(NamedTuple):
    """Sets of conjunctions: the newest block of each node, and how many it holds in all."""

    head: NDArray[np.int32]
    total: NDArray[np.int32]
    blocks: NDArray[np.int32]
    state: NDArray[np.int64]


class Events(NamedTuple):
    """Encoded events, a row each: where the value of each attribute lies.

    `kind` is the line, `ABSENT`, or `PRESENT` for a value of no line. The key of a string is the
    number of the last cut at or before it.
    """

    kind: NDArray[np.int8]
    key: NDArray[np.int64]
    tail: NDArray[np.int16]
