"""A damaged store is refused with an error that names the file; it never gives a wrong answer."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.stores import QUOTE, files, filled, seen

import tocsin
from tocsin.errors import (
    ArgumentError,
    DamagedStoreError,
    NewerStoreError,
    NoStoreError,
    StoreError,
)
from tocsin.matcher import Matcher

BAD_FILE = {"name": "../book", "n_bytes": 1, "checksum": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "store"
    filled(QUOTE).save(path)
    return path


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "store"))


def role(path: Path) -> str:
    return path.name.partition("-")[0]


def open_it(path: Path) -> Matcher:
    return tocsin.Matcher.open(path, clock=lambda: 1_000.0)


def events() -> list[dict[str, Any]]:
    return [{"firm": "IBM", "price": 89.5, "volume": 100}, {"x": 7}, {"x": "seven"}, {}]


def glance(matcher: Matcher) -> Any:
    """Return what most of a store's bytes have a part in."""
    catalog = matcher._catalog
    found = [sorted(map(repr, ids)) for ids in matcher.match_batch(events())]
    dense = [catalog.dense(id) for id in ("t9", "one 3", 2_050, 1_007, -1, "nobody")]
    return found, dense, [catalog.expression(i) for i in dense if i is not None], len(matcher)


def refusal(store: Path) -> StoreError | None:
    try:
        open_it(store).check()
    except StoreError as error:
        return error
    return None


def test_a_flipped_bit_is_noticed_or_harmless(store: Path) -> None:
    expected = glance(open_it(store))
    source = random.Random(5)
    n_refused = n_harmless = 0
    for path in files(store):
        octets = path.read_bytes()
        places = [*range(36), *(source.randrange(len(octets)) for _ in range(40))]
        for at in places:
            changed = bytearray(octets)
            changed[at] ^= 1 << source.randrange(8)
            path.write_bytes(changed)
            error = refusal(store)
            if error is None:
                n_harmless += 1
                assert glance(open_it(store)) == expected, (path, at)
            else:
                n_refused += 1
                assert str(path) in str(error)
        path.write_bytes(octets)
    assert n_refused > 4 * n_harmless > 0  # what is harmless lies between the arrays


