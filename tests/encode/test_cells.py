"""Cells: a condition's ranges of cells hold exactly where the condition does.

Each table of conditions on one attribute is tried at every bound that it uses and at the bound's
neighbours, by the three ways into cells: a column of one kind, a column of mixed kinds, one value.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.strategies import FLOATS, INTEGERS, STRINGS, TIMESTAMPS

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import to_batch
from tocsin.errors import EventError
from tocsin.language import parse
from tocsin.language.expression import (
    Between,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    conjoin,
    operands,
    predicates,
)
from tocsin.model import INT64_MAX, INT64_MIN, EventType, kind_of
from tocsin.normalize import NormalForm, normalize
from tocsin.normalize.condition import Condition
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable, concatenate, take

LEAST, GREATEST = TIMESTAMPS[7], TIMESTAMPS[8]
OF_NO_DOMAIN = (None, math.nan, [1], b"a")


def neighbours(value: Any) -> Iterable[Any]:
    """Yield a value and those just below and just above it, in each kind that compares with it."""
    yield value
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield from (value[:-1], value + "\0", value + "a", value + "\U0010ffff")
        for step in (-1, 1):
            code = ord(value[-1]) + step if value else -1
            if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                yield value[:-1] + chr(code)
    elif isinstance(value, dt.datetime):
        tick = dt.timedelta(microseconds=1)
        yield value - tick if value > LEAST else value
        yield value + tick if value < GREATEST else value
    elif not math.isinf(value):
        whole = math.floor(value)
        yield from (i for i in range(whole - 1, whole + 3) if INT64_MIN <= i <= INT64_MAX)
        near = float(value)
        yield from (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf))


def literals_of(condition: Expression) -> list[Literal]:
    found = [o for predicate in predicates(condition) for o in operands(predicate)]
    return [o for o in found if isinstance(o, Literal)]


def probes(conditions: Sequence[Expression]) -> list[Any]:
    """Return the values at which conditions are tried."""
    bounds = [literal.value for c in conditions for literal in literals_of(c)]
    found = [v for bound in bounds if bound is not None for v in neighbours(bound)]
    found += [0, -0.0, math.inf, -math.inf, INT64_MIN, INT64_MAX, "", "\U0010ffff", True, False]
    return [*found, *OF_NO_DOMAIN, LEAST, GREATEST]


def without_patterns(condition: Condition) -> Condition:
    return Condition(condition.intervals, condition.absent, condition.other)


def allowed(space: CellSpace, at: int, cells: Sequence[int]) -> list[bool]:
    """Say for each cell whether it is in one of the ranges of the at-th condition."""
    first, last = space.range_start[at], space.range_start[at + 1]
    lows, highs = space.range_low[first:last], space.range_high[first:last]
    assert np.all(lows < highs), "no range is empty"
    assert np.all(lows[1:] >= highs[:-1]), "ranges are in order and apart"
    column = np.array(cells)[:, None]
    inside: list[bool] = ((lows <= column) & (column < highs)).any(axis=1).tolist()  # type: ignore[assignment]
    return inside


def cells_of(space: CellSpace, values: Sequence[Any]) -> list[int]:
    """Return the cells of values of the attribute x, which every way in must agree on."""
    at = space.attributes.index("x")
    single = [space.encode_value(at, value) for value in values]
    mixed = space.encode(to_batch([{"x": value} for value in values]))[at].tolist()
    assert mixed == single
    by_kind: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        if kind_of(value) is not None:
            by_kind.setdefault(kind_of(value), []).append(place)
    for places in by_kind.values():
        column = pa.array([None, *(values[i] for i in places), None])
        found = space.encode(to_batch(pa.table({"x": column})))[at].tolist()
        assert found == [0, *(single[i] for i in places), 0]
        dense = space.encode(to_batch(pa.table({"x": column.slice(1, len(places))})))[at]
        assert dense.tolist() == found[1:-1]
    return single


def check(table: ConjunctionTable, values: Sequence[Any]) -> None:
    """Verify that cells and conditions agree, for every conjunction and value."""
    space = CellSpace(table)
    if "x" not in space.attributes:
        return
    x = space.attributes.index("x")
    cells = cells_of(space, values)
    for c in range(table.n_conjunctions):
        condition = table.conjunction(c).get("x")
        if condition is None:
            continue
        run = range(table.condition_start[c], table.condition_start[c + 1])
        (at,) = (i for i in run if table.attribute[i] == x)
        plain = without_patterns(condition)
        for value, is_in in zip(values, allowed(space, at, cells), strict=True):
            assert is_in is plain.holds(value), (condition, value)


def table_of(
    conditions: Sequence[Expression], event_type: EventType | None = None
) -> ConjunctionTable:
    return from_forms([normalize(condition, event_type) for condition in conditions])


# Conditions.

integers = st.one_of(
    st.sampled_from(INTEGERS),
    st.integers(INT64_MIN, INT64_MAX),
    st.builds(
        lambda exponent, step: max(INT64_MIN, min(INT64_MAX, 2**exponent + step)),
        st.integers(50, 63),
        st.integers(-3, 3),
    ),
)
floats = st.one_of(st.sampled_from(FLOATS), st.floats(allow_nan=False), integers.map(float))
strings = st.one_of(st.sampled_from(STRINGS), st.text("ab\0\U0010ffff", max_size=3))
moments = st.one_of(
    st.sampled_from(TIMESTAMPS), st.datetimes(timezones=st.just(dt.UTC), max_value=dt.datetime.max)
)
values_of_kinds = {
    "numbers": st.one_of(integers, floats),
    "strings": strings,
    "moments": moments,
    "all kinds": st.one_of(integers, floats, strings, moments, st.booleans()),
}


def literals(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Literal]:
    return values.map(lambda value: Literal(value, kind_of(value)))


def random_predicates(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Expression]:
    bound = literals(values)
    prefixes = strings.map(lambda s: s.replace("%", "a").replace("_", "b") + "%")
    patterns = literals(st.one_of(prefixes, st.text("ab%_", max_size=4)))
    name = st.sampled_from(["x", "x", "x", "y"])
    return st.one_of(
        st.builds(Comparison, name, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), bound),
        st.builds(Between, name, bound, bound, st.booleans()),
        st.builds(In, name, st.lists(bound, min_size=1, max_size=4).map(tuple), st.booleans()),
        st.builds(IsNull, name, st.booleans()),
        st.builds(Like, name, patterns, st.none(), st.booleans()),
    )


def conditions_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Expression]]:
    one = st.lists(random_predicates(values), min_size=1, max_size=2).map(conjoin)
    return st.lists(one, min_size=1, max_size=6)


@pytest.mark.parametrize("kind", values_of_kinds)
@settings(max_examples=20)
@given(st.data())
def test_cells_agree_with_conditions_at_every_bound(kind: str, data: st.DataObject) -> None:
    conditions = data.draw(conditions_of(values_of_kinds[kind]))
    check(table_of(conditions), probes(conditions))


@settings(max_examples=20)
@given(conditions_of(values_of_kinds["numbers"]))
def test_cells_agree_with_conditions_of_attributes_declared_integer(
    conditions: list[Expression],
) -> None:
    kept = [c for c in conditions if not any(isinstance(o.value, str) for o in literals_of(c))]
    kept = [c for c in kept if "Like" not in repr(c)]
    declared = EventType("T", x=int, y=int)
    values = [v for v in probes(kept) if not isinstance(v, float | str) or v != v]
    check(table_of(kept, declared), values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", values_of_kinds)
@settings(max_examples=150)
@given(st.data())
def test_cells_agree_with_conditions_at_many_more_bounds(kind: str, data: st.DataObject) -> None:
    conditions = data.draw(conditions_of(values_of_kinds[kind]))
    check(table_of(conditions), probes(conditions))


# The edges, spelled out.


def check_texts(*texts: str, more: Sequence[Any] = ()) -> None:
    conditions = [parse(text) for text in texts]
    check(table_of(conditions), [*probes(conditions), *more])


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_integers_beyond_2_to_the_53_have_cells_of_their_own(op: str) -> None:
    exact = 2**53
    bounds = [exact + i for i in range(-2, 6)] + [2**62 + i for i in range(-1, 3)]
    bounds += [INT64_MAX - i for i in range(3)] + [INT64_MAX - 511, INT64_MAX - 512]
    bounds += [-b for b in bounds] + [INT64_MIN, INT64_MIN + 1]
    check_texts(*(f"x {op} {bound}" for bound in bounds))


@pytest.mark.parametrize("bound", [*INTEGERS, *FLOATS], ids=repr)
def test_a_bound_by_itself_has_its_cells(bound: int | float) -> None:
    for op in ("=", "<", ">"):
        check_texts(f"x {op} {bound!r}", more=INTEGERS)


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_floats_and_integers_share_one_domain(op: str) -> None:
    bounds: list[float | int] = [*FLOATS, *INTEGERS]
    check_texts(*(f"x {op} {bound!r}" for bound in bounds), more=[*FLOATS, *INTEGERS])


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_floats_that_are_close_together_have_cells_of_their_own(op: str) -> None:
    for start in (0.0, 1.0, 1e300, -1e-300):
        bounds = [start]
        for _ in range(6):
            bounds.append(math.nextafter(bounds[-1], math.inf))
        check_texts(*(f"x {op} {bound!r}" for bound in bounds))


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_strings_around_bounds_have_their_cells(op: str) -> None:
    bounds = [s for s in STRINGS if "'" not in s]
    conditions: list[Expression] = [Comparison("x", op, Literal(s, kind_of(s))) for s in bounds]
    check(table_of(conditions), [*probes(conditions), *STRINGS])


@pytest.mark.parametrize("negated", [False, True])
def test_prefixes_have_their_cells(negated: bool) -> None:
    starts = ["", "a", "ab", "a\0", "\U0010ffff", "a\U0010ffff", "\ud7ff", "é", "\0"]
    conditions: list[Expression] = [
        Like("x", Literal(start + "%", kind_of(start)), None, negated) for start in starts
    ]
    values = [v for start in starts for v in neighbours(start)]
    check(table_of(conditions), [*probes(conditions), *values, "\ue000", "b", "ac", "b\0"])


def test_many_bounds_far_apart_and_close_together() -> None:
    far = [10.0**i for i in range(-300, 300, 17)]
    close = [1 + i / 1024 for i in range(20)]
    check_texts(*(f"x < {bound!r}" for bound in far + close))
    check_texts(*(f"x < {i * i * i}" for i in range(-20, 20)))
    check_texts(*(f"x = {i}" for i in range(-60, 60, 3)))


def test_infinite_bounds_come_by_parameters() -> None:
    conditions: list[Expression] = [
        Comparison("x", op, Literal(bound, kind_of(bound)))
        for op in ("=", "<>", "<", "<=", ">", ">=")
        for bound in (math.inf, -math.inf, 1.5)
    ]
    check(table_of(conditions), [*probes(conditions), 1e308, -1e308])


def test_absent_values_and_values_of_no_domain_have_cells_of_their_own() -> None:
    check_texts("x IS NULL", "x IS NOT NULL", "x = 1", "x IS NULL OR x = 1", "x <> 'a'", "y = 1")
    space = CellSpace(table_of([parse("x = 1 AND y IS NULL")]))
    absent, nan, listed, text = cells_of(space, [None, math.nan, [1], "a"])
    assert absent == 0
    assert nan == listed == text == 1


def test_values_that_are_present_have_the_cells_that_they_have_in_the_matrix() -> None:
    random = np.random.default_rng(7)
    texts = [f"f < {b} OR i >= {round(b * 50)}" for b in random.random(300).round(3).tolist()]
    texts += [f"i = {10**9 * k} OR f = 1e300 OR s = 'x{k}' OR b" for k in range(9)]
    space = CellSpace(table_of([parse(text) for text in texts]))
    n = 997
    floats = np.where(random.random(n) < 0.5, random.random(n).round(3), random.normal(size=n))
    floats[:6] = math.nan, math.inf, -math.inf, 1e300, -0.0, 5e-324
    integers = random.integers(-10, 60, n)
    integers[:4] = INT64_MIN, INT64_MAX, 10**9, 10**9 - 1
    absent = random.random((2, n)) < 0.7
    columns = {
        "f": pa.array(floats, mask=absent[0]),
        "i": pa.array(integers, mask=absent[1]),
        "s": pa.array([f"x{k % 12}" for k in range(n)]),
        "b": pa.array([None, True, False, None] * 249 + [True]),
    }
    whole = pa.table(columns)
    swapped = pa.table({"f": columns["i"], "i": columns["f"]})
    full = pa.table({"f": floats, "i": integers})
    chunks = pa.concat_tables([whole.slice(0, 100), whole.slice(100)])
    slices = [whole.slice(start, 130) for start in (0, 1, 7, 8, 63, 867)]
    for events in (whole, swapped, full, chunks, whole.slice(0, 0), *slices):
        batch = to_batch(events)
        start, event, cell = space.encode_present(batch)
        cells = np.zeros((len(space.attributes), len(batch)), np.int32)
        for a in range(len(space.attributes)):
            cells[a, event[start[a] : start[a + 1]]] = cell[start[a] : start[a + 1]]
        assert np.array_equal(cells, space.encode(batch))
        assert np.all(cell > 0)


def test_columns_of_integers_that_are_looked_up_together_keep_to_their_own_tables() -> None:
    texts = ["a BETWEEN 3 AND 9", "b > 100 AND c = -5", "c < 10000000", "d IN (1, 7)", "e = 2"]
    space = CellSpace(table_of([parse(text) for text in texts]))
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {name: rng.integers(-20, 120, 90) for name in "abc"}
    columns |= {"d": pa.array([None if i % 3 else i for i in range(90)]), "e": [2.0] * 90}
    events = pa.table(columns).slice(5, 80)
    cells = space.encode(to_batch(events))
    for row, event in enumerate(events.to_pylist()):
        assert cells[:, row].tolist() == space.encode_event(event)


def test_an_attribute_without_bounds_has_two_cells() -> None:
    space = CellSpace(table_of([parse("x IS NOT NULL")]))
    assert cells_of(space, [None, 1, "a", 2.5]) == [0, 1, 1, 1]


def test_a_table_without_conditions_has_no_attributes() -> None:
    for forms in ([], [NormalForm(())], [NormalForm(({},))]):
        space = CellSpace(from_forms(forms))
        assert space.attributes == ()
        assert space.encode(to_batch([{"x": 1}, {}])).shape == (0, 2)


def test_cells_stay_right_when_tables_are_joined_and_cut() -> None:
    texts = [["x < 5", "x = 'b'"], ["x > 2.5 OR x = 'a'", "y = 'c'"], ["x >= 'ab'", "x <> 7"]]
    tables = [table_of([parse(text) for text in part]) for part in texts]
    conditions = [parse(text) for part in texts for text in part]
    joined = concatenate(tables)
    check(joined, probes(conditions))
    check(take(joined, np.arange(0, joined.n_conjunctions, 2)), probes(conditions))


def test_the_bytes_held_are_counted() -> None:
    few = CellSpace(table_of([parse("x < 5")]))
    many = CellSpace(table_of([parse(f"x < {i} AND s = 'text {i}'") for i in range(100)]))
    assert 0 < few.nbytes < many.nbytes


@example([0, 1, 2], 3)
@settings(max_examples=30)
@given(st.lists(integers, min_size=1, max_size=30), st.integers(-5, 5))
def test_order_is_kept(bounds: list[int], step: int) -> None:
    space = CellSpace(table_of([parse(f"x < {bound}") for bound in bounds]))
    values = sorted(
        v for bound in bounds for v in (bound, bound + step) if INT64_MIN <= v <= INT64_MAX
    )
    cells = cells_of(space, values)
    assert cells == sorted(cells)


def memory_of(space: CellSpace) -> int:
    """Return what the values that a space remembers take at least."""
    return sum(sys.getsizeof(value) for values in space._memory.values for value in values.known)


def test_long_values_are_not_remembered() -> None:
    space = CellSpace(table_of([parse("x > 'm'"), parse("x = 'zebra'")]))
    cells = [space.encode_event({"x": f"{i}" + "x" * 100_000}) for i in range(300)]
    assert cells == [space.encode_event({"x": f"{i}"}) for i in range(300)]
    assert memory_of(space) < 100_000


def test_the_values_of_many_attributes_are_remembered_within_a_bound() -> None:
    names = [f"a{i}" for i in range(400)]
    space = CellSpace(table_of([parse(f"{name} > 5") for name in names]))
    for step in range(800):
        space.encode_event({name: f"{step} {at}" for at, name in enumerate(names)})
    n_values = sum(len(values.known) for values in space._memory.values)
    assert memory_of(space) + 100 * n_values < 32 << 20
    assert 0 < n_values < 400 * 800


def test_what_was_remembered_does_not_change_what_is_refused() -> None:
    space = CellSpace(table_of([parse("x > 5"), parse("x = 'a'"), parse("x")]))
    values = [2.0**63, 1, 1.0, True, False, 0, -0.0, 0.0, "a", Decimal(1), Decimal("0.5"), 0.5]
    fresh = [CellSpace(table_of([parse("x > 5"), parse("x = 'a'"), parse("x")])) for _ in values]
    alone = [one.encode_event({"x": value}) for one, value in zip(fresh, values, strict=True)]
    for _ in range(2):
        assert [space.encode_event({"x": value}) for value in values] == alone
        for too_large in (2**63, -(2**63) - 1):
            with pytest.raises(EventError):
                space.encode_event({"x": too_large})
    assert space.encode_event({"x": -(2**63)}) == space.encode_event({"x": -(2.0**63)})
