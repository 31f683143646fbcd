"""The delta: it grows in place, and its snapshots do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tocsin
from tocsin.encode.events import to_batch
from tocsin.engines.auto import AutoEngine
from tocsin.engines.auto.delta import Delta

NAMES = ("a", "b", "c0", "c1", "c2", "d")
N = 2_000


def text(i: int) -> str:
    """Return a condition with the key that all have: equal to one value, or to either of two."""
    a = f"a = {i % 7}" if i % 5 else f"a IN ({i % 7}, {(i + 3) % 7})"
    last = ("d = 1", "d < 3", "d IN (1, 4)", "d IS NULL OR d > 5", "d <> 2")[i % 5]
    return f"{a} AND b = {i // 7 % 7} AND c{i % 3} = {i % 11} AND ({last})"


def events(n: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    columns = {name: random.integers(0, 12 if name > "b" else 7, n) for name in NAMES}
    absent = {name: random.random(n) < (0.05 if name > "b" else 0.01) for name in NAMES}
    return pa.table({name: pa.array(columns[name], mask=absent[name]) for name in NAMES})


class Pair:
    """A matcher that changes, and what is in it."""

    def __init__(self) -> None:
        self.matcher = tocsin.Matcher()
        self.texts: dict[int, str] = {}
        self.add(range(N))
        self.matcher.match_batch(events(1))

    def add(self, numbers: Any) -> None:
        new = {i: text(i) for i in numbers}
        self.texts |= new
        self.matcher.subscribe_many({"id": list(new), "where": list(new.values())})

    def remove(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.texts[number]
        self.matcher.unsubscribe_many(numbers)

    def expected(self, batch: pa.Table) -> list[set[Any]]:
        anew = tocsin.Matcher()
        anew.subscribe_many({"id": list(self.texts), "where": list(self.texts.values())})
        return [set(found) for found in anew.match_batch(batch)]

    def check(self, batch: pa.Table) -> int:
        expected = self.expected(batch)
        assert [set(found) for found in self.matcher.match_batch(batch)] == expected
        for row in batch.slice(0, 5).to_pylist():
            assert set(self.matcher.match(row)) == expected[batch.to_pylist().index(row)]
        self.matcher.check()
        self.engine.reader()  # indexes what is pending
        return sum(map(len, expected))

    @property
    def engine(self) -> AutoEngine:
        engine = self.matcher._engine
        assert isinstance(engine, AutoEngine)
        return engine

    @property
    def n_in_delta(self) -> int:
        return sum(h.size for h in self.engine._slots if isinstance(h.segment, Delta))


def test_subscriptions_added_to_the_delta_match_until_they_are_deleted() -> None:
    pair, first = Pair(), N
    for n in (1, 40, 3, 150):
        pair.add(range(first, first + n))
        first += n
        pair.remove([first - 1, first * 7 % N])
        assert pair.check(events(100, seed=n)) > 100
    assert pair.n_in_delta == 191  # the last of three calls died while pending
    assert len(pair.engine._slots) == 2
    assert pair.check(events(2_500)) > 1_000  # a batch that is ordered for the segment too


def test_a_snapshot_of_the_delta_does_not_change_while_more_is_added() -> None:
    pair = Pair()
    pair.add(range(N, N + 5))
    pair.matcher.match_batch(events(1))
    batch, expected = events(200), pair.expected(events(200))
    version, names = pair.engine.reader(), pair.matcher._catalog.names
    for first in range(N + 5, N + 400, 50):
        pair.add(range(first, first + 50))
        pair.engine.reader()  # indexes what is pending
        found = version.match_batch(to_batch(batch))
        ends = zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)
        assert [{names[i] for i in found.values[start:end]} for start, end in ends] == expected
    assert pair.check(batch) > sum(map(len, expected))


def test_what_does_not_suit_the_delta_becomes_a_segment_after_it(tmp_path: Path) -> None:
    pair = Pair()
    pair.add(range(N, N + 30))
    pair.check(events(50))
    pair.matcher.subscribe("other", "e = 'x' OR a = 99")  # has cuts, and an attribute, of its own
    assert pair.matcher.match({"e": "x"}) == ["other"]
    pair.engine.reader()
    pair.add(range(N + 30, N + 60))
    pair.check(events(50).append_column("e", pa.array(["y"] * 50)))  # else it is reported
    assert [isinstance(slot.segment, Delta) for slot in pair.engine._slots].count(True) >= 1
    pair.matcher.save(tmp_path / "store")
    again = tocsin.Matcher.open(tmp_path / "store")
    batch = events(100)
    assert [set(found) for found in again.match_batch(batch)] == pair.expected(batch)
    assert again.match({"e": "x"}) == ["other"]
    pair.matcher.rebuild()
    assert len(pair.engine._slots) == 1
    assert pair.check(batch) > 0


def test_a_subscription_in_the_delta_can_be_explained() -> None:
    pair = Pair()
    pair.add(range(N, N + 3))
    pair.check(events(10))
    assert "kept under (a" in pair.matcher.explain(N + 1)
    assert pair.check(events(10)) >= 0


def test_the_delta_is_merged_with_its_base_when_it_is_large() -> None:
    pair = Pair()
    for first in range(N, 5 * N, N // 8):
        pair.add(range(first, first + N // 8))
        pair.matcher.match_batch(events(10))
    while pair.engine._merger is not None:
        merger = pair.engine._merger
        if merger is not None:
            merger.join()
    assert pair.check(events(100)) > 0
    largest = pair.engine._largest()
    assert largest is not None
    assert largest.n_subscriptions > 2 * N
