"""Versions that others remove at the worst moment: no acknowledged change is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tocsin.errors import ChangedStoreError, StoreError
from tocsin.storage import folder, manifests, pins
from tocsin.storage.local import LocalPlace
from tocsin.store.subscription_store import SubscriptionStore

Others = Callable[[SubscriptionStore], object]


@pytest.fixture
def store(tmp_path: Path) -> SubscriptionStore:
    return SubscriptionStore.create(tmp_path / "store", engine="oracle")


def saves(store: SubscriptionStore) -> None:
    for n in range(2):
        matcher = store.matcher()
        matcher.subscribe(f"saved {n}", "x = 3")
        matcher.save(str(store.place), grace=0)


def compacts(store: SubscriptionStore) -> None:
    store.subscribe("other", "x = 2")
    store.compact(grace=0)


@pytest.mark.parametrize("others", [saves, compacts])
@pytest.mark.parametrize("has_lock", [True, False])
def test_a_writer_that_pauses_does_not_take_a_number_that_was_tidied_away(
    store: SubscriptionStore, others: Others, has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock, as on other machines, others come between the last look and the commit."""
    store.subscribe("old", "x = 0")
    other = SubscriptionStore(str(store.place))
    module, name = (folder, "commit") if has_lock else (LocalPlace, "commit_once")
    real = getattr(module, name)

    def paused(*args: Any, **of: Any) -> Any:
        monkeypatch.undo()
        if not has_lock:
            monkeypatch.setattr(LocalPlace, "locked", lambda place: open(os.devnull))  # noqa: PTH123, SIM115
        others(other)
        return real(*args, **of)

    monkeypatch.setattr(module, name, paused)
    version = store.subscribe("mine", "x = 1")
    assert store.newest() == version
    assert {"old", "mine"} <= set(
        store.matcher()._catalog.names.to_list(store.matcher()._catalog.live())
    )
    assert tocsin.Matcher.open(str(store.place)).match({"x": 1}) == ["mine"]


def test_a_base_whose_files_were_removed_is_not_committed(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    part = store.write_part(store.matcher())
    for name in part.names():
        os.utime(store.place.local(name), (time.time() - 7_200,) * 2)
    store.vacuum()
    assert store.commit_base([part], covers=2) == 3, "two hours are not too long for a writer"
    left = store.write_part(store.matcher())
    for name in left.names():
        os.utime(store.place.local(name), (1_000, 1_000))
    store.vacuum()
    with pytest.raises(ChangedStoreError, match="was removed before it was committed"):
        store.commit_base([left])
    assert store.newest() == 3
    store.subscribe("b", "x = 1")
    assert sorted(store.matcher().match({"x": 1})) == ["a", "b"]


def test_a_file_that_was_cut_off_is_not_committed(store: SubscriptionStore) -> None:
    part = store.write_part(store.matcher())
    name = sorted(part.names())[0]
    os.truncate(store.place.local(name), 10)
    with pytest.raises(ChangedStoreError, match=name):
        store.commit_base([part])


def test_a_pin_names_a_version_that_is_there(
    store: SubscriptionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = manifests.newest
    path = str(store.place)

    def newest(place: Any) -> int:
        version = real(place)
        monkeypatch.undo()
        matcher = store.matcher()
        matcher.subscribe("a", "x = 1")
        matcher.save(path, grace=0)  # between the look at the newest version and the pin
        return version

    monkeypatch.setattr(manifests, "newest", newest)
    pinned = store.pin("query", 7)
    assert pinned.version in manifests.numbers(store.place)
    assert store.pin("query", 7) == pinned
    assert store.matcher(pinned.version).match({"x": 1}) == ["a"]
    with pytest.raises(StoreError, match="there is no version 1 to pin"):
        store.pin("query", 8, version=1)


def test_a_version_whose_base_was_removed_is_not_pinned_and_stops_no_vacuum(
    store: SubscriptionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = manifests.newest

    def newest(place: Any) -> int:
        """Between the look and the pin, a base is made without that version, and vacuumed."""
        version = real(place)
        monkeypatch.undo()
        covers = version - 1
        part = store.write_part(store.matcher(covers))
        store.commit_base([part], covers=covers)
        store.vacuum(grace=0)
        assert version in manifests.numbers(store.place)
        return version

    for n in range(3):
        store.subscribe(f"a{n}", "x = 1")
    monkeypatch.setattr(manifests, "newest", newest)
    pinned = store.pin("query", 7)
    assert sorted(store.matcher(pinned.version).match({"x": 1})) == ["a0", "a1", "a2"]
    lost = pinned.version - 1
    with pytest.raises(StoreError, match=f"there is no version {lost} to pin"):
        store.pin("query", 8, version=lost)
    monkeypatch.setattr(pins, "_is_openable", lambda *_: True)  # as an earlier release did
    store.pin("other", 1, version=lost)
    store.vacuum(grace=0)
    assert store.pin("query", 7) == pinned


def test_a_save_keeps_the_version_before_for_who_has_its_number(store: SubscriptionStore) -> None:
    store.subscribe("a", "x = 1")
    version = store.newest()
    tocsin.Matcher().save(str(store.place))
    assert store.matcher(version).match({"x": 1}) == ["a"]
    tocsin.Matcher().save(str(store.place), grace=0)
    with pytest.raises(StoreError, match="there is no version"):
        store.matcher(version)


def change_randomly(path: str, number: int, acknowledged: Any) -> None:
    """Change a store for a while; report what was acknowledged."""
    source = random.Random(number)
    store = SubscriptionStore(path)
    present: set[str] = set()
    for n in range(10):
        id = f"{number}-{n}"
        store.subscribe(id, "x = 1")
        present.add(id)
        if source.random() < 0.4:
            gone = source.choice(sorted(present))
            store.unsubscribe_many([gone])
            present.discard(gone)
        if source.random() < 0.3:
            store.compact(grace=source.choice([0.0, 600.0]))
        if source.random() < 0.2:
            pinned = store.pin(f"query{number}", n)
            assert present <= set(store.matcher(pinned.version).match({"x": 1}))
            store.unpin(f"query{number}", n + 1)
    acknowledged.put(sorted(present))


@pytest.mark.slow
def test_processes_that_change_compact_and_pin_at_once_lose_no_change(
    store: SubscriptionStore,
) -> None:
    context = multiprocessing.get_context("spawn")
    acknowledged = context.Queue()
    path = str(store.place)
    processes = [
        context.Process(target=change_randomly, args=(path, n, acknowledged)) for n in range(3)
    ]
    for process in processes:
        process.start()
    expected = sorted(id for _ in processes for id in acknowledged.get(timeout=60))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(store.matcher().match({"x": 1})) == expected
