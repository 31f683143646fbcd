"""Subscriptions for one and for many: read back, changed, written as a table and loaded again."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import ArgumentError, BadRowsError, InvariantError, UnknownSubscriptionError

END = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def filled(at: tocsin.Matcher | tocsin.SubscriptionStore) -> None:
    """Register subscriptions of all forms."""
    at.subscribe("one", "x = 1", valid_until=END)
    at.subscribe("params", "x > :a AND y = :b", {"a": 1.5, "b": 'say "hi"'})
    at.subscribe("odd", "t < :t AND x < :f", {"t": END, "f": float("inf")})
    at.subscribe_many({"id": [f"text{i}" for i in range(100)], "where": ["x = 3"] * 100})
    template = {
        "id": [f"t{i}" for i in range(100)],
        "a": range(100),
        "b": [f"b{i}" for i in range(100)],
    }
    at.subscribe_many(template, "x = :a AND y = :b")
    at.subscribe_many(
        {
            "id": ["rule", "rule"],
            "attribute": ["x", "y"],
            "op": ["=", "IS NULL"],
            "value": [9, None],
        }
    )


EVENTS = [{"x": x, "y": y, "t": END} for x in (1, 2, 3, 7, 9) for y in (None, "b7", 'say "hi"')]


def matches(m: tocsin.Matcher) -> list[list[object]]:
    return [sorted(ids, key=str) for ids in m.match_batch(EVENTS)]


def test_a_subscription_is_read_back_as_it_was_registered() -> None:
    m = tocsin.Matcher()
    filled(m)
    assert m.get("one") == tocsin.Subscription("one", "x = 1", {}, END)
    assert m.get("params").params == {"a": 1.5, "b": 'say "hi"'}
    assert m.get("t7") == tocsin.Subscription("t7", "x = :a AND y = :b", {"a": 7, "b": "b7"})
    assert m.get("rule").where == "x = 9 AND y IS NULL"
    with pytest.raises(KeyError, match="no subscription with id 'none'"):
        m.get("none")
    assert list(m)[:4] == ["one", "params", "odd", "text0"]
    assert len(list(m)) == len(m) == 204
    m.unsubscribe("params")
    assert "params" not in list(m)


def test_a_table_of_all_subscriptions_loads_again(tmp_path: Path) -> None:
    m = tocsin.Matcher()
    filled(m)
    m.unsubscribe_many(["text5", "t5"])
    m.save(tmp_path / "store")
    for source in (m, tocsin.Matcher.open(tmp_path / "store")):
        table = source.to_table()
        assert table.column_names == ["id", "where", "params", "valid_until"]
        again = tocsin.Matcher()
        assert again.subscribe_many(table).loaded == len(m)
        assert matches(again) == matches(m)
        assert [again.get(id) for id in again] == [m.get(id) for id in m]
        assert again.to_table().equals(table)


def test_a_store_has_the_verbs_of_a_matcher_and_its_reports_have_versions(tmp_path: Path) -> None:
    with tocsin.SubscriptionStore.create(tmp_path / "store") as store:
        filled(store)
        m = tocsin.Matcher()
        filled(m)
        assert store.to_table().equals(m.to_table())
        assert list(store) == list(m)
        assert len(store) == len(m)
        assert "one" in store
        assert store.get("t7") == m.get("t7")
        report = store.update_many({"id": ["t1", "t2"], "a": [70, 71]})
        assert report == tocsin.LoadReport(2, (), store.newest())
        assert store.update("one", valid_until=None) == store.newest()
        assert store.get("one").valid_until is None
        assert store.unsubscribe("rule") == store.newest()
        assert store.subscribe_many({"id": ["z"], "where": ["x = 1"]}).version == store.newest()
        report = store.subscribe_many({"id": ["z"], "where": ["x"]}, on_error="quarantine")
        assert (report.loaded, len(report.bad), report.version) == (0, 1, store.newest())
        assert store.unsubscribe_many(["z"]) == store.newest()
        expected = store.to_table()
    opened = tocsin.SubscriptionStore.open(tmp_path / "store")
    assert opened.to_table().equals(expected)
    assert opened.get("t1").params == {"a": 70, "b": "b1"}
    assert opened.matcher().match({"x": 70, "y": "b1"}) == ["t1"]


def test_an_update_changes_conditions_parameters_and_ends() -> None:
    m = tocsin.Matcher(clock=lambda: 0.0)
    m.subscribe("a", "x = :v", {"v": 1}, valid_until=END)
    m.update("a", params={"v": 2})
    assert m.get("a") == tocsin.Subscription("a", "x = :v", {"v": 2}, END)
    m.update("a", "x > :v")
    assert m.get("a") == tocsin.Subscription("a", "x > :v", {"v": 2}, END)
    m.update("a", valid_until=None)
    assert m.get("a").valid_until is None
    m.update("a", params={"v": 3}, valid_until=-1)
    assert "a" not in m
    with pytest.raises(UnknownSubscriptionError):
        m.update("a", valid_until=None)


@pytest.mark.parametrize("engine", ["auto", "oracle"])
def test_many_are_updated_by_texts_templates_rules_and_parameters(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    filled(m)
    assert m.update_many({"id": ["one", "text1"], "where": ["x = 100", "x = 100"]}).loaded == 2
    assert m.get("one").valid_until == END
    assert sorted(m.match({"x": 100})) == ["one", "text1"]
    m.update_many({"id": ["one", "text1"], "v": [101, 102]}, "x = :v")
    assert m.match({"x": 102}) == ["text1"]
    m.update_many({"id": ["one"], "attribute": ["x"], "op": ["="], "value": [103]})
    assert m.match({"x": 103}) == ["one"]
    names = [f"t{i}" for i in range(100)]
    m.update_many({"id": names, "a": [1000 + i for i in range(100)]})
    assert m.match({"x": 1007, "y": "b7"}) == ["t7"]
    m.update_many({"id": ["t7"], "params": ['{"b": "c"}']})
    assert m.match({"x": 1007, "y": "c"}) == ["t7"]
    m.update_many(pa.table({"id": ["one"], "valid_until": pa.array([None], pa.int64())}))
    assert m.get("one").valid_until is None
    m.check()


def test_many_are_updated_all_or_none() -> None:
    m = tocsin.Matcher()
    filled(m)
    before = m.to_table()
    table = {"id": ["one", "none", "text1", "text1"], "where": ["x = 5", "x = 5", "x >", "x = 5"]}
    with pytest.raises(BadRowsError) as caught:
        m.update_many(table)
    assert [(bad.row, bad.code) for bad in caught.value.rows] == [
        (1, "unknown-id"),
        (2, "syntax"),
        (3, "duplicate-id"),
    ]
    assert m.to_table().equals(before)
    report = m.update_many(table, on_error="quarantine")
    assert (report.loaded, len(report.bad)) == (1, 3)
    assert m.match({"x": 5}) == ["one"]
    report = m.update_many({"id": ["one", "t1"], "zzz": [1, 2]}, on_error="quarantine")
    assert [bad.code for bad in report.bad] == ["parameter", "parameter"]


def test_bad_parameters_of_a_text_are_bad_rows() -> None:
    m = tocsin.Matcher()
    table = {
        "id": list(range(5)),
        "where": ["x = :v"] * 5,
        "params": ['{"v": 1}', "[]", '{"v": [1]}', None, '{"w": 1}'],
    }
    report = m.subscribe_many(table, on_error="quarantine")
    assert [bad.row for bad in report.bad] == [1, 2, 3, 4]
    assert m.match({"x": 1}) == [0]


def test_a_table_without_conditions_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no column where"):
        tocsin.Matcher().subscribe_many({"id": [1], "v": [1]})


def test_a_matcher_releases_its_files_at_the_end_of_a_with_block(tmp_path: Path) -> None:
    m = tocsin.Matcher()
    m.subscribe("a", "x = 1")
    m.save(tmp_path / "store")
    with tocsin.Matcher.open(tmp_path / "store") as opened:
        assert opened.match({"x": 1}) == ["a"]
    assert len(opened) == 0


def test_an_inconsistent_index_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    m = tocsin.Matcher()

    def fail(self: object) -> None:
        raise AssertionError("ids out of order")

    monkeypatch.setattr(type(m._engine), "check", fail)
    with pytest.raises(InvariantError, match="ids out of order"):
        m.check()


# Put.


@pytest.mark.parametrize("engine", ["auto", "oracle"])
def test_put_registers_or_replaces_the_whole_subscription(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.put("a", "x > :low", {"low": 5}, valid_until=END)
    assert m.get("a") == tocsin.Subscription("a", "x > :low", {"low": 5}, END)
    m.put("a", "y = 1")
    assert m.get("a") == tocsin.Subscription("a", "y = 1")
    assert (m.match({"x": 9}), m.match({"y": 1}), len(m)) == ([], ["a"], 1)
    with pytest.raises(tocsin.errors.ConditionSyntaxError):
        m.put("a", "y =")
    assert m.get("a").where == "y = 1"


@pytest.mark.parametrize("engine", ["auto", "oracle"])
@pytest.mark.parametrize("n", [3, 5_000])
def test_put_many_replaces_what_there_is_and_adds_the_rest(engine: str, n: int) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe_many({"id": range(n), "where": ["x = 1"] * n})
    m.subscribe("text", "x = 1")
    ids = range(n - 2, 2 * n - 2)
    report = m.put_many({"id": ids, "where": ["x = 2"] * n})
    assert (report.loaded, report.replaced, report.bad) == (n, 2, ())
    assert sorted(map(str, m.match({"x": 1}))) == sorted(["text", *map(str, range(n - 2))])
    assert sorted(m.match({"x": 2})) == list(ids)
    assert len(m) == 2 * n - 1
    m.check()
    with pytest.raises(BadRowsError):
        m.put_many({"id": [0, 1, 1], "where": ["x = 3", "x = 3", "x ="]})
    assert m.match({"x": 3}) == []
    report = m.put_many({"id": [0, 1, 1], "where": ["x = 3"] * 3}, on_error="quarantine")
    assert (report.loaded, report.replaced, len(report.bad)) == (2, 2, 1)
    assert sorted(m.match({"x": 3})) == [0, 1]


def test_put_of_a_store_is_a_version_and_is_replayed_everywhere(tmp_path: Path) -> None:
    with tocsin.SubscriptionStore.create(tmp_path / "store") as store:
        assert store.put("a", "x > :low", {"low": 5}, valid_until=END) == 2
        assert store.put("a", "y = :v", {"v": 1}) == 3
        assert store.get("a") == tocsin.Subscription("a", "y = :v", {"v": 1})
        store.subscribe("b", "x = 1")
        report = store.put_many({"id": ["b", "c"], "v": [2, 3]}, where="x = :v")
        assert (report.loaded, report.replaced, report.version) == (2, 1, 5)
        store.put_many({"id": ["d"], "attribute": ["x"], "op": ["="], "value": [4]})
    opened = tocsin.SubscriptionStore.open(tmp_path / "store")
    for m in (opened.matcher(), tocsin.Matcher.open(tmp_path / "store"), opened.delta()):
        found = [m.match({"x": x}) for x in (1, 2, 3, 4)]
        assert found == [[], ["b"], ["c"], ["d"]]
        assert m.match({"y": 1, "x": 9}) == ["a"]
    opened.compact()
    assert opened.put("b", "x = 5") == opened.newest()
    assert opened.matcher().match({"x": 5}) == ["b"]
    opened.close()


def test_put_of_a_space_returns_what_begins_and_ceases_to_match() -> None:
    space = tocsin.SubjectSpace()
    space.publish("p", {"x": 5})
    assert [(t.kind.value, t.subscription) for t in space.put("s", "x > 3")] == [("ENTER", "s")]
    assert list(space.put("s", "x > 4")) == []
    assert [(t.kind.value, t.subscription) for t in space.put("s", "x > 9")] == [("LEAVE", "s")]
    assert space.get("s").where == "x > 9"


# Ids.


def test_an_id_of_the_other_kind_is_named_in_the_message() -> None:
    m = tocsin.Matcher()
    m.subscribe_many({"id": range(100), "where": ["x = 1"] * 100})
    m.subscribe("200", "x = 1")
    for call in (m.unsubscribe, m.get, m.explain, lambda id: m.unsubscribe_many([id])):
        with pytest.raises(UnknownSubscriptionError) as caught:
            call("5")
        assert str(caught.value) == (
            "there is no subscription with id '5'; there is one with id 5, an integer"
        )
        with pytest.raises(UnknownSubscriptionError, match="one with id '200', a string"):
            call(200)
        with pytest.raises(UnknownSubscriptionError) as caught:
            call("05")
        assert str(caught.value) == "there is no subscription with id '05'"
    with pytest.raises(UnknownSubscriptionError, match="one with id 5, an integer"):
        m.unsubscribe_many([f"{i}" for i in range(5, 100)])
    with pytest.raises(BadRowsError, match="one with id 7, an integer"):
        m.update_many({"id": ["7"], "where": ["x = 2"]})


def test_lists_as_parameters_are_taken_and_read_back_by_every_road(tmp_path: Path) -> None:
    m = tocsin.Matcher()
    lists: list[Any] = [[5, 6], (5,), {5}, np.array([5]), pa.array([5]), pl.Series([5, 9])]
    for at, values in enumerate(lists):
        m.subscribe(f"one {at}", "x IN (:ids)", {"ids": values})
    m.subscribe_many(
        pa.table({"id": [f"column {n}" for n in range(20)], "ids": [[n, 100] for n in range(20)]}),
        where="x IN :ids AND x > 1",
    )
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    m.subscribe_many([
        {"id": "row", "where": "x IN :ids OR at IN :at", "params": {"ids": [5], "at": [moment]}},
        {"id": "text", "where": "x = 5"},
    ])  # fmt: skip
    expected = sorted([*(f"one {at}" for at in range(len(lists))), "column 5", "row", "text"])
    m.save(tmp_path / "store")
    again = tocsin.Matcher()
    again.subscribe_many(m.to_table())
    for each in (m, tocsin.Matcher.open(tmp_path / "store"), again):
        assert sorted(map(str, each.match({"x": 5}))) == expected
        assert each.match({"at": moment}) == ["row"]
        assert each.get("column 7").params == {"ids": [7, 100]}
        assert each.get("row").params == {"ids": [5], "at": [moment]}
        each.update("column 7", params={"ids": [7, 3]})
        assert "column 7" in each.match({"x": 3})
    with tocsin.SubscriptionStore.create(tmp_path / "other") as store:
        store.subscribe_many(pa.table({"id": ["a"], "ids": [[4, 5]]}), where="x IN :ids")
        store.compact(grace=0)
        assert tocsin.SubscriptionStore.open(tmp_path / "other").get("a").params == {"ids": [4, 5]}


def test_subscriptions_and_events_come_from_rows_and_generators() -> None:
    m = tocsin.Matcher()
    assert m.subscribe_many({"id": n, "where": f"x = {n % 2}"} for n in range(4)).loaded == 4
    assert m.put_many([{"id": 1, "where": "x = 5"}, {"id": 9, "where": "x = 5"}]).replaced == 1
    assert [sorted(ids) for ids in m.match_batch({"x": n} for n in (0, 5))] == [[0, 2], [1, 9]]
    assert m.subscribe_many([]).loaded == 0
    for rows in ([1, 2], [{"id": 1}], [{"id": 1, "where": 5}]):
        with pytest.raises(ArgumentError):
            m.subscribe_many(rows)
    with pytest.raises(ArgumentError, match="collect"):
        m.match_batch(pl.LazyFrame({"x": [1]}))
    with pytest.raises(ArgumentError, match="save"):
        pickle.dumps(m)
