"""Event patterns and filter policies: what they match, how they are written in SQL, how refused.

A fixture is a line of JSON: a pattern, events that fit it and events that do not, and perhaps its
SQL; or a pattern, the place where it is wrong, and a part of what is said about it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tocsin import EventType, Matcher, SubjectSpace
from tocsin.encode.events import to_batch
from tocsin.errors import BadRowsError, ConditionSyntaxError, EventError, SubscriptionError
from tocsin.language import dialects, parse, print_expression
from tocsin.language.dialects.json_text import PatternError
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.summary.summaries import Summary

FOLDER = Path(__file__).parent.parent / "fixtures" / "patterns"
DIALECTS = ("eventbridge", "sns")


def fixtures(dialect: str) -> list[dict[str, Any]]:
    """Return the fixtures of a dialect; every pattern is a text."""
    lines = (FOLDER / f"{dialect}.jsonl").read_text().splitlines()
    return [
        {**one, "pattern": p if isinstance(p := one["pattern"], str) else json.dumps(p)}
        for one in map(json.loads, lines)
    ]


def good(dialect: str) -> list[dict[str, Any]]:
    return [one for one in fixtures(dialect) if "error" not in one]


def loaded(dialect: str, *, in_bulk: bool = False, engine: str = "auto") -> Matcher:
    """Return a matcher with all good patterns; ids are their numbers."""
    m = Matcher(engine=engine)
    texts = [dialects.write(one["pattern"], dialect) for one in good(dialect)]
    if in_bulk:
        m.subscribe_many(pa.table({"id": range(len(texts)), "where": texts}))
    else:
        for number, text in enumerate(texts):
            m.subscribe(number, text)
    return m


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("way", ["one by one", "in bulk", "oracle"])
def test_a_pattern_matches_the_events_that_fit_it(dialect: str, way: str) -> None:
    engine = "oracle" if way == "oracle" else "auto"
    m = loaded(dialect, in_bulk=way == "in bulk", engine=engine)
    for number, one in enumerate(good(dialect)):
        events = [*one["fits"], *one["not"]]
        expected = [True] * len(one["fits"]) + [False] * len(one["not"])
        single = [number in m.match(event) for event in events]
        assert single == expected, (one["pattern"], events)
        assert [number in ids for ids in m.match_batch(events)] == expected, one["pattern"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_pattern_reads_back_from_its_sql(dialect: str) -> None:
    for one in good(dialect):
        expression = dialects.parse(one["pattern"], dialect)
        text = print_expression(expression)
        assert parse(text) == expression, text
        assert text == one.get("sql", text)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_wrong_pattern_is_refused_with_its_place(dialect: str) -> None:
    for one in fixtures(dialect):
        if "error" in one:
            with pytest.raises(PatternError) as caught:
                dialects.parse(one["pattern"], dialect)
            assert caught.value.path == one["at"], one["pattern"]
            assert one["error"] in str(caught.value), one["pattern"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_bulk_load_refuses_the_same_patterns_for_the_same_reasons(dialect: str) -> None:
    cases = fixtures(dialect)
    texts = [dialects.write(one["pattern"], dialect) for one in cases]
    with pytest.raises(BadRowsError) as caught:
        Matcher().subscribe_many(pa.table({"id": range(len(texts)), "where": texts}))
    bad = {row.row: row.reason for row in caught.value.rows}
    assert sorted(bad) == [at for at, one in enumerate(cases) if "error" in one]
    assert all(cases[row]["error"] in message for row, message in bad.items())


def test_an_error_can_be_pickled_and_shown() -> None:
    import pickle

    with pytest.raises(ConditionSyntaxError, match=r"empty list of values \(at \$\.a\)") as caught:
        dialects.parse('{"a": []}', "eventbridge")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


def test_lists_of_a_table_match_as_those_of_mappings_do() -> None:
    m = loaded("eventbridge")
    events: list[dict[str, Any]] = [
        {"r": ["a", "c"], "s": ["d", "b"], "a": "x"},
        {"r": ["a"], "s": ["a"], "a": "ab"},
        {"r": [], "s": None, "a": None},
        {"r": ["a", "a", "b"], "s": ["b"], "a": ""},
    ]
    plain = [{k: v for k, v in event.items() if v is not None} for event in events]
    expected = [sorted(ids) for ids in m.match_batch(plain)]
    assert [sorted(ids) for ids in m.match_batch(pa.Table.from_pylist(events))] == expected
    nested = [
        {"items": [{"sku": "a", "n": 4}, {"sku": "b", "n": 1}]},
        {"items": None},
        {"items": []},
    ]
    of_table = [sorted(ids) for ids in m.match_batch(pa.Table.from_pylist(nested))]
    rows = [nested[0], {}, {"items": []}]
    assert of_table == [sorted(ids) for ids in m.match_batch(rows)]


def test_an_event_with_too_many_choices_is_refused_with_its_row() -> None:
    m = Matcher()
    names = "abcde"
    m.subscribe("x", dialects.write(json.dumps({n: ["1"] for n in names}), "eventbridge"))
    event = {name: [str(i) for i in range(20)] for name in names}
    with pytest.raises(EventError, match=r"choices") as caught:
        m.match_batch([{}, event])
    assert caught.value.row == 1


def test_lists_that_no_condition_joins_cost_no_product() -> None:
    m = Matcher()
    for name in "abcde":
        m.subscribe(name, dialects.write(json.dumps({name: ["7"]}), "eventbridge"))
    event = {name: [str(i) for i in range(500)] for name in "abcde"}
    assert sorted(m.match(event)) == list("abcde")
    assert [sorted(ids) for ids in m.match_batch([event, {}])] == [list("abcde"), []]


def test_an_explanation_is_of_a_choice_that_matches() -> None:
    m = Matcher()
    m.subscribe(
        "a", '{"items": {"sku": ["x"], "n": [{"numeric": [">", 3]}]}}', dialect="eventbridge"
    )
    event = {"items": [{"sku": "x", "n": 1}, {"sku": "x", "n": 5}]}
    assert m.explain("a", event) == "match: EACH(items.n) > 3 (5); EACH(items.sku) = 'x' ('x')"
    assert m.explain("a", {"items": [{"sku": "x", "n": 1}, {"sku": "y", "n": 5}]}).startswith("no")
    assert "EACH(items.sku)" in m.explain("a").split("kept under")[1]


def test_a_subject_space_takes_patterns_on_values() -> None:
    space = SubjectSpace(EventType("trade", {"firm": "string", "price": "float"}))
    space.publish("k", {"firm": "IBM", "price": 5.0})
    pattern = '{"firm": ["IBM"], "price": [{"numeric": [">", 3]}]}'
    assert len(space.subscribe("a", pattern, dialect="eventbridge")) == 1
    with pytest.raises(SubscriptionError, match=r"cannot have HAS\(firm\)"):
        space.subscribe("b", '{"firm": [{"exists": false}]}', dialect="eventbridge")


def test_texts_that_sql_compares_with_timestamps_stay_texts_for_patterns() -> None:
    m = Matcher()
    m.subscribe("sql", "time > TIMESTAMP '2026-01-01'")
    m.subscribe("pattern", '{"time": [{"prefix": "2026-"}]}', dialect="eventbridge")
    event = {"time": "2026-07-01T12:30:00Z"}
    assert sorted(m.match(event)) == ["pattern", "sql"]
    assert [sorted(ids) for ids in m.match_batch([event])] == [["pattern", "sql"]]
    assert [sorted(ids) for ids in m.match_batch(pa.Table.from_pylist([event]))] == [
        ["pattern", "sql"]
    ]


def test_a_summary_admits_events_with_lists() -> None:
    table = from_forms([normalize(dialects.parse('{"a": ["x"], "b": ["y"]}', "eventbridge"))])
    assert Summary.of_table(table).admits(to_batch([{"a": ["z", "x"], "b": "y"}])).all()


def test_a_saved_matcher_matches_patterns_as_before(tmp_path: Path) -> None:
    m = loaded("eventbridge", in_bulk=True)
    m.save(tmp_path / "saved")
    opened = Matcher.open(tmp_path / "saved")
    events = [event for one in good("eventbridge") for event in [*one["fits"], *one["not"]]]
    assert [sorted(i) for i in opened.match_batch(events)] == [
        sorted(i) for i in m.match_batch(events)
    ]
    assert all(sorted(opened.match(e)) == sorted(m.match(e)) for e in events)
