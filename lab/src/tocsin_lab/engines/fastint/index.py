"""Trees and nodes: which conjunctions a value of one attribute leads to.

Enters: rows of conjunctions. Leaves: for each attribute and line a balanced tree over intervals
between bounds; a conjunction's interval is held by the few nodes that make it up, so that the sets
along the way from a leaf to the root are the paper's S for a value there, and the sum of their
sizes its C (Jayaram et al., Beretta, section 5.3).

Bounds are chosen when the trees are built, among those of the rows: all where they are few, every
64th where they are many. Intervals that come later, or end within a leaf, are held by all leaves
that they touch. Candidates are verified against the rows, so that this costs time, not truth.
Conjunctions that were deleted or moved stay in the nodes until the trees are rebuilt, which is when
these are too many, or when there are twice as many conjunctions as there were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin_lab.engines.fastint import kernels
from tocsin_lab.engines.fastint.arrays import BLOCK, N_BLOCKS, N_ENTRIES, N_STALE, Nodes, Trees
from tocsin_lab.engines.intervals.arrays import (
    ABSENT,
    POINT,
    RUN,
    SIZE_MASK,
    STRING,
    RowArrays,
    Rows,
    take_rows,
    unpack,
)
from tocsin_lab.engines.tree.growing import grown
from tocsin_lab.engines.tree.places import Places

_ALL = 4096
"""Up to how many bounds of a line become bounds of leaves."""
_PER_LEAF = 64
"""How many bounds share a leaf where there are more."""
_SPARE = 1024
"""The least number of stale entries that has the trees rebuilt."""
_NONE = np.empty(0, np.int64)


class SvTrees:
    """The trees of all attributes, and the nodes of conditions that are no interval."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.n_built = 0
        self._clear(0)

    def _clear(self, n_attributes: int) -> None:
        """Start with a tree of one leaf for each attribute and line."""
        self.n_attributes = 0
        self.n_nodes = 1
        self.trees = Trees(
            start=np.zeros(1, np.int64),
            bounds=_NONE,
            size=_NONE,
            node=_NONE,
            mark=self._places.mark,
            point_node=np.full(max(len(self._places.mark), 64), -1, np.int64),
            ends_node=_NONE,
        )
        self.nodes = Nodes(
            head=np.full(64, -1, np.int32),
            total=np.zeros(64, np.int32),
            blocks=np.empty((64, BLOCK + 1), np.int32),
            state=np.zeros(3, np.int64),
        )
        self.make_room(n_attributes)

    def make_room(self, n_attributes: int) -> None:
        """Add trees of one leaf for new attributes."""
        more = n_attributes - self.n_attributes
        if more > 0:
            t = self.trees
            first = self.n_nodes + np.arange(more, dtype=np.int64) * 10
            self.trees = t._replace(
                start=np.append(t.start, np.full(4 * more, t.start[-1])),
                size=np.append(t.size, np.ones(4 * more, np.int64)),
                node=np.append(t.node, (first[:, None] + 2 * np.arange(4)).ravel()),
                ends_node=np.append(t.ends_node, first + 8),
            )
            self.n_attributes = n_attributes
            self._add_nodes(10 * more)
        self._follow_marks()

    def _follow_marks(self) -> None:
        """Look at the marks as they are now."""
        t, mark = self.trees, self._places.mark
        if len(t.point_node) < len(mark):
            point_node = np.append(t.point_node, np.full(len(mark) - len(t.point_node), -1))
            t = t._replace(point_node=point_node)
        self.trees = t._replace(mark=mark)

    def _add_nodes(self, n: int) -> None:
        first, self.n_nodes = self.n_nodes, self.n_nodes + n
        head, count = grown(self.nodes.head, self.n_nodes), grown(self.nodes.total, self.n_nodes)
        head[first:], count[first:] = -1, 0
        self.nodes = self.nodes._replace(head=head, total=count)

    def name_points(self, cuts: NDArray[np.int64]) -> None:
        """Give each string that is named by itself a node."""
        new = np.unique(cuts)
        new = new[self.trees.point_node[new] < 0]
        self.trees.point_node[new] = self.n_nodes + np.arange(len(new))
        self._add_nodes(len(new))

    def append(self, arrays: RowArrays, chosen: NDArray[np.int64]) -> None:
        """Add conjunctions to the trees."""
        done = 0
        while True:
            done = kernels.enter(self.trees, self.nodes, *arrays, chosen, done, kernels.APPEND)
            if done == len(chosen):
                return
            self._make_blocks(130 * (int(arrays.slots[chosen[done], RUN] & SIZE_MASK) + 1))

    def move(self, arrays: RowArrays, slot: int, row: int, bounds: tuple[int, int, int]) -> None:
        """Give a row of a conjunction other bounds, in place."""
        self._make_blocks(130)
        kernels.move_row(self.trees, self.nodes, arrays.rows, arrays.n_entries, slot, row, *bounds)

    def _make_blocks(self, n: int) -> None:
        needed = int(self.nodes.state[N_BLOCKS]) + n
        if needed > len(self.nodes.blocks):
            self.nodes = self.nodes._replace(blocks=grown(self.nodes.blocks, needed))

    def note_stale(self, n: int) -> None:
        """Count entries of conjunctions that are gone."""
        self.nodes.state[N_STALE] += n

    def is_due(self, n_live: int) -> bool:
        """Whether the trees are to be rebuilt."""
        if self._places.is_spread:
            return True
        stale, entries = int(self.nodes.state[N_STALE]), int(self.nodes.state[N_ENTRIES])
        return 2 * stale > entries + _SPARE or n_live >= 2 * max(self.n_built, 32)

    def build(self, arrays: RowArrays, live: NDArray[np.int64]) -> None:
        """Build the trees for some conjunctions."""
        self._places.is_spread = False
        self._clear(len(self._places.attributes))
        self.n_built = len(live)
        rows = unpack(arrays.rows[arrays.places(live)])
        self._choose_bounds(take_rows(rows, rows.kind < ABSENT))
        self.name_points(rows.low[rows.kind == POINT])
        kernels.enter(self.trees, self.nodes, *arrays, live, 0, kernels.COUNT)
        n_blocks = -(-self.nodes.total[: self.n_nodes].astype(np.int64) // BLOCK)
        self.nodes.head[: self.n_nodes] = np.cumsum(n_blocks) - n_blocks
        self.nodes.total[:] = 0
        self._make_blocks(int(n_blocks.sum()) + 1)
        self.nodes.state[N_BLOCKS] = n_blocks.sum()
        kernels.enter(self.trees, self.nodes, *arrays, live, 0, kernels.FILL)

    def _choose_bounds(self, rows: Rows) -> None:
        """Choose the bounds between leaves, and lay out the trees."""
        tree = rows.attribute.astype(np.int64) * 4 + rows.kind
        low, high = rows.low, rows.high
        named = rows.kind == STRING
        low[named], high[named] = self._places.mark[low[named]], self._places.mark[high[named]]
        tree, keys = np.concatenate([tree, tree]), np.concatenate([low, high])
        inner = (keys != INT64_MIN) & (keys != INT64_MAX)
        tree, keys = tree[inner], keys[inner]
        order = np.lexsort((keys, tree))
        tree, keys = tree[order], keys[order]
        is_new = np.ones(len(keys), np.bool_)
        is_new[1:] = (keys[1:] != keys[:-1]) | (tree[1:] != tree[:-1])
        tree, keys = tree[is_new], keys[is_new]
        n_trees = 4 * self.n_attributes
        counts = np.bincount(tree, minlength=n_trees)
        place = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = np.maximum(counts // np.maximum(_ALL, counts // _PER_LEAF), 1)
        kept = place % step[tree] == 0
        counts = np.bincount(tree[kept], minlength=n_trees)
        size = 1 << np.ceil(np.log2(counts + 1)).astype(np.int64)
        node = self.n_nodes + np.cumsum(2 * size) - 2 * size
        self.trees = self.trees._replace(
            start=np.concatenate([[0], np.cumsum(counts)]), bounds=keys[kept], size=size, node=node
        )
        self._add_nodes(int(2 * size.sum()))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        own = (*self.nodes, *self.trees)
        return sum(array.nbytes for array in own) - self.trees.mark.nbytes
