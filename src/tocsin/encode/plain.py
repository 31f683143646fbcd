"""Columns of 64-bit numbers without a copy.

Enters: a column of an Arrow table. Leaves: its values and its validity bitmap, as arrays that share
the table's memory; nothing where the column is of another type or in several chunks. It takes a few
microseconds, whatever the column's length: tables may have thousands of columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import Kind


class Plain(NamedTuple):
    """Numbers: value i is there where bit `offset + i` is set, or where there are no bits.

    `n_here` of them are there. A NaN is a value like others.
    """

    values: NDArray[Any]
    bits: NDArray[np.uint8]
    offset: int
    n_here: int
    address: int
    """Where the values are in memory, as long as these arrays live."""

    @property
    def is_whole(self) -> bool:
        """Whether they are integers."""
        return self.values.dtype == np.int64


_KINDS = {pa.int64().id: (Kind.INTEGER, np.int64), pa.float64().id: (Kind.FLOAT, np.float64)}
_NO_BITS = np.empty(0, np.uint8)
_NO_BITS.flags.writeable = False  # as those of a table are


def plain_vector(kind: Kind | None, values: Any, here: NDArray[np.bool_] | None) -> Plain | None:
    """Return computed numbers as they lie in memory, where they are such numbers."""
    if kind not in (Kind.INTEGER, Kind.FLOAT) or not len(values):
        return None
    values = np.ascontiguousarray(values)
    bits, n_here = _NO_BITS, len(values)
    if here is not None:
        bits, n_here = np.packbits(here, bitorder="little"), int(np.count_nonzero(here))
    return Plain(values, bits, 0, n_here, values.ctypes.data)


def plain_numbers(column: pa.ChunkedArray, declared: Kind | None) -> Plain | None:
    """Return a column's numbers, unless they need a conversion or do not have the declared kind."""
    if column.num_chunks != 1:
        return None
    array = column.chunk(0)
    n = len(array)
    kind, dtype = _KINDS.get(array.type.id, (None, np.int64))
    fits = declared is None or declared is kind or declared is Kind.FLOAT
    if kind is None or not fits or n == 0:
        return None
    n_null, offset = array.null_count, array.offset
    here, values = array.buffers()
    if values is None:
        return None
    bits = np.frombuffer(here, np.uint8) if n_null else _NO_BITS
    numbers, address = np.frombuffer(values, dtype, n, 8 * offset), values.address + 8 * offset
    return Plain(numbers, bits, offset, n - n_null, address)
