"""Buckets of publications: transitions are the difference of what matches before and after."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.matcher import Matcher
from tocsin.spark.publications import Rules, State, step
from tocsin.storage.pins import Pin

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("x", pa.int64()),
        ("y", pa.string()),
        ("n", pa.int64()),
        ("end", pa.bool_()),
    ]
)
CONDITIONS = [f"x >= {i}" for i in range(6)] + [f"x = {i}" for i in range(6)] + [
    "y = 'a'", "y <> 'a' AND x < 3", "x IS NULL", "y IS NULL OR x = 5", "y LIKE '%b'",
]  # fmt: skip


class World:
    """Versions of subscriptions, and the relation by brute force."""

    def __init__(self) -> None:
        self.versions: list[dict[int, str]] = [dict(enumerate(CONDITIONS[:6]))]
        self.matchers: dict[int, Matcher] = {}

    def change(self, source: random.Random) -> None:
        new = dict(self.versions[-1])
        for _ in range(3):
            new[source.randrange(12)] = source.choice(CONDITIONS)
            new.pop(source.randrange(12), None)
        self.versions.append(new)

    def open_at(self, pin: Pin) -> Matcher:
        if pin.version not in self.matchers:
            matcher = tocsin.Matcher()
            for id, where in self.versions[pin.version].items():
                matcher.subscribe(id, where)
            self.matchers[pin.version] = matcher
        return self.matchers[pin.version]

    def relation(self, version: int, publications: dict[str, dict[str, Any]]) -> set[Any]:
        matcher = self.open_at(Pin(version, 0.0))
        return {
            (key, id)
            for key, values in publications.items()
            for id in matcher.match({k: v for k, v in values.items() if k in ("x", "y", "n")})
        }


def rows_of(updates: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(updates, SCHEMA)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_transitions_are_the_difference_of_the_relation(seed: int, partial: bool) -> None:
    source = random.Random(seed)
    world, state = World(), None
    rules = Rules("key", "n", "end", ttl=5.0, partial=partial)
    publications: dict[str, dict[str, Any]] = {}
    updated: dict[str, float] = {}
    relation: set[Any] = set()
    number = n_found = 0
    for batch in range(60):
        now = float(batch)
        expected: list[Any] = []

        def note(after: set[Any], expected: list[Any] = expected) -> None:
            nonlocal relation
            expected.extend((*pair, "LEAVE") for pair in sorted(relation - after))
            expected.extend((*pair, "ENTER") for pair in sorted(after - relation))
            relation = after

        version = len(world.versions) - 1
        for key in [k for k, at in updated.items() if at + 5.0 <= now]:
            del publications[key], updated[key]
        note(world.relation(version, publications))
        if source.random() < 0.3:
            world.change(source)
            gone = set(world.versions[-2]) - set(world.versions[-1])
            relation = {pair for pair in relation if pair[1] not in gone}
            note(world.relation(version + 1, publications))
            version += 1
        updates = []
        for _ in range(source.choice([0, 0, 1, 5, 30])):
            number += 1
            key = source.choice("abcdefgh")
            given = {
                "x": source.choice([None, *range(6)]),
                "y": source.choice([None, "a", "b", "ab"]),
            }
            ends = source.random() < 0.1
            updates.append({"key": key, **given, "n": number, "end": ends or None})
            if ends:
                publications.pop(key, None)
                updated.pop(key, None)
            else:
                old = publications.get(key, {}) if partial else {}
                publications[key] = {
                    k: old.get(k) if partial and v is None else v for k, v in given.items()
                }
                updated[key] = now
            note(world.relation(version, publications))
        table = rows_of(source.sample(updates, len(updates))) if updates else None
        pin = Pin(version, now)
        if state is not None:
            state = State.from_bytes(state.to_bytes())
        state, found = step(state, table, pin, rules, world.open_at)
        result = found.to_table(False)
        got = (
            []
            if result is None
            else [(r["key"], r["subscription"], r["kind"]) for r in result.to_pylist()]
        )
        for key in "abcdefgh":  # in order for each publication
            mine = [(id, kind) for k, id, kind in got if k == key]
            theirs = [(id, kind) for k, id, kind in expected if k == key]
            assert sorted(map(str, mine)) == sorted(map(str, theirs)), (batch, key)
            for id in {id for id, _ in mine}:
                assert [k for i, k in mine if i == id] == [k for i, k in theirs if i == id]
        n_found += len(got)
    assert n_found > 200


def test_a_bucket_that_nothing_happens_to_stays_the_same_object() -> None:
    world = World()
    rules = Rules("key", "n")
    updates = rows_of([{"key": "a", "x": 3, "n": 1}]).drop_columns(["end"])
    state, found = step(None, updates, Pin(0, 1.0), rules, world.open_at)
    table = found.to_table(True)
    assert table is not None
    assert table.column("subscription").to_pylist() == ["0", "1", "2", "3"]
    again, found = step(state, None, Pin(0, 2.0), rules, world.open_at)
    assert again is state
    assert found.to_table(True) is None
