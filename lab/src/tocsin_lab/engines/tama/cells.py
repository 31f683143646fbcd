"""Rows → cells: what a conjunction is entered under, and what an event is looked up by.

Enters: rows of conjunctions, and events (`intervals.arrays`). Leaves: `Items`: ranges of cells, and
exact keys: single values, absence, presence (Zhao and Wu, section III-B.1). A value by
itself is a key, and so is the interval from an integer to the next, which is the floor of its
values. The pieces of one condition that share a cell are joined, so that an event counts it once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import floats_of
from tocsin_lab.engines.intervals.arrays import ABSENT, POINT, PRESENT, Events, Rows
from tocsin_lab.engines.tama.kernels import (
    ABSENT_KEYS,
    DEEPEST,
    NO_LEVEL,
    POINT_KEYS,
    PRESENT_KEYS,
    UNIT_KEYS,
)
from tocsin_lab.engines.tama.separation import Separation, Values

_EXACT = 2.0**53
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_ODD_2 = 0x2545F4914F6CDD1D
_NO_UNIT = INT64_MIN
NONE = np.empty(0, np.int64)


class Items(NamedTuple):
    """What conjunctions are entered under: ranges of cells of a level, or keys of no level."""

    slot: NDArray[np.int64]
    tree: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    level: NDArray[np.int64]


class Ranges(NamedTuple):
    """Intervals on lines: the tree, the least and the greatest value, and the condition of each."""

    tree: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    condition: NDArray[np.int64]


class Split:
    """The rows of some conjunctions, split into ranges and keys."""

    def __init__(self, rows: Rows, sizes: NDArray[np.int64], mark: NDArray[np.int64]) -> None:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        is_first = np.ones(len(owner), np.bool_)
        is_first[1:] = (owner[1:] != owner[:-1]) | (rows.attribute[1:] != rows.attribute[:-1])
        condition = np.cumsum(is_first) - 1
        self.owner = owner[is_first]
        """The conjunction of each condition."""
        self.needed = np.bincount(self.owner, minlength=len(sizes))
        """How many conditions each conjunction has."""
        sort, key = _sort_rows(rows)
        mixed = np.zeros(len(self.owner), np.bool_)
        mixed[condition[sort < ABSENT_KEYS]] = True
        ranged = (sort < ABSENT_KEYS) | ((sort >= POINT_KEYS) & mixed[condition])
        self.ranges = _to_ranges(rows, ranged, condition, mark)
        keyed = ~ranged
        self.keys = Items(
            condition[keyed],
            rows.attribute[keyed].astype(np.int64) * 8 + sort[keyed],
            key[keyed],
            key[keyed],
            np.full(np.count_nonzero(keyed), NO_LEVEL),
        )

    def items(
        self, slots: NDArray[np.int64], separation: Separation, rate: float, levels: int
    ) -> Items:
        """Return what the conjunctions, in their slots, are entered under.

        With a rate, each range gets as many levels as its own promise takes; else all get the same.
        """
        r = self.ranges
        low, high = separation.leaves(r.tree, r.low), separation.leaves(r.tree, r.high)
        if levels:
            level = np.full(len(self.owner), levels)
        else:
            level = self._levels(low, high, rate)
        shift = DEEPEST - level[r.condition]
        low, high = low >> shift, high >> shift
        starts = np.ones(len(low), np.bool_)
        starts[1:] = (
            (r.condition[1:] != r.condition[:-1])
            | (r.tree[1:] != r.tree[:-1])
            | (low[1:] > high[:-1])
        )
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(low))[: len(first)] - 1
        condition = np.concatenate([r.condition[first], self.keys.slot])
        return Items(
            slots[self.owner[condition]],
            np.concatenate([r.tree[first], self.keys.tree]),
            np.concatenate([low[first], self.keys.low]),
            np.concatenate([high[last], self.keys.high]),
            np.concatenate([level[r.condition[first]], self.keys.level]),
        )

    def _levels(
        self, low: NDArray[np.int64], high: NDArray[np.int64], rate: float
    ) -> NDArray[np.int64]:
        """Return the level at which each condition's cells add few enough events (theorem 1).

        Of a condition that holds for a share w of the events, two cells at the ends may be wrong,
        each with 2^-level of the events; their part of what is found is kept below the condition's
        part of the rate.
        """
        width = np.zeros(len(self.owner))
        np.add.at(width, self.ranges.condition, (high - low + 1) / (1 << DEEPEST))
        n_ranges = np.bincount(self.owner[width > 0], minlength=len(self.needed))
        part = rate / np.maximum(n_ranges[self.owner], 1)
        with np.errstate(divide="ignore"):
            level = np.ceil(np.log2(2 * (1 - part) / (part * width)))
        return np.clip(np.where(width > 0, level, 1), 1, DEEPEST).astype(np.int64)


def _sort_rows(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what each row is, a line or a sort of keys, and its key where it has one."""
    sort, key = rows.kind.astype(np.int64), np.ones(len(rows.kind), np.int64)
    low, high, kind = rows.low, rows.high, rows.kind
    at_low, at_high = low == INT64_MIN, high == INT64_MAX
    sort[kind == ABSENT], sort[kind == PRESENT] = ABSENT_KEYS, PRESENT_KEYS
    number = kind == Domain.NUMBER
    is_point = number & (low == high) & (rows.low_offset & 1 == 0)
    is_point &= rows.high_offset == rows.low_offset + 1
    tick = (kind == Domain.TIMESTAMP) & ~at_high & (rows.high_offset == 0)
    tick &= np.where(at_high, 0, high) == np.where(tick, low, 0) + 1
    truth = (kind == Domain.BOOLEAN) & (at_low != at_high)
    values = np.where(truth & at_low, 0, low)
    single = is_point | tick | truth | (kind == POINT)
    domain = np.where(kind == POINT, int(Domain.STRING), kind)
    sort[single] = POINT_KEYS
    key[single] = point_keys(values, np.where(is_point, rows.low_offset, 0), domain)[single]
    with np.errstate(invalid="ignore", over="ignore"):
        least, most = floats_of(low), floats_of(high)
        unit = number & (rows.low_offset == 0) & (rows.high_offset == 0) & (most == least + 1)
        unit &= (np.floor(least) == least) & (np.abs(least) < _EXACT)
    sort[unit], key[unit] = UNIT_KEYS, least[unit].astype(np.int64)
    return sort, key


