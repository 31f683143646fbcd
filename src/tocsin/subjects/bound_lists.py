"""Boxes → sorted lists of their bounds.

Enters: some boxes. Leaves: `BoundLists`, the lower and the upper bounds of each dimension in order
(Leung and Jacobsen, section 5.5: there two skip lists a dimension, here two sorted arrays, in which
the bounds between two values are a contiguous run), and `AccessLists`, each box under its most
selective dimension. With a bound are stored the other bound of its piece and a piece of another
dimension of its box. Most boxes whose bound is crossed are rejected by these without reading the
box, and a box of no more than these two pieces is never read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.subjects.arrays import AccessLists, BoundLists, Boxes
from tocsin.subjects.positions import FIRST_DOMAIN, FULL, Words

_LOW = np.uint64(0xFFFF)
_BLOCKS = (4, 8, 12)
"""Blocks of 16, 256 and 4,096."""


class _Pieces(NamedTuple):
    """The pieces of some boxes, in order."""

    words: Words
    dim: NDArray[np.int64]
    box: NDArray[np.int64]

    @property
    def n_dims(self) -> int:
        return int(self.dim.max()) + 1 if len(self.dim) else 0


def make_bound_lists(boxes: Boxes, subset: NDArray[np.int64]) -> tuple[BoundLists, AccessLists]:
    """Return the bound lists and the access lists of some boxes."""
    piece, box = _pieces_of(boxes, subset)
    words = boxes.pieces[piece]
    pieces = _Pieces(words, (words[:, 2] >> np.uint64(32)).astype(np.int64), box)
    number = np.concatenate([2 * pieces.dim, 2 * pieces.dim + 1])
    high = np.concatenate([words[:, 0], words[:, 1]])
    low = np.concatenate([words[:, 2] >> np.uint64(16), words[:, 2]]) & _LOW
    order = np.lexsort((low, high, number))
    start = _starts(number, 2 * pieces.n_dims)
    cost = _costs(words, order, start)
    context = _others(*pieces, cost), _owners(boxes, pieces.dim, box)
    bounds = _bounds(pieces, *context, order)
    is_home = np.zeros(len(order), np.bool_)
    is_home[_access_pieces(pieces.dim, box, cost)] = True
    home = order[is_home[order]]
    number, high, low = number[order], high[order], low[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (number[1:] != number[:-1]) | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = np.flatnonzero(is_new)
    positions = np.searchsorted(first, start)
    first_of = np.append(first, len(order)).astype(np.int32)
    lists = BoundLists(positions, high[first], low[first].astype(np.uint16), first_of, bounds)
    return lists, _make_access_lists(pieces, home, _bounds(pieces, *context, home))


def _bounds(pieces: _Pieces, others: Words, owners: Words, order: NDArray[np.int64]) -> Words:
    """Return the words stored with bounds; numbers from `len(pieces.dim)` on are upper bounds."""
    n = len(pieces.dim)
    is_up, at = order >= n, order % max(n, 1)
    low, high, ends = (pieces.words[at, k] for k in range(3))
    bounds = np.empty((len(order), 5), np.uint64)
    bounds[:, :3] = others[at]
    bounds[:, 3] = np.where(is_up, low, high)
    bounds[:, 4] = owners[at] | np.where(is_up, ends >> np.uint64(16), ends) & _LOW
    return bounds


def _starts(number: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return where each of n numbers begins when they are in order."""
    start = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(number, minlength=n), out=start[1:])
    return start


def _owners(boxes: Boxes, dim: NDArray[np.int64], box: NDArray[np.int64]) -> Words:
    """Return the owner of each piece, in the layout of `BoundLists.bounds`."""
    n = len(dim)
    if not n:
        return np.empty(0, np.uint64)
    begins = np.flatnonzero(np.diff(box, prepend=-1))
    counts = np.diff(begins, append=n)
    is_whole = (counts == 1) | ((counts == 2) & (dim[begins] != dim[begins + counts - 1]))
    owner = np.where(is_whole, boxes.sub[box[begins]], box[begins]).astype(np.uint64)
    return np.repeat(owner << np.uint64(32) | is_whole.astype(np.uint64) << np.uint64(16), counts)


