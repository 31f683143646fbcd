"""Residual tests: conditions on computed values that are decided on candidate pairs only.

Enters: conditions of a conjunction table, such as `distance(lat, lon, 52.1, 4.3) < 5000`, and
candidate pairs of an event and a conjunction. Leaves: the pairs that satisfy them. Conditions whose
terms differ in constants only share a *shape*: the constants are columns, and all pairs of a shape
are decided at once. The values of a shape have cells, as those of attributes have, so that a
condition is a few ranges of cells. Distances are first compared by chords between points on a
sphere, which decides all but those within a billionth of the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch, to_batch
from tocsin.encode.polygons import FlatPolygons, contained, flat_polygons
from tocsin.encode.vectors import Vector, coordinates, to_column
from tocsin.engines.auto import residual_kernels as kernels
from tocsin.engines.auto.arrays import Conditions
from tocsin.engines.conditions import IndexedConditions
from tocsin.engines.ragged import RaggedIds
from tocsin.language.computed import moments_of
from tocsin.language.places import RADIUS, known_polygon
from tocsin.language.terms import Attribute, Call, Term
from tocsin.model import Kind
from tocsin.normalize.describe import describe_condition
from tocsin.normalize.domains import Domain
from tocsin.normalize.elements import is_truth
from tocsin.normalize.implied import Range, everything, implied_by
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, floats_of
from tocsin.normalize.shapes import (
    Shape,
    constant_name,
    constant_number,
    has_constant,
    has_constants,
    is_constant_name,
    read_shapes,
)
from tocsin.normalize.table import (
    ConjunctionTable,
    NewRanges,
    take,
    with_ranges,
    without_conditions,
)

_TOGETHER = 1 << 18
"""How many pairs are decided at once: their values should stay in the cache."""
SHARED = 64
"""A term that as many conjunctions share is computed once for each event."""
_SHARED_PART = 50
"""The same where it is a part of all."""
_FEW_TERMS = 8
"""As many terms of a shape are columns, whoever shares them."""


def divide(table: ConjunctionTable) -> tuple[ConjunctionTable, ConjunctionTable | None]:
    """Divide a table into subscriptions that have a rare term with constants, and all others.

    The others come first.
    """
    rare = _rare(table)
    if not rare.any():
        return table, None
    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    tested = table.subscription[owner[rare[table.attribute]]]
    goes = np.isin(table.subscription, tested)
    return _taken_alone(table, ~goes), _taken_alone(table, goes)


def is_testable(name: str) -> bool:
    """Whether a term has constants, and reads no texts as timestamps."""
    return has_constants(name) and not moments_of(name)


def _taken_alone(table: ConjunctionTable, chosen: NDArray[np.bool_]) -> ConjunctionTable:
    """Take some conjunctions, with no attributes but theirs."""
    part = take(table, np.flatnonzero(chosen))
    return without_conditions(part, np.zeros(part.n_conditions, np.bool_))


def _rare(table: ConjunctionTable) -> NDArray[np.bool_]:
    """Return which attributes are terms with constants that few conjunctions share."""
    rare = np.array([is_testable(name) for name in table.attributes], np.bool_)
    if rare.any():
        counts = np.bincount(table.attribute, minlength=len(rare))
        rare &= counts < max(SHARED, table.n_conjunctions // _SHARED_PART)
    return rare


def marked(table: ConjunctionTable) -> NDArray[np.bool_]:
    """Return which conditions of a table are better tested than indexed by columns of terms.

    Where a shape has few terms, they are columns.
    """
    rare = _rare(table)
    rare[table.attribute[table.pattern_condition]] = False
    names = np.flatnonzero(rare)
    for shape in read_shapes([table.attributes[at] for at in names.tolist()]):
        if len(shape.names) <= _FEW_TERMS:
            rare[names[shape.names]] = False
    return rare[table.attribute]


class _Group(NamedTuple):
    """Tests of one shape, at most one of a conjunction.

    Test t has the t-th of the shape's constants, and a condition of the space. That of conjunction
    c is `of[c]`, or -1; where `of` is empty, it is c.
    """

    shape: Shape
    attribute: int
    condition: NDArray[np.int64]
    of: NDArray[np.int32]


class Residuals:
    """The tests of the conjunctions of a table: some of its conditions, which are marked."""

    def __init__(self, table: ConjunctionTable, tested: NDArray[np.bool_]) -> None:
        kept = without_conditions(table, ~tested)
        self._owner = np.repeat(np.arange(kept.n_conjunctions), np.diff(kept.condition_start))
        self._n = table.n_conjunctions
        self.shapes = read_shapes(kept.attributes)
        shape_of = np.zeros(len(kept.attributes), np.int32)
        place_of = np.zeros(len(kept.attributes), np.int64)
        for at, shape in enumerate(self.shapes):
            shape_of[shape.names] = at
            place_of[shape.names] = np.arange(len(shape.names))
        self._shape_of = shape_of[kept.attribute]
        self._place_of = place_of[kept.attribute]
        names = tuple(kept.attributes[int(shape.names[0])] for shape in self.shapes)
        self._table = replace(kept, attributes=names, attribute=self._shape_of)
        self._space = CellSpace(self._table)
        self._source = kept
        self._groups = [group for at in range(len(self.shapes)) for group in self._groups_of(at)]
        self._n_checked = np.zeros(max(len(self.shapes), 1), np.int64)
        self._n_events = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    def _groups_of(self, at: int) -> list[_Group]:
        """Divide the conditions of a shape so that a conjunction has one in each group."""
        shape = self.shapes[at]
        conditions = np.flatnonzero(self._shape_of == at)
        owner = self._owner[conditions]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        turn = np.arange(len(owner)) - np.repeat(first, np.diff(np.append(first, len(owner))))
        groups = []
        for number in range(int(turn.max(initial=-1)) + 1):
            chosen = conditions[turn == number]
            constants = self._place_of[chosen]
            of = np.full(self._n, -1, np.int32)
            of[self._owner[chosen]] = np.arange(len(chosen))
            is_all = len(chosen) == self._n
            columns = tuple(_taken(column, constants) for column in shape.columns)
            taken = Shape(shape.term, shape.kinds, constants, columns)
            groups.append(_Group(taken, at, chosen, of[:0] if is_all else of))
        return groups

    # What the tests imply.

    def narrowed(self, table: ConjunctionTable) -> tuple[ConjunctionTable, NDArray[np.bool_]]:
        """Return a table of the same conjunctions with what the tests imply, and which can hold."""
        low, high = self._hulls()
        is_true = is_truth(self._table)
        owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
        can_hold = np.ones(self._n, np.bool_)
        added: list[NewRanges] = []
        for group in self._groups:
            within = Range(low[group.condition], high[group.condition])
            bounds = implied_by(group.shape, within, is_true[group.condition])
            conjunction = self._owner[group.condition]
            for name, (lows, highs) in bounds.ranges.items():
                can_hold[conjunction[lows > highs]] = False
                first, second = Range(lows, highs), Range(lows * np.nan, lows * np.nan)
                if name in bounds.divided:
                    first, second = _in_two(first, bounds.divided[name])
                    can_hold[conjunction[np.isnan(first.low)]] = False
                own = table.attributes.index(name) if name in table.attributes else -1
                is_new = np.ones(self._n, np.bool_)
                is_new[owner[table.attribute == own]] = False
                for earlier in added:
                    if earlier.attribute == name:
                        is_new[earlier.conjunction] = False
                fits = is_new[conjunction] & ((first.low > -np.inf) | (first.high < np.inf))
                if not fits.any():
                    continue
                lows = np.stack([first.low[fits], second.low[fits]])
                highs = np.stack([first.high[fits], second.high[fits]])
                added.append(NewRanges(name, conjunction[fits], lows, highs))
        return with_ranges(table, added), can_hold

    def _hulls(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the range of numbers in which each condition is; all where there are others."""
        table = self._table
        first, last = table.piece_start[:-1], table.piece_start[1:] - 1
        low, high = everything(table.n_conditions)
        is_number = (table.flags == 0) & (last >= first)
        if len(table.domain):
            one, other = np.where(is_number, first, 0), np.where(is_number, last, 0)
            is_number &= table.domain[one] == Domain.NUMBER
            is_number &= table.domain[other] == Domain.NUMBER
            lows, highs = table.low_key[one], table.high_key[other]
            is_low = is_number & (lows != LOW_CUT[0])
            is_high = is_number & (highs != HIGH_CUT[0])
            low[is_low], high[is_high] = floats_of(lows[is_low]), floats_of(highs[is_high])
        return low, high

    # Pairs.

    def keep(self, events: EventBatch, rows: RaggedIds) -> RaggedIds:
        """Return the candidates of a batch that satisfy their tests."""
        self._n_events += len(events)
        for at, group in enumerate(self._groups):
            self._n_checked[group.attribute] += len(rows.values)
            rows = (
                self._near(at, events, rows)
                or self._within(at, events, rows)
                or self._kept(at, events, rows)
            )
        return rows

    def keep_one(self, event: Mapping[str, object], numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates of one event that satisfy their tests."""
        rows = RaggedIds(np.array([0, len(numbers)]), numbers)
        return self.keep(to_batch([event]), rows).values if len(numbers) else numbers

    def _kept(self, at: int, events: EventBatch, rows: RaggedIds) -> RaggedIds:
        group = self._groups[at]
        event, numbers = rows.rows(), rows.values
        tests = group.of[numbers] if len(group.of) else numbers.astype(np.int64)
        places = np.flatnonzero(tests >= 0)
        if not len(places):
            return rows
        fits = np.ones(len(numbers), np.bool_)
        for start in range(0, len(places), _TOGETHER):
            some = places[start : start + _TOGETHER]
            fits[some] = self._fit(group, at, events, event[some], tests[some])
        return _filtered(rows, event, fits)

    def _fit(
        self,
        group: _Group,
        at: int,
        events: EventBatch,
        event: NDArray[np.int64],
        tests: NDArray[Any],
    ) -> NDArray[np.bool_]:
        """Decide pairs of an event and a test."""
        if group.shape.columns:
            values = self._values(group, at, events, event, tests)
            return self._satisfy(group, values, tests)
        distinct, place = np.unique(event, return_inverse=True)
        values = events.of_pairs(distinct, {}).computed.vector(group.shape.term)
        return self._satisfy(group, values, tests, place)

    def _values(
        self,
        group: _Group,
        at: int,
        events: EventBatch,
        event: NDArray[np.int64],
        tests: NDArray[Any],
    ) -> Vector:
        polygons = self._polygons[at]
        if polygons is not None:
            lat, lon, _ = group.shape.term.arguments  # type: ignore[union-attr]
            here = coordinates(events.computed.vector(lat), events.computed.vector(lon))
            if here is None:
                return Vector(None, [None] * len(event))
            lats, lons, fits = here
            values = contained(polygons, lats[event], lons[event], tests)
            return Vector(Kind.BOOLEAN, values, fits[event])
        constants = {
            constant_name(number): Vector(kind, _taken(column, tests))
            for number, (kind, column) in enumerate(
                zip(group.shape.kinds, group.shape.columns, strict=True)
            )
        }
        return events.of_pairs(event, constants).computed.vector(group.shape.term)

    def _satisfy(
        self,
        group: _Group,
        values: Vector,
        tests: NDArray[Any],
        place: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Return which values are in the conditions of tests; `place` is that of each one's."""
        space = self._space
        cells = np.empty(len(values), np.int32)
        space.encode_column(group.attribute, to_column(values), cells)
        cells = cells if place is None else cells[place]
        condition = group.condition[tests]
        first, last = space.range_start[condition], space.range_start[condition + 1]
        fits = np.zeros(len(condition), np.bool_)
        for more in range(int((last - first).max(initial=0))):
            at = np.minimum(first + more, len(space.range_low) - 1)
            within = (space.range_low[at] <= cells) & (cells < space.range_high[at])
            fits |= within & (first + more < last)
        return fits

    # Places.

    @cached_property
    def _polygons(self) -> list[FlatPolygons | None]:
        """The polygons of each group, where its tests are on constant ones."""
        return [_polygons_of(group.shape) for group in self._groups]

    @cached_property
    def _circles(self) -> list[_Circles | None]:
        return [self._circles_of(group) for group in self._groups]

    def _circles_of(self, group: _Group) -> _Circles | None:
        """Return the circles of a group, where its tests are that a distance is less than some."""
        places = _places_of(group.shape)
        if places is None:
            return None
        (lat, lon), centers = places
        low, high = self._hulls()
        metres = high[group.condition]
        is_plain = np.diff(self._table.piece_start)[group.condition] == 1
        is_plain &= (low[group.condition] == -np.inf) & np.isfinite(metres)
        lats, lons = (np.asarray(group.shape.columns[at], np.float64) for at in centers)
        is_plain &= (np.abs(lats) <= 90) & (np.abs(lons) <= 180)
        with np.errstate(all="ignore"):
            angle = np.clip(metres / (2 * RADIUS), 0, np.pi / 2)
        chord = 2 * np.sin(angle)
        square = chord * chord
        slack = 1e-9 * square + 1e-14 * chord + 1e-28
        rows = np.zeros((len(metres), 8))
        rows[:, :3] = _points(lats, lons).T
        rows[:, 3] = np.where(is_plain, square - slack, -1.0)
        rows[:, 4] = np.where(is_plain, square + slack, np.inf)
        return _Circles(lat, lon, rows.reshape(-1))

    def _near(self, at: int, events: EventBatch, rows: RaggedIds) -> RaggedIds | None:
        """Keep the candidates that are in their circles; None where tests are no circles."""
        group, circles = self._groups[at], self._circles[at]
        if circles is None:
            return None
        vectors = events.computed.vector(circles.lat), events.computed.vector(circles.lon)
        here = coordinates(*vectors)
        if here is None:
            return None
        lats, lons, fits = here
        points = _points(lats, lons)
        points[0, ~fits] = np.nan  # nothing is near
        numbers, offsets = rows.values, np.zeros(len(events) + 1, np.int64)
        unsure = np.empty(len(numbers), np.bool_)
        x, y, z = points
        n_unsure = kernels.keep_near(
            rows.offsets, numbers, group.of, circles.rows, x, y, z, offsets, unsure
        )
        kept = RaggedIds(offsets, numbers[: offsets[-1]])
        if not n_unsure:
            return kept
        places = np.flatnonzero(unsure[: len(kept.values)])
        event = np.searchsorted(offsets, places, side="right") - 1
        numbers = kept.values[places]
        tests = group.of[numbers] if len(group.of) else numbers.astype(np.int64)
        exact = np.ones(len(kept.values), np.bool_)
        for start in range(0, len(places), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            exact[places[some]] = self._fit(group, at, events, event[some], tests[some])
        return _filtered(kept, kept.rows(), exact)

    # Arithmetic.

    @cached_property
    def _programs(self) -> list[_Program | None]:
        return [self._program_of(group) for group in self._groups]

    def _program_of(self, group: _Group) -> _Program | None:
        """Return the program of a group, where its tests are that arithmetic is in a range."""
        shape, table = group.shape, self._table
        steps, columns = list[tuple[int, int]](), list[Term]()
        is_arithmetic = _compile(shape.term, steps, columns)
        counts = np.diff(table.piece_start)[group.condition]
        if not is_arithmetic or not (counts == 1).all() or table.flags[group.condition].any():
            return None
        pieces = table.piece_start[group.condition]
        if not (table.domain[pieces] == Domain.NUMBER).all():
            return None
        constants = [np.asarray(column, np.float64) for column in shape.columns]
        whole = [c for c, kind in zip(constants, shape.kinds, strict=True) if kind is Kind.INTEGER]
        n_products = sum(step == kernels.MULTIPLY for step, _ in steps)
        takes_integers = n_products <= 1 and len(steps) <= _FEW_STEPS
        takes_integers &= all((np.abs(each) <= _SMALL).all() for each in whole)
        rows = np.stack([*constants, *_closed_ends(table, pieces)], axis=1)
        return _Program(np.array(steps), tuple(columns), rows.reshape(-1), takes_integers)

    def _within(self, at: int, events: EventBatch, rows: RaggedIds) -> RaggedIds | None:
        """Keep the candidates whose arithmetic is in a range; None where tests are no such."""
        group, program = self._groups[at], self._programs[at]
        if program is None:
            return None
        columns = np.empty((len(program.columns), len(events)))
        for place, term in enumerate(program.columns):
            vector = events.computed.vector(term)
            is_exact = vector.kind is Kind.FLOAT
            if vector.kind is Kind.INTEGER and program.takes_integers:
                is_exact = bool((np.abs(vector.values) <= _SMALL).all())
            if not is_exact:
                return None
            columns[place] = vector.values
            if vector.here is not None:
                columns[place, ~vector.here] = np.nan
        offsets = np.zeros(len(events) + 1, np.int64)
        stack = np.empty((len(program.steps), kernels.BLOCK))
        width = len(group.shape.columns) + 2
        kernels.keep_within(
            *rows, group.of, program.steps, columns, program.rows, width, stack, offsets
        )
        return RaggedIds(offsets, rows.values[: offsets[-1]])

    # Reports.

    def conditions(self, ids: NDArray[np.int32]) -> IndexedConditions:
        """Return the tests as conditions, those of a shape under the name of one of its terms."""
        space, table = self._space, self._table
        ranges = space.range_start, space.range_low, space.range_high
        conditions = Conditions(table.condition_start, table.attribute, *ranges)
        return IndexedConditions(space, ids, lambda: conditions)

    def explain(self, conjunction: int) -> list[str]:
        """Return the tests of a conjunction."""
        table = self._source
        first, last = table.condition_start[conjunction], table.condition_start[conjunction + 1]
        return [
            describe_condition(table.attributes[table.attribute[at]], table.condition(int(at)))
            for at in range(first, last)
        ]

    def describe(self) -> list[str]:
        """Say how many tests of each shape there are, and on how many pairs they were decided."""
        counts = np.bincount(self._shape_of, minlength=len(self.shapes))
        lines = []
        for at, shape in enumerate(self.shapes):
            pairs = ""
            if self._n_events:
                pairs = f", checked on {self._n_checked[at] / self._n_events:.3g} pairs an event"
            lines.append(f"tests {shape.text}: {counts[at]} conditions{pairs}")
        return lines

    @property
    def nbytes(self) -> int:
        """The bytes of constants, conditions and circles."""
        n = self._space.nbytes + self._table.nbytes
        for group in self._groups:
            n += group.of.nbytes + sum(column.nbytes for column in group.shape.columns)
        return int(n)


class _Circles(NamedTuple):
    """The terms of a place; and for each test eight numbers, of which five are used.

    These are a point on the unit sphere, and squared chords: what is less is surely near, what is
    more is surely not.
    """

    lat: Term
    lon: Term
    rows: NDArray[np.float64]


class _Program(NamedTuple):
    """Steps, the terms of events that they take, and for each test its constants and its range.

    Integers are taken if they are small, so that floats are as exact.
    """

    steps: NDArray[np.int64]
    columns: tuple[Term, ...]
    rows: NDArray[np.float64]
    takes_integers: bool


_STEPS = {
    ("+", 2): kernels.ADD,
    ("-", 2): kernels.SUBTRACT,
    ("*", 2): kernels.MULTIPLY,
    ("/", 2): kernels.DIVIDE,
    ("neg", 1): kernels.NEGATE,
    ("abs", 1): kernels.ABSOLUTE,
    ("sqrt", 1): kernels.ROOT,
}
_FEW_STEPS = 16
_SMALL = 1 << 24


def _compile(term: Term, steps: list[tuple[int, int]], columns: list[Term]) -> bool:
    """Write a term as steps, and what is without constants as columns; False where it cannot be."""
    if isinstance(term, Attribute) and is_constant_name(term.name):
        steps.append((kernels.CONSTANT, constant_number(term.name)))
        return True
    if not has_constant(term):
        if term not in columns:
            columns.append(term)
        steps.append((kernels.COLUMN, columns.index(term)))
        return True
    if not isinstance(term, Call):
        return False
    step = _STEPS.get((term.function, len(term.arguments)))
    if step is None or not all(_compile(part, steps, columns) for part in term.arguments):
        return False
    steps.append((step, 0))
    return True


def _closed_ends(
    table: ConjunctionTable, pieces: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest float in intervals of numbers."""
    low, high = floats_of(table.low_key[pieces]), floats_of(table.high_key[pieces])
    low = np.where(table.low_offset[pieces] > 0, np.nextafter(low, np.inf), low)
    high = np.where(table.high_offset[pieces] > 0, high, np.nextafter(high, -np.inf))
    return (
        np.where(table.low_key[pieces] == LOW_CUT[0], -np.inf, low),
        np.where(table.high_key[pieces] == HIGH_CUT[0], np.inf, high),
    )


def _points(lats: NDArray[np.float64], lons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points on the unit sphere, as three rows."""
    lat, lon = np.radians(lats), np.radians(lons)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])


def _places_of(shape: Shape) -> tuple[tuple[Term, Term], tuple[int, int]] | None:
    """Return the place of an event, and the columns of that of a test, of a distance's shape."""
    term = shape.term
    if not isinstance(term, Call) or term.function != "distance" or len(shape.columns) != 2:
        return None
    if not set(shape.kinds) <= {Kind.INTEGER, Kind.FLOAT}:
        return None
    centers = Attribute(constant_name(0)), Attribute(constant_name(1))
    for place, center in (
        (term.arguments[:2], term.arguments[2:]),
        (term.arguments[2:], term.arguments[:2]),
    ):
        if center == centers:
            return (place[0], place[1]), (0, 1)
    return None


def _polygons_of(shape: Shape) -> FlatPolygons | None:
    term = shape.term
    if not isinstance(term, Call) or term.function != "inside" or len(shape.columns) != 1:
        return None
    if term.arguments[2] != Attribute(constant_name(0)):
        return None
    return flat_polygons([known_polygon(text) or () for text in shape.columns[0].to_pylist()])


def _taken(column: Any, rows: NDArray[Any]) -> Any:
    return column.take(pa.array(rows)) if isinstance(column, pa.Array) else column[rows]


def _in_two(whole: Range, parts: tuple[Range, Range]) -> tuple[Range, Range]:
    """Return the two ranges of what is in a whole and in one of two parts, the lower one first.

    Where the second part is NaN there is one range; a range that is empty becomes NaN.
    """
    is_one = np.isnan(parts[1].low)
    one, other = (
        Range(np.maximum(whole.low, part.low), np.minimum(whole.high, part.high)) for part in parts
    )
    one = Range(
        *(np.where(is_one, of_whole, end) for of_whole, end in zip(whole, one, strict=True))
    )
    one, other = _not_empty(one), _not_empty(other)
    swapped = np.isnan(one.low) | (other.low < one.low)
    first = Range(*(np.where(swapped, b, a) for a, b in zip(one, other, strict=True)))
    second = Range(*(np.where(swapped, a, b) for a, b in zip(one, other, strict=True)))
    return first, second


def _not_empty(within: Range) -> Range:
    is_empty = within.low > within.high
    return Range(*(np.where(is_empty, np.nan, end) for end in within))


def _filtered(rows: RaggedIds, event: NDArray[np.int64], fits: NDArray[np.bool_]) -> RaggedIds:
    if fits.all():
        return rows
    counts = np.bincount(event[fits], minlength=rows.n_events)
    offsets = np.zeros(rows.n_events + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return RaggedIds(offsets, rows.values[fits])