def point_keys(
    keys: NDArray[np.int64], offsets: NDArray[Any], domains: NDArray[Any]
) -> NDArray[np.int64]:
    """Return one number for a value on a line."""
    sides = offsets.astype(np.int64) * 4 + domains
    return np.asarray(keys * np.int64(_ODD) + sides * np.int64(_ODD_2))


def _to_ranges(
    rows: Rows, chosen: NDArray[np.bool_], condition: NDArray[np.int64], mark: NDArray[np.int64]
) -> Ranges:
    at = np.flatnonzero(chosen)
    kind = rows.kind[at]
    domain = np.where(kind == POINT, int(Domain.STRING), kind)
    low, high = rows.low[at], rows.high[at]
    least, most = np.empty(len(at)), np.empty(len(at))
    number, string = domain == Domain.NUMBER, domain == Domain.STRING
    other = ~number & ~string
    with np.errstate(invalid="ignore", over="ignore"):
        most[number] = floats_of(high[number])
        most[number] = np.where(
            rows.high_offset[at][number] > 0, most[number], np.nextafter(most[number], -np.inf)
        )
    least[number] = floats_of(low[number])
    least[string] = mark[low[string]].astype(np.float64)
    most[string] = (mark[high[string]] - 1).astype(np.float64)
    least[other] = low[other].astype(np.float64)
    most[other] = (np.maximum(high[other], INT64_MIN + 1) - 1).astype(np.float64)
    least[(low == INT64_MIN) & ~string] = -np.inf
    most[(high == INT64_MAX) & ~string] = np.inf
    tree = rows.attribute[at].astype(np.int64) * 8 + domain
    return Ranges(tree, least, most, condition[at])


class Lookup(NamedTuple):
    """What events are looked up by: values on their lines, keys of single values, floors."""

    values: NDArray[np.float64]
    points: NDArray[np.int64]
    units: NDArray[np.int64]


def look_up(events: Events, mark: NDArray[np.int64], sorts: NDArray[np.int64]) -> Lookup:
    """Return what events are looked up by; keys that nothing is entered under are left out."""
    number = events.kind == Domain.NUMBER
    values = events.key.astype(np.float64)
    values[number] = floats_of(events.key[number])
    string = events.kind == Domain.STRING
    if string.any():
        values[string] = mark[events.key[string]]
    points = units = events.key
    if np.any(sorts >> POINT_KEYS & 1):
        points = point_keys(events.key, events.offset, events.kind)
    if np.any(sorts >> UNIT_KEYS & 1):
        small = number & (np.abs(values) < _EXACT)
        units = np.full(events.key.shape, _NO_UNIT, np.int64)
        units[small] = np.floor(values[small]).astype(np.int64)
    return Lookup(values, points, units)


def sampled(events: Events, lookup: Lookup) -> Values:
    """Return the values of a sample of events, by tree."""
    row, attribute = np.nonzero(events.kind < ABSENT)
    kind = events.kind[row, attribute].astype(np.int64)
    return Values(attribute * 8 + kind, lookup.values[row, attribute])
