"""Matches: offsets, indexing, iteration, and the table."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.engines import names
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.matches import Matches

EVENTS = [{"x": 1}, {"x": 5}, {}, {"x": 9}]


def matcher_with(engine: str, ids: list[str | int]) -> Matcher:
    """Return a matcher whose i-th subscription asks for x > 2 * i."""
    m = tocsin.Matcher(engine=engine)
    for i, id in enumerate(ids):
        m.subscribe(id, f"x > {2 * i}")
    return m


@pytest.fixture(params=names())
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def matches(engine: str) -> Matches:
    return matcher_with(engine, ["a", "b", "c"]).match_batch(EVENTS)


def test_offsets_say_where_the_matches_of_each_event_are(matches: Matches) -> None:
    assert matches.offsets.tolist() == [0, 1, 4, 4, 7]
    assert matches.offsets.dtype == np.int64
    assert matches.n_matches == 7
    assert len(matches) == 4


def test_an_index_gives_the_ids_of_one_event(matches: Matches) -> None:
    assert [sorted(matches[i]) for i in range(4)] == [["a"], ["a", "b", "c"], [], ["a", "b", "c"]]
    assert sorted(matches[np.int64(1)]) == ["a", "b", "c"]  # type: ignore[call-overload]


def test_a_negative_index_counts_from_the_end(matches: Matches) -> None:
    assert [sorted(matches[i - 4]) for i in range(4)] == [sorted(ids) for ids in matches]


SLICES = ((1, 3), (None, None), (-2, None), (3, 1), (9, 12), (None, None, -2))


@pytest.mark.parametrize("part", [slice(*ends) for ends in SLICES], ids=str)
def test_a_slice_gives_the_matches_of_some_events(matches: Matches, part: slice) -> None:
    some = matches[part]
    assert isinstance(some, Matches)
    assert [sorted(ids) for ids in some] == [sorted(ids) for ids in list(matches)[part]]
    assert some.n_matches == some.to_table().num_rows == sum(map(len, some))
    assert some.offsets[0] == 0


@pytest.mark.parametrize("index", [4, -5, 100])
def test_an_index_beyond_the_events_is_refused(matches: Matches, index: int) -> None:
    with pytest.raises(IndexError):
        matches[index]


def test_iteration_goes_event_by_event(matches: Matches) -> None:
    assert [len(ids) for ids in matches] == [1, 3, 0, 3]
    assert [len(ids) for ids in reversed(matches)] == [3, 0, 3, 1]
    assert ["a"] in matches


def test_it_says_how_much_it_holds(matches: Matches) -> None:
    assert repr(matches) == "Matches(4 events, 7 matches)"


def test_the_table_has_a_row_for_each_match(matches: Matches) -> None:
    table = matches.to_table()
    assert table.column_names == ["event", "subscription"]
    assert table.schema.field("event").type == pa.int64()
    assert table.schema.field("subscription").type == pa.dictionary(pa.int32(), pa.string())
    pairs = zip(*(column.to_pylist() for column in table.columns), strict=True)
    assert sorted(pairs) == [(0, "a"), *((1, n) for n in "abc"), *((3, n) for n in "abc")]


def test_frames_have_the_rows_of_the_table(matches: Matches) -> None:
    pairs = sorted(matches.to_table().to_pandas().itertuples(index=False, name=None))
    assert sorted(matches.to_pandas().itertuples(index=False, name=None)) == pairs
    assert sorted(matches.to_polars().iter_rows()) == pairs


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_frame_of_a_missing_package_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches = matcher_with("auto", ["a"]).match_batch(EVENTS)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=f"pip install {package}"):
        getattr(matches, f"to_{package}")()


def test_in_the_table_ids_stand_once_in_a_dictionary(matches: Matches) -> None:
    (chunk,) = matches.to_table()["subscription"].chunks
    assert sorted(chunk.dictionary.to_pylist()) == ["a", "b", "c"]


def test_integer_ids_are_integers_in_the_table(engine: str) -> None:
    table = matcher_with(engine, [10, -20, 2**40]).match_batch(EVENTS).to_table()
    assert table.schema.field("subscription").type == pa.dictionary(pa.int32(), pa.int64())
    assert set(table["subscription"].to_pylist()) == {10, -20, 2**40}


def test_mixed_ids_are_strings_in_the_table(engine: str) -> None:
    table = matcher_with(engine, [10, "a", 30]).match_batch(EVENTS).to_table()
    assert table.schema.field("subscription").type == pa.dictionary(pa.int32(), pa.string())
    assert set(table["subscription"].to_pylist()) == {"10", "a", "30"}


@pytest.mark.parametrize("events", [[], [{}, {}]], ids=["no events", "no matches"])
def test_a_table_without_matches_has_no_rows(engine: str, events: list[dict[str, int]]) -> None:
    found = matcher_with(engine, ["a"]).match_batch(events)
    assert found.to_table().num_rows == 0
    assert found.offsets.tolist() == [0] * (len(events) + 1)
    assert list(found) == [[]] * len(events)


def test_matches_stay_as_they_were_when_the_matcher_changes(engine: str) -> None:
    m = matcher_with(engine, ["a", "b"])
    before = m.match_batch(EVENTS)
    m.unsubscribe("a")
    m.subscribe("c", "x > 0")
    m.match_batch(EVENTS)
    assert [sorted(ids) for ids in before] == [["a"], ["a", "b"], [], ["a", "b"]]
    assert set(before.to_table()["subscription"].to_pylist()) == {"a", "b"}
