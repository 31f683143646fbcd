"""Manifests: one for each version of a store, numbered, and never changed.

Enters: what a version is made of. Leaves: `manifest-00000007.json`, and from it the same again. A
version is a *base*, which names all files of the index and the book, by parts; or *changes*, which
names one file with a batch of changes to the version before. The number is taken by creating the
file, which only one writer can.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tocsin.errors import DamagedStoreError, NoStoreError, StoreError
from tocsin.storage.container import FileEntry, check_version
from tocsin.storage.place import Place

FORMAT = "tocsin subscription store"
VERSION = 1
NAME = re.compile(r"[a-z]+-[0-9a-f]{32}\.tocsin")
MANIFEST = re.compile(r"manifest-([0-9]{8}|[1-9][0-9]{8,17})\.json")
"""Eight digits, and as many as it takes from version 100,000,000 on."""


@dataclass(frozen=True)
class Part:
    """What one task built: facts of it, files by role, and segments in the order of their ids."""

    facts: dict[str, Any]
    files: dict[str, FileEntry]
    segments: list[FileEntry]

    def names(self) -> set[str]:
        """Return the names of all files."""
        return {written.name for written in (*self.files.values(), *self.segments)}

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(written.n_bytes for written in (*self.files.values(), *self.segments))


@dataclass(frozen=True)
class Manifest:
    """One version. A base takes the place of all versions up to `covers`, and of no later ones."""

    number: int
    kind: Literal["base", "changes"]
    facts: dict[str, Any]
    made_at: int
    """Microseconds since 1970."""
    covers: int = 0
    parts: list[Part] = field(default_factory=list)
    changes: FileEntry | None = None
    id: str = ""
    """Tells it from others that took the same number; empty in those of earlier releases."""
    follows: str = ""
    """The id of the version before, as it was when this one was committed."""

    def names(self) -> set[str]:
        """Return the names of all files."""
        names = {name for part in self.parts for name in part.names()}
        return names | ({self.changes.name} if self.changes else set())

    def files(self) -> list[FileEntry]:
        """Return all files."""
        changed = [self.changes] if self.changes else []
        return changed + [w for part in self.parts for w in (*part.files.values(), *part.segments)]

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all files."""
        changed = self.changes.n_bytes if self.changes else 0
        return changed + sum(part.n_bytes for part in self.parts)


def name_of(number: int) -> str:
    """Return the name of a version's manifest."""
    return f"manifest-{number:08d}.json"


def numbers(place: Place) -> list[int]:
    """Return the numbers of all versions that are there, in order."""
    found = [match for name in place.names() if (match := MANIFEST.fullmatch(name))]
    return sorted(int(match[1]) for match in found)


def newest(place: Place) -> int:
    """Return the number of the newest version; raise where there is no store."""
    try:
        found = numbers(place)
    except NotADirectoryError:
        found = []
    except OSError as error:
        raise StoreError(str(place), f"cannot be read: {error.strerror or error}") from error
    if not found:
        here = place.exists()
        reason = "there is no subscription store" if here else "there is no such folder"
        raise NoStoreError(str(place), reason)
    return found[-1]


def oldest_openable(place: Place, found: Sequence[int]) -> int:
    """Return the oldest of the versions of a place that can be opened: its first base.

    Changes before it are there only because a later base was made without them.
    """
    return next(number for number in found if read(place, number).kind == "base")


def create(place: Place, manifest: Manifest) -> None:
    """Commit a version; raise FileExistsError where another has the number."""
    said = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    envelope = {"checksum": _checksum(said), "manifest": said}
    place.commit_once(name_of(manifest.number), json.dumps(envelope, indent=1).encode())


def read(place: Place, number: int) -> Manifest:
    """Read the manifest of a version."""
    where = place.path_of(name_of(number))
    try:
        envelope = json.loads(place.read(name_of(number)))
    except FileNotFoundError:
        reason = f"there is no version {number}: it never was, or was removed"
        raise DamagedStoreError(where, reason) from None
    except OSError as error:
        raise StoreError(where, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise DamagedStoreError(where, "it is not JSON: it was cut off or changed") from None
    if not isinstance(envelope, dict) or envelope.keys() != {"checksum", "manifest"}:
        raise DamagedStoreError(where, "it is not the manifest of a subscription store")
    said = envelope["manifest"]
    if envelope["checksum"] != _checksum(said):
        raise DamagedStoreError(where, "its checksum is wrong")
    try:
        if said["format"] != FORMAT:
            raise DamagedStoreError(where, "it is not the manifest of a subscription store")
        check_version(where, said["version"], VERSION)
        manifest = _manifest(said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedStoreError(where, f"it makes no sense: {error}") from error
    if manifest.number != number:
        raise DamagedStoreError(where, f"it is the manifest of version {manifest.number}")
    return manifest


def _manifest(said: dict[str, Any]) -> Manifest:
    if said["kind"] not in ("base", "changes"):
        raise ValueError(f"a version cannot be {said['kind']!r}")
    parts = [
        Part(
            of["facts"],
            {role: _written(file) for role, file in of["files"].items()},
            [_written(file) for file in of["segments"]],
        )
        for of in said["parts"]
    ]
    changes = None if said["changes"] is None else _written(said["changes"])
    if (said["kind"] == "changes") != (changes is not None):
        raise ValueError("what it is does not fit what it names")
    return Manifest(
        int(said["number"]),
        said["kind"],
        said["facts"],
        int(said["made_at"]),
        int(said["covers"]),
        parts,
        changes,
        str(said.get("id", "")),
        str(said.get("follows", "")),
    )


def _written(of: dict[str, Any]) -> FileEntry:
    if not NAME.fullmatch(of["name"]):
        raise ValueError(f"no file is called {of['name']!r}")
    return FileEntry(**of)


def _checksum(said: object) -> int:
    """Return the checksum of what a manifest says, however it is laid out."""
    return zlib.crc32(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())
