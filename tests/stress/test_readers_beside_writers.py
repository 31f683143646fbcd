"""Readers and merges beside a writer: each answer is the truth at some moment of its call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.property.strategies import Seeded

import tocsin
from tocsin.encode.events import to_batch
from tocsin.engines import auto
from tocsin.engines.auto.segment import Segment
from tocsin.matcher import Matcher

N_PAIRS = 30


class Log:
    """What the writer changed, in order: before and after each change a number is counted up."""

    def __init__(self) -> None:
        self.begun = 0
        self.done = 0
        self.states: list[dict[str, int]] = [{}]

    def change(self, call: Callable[[], None], state: dict[str, int]) -> None:
        self.states.append(state)
        self.begun += 1
        call()
        self.done += 1


class Writer:
    """Changes subscriptions: each is at one of several places, or gone.

    Subscription `s` at place p matches events with `at = p` and `name = s` alone (for two reasons,
    to be found once), so that a batch of all such events says where each subscription is.
    """

    def __init__(self, matcher: Matcher, seed: int) -> None:
        self.matcher = matcher
        self.log = Log()
        self.source = Seeded(seed)
        self.n_extra = 0

    def step(self) -> None:
        state = dict(self.log.states[-1])
        name = f"s{self.source.below(N_PAIRS)}"
        place = self.source.below(3)
        m, dice = self.matcher, self.source.below(10)
        if name not in state:
            state[name] = place
            where = "at = :p AND name = :n OR at = :p AND label = :n"
            params = {"n": name, "p": place}
            self.log.change(lambda: m.subscribe(name, where, params=params), state)
        elif dice < 7:
            state[name] = place
            self.log.change(lambda: m.update(name, params={"p": place}), state)
        elif dice < 9:
            del state[name]
            self.log.change(lambda: m.unsubscribe(name), state)
        else:
            self.load()

    def load(self) -> None:
        """Bring many others, that match nothing here, so that there is something to merge."""
        n = 1 + self.source.below(400)
        ids = range(self.n_extra, self.n_extra + n)
        table = {"id": ids, "p": [100 + i % 50 for i in ids]}
        self.matcher.subscribe_many(table, where="at = :p AND name > 'zz'")
        if self.n_extra and self.source.below(2):
            self.matcher.unsubscribe_many(list(range(self.n_extra - 1, self.n_extra)))
        self.n_extra += n


EVENTS: list[dict[str, Any]] = [
    {"name": f"s{i}", "label": f"s{i}", "at": place} for i in range(N_PAIRS) for place in range(3)
]


class Reader(threading.Thread):
    """Matches all the time; keeps the first answer that was never true."""

    def __init__(self, matcher: Matcher, log: Log, is_over: threading.Event, single: bool) -> None:
        super().__init__()
        self.matcher, self.log, self.is_over, self.single = matcher, log, is_over, single
        self.batch: Any = pa.Table.from_pylist(EVENTS * 23) if not single else EVENTS
        self.failure: str | None = None
        self.n_reads = 0

    def run(self) -> None:
        try:
            while not self.is_over.is_set() and self.failure is None:
                self.read()
                self.n_reads += 1
        except Exception as error:
            self.failure = repr(error)

    def read(self) -> None:
        first = self.log.done
        if self.single:
            event = EVENTS[self.n_reads % len(EVENTS)]
            found = self.matcher.match(event)
            last = self.log.begun
            states = self.log.states[first : last + 1]
            truths = [[event["name"]] * (s.get(event["name"]) == event["at"]) for s in states]
            if found not in truths:
                self.failure = f"{event}: {found}, which is none of {truths}"
            return
        matches = self.matcher.match_batch(self.batch)
        last = self.log.begun
        seen: dict[str, int] = {}
        for e in range(len(self.batch)):
            found = matches[e]
            if len(found) > 1:
                self.failure = f"one event finds {found}"
            for name in map(str, found):
                event = EVENTS[e % len(EVENTS)]
                if name != event["name"] or seen.setdefault(name, event["at"]) != event["at"]:
                    self.failure = f"{name} is at two places at once"
        if seen not in self.log.states[first : last + 1]:
            self.failure = f"{seen}: never so between changes {first} and {last}"


class Meddler(threading.Thread):
    """Does all the time what changes no answer: profiles, merges, explains, and saves.

    What it saves must be the truth at some moment of the call too.
    """

    def __init__(self, matcher: Matcher, log: Log, is_over: threading.Event, path: Path) -> None:
        super().__init__()
        self.matcher, self.log, self.is_over, self.path = matcher, log, is_over, path
        self.failure: str | None = None
        self.n_reads = 0

    def run(self) -> None:
        try:
            while not self.is_over.is_set() and self.failure is None:
                self.matcher.profile(EVENTS[self.n_reads % 7 :: 3])
                self.matcher.explain()
                if self.n_reads % 4 == 3:
                    self.matcher.rebuild()
                self.save()
                self.n_reads += 1
        except Exception as error:
            self.failure = repr(error)

    def save(self) -> None:
        first = self.log.done
        self.matcher.save(self.path)
        last = self.log.begun
        saved = tocsin.Matcher.open(self.path)
        seen = {
            str(name): event["at"]
            for event, found in zip(EVENTS, saved.match_batch(EVENTS), strict=True)
            for name in found
        }
        if seen not in self.log.states[first : last + 1]:
            self.failure = f"saved {seen}: never so between changes {first} and {last}"


def stress(seed: int, n_steps: int, path: Path) -> int:
    matcher = tocsin.Matcher()
    writer, is_over = Writer(matcher, seed), threading.Event()
    readers: list[Reader | Meddler] = [
        *(Reader(matcher, writer.log, is_over, single) for single in (False, True, False)),
        Meddler(matcher, writer.log, is_over, path / "store"),
    ]
    for reader in readers:
        reader.start()
    try:
        for step in range(n_steps):
            writer.step()
            if step % 50 == 49:
                matcher.rebuild()
            if step % 20 == 0:
                matcher.check()
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    assert [reader.failure for reader in readers if reader.failure] == []
    matcher.check()
    state = writer.log.states[-1]
    found = matcher.match_batch(EVENTS)
    for event, ids in zip(EVENTS, found, strict=True):
        assert ids == [event["name"]] * (state.get(event["name"]) == event["at"])
    return min(reader.n_reads for reader in readers[:3])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_was_true_at_some_moment_of_its_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    monkeypatch.setattr(auto, "_MAX_IMMEDIATE", 50)  # nearly all merges are made by the thread
    assert stress(seed, 400, tmp_path) > 3


def both(matcher: Matcher) -> list[list[Any]]:
    return [sorted(ids) for ids in matcher.match_batch([{"x": 1}, {"x": 2}])]


def load_parts(matcher: Matcher) -> list[list[int]]:
    """Load several segments; return what `both` should say."""
    for part in range(4):
        ids = range(100 * part, 100 * part + 100)
        matcher.subscribe_many({"id": ids, "v": [1 + i % 2 for i in ids]}, where="x = :v")
        matcher.match({"x": 0})
    return [list(range(0, 400, 2)), list(range(1, 400, 2))]


def failing(n_times: int) -> Callable[..., Segment]:
    """Return a way to build segments that fails some times at first."""
    build = Segment.build.__func__  # type: ignore[attr-defined]
    left = [n_times]

    def fail(cls: type[Segment], *args: Any, **options: Any) -> Segment:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError("no room for a segment")
        return build(cls, *args, **options)

    return fail


def test_a_failed_rebuild_is_reported_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = tocsin.Matcher(merges=False)
    expected = load_parts(matcher)
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "build", classmethod(failing(10**9)))
        for _ in range(2):
            with pytest.raises(MemoryError, match="no room"):
                matcher.rebuild()
            with pytest.raises(MemoryError, match="no room"):
                matcher.check()
            assert both(matcher) == expected
            matcher.unsubscribe(expected[0].pop())
    matcher.rebuild()
    matcher.check()
    assert len(matcher._engine.reader().segments) == 1  # type: ignore[attr-defined]
    assert both(matcher) == expected


def test_a_merge_that_fails_in_the_background_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_MAX_IMMEDIATE", 0)
    matcher = tocsin.Matcher(merges=False)
    expected = load_parts(matcher)
    engine: Any = matcher._engine
    engine._merges = True
    monkeypatch.setattr(Segment, "build", classmethod(failing(1)))
    assert both(matcher) == expected  # starts a merge, which fails
    merger = engine._merger
    if merger is not None:
        merger.join()
    matcher.rebuild()
    matcher.check()
    assert both(matcher) == expected


def test_a_flush_that_fails_keeps_what_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = tocsin.Matcher()
    n = 100  # more than stay pending
    matcher.subscribe_many({"id": range(n), "v": [1 + i % 2 for i in range(n)]}, where="x = :v")
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "build", classmethod(failing(1)))
        with pytest.raises(MemoryError, match="no room"):
            matcher._engine.reader()
        matcher.unsubscribe(n - 1)
        assert both(matcher) == [list(range(0, n, 2)), list(range(1, n - 1, 2))]
        matcher._engine.reader()
        assert both(matcher) == [list(range(0, n, 2)), list(range(1, n - 1, 2))]


def test_a_subscribe_that_fails_to_index_what_is_pending_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_MAX_PENDING", 5)
    matcher = tocsin.Matcher()
    for i in range(5):
        matcher.subscribe(i, "x = 1")
    monkeypatch.setattr(Segment, "build", classmethod(failing(1)))
    with pytest.raises(MemoryError, match="no room"):
        matcher.subscribe(5, "x = 1")
    assert 5 not in matcher
    assert both(matcher) == [list(range(5)), []]
    matcher.subscribe(5, "x = 1")
    assert both(matcher) == [list(range(6)), []]
    matcher.check()
    matcher.check()


def test_a_version_sees_nothing_of_later_changes() -> None:
    matcher = tocsin.Matcher()
    expected = load_parts(matcher)
    version: Any = matcher._engine.reader()
    batch = to_batch([{"x": 1}, {"x": 2}])
    before = version.match_batch(batch).values.tolist()
    assert len(before) == sum(map(len, expected))
    matcher.unsubscribe_many(list(range(0, 400, 3)))
    matcher.subscribe_many({"id": range(1_000, 4_000)}, where="x < 3")
    matcher.rebuild()
    assert version.match_batch(batch).values.tolist() == before
    assert len(version.match_one({"x": 1})) == len(expected[0])
    now = matcher.match_batch([{"x": 1}])[0]
    assert len(now) == 3_000 + len([i for i in expected[0] if i % 3])
