"""Validate: the fourth pass separates events of the declared type from all other rows.

Enters: parsed lines, and frames of typed columns. Leaves: the valid events, and in the quarantine
the other rows and the unreadable files, with the reason. Where Spark's types guarantee that all
rows are valid, no column is added and no job is run.

A column that is missing or has another type than declared is *drift*: it is reported, together with
the predicates that can never hold because of it. Rows with a value there that does not fit are
quarantined; a missing column is absent in every event, which is not an error of the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from tocsin.model import EventType, Kind
from tocsin.spark import drift, worker
from tocsin.spark.columns import quoted
from tocsin.spark.pipeline.batch import ARRIVED, ORIGIN, Batch, Frames
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.lines import CODE, MARKS, ORIGINAL, REASON
from tocsin.spark.pipeline.tables import Table
from tocsin.spark.worker import Moment

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TYPES = {
    Kind.INTEGER: {"tinyint", "smallint", "int", "bigint"},
    Kind.FLOAT: {"float", "double", "tinyint", "smallint", "int", "bigint", "decimal"},
    Kind.STRING: {"string", "char", "varchar"},
    Kind.BOOLEAN: {"boolean"},
    Kind.TIMESTAMP: {"timestamp", "timestamp_ntz", "date"},
}
SQL_TYPES = {
    Kind.INTEGER: "bigint",
    Kind.FLOAT: "double",
    Kind.STRING: "string",
    Kind.BOOLEAN: "boolean",
    Kind.TIMESTAMP: "timestamp",
}
"""The types of columns of declared attributes."""
_NO_KIND = {"array", "map", "struct", "binary", "variant", "interval"}
_QUARANTINE = "code string, reason string, original string, origin string"


class Validate:
    """Validates the events of a batch, and writes the others to the quarantine."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.config = config
        self.spark = spark
        self.quarantine = Table(f"{config.output}/quarantine", spark)
        self._issues: tuple[object, tuple[str, ...]] = (None, ())

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with the valid events, and the count of all if it was needed."""
        with batch.stage("validate"):
            marked, some_bad, reports = self._mark(frames)
            if marked is None:
                events, n_events, n_bad, arrived = None, 0, 0, None
            elif not some_bad:
                events, n_events, n_bad, arrived = marked.drop(ARRIVED), 0, 0, None
            else:
                marked = batch.cache(marked)
                n_events, n_bad, arrived = _count(marked)
                events = marked.where(f"{CODE} IS NULL").drop(*MARKS, ARRIVED)
        with batch.stage("quarantine"):
            self._set_aside(batch, frames, marked if n_bad else None)
        if some_bad and n_bad == n_events and self.config.tracking:
            events = None
        if events is not None:
            reports += self._find_issues(events.schema, batch, frames)
        return replace(
            frames,
            events=events,
            n_events=n_events,
            n_quarantined=n_bad + len(frames.unreadable),
            arrived=frames.arrived if arrived is None else arrived,
            drift=tuple(dict.fromkeys((*frames.drift, *reports))),
        )

    def _mark(self, frames: Frames) -> tuple[DataFrame | None, bool, tuple[str, ...]]:
        """Return all rows with their marks, whether any may be bad, and drift in words."""
        parts, some_bad = list(frames.parsed), bool(frames.parsed)
        reports: list[str] = []
        for frame in frames.typed:
            reports += drifted_columns(self.config.event_type, dict(frame.dtypes)).values()
            checked, may_be_bad = mark_invalid(frame, self.config.event_type, self.config.required)
            parts.append(checked)
            some_bad = some_bad or may_be_bad
        if not parts:
            return None, False, tuple(reports)
        return reduce(_union, parts), some_bad, tuple(reports)

    def _set_aside(self, batch: Batch, frames: Frames, marked: DataFrame | None) -> None:
        """Write bad rows and unreadable files to the quarantine."""
        parts = []
        if marked is not None:
            origin = ORIGIN if ORIGIN in marked.columns else "CAST(NULL AS string)"
            columns = {"code": CODE, "reason": REASON, "original": ORIGINAL, "origin": origin}
            bad = marked.where(f"{CODE} IS NOT NULL")
            parts.append(bad.selectExpr(*(f"{of} AS {name}" for name, of in columns.items())))
        if frames.unreadable:
            rows = [("file", reason, None, path) for path, reason in frames.unreadable]
            parts.append(self.spark.createDataFrame(rows, _QUARANTINE))
        if parts:
            self.quarantine.write(reduce(_union, parts), batch)

    def _find_issues(self, schema: StructType, batch: Batch, frames: Frames) -> tuple[str, ...]:
        """Return the schema issues of the subscriptions, which stay while neither changes."""
        assert frames.snapshot is not None
        key = (schema.json(), batch.version)
        if self._issues[0] != key:
            moment = Moment.of(frames.snapshot, batch.now)
            matcher = worker.open_matcher(moment, snapshot=frames.snapshot).matcher
            self._issues = (key, tuple(map(str, drift.find_issues(schema, matcher))))
        return self._issues[1]


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b, allowMissingColumns=True)


def _count(marked: DataFrame) -> tuple[int, int, float | None]:
    """Return the numbers of rows and of bad rows, and the arrival of the oldest one."""
    from pyspark.sql import functions as f

    aggregates = [f.count(f.lit(1)), f.count(CODE)]
    if ARRIVED in marked.columns:
        aggregates.append(f.min(f.unix_millis(ARRIVED)))
    row = marked.agg(*aggregates).collect()[0]
    arrived = row[2] / 1000 if len(row) > 2 and row[2] is not None else None
    return row[0], row[1], arrived


def base_type(type_name: str) -> str:
    """Return a Spark type without its parameters."""
    return type_name.partition("(")[0].partition("<")[0]


def drifted_columns(event_type: EventType | None, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the drift of declared attributes in words; `columns` are Spark's types by name."""
    drifted = {}
    for name, kind in (event_type.attributes if event_type else {}).items():
        column = _column_of(name, columns)
        if column is None:
            drifted[name] = f"column {name!r} is missing: absent in every event"
        elif column == name and base_type(columns[name]) not in _TYPES[kind]:
            drifted[name] = (
                f"column {name!r} is {columns[name]}, but declared {kind.value}: "
                "values that do not fit are quarantined"
            )
    return drifted


