"""Events → columns by attribute: anything Arrow, or Python mappings.

Enters: a table, a record batch, a frame that speaks the Arrow C stream (polars, pandas), or a
sequence of mappings. Leaves: an `EventBatch`, which gives for an attribute's dotted path the values
on each line, converted only when asked for. Null and absent are the same; columns that no
subscription mentions are never read.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import (
    FLOAT64,
    INT64,
    STRING,
    decimal_numbers,
    decoded,
    kind_of_type,
    to_array,
    to_canonical,
    to_plain_table,
)
from tocsin.encode.columns import NO_COLUMN, Column, Part, decimal_column, to_column
from tocsin.encode.plain import Plain, plain_numbers
from tocsin.errors import ArgumentError, EventError
from tocsin.model import (
    INT64_MAX,
    INT64_MIN,
    EventType,
    Kind,
    is_unicode,
    kind_of,
    to_microseconds,
    to_plain,
)
from tocsin.normalize.domains import DOMAIN_OF_KIND, Domain

MOST_EVENTS = 2**31 - 1
"""The events of a batch are numbered in 31 bits."""


class EventBatch:
    """A batch of events, by attribute. Not changed once made; safe to read from many threads."""

    def __init__(self, source: _Source, event_type: EventType | None) -> None:
        if source.n > MOST_EVENTS:
            raise EventError(f"a batch has at most {MOST_EVENTS:,} events: take fewer at a time")
        self._source = source
        self._event_type = event_type
        self._columns: dict[str, Column] = {}
        self._plain: dict[str, Plain | None] = {}
        if event_type is not None:
            for name in event_type.attributes:
                if self.plain(name) is None:
                    self.column(name)

    def __len__(self) -> int:
        return self._source.n

    def column(self, attribute: str) -> Column:
        """Return the values of an attribute."""
        column = self._columns.get(attribute)
        if column is None:
            declared = self._event_type.kind_of(attribute) if self._event_type else None
            column = self._source.column(attribute, declared)
            self._columns[attribute] = column
        return column

    def plain(self, attribute: str) -> Plain | None:
        """Return the values of an attribute as they lie in memory, where they are such numbers."""
        if attribute not in self._plain:
            declared = self._event_type.kind_of(attribute) if self._event_type else None
            self._plain[attribute] = self._source.plain(attribute, declared)
        return self._plain[attribute]

    def events(self) -> Iterator[Mapping[str, object]]:
        """Yield the events as mappings, for the engines that take one at a time."""
        return self._source.events()

    def sample(self, most: int, seed: int = 0) -> EventBatch:
        """Return some of the events, chosen evenly at random."""
        if len(self) <= most:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False))
        return EventBatch(self._source.take(rows), self._event_type)

    def readable_sample(self, most: int, attributes: Iterable[str]) -> EventBatch | None:
        """Return a sample to keep, or None where there are no events.

        Raises EventError where a value of one of the attributes cannot be encoded. Bad values of
        other attributes become absent: the sample is read again when a condition mentions them, and
        that must not fail because of a sample.
        """
        if not len(self):
            return None
        sample = self.sample(most)
        for attribute in attributes:
            sample.column(attribute)
        return _Sample(sample._source, sample._event_type)

    def to_table(self) -> pa.Table | None:
        """Return the events as a table, or None where they fit none."""
        return self._source.to_table()


class _Sample(EventBatch):
    """Events in which what cannot be encoded is absent."""

    def column(self, attribute: str) -> Column:
        """Return the values of an attribute, none where one of them cannot be encoded."""
        try:
            return super().column(attribute)
        except EventError:
            return NO_COLUMN


class _Source(Protocol):
    """Where the events of a batch are: in a table, or in mappings."""

    n: int

    def column(self, attribute: str, declared: Kind | None) -> Column: ...

    def plain(self, attribute: str, declared: Kind | None) -> Plain | None: ...

    def events(self) -> Iterator[Mapping[str, object]]: ...

    def take(self, rows: NDArray[np.int64]) -> _Source: ...

    def to_table(self) -> pa.Table | None: ...


def to_batch(events: object, event_type: EventType | None = None) -> EventBatch:
    """Take events in any of the forms we know."""
    if isinstance(events, EventBatch):
        return events
    if isinstance(events, pa.RecordBatch):
        events = pa.Table.from_batches([events])
    if isinstance(events, pa.Table):
        return EventBatch(_ArrowSource(events), event_type)
    if isinstance(events, Mapping):
        raise ArgumentError("match_batch takes many events; use match for one mapping")
    if any(hasattr(events, f"__{name}__") for name in _FRAMES):
        return EventBatch(_ArrowSource(_from_frame(events)), event_type)
    if isinstance(events, Sequence) and not isinstance(events, str | bytes):
        return EventBatch(_MappingSource(events), event_type)
    raise ArgumentError(
        f"events must be an Arrow table or batch, a frame, or a sequence of mappings, "
        f"not {type(events).__name__}"
    )


_FRAMES = ("arrow_c_stream", "arrow_c_array", "dataframe")


def _from_frame(events: object) -> pa.Table:
    try:
        if type(events).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(events, preserve_index=False)
        return pa.table(events)
    except (TypeError, ValueError, NotImplementedError) as error:  # Arrow's errors are these too
        raise EventError(f"the events cannot be read as a table: {error}") from None


class _ArrowSource:
    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.n = table.num_rows
        self.names = {name: at for at, name in enumerate(table.column_names)}
        self._all = table.columns

    def plain(self, attribute: str, declared: Kind | None) -> Plain | None:
        at = self.names.get(attribute)
        if at is None or len(self.names) < len(self._all):
            return None  # no such column, or several of one name
        return plain_numbers(self._all[at], declared)

    def column(self, attribute: str, declared: Kind | None) -> Column:
        column = self._find(attribute)
        if column is None or column.null_count == len(column):
            return NO_COLUMN
        if declared is not None:
            column = _check_column(attribute, column, declared)
        values = decoded(column) if kind_of_type(column.type) is Kind.FLOAT else column
        if pa.types.is_decimal(values.type):
            return decimal_column(values)
        try:
            canonical = to_canonical(column)
        except pa.ArrowInvalid:
            what = "an integer" if kind_of_type(column.type) is Kind.INTEGER else "a timestamp"
            raise EventError(
                f"{what} does not fit 64 bits", attribute=attribute, row=_first_too_large(column)
            ) from None
        if canonical is None:
            return Column((), column.is_valid().to_numpy(zero_copy_only=False))
        return to_column(*canonical)

    def take(self, rows: NDArray[np.int64]) -> _Source:
        places = pa.array(rows)
        columns = [to_array(column).take(places) for column in self._all]
        return _ArrowSource(pa.table(columns, names=self.table.column_names))

    def to_table(self) -> pa.Table:
        return to_plain_table(self.table)

    def _find(self, attribute: str) -> pa.Array | None:
        """Find the column of a dotted path: the longest column name that it starts with."""
        end = len(attribute)
        while end > 0:
            if attribute[:end] in self.names:
                column = self.column_named(attribute[:end])
                return column if end == len(attribute) else _descend(column, attribute[end + 1 :])
            end = attribute.rfind(".", 0, end)
        return None

    def column_named(self, name: str) -> pa.Array:
        """Return a whole column of the table."""
        try:
            return to_array(self.table.column(name))
        except KeyError:
            raise EventError("several columns have this name", attribute=name) from None

    def events(self) -> Iterator[Mapping[str, object]]:
        values: dict[str, list[object]] = {}
        return (_Row(self, values, row) for row in range(self.n))


class _Row(Mapping[str, object]):
    """One row of a table; a column is turned into Python values when it is first asked for."""

    __slots__ = ("_row", "_source", "_values")

    def __init__(self, source: _ArrowSource, values: dict[str, list[object]], row: int) -> None:
        self._source = source
        self._values = values
        self._row = row

    def __getitem__(self, name: str) -> object:
        if name not in self._values:
            if name not in self._source.names:
                raise KeyError(name)
            self._values[name] = _to_python(name, self._source.column_named(name))
        return self._values[name][self._row]

    def __contains__(self, name: object) -> bool:
        return name in self._source.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.names)

    def __len__(self) -> int:
        return len(self._source.names)


_OF_NO_KIND = ()
"""Stands for a present value of a kind that we do not know."""


def _to_python(name: str, column: pa.Array) -> list[object]:
    """Return a column's values as Python has them; a struct's as mappings."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    here = column.is_valid().to_pylist()
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        arrays = zip(names, column.flatten(), strict=True)
        fields = [_to_python(f"{name}.{inner}", array) for inner, array in arrays]
        rows = zip(*fields, strict=True) if fields else [()] * len(column)
        return [
            dict(zip(names, row, strict=True)) if is_here else None
            for row, is_here in zip(rows, here, strict=True)
        ]
    if kind_of_type(column.type) is None:
        return [_OF_NO_KIND if is_here else None for is_here in here]
    values = decoded(column)
    if pa.types.is_decimal(values.type):
        return cast("list[object]", decimal_numbers(values).to_list(values))
    try:
        canonical = to_canonical(column)
        return (column if canonical is None else canonical[0]).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        if kind_of_type(column.type) is Kind.INTEGER:  # refused once somebody asks for it
            return column.to_pylist()  # type: ignore[no-any-return]
        raise EventError("a timestamp does not fit 64 bits", attribute=name) from None
    except OverflowError:
        raise EventError("a timestamp beyond the years 1 to 9999", attribute=name) from None


