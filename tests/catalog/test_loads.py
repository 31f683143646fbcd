"""Loads and removals by the column: the same answers and errors as for a few, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    InvalidIdError,
    UnknownSubscriptionError,
)
from tocsin.matcher import Matcher

N = 200


@pytest.fixture(params=[int, str], ids=["integers", "strings"])
def name_of(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    return request.param


def filled(name_of: Callable[[int], Any]) -> Matcher:
    """Return a matcher whose i-th subscription asks for x = i % 10, some of them single ones."""
    m = tocsin.Matcher(engine="oracle")
    names = [name_of(i) for i in range(N)]
    m.subscribe_many({"id": names[: N // 2], "v": [i % 10 for i in range(N // 2)]}, where="x = :v")
    for i in range(N // 2, N):
        m.subscribe(names[i], f"x = {i % 10}")
    return m


def state(m: Matcher) -> Any:
    return len(m), [sorted(m.match({"x": i}), key=repr) for i in range(10)]


def test_bad_rows_of_a_large_load_are_those_of_a_small_one(name_of: Callable[[int], Any]) -> None:
    m = filled(name_of)
    before = state(m)
    names: list[Any] = [name_of(1_000 + i) for i in range(N)]
    texts = ["x = 1"] * N
    names[3], names[70], names[150] = names[2], names[2], None
    names[100], names[101], texts[101] = name_of(5), name_of(N - 1), "x ="
    texts[2] = "x = 'a"
    expected = [
        (2, name_of(1_002), "syntax"),
        (3, name_of(1_002), "duplicate-id"),
        (70, name_of(1_002), "duplicate-id"),
        (100, name_of(5), "duplicate-id"),
        (101, name_of(N - 1), "syntax"),
        (150, None, "invalid-id"),
    ]
    with pytest.raises(BadRowsError) as caught:
        m.subscribe_many({"id": names, "where": texts})
    assert [(bad.row, bad.id, bad.code) for bad in caught.value.rows] == expected
    assert f"{name_of(5)!r} exists already" in caught.value.rows[3].reason
    assert state(m) == before
    report = m.subscribe_many({"id": names, "where": texts}, on_error="quarantine")
    assert [(bad.row, bad.id, bad.code) for bad in report.bad] == expected
    assert report.loaded == N - len(expected)
    assert len(m) == 2 * N - len(expected)
    assert names[4] in m
    assert name_of(1_002) not in m
    assert set(m.match({"x": 1})) == {name_of(i) for i in range(1, N, 10)} | {
        name for i, name in enumerate(names) if i not in (2, 3, 70, 100, 101, 150)
    }


@pytest.mark.parametrize(
    "made",
    [
        list,
        tuple,
        iter,
        pa.array,
        lambda names: pa.chunked_array([names[:50], names[50:]]),
        lambda names: pa.array(names).dictionary_encode(),
        lambda names: (
            pa.array(["odd", *map(str, names)]).slice(1)
            if isinstance(names[0], str)
            else pa.array(names, pa.uint64())
        ),
        np.array,
        pd.Series,
        lambda names: np.array(names, object),
    ],
    ids="list tuple iter array chunked dictionary other numpy pandas object".split(),
)
def test_many_are_unsubscribed_by_any_column_of_ids(
    name_of: Callable[[int], Any], made: Callable[[list[Any]], Any]
) -> None:
    m = filled(name_of)
    m.unsubscribe_many(made([name_of(i) for i in range(0, N, 2)]))
    assert len(m) == N // 2
    assert [name_of(i) in m for i in range(N)] == [i % 2 == 1 for i in range(N)]
    assert m.match({"x": 2}) == []
    assert set(m.match({"x": 3})) == {name_of(i) for i in range(3, N, 10)}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({120: -5, 150: -6}, UnknownSubscriptionError),
        ({120: 7, 150: -6}, UnknownSubscriptionError),
        ({120: None, 150: -6}, InvalidIdError),
        ({120: 1.5, 150: None}, InvalidIdError),
        ({120: True}, InvalidIdError),
        ({120: 2**64}, InvalidIdError),
        ({120: "\ud800"}, InvalidIdError),
    ],
    ids=repr,
)
def test_the_first_id_that_cannot_be_unsubscribed_is_named(
    name_of: Callable[[int], Any], changed: dict[int, Any], error: type[Exception]
) -> None:
    m = filled(name_of)
    before = state(m)
    names = [name_of(i) for i in range(N)]
    for at, value in changed.items():
        names[at] = name_of(value) if error is UnknownSubscriptionError else value
    with pytest.raises(error) as caught:
        m.unsubscribe_many(names)
    assert caught.value.subscription == names[120]  # type: ignore[attr-defined]
    assert state(m) == before


@pytest.mark.parametrize("ids", [np.array("abc"), np.array(5), 5, "abc", {"a": 1}], ids=repr)
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    m = filled(str)
    with pytest.raises(ArgumentError, match="ids must be a list of ids"):
        m.unsubscribe_many(ids)


def test_an_array_of_ids_may_be_used_again_by_its_owner() -> None:
    m = tocsin.Matcher(engine="oracle")
    ids = np.arange(N)
    m.subscribe_many({"id": ids, "v": np.arange(N)}, where="x = :v")
    ids += N
    m.subscribe_many({"id": ids, "v": np.arange(N)}, where="x = :v")
    assert m.match({"x": 3}) == [3, N + 3]
    m.unsubscribe_many(ids)
    assert m.match({"x": 3}) == [3]
    assert 3 in m


def test_strings_and_integers_of_large_loads_are_different_ids() -> None:
    m = tocsin.Matcher(engine="oracle")
    m.subscribe_many({"id": range(N), "where": ["x = 1"] * N})
    m.subscribe_many({"id": [str(i) for i in range(N)], "where": ["x = 2"] * N})
    assert len(m) == 2 * N
    m.unsubscribe_many([str(i) for i in range(N)])
    assert m.match({"x": 2}) == []
    assert m.match({"x": 1}) == list(range(N))
    matches = m.match_batch([{"x": 1}, {"x": 2}])
    assert matches[0] == list(range(N))
    assert matches.to_table()["subscription"].to_pylist() == list(range(N))
