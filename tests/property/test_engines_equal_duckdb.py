"""Every engine, the normal form and the evaluator against DuckDB's WHERE on the same rows.

The default run compares at least 20,000 pairs of a condition and an event by each path, the slow
run a million; both assert the count, and `pytest -s` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property import duck
from tests.property.samples import WORLDS, Sample, Verdicts, nested, sample, to_table
from tests.property.scribble import scribble
from tests.property.segmented import SEGMENTED, Segmented, make
from tests.property.strategies import (
    MIXED,
    TYPED,
    Seeded,
    World,
    event,
    events,
    expressions,
    many_disjuncts,
)

from tocsin.engines import names
from tocsin.language import parse, print_expression
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import Expression
from tocsin.normalize import normalize

ENGINES = names()
COMMON = ("auto", "oracle")
Path: TypeAlias = Callable[[Sample, str], Verdicts]
FEW = {
    "typed": (150, 60),
    "agreeing": (80, 60),
    "mixed": (80, 60),
    "numeric": (40, 60),
    "stringy": (40, 60),
    "market": (250, 60),
}
MANY = {
    "typed": (800, 500),
    "agreeing": (400, 500),
    "mixed": (400, 500),
    "numeric": (300, 500),
    "stringy": (300, 500),
    "market": (1_500, 200),
}


def count_pairs(
    sizes: dict[str, tuple[int, int]], who: str, verdicts_of: Callable[[Sample], Verdicts]
) -> int:
    """Compare with DuckDB in every world; return the number of pairs compared."""
    n_pairs = 0
    for name, size in sizes.items():
        found = sample(name, *size)
        n_pairs += found.check(verdicts_of(found), f"{who} ({name})")
    return n_pairs


def evaluated(given_sample: Sample) -> Verdicts:
    parsed = [parse(text) for text in given_sample.texts]
    return given_sample.by_pairs(lambda i, row: evaluate(parsed[i], row.get) is True)


def normalized(given_sample: Sample) -> Verdicts:
    forms = [normalize(parse(text), given_sample.event_type) for text in given_sample.texts]
    return given_sample.by_pairs(lambda i, row: forms[i].holds(row))


def matched_one_by_one(given_sample: Sample, engine: str) -> Verdicts:
    """Subscribe one text at a time, match one event at a time."""
    matcher = make(engine, given_sample.event_type)
    for i, text in enumerate(given_sample.texts):
        matcher.subscribe(i, text)
    return given_sample.by_events(
        matcher.match(nested(row) if i % 2 else row) for i, row in enumerate(given_sample.events)
    )


def matched_in_bulk(given_sample: Sample, engine: str) -> Verdicts:
    """Subscribe all texts at once, match all events at once."""
    return matched_texts(given_sample, given_sample.texts, engine)


def matched_as_scribbled(given_sample: Sample, engine: str) -> Verdicts:
    """The same, but with texts as people write them."""
    source = Seeded(6)
    texts = [scribble(condition, source) for condition in given_sample.conditions]
    return matched_texts(given_sample, texts, engine)


def matched_texts(given_sample: Sample, texts: Sequence[str], engine: str) -> Verdicts:
    matcher = make(engine, given_sample.event_type)
    matcher.subscribe_many(pa.table({"id": pa.array(range(len(texts))), "where": pa.array(texts)}))
    if isinstance(matcher, Segmented):
        assert 2 * matcher.n_segments > SEGMENTED[engine] > 1
    return given_sample.by_events(matcher.match_batch(batch_of(given_sample)))


def batch_of(given_sample: Sample) -> Any:
    """Return the events as a table where one can hold them, else as mappings."""
    if given_sample.world is MIXED:
        return given_sample.events
    return to_table(given_sample.events, given_sample.world, Seeded(5))


def test_the_evaluator_equals_duckdb() -> None:
    assert count_pairs(FEW, "the evaluator", evaluated) >= 20_000


def test_the_normal_form_equals_duckdb() -> None:
    assert count_pairs(FEW, "the normal form", normalized) >= 20_000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", [matched_one_by_one, matched_in_bulk, matched_as_scribbled])
def test_every_engine_equals_duckdb(path: Path, engine: str) -> None:
    who = f"engine {engine} {path.__name__}"
    assert count_pairs(FEW, who, lambda found: path(found, engine)) >= 20_000


@pytest.mark.parametrize("engine", SEGMENTED)
def test_auto_equals_duckdb_in_any_number_of_segments(engine: str) -> None:
    n_pairs = count_pairs(FEW, engine, lambda found: matched_in_bulk(found, engine))
    assert n_pairs >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("engine", SEGMENTED)
def test_auto_equals_duckdb_one_by_one_in_any_number_of_segments(engine: str) -> None:
    n_pairs = count_pairs(FEW, engine, lambda found: matched_one_by_one(found, engine))
    assert n_pairs >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "auto in many segments"])
def test_auto_equals_duckdb_on_a_million_pairs(engine: str) -> None:
    who = f"engine {engine}"
    n_pairs = count_pairs(MANY, who, lambda found: matched_as_scribbled(found, engine))
    assert n_pairs >= 1_000_000


@pytest.mark.slow
def test_the_normal_form_equals_duckdb_on_a_million_pairs() -> None:
    assert count_pairs(MANY, "the normal form", normalized) >= 1_000_000


@cache
def many_disjuncts_sample(name: str) -> tuple[list[Expression], list[Any], Verdicts]:
    source, world = Seeded(3), WORLDS[name]
    conditions = [many_disjuncts(source, world, n) for n in (2_000, 40, 40, 40)]
    rows = [event(source, world) for _ in range(25)]
    return conditions, rows, duck.verdicts(conditions, rows, world)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES, *SEGMENTED])
@pytest.mark.parametrize("name", ["typed", "stringy"])
def test_thousands_of_disjuncts_equal_duckdb(name: str, engine: str) -> None:
    conditions, rows, expected = many_disjuncts_sample(name)
    assert 0 < expected[0].sum() < len(rows)
    matcher = make(engine)
    for i, condition in enumerate(conditions):
        matcher.subscribe(i, print_expression(condition))
    matched = matcher.match_batch(to_table(rows, WORLDS[name], Seeded(3)))
    for j, ids in enumerate(matched):
        assert sorted(ids) == [i for i in range(4) if expected[i, j]]
        if j % 4 == 0:
            assert sorted(matcher.match(rows[j])) == sorted(ids)


@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
@pytest.mark.parametrize(
    "engines",
    [pytest.param(COMMON, id="common"), pytest.param(ENGINES, id="every", marks=pytest.mark.slow)],
)
@settings(max_examples=25)
@given(st.data())
def test_everything_equals_duckdb_as_hypothesis_finds_it(
    engines: Sequence[str], world: World, data: st.DataObject
) -> None:
    conditions: list[Expression] = data.draw(st.lists(expressions(world), min_size=1, max_size=4))
    rows = data.draw(st.lists(events(world), min_size=1, max_size=4))
    expected = duck.verdicts(conditions, rows, world)
    matchers = [make(engine) for engine in (*engines, "auto in many segments")]
    for i, condition in enumerate(conditions):
        form = normalize(condition)
        for matcher in matchers:
            matcher.subscribe(i, print_expression(condition))
        for j, row in enumerate(rows):
            assert (evaluate(condition, row.get) is True) == expected[i, j]
            assert form.holds(row) == expected[i, j]
    for j, row in enumerate(rows):
        for matcher in matchers:
            assert sorted(matcher.match(row)) == [
                i for i in range(len(conditions)) if expected[i, j]
            ]
