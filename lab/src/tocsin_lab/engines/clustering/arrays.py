"""The arrays of the second phase, by name: what kernels take, and the columns of each.

Nothing but names. All that varies in length lies in one *pool* of 32-bit numbers: the predicates of
a conjunction, the association list of a predicate, the columns of a cluster. A *block* is some
columns of equal capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]
Bits: TypeAlias = NDArray[np.uint8]
Shares: TypeAlias = NDArray[np.float64]
Scalar: TypeAlias = Any

TRUE = 0
"""The predicate that always holds."""
MAX_SCHEMA = 4
"""How many attributes a table's schema may have."""
UNFOLD = 16
"""How many entries of a column make a cache line."""
STRIPE = 512
"""How many entries of a cluster are filtered before the survivors are verified."""
WAITING = 128
"""How many survivors are worth verifying together."""
GAP = 12
"""How many looks into tables there are between two steps of one."""
N_KEYS = 32
"""How many keys of looks are kept: a power of two, and more than two gaps."""
FEW_BLOCKS = 16
"""How many cache lines the first column of a small cluster has at most."""
N_BLOCKS = 1024
"""How many of them an event has room for."""
PLACE_BITS = 32
PLACE = (1 << PLACE_BITS) - 1
"""The bits of a place in the pool, where the row of a cluster stands above it."""
GUESS = 0.5
"""The share of events thought to satisfy a predicate that is no equality."""

POOL_USED, N_SLOTS, FREE_SLOT, N_CLUSTERS, FREE_CLUSTER, N_ACCESS, FREE_ACCESS = range(7)
"""Places in `Arena.state`; `FREE_…` is the first of a list of free rows, or -1."""

SUBSCRIPTION, SIBLING, OWNER, RUN, SIZE, CLUSTER, POSITION = range(7)
"""Columns of `Arena.conjunctions`: the dense id (-1: a free row), the next conjunction of the same
subscription (or the next free row), the first one; where its predicates are, and how many; its
cluster, and its position there."""

BASE, CAPACITY, COUNT, N_LEFT, ACCESS, NEXT, SEEN = range(7)
"""Columns of blocks: where it starts, for how many entries it has room, how many it has. Clusters
also have how many predicates are left to check, the access predicate, the next cluster under it,
and a number that is 0 when they are made and otherwise left to the engine."""

TABLE, HEAD, CHAIN, POPULATION = range(MAX_SCHEMA, MAX_SCHEMA + 4)
"""Columns of access predicates, after the predicates they are made of: the table (-1: a predicate
by itself), the first cluster, the next in the same bucket (or the next free row), and how many
conjunctions they lead to."""

N_KEY = TABLE + 1
"""The column of a key, after its predicates and its table, that says how many predicates it has."""


class Arena(NamedTuple):
    """Conjunctions by slot, and the pool that their runs are allocated from."""

    pool: Numbers
    free: Integers
    state: Integers
    conjunctions: Numbers


class Clustering(NamedTuple):
    """Clusters, access predicates, and the tables that find them.

    `schemas[t]` is how many dimensions table t has (0: there is none), and which. `access_of` gives
    the access predicate made of one predicate alone; the others are found by hashing.
    """

    clusters: Numbers
    access: Numbers
    bucket: Numbers
    access_of: Numbers
    schemas: Numbers
    dimension: Numbers
    share: Shares
    n_points: Integers


class Scratch(NamedTuple):
    """Room that matching uses.

    There is a byte for each predicate, a bit for each of the first `MOST_BITS`, and a predicate for
    each dimension: all clean between calls. There is room for the predicates of a conjunction, for
    keys of looks, for all tables and events of a chunk, for all clusters of two events, for blocks
    of their columns, and for the entries that wait and those of a stripe.
    """

    bits: Bits
    words: NDArray[np.uint32]
    point: Numbers
    order: Numbers
    keys: Numbers
    probes: Numbers
    candidates: Numbers
    blocks: NDArray[np.uint64]
    passed: NDArray[np.uint64]
