"""What events look like, gathered with Spark.

Enters: a DataFrame of events. Leaves: a `Profile`: an even sample of them, which the planner of the
engine learns from, and facts of each attribute. One pass gives the sample: each task keeps the rows
with the least of random numbers, and the driver the least of all. Another gives the facts, by
Spark's own aggregates.
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
    """Facts of one attribute: the share of events that have it, and about how many values."""

    presence: float
    n_distinct: int
    low: Any
    high: Any


@dataclass(frozen=True)
class Profile:
    """What some events look like. `sample` is what `Matcher.profile` and `compile` take."""

    n_events: int
    sample: pa.Table
    attributes: Mapping[str, AttributeProfile] = field(default_factory=dict)


def profile(events: DataFrame, *, sample: int = _SAMPLE, seed: int = 0) -> Profile:
    """Learn what the events of a batch DataFrame look like."""
    columns.check_names(events.schema)
    readable = [f.name for f in events.schema if columns.is_readable(f.dataType)]
    chosen = events.select(*map(columns.quoted, readable))
    flat = [f.name for f in chosen.schema if columns.Place("", f.dataType).kind is not None]
    facts = _facts(chosen, flat)
    return Profile(facts[0], sampled(chosen, sample, seed), facts[1])


def _facts(events: DataFrame, names: list[str]) -> tuple[int, dict[str, AttributeProfile]]:
    """Return how many events there are, and the facts of each column, in one pass."""
    parts = ["count(*)"]
    for name in map(columns.quoted, names):
        parts += [
            f"count({name})", f"approx_count_distinct({name})", f"min({name})", f"max({name})"
        ]  # fmt: skip
    row = events.selectExpr(*(f"{part} AS c{at}" for at, part in enumerate(parts))).collect()[0]
    n = int(row[0])
    found = {}
    for at, name in enumerate(names):
        present, distinct, low, high = row[1 + 4 * at : 5 + 4 * at]
        found[name] = AttributeProfile(present / max(n, 1), int(distinct), low, high)
    return n, found


def sampled(events: DataFrame, n: int, seed: int) -> pa.Table:
    """Return an even sample of at most n events."""
    from pyspark.sql import types as st

    schema = st.StructType([*events.schema, st.StructField(_PRIORITY, st.DoubleType(), False)])
    drawn = events.mapInArrow(SampleTask(n, seed), schema).toArrow()
    if len(drawn) > n:
        order = np.argsort(drawn.column(_PRIORITY).to_numpy(), kind="stable")[:n]
        drawn = drawn.take(pa.array(np.sort(order)))
    return drawn.drop_columns([_PRIORITY]).combine_chunks()


class SampleTask:
    """What `mapInArrow` runs: keeps the n rows of a partition with the least random numbers."""

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.seed = seed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sample one partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        random = np.random.default_rng([self.seed, context.partitionId() if context else 0])
        kept: pa.Table | None = None
        for batch in batches:
            numbers = pa.array(random.random(batch.num_rows))
            more = pa.table(batch).append_column(pa.field(_PRIORITY, pa.float64(), False), numbers)
            kept = more if kept is None else pa.concat_tables([kept, more])
            if len(kept) > 4 * self.n:
                kept = self._least(kept)
        if kept is not None:
            yield from self._least(kept).combine_chunks().to_batches()

    def _least(self, table: pa.Table) -> pa.Table:
        if len(table) <= self.n:
            return table
        numbers = table.column(_PRIORITY).to_numpy()
        least = np.sort(np.argpartition(numbers, self.n)[: self.n])
        return table.take(pa.array(least)).combine_chunks()
