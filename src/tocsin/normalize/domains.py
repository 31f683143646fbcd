"""Domains of values, and the cuts that divide them.

Every comparable value belongs to one of four *domains*: numbers (integers and floats together),
strings, booleans, timestamps. A *cut* is a boundary between neighbouring values of a domain:
`(key, 0)` just before a value, `(key, 1)` just after it. An interval is a pair of cuts, so that
open and closed bounds, points and complements need no flags: a value is inside if the cut before it
is at or after the lower cut and the cut after it is at or before the upper one.

Enters: Python values and cuts. Leaves: canonical cuts, one for each boundary, so that equal sets
are equal objects: a float with an integer's value is written as that integer; in the discrete
domains, and for attributes declared integer, "after n" is written "before n + 1"; "before s + NUL"
is written "after s", since no string lies between.

Python compares integers and floats by their mathematical values, as the language requires.
"""

from __future__ import annotations

import datetime as dt
import math
from bisect import bisect_right
from enum import IntEnum
from operator import itemgetter
from typing import Any, TypeAlias

from tocsin.model import INT64_MAX, INT64_MIN, Kind, to_microseconds


class Domain(IntEnum):
    """The four domains; their numbers are used in arrays."""

    NUMBER = 0
    STRING = 1
    BOOLEAN = 2
    TIMESTAMP = 3


DOMAIN_OF_KIND = {
    Kind.INTEGER: Domain.NUMBER,
    Kind.FLOAT: Domain.NUMBER,
    Kind.STRING: Domain.STRING,
    Kind.BOOLEAN: Domain.BOOLEAN,
    Kind.TIMESTAMP: Domain.TIMESTAMP,
}


class _Top:
    """Greater than every string."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __le__(self, other: object) -> bool:
        return other is self

    def __ge__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "TOP"

    def __reduce__(self) -> str:
        return "TOP"


TOP = _Top()

Cut: TypeAlias = tuple[Any, int]
Interval: TypeAlias = tuple[Cut, Cut]
Intervals: TypeAlias = tuple[Interval, ...]

_LOW: Cut = (-math.inf, 0)
_HIGH: Cut = (math.inf, 1)
LOW: tuple[Cut, ...] = (_LOW, ("", 0), _LOW, _LOW)
HIGH: tuple[Cut, ...] = (_HIGH, (TOP, 0), _HIGH, _HIGH)
FULL: tuple[Intervals, ...] = tuple(((LOW[domain], HIGH[domain]),) for domain in Domain)


_FEW = 8
"""Up to this number, intervals are searched linearly."""


def to_key(value: object) -> Any:
    """Return the canonical key of a value in its domain; NaN and None have none."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if value.is_integer() and INT64_MIN <= value <= INT64_MAX:
            return int(value)
        return value
    if isinstance(value, dt.datetime):
        return to_microseconds(value)
    return value


def cut_before(domain: Domain, value: object) -> Cut:
    """Return the cut just before a value."""
    key = to_key(value)
    if domain is Domain.NUMBER:
        return (key, 0)
    if domain is Domain.STRING:
        return (key[:-1], 1) if key.endswith("\0") else (key, 0)
    return _discrete_cut(domain, key)


def cut_after(domain: Domain, value: object) -> Cut:
    """Return the cut just after a value."""
    key = to_key(value)
    if domain is Domain.NUMBER or domain is Domain.STRING:
        return (key, 1)
    return _discrete_cut(domain, key + 1)


def _discrete_cut(domain: Domain, key: int) -> Cut:
    least, greatest = (0, 1) if domain is Domain.BOOLEAN else (INT64_MIN, INT64_MAX)
    if key <= least:
        return _LOW
    return _HIGH if key > greatest else (key, 0)


def tighten(cut: Cut) -> Cut:
    """Move a cut between numbers up to the next integer: for attributes declared integer."""
    key, side = cut
    if isinstance(key, float):  # not a 64-bit integer's value, by canonical form
        if math.isinf(key) or not INT64_MIN <= key <= INT64_MAX:
            return _LOW if key < 0 else _HIGH
        key, side = math.ceil(key), 0
    least = key + side
    if least <= INT64_MIN:
        return _LOW
    return _HIGH if least > INT64_MAX else (least, 0)


def tighten_intervals(intervals: Intervals) -> Intervals:
    """Reduce every interval to the integers in it; join intervals that then touch."""
    tightened = [(tighten(lo), tighten(hi)) for lo, hi in intervals]
    return unite(tuple((lo, hi) for lo, hi in tightened if lo < hi), ())


def point_value(interval: Interval) -> Any:
    """Return the key of an interval with exactly one number or string, else None."""
    (low, low_side), (high, high_side) = interval
    if low_side == 0 and high_side == 1 and low == high:
        return low
    if isinstance(low, str) and low_side == high_side == 1 and high == low + "\0":
        return high
    return None


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the intersection."""
    if len(a) == 1 and len(b) == 1:
        low, high = max(a[0][0], b[0][0]), min(a[0][1], b[0][1])
        return ((low, high),) if low < high else ()
    both: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low < high:
            both.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def unite(a: Intervals, b: Intervals) -> Intervals:
    """Return the union; touching intervals are joined."""
    united: list[Interval] = []
    for low, high in sorted(a + b):
        if united and low <= united[-1][1]:
            if high > united[-1][1]:
                united[-1] = (united[-1][0], high)
        else:
            united.append((low, high))
    return tuple(united)


def complement(domain: Domain, intervals: Intervals) -> Intervals:
    """Return the rest of the domain."""
    gaps: list[Interval] = []
    reached = LOW[domain]
    for low, high in intervals:
        if reached < low:
            gaps.append((reached, low))
        reached = high
    if reached < HIGH[domain]:
        gaps.append((reached, HIGH[domain]))
    return tuple(gaps)


def contains(a: Intervals, b: Intervals) -> bool:
    """Whether every value in b is in a."""
    i = 0
    for low, high in b:
        while i < len(a) and a[i][1] < high:
            i += 1
        if i == len(a) or a[i][0] > low:
            return False
    return True


def holds(intervals: Intervals, key: object) -> bool:
    """Whether the value with this canonical key is in the intervals."""
    cut = (key, 0)
    if len(intervals) > _FEW:
        at = bisect_right(intervals, cut, key=itemgetter(0))
        return at > 0 and bool(cut < intervals[at - 1][1])
    return any(low <= cut < high for low, high in intervals)
