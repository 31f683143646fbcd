"""The metrics of micro-batches: counts, times, drift.

Enters: the metrics of a finished batch. Leaves: one JSON file for each batch under `metrics/`,
created once, so that a replayed batch is counted once; together they are a table that Spark's JSON
reader or `read_metrics` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from tocsin.spark.pipeline.folders import Folder, open_folder


@dataclass(frozen=True)
class BatchMetrics:
    """The metrics of one micro-batch.

    `events` counts all events, `quarantined` the invalid ones, `matches` the rows that the sinks
    got. `lag` is the time in seconds from the arrival of the oldest event at the source to the end
    of the batch; None if the source does not tell. `ms` has the milliseconds by stage. In the mode
    `transitions`, `publications` is their number after the batch, and `entered` and `left` count
    the transitions, whose sum is `matches`.
    """

    query: str
    batch: int
    started: float
    finished: float
    version: int
    now: float
    subscriptions: int
    events: int
    matches: int
    quarantined: int
    unmatched: int | None
    lag: float | None
    ms: Mapping[str, float] = field(default_factory=dict)
    drift: tuple[str, ...] = ()
    publications: int | None = None
    entered: int | None = None
    left: int | None = None

    @property
    def seconds(self) -> float:
        """The duration of the batch."""
        return self.finished - self.started


@dataclass(frozen=True)
class Summary:
    """The totals of a run."""

    batches: int = 0
    events: int = 0
    matches: int = 0
    quarantined: int = 0
    version: int = 0
    seconds: float = 0.0
    entered: int | None = None
    left: int | None = None
    publications: int | None = None

    def plus(self, batch: BatchMetrics) -> Summary:
        """Return the totals with one more batch."""
        return replace(
            self,
            batches=self.batches + 1,
            events=self.events + batch.events,
            matches=self.matches + batch.matches,
            quarantined=self.quarantined + batch.quarantined,
            version=batch.version,
            entered=_plus(self.entered, batch.entered),
            left=_plus(self.left, batch.left),
            publications=batch.publications,
        )


def _plus(sum_so_far: int | None, number: int | None) -> int | None:
    return sum_so_far if number is None else (sum_so_far or 0) + number


def write_metrics(folder: Folder, metrics: BatchMetrics) -> None:
    """Write the metrics of a batch; those of a replay are dropped."""
    content = json.dumps(asdict(metrics)).encode()
    folder.create(_name(metrics.query, metrics.batch), content)


def has_metrics(folder: Folder, query: str, batch: int) -> bool:
    """Whether a batch was finished."""
    return folder.read(_name(query, batch)) is not None


def _name(query: str, batch: int) -> str:
    return f"metrics/{query}-{batch:09d}.json"


def load_metrics(url: str, last: int | None = None) -> list[BatchMetrics]:
    """Return the metrics of the last batches, or of all, in the order in which they finished."""
    folder = open_folder(url)
    names = folder.names("metrics")
    batches = []
    for name in names if last is None else _newest(names, last):
        content = folder.read(f"metrics/{name}")
        if content is not None:
            batches.append(_to_metrics(json.loads(content)))
    batches.sort(key=lambda each: each.finished)
    return batches


def _newest(names: list[str], last: int) -> list[str]:
    """Return the names of the last batches of each query."""
    by_query: dict[str, list[str]] = {}
    for name in names:
        by_query.setdefault(name.rpartition("-")[0], []).append(name)
    return [name for each in by_query.values() for name in each[-last:]]


def _to_metrics(values: dict[str, Any]) -> BatchMetrics:
    known = {each.name for each in fields(BatchMetrics)}
    values = {name: value for name, value in values.items() if name in known}
    values["drift"] = tuple(values.get("drift", ()))
    return BatchMetrics(**values)


def read_metrics(url: str) -> pa.Table:
    """Return a row for each batch in an output folder, with a column for each stage's time."""
    batches = load_metrics(url)
    stages = dict.fromkeys(stage for each in batches for stage in each.ms)
    columns: dict[str, list[Any]] = {
        each.name: [getattr(row, each.name) for row in batches]
        for each in fields(BatchMetrics)
        if each.name not in ("ms", "drift")
    }
    columns["seconds"] = [row.seconds for row in batches]
    for stage in stages:
        columns[f"ms_{stage}"] = [row.ms.get(stage) for row in batches]
    columns["drift"] = [list(row.drift) for row in batches]
    return pa.table({name: pa.array(values) for name, values in columns.items()})
