"""Events → columns by attribute: anything Arrow, or Python mappings.

Enters: a table, a record batch, a frame that speaks the Arrow C stream (polars, pandas), or a
sequence of mappings. Leaves: an `EventBatch`, which gives for an attribute's dotted path the values
on each line, converted only when asked for. Null and absent are the same; columns that no
subscription mentions are never read.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import (
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    decimal_numbers,
    decoded,
    kind_of_type,
    to_array,
    to_canonical,
    to_plain_table,
)
from tocsin.encode import vectors
from tocsin.encode.choices import read_each
from tocsin.encode.columns import (
    NO_COLUMN,
    Column,
    Part,
    column_of_values,
    decimal_column,
    take_column,
    to_column,
)
from tocsin.encode.computed import ComputedColumns
from tocsin.encode.lists import (
    Elements,
    arrow_elements,
    flattened,
    is_list,
    python_elements,
    with_absent,
)
from tocsin.encode.moments import event_with_moments, holds, read_moments, with_moments
from tocsin.encode.plain import Plain, plain_numbers, plain_vector
from tocsin.encode.strings import Strings, distinct_strings
from tocsin.encode.vectors import Vector
from tocsin.errors import ArgumentError, EventError
from tocsin.language.computed import moments_of
from tocsin.language.evaluate import evaluate_term, joined_lists, read_list
from tocsin.language.names import (
    HAS,
    ElementName,
    elements_of,
    is_computed,
    is_each,
    path_of,
)
from tocsin.language.term_names import term_of
from tocsin.language.terms import Attribute
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import (
    INT64_MAX,
    INT64_MIN,
    EventType,
    Kind,
    is_unicode,
    kind_of,
    to_plain,
)
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import Domain

MOST_EVENTS = 2**31 - 1
"""The events of a batch are numbered in 31 bits."""


class EventBatch:
    """A batch of events, by attribute. Not changed once made; safe to read from many threads."""

    def __init__(
        self,
        source: _Source,
        event_type: EventType | None,
        moments: Collection[str] = (),
        known_moments: Collection[str] | None = None,
    ) -> None:
        """`moments` are attributes, not declared, whose ISO 8601 texts count as timestamps.

        Of `known_moments`, which are these and perhaps more, a computed value reads those as
        timestamps that it uses as such, and others as texts.
        """
        if source.n > MOST_EVENTS:
            raise EventError(f"a batch has at most {MOST_EVENTS:,} events: take fewer at a time")
        self._source = source
        self._event_type = event_type
        self._moments = moments
        self._known_moments = frozenset(moments if known_moments is None else known_moments)
        self._readings: dict[frozenset[str], EventBatch] = {}
        self._columns: dict[str, Column] = {}
        self._plain: dict[str, Plain | None] = {}
        self._strings: dict[tuple[str, bool], Strings] = {}
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
            if is_computed(attribute):
                column = vectors.to_column(self._computed_vector(attribute))
            elif is_each(attribute):
                column = self._source.each(attribute)
                declared = (
                    self._event_type.kind_of(path_of(attribute)) if self._event_type else None
                )
                if declared is Kind.TIMESTAMP:
                    column = with_moments(column)
            else:
                declared = self._event_type.kind_of(attribute) if self._event_type else None
                column = self._source.column(attribute, declared)
                if attribute in self._moments:
                    column = with_moments(column)
            self._columns[attribute] = column
        return column

    def plain(self, attribute: str) -> Plain | None:
        """Return the values of an attribute as they lie in memory, where they are such numbers."""
        if attribute not in self._plain:
            if is_computed(attribute):
                vector = self._computed_vector(attribute)
                self._plain[attribute] = plain_vector(vector.kind, vector.values, vector.here)
                return self._plain[attribute]
            if is_each(attribute):
                self._plain[attribute] = self._source.plain_each(attribute)
                return self._plain[attribute]
            declared = self._event_type.kind_of(attribute) if self._event_type else None
            self._plain[attribute] = self._source.plain(attribute, declared)
        return self._plain[attribute]

    @cached_property
    def computed(self) -> ComputedColumns:
        """The computed values of the batch, in which texts are texts."""
        return ComputedColumns(self._read_for(frozenset()))

    def _computed_vector(self, name: str) -> Vector:
        moments = self._known_moments.intersection(moments_of(name))
        return self._read_for(moments).computed_here.vector(term_of(name))

    def _read_for(self, moments: frozenset[str]) -> EventBatch:
        """Return the batch in which the texts of just some attributes count as timestamps."""
        if moments == frozenset(self._moments):
            return self
        if moments not in self._readings:
            self._readings[moments] = EventBatch(self._source, self._event_type, moments)
        return self._readings[moments]

    @cached_property
    def computed_here(self) -> ComputedColumns:
        """The computed values of what this batch has, texts that are timestamps among it."""
        return ComputedColumns(self) if self._moments else self.computed

    def vector(self, attribute: str) -> Vector:
        """Return the values of an attribute as a vector."""
        return self.computed.vector(Attribute(attribute))

    def values(self, attribute: str) -> list[object]:
        """Return the values of an attribute as plain Python values."""
        return [read_value(event, attribute) for event in self.events()]

    def readers(self) -> Iterator[Callable[[str], object]]:
        """Yield for each event a function that reads an attribute of it."""
        return (partial(read_value, event) for event in self.events())

    def list(self, attribute: str) -> Elements | None:
        """Return the elements of a list at a path, or None where no event has one."""
        return self._source.elements(attribute)

    def of_elements(self, elements: Elements, variable: str) -> EventBatch:
        """Return a batch of the elements of a list: the variable is the element.

        Other attributes are those of the event that an element belongs to.
        """
        return EventBatch(_ElementSource(self, elements, variable), None)

    @property
    def outer(self) -> _ElementSource | None:
        """The events whose elements the events of this batch are, and the elements."""
        return self._source if isinstance(self._source, _ElementSource) else None

    def with_events(self, events: Sequence[Mapping[str, object]]) -> EventBatch:
        """Return a batch of other events, read in the same way."""
        return EventBatch(_MappingSource(events), self._event_type, self._moments)

    def with_columns(self, rows: NDArray[np.int64], columns: Mapping[str, pa.Array]) -> EventBatch:
        """Return some rows of a table, each perhaps several times, with more columns."""
        source = self._source.take(rows)
        assert isinstance(source, _ArrowSource)
        table = source.table
        for name, column in columns.items():
            table = table.append_column(name, column)
        return EventBatch(_ArrowSource(table), self._event_type, self._moments)

    def is_within_list(self, attribute: str) -> bool:
        """Whether the path of an attribute of a table goes through a list."""
        end = attribute.rfind(".")
        while end > 0:
            kind = self.type_of(attribute[:end])
            if kind is not None and is_list(kind):
                return True
            end = attribute.rfind(".", 0, end)
        return False

    def of_pairs(self, rows: NDArray[np.int64], constants: Mapping[str, Vector]) -> EventBatch:
        """Return a batch of some events, perhaps repeated, each with constants of its own."""
        batch = EventBatch(_PairSource(self, rows, constants), None)
        batch.computed = ComputedColumns(batch, self.computed.moment)
        return batch

    @staticmethod
    def values_of(elements: Elements) -> Vector:
        """Return the values of the elements of a list."""
        if elements.values is None:
            source = elements.source
            if isinstance(source, Vector):
                elements.values = source
            elif isinstance(source, pa.Array):
                elements.values = to_batch(pa.table({"element": source})).vector("element")
            else:
                events = [{"element": value} for value in source]
                elements.values = to_batch(events).vector("element")
        return elements.values

    def strings(self, attribute: str, *, ignore_case: bool = False) -> Strings:
        """Return the distinct strings of an attribute, in lower case where case is ignored."""
        strings = self._strings.get((attribute, ignore_case))
        if strings is None:
            column = self.column(attribute)
            strings = distinct_strings(column, len(self), ignore_case=ignore_case)
            self._strings[attribute, ignore_case] = strings
        return strings

    def events(self) -> Iterator[Mapping[str, object]]:
        """Yield the events as mappings, for the engines that take one at a time."""
        events = self._source.events()
        declared = self._event_type.moments if self._event_type else ()
        if declared:
            events = (event_with_moments(each, declared, lookup) for each in events)
        if not self._known_moments:
            return events
        return (Reading(each, self._moments, self._known_moments) for each in events)

    def reading(self, moments: Collection[str]) -> EventBatch:
        """Return the same events, in which the texts of other attributes count as timestamps."""
        return EventBatch(self._source, self._event_type, moments, self._known_moments)

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of a table of events, None for mappings."""
        return self._source.table.schema if isinstance(self._source, _ArrowSource) else None

    @property
    def mappings(self) -> Sequence[Mapping[str, object]]:
        """The events where they came as mappings."""
        return self._source.mappings if isinstance(self._source, _MappingSource) else ()

    def type_of(self, attribute: str) -> pa.DataType | None:
        """Return the type of the column of a table in which an attribute is, or None."""
        assert isinstance(self._source, _ArrowSource)
        return self._source.type_of(attribute)

    def sample(self, most: int, seed: int = 0) -> EventBatch:
        """Return some of the events, chosen evenly at random."""
        if len(self) <= most:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False))
        return EventBatch(self._source.take(rows), self._event_type, self._moments)

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
        return _Sample(sample._source, sample._event_type, sample._moments)

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

    def elements(self, attribute: str) -> Elements | None: ...

    def each(self, name: str) -> Column: ...

    def plain_each(self, name: str) -> Plain | None: ...


