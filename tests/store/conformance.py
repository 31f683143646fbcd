"""What every place has to do, whatever its file system is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tocsin.storage.place import Place
from tocsin.store.subscription_store import SubscriptionStore


def check_place(place: Place) -> None:
    """Check a place whose folder does not exist yet."""
    assert isinstance(place, Place)
    assert place.names() == []
    assert place.synced_sizes("inner") == {}
    assert place.size("inner/a.json") is None
    with pytest.raises(FileNotFoundError):
        place.read("inner/a.json")
    place.commit_once("inner/a.json", b"\x00one\xff")
    with pytest.raises(FileExistsError):
        place.commit_once("inner/a.json", b"two")
    assert place.exists()
    assert not place.is_file()
    assert place.read("inner/a.json") == b"\x00one\xff"
    assert place.size("inner/a.json") == 5
    assert 0 <= place.age("inner/a.json") < 60
    place.replace("inner/a.json", b"three")
    place.replace("inner/b.json", b"")
    assert place.read("inner/a.json") == b"three"
    assert _visible(place, "inner") == ["a.json", "b.json"], "no draft stays"
    sizes = {name: n for name, n in place.synced_sizes("inner").items() if name[0] != "."}
    assert sizes == {"a.json": 5, "b.json": 0}
    with place.locked():
        assert place.put("large", lambda path: path.write_bytes(b"large")) == 5
    assert place.size("large") == 5
    assert place.local("large").read_bytes() == b"large"
    assert not place.local("nothing").exists()
    place.trust("large", 7)
    assert place.is_trusted("large", 7)
    for name in ("large", "large", "nothing"):
        place.remove(name)
    assert place.size("large") is None
    place.remove_tree("inner")
    place.remove_tree("inner")
    assert _visible(place) == []


def check_that_one_writer_wins(place: Place, n_writers: int = 4) -> None:
    """Check that of several writers of one name exactly one succeeds."""
    barrier = threading.Barrier(n_writers)
    winners: list[bytes] = []

    def write(content: bytes) -> None:
        barrier.wait()
        try:
            place.commit_once("once.json", content)
        except FileExistsError:
            return
        winners.append(content)

    threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(n_writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [place.read("once.json")] == winners


def check_store(place: Place, copies: Path | None = None) -> None:
    """Check that a store can be made, changed, compacted and opened on a place."""
    store = SubscriptionStore.create(place, engine="oracle")
    store.subscribe("a", "x = 1")
    store.subscribe("b", "x = 1")
    pinned = store.pin("query", 1)
    store.unsubscribe("a")
    assert SubscriptionStore(place).matcher().match({"x": 1}) == ["b"]
    store.compact(grace=0)
    assert sorted(store.matcher(pinned.version).match({"x": 1})) == ["a", "b"]
    store.unpin("query", 2)
    store.vacuum(grace=0)
    assert store.matcher().match({"x": 1}) == ["b"]
    manifests = [name for name in place.names() if name.startswith("manifest-")]
    assert len(manifests) == 1


def _visible(place: Place, under: str = "") -> list[str]:
    """Return the names in a folder; Hadoop keeps checksums of local files in hidden ones."""
    return [name for name in place.names(under) if not name.endswith(".crc")]
