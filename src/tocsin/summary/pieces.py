"""Many pieces of one domain → few: unions, and covers of them.

Enters: intervals of one domain as flat cuts (`normalize.keys`), in any order and overlapping, or as
Python cuts. Leaves: their union in order; or, if that has more intervals than the limit, a few
intervals that cover it. These depend on the union alone, not on the order of insertion, so that a
maintained summary equals a rebuilt one.

If there are too many, the widest gaps between numbers or timestamps stay and the others are closed.
Strings have no distances: too many of them become one interval, by their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.normalize.domains import Domain, Intervals
from tocsin.normalize.keys import flatten_cut, floats_of, unflatten_cut


class Limits(NamedTuple):
    """Size limits of a summary for one attribute and domain."""

    max_pieces: int = 64
    """Intervals of numbers or timestamps."""
    max_values: int = 1024
    """Strings, or intervals of them."""

    def of(self, domain: Domain) -> int:
        """Return the maximum number of intervals of a domain."""
        return self.max_values if domain is Domain.STRING else self.max_pieces


DEFAULT_LIMITS = Limits()


def check_limits(max_pieces: object, max_values: object) -> Limits:
    """Raise `ArgumentError` unless the limits are positive integers."""
    for name, value in (("max_pieces", max_pieces), ("max_values", max_values)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"{name} must be a whole number, at least 1, not {value!r}")
    return Limits(max_pieces, max_values)  # type: ignore[arg-type]


class Pieces(NamedTuple):
    """Intervals of one domain as flat cuts."""

    low_key: NDArray[np.int64]
    low_offset: NDArray[np.int16]
    high_key: NDArray[np.int64]
    high_offset: NDArray[np.int16]


def unite(pieces: Pieces) -> Pieces:
    """Return the union, in order; pieces that touch become one."""
    if len(pieces.low_key) < 2:
        return pieces
    by_low = (
        np.lexsort((pieces.low_offset, pieces.low_key))
        if pieces.low_offset.any()
        else np.argsort(pieces.low_key)
    )
    low_key, low_offset = pieces.low_key[by_low], pieces.low_offset[by_low]
    reach_key, reach_offset = _running_maximum(pieces.high_key[by_low], pieces.high_offset[by_low])
    starts = np.ones(len(by_low), np.bool_)
    starts[1:] = (low_key[1:] > reach_key[:-1]) | (
        (low_key[1:] == reach_key[:-1]) & (low_offset[1:] > reach_offset[:-1])
    )
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(by_low)) - 1
    return Pieces(low_key[first], low_offset[first], reach_key[last], reach_offset[last])


def _running_maximum(
    keys: NDArray[np.int64], offsets: NDArray[np.int16]
) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Return the running maximum of cuts."""
    reach = np.maximum.accumulate(keys)
    if not offsets.any():
        return reach, np.zeros(len(keys), np.int16)
    run = np.zeros(len(keys), np.int64)
    np.cumsum(reach[1:] != reach[:-1], out=run[1:])
    own = np.where(keys == reach, offsets.astype(np.int64), 0)
    return reach, (np.maximum.accumulate((run << 16) + own) & 0xFFFF).astype(np.int16)


def reduce(domain: Domain, union: Pieces, limits: Limits) -> Pieces:
    """Return intervals within the limits that cover a union."""
    most = limits.of(domain)
    n = len(union.low_key)
    if n <= most:
        return union
    if domain is Domain.STRING or most == 1:
        first, last = np.zeros(1, np.int64), np.full(1, n - 1)
    else:
        kept = np.sort(np.argsort(-_gaps(domain, union), kind="stable")[: most - 1])
        first, last = np.append(0, kept + 1), np.append(kept, n - 1)
    return Pieces(
        union.low_key[first], union.low_offset[first], union.high_key[last], union.high_offset[last]
    )


def _gaps(domain: Domain, union: Pieces) -> NDArray[np.float64]:
    """Return how far each interval's end is from the next one's start."""
    ends, starts = union.high_key[:-1], union.low_key[1:]
    if domain is Domain.NUMBER:
        with np.errstate(over="ignore"):
            return np.asarray(floats_of(starts) - floats_of(ends))
    return starts.astype(np.float64) - ends.astype(np.float64)


def to_intervals(
    domain: Domain, pieces: Pieces, string_of: Callable[[int], str] | None = None
) -> Intervals:
    """Return pieces as Python cuts; `string_of` gives the string of a rank."""
    string_of = string_of or _no_string
    rows = zip(*(array.tolist() for array in pieces), strict=True)
    return tuple(
        (
            unflatten_cut(domain, low_key, low_offset, string_of),
            unflatten_cut(domain, high_key, high_offset, string_of),
        )
        for low_key, low_offset, high_key, high_offset in rows
    )


def reduce_intervals(domain: Domain, union: Intervals, limits: Limits) -> Intervals:
    """Return intervals within the limits that cover a union of Python cuts."""
    if len(union) <= limits.of(domain):
        return union
    if domain is Domain.STRING:
        return ((union[0][0], union[-1][1]),)
    cuts = [
        (*flatten_cut(domain, low, _no_rank), *flatten_cut(domain, high, _no_rank))
        for low, high in union
    ]
    flat = np.array(cuts, np.int64)
    pieces = Pieces(
        flat[:, 0].copy(),
        flat[:, 1].astype(np.int16),
        flat[:, 2].copy(),
        flat[:, 3].astype(np.int16),
    )
    return to_intervals(domain, reduce(domain, pieces, limits))


def _no_rank(_: str) -> int:
    raise AssertionError("only strings have ranks")


def _no_string(_: int) -> str:
    raise AssertionError("only strings have ranks")
