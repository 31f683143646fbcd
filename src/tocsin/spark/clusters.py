"""Clusters: the assignment of subscriptions to the parts of a store.

Enters: a sample of subscriptions, perhaps one of events, and the number of parts. Leaves: a tree of
splits, and with it the part of any subscription. Subscriptions on similar values are assigned to
one part, so that its summary (Jayaram et al. 2010, section 5.6) admits few events.

Each split divides the subscriptions at a cut of one attribute: a subscription is below if it admits
a value before the cut. The attribute and the cut minimize the share of events that go to both
halves, and the imbalance of the halves. The splits are learned in cells (see `encode.cells`); a
split holds its cut as a value, so that tasks can assign subscriptions that were not in the sample.
Subscriptions that no cut divides are assigned in rotation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import FIRST_CELL, CellSpace
from tocsin.encode.events import EventBatch
from tocsin.encode.shares import guessed_shares, measured_shares
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import LOW_CUT
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable

_MOST_ATTRIBUTES = 32
"""The number of attributes considered for splits: the most frequently constrained ones."""
_IMBALANCE = 0.5
"""The cost of having all subscriptions on one side, as a share of events that go to both."""


@dataclass(frozen=True)
class Rotation:
    """Parts `first` to `first + n_parts`, assigned in rotation."""

    first: int
    n_parts: int


@dataclass(frozen=True)
class Split:
    """A cut of one attribute, as a key and a tail (see `normalize.keys`); a string as itself."""

    attribute: str
    domain: int
    key: int | str
    offset: int
    below: Tree
    above: Tree


Tree: TypeAlias = Split | Rotation


def learn(table: ConjunctionTable, n_parts: int, events: EventBatch | None = None) -> Tree:
    """Learn splits from a sample of subscriptions, and of events if there is one."""
    if n_parts == 1 or not table.n_conjunctions:
        return Rotation(0, n_parts)
    return _Learner(table, events).split(None, 0, n_parts)


class _Learner:
    """A sample in cells: the least and the greatest cell of each attribute and subscription."""

    def __init__(self, table: ConjunctionTable, events: EventBatch | None) -> None:
        self.space = space = CellSpace(table)
        ranges = (table.attribute, space.range_start, space.range_low, space.range_high)
        if events is None or not len(events):
            shares = guessed_shares(space, *ranges)
        else:
            shares = measured_shares(space, space.encode(events))
        counts = np.bincount(table.attribute, minlength=len(table.attributes))
        self.attributes = np.argsort(-counts, kind="stable")[:_MOST_ATTRIBUTES]
        self.before = [np.concatenate([[0.0], np.cumsum(shares[a])]) for a in self.attributes]
        self.low, self.high = self._extents(table)

    def _extents(self, table: ConjunctionTable) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the cells that each subscription spans, by attribute; all if unconstrained."""
        space = self.space
        first, last = space.range_start[:-1], space.range_start[1:] - 1
        is_empty = last < first  # unsatisfiable
        low = np.where(is_empty, 0, space.range_low[np.minimum(first, len(space.range_low) - 1)])
        high = np.where(is_empty, 0, space.range_high[np.maximum(last, 0)])
        owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
        _, start = np.unique(table.subscription, return_index=True)
        lows, highs = [], []
        for a in self.attributes.tolist():
            mine = table.attribute == a
            lowest = np.zeros(table.n_conjunctions, np.int32)
            highest = np.full(table.n_conjunctions, space.n_cells[a], np.int32)
            lowest[owner[mine]] = low[mine]
            highest[owner[mine]] = high[mine]
            lows.append(np.minimum.reduceat(lowest, start))
            highs.append(np.maximum.reduceat(highest, start))
        return np.array(lows), np.array(highs)

    def split(self, rows: NDArray[np.int64] | None, first: int, n_parts: int) -> Tree:
        """Divide subscriptions, by default all, among parts."""
        if n_parts == 1:
            return Rotation(first, 1)
        rows = np.arange(self.low.shape[1]) if rows is None else rows
        best: tuple[float, int, int] | None = None
        for at in range(len(self.attributes)):
            for cell in self._candidates(at, rows, n_parts):
                cost = self._cost(at, cell, rows, n_parts)
                if best is None or cost < best[0]:
                    best = (cost, at, cell)
        if best is None:
            return Rotation(first, n_parts)
        _, at, cell = best
        is_below = self.low[at, rows] < cell
        n_below = round(n_parts * np.count_nonzero(is_below) / len(rows))
        n_below = min(max(n_below, 1), n_parts - 1)
        a = int(self.attributes[at])
        return Split(
            self.space.attributes[a],
            *self._cut(a, cell),
            self.split(rows[is_below], first, n_below),
            self.split(rows[~is_below], first + n_below, n_parts - n_below),
        )

    def _candidates(self, at: int, rows: NDArray[np.int64], n_parts: int) -> Iterable[int]:
        """Return the cells nearest to a balanced split, on either side of it."""
        lows = np.sort(self.low[at, rows])
        middle = lows[len(lows) * (n_parts // 2) // n_parts] if len(lows) else 0
        above = lows[np.searchsorted(lows, middle, side="right") :]
        cells = [int(middle)] + ([int(above[0])] if len(above) else [])
        return [cell for cell in cells if cell >= FIRST_CELL and len(lows) and cell > lows[0]]

    def _cost(self, at: int, cell: int, rows: NDArray[np.int64], n_parts: int) -> float:
        """Return the shares of events that go to the halves, plus the cost of imbalance."""
        lows, highs = self.low[at, rows], self.high[at, rows]
        is_below = lows < cell
        before = self.before[at]
        cost = 0.0
        for side in (is_below, ~is_below):
            cost += float(before[highs[side].max()] - before[lows[side].min()])
        return cost + _IMBALANCE * abs(float(is_below.mean()) - n_parts // 2 / n_parts)

    def _cut(self, a: int, cell: int) -> tuple[int, int | str, int]:
        """Return the line of a cell and the cut at which it begins."""
        for domain, cells in self.space.domains[a].items():
            at = cell - cells.base
            if at == 0:
                return int(domain), *LOW_CUT
            if 0 < at < cells.n_cells:
                key = int(cells.keys[at - 1])
                text = self.space.vocabulary[key].as_py() if domain is Domain.STRING else None
                return int(domain), key if text is None else text, int(cells.offsets[at - 1])
        raise AssertionError(f"cell {cell} is on no line")


def assign_parts(tree: Tree, table: ConjunctionTable, n: int) -> NDArray[np.int32]:
    """Return the part of each of n subscriptions."""
    parts = np.zeros(n, np.int32)
    _assign(tree, table, np.arange(n), parts)
    return parts


def _assign(
    tree: Tree, table: ConjunctionTable, rows: NDArray[np.int64], parts: NDArray[np.int32]
) -> None:
    if isinstance(tree, Rotation):
        parts[rows] = tree.first + np.arange(len(rows)) % tree.n_parts
        return
    is_below = _is_below(tree, table, len(parts))[rows]
    _assign(tree.below, table, rows[is_below], parts)
    _assign(tree.above, table, rows[~is_below], parts)


def _is_below(split: Split, table: ConjunctionTable, n: int) -> NDArray[np.bool_]:
    """Return which subscriptions admit a value before the cut, or an absent or incomparable one.

    Unsatisfiable ones are above.
    """
    before = np.ones(table.n_conjunctions, np.bool_)
    if split.attribute in table.attributes and len(table.low_key):
        mine = np.flatnonzero(table.attribute == table.attributes.index(split.attribute))
        owner = np.searchsorted(table.condition_start, mine, side="right") - 1
        first = table.piece_start[mine]
        has_piece = table.piece_start[mine + 1] > first
        first = np.where(has_piece, first, 0)
        key, offset, domain = table.low_key[first], table.low_offset[first], table.domain[first]
        cut_key, cut_offset = _in_terms_of(table, split)
        is_lower = (domain < split.domain) | (
            (domain == split.domain)
            & ((key < cut_key) | ((key == cut_key) & (offset < cut_offset)))
        )
        is_free = (table.flags[mine] & (ABSENT | PRESENT)) != 0
        before[owner] = is_free | (has_piece & is_lower)
    is_below = np.zeros(n, np.bool_)
    is_below[table.subscription[before]] = True
    return is_below


def _in_terms_of(table: ConjunctionTable, split: Split) -> tuple[int, int]:
    """Return a split's cut as a key and a tail of a table."""
    if not isinstance(split.key, str):
        return split.key, split.offset
    strings = table.strings
    rank = bisect_left(strings, split.key)
    is_there = rank < len(strings) and strings[rank] == split.key
    return rank, split.offset if is_there else 0


def describe(tree: Tree) -> list[str]:
    """Return the splits in words, one a line."""
    if isinstance(tree, Rotation):
        last = tree.first + tree.n_parts - 1
        return [f"part {tree.first}" if tree.n_parts == 1 else f"parts {tree.first} to {last}"]
    below, above = describe(tree.below), describe(tree.above)
    return [
        f"{tree.attribute} below {tree.key!r}:",
        *(f"  {domain}" for domain in below),
        f"{tree.attribute} from {tree.key!r} on:",
        *(f"  {domain}" for domain in above),
    ]
