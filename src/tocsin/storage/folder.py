"""The versions of a subscription store on disk: write parts, commit a version, read it, vacuum.

Enters: facts, and parts to write. Leaves: a folder of files under numbered manifests, and the facts
and parts of each of its versions. A file has a name that is used once, and never changes. A commit
writes new files, and then takes the next number by creating its manifest exclusively: whatever
fails, the newest version is the old one or the new one. `vacuum` removes versions that are neither
pinned nor needed by the newest ones.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tocsin.bundle import Parts
from tocsin.errors import ChangedStoreError, DamagedStoreError, NoStoreError, StoreError
from tocsin.storage import manifests, pins
from tocsin.storage.container import FileEntry, OpenedFile, read_file, write_file
from tocsin.storage.manifests import MANIFEST, NAME, Manifest, Part
from tocsin.storage.place import Place

ORPHAN_AGE = 86_400.0
"""Age in seconds from which a file that no manifest names counts as left by a crash."""
GRACE = 600.0
"""Seconds for which a replaced version is retained even if it is not pinned."""
_OURS = re.compile(
    rf"{NAME.pattern}(\.new)?|{MANIFEST.pattern}|\.?{MANIFEST.pattern}\.[0-9a-f]{{32}}\.new|pins|"
    r"probe-[0-9a-f]{32}\.new"
)

_TRIES = 20
"""The number of attempts of a save whose files other writers remove."""

T = TypeVar("T")
MakeParts: TypeAlias = Callable[[], Parts]
"""Makes parts just before they are written."""


class PartContents(NamedTuple):
    """The contents of a part to write: facts, files by role, and segments by name."""

    facts: dict[str, Any]
    files: Mapping[str, MakeParts]
    segments: Mapping[str, MakeParts]


class OpenedPart(NamedTuple):
    """The contents of an opened part; segments are in order."""

    facts: dict[str, Any]
    files: dict[str, OpenedFile]
    segments: list[Parts]


class VersionChain(NamedTuple):
    """The manifests of a version: its base, and the changes since, in order."""

    base: Manifest
    changes: list[Manifest]

    @property
    def number(self) -> int:
        """The version."""
        return max(manifest.number for manifest in (self.base, *self.changes))


def unique_name() -> str:
    """Return a name that no other file has."""
    return uuid.uuid4().hex


def version_chain(place: Place, version: int | None = None) -> VersionChain:
    """Return the manifests of a version; the folder is listed only to find the newest one."""
    number = manifests.newest(place) if version is None else version
    changes: list[Manifest] = []
    while number > 0:
        try:
            manifest = manifests.read(place, number)
        except DamagedStoreError:
            if number == version:
                _refuse_unknown(place, version)
            raise
        if manifest.kind == "base":
            return _completed(place, manifest, changes[::-1])
        changes.append(manifest)
        number -= 1
    if version is not None:
        _refuse_unknown(place, version)
    raise DamagedStoreError(str(place), "it has no base")


def _refuse_unknown(place: Place, version: int) -> None:
    """Raise StoreError if no version of this number was ever committed."""
    newest = manifests.newest(place)
    if version > newest or version < 1:
        raise StoreError(str(place), f"there is no version {version}: the newest is {newest}")


def read_version(place: Place, version: int | None, read: Callable[[VersionChain], T]) -> T:
    """Return what `read` returns of a version; try again if the store was vacuumed meanwhile."""
    return retry_after_vacuum(place, lambda: read(version_chain(place, version)))


def retry_after_vacuum(place: Place, read: Callable[[], T]) -> T:
    """Return what `read` returns; call it again while it fails and there are newer versions."""
    newest = None
    while True:
        try:
            return read()
        except DamagedStoreError:
            before, newest = newest, manifests.newest(place)
            if newest == before:
                raise


def _completed(place: Place, base: Manifest, later: list[Manifest]) -> VersionChain:
    """Add the changes that were committed while a base was made, between it and what it covers."""
    between = [manifests.read(place, n) for n in range(base.covers + 1, base.number)]
    return VersionChain(base, [m for m in between if m.kind == "changes"] + later)


def commit(
    place: Place,
    after: int,
    kind: Any,
    facts: dict[str, Any],
    follows: str | None = None,
    **of: Any,
) -> Manifest:
    """Commit the version after version `after`; raise FileExistsError if another writer was first.

    `follows` is the id of version `after`, if the caller knows it. Raises ChangedStoreError if a
    file of the new version was removed meanwhile, and StoreError for errors of the file system.
    """
    try:
        with place.locked():
            follows = _follows(place, after, follows)
            moment = time.time_ns() // 1000
            manifest = Manifest(
                after + 1, kind, facts, moment, id=unique_name(), follows=follows, **of
            )
            _check_files(place, manifest)
            manifests.create(place, manifest)
            if after and place.size(manifests.name_of(after)) is None:
                _check_order(place, manifest)
    except FileExistsError:
        raise
    except OSError as error:
        raise _cannot_write(place, error) from error
    return manifest


def _follows(place: Place, after: int, known: str | None) -> str:
    """Return the id of a version; raise FileExistsError if it cannot be the newest.

    Versions are removed in order. While a version exists, the number after it is taken or was never
    taken; after one that was removed there may have been others.
    """
    if not after:
        if manifests.numbers(place):
            raise FileExistsError(place.path_of(manifests.name_of(1)))
        return ""
    if place.size(manifests.name_of(after)) is None:
        raise FileExistsError(place.path_of(manifests.name_of(after + 1)))
    return manifests.read(place, after).id if known is None else known


def _check_files(place: Place, manifest: Manifest) -> None:
    """Raise ChangedStoreError if files were removed, as those of a slow writer are."""
    for written in manifest.files():
        if place.size(written.name) != written.n_bytes:
            reason = f"{written.name} was removed before it was committed; begin again"
            raise ChangedStoreError(str(place), reason)


def _check_order(place: Place, manifest: Manifest) -> None:
    """Withdraw a version whose number had been taken and removed before; nothing refers to it.

    On one machine the lock prevents this. On another, the version before may be removed between
    its check and the commit: then there is a later version that does not follow this one.
    """
    later = [number for number in manifests.numbers(place) if number >= manifest.number]
    if later == [manifest.number]:
        return
    if manifest.number not in later:
        raise StoreError(
            str(place), "a change was replaced as it was committed: look whether it was made"
        )
    if manifest.number + 1 in later:
        next_one = manifests.read(place, manifest.number + 1)
        if next_one.follows == manifest.id:
            return
    place.remove(manifests.name_of(manifest.number))
    raise FileExistsError(place.path_of(manifests.name_of(manifest.number)))


def remove_unless_committed(place: Place, number: int, names: Collection[str]) -> None:
    """Remove the files of a failed commit, unless the version exists.

    A commit may fail after its manifest, which names the files, was created.
    """
    with suppress(OSError, StoreError):  # vacuum removes the rest when it is old
        if manifests.name_of(number) not in place.names():
            for name in names:
                place.remove(name)


def write_part(place: Place, contents: PartContents, known: Collection[FileEntry] = ()) -> Part:
    """Write the files of a part; segments among the `known` files that exist are not rewritten."""
    known_files = {written.name: written for written in known}
    written: list[str] = []

    def write(name: str, make: MakeParts) -> FileEntry:
        written.append(name)
        parts = make()
        return place.put(name, lambda path: write_file(path, parts))

    try:
        segments = []
        for name, make in contents.segments.items():
            file = f"segment-{name}.tocsin"
            entry = known_files.get(file)
            if entry is None or not _exists(place, entry):
                entry = write(file, make)
            segments.append(entry)
        files = {
            role: write(f"{role}-{unique_name()}.tocsin", make)
            for role, make in contents.files.items()
        }
        return Part(contents.facts, files, segments)
    except BaseException as error:
        for name in written:
            with suppress(OSError, StoreError):  # vacuum removes the rest when it is old
                place.remove(name)
                place.remove(f"{name}.new")
        if isinstance(error, OSError):
            raise _cannot_write(place, error) from error
        raise


def _exists(place: Place, written: FileEntry) -> bool:
    return place.size(written.name) == written.n_bytes


@contextmanager
def as_store_errors(place: Place) -> Iterator[None]:
    """Raise errors of the file system as a StoreError: the store cannot be written."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(place, error) from error


