"""The `auto` engine: cells, access tables chosen by a cost model, exact checks.

Enters and leaves: see `engines.protocol`. What arrives is pending until the next match, which
indexes it as a segment of its own. Segments are merged by size: a merge costs each subscription a
logarithmic number of rebuilds, and plans anew. Large merges are made by a thread of their own while
events go on being matched against the segments as they were. What is deleted gets a time of death,
and is dropped at the next merge.

A match takes a `Version`: the segments, and the time. Nothing in it ever changes but for times of
death, and those that come later than its own time it does not see. So readers need no lock but to
take their version, and see either all of a change or nothing.

No counter runs over. Dense ids have 31 bits: before they run out, and before the table of deaths
gets large beside what lives, the matcher renumbers them (see `renumber`). Times have 32 bits and
start again before they run out. A segment numbers up to 2^29 conjunctions and 2^32 words of its
stream: what would exceed half of either goes into a segment of its own. In all three cases readers
keep the arrays that they have.
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
from tocsin.engines.auto import row_kernels
from tocsin.engines.auto.arrays import Conditions
from tocsin.engines.auto.bounds import check_bounds
from tocsin.engines.auto.buffer_pool import Rooms
from tocsin.engines.auto.content import (
    Content,
    from_table,
    from_table_beside,
    joined_beside,
    merged,
)
from tocsin.engines.auto.delta import Recent, RecentView
from tocsin.engines.auto.layout import read_stream
from tocsin.engines.auto.prepared import Prepared
from tocsin.engines.auto.report import describe_tables, explain_subscription
from tocsin.engines.auto.segment import Segment, join
from tocsin.engines.auto.serialization import put_together, take_apart
from tocsin.engines.auto.tombstones import LATEST, Tombstones
from tocsin.engines.conditions import IndexedConditions
from tocsin.engines.protocol import Engine, IndexParts
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable, stack, take

_SAMPLE = 10_000
"""How many events `profile` keeps."""
_SOON = 20_000
"""Merges of fewer conjunctions are made at once, others by the thread."""
_MANY_ATTRIBUTES = 256
"""Segments with more attributes together are not merged while a match waits, however small."""
_AT_ONCE = 5_000
"""Up to how many conjunctions that arrive are indexed by whoever brings them."""
_BESIDE = 0.25
"""Up to this share of the largest segment, what arrives is kept beside it."""


class Capacity(NamedTuple):
    """How much goes into one segment: half of what its numbers have bits for, or less."""

    conjunctions: int = 1 << 28
    words: int = 1 << 30
    """Of the stream, which may become twice as many when cells are renumbered in a merge."""

    def holds(self, segments: Sequence[Segment | Recent]) -> bool:
        """Whether some segments fit into one."""
        n_words = sum(segment.n_words for segment in segments)
        return (
            sum(len(segment.ids) for segment in segments) <= self.conjunctions
            and n_words <= self.words
        )

    def cut(self, table: ConjunctionTable) -> Iterator[ConjunctionTable]:
        """Yield a table in portions that fit, most often itself; no subscription is divided."""
        n_ranges = int(table.piece_start[-1]) + 2 * table.n_conditions
        n_words = 3 * table.n_conjunctions + 5 * table.n_conditions + 4 * n_ranges
        n = 1 + max(table.n_conjunctions // self.conjunctions, n_words // self.words)
        if n == 1:
            yield table
            return
        owner, cuts = table.subscription, np.arange(1, n) * table.n_conjunctions // n
        for some in np.split(np.arange(len(owner)), np.searchsorted(owner, owner[cuts])):
            if len(some):
                yield take(table, some)


CAPACITY = Capacity()


@dataclass(eq=False)
class _Held:
    """A segment or what is recent, and how many of its subscriptions are dead: as many or more."""

    segment: Segment | Recent
    n_dead: int = 0

    @property
    def size(self) -> int:
        return self.segment.n_subscriptions

    @property
    def n_attributes(self) -> int:
        return len(self.segment.space.attributes)

    @property
    def is_recent(self) -> bool:
        return isinstance(self.segment, Recent)

    def view(self) -> Segment | RecentView:
        """Return what is held, as it is now."""
        return self.segment.view() if isinstance(self.segment, Recent) else self.segment


class _Snapshot(NamedTuple):
    """What a merge reads: segments, deaths, and the largest segment of all."""

    segments: list[Segment | RecentView]
    tombstones: Tombstones
    largest: Segment | None


class Version:
    """The subscriptions as they are at a time: segments, each with whether any of it is dead."""

    def __init__(
        self,
        segments: tuple[tuple[Segment | RecentView, bool], ...],
        tombstones: Tombstones,
        time: int,
        seen: threading.local,
        rooms: Rooms,
    ) -> None:
        self.segments = segments
        self._tombstones = tombstones
        self._time = time
        self._seen = seen
        self._rooms = rooms

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch against every segment."""
        found = RaggedIds(np.zeros(len(events) + 1, np.int64), np.empty(0, np.uint32))
        prepared: dict[int, Prepared] = {}
        for segment, has_dead in self.segments:
            batch = prepared.get(id(segment.space))
            if batch is None:
                batch = Prepared(events, segment.space, self._rooms)
                prepared[id(segment.space)] = batch
            found = join(found, self._match_segment(segment, has_dead, batch))
        return RaggedIds(found.offsets, found.values.view(np.int32))

    def _match_segment(
        self, segment: Segment | RecentView, has_dead: bool, batch: Prepared
    ) -> RaggedIds:
        if segment.first_id is not None and not has_dead and not segment.is_patterned:
            return segment.candidates(batch, segment.first_id)
        found = segment.candidates(batch)
        ends = np.zeros(len(batch.events) + 1, np.int64)
        notes, stamp = self._take_notes(segment, len(batch.events))
        row_kernels.to_ids(
            found.offsets,
            found.values,
            segment.ids,
            self._tombstones.times,
            self._tombstones.first,
            LATEST - self._time,
            notes,
            stamp,
            segment.has_siblings,
            ends[1:],
        )
        return RaggedIds(ends, found.values[: ends[-1]])

    def _take_notes(
        self, segment: Segment | RecentView, n_events: int
    ) -> tuple[NDArray[np.int64], int]:
        """Return this thread's notes of the event that each id was last seen in, and a number.

        The events of the match that asks are numbered from there on, in 64 bits. Notes are as long
        as the tombstones, within a factor; what no event was seen in has 0.
        """
        if not segment.has_siblings:
            return np.empty(0, np.int64), 0
        notes = getattr(self._seen, "notes", None)
        n_ids = len(self._tombstones.times)
        if notes is None or not n_ids <= len(notes) <= 4 * n_ids:
            self._seen.notes = notes = np.zeros(n_ids, np.int64)
            self._seen.stamp = 1
        stamp: int = self._seen.stamp
        self._seen.stamp += n_events
        return notes, stamp

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        found: dict[int, None] = {}
        for segment, _ in self.segments:
            ids = segment.match_one(event)
            if len(ids):
                alive = ids[self._tombstones.of(ids) < LATEST - self._time]
                found.update(dict.fromkeys(alive.tolist()))
        return list(found)


