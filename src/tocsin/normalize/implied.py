"""Necessary conditions: what a condition on a computed value says of the attributes in it.

Enters: a shape, its constants, and the range that each of its terms must be in. Leaves: ranges of
attributes, without which a term cannot be in its range: for `abs(price - 5) < 2` an interval of
`price`, for a distance a box, which is two boxes where it crosses the date line. An index has these
conditions, so that a term is computed for few events. They need not be tight, but they must hold;
ranges are widened by what rounding may lose. A range is two arrays of bounds, by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.language.places import RADIUS, box_of, known_polygon
from tocsin.language.terms import Attribute, Call, Term
from tocsin.model import Kind
from tocsin.normalize.shapes import Shape, constant_name, constant_number, is_constant_name

Floats: TypeAlias = NDArray[np.float64]

_SLACK = 1e-9
"""More than what a few operations on floats lose, relative to their size."""
_DEGREES = 180 / math.pi


class Range(NamedTuple):
    """From `low` to `high`, both included; empty where low is above high."""

    low: Floats
    high: Floats


class Bounds:
    """The ranges of attributes, and the longitudes that consist of two ranges."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.ranges: dict[str, Range] = {}
        self.divided: dict[str, tuple[Range, Range]] = {}
        """Where a second range is not empty, a value is in one of the two."""

    def add(self, name: str, within: Range) -> None:
        """Demand that an attribute is in a range."""
        own = self.ranges.get(name, everything(self._n))
        low, high = np.fmax(own.low, within.low), np.fmin(own.high, within.high)
        self.ranges[name] = Range(low, high)

    def add_divided(self, name: str, first: Range, second: Range) -> None:
        """Demand that an attribute is in one of two ranges; the second may be empty."""
        is_one = second.low > second.high
        lows, highs = np.where(is_one, first.low, -np.inf), np.where(is_one, first.high, np.inf)
        self.add(name, Range(lows, highs))
        if not is_one.all() and name not in self.divided:
            self.divided[name] = first, Range(*(np.where(is_one, np.nan, end) for end in second))


def everything(n: int) -> Range:
    """Return ranges of all numbers."""
    return Range(np.full(n, -np.inf), np.full(n, np.inf))


def implied_by(shape: Shape, within: Range, is_true: NDArray[np.bool_]) -> Bounds:
    """Return the ranges of attributes where the terms of a shape are in theirs, or are true."""
    bounds = Bounds(len(within.low))
    values = {
        constant_name(at): np.asarray(column, np.float64)
        for at, (kind, column) in enumerate(zip(shape.kinds, shape.columns, strict=True))
        if kind in (Kind.INTEGER, Kind.FLOAT)
    }
    term = shape.term
    with np.errstate(all="ignore"):
        if isinstance(term, Call) and term.function == "inside":
            _of_inside(term, shape, is_true, bounds)
        else:
            _Narrowing(values, len(within.low), bounds).narrow(term, _widened(*within))
    return bounds


