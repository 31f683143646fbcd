"""A test suite for engines: every answer is compared with the oracle's.

Enters: the name of an engine. Leaves: a verdict. As a class for pytest:

    from tocsin_lab.conformance import EngineConformance

    class TestMine(EngineConformance):
        engine = "mine"

and on the command line, for an engine that is installed or is only a class in a module:

    python -m tocsin_lab.conformance mine
    python -m tocsin_lab.conformance my_module:MyEngine

Tests of the first half call the engine itself, as the matcher does; those of the second half go
through a `Matcher`. An engine that is approximate by its options does not conform with them.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tocsin import Matcher, engines
from tocsin.encode.events import to_batch
from tocsin.engines import EngineSpec
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import TocsinError
from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable

Event = dict[str, Any]

EVENTS: list[Event] = [{"x": 1}, {"x": 2, "s": "ab"}, {}, {"s": "b"}, {"x": 2.5}]
EDGES: list[Any] = [
    None, 0, -0.0, 1, -1, 0.5, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 1e308, -1e308,
    5e-324, float("inf"), float("-inf"), float("nan"), "", "\0", "a", "a\0", "ab", "b",
    "\U0010ffff", "x" * 5_000, True, False,
]  # fmt: skip
"""Values at which comparisons go wrong most easily."""
_TEMPLATES = (
    "x > :low AND x < :high",
    "x BETWEEN :low AND :high AND s = :name",
    "s < :name AND x >= :low",
    "x = :low OR y = :high",
    "x IN (:low, :high) AND (y IS NULL OR y > :low)",
    "s IS NOT NULL AND x <> :low",
    "s LIKE '%a%' AND NOT x > :low",
    "s = :name",
)
_NAMES = ("", "a", "ab", "b", "ba", "z", "zz\0")


class Conditions:
    """Expressions by dense id, for engines that evaluate them."""

    def __init__(self) -> None:
        self._expressions: dict[int, Expression] = {}

    def expression(self, dense: int) -> Expression:
        """Return the condition of a subscription."""
        return self._expressions[dense]

    def table(self, ids: Sequence[int], texts: Sequence[str]) -> ConjunctionTable:
        """Parse conditions; return their conjunctions under some dense ids."""
        expressions = [parse(text) for text in texts]
        self._expressions.update(zip(ids, expressions, strict=True))
        table = from_forms([normalize(expression) for expression in expressions])
        return replace(table, subscription=np.array(ids, np.int64)[table.subscription])


class Pair:
    """An engine and the oracle, with the same subscriptions."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._conditions = Conditions()
        self.engine = engines.make(name, self._conditions, dict(options))
        self._oracle = engines.make("oracle", self._conditions, {})
        self.live: set[int] = set()

    def insert(self, first: int, *texts: str) -> None:
        """Insert conditions under ascending dense ids."""
        ids = range(first, first + len(texts))
        table = self._conditions.table(ids, texts)
        for engine in (self.engine, self._oracle):
            engine.insert(np.array(ids, np.int64), table)
        self.live.update(ids)

    def delete(self, *ids: int) -> None:
        """Delete subscriptions."""
        for engine in (self.engine, self._oracle):
            engine.delete(np.array(ids, np.int64))
        self.live.difference_update(ids)

    def replace(self, old: Sequence[int], first: int, *texts: str) -> None:
        """Replace subscriptions by conditions under ascending dense ids."""
        ids = range(first, first + len(texts))
        table = self._conditions.table(ids, texts)
        for engine in (self.engine, self._oracle):
            engine.replace(np.array(old, np.int64), np.array(ids, np.int64), table)
        self.live.difference_update(old)
        self.live.update(ids)

    def check(self, events: Any = EVENTS) -> None:
        """Compare the answers to a batch, and to each of its events alone, with the oracle's."""
        self.engine.check()
        batch = to_batch(events)
        matches, expected = self.engine.match_batch(batch), self._oracle.match_batch(batch)
        _check_shape(matches, len(batch))
        rows = events if isinstance(events, list) else events.to_pylist()
        for row, event in enumerate(rows):
            ids = sorted(expected.of(row).tolist())
            assert sorted(matches.of(row).tolist()) == ids, f"wrong matches in a batch: {event}"
            assert sorted(self.engine.match_one(event)) == ids, f"wrong matches alone: {event}"


def _check_shape(matches: RaggedIds, n_events: int) -> None:
    assert matches.offsets.dtype == np.int64, "offsets are not int64"
    assert matches.values.dtype.kind in "iu", "ids are not integers"
    assert len(matches.offsets) == n_events + 1, "there is not one offset more than events"
    assert matches.offsets[0] == 0, "the first offset is not 0"
    assert matches.offsets[-1] == len(matches.values), "the last offset is not the number of ids"
    assert np.all(np.diff(matches.offsets) >= 0), "offsets descend"


