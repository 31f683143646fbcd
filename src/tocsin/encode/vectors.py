"""Vectors: the values of a term for every event of a batch, and the functions on them.

Enters: vectors. Leaves: vectors, the same as `language.functions` gives value by value, which is
the definition; where all values are of one kind, a function is one pass of NumPy or Arrow, and a
function of strings is computed once for each distinct string. What has no such form here is
computed value by value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.encode.columns import NO_COLUMN, Column, Part, column_of_values
from tocsin.language import functions
from tocsin.language.functions import MAX_MADE
from tocsin.model import Kind, from_microseconds, to_microseconds
from tocsin.normalize.domains import Domain

Mask = NDArray[np.bool_]
_EXACT = 1 << 53
"""Integers up to here are floats without loss."""
_FIRST = to_microseconds(dt.datetime(1, 1, 1, tzinfo=dt.UTC))
_LAST = to_microseconds(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC))


class Vector(NamedTuple):
    """Values of one kind; or, where the kind is None, Python objects (None: absent).

    `values` is an int64, float64 or bool array, Arrow strings, or a list of objects; timestamps are
    microseconds. `here` marks the values that are not absent; None: all are there.
    """

    kind: Kind | None
    values: Any
    here: Mask | None = None

    def __len__(self) -> int:
        return len(self.values)


def constant(value: Any, kind: Kind | None, n: int) -> Vector:
    """Return a value as often as there are events."""
    if value is None or kind is None:
        return Vector(None, [value] * n)
    if kind is Kind.STRING:
        return Vector(
            kind, pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array([value], STRING))
        )
    if kind is Kind.TIMESTAMP:
        value = to_microseconds(value)
    dtype = {Kind.FLOAT: np.float64, Kind.BOOLEAN: np.bool_}.get(kind, np.int64)
    return Vector(kind, np.broadcast_to(np.array(value, dtype), n))


def absent(n: int) -> Vector:
    """Return absent values."""
    return Vector(None, [None] * n)


def take(vector: Vector, rows: NDArray[np.int64]) -> Vector:
    """Return the values of some events, perhaps repeated."""
    here = None if vector.here is None else vector.here[rows]
    if vector.kind is None:
        return Vector(None, [vector.values[row] for row in rows.tolist()], here)
    if vector.kind is Kind.STRING:
        return Vector(vector.kind, vector.values.take(pa.array(rows)), here)
    return Vector(vector.kind, vector.values[rows], here)


def from_column(column: Column, n: int) -> Vector | None:
    """Return the values of a column as a vector, or None where they are of several kinds."""
    if len(column.parts) != 1:
        return None if column.parts or column.other is not None else absent(n)
    part = column.parts[0]
    here = part.here
    if part.domain is Domain.STRING:
        kind, values = Kind.STRING, part.values
    elif part.domain is Domain.BOOLEAN:
        kind, values = Kind.BOOLEAN, part.values.view(np.int64) != 0
    elif part.domain is Domain.TIMESTAMP:
        kind, values = Kind.TIMESTAMP, part.values
    else:
        kind = Kind.FLOAT if part.values.dtype == np.float64 else Kind.INTEGER
        values = part.values
    if column.other is not None:
        if kind is not Kind.FLOAT or not np.isnan(values[column.other]).all():
            return None
        here = column.other if here is None else here | column.other
        here = None if here.all() else here
    return Vector(kind, values, here)


def to_column(vector: Vector) -> Column:
    """Return a vector as a column; a NaN and an interval are values of no domain."""
    kind, values, here = vector
    if kind is None:
        return column_of_values(values)
    if here is not None and not here.any():
        return NO_COLUMN
    if kind is Kind.STRING:
        return Column((Part(Domain.STRING, plain_strings(values), here),), None)
    if kind is Kind.BOOLEAN:
        return Column((Part(Domain.BOOLEAN, values.astype(np.int64), here),), None)
    if kind is Kind.TIMESTAMP:
        return Column((Part(Domain.TIMESTAMP, np.ascontiguousarray(values), here),), None)
    values = np.ascontiguousarray(values)
    if kind is Kind.FLOAT:
        nan = np.isnan(values)
        if nan.any():
            other = nan if here is None else nan & here
            rest = ~nan if here is None else here & ~nan
            return Column((Part(Domain.NUMBER, values, rest),), other)
    return Column((Part(Domain.NUMBER, values, here),), None)


def to_objects(vector: Vector) -> list[Any]:
    """Return the values as Python has them."""
    kind, values, here = vector
    if kind is None:
        return values  # type: ignore[no-any-return]
    listed = values.to_pylist() if kind is Kind.STRING else values.tolist()
    if kind is Kind.TIMESTAMP:
        shown = here if here is not None else np.ones(len(listed), np.bool_)
        return [from_microseconds(v) if h else None for v, h in zip(listed, shown, strict=True)]
    if here is None:
        return listed  # type: ignore[no-any-return]
    return [v if is_here else None for v, is_here in zip(listed, here.tolist(), strict=True)]


def from_objects(values: list[Any]) -> Vector:
    """Return Python values as a vector, of a kind if all have the same."""
    types = set(map(type, values)) - {type(None)}
    kind = _KINDS.get(types.pop()) if len(types) == 1 else None
    if kind is None:
        return Vector(None, values)
    here = np.array([value is not None for value in values], np.bool_)
    whole = None if here.all() else here
    if kind is Kind.STRING:
        return Vector(kind, pa.array(values, STRING), whole)
    dtype = {Kind.FLOAT: np.float64, Kind.BOOLEAN: np.bool_}.get(kind, np.int64)
    numbers: NDArray[Any] = np.zeros(len(values), dtype)
    present = [value for value in values if value is not None]
    numbers[here] = [to_microseconds(v) for v in present] if kind is Kind.TIMESTAMP else present
    return Vector(kind, numbers, whole)


_KINDS = {
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    str: Kind.STRING,
    bool: Kind.BOOLEAN,
    dt.datetime: Kind.TIMESTAMP,
}


def call(name: str, arguments: Sequence[Vector]) -> Vector:
    """Return the values of a function."""
    apply = _FAST.get(name)
    if apply is not None and all(argument.kind is not None for argument in arguments):
        with np.errstate(all="ignore"):
            vector = apply(*arguments)
        if vector is not None:
            return vector
    rows = zip(*map(to_objects, arguments), strict=True)
    return from_objects([functions.call(name, row) for row in rows])


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """Return where both values are there."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _limited(here: Mask | None, fits: Mask) -> Mask | None:
    """Return where values are there and a result fits."""
    if fits.all():
        return here
    return fits if here is None else here & fits


