"""The arrays of the matching tree, by name: what kernels take, and the columns of each.

Nothing but names; `kernels` says what they mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]
Scalar: TypeAlias = Any

LEAF = 1 << 30
"""The level of a leaf."""
NONE = -1
"""No node, no entry; as the label of a node: it is reached by a don't-care edge."""

SET = 2
"""The sort of a test that many values satisfy."""

# Columns of a node. A leaf's FIRST is its first entry, an inner node's the start of its list.
LEVEL, STAR, FIRST, N_SETS, FILTER, FILTER2, N_EDGES, ROOM = range(8)
# Of a leaf, which has no edges to filter: the conjunction of the first entry, most often the only;
# and how many entries, from the first on, lie one before the other.
HEAD, N_ADJACENT = FILTER, FILTER2
# Columns of `lists` and of `entries`.
LOW, HIGH, REACH, TEST, CHILD = range(5)
CONJUNCTION, AT, NEXT, BEFORE, TWIN = range(5)
# What `counts` counts: used so far (freed ones included), first of the free chain, live.
N_NODES, FREE_NODE, N_LIVE, N_SLOTS, N_BLOCKS, N_ENTRIES, FREE_ENTRY, WIDEST, FREE_BLOCK = range(9)
N_COUNTS = FREE_BLOCK + 32


class Tree(NamedTuple):
    """The arrays of a tree; they have room to grow, and `counts` says how much is used."""

    roots: Numbers
    nodes: NDArray[np.int32]
    parent: Numbers
    label: Numbers
    slots: NDArray[np.int64]
    lists: NDArray[np.int64]
    entries: NDArray[np.int32]
    counts: Integers


class Tests(NamedTuple):
    """The tests: each holds between the cuts of its ranges; `mark` gives the order of cuts."""

    level: Numbers
    sort: NDArray[np.uint8]
    start: Integers
    low: Numbers
    high: Numbers
    mark: Integers


class Cells(NamedTuple):
    """The two tests of one value that may hold from one cut to the next."""

    value: Numbers
    unit: Numbers


class Runs(NamedTuple):
    """Conjunctions: each a run of tests, and the chain of its entries."""

    start: Integers
    test: Numbers
    first_entry: Numbers


class Factors(NamedTuple):
    """The index attributes: levels 0, 1, …, each with the tests that have a subtree of their own.

    `test[start[i] + d]` is the test of digit d; digit 0 is "any other value" and has none. `digit`
    is the other way round, by test; `sort` is that of all the tests of a level.
    """

    start: Integers
    test: Numbers
    stride: Integers
    digit: Numbers
    sort: NDArray[np.uint8]


class Successors(NamedTuple):
    """Where a search goes on from a node where it is blocked; all empty without annotations.

    Those of node v are `node[span[v, 0] : span[v, 1]]`, inverted if reached by a don't-care edge.
    `is_gap[v]`: levels were left out above v, so that they come at once.
    `is_plain[level]`: an event follows at most one edge there, besides the don't-care edge.
    """

    span: NDArray[np.int64]
    node: Numbers
    is_gap: NDArray[np.bool_]
    is_plain: NDArray[np.bool_]
