"""Events: every form that they may come in, and what each column of them means.

Everything is asked of a matcher with each engine, since what counts is what matches; both ways of
giving an event (one by one, in a batch) must agree.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections import ChainMap, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.encode.events import lookup, to_batch
from tocsin.engines import names
from tocsin.errors import ArgumentError, EventError
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind

COMMON = ("auto", "oracle")
"""What tests ask that ask several engines at once: others would have to be compiled for them."""
engines = pytest.mark.parametrize("engine", names())


def satisfied(
    engine: str, condition: str, events: Any, event_type: EventType | None = None
) -> list[bool]:
    """Return for each event whether it satisfies a condition."""
    m = tocsin.Matcher(event_type, engine=engine)
    m.subscribe(0, condition)
    return [bool(ids) for ids in m.match_batch(events)]


def column_satisfies(
    condition: str, column: Any, event_type: EventType | None = None
) -> list[bool]:
    """Return for each value of a column x whether it satisfies a condition, by each engine."""
    answers = [satisfied(e, condition, pa.table({"x": column}), event_type) for e in COMMON]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def mappings_satisfy(
    condition: str, values: list[Any], event_type: EventType | None = None
) -> list[bool]:
    """Return for each value of x whether it satisfies a condition, by each engine, both ways."""
    events = [{"x": value} for value in values]
    answers = [satisfied(e, condition, events, event_type) for e in COMMON]
    for engine in COMMON:
        m = tocsin.Matcher(event_type, engine=engine)
        m.subscribe(0, condition)
        answers.append([bool(m.match(event)) for event in events])
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


# The forms of a batch.

COLUMNS: dict[str, list[Any]] = {
    "firm": ["IBM", "SAP", None, "IBM"],
    "price": [1.5, 2.5, 3.5, None],
}
FORMS: dict[str, Callable[[], Any]] = {
    "Table": lambda: pa.table(COLUMNS),
    "RecordBatch": lambda: pa.RecordBatch.from_pydict(COLUMNS),
    "RecordBatchReader": lambda: pa.table(COLUMNS).to_reader(),
    "struct array": lambda: pa.table(COLUMNS).to_struct_array(),
    "list of mappings": lambda: pa.table(COLUMNS).to_pylist(),
    "tuple of mappings": lambda: tuple(pa.table(COLUMNS).to_pylist()),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas with an index": lambda: pd.DataFrame(COLUMNS, index=[9, 8, 7, 6]),
    "pandas of nullable types": lambda: pd.DataFrame(COLUMNS).convert_dtypes(),
    "pandas of Arrow types": lambda: pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "chunks": lambda: pa.concat_tables([pa.table(COLUMNS).slice(i, 1) for i in range(4)]),
    "chunks, some empty": lambda: pa.concat_tables(
        [pa.table(COLUMNS).slice(i, n) for i, n in ((0, 0), (0, 3), (1, 0), (3, 1), (0, 0))]
    ),
    "a slice": lambda: pa.concat_tables([pa.table(COLUMNS)] * 3).slice(4, 4),
    "a slice of a longer batch": lambda: (
        pa.concat_tables([pa.table(COLUMNS)] * 3).combine_chunks().to_batches()[0].slice(4, 4)
    ),
    "large strings": lambda: pa.table(COLUMNS).cast(
        pa.schema({"firm": pa.large_string(), "price": pa.float64()})
    ),
    "string views": lambda: pa.table(COLUMNS).cast(
        pa.schema({"firm": pa.string_view(), "price": pa.float64()})
    ),
    "dictionaries": lambda: pa.table(
        {name: pa.array(values).dictionary_encode() for name, values in COLUMNS.items()}
    ),
    "chunks with dictionaries of their own": lambda: pa.table(
        {
            "firm": pa.chunked_array(
                [pa.array(part).dictionary_encode() for part in (["IBM"], ["SAP"], [None, "IBM"])]
            ),
            "price": COLUMNS["price"],
        }
    ),
    "run-end encoded": lambda: pa.table(
        {
            "firm": pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], COLUMNS["firm"]),
            "price": COLUMNS["price"],
        }
    ),
}


@engines
@pytest.mark.parametrize("form", FORMS)
def test_events_come_in_many_forms(engine: str, form: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe("ibm", "firm = 'IBM'")
    m.subscribe("cheap", "price < 3")
    m.subscribe("like", "firm LIKE '%A%'")
    m.subscribe("no firm", "firm IS NULL")
    m.subscribe("no price", "price IS NULL")
    expected = [
        ["cheap", "ibm"],
        ["cheap", "like"],
        ["no firm"],
        ["ibm", "no price"],
    ]
    assert [sorted(map(str, ids)) for ids in m.match_batch(FORMS[form]())] == expected


@engines
def test_a_batch_may_be_used_again(engine: str) -> None:
    batch = to_batch(pa.table(COLUMNS))
    assert to_batch(batch) is batch
    for limit, expected in ((2, [True, False, False, False]), (3, [True, True, False, False])):
        assert satisfied(engine, f"price < {limit}", batch) == expected
    assert len(batch) == 4


@engines
@pytest.mark.parametrize(
    "empty",
    [
        [],
        pa.table({"x": pa.array([], pa.int64())}),
        pa.table({"x": pa.array([], pa.string())}),
        pa.table({}),
        pa.schema({"x": pa.string()}).empty_table(),
        pl.DataFrame(),
        pd.DataFrame(),
    ],
    ids=["list", "integers", "strings", "no columns", "no chunks", "polars", "pandas"],
)
def test_a_batch_may_be_empty(engine: str, empty: Any) -> None:
    assert satisfied(engine, "x = 1 OR x = 'a' OR x IS NULL", empty) == []


@engines
def test_a_batch_may_have_rows_but_no_columns(engine: str) -> None:
    bare = pa.table({"x": [1, 2, 3]}).select([])
    assert bare.num_rows == 3
    assert satisfied(engine, "x IS NULL", bare) == [True] * 3
    assert satisfied(engine, "x IS NOT NULL", bare) == [False] * 3


@engines
@pytest.mark.parametrize(
    ("events", "error"),
    [
        (None, ArgumentError),
        ("abc", ArgumentError),
        (b"abc", ArgumentError),
        (5, ArgumentError),
        ({"x": 1}, ArgumentError),
        ([{"x": 1}, None], EventError),
        ([["x", 1]], EventError),
        (pa.array([1, 2]), EventError),
        (pl.Series([1, 2]), EventError),
        (pd.DataFrame({"x": [1, "a"]}), EventError),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), EventError),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_batch_is_refused(engine: str, events: Any, error: type[Exception]) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 1")
    with pytest.raises(error):
        m.match_batch(events)


@engines
def test_the_row_that_is_no_event_is_named(engine: str) -> None:
    with pytest.raises(EventError) as caught:
        satisfied(engine, "x = 1", [{"x": 1}, {}, 3])
    assert caught.value.row == 2


@engines
@pytest.mark.parametrize(
    "event", [5, None, [("x", 1)], "x"], ids=lambda given: type(given).__name__
)
def test_one_event_must_be_a_mapping(engine: str, event: Any) -> None:
    with pytest.raises(EventError):
        tocsin.Matcher(engine=engine).match(event)


@engines
@pytest.mark.parametrize(
    "make",
    [dict, OrderedDict, MappingProxyType, lambda d: ChainMap({}, d)],
    ids=["dict", "OrderedDict", "MappingProxyType", "ChainMap"],
)
def test_any_mapping_is_an_event(engine: str, make: Any) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 1 AND a.b = 2")
    event = make({"x": 1, "a": make({"b": 2}), 5: "a key that is no name"})
    assert m.match(event) == [1]
    assert list(m.match_batch([event])) == [[1]]


_VALUES: list[list[Any]] = [
    [1, None, INT64_MIN, INT64_MAX, 0],
    [1.5, None, float("nan"), -0.0, float("inf")],
    ["a", None, "", "ä", "zz"],
    [True, None, False],
    [None, None],
    [1, True, 1.0, "1", None],
    [2, 2.5, None],
    [dt.datetime(2026, 1, 1), None],
    [np.int64(1), 1],
    [[1], None, 1],
]


@pytest.mark.parametrize("values", _VALUES, ids=str)
@pytest.mark.parametrize("condition", ["x >= 1", "x = 'a'", "x", "x IS NOT NULL", "NOT x < 0"])
def test_a_column_of_one_type_means_what_its_values_mean_one_by_one(
    values: list[Any], condition: str
) -> None:
    plain = [{"x": value} for value in values]
    assert satisfied("auto", condition, plain) == [
        satisfied("auto", condition, [MappingProxyType(event)])[0] for event in plain
    ]


@pytest.mark.parametrize(
    "values", [[1, 2**63], ["a", "\ud800"], [1, -(2**70)]], ids=["large", "surrogate", "low"]
)
def test_a_value_that_is_refused_is_named_by_its_row_in_a_column_of_one_type(
    values: list[Any],
) -> None:
    with pytest.raises(EventError) as caught:
        satisfied("auto", "x IS NOT NULL", [{"x": value} for value in values])
    assert (caught.value.attribute, caught.value.row) == ("x", 1)


# Columns that nobody asks for, and columns that are not there.


@engines
def test_columns_that_nobody_asks_for_may_hold_anything(engine: str) -> None:
    table = pa.table(
        {
            "x": [1, 2],
            "huge": pa.array([2**63, 1], pa.uint64()),
            "far": pa.array([2**60, 1], pa.timestamp("s")),
            "later": pa.array([2**62, 1], pa.timestamp("us")),
            "lists": [[1], None],
            "duration": pa.array([1, 2], pa.duration("ns")),
            "time": pa.array([1, 2], pa.time64("ns")),
            "bytes": [b"a", None],
            "nested": [{"huge": 1, "list": [1]}, None],
        }
    )
    assert satisfied(engine, "x = 1 OR nested.huge = 5", table) == [True, False]
    assert satisfied(engine, "x = 1", [{"x": 1, "huge": 2**70, "odd": object()}]) == [True]


@engines
def test_two_columns_of_one_name_are_refused_only_when_asked_for(engine: str) -> None:
    table = pa.Table.from_arrays([pa.array([1])] * 3, names=["x", "y", "y"])
    assert satisfied(engine, "x = 1", table) == [True]
    with pytest.raises(EventError, match="several columns") as caught:
        satisfied(engine, "y = 1", table)
    assert caught.value.attribute == "y"


@engines
def test_a_column_that_is_not_there_is_null(engine: str) -> None:
    assert satisfied(engine, "y IS NULL AND NOT x = 2", pa.table({"x": [1, 2]})) == [True, False]


def test_a_column_without_a_type_is_null() -> None:
    assert column_satisfies("x IS NULL", pa.nulls(3)) == [True] * 3
    assert column_satisfies("x = 1 OR x <> 1", pa.nulls(3)) == [False] * 3
    assert column_satisfies("x IS NULL", pa.nulls(2, pa.string())) == [True] * 2


def test_null_and_absent_are_the_same_in_mappings() -> None:
    assert mappings_satisfy("x IS NULL", [None, 0, "", False]) == [True, False, False, False]
    for engine in COMMON:
        assert satisfied(engine, "x IS NULL", [{}, {"x": None}, {"x": 1}]) == [True, True, False]


# Numbers.


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()],
    ids=str,
)
def test_integers_of_every_width_are_integers(kind: pa.DataType) -> None:
    column = pa.array([0, 1, None, 2, 127], kind)
    assert column_satisfies("x > 1", column) == [False, False, False, True, True]
    assert column_satisfies("x = 1.0", column) == [False, True, False, False, False]
    assert column_satisfies("x > 1", column.slice(1, 3)) == [False, False, True]
    typed = EventType("T", x=int)
    assert column_satisfies("x >= 2", column, typed) == [False, False, False, True, True]


def test_unsigned_integers_count_as_far_as_they_fit_64_bits() -> None:
    column = pa.array([0, None, INT64_MAX], pa.uint64())
    assert column_satisfies(f"x = {INT64_MAX}", column) == [False, False, True]


@engines
@pytest.mark.parametrize("encode", [False, True], ids=["plain", "dictionary"])
def test_an_unsigned_integer_beyond_64_bits_is_refused(engine: str, encode: bool) -> None:
    column = pa.array([1, 2, None, 2**63, 2**64 - 1], pa.uint64())
    with pytest.raises(EventError, match="does not fit 64 bits") as caught:
        satisfied(
            engine, "x = 1", pa.table({"x": column.dictionary_encode() if encode else column})
        )
    assert caught.value.attribute == "x"
    with pytest.raises(EventError, match="does not fit 64 bits") as caught:
        satisfied(engine, "a.x = 1", pa.table({"a": pa.StructArray.from_arrays([column], ["x"])}))
    assert caught.value.attribute == "a.x"


@pytest.mark.parametrize("row", [0, 1, 4, 6])
def test_the_row_of_an_integer_that_does_not_fit_is_named(row: int) -> None:
    values = [1, 2, None, 3, 4, 5, 6]
    values[row:] = [2**63 + i for i in range(7 - row)]
    batch = to_batch(pa.table({"x": pa.array(values, pa.uint64())}))
    with pytest.raises(EventError) as caught:
        batch.column("x")
    assert (caught.value.row, caught.value.attribute) == (row, "x")


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_of_every_width_are_floats(kind: pa.DataType) -> None:
    values = [0.5, -0.0, np.nan, np.inf, None, 2.0]
    column = pa.array(np.array([0 if v is None else v for v in values], kind.to_pandas_dtype()))
    column = pa.array([None if v is None else column[i] for i, v in enumerate(values)], kind)
    assert column_satisfies("x >= 0", column) == [True, True, False, True, False, True]
    assert column_satisfies("x = 0", column) == [False, True, False, False, False, False]
    assert column_satisfies("x <> 0", column) == [True, False, False, True, False, True]
    assert column_satisfies("x IS NULL", column) == [False, False, False, False, True, False]
    assert column_satisfies("x = 2", column.slice(3)) == [False, False, True]


@pytest.mark.parametrize(
    "kind",
    [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)],
    ids=str,
)
def test_decimals_of_every_width_are_taken(kind: pa.DataType) -> None:
    column = pa.array([Decimal("1.10"), None, Decimal("2.00")], kind)
    assert column_satisfies("x = 1.1", column) == [True, False, False]
    assert column_satisfies("x >= 2", column) == [False, False, True]


def test_integers_and_floats_compare_exactly() -> None:
    integers = pa.array([2**53, 2**53 + 1, INT64_MAX, INT64_MIN])
    assert column_satisfies(f"x = {2.0**53}", integers) == [True, False, False, False]
    assert column_satisfies(f"x < {2.0**63}", integers) == [True] * 4
    floats = pa.array([2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63)])
    assert column_satisfies(f"x > {2**53 + 1}", floats) == [False, True, True, False]
    assert column_satisfies(f"x > {INT64_MAX}", floats) == [False, False, True, False]
    assert column_satisfies(f"x = {INT64_MIN}", floats) == [False, False, False, True]


@pytest.mark.parametrize("value", [INT64_MAX + 1, INT64_MIN - 1, 2**100])
@engines
def test_an_integer_beyond_64_bits_is_refused(engine: str, value: int) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 1")
    for call in (lambda: m.match({"x": value}), lambda: m.match_batch([{"x": value}])):
        with pytest.raises(EventError, match="does not fit 64 bits") as caught:
            call()
        assert caught.value.attribute == "x"


# Strings and booleans.


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_strings_of_every_type_are_strings(kind: pa.DataType) -> None:
    column = pa.array(["", "a", None, "ab", "é", "😀", "a" * 20], kind)
    assert column_satisfies("x > 'a'", column) == [False, False, False, True, True, True, True]
    assert column_satisfies("x = ''", column) == [True] + [False] * 6
    assert column_satisfies("x LIKE 'a%'", column.slice(1, 3)) == [True, False, True]
    assert column_satisfies("x LIKE '_'", column) == [False, True, False, False, True, True, False]


def test_dictionaries_count_as_their_values() -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([2, None, 0, 1, 0]), pa.array(["a", None, "c", "unused"])
    )
    assert column_satisfies("x = 'a'", column) == [False, False, True, False, True]
    assert column_satisfies("x IS NULL", column) == [False, True, False, True, False]
    assert column_satisfies("x = 'c'", column.slice(0, 2)) == [True, False]
    numbers = pa.array([1, 5, None, 1]).dictionary_encode()
    assert column_satisfies("x < 3", numbers) == [True, False, False, True]
    assert column_satisfies("x < 3", numbers.slice(1)) == [False, False, True]


def test_booleans_are_no_numbers() -> None:
    column = pa.array([True, False, None])
    assert column_satisfies("x", column) == [True, False, False]
    assert column_satisfies("NOT x", column) == [False, True, False]
    assert column_satisfies("x = 1 OR x <> 1", column) == [False, False, False]
    assert column_satisfies("x", column.slice(1)) == [False, False]


# Moments.

MOMENT = dt.datetime(2026, 7, 1, 12, 30, 15)
TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@pytest.mark.parametrize("zone", [None, "UTC", "+02:00", "America/New_York"])
@pytest.mark.parametrize("unit", TICKS)
def test_timestamps_of_every_unit_and_zone_are_moments(unit: str, zone: str | None) -> None:
    seconds = int(MOMENT.replace(tzinfo=dt.UTC).timestamp())
    ticks = [seconds * TICKS[unit], None, (seconds + 1) * TICKS[unit], -TICKS[unit]]
    column = pa.array(ticks, pa.timestamp(unit, zone))
    here = "x = TIMESTAMP '2026-07-01 12:30:15'"
    assert column_satisfies(here, column) == [True, False, False, False]
    later = "x > TIMESTAMP '2026-07-01 14:30:15+02:00'"
    assert column_satisfies(later, column) == [False, False, True, False]
    assert column_satisfies("x < TIMESTAMP '1970-01-01'", column) == [False, False, False, True]
    assert column_satisfies(here, column.slice(1)) == [False, False, False]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_are_rounded_down(zone: str | None) -> None:
    column = pa.array([-1, 0, 999, 1000, -1000, -1001], pa.timestamp("ns", zone))
    before = "x = TIMESTAMP '1969-12-31 23:59:59.999999'"
    assert column_satisfies(before, column) == [True, False, False, False, True, False]
    at = "x = TIMESTAMP '1970-01-01'"
    assert column_satisfies(at, column) == [False, True, True, False, False, False]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_dates_are_their_midnight(kind: pa.DataType) -> None:
    column = pa.array([dt.date(2026, 7, 1), None, dt.date(1969, 12, 31)], kind)
    assert column_satisfies("x = TIMESTAMP '2026-07-01'", column) == [True, False, False]
    assert column_satisfies("x < TIMESTAMP '1970-01-01'", column) == [False, False, True]


@engines
@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms", "UTC")], ids=str)
def test_a_moment_beyond_64_bits_of_microseconds_is_refused(engine: str, kind: pa.DataType) -> None:
    with pytest.raises(EventError, match="does not fit 64 bits") as caught:
        satisfied(engine, "x > TIMESTAMP '2020-01-01'", pa.table({"x": pa.array([0, 2**60], kind)}))
    assert caught.value.attribute == "x"


def test_moments_in_mappings_are_taken_as_utc_unless_they_say_otherwise() -> None:
    values = [
        MOMENT,
        MOMENT.replace(tzinfo=dt.UTC),
        (MOMENT + dt.timedelta(hours=2)).replace(tzinfo=dt.timezone(dt.timedelta(hours=2))),
        pd.Timestamp(MOMENT),
        pd.Timestamp(MOMENT, tz="UTC"),
        np.datetime64(MOMENT),
        np.datetime64(MOMENT, "ns"),
        np.datetime64(MOMENT, "s"),
        MOMENT + dt.timedelta(microseconds=1),
        dt.date(2026, 7, 1),
        MOMENT.isoformat(),
        1_782_909_015_000_000,
    ]
    expected = [True] * 8 + [False] * 2 + [True, False]
    assert mappings_satisfy("x = TIMESTAMP '2026-07-01 12:30:15'", values) == expected


# Scalars of NumPy and pandas.


class Colour(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its value, of this its name
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


def test_scalars_of_numpy_and_enumerations_are_plain_values() -> None:
    numbers = [np.int8(3), np.uint64(3), np.float32(3), np.float64(3), Size.LARGE, np.array(3), 3]
    assert mappings_satisfy("x = 3 AND x < 3.5", numbers) == [True] * 7
    texts = [np.str_("red"), Colour.RED, "red"]
    assert mappings_satisfy("x = 'red' AND x LIKE '%e%'", texts) == [True] * 3
    assert mappings_satisfy("x", [np.bool_(True), np.True_, True, 1]) == [True, True, True, False]


def test_what_pandas_and_numpy_call_missing_is_null() -> None:
    missing = [pd.NaT, pd.NA, np.datetime64("NaT"), None]
    assert mappings_satisfy("x IS NULL", missing) == [True] * 4
    assert mappings_satisfy("x > TIMESTAMP '0001-01-01' OR x > 0", missing) == [False] * 4
    typed = EventType("T", x=dt.datetime)
    assert mappings_satisfy("x IS NULL", missing, typed) == [True] * 4


def test_values_of_no_kind_are_present_but_comparable_with_nothing() -> None:
    odd = [[], [1], {1}, b"a", 1j, dt.date(2026, 7, 1), dt.timedelta(1), np.array([1, 2]), object()]
    odd += [np.timedelta64(5, "ns"), np.datetime64(2**62, "us"), {"y": 1}, float("nan")]
    n = len(odd)
    assert mappings_satisfy("x IS NOT NULL", odd) == [True] * n
    compared = "x = 1 OR x <> 1 OR x = 'a' OR x <> 'a' OR x OR NOT x OR x LIKE '%'"
    assert mappings_satisfy(compared, odd) == [False] * n


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [], None]),
        pa.array([[1], [], None], pa.large_list(pa.int64())),
        pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        pa.array([b"a", b"", None]),
        pa.array([1, 2, None], pa.duration("ns")),
        pa.array([1, 2, None], pa.time32("s")),
        pa.array([{"y": 1}, {"y": None}, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_no_kind_are_present_but_comparable_with_nothing(column: pa.Array) -> None:
    assert column_satisfies("x IS NOT NULL", column) == [True, True, False]
    assert column_satisfies("x = 1 OR x <> 1 OR x = 'a' OR x <> 'a' OR x", column) == [False] * 3
    assert column_satisfies("x IS NULL OR x = 1", column) == [False, False, True]


def test_an_attribute_may_hold_values_of_many_kinds() -> None:
    values = [1, 1.5, "1", True, MOMENT, None, [1], float("nan"), 2**53 + 1, 2.0**53]
    assert mappings_satisfy("x >= 1", values) == [True, True, *[False] * 6, True, True]
    assert mappings_satisfy("x = '1' OR x", values) == [False, False, True, True, *[False] * 6]
    assert mappings_satisfy("x > TIMESTAMP '2000-01-01'", values) == [
        *[False] * 4,
        True,
        *[False] * 5,
    ]
    assert mappings_satisfy(f"x > {2**53}", values) == [*[False] * 8, True, False]
    assert mappings_satisfy("x IS NOT NULL", values) == [*[True] * 5, False, *[True] * 4]


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
@engines
def test_a_string_that_is_not_unicode_is_refused(engine: str, text: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 'a'")
    for call in (lambda: m.match({"x": text}), lambda: m.match_batch([{"x": text}])):
        with pytest.raises(EventError, match="not valid Unicode") as caught:
            call()
        assert caught.value.attribute == "x"


# Paths.

ORDER = [{"order": {"total": 5, "item": {"name": "a"}}}, {"order": None}, {}, {"order": {}}]


@engines
def test_paths_lead_into_nested_mappings(engine: str) -> None:
    assert satisfied(engine, "order.total > 3", ORDER) == [True, False, False, False]
    assert satisfied(engine, "order.item.name = 'a'", ORDER) == [True, False, False, False]
    assert satisfied(engine, "order.item IS NULL", ORDER) == [False, True, True, True]
    assert satisfied(engine, "order.total.x IS NULL", ORDER) == [True] * 4


@engines
def test_paths_lead_into_structs(engine: str) -> None:
    table = pa.table(
        {
            "order": pa.array(
                [
                    {"total": 5, "item": {"name": "a", "at": dt.date(2026, 7, 1)}},
                    None,
                    {"total": None, "item": None},
                    {"total": 2, "item": {"name": None, "at": None}},
                ]
            )
        }
    )
    for events in (table, pa.concat_tables([table, table]).slice(4), table.slice(0, 4)):
        assert satisfied(engine, "order.total > 3", events) == [True, False, False, False]
        assert satisfied(engine, "order.item.name = 'a'", events) == [True, False, False, False]
        assert satisfied(engine, "order.total IS NULL", events) == [False, True, True, False]
        assert satisfied(engine, "order.item.name IS NULL", events) == [False, True, True, True]
        assert satisfied(engine, "order IS NULL", events) == [False, True, False, False]
        assert satisfied(engine, "order.nothing IS NULL", events) == [True] * 4
        assert satisfied(engine, "order.total.x IS NULL", events) == [True] * 4
    july = "order.item.at = TIMESTAMP '2026-07-01'"
    assert satisfied(engine, july, table) == [True, False, False, False]


@engines
def test_a_null_struct_hides_what_lies_in_its_fields(engine: str) -> None:
    fields = pa.array([1, 2, 3])
    column = pa.StructArray.from_arrays([fields], ["b"], mask=pa.array([False, True, False]))
    table = pa.table({"a": column})
    assert satisfied(engine, "a.b > 0", table) == [True, False, True]
    assert satisfied(engine, "a.b IS NULL", table.slice(1)) == [True, False]


@engines
@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("2.5"), None]),
        pa.array([2.5, None], pa.float32()),
        pa.array([2.5, None]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([2.5, None])),
    ],
    ids=["decimal", "float32", "dictionary", "run-end encoded"],
)
def test_in_structs_values_are_of_the_kinds_that_they_are_outside(
    engine: str, values: pa.Array
) -> None:
    table = pa.table({"a": pa.StructArray.from_arrays([values], ["b"]), "c": values})
    assert satisfied(engine, "a.b = 2.5", table) == [True, False]
    assert satisfied(engine, "c = 2.5", table) == [True, False]
    assert satisfied(engine, "a.b IS NULL", table) == [False, True]


@engines
def test_a_column_may_have_a_dot_in_its_name(engine: str) -> None:
    table = pa.table({"a.b": [1, 2], "c": [3, 3]})
    assert satisfied(engine, "a.b = 1", table) == [True, False]
    assert satisfied(engine, '"a.b" = 1', table) == [True, False]
    assert satisfied(engine, "a.b = 1", [{"a.b": 1}, {"a": {"b": 1}}, {"a.b": 2}]) == [
        True,
        True,
        False,
    ]


@engines
def test_the_longest_name_counts_even_where_it_is_null(engine: str) -> None:
    table = pa.table(
        {
            "a": [{"b": 1, "b.c": 5}, {"b": 1, "b.c": 5}],
            "a.b": pa.array([None, 2]),
            "x": [{"y": {"z": 1}}] * 2,
            "x.y": [7, 7],
        }
    )
    for events in (table, table.to_pylist()):
        assert satisfied(engine, "a.b = 1", events) == [False, False]
        assert satisfied(engine, "a.b = 2", events) == [False, True]
        assert satisfied(engine, "x.y.z = 1", events) == [False, False]
    nested = pa.table({"a": [{"b": {"c": 1}, "b.c": 5}]})
    assert satisfied(engine, "a.b.c = 5", nested) == [True]
    assert satisfied(engine, "a.b.c = 5", nested.to_pylist()) == [True]


def test_lookup_follows_the_longest_name() -> None:
    assert lookup({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert lookup({"a": {"b.c": 1, "b": {"c": 2}}}, "a.b.c") == 1
    assert lookup({"a": {"b": {"c": 2}}}, "a.b.c") == 2
    assert lookup({"a": {"b": 1}}, "a.b.c") is None
    assert lookup({"a": 1}, "b") is None
    assert lookup({".a": 1, "a.": 2}, ".a") == 1
    assert lookup({".a": 1, "a.": 2}, "a.") == 2


# What is declared.

TYPED = EventType("T", {"x": int, "f": float, "s": str, "b": bool, "t": dt.datetime, "a.b": int})


@engines
@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("x", "1"),
        ("x", True),
        ("x", 1.5),
        ("x", float("nan")),
        ("x", float("inf")),
        ("x", 2.0**63),
        ("x", [1]),
        ("f", "1"),
        ("f", False),
        ("s", 1),
        ("s", MOMENT),
        ("b", 1),
        ("b", "true"),
        ("t", "soon"),
        ("t", 5),
        ("t", dt.time(12, 30)),
    ],
    ids=repr,
)
def test_a_value_that_is_not_of_the_declared_kind_is_refused(
    engine: str, attribute: str, value: Any
) -> None:
    m = tocsin.Matcher(TYPED, engine=engine)
    with pytest.raises(EventError) as caught:
        m.match({attribute: value})
    assert (caught.value.attribute, caught.value.row) == (attribute, None)
    with pytest.raises(EventError) as caught:
        m.match_batch([{}, {attribute: None}, {attribute: value}])
    assert (caught.value.attribute, caught.value.row) == (attribute, 2)


@engines
@pytest.mark.parametrize(
    ("attribute", "column", "row"),
    [
        ("x", pa.array([None, "1"]), 1),
        ("x", pa.array([None, None, True]), 2),
        ("x", pa.array([1.0, None, 2.5, 3.5]), 2),
        ("x", pa.array([1.0, np.nan]), 1),
        ("x", pa.array([1.0, np.inf]), 1),
        ("x", pa.array([-(2.0**63), 2.0**63]), 1),
        ("x", pa.array([-(2.0**63), 0.5]), 1),
        ("x", pa.array([2.0, 2.5]).dictionary_encode(), 1),
        ("x", pa.array([Decimal("1.0"), Decimal("9007199254740993.5")]), 1),
        ("x", pa.array([1, 2**63], pa.uint64()), 1),
        ("f", pa.array([None, "1"]).dictionary_encode(), 1),
        ("s", pa.array([1]), 0),
        ("s", pa.array([[1]]), 0),
        ("b", pa.array([0, 1]), 0),
        ("t", pa.array([0, 1]), 0),
        ("t", pa.array([0, 2**60], pa.timestamp("s")), 1),
        ("s", pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([None, 5])), 2),
    ],
    ids=lambda given: f"{given.type}" if isinstance(given, pa.Array) else f"{given}",
)
def test_a_column_that_is_not_of_the_declared_kind_is_refused(
    engine: str, attribute: str, column: pa.Array, row: int
) -> None:
    m = tocsin.Matcher(TYPED, engine=engine)
    with pytest.raises(EventError) as caught:
        m.match_batch(pa.table({attribute: column}))
    assert (caught.value.attribute, caught.value.row) == (attribute, row)


@engines
def test_a_declared_path_is_checked_inside_structs(engine: str) -> None:
    m = tocsin.Matcher(TYPED, engine=engine)
    for events in (pa.table({"a": [{"b": None}, {"b": "1"}]}), [{"a": {}}, {"a": {"b": "1"}}]):
        with pytest.raises(EventError) as caught:
            m.match_batch(events)
        assert (caught.value.attribute, caught.value.row) == ("a.b", 1)


def test_floats_with_integral_values_are_taken_where_integers_are_declared() -> None:
    floats = [1.0, 2.0, -0.0, None, -(2.0**63)]
    expected = [False, True, False, False, False]
    assert column_satisfies("x > 1", pa.array(floats), TYPED) == expected
    assert column_satisfies("x > 1", pa.array(floats).dictionary_encode(), TYPED) == expected
    assert mappings_satisfy("x > 1", floats, TYPED) == expected
    decimals = pa.array([Decimal("1.00"), Decimal("2.00"), None])
    assert column_satisfies("x > 1", decimals, TYPED) == [False, True, False]
    small = pa.array(np.array([1, 2], np.float16))
    assert column_satisfies("x = 2", small, TYPED) == [False, True]


def test_integers_are_taken_where_floats_are_declared() -> None:
    typed = EventType("T", x=float)
    values = [1, 2**53 + 1, None]
    assert column_satisfies(f"x = {2**53 + 1}", pa.array(values), typed) == [False, True, False]
    assert mappings_satisfy(f"x = {2**53 + 1}", values, typed) == [False, True, False]


@engines
def test_what_is_declared_may_be_missing(engine: str) -> None:
    for events in (pa.table({"y": [1]}), [{"y": 1}], pa.table({"x": pa.nulls(1)})):
        assert satisfied(engine, "x IS NULL AND t IS NULL", events, TYPED) == [True]


@engines
def test_undeclared_attributes_are_taken_as_they_are(engine: str) -> None:
    assert satisfied(engine, "y = 'a'", [{"y": "a"}, {"y": 1}], TYPED) == [True, False]


def test_kinds_may_be_declared_in_several_ways() -> None:
    ways = [
        EventType("T", x=int, s=str),
        EventType("T", {"x": Kind.INTEGER, "s": "string"}),
        EventType("T", {"x": "integer"}, s=Kind.STRING),
    ]
    assert ways[0] == ways[1] == ways[2]
    assert len(set(ways)) == 1
    with pytest.raises(ArgumentError, match="is not a kind"):
        EventType("T", x=list)


def test_mappings_of_mixed_numbers_moments_and_paths_mean_what_each_means_by_itself() -> None:
    values: dict[str, list[Any]] = {
        "mixed": [1, 2.5, None, 3, -0.0, float("nan"), 2**53, 10],
        "large": [2**53 + 1, 2.0**53, None, 3, 2**63 - 1, 0.5, -(2**63), 1],
        "moment": [dt.datetime(2026, 1, 1, h, tzinfo=dt.UTC) for h in range(7)] + [None],
        "naive": [dt.datetime(2026, 1, 1, h) for h in range(8)],
    }
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    conditions = {
        "small": "mixed <= 2.5", "zero": "mixed = 0", "exact": "large > 9007199254740992",
        "most": "large = 9223372036854775807", "late": "moment >= TIMESTAMP '2026-01-01 03:00:00'",
        "naive": "naive < TIMESTAMP '2026-01-01 02:00:00'",
        "none": "moment IS NULL OR mixed IS NULL",
    }  # fmt: skip
    nested = {f"{name} of a path": text for name, text in conditions.items()}
    matcher = tocsin.Matcher()
    for name, text in conditions.items():
        matcher.subscribe(name, text)
    for name, text in nested.items():
        for attribute in values:
            text = text.replace(f"{attribute} ", f"outer.{attribute} ")
        matcher.subscribe(name, text)
    matcher.index.reader()
    events = [{**row, "outer": row} for row in rows]
    each = [sorted(map(str, matcher.match(event))) for event in events]
    assert [sorted(map(str, ids)) for ids in matcher.match_batch(events)] == each
    assert all([f"{name} of a path" in ids for name in ids if name in conditions] for ids in each)
    assert sum(map(len, each)) == 30
