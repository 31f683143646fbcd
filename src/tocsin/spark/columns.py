"""The columns of a DataFrame that hold attributes, and the kinds of their values.

Enters: the schema of a DataFrame, the attributes that subscriptions mention, an event type. Leaves:
the location of each attribute: the longest column name that its dotted path starts with, and
inside structs the same again, as `encode.events` does in Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import types as st

from tocsin.errors import ArgumentError
from tocsin.model import EventType, Kind

_KINDS: dict[type[st.DataType], Kind] = {
    st.ByteType: Kind.INTEGER,
    st.ShortType: Kind.INTEGER,
    st.IntegerType: Kind.INTEGER,
    st.LongType: Kind.INTEGER,
    st.FloatType: Kind.FLOAT,
    st.DoubleType: Kind.FLOAT,
    st.DecimalType: Kind.FLOAT,
    st.StringType: Kind.STRING,
    st.CharType: Kind.STRING,
    st.VarcharType: Kind.STRING,
    st.BooleanType: Kind.BOOLEAN,
    st.TimestampType: Kind.TIMESTAMP,
    st.TimestampNTZType: Kind.TIMESTAMP,
    st.DateType: Kind.TIMESTAMP,
}


class Location(NamedTuple):
    """The column that an attribute is in, perhaps within a struct, and its type."""

    column: str
    type: st.DataType

    @property
    def kind(self) -> Kind | None:
        """The kind of the values; None for a type without one."""
        return _KINDS.get(type(self.type))

    @property
    def is_list(self) -> bool:
        """Whether the values are lists."""
        return isinstance(self.type, st.ArrayType)

    @property
    def kind_of_elements(self) -> Kind | None:
        """The kind of the elements of lists; None for a type without one."""
        of = self.type
        return _KINDS.get(type(of.elementType)) if isinstance(of, st.ArrayType) else None


def find(schema: st.StructType, attribute: str) -> Location | None:
    """Return the location of an attribute in a schema, or None; through a list, that of a list."""
    first = _descend(schema, attribute)
    if first is None:
        return None
    column, rest = first
    inner = schema[column].dataType
    is_within = False
    while rest:
        while isinstance(inner, st.ArrayType):
            inner, is_within = inner.elementType, True
        if isinstance(inner, st.NullType):
            break
        if not isinstance(inner, st.StructType):
            return None
        step = _descend(inner, rest)
        if step is None:
            return None
        name, rest = step
        inner = inner[name].dataType
    if is_within and not isinstance(inner, st.ArrayType):
        inner = st.ArrayType(inner)
    return Location(column, inner)


def _descend(schema: st.StructType, path: str) -> tuple[str, str] | None:
    """Return the longest name that a dotted path starts with, and the rest of the path."""
    names = set(schema.fieldNames())
    end = len(path)
    while end > 0:
        if path[:end] in names:
            return path[:end], path[end + 1 :]
        end = path.rfind(".", 0, end)
    return None


def check_names(schema: st.StructType) -> None:
    """Raise ArgumentError if two columns have the same name."""
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(f"the events have several columns {', '.join(twice)}; rename some")


def kept_names(
    schema: st.StructType, keep: Sequence[str] | None, added: Iterable[str]
) -> list[str]:
    """Return the columns to keep, by default all; `added` are columns that the result adds."""
    names = schema.fieldNames()
    kept = list(names) if keep is None else list(dict.fromkeys(keep))
    unknown = [name for name in kept if name not in names]
    if unknown:
        raise ArgumentError(
            f"keep names {', '.join(map(repr, unknown))}; the events have {', '.join(names)}"
        )
    taken = [name for name in added if name in kept]
    if taken:
        raise ArgumentError(
            f"the events have a column {taken[0]!r}, which is a column of the result: "
            "rename it, or leave it out of keep"
        )
    return kept


def is_readable(kind: st.DataType) -> bool:
    """Whether a column of a type may carry attributes."""
    return type(kind) in _KINDS or isinstance(kind, st.StructType | st.ArrayType)


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def misfits(schema: st.StructType, event_type: EventType | None) -> dict[str, Location]:
    """Return the declared attributes whose columns hold another kind than is declared."""
    locations = {}
    for attribute, declared in event_type.attributes.items() if event_type else ():
        location = find(schema, attribute)
        if location is None or isinstance(location.type, st.NullType):
            continue
        numbers = {Kind.INTEGER, Kind.FLOAT}
        if location.kind is not declared and not {location.kind, declared} <= numbers:
            locations[attribute] = location
    return locations
