"""Arrow columns in canonical form: one Arrow type for each kind of value.

Enters: Arrow arrays of any type. Leaves: int64, float64, large_string, boolean or timestamp
(microseconds, UTC) arrays and their kind; or None where the type has no values of a supported kind
(lists, binary, …). Moments without a zone are taken as UTC, nanoseconds are rounded down; dates are
taken as their midnight. A decimal is the integer that it equals where 64 bits hold it, else the
nearest float, as Python's `float(Decimal)` gives it.

Arrow stores one kind of value in several layouts, and its functions do not serve all of them: views
and run ends can neither be taken from nor filtered. `to_array` and `to_plain_table` leave only
layouts that every function serves.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN, Kind

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
    """Return a column as one contiguous array of a layout that Arrow's functions serve.

    Views become offsets, runs are decoded; dictionaries stay dictionaries.
    """
    layout = plain_layout(column.type)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            column = column.chunk(0)
        elif layout is not None:
            chunks = [_to_layout(chunk, layout) for chunk in column.chunks]
            return to_array(pa.chunked_array(chunks, layout))
        else:
            return _combined(column)
    return column if layout is None else _to_layout(column, layout)


def _combined(column: pa.ChunkedArray) -> pa.Array:
    try:
        combined = column.combine_chunks()
    except pa.ArrowInvalid:  # dictionaries with nulls in them cannot be unified
        layout = _layout(column.type, keeps_dictionaries=False)
        chunks = [_to_layout(chunk, layout) for chunk in column.chunks]
        combined = pa.chunked_array(chunks, layout).combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        if not combined.num_chunks:
            return pa.array([], column.type)
        return pa.concat_arrays(combined.chunks)
    return combined


def to_plain_table(table: pa.Table) -> pa.Table:
    """Return a table without views and run ends, wherever in its columns they are."""
    for at, field in enumerate(table.schema):
        layout = plain_layout(field.type)
        if layout is not None:
            chunks = [_to_layout(chunk, layout) for chunk in table.column(at).chunks]
            plain = pa.chunked_array(chunks, layout)
            table = table.set_column(at, field.with_type(layout), plain)
    return table


@lru_cache(1024)
def plain_layout(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to convert a type to, or None where it is served as it is."""
    layout = _layout(kind)
    return None if layout.equals(kind) else layout


