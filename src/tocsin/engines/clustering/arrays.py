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
BLOCK = 8
"""How many events look into the tables at a time."""
STRIPE = 512
"""How many entries of a cluster are looked at before those that may hold are followed up."""
GUESS = 0.5
"""The share of events thought to satisfy a predicate that is no equality."""

POOL_USED, N_SLOTS, FREE_SLOT, N_CLUSTERS, FREE_CLUSTER, N_ACCESS, FREE_ACCESS = range(7)
"""Places in `Held.state`; `FREE_…` is the first of a list of free rows, or -1."""

SUBSCRIPTION, SIBLING, OWNER, RUN, SIZE, CLUSTER, POSITION = range(7)
"""Columns of `Held.conjunctions`: the dense id (-1: a free row), the next conjunction of the same
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


class Held(NamedTuple):
    """Conjunctions by slot, and the pool."""

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

    There is a bit for each predicate, and for each event of a block a predicate for each dimension,
    both clean between calls; room for all clusters, for each event of a block all tables, and the
    entries of two stripes.
    """

    bits: Bits
    point: Numbers
    candidates: Numbers
    order: Numbers
    probes: Integers
    passed: NDArray[np.uint64]
