"""The `auto` engine: cells, access tables chosen by a cost model, exact checks.

Enters and leaves: see `engines.protocol`. What arrives is pending until the next match, which
indexes it as a segment of its own. Segments are merged by size: a merge costs each subscription a
logarithmic number of rebuilds, and plans anew. Large merges are made by a thread of their own while
events go on being matched against the segments as they were. What is deleted gets a time of death,
and is dropped at the next merge.

A match takes a `Version`: the segments, and the time. Nothing in it ever changes but for times of
death, and those that come later than its own time it does not see. So readers need no lock but to
take their version, and see either all of a change or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.auto import row_kernels
from tocsin.engines.auto.content import (
    Content,
    from_table,
    from_table_beside,
    joined_beside,
    merged,
)
from tocsin.engines.auto.parts import put_together, take_apart
from tocsin.engines.auto.prepared import Prepared
from tocsin.engines.auto.recent import Recent, RecentView
from tocsin.engines.auto.report import describe_tables, explain_subscription
from tocsin.engines.auto.rooms import Rooms
from tocsin.engines.auto.segment import Candidates, Segment, join
from tocsin.engines.protocol import Found, IndexParts
from tocsin.normalize.table import ConjunctionTable, stack, take
from tocsin.parts import Parts

_SAMPLE = 10_000
"""How many events `profile` keeps."""
_LATEST = 0xFFFFFFFF
"""Deaths are counted back from here: what lives has 0, which costs no memory until touched."""
_SOON = 20_000
"""Merges of fewer conjunctions are made at once, others by the thread."""
_AT_ONCE = 5_000
"""Up to how many conjunctions that arrive are indexed by whoever brings them."""
_BESIDE = 0.25
"""Up to this share of the largest segment, what arrives is kept beside it."""


@dataclass(eq=False)
class _Held:
    """A segment or what is recent, and how many of its subscriptions are dead: as many or more."""

    segment: Segment | Recent
    n_dead: int = 0

    @property
    def size(self) -> int:
        return self.segment.n_subscriptions

    @property
    def is_recent(self) -> bool:
        return isinstance(self.segment, Recent)

    def view(self) -> Segment | RecentView:
        """Return what is held, as it is now."""
        return self.segment.view() if isinstance(self.segment, Recent) else self.segment


class Version:
    """The subscriptions as they are at a time: segments, each with whether any of it is dead."""

    def __init__(
        self,
        segments: tuple[tuple[Segment | RecentView, bool], ...],
        deaths: NDArray[np.uint32],
        time: int,
        seen: threading.local,
        rooms: Rooms,
    ) -> None:
        self.segments = segments
        self._deaths = deaths
        self._time = time
        self._seen = seen
        self._rooms = rooms

    def match_batch(self, events: EventBatch) -> Found:
        """Match a batch against every segment."""
        found = Candidates(np.zeros(len(events) + 1, np.int64), np.empty(0, np.uint32))
        prepared: dict[int, Prepared] = {}
        for segment, has_dead in self.segments:
            batch = prepared.get(id(segment.space))
            if batch is None:
                batch = Prepared(events, segment.space, self._rooms)
                prepared[id(segment.space)] = batch
            found = join(found, self._match_segment(segment, has_dead, batch))
        return Found(found.offsets, found.found.view(np.int32))

    def _match_segment(
        self, segment: Segment | RecentView, has_dead: bool, batch: Prepared
    ) -> Candidates:
        if segment.first_id is not None and not has_dead and not segment.is_patterned:
            return segment.candidates(batch, segment.first_id)
        found = segment.candidates(batch)
        ends = np.zeros(len(batch.events) + 1, np.int64)
        notes, stamp = self._take_notes(segment, len(batch.events))
        row_kernels.to_ids(
            found.offsets,
            found.found,
            segment.ids,
            self._deaths,
            _LATEST - self._time,
            notes,
            stamp,
            segment.has_siblings,
            ends[1:],
        )
        return Candidates(ends, found.found[: ends[-1]])

    def _take_notes(
        self, segment: Segment | RecentView, n_events: int
    ) -> tuple[NDArray[np.int64], int]:
        """Return this thread's notes of the event that each id was last seen in, and a number.

        The events of the match that asks are numbered from there on.
        """
        if not segment.has_siblings:
            return np.empty(0, np.int64), 0
        notes = getattr(self._seen, "notes", None)
        if notes is None or len(notes) < len(self._deaths):
            self._seen.notes = notes = np.full(len(self._deaths), -1, np.int64)
            self._seen.stamp = 0
        stamp: int = self._seen.stamp
        self._seen.stamp += n_events
        return notes, stamp

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        found: dict[int, None] = {}
        for segment, _ in self.segments:
            ids = segment.match_one(event)
            if len(ids):
                found.update(dict.fromkeys(ids[self._deaths[ids] < _LATEST - self._time].tolist()))
        return list(found)


class AutoEngine:
    """Segments, merged by size, and times of death.

    Without `merges` each flush is a segment of its own until `merge` is called.
    """

    def __init__(self, *, merges: bool = True) -> None:
        self._merges = merges
        self._pending: list[ConjunctionTable] = []
        self._held: list[_Held] = []
        self._sample: EventBatch | None = None
        self._deaths = np.zeros(1024, np.uint32)
        self._time = 0
        self._current: Version | None = None
        self._rooms = Rooms()
        self._lock = threading.RLock()
        self._merger: threading.Thread | None = None
        self._busy: list[_Held] = []
        self._failure: Exception | None = None
        self._seen = threading.local()

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions; they are indexed at the next match.

        A few that come between matches are indexed at once, so that the thread that matches need
        not do it.
        """
        with self._lock:
            is_watched = self._current is not None and table.n_conjunctions <= _AT_ONCE
            highest = int(ids[-1]) if len(ids) else -1
            if highest >= len(self._deaths):
                larger = np.zeros(max(highest + 1, 2 * len(self._deaths)), np.uint32)
                dead = np.flatnonzero(self._deaths)
                larger[dead] = self._deaths[dead]
                self._deaths = larger
            self._pending.append(table)
            self._time += 1
            self._current = None
            if is_watched and self._held:
                with suppress(Exception):  # the next match tries again, and says what is wrong
                    self._flush()

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Let subscriptions die."""
        with self._lock:
            self._time += 1
            self._deaths[ids] = _LATEST - self._time
            self._current = None
            self._note_dead(ids)

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
            self._sample = events.sample(_SAMPLE) if len(events) else None

    def reader(self) -> Version:
        """Index what arrived, and return the subscriptions as they are now."""
        with self._lock:
            if self._current is None:
                self._flush()
                held = tuple((held.view(), held.n_dead > 0) for held in self._held)
                self._current = Version(held, self._deaths, self._time, self._seen, self._rooms)
            return self._current

    def match_batch(self, events: EventBatch) -> Found:
        """Match a batch against every segment."""
        return self.reader().match_batch(events)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        return self.reader().match_one(event)

    def _flush(self) -> None:
        """Index what arrived, and see to merges."""
        if self._pending:
            tables = self._pending
            table = stack(tables, [0] * len(tables), sum(t.n_subscriptions for t in tables))
            live = self._deaths[table.subscription] == 0
            if not live.all():
                table = take(table, np.flatnonzero(live))
            if table.n_conjunctions:
                self._take_in(table)
            self._pending = []
        if self._merges:
            self._merge_small()
            self._start_merger(self._due())

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
        if isinstance(last, Recent) and last.beside is beside and is_free:
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
            self._replace(last, self._merged(last))

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
        if first < end - 1 and size > _SOON // 4:
            return held[first:end]
        rest = sum(h.size for h in held[largest + 1 :])
        is_beside = all(h.segment.space is held[largest].segment.space for h in held[largest:])
        if rest > held[largest].size * (_BESIDE if is_beside else 0.5) and rest > _SOON // 4:
            return held[largest:]
        of = {id(h.segment) for h in held}
        left = [h for h in held if isinstance(h.segment, Recent) and id(h.segment.beside) not in of]
        dying = [h for h in held if h.n_dead > max(h.size // 2, 1024)]
        return (left + dying)[:1]

    def _start_merger(self, due: list[_Held]) -> None:
        """Merge some segments in a thread of its own, unless it is busy."""
        if due and self._merger is None:
            self._busy = due
            self._merger = threading.Thread(target=self._merge_apart, daemon=True)
            self._merger.start()

    def _merge_apart(self) -> None:
        """Merge the busy segments, and go on as long as a merge is due."""
        while True:
            segment, failure = None, None
            try:
                segment = self._merged(self._busy)
            except Exception as error:
                failure = error
            with self._lock:
                if failure is None:
                    self._replace(self._busy, segment)
                self._failure = failure
                self._busy = [] if failure or not self._merges else self._due()
                if not self._busy:
                    self._merger = None
                    return

    def _merged(self, held: list[_Held]) -> Segment | None:
        """Build one segment of what lives in several, planned for the events as they now are."""
        segments = [h.view() for h in held]
        kept = [self._deaths[segment.ids] == 0 for segment in segments]
        if not any(k.any() for k in kept):
            return None
        largest = self._largest()
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
        return len(np.unique(segment.ids[self._deaths[segment.ids] != 0]))

    def merge(self) -> None:
        """Index all there is as one segment, planned for the events as they now are."""
        while True:
            with self._lock:
                self._flush()
                merger = self._merger
                if merger is None:
                    self._start_merger(list(self._held))
                    merger = self._merger
                    break
            merger.join()
        if merger is not None:
            merger.join()
        if self._failure is not None:
            raise self._failure

    def parts(self) -> IndexParts:
        """Return the index as it is now: segments, and what of them is dead."""
        with self._lock:
            segments = self.segments()
            dead = [
                np.unique(held.segment.ids[self._deaths[held.segment.ids] != 0])
                for held in self._held
                if held.n_dead
            ]
            arrays = {"dead": np.concatenate([np.empty(0, np.int32), *dead])}
            return IndexParts(
                Parts({"n_ids": len(self._deaths)}, arrays),
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
                made = self._merged([held])
                found += [] if made is None else [made]
                if held not in self._busy:
                    self._replace([held], made)
            return found

    def restore(self, states: Sequence[Parts], segments: Sequence[Parts]) -> None:
        """Take over segments; what is dead died before all that follows."""
        with self._lock:
            self._held = [_Held(put_together(parts, self._rooms)) for parts in segments]
            n_ids = max(state.facts["n_ids"] for state in states)
            self._deaths = np.zeros(n_ids, np.uint32)
            for state in states:
                self._deaths[state.arrays["dead"]] = _LATEST - self._time
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
            return held + sum(table.nbytes for table in self._pending) + self._deaths.nbytes
