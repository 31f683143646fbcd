"""Positions: the cuts of all domains of a dimension, in one order.

Enters: cuts as `normalize.keys` encodes them, with their domain. Leaves: positions, pairs of 64 and
16 bits ordered as the cuts are, with "absent" and "of no domain" (NaN, lists) before the domains.
So a value, a range and a condition are all ranges of positions, whatever their kinds, and from here
on every comparison is one of integers.

The upper three bits are the *zone*; the key follows, and its last three bits and the offset make
the lower part. A range of positions is a *cell*: the upper parts of its two ends, and a word with
both lower parts. A *piece* is a cell with its dimension in the same word.

Strings are encoded by *labels*, integers that a dimension assigns to its strings in their order. A
new string gets a label between those of its neighbours; if none is free, all strings get new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.normalize.domains import Domain

ABSENT_ZONE = 0
OTHER_ZONE = 1
FIRST_DOMAIN = 2
"""The zone of numbers; the other domains follow."""
STRING_ZONE = FIRST_DOMAIN + Domain.STRING
_END_ZONE = FIRST_DOMAIN + len(Domain)
_SHIFT = 61
_MASK = (1 << _SHIFT) - 1
_HALF = 1 << 63
_OFFSET_BITS = 13

Words: TypeAlias = NDArray[np.uint64]
Position: TypeAlias = tuple[int, int]
Cell: TypeAlias = tuple[int, int, int]


def position(zone: int, key: int, offset: int) -> Position:
    """Return the position of a cut."""
    raised = key + _HALF
    return zone << _SHIFT | raised >> 3, (raised & 7) << _OFFSET_BITS | offset


def positions(
    zone: int | NDArray[np.integer], key: NDArray[np.int64], offset: NDArray[np.integer]
) -> tuple[Words, Words]:
    """Return the positions of many cuts."""
    raised = np.ascontiguousarray(key).view(np.uint64) ^ np.uint64(_HALF)
    zones = np.asarray(zone).astype(np.uint64) << np.uint64(_SHIFT)
    lower = (raised & np.uint64(7)) << np.uint64(_OFFSET_BITS) | offset.astype(np.uint64)
    return zones | raised >> np.uint64(3), lower


def cut_of(upper: int, lower: int) -> tuple[int, int, int]:
    """Return the zone, key and offset of a position."""
    raised = (upper & _MASK) << 3 | lower >> _OFFSET_BITS
    return upper >> _SHIFT, raised - _HALF, lower & ((1 << _OFFSET_BITS) - 1)


def cell(low: Position, high: Position) -> Cell:
    """Return the cell between two positions."""
    return low[0], high[0], low[1] << 16 | high[1]


def point(zone: int, key: int, offset: int = 0) -> Cell:
    """Return the cell of one value, given the cut before it."""
    upper, lower = position(zone, key, offset)
    return upper, upper, lower << 16 | (lower + 1)


def words_of(cells: Collection[Cell]) -> Words:
    """Return cells as an array, three words each."""
    return np.fromiter(chain.from_iterable(cells), np.uint64, 3 * len(cells)).reshape(-1, 3)


def points(zone: int, key: NDArray[np.int64], offset: NDArray[np.integer]) -> Words:
    """Return the cells of many values, three words each."""
    upper, lower = positions(zone, key, offset)
    cells = np.empty((len(key), 3), np.uint64)
    cells[:, 0] = cells[:, 1] = upper
    cells[:, 2] = lower << np.uint64(16) | (lower + np.uint64(1))
    return cells


ABSENT: Cell = (ABSENT_ZONE << _SHIFT, ABSENT_ZONE << _SHIFT, 1)
OTHER: Cell = (OTHER_ZONE << _SHIFT, OTHER_ZONE << _SHIFT, 1)
PRESENT: Cell = (OTHER_ZONE << _SHIFT, _END_ZONE << _SHIFT, 0)
"""Any present value."""
FULL: Cell = (0, _END_ZONE << _SHIFT, 0)
"""Any value, or absent."""
NOTHING: Cell = (_END_ZONE << _SHIFT, 0, 0)
"""Overlaps nothing: the cell of a deleted publication."""


class Labels:
    """The strings of a dimension, in order, and integers in the same order."""

    _LAST = 1 << 60
    _STEP = 1 << 36

    def __init__(self, strings: Iterable[str] = (), labels: Iterable[int] = ()) -> None:
        self.strings: list[str] = list(strings)
        self.labels: list[int] = list(labels)
        self.label_of: dict[str, int] = dict(zip(self.strings, self.labels, strict=True))

    def add(self, text: str) -> None:
        """Assign a label to a new string; raise `LabelsExhausted` if none is free."""
        at = bisect_left(self.strings, text)
        if not self.strings:
            label = self._LAST // 2
        elif at == len(self.strings):
            last = self.labels[-1]
            label = last + min(self._STEP, (self._LAST - last) // 2)
        elif at == 0:
            first = self.labels[0]
            label = first - min(self._STEP, first // 2)
        else:
            label = (self.labels[at - 1] + self.labels[at]) // 2
        if (at and label <= self.labels[at - 1]) or (
            at < len(self.labels) and label >= self.labels[at]
        ):
            raise LabelsExhausted
        self.strings.insert(at, text)
        self.labels.insert(at, label)
        self.label_of[text] = label

    def spread(self, more: Iterable[str] = ()) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Assign new labels to all strings and some new ones; return the old and the new labels.

        Both are in order.
        """
        old_strings, old = self.strings, np.array(self.labels, np.int64)
        self.strings = sorted({*old_strings, *more})
        gap = self._LAST // (len(self.strings) + 1)
        self.labels = [gap * (at + 1) for at in range(len(self.strings))]
        self.label_of = dict(zip(self.strings, self.labels, strict=True))
        return old, np.array([self.label_of[text] for text in old_strings], np.int64)


class LabelsExhausted(Exception):
    """No label is free between two neighbouring strings."""


def relabel(
    upper: Words, lower: Words, old: NDArray[np.int64], new: NDArray[np.int64]
) -> tuple[Words, Words]:
    """Return positions with the labels of strings replaced; others stay as they are."""
    raised = (upper & np.uint64(_MASK)) << np.uint64(3) | lower >> np.uint64(_OFFSET_BITS)
    keys = (raised ^ np.uint64(_HALF)).view(np.int64)
    is_label = (upper >> np.uint64(_SHIFT) == STRING_ZONE) & (keys >= 0) & (keys <= Labels._LAST)
    if not is_label.any():
        return upper, lower
    at = np.searchsorted(old, keys[is_label])
    offsets = lower[is_label] & np.uint64((1 << _OFFSET_BITS) - 1)
    upper, lower = upper.copy(), lower.copy()
    upper[is_label], lower[is_label] = positions(STRING_ZONE, new[at], offsets)
    return upper, lower
