"""Counters of an index near their ends: answers stay right when they are passed.

Dense ids have 31 bits and times of death 32; both start near their ends here, so that a few changes
pass them. Where a start near the end would take arrays of that length (engines other than `auto`),
the end is brought near instead.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.property.strategies import MIXED, TYPED, Event, Seeded, World, one_in
from tests.stress.test_life_cycle import EVERY, Life
from tests.stress.test_readers_beside_writers import stress

import tocsin
from tocsin.catalog import subscriptions
from tocsin.catalog.subscriptions import MOST_IDS
from tocsin.encode.events import to_batch
from tocsin.engines import auto
from tocsin.engines.auto.tombstones import LATEST
from tocsin.errors import CapacityError
from tocsin.matcher import Matcher
from tocsin.matches import Matches


class LongLife(Life):
    """A life near the ends of all counters, some of whose readers are kept for a while."""

    def __init__(self, seed: int, world: World, left: int) -> None:
        super().__init__(seed, world, ())
        for options in ({}, {"merges": False}):
            made = Matcher.numbered_from(
                MOST_IDS - left, clock=lambda: self.model.now / 1_000_000, **options
            )
            engine: Any = made._engine
            engine.start_time_at(LATEST - left // 2)
            self.matchers.append(made)
        self.views: list[tuple[Any, Any, list[Event], list[list[str]]]] = []

    def compare(self) -> None:
        super().compare()
        expected = [self.model.match(row) for row in self.rows]
        for held in self.matchers:
            if one_in(self.source, 4):
                names, reader = held._catalog.names, held._engine.reader()
                self.views.append((names, reader, list(self.rows), expected))
        for names, reader, rows, then in self.views:
            found = reader.match_batch(to_batch(rows))
            matches = Matches(found, names)
            assert [sorted(map(repr, ids)) for ids in matches] == then
            ids = [names[dense] for dense in reader.match_one(rows[0])]
            assert sorted(map(repr, ids)) == then[0]
        del self.views[:-6]


@pytest.mark.parametrize("seed", range(6))
def test_a_life_across_the_ends_of_all_counters(seed: int) -> None:
    life = LongLife(seed, (MIXED, TYPED)[seed % 2], 8 + 4 * seed)
    life.run(60)
    for held in life.matchers:
        engine: Any = held._engine
        assert held._catalog.next_dense < 1 << 20, "dense ids did not start again"
        assert engine._time < 1 << 20, "the time did not start again"


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renumber all the time: whenever four dense ids were given in vain."""
    monkeypatch.setattr(subscriptions, "_WASTE", (1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_engine_lives_through_renumberings(restless: None, seed: int) -> None:
    Life(seed, (MIXED, TYPED)[seed % 2], EVERY).run(25)


@pytest.mark.slow
@pytest.mark.parametrize("name", tocsin.engines.names())
def test_every_engine_passes_the_last_dense_id(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(subscriptions, "MOST_IDS", 50)
    matcher = Matcher(engine=name)
    matcher.profile([{"x": i % 3} for i in range(20)])
    for i in range(120):
        matcher.subscribe(i, f"x = {i % 3} OR y = {i}")
        if i >= 20:
            matcher.unsubscribe(i - 20)
        if i % 10 == 0:
            live = [j for j in range(max(0, i - 19), i + 1) if j % 3 == 0]
            assert sorted(map(int, matcher.match({"x": 0}))) == live
            matcher.check()
    matcher.subscribe_many({"id": range(1_000, 1_030), "v": [7] * 30}, where="x = :v")
    assert sorted(map(int, matcher.match({"x": 7}))) == list(range(1_000, 1_030))
    with pytest.raises(CapacityError, match="divide them"):
        matcher.subscribe_many({"id": range(2_000, 2_030), "v": [7] * 30}, where="x = :v")
    assert len(matcher) == 50
    assert sorted(map(int, matcher.match({"x": 7}))) == list(range(1_000, 1_030))


def test_a_part_of_a_store_is_never_renumbered() -> None:
    part = Matcher.numbered_from(MOST_IDS - 2, is_part=True)
    part.subscribe("a", "x = 1")
    part.subscribe("b", "x = 1")
    with pytest.raises(CapacityError):
        part.subscribe("c", "x = 1")
    assert part.match({"x": 1}) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_readers_are_right_beside_renumberings_and_merges(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restless: None, seed: int
) -> None:
    monkeypatch.setattr(auto, "_MAX_IMMEDIATE", 50)  # nearly all merges are made by the thread
    assert stress(seed, 300, tmp_path) > 3


def test_a_merge_in_the_background_is_right_when_ids_are_renumbered_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matcher = Matcher.numbered_from(MOST_IDS - 3_000)
    ids = np.arange(2_000)
    for some in np.split(ids, 4):
        matcher.subscribe_many({"id": some, "v": some % 7}, where="x = :v OR y = :v")
        matcher.match({"x": 0})
    matcher.unsubscribe_many(ids[::3])
    engine: Any = matcher._engine
    begun, goes_on, built = threading.Event(), threading.Event(), engine._build

    def build_slowly(content: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return built(content)

    monkeypatch.setattr(engine, "_build", build_slowly)
    merging = threading.Thread(target=matcher.rebuild)
    merging.start()
    assert begun.wait(60)
    matcher.unsubscribe_many(ids[1::3])
    matcher._renumber()
    matcher.unsubscribe_many(ids[2::30])
    matcher._renumber()
    expected = [[i for i in ids[2::3].tolist() if i % 30 != 2 and i % 7 == v] for v in range(7)]
    batch = [{"x": v, "y": v} for v in range(7)]
    assert [sorted(map(int, found)) for found in matcher.match_batch(batch)] == expected
    goes_on.set()
    merging.join()
    assert [sorted(map(int, found)) for found in matcher.match_batch(batch)] == expected
    matcher.check()


@pytest.mark.slow
def test_what_died_is_forgotten_and_memory_stays_that_of_what_lives() -> None:
    matcher = Matcher()
    matcher.subscribe("stays", "x = 1 OR y = 1")
    batch = to_batch([{"x": 1, "y": 1}] * 3)
    for first in range(0, 2_000_000, 50_000):
        ids = np.arange(first, first + 50_000)
        matcher.subscribe_many({"id": ids}, where="x = 2 OR y = 2")
        assert [list(found) for found in matcher.match_batch(batch)] == [["stays"]] * 3
        matcher.unsubscribe_many(ids)
    assert [list(found) for found in matcher.match_batch(batch)] == [["stays"]] * 3
    assert matcher._catalog.next_dense < 400_000
    engine: Any = matcher._engine
    while (merger := engine._merger) is not None:  # it may be behind on a busy machine
        merger.join()
    assert matcher.nbytes < 20_000_000
    matcher.rebuild()
    matcher.subscribe("last", "x = 3")
    matcher.match_batch(batch)
    assert matcher._catalog.next_dense < 2_000
    assert not engine._tombstones.times.any()
    assert matcher.nbytes < 100_000
    assert len(engine._scratch.last_event) < 10_000
    assert len(matcher._catalog._id_index.joined()) < 10_000


def test_a_store_written_near_the_end_of_the_numbers_opens_and_goes_on(tmp_path: Path) -> None:
    matcher = Matcher.numbered_from(MOST_IDS - 30)
    for i in range(25):
        matcher.subscribe(f"s{i}", f"x = {i % 5} OR y = {i}", valid_until=2**62 + i)
    matcher.unsubscribe_many([f"s{i}" for i in range(0, 25, 4)])
    matcher.profile([{"x": 1}])
    matcher.save(tmp_path / "store")
    opened = tocsin.Matcher.open(tmp_path / "store")
    assert opened._catalog.next_dense > MOST_IDS - 10
    live = [i for i in range(25) if i % 4]
    for i in range(25, 60):
        opened.subscribe(f"s{i}", "x = :v", params={"v": i % 5})
        live.append(i)
    assert opened._catalog.next_dense < 100
    opened.update("s26", params={"v": 77})
    assert opened.match({"x": 77}) == ["s26"]
    opened.update("s26", params={"v": 1})
    opened.save(tmp_path / "store")
    for again in (opened, tocsin.Matcher.open(tmp_path / "store")):
        again.check()
        for v in range(5):
            expected = sorted(f"s{i}" for i in live if i % 5 == v)
            assert sorted(map(str, again.match({"x": v}))) == expected
        assert "s59" in again
        assert "s0" not in again
        assert "kept under" in again.explain("s1")


def test_times_start_again_while_an_old_reader_goes_on() -> None:
    matcher = Matcher()
    engine: Any = matcher._engine
    engine.start_time_at(LATEST - 6)
    matcher.subscribe_many({"id": range(10)}, where="x = 1")
    reader, names = engine.reader(), matcher._catalog.names
    for i in range(8):
        matcher.unsubscribe(i)
        assert sorted(map(int, matcher.match({"x": 1}))) == list(range(i + 1, 10))
    assert engine._time < 10
    assert sorted(int(names[dense]) for dense in reader.match_one({"x": 1})) == list(range(10))
    found = reader.match_batch(to_batch([{"x": 1}]))
    matches = Matches(found, names)
    assert sorted(map(int, matches[0])) == list(range(10))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of forty conjunctions at most."""
    monkeypatch.setattr(auto, "CAPACITY", auto.Capacity(40, 1 << 30))


@pytest.mark.parametrize("seed", range(3))
def test_what_exceeds_a_segment_goes_into_several(small: None, seed: int) -> None:
    matcher, source = Matcher(), Seeded(seed)
    live: dict[int, int] = {}
    for round_ in range(12):
        ids = list(range(100 * round_, 100 * round_ + 1 + source.below(99)))
        values = [source.below(5) for _ in ids]
        matcher.subscribe_many({"id": ids, "v": values}, where="x = :v OR y = :v")
        live |= dict(zip(ids, values, strict=True))
        for id in [id for id in live if one_in(source, 4)]:
            matcher.unsubscribe(id)
            del live[id]
        if one_in(source, 3):
            matcher.rebuild()
        found = matcher.match_batch([{"x": v, "y": v} for v in range(5)])
        for v in range(5):
            assert sorted(map(int, found[v])) == [id for id, of in live.items() if of == v]
        matcher.check()
    matcher.rebuild()
    engine: Any = matcher._engine
    sizes = [len(slot.segment.ids) for slot in engine._slots]
    assert max(sizes) <= 41
    assert sum(sizes) >= 2 * len(live)


def test_a_table_is_cut_between_subscriptions() -> None:
    matcher = Matcher(merges=False)
    matcher.subscribe_many({"id": range(30)}, where="x = 1 OR y = 1 OR z = 1")
    engine: Any = matcher._engine
    table = engine._pending.table(lambda ids: ids >= 0)
    portions = list(auto.Capacity(20, 1 << 30).cut(table))
    owners = [set(portion.subscription.tolist()) for portion in portions]
    assert len(owners) == 5
    assert set().union(*owners) == set(range(30))
    assert sum(map(len, owners)) == 30
