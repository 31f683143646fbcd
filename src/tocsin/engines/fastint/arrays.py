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

RANGE = 0
"""Kinds 0 to 3: an interval of a line (`normalize.lines.Line`)."""
STRING = 1
ABSENT = 4
PRESENT = 5
POINT = 6
"""One string alone; its cut is the lower bound."""

ALWAYS_NODE = 0
"""Where conjunctions without conditions are."""
BLOCK = 15
"""How many conjunctions a block holds; one more number leads to the next block."""

N_BLOCKS, N_ENTRIES, N_STALE = range(3)


class Rows(NamedTuple):
    """The intervals of all conjunctions."""

    attribute: NDArray[np.int32]
    kind: NDArray[np.int8]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    low_tail: NDArray[np.int16]
    high_tail: NDArray[np.int16]


def take_rows(rows: Rows, chosen: NDArray[Any]) -> Rows:
    """Return some of the rows."""
    return Rows._make(array[chosen] for array in rows)


class Slots(NamedTuple):
    """Where the rows of each conjunction are, and how many entries of nodes name it."""

    start: NDArray[np.int64]
    size: NDArray[np.int32]
    n_entries: NDArray[np.int32]
    owner: NDArray[np.int64]
    """The subscription, or -1 where the slot is free."""


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
