"""Decimals: a decimal is the 64-bit integer that it equals, else the nearest float, on every road.

The roads: Arrow columns of every width, frames, mappings, single parameters, columns of parameters,
rule tables, and what was saved of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.arrow import decimal_numbers
from tocsin.encode.columns import decimal_column
from tocsin.engines import names
from tocsin.errors import EventError
from tocsin.model import INT64_MAX, EventType, to_plain

WIDTHS = [(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)]
CENTS = [Decimal(cents).scaleb(-2) for cents in range(100_000)]
BEYOND = 2**53 + 1


def amounts(values: Sequence[Decimal | None], precision: int = 10, scale: int = 2) -> pa.Array:
    return pa.array(values, pa.decimal128(precision, scale))


def array_of(kind: pa.DataType, digits: list[int | None]) -> pa.Array:
    """Make a column of digits as they lie in memory; pyarrow takes fewer scales than it holds."""
    octets = b"".join((d or 0).to_bytes(kind.byte_width, "little", signed=True) for d in digits)
    valid = np.packbits([d is not None for d in digits], bitorder="little")
    return pa.Array.from_buffers(kind, len(digits), [pa.py_buffer(valid), pa.py_buffer(octets)])


def test_every_amount_of_cents_is_its_nearest_float() -> None:
    (part,), _ = decimal_column(amounts(CENTS))
    assert part.values.tolist() == [float(amount) for amount in CENTS]


def test_digits_of_every_width_and_scale_become_what_python_makes_of_them() -> None:
    choose = random.Random(19)
    for _ in range(300):
        make, most = choose.choice(WIDTHS)
        precision = choose.randint(1, most)
        scale = choose.choice([0, precision, choose.randint(0, precision), choose.randint(-20, 30)])
        kind, unit = make(precision, scale), 10 ** max(scale, 0)
        digits: list[int | None] = [None, 0]
        for center in (2**53, 2**63, -(2**63), 2**53 * unit, 2**63 * unit, -(2**53) * unit):
            digits += [center + choose.randint(-3, 3), center + choose.randint(-3, 3) * unit]
        digits += [choose.randint(-(10**precision) + 1, 10**precision - 1) for _ in range(8)]
        digits = [d if d is None or abs(d) < 10**precision else None for d in digits]
        array = array_of(kind, digits).slice(choose.randint(0, 3))
        numbers = decimal_numbers(array).to_list(array)
        for d, number in zip(digits[len(digits) - len(array) :], numbers, strict=True):
            if d is None:
                assert number is None
                continue
            plain = to_plain(Decimal((int(d < 0), tuple(map(int, str(abs(d)))), -scale)))
            assert isinstance(plain, int | float)
            assert number is not None
            assert Fraction(number) == Fraction(plain), (kind, d)


def test_decimals_beyond_all_floats_are_infinite_or_zero() -> None:
    array = array_of(pa.decimal128(5, -400), [1, -1, 0, None])
    assert decimal_numbers(array).to_list(array) == [float("inf"), -float("inf"), 0.0, None]
    array = array_of(pa.decimal128(5, 5000), [1, None])
    assert decimal_numbers(array).to_list(array) == [0.0, None]


@pytest.mark.parametrize(
    ("decimal", "number"),
    [
        ("0.35", 0.35),
        ("2.00", 2),
        (str(BEYOND) + ".00", BEYOND),
        (str(BEYOND) + ".50", float(BEYOND + 1)),
        (str(INT64_MAX), INT64_MAX),
        (str(INT64_MAX + 1), 2.0**63),
        ("1E+400", float("inf")),
        ("1E+999999", float("inf")),
        ("1E-999999", 0.0),
        ("-Infinity", -float("inf")),
        ("0.10000000000000000001", 0.1),
    ],
)
def test_one_decimal_is_an_integer_or_the_nearest_float(decimal: str, number: float) -> None:
    plain = to_plain(Decimal(decimal))
    assert plain == number
    assert type(plain) is type(number)


def test_a_decimal_that_is_no_number_satisfies_nothing() -> None:
    m = tocsin.Matcher()
    m.subscribe(1, "x > 0 OR x <= 0")
    m.subscribe(2, "x IS NOT NULL")
    for text in ("NaN", "sNaN"):
        assert m.match({"x": Decimal(text)}) == m.match_batch([{"x": Decimal(text)}])[0] == [2]


ROADS = {
    "decimal128": lambda values: pa.table({"x": amounts(values, 38, 2)}),
    "decimal256": lambda values: pa.table({"x": pa.array(values, pa.decimal256(50, 2))}),
    "dictionary": lambda values: pa.table({"x": amounts(values, 38, 2).dictionary_encode()}),
    "chunks": lambda values: pa.table(
        {"x": pa.chunked_array([amounts(values[:1], 38, 2), amounts(values[1:], 38, 2)])}
    ),
    "pandas": lambda values: pd.DataFrame({"x": pd.Series(values, dtype=object)}),
    "polars": lambda values: pl.DataFrame({"x": pl.Series(values, dtype=pl.Decimal(38, 2))}),
    "mappings": lambda values: [{"x": value} for value in values],
    "struct": lambda values: pa.table(
        {"o": pa.StructArray.from_arrays([amounts(values, 38, 2)], ["x"])}
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_a_decimal_satisfies_its_own_literal_by_every_road(road: str) -> None:
    values = [Decimal("0.35"), None, Decimal("0.41"), Decimal(BEYOND), Decimal("8.00")]
    events, x = ROADS[road](values), "o.x" if road == "struct" else "x"
    m = tocsin.Matcher()
    for at, value in enumerate(values):
        if value is not None:
            for op in ("=", "<=", ">=", "<", ">"):
                m.subscribe(f"{at}{op}", f"{x} {op} {value.normalize():f}")
    matches = m.match_batch(events)
    for at, value in enumerate(values):
        own = {match for match in matches[at] if str(match)[0] == str(at)}
        assert own == (set() if value is None else {f"{at}=", f"{at}<=", f"{at}>="})
    assert [bool({"3=", "3<="} & set(ids)) for ids in matches][3]
    assert not {"3="} & set(matches[4])


@pytest.mark.parametrize("engine", names())
def test_engines_that_take_one_event_at_a_time_see_the_same_decimals(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 0.35")
    m.subscribe(2, f"x = {BEYOND}")
    table = pa.table({"x": amounts([Decimal("0.35"), Decimal(BEYOND), Decimal(BEYOND - 1)], 20)})
    assert list(m.match_batch(table)) == [[1], [2], []]
    assert [m.match({"x": value}) for value in table["x"].to_pylist()] == [[1], [2], []]


def test_decimals_fit_declared_integers_where_they_are_integers() -> None:
    m = tocsin.Matcher(EventType("T", x=int, y=float))
    m.subscribe(1, f"x = {BEYOND}")
    m.subscribe(2, "y = 0.35")
    whole = pa.table({"x": amounts([Decimal(BEYOND)], 20).dictionary_encode()})
    assert m.match_batch(whole)[0] == m.match({"x": Decimal(BEYOND)}) == [1]
    assert m.match({"y": Decimal("0.35")}) == [2]
    for events in (pa.table({"x": amounts([Decimal("1.5")])}), [{"x": Decimal("1.5")}]):
        with pytest.raises(EventError):
            m.match_batch(events)


MIXED = [Decimal("0.35"), Decimal(BEYOND), Decimal("0.41"), None]


@pytest.mark.parametrize(
    "values",
    [MIXED, [Decimal("0.35"), None], [Decimal(BEYOND), Decimal(3), None]],
    ids=["mixed", "floats", "integers"],
)
def test_parameters_that_are_decimals_mean_what_literals_mean(
    values: list[Decimal | None], tmp_path: Path
) -> None:
    columns: dict[str, Any] = {
        "decimal": amounts(values, 38),
        "dictionary": amounts(values, 38).dictionary_encode(),
    }
    for name, column in columns.items():
        m = tocsin.Matcher()
        m.subscribe_many(pa.table({"id": range(len(values)), "p": column}), where="x = :p")
        m.save(tmp_path / name)
        opened = tocsin.Matcher.open(tmp_path / name)
        for at, value in enumerate(values):
            expected = [] if value is None else [at]
            for each in (m, opened):
                event = {"x": None if value is None else to_plain(value)}
                assert each.match(event) == expected
                if value is not None:
                    assert str(to_plain(value)) in each.explain(at).splitlines()[0]
    single = tocsin.Matcher()
    for at, value in enumerate(values):
        single.subscribe(at, "x = :p", params={"p": value})
        assert single.match({"x": value}) == ([] if value is None else [at])
    single.save(tmp_path / "single")
    single = tocsin.Matcher.open(tmp_path / "single")
    assert [single.match({"x": v}) for v in values if v is not None] == [
        [at] for at, v in enumerate(values) if v is not None
    ]


def test_rule_tables_with_decimals_mean_what_literals_mean() -> None:
    values = [value for value in MIXED if value is not None]
    rules = pa.table(
        {
            "id": range(len(values)),
            "attribute": ["x"] * len(values),
            "op": ["="] * len(values),
            "value": amounts(values, 38),
        }
    )
    m = tocsin.Matcher()
    m.subscribe_many(rules)
    assert [m.match({"x": value}) for value in values] == [[0], [1], [2]]
    assert m.match({"x": float(BEYOND)}) == []


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (18, 4), (15, 15), (9, 0)])
def test_decimals_compare_as_duckdb_compares_them(precision: int, scale: int) -> None:
    choose = random.Random(precision)
    literals = [Decimal(choose.randint(0, 10**6)).scaleb(-scale) for _ in range(60)]
    rows = literals + [-each for each in literals[:20]] + [Decimal(1).scaleb(-scale)]
    kind = pa.decimal128(precision, scale)
    table = pa.table({"row": range(len(rows)), "x": pa.array(rows, kind)})
    conditions = [
        f"x {op} {literal:f}"
        for literal in literals
        for op in (choose.choice(["=", "<>"]), choose.choice(["<", "<=", ">", ">="]))
    ]
    m = tocsin.Matcher()
    m.subscribe_many({"id": range(len(conditions)), "where": conditions})
    matches = [set(ids) for ids in m.match_batch(table)]
    connection = duckdb.connect()
    connection.register("events", table)
    for at, condition in enumerate(conditions):
        sql = f"SELECT row FROM events WHERE {condition}"
        expected = {row for (row,) in connection.execute(sql).fetchall()}
        assert {row for row, ids in enumerate(matches) if at in ids} == expected, condition
