"""The matching tree in arrays: a forest with one tree for each combination of index values.

Enters: conjunctions as runs of tests, in the order of levels; cuts of events. Leaves: the
conjunctions that each event satisfies. The kernels stop where an array is full; here arrays are
doubled and the kernels go on. Each attribute has its level (see `order`); without index attributes
there is one tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.tree import arrays, kernels, search_kernels
from tocsin_lab.engines.tree.arrays import Cells, Factors, Runs, Successors, Tests, Tree
from tocsin_lab.engines.tree.conditions import SET, TestBook
from tocsin_lab.engines.tree.growing import grown
from tocsin_lab.engines.tree.options import TreeOptions

_MAX_SUCCESSORS = 8
"""How many successors a node may have on average; beyond that there are no annotations."""
_ANNOTATE_FROM = 16
"""How many nodes of a changed tree pay for one matched event before it is annotated again."""

_SORT_FROM, _SORT_DEPTH = 1000, 4
"""From this number on, conjunctions are inserted in the order of the first tests of their paths."""

_MAX_COPIES = 16
"""How many leaves a conjunction may be in on average, because of index attributes."""

_NO_SUCCESSORS = Successors(
    np.empty((0, 2), np.int64), np.empty(0, np.int32), np.empty(0, np.bool_), np.empty(0, np.bool_)
)


class Conjunctions:
    """The conjunctions that are kept: runs of tests by number, whether they still count or not."""

    def __init__(self) -> None:
        self.n = 0
        self.start = np.zeros(65, np.int64)
        self.test = np.empty(64, np.int32)
        self.first_entry = np.empty(64, np.int32)

    def add(self, counts: NDArray[np.int64], tests: NDArray[np.int32]) -> NDArray[np.int64]:
        """Add runs of tests; return their numbers."""
        first, self.n = self.n, self.n + len(counts)
        self.start = grown(self.start, self.n + 1)
        begin = int(self.start[first])
        self.start[first + 1 : self.n + 1] = begin + np.cumsum(counts)
        self.test = grown(self.test, begin + len(tests))
        self.test[begin : begin + len(tests)] = tests
        self.first_entry = grown(self.first_entry, self.n)
        self.first_entry[first : self.n] = arrays.NONE
        return np.arange(first, self.n)

    @property
    def runs(self) -> Runs:
        """The arrays as kernels take them."""
        return Runs(self.start, self.test, self.first_entry)

    def tests_of(self, conjunction: int) -> NDArray[np.int32]:
        """Return the tests of one conjunction."""
        return self.test[self.start[conjunction] : self.start[conjunction + 1]]


class Forest:
    """The trees below the roots, and the conjunctions in their leaves."""

    def __init__(
        self,
        book: TestBook,
        options: TreeOptions,
        order: NDArray[np.int64],
        index: list[NDArray[np.int32]],
    ) -> None:
        """Make empty trees: the attributes in order, the values of the first as tests."""
        self.book = book
        self.options = options
        self.kept = Conjunctions()
        self.n_levels = 0
        self.level_of = np.empty(0, np.int32)
        self._test_level = np.empty(64, np.int32)
        self._n_test_levels = 0
        self._digit = np.zeros(64, np.int32)
        self.factors = self._factor(index)
        self.tree = _empty_tree(int(np.prod([len(values) + 1 for values in index], dtype=np.int64)))
        self._after = _NO_SUCCESSORS
        self._is_stale, self._n_since = True, 0
        self._stack = np.empty(64, np.int32)
        self._found = np.empty(1024, np.int32)
        self.n_visits = 0
        self._add_levels(order)

    def _factor(self, index: list[NDArray[np.int32]]) -> Factors:
        sizes = [len(values) + 1 for values in index]
        stride = np.array([np.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int64)
        digit = np.zeros(max(self.book.n, 64), np.int32)
        for values in index:
            digit[values] = np.arange(1, len(values) + 1)
        tests = [np.insert(values, 0, arrays.NONE) for values in index]
        return Factors(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate([np.empty(0, np.int32), *tests]).astype(np.int32),
            stride,
            digit,
            np.array([self.book.sort[values[0]] for values in index], np.uint8),
        )

    def _add_levels(self, attributes: NDArray[np.int64]) -> None:
        n = len(self.book.places.attributes)
        known = len(self.level_of)
        self.level_of = np.concatenate([self.level_of, np.full(n - known, -1, np.int32)])
        self.level_of[attributes] = self.n_levels + np.arange(len(attributes))
        self.n_levels += len(attributes)

    def catch_up(self) -> None:
        """Take notice of new attributes, tests and cuts; those attributes come last."""
        new = np.flatnonzero(self.level_of < 0)
        n = len(self.book.places.attributes)
        self._add_levels(np.concatenate([new, np.arange(len(self.level_of), n)]))
        first, last = self._n_test_levels, self.book.n
        if last > first:
            self._test_level = grown(self._test_level, last)
            self._test_level[first:last] = self.level_of[self.book.attribute[first:last]]
            digit = grown(self.factors.digit, last)
            digit[max(first, len(self.factors.digit)) :] = 0
            self.factors = self.factors._replace(digit=digit)
            self._n_test_levels = last
        if self.book.places.is_spread:
            kernels.refresh_bounds(self.tree, self.tests)
            self.book.places.is_spread = False

    @property
    def tests(self) -> Tests:
        """The tests as kernels take them."""
        book = self.book
        return Tests(
            self._test_level,
            book.sort,
            book.start,
            book.low,
            book.high,
            book.places.mark,
        )

    def insert(
        self, counts: NDArray[np.int64], conjunction: NDArray[np.int64], tests: NDArray[np.int32]
    ) -> bool:
        """Insert conjunctions; `conjunction` says to which of them each test belongs.

        Returns whether they are inserted: not when that would take too many copies of them.
        """
        self.catch_up()
        order = np.lexsort((self._test_level[tests], conjunction))
        numbers = self.kept.add(counts, tests[order])
        chosen, roots = self._roots_of(numbers)
        if not len(chosen):
            return not len(numbers)
        if len(chosen) >= _SORT_FROM:
            order = self._path_order(chosen, roots)
            chosen, roots = chosen[order], roots[order]
        reached = 0
        all_tests = self.tests
        while True:
            reached = kernels.insert(
                self.tree,
                all_tests,
                self.factors,
                self.kept.runs,
                chosen,
                roots,
                self.options.collapse,
                self.options.implied,
                self.n_levels,
                reached,
            )
            if reached == len(chosen):
                break
            self._grow(int(np.diff(self.kept.start[chosen[reached] :][:2])[0]))
        self._is_stale, self._n_since = True, 0
        return True

    def _roots_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the roots below which conjunctions belong, several with index attributes.

        None are returned where there would be too many copies.
        """
        if not len(self.factors.stride):
            return numbers, np.zeros(len(numbers), np.int64)
        runs, tests = self.kept.runs, self.tests
        none = np.empty(0, np.int64)
        n_roots = len(self.tree.roots)
        limit = _MAX_COPIES * (self.kept.n + 100) - int(self.tree.counts[arrays.N_ENTRIES])
        n = kernels.spread(tests, self.factors, runs, numbers, n_roots, limit, none, none)
        if n > limit:
            return none, none
        chosen, roots = np.empty(n, np.int64), np.empty(n, np.int64)
        kernels.spread(tests, self.factors, runs, numbers, n_roots, limit, chosen, roots)
        return chosen, roots

    def _path_order(self, chosen: NDArray[np.int64], roots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the order of paths, so that nodes of one branch get numbers near each other.

        Tests of index attributes, which come first, lead to the root and not below it.
        """
        start, n = self.kept.start[chosen], np.diff(self.kept.start)[chosen]
        for _ in self.factors.stride:
            first = self.kept.test[np.where(n > 0, start, 0)]
            is_above = (n > 0) & (self._test_level[first] < len(self.factors.stride))
            start, n = start + is_above, n - is_above
        keys: list[NDArray[Any]] = []
        for depth in range(_SORT_DEPTH - 1, -1, -1):
            has = n > depth
            test = self.kept.test[np.where(has, start + depth, 0)]
            keys += [np.where(has, test, -1), np.where(has, self._test_level[test], -1)]
        return np.lexsort((*keys, roots))

    def _grow(self, n_tests: int) -> None:
        """Make room for another conjunction at least."""
        tree, counts = self.tree, self.tree.counts
        n_nodes = n_tests + 2 + self.n_levels
        nodes = tree.nodes
        if counts[arrays.N_NODES] + n_nodes > len(nodes):
            n = 2 * len(nodes) + n_nodes
            tree = tree._replace(
                nodes=grown(nodes, n), parent=grown(tree.parent, n), label=grown(tree.label, n)
            )
        if counts[arrays.N_ENTRIES] == len(tree.entries):
            tree = tree._replace(entries=grown(tree.entries, 2 * len(tree.entries)))
        n_blocks = counts[arrays.N_BLOCKS] + 2 * n_tests * (counts[arrays.WIDEST] + 1)
        if n_blocks > len(tree.lists):
            tree = tree._replace(lists=grown(tree.lists, int(n_blocks)))
        while 2 * (counts[arrays.N_SLOTS] + n_nodes) > len(tree.slots):
            slots = np.full((2 * len(tree.slots), 2), arrays.NONE, np.int64)
            kernels.move_pairs(tree.slots, slots)
            tree = tree._replace(slots=slots)
        self.tree = tree

    def delete(self, conjunctions: NDArray[np.int64]) -> None:
        """Delete conjunctions."""
        kernels.delete(self.tree, self.tests, self.kept.runs, conjunctions, self.options.collapse)
        self._is_stale, self._n_since = True, 0

    @property
    def n_nodes(self) -> int:
        """How many nodes there are, leaves included."""
        return int(self.tree.counts[arrays.N_LIVE])

    def match(self, events: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the conjunctions that each event satisfies; valid until the next call.

        `events` has a row of cuts for each event, by level.
        """
        self._annotate(len(events))
        self._stack = grown(self._stack, 2 * int(self.tree.counts[arrays.N_NODES]) + 64)
        places = self.book.places
        cells = Cells(places.value, places.unit)
        offsets = np.zeros(len(events) + 1, np.int64)
        visits = np.zeros(1, np.int64)
        arguments = (self.tree, self.tests, cells, self.factors)
        reached = 0
        while True:
            room: Any = (events, self._stack, self._found, offsets, visits, reached)
            if len(self._after.is_gap):
                reached = search_kernels.match_annotated(*arguments, self._after, *room)
            else:
                reached = search_kernels.match(*arguments, *room)
            if reached == len(events):
                self.n_visits = int(visits[0])
                return offsets, self._found[: offsets[-1]]
            self._found = grown(self._found, 2 * len(self._found))

    def _annotate(self, n_events: int) -> None:
        """Update the successors, when the events matched since make that worth it."""
        if not self.options.successors or not self._is_stale:
            return
        self._after = _NO_SUCCESSORS
        self._n_since += n_events
        if self._n_since * _ANNOTATE_FROM < self.n_nodes:
            return
        self._is_stale, self._n_since = False, 0
        tree = self.tree
        n = int(tree.counts[arrays.N_NODES])
        live = np.flatnonzero(tree.nodes[:n, arrays.LEVEL] != arrays.NONE)
        live = live[live > 0]
        parent = tree.parent[live]
        above = np.where(parent < 0, -1, tree.nodes[parent, arrays.LEVEL])
        after = Successors(
            np.zeros((n, 2), np.int64),
            np.empty(_MAX_SUCCESSORS * len(live) + 64, np.int32),
            np.zeros(n, np.bool_),
            self._plain_levels(),
        )
        stack = np.empty(2 * n + 64, np.int32)
        if search_kernels.annotate(tree, live[np.argsort(above, kind="stable")], after, stack) >= 0:
            self._after = after

    def _plain_levels(self) -> NDArray[np.bool_]:
        """Say at which levels an event follows at most one edge, besides the don't-care edge."""
        n, book = self._n_test_levels, self.book
        sorts = np.zeros((self.n_levels, 3), np.bool_)
        sorts[self._test_level[:n], book.sort[:n]] = True
        return ~(sorts[:, SET] | (sorts[:, 0] & sorts[:, 1]))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays: list[NDArray[Any]] = [*self.tree, *self.kept.runs, *self.factors, *self._after]
        own = sum(array.nbytes for array in arrays)
        return own + self._test_level.nbytes + self._stack.nbytes + self._found.nbytes


def _empty_tree(n_roots: int) -> Tree:
    counts = np.zeros(arrays.N_COUNTS, np.int64)
    counts[arrays.FREE_BLOCK :] = arrays.NONE
    counts[[arrays.FREE_NODE, arrays.FREE_ENTRY]] = arrays.NONE
    counts[arrays.N_NODES] = 1  # node 0 stays unused, so that no inverted node is NONE
    return Tree(
        roots=np.full(n_roots, arrays.NONE, np.int32),
        nodes=np.zeros((64, 8), np.int32),
        parent=np.zeros(64, np.int32),
        label=np.zeros(64, np.int32),
        slots=np.full((128, 2), arrays.NONE, np.int64),
        lists=np.empty((16, 5), np.int64),
        entries=np.empty((64, 5), np.int32),
        counts=counts,
    )
