"""Pins: the version of a store that a batch of a stream uses, decided once.

Enters: the name of a query and the number of a batch. Leaves: a version and a moment, the same for
all tasks of the batch, and for its replay after a crash. The first caller creates
`pins/<name>/<number>.json`, exclusively; the others read it. A pinned version is retained, with its
files, until the pin is removed.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from contextlib import suppress
from typing import NamedTuple

from tocsin.errors import ArgumentError, DamagedStoreError, StoreError
from tocsin.storage import manifests
from tocsin.storage.place import Place

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_PINS = "pins"
_TRIES = 20
"""The number of attempts to pin a version before a vacuum removes it."""


class Pin(NamedTuple):
    """The version that a batch uses, and the time by which expiry is judged, since 1970."""

    version: int
    now: float


def pin(
    place: Place, name: str, number: int, version: int | None = None, now: float | None = None
) -> Pin:
    """Return the pin of a batch; create it if it is missing, by default of the newest version."""
    file = f"{_folder(name)}/{number:012d}.json"
    with suppress(FileNotFoundError):
        return _read(place, file)
    try:
        for _ in range(_TRIES):
            made = _make(place, file, version, now)
            if made is not None:
                return made
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        raise StoreError(place.path_of(file), reason) from error
    raise StoreError(str(place), "versions are removed faster than they can be pinned")


def _make(place: Place, file: str, version: int | None, now: float | None) -> Pin | None:
    """Pin a version that can be opened; return None if it was removed meanwhile.

    On one machine the lock keeps the version between the check and the pin. On another it may be
    removed, so it is checked again: a batch with a pin of a missing version could never finish.
    """
    number = manifests.newest(place) if version is None else version
    made = Pin(number, float(time.time() if now is None else now))
    with place.locked():
        if not _is_openable(place, number):
            if version is None:
                return None
            reason = f"there is no version {number} to pin: it never was, or was removed"
            raise StoreError(str(place), reason)
        try:
            place.commit_once(file, _written(made))
        except FileExistsError:
            return _read(place, file)
        if not place.is_local and not _is_openable(place, number):
            place.remove(file)
            return None
    return made


def _is_openable(place: Place, number: int) -> bool:
    """Whether a version exists, and its base."""
    numbers = manifests.numbers(place)
    if number not in numbers:
        return False
    try:
        return number == numbers[-1] or number >= manifests.oldest_openable(place, numbers)
    except DamagedStoreError:
        if manifests.numbers(place) == numbers:
            raise
        return _is_openable(place, number)  # it was vacuumed meanwhile


def list_pins(place: Place, name: str) -> dict[int, Pin]:
    """Return all pins of a query, by the number of the batch."""
    folder = _folder(name)
    pins = {}
    for file in place.names(folder):
        if file.endswith(".json"):
            with suppress(FileNotFoundError):  # removed since it was listed
                pins[int(file[:-5])] = _read(place, f"{folder}/{file}")
    return pins


def unpin(place: Place, name: str, before: int) -> None:
    """Remove the pins of a query's batches before one."""
    folder = _folder(name)
    for file in place.names(folder):
        if file.endswith(".json") and int(file[:-5]) < before:
            place.remove(f"{folder}/{file}")


def pinned_versions(place: Place) -> set[int]:
    """Return all versions that are pinned."""
    return {
        each.version
        for name in place.names(_PINS)
        if _NAME.fullmatch(name)
        for each in list_pins(place, name).values()
    }


def _folder(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{name!r} cannot name a pin: letters, digits, '.', '_' and '-'")
    return f"{_PINS}/{name}"


def _read(place: Place, file: str) -> Pin:
    try:
        values = json.loads(place.read(file))
        pin = Pin(int(values["version"]), float(values["now"]))
        if values.get("checksum", _checksum(pin)) != _checksum(pin):  # earlier releases wrote none
            raise ValueError("its checksum is wrong")
        return pin
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise StoreError(place.path_of(file), reason) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedStoreError(place.path_of(file), f"it is not a pin: {error}") from error


def _written(pin: Pin) -> bytes:
    return json.dumps({**pin._asdict(), "checksum": _checksum(pin)}).encode()


def _checksum(pin: Pin) -> int:
    return zlib.crc32(repr(tuple(pin)).encode())
