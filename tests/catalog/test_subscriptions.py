"""The catalog: dense ids, names that stay, what is released, ends."""

from __future__ import annotations

import random
import threading
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.catalog.catalogs import ONE, add_many, reopened

from tocsin.catalog.blocks import NEVER, SINGLES
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.sources import OneSource, TemplateSource
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.language import parse
from tocsin.language.printer import print_expression


def condition(catalog: SubscriptionCatalog, dense: int) -> str:
    return print_expression(catalog.expression(dense))


def held(catalog: SubscriptionCatalog) -> int:
    """Return how many subscriptions are held, live or not, wherever."""
    blocks = sum(len(live_block.block) for live_block in catalog._blocks)
    return max(blocks, catalog._id_index.n_entries, len(catalog._ends)) + len(catalog._names)


# Names.


@pytest.mark.parametrize("n", [3, FEW + 1, 3 * SINGLES])
def test_names_stay_as_they_were_when_the_catalog_changes(n: int) -> None:
    catalog = SubscriptionCatalog()
    bulk = add_many(catalog, [f"b{i}" for i in range(n)]).tolist()
    single = [catalog.add(i, ONE) for i in range(n)]
    names = catalog.names
    catalog.remove(np.array([*bulk, *single[::2]]))
    for i in range(n):
        catalog.add(f"later{i}", ONE)
    add_many(catalog, [f"b{i}" for i in range(n)])
    expected = [*(f"b{i}" for i in range(n)), *range(n)]
    assert [names[dense] for dense in [*bulk, *single]] == expected
    dense = np.array([*bulk, *single])
    assert names.to_list(dense) == expected
    assert names.take(dense[::-1]).to_pylist() == [str(name) for name in reversed(expected)]
    assert names.take(np.array(single)).to_pylist() == [str(i) for i in range(n)]
    assert names.take(np.array([], np.int64)).type == names.take(dense).type
    if n > FEW:
        with pytest.raises(IndexError):
            catalog.names[bulk[0]]


def test_names_may_be_read_beside_a_writer() -> None:
    catalog = SubscriptionCatalog()
    add_many(catalog, [f"b{i}" for i in range(1_000)])
    views = [(catalog.names, 1_000)]
    wrong: list[Any] = []
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            names, n = views[-1]
            found = names.to_list(np.arange(n))
            wrong.extend(x for i, x in enumerate(found) if x != (f"b{i}" if i < 1_000 else i))

    reader = threading.Thread(target=watch)
    reader.start()
    for i in range(1_000, 6_000):
        catalog.add(i, ONE)
        views.append((catalog.names, i + 1))
    for start in range(0, 6_000, 500):
        catalog.remove(np.arange(start, start + 500))
    is_done.set()
    reader.join()
    assert not wrong
    assert len(catalog) == 0


def test_odd_kinds_of_integers_and_strings_are_plain_ids() -> None:
    class Text(str):
        """A string of another class."""

    catalog = SubscriptionCatalog()
    dense = catalog.add(Text("a"), ONE)
    assert type(catalog.names[dense]) is str
    assert catalog.dense("a") == dense


# What is released.


def test_a_block_whose_subscriptions_are_gone_is_released() -> None:
    catalog = SubscriptionCatalog()
    dense = add_many(catalog, list(range(5_000)))
    catalog.add("stays", ONE)
    catalog.remove(dense)
    assert held(catalog) <= FEW
    assert len(catalog) == 1


@pytest.mark.parametrize("left", [1, FEW, 200])
def test_little_is_held_of_a_block_of_which_little_is_left(left: int) -> None:
    catalog = SubscriptionCatalog()
    n = 10_000
    columns = {"v": pa.array(np.arange(n))}
    source = TemplateSource(parse("x = :v"), columns, {})
    until = np.arange(n) + 1_000_000
    dense = catalog.add_many(IdTable(Ids(np.arange(n) * 2)), source, None, until)
    order = np.random.default_rng(1).permutation(dense)
    for start in range(0, n - left, 500):
        catalog.remove(order[start : min(start + 500, n - left)])
    assert len(catalog) == left
    assert held(catalog) <= 4 * left + 2_000
    for one in order[n - left :].tolist():
        assert catalog.names[one] == 2 * one
        assert catalog.dense(2 * one) == one
        assert condition(catalog, one) == f"x = {one}"
        assert catalog.valid_until(one) == one + 1_000_000
    assert catalog.due(2_000_000).tolist() == sorted(order[n - left :].tolist())


