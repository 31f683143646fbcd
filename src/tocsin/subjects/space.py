"""SubjectSpace: publications that stay, subscriptions, and the transitions between them.

Enters: the calls of a user. Leaves: transitions, or errors. A call either does everything or
changes nothing. After Leung and Jacobsen, sections 3 to 5: adding, updating and removing a
publication, and adding and updating a subscription, return the pairs that begin or cease to match;
removing a subscription returns none. Publications and subscriptions may expire (Fabret et al.,
section 1: events and subscriptions are valid for a time); every call first expires what is due, and
the transitions of that come first in its result.

Calls from several threads are safe; changes are serialized by a lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
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
from tocsin.catalog.blocks import NEVER
from tocsin.catalog.records import Subscription
from tocsin.catalog.serialization import to_text
from tocsin.errors import ArgumentError, BadRowsError, UnknownSubscriptionError
from tocsin.language.dialects import SQL
from tocsin.language.expression import Expression
from tocsin.loading import find_all, has_conditions, load_params, load_table, written_table
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.subjects import snapshots
from tocsin.subjects.batches import read_batch
from tocsin.subjects.dimensions import Dimensions
from tocsin.subjects.expiry import Seconds, to_expiry
from tocsin.subjects.log import Log
from tocsin.subjects.model import Interest, InterestRegion, Publication, check_regions
from tocsin.subjects.publications import PublicationTable
from tocsin.subjects.state import Changes, State, with_masks
from tocsin.subjects.subscriptions import (
    SubscriptionTable,
    Where,
    from_transition_mask,
    to_transition_mask,
)
from tocsin.subjects.transactions import Journal, Transaction
from tocsin.transitions.transition import PublicationKey, TransitionBlock, Transitions

_MIN_COMPACTED = 1 << 26
"""A log is never compacted below this size, in bytes."""


class SubjectSpace:
    """Publications and subscriptions, and which of them match.

    >>> space = SubjectSpace(EventType("Position", zone=str, speed=float))
    >>> space.subscribe("dispatch", "zone = 'harbour' AND speed > 0")
    Transitions(0 ENTER, 0 LEAVE)
    >>> space.publish("truck 7", {"zone": "harbour", "speed": 3.5})
    Transitions(1 ENTER, 0 LEAVE)

    Each of `spaces` declares some of its attributes, as an event type does; without any there is
    one space that declares none. An attribute that a publication lacks is absent; with
    `missing="any"` it may have any value, as in the paper. `clock` gives seconds since 1970.
    """

    recovered: tuple[Transitions, ...] = ()
    """After `open`: the transitions of the calls that were logged since the last compaction."""

    def __init__(
        self,
        *spaces: EventType,
        clock: Callable[[], float] = time.time,
        missing: str = "absent",
    ) -> None:
        for space in spaces:
            if not isinstance(space, EventType):
                raise ArgumentError(f"a space must be an EventType, not {space!r}")
        if missing not in ("absent", "any"):
            raise ArgumentError(f"missing must be 'absent' or 'any', not {missing!r}")
        self.spaces = spaces or (EventType(""),)
        if any(each.is_strict for each in self.spaces):
            raise ArgumentError("a subject space takes no strict event type: its types are open")
        self.missing = missing
        self._clock = clock
        self._lock = threading.RLock()
        self._dimensions = Dimensions(self.spaces, missing)
        self._state = State(self._dimensions)
        self._subscriptions = SubscriptionTable(self._dimensions, self._state)
        self._publications = PublicationTable(self._dimensions, self._state)
        self._journal = Journal()

    # Publications.

    def publish(
        self,
        key: PublicationKey,
        values: Mapping[str, Any] | Publication,
        ttl: Seconds | None = None,
    ) -> Transitions:
        """Add a publication, or replace the one under this key.

        A value is a single one or a `Range`. `values` is a mapping for the first space, and a
        `Publication` for other spaces or several regions. After `ttl` seconds it expires.
        """
        name = check_id(key)
        with Transaction(self) as transaction:
            until = to_expiry(transaction.now, ttl)
            is_whole = isinstance(values, Publication)
            if not is_whole and not isinstance(values, Mapping):
                raise ArgumentError(f"values must be a mapping or a Publication, not {values!r}")
            transaction.log(
                "publish",
                key=name,
                values=None if is_whole else values,
                whole=values if is_whole else None,
                until=until,
            )
            transaction.add(self._publications.publish(name, values), [name])
            self._publications.keys.set_expiry(self._publications.keys.row(name), until)
        return transaction.transitions

    def publish_many(
        self,
        table: object,
        *,
        key: str = "key",
        space: str | None = None,
        ttl: Seconds | None = None,
        quiet: bool = False,
    ) -> Transitions:
        """Publish the rows of an Arrow table (or frame), one after another; null is absent.

        With `quiet`, transitions are neither computed nor returned: for an initial load.
        """
        with Transaction(self) as transaction:
            number = self._dimensions.space(space)
            batch, batch_table = read_batch(table, self._dimensions, number, key)
            self._state.object_rows.fit()
            until = to_expiry(transaction.now, ttl)
            options = {"key": key, "space": space, "until": until, "quiet": quiet}
            transaction.log("publish_many", table=batch_table, **options)
            changes = self._publications.publish_batch(batch, number, quiet)
            transaction.add(changes, batch.keys)
            keys = self._publications.keys
            if until is not None or keys.has_expiries:
                for name in batch.keys:
                    keys.set_expiry(keys.row_of[name], until)
        return transaction.transitions

    def update_publication(
        self, key: PublicationKey, changed: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Transitions:
        """Change some attributes of a publication; the others and its expiry stay.

        Attributes that are not Python names go in a mapping. None makes one absent.
        """
        values = {**(changed or {}), **more}
        with Transaction(self) as transaction:
            updates = self._publications.to_update(key, values)
            transaction.log("update", key=key, values=values)
            transaction.add(self._state.update(updates), [key])
        return transaction.transitions

    def update_region(
        self, key: PublicationKey, region: str, changed: Mapping[str, Any]
    ) -> Transitions:
        """Change some attributes of one region of a publication."""
        with Transaction(self) as transaction:
            row, updates = self._publications.to_region_update(key, region, changed)
            transaction.log("update_region", key=key, region=region, values=changed)
            transaction.add(self._state.update_multi_region(row, updates), [key])
        return transaction.transitions

    def update_publications(
        self,
        table: object,
        *,
        key: str = "key",
        space: str | None = None,
        nulls: Literal["absent", "keep"] = "absent",
        quiet: bool = False,
    ) -> Transitions:
        """Update publications by the rows of an Arrow table (or frame), one after another.

        Attributes without a column stay as they are; with `nulls="keep"`, so do those whose value
        is null. When a key is unknown, nothing is updated.
        """
        if nulls not in ("absent", "keep"):
            raise ArgumentError(f"nulls must be 'absent' or 'keep', not {nulls!r}")
        with Transaction(self) as transaction:
            number = self._dimensions.space(space)
            batch, batch_table = read_batch(table, self._dimensions, number, key)
            self._state.object_rows.fit()
            options = {"key": key, "space": space, "nulls": nulls, "quiet": quiet}
            transaction.log("update_many", table=batch_table, **options)
            changes = self._publications.update_batch(batch, number, nulls == "keep", quiet)
            transaction.add(changes, batch.keys)
        return transaction.transitions

    def retract(self, key: PublicationKey) -> Transitions:
        """Remove a publication."""
        with Transaction(self) as transaction:
            self._publications.keys.row(key)
            transaction.log("retract", keys=[key])
            transaction.add(self._publications.delete(key), [key])
        return transaction.transitions

    def retract_many(self, keys: Iterable[PublicationKey]) -> Transitions:
        """Remove many publications; when one is unknown, none is removed."""
        names = [check_id(key) for key in keys]
        with Transaction(self) as transaction:
            for name in names:
                self._publications.keys.row(name)
            if len(set(names)) < len(names):
                raise ArgumentError("a key occurs twice")
            transaction.log("retract", keys=names)
            transaction.add(self._publications.delete_many(names), names)
        return transaction.transitions

    def touch(self, key: PublicationKey, ttl: Seconds | None) -> Transitions:
        """Let a publication expire after `ttl` seconds from now, or never if it is None."""
        with Transaction(self) as transaction:
            row = self._publications.keys.row(key)
            until = to_expiry(transaction.now, ttl)
            transaction.log("touch", key=key, until=until)
            self._publications.keys.set_expiry(row, until)
        return transaction.transitions

    def expire(self) -> Transitions:
        """Remove what has expired, as every other call does first."""
        with Transaction(self) as transaction:
            if transaction.has_expired:
                transaction.log("expire")
        return transaction.transitions

    # Subscriptions.

    def subscribe(
        self,
        id: SubscriptionId,
        where: Where,
        params: Mapping[str, Any] | None = None,
        *,
        valid_until: Moment | None = None,
        ttl: Seconds | None = None,
        notify: Literal["both", "enter", "leave"] = "both",
        dialect: str = SQL,
    ) -> Transitions:
        """Add a subscription under a new id; return an ENTER for each publication it matches.

        `where` is a condition in the first space, in a `dialect`, or an `Interest` of regions in
        any. It expires at `valid_until`, or after `ttl` seconds. `notify` says which transitions
        it asks for.
        """
        mask = to_transition_mask(notify)
        condition, values = _plain(to_written(where, dialect), params)
        moment = to_end(valid_until)
        if moment is not None and ttl is not None:
            raise ArgumentError("give valid_until or ttl, not both")
        with Transaction(self) as transaction:
            name = self._subscriptions.check_new(id)
            self._subscriptions.reserve()
            until = to_expiry(transaction.now, ttl) if moment is None else moment
            prepared = self._subscriptions.prepare(condition, values)
            transaction.log(
                "subscribe",
                id=name,
                where=condition,
                params=values,
                until=until,
                notify=from_transition_mask(mask),
            )
            self._add_by_row(transaction, self._subscriptions.add(name, prepared, until, mask))
        return transaction.transitions

    def subscribe_many(
        self,
        table: object,
        where: str | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
        notify: Literal["both", "enter", "leave"] = "both",
        quiet: bool = False,
    ) -> Transitions:
        """Add many subscriptions from an Arrow table (or frame), in the first space.

        Columns and bad rows are handled as by `Matcher.subscribe_many`; bad rows are in `bad` of
        the result. With `quiet`, transitions are neither computed nor returned.
        """
        check_on_error(on_error)
        mask = to_transition_mask(notify)
        data, condition = written_table(table, dialect), to_written(where, dialect)
        load = load_table(data, condition, self.spaces[0])
        with Transaction(self) as transaction:
            self._subscriptions.reserve(len(load))
            bad = load.refuse_taken(self._subscriptions.catalog)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            options = {"where": condition, "notify": from_transition_mask(mask), "quiet": quiet}
            transaction.log("subscribe_many", table=data, **options)
            self._add_by_row(transaction, self._subscriptions.add_many(load, mask, quiet))
        transaction.transitions.loaded = load.n_good
        transaction.transitions.bad = bad
        return transaction.transitions

    def update(
        self,
        id: SubscriptionId,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        valid_until: Moment | Unchanged | None = UNCHANGED,
        notify: Literal["both", "enter", "leave"] | None = None,
        dialect: str = SQL,
    ) -> Transitions:
        """Change the condition, some parameters, the end or the transitions of a subscription.

        `valid_until=None` removes the end. Returns the pairs that begin or cease to match.
        """
        has_end = not isinstance(valid_until, Unchanged)
        if where is None and params is None and notify is None and not has_end:
            raise ArgumentError("update needs where, params, valid_until or notify")
        condition, values = _plain(to_written(where, dialect), params)
        end = UNCHANGED if isinstance(valid_until, Unchanged) else to_end(valid_until)
        with Transaction(self) as transaction:
            self._subscriptions.reserve()
            old = self._subscriptions.dense(id)
            mask = self._subscriptions.mask(old) if notify is None else to_transition_mask(notify)
            arguments = {
                "id": id,
                "where": condition,
                "params": values,
                "notify": None if notify is None else from_transition_mask(mask),
            }
            if has_end:
                arguments["valid_until"] = end
            if where is None and params is None and not has_end:
                transaction.log("update_subscription", **arguments)
                self._subscriptions.set_mask(old, mask)
            else:
                prepared = self._subscriptions.prepare_update(old, condition, values)
                transaction.log("update_subscription", **arguments)
                changes = self._subscriptions.replace(old, id, prepared, mask, end)
                self._add_by_row(transaction, changes)
        return transaction.transitions

    def update_many(
        self,
        table: object,
        where: str | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
    ) -> Transitions:
        """Change many subscriptions of the first space, all or none.

        The forms of the table are those of `Matcher.update_many`; `loaded` and `bad` of the result
        report what was changed. Parameters of an `Interest` are changed by `update`.
        """
        check_on_error(on_error)
        data, condition = written_table(table, dialect), to_written(where, dialect)
        with Transaction(self) as transaction:
            catalog = self._subscriptions.catalog
            if has_conditions(data, where):
                load = load_table(data, condition, self.spaces[0])
            else:
                load, _ = load_params(data, self._subscriptions.look_up, self.spaces[0])
            bad = load.refuse_unknown(catalog)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            self._subscriptions.reserve(len(load))
            transaction.log("update_subscriptions", table=data, where=condition)
            rows = np.arange(len(load)) if load.good is None else load.good
            for row in rows.tolist():
                name, source = load.ids.ids[row], load.source.one(row)
                end: int | Unchanged | None = UNCHANGED
                if load.until is not None:
                    end = None if load.until[row] == NEVER else int(load.until[row])
                old = self._subscriptions.dense(name)
                prepared = self._subscriptions.prepare(source.where, source.params)
                mask = self._subscriptions.mask(old)
                changes = self._subscriptions.replace(old, name, prepared, mask, end)
                self._add_by_row(transaction, changes)
        transaction.transitions.loaded, transaction.transitions.bad = len(rows), bad
        return transaction.transitions

    def put(
        self,
        id: SubscriptionId,
        where: Where,
        params: Mapping[str, Any] | None = None,
        *,
        valid_until: Moment | None = None,
        notify: Literal["both", "enter", "leave"] = "both",
        dialect: str = SQL,
    ) -> Transitions:
        """Add a subscription, or replace the whole of the one with this id.

        Returns the pairs that begin or cease to match. The arguments are those of `subscribe`.
        """
        with self._lock:
            if id in self:
                with suppress(UnknownSubscriptionError):  # it has expired since
                    return self.update(
                        id, where, params, valid_until=valid_until, notify=notify, dialect=dialect
                    )
            return self.subscribe(
                id, where, params, valid_until=valid_until, notify=notify, dialect=dialect
            )

    def unsubscribe(self, id: SubscriptionId) -> Transitions:
        """Remove a subscription; its matches end without transitions."""
        with Transaction(self) as transaction:
            dense = self._subscriptions.dense(id)
            transaction.log("unsubscribe", ids=[id])
            self._subscriptions.remove(np.array([dense]))
        return transaction.transitions

    def unsubscribe_many(self, ids: IdsArgument) -> Transitions:
        """Remove many subscriptions; when one is unknown, none is removed."""
        id_table = to_ids(ids)
        with Transaction(self) as transaction:
            dense = find_all(self._subscriptions.catalog, id_table)
            names = id_table if isinstance(id_table, list) else id_table.to_list()
            transaction.log("unsubscribe", ids=names)
            self._subscriptions.remove(dense)
        return transaction.transitions

    # Transitions.

    def _transition_block(
        self, changes: Changes, keys: Sequence[PublicationKey]
    ) -> TransitionBlock:
        """Return the transitions that subscriptions ask for; items of the changes index `keys`."""
        box_index = self._state.box_index
        if box_index.has_masks:
            changes = with_masks(changes, box_index.masks)
        names = self._subscriptions.catalog.names
        return TransitionBlock(changes.kind, changes.item, keys, changes.sub, names)

    def _add_by_row(self, transaction: Transaction, changes: Changes) -> None:
        """Add changes whose items are rows."""
        transaction.add(*self._publications.by_key(changes))

    def _expire_due(self, now: int) -> list[TransitionBlock]:
        """Remove what has expired, in order of time; only publications cause transitions."""
        blocks = []
        while (due := self._publications.keys.pop_due(now)) is not None:
            until, row = due
            self._subscriptions.remove_due(until)
            key = self._publications.keys.key(row)
            blocks.append(self._transition_block(self._publications.delete(key), [key]))
        self._subscriptions.remove_due(now)
        return [block for block in blocks if len(block.kind)]

    # Reading.

    def get(self, id: SubscriptionId) -> Subscription:
        """Return a subscription; `where` of an `Interest` is its JSON, which `from_json` reads.

        Raises UnknownSubscriptionError (a KeyError).
        """
        with self._lock:
            self._expire()
            return self._subscriptions.record(self._subscriptions.dense(id))

    def to_table(self) -> pa.Table:
        """Return all subscriptions as columns `id`, `where`, `params` and `valid_until`.

        `subscribe_many` loads the table again, but for an `Interest`, whose `where` is JSON.
        """
        with self._lock:
            self._expire()
            if self._subscriptions.regions:
                return self._subscriptions.to_table()
            listing = self._subscriptions.catalog.listing()
        return listing.to_table()

    def __iter__(self) -> Iterator[SubscriptionId]:
        """Iterate over the ids of the subscriptions there are now."""
        with self._lock:
            self._expire()
            listing = self._subscriptions.catalog.listing()
        return listing.ids()

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        with self._lock:
            self._expire()
            return len(self._subscriptions.catalog)

    def __bool__(self) -> bool:
        """A space is true, whether it has subscriptions or not."""
        return True

    def __contains__(self, id: object) -> bool:
        with self._lock:
            self._expire()
            is_id = isinstance(id, str | int) and not isinstance(id, bool)
            return is_id and id in self._subscriptions.catalog

    @property
    def publications(self) -> PublicationView:
        """The publications by key: `key in`, `len`, iteration over keys, and `[key]`."""
        return PublicationView(self)

    def _expire(self) -> None:
        """Remove what has expired; the next change returns the transitions."""
        self._journal.pending += self._expire_due(self._journal.tick(self._clock))

    def publication(self, key: PublicationKey) -> dict[str, Any] | Publication:
        """Return the current values of a publication; nested values by their dotted paths.

        Numbers come back as integers where they are whole and not declared floats.
        """
        with self._lock:
            self._expire()
            return self._publications.get(key)

    def publication_keys(self) -> list[PublicationKey]:
        """Return the keys of the publications there are now."""
        with self._lock:
            self._expire()
            return list(self._publications.keys.row_of)

    @property
    def n_publications(self) -> int:
        """The number of publications."""
        with self._lock:
            self._expire()
            return len(self._publications.keys)

    def has_publication(self, key: object) -> bool:
        """Whether there is a publication under a key."""
        with self._lock:
            self._expire()
            return key in self._publications.keys

    def subscriptions_of(self, key: PublicationKey) -> list[SubscriptionId]:
        """Return the subscriptions that match a publication."""
        with self._lock:
            self._expire()
            dense = self._state.subscriptions_of(self._publications.keys.row(key))
            return self._subscriptions.catalog.names.to_list(dense)

    def publications_of(self, id: SubscriptionId) -> list[PublicationKey]:
        """Return the keys of the publications that match a subscription."""
        with self._lock:
            self._expire()
            rows = self._state.publications_of(self._subscriptions.dense(id))
            return self._publications.keys.keys(rows.tolist())

    @property
    def publication_table(self) -> PublicationTable:
        """The table of publications. Internal, and not synchronised: for measurements."""
        return self._publications

    @property
    def nbytes(self) -> int:
        """Bytes of rows, boxes and lists; keys and texts are not counted."""
        with self._lock:
            return self._state.box_index.nbytes + self._state.object_rows.cells.nbytes

    # On disk.

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *spaces: EventType,
        clock: Callable[[], float] = time.time,
        missing: str = "absent",
        sync: bool = True,
    ) -> SubjectSpace:
        """Open the space in a folder, or create one.

        `spaces` and `missing` must be as the space was created with; without `spaces` they
        are taken from the folder. A call returns when it is on disk; with `sync=False`, when the
        operating system has it, which survives the process but not the machine.
        """
        folder = Path(path)
        log = Log(folder, sync)
        try:
            if log.path is None:
                space = cls(*spaces, clock=clock, missing=missing)
                log.start(snapshots.records_of(space))
            else:
                space = snapshots.restore(cls, log, clock)
                if spaces and (spaces != space.spaces or missing != space.missing):
                    raise ArgumentError(f"{folder} has other spaces: {space.spaces}")
        except BaseException:
            log.close()
            raise
        space._journal.log = log
        n_bytes_at_start = log.n_bytes

        def compact_if_long() -> None:
            nonlocal n_bytes_at_start
            if log.n_bytes > max(_MIN_COMPACTED, 4 * n_bytes_at_start):
                log.start(snapshots.records_of(space))
                n_bytes_at_start = log.n_bytes

        space._journal.compact_if_long = compact_if_long
        return space

    @property
    def sequence(self) -> int:
        """Number of calls that have changed something; on disk, since the space was created."""
        return self._journal.sequence

    def compact(self) -> None:
        """Rewrite the log as a snapshot; transitions of earlier calls are no longer recovered."""
        with self._lock:
            if self._journal.log is None:
                raise ArgumentError("the space is not on disk")
            self._journal.log.check()
            self._expire()
            self._journal.log.start(snapshots.records_of(self))

    def close(self) -> None:
        """Close the log; later changes raise an error."""
        with self._lock:
            if self._journal.log is not None:
                self._journal.log.close()

    def __enter__(self) -> SubjectSpace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PublicationView(Mapping[PublicationKey, Any]):
    """The publications of a space, by key; a view, which later changes show in."""

    def __init__(self, space: SubjectSpace) -> None:
        self._space = space

    def __getitem__(self, key: PublicationKey) -> dict[str, Any] | Publication:
        return self._space.publication(key)

    def __iter__(self) -> Iterator[PublicationKey]:
        return iter(self._space.publication_keys())

    def __len__(self) -> int:
        return self._space.n_publications

    def __contains__(self, key: object) -> bool:
        return self._space.has_publication(key)


def _plain(where: Any, params: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a condition and parameters as the log has them: expressions as texts.

    The space uses the same, so that it is equal after it was opened again.
    """
    if isinstance(where, Interest):
        check_regions(where.regions, InterestRegion)
        regions = {}
        for name, region in where.regions.items():
            text, values = _plain(region.where, region.params)
            regions[name] = replace(region, where=text, params=values or {})
        return replace(where, regions=regions), params
    if not isinstance(where, Expression):
        return where, params
    text, lifted = to_text(where)
    return text, {**to_params(params), **lifted} if lifted else params
