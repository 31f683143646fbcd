"""How the values of an attribute are separated into cells: evenly, or by where events lie.

Enters: the bounds of ranges, and, where there is one, a sample of events. Leaves: for each tree (an
attribute and a line) marks and shares: the share of events before a value, between 0 and 1. Cells
are halves of halves of that share (Zhao and Wu, section III-C, algorithm 3: a cell is divided at
the median of its events), so that one more level halves the events in a cell whatever they are.
Without a sample, shares grow evenly from the least bound to the greatest (section III-A).

Shares never fall as values grow, and values beyond the marks have cells of their own, so that a
value in a range is always in one of the range's cells.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.tama import kernels

MARGIN = 1 / 64
"""The share of cells reserved for values beyond the marks, at either end."""
_MOST_MARKS = 2048


class Values(NamedTuple):
    """Values of trees: of tree `tree[i]` the value `value[i]`."""

    tree: NDArray[np.int64]
    value: NDArray[np.float64]


class Separation(NamedTuple):
    """Marks and shares: those of tree t are from `start[t]` to `start[t + 1]`."""

    xs: NDArray[np.float64]
    shares: NDArray[np.float64]
    start: NDArray[np.int64]

    @property
    def n_trees(self) -> int:
        """How many trees are known."""
        return len(self.start) - 1

    def leaves(self, tree: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaves in which values lie."""
        numbers = np.empty(len(values), np.int64)
        kernels.find_leaves(*self, tree, values, numbers)
        return numbers


def nothing(n_trees: int) -> Separation:
    """Return a separation that tells no values apart."""
    none = np.empty(0, np.float64)
    return Separation(none, none, np.zeros(n_trees + 1, np.int64))


def separate(n_trees: int, bounds: Values, sample: Values | None) -> Separation:
    """Choose marks for all trees: by a sample of events, or else by the bounds of ranges."""
    sampled = _by_tree(n_trees, sample)
    bounded = _by_tree(n_trees, bounds)
    xs: list[NDArray[np.float64]] = []
    shares: list[NDArray[np.float64]] = []
    for of_events, of_ranges in zip(sampled, bounded, strict=True):
        if len(of_events) > 1 and of_events[0] < of_events[-1]:
            x, share = _marks_of(of_events)
        else:
            x, share = _even_marks(of_ranges)
        xs.append(x)
        shares.append(share)
    start = np.concatenate([[0], np.cumsum([len(x) for x in xs], dtype=np.int64)])
    none = np.empty(0, np.float64)
    return Separation(np.concatenate([none, *xs]), np.concatenate([none, *shares]), start)


def _by_tree(n_trees: int, bounds: Values | None) -> list[NDArray[np.float64]]:
    """Return the finite values of each tree, in order."""
    if bounds is None:
        return [np.empty(0, np.float64)] * n_trees
    finite = np.isfinite(bounds.value)
    tree, value = bounds.tree[finite], bounds.value[finite]
    order = np.lexsort((value, tree))
    ends = np.searchsorted(tree[order], np.arange(n_trees + 1))
    return [value[order[a:b]] for a, b in pairwise(ends.tolist())]


def _even_marks(ordered: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not len(ordered):
        return ordered, ordered
    return _closed(np.unique(ordered[[0, -1]]), np.array([0.0, 1.0]))


def _marks_of(ordered: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return some values of events, and the shares of events before them."""
    places = np.unique(np.linspace(0, len(ordered) - 1, _MOST_MARKS).astype(np.int64))
    x, first = np.unique(ordered[places], return_index=True)
    return _closed(x, places[first] / (len(ordered) - 1))


def _closed(
    x: NDArray[np.float64], share: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Leave a margin at either end; values after the last mark are separated from it."""
    share = MARGIN + share[: len(x)] * (1 - 2 * MARGIN)
    with np.errstate(over="ignore"):
        beyond = np.nextafter(x[-1], np.inf)
    if not np.isfinite(beyond):
        return x, share
    return np.append(x, beyond), np.append(share, share[-1])
