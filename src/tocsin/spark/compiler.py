"""`compile`: a DataFrame of subscriptions → a store, its parts built by Spark's tasks.

Enters: a DataFrame in one of the forms of `Matcher.subscribe_many`, whatever Spark read it from.
Leaves: a new version of a store, committed by the driver once every part is written, and a report
of the rows that were refused. The steps:

1. count the rows, and find duplicate ids;
2. for several parts, learn from a sample which subscriptions belong together (`clusters`), and send
   each to its part;
3. one task a part parses, builds the index and writes its files; it reports the files, the refused
   rows, and a `Summary` of the events that its part may match;
4. the driver commits all parts as one base, or removes them if bad rows are an error.

A task that fails is run again by Spark and writes under other names; files that are not committed
are removed by a later vacuum (see docs/store.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tocsin.arguments import to_expression, to_written
from tocsin.encode.events import EventBatch, to_batch
from tocsin.errors import (
    ArgumentError,
    BadRow,
    BadRowsError,
    ChangedStoreError,
    DuplicateSubscriptionError,
)
from tocsin.language.computed import parameter_names
from tocsin.language.dialects import SQL
from tocsin.loading import Load, load_table, written_table
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.spark import clusters, columns, hadoop, profiles
from tocsin.spark.profiles import Profile
from tocsin.storage import folder
from tocsin.storage.container import FileEntry
from tocsin.storage.manifests import Part
from tocsin.storage.place import Place
from tocsin.store.subscription_store import SubscriptionStore, open_or_create
from tocsin.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART_SIZE = 1_000_000
"""The maximum number of subscriptions in a part, by default."""
_SAMPLE = 20_000
_ROW, _PART = "__tocsin_row", "__tocsin_part"
_ROW_BITS = 33
"""`monotonically_increasing_id` has the number of the partition above these bits."""


@dataclass(frozen=True)
class CompileReport:
    """The new version, its numbers of subscriptions and parts, and the refused rows.

    `replication` is the average number of parts that a profiled event goes to; None without a
    profile.
    """

    version: int
    n_subscriptions: int
    n_parts: int
    bad: tuple[BadRow, ...] = ()
    replication: float | None = None


def compile(
    subscriptions: DataFrame,
    path: str | os.PathLike[str],
    *,
    where: str | None = None,
    dialect: str = SQL,
    event_type: EventType | None = None,
    engine: str = "auto",
    profile: Profile | None = None,
    parts: int | None = None,
    on_error: Literal["raise", "quarantine"] = "raise",
    **options: Any,
) -> CompileReport:
    """Build a store from a DataFrame of subscriptions; its parts are built on the executors.

    The subscriptions of the store are replaced; changes that others commit meanwhile stay.

    Parameters:
        subscriptions: columns `id` and `where`, or with the argument `where` one column for each of
            its parameters; `valid_until` is optional, and so is `dialect` where there is `where`.
        path: the store, which is created if there is none. Driver and executors must all be able
            to write to it.
        where: the condition of all subscriptions, with parameters.
        dialect: the language of the conditions that have none in a column `dialect`.
        event_type: that of `Matcher`, for a new store.
        engine: that of `Matcher`, for a new store.
        **options: those of the engine, for a new store.
        profile: a profile of the events, by which the index is planned.
        parts: the number of parts, each built by one task; by default one for each million
            subscriptions.
        on_error: "raise" changes nothing and lists bad rows in a BadRowsError; "quarantine" leaves
            them out and returns them in the report.

    If changes of others do not fit the new subscriptions, ChangedStoreError is raised.
    """
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
    if parts is not None and parts < 1:
        raise ArgumentError(f"a store has at least one part, not {parts}")
    sample = None if profile is None else _to_bytes(profile.sample)
    store = open_or_create(hadoop.open_place(path), event_type, engine=engine, **options)
    condition = to_written(where, dialect)
    setting = Setting(store.place, condition, dialect, event_type, engine, options, sample)
    covers = store.newest()
    frame = _numbered(subscriptions, condition)
    n_rows, is_twice = _count_rows(frame)
    distinct, doubles = _split_twice(frame) if is_twice else (frame, ())
    n_parts = parts or max(1, -(-n_rows // PART_SIZE))
    assigned, firsts = _assign(distinct, n_parts, setting)
    try:
        rows = assigned.mapInArrow(BuildTask(setting, firsts), "built string").collect()
    finally:
        if n_parts > 1:
            assigned.unpersist()
    built = [_PartReport.of_json(row["built"]) for row in rows]
    bad = _located(frame, doubles, built)
    return _commit(store, setting, covers, built, bad, on_error)


@dataclass(frozen=True)
class Setting:
    """The arguments that tasks need; `sample` holds events as an Arrow stream."""

    place: Place
    where: str | None
    dialect: str
    event_type: EventType | None
    engine: str
    options: dict[str, Any]
    sample: bytes | None

    def load(self, table: pa.Table) -> Load:
        """Read a table of subscriptions."""
        return load_table(written_table(table, self.dialect), self.where, self.event_type, None)

    def events(self) -> EventBatch | None:
        """Return the profiled events."""
        if self.sample is None:
            return None
        return to_batch(pa.ipc.open_stream(self.sample).read_all(), self.event_type)

    def new_matcher(self, first: int) -> Matcher:
        """Return an empty matcher whose dense ids begin at a number."""
        return Matcher.numbered_from(
            first, self.event_type, is_part=True, engine=self.engine, **self.options
        )


def _numbered(frame: DataFrame, where: str | None) -> DataFrame:
    """Return the columns of subscriptions, with a number for each row that tells its origin."""
    columns.check_names(frame.schema)
    names = frame.schema.fieldNames()
    needed = ["id", "where"] if where is None else ["id", *parameter_names(to_expression(where))]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ArgumentError(
            f"the subscriptions have no column {', '.join(missing)}; they have {', '.join(names)}"
        )
    needed += [name for name in ("valid_until", "dialect") if name in names]
    selected = [columns.quoted(name) for name in dict.fromkeys(needed)]
    return frame.selectExpr(*selected, f"monotonically_increasing_id() AS {_ROW}")


def _count_rows(frame: DataFrame) -> tuple[int, bool]:
    """Return the number of rows, and whether an id occurs twice."""
    counts = frame.groupBy("id").count()
    row = counts.selectExpr("sum(count)", "max(IF(id IS NULL, 1, count))").collect()[0]
    return int(row[0] or 0), int(row[1] or 0) > 1


def _split_twice(frame: DataFrame) -> tuple[DataFrame, tuple[tuple[int, Any], ...]]:
    """Return the first row of each id, and the numbers and ids of the others."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = f.row_number().over(Window.partitionBy("id").orderBy(_ROW))
    ranked = frame.withColumn("__tocsin_rank", order)
    is_double = (f.col("__tocsin_rank") > 1) & f.col("id").isNotNull()
    # All columns are collected: with others left out, Spark may put the rows in another order.
    doubles = ranked.filter(is_double).collect()
    distinct = ranked.filter(~is_double).drop("__tocsin_rank")
    return distinct, tuple((row[_ROW], row["id"]) for row in doubles)


