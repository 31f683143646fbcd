"""Profiles of events, computed with Spark.

Enters: a DataFrame of events. Leaves: a `Profile`: a uniform sample, which the planner of the
engine learns from, and statistics of each attribute. One pass takes the sample: each task keeps the
rows with the smallest random numbers, and the driver the smallest of these. Another computes the
statistics by Spark's own aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tocsin.spark import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLE = 10_000
_PRIORITY = "__tocsin_priority"


@dataclass(frozen=True)
class AttributeProfile:
    """Statistics of one attribute; `presence` is the share of events that have it."""

    presence: float
    n_distinct: int
    low: Any
    high: Any


@dataclass(frozen=True)
class Profile:
    """A profile of events. `sample` is the table that `Matcher.profile` takes."""

    n_events: int
    sample: pa.Table
    attributes: Mapping[str, AttributeProfile] = field(default_factory=dict)


def profile(events: DataFrame, *, sample: int = _SAMPLE, seed: int = 0) -> Profile:
    """Return a profile of the events of a batch DataFrame.

    `sample` is the maximum number of events in the sample, `seed` makes it reproducible.
    """
    columns.check_names(events.schema)
    names = [f.name for f in events.schema if columns.is_readable(f.dataType)]
    readable = events.select(*map(columns.quoted, names))
    flat = [f.name for f in readable.schema if columns.Location("", f.dataType).kind is not None]
    n_events, attributes = _statistics(readable, flat)
    return Profile(n_events, sample_rows(readable, sample, seed), attributes)


def _statistics(events: DataFrame, names: list[str]) -> tuple[int, dict[str, AttributeProfile]]:
    """Return the number of events and the statistics of each column, in one pass."""
    parts = ["count(*)"]
    for name in map(columns.quoted, names):
        parts += [
            f"count({name})", f"approx_count_distinct({name})", f"min({name})", f"max({name})"
        ]  # fmt: skip
    row = events.selectExpr(*(f"{part} AS c{at}" for at, part in enumerate(parts))).collect()[0]
    n = int(row[0])
    attributes = {}
    for at, name in enumerate(names):
        present, distinct, low, high = row[1 + 4 * at : 5 + 4 * at]
        attributes[name] = AttributeProfile(present / max(n, 1), int(distinct), low, high)
    return n, attributes


def sample_rows(events: DataFrame, n: int, seed: int) -> pa.Table:
    """Return a uniform sample of at most n rows."""
    from pyspark.sql import types as st

    schema = st.StructType([*events.schema, st.StructField(_PRIORITY, st.DoubleType(), False)])
    drawn = events.mapInArrow(SampleTask(n, seed), schema).toArrow()
    if len(drawn) > n:
        order = np.argsort(drawn.column(_PRIORITY).to_numpy(), kind="stable")[:n]
        drawn = drawn.take(pa.array(np.sort(order)))
    return drawn.drop_columns([_PRIORITY]).combine_chunks()


class SampleTask:
    """What `mapInArrow` runs: keeps the n rows of a partition with the smallest random numbers."""

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.seed = seed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sample one partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        random = np.random.default_rng([self.seed, context.partitionId() if context else 0])
        sample: pa.Table | None = None
        for batch in batches:
            numbers = pa.array(random.random(batch.num_rows))
            more = pa.table(batch).append_column(pa.field(_PRIORITY, pa.float64(), False), numbers)
            sample = more if sample is None else pa.concat_tables([sample, more])
            if len(sample) > 4 * self.n:
                sample = self._smallest(sample)
        if sample is not None:
            yield from self._smallest(sample).combine_chunks().to_batches()

    def _smallest(self, table: pa.Table) -> pa.Table:
        if len(table) <= self.n:
            return table
        numbers = table.column(_PRIORITY).to_numpy()
        rows = np.sort(np.argpartition(numbers, self.n)[: self.n])
        return table.take(pa.array(rows)).combine_chunks()