def _column_of(name: str, columns: Iterable[str]) -> str | None:
    """Return the column of an attribute: its own, or a struct that its path begins with."""
    known = set(columns)
    end = len(name)
    while end > 0:
        if name[:end] in known:
            return name[:end]
        end = name.rfind(".", 0, end)
    return None


def mark_invalid(
    frame: DataFrame, event_type: EventType | None, required: Iterable[str] = ()
) -> tuple[DataFrame, bool]:
    """Return a frame with its declared columns cast and rows marked, and whether any may be bad."""
    from pyspark.sql import functions as f

    required = tuple(required)
    if event_type is None and not required:
        return frame, False
    types = dict(frame.dtypes)
    reasons: list[tuple[Column, str, Column]] = []
    columns: dict[str, Column] = {name: f.col(quoted(name)) for name in types}
    for name, kind in event_type.attributes.items() if event_type else ():
        if name not in types:
            continue
        column = columns[name].cast(SQL_TYPES[kind])
        if base_type(types[name]) not in _TYPES[kind]:
            column, reason = _cast_strictly(columns[name], kind, name, types[name])
            reasons.append(reason)
        columns[name] = column.alias(name)
    for name in required:
        if name in types:
            missing = f.col(quoted(name)).isNull()
            reasons.append((missing, "missing", f.lit(f"attribute {name!r} is required")))
        elif _column_of(name, types) is None:
            reasons.append((f.lit(True), "missing", f.lit(f"attribute {name!r} is required")))
    if not reasons:
        return frame.select(*columns.values()), False
    return frame.select(*columns.values(), *_marks(reasons, frame)), True


def _cast_strictly(
    column: Column, kind: Kind, name: str, type_name: str
) -> tuple[Column, tuple[Column, str, Column]]:
    """Return a column of a wrong type with the values that fit, and the mark of the others."""
    from pyspark.sql import functions as f

    base = base_type(type_name)
    if kind is Kind.INTEGER and base in ("float", "double", "decimal"):
        value = column.cast("double") if base != "decimal" else column
        whole = (value == f.floor(value)) & (value >= -(2.0**63)) & (value < 2.0**63)
        fits = f.coalesce(whole, f.lit(False))
        text = f"attribute {name!r} is declared integer, not "
        reason = f.concat(f.lit(text), column.cast("string"))
        bad = column.isNotNull() & ~fits
        return f.when(fits, column.cast("bigint")), (bad, "kind", reason)
    code = "unknown-kind" if base in _NO_KIND else "kind"
    reason = f.lit(f"attribute {name!r} is declared {kind.value}, but the column holds {type_name}")
    return f.lit(None).cast(SQL_TYPES[kind]), (column.isNotNull(), code, reason)


def _marks(reasons: list[tuple[Column, str, Column]], frame: DataFrame) -> list[Column]:
    """Return the columns that mark bad rows: the code and the text of the first reason."""
    from pyspark.sql import functions as f

    code = f.coalesce(*(f.when(bad, f.lit(name)) for bad, name, _ in reasons))
    reason = f.coalesce(*(f.when(bad, text) for bad, _, text in reasons))
    row = f.to_json(f.struct(*(f.col(quoted(name)) for name in frame.columns)))
    original = f.when(code.isNotNull(), row)
    return [code.alias(CODE), reason.alias(REASON), original.alias(ORIGINAL)]
