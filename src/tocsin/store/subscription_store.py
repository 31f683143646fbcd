"""SubscriptionStore: subscriptions that several processes share, version by version.

Enters: changes, from any process. Leaves: any version of the subscriptions, as a matcher whose
arrays are mapped into memory. A change is written beside what is there and becomes the next version
by taking its number, which only one writer can: whoever comes second looks at the new state and
tries again, so that no change is lost and none is made to a state that it was not meant for.
`compact` makes an index of base and changes; docs/store.md has the format.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.arrow import to_canonical
from tocsin.catalog.ids import Ids
from tocsin.catalog.serialization import to_text
from tocsin.errors import (
    ArgumentError,
    BadRow,
    ChangedStoreError,
    DamagedStoreError,
    NoStoreError,
    StoreError,
    SubscriptionError,
)
from tocsin.language.expression import Expression
from tocsin.loading import (
    Moment,
    to_ids,
    to_moment,
    to_params,
    to_table,
)
from tocsin.matcher import LoadReport, Matcher
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.storage import folder, manifests, pins
from tocsin.storage.changes import (
    AddOne,
    AddTable,
    Change,
    ChangeBatch,
    RemoveIds,
    UpdateMany,
    UpdateOne,
    write_change,
)
from tocsin.storage.folder import GRACE, PartContents, VersionChain
from tocsin.storage.manifests import Part
from tocsin.storage.matchers import (
    MatcherFacts,
    open_parts,
    read_facts,
    write_facts,
)
from tocsin.storage.pins import Pin
from tocsin.storage.place import Place, to_place
from tocsin.store.replay import (
    apply_change,
    id_kinds,
    load_change,
    merge_id_kinds,
    resolve_updates,
    without_bad_rows,
)
from tocsin.store.snapshot import StoreSnapshot, StoreState, apply_changes


class SubscriptionStore:
    """A store of subscriptions in a folder, or behind a URL that fsspec knows.

    >>> store = SubscriptionStore.create("alerts.store")
    >>> store.subscribe("alice", "firm = 'IBM' AND price < 100")
    >>> store.matcher().match({"firm": "IBM", "price": 99})
    ['alice']
    """

    def __init__(
        self, path: str | os.PathLike[str] | Place, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.place = to_place(path)
        self._clock = clock
        self._lock = threading.RLock()
        self._head: tuple[int, Matcher] | None = None
        self._follows = ""
        """The id of the version that the head is at."""
        self._latest = 0.0
        """No change is made at an earlier moment, whatever clocks say."""
        manifests.newest(self.place)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SubscriptionStore:
        """Return the store at a path; raise NoStoreError where there is none."""
        return cls(path)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | Place,
        event_type: EventType | None = None,
        *,
        engine: str = "auto",
        **options: object,
    ) -> SubscriptionStore:
        """Make an empty store; raise StoreError where there is one already."""
        place = to_place(path)
        folder.refuse_foreign_folder(place)
        if manifests.numbers(place):
            raise StoreError(str(place), "there is a subscription store already")
        given: dict[str, Any] = options
        contents = Matcher(event_type, engine=engine, **given)._contents()
        part = folder.write_part(place, contents)
        try:
            folder.commit(place, 0, "base", contents.facts, parts=[part])
        except FileExistsError:
            raise StoreError(str(place), "there is a subscription store already") from None
        return cls(path)

    def __repr__(self) -> str:
        return f"<SubscriptionStore {self.place}>"

    # Versions.

    def newest(self) -> int:
        """Return the number of the newest version."""
        return manifests.newest(self.place)

    def describe(self, version: int | None = None) -> StoreState:
        """Say what a version is, without opening its files."""
        return self.snapshot(version).state

    def snapshot(self, version: int | None = None) -> StoreSnapshot:
        """Return an immutable view of a version, by default of the newest."""
        return StoreSnapshot.open(self.place, version)

    def matcher(
        self,
        version: int | None = None,
        *,
        parts: Sequence[int] | None = None,
        clock: Callable[[], float] = time.time,
        verify: bool = True,
        merges: bool = True,
    ) -> Matcher:
        """Return a version as a matcher, mapped into memory; changes to it stay in this process.

        `parts`, `verify` and `merges` are those of `StoreSnapshot.matcher`.
        """

        def read(chain: VersionChain) -> Matcher:
            snapshot = StoreSnapshot(self.place, chain)
            return snapshot.matcher(parts=parts, clock=clock, verify=verify, merges=merges)

        return folder.read_version(self.place, version, read)

    def advance(self, matcher: Matcher, version: int, to: int) -> bool:
        """Bring a matcher of a whole version to a later one; False if it must be opened again."""
        return self.snapshot(to).advance(matcher, version)

    def recent(
        self,
        version: int | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> Matcher:
        """Return what was added or updated since the base of a version, as a matcher."""
        return folder.read_version(
            self.place, version, lambda chain: StoreSnapshot(self.place, chain).delta(clock=clock)
        )

    # Changes.

    def subscribe(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        valid_until: Moment | None = None,
    ) -> int:
        """Add one subscription; return the version that has it."""
        text, lifted = to_text(where)
        moment = None if valid_until is None else to_moment(valid_until)
        return self._commit(AddOne(check_id(id), text, {**to_params(params), **lifted}, moment))

    def add(
        self,
        table: object,
        where: str | None = None,
        *,
        on_error: Literal["raise", "quarantine"] = "raise",
    ) -> LoadReport:
        """Add many subscriptions, in the forms of `Matcher.subscribe_many`, in one version."""
        return self._add(AddTable(to_table(table), where), on_error)

    def add_rows(
        self, table: object, *, on_error: Literal["raise", "quarantine"] = "raise"
    ) -> LoadReport:
        """Add many subscriptions, one predicate a row, in one version."""
        return self._add(AddTable(to_table(table), is_rows=True), on_error)

    def _add(self, change: AddTable, on_error: str) -> LoadReport:
        if on_error not in ("raise", "quarantine"):
            raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
        bad: tuple[BadRow, ...] = ()
        with self._lock:
            while True:
                version, matcher = self._open_head()
                kept = change
                if on_error == "quarantine":
                    bad = load_change(change, matcher).refuse_taken(matcher._book)
                    kept = without_bad_rows(change, bad)
                if not kept.table.num_rows or self._try(kept, version, matcher) is not None:
                    return LoadReport(_n_ids(kept.table), bad)

    def add_tables(self, tables: Iterable[tuple[pa.Table, str | None]]) -> int:
        """Add tables, each with the text its parameters are for (or None), all in one version."""
        return self._commit(ChangeBatch([AddTable(table, where) for table, where in tables]))

    def remove(self, ids: Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray) -> int:
        """Remove subscriptions; when one is unknown, none is. Return the version without them."""
        asked = to_ids(ids)
        return self._commit(RemoveIds(asked.to_list() if isinstance(asked, Ids) else asked))

    def update(
        self,
        id: SubscriptionId,
        *,
        where: str | None = None,
        params: Mapping[str, object] | None = None,
    ) -> int:
        """Change a subscription: some of its parameters, or its whole condition."""
        return self.update_many([UpdateOne(id, where, params)])

    def update_many(self, updates: Sequence[UpdateOne]) -> int:
        """Change many subscriptions in one version; when one cannot be, none is."""
        for one in updates:
            if one.where is None and one.params is None:
                raise ArgumentError("update needs where, params or both")
        return self._commit(UpdateMany(list(updates)))

    def _commit(self, change: Change) -> int:
        with self._lock:  # nobody else makes changes to the matcher that a change is tried on
            while True:
                version, matcher = self._open_head()
                number = self._try(change, version, matcher)
                if number is not None:
                    return number

    def _open_head(self) -> tuple[int, Matcher]:
        """Return the newest version, with a matcher of it that only this store changes."""
        with self._lock:
            return folder.retry_after_vacuum(self.place, self._find_head)

    def _find_head(self) -> tuple[int, Matcher]:
        newest = self.newest()
        if self._head is not None and self._head[0] < newest:
            version, matcher = self._head
            self._head = None
            if self.advance(matcher, version, newest):
                self._head = newest, matcher
        if self._head is None:
            self._head = newest, self.matcher(newest, clock=self._clock, merges=False)
        last = manifests.read(self.place, newest)
        self._follows = last.id
        self._latest = max(self._latest, last.facts.get("at", 0.0))
        return self._head

    def _try(self, change: Change, version: int, matcher: Matcher) -> int | None:
        """Make a change the version after another; None where somebody else was faster."""
        with self._lock:
            self._head = None  # whatever happens now, unless all goes well
            moment = max(self._clock(), self._latest)
            matcher._clock = lambda: moment
            attributes = apply_change(change, matcher)
            change = resolve_updates(change, matcher)
            facts = {
                "n_subscriptions": len(matcher),
                "attributes": sorted(attributes),
                "ids": id_kinds(change),
                "at": moment,
            }
            contents = PartContents({}, {"changes": lambda: write_change(change)}, {})
            written = folder.write_part(self.place, contents).files["changes"]
            try:
                follows = self._follows
                folder.commit(
                    self.place, version, "changes", facts, follows=follows, changes=written
                )
            except FileExistsError:
                self.place.remove(written.name)
                return None
            except BaseException:
                folder.remove_unless_committed(self.place, version + 1, [written.name])
                raise
            self._head, self._latest = (version + 1, matcher), moment
            return version + 1

    # Building and tidying.

    def write_part(self, matcher: Matcher) -> Part:
        """Write a matcher as one part of a base that is yet to be committed."""
        return folder.write_part(self.place, matcher._contents())

    def commit_base(self, parts: Sequence[Part], covers: int | None = None) -> int:
        """Make a base of parts, in the order of their dense ids; return its version.

        It takes the place of all versions up to `covers` (by default of all); what was changed
        since stays. Where the whole store was replaced meanwhile, or was changed in a way that the
        base does not allow, it is refused.
        """
        if not parts:
            raise ArgumentError("a base has at least one part")
        facts = _joined_facts(parts)
        while True:
            newest = self.newest()
            covered = newest if covers is None else covers
            self._check_beside(parts, covered, newest)
            try:
                folder.commit(self.place, newest, "base", facts, covers=covered, parts=list(parts))
                return newest + 1
            except FileExistsError:
                continue

    def _check_beside(self, parts: Sequence[Part], covered: int, newest: int) -> None:
        """Refuse a base where what was committed since the version it covers cannot be made to it.

        Nothing slips in afterwards: who commits after `newest` takes the number of the base.
        """
        try:
            self._try_beside(parts, range(covered + 1, newest + 1))
        except DamagedStoreError as error:
            if set(range(covered + 1, newest + 1)) <= set(manifests.numbers(self.place)):
                raise
            reason = "another base took the place of what was changed while this one was made"
            raise ChangedStoreError(str(self.place), reason) from error

    def _try_beside(self, parts: Sequence[Part], since: range) -> None:
        between = [manifests.read(self.place, number) for number in since]
        for manifest in between:
            if manifest.kind == "base":
                reason = f"version {manifest.number} replaced the store while this one was made"
                raise ChangedStoreError(str(self.place), reason)
        if between:
            saved = open_parts(self.place, parts, False)
            trial = Matcher._of_parts(saved, self.place, self._clock)
            try:
                apply_changes(self.place, between, trial)
            except SubscriptionError as error:
                reason = f"it was changed while this base was made, and now: {error}"
                raise ChangedStoreError(str(self.place), reason) from error

    def compact(self, *, grace: float = GRACE) -> int:
        """Make one index of base and changes, and `vacuum`; return the new version."""
        version = self.rebuild()
        self.vacuum(grace=grace)
        return version

    def rebuild(self, prepare: Callable[[Matcher], object] = lambda _: None) -> int:
        """Make one index of base and changes after some preparation; return the new version.

        What others change meanwhile stays; where that does not fit, it is made anew.
        """
        while True:
            newest = self.newest()
            matcher = self.matcher(newest, clock=self._clock)
            prepare(matcher)
            matcher.merge()
            try:
                return self.commit_base([self.write_part(matcher)], covers=newest)
            except ChangedStoreError:
                continue  # the files of the part are removed when they are old

    def vacuum(self, *, grace: float = GRACE) -> list[str]:
        """Remove what no version needs that is pinned or newer; return the names of the files.

        A version that was the newest less than `grace` seconds ago stays as well: a reader that
        has its number may not have opened it yet.
        """
        with folder.as_store_errors(self.place), self.place.locked():
            return folder.vacuum(self.place, grace)

    def pin(
        self, name: str, number: int, version: int | None = None, now: float | None = None
    ) -> Pin:
        """Return which version a batch of a stream uses, decided by the first who asks."""
        return pins.pin(self.place, name, number, version, now)

    def pins(self, name: str) -> dict[int, Pin]:
        """Return all pins of a stream, by the number of the batch."""
        return pins.list_pins(self.place, name)

    def unpin(self, name: str, before: int) -> None:
        """Let go of the versions that a stream's batches before one used."""
        with folder.as_store_errors(self.place):
            pins.unpin(self.place, name, before)


def open_or_create(
    path: str | os.PathLike[str] | Place,
    event_type: EventType | None,
    *,
    engine: str = "auto",
    **options: object,
) -> SubscriptionStore:
    """Return the store at a path; create an empty one if there is none."""
    try:
        return SubscriptionStore(path)
    except NoStoreError:
        return SubscriptionStore.create(path, event_type, engine=engine, **options)


def _n_ids(table: pa.Table) -> int:
    """Return how many ids there are in a table that was found good."""
    if not table.num_rows:
        return 0
    found = to_canonical(table.column("id"))
    assert found is not None, "ids are integers or strings"
    return int(pc.count_distinct(found[0]).as_py())


def _joined_facts(parts: Sequence[Part]) -> dict[str, Any]:
    of = [read_facts(part.facts) for part in parts]
    attributes = None
    if all(one.attributes is not None for one in of):
        attributes = sorted({name for one in of for name in one.attributes or ()})
    first = of[0]
    return write_facts(
        MatcherFacts(
            first.event_type,
            first.engine,
            first.options,
            sum(one.n_subscriptions for one in of),
            attributes,
            merge_id_kinds(one.ids for one in of),
        )
    )
