"""What runs in Python workers: record batches of events in, record batches of matches out.

Enters: a `MatchTask`, pickled, and an iterator of record batches. Leaves: record batches of exactly
the types that the declared schema asks for, since Spark does not cast them. A worker process keeps
the matchers that it opened; their arrays are mapped into memory, which all workers share.

Batches as Spark sends them are put together to larger ones, which are matched faster; where events
match very many subscriptions, to smaller ones, so that what is found fits memory. After the first
batch everything there is leaves the view of the garbage collector: PySpark collects after every
task, which would otherwise look at all of Numba each time.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import ArrowColumn, to_array
from tocsin.errors import StoreError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.spark import stores

Output = Literal["rows", "arrays"]

MOST_ROWS = 65_536
"""How many events are matched at once, at most."""
_FIRST_ROWS = 8_192
"""How many are matched at once while it is not known how much they match."""
_MOST_FOUND = 4_000_000
"""How many matches are expected of one batch, at most."""
_OUT_ROWS = 131_072
"""How many rows a record batch of matches has, at most."""
_MOST_OPEN = 4
"""How many matchers a worker keeps open."""


@dataclass(frozen=True)
class Source:
    """Which subscriptions a task uses.

    `version` and `now` are None where each micro-batch of a stream has its own: they are pinned in
    the store then. A store that was `shipped` lies among the files that Spark distributes, `path`
    being its name there. Where the driver has verified it, tasks need not.
    """

    path: str
    version: int | None
    now: float | None
    shipped: bool = False
    verify: bool = True


@dataclass
class _Clock:
    now: float

    def __call__(self) -> float:
        return self.now


@dataclass
class Pace:
    """How many events are matched at once, by what the last ones matched."""

    per_event: float | None = None

    @property
    def n_rows(self) -> int:
        """How many events to match next."""
        if self.per_event is None:
            return _FIRST_ROWS
        return int(np.clip(_MOST_FOUND / max(self.per_event, 1e-9), 64, MOST_ROWS))

    def learn(self, n_events: int, n_matches: int) -> None:
        """Take note of what a batch matched."""
        self.per_event = max(n_matches / max(n_events, 1), (self.per_event or 0) / 2)


@dataclass
class Opened:
    """A matcher that a process holds open, at a version, and the pace of its matches."""

    matcher: Matcher
    version: int
    made_at: int
    clock: _Clock
    has_ends: bool
    pace: Pace = field(default_factory=Pace)


_Parts = tuple[int, ...] | None
"""The numbers of parts of a store; all of them when None."""
_Key = tuple[str, int, int, _Parts]
"""A path, a version, when it was made (another store may take the place of one), and parts."""
_open: OrderedDict[_Key, Opened] = OrderedDict()
"""The matchers that this process holds open: a cache, which nothing depends on."""


def opened(
    path: str,
    version: int,
    now: float,
    parts: _Parts = None,
    verify: bool = True,
) -> Opened:
    """Return the matcher of a store's version as of a moment, opened before or now."""
    made_at = stores.made_at(path, version)
    key = (path, version, made_at, parts)
    held = _open.pop(key, None) or _advanced(key)
    if held is not None and held.has_ends and now < held.clock.now:
        held = None  # what has ended since then is gone from it
    if held is None:
        clock = _Clock(now)
        matcher = stores.open_matcher(path, version, parts, clock, verify)
        held = Opened(matcher, version, made_at, clock, stores.has_ends(matcher))
    held.clock.now = now
    _open[key] = held
    while len(_open) > _MOST_OPEN:
        _open.popitem(last=False)
    return held


def _advanced(key: _Key) -> Opened | None:
    """Bring the newest matcher of an older version to this one, where that can be."""
    path, version, made_at, parts = key
    older = [k for k in _open if (k[0], k[3]) == (path, parts) and k[1] < version]
    if not older:
        return None
    held = _open.pop(max(older, key=lambda k: k[1]))
    if stores.made_at(path, held.version, default=-1) != held.made_at:
        return None
    if not stores.advance(held.matcher, path, held.version, version, parts):
        return None
    held.version, held.made_at = version, made_at
    held.has_ends = held.has_ends or stores.has_ends(held.matcher)
    return held


def close_all() -> None:
    """Let go of all matchers that this process holds open."""
    _open.clear()


class Moment(NamedTuple):
    """Which subscriptions count: the path of a store, its version, and the time."""

    path: str
    version: int
    now: float


def moment_of(source: Source) -> Moment:
    """Return which subscriptions a task is to use; in a stream, those of its micro-batch."""
    path = source.path
    if source.shipped:
        from pyspark import SparkFiles

        path = SparkFiles.get(source.path)
    if source.version is not None and source.now is not None:
        return Moment(path, source.version, source.now)
    return Moment(path, *stores.pin(path, *_micro_batch()))


