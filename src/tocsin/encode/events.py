"""Events → columns by attribute: anything Arrow, or Python mappings.

Enters: a table, a record batch, a frame that speaks the Arrow C stream (polars, pandas), or a
sequence of mappings. Leaves: an `EventBatch`, which gives for an attribute's dotted path the values
on each line, converted only when asked for. Null and absent are the same; columns that nobody asks
for are never touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import INT64, STRING, kind_of_type, to_array, to_canonical
from tocsin.errors import ArgumentError, EventError
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind, kind_of, to_microseconds
from tocsin.normalize.lines import LINE_OF_KIND, Line


class Part(NamedTuple):
    """The values of one attribute that lie on one line.

    `values` is an int64, float64 or (for strings) Arrow large_string array with an entry for every
    event; `here` marks the entries that count, or is None when all do.
    """

    line: Line
    values: Any
    here: NDArray[np.bool_] | None


class Column(NamedTuple):
    """One attribute of a batch: its values by line, and which events have a value of no line."""

    parts: tuple[Part, ...]
    other: NDArray[np.bool_] | None


_NO_COLUMN = Column((), None)


class EventBatch:
    """A batch of events, by attribute. Not changed once made; safe to read from many threads."""

    def __init__(self, source: _Source, event_type: EventType | None) -> None:
        self._source = source
        self._event_type = event_type
        self._columns: dict[str, Column] = {}
        if event_type is not None:
            for name in event_type.attributes:
                self.column(name)

    def __len__(self) -> int:
        return self._source.n

    def column(self, attribute: str) -> Column:
        """Return the values of an attribute."""
        found = self._columns.get(attribute)
        if found is None:
            declared = self._event_type.kind_of(attribute) if self._event_type else None
            found = self._source.column(attribute, declared)
            self._columns[attribute] = found
        return found

    def events(self) -> Iterator[Mapping[str, object]]:
        """Yield the events as mappings, for the engines that take one at a time."""
        return self._source.events()


class _Source:
    n: int

    def column(self, attribute: str, declared: Kind | None) -> Column:
        raise NotImplementedError

    def events(self) -> Iterator[Mapping[str, object]]:
        raise NotImplementedError


def to_batch(events: object, event_type: EventType | None = None) -> EventBatch:
    """Take events in any of the forms we know."""
    if isinstance(events, EventBatch):
        return events
    if isinstance(events, pa.RecordBatch | pa.Table):
        return EventBatch(_ArrowSource(pa.table(events)), event_type)
    if isinstance(events, Mapping):
        raise ArgumentError("match_batch takes many events; use match for one mapping")
    if hasattr(events, "__arrow_c_stream__") or hasattr(events, "__arrow_c_array__"):
        return EventBatch(_ArrowSource(_from_stream(events)), event_type)
    if hasattr(events, "__dataframe__") and hasattr(events, "columns"):
        return EventBatch(
            _ArrowSource(pa.Table.from_pandas(events, preserve_index=False)), event_type
        )
    if isinstance(events, Sequence) and not isinstance(events, str | bytes):
        return EventBatch(_MappingSource(events), event_type)
    raise ArgumentError(
        f"events must be an Arrow table or batch, a frame, or a sequence of mappings, "
        f"not {type(events).__name__}"
    )


def _from_stream(events: object) -> pa.Table:
    try:
        if type(events).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(events, preserve_index=False)
        return pa.table(events)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise EventError(f"the events cannot be read as a table: {error}") from None


class _ArrowSource(_Source):
    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.n = table.num_rows
        self.names = set(table.column_names)

    def column(self, attribute: str, declared: Kind | None) -> Column:
        found = self._find(attribute)
        if found is None or found.null_count == len(found):
            return _NO_COLUMN
        if declared is not None:
            found = self._check(attribute, found, declared)
        try:
            canonical = to_canonical(found)
        except pa.ArrowInvalid:
            raise EventError("an integer does not fit 64 bits", attribute=attribute) from None
        if canonical is None:
            return Column((), found.is_valid().to_numpy(zero_copy_only=False))
        return _to_column(*canonical)

    def _find(self, attribute: str) -> pa.Array | None:
        """Find the column of a dotted path: the longest column name that it starts with."""
        if attribute in self.names:
            return to_array(self.table.column(attribute))
        end = attribute.rfind(".")
        while end > 0:
            if attribute[:end] in self.names:
                return _descend(to_array(self.table.column(attribute[:end])), attribute[end + 1 :])
            end = attribute.rfind(".", 0, end)
        return None

    def _check(self, attribute: str, column: pa.Array, declared: Kind) -> pa.Array:
        kind = kind_of_type(column.type)
        if kind is declared or (kind is Kind.INTEGER and declared is Kind.FLOAT):
            return column
        if kind is Kind.FLOAT and declared is Kind.INTEGER:
            try:
                return column.cast(INT64)
            except pa.ArrowInvalid:
                floats = to_canonical(column)
                assert floats is not None
                values = pc.fill_null(floats[0], 0.0).to_numpy()
                row = int(np.flatnonzero((values != np.floor(values)) | (abs(values) >= 2**63))[0])
                raise EventError(
                    f"{values[row]} is not a 64-bit integer", attribute=attribute, row=row
                ) from None
        row = int(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))[0])
        raise EventError(
            f"declared {declared.value}, but the column holds {column.type}",
            attribute=attribute,
            row=row,
        )

    def events(self) -> Iterator[Mapping[str, object]]:
        for batch in self.table.to_batches(max_chunksize=4096):
            yield from pa.Table.from_batches([_readable(batch)]).to_pylist()


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give each column of a known kind its canonical type, whose values Python has."""
    columns = []
    for column in batch.columns:
        canonical = to_canonical(column)
        columns.append(column if canonical is None else canonical[0])
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


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