def _assign(frame: DataFrame, n_parts: int, setting: Setting) -> tuple[DataFrame, list[int]]:
    """Send each subscription to its part; return the first dense id of each part."""
    from pyspark.sql import types as st

    if n_parts == 1:
        return frame.selectExpr("*", f"0 AS {_PART}").repartition(1), [0]
    some = profiles.sample_rows(frame, _SAMPLE, 0).drop_columns([_ROW])
    tree = clusters.learn(setting.load(some).conjunctions, n_parts, setting.events())
    schema = st.StructType([*frame.schema, st.StructField(_PART, st.IntegerType(), False)])
    assigned = frame.mapInArrow(AssignTask(tree, setting), schema)
    assigned = assigned.repartitionById(n_parts, _PART).persist()
    counts = {row[0]: row[1] for row in assigned.groupBy(_PART).count().collect()}
    firsts = [0]
    for part in range(n_parts - 1):
        firsts.append(firsts[-1] + counts.get(part, 0))
    return assigned, firsts


class AssignTask:
    """What `mapInArrow` runs: adds the part of each subscription."""

    def __init__(self, tree: clusters.Tree, setting: Setting) -> None:
        self.tree = tree
        self.setting = setting

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column of parts."""
        for batch in batches:
            table = pa.table(batch)
            loaded = self.setting.load(table.drop_columns([_ROW]))
            parts = clusters.assign_parts(self.tree, loaded.conjunctions, len(table))
            field = pa.field(_PART, pa.int32(), False)
            yield from table.append_column(field, pa.array(parts)).to_batches()


@dataclass(frozen=True)
class _PartReport:
    """A task's report of its part, which is None without subscriptions, and of bad rows."""

    number: int
    n_subscriptions: int
    part: dict[str, Any] | None
    bad: list[list[Any]]
    admitted: float | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> _PartReport:
        return cls(**json.loads(text))


