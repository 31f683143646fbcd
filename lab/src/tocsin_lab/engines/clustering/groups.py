"""Groups: the sets of equalities that conjunctions could be kept under.

Enters: the predicates of conjunctions. Leaves: for each conjunction its groups of two to four
equalities, each with its schema and the share of events that satisfies it. This is GA(S) and GP(s)
of Fabret et al., section 3.2.

Deviations: groups have at most four equalities, and only the six most selective of a conjunction
are taken, so that a conjunction has at most 50. Shares multiply, as if attributes were independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.clustering.arrays import MAX_SCHEMA
from tocsin_lab.engines.clustering.predicates import PredicateBook

_MOST = 6
"""How many equalities of a conjunction are looked at."""
_BITS = 16
_DIMENSIONS = (1 << _BITS) - 1


class Groups(NamedTuple):
    """Groups of conjunctions: `conjunction` is a place among those given.

    `schema` is a place in `codes`; see `decode`. `key` numbers the distinct groups, `schema_of_key`
    gives their schemas.
    """

    conjunction: NDArray[np.int64]
    schema: NDArray[np.int64]
    share: NDArray[np.float64]
    key: NDArray[np.int64]
    schema_of_key: NDArray[np.int64]
    codes: NDArray[np.uint64]

    def product(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each schema the product of the values of its dimensions."""
        result = np.ones(len(self.codes))
        for i in range(MAX_SCHEMA):
            dimension = ((self.codes >> np.uint64(_BITS * i)) & np.uint64(_DIMENSIONS)).astype(int)
            result *= np.where(dimension, values[dimension - 1], 1.0)
        return result

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many dimensions each schema has."""
        fields = [self.codes >> np.uint64(_BITS * i) for i in range(MAX_SCHEMA)]
        counts: NDArray[np.int64]
        counts = np.sum([field & np.uint64(_DIMENSIONS) > 0 for field in fields], axis=0)
        return counts


def groups_of(
    book: PredicateBook,
    predicates: NDArray[np.int32],
    sizes: NDArray[np.int32],
    has_keys: bool = True,
) -> Groups:
    """Return the groups of conjunctions, given their predicates one after another.

    Without keys, `key` and `schema_of_key` are empty.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    dimension = book.dimension[predicates]
    points = np.flatnonzero((dimension >= 0) & (dimension < _DIMENSIONS))
    points = _most_selective(owner, book.shares(predicates), points)
    points = points[np.lexsort((dimension[points], owner[points]))]
    counts = np.bincount(owner[points], minlength=len(sizes))
    starts = np.cumsum(counts) - counts
    parts = []
    for n in range(2, _MOST + 1):
        chosen = np.flatnonzero(counts == n)
        matrix = predicates[points[starts[chosen][:, None] + np.arange(n)]]
        for size in range(2, min(n, MAX_SCHEMA) + 1):
            for columns in combinations(range(n), size):
                parts += [_part(book, chosen, matrix[:, columns])]
    return _number(parts, has_keys)


def _most_selective(
    owner: NDArray[np.int64], shares: NDArray[np.float64], points: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Keep the most selective points of each owner."""
    points = points[np.lexsort((shares[points], owner[points]))]
    first = np.searchsorted(owner[points], owner[points], side="left")
    return points[np.arange(len(points)) - first < _MOST]


def _part(
    book: PredicateBook, chosen: NDArray[np.int64], members: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.float64], NDArray[np.uint64]]:
    """Return conjunction, coded schema, share and hashed key of groups with these members."""
    code = np.zeros(len(members), np.uint64)
    key = np.zeros(len(members), np.uint64)
    for i in range(members.shape[1]):
        dimension = book.dimension[members[:, i]].astype(np.uint64) + np.uint64(1)
        code |= dimension << np.uint64(_BITS * i)
        key = (key ^ members[:, i].astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(29)
    shares = book.shares(members.ravel()).reshape(members.shape).prod(axis=1)
    return chosen, code, shares, key


def _number(parts: Sequence[tuple[NDArray[Any], ...]], has_keys: bool) -> Groups:
    conjunction, code, share, key = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes, schema = np.unique(code, return_inverse=True)
    key = key if has_keys else key[:0]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return Groups(conjunction, schema, share, number, schema[first], codes)


def encode(schema: Sequence[int]) -> int:
    """Return the code of a schema: its dimensions in ascending order, in 16 bits each."""
    return sum((dimension + 1) << (_BITS * i) for i, dimension in enumerate(schema))


def decode(code: int) -> tuple[int, ...]:
    """Return the dimensions of a coded schema."""
    fields = [(code >> (_BITS * i)) & _DIMENSIONS for i in range(MAX_SCHEMA)]
    return tuple(field - 1 for field in fields if field)
