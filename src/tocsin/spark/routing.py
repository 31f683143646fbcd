"""Partitioned matching: events go only to the parts of a store that may match them.

Enters: events, and the summaries of a store's parts. Leaves: a first step that gives each event
once for every part whose summary admits it, with the number of the part; and a second, after a
shuffle by that number, that matches the events of a part against that part alone. So a worker opens
the parts whose events it gets, and no others.

The summaries are those of Beretta, section 5.6: least upper bounds of the subscriptions of a part.
What was added or changed in the store since the parts were made is one more part, of few
subscriptions, whose summary is made when it is opened; its events are spread over all partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.encode.events import to_batch
from tocsin.errors import StoreError
from tocsin.loading import load_book
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.spark import stores, worker
from tocsin.spark.worker import MatchTask, Moment, Pace, Source
from tocsin.summary import Summary

PART, TARGET = "__tocsin_part", "__tocsin_target"
_ROUTED_ROWS = 50_000
_MOST_ROUTES = 4


class Routes(NamedTuple):
    """The parts that events may go to, with their summaries; the last may be `stores.RECENT`."""

    parts: list[int]
    summaries: list[Summary]


_routes: OrderedDict[tuple[str, int], Routes] = OrderedDict()
"""The routes that this process has read: a cache, which nothing depends on."""


def routes_of(moment: Moment) -> Routes:
    """Return the routes of a version of a store, read before or now."""
    key = (moment.path, moment.version)
    found = _routes.pop(key, None)
    if found is None:
        facts, has_changes = stores.parts_of(moment.path, moment.version)
        found = Routes([], [])
        for number, part in enumerate(facts):
            if part.summary is None:
                raise StoreError(moment.path, f"part {number} has no summary: compile it anew")
            found.parts.append(number)
            found.summaries.append(Summary.from_json(part.summary))
        if has_changes:
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

    The columns PART and TARGET are added: the part, and the partition that it is sent to.
    """

    def __init__(
        self,
        source: Source,
        event_type: EventType | None,
        n_partitions: int,
        hidden: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.event_type = event_type
        self.n_partitions = n_partitions
        self.hidden = sorted(hidden)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the events of one partition."""
        coming = iter(batches)
        for first in coming:
            routes = routes_of(worker.moment_of(self.source))
            pace = Pace(_ROUTED_ROWS / worker.MOST_ROWS)
            for table in worker.coalesce(chain([first], coming), pace):
                yield from self._route(table, routes)
                worker.freeze()

    def _route(self, table: pa.Table, routes: Routes) -> Iterator[pa.RecordBatch]:
        seen = table.drop_columns(self.hidden) if self.hidden else table
        batch = to_batch(seen, self.event_type)
        for part, summary in zip(routes.parts, routes.summaries, strict=True):
            rows = np.flatnonzero(summary.admits(batch))
            if not len(rows):
                continue
            chosen = table.take(pa.array(rows)) if len(rows) < len(table) else table
            numbers = np.full(len(rows), part, np.int32)
            targets = (rows if part == stores.RECENT else numbers) % self.n_partitions
            chosen = chosen.append_column(pa.field(PART, pa.int32(), False), pa.array(numbers))
            field = pa.field(TARGET, pa.int32(), False)
            chosen = chosen.append_column(field, pa.array(targets.astype(np.int32)))
            yield from chosen.combine_chunks().to_batches()


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
                    held = worker.opened(*moment, (part,), self.source.verify)
                    events = chosen.drop_columns([PART, TARGET])
                    yield from self.match(held, events)
                    pace.per_event = held.pace.per_event