def _cannot_write(place: Place, error: OSError) -> StoreError:
    return StoreError(str(place), f"cannot be written: {error.strerror or error}")


def replace_store(place: Place, contents: PartContents, grace: float = GRACE) -> Manifest:
    """Write a store, or a base that replaces all its versions; then vacuum it."""
    refuse_foreign_folder(place)
    with as_store_errors(place):
        manifest = _write_base(place, contents)
    with suppress(OSError), place.locked():  # it is saved; the next save removes the rest
        vacuum(place, grace)
    return manifest


def _write_base(place: Place, contents: PartContents) -> Manifest:
    for _ in range(_TRIES):
        there = manifests.numbers(place)
        old = version_chain(place).base if there else None
        known = [w for part in old.parts for w in part.segments] if old else []
        part = write_part(place, contents, known)
        reused = {written.name for written in known}
        while True:
            last = max(manifests.numbers(place), default=0)
            try:
                return commit(place, last, "base", contents.facts, covers=last, parts=[part])
            except FileExistsError:
                continue
            except ChangedStoreError:  # a vacuum removed segments of an older base
                remove_unless_committed(place, last + 1, part.names() - reused)
                break
            except BaseException:
                remove_unless_committed(place, last + 1, part.names() - reused)
                raise
    raise StoreError(str(place), "others replaced it again and again; nothing was saved")


