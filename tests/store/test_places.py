"""Stores behind URLs: copies that are ours and verified once, and files that are created once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.store.conformance import check_place, check_store, check_that_one_writer_wins

import tocsin
from tocsin.errors import DamagedStoreError, StoreError
from tocsin.storage import container, disk
from tocsin.storage.place import to_place
from tocsin.storage.remote import FsspecPlace
from tocsin.store.subscription_store import SubscriptionStore

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.arrow import (  # type: ignore[import-untyped] # noqa: E402
    ArrowFSWrapper,
)
from fsspec.implementations.memory import (  # type: ignore[import-untyped] # noqa: E402
    MemoryFileSystem,
)
from pyarrow import fs  # noqa: E402

PLANTED = "segment-00000000000000000000000000000000.tocsin"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TOCSIN_CACHE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def url() -> Iterator[str]:
    MemoryFileSystem.store.clear()
    yield "memory://places/store"
    MemoryFileSystem.store.clear()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_local_folder_is_a_place(tmp_path: Path) -> None:
    check_place(to_place(tmp_path / "deep" / "folder"))
    check_that_one_writer_wins(to_place(tmp_path / "race"), 8)
    check_store(to_place(tmp_path / "store"))


def test_a_url_that_fsspec_knows_is_a_place(temporary: Path, url: str) -> None:
    check_place(to_place("memory://places/deep/folder"))
    check_store(to_place(url))


@pytest.mark.parametrize("whose", ["root", "folder", "link"])
def test_a_folder_that_others_can_write_to_is_not_used_for_copies(
    temporary: Path, url: str, whose: str
) -> None:
    place = to_place(url)
    assert isinstance(place, FsspecPlace)
    copies = place.copies.path
    if whose == "link":
        (temporary / "elsewhere").mkdir()
        copies.parent.symlink_to(temporary / "elsewhere")
    copies.mkdir(parents=True)
    (copies / PLANTED).write_bytes(b"planted")
    if whose != "link":
        copies.parent.chmod(0o700)
        (copies.parent if whose == "root" else copies).chmod(0o777)
    assert not place.local(PLANTED).exists(), "what another put there is not used"
    store = SubscriptionStore.create(url, engine="oracle")
    store.subscribe("a", "x = 1")
    assert store.matcher().match({"x": 1}) == ["a"]


def test_copies_lie_in_a_folder_that_only_we_can_enter(temporary: Path, url: str) -> None:
    SubscriptionStore.create(url, engine="oracle")
    place: Any = to_place(url)
    assert place.copies.folder == place.copies.path
    assert mode_of(place.copies.path) == mode_of(place.copies.path.parent) == 0o700
    place.copies.path.parent.chmod(0o755)  # as earlier releases made it: closed to writers
    assert to_place(url).copies.folder == place.copies.path  # type: ignore[attr-defined]
    assert mode_of(place.copies.path.parent) == 0o700


def test_a_named_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path))
    place: Any = to_place(url)
    place.copies.path.mkdir(mode=0o777)
    place.copies.path.chmod(0o777)
    with pytest.raises(StoreError, match="TOCSIN_CACHE"):
        SubscriptionStore.create(url)
    place.copies.path.chmod(0o700)
    SubscriptionStore.create(url)


def test_a_copy_is_verified_once_where_it_was_made(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "writer"))
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "x = 1")
    matcher.save(url)
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "executor"))
    verified: list[str] = []
    verify = container._verify

    def noted(path: Path, sums: Any) -> None:
        verified.append(path.name)
        verify(path, sums)

    monkeypatch.setattr(container, "_verify", noted)
    for _ in range(3):
        opened = SubscriptionStore(url).matcher(verify=False)
        assert opened.match({"x": 1}) == ["a"]
        opened.explain("a")
    assert verified, "whoever makes the copy verifies it"
    assert len(set(verified)) == len(verified), "once"
    copies: Any = to_place(url)
    segment = next(copies.copies.folder.glob("segment-*.tocsin"))
    octets = bytearray(segment.read_bytes())
    damaged = bytes(octet ^ 1 for octet in octets[-1_000:])  # arrays, and what lies between them
    segment.write_bytes(octets[:-1_000] + damaged)
    with pytest.raises(DamagedStoreError, match=segment.name):
        SubscriptionStore(url).matcher(verify=False)


class _Handler(fs.FSSpecHandler):  # type: ignore[misc]
    """A file system of Arrow that renames as HDFS does: not to a name that is taken."""

    def get_type_name(self) -> str:
        return "hdfs"

    def move(self, src: str, dest: str) -> None:
        if self.fs.exists(dest):
            raise OSError(f"renaming '{src}' to '{dest}' failed")
        self.fs.mv(src, dest)


class HdfsLike(ArrowFSWrapper):  # type: ignore[misc]
    protocol = "hdfslike"

    def __init__(self, **of: Any) -> None:
        super().__init__(fs.PyFileSystem(_Handler(MemoryFileSystem())), **of)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.split("://")[-1].lstrip("/")


def test_on_hdfs_a_file_is_created_by_renaming(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    place: Any = to_place(url)
    place._fs, place._root = HdfsLike(), "/places/hdfs"
    place.protocol, place.is_exclusive = "hdfs", False
    place.commit_once("manifest-00000001.json", b"one")
    with pytest.raises(FileExistsError):
        place.commit_once("manifest-00000001.json", b"two")
    monkeypatch.setattr(place, "size", lambda name: None)  # two writers look at once
    with pytest.raises(FileExistsError):
        place.commit_once("manifest-00000001.json", b"two")
    assert place.read("manifest-00000001.json") == b"one"
    assert place.names() == ["manifest-00000001.json"], "no draft and no probe stays"


class Forgetful(MemoryFileSystem):  # type: ignore[misc]
    """Ignores that a file is to be created only where there is none."""

    protocol = "forgetful"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def _open(self, path: str, mode: str = "rb", **of: Any) -> Any:
        return super()._open(path, mode.replace("x", "w"), **of)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("forgetful://").strip("/")


def test_a_file_system_that_replaces_what_is_to_be_created_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    place = to_place("forgetful://bucket/store")
    errors: list[Exception] = []

    def create(content: bytes) -> None:
        try:
            place.commit_once("manifest-00000002.json", content)
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=create, args=(content,)) for content in (b"A", b"B")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(errors) == 2
    assert all(isinstance(error, StoreError) for error in errors)
    assert "lets a second writer replace" in str(errors[0])
    assert place.names() == []
    with pytest.raises(StoreError, match="lets a second writer replace"):
        SubscriptionStore.create("forgetful://bucket/other")


def test_folders_that_are_made_are_synced_up_to_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync_folder", synced.append)
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize(("number", "is_hidden"), [("EINVAL", True), ("ENOTSUP", True),
                                                   ("EIO", False), ("ENOSPC", False),
                                                   ("EDQUOT", False)])  # fmt: skip
def test_an_error_of_a_sync_counts_unless_there_is_nothing_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, is_hidden: bool
) -> None:
    import errno

    def refuse(file: int) -> None:
        raise OSError(getattr(errno, number), number)

    monkeypatch.setattr(os, "fsync", refuse)
    if is_hidden:
        disk.write_file(tmp_path / "file", [b"content"])
    else:
        with pytest.raises(OSError, match=number):
            disk.write_file(tmp_path / "file", [b"content"])
        assert not (tmp_path / "file").exists()
