"""The matchers that a process keeps open, and the number of events that it matches at once.

Enters: the subscriptions of a task (`Source`), and record batches of events. Leaves: matchers whose
arrays are mapped into memory, which all processes of a machine share, and tables of a size that is
matched efficiently: small batches are joined, and large ones are cut where events have very many
matches, so that the result fits into memory.

The driver uses the same cache. A task of a batch query whose matcher is open reads nothing from the
store; one of a micro-batch reads its pin and one manifest. Neither lists the folder.

PySpark runs the garbage collector after every task, which then visits all objects of Numba. After
the first batch, `freeze` moves all live objects out of its sight.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tocsin.matcher import Matcher
from tocsin.storage import manifests, pins
from tocsin.storage.place import Place, to_place
from tocsin.store.snapshot import StoreSnapshot

DELTA = -1
"""The part number of the changes since the parts of a store were built."""
MAX_ROWS = 65_536
"""The maximum number of events that are matched at once."""
_FIRST_ROWS = 8_192
"""The number of events in the first batch, while the matches of an event are not known."""
_TARGET_MATCHES = 4_000_000
"""The number of matches that a batch should not exceed."""
_MAX_OPEN = 4
"""The maximum number of matchers that a process keeps open."""

_Parts = tuple[int, ...] | None
"""Part numbers of a store; None for all parts."""


class Moment(NamedTuple):
    """A version of a store at a time, in seconds since 1970, by which expiry is judged.

    `made_at` is when the version was committed: it tells two stores at one path apart.
    """

    place: Place
    version: int
    now: float
    made_at: int

    @classmethod
    def of(cls, snapshot: StoreSnapshot, now: float) -> Moment:
        """Return a snapshot at a time."""
        return cls(snapshot.place, snapshot.version, now, snapshot.made_at)

    @classmethod
    def read(cls, place: Place, version: int, now: float) -> Moment:
        """Return a version at a time; its manifest is read."""
        return cls(place, version, now, manifests.read(place, version).made_at)


@dataclass(frozen=True)
class Source:
    """The subscriptions that a task uses.

    `moment` is None in a stream: there each micro-batch pins its own in the store. `shipped` is the
    name of a copy of the store among the files that Spark distributes. `verify` is false if the
    driver has verified the files.
    """

    place: Place
    moment: Moment | None = None
    shipped: str | None = None
    verify: bool = True


def moment_of(source: Source) -> Moment:
    """Return the version and time that a task uses; in a stream, those of its micro-batch."""
    place = source.place
    if source.shipped is not None:
        from pyspark import SparkFiles

        place = to_place(SparkFiles.get(source.shipped))
    if source.moment is not None:
        return source.moment._replace(place=place)
    return Moment.read(place, *pins.pin(place, *_micro_batch()))


def _micro_batch() -> tuple[str, int]:
    """Return the query and the number of the micro-batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise RuntimeError("a streaming match runs outside of a micro-batch")
    return query, int(batch)


def partition() -> int:
    """Return the number of the partition that this task works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0


# Open matchers.


@dataclass
class _Clock:
    now: float

    def __call__(self) -> float:
        return self.now


@dataclass
class BatchSize:
    """The number of events to match at once, from the number of matches so far."""

    matches_per_event: float | None = None

    @property
    def n_rows(self) -> int:
        """The number of events of the next batch."""
        if self.matches_per_event is None:
            return _FIRST_ROWS
        return int(np.clip(_TARGET_MATCHES / max(self.matches_per_event, 1e-9), 64, MAX_ROWS))

    def learn(self, n_events: int, n_matches: int) -> None:
        """Record the matches of a batch."""
        ratio = n_matches / max(n_events, 1)
        self.matches_per_event = max(ratio, (self.matches_per_event or 0) / 2)


@dataclass
class OpenMatcher:
    """A matcher of one version of a store, with the clock that it expires subscriptions by."""

    matcher: Matcher
    version: int
    made_at: int
    clock: _Clock
    expires: bool
    """Whether any subscription has an end of validity."""
    batch_size: BatchSize = field(default_factory=BatchSize)


_Key = tuple[str, int, int, _Parts]
"""The path of a store, a version, when it was committed, and parts."""
_open: OrderedDict[_Key, OpenMatcher] = OrderedDict()
"""The matchers that this process has open, the last used at the end: a cache."""


def open_matcher(
    moment: Moment,
    parts: _Parts = None,
    *,
    verify: bool = True,
    snapshot: StoreSnapshot | None = None,
) -> OpenMatcher:
    """Return the matcher of a moment, or of some parts of the store, from the cache if possible.

    An open matcher of an older version is brought to this one where the store allows it. `snapshot`
    is that of the version, if the caller has it.
    """
    key = (str(moment.place), moment.version, moment.made_at, parts)
    entry = _open.pop(key, None)
    if entry is None:
        snapshot = snapshot or StoreSnapshot.open(moment.place, moment.version)
        entry = _advance_older(key, snapshot)
    if entry is not None and entry.expires and moment.now < entry.clock.now:
        entry = None  # subscriptions that expired between the two times are gone from it
    if entry is None:
        snapshot = snapshot or StoreSnapshot.open(moment.place, moment.version)
        entry = _open_new(snapshot, moment, parts, verify)
    entry.clock.now = moment.now
    _open[key] = entry
    while len(_open) > _MAX_OPEN:
        _open.popitem(last=False)
    return entry


def _open_new(snapshot: StoreSnapshot, moment: Moment, parts: _Parts, verify: bool) -> OpenMatcher:
    clock = _Clock(moment.now)
    if parts == (DELTA,):
        matcher = snapshot.delta(clock=clock)
    else:
        matcher = snapshot.matcher(parts=parts, clock=clock, verify=verify, merges=False)
    matcher.configure_events(warns=False, reads_moments=False)  # the driver checks the schema
    return OpenMatcher(matcher, moment.version, moment.made_at, clock, matcher.catalog.has_expiries)


def _advance_older(key: _Key, snapshot: StoreSnapshot) -> OpenMatcher | None:
    """Bring the open matcher of the latest older version to this one, if that is possible."""
    path, version, made_at, parts = key
    older = [k for k in _open if (k[0], k[3]) == (path, parts) and k[1] < version]
    if not older or parts == (DELTA,):
        return None
    entry = _open.pop(max(older, key=lambda k: k[1]))
    is_whole = parts is None
    if not snapshot.advance(entry.matcher, entry.version, made_at=entry.made_at, is_whole=is_whole):
        return None
    entry.version, entry.made_at = version, made_at
    entry.expires = entry.expires or entry.matcher.catalog.has_expiries
    return entry


def open_matchers() -> list[Matcher]:
    """Return the matchers that this process has open. Internal: for measurements."""
    return [entry.matcher for entry in _open.values()]


def close_all() -> None:
    """Close all matchers that this process has open."""
    _open.clear()


def coalesce(batches: Iterable[pa.RecordBatch], size: BatchSize) -> Iterator[pa.Table]:
    """Join or cut batches into tables of the size that is best at the time."""
    waiting: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        waiting.append(batch)
        n += batch.num_rows
        while n >= size.n_rows:
            table = pa.Table.from_batches(waiting)
            n_rows = size.n_rows
            yield table.slice(0, n_rows).combine_chunks()
            rest = table.slice(n_rows)
            waiting = rest.to_batches()
            n = len(rest)
    if n:
        yield pa.Table.from_batches(waiting).combine_chunks()


_is_frozen = False


def freeze() -> None:
    """Move all live objects out of the garbage collector's sight, once."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True
