"""Partitioned matching: events go only to the parts of a store that may match them.

Enters: events, and the summaries of a store's parts. Leaves: a first step that gives each event
once for every part whose summary admits it, with the number of the part; and a second, after a
shuffle by that number, that matches the events of a part against that part alone. So a worker opens
the parts whose events it gets, and no others.

The summaries are those of Beretta, section 5.6: least upper bounds of the subscriptions of a part.
What was added or changed in the store since the parts were made is one more part, of few
subscriptions, whose summary is made when it is opened; its events are spread over all partitions.

Where a row for each event is wanted, events are numbered as they are routed, and told into how many
pieces they were divided; one that no part admits goes on by itself. A second shuffle, by the
number, brings the pieces of an event together, and a last step joins their arrays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import to_array
from tocsin.encode.events import to_batch
from tocsin.errors import StoreError
from tocsin.loading import load_book
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.spark import stores, worker
from tocsin.spark.worker import MatchTask, Moment, Pace, Source
from tocsin.summary import Summary

PART, TARGET = "__tocsin_part", "__tocsin_target"
EVENT, PIECES = "__tocsin_event", "__tocsin_pieces"
NOWHERE = -2
"""Stands among the numbers of parts for events that no part admits."""
_MOST_ROUTES = 4


class Routes(NamedTuple):
    """The parts that events may go to, with their summaries; the last may be `stores.RECENT`."""

    parts: list[int]
    summaries: list[Summary]


_routes: OrderedDict[tuple[str, int, int], Routes] = OrderedDict()
"""The routes that this process has read: a cache, which nothing depends on."""


def routes_of(moment: Moment) -> Routes:
    """Return the routes of a version of a store, read before or now."""
    made_at = stores.made_at(moment.path, moment.version)  # that tells stores at one path apart
    key = (moment.path, moment.version, made_at)
    found = _routes.pop(key, None)
    if found is None:
        state = stores.describe(moment.path, moment.version)
        found = Routes([], [])
        for number, part in enumerate(stores.parts_of(state)):
            if part.summary is None:
                raise StoreError(moment.path, f"part {number} has no summary: compile it anew")
            found.parts.append(number)
            found.summaries.append(Summary.from_json(part.summary))
        if state.n_changes:
            recent = worker.opened(*moment, (stores.RECENT,)).matcher
            found.parts.append(stores.RECENT)
            found.summaries.append(summary_of(recent))
    _routes[key] = found
    while len(_routes) > _MOST_ROUTES:
        _routes.popitem(last=False)
    return found


def summary_of(matcher: Matcher) -> Summary:
    """Summarise all that a matcher holds; for few subscriptions, since they are parsed anew."""
    found = Summary.never()
    for _, table in load_book(matcher._book, matcher.event_type):
        found = found.joined(Summary.of_table(table))
    return found


class RouteTask:
    """What the first `mapInArrow` runs: gives each event once for every part that admits it.

    The columns PART and TARGET are added: the part, and the partition that it is sent to; where a
    row for each event is wanted also EVENT and PIECES: its number, and in how many parts it is.
    """

    def __init__(
        self,
        source: Source,
        event_type: EventType | None,
        n_partitions: int,
        hidden: Sequence[str] = (),
        numbered: bool = False,
    ) -> None:
        self.source = source
        self.event_type = event_type
        self.n_partitions = n_partitions
        self.hidden = sorted(hidden)
        self.numbered = numbered

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the events of one partition."""
        coming = iter(batches)
        first_number = worker.partition() << 40
        for first in coming:
            routes = routes_of(worker.moment_of(self.source))
            for table in worker.coalesce(chain([first], coming), Pace(0.0)):
                yield from self._route(table, routes, first_number)
                first_number += len(table)
                worker.freeze()

    def _route(
        self, table: pa.Table, routes: Routes, first_number: int
    ) -> Iterator[pa.RecordBatch]:
        seen = table.drop_columns(self.hidden) if self.hidden else table
        batch = to_batch(seen, self.event_type)
        admitted = [
            (part, np.flatnonzero(summary.admits(batch)))
            for part, summary in zip(routes.parts, routes.summaries, strict=True)
        ]
        if self.numbered:
            pieces = np.zeros(len(table), np.int32)
            for _, rows in admitted:
                pieces[rows] += 1
            admitted.append((NOWHERE, np.flatnonzero(pieces == 0)))
            numbers = np.arange(first_number, first_number + len(table))
            table = _with(table, EVENT, numbers)
            table = _with(table, PIECES, np.maximum(pieces, 1))
        for part, rows in admitted:
            if len(rows):
                yield from self._sent(table, part, rows)

    def _sent(self, table: pa.Table, part: int, rows: NDArray[np.int64]) -> list[pa.RecordBatch]:
        """Return events with the part that they are sent to."""
        chosen = table.take(pa.array(rows)) if len(rows) < len(table) else table
        numbers = np.full(len(rows), part, np.int32)
        targets = (rows if part < 0 else numbers) % self.n_partitions
        chosen = _with(chosen, PART, numbers)
        chosen = _with(chosen, TARGET, targets.astype(np.int32)).combine_chunks()
        return list(chosen.to_batches())


def _with(table: pa.Table, name: str, values: NDArray[Any]) -> pa.Table:
    column = pa.array(values)
    return table.append_column(pa.field(name, column.type, False), column)


class PartTask(MatchTask):
    """What the second `mapInArrow` runs: matches events against the parts they were sent to."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Match all batches of a partition."""
        coming = iter(batches)
        pace = Pace()
        for first in coming:
            moment = worker.moment_of(self.source)
            for table in worker.coalesce(chain([first], coming), pace):
                for part in pc.unique(table.column(PART)).to_pylist():
                    chosen = table.filter(pc.equal(table.column(PART), part)).combine_chunks()
                    events = chosen.drop_columns([PART, TARGET])
                    if part == NOWHERE:
                        yield self.unmatched(events)
                        continue
                    held = worker.opened(*moment, (part,), self.source.verify)
                    yield from self.match(held, events)
                    pace.per_event = held.pace.per_event


class MergeTask:
    """What the third `mapInArrow` runs: joins the arrays of the pieces of an event.

    Events in one piece go on at once; of others the pieces are held until the last one has come.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the pieces of one partition."""
        held: list[pa.Table] = []
        for batch in batches:
            table = pa.Table.from_batches([batch])
            is_whole = pc.equal(table.column(PIECES), 1)
            yield from _finished(table.filter(is_whole))
            rest = table.filter(pc.invert(is_whole))
            held += [rest] if len(rest) else []
        if held:
            yield from _finished(_merged(pa.concat_tables(held)))


def _finished(table: pa.Table) -> list[pa.RecordBatch]:
    return list(table.drop_columns([EVENT, PIECES]).combine_chunks().to_batches())


def _merged(table: pa.Table) -> pa.Table:
    """Return a row for each event, with the ids of all its pieces."""
    numbers = table.column(EVENT).to_numpy()
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)).combine_chunks(), numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    counts = np.diff(np.append(starts, len(numbers)))
    if np.any(counts != table.column(PIECES).to_numpy()[starts]):
        raise RuntimeError("pieces of an event are missing: its partition was read otherwise")
    lists = to_array(table.column("subscriptions"))
    ends = np.append(starts, len(numbers))
    offsets = lists.offsets.to_numpy()[ends] - lists.offsets.to_numpy()[0]
    joined = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), lists.flatten(), lists.type
    )
    at = table.column_names.index("subscriptions")
    return table.take(pa.array(starts)).set_column(at, table.schema.field(at), joined)
