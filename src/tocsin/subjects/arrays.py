"""The arrays of the kernels.

Boxes are numbered in order of insertion; subscriptions have the dense ids of the catalog. Lists
have the bounds of some boxes in order, dimension by dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Boxes(NamedTuple):
    """All boxes: the boxes of a subscription are contiguous, and the pieces of a box."""

    pieces: NDArray[np.uint64]
    """Three words each, ordered by box, dimension and position; see `positions`."""
    start: NDArray[np.int64]
    """Where the pieces of each box begin."""
    sub: NDArray[np.int32]
    region: NDArray[np.uint8]
    """The region of its subscription that a box belongs to."""


class Subscriptions(NamedTuple):
    """By dense id."""

    state: NDArray[np.uint8]
    """0: deleted; 1: one box; 2: several boxes or regions."""
    first: NDArray[np.int32]
    n_boxes: NDArray[np.int32]
    least: NDArray[np.int32]
    """How many regions must overlap; 0 if the terms decide."""
    term_start: NDArray[np.int32]
    n_terms: NDArray[np.int32]
    terms: NDArray[np.uint64]
    """Bit masks of the regions that must overlap, and of the others that must not."""
    stamp: NDArray[np.int64]
    """The last row for which a subscription was verified."""


class BoundLists(NamedTuple):
    """The bounds of some boxes: the lower ones of dimension d are list 2d, the upper ones 2d + 1.

    A list has distinct positions in order, each with the bounds at it.
    """

    start: NDArray[np.int64]
    """Start of each list's positions."""
    high: NDArray[np.uint64]
    low: NDArray[np.uint16]
    first: NDArray[np.int32]
    """Start of each position's bounds."""
    bounds: NDArray[np.uint64]
    """Five words each. Three are a piece of another dimension of the same box, or one that all
    overlap. The fourth is the upper part of the other bound of the piece that this is a bound of;
    the last one has its lower part in 16 bits, a bit that says whether these two pieces are all of
    the box, and above 32 bits its subscription if they are, else the box."""


class AccessLists(NamedTuple):
    """Some boxes, each under the pieces of one dimension, ordered by lower bounds."""

    start: NDArray[np.int64]
    """Start of each dimension."""
    high: NDArray[np.uint64]
    low: NDArray[np.uint16]
    upper: NDArray[np.uint64]
    """The upper part of the upper bound."""
    bounds: NDArray[np.uint64]
    """The words stored with the lower bound, as in `BoundLists`."""
    most: NDArray[np.uint64]
    """The greatest upper bounds of blocks of 16, 256 and 4,096 entries, concatenated."""
    level: NDArray[np.int64]
    """Start of each block size in `most`."""


class RowOrder(NamedTuple):
    """Rows in the order of their bounds in one dimension, as of the last sort."""

    low_high: NDArray[np.uint64]
    low_low: NDArray[np.uint16]
    low_row: NDArray[np.int32]
    low_upper: NDArray[np.uint64]
    """The upper part of the upper bound, in the order of lower bounds."""
    up_high: NDArray[np.uint64]
    up_low: NDArray[np.uint16]
    up_row: NDArray[np.int32]
    most: NDArray[np.uint64]
    """The greatest upper bounds of blocks of 16, 256 and 4,096 rows, concatenated."""
    level: NDArray[np.int64]


class PairBuffer(NamedTuple):
    """Output buffer of pairs: the index of a row in its batch, a subscription, a kind."""

    row: NDArray[np.int32]
    sub: NDArray[np.int32]
    kind: NDArray[np.int8]


class RowUpdates(NamedTuple):
    """New cells of rows: row `rows[i]` gets `cells[j, i]` in dimension `dims[j]`.

    If `unchanged` is not empty, cells for which it is nonzero stay as they are.
    """

    rows: NDArray[np.int32]
    dims: NDArray[np.int32]
    cells: NDArray[np.uint64]
    unchanged: NDArray[np.uint8]
