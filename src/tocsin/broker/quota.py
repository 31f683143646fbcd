"""Quotas: bytes of backlogs, free space on the disk, requests a second.

Enters: what is about to be stored or asked for. Leaves: nothing, an error, or how much is too much.

The bytes of a backlog are its notifications times their mean size. The mean is kept as they come;
what goes is not looked at. So the figure is exact for events of one size and for an empty backlog,
and otherwise as good as the oldest are like the newest.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tocsin.broker.config import Config, Limits
from tocsin.broker.events import Event
from tocsin.broker.subscription import Subscription
from tocsin.broker.tokens import Bucket
from tocsin.errors import DiskFullError, LimitError

_LOOK_EVERY = 1.0
_MOST_BUCKETS = 10_000
_BESIDE = 100  # what a row takes beside its texts

LIST, TRY, CHANGE = 5, 10, 1
"""What a list, trying a condition, and a change of a subscription cost of `requests_per_second`."""


class Disk:
    """The free space where the database is; `is_low` says that less is free than must be.

    It is looked at once a second from the start on: every publish asks.
    """

    def __init__(self, folder: Path, min_free: int) -> None:
        self._folder = folder
        self.min_free = min_free
        self.is_low = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look, now and every second."""
        self.is_low = self.free() < self.min_free
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def free(self) -> int:
        """Return how many bytes this process may still write."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def check(self) -> None:
        """Refuse what would have to be stored."""
        if self.is_low:
            raise DiskFullError(
                f"the disk is nearly full: less than {self.min_free} bytes are free "
                "(min_free_bytes); nothing more is stored until there is room"
            )


class Rates:
    """How often each token asks for what costs more than an event. Used within the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._rate = limits.requests_per_second
        self._buckets: dict[str, Bucket] = {}

    def take(self, owner: str, cost: float) -> None:
        """Take what a request costs, or say when there will be enough."""
        if not self._rate:
            return
        bucket = self._buckets.get(owner)
        if bucket is None:
            if len(self._buckets) >= _MOST_BUCKETS:  # of tokens that are long gone
                self._buckets.clear()
            bucket = self._buckets[owner] = Bucket(self._rate)
        try:
            bucket.take(math.ceil(cost))
        except LimitError as error:
            raise LimitError(
                "too many requests a second", "requests_per_second", error.retry_after
            ) from None

    async def wait(self, owner: str, cost: float) -> None:
        """Take what a request costs when there is enough: the client is slowed down."""
        while True:
            try:
                self.take(owner, cost)
                return
            except LimitError as error:
                await asyncio.sleep(error.retry_after or 1)


def size_of(event: Event) -> int:
    """Return about how many bytes an event takes in the database."""
    return len(event.text) + len(event.body or b"") * 4 // 3 + _BESIDE


def add(subscription: Subscription, n_bytes: int) -> None:
    """Take note of one notification more, after it was counted."""
    if subscription.pending > 0:
        subscription.mean_bytes += (n_bytes - subscription.mean_bytes) / subscription.pending


def surplus(subscription: Subscription, most: int) -> int:
    """Return how many of the oldest notifications must go so that the others fit."""
    if not most or not subscription.mean_bytes:
        return 0
    return max(0, subscription.pending - int(most // subscription.mean_bytes))


def mean_sizes(connection: sqlite3.Connection) -> list[tuple[int, float]]:
    """Return for each subscription with notifications their mean size; for the start."""
    return connection.execute(
        "SELECT n.no, avg(length(e.text) + ifnull(length(e.extra), 0)) + ? FROM notifications n "
        "JOIN events e ON e.seq = n.seq GROUP BY n.no",
        (_BESIDE,),
    ).fetchall()


def excess(subscriptions: Iterable[Subscription], config: Config) -> list[tuple[Subscription, int]]:
    """Return what must go of the backlogs of tokens that have more bytes than they may.

    The largest backlog of a token goes first. Where tokens are not asked for, nobody has a limit.
    """
    most = config.limits.max_durable_bytes
    if not most:
        return []
    waiting = [each for each in subscriptions if each.durable and each.pending > 0]
    totals: Counter[str] = Counter()
    for each in waiting:
        totals[each.spec.owner] += each.backlog_bytes
    over = {owner: n - most for owner, n in totals.items() if owner and n > most}
    gone: list[tuple[Subscription, int]] = []
    if not over:
        return gone
    for each in sorted(waiting, key=lambda each: -each.backlog_bytes):
        left = over.get(each.spec.owner, 0)
        if left > 0 and each.mean_bytes:
            n = min(each.pending, math.ceil(left / each.mean_bytes))
            over[each.spec.owner] = left - int(n * each.mean_bytes)
            gone.append((each, n))
    return gone
