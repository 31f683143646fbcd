"""A folder of files under a manifest: what a subscription store is on disk.

Enters: facts, and parts to be written. Leaves: a folder, and from it the facts and parts again.
Files have names that are used once and never change. `manifest.json` names those that count; a save
writes new files beside the old ones, swaps the manifest at once, and then removes what no manifest
names. So whatever happens on the way, the folder holds the old store or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tocsin.errors import DamagedStoreError, NoStoreError, StoreError
from tocsin.parts import Parts
from tocsin.store.container import File, Written, check_version, read_file, write_file

FORMAT = "tocsin subscription store"
VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"[a-z]+-[0-9a-f]{32}\.tocsin")
_LEFT = re.compile(rf"{_NAME.pattern}(\.new)?|manifest\.json\.new")
"""What may be removed where no manifest names it."""

Taken: TypeAlias = Callable[[], Parts]
"""Gives parts when they are about to be written."""


class Contents(NamedTuple):
    """What is saved: facts; files by role, written anew; segments by name, written once."""

    facts: dict[str, Any]
    files: Mapping[str, Taken]
    segments: Mapping[str, Taken]


class Opened(NamedTuple):
    """What was saved; segments are in their order."""

    facts: dict[str, Any]
    files: dict[str, File]
    segments: list[Parts]


@dataclass(frozen=True)
class Manifest:
    """The files of a store. `number` counts the saves."""

    number: int
    facts: dict[str, Any]
    files: dict[str, Written]
    segments: list[Written]

    def names(self) -> set[str]:
        """Return the names of all files."""
        return {written.name for written in (*self.files.values(), *self.segments)}


def new_name() -> str:
    """Return a name that nothing else has."""
    return uuid.uuid4().hex


def save(path: Path, contents: Contents) -> None:
    """Write a store, or replace the one that is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            old = _find_old(path)
            try:
                manifest = _write_files(path, contents, old)
                _write_manifest(path, manifest)
            except BaseException:
                _tidy(path, old)
                raise
            _tidy(path, manifest)
    except FileExistsError:
        raise NoStoreError(str(path), "it is a file, not a store; nothing was saved") from None
    except OSError as error:
        raise StoreError(str(path), f"cannot be written: {error.strerror or error}") from error


def open_store(path: Path, verify: bool, late: Collection[str] = ()) -> Opened:
    """Map a store into memory, and verify all but the files of some roles, or nothing."""
    manifest = read_manifest(path)
    while True:
        try:
            files = {role: read_file(path, file) for role, file in manifest.files.items()}
            segments = [read_file(path, file) for file in manifest.segments]
            if verify:
                for file in (*(files[role] for role in files if role not in late), *segments):
                    file.verify()
            return Opened(manifest.facts, files, [segment.parts for segment in segments])
        except DamagedStoreError:
            newer = read_manifest(path)
            if newer == manifest:
                raise
            manifest = newer  # replaced by a save while we were reading


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store."""
    place = path / MANIFEST
    try:
        envelope = json.loads(place.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = "there is no subscription store" if path.is_dir() else "there is no such folder"
        raise NoStoreError(str(path), reason) from None
    except OSError as error:
        raise StoreError(str(place), f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise DamagedStoreError(str(place), "it is not JSON: it was cut off or changed") from None
    if not isinstance(envelope, dict) or envelope.keys() != {"checksum", "manifest"}:
        raise DamagedStoreError(str(place), "it is not the manifest of a subscription store")
    said = envelope["manifest"]
    if envelope["checksum"] != _checksum(said):
        raise DamagedStoreError(str(place), "its checksum is wrong")
    try:
        if said["format"] != FORMAT:
            raise DamagedStoreError(str(place), "it is not the manifest of a subscription store")
        check_version(place, said["version"], VERSION)
        files = {role: _written(of) for role, of in said["files"].items()}
        segments = [_written(of) for of in said["segments"]]
        return Manifest(said["number"], said["facts"], files, segments)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedStoreError(str(place), f"it makes no sense: {error}") from error


def _written(of: dict[str, Any]) -> Written:
    if not _NAME.fullmatch(of["name"]):
        raise ValueError(f"no file is called {of['name']!r}")
    return Written(**of)


def _find_old(path: Path) -> Manifest | None:
    """Return the manifest of the store that is to be replaced; refuse any other folder."""
    if (path / MANIFEST).exists():
        return read_manifest(path)
    if any(not _LEFT.fullmatch(entry.name) for entry in path.iterdir()):
        raise NoStoreError(str(path), "the folder holds something else; nothing was saved")
    return None


def _write_files(path: Path, contents: Contents, old: Manifest | None) -> Manifest:
    known = {written.name: written for written in old.segments} if old else {}
    segments = []
    for name, taken in contents.segments.items():
        file = path / f"segment-{name}.tocsin"
        held = known.get(file.name)
        is_there = held is not None and file.exists() and file.stat().st_size == held.n_bytes
        segments.append(held if held is not None and is_there else write_file(file, taken()))
    files = {
        role: write_file(path / f"{role}-{new_name()}.tocsin", taken())
        for role, taken in contents.files.items()
    }
    return Manifest(old.number + 1 if old else 1, contents.facts, files, segments)


def _write_manifest(path: Path, manifest: Manifest) -> None:
    said = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    temporary = path / f"{MANIFEST}.new"
    with temporary.open("w") as file:
        json.dump({"checksum": _checksum(said), "manifest": said}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(path)  # the names of the files, before the manifest names them
    temporary.replace(path / MANIFEST)
    _sync(path)


def _checksum(said: object) -> int:
    """Return the checksum of what a manifest says, however it is laid out."""
    return zlib.crc32(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())


def _tidy(path: Path, manifest: Manifest | None) -> None:
    """Remove the files that no manifest names."""
    named = manifest.names() if manifest else set()
    for entry in list(path.iterdir()):
        if _LEFT.fullmatch(entry.name) and entry.name not in named:
            entry.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the names in a folder written to the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until nobody else saves into a folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
