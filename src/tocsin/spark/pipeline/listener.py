"""A `StreamingQueryListener` that joins Spark's progress of a batch with our metrics.

Enters: Spark's progress events. Leaves: calls with the metrics of the batch and Spark's progress:
the lag of the source, and Spark's own overheads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tocsin.spark.pipeline.metrics import BatchMetrics


@dataclass(frozen=True)
class Progress:
    """Spark's report of a batch; `behind` is the number of unread records, if the source tells.

    `metrics` are our own; None if the batch was finished before a restart.
    """

    query: str
    batch: int
    ms: dict[str, int] = field(default_factory=dict)
    behind: int | None = None
    metrics: BatchMetrics | None = None


class PipelineListener(StreamingQueryListener):
    """Reports the batches of one pipeline; other queries of the session are ignored."""

    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self.on_progress = on_progress
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], BatchMetrics] = {}
        self.queries: set[str] = set()

    def add(self, metrics: BatchMetrics) -> None:
        """Keep the metrics of a batch until Spark reports it."""
        with self._lock:
            self.queries.add(metrics.query)
            self._waiting[metrics.query, metrics.batch] = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query is known by its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch."""
        progress = event.progress
        query, batch = str(progress.id), progress.batchId
        with self._lock:
            if query not in self.queries:
                return
            metrics = self._waiting.pop((query, batch), None)
        ms = {name: int(value) for name, value in progress.durationMs.items()}
        self.on_progress(Progress(query, batch, ms, _behind(progress), metrics))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        with self._lock:
            self.queries.discard(str(event.id))


def _behind(progress: Any) -> int | None:
    """Return the number of unread records of all sources that tell it, or None."""
    behind = None
    for source in progress.sources:
        metrics = source.metrics or {}
        if "maxOffsetsBehindLatest" in metrics:
            behind = (behind or 0) + _offsets_behind(source)
    return behind


def _offsets_behind(source: Any) -> int:
    end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    return sum(max(0, latest[key] - end.get(key, 0)) for key in latest)


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    try:
        topics = json.loads(text or "{}")
        return {(t, p): int(n) for t, parts in topics.items() for p, n in parts.items()}
    except (ValueError, AttributeError):
        return {}
