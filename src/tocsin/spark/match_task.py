"""The task that matches: record batches of events in, record batches of matches out.

Enters: a `MatchSpec`, pickled, and the record batches of one partition. Leaves: record batches of
exactly the types that the declared schema has, since Spark does not cast them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import ArrowColumn, to_array
from tocsin.errors import StoreError
from tocsin.matches import Matches
from tocsin.spark import worker
from tocsin.spark.worker import OpenMatcher, Source

Output = Literal["rows", "arrays"]

_OUT_ROWS = 131_072
"""The maximum number of rows in a record batch of matches."""


@dataclass(frozen=True)
class MatchSpec:
    """What a match reads and returns, as the tasks of one query need it.

    `keep` are the event columns of the result, `integer_ids` the type of ids in it. `hidden` are
    the columns that the matcher must not see, because their type is not the declared one.
    """

    source: Source
    keep: tuple[str, ...]
    output: Output
    integer_ids: bool
    hidden: tuple[str, ...] = ()

    @property
    def id_type(self) -> pa.DataType:
        """The type of subscription ids in the result."""
        return pa.int64() if self.integer_ids else pa.string()


class MatchTask:
    """What `mapInArrow` runs: matches the events of one partition."""

    def __init__(self, spec: MatchSpec) -> None:
        self.spec = spec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Match all batches of a partition; nothing is opened for an empty one."""
        source, remaining = self.spec.source, iter(batches)
        for first in remaining:
            entry = worker.open_matcher(worker.moment_of(source), verify=source.verify)
            for table in worker.coalesce(chain([first], remaining), entry.batch_size):
                yield from self.match(entry, table)

    def match(self, entry: OpenMatcher, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Match a table of events."""
        hidden = list(self.spec.hidden)
        matches = entry.matcher.match_batch(table.drop_columns(hidden) if hidden else table)
        entry.batch_size.learn(len(table), matches.n_matches)
        worker.freeze()
        columns = table.select(list(self.spec.keep))
        if self.spec.output == "arrays":
            yield from self._arrays(columns, matches)
        else:
            yield from self._rows(columns, matches)

    def unmatched(self, events: pa.Table) -> pa.RecordBatch:
        """Return rows of events without matches, for output as arrays."""
        id_type = self.spec.id_type
        list_type = pa.list_(pa.field("element", id_type, False))
        offsets = pa.array(np.zeros(len(events) + 1, np.int32))
        arrays = pa.ListArray.from_arrays(offsets, pa.array([], id_type), list_type)
        columns = events.select(list(self.spec.keep))
        field = pa.field("subscriptions", list_type, False)
        return _batch(columns.columns, columns.schema, arrays, field)

    def _rows(self, events: pa.Table, matches: Matches) -> Iterator[pa.RecordBatch]:
        """Yield a row for each match."""
        numbers = np.repeat(np.arange(len(matches)), np.diff(matches.offsets))
        for start in range(0, matches.n_matches, _OUT_ROWS):
            end = min(start + _OUT_ROWS, matches.n_matches)
            ids = self._ids(matches, start, end)
            rows = pa.array(numbers[start:end])
            field = pa.field("subscription", ids.type, False)
            yield _batch(
                [column.take(rows) for column in events.columns], events.schema, ids, field
            )

    def _arrays(self, events: pa.Table, matches: Matches) -> Iterator[pa.RecordBatch]:
        """Yield a row for each event, with an array of its matches."""
        start, n = 0, len(matches)
        offsets = matches.offsets
        while start < n:
            end = int(np.searchsorted(offsets, offsets[start] + 8 * _OUT_ROWS, side="right")) - 1
            end = min(max(end, start + 1), n)
            ids = self._ids(matches, int(offsets[start]), int(offsets[end]))
            starts = (offsets[start : end + 1] - offsets[start]).astype(np.int32)
            list_type = pa.list_(pa.field("element", ids.type, False))
            arrays = pa.ListArray.from_arrays(pa.array(starts), ids, list_type)
            field = pa.field("subscriptions", list_type, False)
            rows = [column.slice(start, end - start) for column in events.columns]
            yield _batch(rows, events.schema, arrays, field)
            start = end

    def _ids(self, matches: Matches, start: int, end: int) -> pa.Array:
        """Return the ids of some matches, in the type of the result."""
        dense: NDArray[Any] = matches.dense.values[start:end]
        id_type = self.spec.id_type
        if not len(dense):
            return pa.array([], id_type)
        ids = matches.names.take(dense)
        if ids.type == id_type:
            return ids
        if self.spec.integer_ids:
            raise StoreError(
                str(self.spec.source.place),
                "now has string ids, but had only integers when the query was made; "
                'make the query again, or with ids="string"',
            )
        return ids.cast(id_type)


def _batch(
    rows: Sequence[ArrowColumn], schema: pa.Schema, added: pa.Array, field: pa.Field
) -> pa.RecordBatch:
    """Return columns of a schema and one more as a record batch."""
    arrays = [*map(to_array, rows), added]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*schema, field]))
