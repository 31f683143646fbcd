"""Calls of a store's place: the folder is listed once, and each manifest is read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tocsin
from tocsin.storage.local import LocalPlace
from tocsin.store.snapshot import StoreSnapshot
from tocsin.store.subscription_store import SubscriptionStore


class CountingPlace(LocalPlace):
    """A local place that counts listings of its folder and reads of its files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.listings = 0
        self.reads: Counter[str] = Counter()

    def names(self, under: str = "") -> list[str]:
        self.listings += not under
        return super().names(under)

    def read(self, name: str) -> bytes:
        self.reads[name] += 1
        return super().read(name)


@pytest.fixture
def place(tmp_path: Path) -> CountingPlace:
    store = SubscriptionStore.create(tmp_path / "store", engine="oracle")
    for n in range(3):
        store.subscribe(f"s{n}", "x = 1")
    return CountingPlace(tmp_path / "store")


ALL = {f"manifest-{number:08d}.json": 1 for number in range(1, 5)}


def test_a_matcher_is_opened_with_one_listing_and_each_manifest_once(place: CountingPlace) -> None:
    matcher = tocsin.Matcher.open(place)  # type: ignore[arg-type]
    assert sorted(matcher.match({"x": 1})) == ["s0", "s1", "s2"]
    assert (place.listings, place.reads) == (1, ALL)


def test_a_snapshot_reads_nothing_again(place: CountingPlace) -> None:
    snapshot = StoreSnapshot.open(place)
    assert snapshot.state.n_subscriptions == 3
    assert len(snapshot.matcher()) == len(snapshot.matcher()) == 3
    assert (place.listings, place.reads) == (1, ALL)


def test_a_known_version_is_opened_without_a_listing(place: CountingPlace) -> None:
    assert len(StoreSnapshot.open(place, 2).matcher()) == 1
    assert place.listings == 0
    assert place.reads == {"manifest-00000002.json": 1, "manifest-00000001.json": 1}


def test_a_vacuum_reads_each_manifest_once(place: CountingPlace) -> None:
    store = SubscriptionStore(place)
    store.rebuild()
    place.reads.clear()
    store.vacuum(grace=0)
    assert set(place.reads.values()) == {1}
    assert len(place.reads) == 5
    assert [name for name in place.names() if name.startswith("manifest")] == [
        "manifest-00000005.json"
    ]
