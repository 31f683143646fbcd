"""Transitions on Spark: a stream of publications in, what begins and ceases to match out.

Enters: a streaming DataFrame whose rows are publications under a key, and a store of subscriptions.
Leaves: a streaming DataFrame with a row for each transition: the key, the subscription, `ENTER` or
`LEAVE`. The values of all publications are Spark's checkpointed state, so that a query that is
stopped or killed goes on where it was, and every transition comes once with a sink that takes each
micro-batch once.

Publications are kept in buckets by the hash of their key, each one value of the state store: an
Arrow stream of all its publications. A first step packs the updates of a task into one row for each
bucket; `transformWithStateInPandas` gives a bucket its rows and its state; a last step unpacks
transitions. So Spark handles a few rows a micro-batch, and `publications` the updates, by the
column. One key a group, as is usual, costs milliseconds an update. Every bucket gets a row in every
micro-batch with events, if only an empty one: changed subscriptions and the end of a time to live
are seen there. Packed rows bear the number of their partition and their place in it: updates are
taken in that order, in whatever order a shuffle brings them.

The managed pipeline (`pipeline.keeping`) packs in the same way, and keeps buckets in files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.spark import columns, drift, stores, worker
from tocsin.spark.publications import Rules, State, from_bytes, step, to_bytes
from tocsin.storage.pins import Pin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BUCKET, PLACE, BLOB = "__tocsin_bucket", "__tocsin_place", "__tocsin_blob"
PACKED = f"{BUCKET} int, {PLACE} long, {BLOB} binary"
"""The columns of packed updates: the bucket, where the updates come, an Arrow stream of them."""
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_OUTPUT = ("subscription", "kind")
"""The columns of transitions besides the key."""


def transitions(
    events: DataFrame,
    subscriptions: str | os.PathLike[str] | object,
    key: str,
    *,
    order: str | None = None,
    retract: str | None = None,
    ttl: float | None = None,
    partial: bool = False,
    buckets: int = 16,
    ids: str = "auto",
) -> DataFrame:
    """Return what begins and ceases to match as publications and subscriptions change.

    `events` is a stream; a row holds the values of the publication that its column `key` names, or
    with `partial` those that changed, null for the others. `order` names a column that says which
    of several updates in a micro-batch comes first (otherwise they are taken as they arrive),
    `retract` a boolean column that is true where a publication ends. Without an update for `ttl`
    seconds a publication ends as well. `subscriptions` is a store or its path: changes to it are
    seen from the next micro-batch on; new and updated subscriptions enter what they match of the
    publications that are there, removed ones leave silently. `buckets` is into how many parts the
    state is divided: a few for each core, and so many that one holds no more than some megabytes.

    Rows whose key is null are of no publication, and are left out. The result has the columns
    `key`, `subscription` and `kind` (`ENTER` or `LEAVE`).
    """
    path = stores.to_path(subscriptions)
    if path is None:
        raise ArgumentError("subscriptions must be a store or its path: a stream sees it change")
    rules = Rules(key, order, retract, ttl, partial)
    _check(events, rules, buckets)
    matcher = Matcher.open(path)
    is_text = ids == "string" or (
        ids == "auto" and not stores.has_integer_ids(path, stores.newest(path))
    )
    schema = events.schema
    drift.warn(drift.silenced_by(schema, matcher))
    named = events.where(f"{columns.quoted(key)} IS NOT NULL")
    packed = pack(named, needed(schema, matcher, rules), key, buckets)
    found = packed.groupBy(BUCKET).transformWithStateInPandas(
        _processor(path, rules, is_text), f"{BLOB} binary", "Append", "None"
    )
    return found.mapInArrow(unpack, output_schema(schema, key, is_text))


def needed(schema: StructType, matcher: Matcher, rules: Rules) -> list[str]:
    """Return the columns that publications are made of: all that subscriptions may ask about."""
    hidden = columns.misfits(schema, matcher.event_type)
    if rules.key in hidden:
        raise ArgumentError(f"the key {rules.key!r} is of another kind than subscriptions declare")
    readable = {f.name for f in schema if columns.is_readable(f.dataType)} - hidden.keys()
    wanted = {*readable, rules.key, rules.order, rules.retract}
    return [name for name in schema.fieldNames() if name in wanted]


def pack(events: DataFrame, names: Sequence[str], key: str, buckets: int) -> DataFrame:
    """Return updates as one row for each bucket and part of a partition; see `PACKED`."""
    from pyspark.sql import functions as sf

    bucket = sf.pmod(sf.xxhash64(sf.col(columns.quoted(key))), sf.lit(buckets)).cast("int")
    chosen = events.select(*map(columns.quoted, names), bucket.alias(BUCKET))
    return chosen.mapInArrow(Packing(buckets), PACKED)


def output_schema(schema: StructType, key: str, is_text: bool) -> StructType:
    """Return the columns of transitions."""
    from pyspark.sql import types as st

    id_type = st.StringType() if is_text else st.LongType()
    return st.StructType(
        [
            st.StructField(key, schema[key].dataType),
            st.StructField("subscription", id_type),
            st.StructField("kind", st.StringType()),
        ]
    )


def _check(events: DataFrame, rules: Rules, buckets: int) -> None:
    """Refuse what cannot work before anything runs."""
    if not events.isStreaming:
        raise ArgumentError("transitions are of a stream: read the events with readStream")
    check_rules(events.schema, rules)
    if buckets < 1:
        raise ArgumentError(f"buckets must be at least 1, not {buckets}")
    if rules.ttl is not None and not rules.ttl > 0:
        raise ArgumentError(f"ttl must be a positive number of seconds, not {rules.ttl!r}")
    provider = events.sparkSession.conf.get(_PROVIDER, "")
    if provider != _ROCKSDB:
        raise ArgumentError(
            f"transitions need Spark's RocksDB state store: set {_PROVIDER} to {_ROCKSDB}"
        )


def check_rules(schema: StructType, rules: Rules) -> None:
    """Refuse rules that the columns of events do not allow."""
    from pyspark.sql import types as st

    columns.check_names(schema)
    for name, role in ((rules.key, "key"), (rules.order, "order"), (rules.retract, "retract")):
        if name is not None and name not in schema.fieldNames():
            raise ArgumentError(f"{role} names {name!r}, which the events do not have")
    if rules.key in _OUTPUT:
        raise ArgumentError(f"the key cannot be called {rules.key!r}: rename the column")
    if rules.retract and not isinstance(schema[rules.retract].dataType, st.BooleanType):
        raise ArgumentError(f"the column {rules.retract!r} must be boolean")


class Packing:
    """What the first `mapInArrow` runs: rows in, one row for each bucket out."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the updates of one partition."""
        pace = worker.Pace(0.0)
        seen: set[int] = set()
        place = worker.partition() << 32
        for table in worker.coalesce(batches, pace):
            numbers = table.column(BUCKET).to_numpy()
            order = np.argsort(numbers, kind="stable")
            rows = table.drop_columns([BUCKET]).take(pa.array(order)).combine_chunks()
            ends = np.searchsorted(numbers[order], np.arange(self.buckets + 1))
            present = [at for at in range(self.buckets) if ends[at] < ends[at + 1]]
            blobs = [to_bytes(rows.slice(ends[at], ends[at + 1] - ends[at])) for at in present]
            seen.update(present)
            yield _packed(present, place, blobs)
            place += 1
            worker.freeze()
        rest = [at for at in range(self.buckets) if at not in seen]
        if seen and rest:
            yield _packed(rest, place, [b""] * len(rest))