# Numbers.


def _are_numbers(*vectors: Vector) -> bool:
    return all(vector.kind in functions.NUMBERS for vector in vectors)


def _floats(vector: Vector) -> NDArray[np.float64]:
    return vector.values.astype(np.float64, copy=False)  # type: ignore[no-any-return]


def _both_whole(a: Vector, b: Vector) -> bool:
    return a.kind is Kind.INTEGER and b.kind is Kind.INTEGER


def _sum(sign: int) -> Callable[[Vector, Vector], Vector | None]:
    def applied(a: Vector, b: Vector) -> Vector | None:
        if not _are_numbers(a, b):
            return None
        here = both(a.here, b.here)
        if not _both_whole(a, b):
            left, right = _floats(a), _floats(b)
            return Vector(Kind.FLOAT, left + right if sign > 0 else left - right, here)
        x, y = a.values, b.values
        total = x + y if sign > 0 else x - y
        other = y if sign > 0 else ~y
        fits = ((x ^ total) & (other ^ total)) >= 0
        return Vector(Kind.INTEGER, total, _limited(here, fits))

    return applied


def _product(a: Vector, b: Vector) -> Vector | None:
    if not _are_numbers(a, b):
        return None
    here = both(a.here, b.here)
    if not _both_whole(a, b):
        return Vector(Kind.FLOAT, _floats(a) * _floats(b), here)
    x, y = a.values, b.values
    if _largest(x) * _largest(y) >= 1 << 63:
        return None  # value by value, exactly
    return Vector(Kind.INTEGER, x * y, here)


def _largest(values: NDArray[np.int64]) -> int:
    """Return the greatest magnitude."""
    return max(-int(values.min()), int(values.max()), 0) if len(values) else 0


def _quotient(a: Vector, b: Vector) -> Vector | None:
    if not _are_numbers(a, b):
        return None
    divisor = _floats(b)
    here = _limited(both(a.here, b.here), divisor != 0)
    return Vector(Kind.FLOAT, _floats(a) / divisor, here)


