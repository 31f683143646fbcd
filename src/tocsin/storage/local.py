"""A place on this machine: a folder of a local disk, or of a network file system mounted as one.

A file is committed by writing it under a hidden name, syncing it, and hard-linking it to its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from tocsin.storage import disk

T = TypeVar("T")


class LocalPlace:
    """A folder that this machine can map into memory; see `Place` for the methods."""

    is_local = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def path_of(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path / name)

    def exists(self) -> bool:
        """Whether the folder exists."""
        return self.path.is_dir()

    def is_file(self) -> bool:
        """Whether there is a file where the folder should be."""
        return self.path.is_file()

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none if there is no folder."""
        return disk.names(self.path / under)

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError."""
        return disk.read_file(self.path / name)

    def commit_once(self, name: str, octets: bytes) -> None:
        """Create a file, whole and durable; raise FileExistsError if the name is taken."""
        target = self.path / name
        disk.create_file(target, draft_of(target), octets)

    def replace(self, name: str, octets: bytes) -> None:
        """Create or replace a file, whole and durable."""
        target = self.path / name
        disk.replace_file(target, draft_of(target), octets)

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have `write` write a large file; return its result."""
        disk.make_folder(self.path)
        return write(self.path / name)

    def local(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        disk.remove(self.path / name)

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
        disk.remove_tree(self.path / name)

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if that is unknown."""
        return disk.age(self.path / name)

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        return disk.size(self.path / name)

    def synced_sizes(self, under: str) -> dict[str, int]:
        """Return the sizes of the files in a folder, after syncing the files and the folder."""
        folder = self.path / under
        sizes = {}
        for name in self.names(under):
            path = folder / name
            if path.is_file():
                disk.sync_file(path)
                sizes[name] = path.stat().st_size
        if sizes:  # another process may have created the folder and its parents
            for each in (folder, *folder.parents):
                disk.sync_folder(each)
                if each == self.path.parent:
                    break
        return sizes

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Return True: `local` is the file itself, not a copy that could differ."""
        return True

    def trust(self, name: str, checksum: int) -> None:
        """Do nothing: every reader opens the same file."""

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the folder, against the other processes of this machine."""
        return disk.locked(self.path)


def draft_of(target: Path) -> Path:
    """Return a hidden name for a file that is not committed yet; Spark and listings skip it."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.new")