@pytest.mark.parametrize("lifetime", [1, 100, pytest.param(3_000, marks=pytest.mark.slow)])
def test_endless_churn_of_single_subscriptions_holds_little(lifetime: int) -> None:
    """Also where some of those that come stay for long."""
    catalog = SubscriptionCatalog()
    live: list[int] = []
    longest = 0
    for i in range(15_000):
        live.append(catalog.add(f"s{i}", ONE, 10**9 if i % 3 == 0 else None))
        if len(live) > lifetime:
            catalog.remove(np.array([live.pop(i * 7919 % len(live))]))
        if i % 100 == 0:
            longest = max(longest, held(catalog))
    assert len(catalog) == len(live) == lifetime
    assert longest <= 4 * lifetime + 4 * SINGLES
    assert len(catalog._blocks) <= lifetime // 100 + 8
    for dense in live:
        assert catalog.dense(catalog.names[dense]) == dense


@pytest.mark.parametrize("kind", ["integers", "strings", "both"])
def test_many_small_loads_of_texts_are_kept_together(kind: str) -> None:
    """Nothing of what they say is lost: ids, conditions, ends, what was removed meanwhile."""
    catalog = SubscriptionCatalog()
    size, n_loads = 100, 200
    live: dict[int, tuple[Any, str, int | None]] = {}
    gone: list[Any] = []
    for load in range(n_loads):
        numbers = range(load * size, (load + 1) * size)
        is_text = kind == "strings" or (kind == "both" and load % 40 == 7)
        names: list[Any] = [f"s{i}" for i in numbers] if is_text else list(numbers)
        until = np.array([i if i % 3 else NEVER for i in numbers]) if load % 5 == 0 else None
        dense = add_many(catalog, names, until)
        for at, one in enumerate(dense.tolist()):
            end = None if until is None or until[at] == NEVER else int(until[at])
            live[one] = names[at], f"x = {at}", end
        removed = [one for one in live if (one * 7919 + load) % 311 == 0]
        gone += [live.pop(one)[0] for one in removed]
        catalog.remove(np.array(removed, np.int64))
    assert len(catalog._blocks) <= (60 if kind == "both" else 16)
    assert held(catalog) <= 2 * len(live)
    assert len(catalog) == len(live)
    for one, (name, text, end) in live.items():
        assert (catalog.names[one], condition(catalog, one)) == (name, text)
        assert (catalog.dense(name), catalog.valid_until(one)) == (one, end)
    assert not any(name in catalog for name in gone)


def test_the_memory_that_churn_takes_does_not_grow() -> None:
    catalog = SubscriptionCatalog()

    def churn(first: int, n: int) -> int:
        for i in range(first, first + n):
            dense = catalog.add(f"s{i}", OneSource(f"x = {i}", {"p": i}), 10**9)
            if i % 1_000:
                catalog.remove(np.array([dense]))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = churn(0, 3_000)
    after = churn(3_000, 9_000)
    tracemalloc.stop()
    assert after - before < 300_000, "9,000 of them would take megabytes"
    assert len(catalog) == 12


# ExpiryQueue.