class _Narrowing:
    """Leads ranges of terms to ranges of the attributes in them."""

    def __init__(self, constants: Mapping[str, Floats], n: int, bounds: Bounds) -> None:
        self.constants, self.n, self.bounds = constants, n, bounds

    def narrow(self, term: Term, within: Range) -> None:
        """Note what follows from a term's being in a range."""
        if isinstance(term, Attribute):
            if not term.name.startswith("\0"):
                self.bounds.add(term.name, within)
        elif isinstance(term, Call) and term.function in _BACKWARDS:
            _BACKWARDS[term.function](self, term.arguments, within)

    def range_of(self, term: Term) -> Range:
        """Return the range in which all values of a term are."""
        if isinstance(term, Attribute) and term.name in self.constants:
            value = self.constants[term.name]
            return Range(np.where(np.isnan(value), -np.inf, value), np.fmin(value, np.inf))
        if not isinstance(term, Call):
            return everything(self.n)
        if self.is_square(term) or term.function in ("abs", "sqrt", "distance", "length"):
            return Range(np.zeros(self.n), np.full(self.n, np.inf))
        if term.function not in ("+", "-", "neg"):
            return everything(self.n)
        parts = [self.range_of(part) for part in term.arguments]
        if term.function == "neg":
            return Range(-parts[0].high, -parts[0].low)
        a, b = parts
        if term.function == "+":
            return _widened(a.low + b.low, a.high + b.high, *a, *b)
        return _widened(a.low - b.high, a.high - b.low, *a, *b)

    def is_square(self, term: Call) -> bool:
        """Whether a term is the square of another."""
        if term.function == "*":
            return term.arguments[0] == term.arguments[1]
        if term.function != "power" or not isinstance(term.arguments[1], Attribute):
            return False
        exponent = self.constants.get(term.arguments[1].name)
        return exponent is not None and bool((exponent == 2).all())

    def add(self, arguments: Sequence[Term], within: Range) -> None:
        left, right = arguments
        a, b = self.range_of(left), self.range_of(right)
        self.narrow(left, _widened(within.low - b.high, within.high - b.low, *within, *b))
        self.narrow(right, _widened(within.low - a.high, within.high - a.low, *within, *a))

    def subtract(self, arguments: Sequence[Term], within: Range) -> None:
        left, right = arguments
        a, b = self.range_of(left), self.range_of(right)
        self.narrow(left, _widened(within.low + b.low, within.high + b.high, *within, *b))
        self.narrow(right, _widened(a.low - within.high, a.high - within.low, *within, *a))

    def multiply(self, arguments: Sequence[Term], within: Range) -> None:
        if self.is_square(Call("*", tuple(arguments))):
            self.narrow(arguments[0], _plus_or_minus(np.sqrt(np.fmax(within.high, 0)), within))
            return
        for factor, part in (arguments, arguments[::-1]):
            if isinstance(factor, Attribute) and factor.name in self.constants:
                by = self.constants[factor.name]
                by = np.where(np.isfinite(by) & (by != 0), by, np.nan)
                self.narrow(part, _between(within.low / by, within.high / by))

    def divide(self, arguments: Sequence[Term], within: Range) -> None:
        part, divisor = arguments
        if isinstance(divisor, Attribute) and divisor.name in self.constants:
            by = self.constants[divisor.name]
            by = np.where(np.isfinite(by), by, np.nan)
            self.narrow(part, _between(within.low * by, within.high * by))

    def negate(self, arguments: Sequence[Term], within: Range) -> None:
        self.narrow(arguments[0], Range(-within.high, -within.low))

    def absolute(self, arguments: Sequence[Term], within: Range) -> None:
        self.narrow(arguments[0], _plus_or_minus(within.high, within))

    def root(self, arguments: Sequence[Term], within: Range) -> None:
        most = np.where(within.high < 0, -np.inf, within.high * within.high)
        self.narrow(arguments[0], _widened(np.zeros(self.n), most))

    def raise_to(self, arguments: Sequence[Term], within: Range) -> None:
        if self.is_square(Call("power", tuple(arguments))):
            self.narrow(arguments[0], _plus_or_minus(np.sqrt(np.fmax(within.high, 0)), within))

    def distance(self, arguments: Sequence[Term], within: Range) -> None:
        for (lat, lon), other in (
            (arguments[:2], arguments[2:]),
            (arguments[2:], arguments[:2]),
        ):
            center = [self.constants.get(c.name) for c in other if isinstance(c, Attribute)]
            if len(center) == 2 and center[0] is not None and center[1] is not None:
                _add_circle(lat, lon, center[0], center[1], within.high, self.bounds)


_BACKWARDS: dict[str, Callable[[_Narrowing, Sequence[Term], Range], None]] = {
    "+": _Narrowing.add,
    "-": _Narrowing.subtract,
    "*": _Narrowing.multiply,
    "/": _Narrowing.divide,
    "neg": _Narrowing.negate,
    "abs": _Narrowing.absolute,
    "sqrt": _Narrowing.root,
    "power": _Narrowing.raise_to,
    "distance": _Narrowing.distance,
}
"""How the range of a result leads to the ranges of the arguments."""


