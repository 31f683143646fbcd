"""`transitions`: a stream of publications in, a stream of transitions out.

Enters: a streaming DataFrame whose rows are publications under a key, and a store of subscriptions.
Leaves: a streaming DataFrame with a row for each transition: the key, the subscription, `ENTER` or
`LEAVE`. The values of all publications are Spark's checkpointed state: a query that is stopped or
killed resumes from it, and each transition is delivered once by a sink that commits each
micro-batch once.

Publications are divided into buckets by the hash of their key. A bucket is one value of the state
store: an Arrow stream of all its publications. A first task packs the updates of a partition into
one row for each bucket; `transformWithStateInPandas` gives a bucket its rows and its state; a last
task unpacks the transitions. So Spark handles a few rows a micro-batch, and `publications` the
updates, column by column; with one key in a group, an update costs milliseconds. Each bucket gets a
row in each micro-batch with events, perhaps an empty one: that is where changed subscriptions and
expired publications are noticed. Packed rows carry the number of their partition and their position
in it, and updates are applied in that order, whatever the shuffle does.

The managed pipeline packs in the same way, but keeps the buckets in files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.spark import columns, drift, subscription_source, worker
from tocsin.spark.publications import Rules, State, from_bytes, step, to_bytes
from tocsin.spark.subscription_source import IdType
from tocsin.spark.worker import Moment
from tocsin.storage.pins import Pin
from tocsin.storage.place import Place
from tocsin.store.snapshot import StoreSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BUCKET, PLACE, BLOB = "__tocsin_bucket", "__tocsin_place", "__tocsin_blob"
PACKED = f"{BUCKET} int, {PLACE} long, {BLOB} binary"
"""The columns of packed updates: the bucket, their position, an Arrow stream of them."""
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_OUTPUT = ("subscription", "kind")
"""The columns of transitions besides the key."""


def transitions(
    events: DataFrame,
    subscriptions: Any,
    key: str,
    *,
    order: str | None = None,
    retract: str | None = None,
    ttl: float | None = None,
    partial: bool = False,
    buckets: int = 16,
    ids: IdType = "auto",
) -> DataFrame:
    """Return the transitions of a stream of publications, with a row for each.

    The result has the columns `key`, `subscription` and `kind` (`ENTER` or `LEAVE`). Rows whose key
    is null are ignored.

    Parameters:
        events: a stream; a row holds the values of the publication that its column `key` names.
        subscriptions: a `SubscriptionStore` or its path. Changes to it count from the next
            micro-batch with events: new and updated subscriptions enter or leave the publications,
            removed ones give no transitions.
        key: the column of publication keys.
        order: the column by which several updates in a micro-batch are ordered; by default they
            are applied as they arrive.
        retract: a boolean column that is true where a publication ends.
        ttl: the seconds without an update after which a publication ends.
        partial: with true, a null leaves a value as it was; otherwise a row replaces all values.
        buckets: the number of parts of the state: a few for each core, and enough that each has no
            more than a few megabytes.
        ids: the type of ids in the result; by default integer if the store has only integers.

    Arguments that cannot work raise an ArgumentError before the query starts.
    """
    place = subscription_source.to_place(subscriptions)
    if place is None:
        raise ArgumentError("subscriptions must be a store or its path, which a stream can follow")
    rules = Rules(key, order, retract, ttl, partial)
    _check(events, rules, buckets)
    snapshot = StoreSnapshot.open(place)
    is_text = not subscription_source.has_integer_ids(ids, snapshot.state)
    matcher = worker.open_matcher(Moment.of(snapshot, time.time()), snapshot=snapshot).matcher
    schema = events.schema
    drift.warn(drift.find_issues(schema, matcher))
    with_key = events.where(f"{columns.quoted(key)} IS NOT NULL")
    packed = pack(with_key, needed(schema, matcher, rules), key, buckets)
    stepped = packed.groupBy(BUCKET).transformWithStateInPandas(
        _processor(place, rules, is_text), f"{BLOB} binary", "Append", "None"
    )
    return stepped.mapInArrow(unpack, output_schema(schema, key, is_text))


def needed(schema: StructType, matcher: Matcher, rules: Rules) -> list[str]:
    """Return the columns of a publication's values: all that subscriptions may mention."""
    hidden = columns.misfits(schema, matcher.event_type)
    if rules.key in hidden:
        raise ArgumentError(f"the key {rules.key!r} has another kind than the event type declares")
    readable = {f.name for f in schema if columns.is_readable(f.dataType)} - hidden.keys()
    names = {*readable, rules.key, rules.order, rules.retract}
    return [name for name in schema.fieldNames() if name in names]


