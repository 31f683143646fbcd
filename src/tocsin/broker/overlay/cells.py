"""Ranges ↔ cells: how numbers and timestamps travel coded over a link.

Enters: intervals of a domain, and the bounds that an attribute has. Leaves: a *grid* for it, the
intervals rounded outward to the grid's cells, and such intervals as bits (Zhao and Wu, section
III-E.2; `coding.py`). A grid halves a span `levels` times; its first cell takes in all
values below it and its last all above it, so that each interval, an endless one too, is some cells.

A cell begins at a whole multiple of a power of two. So both ends of a link compute the same bounds,
without rounding, and cells of two grids with the same step are the same. A span is at least twice
as wide as the bounds are apart, so that they may move before another grid is needed.

Values that must stay exact have no cells: single values, as in the paper, and intervals that are
short for their magnitude, such as integers beyond 2^53 that lie close together. Strings and
booleans have none either.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from tocsin.broker.overlay.coding import code_range, decode_bounds, split
from tocsin.broker.overlay.fields import MAX_ATTRIBUTES, shown, to_attribute
from tocsin.errors import ArgumentError, ProtocolError
from tocsin.normalize import domains
from tocsin.normalize.condition import Condition, on_domain
from tocsin.normalize.domains import HIGH, LOW, Cut, Domain, Interval, point_value

DEEPEST = 30
_DOMAINS = (Domain.NUMBER, Domain.TIMESTAMP)
_EXPONENTS = range(-1000, 960)
_MOST = 1 << 53
"""Up to here multiples are exact as floats."""


class Grid(NamedTuple):
    """Cells `first`, `first + 1`, … of a line, 2^levels of them, each 2^exponent wide."""

    domain: int
    first: int
    exponent: int
    levels: int

    @property
    def last(self) -> int:
        """The last cell, counted from 0 on."""
        return (1 << self.levels) - 1

    def place(self, cut: Cut) -> int:
        """Return the cell in which the value after a cut lies, whether there is one or not."""
        key: float = cut[0]
        if math.isinf(key):
            return -1 if key < 0 else self.last + 1
        above, below = key.as_integer_ratio()  # exact, unlike a quotient of floats
        return (above << max(-self.exponent, 0)) // (below << max(self.exponent, 0)) - self.first

    def cells(self, interval: Interval) -> tuple[int, int]:
        """Return the first and the last cell that an interval reaches into."""
        low, high = interval
        begin, end = self.place(low), self.place(high)
        if 0 < end <= self.last and high == self._cut(end):  # it ends just before a cell
            end -= 1
        return min(max(begin, 0), self.last), min(max(end, 0), self.last)

    def interval(self, begin: int, end: int) -> Interval:
        """Return what some cells hold together."""
        low = LOW[self.domain] if begin == 0 else self._cut(begin)
        return low, HIGH[self.domain] if end == self.last else self._cut(end + 1)

    def _cut(self, cell: int) -> Cut:
        value = math.ldexp(self.first + cell, self.exponent)
        is_whole = self.domain == Domain.TIMESTAMP
        return domains.cut_before(Domain(self.domain), int(value) if is_whole else value)

    def reaches(self, bound: float) -> bool:
        """Whether a bound lies within the grid."""
        return 0 < self.place((bound, 0)) < self.last

    def fits(self, low: float, high: float) -> bool:
        """Whether bounds lie within the grid, and are not too close together for it."""
        apart = math.frexp(_spread(low, high))[1] - self.exponent
        return self.reaches(low) and self.reaches(high) and self.levels - 4 < apart < self.levels


Grids: TypeAlias = Mapping[str, Grid]
"""The grids of attributes."""


def choose(domain: int, low: float, high: float, levels: int) -> Grid | None:
    """Return a grid with at least 2^levels cells between two bounds; None where none is exact."""
    wide = math.frexp(_spread(low, high))[1]
    exponent = wide - 1 - min(levels, DEEPEST - 2)
    if domain == Domain.TIMESTAMP:
        exponent = max(exponent, 0)
    most = math.frexp(max(abs(low), abs(high)))[1]
    if exponent not in _EXPONENTS or most > 1000 or exponent < most - 49:
        return None
    grid = Grid(domain, 0, exponent, wide - exponent + 1)
    middle = (grid.place((low, 0)) + grid.place((high, 0))) // 2
    return grid._replace(first=middle - (1 << grid.levels - 1))


def _spread(low: float, high: float) -> float:
    """Return how far bounds are apart; of one bound, its magnitude."""
    return float(high - low) or abs(float(high)) or 1.0


def only_domain(condition: Condition) -> Domain | None:
    """Return the line of a condition that is nothing but intervals of it, where it has cells."""
    if condition.absent or condition.other or condition.patterns:
        return None
    used = [domain for domain in Domain if condition.intervals[domain]]
    return used[0] if len(used) == 1 and used[0] in _DOMAINS else None


def to_round(condition: Condition) -> Domain | None:
    """Return the line of a condition that is nothing but ranges; single values stay exact."""
    domain = only_domain(condition)
    return None if domain is None or any(map(_is_single, condition.intervals[domain])) else domain


def _is_single(interval: Interval) -> bool:
    """Whether it is a value, or the integers or moments in it are one."""
    (low, low_side), (high, high_side) = interval
    if isinstance(low, int) and isinstance(high, int) and not low_side and not high_side:
        return high == low + 1
    return point_value(interval) is not None


def rounded(condition: Condition, grid: Grid) -> Condition:
    """Return a condition of whole cells that holds for whatever the given one does."""
    domain = to_round(condition)
    if domain is None or domain != grid.domain:
        return condition
    outer = tuple(grid.interval(*grid.cells(each)) for each in condition.intervals[domain])
    return on_domain(domain, domains.unite(outer, ()))


def code(condition: Condition, grid: Grid) -> str | None:
    """Return a condition of whole cells as bits; None where it is something else."""
    if only_domain(condition) != grid.domain:
        return None
    coded = b""
    for interval in condition.intervals[grid.domain]:
        begin, end = grid.cells(interval)
        if grid.interval(begin, end) != interval:
            return None
        coded += code_range(begin, end, grid.levels)
    return base64.b64encode(coded).rstrip(b"=").decode()


def decode(text: str, grid: Grid) -> Condition:
    """Undo `code`, or refuse what is ill-formed."""
    try:
        coded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        intervals = [grid.interval(*_leaves(each, grid)) for each in split(coded)]
    except (ArgumentError, binascii.Error, ValueError) as error:
        raise ProtocolError(f"{shown(text)} is no coded condition: {error}") from None
    if not intervals or any(not low < high for low, high in intervals):
        raise ProtocolError(f"{shown(text)} is no coded condition: it holds nothing")
    return on_domain(Domain(grid.domain), domains.unite(tuple(intervals), ()))


def _leaves(coded: bytes, grid: Grid) -> tuple[int, int]:
    low, high, level = decode_bounds(coded)
    finer = grid.levels - level
    if finer < 0:
        raise ArgumentError("the cells are finer than the grid")
    return low << finer, ((high + 1) << finer) - 1


class Codes:
    """The grids of a topic that one end of a connection has named, and how often they were used."""

    def __init__(self) -> None:
        self.grids: dict[str, Grid] = {}
        self.n = 0

    def write(self, name: str, condition: Condition) -> str | None:
        """Return the condition of an attribute as bits, where it is made up of known cells."""
        grid = self.grids.get(name)
        coded = None if grid is None else code(condition, grid)
        self.n += coded is not None
        return coded

    def read(self, name: str, text: str) -> Condition:
        """Undo `write`, or refuse what is ill-formed."""
        if name not in self.grids:
            raise ProtocolError(f"{name} is coded, but has no cells")
        self.n += 1
        return decode(text, self.grids[name])


PLAIN = Codes()
"""For what is not coded."""


# As JSON.


def grids_to_plain(grids: Grids) -> dict[str, list[int]]:
    """Return grids as what JSON can hold."""
    return {name: list(grid) for name, grid in grids.items()}


def grids_of_plain(value: object) -> dict[str, Grid]:
    """Undo `grids_to_plain`, or refuse what is ill-formed."""
    if not isinstance(value, dict):
        raise ProtocolError("CELLS has an object of grids")
    if len(value) > MAX_ATTRIBUTES:
        raise ProtocolError(f"{len(value)} grids; at most {MAX_ATTRIBUTES} are taken")
    return {to_attribute(name): _grid(each) for name, each in value.items()}


def _grid(value: object) -> Grid:
    if not isinstance(value, list) or len(value) != 4 or not _are_whole(value):
        raise ProtocolError(
            f"{shown(value)} is no grid: it has a line, a cell, an exponent, levels"
        )
    grid = Grid(*value)
    if (
        grid.domain not in _DOMAINS
        or grid.exponent not in _EXPONENTS
        or (grid.domain == Domain.TIMESTAMP and grid.exponent < 0)
        or not 1 <= grid.levels <= DEEPEST
        or not -_MOST < grid.first < _MOST - (1 << grid.levels)
    ):
        raise ProtocolError(f"{shown(value)} is no grid")
    return grid


def _are_whole(value: Iterable[object]) -> bool:
    return all(type(each) is int for each in value)
