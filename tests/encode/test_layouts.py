"""Arrow's layouts: however a column lies in memory, it is matched, loaded and published alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tocsin
from tocsin.arrow import plain_layout, to_array, to_plain_table
from tocsin.errors import InvalidIdError

TEXTS = ["x", "y", None, "x", "x", "zebra crossing, longer than twelve bytes"]
MANY = 10_001


def runs(values: list[Any], kind: pa.DataType, run_ends: pa.DataType | None = None) -> pa.Array:
    """Encode values as runs, one for each; Arrow encodes only some types by itself."""
    ends = pa.array(range(1, len(values) + 1), run_ends or pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind))


def dictionary(values: list[Any], kind: pa.DataType) -> pa.Array:
    distinct = list(dict.fromkeys(v for v in values if v is not None))
    indices = [None if v is None else distinct.index(v) for v in values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.uint32()), pa.array(distinct, kind))


def dictionary_with_null(text: str) -> pa.Array:
    """Return a null and a text, both in the dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, text]))


def sliced(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(["out", None, *values, "out"], kind).slice(2, len(values))


def sliced_runs(values: list[Any]) -> pa.Array:
    return runs(["out", None, *values, "out"], pa.string(), pa.int16()).slice(2, len(values))


LAYOUTS: dict[str, Callable[[list[Any]], Any]] = {
    "string": lambda v: pa.array(v, pa.string()),
    "large_string": lambda v: pa.array(v, pa.large_string()),
    "string_view": lambda v: pa.array(v, pa.string_view()),
    "sliced string_view": lambda v: sliced(v, pa.string_view()),
    "chunked string_view": lambda v: pa.chunked_array(
        [pa.array(part, pa.string_view()) for part in (v[:2], [], v[2:])]
    ),
    "no chunks": lambda v: pa.chunked_array([pa.array(v, pa.string_view())], pa.string_view()),
    "dictionary": lambda v: dictionary(v, pa.string()),
    "dictionary of views": lambda v: dictionary(v, pa.string_view()),
    "chunked dictionaries of views": lambda v: pa.chunked_array(
        [dictionary(v[:2], pa.string_view()), dictionary(v[2:], pa.string_view())]
    ),
    "dictionary with null and twice the same": lambda v: pa.DictionaryArray.from_arrays(
        pa.array([*range(len(v) - 1), len(v) - 1], pa.int8()), pa.array(v, pa.string_view())
    ),
    "chunked dictionaries with null": lambda v: pa.chunked_array(
        [
            pa.DictionaryArray.from_arrays(
                pa.array(range(len(part)), pa.int32()), pa.array(part, pa.string())
            )
            for part in ([*v[:3]], [*v[3:]])
        ]
    ),
    "runs": lambda v: runs(v, pa.string()),
    "encoded runs": lambda v: pc.run_end_encode(pa.array(v, pa.string())),
    "sliced runs": sliced_runs,
    "chunked runs": lambda v: pa.chunked_array([sliced_runs(v[:3]), sliced_runs(v[3:])]),
    "runs of views": lambda v: runs(v, pa.string_view()),
    "runs of dictionaries": lambda v: pa.RunEndEncodedArray.from_arrays(
        pa.array(range(1, len(v) + 1), pa.int64()), dictionary(v, pa.string_view())
    ),
    "polars String": lambda v: pl.Series(v, dtype=pl.String),
    "polars Categorical": lambda v: pl.Series(v, dtype=pl.Categorical),
    "polars Enum": lambda v: pl.Series(v, dtype=pl.Enum([*dict.fromkeys(filter(None, v)), "q"])),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def frame(columns: dict[str, Any]) -> Any:
    if any(isinstance(column, pl.Series) for column in columns.values()):
        return pl.DataFrame(columns)
    return pa.table(columns)


@layouts
def test_texts_match_in_every_layout(layout: str) -> None:
    m = tocsin.Matcher()
    m.subscribe("x", "s = 'x'")
    m.subscribe("long", "s LIKE 'zebra%bytes'")
    m.subscribe("none", "s IS NULL")
    events = frame({"s": LAYOUTS[layout](TEXTS)})
    assert list(m.match_batch(events)) == [["x"], [], ["none"], ["x"], ["x"], ["long"]]


@layouts
def test_samples_are_taken_in_every_layout(layout: str) -> None:
    n = 20 if "twice" in layout else MANY  # whose indices have eight bits
    values = [*TEXTS, *["x"] * (n - len(TEXTS))]
    m = tocsin.Matcher()
    m.subscribe("x", "s = 'x'")
    m.profile(frame({"s": LAYOUTS[layout](values)}))
    m.subscribe("y", "s = 'y'")
    assert m.match({"s": "y"}) == ["y"]


@layouts
def test_subscriptions_load_in_every_layout(layout: str, tmp_path: Path) -> None:
    make = LAYOUTS[layout]
    wheres = ["s = 'x'", "s = 'y'", "s =", "s = 'x'", None, "t = 1"]
    ids = [*"abcdef"]
    m = tocsin.Matcher()
    table = frame({"id": make(ids), "where": make(wheres)})
    report = m.subscribe_many(table, on_error="quarantine")
    assert [bad.row for bad in report.bad] == [2, 4]
    assert sorted(m.match({"s": "x", "t": 1})) == ["a", "d", "f"]
    by_parameter = tocsin.Matcher()
    by_parameter.subscribe_many(frame({"id": make(ids), "p": make(TEXTS)}), where="s = :p")
    assert sorted(by_parameter.match({"s": "x"})) == ["a", "d", "e"]
    rules = {
        "id": make(ids),
        "attribute": make(["s"] * 6),
        "op": make(["=", "=", "?", "=", "=", "="]),
        "value": make([*"xyzxxy"]),
    }
    by_row = tocsin.Matcher()
    report = by_row.subscribe_many(frame(rules), on_error="quarantine")
    assert [bad.row for bad in report.bad] == [2]
    assert sorted(by_row.match({"s": "x"})) == ["a", "d", "e"]
    by_row.save(tmp_path / "rows")
    assert sorted(tocsin.Matcher.open(tmp_path / "rows").match({"s": "y"})) == ["b", "f"]
    m.unsubscribe_many(pa.table(frame({"id": make(["a", "d"])})).column("id"))
    assert m.match({"s": "x"}) == []


@layouts
def test_publications_are_kept_in_every_layout(layout: str) -> None:
    space = tocsin.SubjectSpace()
    space.subscribe("x", "s = 'x'")
    found = space.publish_many(
        frame({"key": LAYOUTS[layout]([*"abcdef"]), "s": LAYOUTS[layout](TEXTS)})
    )
    assert sorted(transition.key for transition in found) == ["a", "d", "e"]


def test_a_missing_id_in_a_dictionary_is_no_empty_id() -> None:
    m = tocsin.Matcher()
    m.subscribe("", "x = 1")
    m.subscribe("a", "x = 1")
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    with pytest.raises(InvalidIdError):
        m.unsubscribe_many(ids)
    assert sorted(m.match({"x": 1})) == ["", "a"]


NESTED: dict[str, Callable[[], pa.Array]] = {
    "struct of views": lambda: pa.StructArray.from_arrays(
        [pa.array(["x", "y", "x"], pa.string_view())], ["s"], mask=pa.array([False, False, True])
    ),
    "struct of runs": lambda: pa.StructArray.from_arrays(
        [runs(["x", "y", "x"], pa.string())], ["s"], mask=pa.array([False, False, True])
    ),
    "sliced struct of runs": lambda: pa.StructArray.from_arrays(
        [runs(["q", "x", "y", None], pa.string())], ["s"]
    ).slice(1),
    "runs of structs": lambda: pa.RunEndEncodedArray.from_arrays(
        pa.array([1, 2, 3], pa.int16()), pa.array([{"s": "x"}, {"s": "y"}, None])
    ),
    "chunks": lambda: pa.chunked_array(
        [
            pa.StructArray.from_arrays([pa.array(["x"], pa.string_view())], ["s"]),
            pa.StructArray.from_arrays([pa.array(["y", None], pa.string_view())], ["s"]),
        ]
    ),
    "chunks of dictionaries with null": lambda: pa.chunked_array(
        [
            pa.StructArray.from_arrays([dictionary_with_null("x")], ["s"]).slice(1),
            pa.StructArray.from_arrays([dictionary_with_null("y")], ["s"]).slice(1),
            pa.StructArray.from_arrays([dictionary_with_null("z")], ["s"]).slice(0, 1),
        ]
    ),
}


@pytest.mark.parametrize("layout", NESTED)
def test_fields_of_structs_match_in_every_layout(layout: str) -> None:
    m = tocsin.Matcher()
    m.subscribe("x", "o.s = 'x'")
    m.subscribe("none", "o.s IS NULL")
    table = pa.table({"o": NESTED[layout]()})
    assert list(m.match_batch(table)) == [["x"], [], ["none"]]
    assert list(m.match_batch(to_plain_table(table))) == [["x"], [], ["none"]]


UNKNOWN: dict[str, Callable[[], pa.Array]] = {
    "binary_view": lambda: pa.array([b"a", None], pa.binary_view()),
    "list_view": lambda: pa.array([[1], None], pa.list_view(pa.int64())),
    "large_list_view of views": lambda: pa.array(
        [["a"], None], pa.large_list_view(pa.string_view())
    ),
    "list of views": lambda: pa.array([["a"], None], pa.list_(pa.string_view())),
    "runs of lists": lambda: pa.RunEndEncodedArray.from_arrays(
        pa.array([1, 2], pa.int32()), pa.array([[1], None])
    ),
    "fixed list of views": lambda: pa.array([["a", "b"], None], pa.list_(pa.string_view(), 2)),
    "map of views": lambda: pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string_view())),
    "duration": lambda: pa.array([dt.timedelta(1), None]),
    "time": lambda: pa.array([dt.time(1), None]),
}


