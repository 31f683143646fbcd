"""Partitioned matching: events are sent only to the parts of a store that may match them.

Enters: events, and the summaries of a store's parts. Leaves: three tasks. The first copies each
event to every part whose summary admits it, and adds the number of the part. After a shuffle by
that number, the second matches the events of a part against that part alone, so that a worker opens
only the parts whose events it gets.

The summaries are those of Jayaram et al. (2010), section 5.6: least upper bounds of the
subscriptions of a part. Changes to the store since the parts were built are one more part, the
delta, of few subscriptions. Its summary is made when it is opened; its events are spread over all
partitions.

With a row for each event in the result, the first task also numbers the events and adds the number
of pieces of each; an event that no part admits goes on alone. After a second shuffle, by the number
of the event, the third task joins the arrays of its pieces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import to_array
from tocsin.encode.events import to_batch
from tocsin.errors import StoreError
from tocsin.language.evaluate import at_moment
from tocsin.loading import load_catalog
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.spark import placements, worker
from tocsin.spark.match_task import MatchSpec, MatchTask
from tocsin.spark.worker import BatchSize, Moment
from tocsin.store.snapshot import StoreSnapshot
from tocsin.summary import Summary

PART, TARGET = "__tocsin_part", "__tocsin_target"
EVENT, PIECES = "__tocsin_event", "__tocsin_pieces"
NO_PART = -2
"""The part number of events that no part admits."""
_MAX_ROUTES = 4


class Routes(NamedTuple):
    """Part numbers and their summaries; the last part may be `worker.DELTA`."""

    parts: list[int]
    summaries: list[Summary]


_routes: OrderedDict[tuple[str, int, int], Routes] = OrderedDict()
"""The routes that this process has read, the last used at the end: a cache."""


def routes_of(moment: Moment) -> Routes:
    """Return the routes of a version of a store, from the cache if possible."""
    key = (str(moment.place), moment.version, moment.made_at)
    routes = _routes.pop(key, None) or _read_routes(moment)
    _routes[key] = routes
    while len(_routes) > _MAX_ROUTES:
        _routes.popitem(last=False)
    return routes


def _read_routes(moment: Moment) -> Routes:
    snapshot = StoreSnapshot.open(moment.place, moment.version)
    routes = Routes([], [])
    for number, part in enumerate(placements.parts_of(snapshot.state)):
        if part.summary is None:
            reason = f"part {number} has no summary: compile the store again"
            raise StoreError(str(moment.place), reason)
        routes.parts.append(number)
        routes.summaries.append(Summary.from_json(part.summary))
    if snapshot.state.n_changes:
        delta = worker.open_matcher(moment, (worker.DELTA,), snapshot=snapshot).matcher
        routes.parts.append(worker.DELTA)
        routes.summaries.append(summary_of(delta))
    return routes


def summary_of(matcher: Matcher) -> Summary:
    """Return the summary of a matcher's subscriptions, which are parsed again for it."""
    summary = Summary.never()
    for _, table in load_catalog(matcher.catalog, matcher.event_type):
        summary = summary.joined(Summary.of_table(table))
    return summary


