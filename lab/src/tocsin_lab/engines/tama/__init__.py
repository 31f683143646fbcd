"""The `tama` engine: approximate matching by hierarchical discretisation, after Zhao and Wu.

Y. Zhao, J. Wu, "Towards Approximate Event Processing in a Large-Scale Content-Based Network",
ICDCS 2011. Enters and leaves: see `engines.protocol`. The values of an attribute are halved level
by level; a range is entered under the largest cells that make it up, with what sticks out at the
last level as false positives (algorithm 1). An event's values are looked up in the cells of all
levels, and conditions are counted (algorithm 2). No match is missed.

Options. `false_positive_rate` promises that at most this share of the results is wrong, for events
like those profiled: each range then gets the levels that its part of the promise takes. `levels`
gives all ranges the same last level instead, as the paper has it. `exact=True` checks what is
found; so does an engine without a promise, whose rate is 0.

Where we deviate. The levels of a range follow its width, so that narrow ranges keep the promise as
wide ones do. What sticks out may be joined with the neighbouring cell to a larger one: fewer
entries for the same values. Layers are hashed into one table, in portions that are merged by size;
what came last is checked directly. Strings, single numbers, absence and presence are keys of their
own, exact but for what a hash takes for the same: 24 bits of it are compared, and those of the
bucket. Ranges of strings are separated by their order among the bounds of others, so that the
promise does not hold for them. LIKE patterns are verified on candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.broker.overlay.coding import code_range
from tocsin.encode.events import EventBatch
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import ArgumentError
from tocsin_lab.engines.intervals import check_kernels
from tocsin_lab.engines.intervals.arrays import Events, Rows
from tocsin_lab.engines.intervals.engine import IntervalEngine, chunk_size
from tocsin_lab.engines.tama import cells, kernels
from tocsin_lab.engines.tama.cells import Items, Split, look_up
from tocsin_lab.engines.tama.separation import Separation, Values, nothing, separate
from tocsin_lab.engines.tama.table import Portion
from tocsin_lab.engines.tree.growing import grown

_SAMPLE = 10_000
"""How many events `profile` keeps."""
_RECENT = 256
"""Up to how many conjunctions are checked directly."""
_WORKING_RATE = 0.05
"""The rate of an engine that checks what it finds."""
_HIGHEST = 2**31 - 1


class TamaEngine(IntervalEngine):
    """Conjunctions in slots, and the tables that find them."""

    def __init__(
        self, false_positive_rate: float = 0.0, levels: int = 0, exact: bool = False
    ) -> None:
        if not 0 <= false_positive_rate < 1:
            raise ArgumentError("false_positive_rate must be below 1")
        if levels > kernels.DEEPEST:
            raise ArgumentError(f"levels must be at most {kernels.DEEPEST}, not {levels}")
        if levels and false_positive_rate:
            raise ArgumentError("levels or false_positive_rate: one follows from the other")
        super().__init__()
        self._rate = float(false_positive_rate) or _WORKING_RATE
        self._levels = levels
        self._exact = exact or not (false_positive_rate or levels)
        self._separation = nothing(0)
        self._portions: list[Portion] = []
        self._recent: list[int] = []
        self._always: set[int] = set()
        self._hits = np.zeros((64, 2), np.int32)
        self._portion_of = np.full(64, -1, np.int64)
        self._base, self._step = 0, 2
        self._sorts = np.zeros(0, np.int64)
        self._sample: EventBatch | None = None
        self._n_separated = 0
        self._pairs = np.empty(256, np.int32)

    # The protocol.

    def profile(self, events: EventBatch) -> None:
        """Keep a sample of events, and separate values by it (algorithm 3)."""
        self._sample = events.readable_sample(_SAMPLE, self._attributes.names)
        self._build()

    def rebuild(self) -> None:
        """Separate values for the events last profiled, and merge all tables into one."""
        self._build()

    def explain(self, dense: int) -> str:
        """Say under how many cells each conjunction of a subscription is entered."""
        lines = []
        for slot in self._slots_of(dense):
            items = self.items(np.array([slot]))
            n = int(self._arrays.n_entries[slot])
            used = sorted({int(level) for level in items.level if level >= 0})
            depth = f", to level {used[-1]}" if used else ""
            lines.append(f"entered under {n} cells and keys{depth}" if n else "checked directly")
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """Say how large the tables are."""
        n = sum(portion.n_entries for portion in self._portions)
        return f"{len(self._portions)} tables with {n} entries for {self._n_live} conjunctions"

    @property
    def n_entries(self) -> int:
        """How many cells and keys there are in the tables, once for each conjunction."""
        return sum(portion.n_entries for portion in self._portions)

    @property
    def table_nbytes(self) -> int:
        """Bytes of the matching tables alone, without the subscriptions themselves."""
        return sum(portion.nbytes for portion in self._portions)

    @property
    def nbytes(self) -> int:
        """Bytes held by rows, slots and tables."""
        own = self._hits.nbytes + self._portion_of.nbytes
        own += sum(array.nbytes for array in self._separation)
        return super().nbytes + own + self.table_nbytes

    def check(self) -> None:
        """Verify every invariant."""
        super().check()
        live = self._live()
        recent = np.array(self._recent, np.int64)
        assert np.all(self._portion_of[recent] < 0), "a recent conjunction is in a table"
        in_tables = [np.empty(0, np.int64)]
        for at, portion in enumerate(self._portions):
            own = portion.slots[self._portion_of[portion.slots] == at]
            assert len(own) == len(portion.slots) - portion.n_gone, "a table lost a conjunction"
            self._check_portion(portion, own)
            in_tables.append(own)
        always = np.array(sorted(self._always), np.int64)
        actual = np.sort(np.concatenate([recent, always, *in_tables]))
        assert np.array_equal(actual, live), "a conjunction is nowhere, or twice"

    def _check_portion(self, portion: Portion, own: NDArray[np.int64]) -> None:
        counts = portion.count_entries(len(self._hits))
        assert np.array_equal(counts[own], self._arrays.n_entries[own]), "entries are lost"
        assert counts.sum() == counts[own].sum(), "entries of deleted conjunctions remain"
        split = Split(self._rows_in(own), self._arrays.sizes(own), self._attributes.places.mark)
        assert np.array_equal(self._hits[own, 1], split.needed), "conditions are miscounted"

    def match_interfaces(
        self, events: EventBatch, interface_of: NDArray[np.int32], *, dynamic: bool = True
    ) -> RaggedIds:
        """Return the interfaces to which each event goes: it matches a subscription of theirs.

        `interface_of` gives the interface of each dense id. With `dynamic`, an interface is done
        once one of its subscriptions is found: deeper levels are not looked at for it (section
        III-E.3). Approximate, whether the engine is exact or not; patterns count as their prefixes.
        """
        if len(interface_of) <= self._owner.max(initial=-1):
            raise ArgumentError("every subscription needs an interface")
        if self._recent:
            self._flush()
        n_interfaces = int(interface_of.max(initial=-1)) + 1
        by_slot = np.where(self._owner >= 0, interface_of[self._owner], -1).astype(np.int32)
        always = np.unique(by_slot[np.array(sorted(self._always), np.int64)])
        chunks: list[NDArray[np.int32]] = []
        offsets = np.zeros(len(events) + 1, np.int64)
        size = chunk_size(len(self._attributes))
        for first in range(0, len(events), size):
            n = min(size, len(events) - first)
            chunk = self._attributes.encode(events, first, n)
            decided = np.zeros((n, n_interfaces), np.bool_)
            decided[:, always] = True
            for portion in self._portions:
                self._decide(portion, chunk, by_slot, decided, dynamic)
            rows, interfaces = np.nonzero(decided)
            offsets[first + 1 : first + n + 1] = np.bincount(rows, minlength=n)
            chunks.append(interfaces.astype(np.int32))
        return RaggedIds(np.cumsum(offsets), np.concatenate([np.empty(0, np.int32), *chunks]))

    def coded(self, dense: int) -> list[tuple[str, bytes]]:
        """Return the ranges of a subscription as they travel: attributes, and cells as bits."""
        items = self.items(np.array(self._slots_of(dense), np.int64))
        names = self._attributes.names
        columns = (items.tree, items.low, items.high, items.level)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            (names[tree >> 3], code_range(low, high, level))
            for tree, low, high, level in rows
            if level >= 0
        ]

    # Inside.

    def _add(self, slots: NDArray[np.int64], rows: Rows, sizes: NDArray[np.int64]) -> None:
        self._hits = grown(self._hits, len(self._owner))
        if len(self._portion_of) < len(self._owner):
            first = len(self._portion_of)
            self._portion_of = grown(self._portion_of, len(self._owner))
            self._portion_of[first:] = -1
            self._hits[first:, 0] = 0
        self._arrays.n_entries[slots] = 0
        self._portion_of[slots] = -1
        self._always.update(slots[sizes == 0].tolist())
        self._recent += slots[sizes > 0].tolist()
        is_grown = self._n_live >= 2 * max(self._n_separated, _RECENT)
        if self._attributes.places.is_spread or is_grown:
            self._build()
        elif len(self._recent) > _RECENT:
            self._flush()

    def _remove(self, slots: NDArray[np.int64]) -> None:
        self._always.difference_update(slots.tolist())
        where = self._portion_of[slots]
        fresh = set(slots[where < 0].tolist())
        if fresh:
            self._recent = [slot for slot in self._recent if slot not in fresh]
        for at in np.unique(where[where >= 0]).tolist():
            own = slots[where == at]
            self._portions[at].remove(self.items(own), len(own))
        self._portion_of[slots] = -1

    def _settle(self) -> None:
        gone = sum(portion.n_gone for portion in self._portions)
        if self._attributes.places.is_spread or gone > max(self._n_live, _RECENT):
            self._build()

    def _flush(self) -> None:
        """Merge the recent insertions and the tables that are not much larger into a table."""
        slots = np.array(self._recent, np.int64)
        while self._portions and len(self._portions[-1].slots) < 2 * len(slots):
            at = len(self._portions) - 1
            old = self._portions.pop().slots
            slots = np.concatenate([old[self._portion_of[old] == at], slots])
        self._recent = []
        self._enter(slots)

    def _build(self) -> None:
        """Separate values for the events last profiled, and merge all tables into one."""
        places, live = self._attributes.places, self._live()
        places.is_spread = False
        self._attributes.drop_cuts(self._arrays.rows, self._arrays.places(live))
        self._portions, self._recent = [], []
        self._portion_of[:] = -1
        self._n_separated = len(live)
        n_trees = 8 * len(self._attributes)
        split = self._split(live)
        ranges = split.ranges
        bounds = Values(
            np.concatenate([ranges.tree, ranges.tree]), np.concatenate([ranges.low, ranges.high])
        )
        self._separation = nothing(n_trees)
        self._separation = separate(n_trees, bounds, self._sample_values())
        chosen = np.array([slot for slot in live.tolist() if slot not in self._always], np.int64)
        self._enter(chosen if self._always else live)

    def _sample_values(self) -> Values | None:
        if self._sample is None:
            return None
        events = self._attributes.encode(self._sample, 0, len(self._sample))
        lookup = look_up(events, self._attributes.places.mark, np.zeros(0, np.int64))
        return cells.sampled(events, lookup)

    def _enter(self, slots: NDArray[np.int64]) -> None:
        """Make a table of conjunctions."""
        if not len(slots):
            self._note_sorts()
            return
        split = self._split(slots)
        self._hits[slots, 1] = split.needed
        self._step = max(self._step, int(split.needed.max()) + 1)
        items = self.items(slots, split)
        self._portion_of[slots] = len(self._portions)
        portion = Portion(slots, 8 * len(self._attributes), items)
        self._portions.append(portion)
        self._arrays.n_entries[slots] = portion.count_entries(len(self._hits))[slots]
        self._note_sorts(items)

    def _note_sorts(self, items: Items | None = None) -> None:
        """Note which lines and keys of each attribute anything is entered under."""
        n = len(self._attributes)
        sorts = np.zeros(n, np.int64)
        if len(self._portions) != 1 or items is None:
            sorts[: len(self._sorts)] = self._sorts
        if items is not None:
            np.bitwise_or.at(sorts, items.tree >> 3, np.int64(1) << (items.tree & 7))
        self._sorts = sorts

    def _split(self, slots: NDArray[np.int64]) -> Split:
        sizes = self._arrays.sizes(slots)
        return Split(self._rows_in(slots), sizes, self._attributes.places.mark)

    def items(self, slots: NDArray[np.int64], split: Split | None = None) -> Items:
        """Return what conjunctions are entered under."""
        split = split or self._split(slots)
        return split.items(slots, self._known(), self._rate, self._levels)

    def _known(self) -> Separation:
        """Return the separation, with trees for attributes that came later."""
        more = 8 * len(self._attributes) - self._separation.n_trees
        if more > 0:
            start = self._separation.start
            start = np.append(start, np.full(more, start[-1]))
            self._separation = self._separation._replace(start=start)
        return self._separation

    def _find(self, events: Events, offsets: NDArray[np.int64]) -> None:
        n = len(offsets) - 1
        first = int(offsets[0])
        parts = [self._match(portion, events) for portion in self._portions]
        parts.append(self._match_recent(events))
        if self._always:
            everything = np.array(sorted(self._always), np.int32)
            parts.append((np.repeat(np.arange(n), len(everything)), np.tile(everything, n)))
        rows = np.concatenate([part[0] for part in parts])
        slots = np.concatenate([part[1] for part in parts])
        if len([part for part in parts if len(part[0])]) > 1:
            order = np.argsort(rows, kind="stable")
            rows, slots = rows[order], slots[order]
        offsets[1:] = first + np.cumsum(np.bincount(rows, minlength=n))
        self._out = grown(self._out, int(offsets[-1]))
        self._out[first : offsets[-1]] = slots

    def _match(
        self, portion: Portion, events: Events
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the events and conjunctions that a table says match."""
        n, done = len(events.kind), 0
        self._rewind(n)
        question = self._question(portion, events)
        ends = np.zeros(n + 1, np.int64)
        while True:
            done = kernels.match(  # type: ignore[call-arg]
                *question,
                self._hits,
                self._base,
                self._step,
                done,
                self._pairs,
                ends,
            )
            if done == n:
                break
            self._pairs = grown(self._pairs, int(ends[done]) + len(self._hits))
        self._base += (n + 1) * self._step
        slots = self._pairs[: ends[-1]].copy()
        return self._kept(events, ends, slots) if self._exact else (_rows_of(ends), slots)

    def _decide(
        self,
        portion: Portion,
        events: Events,
        by_slot: NDArray[np.int32],
        decided: NDArray[np.bool_],
        dynamic: bool,
    ) -> None:
        """Mark the interfaces that a table leads events to."""
        self._rewind(len(events.kind))
        question = self._question(portion, events)
        rest: tuple[Any, ...] = (self._hits, self._base, self._step, by_slot, decided, dynamic)
        kernels.match_interfaces(*question, *rest)
        self._base += (len(events.kind) + 1) * self._step

    def _rewind(self, n: int) -> None:
        """Set all counters to zero before they run over."""
        if self._base + (n + 1) * self._step > _HIGHEST:
            self._hits[:, 0] = 0
            self._base = 0

    def _question(self, portion: Portion, events: Events) -> tuple[Any, ...]:
        """Return what both kernels that match take: a table, the separation, and the events."""
        if len(self._sorts) < len(self._attributes):  # recent conditions brought more
            self._note_sorts()
        lookup = look_up(events, self._attributes.places.mark, self._sorts)
        more = 8 * len(self._attributes) - len(portion.used)
        used = np.append(portion.used, np.zeros(more, np.int64))
        table = (portion.offsets, portion.words, portion.mask, used, self._sorts)
        return (*table, *self._known(), events, *lookup)

    def _match_recent(self, events: Events) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Verify the conjunctions that are in no table yet."""
        n = len(events.kind)
        ends = np.arange(n + 1, dtype=np.int64) * len(self._recent)
        return self._kept(events, ends, np.tile(np.array(self._recent, np.int32), n))

    def _kept(
        self, events: Events, ends: NDArray[np.int64], slots: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the candidates that match."""
        if len(slots):
            mark = self._attributes.places.mark
            check_kernels.keep(self._arrays.rows, self._arrays.slots, mark, events, ends, slots)
        return _rows_of(ends), slots[: ends[-1]]


def _rows_of(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))