@pytest.mark.parametrize("layout", UNKNOWN)
def test_values_of_no_kind_are_present_in_every_layout(layout: str) -> None:
    m = tocsin.Matcher()
    m.subscribe("here", "v IS NOT NULL")
    m.subscribe("one", "v = 1 OR v = 'a'")
    table = pa.table({"v": UNKNOWN[layout]()})
    assert list(m.match_batch(table)) == [["here"], []]
    m.profile(pa.concat_tables([table] * (MANY // 2 + 1)))


@layouts
def test_a_layout_is_plain_once_it_was_converted(layout: str) -> None:
    column = pa.table(frame({"s": LAYOUTS[layout](TEXTS)})).column("s")
    array = to_array(column)
    assert plain_layout(array.type) is None
    assert array.to_pylist() == TEXTS
    assert array.take(pa.array([0, 2])).to_pylist() == ["x", None]
    assert array.filter(pa.array(np.arange(6) % 2 == 1)).to_pylist() == TEXTS[1::2]


@pytest.mark.parametrize("ids", [[1, 2], ["a", "b"], [1, "a"]], ids=str)
def test_tables_of_matches_have_one_schema_whatever_matched(ids: list[Any]) -> None:
    m = tocsin.Matcher()
    for at, name in enumerate(ids):
        m.subscribe(name, f"x = {at}")
    tables = [m.match_batch(pa.table({"x": [x]})).to_table() for x in (0, 1, 9)]
    joined = pa.concat_tables(tables)
    assert joined.num_rows == 2
    kind = pa.int64() if ids == [1, 2] else pa.string()
    assert joined.column("subscription").type.value_type == kind
