"""A snapshot of the index: segments, the delta and the write buffer, at one time.

Enters: batches and events. Leaves: the dense ids of the subscriptions that match, each once. In a
snapshot only deletion times change, and it does not see those later than its own time: a reader
takes no lock but to get its snapshot, and sees either all of a change or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.auto import row_kernels
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.delta import DeltaSnapshot
from tocsin.engines.auto.elements import ElementIndex
from tocsin.engines.auto.output import join, no_rows
from tocsin.engines.auto.segment import Segment
from tocsin.engines.auto.tested import TestedIndex
from tocsin.engines.auto.tombstones import LATEST, Tombstones
from tocsin.engines.auto.write_buffer import BufferSnapshot
from tocsin.engines.ragged import RaggedIds

_Index: TypeAlias = Segment | DeltaSnapshot | ElementIndex | TestedIndex


class Snapshot:
    """Segments, each with whether any of its subscriptions is deleted, and a buffer, at a time."""

    def __init__(
        self,
        segments: tuple[tuple[Segment | DeltaSnapshot, bool], ...],
        tombstones: Tombstones,
        time: int,
        scratch: threading.local,
        pool: BufferPool,
        buffer: BufferSnapshot | None = None,
        others: tuple[ElementIndex | TestedIndex, ...] = (),
        element_rows: BufferSnapshot | None = None,
        *,
        lacks_kernels: bool = False,
    ) -> None:
        self.segments = segments
        self.others = others
        self.buffer = buffer
        self.element_rows = element_rows
        """What is to be indexed by elements, while kernels are missing; else None."""
        self.lacks_kernels = lacks_kernels
        """Whether it was made to be matched without kernels; it has buffers only."""
        self.names: Any = None
        """The ids that belong to it, which the matcher keeps here."""
        self.n_compared = 0
        """How many rows of the write buffer were compared with events of batches, about."""
        self._tombstones = tombstones
        self._time = time
        self._scratch = scratch
        self._pool = pool

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch with every segment."""
        ids = no_rows(len(events))
        batches: dict[int, PreparedBatch] = {}
        for segment, has_dead in self.segments:
            batch = batches.get(id(segment.space))
            if batch is None:
                batch = PreparedBatch(events, segment.space, self._pool)
                batches[id(segment.space)] = batch
            ids = join(ids, self._match_segment(segment, has_dead, batch), self._pool)
        if self._buffers:
            ids = join(ids, self._match_buffers(events), self._pool)
        for index in self.others:
            rows = index.match_batch(events)
            if len(rows.values):
                ids = join(ids, self._to_ids(rows, index, len(events)), self._pool)
        return RaggedIds(ids.offsets, ids.values.view(np.int32))

    @property
    def _buffers(self) -> list[BufferSnapshot]:
        return [each for each in (self.buffer, self.element_rows) if each is not None]

    def _match_buffers(self, events: EventBatch) -> RaggedIds:
        """Return the dense ids of live subscriptions in the write buffer, each once per event."""
        pairs_of = []
        for buffer in self._buffers:
            self.n_compared += buffer.n_rows * len(events)
            pairs_of.append(buffer.match_batch(events))
        event, ids = (np.concatenate(parts) for parts in zip(*pairs_of, strict=True))
        is_match = self._tombstones.of(ids) < LATEST - self._time
        pairs = np.unique(event[is_match].astype(np.int64) << 32 | ids[is_match])
        offsets = np.searchsorted(pairs, np.arange(len(events) + 1) << 32)
        return RaggedIds(offsets, (pairs & 0xFFFFFFFF).astype(np.uint32))

    def _match_segment(
        self, segment: Segment | DeltaSnapshot, has_dead: bool, batch: PreparedBatch
    ) -> RaggedIds:
        """Return the dense ids of live subscriptions, each once per event."""
        if segment.first_id is not None and not has_dead and not segment.is_patterned:
            return segment.match(batch, segment.first_id)
        return self._to_ids(segment.match(batch), segment, len(batch.events))

    def _to_ids(
        self,
        rows: RaggedIds,
        index: Segment | DeltaSnapshot | ElementIndex | TestedIndex,
        n_events: int,
    ) -> RaggedIds:
        """Replace conjunctions by the dense ids of live subscriptions, each once per event."""
        ends = np.zeros(n_events + 1, np.int64)
        last_event, stamp = self._last_events(index, n_events)
        row_kernels.to_ids(
            rows.offsets,
            rows.values,
            index.ids,
            self._tombstones.times,
            self._tombstones.first,
            LATEST - self._time,
            last_event,
            stamp,
            index.has_siblings,
            ends[1:],
        )
        return RaggedIds(ends, rows.values[: ends[-1]])

    def _last_events(self, index: _Index, n_events: int) -> tuple[NDArray[np.int64], int]:
        """Return this thread's array of the event that each id was last seen in, and a stamp.

        The events of this call are numbered from the stamp on, in 64 bits; 0 is no event. The array
        is as long as the tombstones, within a factor.
        """
        if not index.has_siblings:
            return np.empty(0, np.int64), 0
        last_event = getattr(self._scratch, "last_event", None)
        n_ids = len(self._tombstones.times)
        if last_event is None or not n_ids <= len(last_event) <= 4 * n_ids:
            self._scratch.last_event = last_event = np.zeros(n_ids, np.int64)
            self._scratch.stamp = 1
        stamp: int = self._scratch.stamp
        self._scratch.stamp += n_events
        return last_event, stamp

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event with every segment."""
        of_parts = [segment.match_one(event) for segment, _ in self.segments]
        of_parts += [index.match_one(event) for index in self.others]
        if self.buffer is not None:
            of_parts.append(self.buffer.match_one(event))
        if self.element_rows is not None:
            of_parts.append(self.element_rows.match_one(event))
        matches: list[int] = []
        for ids in of_parts:
            if len(ids):
                live = ids[self._tombstones.of(ids) < LATEST - self._time]
                matches += live.tolist()
        return list(dict.fromkeys(matches))
