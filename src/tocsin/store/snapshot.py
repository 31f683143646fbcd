"""StoreSnapshot: an immutable view of one version of a subscription store.

Enters: the place of a store and the number of a version. Leaves: a description of that version, and
matchers of all of it, of some parts, or of the changes since the base. The folder is listed at most
once, to find the newest version; each manifest from the base on is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.storage import folder
from tocsin.storage.changes import read_changes
from tocsin.storage.folder import VersionChain
from tocsin.storage.manifests import Manifest, Part
from tocsin.storage.matchers import as_damaged_store, open_parts, read_facts
from tocsin.storage.place import Place
from tocsin.store.replay import apply_to_part, flatten, merge_id_kinds, replaced_ids


@dataclass(frozen=True)
class StoreState:
    """A description of one version of a store."""

    version: int
    base: int
    """The version that holds the index; later changes are applied when the store is opened."""
    event_type: EventType | None
    engine: str
    options: Mapping[str, object]
    n_subscriptions: int
    n_changes: int
    """The number of versions after the base."""
    n_bytes: int
    parts: Sequence[Part]
    attributes: Sequence[str] | None
    """Attributes that the conditions mention, perhaps with others; None if unknown."""
    ids: str | None
    """`integers`, `strings` or `mixed`; None without subscriptions."""
    made_at: int
    """The time of the commit in microseconds since 1970."""


class StoreSnapshot:
    """One version of a store, from its manifests; the files of the index are opened on demand."""

    def __init__(self, place: Place, chain: VersionChain) -> None:
        self.place = place
        self.chain = chain

    @classmethod
    def open(cls, place: Place, version: int | None = None) -> StoreSnapshot:
        """Return a version of the store at `place`, by default the newest.

        Raises NoStoreError without a store and StoreError without that version.
        """
        return folder.read_version(place, version, lambda chain: cls(place, chain))

    def __repr__(self) -> str:
        return f"<StoreSnapshot {self.place} version {self.version}>"

    @property
    def version(self) -> int:
        """The number of the version."""
        return self.chain.number

    @property
    def made_at(self) -> int:
        """The time of the commit in microseconds since 1970; it tells stores at one path apart."""
        return (self.chain.changes or [self.chain.base])[-1].made_at

    @cached_property
    def state(self) -> StoreState:
        """The description of the version; no file of the index is opened for it."""
        base, changes = self.chain
        with as_damaged_store(self.place):
            facts = read_facts(base.facts)
            changed = [manifest.facts for manifest in changes]
            attributes = None if facts.attributes is None else set(facts.attributes)
            if attributes is not None:
                attributes.update(name for fact in changed for name in fact["attributes"])
            return StoreState(
                self.version,
                base.number,
                facts.event_type,
                facts.engine,
                facts.options,
                changed[-1]["n_subscriptions"] if changed else facts.n_subscriptions,
                len(changed),
                base.n_bytes + sum(manifest.n_bytes for manifest in changes),
                base.parts,
                None if attributes is None else sorted(attributes),
                merge_id_kinds([facts.ids, *(fact["ids"] for fact in changed)]),
                self.made_at,
            )

    def matcher(
        self,
        *,
        parts: Sequence[int] | None = None,
        clock: Callable[[], float] = time.time,
        verify: bool = True,
        merges: bool = True,
    ) -> Matcher:
        """Return the subscriptions as a matcher, mapped into memory.

        With `parts`, only those parts of the base, without subscriptions that were removed or
        updated since: `delta` has these. Without `merges`, the engine `auto` leaves its segments as
        they are, in the files that all processes of a machine share.
        """
        base = self.chain.base
        saved = open_parts(
            self.place, base.parts if parts is None else [base.parts[at] for at in parts], verify
        )
        options = {} if merges or saved.facts.engine != "auto" else {"merges": False}
        matcher = Matcher.restore(saved, self.place, clock, **options)
        apply_changes(self.place, self.chain.changes, matcher, is_whole=parts is None)
        return matcher

    def delta(self, *, clock: Callable[[], float] = time.time) -> Matcher:
        """Return the subscriptions that were added or updated since the base, as a matcher."""
        facts = read_facts(self.chain.base.facts)
        options: dict[str, Any] = dict(facts.options)
        matcher = Matcher(facts.event_type, engine=facts.engine, clock=clock, **options)
        with as_damaged_store(self.place):
            for change, moment in read_changes(self.place, self.chain.changes):
                for one in flatten(change):
                    apply_to_part(one, moment, matcher)
        return matcher

    def advance(
        self,
        matcher: Matcher,
        version: int,
        *,
        made_at: int | None = None,
        is_whole: bool = True,
    ) -> bool:
        """Bring a matcher of an older version to this one; False if it must be opened again.

        That is the case if a later base replaced that version, or if `made_at` is given and the
        version was committed at another time: another store has taken its path. A matcher of some
        parts has `is_whole` false.
        """
        base, changes = self.chain
        if self.version < version or base.number > version:
            return False
        if made_at is not None and made_at not in (
            manifest.made_at for manifest in (base, *changes) if manifest.number == version
        ):
            return False
        later = [manifest for manifest in changes if manifest.number > version]
        apply_changes(self.place, later, matcher, is_whole)
        return True


def apply_changes(
    place: Place, changes: Iterable[Manifest], matcher: Matcher, is_whole: bool = True
) -> None:
    """Apply the changes of some versions; a matcher of some parts only loses subscriptions."""
    with as_damaged_store(place):
        for change, moment in read_changes(place, list(changes)):
            if is_whole:
                matcher.apply(change, moment)
            else:
                matcher.unsubscribe_many([id for id in replaced_ids(change) if id in matcher])