class AutoEngine(Engine):
    """Segments, merged by size, and times of death.

    Without `merges` each flush is a segment of its own until `merge` is called.
    """

    is_concurrent = True

    def __init__(self, *, merges: bool = True) -> None:
        self._merges = merges
        self._pending: list[ConjunctionTable] = []
        self._held: list[_Held] = []
        self._sample: EventBatch | None = None
        self._tombstones = Tombstones.empty()
        self._time = 0
        self._current: Version | None = None
        self._rooms = Rooms()
        self._lock = threading.RLock()
        self._merger: threading.Thread | None = None
        self._busy: list[_Held] = []
        self._renumberings: list[NDArray[np.int64]] = []
        """What `renumber` was given since the merge in the background began."""
        self._failure: Exception | None = None
        self._seen = threading.local()

    def start_time_at(self, time: int) -> None:
        """Let the time of an engine that is new start at a number: tests start it near its end."""
        self._time = time

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions; they are indexed at the next match.

        A few that come between matches are indexed at once, so that the thread that matches need
        not do it. Where that fails, the index is as it was.
        """
        with self._lock:
            is_watched = self._current is not None and table.n_conjunctions <= _AT_ONCE
            if len(ids):
                if not self._held and not self._pending:
                    self._tombstones = Tombstones.empty(int(ids[0]))
                stop = int(ids[-1]) + 1
                if stop > self._tombstones.stop:
                    self._tombstones = self._tombstones.with_room(stop)
            self._pending.append(table)
            if is_watched and self._held:
                try:
                    self._index_pending()
                except BaseException:
                    self._pending = []  # there was nothing else: a version was current
                    raise
            self._tick()
            if not self._pending:
                self._tidy()

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Let subscriptions die."""
        with self._lock:
            self._tick()
            self._tombstones.bury(ids, self._time)
            self._note_dead(ids)

    def _tick(self) -> None:
        """Begin a new time, for a change; readers from now on take a new version."""
        if self._time >= LATEST - 1:
            self._tombstones, self._time = self._tombstones.restarted(), 0
        self._time += 1
        self._current = None

    def _note_dead(self, ids: NDArray[np.integer]) -> None:
        """Count ids that died in the segments where they may be."""
        if self._held:
            firsts = np.array([held.segment.ids[0] for held in self._held])
            for at, n in enumerate(
                np.bincount(np.searchsorted(firsts, ids, side="right"), minlength=1)[1:]
            ):
                self._held[at].n_dead += int(n)

    def profile(self, events: EventBatch) -> None:
        """Keep a sample of events; segments built from now on are planned for such events."""
        with self._lock:
            self._sample = events.readable_sample(_SAMPLE, self._mentioned())

    def _mentioned(self) -> set[str]:
        """Return the attributes that conditions mention."""
        spaces = (held.segment.space.attributes for held in self._held)
        tables = (table.attributes for table in self._pending)
        return {name for names in (*spaces, *tables) for name in names}

    def reader(self) -> Version:
        """Index what arrived, and return the subscriptions as they are now."""
        with self._lock:
            if self._current is None:
                self._flush()
                held = tuple((held.view(), held.n_dead > 0) for held in self._held)
                self._current = Version(held, self._tombstones, self._time, self._seen, self._rooms)
            return self._current

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch against every segment."""
        return self.reader().match_batch(events)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        return self.reader().match_one(event)

    def _flush(self) -> None:
        """Index what arrived, and see to merges."""
        self._index_pending()
        self._tidy()

    def _index_pending(self) -> None:
        """Index what arrived. Where that fails, what is not indexed is still pending."""
        if not self._pending:
            return
        table = self._live_pending()
        portions = [] if table is None else list(CAPACITY.cut(table))
        self._pending = portions
        while portions:
            self._take_in(portions[0])
            del portions[0]

    def _live_pending(self) -> ConjunctionTable | None:
        """Return what arrived and lives as one table, or None where there is no such."""
        tables = self._pending
        table = stack(tables, [0] * len(tables), sum(t.n_subscriptions for t in tables))
        live = self._tombstones.of(table.subscription) == 0
        if not live.all():
            table = take(table, np.flatnonzero(live))
        return table if table.n_conjunctions else None

    def _tidy(self) -> None:
        """Merge what is small, and start a larger merge if one is due.

        Answers do not depend on it, so a failure is kept for `merge` and `check` to report.
        """
        if self._merges:
            try:
                self._merge_small()
                self._start_merger(self._due())
            except Exception as error:
                self._failure = error

    def _take_in(self, table: ConjunctionTable) -> None:
        """Index what arrived: beside the largest segment if that can be, else by itself."""
        largest, content = self._largest(), None
        if largest is not None and table.n_conjunctions < _BESIDE * len(largest.ids):
            content = from_table_beside(table, largest.space)
        found = None
        if content is not None and largest is not None:
            found = Segment.build_beside(content, largest)
        if found is None:
            self._held.append(_Held(self._build(from_table(table))))
        elif largest is None or found.is_patterned or not (self._merges and Recent.suits(largest)):
            self._held.append(_Held(found))
        else:
            self._add_recent(found, largest)

    def _add_recent(self, found: Segment, beside: Segment) -> None:
        """Add what was laid out beside a segment to what is recent there, and is not merged now."""
        last, is_free = self._held[-1].segment, self._held[-1] not in self._busy
        if (
            isinstance(last, Recent)
            and last.beside is beside
            and is_free
            and CAPACITY.holds([last, found])
        ):
            last.add(found)
            return
        recent = Recent(beside)
        recent.add(found)
        self._held.append(_Held(recent))

    def _largest(self) -> Segment | None:
        segments = [held.segment for held in self._held if isinstance(held.segment, Segment)]
        return max(segments, key=lambda segment: len(segment.ids), default=None)

    def _build(self, content: Content) -> Segment:
        return Segment.build(content, self._sample, rooms=self._rooms)

    def _merge_small(self) -> None:
        """Merge the last segments while they are small and each not twice the size of the next."""
        while len(self._held) > 1 and not self._held[-1].is_recent:
            last = self._held[-2:]
            if last[0] in self._busy or last[1] in self._busy:
                return
            n = last[0].size + last[1].size
            is_beside = last[0].segment.space is last[1].segment.space
            if last[0].size >= 2 * last[1].size or n > (_SOON if is_beside else _SOON // 4):
                return
            if last[0].n_attributes + last[1].n_attributes > _MANY_ATTRIBUTES and not is_beside:
                return
            if not CAPACITY.holds([h.segment for h in last]):
                return
            self._replace(last, self._merged(self._snapshot(last)))

    def _due(self) -> list[_Held]:
        """Return the neighbouring segments that should be merged next, if any.

        Those beside the largest one cost a match little: they are merged with each other like all
        others, but with it only when together they are a good part of it.
        """
        held = self._held
        if not held:
            return []
        largest = max(range(len(held)), key=lambda at: (not held[at].is_recent, held[at].size))
        end = len(held) - held[-1].is_recent  # what is recent grows: it is merged with none
        first, size = end - 1, held[end - 1].size
        while first > largest + 1 and held[first - 1].size < 2 * size:
            first -= 1
            size += held[first].size
        n_attributes = sum(h.n_attributes for h in held[first:end])
        is_large = size > _SOON // 4 or n_attributes > _MANY_ATTRIBUTES
        if first < end - 1 and is_large and _fits(held[first:end]):
            return held[first:end]
        rest = sum(h.size for h in held[largest + 1 :])
        is_beside = all(h.segment.space is held[largest].segment.space for h in held[largest:])
        is_much = rest > held[largest].size * (_BESIDE if is_beside else 0.5)
        if is_much and rest > _SOON // 4 and _fits(held[largest:]):
            return held[largest:]
        of = {id(h.segment) for h in held}
        left = [h for h in held if isinstance(h.segment, Recent) and id(h.segment.beside) not in of]
        dying = [h for h in held if h.n_dead > max(h.size // 2, 1024)]
        return (left + dying)[:1]

    def _start_merger(self, due: list[_Held]) -> None:
        """Merge some segments in a thread of its own, unless it is busy."""
        if due and self._merger is None:
            merger = threading.Thread(target=self._merge_apart, daemon=True)
            self._busy, self._merger = due, merger
            try:
                merger.start()
            except BaseException:  # no more threads
                self._busy, self._merger = [], None
                raise

    def _merge_apart(self) -> None:
        """Merge the busy segments, and go on as long as a merge is due."""
        while True:
            segment, failure = None, None
            with self._lock:
                self._renumberings = []
                snapshot = self._snapshot(self._busy)
            try:
                segment = self._merged(snapshot)
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

    def _snapshot(self, held: list[_Held]) -> _Snapshot:
        """Return what a merge reads; nothing in it changes but for deaths."""
        return _Snapshot([h.view() for h in held], self._tombstones, self._largest())

    def _merged(self, snapshot: _Snapshot) -> Segment | None:
        """Build one segment of what lives in several, planned for the events as they now are."""
        segments, tombstones, largest = snapshot
        kept = [tombstones.of(segment.ids) == 0 for segment in segments]
        if not any(k.any() for k in kept):
            return None
        if largest is not None and all(
            segment.space is largest.space and segment is not largest for segment in segments
        ):
            found = Segment.build_beside(joined_beside(segments, kept), largest)
            if found is not None:
                return found
        return self._build(merged(segments, kept))

    def _replace(self, old: list[_Held], segment: Segment | None) -> None:
        """Put a segment in the place of those it was merged from."""
        at = self._held.index(old[0])
        new = []
        if segment is not None:
            new = [_Held(segment, self._count_dead(segment))]
        self._held[at : at + len(old)] = new
        self._current = None

    def _count_dead(self, segment: Segment | Recent) -> int:
        """Count the subscriptions of a segment that are dead."""
        return len(self._dead_in(segment))

    def _dead_in(self, segment: Segment | Recent) -> NDArray[np.int32]:
        """Return the ids of the subscriptions of a segment that are dead, in order."""
        dead = segment.ids[self._tombstones.of(segment.ids) != 0]
        distinct: NDArray[np.int32] = dead[np.diff(dead, prepend=-1) != 0]  # ids are in order
        return distinct

    def rebuild(self) -> None:
        """Index all there is as one segment, planned for the events as they now are.

        Where that is more than a segment holds, it is as few as may be.
        """
        with self._lock:
            self._flush()
            n_left = len(self._held)
        at = 0
        while n_left > 0:
            with self._lock:
                self._index_pending()
                merger, group = self._merger, []
                if merger is None:
                    group = _fitting(self._held[at:])
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
        """Return the ids of what is dead, but not dropped from the segments yet, in order."""
        with self._lock:
            dead = [self._dead_in(held.segment) for held in self._held if held.n_dead]
            return np.concatenate([np.empty(0, np.int64), *dead])

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Give subscriptions other dense ids: what was `kept[i]` is i from now on.

        `kept` has, in order, all that live and all that are buried. Other deaths are forgotten.
        Segments are shared with those before but for their ids; readers keep what they have.
        """
        with self._lock:
            table = self._live_pending() if self._pending else None
            pending = []
            if table is not None:
                subscription = np.searchsorted(kept, table.subscription)
                pending = [replace(table, subscription=subscription)]
            tombstones = self._tombstones.renumbered(kept).restarted()
            segments: dict[int, Segment] = {
                id(held.segment): held.segment.renumbered(kept)
                for held in self._held
                if isinstance(held.segment, Segment)
            }
            renumbered: list[Segment | Recent] = [
                held.segment.renumbered(
                    kept, segments.get(id(held.segment.beside), held.segment.beside)
                )
                if isinstance(held.segment, Recent)
                else segments[id(held.segment)]
                for held in self._held
            ]
            if self._merger is not None:
                self._renumberings.append(kept)
            for held, segment in zip(self._held, renumbered, strict=True):
                held.segment = segment
            self._pending, self._tombstones, self._time = pending, tombstones, 0
            self._current = None

    def parts(self) -> IndexParts:
        """Return the index as it is now: segments, and what of them is dead."""
        with self._lock:
            segments = self.segments()
            dead = [self._dead_in(held.segment) for held in self._held if held.n_dead]
            arrays = {"dead": np.concatenate([np.empty(0, np.int32), *dead])}
            return IndexParts(
                Parts({"n_ids": self._tombstones.stop}, arrays),
                {segment.name: partial(take_apart, segment) for segment in segments},
                self._sample,
                sorted({name for segment in segments for name in segment.space.attributes}),
            )

    def segments(self) -> list[Segment]:
        """Return all that is held as segments, what is recent made into one."""
        with self._lock:
            self._flush()
            found = []
            for held in list(self._held):
                segment = held.segment
                if isinstance(segment, Segment):
                    found.append(segment)
                    continue
                made = self._merged(self._snapshot([held]))
                found += [] if made is None else [made]
                if held not in self._busy:
                    self._replace([held], made)
            return found

    def conditions(self) -> list[IndexedConditions]:
        """Return the conditions of each segment, read from its stream when asked for."""
        return [
            IndexedConditions(s.space, s.ids, partial(_conditions_of, s)) for s in self.segments()
        ]

    def restore(self, states: Sequence[Parts], segments: Sequence[Parts]) -> None:
        """Take over segments; what is dead died before all that follows."""
        with self._lock:
            n_ids = max(state.facts["n_ids"] for state in states)
            opened = [put_together(parts, self._rooms) for parts in segments]
            for segment in opened:
                check_bounds(segment, n_ids)
            self._held = [_Held(segment) for segment in opened]
            first = min((int(segment.ids[0]) for segment in opened), default=0)
            self._tombstones = Tombstones.empty(first).with_room(n_ids)
            for state in states:
                self._tombstones.bury(state.arrays["dead"], self._time)
                self._note_dead(state.arrays["dead"])
            self._current = None

    def explain(self, dense: int) -> str:
        """Say where a subscription is kept, and what the tables are."""
        segments = self.segments()
        lines = [line for segment in segments for line in explain_subscription(segment, dense)]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """List the access tables of every segment, and how much of them an event sees."""
        lines = []
        for at, segment in enumerate(self.segments()):
            lines.append(f"segment {at + 1}: {segment.n_subscriptions} subscriptions")
            lines += [f"  {table}" for table in describe_tables(segment, self._sample)]
        return "\n".join(lines) if lines else "nothing is indexed"

    def expected_checks(self) -> float:
        """Return how many conjunctions an event is expected to find under its keys in segments."""
        tables = [describe_tables(segment, self._sample) for segment in self.segments()]
        return sum(table.checks for found in tables for table in found)

    def check(self) -> None:
        """Verify the invariants of every segment."""
        version = self.reader()
        for segment, _ in version.segments:
            segment.check()
        with self._lock:
            for held in self._held:
                assert held.n_dead >= self._count_dead(held.segment), "the dead are miscounted"
            firsts = [int(held.segment.ids[0]) for held in self._held]
            lasts = [int(held.segment.ids[-1]) for held in self._held]
            assert all(a < b for a, b in zip(lasts, firsts[1:], strict=False)), "ids are mixed"
        if self._failure is not None:
            raise self._failure

    @property
    def nbytes(self) -> int:
        """Bytes held by the segments, and by the times of death."""
        with self._lock:
            held = sum(held.segment.nbytes for held in self._held)
            pending = sum(table.nbytes for table in self._pending)
            return held + pending + self._tombstones.times.nbytes


def _conditions_of(segment: Segment) -> Conditions:
    return read_stream(segment.stream, np.arange(len(segment.ids), dtype=np.uint32))


def _fits(held: Sequence[_Held]) -> bool:
    """Whether neighbouring segments may be merged into one."""
    return CAPACITY.holds([h.segment for h in held])


def _fitting(held: list[_Held]) -> list[_Held]:
    """Return as many of the first segments as fit into one, at least one if there is any."""
    n = min(1, len(held))
    while n < len(held) and _fits(held[: n + 1]):
        n += 1
    return held[:n]
