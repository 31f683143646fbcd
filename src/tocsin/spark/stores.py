"""The one seam between Spark and subscription stores.

Enters: the path of a store, a version, parts, a name for what is pinned. Leaves: matchers, version
numbers, pins, and what is known of parts. Nothing else in `spark/` knows how a store is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tocsin.errors import NoStoreError
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.storage import folder, manifests
from tocsin.storage.container import FileEntry
from tocsin.storage.folder import VersionChain
from tocsin.storage.manifests import Part
from tocsin.storage.pins import Pin
from tocsin.store.subscription_store import StoreState, SubscriptionStore

RECENT = -1
"""Stands among the numbers of parts for what was added or changed since the parts were made."""


@dataclass(frozen=True)
class PartFacts:
    """What is known of a part. `admitted` is the share of profiled events that it may match."""

    n_subscriptions: int
    n_bytes: int
    summary: Mapping[str, Any] | None
    admitted: float | None


def to_path(subscriptions: object) -> str | None:
    """Return the path of what was given as a store, or None where it is none."""
    if isinstance(subscriptions, SubscriptionStore):
        return str(subscriptions.place)
    if isinstance(subscriptions, str | os.PathLike):
        return os.fspath(os.fspath(subscriptions))
    return None


def newest(path: str) -> int:
    """Return the newest version of a store."""
    return SubscriptionStore(path).newest()


def open_matcher(
    path: str,
    version: int,
    parts: tuple[int, ...] | None,
    clock: Callable[[], float],
    verify: bool,
) -> Matcher:
    """Open the subscriptions of a version, or some parts of it, mapped into memory."""
    store = SubscriptionStore(path)
    if parts == (RECENT,):
        return store.recent(version, clock=clock)
    return store.matcher(version, parts=parts, clock=clock, verify=verify, merges=False)


def advance(
    matcher: Matcher, path: str, old: int, version: int, parts: tuple[int, ...] | None
) -> bool:
    """Bring an opened matcher to a newer version; False where it must be opened anew."""
    store = SubscriptionStore(path)
    if parts is None:
        return store.advance(matcher, old, version)
    found = folder.version_chain(store.place, version)
    if RECENT in parts or found.base.number > old:
        return False
    later = [manifest for manifest in found.changes if manifest.number > old]
    store._apply(matcher, VersionChain(found.base, later), is_whole=False)
    return True


def made_at(path: str, version: int, default: int | None = None) -> int:
    """Return when a version was made, in microseconds since 1970; that tells stores apart.

    Where there is no such version it is the default, if one is given.
    """
    place = SubscriptionStore(path).place
    if default is not None and version not in manifests.numbers(place):
        return default
    return manifests.read(place, version).made_at


def describe(path: str, version: int) -> StoreState:
    """Say what a version is, without opening its files."""
    return SubscriptionStore(path).describe(version)


def pin(path: str, name: str, number: int) -> Pin:
    """Return what a micro-batch uses; whoever asks first decides, and all others get the same."""
    return SubscriptionStore(path).pin(name, number)


def has_integer_ids(path: str, version: int) -> bool:
    """Whether there are subscriptions and all their ids are integers."""
    return describe(path, version).ids == "integers"


def has_ends(matcher: Matcher) -> bool:
    """Whether any subscription ends by itself."""
    return matcher._book.has_expiries


def parts_of(state: StoreState) -> list[PartFacts]:
    """Return what is known of the parts of a version."""
    return [
        PartFacts(
            part.facts["n_subscriptions"],
            part.n_bytes,
            part.facts.get("summary"),
            part.facts.get("admitted"),
        )
        for part in state.parts
    ]


def newest_or_create(
    path: str, event_type: EventType | None, engine: str, options: Mapping[str, Any]
) -> int:
    """Return the newest version of a store, of an empty one where there is none yet."""
    try:
        return newest(path)
    except NoStoreError:
        return SubscriptionStore.create(path, event_type, engine=engine, **options).newest()


def new_matcher(
    first: int, event_type: EventType | None, engine: str, options: Mapping[str, Any]
) -> Matcher:
    """Return an empty matcher whose dense ids begin at a number."""
    return Matcher._part_numbered_from(first, event_type, engine=engine, **options)


def write_part(path: str, matcher: Matcher, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write a matcher as a part that is yet to be committed; return the part, ready for JSON."""
    part = SubscriptionStore(path).write_part(matcher)
    return asdict(replace(part, facts={**part.facts, **facts}))


def commit_parts(path: str, parts: Sequence[Mapping[str, Any]], covers: int) -> int:
    """Make parts the new base of a store, which takes the place of all up to a version."""
    return SubscriptionStore(path).commit_base([_to_part(part) for part in parts], covers)


def remove_parts(path: str, parts: Sequence[Mapping[str, Any]]) -> None:
    """Remove the files of parts that are not to be committed."""
    place = SubscriptionStore(path).place
    for name in {name for part in parts for name in _to_part(part).names()}:
        place.remove(name)


def _to_part(said: Mapping[str, Any]) -> Part:
    return Part(
        said["facts"],
        {role: FileEntry(**of) for role, of in said["files"].items()},
        [FileEntry(**of) for of in said["segments"]],
    )
