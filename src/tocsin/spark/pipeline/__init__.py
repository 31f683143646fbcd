"""The managed pipeline: a stream of events → notifications, each exactly once.

Enters: a configuration (`config`), and events from files, Kafka, a generator or any DataFrame.
Leaves: tables of notifications, quarantined rows and metrics, or records in Kafka. A micro-batch
goes through these passes (`batches`), each in the module of its name::

    pin        fix the version of the subscriptions and the time
    read       Spark's frame → frames of lines or of events (`sources`)
    parse      lines of JSON and CSV → columns, in the tasks (`lines`)
    validate   rows that are not events of the declared type → quarantine
    match      events → notifications
    deliver    notifications → Parquet, Delta, Kafka, console (`sinks`)
    record     write the metrics, remove old pins

`run.Pipeline` is the query around them; docs/pipeline.md has the guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tocsin.extras import load as load_name

if TYPE_CHECKING:
    from tocsin.spark.pipeline.config import Config, load
    from tocsin.spark.pipeline.metrics import read_metrics
    from tocsin.spark.pipeline.run import Pipeline
    from tocsin.spark.pipeline.statistics import sample
    from tocsin.spark.pipeline.tables import read_frame, read_table

_HOMES = {
    "Config": "config",
    "Pipeline": "run",
    "load": "config",
    "read_frame": "tables",
    "read_metrics": "metrics",
    "read_table": "tables",
    "sample": "statistics",
}

__all__ = [
    "Config",
    "Pipeline",
    "load",
    "read_frame",
    "read_metrics",
    "read_table",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return load_name(f"{__name__}.{_HOMES[name]}", name, f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
