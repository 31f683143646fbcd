"""The arrays of the `fastint` engine, by name; kernels and drivers share them.

A *node* holds a set of conjunctions, in blocks. Each attribute has a tree of nodes for each domain,
a node for conditions that admit an absent value and one for conditions that admit any present
value; each string that a condition names by itself has a node of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ALWAYS_NODE = 0
"""Where conjunctions without conditions are."""
BLOCK = 15
"""How many conjunctions a block holds; one more number leads to the next block."""

N_BLOCKS, N_ENTRIES, N_STALE = range(3)


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
