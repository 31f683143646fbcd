"""Summaries admit whatever a member matches, say so exactly in JSON, and keep up with changes."""

from __future__ import annotations

import json
import math
import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.samples import WORLDS
from tests.property.strategies import MARKET, Drawn, Seeded, event, expression, quote

from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.model import EventType
from tocsin.normalize import bind, normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable, concatenate, take
from tocsin.summary import LiveSummary, Summary


def table_of(*texts: str, event_type: EventType | None = None) -> ConjunctionTable:
    return from_forms([normalize(parse(text), event_type) for text in texts])


def summary_of(*texts: str, **limits: int) -> Summary:
    return Summary.of_table(table_of(*texts), **limits)


# Soundness.


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("most", [1, 2, 64])
def test_no_event_that_a_member_matches_is_rejected(name: str, most: int) -> None:
    world, source = WORLDS[name], Seeded(most)
    make = quote if world is MARKET else expression
    n_rejected = 0
    for size in (1, 2, 3, 5) * 6:
        forms = [normalize(make(source, world)) for _ in range(size)]
        events = [event(source, world) for _ in range(40)]
        summary = Summary.of_table(from_forms(forms), max_pieces=most, max_values=most)
        admitted = summary.admits(to_batch(events))
        for one, is_admitted in zip(events, admitted.tolist(), strict=True):
            assert summary.admits_one(one) is is_admitted
            n_rejected += not is_admitted
            assert is_admitted or not any(form.holds(one) for form in forms)
    assert n_rejected > 50, "a summary that admits all would pass as well"


@given(st.data())
def test_a_summary_of_one_conjunction_without_patterns_is_exact(data: Any) -> None:
    source = Drawn(data.draw)
    world = WORLDS["mixed"]
    form = normalize(expression(source, world, 1))
    one = event(source, world)
    if len(form) < 2 and not any(held.patterns for c in form for held in c.values()):
        assert Summary.of_table(from_forms([form])).admits_one(one) is form.holds(one)


@pytest.mark.parametrize("name", ["typed", "mixed", "market"])
def test_a_join_admits_what_either_admits(name: str) -> None:
    world, source = WORLDS[name], Seeded(5)
    for _ in range(30):
        tables = [from_forms([normalize(expression(source, world))]) for _ in range(2)]
        first, second = (Summary.of_table(t, max_pieces=2, max_values=2) for t in tables)
        batch = to_batch([event(source, world) for _ in range(40)])
        either = first.admits(batch) | second.admits(batch)
        joined = first.joined(second)
        assert not np.any(either & ~joined.admits(batch))
        assert joined.covers(first)
        assert joined.covers(second)


def test_an_attribute_that_a_member_leaves_free_is_free() -> None:
    summary = summary_of("x = 1 AND y = 2", "x = 5")
    assert list(summary.conditions) == ["x"]
    batch = to_batch([{"x": 1}, {"x": 5}, {"x": 2}, {"y": 2}, {}])
    assert summary.admits(batch).tolist() == [True, True, False, False, False]


def test_the_summary_of_nothing_admits_nothing() -> None:
    for summary in (Summary.never(), summary_of(), summary_of("x = 1 AND x = 2")):
        assert summary.is_never
        assert summary.admits(to_batch([{}, {"x": 1}])).tolist() == [False, False]
        assert not summary.admits_one({})
        one = summary_of("x = 1")
        assert summary.joined(one) == one.joined(summary) == one
        assert summary.describe() == "never: no event can match"


def test_a_member_that_always_matches_makes_a_summary_that_admits_all() -> None:
    summary = summary_of("x = 1", "TRUE")
    assert summary.is_always
    assert summary.admits(to_batch([{}, {"x": 2}])).all()
    assert summary.joined(summary_of("x = 1")).is_always


def test_absent_values_are_admitted_where_a_member_admits_them() -> None:
    summary = summary_of("x = 1", "x IS NULL")
    assert summary.admits(to_batch([{}, {"x": None}, {"x": 1}, {"x": 2}])).tolist() == [
        True, True, True, False,
    ]  # fmt: skip
    assert not summary_of("x = 1", "x = 3").admits_one({})
    assert summary_of("x = 1", "x IS NULL", "x IS NOT NULL").is_always


