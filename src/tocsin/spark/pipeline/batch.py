"""Batch and Frames: what the passes of a micro-batch share.

A pass takes a `Batch`, which says which micro-batch it is, and `Frames`, which hold its data so
far, and returns the frames with its own results. `batches` lists the passes in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tocsin.spark.pipeline.lines import LineFormat
from tocsin.spark.pipeline.metrics import BatchMetrics
from tocsin.store.snapshot import StoreSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

ORIGIN, ARRIVED = "_tocsin_origin", "_tocsin_arrived"
"""The columns of an event's origin, and of its arrival at the source."""


@dataclass
class Batch:
    """One micro-batch of one query. The first pass pins its version and time."""

    query: str
    number: int
    version: int = 0
    now: float = 0.0
    started: float = field(default_factory=time.time, compare=False)
    ms: dict[str, float] = field(default_factory=dict, compare=False)
    """The milliseconds by stage."""
    _cached: list[DataFrame] = field(default_factory=list, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the batch in file names."""
        return f"{self.query}-{self.number:09d}"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time inside to that of a stage."""
        start = time.perf_counter()
        yield
        spent = 1000 * (time.perf_counter() - start)
        self.ms[name] = round(self.ms.get(name, 0.0) + spent, 1)

    def cache(self, frame: DataFrame) -> DataFrame:
        """Keep a frame in Spark's cache until the end of the batch."""
        cached = frame.persist()
        self._cached.append(cached)
        return cached

    def release(self) -> None:
        """Remove all frames of the batch from Spark's cache."""
        while self._cached:
            self._cached.pop().unpersist()


@dataclass(frozen=True)
class Lines:
    """Lines of text, and their format."""

    frame: DataFrame
    form: LineFormat


@dataclass(frozen=True)
class Frames:
    """The data of a micro-batch from pass to pass, and the counts for its metrics."""

    source: DataFrame
    """The frame that Spark passes to `foreachBatch`."""

    # pin
    snapshot: StoreSnapshot | None = None
    n_subscriptions: int = 0

    # read
    lines: tuple[Lines, ...] = ()
    typed: tuple[DataFrame, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    """Paths of files that cannot be read, with the reason."""
    arrived: float | None = None
    """The arrival of the oldest event at the source, in seconds since 1970; None if unknown."""

    # parse
    parsed: tuple[DataFrame, ...] = ()

    # validate
    events: DataFrame | None = None
    """The valid events; None if there are none."""
    n_events: int = 0
    """The number of events, valid or not; 0 while it is unknown."""
    n_quarantined: int = 0
    drift: tuple[str, ...] = ()

    # match
    notifications: DataFrame | None = None
    unmatched: DataFrame | None = None
    counted: DataFrame | None = None
    """The events with an observation of their number, if it is not known yet."""
    observation: Observation | None = None
    publications: int | None = None
    entered: int | None = None
    left: int | None = None

    # deliver
    n_matches: int | None = None
    n_unmatched: int | None = None

    # record
    metrics: BatchMetrics | None = None


Pass: TypeAlias = Callable[[Batch, Frames], Frames]
