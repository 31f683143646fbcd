"""FASTINT: bounds move in place, sets stay small, and covers are read off."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin import EventType, Kind
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError, SubscriptionError, UnknownSubscriptionError
from tocsin.language import parse
from tocsin.language.computed import parameter_names
from tocsin.normalize import normalize
from tocsin.normalize.condition import PRESENT
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.fastint import FastintEngine
from tocsin_lab.engines.fastint.parametric import ParametricUpdates
from tocsin_lab.engines.intervals.rows import Attributes

pytestmark = pytest.mark.slow

TEMPLATES = [
    "x > :low AND x < :high",
    "x BETWEEN :low AND :high AND s = :name",
    "s = :name",
    "s < :name AND x >= :low",
    "x = :low OR y = :high",
    "x IN (:low, :high) AND (y IS NULL OR y > :low)",
    "s IS NOT NULL AND x <> :low",
    "s LIKE '%a%' AND x > :low",
]


def table_of(*texts: str, first: int = 0) -> ConjunctionTable:
    table = from_forms([normalize(parse(text)) for text in texts])
    return replace(table, subscription=table.subscription + first)


def engine_of(*texts: str) -> FastintEngine:
    engine = FastintEngine()
    engine.insert(np.arange(len(texts)), table_of(*texts))
    return engine


def replace_one(engine: FastintEngine, old: int, new: int, text: str) -> None:
    engine.replace(np.array([old]), np.array([new]), table_of(text, first=new))


def entries(engine: FastintEngine) -> int:
    return int(engine._index.nodes.state[1])


@pytest.mark.parametrize("seed", range(4))
def test_updates_in_place_equal_new_subscriptions(seed: int) -> None:
    dice = random.Random(seed)
    names = ["", "a", "ab", "b", "ba", "z", "zz\0"]

    def params() -> dict[str, Any]:
        low = dice.choice([dice.randrange(50), dice.random() * 50, 2**53 + 1])
        return {"low": low, "high": low + dice.randrange(10), "name": dice.choice(names)}

    def params_of(text: str) -> dict[str, Any]:
        return {k: v for k, v in params().items() if f":{k}" in text}

    updated = tocsin.Matcher(engine="fastint")
    plain = tocsin.Matcher(engine="oracle")
    for i in range(120):
        text = dice.choice(TEMPLATES)
        chosen = params_of(text)
        updated.subscribe(i, text, chosen)
        plain.subscribe(i, text, chosen)
    for step in range(300):
        i = dice.randrange(120)
        if dice.random() < 0.2:
            text = dice.choice(TEMPLATES)
            change: dict[str, Any] = {"where": text, "params": params_of(text)}
        else:
            change = {"params": {k: v for k, v in params().items() if k in plain.get(i).params}}
        updated.update(i, **change)
        plain.update(i, **change)
        if step % 30 == 0:
            updated.check()
            events = [
                {"x": dice.randrange(60), "s": dice.choice(names), "y": dice.choice([None, 3, 60])}
                for _ in range(20)
            ]
            actual, expected = updated.match_batch(events), plain.match_batch(events)
            for row in range(20):
                assert sorted(actual[row]) == sorted(expected[row]), events[row]
                assert sorted(updated.match(events[row])) == sorted(expected[row])


def test_what_was_moved_is_what_is_saved_found_and_removed(tmp_path: Path) -> None:
    matcher = tocsin.Matcher(tocsin.EventType("T", x=float, t="timestamp"), engine="fastint")
    table = {"id": range(200), "low": [float(i) for i in range(200)]}
    matcher.subscribe_many(table, where="x >= :low AND x < 1000")  # two predicates on one attribute
    matcher.subscribe_many({"id": range(200, 400), "low": table["low"]}, where="x > :low")
    for id in (10, 210, 399):
        matcher.update(id, params={"low": 500 + id})
    matcher.unsubscribe(399)
    matcher.check()
    matcher.save(tmp_path / "store")
    for each in (matcher, tocsin.Matcher.open(tmp_path / "store")):
        assert 210 not in each.match({"x": 300.0})
        assert 210 in each.match({"x": 711.0})
        assert 210 not in each.match({"x": 710.0})
        assert 10 in each.match({"x": 510.0})
        assert 399 not in each.match({"x": 5000.0})
        each.update(210, params={"low": 2.5})
        assert 210 in each.match({"x": 3.0})
        each.check()


def test_a_move_that_is_refused_changes_nothing() -> None:
    matcher = tocsin.Matcher(tocsin.EventType("T", x=float), engine="fastint")
    matcher.subscribe_many({"id": range(50), "low": [1.0] * 50}, where="x > :low")
    for bad in ({"low": "text"}, {"other": 1}, {"low": object()}):
        with pytest.raises(tocsin.errors.TocsinError):
            matcher.update(7, params=bad)
    assert 7 in matcher.match({"x": 1.5})
    matcher.update(7, params={"low": None})
    assert 7 not in matcher.match({"x": 1.5}), "nothing is greater than NULL"
    matcher.update(7, params={"low": 0})
    assert 7 in matcher.match({"x": 0.5})
    matcher.check()


def test_a_bound_that_stays_in_its_leaf_adds_nothing() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 10}" for i in range(2000)))
    before = entries(engine)
    replace_one(engine, 500, 2000, "x BETWEEN 500 AND 510.0")
    assert entries(engine) == before
    replace_one(engine, 2000, 2001, "x BETWEEN 700 AND 710")
    assert entries(engine) > before
    engine.check()
    assert sorted(engine.match_one({"x": 709})) == [*range(699, 710), 2001]
    assert 2001 not in engine.match_one({"x": 505})


def test_many_are_replaced_at_once_some_of_them_in_place() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 10}" for i in range(40)))
    slots = {dense: engine._slots_of(dense) for dense in range(3)}
    texts = ("x BETWEEN 100 AND 110", "FALSE", "x = 200 OR s = 'a'", "x BETWEEN 300 AND 310")
    engine.replace(np.arange(4), np.arange(40, 44), table_of(*texts, first=40))
    engine.check()
    assert engine._slots_of(40) == slots[0], "not moved in place"
    assert [engine.match_one({"x": x}) for x in (105, 200, 305)] == [[40], [42], [43]]
    assert engine.match_one({"s": "a"}) == [42]
    assert 3 not in engine.match_one({"x": 12})


def test_updates_without_end_keep_the_trees_small() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 10} AND s = 'n{i % 9}'" for i in range(300)))
    largest = 0
    for step in range(3000):
        low = step * 7 % 1000
        text = f"x BETWEEN {low} AND {low + 10} AND s = 'm{step}'"
        replace_one(engine, step, step + 300, text)
        largest = max(largest, entries(engine))
    engine.check()
    assert largest < 20_000
    assert len(engine._attributes.places.attributes[1].domains[1].cuts) < 3000
    for step in range(3000, 3300):
        low = (step - 300) * 7 % 1000
        assert step in engine.match_one({"x": low + 5, "s": f"m{step - 300}"})


def test_deleting_much_builds_smaller_trees() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 100}" for i in range(3000)))
    before = entries(engine)
    engine.delete(np.arange(2900))
    assert entries(engine) < before / 10
    engine.check()
    assert sorted(engine.match_one({"x": 2950})) == list(range(2900, 2951))


def test_the_smallest_set_decides() -> None:
    """Whoever asks for a rare value is found without a look at what is common."""
    engine = engine_of(*(f"common = 1 AND rare = {i}" for i in range(500)))
    matches = engine.match_batch(to_batch(pa.table({"common": [1, 1, 2], "rare": [7, 900, 7]})))
    assert matches.values.tolist() == [7]
    looked_at = np.count_nonzero(engine._arrays.slots[:, 1] >= 0)
    assert looked_at <= 3


def test_covers_are_read_off() -> None:
    engine = engine_of(
        "x BETWEEN 3 AND 5 AND s = 'a' AND f < 2.5",
        "x = 9 AND s = 'c' AND f BETWEEN 0 AND 1 AND y = 1",
    )
    assert engine.lub("x") == normalize(parse("x BETWEEN 3 AND 9")).conjunctions[0]["x"]
    assert engine.lub("s") == normalize(parse("s IN ('a', 'c')")).conjunctions[0]["s"]
    assert engine.lub("f") == normalize(parse("f < 2.5")).conjunctions[0]["f"]
    assert engine.lub("y") is None
    assert engine.lub("nothing") is None
    replace_one(engine, 1, 2, "x = 4 AND s > 'b' AND f = 1 AND y = 1")
    assert engine.lub("x") == normalize(parse("x BETWEEN 3 AND 5")).conjunctions[0]["x"]
    assert engine.lub("s") == normalize(parse("s >= 'a'")).conjunctions[0]["s"]
    engine.delete(np.array([0, 2]))
    assert engine.lub("x") is None


def test_covers_admit_what_is_absent_or_of_no_kind() -> None:
    engine = engine_of("x IS NULL", "x > 5")
    cover = engine.lub("x")
    assert cover is not None
    assert (cover.holds(None), cover.holds(6), cover.holds(5)) == (True, True, False)
    engine = engine_of("x IS NOT NULL", "x > 5")
    assert engine.lub("x") == PRESENT


def test_an_update_to_what_can_never_match_and_back() -> None:
    matcher = tocsin.Matcher(engine="fastint")
    matcher.subscribe("a", "x BETWEEN :low AND :high", {"low": 1, "high": 5})
    matcher.update("a", params={"low": 9})
    assert matcher.match({"x": 9}) == []
    matcher.update("a", params={"high": 9})
    assert matcher.match({"x": 9}) == ["a"]
    matcher.check()


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_parametric_updates_equal_those_of_the_matcher(seed: int, declared: bool) -> None:
    draw = random.Random(seed)
    kinds = {"x": Kind.INTEGER, "y": Kind.FLOAT, "s": Kind.STRING}
    event_type = EventType("E", kinds) if declared else None
    moved = tocsin.Matcher(event_type, engine="fastint")
    plain = tocsin.Matcher(event_type, engine="oracle")
    templates = [*TEMPLATES, "x > :low AND y < 7.5 AND s LIKE '%b_a%'", "x <= :low AND y = :high"]
    names_of = {text: parameter_names(parse(text)) for text in templates}
    texts = [draw.choice(templates) for _ in range(60)]

    def value_of(name: str) -> object:
        return draw.choice("abc") if name == "name" else draw.choice([None, *range(12), 2.5, 7.0])

    for i, text in enumerate(texts):
        params = {name: value_of(name) for name in names_of[text]}
        moved.subscribe(i, text, params)
        plain.subscribe(i, text, params)
    updates = ParametricUpdates(moved)
    for step in range(600):
        i = draw.randrange(len(texts))
        names = draw.sample(names_of[texts[i]], draw.randint(1, len(names_of[texts[i]])))
        params = {name: value_of(name) for name in names}
        updates.update(i, params)
        plain.update(i, params=params)
        event = {"x": draw.randrange(13), "y": draw.random() * 13, "s": draw.choice(["a", "bca"])}
        assert sorted(moved.match(event)) == sorted(plain.match(event))
        if step % 100 == 0:
            moved.check()
    assert [moved.get(i).params for i in range(60)] == [plain.get(i).params for i in range(60)]


def test_a_parametric_update_reads_no_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = tocsin.Matcher(engine="fastint")
    for i in range(200):
        matcher.subscribe(i, "x BETWEEN :low AND :high AND s = :s", {"low": i, "high": i, "s": "a"})
    updates = ParametricUpdates(matcher)
    engine = matcher.index
    assert isinstance(engine, FastintEngine)
    slots = engine._slots_of(7)
    with monkeypatch.context() as patch:
        patch.setattr(matcher, "update", None)
        updates.update(7, {"low": 500, "high": 600})
        updates.update(7, {"high": 700.5})
    assert engine._slots_of(matcher.catalog.next_dense - 1) == slots
    assert matcher.match({"x": 700, "s": "a"}) == [7]
    assert 7 not in matcher.match({"x": 7, "s": "a"})
    assert matcher.get(7).params == {"low": 500, "high": 700.5, "s": "a"}
    matcher.check()


def test_parametric_updates_refuse_what_a_matcher_refuses() -> None:
    with pytest.raises(ArgumentError, match="fastint"):
        ParametricUpdates(tocsin.Matcher())
    matcher = tocsin.Matcher(EventType("E", {"x": Kind.INTEGER}), engine="fastint", clock=lambda: 0)
    matcher.subscribe(1, "x < :high", {"high": 5}, valid_until=10_000_000)
    updates = ParametricUpdates(matcher)
    for bad in ({"high": "a"}, {"low": 1}, {"high": object()}):
        with pytest.raises(SubscriptionError):
            updates.update(1, bad)
    with pytest.raises(UnknownSubscriptionError):
        updates.update(2, {"high": 5})
    updates.update(1, {"high": 3})
    assert matcher.match({"x": 4}) == []
    assert matcher.get(1).valid_until is not None


def test_a_small_table_has_the_rows_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [
        table_of("x = 1 AND s = 'b' OR s > 'a' AND s <= 'c' AND (y IS NULL OR y > 2.5)"),
        table_of("s <> 'b' AND x IN (1, 2, 9007199254740993)", "FALSE", "s LIKE 'a%' OR f"),
        table_of("s IS NOT NULL AND t < TIMESTAMP '2026-01-01' AND s2 >= ''", "TRUE"),
    ]
    attributes = Attributes()
    for table in tables:
        rows, sizes = attributes.rows_of(table)
        with monkeypatch.context() as patch:
            patch.setattr("tocsin_lab.engines.intervals.rows._FEW", -1)
            expected, expected_sizes = attributes.rows_of(table)
        pairs: Any = zip((*rows, sizes), (*expected, expected_sizes), strict=True)
        for array, other in pairs:
            assert array.dtype == other.dtype
            assert array.tolist() == other.tolist()


def test_a_search_for_unknown_strings_disturbs_nothing() -> None:
    engine = engine_of(*(f"s > 'n{i:03}'" for i in range(300)))
    for i in range(200):
        assert engine.same(table_of(f"s > 'n1{'0' * i}1x'")) == []
    assert engine.same(table_of("s > 'n007'")) == [7]
    engine.check()
    assert sorted(engine.match_one({"s": "n1000"})) == list(range(101))