def partition() -> int:
    """Return the number of the partition that this task works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0


def _micro_batch() -> tuple[str, int]:
    """Return the query and the number of the micro-batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise RuntimeError("a streaming match runs outside of a micro-batch")
    return query, int(batch)


class MatchTask:
    """What `mapInArrow` runs: matches the events of one partition.

    `keep` are the columns that go on to the output; `hidden` those that the matcher may not see,
    because their type is not the declared one. `is_integer` says which type ids have in the output.
    """

    def __init__(
        self,
        source: Source,
        keep: Sequence[str],
        output: Output,
        is_integer: bool,
        hidden: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.keep = list(keep)
        self.output = output
        self.is_integer = is_integer
        self.hidden = frozenset(hidden)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Match all batches of a partition."""
        coming = iter(batches)
        for first in coming:  # nothing is opened where there are no events
            held = opened(*moment_of(self.source), verify=self.source.verify)
            for table in coalesce(chain([first], coming), held.pace):
                yield from self.match(held, table)

    def match(self, held: Opened, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Match some events."""
        seen = table.drop_columns(sorted(self.hidden)) if self.hidden else table
        matches = held.matcher.match_batch(seen)
        held.pace.learn(len(table), matches.n_matches)
        freeze()
        kept = table.select(self.keep)
        if self.output == "arrays":
            yield from self._arrays(kept, matches)
        else:
            yield from self._rows(kept, matches)

    def unmatched(self, events: pa.Table) -> pa.RecordBatch:
        """Return a row for each of some events that match nothing."""
        of = pa.list_(pa.field("element", self._id_type, False))
        arrays = pa.ListArray.from_arrays(
            pa.array(np.zeros(len(events) + 1, np.int32)), pa.array([], self._id_type), of
        )
        kept = events.select(self.keep)
        return _batch(kept.columns, kept.schema, arrays, pa.field("subscriptions", of, False))

    @property
    def _id_type(self) -> pa.DataType:
        return pa.int64() if self.is_integer else pa.string()

    def _rows(self, kept: pa.Table, matches: Matches) -> Iterator[pa.RecordBatch]:
        """Yield a row for each match."""
        events = np.repeat(np.arange(len(matches)), np.diff(matches.offsets))
        for start in range(0, matches.n_matches, _OUT_ROWS):
            end = min(start + _OUT_ROWS, matches.n_matches)
            ids = self._ids(matches, start, end)
            rows = pa.array(events[start:end])
            field = pa.field("subscription", ids.type, False)
            yield _batch([column.take(rows) for column in kept.columns], kept.schema, ids, field)

    def _arrays(self, kept: pa.Table, matches: Matches) -> Iterator[pa.RecordBatch]:
        """Yield a row for each event, with an array of its matches."""
        start, n = 0, len(matches)
        offsets = matches.offsets
        while start < n:
            end = int(np.searchsorted(offsets, offsets[start] + 8 * _OUT_ROWS, side="right")) - 1
            end = min(max(end, start + 1), n)
            ids = self._ids(matches, int(offsets[start]), int(offsets[end]))
            places = (offsets[start : end + 1] - offsets[start]).astype(np.int32)
            of = pa.list_(pa.field("element", ids.type, False))
            arrays = pa.ListArray.from_arrays(pa.array(places), ids, of)
            field = pa.field("subscriptions", of, False)
            rows = [column.slice(start, end - start) for column in kept.columns]
            yield _batch(rows, kept.schema, arrays, field)
            start = end

    def _ids(self, matches: Matches, start: int, end: int) -> pa.Array:
        """Return the ids of some matches, in the type of the output."""
        dense: NDArray[Any] = matches.dense.values[start:end]
        wanted = self._id_type
        if not len(dense):
            return pa.array([], wanted)
        ids = matches.names.take(dense)
        if ids.type == wanted:
            return ids
        if self.is_integer:
            raise StoreError(
                self.source.path,
                "has ids that are strings now, and all were integers when the query was made; "
                'make it anew, or with ids="string"',
            )
        return ids.cast(wanted)


def _batch(
    rows: Sequence[ArrowColumn], schema: pa.Schema, added: pa.Array, field: pa.Field
) -> pa.RecordBatch:
    """Return some columns with one more as a record batch."""
    arrays = [*map(to_array, rows), added]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*schema, field]))


def coalesce(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[pa.Table]:
    """Put batches together, or cut them, to tables of about as many rows as are wanted by then."""
    waiting: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        waiting.append(batch)
        n += batch.num_rows
        while n >= pace.n_rows:
            table = pa.Table.from_batches(waiting)
            most = pace.n_rows
            yield table.slice(0, most).combine_chunks()
            rest = table.slice(most)
            waiting = rest.to_batches()
            n = len(rest)
    if n:
        yield pa.Table.from_batches(waiting).combine_chunks()


_frozen = False


def freeze() -> None:
    """Take all there is out of the garbage collector's view, once."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
