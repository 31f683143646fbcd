"""One micro-batch: pin → read → parse → validate → match → deliver → record.

Enters: the frame that Spark passes to `foreachBatch`, and the number of the batch. Leaves: the
metrics of the batch, whose notifications and quarantined rows are in the sinks and tables.

The batch goes through a tuple of passes, each in the module of its name, each taking a `Batch` and
`Frames` and returning `Frames` (see `batch`). The pin comes first: a replay of the batch, after any
crash, finds the same version and time, and each table knows whether it has the batch. So whatever
is done again gives the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tocsin.errors import PipelineError
from tocsin.model import EventType
from tocsin.spark import hadoop, worker
from tocsin.spark.pipeline.batch import Batch, Frames, Pass
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.deliver import Deliver
from tocsin.spark.pipeline.folders import Folder, open_folder
from tocsin.spark.pipeline.match import MatchEvents, MatchPublications
from tocsin.spark.pipeline.metrics import BatchMetrics, has_metrics
from tocsin.spark.pipeline.parse import parse
from tocsin.spark.pipeline.pin import Pin
from tocsin.spark.pipeline.publication_table import PublicationTable
from tocsin.spark.pipeline.read import Read
from tocsin.spark.pipeline.record import Record
from tocsin.spark.pipeline.validate import Validate
from tocsin.spark.worker import Moment
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchRunner:
    """Runs micro-batches, one at a time."""

    def __init__(
        self, config: Config, spark: SparkSession, on_batch: Callable[[BatchMetrics], None]
    ) -> None:
        self.on_batch = on_batch
        self.folder = open_folder(config.output, spark)
        self.passes = make_passes(config, spark, self.folder)

    def run(self, frame: DataFrame, query: str, number: int) -> BatchMetrics | None:
        """Run one micro-batch; return None if it was finished before."""
        if has_metrics(self.folder, query, number):
            return None
        batch, frames = Batch(query, number), Frames(frame)
        try:
            for step in self.passes:
                frames = step(batch, frames)
        finally:
            batch.release()
        assert frames.metrics is not None
        self.on_batch(frames.metrics)
        return frames.metrics


def make_passes(config: Config, spark: SparkSession, folder: Folder) -> tuple[Pass, ...]:
    """Return the passes of a pipeline in order, ready to run."""
    store = SubscriptionStore(hadoop.open_place(config.subscriptions))
    ids = _fix_id_type(config, store, folder)
    publications = PublicationTable(config, spark, ids == "string") if config.tracking else None
    return (
        Pin(store),
        Read(config, spark),
        parse,
        Validate(config, spark),
        MatchEvents(config, ids) if publications is None else MatchPublications(publications),
        Deliver(config, spark),
        Record(config, folder, store, publications),
    )


def _fix_id_type(config: Config, store: SubscriptionStore, folder: Folder) -> str:
    """Return the type of ids in the output: that of the first run, which follows the store."""
    snapshot = store.snapshot()
    entry = worker.open_matcher(Moment.of(snapshot, time.time()), snapshot=snapshot)
    _check_kinds(config, entry.matcher.event_type)
    current = "integer" if snapshot.state.ids == "integers" else "string"
    folder.create("pipeline.json", json.dumps({"ids": current}).encode())
    values: dict[str, str] = json.loads(folder.read("pipeline.json") or b"{}")
    return values.get("ids", current)


def _check_kinds(config: Config, event_type: EventType | None) -> None:
    """Raise PipelineError if events and subscriptions declare an attribute differently."""
    for name, kind in config.event_type.attributes.items() if config.event_type else ():
        declared = event_type.kind_of(name) if event_type else None
        if declared is not None and declared is not kind:
            raise PipelineError(
                f"event.attributes.{name} is {kind.value}, but the subscriptions in "
                f"{config.subscriptions} were made for {declared.value}"
            )