def to_batch(
    events: object, event_type: EventType | None = None, moments: Collection[str] = ()
) -> EventBatch:
    """Take events in any of the forms we know.

    `moments` are attributes, not declared, whose ISO 8601 texts count as timestamps.
    """
    if isinstance(events, EventBatch):
        return events
    source = _to_source(events)
    if event_type is not None and event_type.is_strict:
        source.refuse_undeclared(event_type)
    return EventBatch(source, event_type, moments)


def _to_source(events: object) -> _ArrowSource | _MappingSource:
    if isinstance(events, pa.RecordBatch):
        events = pa.Table.from_batches([events])
    if isinstance(events, pa.Table):
        return _ArrowSource(events)
    if isinstance(events, Mapping):
        raise ArgumentError("match_batch takes many events; use match for one mapping")
    if any(hasattr(events, f"__{name}__") for name in _FRAMES):
        return _ArrowSource(_from_frame(events))
    if isinstance(events, Iterator):
        events = list(events)
    if isinstance(events, Sequence) and not isinstance(events, str | bytes):
        return _MappingSource(events)
    hint = ": collect() it first" if hasattr(events, "collect") else ""
    raise ArgumentError(
        f"events must be an Arrow table or batch, a frame, or a sequence of mappings, "
        f"not {type(events).__name__}{hint}"
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
        if column is None and "." in attribute:
            elements = self.elements(attribute)
            if elements is not None:  # a path through a list is a list of the values there
                here = np.ones(self.n, np.bool_) if elements.here is None else elements.here
                return Column((), here)
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

    def each(self, name: str) -> Column:
        if name in self.names or not name.startswith(HAS):
            return self.column(name if name in self.names else path_of(name), None)
        column = self.column(path_of(name), None)
        here = np.zeros(self.n, np.bool_) if column.other is None else column.other.copy()
        for part in column.parts:
            here |= True if part.here is None else part.here
        return Column((Part(Domain.BOOLEAN, here.astype(np.int64), None),), None)

    def plain_each(self, name: str) -> Plain | None:
        if name.startswith(HAS):
            return None
        return self.plain(name if name in self.names else path_of(name), None)

    def elements(self, attribute: str) -> Elements | None:
        end = len(attribute)
        while end > 0:
            if attribute[:end] in self.names:
                return _elements_at(self.column_named(attribute[:end]), attribute[end + 1 :])
            end = attribute.rfind(".", 0, end)
        return None

    def take(self, rows: NDArray[np.int64]) -> _Source:
        places = pa.array(rows)
        columns = [to_array(column).take(places) for column in self._all]
        return _ArrowSource(pa.table(columns, names=self.table.column_names))

    def to_table(self) -> pa.Table:
        return to_plain_table(self.table)

    def refuse_undeclared(self, event_type: EventType) -> None:
        """Refuse a table with an attribute that a strict event type does not declare."""
        for field in self.table.schema:
            _refuse_undeclared_field(field, "", event_type)

    def type_of(self, attribute: str) -> pa.DataType | None:
        """Return the type of the column that an attribute is in, or None."""
        end = len(attribute)
        while end > 0:
            at = self.names.get(attribute[:end])
            if at is not None:
                return _type_within(self._all[at].type, attribute[end + 1 :])
            end = attribute.rfind(".", 0, end)
        return None

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


_OF_NO_KIND = object()
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
    if is_list(column.type):
        elements = arrow_elements(column)
        values = _to_python(name, elements.source)
        ranges = zip(elements.start.tolist(), elements.start[1:].tolist(), here, strict=False)
        return [values[a:b] if is_here else None for a, b, is_here in ranges]
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
    if kind is Kind.STRING and declared is Kind.TIMESTAMP:
        return _read_timestamps(attribute, decoded(to_array(column)))
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


def _read_timestamps(attribute: str, texts: pa.Array) -> pa.Array:
    """Return the moments that texts name; raise EventError for the first that names none."""
    values, is_moment = read_moments(texts)
    is_null = texts.is_null().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~is_moment & ~is_null)
    if len(wrong):
        row = int(wrong[0])
        raise EventError(_no_moment(texts[row].as_py()), attribute=attribute, row=row)
    return pa.array(values, INT64, mask=is_null if texts.null_count else None).view(TIMESTAMP)


