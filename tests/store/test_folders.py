"""Saving into folders: at once or not at all, and nothing that is not ours is touched."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.store.stores import files

import tocsin
from tocsin.errors import DamagedStoreError, NoStoreError, StoreError
from tocsin.matcher import Matcher


def matcher_of(*texts: str) -> Matcher:
    matcher = tocsin.Matcher()
    for i, text in enumerate(texts):
        matcher.subscribe(i, text)
    return matcher


def match(path: Path) -> list[Any]:
    return sorted(tocsin.Matcher.open(path).match({"x": 1}))


def grow_old(path: Path) -> None:
    """Make all files older than those that somebody may be about to name."""
    for file in files(path):
        os.utime(file, (1_000, 1_000))


class Crash(BaseException):
    """The machine is gone."""


class Crashing:
    """Lets so many operations on a folder happen, and none after them."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.n_left = 0
        sys.addaudithook(self._hear)  # stays for good, so there is one for all tests

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None or event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        if threading.current_thread() is threading.main_thread() and self.folder in str(args[0]):
            self.n_left -= 1
            if self.n_left < 0:
                raise Crash

    @contextmanager
    def after(self, n_operations: int, folder: Path) -> Iterator[None]:
        self.folder, self.n_left = str(folder), n_operations
        try:
            yield
        finally:
            self.folder = None


@pytest.fixture(scope="module")
def crashing() -> Crashing:
    return Crashing()


def test_a_crash_at_any_point_leaves_the_old_store_or_the_new(
    crashing: Crashing, tmp_path: Path
) -> None:
    old, new = matcher_of("x = 1", "x < 2"), matcher_of("x = 2", "x = 3", "x > 0", "x <> 4")
    new.profile([{"x": 1}])
    old.save(tmp_path / "old")
    answers = []
    for n in range(200):
        path = Path(shutil.copytree(tmp_path / "old", tmp_path / f"at{n}"))
        try:
            with crashing.after(n, path):
                new.save(path)
        except Crash:
            answers.append(match(path))
            assert answers[-1] in ([0, 1], [2, 3])
            grow_old(path)
            new.save(path, grace=0)  # and what was left over does no harm, and goes
        else:
            break
        assert match(path) == [2, 3]
        assert len(files(path)) == 6
    assert len(answers) > 12
    assert answers == sorted(answers), "once it is the new one it stays so"
    assert answers[0] == [0, 1]
    assert answers[-1] == [2, 3]


def test_a_crash_of_the_first_save_leaves_nothing_in_the_way(
    crashing: Crashing, tmp_path: Path
) -> None:
    for n in range(200):
        path = tmp_path / f"at{n}"
        try:
            with crashing.after(n, path):
                matcher_of("x = 1").save(path)
        except Crash:
            if path.exists() and not list(path.glob("manifest-*.json")):
                with pytest.raises(NoStoreError):
                    match(path)
            matcher_of("x = 1", "x = 1").save(path)
            assert match(path) == [0, 1]
        else:
            break
    assert n > 8


def test_a_save_that_fails_leaves_the_old_store_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matcher_of("x = 1").save(path)
    before = {file: file.read_bytes() for file in files(path)}
    failing = tocsin.Matcher(engine="tree")
    failing._saved_options["odd"] = object()  # no JSON: fails when the manifest is written
    with pytest.raises(TypeError):
        failing.save(path)
    assert {file: file.read_bytes() for file in files(path)} == before


def test_what_a_folder_holds_besides_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matcher_of("x = 1").save(path)
    (path / "notes.txt").write_text("mine")
    (path / "segment-of-mine.tocsin").write_text("mine")
    matcher_of("x = 1", "x = 1").save(path, grace=0)
    assert match(path) == [0, 1]
    assert (path / "notes.txt").read_text() == "mine"
    assert (path / "segment-of-mine.tocsin").exists()
    assert len(files(path)) == 7


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NoStoreError, match="holds something else; nothing was saved"):
        matcher_of("x = 1").save(tmp_path)
    with pytest.raises(NoStoreError, match="it is a file"):
        matcher_of("x = 1").save(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="cannot be written"):
        matcher_of("x = 1").save(tmp_path / "notes.txt" / "below")
    assert [path.name for path in files(tmp_path)] == ["notes.txt"]


def test_a_damaged_store_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matcher_of("x = 1").save(path)
    (path / "manifest-00000001.json").write_text("{")
    before = files(path)
    with pytest.raises(DamagedStoreError):
        matcher_of("x = 2").save(path)
    assert files(path) == before


def test_folders_are_made_where_they_are_missing(tmp_path: Path) -> None:
    matcher_of("x = 1").save(str(tmp_path / "a" / "b"))
    assert match(tmp_path / "a" / "b") == [0]
    (tmp_path / "empty").mkdir()
    matcher_of("x = 1").save(tmp_path / "empty")
    assert match(tmp_path / "empty") == [0]


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    matcher_of("x = 1").save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert match(tmp_path / "b") == [0]


def test_segments_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matcher = tocsin.Matcher(merges=False)
    for i in range(3):
        matcher.subscribe(i, "x = 1")
        matcher.save(path)
    first = {file.name: file.stat().st_mtime_ns for file in path.glob("segment-*")}
    assert len(first) == 3
    opened = tocsin.Matcher.open(path)
    opened.subscribe(3, "x = 1")
    opened.unsubscribe(1)
    opened.save(path)
    second = {file.name: file.stat().st_mtime_ns for file in path.glob("segment-*")}
    assert len(second) == 4
    assert {name: second[name] for name in first} == first
    assert match(path) == [0, 2, 3]
    opened.save(tmp_path / "other")
    shutil.rmtree(path)
    assert match(tmp_path / "other") == [0, 2, 3]


def test_a_segment_whose_file_went_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matcher = matcher_of("x = 1")
    matcher.save(path)
    next(path.glob("segment-*")).unlink()
    matcher.save(path)
    assert match(path) == [0]


def test_a_store_can_be_opened_while_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store"
    matchers = [matcher_of("x = 1"), matcher_of("x = 2", "x = 1")]
    matchers[0].save(path)
    stopped = threading.Event()

    def write(matcher: Matcher) -> None:
        while not stopped.is_set():
            matcher.save(path, grace=0)

    writers = [threading.Thread(target=write, args=(matcher,)) for matcher in matchers]
    for writer in writers:
        writer.start()
    try:
        found = [match(path) for _ in range(60)]
    finally:
        stopped.set()
        for writer in writers:
            writer.join()
    assert all(ids in ([0], [1]) for ids in found)
    assert len(files(path)) == 5
