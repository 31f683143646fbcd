"""SubscriptionStore: subscriptions that several processes share, version by version.

Enters: changes, from any process. Leaves: any version of the subscriptions, as a matcher whose
arrays are mapped into memory. A change is written to new files and becomes the next version by
taking its number, which only one writer can: another one reads the new state and tries again, so
that no change is lost or applied to a state that it was not made for. `compact` makes an index of
base and changes; docs/store.md has the format.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from tocsin.arguments import (
    UNCHANGED,
    IdsArgument,
    Moment,
    OnError,
    Unchanged,
    check_on_error,
    to_end,
    to_ids,
    to_params,
    to_written,
)
from tocsin.catalog.ids import Ids
from tocsin.catalog.records import Subscription
from tocsin.catalog.serialization import to_text
from tocsin.errors import (
    ArgumentError,
    ChangedStoreError,
    DamagedStoreError,
    NoStoreError,
    StoreError,
    SubscriptionError,
)
from tocsin.language.dialects import SQL
from tocsin.language.expression import Expression
from tocsin.loading import LoadReport, are_rules, written_table
from tocsin.matcher import Matcher
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.storage import folder, manifests, pins
from tocsin.storage.changes import AddOne, AddTable, ChangeBatch, RemoveIds, write_change
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
    AppliedChange,
    add_table,
    apply_change,
    id_kinds,
    merge_id_kinds,
    put_one,
    put_table,
    update_one,
    update_table,
)
from tocsin.store.snapshot import StoreSnapshot, StoreState, apply_changes


class _Commit(NamedTuple):
    """What a change became."""

    number: int
    report: LoadReport


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
    def open(
        cls, path: str | os.PathLike[str] | Place, *, clock: Callable[[], float] = time.time
    ) -> Self:
        """Return the store at a path; raise NoStoreError where there is none."""
        return cls(path, clock=clock)

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
        engine_options: dict[str, Any] = options
        contents = Matcher(event_type, engine=engine, **engine_options).snapshot()
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

    def delta(
        self,
        version: int | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> Matcher:
        """Return the subscriptions added or updated since the base of a version, as a matcher."""
        return folder.read_version(
            self.place, version, lambda chain: StoreSnapshot(self.place, chain).delta(clock=clock)
        )

    # One subscription.

    def subscribe(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | None = None,
        dialect: str = SQL,
    ) -> int:
        """Register a subscription under a new id; return the version that has it.

        The arguments and errors are those of `Matcher.subscribe`.
        """
        text, lifted = to_text(to_written(where, dialect))
        values = {**to_params(params), **lifted}
        return self.apply(AddOne(check_id(id), text, values, to_end(valid_until)))

    def update(
        self,
        id: SubscriptionId,
        where: str | Expression | None = None,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | Unchanged | None = UNCHANGED,
        dialect: str = SQL,
    ) -> int:
        """Change a subscription; return the version that has the change.

        The arguments and errors are those of `Matcher.update`.
        """
        written = to_written(where, dialect)
        return self._commit(
            lambda matcher: update_one(id, written, params, valid_until, matcher)
        ).number

    def put(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | None = None,
        dialect: str = SQL,
    ) -> int:
        """Register a subscription, or replace the one with this id; return the version.

        The arguments and errors are those of `Matcher.put`.
        """
        text, lifted = to_text(to_written(where, dialect))
        values, name, until = {**to_params(params), **lifted}, check_id(id), to_end(valid_until)
        return self._commit(lambda matcher: put_one(name, text, values, until, matcher)).number

    def unsubscribe(self, id: SubscriptionId) -> int:
        """Remove a subscription; return the version without it.

        Raises UnknownSubscriptionError (a KeyError).
        """
        return self.apply(RemoveIds([check_id(id)]))

    # Many subscriptions.

    def subscribe_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
    ) -> LoadReport:
        """Register many subscriptions, in one version; the report names it.

        The forms of the table and the errors are those of `Matcher.subscribe_many`.
        """
        check_on_error(on_error)
        change = _to_change(written_table(table, dialect), to_written(where, dialect))
        return self._commit(lambda matcher: add_table(change, matcher, on_error)).report

    def update_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
    ) -> LoadReport:
        """Change many subscriptions, in one version; the report names it.

        The forms of the table and the errors are those of `Matcher.update_many`.
        """
        check_on_error(on_error)
        data, condition = written_table(table, dialect), to_written(where, dialect)
        return self._commit(lambda matcher: update_table(data, condition, matcher, on_error)).report

    def put_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
    ) -> LoadReport:
        """Register or replace many subscriptions, in one version; the report names it.

        The forms of the table and the errors are those of `Matcher.put_many`.
        """
        check_on_error(on_error)
        change = _to_change(written_table(table, dialect), to_written(where, dialect))
        return self._commit(lambda matcher: put_table(change, matcher, on_error)).report

    def unsubscribe_many(self, ids: IdsArgument) -> int:
        """Remove many subscriptions; return the version without them.

        Where one is unknown, none is removed and UnknownSubscriptionError (a KeyError) is raised.
        """
        names = to_ids(ids)
        return self.apply(RemoveIds(names.to_list() if isinstance(names, Ids) else names))

    # Reading back.

    def get(self, id: SubscriptionId) -> Subscription:
        """Return a subscription of the newest version.

        Raises UnknownSubscriptionError (a KeyError).
        """
        with self._lock:
            return self._open_head()[1].get(id)

    def to_table(self) -> pa.Table:
        """Return the subscriptions of the newest version, as `Matcher.to_table` does."""
        with self._lock:
            return self._open_head()[1].to_table()

    def __iter__(self) -> Iterator[SubscriptionId]:
        """Iterate over the ids of the newest version."""
        with self._lock:
            return iter(self._open_head()[1])

    def __len__(self) -> int:
        """Return the number of subscriptions of the newest version."""
        with self._lock:
            return len(self._open_head()[1])

    def __bool__(self) -> bool:
        """A store is true, whether it has subscriptions or not."""
        return True

    def __contains__(self, id: object) -> bool:
        with self._lock:
            return id in self._open_head()[1]

    def close(self) -> None:
        """Release the files that this store maps; the next call opens them again."""
        with self._lock:
            self._head = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Committing.

    def apply(self, change: AddOne | RemoveIds | AddTable | ChangeBatch) -> int:
        """Make a change, in one version; return that. For the other packages of Tocsin."""
        return self._commit(
            lambda matcher: AppliedChange(change, apply_change(change, matcher))
        ).number

    def _commit(self, act: Callable[[Matcher], AppliedChange]) -> _Commit:
        """Make a change to the newest version; again where another writer was faster."""
        with self._lock:  # no other thread uses the matcher that the change is tried on
            while True:
                version, matcher = self._open_head()
                commit = self._try(act, version, matcher)
                if commit is not None:
                    return commit

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

    def _try(
        self, act: Callable[[Matcher], AppliedChange], version: int, matcher: Matcher
    ) -> _Commit | None:
        """Make a change the version after another; None where another writer was faster."""
        with self._lock:
            self._head = None  # set again when the change is committed
            moment = max(self._clock(), self._latest)
            with matcher.at(moment):
                made = act(matcher)
                n_subscriptions = len(matcher)
            change = made.change
            if change is None:
                self._head = version, matcher
                return _Commit(version, replace(made.report, version=version))
            facts = {
                "n_subscriptions": n_subscriptions,
                "attributes": sorted(made.attributes),
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
            return _Commit(version + 1, replace(made.report, version=version + 1))

    # Building and tidying.

    def write_part(self, matcher: Matcher) -> Part:
        """Write a matcher as one part of a base that is yet to be committed."""
        return folder.write_part(self.place, matcher.snapshot())

    def commit_base(self, parts: Sequence[Part], covers: int | None = None) -> int:
        """Make a base of parts, in the order of their dense ids; return its version.

        It replaces all versions up to `covers` (by default all); later changes stay. Raises
        ChangedStoreError where another base was committed after `covers`, or later changes cannot
        be applied to the new base.
        """
        if not parts:
            raise ArgumentError("a base has at least one part")
        facts = _joined_facts(parts)
        while True:
            newest = self.newest()
            covered = newest if covers is None else covers
            self._check_later_changes(parts, covered, newest)
            try:
                folder.commit(self.place, newest, "base", facts, covers=covered, parts=list(parts))
                return newest + 1
            except FileExistsError:
                continue

    def _check_later_changes(self, parts: Sequence[Part], covered: int, newest: int) -> None:
        """Refuse a base to which the changes after the version it covers cannot be applied.

        No change is missed: a commit after `newest` would take the version number of the base.
        """
        try:
            self._try_later_changes(parts, range(covered + 1, newest + 1))
        except DamagedStoreError as error:
            if set(range(covered + 1, newest + 1)) <= set(manifests.numbers(self.place)):
                raise
            reason = "another base replaced these changes while this one was made"
            raise ChangedStoreError(str(self.place), reason) from error

    def _try_later_changes(self, parts: Sequence[Part], since: range) -> None:
        between = [manifests.read(self.place, number) for number in since]
        for manifest in between:
            if manifest.kind == "base":
                reason = f"version {manifest.number} replaced the store while this one was made"
                raise ChangedStoreError(str(self.place), reason)
        if between:
            saved = open_parts(self.place, parts, False)
            trial = Matcher.restore(saved, self.place, self._clock)
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

        Concurrent changes stay; if they do not fit the new index, it is built again.
        """
        while True:
            newest = self.newest()
            matcher = self.matcher(newest, clock=self._clock)
            prepare(matcher)
            matcher.rebuild()
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


def _to_change(table: pa.Table, where: str | Expression | None) -> AddTable:
    """Return a table of subscriptions as it is written."""
    if where is None:
        return AddTable(table, is_rows=are_rules(table))
    text, lifted = to_text(where)
    for name, value in lifted.items():
        table = table.append_column(name, pa.array([value] * table.num_rows))
    return AddTable(table, text)


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
