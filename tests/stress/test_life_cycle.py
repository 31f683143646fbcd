"""Random life-cycle calls on every engine side by side, against a dictionary of normal forms.

The model is as plain as can be: a dictionary from ids to normal forms and ends, and `holds` of
each. After every step the engines verify their invariants, and all that can be seen of a matcher is
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from tests.property.samples import to_table
from tests.property.segmented import SEGMENTED, make
from tests.property.strategies import (
    MIXED,
    TYPED,
    Event,
    Seeded,
    World,
    choose,
    event,
    expression,
    one_in,
    with_parameters,
)

import tocsin
from tocsin.engines import names
from tocsin.errors import BadRowsError, SubscriptionError, TocsinError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.expression import Expression
from tocsin.matcher import Matcher
from tocsin.normalize import NormalForm, bind, normalize

IDS: list[str | int] = [*range(12), *"abcdefghijkl"]
Engines: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
COMMON: Engines = (("auto", {}), ("auto", {"merges": False}), ("oracle", {}))
RESTLESS = {"bm_max": 0.2, "b_min": 2, "rp_min": 3, "s_min": 0}
"""Thresholds by which `dynamic` makes and removes tables all the time."""
EVERY: Engines = (*((name, {}) for name in names()), ("dynamic", RESTLESS))
BAD_TEXTS = ("x =", "", "x = :p", "f(x) = 1", "x LIKE 'a!' ESCAPE '!'", "x = 1 AND (y = 2")


class Held:
    """What the model knows of one subscription."""

    def __init__(self, template: Expression, params: dict[str, Any], until: int | None) -> None:
        self.template = template
        self.params = params
        self.until = until
        self.form: NormalForm = normalize(bind(template, params))


class Model:
    """Subscriptions by id, and the time in microseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.held: dict[str | int, Held] = {}

    def expire(self) -> None:
        for id in [i for i, h in self.held.items() if h.until is not None and h.until <= self.now]:
            del self.held[id]

    def match(self, row: Event) -> list[str]:
        return sorted(repr(id) for id, held in self.held.items() if held.form.holds(row))


class Life:
    """One random life: a model and a matcher of each engine, which do the same."""

    def __init__(self, seed: int, world: World, engines: Engines) -> None:
        self.source = Seeded(seed)
        self.world = world
        self.model = Model()
        self.matchers: list[Matcher] = [
            tocsin.Matcher(engine=name, clock=lambda: self.model.now / 1_000_000, **options)
            for name, options in engines
        ]
        self.rows = [event(self.source, world) for _ in range(6)]

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.subscribe, self.subscribe, self.subscribe_texts, self.subscribe_template,
            self.subscribe_many, self.update_params, self.update_where, self.unsubscribe,
            self.unsubscribe_many, self.fail, self.pass_time, self.replace_rows, self.rebuild,
            self.profile, self.match_many,
        ]  # fmt: skip

    def run(self, n_steps: int) -> None:
        for number in range(n_steps):
            step = choose(self.source, self.steps())
            try:
                step()
                self.model.expire()
                self.compare()
            except Exception as error:
                error.add_note(f"in step {number}: {step.__name__}")
                raise

    def compare(self) -> None:
        expected = [self.model.match(row) for row in self.rows]
        batch: Any = self.rows
        if self.world is not MIXED and one_in(self.source, 2):
            batch = to_table(self.rows, self.world, self.source)
        row = self.source.below(len(self.rows))
        for matcher in self.matchers:
            matcher.check()
            assert len(matcher) == len(self.model.held), matcher
            assert [id in matcher for id in IDS] == [id in self.model.held for id in IDS]
            assert [sorted(map(repr, f)) for f in matcher.match_batch(batch)] == expected, matcher
            assert sorted(map(repr, matcher.match(self.rows[row]))) == expected[row], matcher

    # What is drawn.

    def condition(self) -> tuple[Expression, dict[str, Any]]:
        made = expression(self.source, self.world, 2)
        return with_parameters(self.source, made, share=3)

    def until(self) -> int | None:
        return self.model.now + self.source.below(4) if one_in(self.source, 4) else None

    def free_ids(self, most: int) -> list[Any]:
        """Return some ids of one kind that are free."""
        kind = choose(self.source, (int, str))
        free = [id for id in IDS if isinstance(id, kind) and id not in self.model.held]
        return free[: 1 + self.source.below(most)]

    def taken(self) -> list[Any]:
        return list(self.model.held)

    # The steps.

    def subscribe(self) -> None:
        for id in self.free_ids(1):
            template, params = self.condition()
            until = self.until()
            self.model.held[id] = Held(template, params, until)
            where: Any = template
            if one_in(self.source, 2):
                where = print_expression(template)
            for matcher in self.matchers:
                matcher.subscribe(id, where, params=params, valid_until=until)

    def subscribe_texts(self) -> None:
        ids = self.free_ids(6)
        if not ids:
            return
        texts = [print_expression(expression(self.source, self.world, 2)) for _ in ids]
        untils = [self.until() for _ in ids]
        bad = [self.source.below(8) == 7 for _ in ids]
        texts = [
            choose(self.source, BAD_TEXTS) if b else t for b, t in zip(bad, texts, strict=True)
        ]
        table = pa.table(
            {"id": ids, "where": texts, "valid_until": pa.array(untils, pa.timestamp("us"))}
        )
        if any(bad) and one_in(self.source, 2):
            self.refuse(lambda m: m.subscribe_many(table), BadRowsError)
            return
        for matcher in self.matchers:
            report = matcher.subscribe_many(table, on_error="quarantine")
            assert [b.row for b in report.bad] == [i for i, b in enumerate(bad) if b]
        for id, text, until, b in zip(ids, texts, untils, bad, strict=True):
            if not b:
                self.model.held[id] = Held(parse(text), {}, until)

    def subscribe_template(self) -> None:
        ids = self.free_ids(6)
        if not ids:
            return
        template, params = self.condition()
        columns: dict[str, Any] = {"id": ids}
        rows: list[dict[str, Any]] = [{} for _ in ids]
        for name, value in params.items():
            values = [None if one_in(self.source, 6) else value for _ in ids]
            columns[name] = pa.array(values) if value is not None else pa.nulls(len(ids))
            for row, held in zip(rows, values, strict=True):
                row[name] = held
        for matcher in self.matchers:
            matcher.subscribe_many(columns, where=print_expression(template))
        for id, row in zip(ids, rows, strict=True):
            self.model.held[id] = Held(template, row, None)

    def subscribe_many(self) -> None:
        ids = self.free_ids(4)
        if not ids:
            return
        rules = []
        for id in ids:
            for disjunct in range(1 + self.source.below(2)):
                for _ in range(1 + self.source.below(2)):
                    name = choose(self.source, ("x", "i", "y"))
                    op = choose(self.source, ("=", "<", ">=", "<>"))
                    rules.append((id, disjunct, name, op, self.source.below(4)))
        is_shuffled = one_in(self.source, 2)
        order = sorted(rules, key=lambda _: self.source.below(100)) if is_shuffled else rules
        names_of = ("id", "disjunct", "attribute", "op", "value")
        table = pa.table(dict(zip(names_of, zip(*order, strict=True), strict=True)))
        for matcher in self.matchers:
            matcher.subscribe_many(table)
        for id in ids:
            parts: dict[int, list[str]] = {}
            for rule in rules:
                if rule[0] == id:
                    parts.setdefault(rule[1], []).append(f"{rule[2]} {rule[3]} {rule[4]}")
            text = " OR ".join(" AND ".join(part) for part in parts.values())
            self.model.held[id] = Held(parse(text), {}, None)

    def update_params(self) -> None:
        with_params = [id for id, held in self.model.held.items() if held.params]
        if not with_params:
            return
        id = choose(self.source, with_params)
        held = self.model.held[id]
        name = choose(self.source, list(held.params))
        # Another value of any kind will do, except for patterns, which must stay sound.
        new = {
            name: held.params[name] if isinstance(held.params[name], str) else self.source.below(5)
        }
        for matcher in self.matchers:
            matcher.update(id, params=new)
        self.model.held[id] = Held(held.template, held.params | new, held.until)

    def update_where(self) -> None:
        if not self.model.held:
            return
        id = choose(self.source, self.taken())
        held = self.model.held[id]
        template, params = self.condition()
        names_of = parameter_names(template)
        old = {k: v for k, v in held.params.items() if k in names_of}
        for matcher in self.matchers:
            matcher.update(id, where=print_expression(template), params=params)
        self.model.held[id] = Held(template, old | params, held.until)

    def unsubscribe(self) -> None:
        if self.model.held:
            id = choose(self.source, self.taken())
            del self.model.held[id]
            for matcher in self.matchers:
                matcher.unsubscribe(id)

    def unsubscribe_many(self) -> None:
        ids = [id for id in self.taken() if one_in(self.source, 3)]
        for id in ids:
            del self.model.held[id]
        for matcher in self.matchers:
            matcher.unsubscribe_many(ids)

    def fail(self) -> None:
        if not self.model.held:
            return
        id = choose(self.source, self.taken())
        missing = next(i for i in [*IDS, "nobody"] if i not in self.model.held)
        text = choose(self.source, BAD_TEXTS)
        calls = [
            lambda m: m.subscribe(id, "x = 1"),
            lambda m: m.subscribe(missing, text),
            lambda m: m.update(id, where=text),
            lambda m: m.update(id, params={"no such": 1}),
            lambda m: m.unsubscribe(missing),
            lambda m: m.unsubscribe_many([id, missing]),
            lambda m: m.unsubscribe_many([id, id]),
            lambda m: m.subscribe_many({"id": ["new", "new"], "where": ["x = 1", "x = 2"]}),
            lambda m: m.subscribe_many(
                {"id": ["new"], "attribute": ["x"], "op": ["?"], "value": [1]}
            ),
        ]
        self.refuse(choose(self.source, calls), SubscriptionError)

    def refuse(self, call: Any, error: type[TocsinError]) -> None:
        for matcher in self.matchers:
            with pytest.raises(error):
                call(matcher)

    def pass_time(self) -> None:
        self.model.now += self.source.below(4)

    def rebuild(self) -> None:
        for matcher in self.matchers:
            if one_in(self.source, 2):
                matcher.rebuild()

    def profile(self) -> None:
        rows = [event(self.source, self.world) for _ in range(self.source.below(20))]
        for matcher in self.matchers:
            matcher.profile(rows)

    def match_many(self) -> None:
        """Match a batch so large that it is met in other ways."""
        n = choose(self.source, (64, 257, 2_048, 2_049))
        self.model.expire()
        expected = [self.model.match(row) for row in self.rows]
        rows = [self.rows[i % len(self.rows)] for i in range(n)]
        for matcher in self.matchers:
            if matcher.engine == "auto":
                found = matcher.match_batch(rows)
                for i in (*range(60), *range(n - 60, n)):
                    assert sorted(map(repr, found[i])) == expected[i % len(expected)], matcher
                counts = [len(expected[i % len(expected)]) for i in range(n)]
                assert np.diff(found.offsets).tolist() == counts, matcher

    def replace_rows(self) -> None:
        self.rows = [event(self.source, self.world) for _ in range(self.source.below(8) or 1)]


def live(seeds: Sequence[int], n_steps: int, world: World, engines: Engines = COMMON) -> None:
    for seed in seeds:
        Life(seed, world, engines).run(n_steps)


@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_random_lives_are_what_a_dictionary_says(world: World) -> None:
    live(range(2), 60, world)


@pytest.mark.slow
@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_random_lives_are_the_same_with_every_engine(world: World) -> None:
    live(range(1), 150, world, EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_many_long_random_lives_are_what_a_dictionary_says(world: World) -> None:
    live(range(100, 102), 600, world)


class Crowd:
    """Thousands of subscriptions of three shapes, and what NumPy says that they match."""

    WHERE = (
        "firm = :f AND price < :p",
        "firm = :f AND place = :q AND kind = :k",
        "price > :p AND NOT place = :q",
    )

    def __init__(self, matcher: Matcher, source: Seeded) -> None:
        self.matcher, self.source = matcher, source
        self.rows: dict[int, tuple[int, ...]] = {}
        self.following = 0

    def load(self, n: int) -> None:
        shape = choose(self.source, (0, 0, 1, 1, 1, 2))
        ids = list(range(self.following, self.following + n))
        self.following += n
        for id in ids:
            below = self.source.below
            self.rows[id] = (shape, below(20), below(100), below(6), below(30))
        columns = dict(
            zip("fpqk", zip(*(self.rows[id][1:] for id in ids), strict=True), strict=True)
        )
        used = {name: columns[name] for name in columns if f":{name}" in self.WHERE[shape]}
        self.matcher.subscribe_many({"id": ids, **used}, where=self.WHERE[shape])

    def drop(self, share: int) -> None:
        gone = [id for id in self.rows if self.source.below(10) < share]
        self.matcher.unsubscribe_many(gone)
        for id in gone:
            del self.rows[id]

    def halve_prices(self) -> None:
        for id in list(self.rows)[:: max(len(self.rows) // 5, 1)]:
            shape, f, p, q, k = self.rows[id]
            if shape != 1:
                self.rows[id] = (shape, f, p // 2, q, k)
                self.matcher.update(id, params={"p": p // 2})

    def events(self, n: int) -> list[Event]:
        most = {"firm": 22, "price": 100, "place": 7, "kind": 31}
        return [
            {name: self.source.below(m) for name, m in most.items() if self.source.below(20)}
            for _ in range(n)
        ]

    def expected(self, row: Event) -> list[int]:
        if not self.rows:
            return []
        ids = np.array([*self.rows])
        shape, f, p, q, k = np.array([*self.rows.values()]).T
        firm, price = row.get("firm", -1), row.get("price", np.nan)
        place, kind = row.get("place", -1), row.get("kind", -1)
        holds = [
            (f == firm) & (price < p),
            (f == firm) & (q == place) & (k == kind),
            (price > p) & (q != place) & (place >= 0),
        ]
        return sorted(ids[np.choose(shape, holds)].tolist())

    def check(self, n_events: int) -> None:
        self.matcher.check()
        events = self.events(n_events)
        found = self.matcher.match_batch(events)
        for e in (*range(5), *range(5, n_events, 97)):
            assert sorted(found[e]) == self.expected(events[e]), events[e]
        for row in events[:3]:
            assert sorted(self.matcher.match(row)) == self.expected(row), row


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*names(), *SEGMENTED])
def test_thousands_of_subscriptions_come_and_go(engine: str) -> None:
    """Segments fill, are merged and emptied, while every answer stays right."""
    source = Seeded(5)
    m = make(engine)
    crowd = Crowd(m, source)
    for step in range(40):
        crowd.load(choose(source, (1, 3, 200, 1_500)))
        if step % 3 == 2:
            crowd.drop(4)
        crowd.halve_prices()
        if step % 8 == 5:
            m.profile(crowd.events(500))
        if step % 8 == 7:
            m.rebuild()
        crowd.check(2_100 if step % 5 == 4 and m.engine == "auto" else 5)
    assert len(m) == len(crowd.rows)
    crowd.drop(10)
    crowd.check(5)
    assert len(m) == 0
