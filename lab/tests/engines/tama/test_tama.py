"""TAMA: nothing is missed, promises are kept, and entries come and go."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.property.samples import WORLDS
from tests.property.strategies import MARKET, Seeded, event, expression, quote

import tocsin
from tocsin.broker.overlay.coding import decode_range
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.tama import TamaEngine

pytestmark = pytest.mark.slow

TYPE = tocsin.EventType("R", a0=float, a1=float, a2=float)
WHERE = "a0 BETWEEN :l0 AND :h0 AND a1 BETWEEN :l1 AND :h1"


def table_of(*texts: str, first: int = 0) -> ConjunctionTable:
    table = from_forms([normalize(parse(text)) for text in texts])
    return replace(table, subscription=table.subscription + first)


def engine_of(*texts: str, **options: Any) -> TamaEngine:
    engine = TamaEngine(**options)
    engine.insert(np.arange(len(texts)), table_of(*texts))
    return engine


def draw(kind: str, n: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Values in [0, 1]: even, Pareto or power-law (exponent 2, as in the paper's section V-C)."""
    units = np.random.default_rng(seed).random((n, 3))
    if kind == "uniform":
        return units
    if kind == "pareto":
        return np.minimum(((1 - units) ** -0.5 - 1) / 50, 1.0)
    return np.asarray(0.001 / (1 - units * (1 - 0.001)))


def events_of(kind: str, n: int = 4000, seed: int = 1) -> pa.Table:
    values = draw(kind, n, seed)
    return pa.table({f"a{i}": values[:, i] for i in range(3)})


def subscriptions(kind: str, n: int = 1500, width: float = 0.1) -> pa.Table:
    """Ranges that hold a tenth of the events, wherever those are."""
    starts = np.random.default_rng(7).random((n, 2)) * (1 - width)
    ordered = np.sort(draw(kind, 20_001, 3), axis=0)
    columns: dict[str, Any] = {"id": np.arange(n)}
    for i in range(2):
        columns[f"l{i}"] = ordered[(starts[:, i] * 20_000).astype(int), i]
        columns[f"h{i}"] = ordered[((starts[:, i] + width) * 20_000).astype(int), i]
    return pa.table(columns)


def found(kind: str, profiled: bool, **options: Any) -> tuple[int, int, int]:
    """Return how many matches there are, how many are wrong, and the bytes of the table."""
    matcher = tocsin.Matcher(TYPE, engine="tama", **options)
    matcher.subscribe_many(subscriptions(kind), where=WHERE)
    if profiled:
        matcher.profile(events_of(kind, seed=9))
    events = events_of(kind)
    n = int(matcher.match_batch(events).offsets[-1])
    exact = tocsin.Matcher(TYPE, engine="tama")
    exact.subscribe_many(subscriptions(kind), where=WHERE)
    right = int(exact.match_batch(events).offsets[-1])
    engine = matcher.index
    assert isinstance(engine, TamaEngine)
    return n, n - right, engine.table_nbytes


# Nothing is missed.


@pytest.mark.parametrize("options", [{"levels": 3}, {"levels": 12}, {"false_positive_rate": 0.2}])
@pytest.mark.parametrize("name", WORLDS)
def test_no_match_is_missed(name: str, options: dict[str, Any]) -> None:
    world, source = WORLDS[name], Seeded(4)
    make = quote if world is MARKET else expression
    conditions = [make(source, world) for _ in range(400)]
    events = [event(source, world) for _ in range(60)]
    engine = TamaEngine(**options)
    exact = TamaEngine(exact=True, **options)
    forms = [normalize(condition) for condition in conditions]
    for one in (engine, exact):
        for first in range(0, 400, 100):  # several tables, and some that are in none
            table = from_forms(forms[first : first + 100])
            table = replace(table, subscription=table.subscription + first)
            one.insert(np.arange(first, first + 100), table)
        one.check()
    batch = to_batch(events)
    loose, tight = engine.match_batch(batch), exact.match_batch(batch)
    for i, each in enumerate(events):
        expected = {k for k, form in enumerate(forms) if form.holds(each)}
        ids = loose.values[loose.offsets[i] : loose.offsets[i + 1]].tolist()
        assert len(ids) == len(set(ids))
        assert expected <= set(ids)
        assert set(tight.values[tight.offsets[i] : tight.offsets[i + 1]].tolist()) == expected
        assert set(engine.match_one(each)) == set(ids)