def test_values_of_other_lines_are_rejected() -> None:
    summary = summary_of("x = 1", "x > 7")
    odd = ["a", True, math.nan, [1]]
    assert not summary.admits(to_batch([{"x": value} for value in odd])).any()
    assert summary_of("x = 1", "x IS NOT NULL").admits(to_batch([{"x": v} for v in odd])).all()


def test_numbers_are_told_apart_exactly() -> None:
    summary = summary_of("x = 9007199254740993", "x = 9007199254740995")
    values = [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3, float(2**53)]
    found = summary.admits(to_batch([{"x": value} for value in values]))
    assert found.tolist() == [False, True, False, True, False]


# What is kept.


def test_too_many_numbers_keep_their_widest_gaps() -> None:
    texts = [f"x = {value}" for value in (1, 2, 3, 100, 101, 500)]
    summary = summary_of(*texts, max_pieces=3)
    admitted = [v for v in range(600) if summary.admits_one({"x": v})]
    assert admitted == [1, 2, 3, 100, 101, 500]
    assert not summary.admits_one({"x": 50})
    assert summary.admits_one({"x": 1.5})
    assert summary_of(*texts, max_pieces=1).admits_one({"x": 50})


def test_too_many_strings_become_one_interval() -> None:
    texts = [f"s = '{letter}'" for letter in "bdfh"]
    exact = summary_of(*texts, max_values=4)
    assert [letter for letter in "abcdefghi" if exact.admits_one({"s": letter})] == list("bdfh")
    coarse = summary_of(*texts, max_values=3)
    assert [x for x in "abcdefghi" if coarse.admits_one({"s": x})] == list("bcdefgh")


def test_infinite_numbers_have_their_gaps_too() -> None:
    form = "x = :a OR x = :b OR x = 0 OR x = 1"
    bound = bind(parse(form), {"a": math.inf, "b": -math.inf})
    summary = Summary.of_table(from_forms([normalize(bound)]), max_pieces=3)
    values = [math.inf, -math.inf, 0, 1, 1e300, -5]
    assert [summary.admits_one({"x": v}) for v in values] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "3", None])
def test_limits_are_whole_numbers_from_one(bad: Any) -> None:
    with pytest.raises(ArgumentError, match="max_pieces"):
        Summary.of_table(table_of("x = 1"), max_pieces=bad)
    with pytest.raises(ArgumentError, match="max_values"):
        LiveSummary(max_values=bad)


def test_nested_attributes_and_tables_are_read() -> None:
    summary = summary_of("order.total > 5")
    rows = pa.table({"order": [{"total": 9.0}, {"total": 1.0}, None]})
    assert summary.admits(to_batch(rows)).tolist() == [True, False, False]
    assert summary.admits_one({"order": {"total": 9}})


def test_a_summary_says_what_it_admits() -> None:
    text = summary_of("firm = 'IBM' AND price < 100", "firm = 'HP' AND price < 90").describe()
    assert text == "firm in {'HP', 'IBM'} and price < 100"


# JSON.


@pytest.mark.parametrize("name", WORLDS)
def test_a_summary_goes_through_json_unchanged(name: str) -> None:
    world, source = WORLDS[name], Seeded(9)
    make = quote if world is MARKET else expression
    for _ in range(60):
        forms = [normalize(make(source, world)) for _ in range(1 + source.below(2))]
        summary = Summary.of_table(from_forms(forms))
        text = json.dumps(summary.to_json(), allow_nan=False)
        assert Summary.from_json(json.loads(text)) == summary
        assert pickle.loads(pickle.dumps(summary)) == summary


def test_json_holds_what_other_readers_round() -> None:
    held = summary_of("x = 9007199254740993").to_json()
    assert held["attributes"]["x"]["numbers"] == [
        [["9007199254740993", 0], ["9007199254740993", 1]]
    ]


