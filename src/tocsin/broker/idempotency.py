"""Idempotent publishing: a publish that is repeated under its key gets its first receipt again.

Enters: keys of publishes, and their receipts. Leaves: receipts for repeats. A key belongs to its
owner (a token) and to one content: the same key with other content is refused. Keys live for a
window of time, a bounded number for each owner; the oldest are deleted first.

Keys are in memory. Where a publish writes to the database, its key is stored in the same
transaction, so that it is known after a restart if and only if the events are. A publish that
stores nothing has its key in memory only. A commit that fails may be on disk all the same: such a
key is in doubt, and the database is read before it is used again. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tocsin.broker.events import Event
from tocsin.broker.schema import KeyRow
from tocsin.errors import ArgumentError, IdempotencyError

MAX_KEY = 255


class Receipt(NamedTuple):
    """The outcome of a publish: the numbers of its events, and how many matches they had.

    `replayed`: it was published before, under the same idempotency key.
    """

    first: int
    last: int
    matches: int
    replayed: bool = False


class Key(NamedTuple):
    """The idempotency key of a publish: its owner, its name, and a digest of the content."""

    owner: str
    name: str
    digest: bytes


def to_key(owner: str, name: object, *content: bytes) -> Key:
    """Return the key of a client for some content; raise ArgumentError for a bad name."""
    if isinstance(name, str) and len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]  # a header may have it as a quoted string
    if not isinstance(name, str) or not 0 < len(name) <= MAX_KEY or not name.isprintable():
        raise ArgumentError(f"an idempotency key is a text of 1 to {MAX_KEY} printable characters")
    digest = hashlib.blake2b(digest_size=16)
    for part in content:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return Key(owner, name, digest.digest())


def to_cloudevent_key(owner: str, event: Event) -> Key:
    """Return the key of a CloudEvent: its source and id identify it."""
    context = (event.headers or {}).get("ce")
    if not isinstance(context, dict):
        raise ArgumentError("once is for CloudEvents: others have no source and id")
    digest = hashlib.blake2b(digest_size=16)
    for part in (str(context["source"]).encode(), str(context["id"]).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Key(owner, f"cloudevent:{digest.hexdigest()}", b"")


class Entry:
    """A used key, with the receipt once there is one.

    It belongs to a whole publish, or to one `event` of it.
    """

    __slots__ = ("at", "event", "is_in_doubt", "is_stored", "key", "receipt", "waiters")

    def __init__(
        self, key: Key, at: int, receipt: Receipt | None = None, event: Event | None = None
    ) -> None:
        self.key = key
        self.event = event
        self.at = at
        self.receipt = receipt
        self.is_stored = False
        self.is_in_doubt = False
        self.waiters: list[asyncio.Future[Receipt]] = []

    def row(self, receipt: Receipt) -> KeyRow:
        """Return the key as it is stored."""
        owner, name, digest = self.key
        receipt = self.own(receipt)
        return KeyRow(owner, name, digest, receipt.first, receipt.last, receipt.matches, self.at)

    def own(self, receipt: Receipt) -> Receipt:
        """Return the part of a publish's receipt for this key's events."""
        if self.event is None:
            return receipt
        return Receipt(self.event.seq, self.event.seq, 0)

    def replay(self) -> asyncio.Future[Receipt]:
        """Return the receipt of the first publish, as soon as there is one."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.receipt is not None:
            future.set_result(self.receipt._replace(replayed=True))
        else:
            self.waiters.append(future)
        return future


class Idempotency:
    """The keys of all owners."""

    def __init__(self, seconds: float, most: int) -> None:
        self._window = round(seconds * 1_000_000)
        self._most = most
        self._owners: dict[str, OrderedDict[str, Entry]] = {}
        self._evicted: list[tuple[str, str, int]] = []

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    def find(self, key: Key) -> Entry | None:
        """Return a key in its window; raise IdempotencyError for other content."""
        mine = self._owners.get(key.owner)
        entry = None if mine is None else mine.get(key.name)
        if entry is None or (entry.receipt is not None and entry.at < self.oldest()):
            return None
        if entry.key.digest != key.digest:
            raise IdempotencyError(key.name)
        return entry

    def oldest(self) -> int:
        """Return the time before which keys are deleted, in microseconds."""
        return time.time_ns() // 1000 - self._window

    def begin(self, key: Key, event: Event | None = None) -> Entry:
        """Register the key of a publish, for all its events or one of them."""
        entry = Entry(key, time.time_ns() // 1000, event=event)
        self._put(entry)
        return entry

    def _put(self, entry: Entry) -> None:
        mine = self._owners.setdefault(entry.key.owner, OrderedDict())
        mine.pop(entry.key.name, None)
        mine[entry.key.name] = entry
        self._tidy(mine, self.oldest())

    def _tidy(self, mine: OrderedDict[str, Entry], oldest: int) -> None:
        """Delete keys that are too old or too many, but none in use."""
        while mine:
            entry = next(iter(mine.values()))
            is_surplus = len(mine) > self._most or entry.at < oldest
            if not is_surplus or (entry.receipt is None and not entry.is_in_doubt):
                return
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        owner, name, _ = entry.key
        mine = self._owners.get(owner, OrderedDict())
        if mine.get(name) is entry:
            del mine[name]
            if entry.is_stored:
                self._evicted.append((owner, name, entry.at))

    def written(self, entries: Iterable[Entry]) -> None:
        """Mark keys whose commit has ended, before they are settled.

        If it failed they are in doubt, which `settle` with a receipt ends.
        """
        for entry in entries:
            entry.is_stored = entry.is_in_doubt = True

    def settle(self, entry: Entry, result: Receipt | Exception) -> None:
        """Set the outcome of a publish, also for repeats that wait for it."""
        waiters, entry.waiters = entry.waiters, []
        if isinstance(result, Receipt):
            result = entry.own(result)
            entry.receipt, entry.is_in_doubt = result, False
        elif not entry.is_in_doubt:
            self._drop(entry)
        entry.event = None
        for waiter in waiters:
            if waiter.done():
                continue
            if isinstance(result, Receipt):
                waiter.set_result(result._replace(replayed=True))
            else:
                waiter.set_exception(result)

    def forgive(self, entry: Entry, row: KeyRow | None) -> None:
        """End a doubt: the database has the key with a receipt, or does not have it."""
        entry.is_in_doubt = False
        if row is None:
            self._drop(entry)
        else:
            entry.receipt = Receipt(row.first, row.last, row.matches)

    def restore(self, rows: Sequence[KeyRow]) -> None:
        """Load stored keys, before the broker starts."""
        for row in rows:
            key = Key(row.owner, row.key, row.digest)
            entry = Entry(key, row.at, Receipt(row.first, row.last, row.matches))
            entry.is_stored = True
            self._put(entry)

    def expire(self) -> list[tuple[str, str, int]]:
        """Delete old keys; return the stored ones among them and among those evicted before."""
        oldest = self.oldest()
        for owner, mine in list(self._owners.items()):
            self._tidy(mine, oldest)
            if not mine:
                del self._owners[owner]
        evicted, self._evicted = self._evicted, []
        return evicted