def test_integers_beyond_the_floats_are_not_missed() -> None:
    values = [2**53 + i for i in range(-3, 6)]
    texts = [f"x BETWEEN {v} AND {v + 1}" for v in values] + [f"x <= {v}" for v in values]
    engine = engine_of(*texts, levels=30)
    engine.rebuild()
    for v in values:
        ids = set(engine.match_one({"x": v}))
        expected = {i for i, low in enumerate(values) if low <= v <= low + 1}
        assert expected <= ids


# Promises.


@pytest.mark.parametrize("kind", ["uniform", "pareto", "power"])
@pytest.mark.parametrize("rate", [0.2, 0.02])
def test_no_more_is_wrong_than_was_promised(kind: str, rate: float) -> None:
    n, wrong, _ = found(kind, profiled=kind != "uniform", false_positive_rate=rate)
    assert n > 10_000
    assert 0 < wrong <= rate * n


@pytest.mark.parametrize("kind", ["uniform", "power"])
def test_each_level_halves_what_is_wrong(kind: str) -> None:
    rates = []
    for levels in (7, 8, 9, 10):
        n, wrong, _ = found(kind, profiled=kind != "uniform", levels=levels)
        rates.append(wrong / n)
    for coarse, fine in pairwise(rates):
        assert 0.4 < fine / coarse < 0.6


def test_separation_by_events_is_wrong_far_less_often() -> None:
    _, even, even_bytes = found("power", profiled=False, levels=10)
    _, by_events, bytes_ = found("power", profiled=True, levels=10)
    assert even * even_bytes >= 5 * by_events * bytes_, "at the same memory"


def test_an_entry_takes_eight_bytes_and_a_part_of_a_bucket() -> None:
    engine = engine_of(*(f"x BETWEEN {i / 7} AND {i / 7 + 3.21}" for i in range(2000)), levels=12)
    engine.rebuild()
    n_levels = 12 - 6 + 1  # a range holds a cell of level 7 for certain, and one of level 6 at best
    assert engine.n_entries <= 2 * n_levels * 2000
    assert engine.table_nbytes <= 12 * engine.n_entries + 9 * 2000


# Changes.


def test_what_is_deleted_leaves_no_entry() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 5} AND s = 'n{i % 7}'" for i in range(700)))
    engine.delete(np.arange(0, 700, 2))
    engine.check()
    assert engine.match_one({"x": 103, "s": "n3"}) == [101]
    engine.insert(np.arange(700, 900), table_of(*(f"x = {i}" for i in range(200)), first=700))
    engine.check()
    assert engine.match_one({"x": 44}) == [744]
    engine.delete(np.arange(1, 700, 2))
    engine.check()
    assert engine.match_one({"x": 44, "s": "n2"}) == [744]


def test_subscriptions_are_found_by_their_content() -> None:
    texts = ["x = 1 AND y > 2", "x = 1", "x = 1 AND y > 2", "x = 1 OR y = 3", "s LIKE '%a%'"]
    engine = engine_of(*texts)
    assert engine.same(table_of("x = 1 AND y > 2")) == [0, 2]
    assert engine.same(table_of("x = 1")) == [1]
    assert engine.same(table_of("x = 1 OR y = 3")) == [3]
    assert engine.same(table_of("x = 2")) == []
    engine.delete(np.array([0]))
    assert engine.same(table_of("x = 1 AND y > 2")) == [2]


