"""Pins: which version of a store a batch of a stream uses, decided once.

Enters: the name of a query and the number of a batch. Leaves: a version and a moment, the same for
whoever asks again: all tasks of the batch, and its replay after a crash. The first to ask creates
`pins/<name>/<number>.json`; creating is exclusive, so that there is one answer. A version that is
pinned is kept, with its files, until the pin is removed.
"""

from __future__ import annotations

import json
import re
import time
from typing import NamedTuple

from tocsin.errors import ArgumentError, DamagedStoreError
from tocsin.store import manifests
from tocsin.store.place import Place

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_PINS = "pins"


class Pin(NamedTuple):
    """The version that a batch uses, and the moment (seconds since 1970) at which it is seen."""

    version: int
    now: float


def pin(
    place: Place, name: str, number: int, version: int | None = None, now: float | None = None
) -> Pin:
    """Return the pin of a batch; make it if there is none, by default of the newest version."""
    file = f"{_folder(name)}/{number:012d}.json"
    try:
        return _read(place, file)
    except FileNotFoundError:
        pass
    made = Pin(
        manifests.newest(place) if version is None else version,
        time.time() if now is None else now,
    )
    try:
        place.create(file, json.dumps(made._asdict()).encode())
    except FileExistsError:
        return _read(place, file)
    return made


def pinned(place: Place, name: str) -> dict[int, Pin]:
    """Return all pins of a query, by the number of the batch."""
    folder = _folder(name)
    files = [file for file in place.names(folder) if file.endswith(".json")]
    return {int(file[:-5]): _read(place, f"{folder}/{file}") for file in files}


def unpin(place: Place, name: str, before: int) -> None:
    """Remove the pins of a query's batches before one."""
    folder = _folder(name)
    for file in place.names(folder):
        if file.endswith(".json") and int(file[:-5]) < before:
            place.remove(f"{folder}/{file}")


def versions(place: Place) -> set[int]:
    """Return all versions that are pinned."""
    return {
        found.version
        for name in place.names(_PINS)
        if _NAME.fullmatch(name)
        for found in pinned(place, name).values()
    }


def _folder(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{name!r} cannot name a pin: letters, digits, '.', '_' and '-'")
    return f"{_PINS}/{name}"


def _read(place: Place, file: str) -> Pin:
    try:
        said = json.loads(place.read(file))
        return Pin(int(said["version"]), float(said["now"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(place.of(file), f"it is not a pin: {error}") from error
