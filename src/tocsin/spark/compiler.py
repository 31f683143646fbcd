"""Compiling: a DataFrame of subscriptions → a store, its parts built by Spark's tasks.

Enters: a DataFrame in one of the forms of `Matcher.subscribe_many`, whatever Spark read it from.
Leaves: a new version of a store, committed by the driver once every part is written, and a report
of the rows that were refused. The steps:

1. count the rows, and look for ids that stand twice;
2. where there are to be several parts, learn from a sample which subscriptions belong together
   (`clusters`), and send each to its part;
3. one task a part parses, builds the index and writes its files; it says what it wrote, what it
   refused, and which events its part may match at all (a `Summary`);
4. the driver commits all parts as one base, or, where rows are bad and that is an error, removes
   them.

A task that fails is run again by Spark and writes under other names; what is not committed is
nobody's, and is removed in time (see docs/store.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tocsin.encode.events import EventBatch, to_batch
from tocsin.errors import (
    ArgumentError,
    BadRow,
    BadRowsError,
    ChangedStoreError,
    DuplicateSubscriptionError,
)
from tocsin.language.expression import parameter_names
from tocsin.loading import Load, load_table, to_expression
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.spark import clusters, columns, profiles, stores
from tocsin.spark.profiles import Profile
from tocsin.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART_SIZE = 1_000_000
"""How many subscriptions a part has by default, at most."""
_SAMPLE = 20_000
_ROW, _PART = "__tocsin_row", "__tocsin_part"
_ROW_BITS = 33
"""`monotonically_increasing_id` has the number of the partition above so many bits."""


@dataclass(frozen=True)
class CompileReport:
    """What was compiled: the new version, its subscriptions and parts, and the rows refused.

    `replication` is to how many parts an event like the profiled ones goes, where that is known.
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
    event_type: EventType | None = None,
    engine: str = "auto",
    options: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    parts: int | None = None,
    on_error: Literal["raise", "quarantine"] = "raise",
) -> CompileReport:
    """Build a store from a DataFrame of subscriptions, its parts on the executors.

    The columns are `id` and `where`, or with `where` the text, `id` and one for each parameter;
    `valid_until` is optional. What the store held before is replaced; changes that others make
    meanwhile stay. `parts` is into how many parts it is divided, each built by one task; by default
    one for a million subscriptions. Where rows are bad nothing is replaced and BadRowsError lists
    them; with `on_error="quarantine"` the others are taken, and the report has the bad ones.
    """
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
    if parts is not None and parts < 1:
        raise ArgumentError(f"a store has at least one part, not {parts}")
    sample = None if profile is None else _to_bytes(profile.sample)
    setting = Setting(os.fspath(path), where, event_type, engine, dict(options or {}), sample)
    covers = stores.newest_or_create(setting.path, event_type, engine, setting.options)
    frame = _numbered(subscriptions, where)
    n_rows, is_twice = _survey(frame)
    kept, doubles = _split_twice(frame) if is_twice else (frame, ())
    n_parts = parts or max(1, -(-n_rows // PART_SIZE))
    assigned, firsts = _assign(kept, n_parts, setting)
    try:
        rows = assigned.mapInArrow(BuildTask(setting, firsts), "built string").collect()
    finally:
        if n_parts > 1:
            assigned.unpersist()
    built = [_Built.of_json(row["built"]) for row in rows]
    bad = _located(frame, doubles, built)
    return _commit(setting, covers, built, bad, on_error)


@dataclass(frozen=True)
class Setting:
    """What tasks need to know; `sample` holds events as an Arrow stream."""

    path: str
    where: str | None
    event_type: EventType | None
    engine: str
    options: dict[str, Any]
    sample: bytes | None

    def load(self, table: pa.Table) -> Load:
        """Read a table of subscriptions."""
        return load_table(table, self.where, self.event_type, None)

    def events(self) -> EventBatch | None:
        """Return the profiled events."""
        if self.sample is None:
            return None
        return to_batch(pa.ipc.open_stream(self.sample).read_all(), self.event_type)

    def new_matcher(self, first: int) -> Matcher:
        """Return an empty matcher whose dense ids begin at a number."""
        return stores.new_matcher(first, self.event_type, self.engine, self.options)


def _numbered(frame: DataFrame, where: str | None) -> DataFrame:
    """Return the columns that count, with a number for each row that says where it came from."""
    columns.check_names(frame.schema)
    names = frame.schema.fieldNames()
    wanted = ["id", "where"] if where is None else ["id", *parameter_names(to_expression(where))]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ArgumentError(
            f"the subscriptions have no column {', '.join(missing)}; they have {', '.join(names)}"
        )
    wanted += ["valid_until"] if "valid_until" in names else []
    chosen = [columns.quoted(name) for name in dict.fromkeys(wanted)]
    return frame.selectExpr(*chosen, f"monotonically_increasing_id() AS {_ROW}")


def _survey(frame: DataFrame) -> tuple[int, bool]:
    """Return how many rows there are, and whether an id stands twice."""
    counted = frame.groupBy("id").count()
    found = counted.selectExpr("sum(count)", "max(IF(id IS NULL, 1, count))").collect()[0]
    return int(found[0] or 0), int(found[1] or 0) > 1


def _split_twice(frame: DataFrame) -> tuple[DataFrame, tuple[tuple[int, Any], ...]]:
    """Return the rows whose ids did not stand before, and number and id of the others."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = f.row_number().over(Window.partitionBy("id").orderBy(_ROW))
    ranked = frame.withColumn("__tocsin_rank", order)
    is_double = (f.col("__tocsin_rank") > 1) & f.col("id").isNotNull()
    # All columns are collected: with others left out, Spark may put the rows in another order.
    doubles = ranked.filter(is_double).collect()
    kept = ranked.filter(~is_double).drop("__tocsin_rank")
    return kept, tuple((row[_ROW], row["id"]) for row in doubles)


def _assign(frame: DataFrame, n_parts: int, setting: Setting) -> tuple[DataFrame, list[int]]:
    """Send each subscription to its part; return the number at which the ids of each part begin."""
    from pyspark.sql import types as st

    if n_parts == 1:
        return frame.selectExpr("*", f"0 AS {_PART}").repartition(1), [0]
    some = profiles.sampled(frame, _SAMPLE, 0).drop_columns([_ROW])
    tree = clusters.learn(setting.load(some)._form, n_parts, setting.events())
    schema = st.StructType([*frame.schema, st.StructField(_PART, st.IntegerType(), False)])
    assigned = frame.mapInArrow(AssignTask(tree, setting), schema)
    assigned = assigned.repartitionById(n_parts, _PART).persist()
    counts = {row[0]: row[1] for row in assigned.groupBy(_PART).count().collect()}
    firsts = [0]
    for part in range(n_parts - 1):
        firsts.append(firsts[-1] + counts.get(part, 0))
    return assigned, firsts


class AssignTask:
    """What `mapInArrow` runs: says to which part each subscription belongs."""

    def __init__(self, tree: clusters.Tree, setting: Setting) -> None:
        self.tree = tree
        self.setting = setting

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the column of parts."""
        for batch in batches:
            table = pa.table(batch)
            loaded = self.setting.load(table.drop_columns([_ROW]))
            found = clusters.place(self.tree, loaded._form, len(table))
            field = pa.field(_PART, pa.int32(), False)
            yield from table.append_column(field, pa.array(found)).to_batches()


@dataclass(frozen=True)
class _Built:
    """What a task says of its part: the part, None where it has no subscriptions; bad rows."""

    number: int
    n_subscriptions: int
    part: dict[str, Any] | None
    bad: list[list[Any]]
    admitted: float | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> _Built:
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

    def _build(self, table: pa.Table) -> _Built:
        setting = self.setting
        number = table.column(_PART)[0].as_py()
        rows = table.column(_ROW).to_pylist()
        matcher = setting.new_matcher(self.firsts[number])
        events = setting.events()
        if events is not None:
            matcher.profile(events)
        loaded = setting.load(table.drop_columns([_PART, _ROW]))
        report = matcher._load(loaded, "quarantine")
        bad = [[rows[b.row], b.id, b.reason, b.code] for b in report.bad]
        if not report.loaded:
            return _Built(number, 0, None, bad, 0.0)
        matcher.merge()
        summary = Summary.of_table(loaded._form)
        admitted = None if events is None else float(summary.admits(events).mean())
        facts = {"summary": summary.to_json(), "admitted": admitted}
        part = stores.write_part(setting.path, matcher, facts)
        return _Built(number, report.loaded, part, bad, admitted)


def _located(
    frame: DataFrame, doubles: tuple[tuple[int, Any], ...], built: list[_Built]
) -> tuple[BadRow, ...]:
    """Return all bad rows, by the numbers that rows have in the DataFrame from 0 on."""
    found = [
        (row, BadRow(row, id, str(error), error.code))
        for row, id in doubles
        for error in [DuplicateSubscriptionError(id)]
    ]
    found += [
        (row, BadRow(row, id, reason, code)) for b in built for row, id, reason, code in b.bad
    ]
    if not found:
        return ()
    counted = frame.selectExpr(f"shiftright({_ROW}, {_ROW_BITS}) AS p").groupBy("p").count()
    counts = {int(row[0]): int(row[1]) for row in counted.collect()}
    before, total = {}, 0
    for partition in sorted(counts):
        before[partition] = total
        total += counts[partition]
    mask = (1 << _ROW_BITS) - 1
    bad = [b._replace(row=before[row >> _ROW_BITS] + (row & mask)) for row, b in found]
    return tuple(sorted(bad, key=lambda b: b.row))


def _commit(
    setting: Setting, covers: int, built: list[_Built], bad: tuple[BadRow, ...], on_error: str
) -> CompileReport:
    """Commit the parts, or remove them where bad rows are an error."""
    path = setting.path
    written = sorted((b for b in built if b.part is not None), key=lambda b: b.number)
    parts = [b.part for b in written if b.part is not None]
    if bad and on_error == "raise":
        stores.remove_parts(path, parts)
        raise BadRowsError(bad)
    if not parts:
        matcher = setting.new_matcher(0)
        parts = [
            stores.write_part(
                path, matcher, {"admitted": 0.0, "summary": Summary.never().to_json()}
            )
        ]
    try:
        version = stores.commit_parts(path, parts, covers)
    except ChangedStoreError:
        stores.remove_parts(path, parts)
        raise
    shares = [b.admitted for b in written]
    replication = None if None in shares else sum(s for s in shares if s is not None)
    n = sum(b.n_subscriptions for b in written)
    return CompileReport(version, n, len(parts), bad, replication)


def _to_bytes(sample: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as writer:
        writer.write_table(sample)
    found: bytes = sink.getvalue().to_pybytes()
    return found
