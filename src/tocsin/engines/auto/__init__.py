"""The `auto` engine: cells, access tables chosen by a cost model, exact checks.

Enters and leaves: see `engines.protocol`. Subscriptions arrive in segments, which are merged by
size: a merge costs each subscription a logarithmic number of rebuilds, and plans anew. Deleted ones
are marked, and dropped at the next merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.auto import kernels
from tocsin.engines.auto.segment import Segment
from tocsin.engines.protocol import Found
from tocsin.normalize.table import ConjunctionTable, stack, take

_SAMPLE = 10_000
"""How many events `profile` keeps."""


class AutoEngine:
    """Segments, merged by size, and marks on what was deleted."""

    def __init__(self) -> None:
        self._pending: list[ConjunctionTable] = []
        self._segments: list[Segment] = []
        self._sample: EventBatch | None = None
        self._is_live = np.zeros(1024, np.bool_)
        self._last_event = np.full(1024, -1, np.int64)
        self._stamp = 0
        self._n_deleted = 0

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions; they are indexed at the next match."""
        highest = int(ids[-1]) if len(ids) else -1
        if highest >= len(self._is_live):
            room = max(highest + 1, 2 * len(self._is_live))
            self._is_live = np.concatenate([self._is_live, np.zeros(room, np.bool_)])
            self._last_event = np.concatenate([self._last_event, np.full(room, -1, np.int64)])
        self._is_live[ids] = True
        self._pending.append(table)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Mark subscriptions as gone."""
        self._is_live[ids] = False
        self._n_deleted += len(ids)

    def profile(self, events: EventBatch) -> None:
        """Keep a sample of events; segments built from now on are planned for such events."""
        self._sample = events.sample(_SAMPLE) if len(events) else None

    def merge(self) -> None:
        """Make one segment of all, planned for the events last profiled."""
        self._flush()
        if self._segments:
            self._merge(len(self._segments))
            self._n_deleted = 0

    def match_batch(self, events: EventBatch) -> Found:
        """Match a batch against every segment."""
        self._flush()
        found = Found(np.zeros(len(events) + 1, np.int64), np.empty(0, np.int32))
        for at, segment in enumerate(self._segments):
            part = self._match_segment(segment, events)
            found = part if at == 0 else _join(found, part)
        return found

    def _match_segment(self, segment: Segment, events: EventBatch) -> Found:
        order, offsets, conjunctions, is_sorted = segment.candidates(events)
        n = len(events)
        if segment.first_id is not None and not self._n_deleted:
            ids, ends = conjunctions.view(np.int32) + np.int32(segment.first_id), offsets[1:]
        else:
            ids, ends = np.empty(len(conjunctions) + 1, np.int32), np.empty(n, np.int64)
            seen = (self._last_event, self._stamp, segment.has_siblings)
            kernels.to_ids(
                offsets, conjunctions, segment.table.subscription, self._is_live, *seen, ids, ends
            )
            self._stamp += n
        if not is_sorted:
            return Found(np.append(0, ends), ids[: ends[-1] if n else 0])
        out_offsets = np.zeros(n + 1, np.int64)
        out_offsets[order + 1] = np.diff(ends, prepend=0)
        np.cumsum(out_offsets, out=out_offsets)
        out = np.empty(out_offsets[-1], np.int32)
        kernels.arrange(order, ends, ids, out_offsets, out)
        return Found(out_offsets, out)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        self._flush()
        found: dict[int, None] = {}
        for segment in self._segments:
            ids = segment.match_one(event)
            found.update(dict.fromkeys(ids[self._is_live[ids]].tolist()))
        return list(found)

    def _flush(self) -> None:
        """Index what arrived; merge segments until each is twice the size of the next."""
        if self._pending:
            table = stack(
                self._pending,
                [0] * len(self._pending),
                sum(table.n_subscriptions for table in self._pending),
            )
            self._pending.clear()
            self._segments.append(Segment(table, self._sample))
        n_held = sum(segment.n_subscriptions for segment in self._segments)
        if self._n_deleted > max(n_held // 2, 1024):
            self._merge(len(self._segments))
            self._n_deleted = 0
        while len(self._segments) > 1 and (
            self._segments[-2].n_subscriptions < 2 * self._segments[-1].n_subscriptions
        ):
            self._merge(2)

    def _merge(self, n: int) -> None:
        tables = []
        for segment in self._segments[len(self._segments) - n :]:
            live = np.flatnonzero(self._is_live[segment.table.subscription])
            table = take(segment.table, live)
            held = np.count_nonzero(np.diff(table.subscription, prepend=-1))
            tables.append(replace(table, n_subscriptions=int(held)))
        del self._segments[len(self._segments) - n :]
        total = sum(table.n_subscriptions for table in tables)
        self._segments.append(Segment(stack(tables, [0] * n, total), self._sample))

    def explain(self, dense: int) -> str:
        """Say where a subscription is kept."""
        self._flush()
        lines = [line for segment in self._segments for line in segment.explain(dense)]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def check(self) -> None:
        """Verify the invariants of every segment."""
        self._flush()
        for segment in self._segments:
            segment.check()

    @property
    def nbytes(self) -> int:
        """Bytes held by the segments."""
        return sum(segment.nbytes for segment in self._segments) + sum(
            table.nbytes for table in self._pending
        )


def _join(a: Found, b: Found) -> Found:
    """Join the matches of two segments, event by event."""
    offsets = a.offsets + b.offsets
    ids = np.empty(len(a.ids) + len(b.ids), np.int32)
    a_place = np.arange(len(a.ids)) + np.repeat(b.offsets[:-1], np.diff(a.offsets))
    b_place = np.arange(len(b.ids)) + np.repeat(a.offsets[1:], np.diff(b.offsets))
    ids[a_place], ids[b_place] = a.ids, b.ids
    return Found(offsets, ids)