def _to_column(array: pa.Array, kind: Kind) -> Column:
    here = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    line = LINE_OF_KIND[kind]
    if kind is Kind.STRING:
        return Column((Part(line, array, here),), None)
    if kind is Kind.BOOLEAN:
        values = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.int64)
        return Column((Part(line, values, here),), None)
    if kind is Kind.TIMESTAMP:
        array = array.view(pa.int64())
    values = _plain(array)
    if kind is Kind.FLOAT:
        nan = np.isnan(values)
        if nan.any():
            other = nan if here is None else nan & here
            return Column((Part(line, values, ~nan if here is None else here & ~nan),), other)
    return Column((Part(line, values, here),), None)


def _plain(array: pa.Array) -> NDArray[Any]:
    """Return the values as they lie in memory, whatever they are at nulls."""
    dtype = np.float64 if pa.types.is_floating(array.type) else np.int64
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    return values


class _MappingSource(_Source):
    def __init__(self, events: Sequence[object]) -> None:
        for row, event in enumerate(events):
            if not isinstance(event, Mapping):
                raise EventError(f"an event must be a mapping, not {event!r}", row=row)
        self.mappings: Sequence[Mapping[str, object]] = events  # type: ignore[assignment]
        self.n = len(events)

    def column(self, attribute: str, declared: Kind | None) -> Column:
        values: dict[Line, list[tuple[int, Any, Kind]]] = {}
        others: list[int] = []
        for row, event in enumerate(self.mappings):
            value = lookup(event, attribute)
            if value is None:
                continue
            value = check_value(value, attribute, declared, row)
            kind = kind_of(value)
            if kind is None or (kind is Kind.FLOAT and math.isnan(value)):  # type: ignore[arg-type]
                others.append(row)
            else:
                values.setdefault(LINE_OF_KIND[kind], []).append((row, value, kind))
        parts: list[Part] = []
        for line, found in values.items():
            parts.extend(self._parts(line, found))
        return Column(tuple(parts), self._mask(others) if others else None)

    def _parts(self, line: Line, found: list[tuple[int, Any, Kind]]) -> Iterator[Part]:
        if line is Line.STRING:
            strings: list[str | None] = [None] * self.n
            for row, value, _ in found:
                strings[row] = str(value)
            yield Part(line, pa.array(strings, STRING), self._mask([f[0] for f in found]))
            return
        for is_float in (False, True):
            rows = [f for f in found if (f[2] is Kind.FLOAT) is is_float]
            if rows:
                values = np.zeros(self.n, np.float64 if is_float else np.int64)
                for row, value, kind in rows:
                    values[row] = to_microseconds(value) if kind is Kind.TIMESTAMP else value
                yield Part(line, values, self._mask([f[0] for f in rows]))

    def _mask(self, rows: list[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self.n, np.bool_)
        mask[rows] = True
        return mask

    def events(self) -> Iterator[Mapping[str, object]]:
        return iter(self.mappings)


def lookup(event: Mapping[str, object], attribute: str) -> object:
    """Return the value at a dotted path of an event, or None."""
    value = event.get(attribute)
    if value is not None or "." not in attribute:
        return value
    end = attribute.rfind(".")
    while end > 0:
        inner = event.get(attribute[:end])
        if isinstance(inner, Mapping):
            return lookup(inner, attribute[end + 1 :])
        end = attribute.rfind(".", 0, end)
    return None


def read_value(event: Mapping[str, object], attribute: str) -> object:
    """Return the value at a dotted path as a plain Python value, or refuse it."""
    value = lookup(event, attribute)
    return None if value is None else check_value(value, attribute, None)


def check_event(event: object, event_type: EventType | None) -> Mapping[str, object]:
    """Refuse an event that is no mapping, or whose values do not fit what is declared."""
    if not isinstance(event, Mapping):
        raise EventError(f"an event must be a mapping, not {event!r}")
    if event_type is not None:
        for attribute, kind in event_type.attributes.items():
            value = lookup(event, attribute)
            if value is not None:
                check_value(value, attribute, kind)
    return event


def check_value(
    value: object, attribute: str, declared: Kind | None, row: int | None = None
) -> object:
    """Return an event's value as a plain Python value, or refuse it."""
    if hasattr(value, "dtype") and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise EventError("an integer does not fit 64 bits", attribute=attribute, row=row)
    if isinstance(value, str) and not _is_unicode(value):
        raise EventError("a string is not valid Unicode", attribute=attribute, row=row)
    if declared is None:
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


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
