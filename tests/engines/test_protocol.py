"""The product's engines keep the protocol: dense ids in and out, each match once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tocsin import engines
from tocsin.encode.events import to_batch
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import ArgumentError, UnknownEngineError
from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.normalize import NormalForm, normalize
from tocsin.normalize.layout import from_forms

EVENTS: list[dict[str, Any]] = [{"x": 1}, {"x": 2, "s": "ab"}, {}, {"s": "b"}, {"x": 2.5}]


class Expressions:
    """Expressions by dense id: what the oracle evaluates."""

    def __init__(self) -> None:
        self.expressions: dict[int, Expression] = {}
        self.forms: dict[int, NormalForm] = {}

    def expression(self, dense: int) -> Expression:
        return self.expressions[dense]


class Bench:
    """An engine with the expressions that it holds, and what it should answer."""

    def __init__(self, name: str, n_portions: int | None = None, **options: object) -> None:
        """With `n_portions`, nothing is merged, and what comes at once is in so many segments."""
        self.conditions = Expressions()
        self.live: set[int] = set()
        self.n_portions = n_portions
        if n_portions is not None:
            options["merges"] = False
        self.engine: Engine = engines.make(name, self.conditions, options)

    def insert(self, first: int, *texts: str) -> None:
        size = max(-(-len(texts) // (self.n_portions or 1)), 1)
        for start in range(0, len(texts), size):
            self.insert_portion(first + start, *texts[start : start + size])
            if self.n_portions:
                self.engine.match_one({})

    def insert_portion(self, first: int, *texts: str) -> None:
        ids = np.arange(first, first + len(texts))
        expressions = [parse(text) for text in texts]
        forms = [normalize(expression) for expression in expressions]
        self.conditions.expressions.update(zip(ids.tolist(), expressions, strict=True))
        self.conditions.forms.update(zip(ids.tolist(), forms, strict=True))
        self.live.update(ids.tolist())
        table = from_forms(forms)
        self.engine.insert(ids, replace(table, subscription=table.subscription + first))

    def delete(self, *ids: int) -> None:
        self.live.difference_update(ids)
        self.engine.delete(np.array(ids, np.int64))

    def expected(self, event: dict[str, Any]) -> list[int]:
        return sorted(i for i in self.live if self.conditions.forms[i].holds(event))

    def check(self, events: Any = EVENTS) -> None:
        self.engine.check()
        rows = events if isinstance(events, list) else events.to_pylist()
        found = self.engine.match_batch(to_batch(events))
        check_found(found, len(rows))
        for i, row in enumerate(rows):
            ids = found.values[found.offsets[i] : found.offsets[i + 1]].tolist()
            assert sorted(ids) == self.expected(row), row
            assert sorted(self.engine.match_one(row)) == self.expected(row), row


def check_found(found: RaggedIds, n_events: int) -> None:
    assert found.offsets.dtype == np.int64
    assert found.values.dtype.kind in "iu"
    assert len(found.offsets) == n_events + 1
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.values)
    assert np.all(np.diff(found.offsets) >= 0)


PORTIONS = {"auto in 2 segments": 2, "auto in many segments": 12}


@pytest.fixture(params=("auto", "oracle", *PORTIONS))
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param in PORTIONS:
        return Bench("auto", PORTIONS[request.param])
    return Bench(request.param)


def test_names_are_listed_and_made() -> None:
    assert {"auto", "oracle"} <= set(engines.names())
    with pytest.raises(UnknownEngineError) as caught:
        engines.make("warp", Expressions(), {})
    assert caught.value.known == engines.names()
    for name in engines.names():
        with pytest.raises(ArgumentError, match="colour"):
            engines.make(name, Expressions(), {"colour": "red"})


def test_an_engine_without_subscriptions_finds_nothing(bench: Bench) -> None:
    bench.check()
    bench.check([])


def test_subscriptions_are_found_by_their_dense_ids(bench: Bench) -> None:
    bench.insert(0, "x = 1", "x > 1", "s LIKE '%b%'", "s = 'b' OR x = 2", "x IS NULL", "TRUE")
    bench.check()
    bench.check(pa.table({"x": [1, 2, None], "s": ["ab", None, "b"]}))


def test_dense_ids_need_not_start_at_zero_nor_follow_each_other(bench: Bench) -> None:
    bench.insert(5_000, "x = 1", "x > 1")
    bench.check()
    bench.insert(70_000, "x = 1 OR x = 2 OR x > 2", "NOT s = 'b'")
    bench.check()


def test_what_comes_later_is_found_too(bench: Bench) -> None:
    for i in range(40):
        bench.insert(i, f"x = {i % 4}" if i % 2 else f"x > {i % 3} OR s = 'b'")
        if i % 7 == 0:
            bench.check()
    bench.check()


def test_what_is_deleted_is_not_found(bench: Bench) -> None:
    bench.insert(0, *(f"x = {i % 3}" for i in range(30)))
    bench.check()
    bench.delete(1, 4, 29)
    bench.check()
    bench.insert(30, "x = 1", "x = 1 OR s = 'b'")
    bench.delete(30, 0)
    bench.check()
    bench.delete(*bench.live)
    bench.check()


def test_what_is_deleted_before_a_match_is_not_found(bench: Bench) -> None:
    bench.insert(0, "x = 1", "x = 2")
    bench.delete(0)
    bench.check()


def test_most_may_be_deleted_and_others_come(bench: Bench) -> None:
    n = 3_000
    bench.insert(0, *(f"x = {i % 50}" for i in range(n)))
    bench.engine.match_batch(to_batch(EVENTS))
    bench.delete(*range(n - 100))
    bench.check()
    bench.insert(n, *(f"x = {i % 50}" for i in range(50)))
    bench.check()
    assert len(bench.live) == 150


def test_a_subscription_that_can_never_match_is_kept_without_harm(bench: Bench) -> None:
    bench.insert(0, "x = 1 AND x = 2", "x = 1", "FALSE")
    bench.check()
    bench.delete(0, 2)
    bench.check()


def test_disjuncts_are_found_once(bench: Bench) -> None:
    bench.insert(
        0, " OR ".join(f"x > {i} AND x < {i + 9}" for i in range(-8, 9)), "x = 2 OR s > 'a'"
    )
    for event in EVENTS:
        one = bench.engine.match_one(event)
        assert len(set(one)) == len(one)
    found = bench.engine.match_batch(to_batch(EVENTS * 5))
    for i in range(len(EVENTS) * 5):
        ids = found.values[found.offsets[i] : found.offsets[i + 1]].tolist()
        assert len(set(ids)) == len(ids)
    bench.check()


def test_many_matches_of_many_events_all_come_out(bench: Bench) -> None:
    bench.insert(0, *(f"x < {i}" for i in range(200)))
    events = pa.table({"x": [float(i % 7) for i in range(150)]})
    bench.check(events)


def test_an_engine_says_where_it_keeps_a_subscription(bench: Bench) -> None:
    bench.insert(0, "x = 1", "x = 1 AND x = 2", "TRUE", "x = 1 OR s = 'a'")
    for dense in range(4):
        assert isinstance(bench.engine.explain(dense), str)
        assert bench.engine.explain(dense)


def test_a_rebuild_changes_no_answer(bench: Bench) -> None:
    bench.engine.rebuild()
    bench.check()
    for first in (0, 40, 80):
        bench.insert(first, *(f"x = {i % 4} OR s = 'b'" for i in range(40)))
        bench.check()
    bench.delete(1, 41, 119)
    bench.insert(120, "x IS NULL", "x = 1 AND x = 2")
    bench.engine.profile(to_batch(EVENTS))
    bench.engine.rebuild()
    bench.check()
    bench.delete(*bench.live)
    bench.engine.rebuild()
    bench.check()
    bench.insert(122, "x = 1")
    bench.check()


def test_bytes_are_counted(bench: Bench) -> None:
    bench.insert(0, *(f"x = {i}" for i in range(100)))
    bench.check()
    assert bench.engine.nbytes >= 0