def test_a_file_that_is_cut_off_is_refused(store: Path) -> None:
    for path in files(store):
        octets = path.read_bytes()
        for n in (0, 1, 40, 64, len(octets) // 2, len(octets) - 1):
            path.write_bytes(octets[:n])
            with pytest.raises(DamagedStoreError, match=path.name):
                open_it(store)
        path.write_bytes(octets + b"\0")
        if role(path) != "manifest":
            with pytest.raises(DamagedStoreError, match=path.name):
                open_it(store)
        path.write_bytes(octets)
    open_it(store)


def test_damaged_conditions_are_noticed_before_they_are_used(store: Path, tmp_path: Path) -> None:
    expected = glance(open_it(store))
    path = next(store.glob("conditions-*"))
    octets = bytearray(path.read_bytes())
    at = octets.find(b"firm = 'IBM' AND")
    assert at > 0
    octets[at : at + 4] = b"farm"
    path.write_bytes(octets)
    matcher = open_it(store)
    matches, n = [sorted(map(repr, ids)) for ids in matcher.match_batch(events())], len(matcher)
    assert (matches, n) == (expected[0], expected[-1]), "matching needs no conditions"
    for call in (
        lambda: matcher.explain("t9"),
        lambda: matcher.update(-1, params={"v": 1}),
        lambda: matcher.update("t9", where="x = 1"),
        lambda: matcher.unsubscribe("t9"),
        lambda: matcher.unsubscribe_many(["t9", "t11"]),
        lambda: matcher.save(tmp_path / "other"),
        matcher.check,
    ):
        with pytest.raises(DamagedStoreError, match=path.name):
            call()
    assert not (tmp_path / "other").exists()
    assert [sorted(map(repr, ids)) for ids in matcher.match_batch(events())] == matches
    assert len(matcher) == n, "calls that failed changed nothing"
    matcher.subscribe("new", "x = 7")
    assert "new" in matcher.match({"x": 7})


def test_a_missing_file_is_named(store: Path) -> None:
    for path in files(store):
        octets = path.read_bytes()
        path.unlink()
        with pytest.raises(StoreError) as caught:
            open_it(store)
        if role(path) == "manifest":
            assert caught.value.code == "no-store"
            assert caught.value.path == str(store)
        else:
            assert caught.value.code == "damaged-store"
            assert caught.value.path == str(path)
            assert caught.value.reason == "the file is missing"
        path.write_bytes(octets)


def test_a_foreign_file_is_refused(store: Path) -> None:
    for path in files(store):
        octets = path.read_bytes()
        for foreign in (b"a text of somebody " * 50, b"{}", b"[1, 2]", b"PAR1" + bytes(500)):
            path.write_bytes(foreign)
            with pytest.raises(DamagedStoreError, match=path.name):
                open_it(store)
        path.write_bytes(octets)


def test_a_sound_file_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    filled().save(tmp_path / "other")
    others = {role(path): path for path in files(tmp_path / "other")}
    refused = set()
    for path in files(store):
        octets, other = path.read_bytes(), others[role(path)].read_bytes()
        if role(path) != "manifest" and octets != other:
            path.write_bytes(other)
            with pytest.raises(DamagedStoreError, match="not the file that the manifest names"):
                open_it(store)
            path.write_bytes(octets)
            refused.add(role(path))
    assert "segment" in refused


def change_manifest(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as one who knows the format would."""
    path = next(store.glob("manifest-*"))
    said = json.loads(path.read_text())["manifest"]
    change(said)
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"manifest": said, "checksum": zlib.crc32(text.encode())}))


def test_a_newer_store_is_refused(store: Path) -> None:
    change_manifest(store, lambda said: said.update(version=2))
    with pytest.raises(NewerStoreError, match=r"-00000001\.json: it has version 2") as caught:
        open_it(store)
    assert caught.value.code == "newer-store"


def test_a_newer_file_is_refused(store: Path) -> None:
    path = next(store.glob("book-*"))
    octets = bytearray(path.read_bytes())
    octets[8:12] = struct.pack("<I", 2)
    octets[32:36] = struct.pack("<I", zlib.crc32(octets[:32]))
    path.write_bytes(octets)
    with pytest.raises(NewerStoreError, match="it has version 2") as caught:
        open_it(store)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["parts"][0].pop("files"),
        lambda said: said["parts"][0]["files"].pop("book"),
        lambda said: said["parts"][0].update(segments=[BAD_FILE]),
        lambda said: said["parts"][0]["facts"].pop("engine"),
        lambda said: said.update(format="something else"),
        lambda said: said["parts"][0]["files"].update(book=said["parts"][0]["files"]["index"]),
        lambda said: said.update(number=2),
        lambda said: said.update(kind="something else"),
        lambda said: said.update(kind="changes"),
    ],
    ids=[
        "no files",
        "no book",
        "a name that leads out",
        "no engine",
        "format",
        "the wrong role",
        "number",
        "kind",
        "changes that are none",
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change: Any, store: Path) -> None:
    change_manifest(store, change)
    with pytest.raises(DamagedStoreError, match=str(store)):
        open_it(store)


def test_without_verification_sizes_and_headers_are_still_looked_at(store: Path) -> None:
    expected = seen(open_it(store), events())
    opened = tocsin.Matcher.open(store, clock=lambda: 1_000.0, verify=False)
    assert seen(opened, events()) == expected
    path = next(store.glob("segment-*"))
    octets = path.read_bytes()
    path.write_bytes(octets[:-64])
    with pytest.raises(DamagedStoreError, match="cut off"):
        tocsin.Matcher.open(store, verify=False)
    path.write_bytes(octets[:70] + b"\xff" + octets[71:])
    with pytest.raises(DamagedStoreError, match="the checksum of its header is wrong"):
        tocsin.Matcher.open(store, verify=False)


def test_where_there_is_no_store_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="there is no such folder"):
        tocsin.Matcher.open(tmp_path / "nowhere")
    with pytest.raises(NoStoreError, match="there is no subscription store"):
        tocsin.Matcher.open(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(NoStoreError):
        tocsin.Matcher.open(tmp_path / "file")
    for path in ("", "a\0b"):
        with pytest.raises(ArgumentError, match="is no path"):
            tocsin.Matcher.open(path)
        with pytest.raises(ArgumentError, match="is no path"):
            tocsin.Matcher().save(path)
    with pytest.raises(ArgumentError, match="a path must be"):
        tocsin.Matcher.open(5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a path must be"):
        tocsin.Matcher().save(5)  # type: ignore[arg-type]
