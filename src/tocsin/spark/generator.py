"""The papers' workloads as DataFrames, generated where Spark's tasks run.

Enters: a session, the name of a workload, how many rows, a seed. Leaves: DataFrames of events and
of subscriptions. A row depends on the seed and its number alone (see `workloads.draws`), so the
data are the same on any number of partitions, and the same as without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.model import Kind
from tocsin.workloads import workload as find_workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_ROWS = 50_000
_BLOCK_CELLS = 1_600_000
_ARROW = {
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def generate_events(
    spark: SparkSession,
    workload: str,
    n: int,
    seed: int = 0,
    *,
    partitions: int | None = None,
    number: str | None = None,
) -> DataFrame:
    """Return events of a workload, a column for each attribute.

    With `number`, a first column of that name holds the numbers of the events.
    """
    chosen = find_workload(workload)
    fields = [pa.field(name, _ARROW[kind]) for name, kind in chosen.event_type.attributes.items()]
    if number is not None:
        if number in chosen.event_type.attributes:
            raise ArgumentError(f"workload {workload} has an attribute {number!r}")
        fields = [pa.field(number, pa.int64()), *fields]
    block = max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // len(fields)))
    task = GenerateTask(workload, "events", n, seed, block, pa.schema(fields), number)
    return _generate(spark, task, partitions)


def generate_subscriptions(
    spark: SparkSession, workload: str, n: int, seed: int = 0, *, partitions: int | None = None
) -> DataFrame:
    """Return subscriptions of a workload as columns `id` and `where`."""
    find_workload(workload)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("where", pa.string())])
    task = GenerateTask(workload, "subscriptions", n, seed, _BLOCK_ROWS, schema, None)
    return _generate(spark, task, partitions)


def _generate(spark: SparkSession, task: GenerateTask, partitions: int | None) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    if task.n < 0:
        raise ArgumentError(f"cannot generate {task.n} rows")
    n_blocks = -(-task.n // task.block)
    blocks = spark.range(0, n_blocks, 1, partitions)
    return blocks.mapInArrow(task, from_arrow_schema(task.schema, prefer_timestamp_ntz=False))


class GenerateTask:
    """What `mapInArrow` runs: makes the rows of the blocks whose numbers it is given."""

    def __init__(
        self,
        workload: str,
        what: str,
        n: int,
        seed: int,
        block: int,
        schema: pa.Schema,
        number: str | None,
    ) -> None:
        self.workload = workload
        self.what = what
        self.n = n
        self.seed = seed
        self.block = block
        self.schema = schema
        self.number = number

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make the rows of all blocks of a partition."""
        chosen = find_workload(self.workload)
        make: Callable[..., pa.Table] = (
            chosen.events if self.what == "events" else chosen.subscription_texts
        )
        for batch in batches:
            for at in batch.column(0).to_pylist():
                first = at * self.block
                size = min(self.block, self.n - first)
                yield from self._cast(make(size, self.seed, first=first), first).to_batches()

    def _cast(self, table: pa.Table, first: int) -> pa.Table:
        columns: list[Any] = [
            table.column(field.name).cast(field.type)
            for field in self.schema
            if field.name != self.number
        ]
        if self.number is not None:
            columns.insert(0, pa.array(range(first, first + len(table)), pa.int64()))
        return pa.table(columns, schema=self.schema).combine_chunks()
