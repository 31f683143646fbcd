"""The arrays that kernels work on, by name.

Boxes are numbered in the order in which they came; subscriptions have the dense ids of the book.
Lists hold the bounds of some boxes, in order, dimension by dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Boxes(NamedTuple):
    """All boxes: those of one subscription stand together, and so do the pieces of one box."""

    pieces: NDArray[np.uint64]
    """Three words each, ordered by box, dimension and place; see `places`."""
    start: NDArray[np.int64]
    """Where the pieces of each box begin."""
    sub: NDArray[np.int32]
    region: NDArray[np.uint8]
    """Which region of its subscription a box is of."""


class Subscriptions(NamedTuple):
    """By dense id."""

    state: NDArray[np.uint8]
    """0: gone; 1: one box; 2: several boxes or regions."""
    first: NDArray[np.int32]
    n_boxes: NDArray[np.int32]
    least: NDArray[np.int32]
    """How many regions must be hit; 0 where the terms say it."""
    term_start: NDArray[np.int32]
    n_terms: NDArray[np.int32]
    terms: NDArray[np.uint64]
    """Which regions must be hit, and which must not."""
    stamp: NDArray[np.int64]
    """When a subscription was last looked at."""


class Lists(NamedTuple):
    """The bounds of some boxes: the lower ones of dimension d are list 2d, the upper ones 2d + 1.

    A list is of places, each with the bounds that are there.
    """

    start: NDArray[np.int64]
    """Where the places of each list begin."""
    high: NDArray[np.uint64]
    low: NDArray[np.uint16]
    first: NDArray[np.int32]
    """Where the bounds of each place begin."""
    bounds: NDArray[np.uint64]
    """Five words each. Three are a piece of another dimension of the same box, or one that all
    overlap. The fourth is the upper part of the other bound of the piece that this is a bound of;
    the last one has its lower part in 16 bits, a bit that says whether these two pieces are all of
    the box, and above 32 bits its subscription where they are, the box where they are not."""


class Homes(NamedTuple):
    """Some boxes, each under the pieces of one of its dimensions, ordered by lower bounds."""

    start: NDArray[np.int64]
    """Where each dimension begins."""
    high: NDArray[np.uint64]
    low: NDArray[np.uint16]
    upper: NDArray[np.uint64]
    """The upper part of the upper bound."""
    bounds: NDArray[np.uint64]
    """What stands beside the lower bound, as in `Lists`."""
    most: NDArray[np.uint64]
    """The greatest upper bounds of blocks of 16, 256 and 4,096 entries, one after another."""
    level: NDArray[np.int64]
    """Where the greatest ones of each size of block begin."""


class Rows(NamedTuple):
    """Rows in the order of their bounds in one dimension, as they were when they were ordered."""

    low_high: NDArray[np.uint64]
    low_low: NDArray[np.uint16]
    low_row: NDArray[np.int32]
    low_upper: NDArray[np.uint64]
    """The upper part of the upper bound, in the order of lower bounds."""
    up_high: NDArray[np.uint64]
    up_low: NDArray[np.uint16]
    up_row: NDArray[np.int32]
    most: NDArray[np.uint64]
    """The greatest upper bounds of blocks of 16, 256 and 4,096 rows, one after another."""
    level: NDArray[np.int64]


class Pairs(NamedTuple):
    """Room for what is found: the place of a row in its batch, a subscription, a kind."""

    row: NDArray[np.int32]
    sub: NDArray[np.int32]
    kind: NDArray[np.int8]


class Moves(NamedTuple):
    """Rows that are to move: row `chosen[i]` becomes `fresh[j, i]` in dimension `dims[j]`.

    Where `keep` is not empty, a cell stays as it is where it says so.
    """

    chosen: NDArray[np.int32]
    dims: NDArray[np.int32]
    fresh: NDArray[np.uint64]
    keep: NDArray[np.uint8]