def _remainder(a: Vector, b: Vector) -> Vector | None:
    if not _are_numbers(a, b):
        return None
    here = _limited(both(a.here, b.here), b.values != 0)
    if _both_whole(a, b):
        return Vector(Kind.INTEGER, np.fmod(a.values, np.where(b.values == 0, 1, b.values)), here)
    return Vector(Kind.FLOAT, np.fmod(_floats(a), _floats(b)), here)


def _negative(a: Vector) -> Vector | None:
    if not _are_numbers(a):
        return None
    if a.kind is Kind.FLOAT:
        return Vector(a.kind, -a.values, a.here)
    return Vector(a.kind, -a.values, _limited(a.here, a.values != np.iinfo(np.int64).min))


def _absolute(a: Vector) -> Vector | None:
    if not _are_numbers(a):
        return None
    fits = a.values == a.values if a.kind is Kind.FLOAT else a.values != np.iinfo(np.int64).min
    here = a.here if a.kind is Kind.FLOAT else _limited(a.here, fits)
    return Vector(a.kind, np.abs(a.values), here)


def _on_floats(apply: Callable[[Any], Any]) -> Callable[[Vector], Vector | None]:
    """A function that leaves integers as they are."""

    def applied(a: Vector) -> Vector | None:
        if not _are_numbers(a):
            return None
        return a if a.kind is Kind.INTEGER else Vector(a.kind, apply(a.values), a.here)

    return applied


def _root(a: Vector) -> Vector | None:
    if not _are_numbers(a):
        return None
    values = _floats(a)
    return Vector(Kind.FLOAT, np.sqrt(values), _limited(a.here, ~(values < 0)))


# Comparisons.

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<>": np.not_equal, "<": np.less,
    "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_COMPARE_STRINGS = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less,
    "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def _comparison(op: str) -> Callable[[Vector, Vector], Vector | None]:
    def applied(a: Vector, b: Vector) -> Vector | None:
        here = both(a.here, b.here)
        if a.kind is Kind.STRING and b.kind is Kind.STRING:
            decided = _COMPARE_STRINGS[op](plain_strings(a.values), plain_strings(b.values))
            values = pc.fill_null(decided, False).to_numpy(zero_copy_only=False)
            return Vector(Kind.BOOLEAN, values, here)
        x, y = a.values, b.values
        if a.kind is not b.kind:
            if not _are_numbers(a, b):
                return Vector(Kind.BOOLEAN, np.zeros(len(a), np.bool_), np.zeros(len(a), np.bool_))
            if _largest(x if a.kind is Kind.INTEGER else y) > _EXACT:
                return None  # value by value, exactly
        for vector in (a, b):
            if vector.kind is Kind.FLOAT:
                here = _limited(here, ~np.isnan(vector.values))
        return Vector(Kind.BOOLEAN, _COMPARE[op](x, y), here)

    return applied


def _extreme(op: str) -> Callable[..., Vector | None]:
    def applied(*vectors: Vector) -> Vector | None:
        kinds = {vector.kind for vector in vectors}
        if len(kinds) != 1 or Kind.STRING in kinds or any(v.here is not None for v in vectors):
            return None
        if Kind.FLOAT in kinds and any(np.isnan(v.values).any() for v in vectors):
            return None
        choose = np.minimum if op == "<" else np.maximum
        values = vectors[0].values
        for vector in vectors[1:]:
            values = choose(values, vector.values)
        return Vector(vectors[0].kind, values)

    return applied


def _coalesce(*vectors: Vector) -> Vector | None:
    if len({vector.kind for vector in vectors}) != 1 or vectors[0].kind is Kind.STRING:
        return None
    values, here = vectors[0].values, vectors[0].here
    for vector in vectors[1:]:
        if here is None:
            break
        values = np.where(here, values, vector.values)
        here = None if vector.here is None else here | vector.here
    return Vector(vectors[0].kind, values, here)


# Strings.


