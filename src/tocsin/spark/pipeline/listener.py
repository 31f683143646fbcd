"""A `StreamingQueryListener` that adds what Spark knows of a batch to what we do.

Enters: Spark's progress events. Leaves: calls with the metrics of the batch and Spark's own
progress beside it: what the source says of its lag, and Spark's overheads.
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
    """A batch as Spark reports it; `behind` is how many records the source still has, if it says.

    `metrics` are our own, None where the batch was finished before a restart.
    """

    query: str
    batch: int
    ms: dict[str, int] = field(default_factory=dict)
    behind: int | None = None
    metrics: BatchMetrics | None = None


class PipelineListener(StreamingQueryListener):
    """Reports the batches of one pipeline; others of the same session are passed over."""

    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self.on_progress = on_progress
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], BatchMetrics] = {}
        self.queries: set[str] = set()

    def add(self, metrics: BatchMetrics) -> None:
        """Take the metrics of a batch, until Spark reports it."""
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
    """Return how many records the sources say are still to be read; None where none says."""
    found = None
    for source in progress.sources:
        metrics = source.metrics or {}
        if "maxOffsetsBehindLatest" in metrics:
            found = (found or 0) + _offsets_behind(source)
    return found


def _offsets_behind(source: Any) -> int:
    end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    return sum(max(0, latest[key] - end.get(key, 0)) for key in latest)


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    try:
        said = json.loads(text or "{}")
        return {(t, p): int(n) for t, parts in said.items() for p, n in parts.items()}
    except (ValueError, AttributeError):
        return {}