def _no_moment(text: str) -> str:
    shown = text if len(text) <= 60 else text[:60] + "…"
    return f"declared timestamp, but {shown!r} is none; write 2026-07-01T12:30:00Z"


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


def _elements_at(column: pa.Array, path: str) -> Elements | None:
    """Return the elements of a list at a path, which may go through other lists."""
    if is_list(column.type):
        outer = arrow_elements(column)
        if not path:
            return outer
        inner = _elements_at(outer.source, path)
        if inner is not None:
            return flattened(outer, with_absent(inner))
        field = _descend(outer.source, path)
        return Elements(outer.start, pa.nulls(len(outer)) if field is None else field, outer.here)
    if not pa.types.is_struct(column.type):
        return None
    names = [field.name for field in column.type]
    end = len(path)
    while end > 0:
        if path[:end] in names:
            return _elements_at(pc.struct_field(column, [path[:end]]), path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


class _ElementSource:
    """The elements of a list of each event as events."""

    def __init__(self, batch: EventBatch, elements: Elements, variable: str) -> None:
        self.batch = batch
        self.elements_of = elements
        self.variable = variable
        self.n = len(elements)
        self.rows = elements.rows()
        """The event of each element."""
        n_elements: NDArray[np.int64] = np.diff(elements.start)
        if batch.outer is not None:
            n_elements = n_elements * batch.outer.sizes
        self.sizes: NDArray[np.int64] = n_elements[self.rows]
        """How often a condition on the elements is decided for the event of each element."""

    @cached_property
    def inner(self) -> EventBatch:
        """The elements alone."""
        source = self.elements_of.source
        if isinstance(source, Vector):
            source = vectors.to_objects(source)
        if isinstance(source, pa.Array):
            return to_batch(pa.table({self.variable: source}))
        return to_batch([{self.variable: element} for element in source])

    def column(self, attribute: str, declared: Kind | None) -> Column:
        if attribute == self.variable:
            return vectors.to_column(self.batch.values_of(self.elements_of))
        if attribute.startswith(f"{self.variable}."):
            return self.inner.column(attribute)
        return take_column(self.batch.column(attribute), self.rows)

    def plain(self, attribute: str, declared: Kind | None) -> Plain | None:
        return None

    def each(self, name: str) -> Column:
        return take_column(self.batch.column(name), self.rows)

    def plain_each(self, name: str) -> Plain | None:
        return None

    def elements(self, attribute: str) -> Elements | None:
        if attribute == self.variable or attribute.startswith(f"{self.variable}."):
            return self.inner.list(attribute)
        elements = self.batch.list(attribute)
        return None if elements is None else elements.repeated(self.rows, self.sizes)

    def readers(self) -> Iterator[Callable[[str], object]]:
        return (partial(read_value, event) for event in self.events())

    def events(self) -> Iterator[Mapping[str, object]]:
        events = list(self.batch.events())
        for row, element in zip(self.rows.tolist(), self.inner.events(), strict=True):
            yield ChainMap(element, events[row])  # type: ignore[arg-type]

    def take(self, rows: NDArray[np.int64]) -> _Source:
        raise AssertionError("elements are not sampled")

    def to_table(self) -> pa.Table | None:
        return None


class _PairSource:
    """Some events of a batch, each with constants, which are attributes with names of their own."""

    def __init__(
        self, batch: EventBatch, rows: NDArray[np.int64], constants: Mapping[str, Vector]
    ) -> None:
        self.batch, self.constants, self._rows = batch, constants, rows
        self.n = len(rows)

    def column(self, attribute: str, declared: Kind | None) -> Column:
        constant = self.constants.get(attribute)
        if constant is not None:
            return vectors.to_column(constant)
        return take_column(self.batch.column(attribute), self._rows)

    def plain(self, attribute: str, declared: Kind | None) -> Plain | None:
        return None

    def each(self, name: str) -> Column:
        return take_column(self.batch.column(name), self._rows)

    def plain_each(self, name: str) -> Plain | None:
        return None

    def elements(self, attribute: str) -> Elements | None:
        return python_elements([of(attribute) for of in self.readers()])

    def readers(self) -> Iterator[Callable[[str], object]]:
        return (partial(read_value, event) for event in self.events())

    def events(self) -> Iterator[Mapping[str, object]]:
        rows = set(self._rows.tolist())
        events = {row: event for row, event in enumerate(self.batch.events()) if row in rows}
        names = list(self.constants)
        values = zip(*(vectors.to_objects(self.constants[name]) for name in names), strict=True)
        for row in self._rows.tolist():
            constants = dict(zip(names, next(values), strict=True)) if names else {}
            yield ChainMap(constants, events[row])  # type: ignore[arg-type]

    def take(self, rows: NDArray[np.int64]) -> _Source:
        raise AssertionError("pairs are not sampled")

    def to_table(self) -> pa.Table | None:
        return None


def _type_within(kind: pa.DataType, path: str) -> pa.DataType | None:
    """Return the type at a path into a struct type, or None where there is no such field."""
    while path and not pa.types.is_null(kind):
        if is_list(kind):  # a path through a list is a list of the values there
            inner = _type_within(kind.value_type, path)
            return None if inner is None else pa.list_(inner)
        if not pa.types.is_struct(kind):
            return None
        names = {field.name: field.type for field in kind}
        end = len(path)
        while end > 0 and path[:end] not in names:
            end = path.rfind(".", 0, end)
        if end <= 0:
            return None
        kind, path = names[path[:end]], path[end + 1 :]
    return kind


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

    def refuse_undeclared(self, event_type: EventType) -> None:
        """Refuse events with an attribute that a strict event type does not declare."""
        for row, event in enumerate(self.mappings):
            refuse_undeclared(event, event_type, row)

    def each(self, name: str) -> Column:
        return self.column(name, None)

    def plain_each(self, name: str) -> Plain | None:
        return self.plain(name, None)

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
            if is_each(attribute):
                values = [read_each(event, attribute) for event in self.mappings]
            elif self._are_dicts and "." not in attribute:
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
        values = [
            check_value(value_at(event, attribute), attribute, declared, row)
            for row, event in enumerate(self.mappings)
        ]
        return column_of_values(values)

    def elements(self, attribute: str) -> Elements | None:
        return python_elements([read_value(event, attribute) for event in self.mappings])

    def take(self, rows: NDArray[np.int64]) -> _Source:
        return _MappingSource([self.mappings[row] for row in rows.tolist()])

    def to_table(self) -> pa.Table | None:
        names = dict.fromkeys(name for event in self.mappings for name in event)
        try:
            return pa.table({n: pa.array([e.get(n) for e in self.mappings]) for n in names})
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None

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
            return _lookup_within(value, attribute[end + 1 :])
        end = attribute.rfind(".", 0, end)
    return None


def _lookup_within(value: object, path: str) -> object:
    """Return the value at a path within a value; through a list, the list of the values there."""
    if isinstance(value, Mapping):
        return lookup(value, path)
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    values = [_lookup_within(element, path) for element in value]
    return joined_lists([list(v) if isinstance(v, tuple | np.ndarray) else v for v in values])


def value_at(event: Mapping[str, object], attribute: str) -> object:
    """Return the value of an attribute as it stands in the event, or of a computed value."""
    if is_each(attribute):
        return read_each(event, attribute)
    return read_value(event, attribute) if is_computed(attribute) else lookup(event, attribute)


def read_value(event: Mapping[str, object], attribute: str) -> object:
    """Return the value of an attribute as a plain Python value, or refuse it.

    It may be a path, or the name of a computed value.
    """
    if is_computed(attribute):
        return evaluate_term(term_of(attribute), _reader(event, attribute))
    value = read_each(event, attribute) if is_each(attribute) else lookup(event, attribute)
    return None if value is None else check_value(value, attribute, None)


class Reading(dict[str, object]):
    """An event in which the texts of some attributes are timestamps.

    `texts` is the event itself; of `known_moments`, a computed value reads those as timestamps
    that it uses as such.
    """

    __slots__ = ("known_moments", "texts")

    def __init__(
        self,
        event: Mapping[str, object],
        moments: Collection[str],
        known_moments: frozenset[str],
    ) -> None:
        super().__init__(event_with_moments(event, moments, lookup))
        self.texts = event
        self.known_moments = known_moments


def texts_of(event: Mapping[str, object]) -> Mapping[str, object]:
    """Return the event in which texts are texts."""
    return event.texts if isinstance(event, Reading) else event


def elements_in(event: Mapping[str, object], of: ElementName) -> list[object] | None:
    """Return the elements of a list of an event, or None where it has none."""
    return read_list(term_of(of.list), partial(read_value, texts_of(event)))


def satisfies(event: Mapping[str, object], name: str, condition: Condition) -> bool:
    """Whether an event satisfies a condition of a conjunction."""
    of = elements_of(name)
    if of is None:
        return holds(condition, read_value(event, name))
    elements = elements_in(event, of)
    quantify = all if of.quantifier == "all" else any
    return elements is not None and quantify(map(condition.holds, elements))


def _reader(event: Mapping[str, object], name: str) -> Callable[[str], object]:
    """Return a function that gives the values of attributes in a computed value."""
    read = partial(read_value, texts_of(event))
    moments = (
        event.known_moments.intersection(moments_of(name)) if isinstance(event, Reading) else ()
    )
    return partial(_read_moment, read, moments) if moments else read


def _read_moment(read: Callable[[str], object], moments: Collection[str], attribute: str) -> object:
    value = read(attribute)
    moment = parse_timestamp(value) if attribute in moments and isinstance(value, str) else None
    return value if moment is None else moment


def _plain_list(value: Any, attribute: str, row: int | None) -> list[object]:
    """Return a list with plain Python values."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    return [_plain_within(element, attribute, row) for element in values]


def _plain_within(value: object, attribute: str, row: int | None) -> object:
    if isinstance(value, Mapping):
        return {name: _plain_within(inner, attribute, row) for name, inner in value.items()}
    return check_value(value, attribute, None, row)


_SMALL = 1 << 62


def check_event(event: object, event_type: EventType | None) -> Mapping[str, object]:
    """Return an event with the declared kinds of values, or refuse it; a text may be a moment."""
    if event.__class__ is not dict and not isinstance(event, Mapping):
        raise EventError(f"an event must be a mapping, not {event!r}")
    values: Any = event
    if event_type is not None:
        has_texts = False
        if event_type.is_strict:
            refuse_undeclared(values, event_type)
        get, get_path = values.get, cast("Any", lookup)
        for attribute, kind, usual, is_path in event_type.listed:
            value = get_path(values, attribute) if is_path else get(attribute)
            if value.__class__ is usual and (usual is float or -_SMALL < value < _SMALL):
                continue  # the usual case
            if value is not None:
                check_value(value, attribute, kind)
                has_texts |= kind is Kind.TIMESTAMP and isinstance(value, str)
        if has_texts:
            values = event_with_moments(values, event_type.moments, lookup)
    return values  # type: ignore[no-any-return]


def _of_decimal(value: Decimal) -> object:
    """Return a decimal as columns have it: a float, or an integer that not every float equals."""
    plain = to_plain(value)
    return float(plain) if isinstance(plain, int) and abs(plain) < _EXACT else plain


_EXACT = 1 << 53


def check_value(
    value: object, attribute: str, declared: Kind | None, row: int | None = None
) -> object:
    """Return an event's value as a plain Python value (None where it is null), or refuse it."""
    value = to_plain(value) if not isinstance(value, Decimal) else _of_decimal(value)
    if isinstance(value, list | tuple | np.ndarray):
        value = _plain_list(value, attribute, row)
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
    if kind is Kind.STRING and declared is Kind.TIMESTAMP:
        moment = parse_timestamp(str(value))
        if moment is None:
            raise EventError(_no_moment(str(value)), attribute=attribute, row=row)
        return moment
    raise EventError(
        f"declared {declared.value}, but the value is {value!r}", attribute=attribute, row=row
    )


def refuse_undeclared(
    event: Mapping[str, object], event_type: EventType, row: int | None = None, prefix: str = ""
) -> None:
    """Raise EventError for an attribute that a strict event type does not declare."""
    for name in event.keys() - event_type.attributes.keys() if not prefix else event:
        path = f"{prefix}{name}"
        if path in event_type.attributes:
            continue
        inner = event[name]
        if isinstance(inner, Mapping) and event_type.has_within(path):
            refuse_undeclared(inner, event_type, row, f"{path}.")
        else:
            raise EventError(event_type.undeclared(path), attribute=path, row=row)


def _refuse_undeclared_field(field: pa.Field, prefix: str, event_type: EventType) -> None:
    path = f"{prefix}{field.name}"
    if path in event_type.attributes:
        return
    if not pa.types.is_struct(field.type) or not event_type.has_within(path):
        raise EventError(event_type.undeclared(path), attribute=path)
    for inner in field.type:
        _refuse_undeclared_field(inner, f"{path}.", event_type)
