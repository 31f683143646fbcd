"""A folder of files under numbered manifests: what a subscription store is on disk.

Enters: facts, and parts to be written. Leaves: a folder, and from any of its versions the facts and
parts again. Files have names that are used once and never change. A commit writes new files beside
the old ones, and then takes the next number by creating its manifest. Whatever happens on the way,
the store is as it was or as it will be. Versions that nobody can need any more are removed with
their files; pins say which are needed (`pins.py`).
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
"""Seconds after which a file that no manifest names was left behind by a crash."""
GRACE = 600.0
"""Seconds that a version is kept for after another took its place, pinned or not."""
_OURS = re.compile(
    rf"{NAME.pattern}(\.new)?|{MANIFEST.pattern}|\.?{MANIFEST.pattern}\.[0-9a-f]{{32}}\.new|pins|"
    r"probe-[0-9a-f]{32}\.new"
)

_TRIES = 20
"""How often a save is begun again whose files others removed."""

T = TypeVar("T")
MakeParts: TypeAlias = Callable[[], Parts]
"""Gives parts when they are about to be written."""


class PartContents(NamedTuple):
    """What a part is written from: facts; files by role; segments by name, written once."""

    facts: dict[str, Any]
    files: Mapping[str, MakeParts]
    segments: Mapping[str, MakeParts]


class OpenedPart(NamedTuple):
    """What a part holds; segments are in their order."""

    facts: dict[str, Any]
    files: dict[str, OpenedFile]
    segments: list[Parts]


class VersionChain(NamedTuple):
    """What a version is made of: a base, and the changes since, in order."""

    base: Manifest
    changes: list[Manifest]

    @property
    def number(self) -> int:
        """The version."""
        return max(manifest.number for manifest in (self.base, *self.changes))


def unique_name() -> str:
    """Return a name that nothing else has."""
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
    """Commit the version after another; raise FileExistsError where somebody was faster.

    `follows` is the id of that version, where the caller has read it. Raises ChangedStoreError
    where a file that the new version names is not there any more.
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
    """Return the id of a version; raise FileExistsError where it cannot be the newest.

    Versions are removed in their order, so that while one is there, the number after it is either
    taken or was never taken; one that is not there may have been followed by others.
    """
    if not after:
        if manifests.numbers(place):
            raise FileExistsError(place.path_of(manifests.name_of(1)))
        return ""
    if place.size(manifests.name_of(after)) is None:
        raise FileExistsError(place.path_of(manifests.name_of(after + 1)))
    return manifests.read(place, after).id if known is None else known


def _check_files(place: Place, manifest: Manifest) -> None:
    """Refuse a version whose files were removed, as those of a writer that took too long are."""
    for written in manifest.files():
        if place.size(written.name) != written.n_bytes:
            reason = f"{written.name} was removed before it was committed; begin again"
            raise ChangedStoreError(str(place), reason)


def _check_order(place: Place, manifest: Manifest) -> None:
    """Take a version back whose number was taken before, and removed: nothing was built on it.

    On one machine a lock sees to that. Elsewhere the version before may have been removed between
    the look at it and the commit: then a later one is there that does not follow this one.
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
    """Remove what a commit that was broken off has written, unless there is that version already.

    What breaks a commit off may come after its manifest is there, which names the files.
    """
    with suppress(OSError, StoreError):  # what stays is removed when it is old
        if manifests.name_of(number) not in place.names():
            for name in names:
                place.remove(name)


def write_part(place: Place, contents: PartContents, known: Collection[FileEntry] = ()) -> Part:
    """Write the files of a part; segments that are there already, as `known`, are not."""
    held = {written.name: written for written in known}
    written: list[str] = []

    def write(name: str, taken: MakeParts) -> FileEntry:
        written.append(name)
        parts = taken()
        return place.put(name, lambda path: write_file(path, parts))

    try:
        segments = []
        for name, taken in contents.segments.items():
            file = f"segment-{name}.tocsin"
            kept = held.get(file)
            if kept is None or not _is_there(place, kept):
                kept = write(file, taken)
            segments.append(kept)
        files = {
            role: write(f"{role}-{unique_name()}.tocsin", taken)
            for role, taken in contents.files.items()
        }
        return Part(contents.facts, files, segments)
    except BaseException as error:
        for name in written:
            with suppress(OSError, StoreError):  # what stays is removed when it is old
                place.remove(name)
                place.remove(f"{name}.new")
        if isinstance(error, OSError):
            raise _cannot_write(place, error) from error
        raise


def _is_there(place: Place, written: FileEntry) -> bool:
    return place.size(written.name) == written.n_bytes


@contextmanager
def as_store_errors(place: Place) -> Iterator[None]:
    """Say of what the system refuses that the store cannot be written."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(place, error) from error


