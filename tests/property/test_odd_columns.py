"""Odd columns: the same values match alike as mappings, in every Arrow layout, and in frames."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import EventError

MOMENTS = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2026, 7, 1, 12, 30, 15, 250),
    dt.datetime(1700, 1, 1),
    dt.datetime(2200, 1, 1, 1),
]
WHOLE = [moment.replace(microsecond=0) for moment in MOMENTS]
FLOATS = [0.0, -0.0, 1.5, 0.1, 0.35, math.inf, -math.inf, math.nan, 2.0**53, 2.0**63, 1e300, 5e-324]
TEXTS = ["", "a", "b", "\u00e4", "\U0001f600", "a\0", "x" * 30, "5"]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{str(kind): (kind, [0, 1, 5, 100]) for kind in (pa.int8(), pa.uint8(), pa.int32())},
    "int64": (pa.int64(), [0, 5, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "uint64": (pa.uint64(), [0, 5, 2**53 + 1, 2**63 - 1]),
    "float64": (pa.float64(), FLOATS),
    "float32": (pa.float32(), [float(np.float32(value)) for value in (0.1, 1.5, math.nan, 2**53)]),
    "float16": (pa.float16(), [float(np.float16(value)) for value in (0.1, 1.5, 5, math.nan)]),
    **{
        str(kind): (kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())
    },
    "bool": (pa.bool_(), [True, False]),
    "date32": (pa.date32(), [moment.date() for moment in MOMENTS]),
    "date64": (pa.date64(), [moment.date() for moment in MOMENTS]),
    **{
        str(kind): (kind, [m.replace(tzinfo=dt.UTC if zone else None) for m in moments])
        for unit, moments in (("s", WHOLE), ("ms", WHOLE), ("us", MOMENTS), ("ns", MOMENTS))
        for zone in (None, "UTC", "Europe/Berlin", "-05:00")
        for kind in [pa.timestamp(unit, zone)]
    },
    "duration": (pa.duration("us"), [dt.timedelta(1), dt.timedelta(0)]),
    "time": (pa.time64("us"), [dt.time(1), dt.time(0)]),
    "list": (pa.list_(pa.int64()), [[5], []]),
    "binary": (pa.binary(), [b"a", b""]),
}  # fmt: skip
CONDITIONS = [
    "x = 5", "x > 1", "x <= 0.35", "x = 0.35", "x < 0", "x = 0", "x IS NULL", "x IS NOT NULL",
    "x = 'a'", "x < 'b'", "x LIKE '%x'", "x", "NOT x", f"x = {2**53 + 1}", f"x >= {2**53}",
    f"x = {2**63 - 1}", "x > 1e18", "x = 0.1", "x = TIMESTAMP '1970-01-01'",
    "x < TIMESTAMP '1970-01-01'", "x > TIMESTAMP '2026-07-01 12:30:15'", "x NOT IN (5, 1.5)",
    "x <> 'a'", "NOT x > 1", "x = ''", "x IN ('5', 5)",
]  # fmt: skip


def matcher(attribute: str, engine: str = "auto") -> tocsin.Matcher:
    m = tocsin.Matcher(engine=engine)
    texts = [condition.replace("x ", f"{attribute} ", 1) for condition in CONDITIONS]
    texts = [f"NOT {attribute}" if t == "NOT x" else attribute if t == "x" else t for t in texts]
    m.subscribe_many({"id": range(len(texts)), "where": texts})
    return m


def answers(m: tocsin.Matcher, events: Any) -> list[list[Any]]:
    return [sorted(ids) for ids in m.match_batch(events)]


def cut(array: pa.Array, choose: random.Random) -> pa.ChunkedArray:
    """Divide an array into chunks, one of them empty."""
    k = choose.randint(0, len(array))
    return pa.chunked_array([array.slice(0, k), array.slice(k, 0), array.slice(k)], array.type)


def layouts(values: list[Any], kind: pa.DataType, choose: random.Random) -> dict[str, Any]:
    """Return the same values in many layouts, nulls in various places among them."""
    n, around = len(values), [None, next(v for v in values if v is not None)]
    sliced = pa.array([*around, *values, *around], kind).slice(2, n)
    indices = pa.array(
        [None if v is None and i % 2 else i for i, v in enumerate(values)], pa.int8()
    )
    with_null = pa.DictionaryArray.from_arrays(indices, pa.array(values, kind))
    ends = pa.array(range(1, n + 5), pa.int16())
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array([*around, *values, *around], kind))
    return {
        "plain": pa.array(values, kind),
        "sliced": sliced,
        "chunks": cut(sliced, choose),
        "dictionary": with_null,
        "chunks of dictionaries": pa.chunked_array(
            [with_null, pa.DictionaryArray.from_arrays(indices, pa.array(values, kind))]
        ).slice(n),
        "runs": runs.slice(2, n),
    }


@pytest.mark.parametrize("name", VALUES)
def test_values_match_alike_by_every_road(name: str) -> None:
    kind, some = VALUES[name]
    choose = random.Random(name)
    m, oracle, inner = matcher("x"), matcher("x", "oracle"), matcher("o.x")
    for _ in range(4):
        values = [None if choose.random() < 0.25 else choose.choice(some) for _ in range(9)]
        values.append(choose.choice(some))
        events = [{"x": value} for value in values]
        expected = answers(m, events)
        assert [sorted(m.match(event)) for event in events] == expected
        assert answers(oracle, events) == expected
        for layout, column in layouts(values, kind, choose).items():
            table = pa.table({"x": column})
            assert answers(m, table) == expected, (layout, values)
            assert answers(oracle, table) == expected, (layout, values)
            if isinstance(column, pa.Array):
                structs = pa.StructArray.from_arrays([column], ["x"])
                assert answers(inner, pa.table({"o": structs})) == expected, (layout, values)
                assert answers(inner, pa.table({"o.x": column})) == expected, (layout, values)
        if name not in ("float16", "list"):
            frame = pl.from_arrow(pa.table({"x": pa.array(values, kind)}))
            assert answers(m, frame) == expected, values


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (pa.array([1, None, 2**63], pa.uint64()), 2),
        (pa.array([1, 2**63], pa.uint64()).dictionary_encode(), 1),
        (pa.array([None, 2**60], pa.timestamp("s")), 1),
        (pa.array([0, -(2**60)], pa.timestamp("ms", "UTC")), 1),
        (pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32()), 1),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_values_beyond_64_bits_are_refused_with_their_row(column: pa.Array, row: int) -> None:
    m = matcher("x")
    layouts: list[Callable[[], Any]] = [
        lambda: column,
        lambda: pa.chunked_array([column.slice(0, 1), column.slice(1)]),
        lambda: pa.concat_arrays([column, column]).slice(len(column)),
    ]
    for layout in layouts:
        with pytest.raises(EventError) as caught:
            m.match_batch(pa.table({"x": layout()}))
        assert (caught.value.attribute, caught.value.row) == ("x", row)
