"""The one seam between Spark and subscription stores.

Enters: the path of a store, a version, a name for what is pinned. Leaves: matchers, version
numbers and pins. Nothing else in `spark/` knows how a store is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tocsin.matcher import Matcher
from tocsin.store.folder import read_manifest


class Pin(NamedTuple):
    """What a micro-batch uses: a version, and the moment for `valid_until`, in seconds."""

    version: int
    now: float


def newest(path: str) -> int:
    """Return the newest version of a store."""
    return read_manifest(Path(path)).number


def open_matcher(
    path: str,
    version: int,
    parts: tuple[str, ...] | None,
    clock: Callable[[], float],
    verify: bool,
) -> Matcher:
    """Open the subscriptions of a version, or some parts of it, mapped into memory."""
    return Matcher.open(path, clock=clock, verify=verify)


def advance(matcher: Matcher, path: str, old: int, version: int) -> bool:
    """Bring an opened matcher to a newer version; False where it must be opened anew."""
    return False


def pin(path: str, name: str, number: int) -> Pin:
    """Return what a micro-batch uses; whoever asks first decides, and all others get the same."""
    folder = Path(f"{path}.pins") / name
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{number}.json"
    if not place.exists():
        draft = folder / f"{number}.{os.getpid()}.new"
        draft.write_text(json.dumps({"version": newest(path), "now": time.time()}))
        with contextlib.suppress(FileExistsError):
            os.link(draft, place)
        draft.unlink()
    said = json.loads(place.read_text())
    return Pin(said["version"], said["now"])


def has_integer_ids(matcher: Matcher) -> bool:
    """Whether there are subscriptions and all their ids are integers."""
    names = matcher._book.names
    blocks = [block.ids.texts is None for block in names._blocks if len(block)]
    growing = [isinstance(id, int) for id in names._growing]
    return all(blocks) and all(growing) and bool(blocks or growing)


def has_ends(matcher: Matcher) -> bool:
    """Whether any subscription ends by itself."""
    return matcher._book.has_expiries


def to_path(subscriptions: object) -> str | None:
    """Return the path of what was given as a store, or None where it is none."""
    if isinstance(subscriptions, str | os.PathLike):
        return os.fspath(os.fspath(subscriptions))
    return None
