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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tocsin.arguments import Moment, to_ids, to_moment, to_params
from tocsin.catalog.serialization import to_text
from tocsin.errors import ArgumentError, BadRowsError
from tocsin.language.expression import Expression
from tocsin.loading import find_all, load_table
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.subjects import snapshots
from tocsin.subjects.batches import read_batch
from tocsin.subjects.dimensions import Dimensions
from tocsin.subjects.expiry import Seconds, to_expiry
from tocsin.subjects.log import Log
from tocsin.subjects.model import InterestRegion, Publication, Subscription, check_regions
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

    def update(
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

    def update_many(
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
    ) -> Transitions:
        """Add a subscription under a new id; return an ENTER for each publication it matches.

        `where` is a condition in the first space, or a `Subscription` of regions in any. It expires
        at `valid_until`, or after `ttl` seconds. `notify` says which transitions it asks for.
        """
        mask = to_transition_mask(notify)
        condition, values = _plain(where, params)
        moment = None if valid_until is None else to_moment(valid_until)
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
        on_error: Literal["raise", "quarantine"] = "raise",
        notify: Literal["both", "enter", "leave"] = "both",
        quiet: bool = False,
    ) -> Transitions:
        """Add many subscriptions from an Arrow table (or frame), in the first space.

        Columns and bad rows are handled as by `Matcher.subscribe_many`; bad rows are in `bad` of
        the result. With `quiet`, transitions are neither computed nor returned.
        """
        if on_error not in ("raise", "quarantine"):
            raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
        mask = to_transition_mask(notify)
        load = load_table(table, where, self.spaces[0], None)
        with Transaction(self) as transaction:
            self._subscriptions.reserve(len(load))
            bad = load.refuse_taken(self._subscriptions.catalog)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            arrow_table = table if isinstance(table, pa.Table) else pa.table(table)
            options = {"where": where, "notify": from_transition_mask(mask), "quiet": quiet}
            transaction.log("subscribe_many", table=arrow_table, **options)
            self._add_by_row(transaction, self._subscriptions.add_many(load, mask, quiet))
        transaction.transitions.bad = bad
        return transaction.transitions

    def update_subscription(
        self,
        id: SubscriptionId,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
        notify: Literal["both", "enter", "leave"] | None = None,
    ) -> Transitions:
        """Change some parameters of a subscription, its condition, or the transitions it gets."""
        if where is None and params is None and notify is None:
            raise ArgumentError("update_subscription needs where, params or notify")
        condition, values = _plain(where, params)
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
            if where is None and params is None:
                transaction.log("update_subscription", **arguments)
                self._subscriptions.set_mask(old, mask)
            else:
                prepared = self._subscriptions.prepare_update(old, condition, values)
                transaction.log("update_subscription", **arguments)
                changes = self._subscriptions.replace(old, id, prepared, mask)
                self._add_by_row(transaction, changes)
        return transaction.transitions

    def unsubscribe(self, id: SubscriptionId) -> Transitions:
        """Remove a subscription; its matches end without transitions."""
        with Transaction(self) as transaction:
            dense = self._subscriptions.dense(id)
            transaction.log("unsubscribe", ids=[id])
            self._subscriptions.remove(np.array([dense]))
        return transaction.transitions

    def unsubscribe_many(
        self, ids: Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray
    ) -> Transitions:
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

    def __len__(self) -> int:
        """Return the number of publications."""
        with self._lock:
            self._expire()
            return len(self._publications.keys)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            self._expire()
            return key in self._publications.keys

    @property
    def n_subscriptions(self) -> int:
        """The number of subscriptions."""
        with self._lock:
            self._expire()
            return len(self._subscriptions.catalog)

    def _expire(self) -> None:
        """Remove what has expired; the next change returns the transitions."""
        self._journal.pending += self._expire_due(self._journal.tick(self._clock))

    def get(self, key: PublicationKey) -> dict[str, Any] | Publication:
        """Return the current values of a publication; nested values by their dotted paths.

        Numbers come back as integers where they are whole and not declared floats.
        """
        with self._lock:
            self._expire()
            return self._publications.get(key)

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

        `spaces` and `missing` must be those that the space was created with; without `spaces` they
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


def _plain(where: Any, params: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a condition and parameters as the log has them: expressions as texts.

    The space uses the same, so that it is equal after it was opened again.
    """
    if isinstance(where, Subscription):
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
