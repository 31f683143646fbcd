"""Functions of whole columns give what they give of one value at a time."""

from __future__ import annotations

import datetime as dt

import pytest

from tocsin.encode import vectors
from tocsin.language import functions
from tocsin.model import Kind

COLUMNS: list[list[object]] = [
    [1, None, -(2**31), 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1],
    [1.5, None, 5.0, float("nan")],
    ["5", "+5", "-05", " 5", "5 ", "", "2147483648", "-2147483648", "٥", "5.0", None, "x"],
    ["--a-", "", "-", "é--", None, "a  "],
    [True, None, False],
    [dt.datetime(2026, 7, 1, tzinfo=dt.UTC), None],
    [1, "5", True, None, 2.5, [1], b"x"],
    [None, None],
]


@pytest.mark.parametrize(
    ("name", "constants"),
    [("int32", []), ("typeof", []), ("trim", ["- "]), ("ltrim", ["-"]), ("rtrim", ["-é"])],
)
@pytest.mark.parametrize("values", COLUMNS, ids=str)
def test_a_column_is_computed_as_its_values_are(
    name: str, constants: list[str], values: list[object]
) -> None:
    rest = [vectors.constant(each, Kind.STRING, len(values)) for each in constants]
    column = vectors.call(name, [vectors.from_objects(values), *rest])
    assert vectors.to_objects(column) == [functions.call(name, [v, *constants]) for v in values]


def test_trimming_takes_the_empty_set_of_characters() -> None:
    texts = vectors.from_objects(["  a ", "b"])
    trimmed = vectors.call("trim", [texts, vectors.constant("", Kind.STRING, 2)])
    assert vectors.to_objects(trimmed) == ["  a ", "b"]