def _widened(low: Floats, high: Floats, *sizes: Floats) -> Range:
    """Return a range with room for what rounding may lose; what is not known is infinite."""
    size = np.zeros(len(low))
    for each in (low, high, *sizes):
        size = np.fmax(size, np.where(np.isfinite(each), np.abs(each), 0))
    slack = _SLACK * size
    low = np.where(np.isnan(low), -np.inf, low - slack)
    return Range(low, np.where(np.isnan(high), np.inf, high + slack))


def _between(a: Floats, b: Floats) -> Range:
    return _widened(np.minimum(a, b), np.maximum(a, b))


def _plus_or_minus(most: Floats, within: Range) -> Range:
    """Return the range of what has at most a magnitude; empty where even zero is too much."""
    most = np.where(within.high < 0, -np.inf, most)
    return _widened(-most, most)


def _add_circle(
    lat: Term, lon: Term, center_lat: Floats, center_lon: Floats, metres: Floats, bounds: Bounds
) -> None:
    """Note the box of a circle."""
    angle = np.where(metres < 0, -np.inf, metres / RADIUS)
    degrees = angle * (_DEGREES * (1 + _SLACK)) + _SLACK
    south, north = center_lat - degrees, center_lat + degrees
    ratio = np.sin(np.clip(angle, 0, math.pi / 2)) / np.cos(np.radians(center_lat))
    width = np.degrees(np.arcsin(np.clip(ratio, 0, 1))) * (1 + _SLACK) + _SLACK
    is_everywhere = (north >= 90) | (south <= -90) | (ratio >= 1 - _SLACK) | (angle >= math.pi / 2)
    width = np.where(is_everywhere | np.isnan(width), np.inf, width)
    if isinstance(lat, Attribute) and not lat.name.startswith("\0"):
        bounds.add(lat.name, Range(south, north))
    if isinstance(lon, Attribute) and not lon.name.startswith("\0"):
        west, east = center_lon - width, center_lon + width
        is_beyond_west, is_beyond_east = west <= -180, east >= 180
        is_divided = (is_beyond_west | is_beyond_east) & np.isfinite(width)
        first = Range(np.where(is_beyond_west & is_divided, -np.inf, west), east)
        first = Range(first.low, np.where(is_beyond_east & is_divided, np.inf, first.high))
        second_low = np.where(is_beyond_west, west + 360, -np.inf)
        second_high = np.where(is_beyond_east, east - 360, np.inf)
        second = Range(
            np.where(is_divided, second_low, np.inf), np.where(is_divided, second_high, -np.inf)
        )
        bounds.add_divided(lon.name, first, second)


def _of_inside(term: Call, shape: Shape, is_true: NDArray[np.bool_], bounds: Bounds) -> None:
    """Note the boxes of polygons."""
    lat, lon, polygon = term.arguments
    if not isinstance(polygon, Attribute) or not is_constant_name(polygon.name):
        return
    n = len(is_true)
    south, north = everything(n)
    wests, easts = np.full((2, n), np.inf), np.full((2, n), -np.inf)
    wests[0], easts[0] = -np.inf, np.inf
    texts = shape.columns[constant_number(polygon.name)]
    for at in np.flatnonzero(is_true).tolist():
        known = known_polygon(texts[at].as_py())
        if known is None:
            continue
        (south[at], north[at]), spans = box_of(known)
        if len(spans) <= 2:
            for place, span in enumerate(spans):
                wests[place, at], easts[place, at] = span
    if isinstance(lat, Attribute) and not lat.name.startswith("\0"):
        bounds.add(lat.name, Range(south, north))
    if isinstance(lon, Attribute) and not lon.name.startswith("\0"):
        first, second = (Range(wests[place] - _SLACK, easts[place] + _SLACK) for place in range(2))
        bounds.add_divided(lon.name, first, second)
