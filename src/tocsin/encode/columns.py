"""The columns of a batch of events: the values of an attribute, by domain.

Enters: an Arrow array of a supported kind. Leaves: a `Column`, which shares the memory of the array
where possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING, decimal_numbers
from tocsin.model import Kind, kind_of, to_microseconds
from tocsin.normalize.domains import DOMAIN_OF_KIND, Domain


class Part(NamedTuple):
    """The values of one attribute in one domain.

    `values` is an int64, float64 or (for strings) Arrow large_string array with an entry for every
    event; `here` marks the valid entries, or is None if all are valid.
    """

    domain: Domain
    values: Any
    here: NDArray[np.bool_] | None


class Column(NamedTuple):
    """One attribute of a batch: its values by domain, and the events with a value of no domain."""

    parts: tuple[Part, ...]
    other: NDArray[np.bool_] | None


NO_COLUMN = Column((), None)


def to_column(array: pa.Array, kind: Kind) -> Column:
    """Return an array as a column; a NaN is a value of no domain."""
    here = None if array.null_count == 0 else _is_valid(array)
    domain = DOMAIN_OF_KIND[kind]
    if kind is Kind.STRING:
        return Column((Part(domain, array, here),), None)
    if kind is Kind.BOOLEAN:
        values = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.int64)
        return Column((Part(domain, values, here),), None)
    if kind is Kind.TIMESTAMP:
        array = array.view(pa.int64())
    values = _plain(array)
    if kind is Kind.FLOAT and _may_have_nan(values):
        nan = np.isnan(values)
        if nan.any():
            other = nan if here is None else nan & here
            return Column((Part(domain, values, ~nan if here is None else here & ~nan),), other)
    return Column((Part(domain, values, here),), None)


def column_of_values(values: Sequence[object]) -> Column:
    """Return plain Python values, one for each event, as a column; None is absent."""
    by_domain: dict[Domain, list[tuple[int, Any, Kind]]] = {}
    others: list[int] = []
    for row, value in enumerate(values):
        if value is None:
            continue
        kind = kind_of(value)
        if kind is None or (kind is Kind.FLOAT and math.isnan(value)):  # type: ignore[arg-type]
            others.append(row)
        else:
            by_domain.setdefault(DOMAIN_OF_KIND[kind], []).append((row, value, kind))
    parts: list[Part] = []
    for domain, entries in by_domain.items():
        parts.extend(_parts(domain, entries, len(values)))
    return Column(tuple(parts), _mask(others, len(values)) if others else None)


def _parts(domain: Domain, entries: list[tuple[int, Any, Kind]], n: int) -> Iterator[Part]:
    if domain is Domain.STRING:
        strings: list[str | None] = [None] * n
        for row, value, _ in entries:
            strings[row] = str(value)
        yield Part(domain, pa.array(strings, STRING), _mask([e[0] for e in entries], n))
        return
    for is_float in (False, True):
        rows = [entry for entry in entries if (entry[2] is Kind.FLOAT) is is_float]
        if rows:
            values = np.zeros(n, np.float64 if is_float else np.int64)
            for row, value, kind in rows:
                values[row] = to_microseconds(value) if kind is Kind.TIMESTAMP else value
            yield Part(domain, values, _mask([entry[0] for entry in rows], n))


def _mask(rows: list[int], n: int) -> NDArray[np.bool_]:
    mask = np.zeros(n, np.bool_)
    mask[rows] = True
    return mask


def take_column(column: Column, rows: NDArray[np.int64]) -> Column:
    """Return the values of some events."""
    if not column.parts and column.other is None:
        return NO_COLUMN
    places = pa.array(rows) if any(p.domain is Domain.STRING for p in column.parts) else None
    parts = tuple(
        Part(
            part.domain,
            part.values.take(places) if part.domain is Domain.STRING else part.values[rows],
            None if part.here is None else part.here[rows],
        )
        for part in column.parts
    )
    return Column(parts, None if column.other is None else column.other[rows])


def decimal_column(array: pa.Array) -> Column:
    """Return decimals as a column: floats, and integers that no float equals."""
    numbers = decimal_numbers(array)
    here = None if array.null_count == 0 else _is_valid(array)
    if not numbers.is_large.any():
        return Column((Part(Domain.NUMBER, numbers.floats, here),), None)
    small = ~numbers.is_large if here is None else here & ~numbers.is_large
    floats = Part(Domain.NUMBER, numbers.floats, small)
    return Column((floats, Part(Domain.NUMBER, numbers.integers, numbers.is_large)), None)


def _may_have_nan(values: NDArray[np.float64]) -> bool:
    """Whether a NaN may be among the values; true also if infinities cancel out."""
    with np.errstate(all="ignore"):
        return math.isnan(values.sum())


def _is_valid(array: pa.Array) -> NDArray[np.bool_]:
    """Return which entries of an array are not null."""
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    flags = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")
    return flags[array.offset :].view(np.bool_)


def _plain(array: pa.Array) -> NDArray[Any]:
    """Return the values as they are in memory, undefined at nulls."""
    dtype = np.float64 if pa.types.is_floating(array.type) else np.int64
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    return values
