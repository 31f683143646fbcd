"""A value means the same whichever way an event, or a parameter, comes in."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.values import CASES, NOON, Case

import tocsin
from tocsin.encode.json_lines import parse_json_object
from tocsin.model import EventType, to_plain

OTHER = {"y": 1}
"""An event without the attribute."""


def single(m: tocsin.Matcher, value: Any) -> list[Any]:
    return m.match({"x": value})


def mappings(m: tocsin.Matcher, value: Any) -> list[Any]:
    return m.match_batch([OTHER, {"x": value}])[1]


def nested(m: tocsin.Matcher, value: Any) -> list[Any]:
    where = m.get("r").where
    inner = tocsin.Matcher()
    inner.subscribe("r", where.replace("x ", "o.x ", 1))
    assert inner.match({"o": {"x": value}}) == inner.match_batch([{"o": {"x": value}}])[0]
    return inner.match({"o": {"x": value}})


def mixed(m: tocsin.Matcher, value: Any) -> list[Any]:
    """Values of several kinds in one batch."""
    return m.match_batch([{"x": "text"}, {"x": value}, {"x": -1}, {"x": [1]}])[1]


def arrow(m: tocsin.Matcher, value: Any) -> list[Any]:
    return m.match_batch(pa.table({"x": pa.array([None, to_arrow(value)])}))[1]


def dictionary(m: tocsin.Matcher, value: Any) -> list[Any]:
    column = pa.array([None, to_arrow(value)]).dictionary_encode()
    return m.match_batch(pa.table({"x": column}))[1]


def struct(m: tocsin.Matcher, value: Any) -> list[Any]:
    inner = tocsin.Matcher()
    inner.subscribe("r", m.get("r").where.replace("x ", "o.x ", 1))
    return inner.match_batch(pa.table({"o": pa.array([{"x": to_arrow(value)}])}))[0]


def pandas(m: tocsin.Matcher, value: Any) -> list[Any]:
    return m.match_batch(pd.DataFrame({"x": [value]}))[0]


def polars(m: tocsin.Matcher, value: Any) -> list[Any]:
    return m.match_batch(pl.DataFrame({"x": [to_arrow(value)]}))[0]


def oracle(m: tocsin.Matcher, value: Any) -> list[Any]:
    other = tocsin.Matcher(engine="oracle")
    other.subscribe("r", m.get("r").where)
    assert other.match({"x": value}) == other.match_batch([{"x": value}])[0]
    table = pa.table({"x": pa.array([to_arrow(value)])})
    assert other.match({"x": value}) == other.match_batch(table)[0]
    return other.match({"x": value})


def explained(m: tocsin.Matcher, value: Any) -> list[Any]:
    text = m.explain("r", {"x": value})
    assert text.startswith(("match:", "no match:"))
    return ["r"] if text.startswith("match:") else []


def to_arrow(value: Any) -> Any:
    """Return a value as Arrow's own functions take it."""
    is_numpy = type(value).__module__ == "numpy"
    return to_plain(value) if is_numpy else value


ROADS = [
    single,
    mappings,
    nested,
    mixed,
    arrow,
    dictionary,
    struct,
    pandas,
    polars,
    oracle,
    explained,
]


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_value_means_the_same_by_every_road(
    case: Case, road: Callable[[tocsin.Matcher, Any], list[Any]]
) -> None:
    m = tocsin.Matcher()
    m.subscribe("r", case.where)
    assert road(m, case.value) == (["r"] if case.holds else [])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_value_of_json_lines_means_the_same(case: Case) -> None:
    value = to_plain(case.value)
    text = value.isoformat() if isinstance(value, dt.datetime) else value
    event = parse_json_object(json.dumps({"x": text}).encode())
    m = tocsin.Matcher()
    m.subscribe("r", case.where)
    assert m.match_batch([event])[0] == (["r"] if case.holds else [])


PARAMETERS = {
    name: case.value
    for name, case in CASES.items()
    if not isinstance(case.value, str) and case.holds
}


