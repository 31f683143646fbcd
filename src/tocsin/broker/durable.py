"""Durable delivery: unacknowledged notifications → the one session that reads them.

Enters: notifications on disk, acknowledgements. Leaves: messages in the session's outbox, at most a
window of them unacknowledged. While the session keeps up, notifications come from memory as they
are committed; otherwise they are read from disk, page by page, until it has caught up.

With `ack_seconds`, a notification that is not acknowledged in that time is sent again on the open
connection; with `max_deliveries`, one that was sent that often becomes a dead letter instead. With
either, deliveries are counted on disk, so that the count survives reconnections and restarts;
otherwise a delivery writes nothing. A reader may also postpone a notification: it stays in flight
and in the window, and is sent again when it is due.

A second session takes the subscription over: a client that reconnects need not wait until the
broker has noticed that its old connection is dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tocsin.broker import schema
from tocsin.broker.events import Event
from tocsin.broker.subscription import Session, Subscription
from tocsin.errors import EventError

if TYPE_CHECKING:
    from tocsin.broker.core import Broker

_PAGE = 256
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_FINEST = 0.02  # least seconds between two checks for overdue notifications
_NEVER = float("inf")
log = logging.getLogger("tocsin.broker")


class Flight:
    """A sent and unacknowledged notification whose deliveries are counted.

    `deliveries` counts from when it was made or revived, `earlier` before that. It is sent again at
    `deadline`, by the loop's clock.
    """

    __slots__ = ("deadline", "deliveries", "earlier", "is_put_off")

    def __init__(self, deliveries: int, earlier: int, deadline: float, is_put_off: bool = False):
        self.deliveries = deliveries
        self.earlier = earlier
        self.deadline = deadline
        self.is_put_off = is_put_off


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
        self.in_flight: dict[int, Flight | None] = {}
        self._taken: list[int] = []
        self._cursor = 0
        self._is_live = False
        self._pump: asyncio.Task[None] | None = None
        self._ack_seconds = 0.0
        self._max_deliveries = 0
        self._is_counted = False
        self._uncounted: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._resending: asyncio.Task[None] | None = None
        self.configure()

    def configure(self) -> None:
        """Apply the subscription's terms of redelivery, at first and when they change."""
        self._ack_seconds, self._max_deliveries = self.broker.backlog.redelivery(self.subscription)
        self._is_counted = bool(self._ack_seconds or self._max_deliveries)

    def attach(self) -> None:
        """Take over the subscription, from its oldest unacknowledged notification on."""
        before = self.subscription.consumer
        if before is not None:
            before.detach()
            before.on_replaced()
        self.subscription.consumer = self
        self.resume()

    def detach(self) -> None:
        """Stop; unacknowledged notifications wait for the next session."""
        if self.subscription.consumer is self:
            self.subscription.consumer = None
        for task in (self._pump, self._resending):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._store_counts()

    @property
    def _may_send(self) -> bool:
        return len(self.in_flight) < self.window and self.session.outbox.has_capacity

    def offer(self, event: Event, kind: int) -> None:
        """Send a notification that has just been committed, or leave it on disk."""
        if event.seq <= self._cursor:  # read from disk already
            return
        if self._is_live and self._may_send:
            self._send(event, kind)
        else:
            self._is_live = False

    def look(self) -> None:
        """Read from disk notifications that were not offered, such as revived dead letters."""
        self._is_live = False
        self.resume()

    def resume(self) -> None:
        """Continue reading if there is capacity; called after acknowledgements and writes."""
        idle = self._pump is None or self._pump.done()
        if not self._is_live and idle and self._may_send:
            self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Send pages until the session has caught up; retry where the disk cannot be read."""
        pause = _FIRST_PAUSE
        while self._may_send and self.subscription.consumer is self:
            try:
                if await self._read_page():
                    return
                pause = _FIRST_PAUSE
            except Exception as error:  # the connection is open, and waits
                self._failed(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read_page(self) -> bool:
        """Send a page; return whether it was the last."""
        subscription = self.subscription
        most = min(_PAGE, self.window - len(self.in_flight))
        last = subscription.last_seq
        if self._is_counted and not self._cursor:  # what the session before counted is on disk then
            await self.broker.storage.submit(schema.acknowledge, subscription.no, [])
        rows = await self.broker.storage.read(schema.page, subscription.no, self._cursor, most)
        if subscription.consumer is not self:
            return True
        self._send_page(rows)
        if rows or subscription.last_seq != last:
            return False
        self._is_live = True
        return True

    def _failed(self, error: Exception) -> None:
        self.broker.metrics.read_failures += 1
        log.error("the backlog of %r cannot be read: %r", self.subscription.id, error)

    def _send_page(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Send a page without what is in flight, expired, postponed, or was sent too often."""
        now = time.time_ns() // 1000
        for *row, kind, deliveries, earlier, due in rows:
            event = self._restored(row, (kind, deliveries, earlier, due))
            if event is None:
                continue
            if event.seq in self.in_flight:
                self._cursor = event.seq
            elif not self._is_over(event, kind, deliveries, now):
                if due > now:
                    self._cursor = event.seq
                    self._wait_until_due(event.seq, deliveries, earlier, (due - now) / 1e6)
                else:
                    self._send(event, kind, deliveries, earlier)
        self.broker.delivery.flush()

    def _restored(self, row: Sequence[Any], terms: tuple[object, ...] = ()) -> Event | None:
        """Return an event read from disk; one that is damaged there becomes a dead letter.

        Otherwise it would be read again for ever, and nothing behind it would be delivered.
        """
        try:
            if not all(isinstance(each, int) for each in terms):
                raise EventError(f"the notification of event {row[0]} is damaged on disk")
            return Event.restored(*row)
        except EventError as error:
            log.error("a notification of %r is a dead letter: %s", self.subscription.id, error)
            self._cursor = max(self._cursor, row[0])
            self.broker.backlog.bury(self.subscription, row[0], str(error))
            return None

    def _is_over(self, event: Event, kind: int, deliveries: int, now: int) -> bool:
        """Return whether a notification has expired or was sent too often; then it is settled."""
        if event.valid_until is not None and event.valid_until <= now and not kind:
            # Transitions are delivered all the same.
            self.broker.backlog.acknowledge(self.subscription, [event.seq])
        elif self._max_deliveries and deliveries >= self._max_deliveries:
            self._bury_spent(event.seq, deliveries)
        else:
            return False
        self._cursor = max(self._cursor, event.seq)
        return True

    def _bury_spent(self, seq: int, deliveries: int) -> None:
        reason = f"not acknowledged after {deliveries} deliveries"
        self.broker.backlog.bury(self.subscription, seq, reason)

    def _send(self, event: Event, kind: int, deliveries: int = 0, earlier: int = 0) -> None:
        subscription, seq = self.subscription, event.seq
        again = seq <= subscription.high_sent or deliveries + earlier > 0
        subscription.high_sent = max(subscription.high_sent, seq)
        self._cursor = max(self._cursor, seq)
        if self._is_counted or deliveries:  # or it was postponed
            count = earlier + deliveries + 1
            message = self.session.render(
                subscription, event, kind, again, subscription.missed, count
            )
            self._count(seq, deliveries + 1, earlier)
        else:
            message = self.session.render(subscription, event, kind, again, subscription.missed)
            self.in_flight[seq] = None
        self.session.outbox.put(message, False)
        self.broker.metrics.notifications += 1
        self.broker.metrics.redelivered += again
        self.broker.delivery.touch(self.session)

    # Counting, and sending again.

    def _count(self, seq: int, deliveries: int, earlier: int) -> None:
        """Count a delivery, in memory now and on disk with others of this iteration."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._ack_seconds if self._ack_seconds else _NEVER
        self.in_flight[seq] = Flight(
            deliveries, earlier, deadline
        )  # keeps its place, if it has one
        if not self._uncounted:
            loop.call_soon(self._store_counts)
        self._uncounted.append(seq)
        if self._ack_seconds:
            self._remind(deadline)

    def _store_counts(self) -> None:
        seqs, self._uncounted = self._uncounted, []
        if seqs:
            self.broker.storage.forget(schema.count_deliveries, self.subscription.no, seqs)

    def _wait_until_due(self, seq: int, deliveries: int, earlier: int, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        self.in_flight[seq] = Flight(deliveries, earlier, deadline, is_put_off=True)
        self._remind(deadline)

    def _remind(self, deadline: float) -> None:
        """Check for overdue notifications at a time, or before."""
        timer = self._timer
        if timer is not None and timer.when() <= deadline:
            return
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        at = max(deadline, loop.time() + _FINEST)
        self._timer = loop.call_at(at, self._check_overdue)

    def _check_overdue(self) -> None:
        """Send overdue notifications again, unless the session has yet to write its messages."""
        self._timer = None
        if self.subscription.consumer is not self:
            return
        now = asyncio.get_running_loop().time()
        is_behind = len(self.session.outbox) > 0
        overdue: list[int] = []
        next_deadline = _NEVER
        for seq, flight in self.in_flight.items():
            if flight is None or flight.deadline == _NEVER:
                continue
            if flight.deadline > now or (is_behind and not flight.is_put_off):
                next_deadline = min(next_deadline, max(flight.deadline, now + 1.0 * is_behind))
            elif len(overdue) < _PAGE:
                overdue.append(seq)
            else:
                next_deadline = now
        if overdue and (self._resending is None or self._resending.done()):
            self._resending = asyncio.create_task(self._resend(overdue))
        elif overdue:
            next_deadline = min(next_deadline, now + 0.1)
        if next_deadline < _NEVER:
            self._remind(next_deadline)

    async def _resend(self, seqs: Sequence[int]) -> None:
        """Send notifications again; bury those sent often enough."""
        subscription = self.subscription
        try:
            rows = await self.broker.storage.read(schema.notifications, subscription.no, seqs)
        except Exception as error:
            self._failed(error)
            self._remind(asyncio.get_running_loop().time() + 1.0)
            return
        if subscription.consumer is not self:
            return
        now, missing = time.time_ns() // 1000, set(seqs)
        for *row, kind, _, _, _ in rows:
            missing.discard(row[0])
            event = self._restored(row)
            if event is None:
                self.in_flight.pop(row[0], None)
                continue
            flight = self.in_flight.get(event.seq)
            if flight is None:  # acknowledged meanwhile
                continue
            if self._is_over(event, kind, flight.deliveries, now):
                del self.in_flight[event.seq]
            else:
                self._send(event, kind, flight.deliveries, flight.earlier)
        self.forget(missing)  # on disk no more
        self.broker.delivery.flush()

    def put_off(self, seqs: Sequence[int], seconds: float) -> None:
        """Send notifications in flight again later; bury those sent often enough."""
        for seq in seqs:
            if seq not in self.in_flight:
                continue
            flight = self.in_flight[seq] or Flight(1, 0, _NEVER)
            if self._max_deliveries and flight.deliveries >= self._max_deliveries:
                del self.in_flight[seq]
                self._bury_spent(seq, flight.deliveries)
            else:
                self._wait_until_due(seq, flight.deliveries, flight.earlier, seconds)
        self.resume()

    # Acknowledgements.

    def forget(self, seqs: Iterable[int]) -> None:
        """Remove notifications from flight that were acknowledged without this session."""
        for seq in seqs:
            self.in_flight.pop(seq, None)
        self.resume()

    def forget_upto(self, seq: int) -> None:
        """Remove notifications up to a number from flight, but not postponed ones."""
        self.forget([each for each in self.in_flight if each <= seq and not self._is_put_off(each)])

    def _is_put_off(self, seq: int) -> bool:
        flight = self.in_flight[seq]
        return flight is not None and flight.is_put_off

    def covered(self, seq: int, upto: bool) -> list[int]:
        """Return the notifications in flight that an acknowledgement covers.

        With `upto` that includes all sent before, but not postponed ones. For a notification that
        is not in flight itself, its number is the limit.
        """
        if not upto:
            return [seq] if seq in self.in_flight else []
        sent = list(self.in_flight)  # in the order in which they were sent first
        if seq in self.in_flight:
            sent = sent[: sent.index(seq) + 1]
        else:
            sent = [each for each in sent if each <= seq]
        return [each for each in sent if each == seq or not self._is_put_off(each)]

    def acknowledge(self, seqs: Sequence[int]) -> asyncio.Future[int]:
        """Acknowledge notifications in flight; the future is done when that is on disk."""
        future = self.broker.backlog.acknowledge(self.subscription, seqs)
        self.forget(seqs)
        return future

    def acknowledge_upto(self, seq: int) -> list[int]:
        """Acknowledge one in flight and all sent before it; return their numbers."""
        gone = self.covered(seq, upto=True)
        if gone:
            self.acknowledge(gone)
        return gone

    def bury(self, seq: int, reason: str) -> asyncio.Future[tuple[int, int]] | None:
        """Refuse one notification for good: it becomes a dead letter."""
        if seq not in self.in_flight:
            return None
        future = self.broker.backlog.bury(self.subscription, seq, reason)
        self.forget([seq])
        return future

    def taken(self) -> None:
        """The session has taken the messages of its outbox and begins to write them."""
        self._taken = list(self.in_flight) if self.auto else []

    def written(self) -> None:
        """The session has written its messages; with `auto` that acknowledges them."""
        gone = [seq for seq in self._taken if seq in self.in_flight and not self._is_put_off(seq)]
        self._taken = []
        if gone:
            self.acknowledge(gone)
        else:
            self.resume()
