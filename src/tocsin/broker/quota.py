"""Quotas: bytes of backlogs, free space on the disk, requests a second.

Enters: notifications to store, requests. Leaves: nothing, an error, or the surplus.

The bytes of a backlog are estimated as its notifications times their mean size. The mean is updated
with each notification added, not with those removed. So the estimate is exact for events of one
size, and otherwise as good as the oldest are like the newest.
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
_ROW_BYTES = 100  # of a row besides its texts

LIST, TRY, CHANGE = 5, 10, 1
"""The cost of a list, a trial of a condition and a change, in `requests_per_second`."""


class Disk:
    """The free space where the database is; `is_low` says that less is free than must be.

    It is checked once a second, because every publish reads it.
    """

    def __init__(self, folder: Path, min_free: int) -> None:
        self._folder = folder
        self.min_free = min_free
        self.is_low = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now and every second."""
        self.is_low = self.free() < self.min_free
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def free(self) -> int:
        """Return how many bytes this process may still write."""
        try:
            status = os.statvfs(self._folder)
        except OSError:
            return 0
        return status.f_bavail * status.f_frsize

    def check(self) -> None:
        """Raise DiskFullError where nothing more is stored."""
        if self.is_low:
            raise DiskFullError(
                f"the disk is nearly full: less than {self.min_free} bytes are free "
                "(min_free_bytes); nothing more is stored until there is room"
            )


class Rates:
    """The rates of requests of each token, except publishes. Used within the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._rate = limits.requests_per_second
        self._buckets: dict[str, Bucket] = {}

    def take(self, owner: str, cost: float) -> None:
        """Charge a request; raise LimitError with a time to retry where the rate is exceeded."""
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
        """Charge a request, and wait where the rate is exceeded."""
        while True:
            try:
                self.take(owner, cost)
                return
            except LimitError as error:
                await asyncio.sleep(error.retry_after or 1)


def size_of(event: Event) -> int:
    """Return about how many bytes an event takes in the database."""
    return len(event.text) + len(event.body or b"") * 4 // 3 + _ROW_BYTES


def add(subscription: Subscription, n_bytes: int) -> None:
    """Update the mean size for a notification that was counted."""
    if subscription.pending > 0:
        subscription.mean_bytes += (n_bytes - subscription.mean_bytes) / subscription.pending


def surplus(subscription: Subscription, most: int) -> int:
    """Return by how many notifications a backlog exceeds a number of bytes."""
    if not most or not subscription.mean_bytes:
        return 0
    return max(0, subscription.pending - int(most // subscription.mean_bytes))


def mean_sizes(connection: sqlite3.Connection) -> list[tuple[int, float]]:
    """Return for each subscription with notifications their mean size; for the start."""
    return connection.execute(
        "SELECT n.no, avg(length(e.text) + ifnull(length(e.extra), 0)) + ? FROM notifications n "
        "JOIN events e ON e.seq = n.seq GROUP BY n.no",
        (_ROW_BYTES,),
    ).fetchall()


def excess(subscriptions: Iterable[Subscription], config: Config) -> list[tuple[Subscription, int]]:
    """Return the notifications to drop of tokens whose backlogs exceed `max_durable_bytes`.

    The largest backlog of a token comes first. Without tokens there is no limit.
    """
    most = config.limits.max_durable_bytes
    if not most:
        return []
    waiting = [each for each in subscriptions if each.durable and each.pending > 0]
    totals: Counter[str] = Counter()
    for each in waiting:
        totals[each.spec.owner] += each.backlog_bytes
    over = {owner: n - most for owner, n in totals.items() if owner and n > most}
    drops: list[tuple[Subscription, int]] = []
    if not over:
        return drops
    for each in sorted(waiting, key=lambda each: -each.backlog_bytes):
        left = over.get(each.spec.owner, 0)
        if left > 0 and each.mean_bytes:
            n = min(each.pending, math.ceil(left / each.mean_bytes))
            over[each.spec.owner] = left - int(n * each.mean_bytes)
            drops.append((each, n))
    return drops