def _check_column(attribute: str, column: pa.Array, declared: Kind) -> pa.Array:
    """Return a column of the declared kind, or refuse it."""
    kind = kind_of_type(column.type)
    if kind is declared or (kind is Kind.INTEGER and declared is Kind.FLOAT):
        return column
    if kind is Kind.FLOAT and declared is Kind.INTEGER:
        try:
            return column.cast(INT64)
        except pa.ArrowInvalid:
            row, value = _first_no_integer(column)
            raise EventError(
                f"{value} is not a 64-bit integer", attribute=attribute, row=row
            ) from None
    raise EventError(
        f"declared {declared.value}, but the column holds {column.type}",
        attribute=attribute,
        row=int(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))[0]),
    )


def _first_no_integer(column: pa.Array) -> tuple[int | None, object]:
    for row, value in enumerate(column.to_pylist()):
        if value is not None and not (
            math.isfinite(value) and value == int(value) and INT64_MIN <= value <= INT64_MAX
        ):
            return row, value
    return None, "a value"


def _first_too_large(column: pa.Array) -> int:
    """Return the first row whose value the canonical type cannot hold."""
    low, high = 0, len(column)  # in column[:high] there is one, in column[:low] there is none
    while high - low > 1:
        middle = (low + high) // 2
        try:
            to_canonical(column.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _descend(column: pa.Array, path: str) -> pa.Array | None:
    """Follow a path into a struct; a null struct has null fields."""
    if pa.types.is_null(column.type):
        return column
    if not pa.types.is_struct(column.type):
        return None
    names = [column.type.field(i).name for i in range(column.type.num_fields)]
    end = len(path)
    while end > 0:
        if path[:end] in names:
            field = pc.struct_field(column, [path[:end]])
            return field if end == len(path) else _descend(field, path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


_USUAL: dict[type, tuple[pa.DataType, Kind]] = {
    int: (INT64, Kind.INTEGER),
    float: (FLOAT64, Kind.FLOAT),
    str: (STRING, Kind.STRING),
    bool: (pa.bool_(), Kind.BOOLEAN),
    dt.datetime: (pa.timestamp("us", "UTC"), Kind.TIMESTAMP),
}


class _MappingSource:
    def __init__(self, events: Sequence[object]) -> None:
        for row, event in enumerate(events):
            if event.__class__ is not dict and not isinstance(event, Mapping):
                raise EventError(f"an event must be a mapping, not {event!r}", row=row)
        self.mappings: Sequence[Mapping[str, object]] = events  # type: ignore[assignment]
        self.n = len(events)
        self._are_dicts = set(map(type, events)) <= {dict}
        self._alike: dict[str, tuple[pa.Array, Kind] | None] = {}

    def plain(self, attribute: str, declared: Kind | None) -> Plain | None:
        values = self._of_one_type(attribute)
        return None if values is None else plain_numbers(pa.chunked_array([values[0]]), declared)

    def column(self, attribute: str, declared: Kind | None) -> Column:
        column = self._of_one_type(attribute)
        if column is not None and declared in (None, column[1]):
            return to_column(*column)
        return self._column_of_many(attribute, declared)

    def _of_one_type(self, attribute: str) -> tuple[pa.Array, Kind] | None:
        """Return the values of an attribute where all are of one type that Arrow takes as it is.

        Most are; other attributes, and bad values, are processed value by value.
        """
        if attribute not in self._alike:
            values: list[Any]
            if self._are_dicts and "." not in attribute:
                values = [event.get(attribute) for event in self.mappings]
            else:
                values = [lookup(event, attribute) for event in self.mappings]
            types = set(map(type, values)) - {type(None)}
            usual = _USUAL.get(types.pop()) if len(types) == 1 else None
            if types == {int, float}:  # an integer that no float equals is refused by Arrow
                usual = _USUAL[float]
            try:
                typed = None if usual is None else (pa.array(values, usual[0]), usual[1])
            except (pa.ArrowException, ValueError, OverflowError):
                typed = None
            self._alike[attribute] = typed
        return self._alike[attribute]

    def _column_of_many(self, attribute: str, declared: Kind | None) -> Column:
        values: dict[Domain, list[tuple[int, Any, Kind]]] = {}
        others: list[int] = []
        for row, event in enumerate(self.mappings):
            value = lookup(event, attribute)
            if value is None:
                continue
            value = check_value(value, attribute, declared, row)
            if value is None:
                continue
            kind = kind_of(value)
            if kind is None or (kind is Kind.FLOAT and math.isnan(value)):  # type: ignore[arg-type]
                others.append(row)
            else:
                values.setdefault(DOMAIN_OF_KIND[kind], []).append((row, value, kind))
        parts: list[Part] = []
        for domain, entries in values.items():
            parts.extend(self._parts(domain, entries))
        return Column(tuple(parts), self._mask(others) if others else None)

    def take(self, rows: NDArray[np.int64]) -> _Source:
        return _MappingSource([self.mappings[row] for row in rows.tolist()])

    def to_table(self) -> pa.Table | None:
        names = dict.fromkeys(name for event in self.mappings for name in event)
        try:
            return pa.table({n: pa.array([e.get(n) for e in self.mappings]) for n in names})
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None

    def _parts(self, domain: Domain, entries: list[tuple[int, Any, Kind]]) -> Iterator[Part]:
        if domain is Domain.STRING:
            strings: list[str | None] = [None] * self.n
            for row, value, _ in entries:
                strings[row] = str(value)
            yield Part(domain, pa.array(strings, STRING), self._mask([f[0] for f in entries]))
            return
        for is_float in (False, True):
            rows = [f for f in entries if (f[2] is Kind.FLOAT) is is_float]
            if rows:
                values = np.zeros(self.n, np.float64 if is_float else np.int64)
                for row, value, kind in rows:
                    values[row] = to_microseconds(value) if kind is Kind.TIMESTAMP else value
                yield Part(domain, values, self._mask([f[0] for f in rows]))

    def _mask(self, rows: list[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self.n, np.bool_)
        mask[rows] = True
        return mask

    def events(self) -> Iterator[Mapping[str, object]]:
        return iter(self.mappings)


def lookup(event: Mapping[str, object], attribute: str) -> object:
    """Return the value at a dotted path of an event, or None; the longest name counts."""
    end = len(attribute)
    while end > 0:
        if attribute[:end] in event:
            value = event[attribute[:end]]
            if end == len(attribute):
                return value
            return lookup(value, attribute[end + 1 :]) if isinstance(value, Mapping) else None
        end = attribute.rfind(".", 0, end)
    return None


def read_value(event: Mapping[str, object], attribute: str) -> object:
    """Return the value at a dotted path as a plain Python value, or refuse it."""
    value = lookup(event, attribute)
    return None if value is None else check_value(value, attribute, None)


_SMALL = 1 << 62


def check_event(event: object, event_type: EventType | None) -> Mapping[str, object]:
    """Refuse an event that is no mapping, or whose values do not have the declared kinds."""
    if event.__class__ is not dict and not isinstance(event, Mapping):
        raise EventError(f"an event must be a mapping, not {event!r}")
    values: Any = event
    if event_type is not None:
        get, get_path = values.get, cast("Any", lookup)
        for attribute, kind, usual, is_path in event_type.listed:
            value = get_path(values, attribute) if is_path else get(attribute)
            if value.__class__ is usual and (usual is float or -_SMALL < value < _SMALL):
                continue  # the usual case
            if value is not None:
                check_value(value, attribute, kind)
    return values  # type: ignore[no-any-return]


def check_value(
    value: object, attribute: str, declared: Kind | None, row: int | None = None
) -> object:
    """Return an event's value as a plain Python value (None where it is null), or refuse it."""
    value = to_plain(value)
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise EventError("an integer does not fit 64 bits", attribute=attribute, row=row)
    if isinstance(value, str) and not is_unicode(value):
        raise EventError("a string is not valid Unicode", attribute=attribute, row=row)
    if declared is None or value is None:
        return value
    kind = kind_of(value)
    if kind is declared or (kind is Kind.INTEGER and declared is Kind.FLOAT):
        return value
    if kind is Kind.FLOAT and declared is Kind.INTEGER:
        assert isinstance(value, float)
        if value.is_integer() and INT64_MIN <= value <= INT64_MAX:
            return int(value)
        raise EventError(f"{value} is not a 64-bit integer", attribute=attribute, row=row)
    raise EventError(
        f"declared {declared.value}, but the value is {value!r}", attribute=attribute, row=row
    )
