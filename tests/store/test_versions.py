"""Stores that several writers change: versions, pins, compaction, and what is left behind."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    ChangedStoreError,
    DamagedStoreError,
    DuplicateSubscriptionError,
    NoStoreError,
    ParameterError,
    StoreError,
    UnknownSubscriptionError,
)
from tocsin.storage import manifests
from tocsin.storage.place import to_place
from tocsin.store.subscription_store import SubscriptionStore


@pytest.fixture
def store(tmp_path: Path) -> SubscriptionStore:
    return SubscriptionStore.create(tmp_path / "store")


def ids(store: SubscriptionStore, event: dict[str, Any], version: int | None = None) -> list[Any]:
    return sorted(store.matcher(version).match(event), key=str)


def test_every_change_is_a_version_and_old_ones_can_be_opened(store: SubscriptionStore) -> None:
    assert store.newest() == 1
    assert store.subscribe("a", "x = 1") == 2
    store.subscribe_many({"id": ["b", "c"], "where": ["x = 1", "x > 0"]})
    store.subscribe_many({"id": ["d"], "v": [1]}, where="x = :v")
    store.subscribe_many(
        {"id": ["e", "e"], "attribute": ["x", "y"], "op": ["=", ">"], "value": [1, 2]}
    )
    assert store.unsubscribe_many(["b"]) == 6
    assert store.update("c", where="x = 5") == 7
    assert store.update("d", params={"v": 5}) == 8
    event = {"x": 1, "y": 3}
    found = [ids(store, event, version) for version in range(1, 9)]
    before = [[], ["a"], list("abc"), list("abcd"), list("abcde"), list("acde")]
    assert found == [*before, list("ade"), list("ae")]
    assert ids(store, {"x": 5}) == ["c", "d"]
    state = store.describe()
    assert (state.version, state.base, state.n_changes, state.n_subscriptions) == (8, 1, 7, 4)
    assert state.attributes == ["x", "y"]
    assert state.ids == "strings"
    assert sorted(tocsin.Matcher.open(store.place.path_of("")).match(event)) == ["a", "e"]


def test_a_change_that_fails_makes_no_version(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    with pytest.raises(DuplicateSubscriptionError):
        store.subscribe("a", "x = 2")
    with pytest.raises(BadRowsError):
        store.subscribe_many({"id": ["b", "a"], "where": ["x = 1", "x = 2"]})
    with pytest.raises(UnknownSubscriptionError):
        store.unsubscribe_many(["a", "nobody"])
    with pytest.raises(BadRowsError, match="no subscription with id 'nobody'"):
        store.update_many({"id": ["a", "nobody"], "where": ["x = 7"] * 2})
    with pytest.raises(ParameterError):
        store.update("a", params={"v": 1})
    with pytest.raises(ArgumentError):
        store.update("a")
    assert store.newest() == 2
    assert ids(store, {"x": 1}) == ["a"]
    assert len(list(Path(str(store.place)).glob("changes-*"))) == 1


def test_bad_rows_can_be_set_aside(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    table = {"id": ["a", "b", None, "c", "b"], "where": ["x = 1", "x <", "x = 1", "x = 1", "x = 1"]}
    report = store.subscribe_many(table, on_error="quarantine")
    assert report.loaded == 1
    assert [(bad.row, bad.code) for bad in report.bad] == [
        (0, "duplicate-id"),
        (1, "syntax"),
        (2, "invalid-id"),
        (4, "duplicate-id"),
    ]
    rows = {"id": ["a", "d", "d"], "attribute": ["x"] * 3, "op": ["="] * 3, "value": [1] * 3}
    report = store.subscribe_many(rows, on_error="quarantine")
    assert (report.loaded, [bad.id for bad in report.bad]) == (1, ["a"])
    assert ids(store, {"x": 1}) == ["a", "c", "d"]
    nothing = store.subscribe_many({"id": ["a"], "where": ["x = 1"]}, on_error="quarantine")
    assert (nothing.loaded, store.newest()) == (0, 4)


def _add_many(path: str, writer: int, n: int) -> None:
    store = SubscriptionStore(path)
    for i in range(n):
        store.subscribe(f"{writer}.{i}", "x = 1")
        if i % 3 == 2:
            store.unsubscribe_many([f"{writer}.{i - 1}"])


@pytest.mark.slow
def test_writers_in_several_processes_lose_no_change(store: SubscriptionStore) -> None:
    context = multiprocessing.get_context("spawn")
    path, n = str(store.place), 12
    writers = [context.Process(target=_add_many, args=(path, w, n)) for w in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    expected = {f"{w}.{i}" for w in range(3) for i in range(n) if i % 3 != 1}
    assert set(store.matcher().match({"x": 1})) == expected
    assert store.newest() == 1 + 3 * (n + n // 3)


def test_two_writers_see_each_others_changes(store: SubscriptionStore) -> None:
    other = SubscriptionStore(str(store.place))
    store.subscribe("a", "x = 1")
    other.subscribe("b", "x = 1")
    with pytest.raises(DuplicateSubscriptionError):
        store.subscribe("b", "x = 1")
    other.unsubscribe_many(["a"])
    store.subscribe("a", "x = 2")
    assert ids(other, {"x": 1}) == ["b"]
    assert ids(other, {"x": 2}) == ["a"]


def test_compaction_keeps_all_that_is_there_and_removes_what_it_replaced(
    store: SubscriptionStore,
) -> None:
    store.subscribe_many({"id": list(range(50)), "where": [f"x >= {i}" for i in range(50)]})
    store.unsubscribe_many([3, 4])
    store.update(5, where="x = 1")
    before = ids(store, {"x": 10})
    version = store.compact(grace=0)
    assert ids(store, {"x": 10}) == before
    assert store.describe().n_changes == 0
    assert store.describe().base == version == store.newest()
    names = {path.name.partition("-")[0] for path in Path(str(store.place)).iterdir()}
    assert names == {"manifest", "book", "conditions", "index", "segment"}
    store.subscribe("late", "x = 10")
    assert ids(store, {"x": 10}) == [*before, "late"]
    assert store.describe().ids == "mixed"


def test_what_is_changed_while_a_base_is_made_stays(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    covers = store.newest()
    part = store.write_part(store.matcher())
    store.subscribe("b", "x = 1")
    version = store.commit_base([part], covers=covers)
    assert version == 4
    assert ids(store, {"x": 1}) == ["a", "b"]
    store.unsubscribe_many(["a"])
    assert ids(store, {"x": 1}) == ["b"]
    assert ids(store, {"x": 1}, 3) == ["a", "b"]
    store.vacuum()
    assert ids(store, {"x": 1}) == ["b"]


def test_a_base_of_a_store_that_was_replaced_meanwhile_is_refused(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    covers = store.newest()
    part = store.write_part(store.matcher())
    tocsin.Matcher().save(str(store.place))
    with pytest.raises(StoreError, match="replaced the store"):
        store.commit_base([part], covers=covers)
    assert ids(store, {"x": 1}) == []


def test_parts_that_are_numbered_one_after_the_other_are_one_matcher(
    store: SubscriptionStore,
) -> None:
    parts, texts = [], ["x = 1", "x > 0", "y LIKE '%a%'", "x IS NULL OR x = 7"]
    for at in range(3):
        matcher = tocsin.Matcher.numbered_from(at * 100, clock=lambda: 1.0)
        named = [f"{at}.{i}" for i in range(40)]
        until = [2_000_000 if i == 0 else None for i in range(40)]
        where = [texts[i % 4] for i in range(40)]
        matcher.subscribe_many({"id": named, "where": where, "valid_until": until})
        matcher.unsubscribe(f"{at}.8")
        parts.append(store.write_part(matcher))
    store.commit_base(parts)
    whole = store.matcher(clock=lambda: 1.0)
    whole.check()
    expected = [f"{at}.{i}" for at in range(3) for i in range(40) if i % 4 < 2 and i != 8]
    assert sorted(whole.match({"x": 1})) == sorted(expected)
    assert len(whole) == store.describe().n_subscriptions == 117
    assert store.matcher(parts=[1], clock=lambda: 1.0).match({"y": "bab", "x": -1}) == [
        f"1.{i}" for i in range(2, 40, 4)
    ]
    assert len(store.matcher(clock=lambda: 3.0)) == 114, "ends are those of all parts"
    store.update("1.1", where="x = 9")
    store.unsubscribe_many(["2.1"])
    assert whole.match({"x": 9, "y": ""}) != store.matcher().match({"x": 9, "y": ""})
    assert store.matcher(parts=[1]).match({"x": 9}) == [f"1.{i}" for i in range(5, 40, 4)]
    assert store.delta().match({"x": 9}) == ["1.1"]
    assert store.matcher(parts=[2]).match({"x": 1}) == [
        f"2.{i}" for i in range(4, 40) if i % 4 < 2 and i != 8
    ]
    store.compact()
    assert "1.1" in store.matcher().match({"x": 9})


def test_a_matcher_is_brought_to_a_later_version(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    version = store.newest()
    matcher = store.matcher(version)
    store.subscribe("b", "x = 1")
    store.unsubscribe_many(["a"])
    assert store.advance(matcher, version, store.newest())
    assert matcher.match({"x": 1}) == ["b"]
    assert not store.advance(matcher, store.newest(), version), "not backwards"
    before = store.newest()
    store.compact()
    assert not store.advance(matcher, before, store.newest()), "there is a new base"


def test_a_version_stays_a_while_for_readers_that_have_its_number(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    seen = store.newest()
    store.subscribe("b", "x = 1")
    store.compact(grace=60)
    assert ids(store, {"x": 1}, seen) == ["a"]
    time.sleep(0.3)
    store.unsubscribe_many(["b"])
    store.compact(grace=0.2)
    assert ids(store, {"x": 1}, seen + 2) == ["a", "b"], "it was the newest 0.2 seconds ago"
    with pytest.raises(DamagedStoreError, match=f"there is no version {seen}"):
        store.matcher(seen)
    store.vacuum(grace=0)
    with pytest.raises(DamagedStoreError, match=f"there is no version {seen + 2}"):
        store.matcher(seen + 2)


def test_a_pin_is_decided_once_and_keeps_its_version(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    pin = store.pin("query", 0, now=5.0)
    assert pin == (2, 5.0)
    store.subscribe("b", "x = 1")
    assert store.pin("query", 0) == pin
    assert store.pin("query", 1).version == 3
    store.compact(grace=0)
    assert ids(store, {"x": 1}, pin.version) == ["a"]
    assert sorted(store.pins("query")) == [0, 1]
    store.unpin("query", before=1)
    store.vacuum(grace=0)
    assert ids(store, {"x": 1}, 3) == ["a", "b"]
    store.unpin("query", before=2)
    store.vacuum(grace=0)
    with pytest.raises(DamagedStoreError, match="there is no version 3"):
        store.matcher(3)
    with pytest.raises(ArgumentError, match="cannot name a pin"):
        store.pin("../query", 0)


def test_ends_are_seen_as_they_were_when_a_change_was_made(tmp_path: Path) -> None:
    SubscriptionStore.create(tmp_path / "store")
    now = 1.0
    store = SubscriptionStore(tmp_path / "store", clock=lambda: now)
    store.subscribe("a", "x = :v", params={"v": 1}, valid_until=2_000_000)
    now = 3.0
    store.subscribe("a", "x = 1")
    behind = SubscriptionStore(tmp_path / "store", clock=lambda: 1.5)
    behind.update("a", where="x = 2")
    assert store.matcher(2, clock=lambda: 1.0).match({"x": 1}) == ["a"]
    assert store.matcher(2, clock=lambda: 2.0).match({"x": 1}) == []
    assert store.matcher(clock=lambda: 1.0).match({"x": 2}) == ["a"]
    assert store.delta(clock=lambda: 1.0).match({"x": 2}) == ["a"]


def test_a_store_is_made_once_and_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    quote = tocsin.EventType("Quote", firm=str, price=float)
    SubscriptionStore.create(tmp_path / "store", quote)
    assert SubscriptionStore.open(tmp_path / "store").describe().event_type == quote
    with pytest.raises(StoreError, match="already"):
        SubscriptionStore.create(tmp_path / "store")
    with pytest.raises(NoStoreError):
        SubscriptionStore(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NoStoreError, match="something else"):
        SubscriptionStore.create(tmp_path)
    with pytest.raises(StoreError, match="the newest is 1"):
        SubscriptionStore(tmp_path / "store").matcher(2)


def test_damaged_changes_are_refused(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    store.subscribe_many({"id": ["b"], "where": ["x = 1"]})
    for path in Path(str(store.place)).glob("changes-*"):
        octets = path.read_bytes()
        at = octets.rfind(b"x = 1")
        path.write_bytes(octets[:at] + b"y" + octets[at + 1 :])
        with pytest.raises(DamagedStoreError, match="changes-"):
            store.matcher()
        path.unlink()
        with pytest.raises(DamagedStoreError, match="missing"):
            store.matcher()
        path.write_bytes(octets)
    assert ids(store, {"x": 1}) == ["a", "b"]


def test_files_of_a_writer_that_is_not_done_are_left_alone(store: SubscriptionStore) -> None:
    part = store.write_part(store.matcher())
    store.compact()
    store.commit_base([part])
    assert ids(store, {"x": 1}) == []
    left = store.write_part(store.matcher())
    for name in left.names():
        os.utime(store.place.local(name), (1_000, 1_000))
    assert set(store.vacuum()) >= left.names()


def test_a_store_behind_a_url_is_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    url = "memory://tests/versions/store"
    store = SubscriptionStore.create(url)
    store.subscribe_many(pa.table({"id": [1, 2, 3], "where": ["x = 1", "x > 0", "y = 2"]}))
    other = SubscriptionStore(url)
    other.unsubscribe_many([2])
    with pytest.raises(UnknownSubscriptionError):
        store.unsubscribe_many([2])
    assert ids(store, {"x": 1, "y": 2}) == [1, 3]
    assert store.pin("query", 7) == other.pin("query", 7)
    store.unpin("query", 8)
    store.compact()
    tocsin.Matcher.open(url).save(url)
    assert ids(other, {"x": 1, "y": 2}) == [1, 3]
    with pytest.raises(NoStoreError):
        SubscriptionStore("memory://tests/versions/nowhere")
    with pytest.raises(StoreError, match="cannot be used"):
        SubscriptionStore("nonsense://somewhere")


def test_a_base_that_what_was_changed_meanwhile_does_not_fit_is_refused(
    store: SubscriptionStore,
) -> None:
    store.subscribe("alice", "x = 1")
    covers = store.newest()
    other = tocsin.Matcher()
    other.subscribe("bob", "x = 1")
    part = store.write_part(other)
    SubscriptionStore(str(store.place)).unsubscribe_many(["alice"])
    with pytest.raises(ChangedStoreError, match="alice"):
        store.commit_base([part], covers=covers)
    assert ids(store, {"x": 1}) == []
    store.subscribe("carol", "x = 1")
    assert tocsin.Matcher.open(str(store.place)).match({"x": 1}) == ["carol"]


def test_a_compaction_beside_an_update_of_what_ends_meanwhile_is_made_anew(
    store: SubscriptionStore,
) -> None:
    moments = [100.0]
    store._clock = lambda: moments[0]
    store.subscribe("x", "x = 1", valid_until=dt.datetime.fromtimestamp(105, dt.UTC))
    other = SubscriptionStore(str(store.place), clock=lambda: 101.0)
    calls: list[tocsin.Matcher] = []

    def meanwhile(matcher: tocsin.Matcher) -> None:
        if not calls:
            other.update("x", where="x = 2")
            moments[0] = 110.0
        calls.append(matcher)

    store.rebuild(meanwhile)
    assert len(calls) == 2
    assert len(store.matcher(clock=lambda: 102.0)) == 0
    store.subscribe("y", "x = 1")
    assert ids(store, {"x": 1}) == ["y"]


@pytest.mark.parametrize("what", ["subscribe", "save"])
def test_a_commit_that_is_interrupted_at_its_end_leaves_a_store_that_opens(
    store: SubscriptionStore, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tocsin.storage import disk

    sync, calls = disk.sync_folder, []

    def interrupted(path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:  # the manifest is there already
            raise KeyboardInterrupt
        sync(path)

    matcher = store.matcher()
    matcher.subscribe("a", "x = 1")
    path = str(store.place)
    does: dict[str, Any] = {
        "subscribe": lambda: store.subscribe("a", "x = 1"),
        "save": lambda: matcher.save(path),
    }
    monkeypatch.setattr(disk, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        does[what]()
    monkeypatch.undo()
    assert ids(SubscriptionStore(str(store.place)), {"x": 1}) == ["a"]


def test_a_longer_grace_than_before_finds_what_is_left_of_a_compaction_beside_a_writer(
    store: SubscriptionStore,
) -> None:
    store.subscribe("a", "x = 1")
    other = SubscriptionStore(str(store.place))
    store.rebuild(lambda _: other.subscribe("b", "x = 1"))
    store.vacuum(grace=0)
    store.vacuum(grace=3600)
    store.compact(grace=3600)
    assert ids(store, {"x": 1}) == ["a", "b"]


def test_tables_come_in_whatever_holds_their_ids(store: SubscriptionStore) -> None:
    words = pa.array(["a", "b"], pa.string_view())
    assert store.subscribe_many(pa.table({"id": words, "where": ["x = 1", "x = 1"]})).loaded == 2
    coded = pa.array(["c", "d"]).dictionary_encode()
    assert store.subscribe_many(pa.table({"id": coded, "where": ["x = 1", "x = 1"]})).loaded == 2
    assert sorted(ids(store, {"x": 1})) == ["a", "b", "c", "d"]
    with pytest.raises(ArgumentError, match="id"):
        store.subscribe_many(pa.table({"where": ["x = 1"]}))


def test_versions_go_on_beyond_eight_digits(tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "x = 1")
    matcher.save(tmp_path)
    place = to_place(tmp_path)
    first = manifests.read(place, 1)
    manifests.create(place, replace(first, number=99_999_999, covers=99_999_998))
    store = SubscriptionStore(tmp_path)
    store.subscribe("b", "x = 1")
    store.subscribe("c", "x = 1")
    assert manifests.newest(place) == 100_000_001
    assert tocsin.Matcher.open(tmp_path).match({"x": 1}) == ["a", "b", "c"]
    assert tocsin.Matcher.open(tmp_path, version=100_000_000).match({"x": 1}) == ["a", "b"]