def _layout(kind: pa.DataType, keeps_dictionaries: bool = True) -> pa.DataType:
    types = pa.types

    def layout(inner: pa.DataType) -> pa.DataType:
        return _layout(inner, keeps_dictionaries)

    def item() -> pa.Field:
        return kind.value_field.with_type(layout(kind.value_type))

    if types.is_run_end_encoded(kind):
        return layout(kind.value_type)
    if types.is_string_view(kind):
        return STRING
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        values = layout(kind.value_type)
        if not keeps_dictionaries or types.is_float16(values):  # Arrow unifies these wrongly
            return values
        return pa.dictionary(kind.index_type, values, kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(layout(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(layout(kind.key_type), layout(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(item(), kind.list_size)
    if types.is_list(kind):
        return pa.list_(item())
    if types.is_large_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.large_list(item())
    return kind


def _to_layout(array: pa.Array, layout: pa.DataType) -> pa.Array:
    """Convert an array to its plain layout."""
    if array.type.equals(layout):
        return array
    if pa.types.is_run_end_encoded(array.type):
        rows = array.offset + np.arange(len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return _to_layout(array.values, layout).take(pa.array(runs))
    if pa.types.is_struct(array.type):
        fields = [_to_layout(array.field(at), layout[at].type) for at in range(len(layout))]
        return pa.StructArray.from_arrays(fields, fields=list(layout), mask=array.is_null())
    if pa.types.is_dictionary(array.type):
        if not pa.types.is_dictionary(layout):
            return _to_layout(array.dictionary, layout).take(array.indices)
        values = _to_layout(array.dictionary, layout.value_type)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=layout.ordered)
    try:
        return array.cast(layout)
    except pa.ArrowNotImplementedError:  # runs within lists
        return pa.array(array.to_pylist(), layout)


def decoded(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def to_canonical(column: ArrowColumn) -> tuple[pa.Array, Kind] | None:
    """Return a column in the Arrow type of its kind, or None.

    Of decimals these are the nearest floats; `decimal_numbers` also gives the integers that no
    float holds. Raises pa.ArrowInvalid when an unsigned integer, or a moment in microseconds, does
    not fit 64 bits.
    """
    kind = kind_of_type(column.type)
    if kind is None:
        return None
    array = decoded(to_array(column))
    if pa.types.is_decimal(array.type):
        return decimal_numbers(array).to_floats(array), kind
    canonical = {Kind.INTEGER: INT64, Kind.FLOAT: FLOAT64, Kind.STRING: STRING}.get(kind)
    if canonical is not None:
        return array if array.type == canonical else array.cast(canonical), kind
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


_EXACT = 2**53
"""Every integer up to here is a float."""
_EXACT_DIGITS = 15
"""Every integer of as many digits is a float."""
_MAX_EXACT_POWER = 22
"""The greatest power of ten that is a float."""
_MAX_SCALE = 500
"""A decimal with a scale beyond this is zero or infinite as a float; Arrow has none."""


class DecimalNumbers(NamedTuple):
    """Decimals as numbers: the nearest float of each, or an integer that no float holds.

    `is_large` marks the integers beyond 2^53 that 64 bits hold; their values are in `integers`. At
    nulls the numbers mean nothing, and `is_large` is false.
    """

    floats: NDArray[np.float64]
    integers: NDArray[np.int64]
    is_large: NDArray[np.bool_]

    def to_floats(self, array: pa.Array) -> pa.Array:
        """Return the nearest floats of the decimals that these numbers are of."""
        return pa.array(self.floats, FLOAT64, mask=_null_mask(array))

    def to_operands(self, array: pa.Array) -> pa.Array:
        """Return the decimals as one column without a loss: floats, integers or the decimals."""
        if not self.is_large.any():
            return self.to_floats(array)
        is_whole = self.is_large | (np.trunc(self.floats) == self.floats)
        is_small = np.abs(self.floats) <= _EXACT
        nulls = _null_mask(array)
        if np.all((is_whole & (self.is_large | is_small)) | (False if nulls is None else nulls)):
            small = np.where(is_small, self.floats, 0).astype(np.int64)
            return pa.array(np.where(self.is_large, self.integers, small), INT64, mask=nulls)
        return array

    def to_list(self, array: pa.Array) -> list[int | float | None]:
        """Return the decimals as Python numbers, None for null."""
        numbers = self.to_floats(array).to_pylist()
        for at in np.flatnonzero(self.is_large).tolist():
            numbers[at] = int(self.integers[at])
        return numbers  # type: ignore[no-any-return]


def _null_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def decimal_numbers(array: pa.Array) -> DecimalNumbers:
    """Return the numbers that decimals of any width and scale are.

    A quotient or product of two floats is rounded once, so where the digits and the power of ten
    are floats themselves, one operation gives the nearest float. The others are written as texts
    and read, which rounds once too.
    """
    precision, scale = array.type.precision, array.type.scale
    words = _words(array)
    power = 10.0 ** min(abs(scale), _MAX_EXACT_POWER)
    floats = words[:, 0] / power if scale >= 0 else words[:, 0] * power
    integers, is_large = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    if precision <= _EXACT_DIGITS and 0 <= scale <= _MAX_EXACT_POWER:
        return DecimalNumbers(floats, integers, is_large)
    digits, fits = words[:, 0].astype(np.int64), np.ones(len(array), np.bool_)
    for at in range(1, words.shape[1]):
        fits &= words[:, at] == digits >> 63
    is_easy = fits & (digits <= _EXACT) & (digits >= -_EXACT) & (abs(scale) <= _MAX_EXACT_POWER)
    if not is_easy.all():
        rest = np.flatnonzero(~is_easy)
        floats[rest] = _read_floats(array.take(pa.array(rest)), words[rest])
    size = np.abs(floats)
    beyond = np.flatnonzero((size >= _EXACT) & (size <= 2.0**63))
    if len(beyond):
        integers[beyond], is_large[beyond] = _whole(words[beyond], scale)
    nulls = _null_mask(array)
    if nulls is not None:
        is_large &= ~nulls
    return DecimalNumbers(floats, integers, is_large)


def _words(array: pa.Array) -> NDArray[Any]:
    """Return the digits of decimals without their point, in words, the lowest first."""
    width, n, data = array.type.byte_width, len(array), array.buffers()[1]
    word: Any = np.int32 if width == 4 else np.int64
    n_words = width // np.dtype(word).itemsize
    if data is None or n == 0:
        return np.zeros((n, n_words), word)
    return np.frombuffer(data, word, n * n_words, array.offset * width).reshape(n, n_words)


def _read_floats(array: pa.Array, words: NDArray[Any]) -> NDArray[np.float64]:
    """Return the nearest floats of decimals, whose digits are given too; zero at nulls."""
    try:
        floats = array.cast(pa.string()).cast(FLOAT64).fill_null(0.0).to_numpy()
    except pa.ArrowInvalid:  # Arrow does not write every scale
        floats = np.array([_nearest(row, array.type.scale) for row in words])
    return floats  # type: ignore[no-any-return]


def _nearest(words: NDArray[Any], scale: int) -> float:
    digits = int.from_bytes(words.tobytes(), "little", signed=True)
    if abs(scale) > _MAX_SCALE:  # no float is so small or so great
        return 0.0 if scale > 0 or not digits else math.copysign(math.inf, digits)
    try:
        return digits / 10**scale if scale >= 0 else float(digits * 10**-scale)
    except OverflowError:
        return math.copysign(math.inf, digits)


def _whole(words: NDArray[Any], scale: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the 64-bit integers that decimals equal, and which of them equal one."""
    n, digits = len(words), words[:, 0].astype(np.int64)
    fits = np.all(words[:, 1:] == (digits >> 63)[:, None], axis=1)
    if 0 <= scale <= 18 and fits.all():
        integers, rest = np.divmod(digits, 10**scale)
        return integers, rest == 0
    integers, is_whole = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for at in range(n):
        whole = int.from_bytes(words[at].tobytes(), "little", signed=True)
        left = 0
        if scale > 0:
            whole, left = divmod(whole, 10**scale)
        else:
            whole *= 10**-scale
        if not left and INT64_MIN <= whole <= INT64_MAX:
            integers[at], is_whole[at] = whole, True
    return integers, is_whole