def refuse_foreign_folder(place: Place) -> None:
    """Raise NoStoreError for a folder that holds something other than a store."""
    try:
        names = place.names()
        if not names and not place.exists():
            return
    except NotADirectoryError as error:
        if place.is_file():
            raise NoStoreError(str(place), "it is a file, not a store; nothing was saved") from None
        raise _cannot_write(place, error) from error
    except OSError as error:
        raise _cannot_write(place, error) from error
    is_store = any(MANIFEST.fullmatch(name) for name in names)
    if not is_store and any(not _OURS.fullmatch(name) for name in names):
        raise NoStoreError(str(place), "the folder holds something else; nothing was saved")


def open_part(place: Place, part: Part, verify: bool, late: Collection[str] = ()) -> OpenedPart:
    """Map a part into memory and verify it, but for the files of `late` roles.

    Without `verify`, only a local copy that was not verified before is verified.
    """
    files = {role: _open_file(place, file, verify) for role, file in part.files.items()}
    segments = [_open_file(place, file, verify) for file in part.segments]
    for file in (*(files[role] for role in files if role not in late), *segments):
        file.verify()
    return OpenedPart(part.facts, files, [segment.parts for segment in segments])


def _open_file(place: Place, written: FileEntry, verify: bool) -> OpenedFile:
    """Map a file; its `verify` does nothing if the file is trusted."""
    file = read_file(place.local(written.name), written)
    if not verify and place.is_trusted(written.name, written.checksum):
        return file._replace(verify=lambda: None)

    def check() -> None:
        file.verify()
        place.trust(written.name, written.checksum)

    return file._replace(verify=check)


def vacuum(place: Place, grace: float = 0.0) -> list[str]:
    """Remove the versions that are not needed, and files left by crashes; return the files' names.

    Needed are the newest version, pinned ones, and versions that were the newest less than `grace`
    seconds ago: a reader that knows their number may be about to open or pin them. Manifests are
    removed in the order of their numbers, on which `commit` relies.
    """
    numbers = manifests.numbers(place)
    versions = {number: manifests.read(place, number) for number in numbers}
    oldest = _oldest_needed(place, versions, grace)
    named: set[str] = set()
    dropped: set[str] = set()
    for number, manifest in versions.items():
        if number > oldest.covers:
            named |= manifest.names()
        else:
            dropped |= manifest.names()
            place.remove(manifests.name_of(number))
    garbage = sorted(dropped - named)
    for name in place.names():
        is_orphan = bool(_OURS.fullmatch(name)) and name != "pins" and name not in named
        if is_orphan and not MANIFEST.fullmatch(name) and place.age(name) > ORPHAN_AGE:
            garbage.append(name)
    if not place.is_local:  # a writer on another machine may have committed them by now
        later = [number for number in manifests.numbers(place) if number > numbers[-1]]
        named |= {name for number in later for name in manifests.read(place, number).names()}
        garbage = [name for name in garbage if name not in named]
    for name in garbage:
        place.remove(name)
    return garbage


def _oldest_needed(place: Place, versions: Mapping[int, Manifest], grace: float) -> Manifest:
    """Return the base of the oldest version that is needed.

    Changes before the first base serve a later base only, and cannot be opened.
    """
    first = next(number for number, version in versions.items() if version.kind == "base")
    moment = (time.time() - grace) * 1e6
    openable = [number for number in versions if number >= first]
    seen = [number for number in openable if not grace or versions[number].made_at <= moment]
    pinned = pins.pinned_versions(place).intersection(openable)
    needed = min(seen[-1] if seen else first, *pinned, openable[-1])
    bases = [n for n in openable if n <= needed and versions[n].kind == "base"]
    return versions[bases[-1]]