def _cannot_write(place: Place, error: OSError) -> StoreError:
    return StoreError(str(place), f"cannot be written: {error.strerror or error}")


def replace_store(place: Place, contents: PartContents, grace: float = GRACE) -> Manifest:
    """Write a store, or a base that takes the place of all that is there; then tidy it."""
    refuse_foreign_folder(place)
    with as_store_errors(place):
        manifest = _write_base(place, contents)
    with suppress(OSError), place.locked():  # it is saved; the next one removes what stays
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
            except ChangedStoreError:  # segments of an older base, tidied away meanwhile
                remove_unless_committed(place, last + 1, part.names() - reused)
                break
            except BaseException:
                remove_unless_committed(place, last + 1, part.names() - reused)
                raise
    raise StoreError(str(place), "others replaced it again and again; nothing was saved")


def refuse_foreign_folder(place: Place) -> None:
    """Refuse a folder that holds something else than a store."""
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
    """Map a part into memory, and verify all but the files of some roles, or nothing.

    What is a copy of a file on another machine is verified all the same, once where it was made.
    """
    files = {role: _open_file(place, file, verify) for role, file in part.files.items()}
    segments = [_open_file(place, file, verify) for file in part.segments]
    for file in (*(files[role] for role in files if role not in late), *segments):
        file.verify()
    return OpenedPart(part.facts, files, [segment.parts for segment in segments])


def _open_file(place: Place, written: FileEntry, verify: bool) -> OpenedFile:
    """Map a file; its `verify` does nothing where that need not be."""
    file = read_file(place.local(written.name), written)
    if not verify and place.is_trusted(written.name, written.checksum):
        return file._replace(verify=lambda: None)

    def check() -> None:
        file.verify()
        place.trust(written.name, written.checksum)

    return file._replace(verify=check)


def vacuum(place: Place, grace: float = 0.0) -> list[str]:
    """Remove the versions that nobody needs with their files, and what crashes left behind.

    Versions that were the newest less than `grace` seconds ago are needed: somebody may have seen
    their number, and be about to open or pin them. Manifests are removed in the order of their
    numbers: `commit` relies on it.
    """
    found = manifests.numbers(place)
    first = manifests.oldest_openable(place, found)
    pinned = {n for n in pins.pinned_versions(place) & set(found) if n >= first}
    needed = min({_newest_at(place, found, grace), *pinned})
    oldest = version_chain(place, needed).base
    kept = [n for n in found if n > oldest.covers]
    named = {name for n in kept for name in manifests.read(place, n).names()}
    dropped: set[str] = set()
    for n in found:
        if n not in kept:
            dropped |= manifests.read(place, n).names()
            place.remove(manifests.name_of(n))
    gone = sorted(dropped - named)
    for name in place.names():
        is_left = bool(_OURS.fullmatch(name)) and name != "pins" and name not in named
        if is_left and not MANIFEST.fullmatch(name) and place.age(name) > ORPHAN_AGE:
            gone.append(name)
    if not place.is_local:  # a writer on another machine may have committed them by now
        later = [n for n in manifests.numbers(place) if n > found[-1]]
        named |= {name for n in later for name in manifests.read(place, n).names()}
        gone = [name for name in gone if name not in named]
    for name in gone:
        place.remove(name)
    return gone


def _newest_at(place: Place, found: list[int], grace: float) -> int:
    """Return the version that was the newest some seconds ago, or the oldest that can be opened.

    What is left before the first base only serves a later one.
    """
    first = manifests.oldest_openable(place, found)
    moment = (time.time() - grace) * 1e6
    for number in reversed(found):
        if number <= first or not grace or manifests.read(place, number).made_at <= moment:
            return max(number, first)
    return first