@pytest.mark.parametrize("n", [10, 500])
def test_those_are_due_whose_moment_has_come_and_that_are_still_there(n: int) -> None:
    catalog = SubscriptionCatalog()
    until = np.where(np.arange(n) % 2, np.arange(n) + 100, NEVER)
    bulk = add_many(catalog, [f"b{i}" for i in range(n)], until)
    single = [catalog.add(i, ONE, 100 + i) for i in range(n)]
    assert catalog.has_expiries
    assert catalog.due(100).tolist() == [single[0]]
    catalog.remove(np.array(single[:1]))
    catalog.remove(bulk[3:4])
    assert sorted(catalog.due(103)) == sorted([bulk[1], *single[1:4]])
    catalog.remove(np.array([bulk[1], *single[1:4]]))
    assert catalog.due(103).tolist() == []
    assert catalog.valid_until(int(bulk[5])) == 105
    assert catalog.valid_until(int(bulk[4])) is None
    assert catalog.valid_until(single[5]) == 105
    rest = catalog.due(10**30)
    assert sorted(rest) == sorted([*bulk[5::2], *single[4:]])
    catalog.remove(rest)
    assert not catalog.has_expiries
    assert len(catalog) == (n + 1) // 2


def test_moments_far_away_are_kept_apart_from_none() -> None:
    catalog = SubscriptionCatalog()
    dense = [
        catalog.add("far", ONE, 10**30),
        catalog.add("past", ONE, -(10**30)),
        catalog.add("no", ONE),
    ]
    assert catalog.due(0).tolist() == [dense[1]]
    assert catalog.valid_until(dense[2]) is None
    add_many(catalog, [f"b{i}" for i in range(FEW + 1)])  # those before are in a block now
    catalog.remove(np.array(dense))
    assert not catalog.has_expiries


# One random life, beside a dictionary.


class Life:
    """A catalog and a dictionary that do the same: id → (dense id, condition, end)."""

    def __init__(self, seed: int, folder: Any) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.catalog = SubscriptionCatalog()
        self.model: dict[Any, tuple[int, str, int | None]] = {}
        self.n_made = 0

    def fresh(self, n: int) -> list[Any]:
        kind = self.random.choice((int, str))
        new = [kind(i) for i in self.random.sample(range(20_000), n)]
        return [name for name in new if name not in self.model]

    def add_one(self) -> None:
        for _ in range(self.random.choice((1, 10, 400))):
            for name in self.fresh(1):
                until = self.random.choice((None, self.random.randrange(1_000)))
                value = self.random.choice((1, 2.5, "a", True, None))
                source = OneSource("x = :v OR y = 1", {"v": value})
                dense = self.catalog.add(name, source, until)
                self.model[name] = (dense, condition(self.catalog, dense), until)

    def add_many(self) -> None:
        names = self.fresh(self.random.choice((1, 30, 100, 2_000)))
        if names:
            until = np.array([self.random.choice((NEVER, 500)) for _ in names])
            dense = add_many(self.catalog, names, until)
            for at, name in enumerate(names):
                end = None if until[at] == NEVER else 500
                self.model[name] = (int(dense[at]), f"x = {at}", end)

    def remove(self) -> None:
        share = self.random.choice((0.01, 0.5, 0.98))
        gone = [name for name in self.model if self.random.random() < share]
        dense = [self.model.pop(name)[0] for name in gone]
        if dense:
            self.catalog.remove(np.array(dense))

    def reopen(self) -> None:
        self.n_made += 1
        self.catalog = reopened(self.catalog, self.folder / str(self.n_made))

    def compare(self) -> None:
        catalog, model = self.catalog, self.model
        assert len(catalog) == len(model)
        some = self.random.sample(list(model), min(len(model), 40))
        for name in some:
            dense, text, until = model[name]
            assert catalog.dense(name) == dense
            assert catalog.names[dense] == name
            assert type(catalog.names[dense]) is type(name)
            assert condition(catalog, dense) == text
            assert catalog.valid_until(dense) == until
        for kind in (int, str):
            asked = [kind(i) for i in range(0, 20_000, 29)]
            found = catalog.find(IdTable(Ids.of(asked))).tolist()
            assert found == [model[name][0] if name in model else -1 for name in asked]
        ending = sum(until is not None for _, _, until in model.values())
        assert catalog.has_expiries == (ending > 0)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_a_random_life_is_what_a_dictionary_says(seed: int, tmp_path: Any) -> None:
    life = Life(seed, tmp_path)
    steps = [life.add_one, life.add_many, life.remove, life.reopen]
    for _ in range(25):
        life.random.choices(steps, (4, 4, 4, 1))[0]()
        life.compare()
