"""Arrow columns in canonical form: one Arrow type for each kind of value.

Enters: Arrow arrays of any type. Leaves: int64, float64, large_string, boolean or timestamp
(microseconds, UTC) arrays and their kind; or None where the type holds no values of a kind we know
(lists, binary, …). Moments without a zone are taken as UTC, nanoseconds are rounded down; dates are
taken as their midnight, decimals as the nearest float.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.model import Kind

INT64 = pa.int64()
FLOAT64 = pa.float64()
STRING = pa.large_string()
TIMESTAMP = pa.timestamp("us", "UTC")

ArrowColumn: TypeAlias = pa.Array | pa.ChunkedArray


def kind_of_type(kind: pa.DataType) -> Kind | None:
    """Return the kind of the values that an Arrow type holds, or None."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
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
    """Return a column as one contiguous array, run ends decoded."""
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        combined = column.combine_chunks()
        if isinstance(combined, pa.ChunkedArray):
            return pa.concat_arrays(combined.chunks) if combined.num_chunks else _empty(column)
        return combined
    return column


def _empty(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([], column.type)


def to_canonical(column: ArrowColumn) -> tuple[pa.Array, Kind] | None:
    """Return a column in the Arrow type of its kind, or None.

    Raises pa.ArrowInvalid when an unsigned integer, or a moment in microseconds, does not fit 64
    bits.
    """
    kind = kind_of_type(column.type)
    if kind is None:
        return None
    array = to_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wanted = {Kind.INTEGER: INT64, Kind.FLOAT: FLOAT64, Kind.STRING: STRING}.get(kind)
    if wanted is not None:
        return array if array.type == wanted else array.cast(wanted), kind
    if kind is Kind.BOOLEAN:
        return array, kind
    return _to_timestamps(array), kind


def _to_timestamps(array: pa.Array) -> pa.Array:
    if pa.types.is_date32(array.type):
        days = array.view(pa.int32()).cast(INT64)
        return pc.multiply_checked(days, 86_400_000_000).view(TIMESTAMP)
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    if unit == "ns":
        ticks = array.view(INT64)
        whole = pc.divide(ticks, 1000)  # rounds towards zero
        is_above = pc.greater(pc.multiply(whole, 1000), ticks)
        return pc.subtract(whole, is_above.cast(INT64)).view(TIMESTAMP)
    return array.view(pa.timestamp(unit)).cast(pa.timestamp("us")).view(TIMESTAMP)
