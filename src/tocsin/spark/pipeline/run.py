"""Pipeline: a configuration → a running query.

Enters: a configuration, a session if there is one, a DataFrame if events come from Python. Leaves:
a query that runs until it is stopped, and the metrics of its batches. A store that is missing,
damaged or too new is refused before the query starts. An error in a batch ends the query; the next
run resumes with that batch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tocsin.errors import PipelineError, TocsinError
from tocsin.spark.pipeline import config as configs
from tocsin.spark.pipeline import sources
from tocsin.spark.pipeline.batches import BatchRunner
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import open_folder
from tocsin.spark.pipeline.metrics import BatchMetrics, Summary
from tocsin.spark.pipeline.sessions import check_spark, make_session
from tocsin.spark.pipeline.status import RUNNING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tocsin.spark.pipeline.listener import Progress

_POLL = 0.1
_STOP_SECONDS = 120.0


class Pipeline:
    """A managed pipeline.

    >>> with Pipeline(load("pipeline.toml")) as pipeline:  # doctest: +SKIP
    ...     pipeline.run(batches=10)

    `events` is a DataFrame, streaming or not, for `source.format = "frame"`. `on_batch` is called
    with the metrics of each batch that finishes, `on_progress` with Spark's report of it.
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        *,
        spark: SparkSession | None = None,
        events: DataFrame | None = None,
        on_batch: Callable[[BatchMetrics], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.config = config if isinstance(config, Config) else configs.load(os.fspath(config))
        if (events is None) == (self.config.source.format == "frame"):
            raise PipelineError('pass events with source.format = "frame", and only then')
        check_spark()
        self._owns_session = spark is None and events is None and not _has_session()
        self._on_batch = on_batch
        self._on_progress = on_progress
        self._events = events
        self._summary = Summary()
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._stopping = False
        self._is_done = threading.Event()
        self._listener: Any = None
        self.query: StreamingQuery | None = None
        self.spark = spark or (
            events.sparkSession if events is not None else make_session(self.config)
        )
        self._runner = BatchRunner(self.config, self.spark, self._finished)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def summary(self) -> Summary:
        """The totals of this run so far."""
        return self._summary

    # Running.

    def start(self) -> StreamingQuery:
        """Start the query and return it."""
        from tocsin.spark.pipeline.listener import PipelineListener

        frame = (
            self._events if self._events is not None else sources.stream(self.config, self.spark)
        )
        self._listener = PipelineListener(self._on_progress or (lambda _: None))
        self.spark.streams.addListener(self._listener)
        writer = frame.writeStream.foreachBatch(self._run_batch)
        writer = writer.option("checkpointLocation", self.config.checkpoint)
        seconds = self.config.trigger
        if seconds is None and self.config.source.format != "generated":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(1000 * (seconds or 0))} milliseconds")
        self._mark_running()
        try:
            self.query = writer.start()
        except Exception as error:
            self._mark_stopped()
            raise PipelineError(f"the query does not start: {_in_short(error)}") from error
        return self.query

    def run(self, *, batches: int | None = None, seconds: float | None = None) -> Summary:
        """Run until all events are processed, a limit is reached, or `stop`; return the totals.

        `batches` and `seconds` are limits.
        """
        started = time.monotonic()
        try:
            if self._events is not None and not self._events.isStreaming:
                self._run_frame(self._events)
            else:
                query = self.query or self.start()
                while query.isActive and not self._is_done.wait(_POLL):
                    elapsed = time.monotonic() - started
                    enough = batches is not None and self._summary.batches >= batches
                    if enough or (seconds is not None and elapsed >= seconds):
                        break
                self.stop()
        finally:
            self._summary = replace(self._summary, seconds=time.monotonic() - started)
        self._raise_failure()
        return self._summary

    def stop(self) -> None:
        """Stop after the current batch, if there is one."""
        query = self.query
        if query is None:
            return
        self._stopping = True
        is_idle = self._busy.acquire(timeout=_STOP_SECONDS)
        ended_by_itself = not query.isActive
        try:
            if not ended_by_itself:
                query.stop()
        finally:
            if is_idle:
                self._busy.release()
            self._stopping = False
        if ended_by_itself and self._failure is None:
            self._failure = query.exception()
        self._mark_stopped()

    def close(self) -> None:
        """Stop, and end the session if the pipeline started it."""
        self.stop()
        if self._listener is not None:
            self.spark.streams.removeListener(self._listener)
            self._listener = None
        if self._owns_session:
            self.spark.stop()

    # One batch.

    def _run_batch(self, frame: DataFrame, number: int) -> None:
        """Run a micro-batch; called by Spark."""
        while not self._busy.acquire(timeout=_POLL):
            if self._stopping:
                raise PipelineError("stopped before the batch began")
        try:
            if self._stopping or self._failure is not None:
                raise PipelineError("stopped before the batch began")
            context = self.spark.sparkContext
            query = context.getLocalProperty("sql.streaming.queryId")
            self._runner.run(frame, str(query), number)
            self._note_end(number)
        except BaseException as error:
            if not self._stopping:
                self._failure = self._failure or error
            raise
        finally:
            self._busy.release()

    def _run_frame(self, frame: DataFrame) -> None:
        """Run a frame that is not a stream as the only batch of a query of its own."""
        folder = open_folder(self.config.checkpoint, self.spark)
        folder.create("frame.json", json.dumps({"id": str(uuid.uuid4())}).encode())
        values = json.loads(folder.read("frame.json") or b"{}")
        try:
            self._runner.run(frame, values["id"], 0)
        except Exception as error:
            self._failure = error

    def _finished(self, metrics: BatchMetrics) -> None:
        self._summary = self._summary.plus(metrics)
        if self._listener is not None:
            self._listener.add(metrics)
        if self._on_batch is not None:
            self._on_batch(metrics)

    def _note_end(self, number: int) -> None:
        """Stop a generated source after the configured number of events."""
        source = self.config.source
        if source.format == "generated" and source.events:
            size = max(1, source.batch_events // source.blocks) * source.blocks
            if (number + 1) * size >= source.events:
                self._is_done.set()

    # Failures, and the mark of a running pipeline.

    def _raise_failure(self) -> None:
        error, self._failure = self._failure, None
        if error is None:
            return
        if isinstance(error, TocsinError | KeyboardInterrupt):
            raise error
        raise PipelineError(f"a batch failed: {_in_short(error)}") from error

    def _mark_running(self) -> None:
        folder = open_folder(self.config.output, self.spark)
        process = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        folder.replace(RUNNING, json.dumps(process).encode())

    def _mark_stopped(self) -> None:
        open_folder(self.config.output, self.spark).remove(RUNNING)


def _has_session() -> bool:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _in_short(error: BaseException) -> str:
    """Return the message of an error of Spark: the last line of the innermost traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("tocsin.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return lines[0][:500] if lines else type(error).__name__
