"""Arrow columns ↔ arrays.

Enters: columns of the types that `tocsin.arrow` makes, and dictionaries of them. Leaves: their
buffers as arrays and a description that JSON can hold; and from these, without a copy, the column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import FLOAT64, INT64, STRING, TIMESTAMP

_PLAIN: dict[str, pa.DataType] = {
    "int64": INT64,
    "float64": FLOAT64,
    "timestamp": TIMESTAMP,
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
}
"""Types of a fixed number of bytes."""

_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}


def write_column(name: str, column: pa.Array, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Add the buffers of a column to `arrays`; return its description."""
    n = len(column)
    if pa.types.is_dictionary(column.type):
        indices = write_column(f"{name}.indices", column.indices, arrays)
        inner = write_column(f"{name}.dictionary", column.dictionary, arrays)
        return {"type": "dictionary", "length": n, "indices": indices, "dictionary": inner}
    if pa.types.is_null(column.type):
        return {"type": "null", "length": n}
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        arrays[f"{name}.valid"] = np.packbits(valid, bitorder="little")
    if column.type == STRING:
        starts, octets = _string_buffers(column)
        arrays[f"{name}.starts"], arrays[f"{name}.octets"] = starts, octets
        kind = "string"
    elif pa.types.is_boolean(column.type):
        bits = column.fill_null(False).to_numpy(zero_copy_only=False)
        arrays[f"{name}.values"] = np.packbits(bits, bitorder="little")
        kind = "boolean"
    elif pa.types.is_decimal(column.type):
        of = column.type
        arrays[f"{name}.values"] = _octets(column)
        width, digits = of.byte_width, [of.precision, of.scale]
        return {
            "type": f"decimal{8 * width}",
            "digits": digits,
            "length": n,
            "nulls": column.null_count,
        }
    else:
        kind = next(kind for kind, of in _PLAIN.items() if of == column.type)
        arrays[f"{name}.values"] = _values(column)
    return {"type": kind, "length": n, "nulls": column.null_count}


def read_column(name: str, of: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> pa.Array:
    """Return a column over the arrays of `write_column`, which it does not copy.

    Raises ValueError or KeyError for arrays that do not fit the description.
    """
    kind, n = of["type"], int(of["length"])
    if kind == "dictionary":
        indices = read_column(f"{name}.indices", of["indices"], arrays)
        inner = read_column(f"{name}.dictionary", of["dictionary"], arrays)
        return pa.DictionaryArray.from_arrays(indices, inner, safe=False)
    if kind == "null":
        return pa.nulls(n)
    n_nulls = int(of["nulls"])
    valid = _buffer(arrays[f"{name}.valid"], (n + 7) // 8) if n_nulls else None
    if kind == "string":
        starts, octets = arrays[f"{name}.starts"], arrays[f"{name}.octets"]
        if len(starts) != n + 1 or starts[0] != 0 or starts[-1] != len(octets):
            raise ValueError(f"the column {name} has strings beyond its bytes")
        buffers = [valid, pa.py_buffer(starts), pa.py_buffer(octets)]
        return pa.Array.from_buffers(STRING, n, buffers, n_nulls)
    values = arrays[f"{name}.values"]
    if kind == "boolean":
        bits = _buffer(values, (n + 7) // 8)
        return pa.Array.from_buffers(pa.bool_(), n, [valid, bits], n_nulls)
    plain = _DECIMALS[kind](*of["digits"]) if kind in _DECIMALS else _PLAIN[kind]
    width = plain.bit_width // 8
    return pa.Array.from_buffers(plain, n, [valid, _buffer(values, n * width)], n_nulls)


def _buffer(array: NDArray[Any], n_bytes: int) -> pa.Buffer:
    if array.nbytes != n_bytes:
        raise ValueError(f"an array has {array.nbytes} bytes, not {n_bytes}")
    return pa.py_buffer(array)


def _values(column: pa.Array) -> NDArray[Any]:
    width = column.type.bit_width // 8
    if not len(column):
        return np.empty(0, f"<i{width}")
    whole = np.frombuffer(column.buffers()[1], f"<i{width}")
    return whole[column.offset : column.offset + len(column)]


def _octets(column: pa.Array) -> NDArray[np.uint8]:
    width = column.type.byte_width
    if not len(column):
        return np.empty(0, np.uint8)
    whole = np.frombuffer(column.buffers()[1], np.uint8)
    return whole[column.offset * width : (column.offset + len(column)) * width]


def _string_buffers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    if not len(column):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, "u1")
    first, last = int(starts[0]), int(starts[-1])
    return (starts - first if first else starts), octets[first:last]
