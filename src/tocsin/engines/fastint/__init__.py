"""The `fastint` engine: FASTINT of Jayaram et al. (Beretta).

K. R. Jayaram, W. Wang, P. Eugster, "Subscription Normalization for Effective Content-Based
Messaging", IEEE TPDS 2015, section 5. Enters and leaves: see `engines.protocol`.

Conjunctions are split by attribute. Each attribute has trees over intervals for ordered values and
sets by value for strings; a value of an event leads to the set S of conjunctions whose condition on
the attribute it satisfies, and its size C. The smallest set is taken, and each conjunction in it is
checked against the event's other values (section 5.5). The current bounds of every condition are
kept beside (the paper's `vals`), so that an update moves one interval in place (section 5.4).

Where we deviate. Each leaf of the paper's SV tree holds all of S, and a bit vector V over all
subscriptions; both grow with the square of the subscriptions where intervals overlap. We keep an
interval at the nodes that make it up, as segment trees do, and read V off the bounds: bit i is set
if the value lies between the bounds of i. So memory grows with n log n. Where not every conjunction
constrains an attribute, the paper puts wildcards into its sets; the smallest set is then nearly
everything. We choose the smallest set among the attributes that all constrain; where there is no
such attribute, the sets of all attributes are taken one after another, and each conjunction in them
is checked once. An absent value is a value like others. LIKE patterns are checked on what is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.fastint import audit, kernels
from tocsin.engines.fastint.arrays import (
    ABSENT,
    LOW,
    N_ENTRIES,
    POINT,
    PRESENT,
    RUN,
    SIZE_BITS,
    Events,
    Rows,
    pack,
    unpack,
)
from tocsin.engines.fastint.index import Held, SvTrees
from tocsin.engines.fastint.rows import Attributes
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.protocol import Found
from tocsin.engines.tree import id_kernels
from tocsin.engines.tree.growing import grown
from tocsin.normalize.condition import Condition
from tocsin.normalize.table import ConjunctionTable

_CHUNK_CELLS = 1 << 19
"""How many values are encoded at a time."""
_MOST_WAYS = 70
"""More nodes than lie on the way from a leaf to the root."""


class FastintEngine:
    """Conjunctions in slots, their rows, and the trees that find them."""

    def __init__(self) -> None:
        self._attributes = Attributes()
        self._index = SvTrees(self._attributes.places)
        self._patterns = PatternChecks()
        self._held = Held(
            np.empty((64, 4), np.int64), np.full((64, 2), -1, np.int64), np.zeros(64, np.int32)
        )
        self._owner = np.full(64, -1, np.int64)
        self._group = np.empty(64, np.int32)
        self._seen = np.full(64, -1, np.int64)
        self._first_of = np.full(64, -1, np.int64)
        self._next_of = np.full(64, -1, np.int64)
        self._n_rows = self._n_slots = self._n_live = 0
        self._free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._n_constrained = np.zeros(0, np.int64)
        self._stamp = 0
        self._out = np.empty(256, np.int32)

    # The protocol.

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions."""
        rows, sizes = self._attributes.rows_of(table)
        self._note(ids)
        slots = self._place(rows, sizes)
        self._own(slots, table.subscription)
        self._patterns.add(table, slots)
        self._count(rows, sizes, 1)
        self._index.name_points(rows.low[rows.kind == POINT])
        if self._index.is_due(self._n_live):
            self._build()
        else:
            self._index.append(self._held, slots)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Forget subscriptions."""
        gone = [slot for dense in ids.tolist() for slot in self._slots_of(dense)]
        if not gone:
            return
        slots = np.array(gone, np.int64)
        sizes = self._held.sizes(slots)
        self._count(self._rows_in(slots), sizes, -1)
        runs = self._held.slots[slots, RUN].tolist()
        self._owner[slots] = self._held.slots[slots, RUN] = -1
        self._first_of[ids] = -1
        self._patterns.discard(gone)
        self._n_live -= len(gone)
        self._index.note_stale(int(self._held.n_entries[slots].sum()))
        for slot, size, run in zip(gone, sizes.tolist(), runs, strict=True):
            self._free[size].append((slot, run))
        if self._index.is_due(self._n_live):
            self._build()

    def replace(self, old: int, new: int, table: ConjunctionTable) -> None:
        """Put a subscription in the place of another, moving only the bounds that differ."""
        rows, sizes = self._attributes.rows_of(table)
        slots = self._slots_of(old)
        is_spread = self._attributes.places.is_spread  # then the trees are built anew
        if is_spread or len(table.pattern_condition) or not self._fits(slots, rows, sizes):
            self.delete(np.array([old]))
            self.insert(np.array([new]), table)
            return
        self._note(np.array([new]))
        first = 0
        for slot, size in zip(slots, sizes.tolist(), strict=True):
            start = int(self._held.slots[slot, RUN]) >> SIZE_BITS
            for i in range(size):
                self._move(slot, start + i, rows, first + i)
            first += size
        self._patterns.discard(slots)
        self._owner[slots] = new
        self._first_of[new], self._first_of[old] = self._first_of[old], -1
        if self._index.is_due(self._n_live):
            self._build()

    def profile(self, events: EventBatch) -> None:
        """Do nothing: the sizes of the sets are known."""

    def reader(self) -> None:
        """Say that matches have to wait for changes."""

    def merge(self) -> None:
        """Build the trees anew."""
        self._build()

    def match_batch(self, events: EventBatch) -> Found:
        """Match a batch, chunk by chunk."""
        n = len(events)
        offsets = np.zeros(n + 1, np.int64)
        size = max(_CHUNK_CELLS // max(len(self._attributes), 1), 16)
        for first in range(0, n, size):
            part = offsets[first : min(first + size, n) + 1]
            self._find(self._attributes.encode(events, first, len(part) - 1), part)
        found = self._out[: offsets[-1]]
        if len(self._patterns):
            offsets, found = self._patterns.keep(events, offsets, found)
        ids, ends = np.empty(len(found), np.int32), np.empty(n, np.int64)
        seen = (self._seen, self._stamp)
        id_kernels.to_ids(offsets, found, self._owner, self._group, *seen, ids, ends)
        self._stamp += n
        return Found(np.append(np.int64(0), ends), ids[: ends[-1] if n else 0])

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event."""
        offsets = np.zeros(2, np.int64)
        self._find(self._attributes.encode_one(event), offsets)
        found = self._patterns.keep_one(event, self._out[: offsets[-1]])
        return list(dict.fromkeys(self._owner[found].tolist()))

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
            n = int(self._held.n_entries[slot])
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
        live = self._live()
        assert len(live) == self._n_live, "a conjunction is lost"
        n_free = sum(len(slots) for slots in self._free.values())
        assert n_free + len(live) == self._n_slots, "a slot is lost"
        counted = self._n_constrained.copy()
        self._count(self._rows_in(live), self._held.sizes(live), -1)
        assert not self._n_constrained.any(), "conditions are miscounted"
        self._n_constrained = counted
        audit.check(self._index, self._held, live)

    @property
    def nbytes(self) -> int:
        """Bytes held by rows, slots and trees."""
        own = (*self._held, self._owner, self._group, self._seen, self._first_of, self._next_of)
        return sum(array.nbytes for array in own) + self._index.nbytes

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
                self._held.rows,
                self._held.slots,
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

    def _live(self) -> NDArray[np.int64]:
        """Return the slots in use."""
        return np.flatnonzero(self._owner[: self._n_slots] >= 0)

    def _build(self) -> None:
        """Build the trees anew, without what is gone."""
        live = self._live()
        self._attributes.drop_cuts(self._held.rows, self._held.places(live))
        self._index.build(self._held, live)

    def _note(self, ids: NDArray[np.int64]) -> None:
        """Make room for new dense ids and attributes."""
        if len(ids) and ids[-1] >= len(self._first_of):
            first = len(self._first_of)
            self._first_of = grown(self._first_of, int(ids[-1]) + 1)
            self._first_of[first:] = -1
        n = len(self._attributes)
        more = n - len(self._n_constrained)
        self._n_constrained = np.append(self._n_constrained, np.zeros(more, np.int64))
        self._index.make_room(n)

    def _place(self, rows: Rows, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give conjunctions slots, and write their rows; return the slots."""
        slots, runs = np.empty((2, len(sizes)), np.int64)
        fresh = np.ones(len(sizes), np.bool_)
        if self._free:
            for i, size in enumerate(sizes.tolist()):
                if self._free[size]:
                    (slots[i], runs[i]), fresh[i] = self._free[size].pop(), False
        n_fresh, new_sizes = int(np.count_nonzero(fresh)), sizes[fresh]
        slots[fresh] = self._n_slots + np.arange(n_fresh)
        start = self._n_rows + np.cumsum(new_sizes) - new_sizes
        runs[fresh] = start << SIZE_BITS | new_sizes
        self._n_slots += n_fresh
        self._n_rows += int(new_sizes.sum())
        self._grow()
        self._held.slots[slots, RUN] = runs
        self._held.rows[self._held.places(slots)] = pack(rows)
        self._n_live += len(slots)
        return slots

    def _grow(self) -> None:
        """Make room for the rows and slots that there are by now."""
        held, n = self._held, self._n_slots
        self._held = held._replace(rows=grown(held.rows, self._n_rows))
        first = len(self._seen)
        if n > first:
            more = {name: grown(getattr(held, name), n) for name in ("slots", "n_entries")}
            self._held = self._held._replace(**more)
            self._held.slots[first:] = -1
            for name in ("_owner", "_group", "_seen", "_next_of"):
                setattr(self, name, grown(getattr(self, name), n))
            self._owner[first:] = self._seen[first:] = -1

    def _own(self, slots: NDArray[np.int64], subscription: NDArray[np.int64]) -> None:
        """Note the subscription of each conjunction, and which ones belong together."""
        is_first = np.diff(subscription, prepend=-1) != 0
        begin = np.flatnonzero(is_first)
        group = np.cumsum(is_first) - 1
        alone = np.diff(begin, append=len(subscription)) == 1
        self._owner[slots] = subscription
        self._group[slots] = np.where(alone[group], -1, slots[begin][group])
        self._next_of[slots] = np.where(np.append(is_first[1:], True), -1, np.append(slots[1:], -1))
        self._first_of[subscription[begin]] = slots[begin]

    def _slots_of(self, dense: int) -> list[int]:
        slots = []
        slot = int(self._first_of[dense]) if dense < len(self._first_of) else -1
        while slot >= 0:
            slots.append(slot)
            slot = int(self._next_of[slot])
        return slots

    def _rows_in(self, slots: NDArray[np.int64]) -> Rows:
        return unpack(self._held.rows[self._held.places(slots)])

    def _count(self, rows: Rows, sizes: NDArray[np.int64], sign: int) -> None:
        """Count the conjunctions that constrain each attribute."""
        owner = np.repeat(np.arange(len(sizes)), sizes)
        is_first = np.ones(len(owner), np.bool_)
        is_first[1:] = (owner[1:] != owner[:-1]) | (rows.attribute[1:] != rows.attribute[:-1])
        counts = np.bincount(rows.attribute[is_first], minlength=len(self._n_constrained))
        self._n_constrained += sign * counts

    def _fits(self, slots: list[int], rows: Rows, sizes: NDArray[np.int64]) -> bool:
        """Whether conjunctions have rows like those of some slots, but for their bounds."""
        if not slots or len(slots) != len(sizes):
            return False
        own = np.array(slots)
        if not np.array_equal(self._held.sizes(own), sizes):
            return False
        held = self._rows_in(own)
        same = np.array_equal(held.attribute, rows.attribute)
        return same and np.array_equal(held.kind, rows.kind)

    def _move(self, slot: int, row: int, rows: Rows, at: int) -> None:
        """Give one row of a conjunction the bounds of another."""
        kind, held = rows.kind[at], self._held.rows[row]
        tails = int(rows.low_tail[at]) << 16 | int(rows.high_tail[at])
        bounds = int(rows.low[at]), int(rows.high[at]), tails
        if kind in (ABSENT, PRESENT) or bounds == tuple(held[LOW:].tolist()):
            return
        if kind == POINT:
            self._index.name_points(rows.low[at : at + 1])
        self._index.move(self._held, slot, row, bounds)
