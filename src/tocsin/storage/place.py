"""Place: the one interface to the file systems on which stores and pipelines keep their files.

Enters: a path, or a URL. Leaves: a folder in which a small file is committed once: exclusively, so
that one of several writers succeeds, atomically and durably. This is what orders the commits of
several writers. Large files have names that are used once; `local` says where they can be mapped.

There are three kinds: a folder of this machine (`local`), a file system that fsspec knows
(`remote`), and one that Spark reaches through Hadoop (`tocsin.spark.hadoop`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from tocsin.errors import ArgumentError
from tocsin.storage.local import LocalPlace
from tocsin.storage.remote import FsspecPlace

T = TypeVar("T")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


@runtime_checkable
class Place(Protocol):
    """A folder of files. Names may lead into folders below it (`pins/a.json`).

    What the file system refuses is an OSError.
    """

    @property
    def is_local(self) -> bool:
        """Whether the files themselves can be mapped into memory, without a copy."""

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file."""

    def exists(self) -> bool:
        """Whether the folder exists."""

    def is_file(self) -> bool:
        """Whether there is a file where the folder should be."""

    def names(self, under: str = "") -> list[str]:
        """Return the names in the folder or one below it, sorted; none if it does not exist."""

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError."""

    def commit_once(self, name: str, octets: bytes) -> None:
        """Create a small file, whole and durable; raise FileExistsError if the name is taken."""

    def replace(self, name: str, octets: bytes) -> None:
        """Create or replace a small file."""

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have `write` write a large file at a local path; return its result."""

    def local(self, name: str) -> Path:
        """Return where a large file can be mapped into memory; it need not exist."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if that is unknown."""

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""

    def synced_sizes(self, under: str) -> dict[str, int]:
        """Return the sizes of the files in a folder that another process wrote, made durable."""

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether `local` gives a file that need not be verified any more."""

    def trust(self, name: str, checksum: int) -> None:
        """Note that the file that `local` gives was verified."""

    def locked(self) -> AbstractContextManager[None]:
        """Hold a lock against other processes of this machine that commit, pin or vacuum."""


def to_place(path: object) -> Place:
    """Return the place of a path or URL; a place is returned as it is.

    URLs are reached through fsspec. Raises ArgumentError for anything that is no path, and
    StoreError for a URL that cannot be used.
    """
    if isinstance(path, Place):
        return path
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"a path must be a string or a Path, not {path!r}")
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path")
    local = to_local_path(text)
    return FsspecPlace(text) if local is None else LocalPlace(local)


def to_local_path(text: str) -> Path | None:
    """Return the local path that a path or URL names, or None."""
    if text.startswith("file:"):
        return Path("/" + text.removeprefix("file:").lstrip("/"))
    return None if _URL.match(text) else Path(text)