class BuildTask:
    """What `mapInArrow` runs: builds and writes one part from all rows of a partition.

    The dense ids of part p begin at `firsts[p]`.
    """

    def __init__(self, setting: Setting, firsts: list[int]) -> None:
        self.setting = setting
        self.firsts = firsts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Build one part."""
        waiting = [batch for batch in batches if batch.num_rows]
        if waiting:
            built = self._build(pa.Table.from_batches(waiting))
            yield pa.record_batch({"built": [built.to_json()]})

    def _build(self, table: pa.Table) -> _PartReport:
        setting = self.setting
        number = table.column(_PART)[0].as_py()
        rows = table.column(_ROW).to_pylist()
        matcher = setting.new_matcher(self.firsts[number])
        events = setting.events()
        if events is not None:
            matcher.profile(events)
        loaded = setting.load(table.drop_columns([_PART, _ROW]))
        report = matcher.load(loaded, "quarantine")
        bad = [[rows[b.row], b.id, b.reason, b.code] for b in report.bad]
        if not report.loaded:
            return _PartReport(number, 0, None, bad, 0.0)
        matcher.rebuild()
        summary = Summary.of_table(loaded.conjunctions)
        admitted = None if events is None else float(summary.admits(events).mean())
        facts = {"summary": summary.to_json(), "admitted": admitted}
        part = _write_part(setting.place, matcher, facts)
        return _PartReport(number, report.loaded, part, bad, admitted)


def _located(
    frame: DataFrame, doubles: tuple[tuple[int, Any], ...], built: list[_PartReport]
) -> tuple[BadRow, ...]:
    """Return all bad rows, numbered from 0 in the order of the DataFrame."""
    rows = [
        (row, BadRow(row, id, str(error), error.code))
        for row, id in doubles
        for error in [DuplicateSubscriptionError(id)]
    ]
    rows += [(row, BadRow(row, id, reason, code)) for b in built for row, id, reason, code in b.bad]
    if not rows:
        return ()
    counted = frame.selectExpr(f"shiftright({_ROW}, {_ROW_BITS}) AS p").groupBy("p").count()
    counts = {int(row[0]): int(row[1]) for row in counted.collect()}
    before, total = {}, 0
    for partition in sorted(counts):
        before[partition] = total
        total += counts[partition]
    mask = (1 << _ROW_BITS) - 1
    bad = [b._replace(row=before[row >> _ROW_BITS] + (row & mask)) for row, b in rows]
    return tuple(sorted(bad, key=lambda b: b.row))


def _write_part(place: Place, matcher: Matcher, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write a matcher as a part that is not committed yet; return the part for JSON."""
    part = folder.write_part(place, matcher.snapshot())
    return asdict(replace(part, facts={**part.facts, **facts}))


def _to_part(values: Mapping[str, Any]) -> Part:
    return Part(
        values["facts"],
        {role: FileEntry(**file) for role, file in values["files"].items()},
        [FileEntry(**file) for file in values["segments"]],
    )


def _remove(place: Place, parts: Iterable[Part]) -> None:
    """Remove the files of parts that will not be committed."""
    for name in {name for part in parts for name in part.names()}:
        place.remove(name)


def _commit(
    store: SubscriptionStore,
    setting: Setting,
    covers: int,
    built: list[_PartReport],
    bad: tuple[BadRow, ...],
    on_error: str,
) -> CompileReport:
    """Commit the parts, or remove them if bad rows are an error."""
    written = sorted((b for b in built if b.part is not None), key=lambda b: b.number)
    parts = [_to_part(b.part) for b in written if b.part is not None]
    if bad and on_error == "raise":
        _remove(store.place, parts)
        raise BadRowsError(bad)
    if not parts:
        matcher = setting.new_matcher(0)
        facts = {"admitted": 0.0, "summary": Summary.never().to_json()}
        parts = [_to_part(_write_part(store.place, matcher, facts))]
    try:
        version = store.commit_base(parts, covers)
    except ChangedStoreError:
        _remove(store.place, parts)
        raise
    shares = [b.admitted for b in written]
    replication = None if None in shares else sum(s for s in shares if s is not None)
    n = sum(b.n_subscriptions for b in written)
    return CompileReport(version, n, len(parts), bad, replication)


def _to_bytes(sample: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as writer:
        writer.write_table(sample)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets
