"""Conditions on the elements of lists, in an index that changes: as the oracle answers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tocsin import Matcher

TAGS = [f"t{i}" for i in range(12)]
WORDS = ["rate", "hike", "bank", "central", "inflation", "inflated", "rumour", "über"]


def draw_condition(random: Random) -> str:
    tag, other, word = random.choice(TAGS), random.choice(TAGS), random.choice(WORDS)
    return random.choice(
        [
            f"ANY(tags) = '{tag}'",
            f"ANY(tags) = '{tag}' AND ANY(tags) = '{other}'",
            f"ANY(tags) = '{tag}' AND ANY(tags) = '{other}' AND ANY(tags) = 't0'",
            f"ANY(tags) = '{tag}' AND price < {random.randrange(10)}",
            f"ANY(tags) = '{tag}' OR price < {random.randrange(10)}",
            f"ANY(tags) = '{tag}' AND NOT ANY(tags) = '{other}'",
            f"ANY(tags) = '{tag}' AND title LIKE '%a%'",
            f"ANY(tags) = '{tag}' AND price * 2 > {random.randrange(20)}",
            f"ANY(tags) IN ('{tag}', '{other}')",
            f"ANY(tags) = '{tag}' AND ANY(numbers) = {random.randrange(4)}",
            f"ANY(numbers) = {random.randrange(4)}.0 OR ANY(tags) = '{tag}'",
            f"ALL(tags) <> '{tag}'",
            f"matches(body, '{word} {random.choice(WORDS)}')",
            f"matches(body, '{word} -{random.choice(WORDS)}')",
            f"matches(body, '{word} -{random.choice(WORDS)} -{random.choice(WORDS)}')",
            f"matches(body, '\"{word} {random.choice(WORDS)}\"')",
            f"matches(body, '{word} infl*')",
            f"matches(body, '{word} OR {random.choice(WORDS)}') AND price > 4",
            f"exists(items, i -> i.tag = '{tag}' AND i.price > {random.randrange(10)})",
            f"price = {random.randrange(10)}",
            f"ANY(numbers) BETWEEN {random.randrange(3)} AND 2 AND price < {random.randrange(10)}",
            f"ANY(numbers) > {random.randrange(3)}",
            f"ANY(tags) LIKE 't{random.randrange(3)}%'",
            f"ANY(tags) LIKE '%{random.randrange(3)}' AND price < 5",
            f"ANY(tags) = '{tag}' AND ANY(numbers) < {random.randrange(4)}",
            "matches(body, 'infl* -infla*')",
            f"exists(items, i -> i.tag = '{tag}' AND i.price > price) AND price > 2",
            f"exists(items, i -> i.tag IN ('{tag}', '{other}') OR i.price = {random.randrange(9)})",
            f"exists(items, i -> i.price < {random.randrange(9)}) OR price = 1",
            f"ANY(tags) IS NULL AND exists(items, i -> i.tag <> '{tag}' AND price < 4)",
            f"forall(items, i -> i.price > {random.randrange(9)}) AND price = 3",
        ]
    )


def draw_event(random: Random) -> dict[str, object]:
    event: dict[str, object] = {"price": random.randrange(10), "title": random.choice(["a", "b"])}
    if random.random() < 0.9:
        event["tags"] = random.choices([*TAGS, None], k=random.randrange(6))
    if random.random() < 0.7:
        event["numbers"] = random.choices([0, 1, 2, 3], k=random.randrange(3))
    if random.random() < 0.9:
        event["body"] = " ".join(
            random.choices([*WORDS, "RATE,", "-", "Über"], k=random.randrange(8))
        )
    if random.random() < 0.7:
        event["items"] = [
            {"tag": random.choice(TAGS), "price": random.randrange(10)}
            for _ in range(random.randrange(3))
        ]
    return event


def answers(matcher: Matcher, events: list[Any]) -> list[list[Any]]:
    return [sorted(ids, key=str) for ids in matcher.match_batch(events)]


@pytest.mark.parametrize("seed", range(2))
def test_an_index_of_elements_that_changes_answers_as_the_oracle(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    auto, oracle = Matcher(), Matcher(engine="oracle")
    live: list[int] = []
    for step in range(60):
        if step % 7 == 3:
            batch = [draw_condition(random) for _ in range(40)]
            ids = list(range(10_000 * step, 10_000 * step + 40))
            for matcher in (auto, oracle):
                matcher.subscribe_many(pa.table({"id": ids, "where": batch}))
            live += ids
        elif live and random.random() < 0.4:
            gone = live.pop(random.randrange(len(live)))
            auto.unsubscribe(gone)
            oracle.unsubscribe(gone)
        else:
            condition = draw_condition(random)
            auto.subscribe(step, condition)
            oracle.subscribe(step, condition)
            live.append(step)
        if step % 5 == 0:
            events = [draw_event(random) for _ in range(10)]
            expected = answers(oracle, events)
            assert answers(auto, events) == expected
            assert [sorted(auto.match(event), key=str) for event in events] == expected
    auto.save(tmp_path / "store")
    opened = Matcher.open(tmp_path / "store")
    events = [draw_event(random) for _ in range(50)]
    assert answers(opened, events) == answers(oracle, events)
    opened.unsubscribe(live[0])
    oracle.unsubscribe(live[0])
    opened.subscribe(-1, "ANY(tags) = 't3'")
    oracle.subscribe(-1, "ANY(tags) = 't3'")
    assert answers(opened, events) == answers(oracle, events)


def test_explain_and_describe_say_what_elements_are_keys_of() -> None:
    matcher = Matcher()
    matcher.subscribe(1, "ANY(tags) = 'a' AND ANY(tags) = 'b'")
    engine = matcher._engine
    matcher.match({})
    assert engine.explain(0) == "element tags = 'a': 1 under this value, then 1 more of its values"
    assert "elements of tags: 2 values, at most 1 conjunctions under one" in engine.describe()


def test_a_list_in_a_struct_and_a_list_of_structs_are_the_same_in_arrow_and_in_mappings() -> None:
    rows: list[Any] = [
        {"order": {"tags": ["a", "b"], "items": [{"sku": "x"}, {"sku": None}]}},
        {"order": {"tags": [], "items": [{"sku": "y"}]}},
        {"order": {"tags": None, "items": None}},
        {"order": None},
    ]
    matcher = Matcher()
    conditions = [
        "ANY(order.tags) = 'a'", "ALL(order.tags) = 'a'", "cardinality(order.tags) = 0",
        "ANY(order.items.sku) = 'x'", "ALL(order.items.sku) = 'y'", "order.items.sku IS NULL",
        "ANY(order.items.sku) IS NULL", "exists(order.items, i -> i.sku = 'x')",
    ]  # fmt: skip
    for number, condition in enumerate(conditions):
        matcher.subscribe(number, condition)
    expected = [[0, 3, 6, 7], [1, 2, 4], [5], [5]]
    assert answers(matcher, rows) == expected
    assert [sorted(ids) for ids in matcher.match_batch(pa.Table.from_pylist(rows))] == expected
    assert [sorted(matcher.match(row)) for row in rows] == expected