@pytest.mark.parametrize("value", PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_equals_the_same_value_of_an_event(value: Any) -> None:
    m = tocsin.Matcher()
    m.subscribe("one", "x = :x", {"x": value})
    m.subscribe_many({"id": ["many"], "x": pa.array([to_arrow(value)])}, where="x = :x")
    m.subscribe("changed", "x = :x", {"x": 77})
    m.update("changed", params={"x": value})
    assert sorted(m.match({"x": value})) == ["changed", "many", "one"]
    assert sorted(m.match_batch(pa.table({"x": pa.array([to_arrow(value)])}))[0]) == [
        "changed", "many", "one",
    ]  # fmt: skip


class TestDeclaredTimestamps:
    """Where an attribute is declared a timestamp, a text must be one."""

    declared = EventType("Event", {"x": "timestamp", "o.x": "timestamp"})

    def matcher(self) -> tocsin.Matcher:
        m = tocsin.Matcher(self.declared)
        m.subscribe("r", "x > TIMESTAMP '2026-07-01T11:00:00Z'")
        m.subscribe("o", "o.x > TIMESTAMP '2026-07-01T11:00:00Z'")
        return m

    @pytest.mark.parametrize("value", ["2026-07-01T12:00:00Z", NOON, dt.date(2026, 7, 2)])
    def test_an_iso_text_is_taken_by_every_road(self, value: Any) -> None:
        m = self.matcher()
        assert m.match({"x": value}) == ["r"]
        assert m.match({"o": {"x": value}}) == ["o"]
        assert list(m.match_batch([{"x": value}, {"x": None}, {"o": {"x": value}}])) == [
            ["r"], [], ["o"],
        ]  # fmt: skip
        assert list(m.match_batch(pa.table({"x": [None, value]}))) == [[], ["r"]]
        assert list(m.match_batch(pd.DataFrame({"x": [value]}))) == [["r"]]
        assert list(m.match_batch(pl.DataFrame({"x": [value]}))) == [["r"]]
        assert m.explain("r", {"x": value}).startswith("match:")

    @pytest.mark.parametrize("make", [lambda v: [{"x": v}], lambda v: pa.table({"x": [v]})])
    def test_another_text_is_refused_with_its_place(self, make: Callable[[str], object]) -> None:
        with pytest.raises(tocsin.errors.EventError, match="'soon' is none") as caught:
            self.matcher().match_batch(make("soon"))
        assert (caught.value.attribute, caught.value.row) == ("x", 0)


class TestAnAttributeComparedWithBoth:
    """A text that is a timestamp is both, for conditions of either kind."""

    def matcher(self) -> tocsin.Matcher:
        m = tocsin.Matcher()
        m.subscribe("moment", "x > TIMESTAMP '2026-07-01T11:00:00Z'")
        m.subscribe("text", "x LIKE '2026-%'")
        m.subscribe("there", "x IS NOT NULL")
        m.subscribe("both", "x = '2026-07-01T12:00:00Z' AND y > TIMESTAMP '2026-01-01'")
        m.subscribe("letters", "y LIKE '2026%' AND x > TIMESTAMP '2026-01-01'")
        return m

    event: ClassVar = {"x": "2026-07-01T12:00:00Z", "y": "2026-02-02"}

    def test_conditions_of_both_kinds_hold(self) -> None:
        m, every = self.matcher(), ["both", "letters", "moment", "text", "there"]
        assert sorted(m.match(self.event)) == every
        assert sorted(m.match_batch([{}, self.event])[1]) == every
        assert sorted(m.match_batch(pa.Table.from_pylist([self.event]))[0]) == every
        assert m.match_batch(pa.Table.from_pylist([self.event])).n_matches == len(every)

    def test_it_does_not_matter_who_came_first(self) -> None:
        m = tocsin.Matcher()
        m.subscribe("text", "x LIKE '2026-%'")
        assert m.match(self.event) == ["text"]
        m.subscribe("moment", "x > TIMESTAMP '2026-07-01T11:00:00Z'")
        assert sorted(m.match(self.event)) == ["moment", "text"]
        m.unsubscribe("text")
        assert m.match(self.event) == ["moment"]

    def test_it_is_the_same_after_opening_a_saved_matcher(self, tmp_path: Path) -> None:
        self.matcher().save(tmp_path / "store")
        with tocsin.Matcher.open(tmp_path / "store") as m:
            assert len(m.match(self.event)) == 5
            assert m.match_batch([self.event]).n_matches == 5
