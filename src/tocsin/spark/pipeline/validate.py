"""Frames of typed columns → events of the declared type, and those that are none.

Enters: a frame as Spark read it, and the event type. Leaves: a frame whose declared columns have
the types of their kinds, and with it three columns (`lines.CODE` and its neighbours) wherever some
event may not fit. Where Spark's types guarantee that all do, nothing is added and nothing computed.

A column that is missing or of another type is *drift*: reported, with the subscriptions that it
silences. Rows that have a value there which does not fit are set aside; a missing column is absent
in every event, which is no fault of the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tocsin.model import EventType, Kind
from tocsin.spark.pipeline.lines import CODE, ORIGINAL, REASON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TYPES = {
    Kind.INTEGER: {"tinyint", "smallint", "int", "bigint"},
    Kind.FLOAT: {"float", "double", "tinyint", "smallint", "int", "bigint", "decimal"},
    Kind.STRING: {"string", "char", "varchar"},
    Kind.BOOLEAN: {"boolean"},
    Kind.TIMESTAMP: {"timestamp", "timestamp_ntz", "date"},
}
_SQL = {
    Kind.INTEGER: "bigint",
    Kind.FLOAT: "double",
    Kind.STRING: "string",
    Kind.BOOLEAN: "boolean",
    Kind.TIMESTAMP: "timestamp",
}
_NO_KIND = {"array", "map", "struct", "binary", "variant", "interval"}


def quoted(name: str) -> str:
    """Return a column's name as Spark's SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def base_type(type_name: str) -> str:
    """Return a Spark type without its parameters."""
    return type_name.partition("(")[0].partition("<")[0]


def drift(event_type: EventType | None, columns: Mapping[str, str]) -> dict[str, str]:
    """Return what is not as declared, by attribute; `columns` are the types that Spark found."""
    found = {}
    for name, kind in (event_type.attributes if event_type else {}).items():
        at = _find(name, columns)
        if at is None:
            found[name] = f"column {name!r} is missing: absent in every event"
        elif at == name and base_type(columns[name]) not in _TYPES[kind]:
            found[name] = (
                f"column {name!r} is {columns[name]}, but declared {kind.value}: "
                "values that do not fit are set aside"
            )
    return found


def _find(name: str, columns: Iterable[str]) -> str | None:
    """Return the column in which an attribute is found: itself, or a struct that it leads into."""
    known = set(columns)
    end = len(name)
    while end > 0:
        if name[:end] in known:
            return name[:end]
        end = name.rfind(".", 0, end)
    return None


def validated(
    frame: DataFrame, event_type: EventType | None, required: Iterable[str] = ()
) -> tuple[DataFrame, bool]:
    """Return a frame with its declared columns in order, and whether some rows may be bad."""
    from pyspark.sql import functions as f

    required = tuple(required)
    if event_type is None and not required:
        return frame, False
    columns = dict(frame.dtypes)
    reasons: list[tuple[Column, str, Column]] = []
    chosen: dict[str, Column] = {name: f.col(quoted(name)) for name in columns}
    for name, kind in event_type.attributes.items() if event_type else ():
        if name not in columns:
            continue
        here = f.col(quoted(name))
        found = base_type(columns[name])
        wanted = f.col(quoted(name)).cast(_SQL[kind])
        if found not in _TYPES[kind]:
            wanted, reason = _strict(here, kind, name, columns[name])
            reasons.append(reason)
        chosen[name] = wanted.alias(name)
    for name in required:
        if name in columns:
            missing = f.col(quoted(name)).isNull()
            reasons.append((missing, "missing", f.lit(f"attribute {name!r} is required")))
        elif _find(name, columns) is None:
            reasons.append((f.lit(True), "missing", f.lit(f"attribute {name!r} is required")))
    if not reasons:
        return frame.select(*chosen.values()), False
    return frame.select(*chosen.values(), *_marks(reasons, frame)), True


def _strict(
    here: Column, kind: Kind, name: str, found: str
) -> tuple[Column, tuple[Column, str, Column]]:
    """Return a column of a wrong type, as far as its values fit, and when they do not."""
    from pyspark.sql import functions as f

    if kind is Kind.INTEGER and base_type(found) in ("float", "double", "decimal"):
        value = here.cast("double") if base_type(found) != "decimal" else here
        whole = (value == f.floor(value)) & (value >= -(2.0**63)) & (value < 2.0**63)
        fits = f.coalesce(whole, f.lit(False))
        said = f.concat(f.lit(f"attribute {name!r} is declared integer, not "), here.cast("string"))
        bad = here.isNotNull() & ~fits
        return f.when(fits, here.cast("bigint")), (bad, "kind", said)
    code = "unknown-kind" if base_type(found) in _NO_KIND else "kind"
    said = f.lit(f"attribute {name!r} is declared {kind.value}, but the column holds {found}")
    return f.lit(None).cast(_SQL[kind]), (here.isNotNull(), code, said)


def _marks(reasons: list[tuple[Column, str, Column]], frame: DataFrame) -> list[Column]:
    """Return the columns that say which rows are no events, and why: the first reason counts."""
    from pyspark.sql import functions as f

    code = f.coalesce(*(f.when(bad, f.lit(name)) for bad, name, _ in reasons))
    reason = f.coalesce(*(f.when(bad, said) for bad, _, said in reasons))
    row = f.to_json(f.struct(*(f.col(quoted(name)) for name in frame.columns)))
    original = f.when(code.isNotNull(), row)
    return [code.alias(CODE), reason.alias(REASON), original.alias(ORIGINAL)]