class EngineConformance:
    """What every engine must do; subclass it and set `engine`."""

    engine: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}

    def pair(self) -> Pair:
        """Return a new engine paired with the oracle."""
        return Pair(self.engine, self.options)

    def matcher(self) -> Matcher:
        """Return a new matcher with the engine."""
        return Matcher(engine=self.engine, **self.options)

    # The engine itself.

    def test_no_subscriptions_match_nothing(self) -> None:
        pair = self.pair()
        assert isinstance(pair.engine, Engine), "the engine does not inherit from Engine"
        pair.check()
        pair.check([])

    def test_subscriptions_match_by_their_dense_ids(self) -> None:
        pair = self.pair()
        pair.insert(0, "x = 1", "x > 1", "s LIKE '%b%'", "s = 'b' OR x = 2", "x IS NULL", "TRUE")
        pair.check()
        pair.check([])
        pair.check(pa.table({"x": [1, 2, None], "s": ["ab", None, "b"]}))

    def test_dense_ids_need_not_start_at_zero_nor_follow_each_other(self) -> None:
        pair = self.pair()
        pair.insert(5_000, "x = 1", "x > 1")
        pair.check()
        pair.insert(70_000, "x = 1 OR x = 2 OR x > 2", "NOT s = 'b'")
        pair.check()

    def test_subscriptions_inserted_between_matches_match(self) -> None:
        pair = self.pair()
        for i in range(40):
            pair.insert(i, f"x = {i % 4}" if i % 2 else f"x > {i % 3} OR s = 'b'")
            if i % 7 == 0:
                pair.check()
        pair.check()

    def test_deleted_subscriptions_do_not_match(self) -> None:
        pair = self.pair()
        pair.insert(0, *(f"x = {i % 3}" for i in range(30)))
        pair.delete(0)
        pair.check()
        pair.delete(1, 4, 29)
        pair.check()
        pair.insert(30, "x = 1", "x = 1 OR s = 'b'")
        pair.delete(2, 30)
        pair.check()
        pair.delete(*sorted(pair.live))
        pair.check()
        pair.insert(40, "x = 1")
        pair.check()

    def test_most_may_be_deleted_and_others_inserted(self) -> None:
        pair = self.pair()
        n = 2_000
        pair.insert(0, *(f"x = {i % 50}" for i in range(n)))
        pair.check([{"x": 1}])
        pair.delete(*range(n - 100))
        pair.check()
        pair.insert(n, *(f"x = {i % 50}" for i in range(50)))
        pair.check()

    def test_replaced_subscriptions_match_by_their_new_conditions(self) -> None:
        pair = self.pair()
        pair.insert(0, *(f"x BETWEEN {i} AND {i + 2}" for i in range(20)))
        pair.check()
        pair.replace([3], 20, "x BETWEEN 1 AND 2")
        pair.check()
        pair.replace([0, 5, 20], 21, "x = 2 OR s = 'b'", "x = 1 AND x = 2", "x BETWEEN 2 AND 9")
        pair.check()

    def test_conditions_that_never_hold_do_no_harm(self) -> None:
        pair = self.pair()
        pair.insert(0, "x = 1 AND x = 2", "x = 1", "FALSE")
        pair.check()
        pair.delete(0, 2)
        pair.check()

    def test_a_subscription_matches_once_whatever_its_disjuncts(self) -> None:
        pair = self.pair()
        disjuncts = " OR ".join(f"x > {i} AND y < {i + 9}" for i in range(-8, 9))
        pair.insert(0, disjuncts, "x = 2 OR s > 'a'")
        pair.check([{"x": 1, "y": 1}, *EVENTS])

    def test_many_matches_of_many_events_all_come_out(self) -> None:
        pair = self.pair()
        pair.insert(0, *(f"x < {i}" for i in range(200)))
        pair.check(pa.table({"x": [float(i % 7) for i in range(150)]}))

    def test_values_at_the_edges_compare_exactly(self) -> None:
        pair = self.pair()
        numbers = [
            v for v in EDGES if isinstance(v, int | float) and not isinstance(v, bool) and v == v
        ]
        finite = [repr(v) for v in numbers if abs(v) != float("inf")]
        texts = [f"x {op} {v}" for v in finite for op in ("=", "<", ">=", "<>")]
        strings = ("''", "'a'", "'ab'", "'b'", "'\U0010ffff'")
        texts += [f"x {op} {text}" for text in strings for op in ("=", "<=", ">", "<>")]
        texts += ["x IS NULL", "x IS NOT NULL", "x = TRUE", "x <> TRUE", "x LIKE 'x%'"]
        pair.insert(0, *texts)
        pair.check([{"x": value} for value in EDGES])

    def test_matches_returned_earlier_stay_as_they_are(self) -> None:
        pair = self.pair()
        pair.insert(0, *(f"x < {i}" for i in range(20)))
        matches = pair.engine.match_batch(to_batch(EVENTS))
        copies = [array.copy() for array in matches]
        pair.engine.match_batch(to_batch([{"x": -1}] * 10))
        pair.insert(20, "x = 1")
        pair.engine.match_one({"x": 0})
        for array, copy in zip(matches, copies, strict=True):
            assert np.array_equal(array, copy), "a later call has changed an earlier result"

    def test_profiles_and_rebuilds_change_no_answer(self) -> None:
        pair = self.pair()
        pair.engine.rebuild()
        pair.check()
        for first in (0, 40, 80):
            pair.insert(first, *(f"x = {i % 4} OR s = 'b'" for i in range(40)))
            pair.check()
        pair.delete(1, 41, 119)
        pair.insert(120, "x IS NULL", "x = 1 AND x = 2")
        pair.engine.profile(to_batch([]))
        pair.engine.profile(to_batch(EVENTS))
        pair.check()
        pair.engine.rebuild()
        pair.check()
        pair.delete(*sorted(pair.live))
        pair.engine.rebuild()
        pair.insert(122, "x = 1")
        pair.check()

    def test_an_engine_explains_itself(self) -> None:
        pair = self.pair()
        pair.insert(0, "x = 1", "x = 1 AND x = 2", "TRUE", "x = 1 OR s = 'a'")
        for dense in range(4):
            text = pair.engine.explain(dense)
            assert isinstance(text, str), "explain returns no text"
            assert text, "explain says nothing"
        assert pair.engine.describe(), "describe says nothing"
        assert pair.engine.nbytes >= 0

    # Behind a matcher.

    def test_random_changes_keep_the_answers_of_the_oracle(self) -> None:
        for seed in range(3):
            self._change_at_random(random.Random(seed))

    def _change_at_random(self, dice: random.Random) -> None:
        mine, oracle = self.matcher(), Matcher(engine="oracle")
        live: dict[int, str] = {}
        for step in range(150):
            text = dice.choice(_TEMPLATES)
            params = _params(dice, text)
            id, act = step, dice.random()
            if live and act > 0.5:
                id = dice.choice(sorted(live))
            for matcher in (mine, oracle):
                if id not in live:
                    matcher.subscribe(id, text, params)
                elif act < 0.65:
                    matcher.unsubscribe(id)
                elif act < 0.85:
                    matcher.update(id, params={"low": 3} if ":low" in live[id] else {"name": "b"})
                else:
                    matcher.update(id, where=text, params=params)
            if id in live and act < 0.65:
                del live[id]
            elif id not in live or act >= 0.85:
                live[id] = text
            if step % 25 == 0:
                _compare(mine, oracle, dice)
        for matcher in (mine, oracle):
            matcher.unsubscribe_many(sorted(live)[:20])
            matcher.subscribe_many({"id": range(1_000, 1_200), "low": range(200)}, "x > :low")
        _compare(mine, oracle, dice)

    def test_an_error_leaves_everything_as_it_was(self) -> None:
        matcher = self.matcher()
        matcher.subscribe(1, "x > :low", {"low": 1})
        matcher.subscribe(2, "x = 5 OR s = 'b'")
        failing: list[Callable[[], object]] = [
            lambda: matcher.subscribe(1, "x = 1"),
            lambda: matcher.subscribe(3, "x = "),
            lambda: matcher.subscribe(3, "x > :missing"),
            lambda: matcher.subscribe_many({"id": [3, 1], "where": ["x = 1", "x = 2"]}),
            lambda: matcher.update(1, params={"other": 1}),
            lambda: matcher.update(1, where="x >"),
            lambda: matcher.update(9, where="x = 1"),
            lambda: matcher.unsubscribe(9),
            lambda: matcher.unsubscribe_many([1, 9]),
        ]
        for number, call in enumerate(failing):
            try:
                call()
            except TocsinError:
                pass
            else:
                raise AssertionError(f"wrong call {number} was accepted")
            matcher.check()
            assert sorted(matcher.match({"x": 5})) == [1, 2]
            assert len(matcher) == 2

    def test_dense_ids_are_given_out_again(self) -> None:
        matcher = self.matcher()
        matcher.subscribe("stays", "x = 1")
        n = 20_000
        for first in range(0, 5 * n, n):
            ids = list(range(first, first + n))
            matcher.subscribe_many({"id": ids, "v": [7] * n}, "y = :v")
            matcher.unsubscribe_many(ids)
        matcher.subscribe("new", "x = 1 OR y = 7")
        matcher.check()
        assert sorted(matcher.match({"x": 1, "y": 7})) == ["new", "stays"]
        matcher.update("stays", where="y = 7")
        assert sorted(matcher.match_batch([{"y": 7}])[0]) == ["new", "stays"]

    def test_a_saved_matcher_answers_as_before(self) -> None:
        matcher = self.matcher()
        matcher.subscribe_many({"id": range(100), "low": range(100)}, "x > :low")
        matcher.unsubscribe(50)
        matcher.update(51, params={"low": 0})
        with tempfile.TemporaryDirectory() as folder:
            matcher.save(Path(folder) / "store")
            opened = Matcher.open(Path(folder) / "store")
            assert opened.engine == self.engine
            for x in (1, 50.5, 1000):
                assert sorted(opened.match({"x": x})) == sorted(matcher.match({"x": x}))
            opened.subscribe(50, "x = 1")
            assert 50 in opened.match({"x": 1})
            opened.check()

    def test_matches_and_changes_come_from_several_threads(self) -> None:
        matcher = self.matcher()
        matcher.subscribe(0, "x >= 0")

        def change(first: int) -> None:
            for id in range(first, first + 30):
                matcher.subscribe(id, f"x = {id}")
                matcher.update(id, where=f"x = {id} OR y = 1")
                assert id in matcher.match({"x": id})
                if id % 2:
                    matcher.unsubscribe(id)

        def match(_: int) -> None:
            for _ in range(30):
                assert all(0 in ids for ids in matcher.match_batch([{"x": 1}, {"x": 900}]))

        with ThreadPoolExecutor(4) as pool:
            tasks = [pool.submit(change, first) for first in (100, 200)]
            tasks += [pool.submit(match, i) for i in range(2)]
            for task in tasks:
                task.result()
        matcher.check()
        assert len(matcher.match({"y": 1})) == 30