def plain_strings(values: Any) -> pa.Array:
    """Return strings as an array of their own, not as places in a dictionary."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _distinct(values: Any) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return the distinct strings and the place of each among them; -1 where one is absent."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return encoded.dictionary, places.astype(np.int32, copy=False)


def _of_strings(
    change: Callable[[pa.Array], pa.Array], kind: Kind
) -> Callable[[Vector], Vector | None]:
    """A function of one string, computed for each distinct one."""

    def applied(a: Vector) -> Vector | None:
        return None if a.kind is not Kind.STRING else on_distinct(a, change, kind)

    return applied


def on_distinct(a: Vector, change: Callable[[pa.Array], pa.Array], kind: Kind) -> Vector:
    """Return a function of strings, computed once for each distinct one."""
    strings, at = _distinct(a.values)
    places: NDArray[np.int32] | None = at
    if len(strings) > len(at) // 2:
        results, places = change(plain_strings(a.values)), None
    else:
        results = change(strings)
    if kind is Kind.STRING:
        values = results if places is None else results.take(pa.array(places, mask=places < 0))
        here = a.here
        if values.null_count:
            here = both(here, values.is_valid().to_numpy(zero_copy_only=False))
        return Vector(kind, values, here)
    numbers = pc.fill_null(results, False if kind is Kind.BOOLEAN else 0)
    numbers = numbers.to_numpy(zero_copy_only=False)
    if kind is Kind.INTEGER:
        numbers = numbers.astype(np.int64)
    missing = results.is_null().to_numpy(zero_copy_only=False) if results.null_count else None
    if places is not None:
        numbers = np.append(numbers, numbers[:1] if len(numbers) else np.zeros(1, numbers.dtype))
        numbers = numbers[places]
        missing = None if missing is None else np.append(missing, True)[places]
    return Vector(kind, numbers, a.here if missing is None else both(a.here, ~missing))


def _only(vector: Vector) -> str | None:
    """Return the string that all values are, or None."""
    values = vector.values
    if vector.kind is Kind.STRING and pa.types.is_dictionary(values.type):
        return str(values.dictionary[0].as_py()) if len(values.dictionary) == 1 else None
    return None


def _only_number(vector: Vector) -> int | None:
    """Return the integer that all values are, or None."""
    values = vector.values
    is_one = vector.kind is Kind.INTEGER and len(values) and values.strides == (0,)
    return int(values[0]) if is_one else None


def _with_text(
    make: Callable[[pa.Array, str], pa.Array], kind: Kind
) -> Callable[[Vector, Vector], Vector | None]:
    """A function of a string and a constant one."""

    def applied(a: Vector, b: Vector) -> Vector | None:
        text = _only(b)
        if a.kind is not Kind.STRING or text is None:
            return None
        return on_distinct(a, lambda strings: make(strings, text), kind)

    return applied


def _find_pattern(strings: pa.Array, pattern: str) -> pa.Array:
    try:
        return pc.match_substring_regex(strings, pattern)
    except pa.ArrowInvalid:
        return pa.nulls(len(strings), pa.bool_())


def _concatenated(*vectors: Vector) -> Vector | None:
    if any(vector.kind is not Kind.STRING for vector in vectors):
        return None
    here: Mask | None = None
    for vector in vectors:
        here = both(here, vector.here)
    parts = [plain_strings(vector.values) for vector in vectors]
    lengths = np.sum([_lengths(part) for part in parts], axis=0)
    first, fits = _if_short(parts[0], lengths)
    joined = pc.binary_join_element_wise(first, *parts[1:], pa.scalar("", STRING))
    return Vector(Kind.STRING, joined, _limited(here, fits))


def _lengths(strings: pa.Array) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.utf8_length(strings), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _if_short(strings: pa.Array, lengths: NDArray[np.int64]) -> tuple[pa.Array, Mask]:
    """Make strings absent of which a text that is too long would be made; return where none is."""
    fits = lengths <= MAX_MADE
    if fits.all():
        return strings, fits
    return pc.if_else(pa.array(fits), strings, pa.scalar(None, strings.type)), fits


def _replaced(a: Vector, old: Vector, new: Vector) -> Vector | None:
    before, after = _only(old), _only(new)
    if a.kind is not Kind.STRING or not before or after is None:
        return None

    def change(strings: pa.Array) -> pa.Array:
        counts = pc.fill_null(pc.count_substring(strings, before), 0).to_numpy(zero_copy_only=False)
        growth = counts.astype(np.int64) * (len(after) - len(before))
        short, _ = _if_short(strings, _lengths(strings) + growth)
        return pc.replace_substring(short, before, after)

    return on_distinct(a, change, Kind.STRING)


def _substring(a: Vector, start: Vector, length: Vector | None = None) -> Vector | None:
    first = _only_number(start)
    n = None if length is None else _only_number(length)
    is_plain = first is not None and first >= 0 and (length is None or (n is not None and n >= 0))
    if a.kind is not Kind.STRING or first is None or not is_plain:
        return None
    begin = max(first - 1, 0)
    end = None if n is None else max(first - 1 + n, 0)

    def change(strings: pa.Array) -> pa.Array:
        return pc.utf8_slice_codeunits(strings, begin, end)

    return on_distinct(a, change, Kind.STRING)


def _trimmed(trim: Callable[[pa.Array, str], pa.Array]) -> Callable[..., Vector | None]:
    def applied(a: Vector, *characters: Vector) -> Vector | None:
        text = _only(characters[0]) if characters else " "
        if a.kind is not Kind.STRING or not text:
            return None
        return on_distinct(a, lambda strings: trim(strings, text), Kind.STRING)

    return applied


def _kind_names(a: Vector) -> Vector:
    assert a.kind is not None
    return Vector(Kind.STRING, constant(a.kind.value, Kind.STRING, len(a)).values, a.here)


def _int32(a: Vector) -> Vector | None:
    if a.kind is Kind.BOOLEAN:
        return Vector(Kind.INTEGER, a.values.astype(np.int64), a.here)
    if a.kind is Kind.INTEGER:
        return Vector(a.kind, a.values, _limited(a.here, a.values.astype(np.int32) == a.values))
    if a.kind is not Kind.STRING:
        return absent(len(a))

    def change(strings: pa.Array) -> pa.Array:
        return pa.array([functions.to_int32(text) for text in strings.to_pylist()], pa.int64())

    return on_distinct(a, change, Kind.INTEGER)


# Timestamps.


def _extracted(field: Vector, moment: Vector) -> Vector | None:
    name = _only(field)
    if moment.kind is not Kind.TIMESTAMP or name is None:
        return None
    if name == "epoch":
        return Vector(Kind.FLOAT, moment.values / 1_000_000, moment.here)
    if name not in _FIELDS:
        return None
    moments = pa.array(moment.values.view("datetime64[us]"))
    values = _FIELDS[name](moments).to_numpy(zero_copy_only=False).astype(np.int64)
    return Vector(Kind.INTEGER, values, moment.here)


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "week": pc.iso_week,
    "doy": pc.day_of_year,
    "isodow": lambda moments: pc.day_of_week(moments, count_from_zero=False),
    "dow": lambda moments: pc.day_of_week(moments, week_start=7),
}


def shift(moments: Vector, microseconds: int) -> Vector | None:
    """Return moments some time later; what is beyond the calendar is absent."""
    if moments.kind is not Kind.TIMESTAMP:
        return None
    low, high = _FIRST - min(microseconds, 0), _LAST - max(microseconds, 0)
    fits = (moments.values >= low) & (moments.values <= high)
    values = np.where(fits, moments.values, 0) + (microseconds if fits.any() else 0)
    return Vector(Kind.TIMESTAMP, values, _limited(moments.here, fits))


_FAST: dict[str, Callable[..., Vector | None]] = {
    **{op: _comparison(op) for op in _COMPARE},
    "+": _sum(1),
    "-": _sum(-1),
    "*": _product,
    "/": _quotient,
    "%": _remainder,
    "neg": _negative,
    "abs": _absolute,
    "floor": _on_floats(np.floor),
    "ceil": _on_floats(np.ceil),
    "sqrt": _root,
    "least": _extreme("<"),
    "greatest": _extreme(">"),
    "coalesce": _coalesce,
    "||": _concatenated,
    "concat": _concatenated,
    "lower": _of_strings(pc.utf8_lower, Kind.STRING),
    "upper": _of_strings(pc.utf8_upper, Kind.STRING),
    "length": _of_strings(pc.utf8_length, Kind.INTEGER),
    "trim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "starts_with": _with_text(lambda s, text: pc.starts_with(s, text), Kind.BOOLEAN),
    "ends_with": _with_text(lambda s, text: pc.ends_with(s, text), Kind.BOOLEAN),
    "contains": _with_text(lambda s, text: pc.match_substring(s, text), Kind.BOOLEAN),
    "regexp_matches": _with_text(_find_pattern, Kind.BOOLEAN),
    "replace": _replaced,
    "substring": _substring,
    "extract": _extracted,
    "typeof": _kind_names,
    "int32": _int32,
}
"""Functions of whole vectors; where one returns None, the arguments are taken one by one."""
