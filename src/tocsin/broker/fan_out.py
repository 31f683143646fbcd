"""Fan-out: matches and transitions → outboxes, rows on disk, acknowledgements.

Enters: batches of publishes with what they match, and what of the past a subscription is to get.
Leaves: messages in outboxes, rows in the database, receipts. A publish of which nothing is stored
is delivered at once. One of which something is stored is delivered when that is on disk, to
transient subscribers too: what the disk refuses is delivered to nobody. So that a subscriber gets
events in their order, what follows such an event waits with it.

A batch is prepared before any of it is delivered, so that one that cannot be prepared has changed
nothing. A part of the broker (`core.py`); used within the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tocsin.broker import quota, schema, telemetry
from tocsin.broker.backlogs import Backlogs
from tocsin.broker.config import Config
from tocsin.broker.events import Event, Publication
from tocsin.broker.idempotency import Entry, Idempotency
from tocsin.broker.idempotency import Receipt as Receipt
from tocsin.broker.keyed import ENTER
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark, Network
from tocsin.broker.past import Answer, Found, Past
from tocsin.broker.registry import Registry
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Session, Subscription
from tocsin.broker.telemetry import Telemetry
from tocsin.broker.topics import Topics
from tocsin.errors import (
    DiskFullError,
    EventError,
    LimitError,
    TocsinError,
    UnavailableError,
    UnknownOutcomeError,
)

BLOCK = 1 << 20
_RECENT_BYTES = 10_000
Offer = tuple[Subscription, Event, int]
"""A notification to hand out: to whom, of what, and its kind."""
log = logging.getLogger("tocsin.broker")


Change = Callable[[sqlite3.Connection], object]
"""What is changed in the database in the transaction of a publish."""


class Publish:
    """Events that are published together, who waits for them, and what is stored with them."""

    __slots__ = ("at", "change", "entries", "events", "future", "is_keyed", "mark", "span")

    def __init__(
        self,
        events: Sequence[Event],
        future: asyncio.Future[Receipt],
        span: Any = None,
        mark: Mark | None = None,
        change: Change | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        self.events = events
        self.entries = entries
        self.mark = mark
        self.change = change
        self.future = future
        self.at = time.perf_counter()
        self.span = span
        self.is_keyed = any(event.key is not None for event in events)


class Round:
    """What a batch, or a change of a subscription, brings about.

    `direct` has the events that are delivered at once, with the numbers of those who get them.
    `offers` are delivered when `rows`, `notes` and the rest are on disk. So are `riders`, which
    only wait for their turn: they are delivered even where the disk refuses the others. `deferred`
    has the transient subscriptions of both, once for each notification.
    """

    __slots__ = (
        "changes", "deferred", "direct", "gone", "keys", "marks", "n_moves", "notes", "offers",
        "put", "refused", "retained", "riders", "rows", "settled", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.changes: list[Change] = []
        self.keys: list[schema.KeyRow] = []
        self.rows: list[schema.EventRow] = []
        self.notes: list[schema.Note] = []
        self.offers: list[Offer] = []
        self.riders: list[Offer] = []
        self.deferred: list[Subscription] = []
        self.n_moves = 0
        self.direct: list[tuple[Event, Sequence[int]]] = []
        self.waiting: list[tuple[Publish, Receipt]] = []
        self.settled: list[tuple[Publish, Receipt]] = []
        self.refused: list[tuple[Publish, TocsinError]] = []
        self.put: dict[tuple[str, str], schema.PublicationRow] = {}
        self.gone: dict[tuple[str, str], None] = {}
        self.retained: list[Event] = []

    @property
    def changes_past(self) -> bool:
        """Whether publications or retained events change."""
        return bool(self.put or self.gone or self.retained)

    def kept(self) -> schema.Kept:
        """Return what becomes of publications and retained events."""
        until = [(event.seq, event.retain_until or 0) for event in self.retained]
        return schema.Kept(list(self.put.values()), list(self.gone), until)

    def keep(self, event: Publication) -> None:
        """Take note of what a publication says last."""
        place = (event.type or "", event.key or "")
        self.put.pop(place, None)
        if event.gone is not None:
            self.gone[place] = None
            return
        self.put[place] = schema.PublicationRow(
            *place, event.seq, event.text, event.extra(), event.valid_until, event.published
        )


class FanOut(Backlogs):
    """Delivers what was matched."""

    def __init__(
        self, config: Config, storage: Storage, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        super().__init__(config, storage, metrics)
        self.disk = quota.Disk(config.data, config.min_free_bytes)
        self.topics = Topics(config.types, clock)
        self.past = Past(config, self.topics, clock)
        self.registry = Registry(config, storage, self.topics, self.past)
        self.recent: deque[Event] = deque(maxlen=config.recent_events)
        self.registry.recent = self.recent
        self.idempotency = Idempotency(config.idempotency_seconds, config.idempotency_keys)
        self.telemetry = Telemetry() if config.telemetry else None
        self.network: Network | None = None
        self._retain = round(config.retain_seconds * 1_000_000)
        self._dirty: list[Session] = []
        self._n_unsettled = 0
        self._settled = asyncio.Event()
        self.epoch = 0
        self._first_seq = self._next_seq = self._reserved = 0
        self._reserving: asyncio.Task[None] | None = None

    def deliver(self, batch: Sequence[Publish], answer: Answer) -> asyncio.Future[list[int]] | None:
        """Deliver a batch; return what the next one must wait for, if anything.

        Where this raises, nothing of the batch was delivered.
        """
        round = self._prepare(batch, answer)
        try:
            return self._begin(round)
        except Exception as error:  # a bug; what was delivered must not be delivered again
            log.exception("a batch was not delivered whole")
            for publish in batch:
                if not publish.future.done():
                    self._settle(publish, UnknownOutcomeError(f"internal error: {error!r}"))
            return None

    def _begin(self, round: Round) -> asyncio.Future[list[int]] | None:
        """Deliver what need not wait, and have the rest stored."""
        for found in round.deferred:
            found.n_deferred += 1
        for publish, refusal in round.refused:
            self.metrics.refused += 1
            self._settle(publish, refusal)
        for event, nos in round.direct:
            self._fan_out(event, nos, round)
        for publish, receipt in round.settled:
            self._publish_done(publish, receipt)
        self.metrics.batches += 1
        future = None
        if (
            round.waiting
            or round.notes
            or round.changes_past
            or round.offers
            or round.riders
            or round.marks
            or round.changes
        ):
            future = self._store(round)
        self.flush()
        return future if round.changes_past else None

    def _prepare(self, batch: Sequence[Publish], answer: Answer) -> Round:
        """Number events, and work out who gets them and what is stored; deliver nothing."""
        round, now, at = Round(), time.time_ns() // 1000, 0
        for ended in answer.ended:
            self._take(ended, [], round, now)
        for publish in batch:
            matched = answer.matched[at : at + len(publish.events)]
            at += len(publish.events)
            refusal = _first_error(matched) or self._overflow(publish, matched, len(batch) == 1)
            if refusal is not None:
                round.refused.append((publish, refusal))
            else:
                self._prepare_one(publish, matched, round, now)
        return round

    def _prepare_one(
        self, publish: Publish, matched: Sequence[Found], round: Round, now: int
    ) -> None:
        events, n_matches = publish.events, 0
        routes: list[list[int]] = []
        for event, nos in zip(events, matched, strict=True):
            assert isinstance(nos, list)
            if event.valid_until is not None and event.valid_until <= now:
                routes.append([])
                continue
            n_matches += len(nos)
            routes.append(nos if self.network is None else self._with_links(event, nos))
        if not events:
            round.settled.append((publish, Receipt(0, 0, 0)))
            return
        if self._is_stored(publish, routes):
            for event, nos in zip(events, routes, strict=True):
                n_matches += self._take(event, nos, round, now)
            if publish.mark is not None:
                round.marks.append(publish.mark)
            if publish.change is not None:
                round.changes.append(publish.change)
            receipts = round.waiting
        else:
            for event, nos in zip(events, routes, strict=True):
                self._number(event, now)
                if nos:
                    round.direct.append((event, nos))
            receipts = round.settled
        receipt = Receipt(events[0].seq, events[-1].seq, n_matches)
        receipts.append((publish, receipt))
        if receipts is round.waiting:  # its keys are known after a restart if it is
            round.keys += [entry.row(receipt) for entry in publish.entries]

    def _with_links(self, event: Event, nos: list[int]) -> list[int]:
        """Return the numbers of the subscriptions and of the neighbours that get an event."""
        assert self.network is not None
        return [*nos, *self.network.ahead(event, bool(nos or event.moves))]

    def _is_stored(self, publish: Publish, routes: Sequence[list[int]]) -> bool:
        """Whether something of a publish goes to disk, so that all of it waits for that."""
        if publish.is_keyed or publish.mark is not None or publish.change is not None:
            return True
        if self._retain:
            return True
        durable = self.registry.durable
        if durable:
            for nos in routes:
                if nos and not durable.isdisjoint(nos):
                    return True
        if self.network is not None:  # neighbours have negative numbers
            by_no = self.registry.by_no
            links = {no for nos in routes for no in nos if no < 0}
            if any(no in by_no and by_no[no].durable for no in links):
                return True
        return self.past.is_retaining and any(e.retain_until is not None for e in publish.events)

    def _take(self, event: Event, nos: list[int], round: Round, now: int) -> int:
        """Number an event and note what is stored of it; return how many transitions it brings."""
        self._number(event, now)
        n_notes = len(round.notes)
        self._note(event, nos, round)
        n_moves = self._note_moves(event, round, now) if event.moves else 0
        refs = len(round.notes) - n_notes
        if self._retain or event.retain_until is not None:
            refs += self._keep_for_later(event, round, now)
        if refs:
            round.rows.append(to_row(event, refs))
        if event.key is not None:
            assert isinstance(event, Publication)
            event.moves = ()
            round.keep(event)
        round.n_moves += n_moves
        return n_moves

    def _keep_for_later(self, event: Event, round: Round, now: int) -> int:
        """Retain an event; whether it is."""
        if event.key is not None:
            return 0
        if event.retain_until is None:
            event.retain_until = now + self._retain
        if event.valid_until is not None:
            event.retain_until = min(event.retain_until, event.valid_until)
        if event.retain_until <= now:
            return 0
        round.retained.append(event)
        return 1

    def _overflow(
        self, publish: Publish, found: Sequence[Found], alone: bool
    ) -> TocsinError | None:
        """Return the refusal of a full disk, or of a subscription that may lose nothing."""
        if self.disk.is_low and self._needs_disk(publish, found):
            return DiskFullError("the disk is nearly full: what would be stored is refused")
        if not self.registry.n_refusing or (publish.is_keyed and not alone):
            return None
        counts: dict[int, int] = {}
        for event, nos in zip(publish.events, found, strict=True):
            for no in (*(nos if isinstance(nos, list) else ()), *(no for no, _ in event.moves)):
                counts[no] = counts.get(no, 0) + 1
        for no, n in counts.items():
            each = self.registry.by_no.get(no)
            if (
                each is not None
                and not each.is_suspended
                and each.wanted.options.get("overflow") == "refuse"
                and (
                    each.pending + n > self.config.max_backlog
                    or 0 < self.config.max_backlog_bytes < each.backlog_bytes
                )
            ):
                if publish.is_keyed:
                    self.past.undo(with_ended=False)
                return LimitError("the backlog of a subscription is full", "max_backlog", 1.0)
        return None

    def _needs_disk(self, publish: Publish, found: Sequence[Found]) -> bool:
        """Whether something of a plain publish would be stored; one with keys came in before."""
        by_no = self.registry.by_no
        return not publish.is_keyed and any(
            no in by_no and by_no[no].durable
            for nos in found
            if isinstance(nos, list)
            for no in nos
        )

    def _settle(self, publish: Publish, result: Receipt | TocsinError) -> None:
        self._unsettle(-1)
        for entry in publish.entries:
            self.idempotency.settle(entry, result)
        if publish.span is not None:
            failure = result if isinstance(result, TocsinError) else None
            found = {} if isinstance(result, TocsinError) else {"tocsin.matches": result.matches}
            telemetry.settle(publish.span, failure, found)
        if publish.future.done():  # whoever published has gone
            return
        if isinstance(result, Receipt):
            self.metrics.to_acknowledge.observe(time.perf_counter() - publish.at)
            publish.future.set_result(result)
        else:
            publish.future.set_exception(result)

    def _unsettle(self, n: int) -> None:
        """Count what has been taken on and is not done yet."""
        self._n_unsettled += n
        (self._settled.clear if self._n_unsettled else self._settled.set)()

    def _publish_done(self, publish: Publish, receipt: Receipt) -> None:
        """Count a publish that was taken, and acknowledge it."""
        n = len(publish.events)
        self.metrics.matches += receipt.matches
        self.metrics.events += n
        if n:
            self.metrics.to_notify.observe(time.perf_counter() - publish.at, n)
        for event in publish.events:
            if event.gone is None and len(event.text) <= _RECENT_BYTES:
                self.recent.append(event)
        self._settle(publish, receipt)

    # Event numbers.

    def _number(self, event: Event, now: int) -> None:
        if self._next_seq >= self._reserved:
            raise UnavailableError("no event numbers are reserved on disk")
        event.seq, event.published = self._next_seq, now
        self._next_seq += 1

    def new_number(self) -> int:
        """Return an event number that was never used."""
        unpublished = Event(None, {}, b"{}")
        self._number(unpublished, 0)
        return unpublished.seq

    def is_own(self, seq: int) -> bool:
        """Whether a number was given to an event in this epoch."""
        return self._first_seq <= seq < self._next_seq

    async def ensure_numbers(self, n: int) -> None:
        """Have at least n event numbers reserved on disk; more, before the block ends."""
        left = self._reserved - self._next_seq
        if left >= max(n, BLOCK // 2):
            return
        if self._reserving is None:
            upto = self._next_seq + n + BLOCK
            self._reserving = asyncio.create_task(self._reserve(upto), name="reserve")
        if left < n:
            await asyncio.wait([self._reserving])
            if self._reserved - self._next_seq < n:
                reason = self.storage.failure or "the epoch file cannot be written"
                raise UnavailableError(f"event numbers cannot be reserved on disk: {reason}")

    async def _reserve(self, upto: int) -> None:
        try:
            await self.storage.reserve(self.epoch, upto)
            self._reserved = max(self._reserved, upto)
        except TocsinError as error:
            log.error("event numbers cannot be reserved: %s", error)
        finally:
            self._reserving = None

    # To subscribers.

    def _note(self, event: Event, nos: Iterable[int], round: Round) -> None:
        """Note who gets an event once it is on disk."""
        by_no, kind = self.registry.by_no, ENTER if event.is_past else 0
        for no in nos:
            found = by_no.get(no)
            if found is None:  # unsubscribed meanwhile
                continue
            if found.durable:
                if found.is_suspended:
                    continue
                round.notes.append((no, event.seq, kind))
            else:
                round.deferred.append(found)
            round.offers.append((found, event, kind))

    def _fan_out(self, event: Event, nos: Iterable[int], round: Round) -> None:
        """Deliver an event of which nothing is stored; what must wait for others rides along."""
        by_no, n = self.registry.by_no, 0
        for no in nos:
            found = by_no.get(no)
            if found is None:  # unsubscribed meanwhile
                continue
            if found.n_deferred:
                found.n_deferred += 1
                round.deferred.append(found)
                round.riders.append((found, event, 0))
                continue
            found.n_matched += 1
            for session in found.listeners:  # as `_notify` does, without a call for each
                outbox = session.outbox
                try:
                    message = session.render(found, event, 0, False, outbox.n_dropped)
                except Exception:  # a bug that concerns one notification
                    log.exception("a notification of %r could not be written", found.id)
                    continue
                n_dropped = outbox.put(message, True)
                n += 1
                if n_dropped:
                    self._lose(session, n_dropped)
                if not session.is_dirty:
                    session.is_dirty = True
                    self._dirty.append(session)
        self.metrics.notifications += n

    def _note_moves(self, event: Event, round: Round, now: int) -> int:
        """Note the transitions that somebody wants; return how many they are."""
        n_before = len(round.offers)
        for no, kind in event.moves:
            found = self.registry.by_no.get(no)
            if found is None or not found.wants & (1 if kind == ENTER else 2):
                continue
            if found.is_suspended:
                continue
            if found.wanted.valid_until is not None and found.wanted.valid_until <= now:
                continue
            if found.durable:
                round.notes.append((no, event.seq, kind))
            else:
                round.deferred.append(found)
            round.offers.append((found, event, kind))
        return len(round.offers) - n_before

    def _notify(self, session: Session, found: Subscription, event: Event, kind: int) -> None:
        """Put a transient notification into an outbox."""
        outbox = session.outbox
        try:
            message = session.render(found, event, kind, False, outbox.n_dropped)
        except Exception:  # a bug that concerns one notification
            log.exception("a notification of %r could not be written", found.id)
            return
        n_dropped = outbox.put(message, True)
        self.metrics.notifications += 1
        if n_dropped:
            self._lose(session, n_dropped)
        self.touch(session)

    def _lose(self, session: Session, n: int) -> None:
        """Count what a slow subscriber loses; end it where that is the policy."""
        self.metrics.dropped += n
        if self.config.slow_consumer == "disconnect":
            session.close_slow()

    def touch(self, session: Session) -> None:
        """Have a session flushed at the end of this round."""
        if not session.is_dirty:
            session.is_dirty = True
            self._dirty.append(session)

    def flush(self) -> None:
        """Let the sessions write that got something."""
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            session.is_dirty = False
            session.flush()

    # To disk, and from there on.

    def _store(self, round: Round) -> asyncio.Future[list[int]]:
        self._count(round, 1)
        surplus = self._surplus(round)
        drops = [(found.no, n) for found, n in surplus]
        for found, n in surplus:
            found.pending -= n
        kept = round.kept() if round.changes_past else None
        if round.keys:
            round.changes.append(partial(schema.add_keys, rows=round.keys))
        future = self.storage.submit(
            _write, round.marks, round.changes, drops, round.rows, round.notes, kept
        )
        future.add_done_callback(lambda done: self._stored(done, round, surplus))
        return future

    def _surplus(self, round: Round) -> list[tuple[Subscription, int]]:
        """Return the durable subscriptions whose backlogs are too long now, and by how much."""
        found = {each.no: each for each, _, _ in round.offers if each.durable}
        surplus = [(each, self.surplus(each)) for each in found.values()]
        return [(each, n) for each, n in surplus if n > 0]

    def _count(self, round: Round, sign: int) -> None:
        for found, event, _ in round.offers:
            if found.durable:
                found.pending += sign
                if sign > 0:
                    quota.add(found, quota.size_of(event))

    def _stored(
        self,
        done: asyncio.Future[list[int]],
        round: Round,
        surplus: Sequence[tuple[Subscription, int]],
    ) -> None:
        error = done.exception()
        for found in round.deferred:
            found.n_deferred -= 1
        for publish, _ in round.waiting:
            self.idempotency.written(publish.entries)
        if error is None:
            self._retain_all(round.retained)
            for (found, n), dropped in zip(surplus, done.result(), strict=True):
                found.pending += n - dropped
                found.missed += dropped
                self.metrics.overflowed += dropped
            for publish, receipt in round.waiting:
                self._publish_done(publish, receipt)
            self.metrics.transitions += round.n_moves
            if round.riders:
                round.offers += round.riders
                round.offers.sort(key=lambda offer: offer[1].seq)
            self._hand_out(round.offers, counts=True)
        else:
            log.error("a commit failed: %s", error)
            self._count(round, -1)
            for found, n in surplus:
                found.pending += n
            if round.changes_past:
                self.past.undo(with_ended=True)
            failure = error if isinstance(error, TocsinError) else UnavailableError(str(error))
            for publish, _ in round.waiting:
                self._settle(publish, failure)
            self._hand_out(round.riders, counts=True)
        self.flush()

    def _retain_all(self, events: Sequence[Event]) -> None:
        gone = [seq for event in events for seq in self.past.retain(event)]
        if gone:
            self.storage.forget(schema.forget_retained, gone)

    def _hand_out(self, offers: Iterable[Offer], counts: bool) -> None:
        """Give notifications to those who listen; they count as matches, or are of the past."""
        by_no = self.registry.by_no
        for found, event, kind in offers:
            found.n_matched += counts
            if not found.durable:
                if by_no.get(found.no) is found:  # not unsubscribed meanwhile
                    for session in found.listeners:
                        self._notify(session, found, event, kind)
                continue
            found.last_seq = max(found.last_seq, event.seq)
            if found.consumer is not None:
                found.consumer.offer(event, kind)
            else:
                self.on_backlog(found)

    async def tell(
        self,
        told: Sequence[tuple[Subscription, Event, int]],
        change: Callable[..., object],
        *args: object,
    ) -> None:
        """Make a change to the database, and tell of the past what goes with it: both or none.

        Transitions get new numbers, one for each publication; retained events have theirs.
        """
        await self.ensure_numbers(len(told))
        round, now = Round(), time.time_ns() // 1000
        again: dict[int, Event] = {}
        refs: dict[int, int] = {}
        for found, event, kind in told:
            if found.is_suspended:
                continue
            if isinstance(event, Publication):
                copy = again.get(id(event))
                if copy is None:
                    copy = again[id(event)] = event.copied()
                    self._number(copy, now)
                    copy.published = event.published
                event = copy
            if found.durable:
                round.notes.append((found.no, event.seq, kind))
                refs[event.seq] = refs.get(event.seq, 0) + 1
            round.offers.append((found, event, kind))
        self.metrics.transitions += sum(bool(found.wants) for found, _, _ in told)
        rows = [to_row(event, refs[event.seq]) for event in again.values() if event.seq in refs]
        self._count(round, 1)
        try:
            await self.storage.submit(schema.add_past, rows, round.notes, change, *args)
        except BaseException:
            self._count(round, -1)
            raise
        self._hand_out(round.offers, counts=False)
        self.flush()


def _write(
    connection: sqlite3.Connection,
    marks: Sequence[Mark],
    changes: Sequence[Change],
    drops: Sequence[tuple[int, int]],
    *rows: Any,
) -> list[int]:
    """Store events, what goes with them, and what full backlogs lose for them: all or none.

    Returns how many notifications each of those backlogs lost.
    """
    schema.add_events(connection, *rows)
    for change in changes:
        change(connection)
    for mark in marks:
        mark.store(connection, mark.peer, mark.seq)
    return [schema.drop_oldest(connection, no, n) for no, n in drops]


def _first_error(found: Sequence[Found]) -> TocsinError | None:
    for row, nos in enumerate(found):
        if isinstance(nos, TocsinError):
            if isinstance(nos, EventError):
                return EventError(nos.message, attribute=nos.attribute, row=row)
            return nos
    return None


def to_row(event: Event, refs: int) -> schema.EventRow:
    """Return an event as it is stored."""
    return schema.EventRow(
        event.seq, event.type, event.text, event.extra(), event.valid_until, event.published, refs
    )