def test_a_profile_separates_again_and_changes_no_answer() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 5}" for i in range(1000)))
    before = sorted(engine.match_one({"x": 500}))
    engine.profile(to_batch(pa.table({"x": np.random.default_rng(1).normal(500, 3, 2000)})))
    engine.check()
    assert sorted(engine.match_one({"x": 500})) == before == list(range(495, 501))


def test_a_search_for_unknown_strings_disturbs_nothing() -> None:
    engine = engine_of(*(f"s > 'n{i:03}'" for i in range(300)))
    for i in range(200):
        assert engine.same(table_of(f"s > 'n1{'0' * i}1x'")) == []
    engine.check()
    assert sorted(engine.match_one({"s": "n1000"})) == list(range(101))


# Interfaces and coding.


@pytest.mark.parametrize("dynamic", [True, False])
def test_interfaces_are_those_of_the_subscriptions_found(dynamic: bool) -> None:
    texts = [f"x BETWEEN {i} AND {i + 20} AND y > {i % 13}" for i in range(600)] + ["x IS NULL"]
    engine = engine_of(*texts, levels=14)
    interface_of = (np.arange(601) % 10).astype(np.int32)
    events = to_batch(pa.table({"x": [5.0, 100.5, None, 700.0], "y": [3.0, 12.0, 5.0, 1.0]}))
    interfaces = engine.match_interfaces(events, interface_of, dynamic=dynamic)
    matches = engine.match_batch(events)
    for i in range(4):
        own = interfaces.values[interfaces.offsets[i] : interfaces.offsets[i + 1]].tolist()
        ids = matches.values[matches.offsets[i] : matches.offsets[i + 1]]
        assert own == sorted(set(interface_of[ids].tolist()))


def test_ranges_are_coded_as_they_are_entered() -> None:
    engine = engine_of(*(f"x BETWEEN {i} AND {i + 5} AND y = 2" for i in range(300)), levels=9)
    ((name, coded),) = engine.coded(17)
    assert name == "x"
    with pytest.raises(ArgumentError, match="needs an interface"):
        engine.match_interfaces(to_batch([{}]), np.zeros(5, np.int32))
    assert len(decode_range(coded)) + 1 == engine._arrays.n_entries[17]


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"false_positive_rate": 1.0},
        {"false_positive_rate": -0.1},
        {"levels": 31},
        {"levels": 4, "false_positive_rate": 0.1},
        {"levels": 2.5},
        {"exact": 1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        tocsin.Matcher(engine="tama", **options)


def test_values_that_are_next_to_each_other_or_at_the_ends_are_found() -> None:
    """Marks may be so near or so far that their distance is no number to divide by."""
    values = [-1.7e308, -1.0, -0.0, 0.0, 5e-324, 1e-323, 1.0, 2.0**53, 1.7e308]
    matcher = tocsin.Matcher(engine="tama")
    for i, value in enumerate(values):
        matcher.subscribe(f"not {i}", "x <> :v", params={"v": value})
        matcher.subscribe(f"to {i}", "x <= :v", params={"v": value})
    matcher.profile([{"x": value} for value in values])
    for probe in values:
        expected = {f"not {i}" for i, value in enumerate(values) if value != probe}
        expected |= {f"to {i}" for i, value in enumerate(values) if probe <= value}
        assert set(matcher.match({"x": probe})) == expected


def test_attributes_that_only_recent_conditions_have_are_known_to_the_tables() -> None:
    """The kernels look at one entry for each attribute of an event, which must be there."""
    matcher = tocsin.Matcher(engine="tama")
    matcher.subscribe("a", "x = 1")
    matcher.rebuild()
    matcher.subscribe("b", "x = 1 AND y = 2 AND z < 3")
    assert sorted(map(str, matcher.match({"x": 1, "y": 2, "z": 0}))) == ["a", "b"]
    engine: Any = matcher.index
    assert len(engine._sorts) == len(engine._attributes) == 3
