"""Events → the predicates they satisfy: the first phase of every engine here.

Enters: the predicates of a book, and events. Leaves: for each event of a chunk the numbers of the
predicates that it satisfies. Follows Fabret et al., section 2.2: one index for each attribute,
hash tables for equalities and B-trees for the rest. Ours deviates in form: values become cells
(`encode.cells`), and an attribute's index is an interval tree over its cells (see
`predicate_kernels`), of which the leaves are the hash table.

New cut points change cells. So the index is a list of *generations*, each with cells of its own;
new predicates become a generation at the next match, and generations are merged by size, which
costs each predicate a logarithmic number of rebuilds. Predicates that are no longer used are
dropped when their generation is rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import ABSENT_CELL, CellSpace
from tocsin.encode.events import EventBatch, read_value
from tocsin_lab.engines.clustering import predicate_kernels as kernels
from tocsin_lab.engines.clustering.predicate_kernels import Trees
from tocsin_lab.engines.clustering.predicates import PredicateBook

CHUNK = 1024
"""How many events are taken through both phases at a time."""
_FEW_UNUSED = 256
"""How many predicates may be unused before the index is rebuilt: until then events satisfy them.
"""
_SAMPLE = 4096
"""How many events statistics are made of."""


class Satisfied(NamedTuple):
    """The predicates that the events of a chunk satisfy, by generation g and event k.

    They are `predicates[ends[g, k] : ends[g, k + 1]]`.
    """

    predicates: NDArray[np.int32]
    ends: NDArray[np.int64]


class Chunk(NamedTuple):
    """A chunk of events in the second phase: what they satisfy, how many are done, where to write.

    `out` takes conjunctions, `offsets` where those of each event end.
    """

    satisfied: Satisfied
    done: int
    out: NDArray[np.int32]
    offsets: NDArray[np.int64]


class Generation:
    """The index of some predicates; never changed once built."""

    def __init__(self, book: PredicateBook, predicates: NDArray[np.int32]) -> None:
        self.predicates = predicates
        table = book.table_of(predicates)
        self.space = CellSpace(table)
        self.trees = _plant(self.space, table.attribute, predicates)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.space.nbytes + sum(array.nbytes for array in self.trees))


class PredicateIndex:
    """Generations of predicates, and statistics of events."""

    def __init__(self, book: PredicateBook) -> None:
        self._book = book
        self._generations: list[Generation] = []
        self._room = np.empty(CHUNK * 16, np.int32)
        self._sample: EventBatch | None = None
        self._presence: dict[str, float] = {}

    @property
    def has_sample(self) -> bool:
        """Whether shares are measured rather than guessed."""
        return self._sample is not None

    def flush(self) -> None:
        """Index the predicates that are new; merge generations of a size."""
        book = self._book
        if book.fresh:
            fresh = np.concatenate(book.fresh)
            book.fresh.clear()
            self._add(fresh)
        n_known = sum(len(g.predicates) for g in self._generations)
        if book.n_unused > max(n_known // 4, _FEW_UNUSED):
            self._merge(len(self._generations))
        while len(self._generations) > 1 and (
            len(self._generations[-2].predicates) < 2 * len(self._generations[-1].predicates)
        ):
            self._merge(2)

    def _add(self, predicates: NDArray[np.int32]) -> None:
        is_used = self._book.uses[predicates] > 0
        self._book.drop(predicates[~is_used])
        if is_used.any():
            self._generations.append(Generation(self._book, predicates[is_used]))
            self._measure(self._generations[-1])

    def _merge(self, n: int) -> None:
        merged = self._generations[len(self._generations) - n :]
        del self._generations[len(self._generations) - n :]
        predicates = np.concatenate([g.predicates for g in merged])
        is_used = self._book.uses[predicates] > 0
        self._book.drop(predicates[~is_used])
        if is_used.any():
            self._generations.append(Generation(self._book, predicates[is_used]))

    def profile(self, events: EventBatch) -> None:
        """Measure the shares of predicates on a sample, now and whenever some are new."""
        self.flush()
        names = {name for g in self._generations for name in g.space.attributes}
        self._sample = events.readable_sample(_SAMPLE, names)
        self._presence.clear()
        for generation in self._generations:
            if self._sample is None:
                self._book.share[generation.predicates] = -1.0
            self._measure(generation)

    def presence(self, attribute: str) -> float:
        """Return the share of events that have an attribute; all, when nothing is known."""
        return self._presence.get(attribute, 1.0)

    def _measure(self, generation: Generation) -> None:
        if self._sample is None:
            return
        cells = generation.space.encode(self._sample)
        n = cells.shape[1]
        for name, row in zip(generation.space.attributes, cells, strict=True):
            self._presence[name] = np.count_nonzero(row != ABSENT_CELL) / n
        counts = np.zeros(self._book.room, np.int64)
        for first in range(0, n, CHUNK):
            predicates = self._find(generation, cells, first, min(CHUNK, n - first))
            counts += np.bincount(predicates, minlength=len(counts))
        chosen = generation.predicates
        self._book.share[chosen] = (counts[chosen] + 0.5) / (n + 1.0)

    def _find(
        self, generation: Generation, cells: NDArray[np.int32], first: int, n: int
    ) -> NDArray[np.int32]:
        ends = np.zeros(n + 1, np.int64)
        self._satisfy(generation, cells, first, ends)
        return self._room[: ends[-1]]

    def encode(self, events: EventBatch) -> list[NDArray[np.int32]]:
        """Return the cells of a batch for each generation."""
        return [generation.space.encode(events) for generation in self._generations]

    def encode_one(self, event: Mapping[str, object]) -> list[NDArray[np.int32]]:
        """Return the cells of one event for each generation."""
        rows = []
        for generation in self._generations:
            space = generation.space
            names = enumerate(space.attributes)
            row = [space.encode_value(at, read_value(event, name)) for at, name in names]
            rows.append(np.array(row, np.int32).reshape(-1, 1))
        return rows

    def satisfied(self, cells: list[NDArray[np.int32]], first: int, n: int) -> Satisfied:
        """Return what n events, from `first` on, satisfy; valid until the next call."""
        ends = np.zeros((len(cells), n + 1), np.int64)
        following = np.int64(0)
        for generation, rows, row in zip(self._generations, cells, ends, strict=True):
            row[0] = following
            self._satisfy(generation, rows, first, row)
            following = row[-1]
        return Satisfied(self._room, ends)

    def _satisfy(
        self,
        generation: Generation,
        cells: NDArray[np.int32],
        first: int,
        ends: NDArray[np.int64],
    ) -> None:
        done = 0
        while True:
            done = kernels.find_satisfied(generation.trees, cells, first, ends, done, self._room)
            if done == len(ends) - 1:
                return
            self._room = np.append(self._room, np.empty(len(self._room), np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(generation.nbytes for generation in self._generations)

    def check(self) -> None:
        """Verify that each predicate that exists is in one generation, or is new."""
        known = [g.predicates for g in self._generations] + self._book.fresh
        numbers = np.sort(np.concatenate([*known, np.empty(0, np.int32)]))
        assert np.array_equal(numbers, self._book.existing()), "a predicate is not indexed once"


def _plant(space: CellSpace, attribute: NDArray[np.int32], predicates: NDArray[np.int32]) -> Trees:
    """Lay out the interval trees of a space's conditions."""
    counts = np.diff(space.range_start)
    column = np.repeat(attribute.astype(np.int64), counts)
    item = np.repeat(predicates, counts)
    low, last = space.range_low.astype(np.int64), space.range_high.astype(np.int64) - 1
    n_leaves = np.array([1 << int(n - 1).bit_length() for n in space.n_cells], np.int64)
    first_node = np.cumsum(2 * n_leaves) - 2 * n_leaves
    level = np.frexp((low ^ last).astype(np.float64))[1].astype(np.int64)
    node = first_node[column] + ((n_leaves[column] + low) >> level)
    height = np.zeros(len(n_leaves), np.int64)
    np.maximum.at(height, column, level)
    n_nodes = int(2 * n_leaves.sum())
    node_start = np.zeros(n_nodes + 2, np.int64)
    np.cumsum(np.bincount(node, minlength=n_nodes), out=node_start[1:-1])
    node_start[-1] = node_start[-2]
    up, down = np.lexsort((low, node)), np.lexsort((-last, node))
    return Trees(
        first_node=first_node,
        n_leaves=n_leaves,
        height=height,
        node_start=node_start,
        by_low=item[up],
        low=space.range_low[up],
        by_high=item[down],
        high=space.range_high[down],
    )
