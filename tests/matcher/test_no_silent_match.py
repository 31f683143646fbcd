"""Ways in which nothing matches, or all does, by mistake: each is said, or refused.

`tests/broker/test_no_silent_match.py` has those of the broker. A case makes the mistake, and
returns the text in which a user is told so; its name says what the mistake is.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import ConditionWarning, SchemaDriftWarning, TocsinError

QUOTE = tocsin.EventType("Quote", price=float, firm=str, at=dt.datetime)
STRICT = tocsin.EventType("Quote", price=float, firm=str, strict=True)
PRICES = pa.table({"price": [5.5, 7.0], "firm": ["IBM", "SAP"]})
ROWS = PRICES.to_pylist()
CASES: dict[str, tuple[Callable[[], object], str]] = {}
"""By what the mistake is: what makes it, and a part of what is said."""


def case(sentence: str, says: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a way to match nothing."""

    def register(make: Callable[[], object]) -> Callable[[], object]:
        CASES[sentence] = make, says
        return make

    return register


def rules(*wheres: str, of: Any = None) -> tocsin.Matcher:
    m = tocsin.Matcher(of)
    m.subscribe_many({"id": [f"r{n}" for n in range(len(wheres))], "where": list(wheres)})
    return m


def said(make: Callable[[], object]) -> str:
    """Return the warnings, the error or the report of a call as one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = make()
        except TocsinError as error:
            return f"{type(error).__name__}: {error}"
    if isinstance(report, tocsin.LoadReport):
        return "\n".join(map(str, report.warnings))
    if isinstance(report, str):
        return report
    kinds = (SchemaDriftWarning, ConditionWarning)
    return "\n".join(str(each.message) for each in caught if issubclass(each.category, kinds))


# What the events do not have.


@case("a rule misspells an attribute, and a table is matched", "did you mean 'price'?")
def _() -> object:
    return rules("pirce < 10").match_batch(PRICES)


@case("a rule misspells an attribute, and mappings are matched", "did you mean 'price'?")
def _() -> object:
    return rules("pirce < 10").match_batch(ROWS)


@case("a rule misspells an attribute, and one event is matched", "did you mean 'price'?")
def _() -> object:
    return rules("pirce < 10").match(ROWS[0])


@case("a rule misspells an attribute, and a frame of pandas is matched", "did you mean 'price'?")
def _() -> object:
    return rules("pirce < 10").match_batch(PRICES.to_pandas())


@case("a rule misspells an attribute, and a frame of Polars is matched", "did you mean 'price'?")
def _() -> object:
    return rules("pirce < 10").match_batch(pl.from_arrow(PRICES))


@case("one of many rules misspells what the others do not", "1 subscription(s) can never hold")
def _() -> object:
    return rules("pirce < 10", *["price < 10"] * 500).match_batch(PRICES)


@case("a rule misspells an attribute that others name, in single events", "no event has it")
def _() -> None:
    m = rules("pirce < 10", "price < 10")
    for event in ROWS * 10:
        m.match(event)


@case("a rule names an attribute that no event of a thousand has", "volume: no event has it")
def _() -> object:
    return rules("volume > 10").match_batch(ROWS * 500)


@case("a rule writes an attribute in another case", "did you mean 'price'?")
def _() -> object:
    return rules("Price < 10").match_batch(PRICES)


@case("a rule misspells a path into an object", "did you mean 'order.total'?")
def _() -> object:
    return rules("order.totl < 10").match({"order": {"total": 5, "lines": 1}})


@case("a rule names a field that a column of objects does not have", "there is no such column")
def _() -> object:
    return rules("order.weight < 10").match_batch(pa.table({"order": [{"total": 5}]}))


@case("a table lost a column, because its first row has no such key", "there is no such column")
def _() -> object:
    events = [{"price": 5}, {"price": 6, "reserved": 1}]
    return rules("reserved = 1").match_batch(pa.Table.from_pylist(events))


@case("a table lost a column that rules want to be absent", "hold for every event")
def _() -> object:
    events = [{"price": 5}, {"price": 6, "reserved": 1}]
    return rules("reserved IS NULL AND price > 1").match_batch(pa.Table.from_pylist(events))


@case("a later table has lost a column", "there is no such column")
def _() -> object:
    m = rules("price < 10 AND firm = 'IBM'")
    m.match_batch(PRICES)
    return m.match_batch(PRICES.select(["price"]))


@case("a rule of an opened matcher misspells an attribute", "did you mean 'price'?")
def _() -> object:
    rules("pirce < 10").save("store")
    return tocsin.Matcher.open("store").match_batch(PRICES)


# Values of a kind that does not compare.


@case("one bad cell made a column of numbers texts", "the column has type string")
def _() -> object:
    return rules("price < 10").match_batch(pa.table({"price": ["5", "n/a"]}))


@case("numbers come as texts in mappings", "its values are strings, such as '5.5'")
def _() -> object:
    return rules("price < 10").match({"price": "5.5"})


@case("a literal is a text, and the column has numbers", "price: the column has type double")
def _() -> object:
    return rules("price < '10'").match_batch(PRICES)


@case("a literal is a text, among right ones, and the events are mappings", "are numbers")
def _() -> object:
    return rules("price < '10'", "price < 10").match_batch(ROWS * 10)


@case("a moment is compared as a text", "the column has type timestamp")
def _() -> object:
    events = pa.table({"at": [dt.datetime(2026, 1, 2)]})
    return rules("at > '2026-01-01'").match_batch(events)


@case("a column compared with timestamps has texts that are none", "no text in it is a timestamp")
def _() -> object:
    return rules("at > TIMESTAMP '2026-01-01'").match_batch(pa.table({"at": ["02/01/2026"]}))


@case("a mapping has a text that is no timestamp", "its values are strings, such as '02/01/2026'")
def _() -> object:
    return rules("at > TIMESTAMP '2026-01-01'").match({"at": "02/01/2026"})


@case("moments come as numbers of seconds", "its values are numbers, such as 1767312000")
def _() -> object:
    return rules("at > TIMESTAMP '2026-01-01'").match({"at": 1767312000})


@case("booleans come as texts", "its values are strings, such as 'true'")
def _() -> object:
    return rules("open = TRUE").match({"open": "true"})


@case("booleans come as 0 and 1", "the column has type int64")
def _() -> object:
    return rules("open = TRUE").match_batch(pa.table({"open": [0, 1]}))


@case("a pattern is tried on numbers", "the column has type int64")
def _() -> object:
    return rules("id LIKE '17%'").match_batch(pa.table({"id": [171]}))


@case("an attribute is a list", "its values are lists, such as ['red']; ANY(tags) stands")
def _() -> object:
    return rules("tags = 'red'").match({"tags": ["red"]})


@case("a column has lists", "the column has type list")
def _() -> object:
    return rules("tags = 'red'").match_batch(pa.table({"tags": [["red"]]}))


@case("an attribute is an object", "the column has type struct")
def _() -> object:
    return rules("order = 5").match_batch(pa.table({"order": [{"total": 5}]}))


@case("explain is asked about a text where a number compares", "'5' is a string; only a number")
def _() -> object:
    return rules("price < 10").explain("r0", {"price": "5"})


@case("a frame has a column of several kinds", "EventError")
def _() -> object:
    return rules("price < 10").match_batch(pd.DataFrame({"price": [5, "n/a"]}))


# Computed values, lists and texts.


@case("a computed value misspells an attribute", "pirce: there is no such column; did you mean")
def _() -> object:
    return rules("pirce * volume > 10").match_batch(pa.table({"price": [5.0], "volume": [3]}))


@case("a computed value of numbers is made of texts", "price: its values are strings")
def _() -> object:
    return rules("price * volume > 10").match({"price": "5.0", "volume": 3})


@case("a function of texts is given numbers", "firm: the column has type int64")
def _() -> object:
    return rules("lower(firm) = 'ibm'").match_batch(pa.table({"firm": [5]}))


@case("two attributes that are compared have other kinds", "kinds do not compare")
def _() -> object:
    return rules("price < limit").match({"price": 5, "limit": "6"})


@case("two columns that are compared have other types", "and limit has type string")
def _() -> object:
    return rules("price < limit").match_batch(pa.table({"price": [5], "limit": ["6"]}))


@case("a text is not in quotes", "write 'IBM' for a text")
def _() -> object:
    return rules("firm = IBM").match_batch(PRICES)


@case("a name with a minus is not in quotes", 'did you mean "user-id"? It needs double quotes')
def _() -> object:
    return rules("user-id = 5").match({"user-id": 5})


@case("a part of a date is taken of a text that is none", "at: its values are strings")
def _() -> object:
    return rules("year(at) = 2026").match({"at": "02/01/2026"})


@case("a text in lower case is compared with capitals", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "lower(firm) = 'IBM'")


@case("|| stands for OR", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "price < 5 || open")


@case("a list is misspelt", "tgas: no event has it; did you mean 'tags'?")
def _() -> object:
    return rules("ANY(tgas) = 'red'").match({"tags": ["red"]})


@case("elements are asked for, and the attribute is a text", "tags: the column has type string")
def _() -> object:
    return rules("ANY(tags) = 'red'").match_batch(pa.table({"tags": ["red"]}))


@case("elements have another kind", "ANY(sizes): its elements are numbers, such as 5")
def _() -> object:
    return rules("ANY(sizes) = '5'").match({"sizes": [5]})


@case("elements of a column have another kind", "ANY(sizes): its elements have type int64")
def _() -> object:
    return rules("ANY(sizes) = '5'").match_batch(pa.table({"sizes": [[5]]}))


@case(
    "a field of the elements is misspelt", "items.skku: no event has it; did you mean 'items.sku'"
)
def _() -> object:
    return rules("exists(items, i -> i.skku = 'x')").match({"items": [{"sku": "x"}]})


@case("a text that is searched for words is misspelt", "boddy: no event has it; did you mean")
def _() -> object:
    return rules("matches(boddy, 'rate hike')").match({"body": "rate hike"})


@case("what is searched for words is no text", "body: the column has type int64")
def _() -> object:
    return rules("matches(body, 'rate')").match_batch(pa.table({"body": [5]}))


@case("a word is written with a capital", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "ANY(words(title)) = 'Red'")


@case("explain is asked about a computed value that is absent", "price is '5'; volume is 3")
def _() -> object:
    return rules("price * volume > 10").explain("r0", {"price": "5", "volume": 3})


# Declared types.


@case("a rule misspells a declared attribute", "not declared by Quote; did you mean 'price'?")
def _() -> None:
    tocsin.Matcher(QUOTE).subscribe("a", "pirce < 10")


@case("one of many rules misspells a declared attribute", "did you mean 'price'?")
def _() -> object:
    return tocsin.Matcher(QUOTE).subscribe_many({"id": [1, 2], "where": ["pirce < 1", "price < 1"]})


@case("a computed value misspells a declared attribute", "did you mean 'price'?")
def _() -> None:
    tocsin.Matcher(QUOTE).subscribe("a", "pirce * 2 < 10")


@case("a computed value of many rules names what a strict type lacks", "'volume' is not declared")
def _() -> object:
    table = {"id": [1, 2], "where": ["price * 2 < 1", "price * volume < 1"]}
    return tocsin.Matcher(STRICT).subscribe_many(table, on_error="quarantine").bad[0].reason


@case("a rule names what a strict type does not declare", "UndeclaredAttributeError")
def _() -> None:
    tocsin.Matcher(STRICT).subscribe("a", "pirce < 10")


@case("one of many rules names what a strict type does not declare", "BadRowsError")
def _() -> object:
    m = tocsin.Matcher(STRICT)
    return m.subscribe_many({"id": [1, 2], "where": ["price < 1", "price < 1 OR volume < 2"]})


@case("a template names what a strict type does not declare", "BadRowsError")
def _() -> object:
    return tocsin.Matcher(STRICT).subscribe_many({"id": [1], "v": [2]}, where="volume = :v")


@case("an event misspells what a strict type declares", "did you mean 'price'?")
def _() -> object:
    return tocsin.Matcher(STRICT).match({"pirce": 10})


@case("a table misspells what a strict type declares", "did you mean 'price'?")
def _() -> object:
    return tocsin.Matcher(STRICT).match_batch(pa.table({"pirce": [10]}))


@case("a text of a declared timestamp is none", "'soon' is none")
def _() -> object:
    return tocsin.Matcher(QUOTE).match({"at": "soon"})


# Conditions that can never be true.


@case("a rule compares with NULL", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "price = NULL")


@case("the ends of BETWEEN are exchanged", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "price BETWEEN 10 AND 5")


@case("the parts of a rule exclude each other", "can never match")
def _() -> None:
    tocsin.Matcher().put("a", "price < 5 AND price > 10")


@case("a parameter is NaN", "can never match")
def _() -> None:
    tocsin.Matcher().subscribe("a", "price < :p", {"p": float("nan")})


@case("an update makes a rule impossible", "can never match")
def _() -> None:
    m = tocsin.Matcher()
    m.subscribe("a", "price BETWEEN :low AND :high", {"low": 1, "high": 2})
    m.update("a", params={"low": 3})


@case("some of many rules can never match", "the condition can never match: 2 subscription(s)")
def _() -> object:
    wheres = ["price = NULL", "price < 1", "1 > 2"]
    return tocsin.Matcher().subscribe_many({"id": [1, 2, 3], "where": wheres})


@case("a parameter of a template is null", "the condition can never match: 1 subscription(s) (2)")
def _() -> object:
    table = pa.table({"id": [1, 2], "p": pa.array([1.0, None])})
    return tocsin.Matcher().subscribe_many(table, where="price < :p")


@case("rows of a rule exclude each other", "the condition can never match")
def _() -> object:
    columns = {"id": [1, 1], "attribute": ["x", "x"], "op": ["<", ">"], "value": [1, 2]}
    return tocsin.Matcher().subscribe_many(columns)


@case("a rule of a store can never match", "the condition can never match")
def _() -> object:
    with tocsin.SubscriptionStore.create("store") as store:
        return store.put_many({"id": [1], "where": ["price = NULL"]})


@case("hardly any rule names an attribute, and all name one that is nearly it", "did you mean")
def _() -> object:
    wheres = ["pirce < 1", *["price < 1"] * 200]
    return tocsin.Matcher().subscribe_many({"id": range(201), "where": wheres})


@case("the end of a rule is in seconds instead of microseconds", "has ended already")
def _() -> None:
    tocsin.Matcher().subscribe("a", "price < 5", valid_until=1_900_000_000)


@case("the ends of many rules are past", "valid_until is past: 1 subscription(s)")
def _() -> object:
    ends = pa.array([1_900_000_000], pa.int64())
    return tocsin.Matcher().subscribe_many({"id": [1], "where": ["x = 1"], "valid_until": ends})


@case("an id is a text instead of an integer", "there is one with id 0, an integer")
def _() -> None:
    m = tocsin.Matcher()
    m.subscribe(0, "x = 1")
    m.update("0", "x = 2")


@pytest.mark.parametrize("sentence", CASES)
def test_nothing_matches_and_it_is_said(
    sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, says = CASES[sentence]
    assert says in said(make)


def test_there_are_more_than_thirty_ways() -> None:
    assert len(CASES) > 30


# Said once, and not where all is well.


def texts_of(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught]


def test_an_attribute_is_reported_once_and_new_ones_when_they_come() -> None:
    m = rules("pirce < 10", "price < 10")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            m.match_batch(PRICES)
            m.match_batch(PRICES.append_column("z", [[1, 2]]))
        assert len(caught) == 1
        m.subscribe("later", "frim = 'IBM'")
        for _ in range(3):
            m.match_batch(PRICES)
    assert len(caught) == 2
    assert "frim: there is no such column; did you mean 'firm'?" in texts_of(caught)[1]
    assert caught[0].filename == __file__


def test_right_rules_and_events_are_not_warned_of() -> None:
    wheres = [
        "price < 10", "firm = 'IBM' OR firm IS NULL", "at > TIMESTAMP '2026-01-01'",
        "x = 1 OR x = 'a'", "note LIKE '%a%' OR note IS NULL", "price IS NOT NULL",
        "price * 2 < 10", "lower(firm) = 'ibm'", "at - INTERVAL '1 day' < now()", "price < big",
        "ANY(tags) = 'red' OR ANY(tags) = 5", "exists(items, i -> i.sku = 'x' OR i.odd = 1)",
        "coalesce(nothing, price) > 1", "matches(note, 'a b -c')", "cardinality(tags) = 0",
    ]  # fmt: skip
    events: list[dict[str, Any]] = [
        {
            "price": 5,
            "firm": "IBM",
            "at": "2026-02-02",
            "x": 1,
            "note": None,
            "big": 7.5,
            "tags": ["red"],
            "items": [{"sku": "x"}],
        },
        {
            "price": 5.5,
            "x": "a",
            "at": dt.datetime(2026, 2, 2),
            "firm": None,
            "note": "a",
            "tags": [5, "red"],
            "items": [],
            "big": 8,
        },
        {"price": None, "tags": []},
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = rules(*wheres)
        for event in events * 1_000:
            m.match(event)
        m.match_batch(events * 1_000)
        m.match_batch(pa.Table.from_pylist([{**events[0], "x": 1}]))
        m.match_batch(pa.Table.from_pylist([{**events[0], "x": "a"}]))
        m.match_batch(pa.table({name: pa.nulls(3) for name in events[0]}))
        m.match_batch([])
        m.match_batch(PRICES.slice(0, 0))


def test_removed_rules_are_not_reported() -> None:
    m = rules("pirce < 10", "price < 10")
    m.unsubscribe("r0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.match_batch(PRICES)


def test_an_optional_attribute_is_no_mistake_until_many_events_lack_it() -> None:
    m = rules("volume > 10")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.match_batch(ROWS * 100)
        m.match({"price": 1, "volume": 11})
        m.match_batch(ROWS * 1_000)


def test_strict_types_are_saved_and_sent(tmp_path: Path) -> None:
    import pickle

    assert pickle.loads(pickle.dumps(STRICT)) == STRICT != QUOTE
    assert repr(STRICT) == "EventType('Quote', price=float, firm=string, strict=True)"
    assert tocsin.EventType("X", strict=str).attributes == {"strict": tocsin.Kind.STRING}
    m = tocsin.Matcher(STRICT)
    m.subscribe("a", "price < 10")
    m.save(tmp_path / "store")
    opened = tocsin.Matcher.open(tmp_path / "store")
    assert opened.event_type == STRICT
    nested = tocsin.EventType("N", {"order.total": float}, strict=True)
    m = tocsin.Matcher(nested)
    m.subscribe("a", "order.total < 10")
    assert m.match({"order": {"total": 5}}) == m.match({"order.total": 5}) == ["a"]
    odd: list[dict[str, Any]] = [{"order": {"total": 5, "x": 1}}, {"order": 5}, {"orders": {}}]
    for event in odd:
        with pytest.raises(tocsin.errors.EventError, match="not declared by N"):
            m.match(event)
        with pytest.raises(tocsin.errors.EventError, match="not declared by N"):
            m.match_batch(pa.Table.from_pylist([event]))
    with pytest.raises(tocsin.errors.ArgumentError, match="no strict event type"):
        tocsin.SubjectSpace(STRICT)


def test_several_conditions_on_the_elements_of_a_list_are_each_looked_at() -> None:
    m = tocsin.Matcher()
    m.subscribe(1, "ANY(x) > 5 AND ANY(x) = 7 AND ANY(x) LIKE 't1%'")
    assert m.match_batch([{"x": [1, "t1"]}, {"x": [7, "t1"]}])[1] == [1]
