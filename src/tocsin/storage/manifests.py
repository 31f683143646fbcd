"""Manifests: one immutable, numbered file for each version of a store.

Enters: the files and facts of a version. Leaves: `manifest-00000007.json`, and the version that is
read from it. A version is a *base*, which names all files of the index and the catalog, by parts,
or *changes*, which names one file with a batch of changes to the version before. A writer takes a
number by creating the file exclusively.
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
"""Eight digits; more from version 100,000,000 on."""


@dataclass(frozen=True)
class Part:
    """The output of one task: facts, files by role, and segments in the order of their ids."""

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
    """One version; a base replaces the versions up to `covers`."""

    number: int
    kind: Literal["base", "changes"]
    facts: dict[str, Any]
    made_at: int
    """Microseconds since 1970."""
    covers: int = 0
    parts: list[Part] = field(default_factory=list)
    changes: FileEntry | None = None
    id: str = ""
    """A unique name, as numbers can be taken twice; empty in manifests of earlier releases."""
    follows: str = ""
    """The id of the version before."""

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
    """List the folder; return the numbers of its versions, in order."""
    matches = [match for name in place.names() if (match := MANIFEST.fullmatch(name))]
    return sorted(int(match[1]) for match in matches)


def newest(place: Place) -> int:
    """Return the number of the newest version; raise NoStoreError without a store."""
    try:
        versions = numbers(place)
    except NotADirectoryError:
        versions = []
    except OSError as error:
        raise StoreError(str(place), f"cannot be read: {error.strerror or error}") from error
    if not versions:
        here = place.exists()
        reason = "there is no subscription store" if here else "there is no such folder"
        raise NoStoreError(str(place), reason)
    return versions[-1]


def oldest_openable(place: Place, versions: Sequence[int]) -> int:
    """Return the oldest of the versions of a place that can be opened: its first base.

    Changes before it are there only because a later base was made without them.
    """
    return next(number for number in versions if read(place, number).kind == "base")


def create(place: Place, manifest: Manifest) -> None:
    """Commit a version; raise FileExistsError if its number is taken."""
    values = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    envelope = {"checksum": _checksum(values), "manifest": values}
    place.commit_once(name_of(manifest.number), json.dumps(envelope, indent=1).encode())


def read(place: Place, number: int) -> Manifest:
    """Return the manifest of a version; raise DamagedStoreError if it is missing or damaged."""
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
    values = envelope["manifest"]
    if envelope["checksum"] != _checksum(values):
        raise DamagedStoreError(where, "its checksum is wrong")
    try:
        if values["format"] != FORMAT:
            raise DamagedStoreError(where, "it is not the manifest of a subscription store")
        check_version(where, values["version"], VERSION)
        manifest = _manifest(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedStoreError(where, f"it is malformed: {error}") from error
    if manifest.number != number:
        raise DamagedStoreError(where, f"it is the manifest of version {manifest.number}")
    return manifest


def _manifest(values: dict[str, Any]) -> Manifest:
    if values["kind"] not in ("base", "changes"):
        raise ValueError(f"a version cannot be {values['kind']!r}")
    parts = [
        Part(
            of["facts"],
            {role: _written(file) for role, file in of["files"].items()},
            [_written(file) for file in of["segments"]],
        )
        for of in values["parts"]
    ]
    changes = None if values["changes"] is None else _written(values["changes"])
    if (values["kind"] == "changes") != (changes is not None):
        raise ValueError("its kind does not fit its files")
    return Manifest(
        int(values["number"]),
        values["kind"],
        values["facts"],
        int(values["made_at"]),
        int(values["covers"]),
        parts,
        changes,
        str(values.get("id", "")),
        str(values.get("follows", "")),
    )


def _written(of: dict[str, Any]) -> FileEntry:
    if not NAME.fullmatch(of["name"]):
        raise ValueError(f"no file is called {of['name']!r}")
    return FileEntry(**of)


def _checksum(values: object) -> int:
    """Return the checksum of a manifest's values, independent of their layout."""
    return zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
