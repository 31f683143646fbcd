"""The `fastint` engine: FASTINT of Jayaram et al. (Beretta).

K. R. Jayaram, W. Wang, P. Eugster, "Subscription Normalization for Effective Content-Based
Messaging", IEEE TPDS 2015, section 5. Enters and leaves: see `engines.protocol`.

Conjunctions are split by attribute. Each attribute has trees over intervals for ordered values and
sets by value for strings; a value of an event leads to the set S of conjunctions whose condition on
the attribute it satisfies, and its size C. The smallest set is taken, and each conjunction in it is
checked against the event's other values (section 5.5). The current bounds of every condition are
stored apart (the paper's `vals`), so that an update moves one interval in place (section 5.4).

Where we deviate. Each leaf of the paper's SV tree holds all of S, and a bit vector V over all
subscriptions; both grow with the square of the subscriptions where intervals overlap. We keep an
interval at the nodes that make it up, as segment trees do, and read V off the bounds: bit i is set
if the value lies between the bounds of i. So memory grows with n log n. Where not every conjunction
constrains an attribute, the paper puts wildcards into its sets; the smallest set is then nearly
everything. We choose the smallest set among the attributes that all constrain; where there is no
such attribute, the sets of all attributes are taken one after another, and each conjunction in them
is checked once. An absent value is a value like others. LIKE patterns are verified on candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import Domain
from tocsin.normalize.table import ConjunctionTable, take
from tocsin_lab.engines.fastint import audit, kernels
from tocsin_lab.engines.fastint.arrays import N_ENTRIES
from tocsin_lab.engines.fastint.index import SvTrees
from tocsin_lab.engines.intervals.arrays import (
    LOW,
    POINT,
    RUN,
    SIZE_BITS,
    SIZE_MASK,
    WHAT,
    Events,
    Rows,
    pack,
)
from tocsin_lab.engines.intervals.engine import IntervalEngine
from tocsin_lab.engines.tree.growing import grown

_MOST_WAYS = 70
"""More nodes than lie on the way from a leaf to the root."""


class Move(NamedTuple):
    """New bounds of a condition on an attribute, as flat cuts (`normalize.keys`)."""

    attribute: str
    domain: Domain
    low: tuple[int, int]
    high: tuple[int, int]


class FastintEngine(IntervalEngine):
    """Conjunctions in slots, and the trees that find them."""

    def __init__(self) -> None:
        super().__init__()
        self._index = SvTrees(self._attributes.places)
        self._n_constrained = np.zeros(0, np.int64)

    # The protocol.

    def replace(
        self, old: NDArray[np.int64], ids: NDArray[np.int64], table: ConjunctionTable
    ) -> None:
        """Replace subscriptions: where only bounds differ, these are moved in place."""
        is_moved = np.zeros(len(old), np.bool_)
        conjunction_start = np.searchsorted(table.subscription, np.append(ids, ids[-1:] + 1))
        rows, sizes = self._attributes.rows_of(table)
        # Spread marks mean that the trees are rebuilt, patterns that more than bounds differ.
        if not self._attributes.places.is_spread and not len(table.pattern_condition):
            self._note(ids)
            self._follow()
            packed, row_start = pack(rows), np.append(0, np.cumsum(sizes)).tolist()
            for i, first in enumerate(conjunction_start[:-1].tolist()):
                last = int(conjunction_start[i + 1])
                new = packed[row_start[first] : row_start[last]]
                is_moved[i] = self._move(int(old[i]), int(ids[i]), new, sizes[first:last].tolist())
            self._settle()
        if not is_moved.all():
            kept = np.repeat(~is_moved, np.diff(conjunction_start))
            super().replace(old[~is_moved], ids[~is_moved], take(table, np.flatnonzero(kept)))

    def move(self, old: int, new: int, moves: Sequence[Move]) -> bool:
        """Move bounds of a subscription, which gets a new dense id: the paper's update.

        Returns False, and changes nothing, unless the subscription is one conjunction with one
        interval of its domain on each of the attributes. Intervals of strings cannot be moved.
        """
        slots = self._slots_of(old)
        if len(slots) != 1:
            return False
        (slot,) = slots
        run = int(self._arrays.slots[slot, RUN])
        first = run >> SIZE_BITS
        kinds = self._arrays.rows[first : first + (run & SIZE_MASK), WHAT].tolist()
        attributes = [what >> 8 for what in kinds]
        rows = []
        for move in moves:
            number = self._attributes.places.number_of.get(move.attribute, -1)
            if attributes.count(number) != 1 or number << 8 | move.domain not in kinds:
                return False
            rows.append(first + attributes.index(number))
        if new >= len(self._first_of):
            self._note(np.array([new]))
        for row, (_, _, low, high) in zip(rows, moves, strict=True):
            self._index.move(self._arrays, slot, row, (low[0], high[0], low[1] << 16 | high[1]))
        self._rename(slots, old, new)
        self._settle()
        return True

    def rebuild(self) -> None:
        """Rebuild the trees."""
        self._build()

    def lub(self, attribute: str) -> Condition | None:
        """Return the least interval on each line that covers all conditions on an attribute.

        None says that some conjunction does not constrain it.
        """
        number = self._attributes.places.number_of.get(attribute)
        if number is None or self._n_constrained[number] < self._n_live or not self._n_live:
            return None
        rows = self._rows_in(self._live())
        return audit.cover(rows, number, self._attributes.places)

    def explain(self, dense: int) -> str:
        """Say which trees hold each conjunction of a subscription."""
        names = self._attributes.names
        lines = []
        for slot in self._slots_of(dense):
            rows = self._rows_in(np.array([slot]))
            on = dict.fromkeys(names[a] for a in rows.attribute.tolist())
            n = int(self._arrays.n_entries[slot])
            where = f"in {n} nodes of the trees of {', '.join(on)}" if on else "under no condition"
            lines.append(f"held {where}")
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """Say how large the trees are."""
        n_trees = int(np.count_nonzero(self._index.trees.size > 1))
        entries = int(self._index.nodes.state[N_ENTRIES])
        return f"{n_trees} trees with {entries} entries for {self._n_live} conjunctions"

    def check(self) -> None:
        """Verify every invariant."""
        super().check()
        live = self._live()
        counted = self._n_constrained.copy()
        self._count(self._rows_in(live), self._arrays.sizes(live), -1)
        assert not self._n_constrained.any(), "conditions are miscounted"
        self._n_constrained = counted
        audit.check(self._index, self._arrays, live)

    @property
    def nbytes(self) -> int:
        """Bytes held by rows, slots and trees."""
        return super().nbytes + self._index.nbytes

    # Inside.

    def _find(self, events: Events, offsets: NDArray[np.int64]) -> None:
        """Write the conjunctions that some events match behind those found before."""
        index, done = self._index, 0
        full = np.flatnonzero(self._n_constrained == self._n_live)
        any_full = len(full) > 0
        if not any_full:
            full = np.arange(len(self._attributes))
        way = np.empty(_MOST_WAYS * (2 if any_full else len(full) + 1), np.int64)
        while True:
            done = kernels.match(
                index.trees,
                index.nodes,
                self._arrays.rows,
                self._arrays.slots,
                events,
                full,
                any_full,
                self._n_live,
                done,
                self._stamp,
                way,
                self._out,
                offsets,
            )
            if done == len(offsets) - 1:
                break
            self._out = grown(self._out, int(offsets[done]) + self._n_live)
        self._stamp += len(offsets) - 1

    def _build(self) -> None:
        """Rebuild the trees without deleted conjunctions."""
        live = self._live()
        self._attributes.drop_cuts(self._arrays.rows, self._arrays.places(live))
        self._index.build(self._arrays, live)

    def _add(self, slots: NDArray[np.int64], rows: Rows, sizes: NDArray[np.int64]) -> None:
        self._follow()
        self._count(rows, sizes, 1)
        self._index.name_points(rows.low[rows.kind == POINT])
        if self._index.is_due(self._n_live):
            self._build()
        else:
            self._index.append(self._arrays, slots)

    def _remove(self, slots: NDArray[np.int64]) -> None:
        self._count(self._rows_in(slots), self._arrays.sizes(slots), -1)
        self._index.note_stale(int(self._arrays.n_entries[slots].sum()))

    def _settle(self) -> None:
        if self._index.is_due(self._n_live):
            self._build()

    def _follow(self) -> None:
        n = len(self._attributes)
        more = n - len(self._n_constrained)
        if more:
            self._n_constrained = np.append(self._n_constrained, np.zeros(more, np.int64))
        self._index.make_room(n)

    def _count(self, rows: Rows, sizes: NDArray[np.int64], sign: int) -> None:
        """Count the conjunctions that constrain each attribute."""
        owner = np.repeat(np.arange(len(sizes)), sizes)
        is_first = np.ones(len(owner), np.bool_)
        is_first[1:] = (owner[1:] != owner[:-1]) | (rows.attribute[1:] != rows.attribute[:-1])
        counts = np.bincount(rows.attribute[is_first], minlength=len(self._n_constrained))
        self._n_constrained += sign * counts

    def _move(self, old: int, new: int, rows: NDArray[np.int64], sizes: list[int]) -> bool:
        """Give a subscription a new dense id and new bounds; False where more than these differ."""
        slots = self._slots_of(old)
        if not slots or len(slots) != len(sizes):
            return False
        if self._arrays.sizes(np.array(slots)).tolist() != sizes:
            return False
        places = self._arrays.places(np.array(slots)).tolist()
        own = self._arrays.rows[places]
        if not np.array_equal(own[:, WHAT], rows[:, WHAT]):
            return False
        slot_of_row = [slot for slot, size in zip(slots, sizes, strict=True) for _ in range(size)]
        for at in np.flatnonzero((own != rows).any(axis=1)).tolist():
            what, low, high, tails = rows[at].tolist()
            if what & 0xFF == POINT:
                self._index.name_points(rows[at : at + 1, LOW])
            self._index.move(self._arrays, slot_of_row[at], places[at], (low, high, tails))
        self._patterns.discard(slots)
        self._rename(slots, old, new)
        return True

    def _rename(self, slots: list[int], old: int, new: int) -> None:
        """Give the subscription that some slots belong to a new dense id."""
        for slot in slots:
            self._owner[slot] = new
        self._first_of[new], self._first_of[old] = self._first_of[old], -1