def _params(dice: random.Random, text: str) -> dict[str, Any]:
    low = dice.choice([dice.randrange(50), dice.random() * 50, 2**53 + 1])
    params = {"low": low, "high": low + dice.randrange(10), "name": dice.choice(_NAMES)}
    return {name: value for name, value in params.items() if f":{name}" in text}


def _compare(mine: Matcher, oracle: Matcher, dice: random.Random) -> None:
    """Compare the answers of two matchers to random events."""
    mine.check()
    events: list[Event] = [
        {
            "x": dice.choice([dice.randrange(60), 3, 2**53 + 1, None]),
            "s": dice.choice([*_NAMES, None]),
            "y": dice.choice([None, 3, 60]),
        }
        for _ in range(10)
    ]
    for event, some, others in zip(
        events, mine.match_batch(events), oracle.match_batch(events), strict=True
    ):
        assert sorted(some) == sorted(others), f"wrong matches in a batch: {event}"
        assert sorted(mine.match(event)) == sorted(others), f"wrong matches alone: {event}"


def verdicts(engine: str, options: Mapping[str, object]) -> list[tuple[str, str | None]]:
    """Run every test; return its name in words, and the traceback of its failure or None."""
    suite = type("Suite", (EngineConformance,), {"engine": engine, "options": options})()
    results: list[tuple[str, str | None]] = []
    for name in [name for name in vars(EngineConformance) if name.startswith("test_")]:
        failure = None
        try:
            getattr(suite, name)()
        except Exception:
            failure = traceback.format_exc()
        results.append((name.removeprefix("test_").replace("_", " "), failure))
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a verdict on an engine; return 0 if it conforms."""
    parser = argparse.ArgumentParser(
        prog="python -m tocsin_lab.conformance", description="Test an engine against the oracle."
    )
    parser.add_argument("engine", help="the name of an installed engine, or MODULE:CLASS")
    engine: str = parser.parse_args(arguments).engine
    if ":" in engine:
        engines.register(engine, EngineSpec(engine))
    try:
        engines.make(engine, Conditions(), {})
    except TocsinError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    results, write = verdicts(engine, {}), sys.stdout.write
    for name, failure in results:
        write(f"{'failed' if failure else 'passed'}  {name}\n")
        if failure:
            write("    " + failure.strip().replace("\n", "\n    ") + "\n")
    n_failed = sum(failure is not None for _, failure in results)
    verdict = f"fails {n_failed} of {len(results)} tests" if n_failed else "conforms"
    write(f"{engine} {verdict}\n")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
