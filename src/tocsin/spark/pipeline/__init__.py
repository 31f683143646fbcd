"""The managed pipeline: a stream of events → notifications, each exactly once.

Enters: a configuration (`config`), and events from files, Kafka, a generator or any DataFrame.
Leaves: tables of notifications, of events set aside and of metrics, or records in Kafka. One
micro-batch goes through the modules in this order::

    sources    what the batch holds, as a frame of events or of lines
    lines      JSON and CSV → columns, in the tasks
    validate   events that do not fit their type → quarantine, with the reason
    batches    pins the version of the subscriptions, matches, hands on to the sinks
    sinks      Parquet, Delta, Kafka, console; each batch once
    metrics    what the batch was and what it cost

`run.Pipeline` puts them together; `docs/pipeline.md` says what can be relied on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
