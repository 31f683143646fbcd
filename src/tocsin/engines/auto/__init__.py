"""The `auto` engine: cells, access tables chosen by a cost model, exact checks.

Enters and leaves: see `engines.protocol`. Added subscriptions are pending until a match that is
worth indexing them, or until they are many. Matches of a few events compare each with a few pending
subscriptions one by one, in the write buffer. They are indexed in the delta of the largest segment
where they fit, else as a segment of their own. Segments are merged by size, so that a subscription
is laid out again a logarithmic number of times, and each merge plans again. Large merges run in a
thread of their own while events are matched with the segments as they were. A deleted subscription
gets a tombstone with its deletion time, and is dropped at the next merge.

A match takes a `Snapshot`: the segments and the time. Readers need a lock only to take it, and see
either all of a change or nothing.

No counter overflows. Dense ids have 31 bits: before they run out, and before the tombstones outgrow
the live subscriptions, the matcher renumbers them (see `renumber`). Times have 32 bits and restart
before they run out. A segment numbers up to 2^29 conjunctions and 2^32 words of its stream; what
would exceed half of either becomes a segment of its own. Snapshots keep the arrays that they have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.encode.events import EventBatch
from tocsin.engines.auto.arrays import Conditions
from tocsin.engines.auto.bounds import check_bounds
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.content import (
    Content,
    from_table,
    from_table_beside,
    joined_beside,
    merged,
)
from tocsin.engines.auto.delta import Delta, DeltaSnapshot, NewEntries, lay_out_entries
from tocsin.engines.auto.elements import ElementIndex, divide
from tocsin.engines.auto.layout import read_stream
from tocsin.engines.auto.pending import Pending, join_tables
from tocsin.engines.auto.segment import Segment
from tocsin.engines.auto.serialization import put_table, put_together, take_apart, take_table
from tocsin.engines.auto.snapshot import Snapshot
from tocsin.engines.auto.tombstones import LATEST, Tombstones
from tocsin.engines.auto.write_buffer import BufferSnapshot
from tocsin.engines.conditions import IndexedConditions, conditions_of
from tocsin.engines.protocol import Engine, IndexParts
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable, take

_SAMPLE = 10_000
"""The number of events that `profile` keeps."""
_MAX_IMMEDIATE = 20_000
"""Merges of fewer conjunctions are made at once, others by the thread."""
_MANY_ATTRIBUTES = 256
"""Segments with more attributes together are not merged while a match waits, however small."""
_MAX_EAGER = 5_000
"""Up to this number, conjunctions are indexed by the call that adds them."""
_MAX_SINGLE = 64
"""Up to this number, conjunctions of one call stay pending."""
_MAX_PENDING = 16_384
"""Small additions are indexed when more conjunctions are pending, matched or not."""
_MAX_COMPARED = 1 << 20
"""Pending subscriptions are indexed when more comparisons were made with them one by one."""
_SMALL_BATCH, _MANY_NEW = 64, 16
"""A batch of more events has more pending subscriptions, that came since the last, indexed."""
_MAX_DELTA = 0.25
"""The delta holds up to this share of the largest segment."""


class Capacity(NamedTuple):
    """The most that goes into one segment: half of what its numbers have bits for."""

    conjunctions: int = 1 << 28
    words: int = 1 << 30
    """Of the stream, which may become twice as many when cells are renumbered in a merge."""

    def holds(self, segments: Sequence[Segment | Delta | NewEntries]) -> bool:
        """Whether some segments fit into one."""
        n_words = sum(segment.n_words for segment in segments)
        return (
            sum(len(segment.ids) for segment in segments) <= self.conjunctions
            and n_words <= self.words
        )

    def cut(self, table: ConjunctionTable) -> Iterator[ConjunctionTable]:
        """Yield a table in portions that fit, usually itself; no subscription is divided."""
        n_ranges = int(table.piece_start[-1]) + 2 * table.n_conditions
        n_words = 3 * table.n_conjunctions + 5 * table.n_conditions + 4 * n_ranges
        n = 1 + max(table.n_conjunctions // self.conjunctions, n_words // self.words)
        if n == 1:
            yield table
            return
        owner, cuts = table.subscription, np.arange(1, n) * table.n_conjunctions // n
        for rows in np.split(np.arange(len(owner)), np.searchsorted(owner, owner[cuts])):
            if len(rows):
                yield take(table, rows)


CAPACITY = Capacity()


@dataclass(eq=False)
class _Slot:
    """A segment or the delta, with an upper bound on its deleted subscriptions."""

    segment: Segment | Delta
    n_dead: int = 0

    @property
    def size(self) -> int:
        return self.segment.n_subscriptions

    @property
    def n_attributes(self) -> int:
        return len(self.segment.space.attributes)

    @property
    def is_delta(self) -> bool:
        return isinstance(self.segment, Delta)

    def snapshot(self) -> Segment | DeltaSnapshot:
        return self.segment.snapshot() if isinstance(self.segment, Delta) else self.segment


class _MergeInput(NamedTuple):
    """What a merge reads: segments, tombstones, and the largest segment of all."""

    segments: list[Segment | DeltaSnapshot]
    tombstones: Tombstones
    largest: Segment | None


class AutoEngine(Engine):
    """Segments, merged by size, the delta of the largest one, and tombstones.

    Without `merges`, each flush is a segment of its own until `rebuild` is called.
    """

    is_concurrent = True

    def __init__(self, *, merges: bool = True) -> None:
        self._merges = merges
        self._pending = Pending()
        self._slots: list[_Slot] = []
        self._pending_elements: list[ConjunctionTable] = []
        self._elements: list[ElementIndex] = []
        self._sample: EventBatch | None = None
        self._tombstones = Tombstones.empty()
        self._time = 0
        self._n_compared = 0
        """How many comparisons earlier snapshots have made with what is pending."""
        self._current: Snapshot | None = None
        self._pool = BufferPool()
        self._lock = threading.RLock()
        self._merger: threading.Thread | None = None
        self._busy: list[_Slot] = []
        self._renumberings: list[NDArray[np.int64]] = []
        """The arguments of `renumber` since the merge in the background began."""
        self._failure: Exception | None = None
        self._scratch = threading.local()

    def start_time_at(self, time: int) -> None:
        """Let the time of a new engine start at a number: tests start it near its end."""
        self._time = time

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions; they are indexed later.

        Some that come between matches are indexed at once, so that the next match need not do it.
        If that fails, the index is as it was.
        """
        table, of_elements = divide(table)
        with self._lock:
            is_single = table.n_conjunctions <= _MAX_SINGLE
            is_eager = self._current is not None and table.n_conjunctions <= _MAX_EAGER
            is_eager &= not is_single and bool(self._slots)
            if is_eager or (is_single and self._pending.n_conjunctions >= _MAX_PENDING):
                self._index_pending()
            if len(ids):
                if not (self._slots or self._pending or self._elements or self._pending_elements):
                    self._tombstones = Tombstones.empty(int(ids[0]))
                stop = int(ids[-1]) + 1
                if stop > self._tombstones.stop:
                    self._tombstones = self._tombstones.extended_to(stop)
            if of_elements is not None:
                self._pending_elements.append(of_elements)
            if table.n_conjunctions or of_elements is None:
                self._pending.append(table)
            if is_eager:
                try:
                    self._index_pending()
                except BaseException:
                    self._pending = Pending()  # there was nothing else: it was indexed before
                    raise
            self._tick()
            if not self._pending:
                self._merge_due()

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Delete subscriptions: bury them under tombstones."""
        with self._lock:
            self._tick()
            self._tombstones.bury(ids, self._time)
            self._count_deleted(ids)

    def _tick(self) -> None:
        """Begin a new time, for a change; readers from now on take a new snapshot."""
        if self._time >= LATEST - 1:
            self._tombstones, self._time = self._tombstones.restarted(), 0
        self._time += 1
        self._forget_current()

    def _forget_current(self) -> None:
        """Have readers from now on take a new snapshot."""
        if self._current is not None:
            self._n_compared += self._current.n_compared
            self._current = None

    def _count_deleted(self, ids: NDArray[np.integer]) -> None:
        """Count deleted ids in the segments where they may be."""
        if self._slots:
            firsts = np.array([slot.segment.ids[0] for slot in self._slots])
            indexed = ids[ids <= self._slots[-1].segment.ids[-1]]
            for at, n in enumerate(
                np.bincount(np.searchsorted(firsts, indexed, side="right"), minlength=1)[1:]
            ):
                self._slots[at].n_dead += int(n)

    def profile(self, events: EventBatch) -> None:
        """Keep a sample of events, for which segments are planned from now on."""
        with self._lock:
            self._sample = events.readable_sample(_SAMPLE, self._mentioned())

    def _mentioned(self) -> set[str]:
        """Return the attributes that conditions mention."""
        spaces = (slot.segment.space.attributes for slot in self._slots)
        tables = (table.attributes for table in self._pending.tables)
        elements = (index.space.attributes for index in self._elements)
        return {name for names in (*spaces, *tables, *elements) for name in names}

    def reader(self) -> Snapshot:
        """Index pending subscriptions, and return a snapshot of all."""
        with self._lock:
            if self._current is None or self._current.buffer is not None:
                self._flush()
                self._current = self._snapshot(None)
            return self._current

    def reader_for(self, n_events: int) -> Snapshot:
        """Return a snapshot; index pending subscriptions if that is worth it for `n_events`.

        A batch is compared with them one by one until that has cost as much as indexing them; many
        new ones are indexed at once for a batch that is not small. For a single event comparing is
        cheaper than a segment more, as long as the write buffer has room.
        """
        with self._lock:
            current = self.current(n_events)
            if current is not None:
                return current
            self._forget_current()
            is_worth_it = bool(self._pending) and self._merges
            if n_events > _SMALL_BATCH and self._pending.n_new > _MANY_NEW:
                is_worth_it = False
            buffer = self._pending.buffered() if is_worth_it else None
            if buffer is None or not self._is_cheap(buffer, self._n_compared, n_events):
                return self.reader()
            self._current = self._snapshot(buffer)
            return self._current

    def current(self, n_events: int) -> Snapshot | None:
        """Return the latest snapshot if there is one, and it is good for `n_events`."""
        snapshot = self._current
        if snapshot is None or snapshot.buffer is None:
            return snapshot
        n_compared = self._n_compared + snapshot.n_compared
        return snapshot if self._is_cheap(snapshot.buffer, n_compared, n_events) else None

    @staticmethod
    def _is_cheap(buffer: BufferSnapshot, n_compared: int, n_events: int) -> bool:
        """Whether `n_events` should be compared with a buffer, after `n_compared` comparisons."""
        return n_events <= 1 or n_compared + buffer.n_rows * n_events <= _MAX_COMPARED

    def _snapshot(self, buffer: BufferSnapshot | None) -> Snapshot:
        self._index_elements()
        segments = tuple((slot.snapshot(), slot.n_dead > 0) for slot in self._slots)
        return Snapshot(
            segments,
            self._tombstones,
            self._time,
            self._scratch,
            self._pool,
            buffer,
            tuple(self._elements),
        )

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch with every segment."""
        return self.reader().match_batch(events)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event with every segment."""
        return self.reader().match_one(event)

    def _flush(self) -> None:
        """Index pending subscriptions, and merge what is due."""
        self._index_pending()
        self._index_elements()
        self._merge_due()

    def _index_elements(self) -> None:
        """Index pending conjunctions by elements, together with smaller indexes that are there."""
        if not self._pending_elements:
            return
        tables = list(self._pending_elements)
        size = sum(table.n_conjunctions for table in tables)
        kept = list(self._elements)
        while kept and len(kept[-1].ids) <= 2 * size:
            index = kept.pop()
            tables.insert(0, index.table)
            size += len(index.ids)
        table = self._live(tables)
        if table is not None:
            kept.append(ElementIndex(table))
        self._elements, self._pending_elements = kept, []

    def _index_pending(self) -> None:
        """Index pending subscriptions. If that fails, the ones not indexed are still pending."""
        if not self._pending:
            return
        self._forget_current()
        table = self._live_pending()
        portions = [] if table is None else list(CAPACITY.cut(table))
        self._pending, self._n_compared = Pending(portions), 0
        while portions:
            self._add(portions[0])
            del portions[0]
            self._pending = Pending(portions)

    def _live_pending(self) -> ConjunctionTable | None:
        """Return the live pending subscriptions as one table, or None if there are none."""
        table = self._pending.table(lambda ids: self._tombstones.of(ids) == 0)
        return table if table.n_conjunctions else None

    def _live(self, tables: list[ConjunctionTable]) -> ConjunctionTable | None:
        """Return the live conjunctions of tables as one table, or None if there are none."""
        table = join_tables(tables)
        live = self._tombstones.of(table.subscription) == 0
        if not live.all():
            table = take(table, np.flatnonzero(live))
        return table if table.n_conjunctions else None

    def _merge_due(self) -> None:
        """Merge small segments, and start a larger merge if one is due.

        Answers do not depend on it, so a failure is kept for `rebuild` and `check` to report.
        """
        if self._merges:
            try:
                self._merge_small()
                self._start_merger(self._due())
            except Exception as error:
                self._failure = error

    def _add(self, table: ConjunctionTable) -> None:
        """Index conjunctions: in the delta of the largest segment if possible, else by themselves.

        What does not suit a delta becomes a segment in the cells of the largest one if it can.
        """
        largest, content = self._largest(), None
        if largest is not None and table.n_conjunctions < _MAX_DELTA * len(largest.ids):
            content = from_table_beside(table, largest.space)
        if content is not None and largest is not None:
            if self._merges and Delta.suits(largest) and not content.is_patterned:
                new = lay_out_entries(content, largest)
                if new is not None:
                    return self._append_to_delta(new, largest)
            else:
                segment = Segment.build_beside(content, largest)
                if segment is not None:
                    return self._slots.append(_Slot(segment))
        return self._slots.append(_Slot(self._build(from_table(table))))

    def _append_to_delta(self, new: NewEntries, base: Segment) -> None:
        """Append entries to the delta of a segment, or to a new one if a merge is using that."""
        last = self._slots[-1].segment
        if (
            isinstance(last, Delta)
            and last.base is base
            and self._slots[-1] not in self._busy
            and CAPACITY.holds([last, new])
        ):
            last.append(new)
            return
        delta = Delta(base)
        delta.append(new)
        self._slots.append(_Slot(delta))

    def _largest(self) -> Segment | None:
        segments = [slot.segment for slot in self._slots if isinstance(slot.segment, Segment)]
        return max(segments, key=lambda segment: len(segment.ids), default=None)

    def _build(self, content: Content) -> Segment:
        return Segment.build(content, self._sample, pool=self._pool)

    def _merge_small(self) -> None:
        """Merge the last segments while they are small and each not twice the size of the next."""
        while len(self._slots) > 1 and not self._slots[-1].is_delta:
            last = self._slots[-2:]
            if last[0] in self._busy or last[1] in self._busy:
                return
            n = last[0].size + last[1].size
            is_beside = last[0].segment.space is last[1].segment.space
            if last[0].size >= 2 * last[1].size or n > (
                _MAX_IMMEDIATE if is_beside else _MAX_IMMEDIATE // 4
            ):
                return
            if last[0].n_attributes + last[1].n_attributes > _MANY_ATTRIBUTES and not is_beside:
                return
            if not CAPACITY.holds([slot.segment for slot in last]):
                return
            self._replace(last, self._merged(self._merge_input(last)))

    def _due(self) -> list[_Slot]:
        """Return the adjacent segments that should be merged next, if any.

        Segments in the cells of the largest one cost a match little: they are merged with each
        other like all others, but with it only when together they are a good part of it.
        """
        slots = self._slots
        if not slots:
            return []
        largest = max(range(len(slots)), key=lambda at: (not slots[at].is_delta, slots[at].size))
        end = len(slots) - slots[-1].is_delta  # the delta grows: it is not merged with others
        first, size = end - 1, slots[end - 1].size
        while first > largest + 1 and slots[first - 1].size < 2 * size:
            first -= 1
            size += slots[first].size
        n_attributes = sum(slot.n_attributes for slot in slots[first:end])
        is_large = size > _MAX_IMMEDIATE // 4 or n_attributes > _MANY_ATTRIBUTES
        if first < end - 1 and is_large and _fits(slots[first:end]):
            return slots[first:end]
        rest = sum(slot.size for slot in slots[largest + 1 :])
        space = slots[largest].segment.space
        is_beside = all(slot.segment.space is space for slot in slots[largest:])
        is_much = rest > slots[largest].size * (_MAX_DELTA if is_beside else 0.5)
        if is_much and rest > _MAX_IMMEDIATE // 4 and _fits(slots[largest:]):
            return slots[largest:]
        bases = {id(slot.segment) for slot in slots}
        orphans = [
            slot
            for slot in slots
            if isinstance(slot.segment, Delta) and id(slot.segment.base) not in bases
        ]
        dying = [slot for slot in slots if slot.n_dead > max(slot.size // 2, 1024)]
        return (orphans + dying)[:1]

    def _start_merger(self, due: list[_Slot]) -> None:
        """Merge some segments in a thread of its own, unless it is busy."""
        if due and self._merger is None:
            merger = threading.Thread(target=self._run_merger, daemon=True)
            self._busy, self._merger = due, merger
            try:
                merger.start()
            except BaseException:  # no more threads
                self._busy, self._merger = [], None
                raise

    def _run_merger(self) -> None:
        """Merge the busy segments, and go on as long as a merge is due."""
        while True:
            segment, failure = None, None
            with self._lock:
                self._renumberings = []
                source = self._merge_input(self._busy)
            try:
                segment = self._merged(source)
            except Exception as error:
                failure = error
            with self._lock:
                if failure is None:
                    for kept in self._renumberings:
                        segment = None if segment is None else segment.renumbered(kept)
                    self._replace(self._busy, segment)
                self._failure = failure
                self._busy = [] if failure or not self._merges else self._due()
                if not self._busy:
                    self._merger = None
                    return

    def _merge_input(self, slots: list[_Slot]) -> _MergeInput:
        """Return what a merge reads; only tombstones are added to it later."""
        return _MergeInput([slot.snapshot() for slot in slots], self._tombstones, self._largest())

    def _merged(self, source: _MergeInput) -> Segment | None:
        """Build one segment of the live conjunctions of several, planned for the current sample."""
        segments, tombstones, largest = source
        is_live = [tombstones.of(segment.ids) == 0 for segment in segments]
        if not any(live.any() for live in is_live):
            return None
        if largest is not None and all(
            segment.space is largest.space and segment is not largest for segment in segments
        ):
            segment = Segment.build_beside(joined_beside(segments, is_live), largest)
            if segment is not None:
                return segment
        return self._build(merged(segments, is_live))

    def _replace(self, old: list[_Slot], segment: Segment | None) -> None:
        """Replace segments by the one that they were merged into."""
        at = self._slots.index(old[0])
        new = []
        if segment is not None:
            new = [_Slot(segment, self._count_dead(segment))]
        self._slots[at : at + len(old)] = new
        self._forget_current()

    def _count_dead(self, segment: Segment | Delta) -> int:
        """Count the deleted subscriptions of a segment."""
        return len(self._dead_in(segment))

    def _dead_in(self, segment: Segment | Delta) -> NDArray[np.int32]:
        """Return the ids of the deleted subscriptions of a segment, ascending."""
        dead = segment.ids[self._tombstones.of(segment.ids) != 0]
        distinct: NDArray[np.int32] = dead[np.diff(dead, prepend=-1) != 0]  # ids are in order
        return distinct

    def rebuild(self) -> None:
        """Lay out the whole index as one segment, planned for the current sample of events.

        If that is more than a segment holds, as few segments as possible.
        """
        with self._lock:
            self._flush()
            n_left = len(self._slots)
        at = 0
        while n_left > 0:
            with self._lock:
                self._index_pending()
                merger, group = self._merger, []
                if merger is None:
                    group = _fitting(self._slots[at:])
                    self._failure = None
                    self._start_merger(group)
                    merger = self._merger
            if merger is None:
                return
            merger.join()
            if group:
                if self._failure is not None:
                    raise self._failure
                n_left -= len(group)
                at += 1

    def tombstones(self) -> NDArray[np.int64]:
        """Return the ids of deleted subscriptions that are still in segments, ascending."""
        with self._lock:
            dead = [self._dead_in(slot.segment) for slot in self._slots if slot.n_dead]
            return np.concatenate([np.empty(0, np.int64), *dead])

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Change dense ids: `kept[i]` becomes i.

        `kept` has the ids of all live subscriptions and of all tombstones that are still in
        segments, ascending; other tombstones are dropped. The new segments share all but the ids
        with the old ones, which earlier snapshots keep.
        """
        with self._lock:
            table = self._live_pending() if self._pending else None
            pending = Pending()
            if table is not None:
                subscription = np.searchsorted(kept, table.subscription)
                pending.append(replace(table, subscription=subscription))
            tombstones = self._tombstones.renumbered(kept).restarted()
            segments: dict[int, Segment] = {
                id(slot.segment): slot.segment.renumbered(kept)
                for slot in self._slots
                if isinstance(slot.segment, Segment)
            }
            renumbered: list[Segment | Delta] = [
                slot.segment.renumbered(
                    kept, segments.get(id(slot.segment.base), slot.segment.base)
                )
                if isinstance(slot.segment, Delta)
                else segments[id(slot.segment)]
                for slot in self._slots
            ]
            if self._merger is not None:
                self._renumberings.append(kept)
            elements = self._renumbered_elements(kept)
            for slot, segment in zip(self._slots, renumbered, strict=True):
                slot.segment = segment
            self._elements, self._pending_elements = [], elements
            self._pending, self._tombstones, self._time = pending, tombstones, 0
            self._forget_current()

    def _renumbered_elements(self, kept: NDArray[np.int64]) -> list[ConjunctionTable]:
        """Return the live conjunctions that are indexed by elements, with other ids."""
        table = self._live_elements()
        if table is None:
            return []
        return [replace(table, subscription=np.searchsorted(kept, table.subscription))]

    def _live_elements(self) -> ConjunctionTable | None:
        """Return the live conjunctions that are indexed by elements."""
        tables = [*(index.table for index in self._elements), *self._pending_elements]
        return self._live(tables) if tables else None

    def parts(self) -> IndexParts:
        """Return the index as it is now: segments, and the deleted ids in them."""
        with self._lock:
            segments = self.segments()
            dead = [self._dead_in(slot.segment) for slot in self._slots if slot.n_dead]
            arrays = {"dead": np.concatenate([np.empty(0, np.int32), *dead])}
            state = Parts({"n_ids": self._tombstones.stop}, arrays)
            names = {name for segment in segments for name in segment.space.attributes}
            elements = self._live_elements()
            if elements is not None:
                put_table(elements, state)
                names.update(elements.attributes)
            return IndexParts(
                state,
                {segment.name: partial(take_apart, segment) for segment in segments},
                self._sample,
                sorted(names),
            )

    def segments(self) -> list[Segment]:
        """Return all segments; the delta is made into one."""
        with self._lock:
            self._flush()
            segments = []
            for slot in list(self._slots):
                if isinstance(slot.segment, Segment):
                    segments.append(slot.segment)
                    continue
                segment = self._merged(self._merge_input([slot]))
                segments += [] if segment is None else [segment]
                if slot not in self._busy:
                    self._replace([slot], segment)
            return segments

    def conditions(self) -> list[IndexedConditions]:
        """Return the conditions of each segment, read from its stream when asked for."""
        of_segments = [
            IndexedConditions(s.space, s.ids, partial(_conditions_of, s)) for s in self.segments()
        ]
        return of_segments + [conditions_of(index.table) for index in self._elements]

    def restore(self, states: Sequence[Parts], segments: Sequence[Parts]) -> None:
        """Take over segments, whose deleted subscriptions were deleted before all that follows."""
        with self._lock:
            n_ids = max(state.facts["n_ids"] for state in states)
            opened = [put_together(parts, self._pool) for parts in segments]
            for segment in opened:
                check_bounds(segment, n_ids)
            self._slots = [_Slot(segment) for segment in opened]
            tables = [table for state in states if (table := take_table(state)) is not None]
            firsts = [int(segment.ids[0]) for segment in opened]
            first = min(firsts + [int(table.subscription[0]) for table in tables], default=0)
            self._tombstones = Tombstones.empty(first).extended_to(n_ids)
            self._elements, self._pending_elements = [], tables
            for state in states:
                self._tombstones.bury(state.arrays["dead"], self._time)
                self._count_deleted(state.arrays["dead"])
            self._forget_current()

    def explain(self, dense: int) -> str:
        """Say under which keys a subscription is."""
        lines = [line for segment in self.segments() for line in segment.explain(dense)]
        lines += [line for index in self._elements for line in index.explain(dense)]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """List the access tables of every segment, and how much of them an event checks."""
        lines = []
        for at, segment in enumerate(self.segments()):
            lines.append(f"segment {at + 1}: {segment.n_subscriptions} subscriptions")
            names = segment.space.attributes
            lines += [f"  {table.text(names)}" for table in segment.describe(self._sample)]
        for index in self._elements:
            lines.append(f"elements: {index.n_subscriptions} subscriptions")
            lines += [f"  {line}" for line in index.describe()]
        return "\n".join(lines) if lines else "nothing is indexed"

    def expected_checks(self) -> float:
        """Return how many rows an event is expected to check in all segments."""
        reports = (segment.describe(self._sample) for segment in self.segments())
        return sum(table.checks for tables in reports for table in tables)

    def check(self) -> None:
        """Verify the invariants of every segment."""
        for segment, _ in self.reader_for(1).segments:
            segment.check()
        with self._lock:
            for slot in self._slots:
                assert slot.n_dead >= self._count_dead(slot.segment), (
                    "deleted subscriptions are miscounted"
                )
            firsts = [int(slot.segment.ids[0]) for slot in self._slots]
            lasts = [int(slot.segment.ids[-1]) for slot in self._slots]
            assert all(a < b for a, b in zip(lasts, firsts[1:], strict=False)), "ids are mixed"
        if self._failure is not None:
            raise self._failure

    @property
    def nbytes(self) -> int:
        """The bytes of the segments, of pending subscriptions and of the tombstones."""
        with self._lock:
            segments = sum(slot.segment.nbytes for slot in self._slots)
            elements = sum(index.nbytes for index in self._elements)
            elements += sum(table.nbytes for table in self._pending_elements)
            return segments + elements + self._pending.nbytes + self._tombstones.times.nbytes


def _conditions_of(segment: Segment) -> Conditions:
    return read_stream(segment.stream, np.arange(len(segment.ids), dtype=np.uint32))


def _fits(slots: Sequence[_Slot]) -> bool:
    """Whether adjacent segments may be merged into one."""
    return CAPACITY.holds([slot.segment for slot in slots])


def _fitting(slots: list[_Slot]) -> list[_Slot]:
    """Return as many of the first segments as fit into one, at least one if there is any."""
    n = min(1, len(slots))
    while n < len(slots) and _fits(slots[: n + 1]):
        n += 1
    return slots[:n]
