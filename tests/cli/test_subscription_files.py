"""Subscription files: every format gives the same subscriptions; bad rows have their places."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.cli.subscription_files import MIN_GROUP, SubscriptionFile
from tocsin.errors import FileFormatError

MOMENT = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def read(path: Path, data: str | bytes | None = None) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the rows, with their place and template, and the bad ones."""
    if data is not None:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    file = SubscriptionFile(path)
    rows = []
    for part in file:
        for place, row in zip(part.places.tolist(), part.table.to_pylist(), strict=True):
            rows.append({"place": place, **({"where": part.where} if part.where else {}), **row})
    return rows, sorted((bad.line, bad.reason) for bad in file.bad)


def lines(*objects: Any) -> str:
    return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in objects)


def test_a_text_file_has_a_condition_a_line(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfx = 1\r\n\n  # a remark\n  y = 'a#b'  \nz = \xff\nx = 3"
    rows, bad = read(tmp_path / "s.txt", data)
    assert rows == [
        {"place": 1, "id": 1, "where": "x = 1"},
        {"place": 4, "id": 4, "where": "y = 'a#b'"},
        {"place": 6, "id": 6, "where": "x = 3"},
    ]
    assert bad == [(5, "not UTF-8")]
    assert read(tmp_path / "s.conditions", data) == (rows, bad)
    assert read(tmp_path / "s.txt.gz", gzip.compress(data)) == (rows, bad)


def test_json_lines_have_ids_conditions_and_ends(tmp_path: Path) -> None:
    text = lines(
        {"id": "a", "where": "x = 1", "note": "ignored"},
        "",
        {"id": 7, "where": "x = 2", "valid_until": "2030-01-01"},
    )
    rows, bad = read(tmp_path / "s.jsonl", text)
    assert rows == [
        {"place": 1, "id": "a", "where": "x = 1"},
        {"place": 3, "id": 7, "where": "x = 2", "valid_until": MOMENT},
    ]
    assert bad == []


def test_rows_with_one_template_come_as_parameter_columns(tmp_path: Path) -> None:
    where = "firm = :firm AND price < :limit"
    many = [
        {"id": i, "where": where, "params": {"firm": "A", "limit": i + 0.5}}
        for i in range(MIN_GROUP)
    ]
    rows, bad = read(tmp_path / "s.jsonl", lines(*many))
    assert rows[3] == {"place": 4, "id": 3, "where": where, "firm": "A", "limit": 3.5}
    assert len(rows) == MIN_GROUP
    assert bad == []


def test_parameters_that_fit_no_column_are_written_into_the_text(tmp_path: Path) -> None:
    rows, bad = read(
        tmp_path / "s.jsonl",
        lines(
            {"id": 1, "where": "x = :v", "params": {"v": "it's"}},
            {"id": 2, "where": "x = :v", "params": {"v": 2}},
            {"id": 3, "where": "x = :id", "params": {"id": 9007199254740993}},
            {"id": 4, "where": "x = :v", "params": {"v": None}},
        ),
    )
    texts = ["x = 'it''s'", "x = 2", "x = 9007199254740993", "x = NULL"]
    assert [row["where"] for row in sorted(rows, key=lambda row: row["place"])] == texts
    assert bad == []


def test_bad_json_subscriptions_are_reported_with_their_lines(tmp_path: Path) -> None:
    rows, bad = read(
        tmp_path / "s.jsonl",
        lines(
            {"id": 1, "where": "x = 1"},
            "nonsense",
            {"where": "x = 1"},
            {"id": 2},
            {"id": 3, "where": 5},
            {"id": 1.5, "where": "x = 1"},
            {"id": True, "where": "x = 1"},
            {"id": 1, "where": "x = 2"},
            {"id": 4, "where": "x = :a", "params": {"a": [1]}},
            {"id": 5, "where": "x = :a", "params": 3},
            {"id": 6, "where": "x = :a", "params": {"b": 1}},
            {"id": 7, "where": "x = 1", "valid_until": "soon"},
            {"id": 8, "where": "x = :a", "params": {"a": {"b": 1}}},
        ),
    )
    assert [row["id"] for row in rows] == [1]
    assert bad == [
        (2, "not JSON: Expecting value (column 1)"),
        (3, "there is no id"),
        (4, "there is no where"),
        (5, "where is not a string"),
        (6, "an id must be a string or a 64-bit integer, not 1.5"),
        (7, "an id must be a string or a 64-bit integer, not True"),
        (8, "a subscription with id 1 exists already"),
        (9, "parameter :a is a list, which only IN takes"),
        (10, "params is not an object"),
        (11, "no value for parameter :a"),
        (12, "valid_until 'soon' is not a timestamp"),
        (13, "parameter :a is an object, or an array of arrays or objects"),
    ]


def test_csv_ids_are_integers_only_when_all_are(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "s.csv", 'where,id\nx = 1,5\n"x IN (1, 2)",-6\n')
    assert rows == [
        {"place": 2, "id": 5, "where": "x = 1"},
        {"place": 3, "id": -6, "where": "x IN (1, 2)"},
    ]
    for odd in ("007", "x", "9223372036854775808", "+5", "1.0"):
        rows, _ = read(tmp_path / "s.csv", f"id,where\n5,x = 1\n{odd},x = 2\n")
        assert [row["id"] for row in rows] == ["5", odd]


def test_bad_csv_rows_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = "id,where,valid_until\n1,x = 1,2030-01-01\n2,,\n,x = 3,\n4,x = 4,soon\n5,x = 5\n6,y,\n"
    rows, bad = read(tmp_path / "s.csv", text)
    assert rows == [
        {"place": 2, "id": 1, "where": "x = 1", "valid_until": MOMENT},
        {"place": 7, "id": 6, "where": "y", "valid_until": None},
    ]
    assert bad == [
        (3, "there is no where"),
        (4, "there is no id"),
        (5, "valid_until 'soon' is not a timestamp"),
        (6, "2 fields where the header names 3"),
    ]


def test_parquet_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    columns = {"more": [0, 0], "where": ["x = 1", "x = 2"], "id": ["a", "b"]}
    pq.write_table(pa.table({**columns, "valid_until": [MOMENT, None]}), path)
    rows, bad = read(path)
    assert rows == [
        {"place": 0, "id": "a", "where": "x = 1", "valid_until": MOMENT},
        {"place": 1, "id": "b", "where": "x = 2", "valid_until": None},
    ]
    assert bad == []


@pytest.mark.parametrize("name", ["s.csv", "s.parquet"])
def test_missing_columns_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "s.csv":
        path.write_text("id,condition\n1,x\n")
    else:
        pq.write_table(pa.table({"id": [1], "condition": ["x"]}), path)
    with pytest.raises(FileFormatError, match="no column 'where' among id, condition"):
        list(SubscriptionFile(path))


def test_unknown_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="unknown kind of file"):
        SubscriptionFile(tmp_path / "s.sql")
    (tmp_path / "s.txt").touch()
    with pytest.raises(FileFormatError, match="the file is empty"):
        SubscriptionFile(tmp_path / "s.txt")
