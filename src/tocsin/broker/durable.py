"""Durable delivery: unacknowledged notifications → the one session that reads them.

Enters: notifications that are on disk, acknowledgements. Leaves: messages in the session's outbox,
never more than a window of them unacknowledged. While the session keeps up, notifications come from
memory as they are committed; when it does not, they are left on disk and read from there, page by
page, until it has caught up.

A second session that asks for the same subscription takes it over: whoever reconnects need not wait
until the broker has noticed that the old connection is dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tocsin.broker import schema
from tocsin.broker.events import Event
from tocsin.broker.subscription import Session, Subscription

if TYPE_CHECKING:
    from tocsin.broker.core import Broker

_PAGE = 256


class Consumer:
    """A durable subscription while a session reads it. Used within the event loop."""

    def __init__(
        self,
        broker: Broker,
        subscription: Subscription,
        session: Session,
        on_replaced: Callable[[], None],
        *,
        window: int,
        auto: bool = False,
    ) -> None:
        self.broker = broker
        self.subscription = subscription
        self.session = session
        self.on_replaced = on_replaced
        self.window = max(1, window)
        self.auto = auto
        self.in_flight: dict[int, None] = {}
        self._taken: list[int] = []
        self._cursor = 0
        self._is_live = False
        self._is_rewound = False
        self._done: set[int] = set()
        self._pump: asyncio.Task[None] | None = None

    def attach(self) -> None:
        """Take the subscription over and begin with the oldest that is not acknowledged."""
        before = self.subscription.consumer
        if before is not None:
            before.detach()
            before.on_replaced()
        self.subscription.consumer = self
        self.resume()

    def detach(self) -> None:
        """Stop; what is not acknowledged waits for the next session."""
        if self.subscription.consumer is self:
            self.subscription.consumer = None
        if self._pump is not None:
            self._pump.cancel()

    @property
    def _may_send(self) -> bool:
        return len(self.in_flight) < self.window and self.session.outbox.has_room

    def offer(self, event: Event, kind: int) -> None:
        """Take a notification that has just been committed."""
        if event.seq <= self._cursor:  # read from disk already
            return
        if self._is_live and self._may_send:
            self._send(event, kind)
        else:
            self._is_live = False

    def resume(self) -> None:
        """Go on reading from disk where there is room; called after acknowledgements and writes."""
        idle = self._pump is None or self._pump.done()
        if not self._is_live and idle and self._may_send:
            self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        found = self.subscription
        while self._may_send and found.consumer is self:
            most = min(_PAGE, self.window - len(self.in_flight))
            last = found.last_seq
            if self._is_rewound:  # what was acknowledged before that is on disk then
                self._is_rewound = False
                await self.broker.storage.submit(schema.acknowledge, found.no, [])
            rows = await self.broker.storage.read(schema.page, found.no, self._cursor, most)
            if found.consumer is not self:
                return
            if self._is_rewound:  # what was read is of the place before
                continue
            self._send_page(rows)
            if not rows and found.last_seq == last:
                self._is_live = True
                self._done.clear()
                return

    def _send_page(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Send what was read, but for what is in flight, done or over."""
        found, now = self.subscription, time.time_ns() // 1000
        for *row, kind in rows:
            event = Event.restored(*row)
            is_over = event.valid_until is not None and event.valid_until <= now
            if event.seq in self.in_flight or event.seq in self._done:
                self._cursor = event.seq
            elif is_over and not kind:  # that a match began or ended is told all the same
                self._cursor = event.seq
                self.broker.acknowledge(found, [event.seq])
            else:
                self._send(event, kind)
        self.broker.flush()

    def _send(self, event: Event, kind: int) -> None:
        found = self.subscription
        again = event.seq <= found.high_sent
        found.high_sent = max(found.high_sent, event.seq)
        self._cursor = event.seq
        message = self.session.render(found, event, kind, again, found.missed)
        self.session.outbox.put(message, False)
        self.in_flight[event.seq] = None
        self.broker.metrics.notifications += 1
        self.broker.metrics.redelivered += again
        self.broker.touch(self.session)

    def _forget(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            del self.in_flight[seq]
            if seq > self._cursor:  # rewound: it may be read before the disk has forgotten it
                self._done.add(seq)

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget what was acknowledged without this session, as far as it is in flight."""
        self._forget([seq for seq in seqs if seq in self.in_flight])
        self.resume()

    def acknowledge(self, seq: int) -> bool:
        """Acknowledge one notification; whether it was in flight."""
        if seq not in self.in_flight:
            return False
        self._forget([seq])
        self.broker.acknowledge(self.subscription, [seq])
        self.resume()
        return True

    def acknowledge_upto(self, seq: int) -> list[int]:
        """Acknowledge one in flight and all that were sent before it; return which they were.

        Where it is not in flight, its number says how far.
        """
        gone = list(self.in_flight)  # in the order in which they were sent
        if seq in self.in_flight:
            gone = gone[: gone.index(seq) + 1]
        else:
            gone = [each for each in gone if each <= seq]
        self._forget(gone)
        if gone:
            self.broker.acknowledge(self.subscription, gone)
            self.resume()
        return gone

    def bury(self, seq: int, reason: str) -> bool:
        """Refuse one notification for good: it becomes a dead letter."""
        if seq not in self.in_flight:
            return False
        self._forget([seq])
        self.broker.bury(self.subscription, seq, reason)
        self.resume()
        return True

    def rewind(self) -> None:
        """Begin again with the oldest, as after dead letters were revived.

        What is in flight is not sent again; a page that is being read is read anew.
        """
        self._cursor, self._is_live, self._is_rewound = 0, False, True
        self._done.clear()
        self.resume()

    def taken(self) -> None:
        """The session has taken its outbox, just now, and begins to write what was in it."""
        self._taken = list(self.in_flight) if self.auto else []

    def written(self) -> None:
        """The session has written what it took; where nobody acknowledges, that is it."""
        gone = [seq for seq in self._taken if seq in self.in_flight]
        self._taken = []
        self._forget(gone)
        if gone:
            self.broker.acknowledge(self.subscription, gone)
        self.resume()