def _pieces_of(
    boxes: Boxes, subset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of some boxes, and the box of each."""
    first = boxes.start[subset]
    counts = boxes.start[subset + 1] - first
    before = np.cumsum(counts) - counts
    piece = np.repeat(first - before, counts) + np.arange(counts.sum())
    return piece, np.repeat(subset, counts)


def _costs(words: Words, order: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of the bounds of its dimension that lie within each piece."""
    cost = np.ones(len(words))
    for d in range(len(start) // 2):
        here = order[start[2 * d] : start[2 * d + 1]]
        lows = words[here, 0]
        width = np.searchsorted(lows, words[here, 1]) - np.searchsorted(lows, lows)
        cost[here] = (width + 1) / (len(here) + 1)
    is_value = words[:, 0] >> np.uint64(61) >= FIRST_DOMAIN  # absent is frequent
    return np.where(is_value, cost, 2.0)


def _others(
    words: Words, dim: NDArray[np.int64], box: NDArray[np.int64], cost: NDArray[np.float64]
) -> Words:
    """Return for each piece one of another dimension that a match of its box must overlap."""
    n = len(dim)
    others = np.empty((n, 3), np.uint64)
    others[:] = np.array(FULL, np.uint64)
    if not n:
        return others
    is_new = np.ones(n, np.bool_)
    is_new[1:] = (box[1:] != box[:-1]) | (dim[1:] != dim[:-1])
    is_single = is_new.copy()
    is_single[:-1] &= is_new[1:]
    single = np.flatnonzero(is_single)
    order = single[np.lexsort((cost[single], box[single]))]  # the cheapest of each box first
    of = box[order]
    is_first = np.ones(len(of), np.bool_)
    is_first[1:] = of[1:] != of[:-1]
    firsts = np.flatnonzero(is_first)
    best = np.full(int(box[-1]) + 1, -1)
    second = best.copy()
    best[of[firsts]] = order[firsts]
    has_second = firsts[(firsts + 1 < len(of))]
    has_second = has_second[of[has_second + 1] == of[has_second]]
    second[of[has_second]] = order[has_second + 1]
    other = best[box]
    own = (other >= 0) & (dim[other] == dim)
    other = np.where(own, second[box], other)
    has_other = other >= 0
    others[has_other] = words[other[has_other]]
    return others


def _make_access_lists(pieces: _Pieces, home: NDArray[np.int64], bounds: Words) -> AccessLists:
    """Return the access lists of boxes under some of their pieces, which are in order."""
    words, dim = pieces.words[home], pieces.dim[home]
    upper = np.ascontiguousarray(words[:, 1])
    return AccessLists(
        _starts(dim, pieces.n_dims),
        np.ascontiguousarray(words[:, 0]),
        (words[:, 2] >> np.uint64(16) & _LOW).astype(np.uint16),
        upper,
        bounds,
        *greatest(upper),
    )


def _access_pieces(
    dim: NDArray[np.int64], box: NDArray[np.int64], cost: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the pieces under which boxes are stored: all pieces of one dimension of each box."""
    n = len(dim)
    if not n:
        return np.empty(0, np.int64)
    is_new = np.ones(n, np.bool_)
    is_new[1:] = (box[1:] != box[:-1]) | (dim[1:] != dim[:-1])
    first = np.flatnonzero(is_new)
    total = np.add.reduceat(cost, first)
    order = np.lexsort((total, box[first]))
    owner = box[first][order]
    is_best = np.ones(len(owner), np.bool_)
    is_best[1:] = owner[1:] != owner[:-1]
    is_access = np.zeros(len(first), np.bool_)
    is_access[order[is_best]] = True
    return np.flatnonzero(np.repeat(is_access, np.diff(first, append=n)))


def greatest(upper: Words) -> tuple[Words, NDArray[np.int64]]:
    """Return the greatest upper bounds of blocks, and where those of each size begin."""
    parts: list[Words] = []
    level = []
    for shift in _BLOCKS:
        level.append(sum(len(part) for part in parts))
        if len(upper):
            parts.append(np.maximum.reduceat(upper, np.arange(0, len(upper), 1 << shift)))
    greatest_of_blocks = np.concatenate([np.empty(0, np.uint64), *parts])
    return greatest_of_blocks, np.array(level, np.int64)
