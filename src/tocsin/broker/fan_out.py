"""Fan-out: matches and transitions → outboxes, rows on disk, acknowledgements.

Enters: batches of publishes with what they match, and what of the past a subscription is to get.
Leaves: messages in outboxes, rows in the database, receipts. Transient notifications of matches go
at once. What is durable, and every transition, goes when it is on disk: a transition that nobody
stored could not be taken back. A part of the broker (`core.py`); used within the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tocsin.broker import schema, telemetry
from tocsin.broker.backlogs import Backlogs
from tocsin.broker.config import Config
from tocsin.broker.events import Event, Publication
from tocsin.broker.keyed import ENTER
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark, Network
from tocsin.broker.past import Answer, Found, Past
from tocsin.broker.registry import Registry
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Session, Subscription
from tocsin.broker.telemetry import Telemetry
from tocsin.broker.topics import Topics
from tocsin.errors import EventError, LimitError, TocsinError, UnavailableError

BLOCK = 1 << 20
_RECENT_BYTES = 10_000
log = logging.getLogger("tocsin.broker")


class Receipt(NamedTuple):
    """What became of a publish: the numbers of its events, and how many matches they had."""

    first: int
    last: int
    matches: int


class Publish:
    """Events that are published together, and who waits for them."""

    __slots__ = ("at", "events", "future", "is_keyed", "mark", "span")

    def __init__(
        self,
        events: Sequence[Event],
        future: asyncio.Future[Receipt],
        span: Any = None,
        mark: Mark | None = None,
    ) -> None:
        self.events = events
        self.mark = mark
        self.future = future
        self.at = time.perf_counter()
        self.span = span
        self.is_keyed = any(event.key is not None for event in events)


class Round:
    """What a batch, or a change of a subscription, brings about."""

    __slots__ = ("gone", "marks", "notes", "offers", "put", "retained", "rows", "waiting")

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.rows: list[schema.EventRow] = []
        self.notes: list[schema.Note] = []
        self.offers: list[tuple[Subscription, Event, int]] = []
        self.waiting: list[tuple[Publish, Receipt]] = []
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
        self.topics = Topics(config.types, clock)
        self.past = Past(config, self.topics, clock)
        self.registry = Registry(config, storage, self.topics, self.past)
        self.recent: deque[Event] = deque(maxlen=config.recent_events)
        self.registry.recent = self.recent
        self.telemetry = Telemetry() if config.telemetry else None
        self.network: Network | None = None
        self._retain = round(config.retain_seconds * 1_000_000)
        self._dirty: list[Session] = []
        self._n_unsettled = 0
        self._settled = asyncio.Event()
        self._next_seq = self._reserved = 0

    def deliver(self, batch: Sequence[Publish], answer: Answer) -> asyncio.Future[None] | None:
        """Deliver a batch; return what the next one must wait for, if anything."""
        round, now, at = Round(), time.time_ns() // 1000, 0
        for ended in answer.ended:
            self._take(ended, [], round, now)
        for publish in batch:
            found = answer.matched[at : at + len(publish.events)]
            at += len(publish.events)
            refusal = _first_error(found) or self._overflow(publish, found, len(batch) == 1)
            if refusal is not None:
                self.metrics.refused += 1
                self._settle(publish, refusal)
                continue
            self._deliver_one(publish, found, round, now)
        self.metrics.batches += 1
        future = None
        if round.notes or round.changes_past or round.offers or round.marks:
            future = self._store(round)
        self.flush()
        return future if round.changes_past else None

    def _deliver_one(
        self, publish: Publish, found: Sequence[Found], round: Round, now: int
    ) -> None:
        n_stored, n_matches = len(round.rows), 0
        for event, nos in zip(publish.events, found, strict=True):
            assert isinstance(nos, list)
            if event.valid_until is not None and event.valid_until <= now:
                nos = []
            n_matches += len(nos) + self._take(event, nos, round, now)
        if not publish.events:
            self._settle(publish, Receipt(0, 0, 0))
            return
        receipt = Receipt(publish.events[0].seq, publish.events[-1].seq, n_matches)
        self.metrics.matches += n_matches
        self.metrics.events += len(publish.events)
        self.metrics.to_notify.observe(time.perf_counter() - publish.at, len(publish.events))
        if publish.mark is not None:
            round.marks.append(publish.mark)
        if len(round.rows) > n_stored or publish.is_keyed or publish.mark is not None:
            round.waiting.append((publish, receipt))
        else:
            self._settle(publish, receipt)

    def _take(self, event: Event, nos: list[int], round: Round, now: int) -> int:
        """Number an event and fan it out; return how many transitions it tells of."""
        self._number(event, now)
        if event.gone is None and len(event.text) <= _RECENT_BYTES:
            self.recent.append(event)
        n_notes = len(round.notes)
        if self.network is not None and (event.valid_until is None or event.valid_until > now):
            nos = [*nos, *self.network.ahead(event, bool(nos or event.moves))]
        self._fan_out(event, nos, round)
        n_moves = self._fan_out_moves(event, round, now) if event.moves else 0
        refs = len(round.notes) - n_notes
        if self._retain or event.retain_until is not None:
            refs += self._keep_for_later(event, round, now)
        if refs:
            round.rows.append(to_row(event, refs))
        if event.key is not None:
            assert isinstance(event, Publication)
            event.moves = ()
            round.keep(event)
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
        """Return the refusal of a subscription that may not lose what no longer fits."""
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
                and each.wanted.options.get("overflow") == "refuse"
                and each.pending + n > self.config.max_backlog
            ):
                if publish.is_keyed:
                    self.past.undo(with_ended=False)
                return LimitError("the backlog of a subscription is full", "max_backlog", 1.0)
        return None

    def _settle(self, publish: Publish, result: Receipt | TocsinError) -> None:
        self._unsettle(-1)
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

    def _number(self, event: Event, now: int) -> None:
        event.seq, event.published = self._next_seq, now
        self._next_seq += 1
        if self._reserved - self._next_seq < BLOCK // 2:
            self._reserved += BLOCK
            self.storage.forget(schema.reserve, self._reserved)

    def _fan_out(self, event: Event, nos: Iterable[int], round: Round) -> None:
        by_no, kind, n = self.registry.by_no, ENTER if event.is_past else 0, 0
        for no in nos:
            found = by_no.get(no)
            if found is None:  # unsubscribed meanwhile
                continue
            found.n_matched += 1
            if found.durable:
                round.notes.append((no, event.seq, kind))
                round.offers.append((found, event, kind))
                continue
            for session in found.listeners:  # as `_notify` does, without a call for each
                outbox = session.outbox
                message = session.render(found, event, kind, False, outbox.n_dropped)
                n_dropped = outbox.put(message, True)
                n += 1
                if n_dropped:
                    self._lose(session, n_dropped)
                if not session.is_dirty:
                    session.is_dirty = True
                    self._dirty.append(session)
        self.metrics.notifications += n

    def _fan_out_moves(self, event: Event, round: Round, now: int) -> int:
        """Note the transitions that somebody wants; return how many they are."""
        n_before = len(round.offers)
        for no, kind in event.moves:
            found = self.registry.by_no.get(no)
            if found is None or not found.wants & (1 if kind == ENTER else 2):
                continue
            if found.wanted.valid_until is not None and found.wanted.valid_until <= now:
                continue
            found.n_matched += 1
            if found.durable:
                round.notes.append((no, event.seq, kind))
            round.offers.append((found, event, kind))
        self.metrics.transitions += len(round.offers) - n_before
        return len(round.offers) - n_before

    def _notify(self, session: Session, found: Subscription, event: Event, kind: int) -> None:
        """Put a transient notification into an outbox."""
        outbox = session.outbox
        n_dropped = outbox.put(session.render(found, event, kind, False, outbox.n_dropped), True)
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

    def _store(self, round: Round) -> asyncio.Future[None]:
        self._count(round, 1)
        kept = round.kept() if round.changes_past else None
        future = self.storage.submit(_write, round.marks, round.rows, round.notes, kept)
        for found in {found.no: found for found, _, _ in round.offers}.values():
            if found.durable:
                self.bound(found)
        future.add_done_callback(lambda done: self._stored(done, round))
        return future

    def _count(self, round: Round, sign: int) -> None:
        for found, _, _ in round.offers:
            found.pending += sign * found.durable

    def _stored(self, done: asyncio.Future[None], round: Round) -> None:
        error = done.exception()
        if error is None:
            self._retain_all(round.retained)
        else:
            log.error("a commit failed: %s", error)
            self._count(round, -1)
            if round.changes_past:
                self.past.undo(with_ended=True)
        for publish, receipt in round.waiting:
            failure = error if isinstance(error, TocsinError) else UnavailableError(str(error))
            self._settle(publish, receipt if error is None else failure)
        if error is None:
            self._hand_out(round)
        self.flush()

    def _retain_all(self, events: Sequence[Event]) -> None:
        gone = [seq for event in events for seq in self.past.retain(event)]
        if gone:
            self.storage.forget(schema.forget_retained, gone)

    def _hand_out(self, round: Round) -> None:
        for found, event, kind in round.offers:
            if not found.durable:
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
        round, now = Round(), time.time_ns() // 1000
        again: dict[int, Event] = {}
        refs: dict[int, int] = {}
        for found, event, kind in told:
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
        self._hand_out(round)
        self.flush()


def _write(connection: sqlite3.Connection, marks: Sequence[Mark], *rows: Any) -> None:
    """Store events, and which of a neighbour's they were: both or none."""
    schema.add_events(connection, *rows)
    for mark in marks:
        mark.store(connection, mark.peer, mark.seq)


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