class RouteTask:
    """What the first `mapInArrow` runs: copies each event to every part that admits it.

    It adds the columns PART and TARGET: the part, and the partition that the copy is sent to; for
    output as arrays also EVENT and PIECES: the event's number, and the number of its copies.
    """

    def __init__(self, spec: MatchSpec, event_type: EventType | None, n_partitions: int) -> None:
        self.source = spec.source
        self.hidden = list(spec.hidden)
        self.numbered = spec.output == "arrays"
        self.event_type = event_type
        self.n_partitions = n_partitions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the events of one partition."""
        remaining = iter(batches)
        first_number = worker.partition() << 40
        for first in remaining:
            moment = worker.moment_of(self.source)
            routes = routes_of(moment)
            for table in worker.coalesce(chain([first], remaining), BatchSize(0.0)):
                yield from self._route(table, routes, first_number, moment.now)
                first_number += len(table)
                worker.freeze()

    def _route(
        self, table: pa.Table, routes: Routes, first_number: int, now: float
    ) -> Iterator[pa.RecordBatch]:
        visible = table.drop_columns(self.hidden) if self.hidden else table
        batch = to_batch(visible, self.event_type)
        with at_moment(now):  # as where the events are matched
            admitted = [
                (part, np.flatnonzero(summary.admits(batch)))
                for part, summary in zip(routes.parts, routes.summaries, strict=True)
            ]
        if self.numbered:
            pieces = np.zeros(len(table), np.int32)
            for _, rows in admitted:
                pieces[rows] += 1
            admitted.append((NO_PART, np.flatnonzero(pieces == 0)))
            numbers = np.arange(first_number, first_number + len(table))
            table = _with(table, EVENT, numbers)
            table = _with(table, PIECES, np.maximum(pieces, 1))
        for part, rows in admitted:
            if len(rows):
                yield from self._copies(table, part, rows)

    def _copies(self, table: pa.Table, part: int, rows: NDArray[np.int64]) -> list[pa.RecordBatch]:
        """Return some events with the part that they are sent to."""
        events = table.take(pa.array(rows)) if len(rows) < len(table) else table
        numbers = np.full(len(rows), part, np.int32)
        targets = (rows if part < 0 else numbers) % self.n_partitions
        events = _with(events, PART, numbers)
        events = _with(events, TARGET, targets.astype(np.int32)).combine_chunks()
        return list(events.to_batches())


def _with(table: pa.Table, name: str, values: NDArray[Any]) -> pa.Table:
    column = pa.array(values)
    return table.append_column(pa.field(name, column.type, False), column)


class PartTask(MatchTask):
    """What the second `mapInArrow` runs: matches events against the part they were sent to."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Match all batches of a partition."""
        remaining = iter(batches)
        size, verify = BatchSize(), self.spec.source.verify
        for first in remaining:
            moment = worker.moment_of(self.spec.source)
            for table in worker.coalesce(chain([first], remaining), size):
                for part in pc.unique(table.column(PART)).to_pylist():
                    rows = table.filter(pc.equal(table.column(PART), part)).combine_chunks()
                    events = rows.drop_columns([PART, TARGET])
                    if part == NO_PART:
                        yield self.unmatched(events)
                        continue
                    entry = worker.open_matcher(moment, (part,), verify=verify)
                    yield from self.match(entry, events)
                    size.matches_per_event = entry.batch_size.matches_per_event


class MergeTask:
    """What the third `mapInArrow` runs: joins the arrays of the pieces of an event.

    An event of one piece goes on at once; other pieces are collected until the last one arrived.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the pieces of one partition."""
        pieces: list[pa.Table] = []
        for batch in batches:
            table = pa.Table.from_batches([batch])
            is_whole = pc.equal(table.column(PIECES), 1)
            yield from _without_marks(table.filter(is_whole))
            rest = table.filter(pc.invert(is_whole))
            pieces += [rest] if len(rest) else []
        if pieces:
            yield from _without_marks(_join_pieces(pa.concat_tables(pieces)))


def _without_marks(table: pa.Table) -> list[pa.RecordBatch]:
    return list(table.drop_columns([EVENT, PIECES]).combine_chunks().to_batches())


def _join_pieces(table: pa.Table) -> pa.Table:
    """Return a row for each event, with the ids of all its pieces."""
    numbers = table.column(EVENT).to_numpy()
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)).combine_chunks(), numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    counts = np.diff(np.append(starts, len(numbers)))
    if np.any(counts != table.column(PIECES).to_numpy()[starts]):
        raise RuntimeError(
            "pieces of an event are missing: its partition gave other rows when it was read again"
        )
    lists = to_array(table.column("subscriptions"))
    ends = np.append(starts, len(numbers))
    offsets = lists.offsets.to_numpy()[ends] - lists.offsets.to_numpy()[0]
    joined = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), lists.flatten(), lists.type
    )
    at = table.column_names.index("subscriptions")
    return table.take(pa.array(starts)).set_column(at, table.schema.field(at), joined)