@pytest.mark.parametrize(
    "attributes",
    [
        [],
        {"x": []},
        {"x": {"numbers": 5}},
        {"x": {"numbers": [[None]]}},
        {"x": {"numbers": [[[5, 0], [5, 0]]]}},
        {"x": {"numbers": [[["five", 0], None]]}},
        {"x": {"numbers": [[[math.nan, 0], None]]}},
        {"x": {"numbers": [[[True, 0], None]]}},
        {"x": {"numbers": [[[1, 2], None]]}},
        {"x": {"strings": [[[1, 0], None]]}},
        {"x": {"strings": [[["\ud800", 0], None]]}},
        {"x": {"timestamps": [[[1.5, 0], None]]}},
        {"x": {"timestamps": [[["99999999999999999999", 0], None]]}},
        {"x": {"numbers": [[["9" * 400, 0], None]]}},
        {"x": {"absent": 1}},
        {"x": {"wrong": True}},
        {5: {"absent": True}},
    ],
)
def test_ill_formed_json_is_refused(attributes: Any) -> None:
    good = summary_of("x = 1").to_json()
    with pytest.raises(ArgumentError):
        Summary.from_json({**good, "attributes": attributes})
    with pytest.raises(ArgumentError):
        Summary.from_json({"attributes": {}})


# Summaries that are kept.


@pytest.mark.parametrize("name", WORLDS)
def test_a_summary_that_is_kept_equals_one_made_anew(name: str) -> None:
    world, source = WORLDS[name], Seeded(3)
    make = quote if world is MARKET else expression
    dice = random.Random(1)
    live = LiveSummary(max_pieces=3, max_values=3)
    there: list[ConjunctionTable] = []
    for _ in range(120):
        table = from_forms([normalize(make(source, world)) for _ in range(1 + source.below(2))])
        step = dice.random()
        if step < 0.45 or not there:
            live.insert(table)
            there.append(table)
        elif step < 0.8:
            live.remove(there.pop(dice.randrange(len(there))))
        else:
            at = dice.randrange(len(there))
            live.update(there[at], table)
            there[at] = table
        whole = concatenate([table_of(), *there])
        assert live.n_conjunctions == whole.n_conjunctions
        assert live.summary() == Summary.of_table(whole, max_pieces=3, max_values=3)
    for table in there:
        live.remove(table)
    assert live.summary() == Summary.never(max_pieces=3, max_values=3)
    assert live.nbytes == 0


def test_many_are_counted_as_few_are() -> None:
    rng = np.random.default_rng(2)
    lows = np.sort(rng.uniform(0, 1e6, 3000)).round(1)
    texts = [f"x BETWEEN {low} AND {low + 20}" for low in lows]
    table = table_of(*texts)
    live = LiveSummary(max_pieces=20)
    live.insert(table)
    assert live.summary() == Summary.of_table(table, max_pieces=20)
    half = np.arange(0, 3000, 2)
    live.remove(take(table, half))
    rest = take(table, half + 1)
    assert live.summary() == Summary.of_table(rest, max_pieces=20)
    for i in range(200):
        live.remove(take(rest, np.array([i])))
    left = take(rest, np.arange(200, 1500))
    assert live.summary() == Summary.of_table(left, max_pieces=20)


def test_what_was_never_inserted_cannot_be_removed() -> None:
    live = LiveSummary()
    live.insert(table_of("x = 1"))
    for text in ("y = 1", "x = 1 OR y = 2"):
        with pytest.raises(ArgumentError, match="must have been inserted"):
            live.remove(table_of(text))
    assert live.summary() == summary_of("x = 1")


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=12), st.integers(1, 4))
def test_a_reduced_summary_holds_its_values(values: list[float], most: int) -> None:
    forms = [normalize(bind(parse("x = :v"), {"v": value})) for value in values]
    summary = Summary.of_table(from_forms(forms), max_pieces=most)
    assert all(summary.admits_one({"x": value}) for value in values)
    assert summary.admits(to_batch(pa.table({"x": values}))).all()
