"""Arrow columns in canonical form: one Arrow type for each kind of value.

Enters: Arrow arrays of any type. Leaves: int64, float64, large_string, boolean or timestamp
(microseconds, UTC) arrays and their kind; or None where the type holds no values of a kind we know
(lists, binary, …). Moments without a zone are taken as UTC; dates as their midnight; decimals as
the nearest float.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.model import Kind

INT64 = pa.int64()
FLOAT64 = pa.float64()
STRING = pa.large_string()
TIMESTAMP = pa.timestamp("us", "UTC")

ArrowColumn = pa.Array | pa.ChunkedArray


def kind_of_type(kind: pa.DataType) -> Kind | None:
    """Return the kind of the values that an Arrow type holds, or None."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind_of_type(kind.value_type)
    if types.is_integer(kind):
        return Kind.INTEGER
    if types.is_floating(kind) or types.is_decimal(kind):
        return Kind.FLOAT
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Kind.STRING
    if types.is_boolean(kind):
        return Kind.BOOLEAN
    if types.is_timestamp(kind) or types.is_date(kind):
        return Kind.TIMESTAMP
    return None


def to_array(column: ArrowColumn) -> pa.Array:
    """Return a column as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        combined = column.combine_chunks()
        if isinstance(combined, pa.ChunkedArray):
            return pa.concat_arrays(combined.chunks) if combined.num_chunks else _empty(column)
        return combined
    return column


def _empty(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([], column.type)


def to_canonical(column: ArrowColumn) -> tuple[pa.Array, Kind] | None:
    """Return a column in the Arrow type of its kind, or None; integers must fit 64 bits.

    Raises pa.ArrowInvalid when an unsigned integer does not.
    """
    kind = kind_of_type(column.type)
    if kind is None:
        return None
    array = to_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind is Kind.INTEGER:
        return array.cast(INT64), kind
    if kind is Kind.FLOAT:
        return array.cast(FLOAT64), kind
    if kind is Kind.STRING:
        return array.cast(STRING), kind
    if kind is Kind.BOOLEAN:
        return array, kind
    return _to_timestamps(array), kind


def _to_timestamps(array: pa.Array) -> pa.Array:
    if pa.types.is_date(array.type):
        return array.cast(pa.date32()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    if array.type.tz is None:
        if array.type.unit == "ns":
            array = pc.floor_temporal(array, unit="microsecond")
        return array.cast(pa.timestamp("us"), safe=False).cast(TIMESTAMP)
    return array.cast(TIMESTAMP, safe=False)