def pack(events: DataFrame, names: Sequence[str], key: str, buckets: int) -> DataFrame:
    """Return updates as one row for each bucket and part of a partition; see `PACKED`."""
    from pyspark.sql import functions as sf

    bucket = sf.pmod(sf.xxhash64(sf.col(columns.quoted(key))), sf.lit(buckets)).cast("int")
    updates = events.select(*map(columns.quoted, names), bucket.alias(BUCKET))
    return updates.mapInArrow(Packing(buckets), PACKED)


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
    """Raise ArgumentError for arguments that cannot work, before anything runs."""
    if not events.isStreaming:
        raise ArgumentError("transitions need a stream: read the events with readStream")
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
    """Raise ArgumentError for rules that the columns of events do not allow."""
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
        seen: set[int] = set()
        position = worker.partition() << 32
        for table in worker.coalesce(batches, worker.BatchSize(0.0)):
            numbers = table.column(BUCKET).to_numpy()
            order = np.argsort(numbers, kind="stable")
            rows = table.drop_columns([BUCKET]).take(pa.array(order)).combine_chunks()
            ends = np.searchsorted(numbers[order], np.arange(self.buckets + 1))
            present = [at for at in range(self.buckets) if ends[at] < ends[at + 1]]
            blobs = [to_bytes(rows.slice(ends[at], ends[at + 1] - ends[at])) for at in present]
            seen.update(present)
            yield _packed(present, position, blobs)
            position += 1
            worker.freeze()
        rest = [at for at in range(self.buckets) if at not in seen]
        if seen and rest:
            yield _packed(rest, position, [b""] * len(rest))


def _packed(numbers: list[int], position: int, blobs: list[bytes]) -> pa.RecordBatch:
    positions = pa.array(np.full(len(numbers), position))
    columns = [pa.array(numbers, pa.int32()), positions, pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, [BUCKET, PLACE, BLOB])


def unpacked(packed: Iterable[tuple[int, bytes]]) -> pa.Table | None:
    """Return the updates of one bucket in the order of their positions; None without any."""
    blobs = [blob for _, blob in sorted(packed, key=itemgetter(0)) if len(blob)]
    return pa.concat_tables(map(from_bytes, blobs)) if blobs else None


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn packed transitions into rows: what the last `mapInArrow` runs."""
    for batch in batches:
        for blob in batch.column(0):
            yield from from_bytes(blob.as_buffer()).combine_chunks().to_batches()
            worker.freeze()


class Subscriptions:
    """The matchers of a micro-batch: the current one, and that of a bucket's last update."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._current = worker.open_matcher(moment)
        self._old: dict[Pin, Matcher] = {}

    def is_of(self, moment: Moment) -> bool:
        """Return whether the current matcher is that of a moment, and was not advanced."""
        entry = self._current
        is_same_time = entry.clock.now == moment.now or not entry.expires
        return (
            _key(self._moment) == _key(moment) and entry.version == moment.version and is_same_time
        )

    def __call__(self, pin: Pin) -> Matcher:
        """Return the matcher of a pin; the current one if nothing has changed since."""
        moment = self._moment
        is_same = pin.version == moment.version and not self._current.expires
        if pin == (moment.version, moment.now) or is_same:
            return self._current.matcher
        if pin not in self._old:
            # Not one of the cache, which may be advanced to a later version.
            snapshot = StoreSnapshot.open(moment.place, pin.version)
            self._old = {pin: snapshot.matcher(clock=lambda: pin.now, verify=False, merges=False)}
        return self._old[pin]


def _key(moment: Moment) -> tuple[object, ...]:
    return (str(moment.place), *moment[1:])


_last: list[Subscriptions] = []
"""The subscriptions of the last micro-batch that this process worked on: a cache."""


def subscriptions_of(moment: Moment) -> Subscriptions:
    """Return the subscriptions of a moment, from the cache if possible."""
    if not _last or not _last[0].is_of(moment):
        _last[:] = [Subscriptions(moment)]
    return _last[0]


def step_bucket(
    value: Any, packed: Iterable[tuple[int, bytes]], place: Place, rules: Rules, is_text: bool
) -> bytes | None:
    """Update the bucket of a `ValueState` by a micro-batch; return its transitions, packed."""
    moment = worker.moment_of(worker.Source(place))
    content = value.get()
    state = None if content is None else State.from_bytes(bytes(content[0]))
    pin = Pin(moment.version, moment.now)
    new, transitions = step(state, unpacked(packed), pin, rules, subscriptions_of(moment))
    if new is None:
        value.clear()
    elif new is not state:
        value.update((new.to_bytes(),))
    worker.freeze()
    table = transitions.to_table(is_text)
    return None if table is None else to_bytes(table)


def _processor(place: Place, rules: Rules, is_text: bool) -> Any:
    """Return what `transformWithStateInPandas` runs.

    Spark runs `init` in a new process at each start of a query: Tocsin is imported later, by the
    processes that handle rows.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    fields = astuple(rules)

    class Buckets(StatefulProcessor):
        """Updates each bucket by a micro-batch."""

        def init(self, handle: Any) -> None:
            self._value = handle.getValueState("publications", "values binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            import pandas as pd

            from tocsin.spark import publications, transition_plan

            packed = [
                (int(position), bytes(blob))
                for frame in rows
                for position, blob in zip(frame.iloc[:, -2], frame.iloc[:, -1], strict=True)
            ]
            rules = publications.Rules(*fields)
            blob = transition_plan.step_bucket(self._value, packed, place, rules, is_text)
            if blob is not None:
                yield pd.DataFrame({transition_plan.BLOB: [blob]})

        def close(self) -> None:
            pass

    return Buckets()