def _packed(numbers: list[int], place: int, blobs: list[bytes]) -> pa.RecordBatch:
    places = pa.array(np.full(len(numbers), place))
    columns = [pa.array(numbers, pa.int32()), places, pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, [BUCKET, PLACE, BLOB])


def unpacked(packed: Iterable[tuple[int, bytes]]) -> pa.Table | None:
    """Return the updates of one bucket in the order in which they came; None where none did."""
    blobs = [blob for _, blob in sorted(packed, key=itemgetter(0)) if len(blob)]
    return pa.concat_tables(map(from_bytes, blobs)) if blobs else None


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn packed transitions into rows: what the last `mapInArrow` runs."""
    for batch in batches:
        for blob in batch.column(0):
            yield from from_bytes(blob.as_buffer()).combine_chunks().to_batches()
            worker.freeze()


class Subscriptions:
    """The subscriptions that count now, and those that a bucket was last held against."""

    def __init__(self, path: str, now: Pin) -> None:
        self._path = path
        self._now = now
        self._held = worker.opened(path, now.version, now.now)
        self._old: dict[Pin, Matcher] = {}

    def is_of(self, path: str, now: Pin) -> bool:
        """Whether these are the subscriptions of a store and a moment, and nobody moved them on."""
        held = self._held
        is_still = held.version == now.version and (held.clock.now == now.now or not held.has_ends)
        return (self._path, self._now) == (path, now) and is_still

    def __call__(self, pin: Pin) -> Matcher:
        """Return the matcher of a pin; that of now where nothing has changed since."""
        is_same = pin.version == self._now.version and not self._held.has_ends
        if pin == self._now or is_same:
            return self._held.matcher
        if pin not in self._old:
            # Not the one of the cache, which may be brought to a later version.
            self._old = {
                pin: stores.open_matcher(self._path, pin.version, None, lambda: pin.now, False)
            }
        return self._old[pin]


_last: list[Subscriptions] = []
"""The subscriptions of the micro-batch that this process worked on last: a cache."""


def subscriptions_of(path: str, now: Pin) -> Subscriptions:
    """Return the subscriptions of a store as of a pin, opened before or now."""
    if not _last or not _last[0].is_of(path, now):
        _last[:] = [Subscriptions(path, now)]
    return _last[0]


def step_bucket(
    value: Any, packed: Iterable[tuple[int, bytes]], path: str, rules: Rules, is_text: bool
) -> bytes | None:
    """Step the bucket of a `ValueState` on by a micro-batch; return its transitions, packed."""
    now = Pin(*worker.moment_of(worker.Source(path, None, None))[1:])
    held = value.get()
    state = None if held is None else State.from_bytes(bytes(held[0]))
    new, found = step(state, unpacked(packed), now, rules, subscriptions_of(path, now))
    if new is None:
        value.clear()
    elif new is not state:
        value.update((new.to_bytes(),))
    worker.freeze()
    table = found.to_table(is_text)
    return None if table is None else to_bytes(table)


def _processor(path: str, rules: Rules, is_text: bool) -> Any:
    """Return what `transformWithStateInPandas` runs; PySpark is imported when it is asked for.

    At each start of a query Spark runs `init` in a new process, which nothing is imported for.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    given = astuple(rules)

    class Buckets(StatefulProcessor):
        """Steps each bucket on by a micro-batch."""

        def init(self, handle: Any) -> None:
            self._value = handle.getValueState("publications", "values binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            import pandas as pd

            from tocsin.spark import publications, transition_plan

            packed = [
                (int(place), bytes(blob))
                for frame in rows
                for place, blob in zip(frame.iloc[:, -2], frame.iloc[:, -1], strict=True)
            ]
            rules = publications.Rules(*given)
            found = transition_plan.step_bucket(self._value, packed, path, rules, is_text)
            if found is not None:
                yield pd.DataFrame({transition_plan.BLOB: [found]})

        def close(self) -> None:
            pass

    return Buckets()
