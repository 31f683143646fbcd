"""Delivery: matches and transitions → outboxes, rows on disk, receipts.

Enters: batches of publishes with what they match; publications and retained events for a new
subscription. Leaves: messages in outboxes, rows in the database, receipts. A publish of which
nothing is stored is delivered at once. One of which something is stored is delivered when that is
on disk, to transient subscribers too: an event that the disk refuses is not delivered. So that a
subscriber gets events in their order, events after such a publish wait with it.

A batch is planned as a whole before any of it is delivered, so that one that cannot be planned has
changed nothing. Used within the event loop.
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
from tocsin.broker.backlog import Backlog
from tocsin.broker.config import Config
from tocsin.broker.events import Event, Publication
from tocsin.broker.idempotency import Idempotency, Receipt
from tocsin.broker.ingest import Change, IngestQueue, Publish
from tocsin.broker.matching import BatchResult, MatchResult
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark, Network
from tocsin.broker.numbers import SequenceNumbers
from tocsin.broker.publications import PublicationTable
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Session, Subscription, SubscriptionTable
from tocsin.broker.transitions import ENTER, has
from tocsin.errors import (
    DiskFullError,
    EventError,
    LimitError,
    TocsinError,
    UnavailableError,
    UnknownOutcomeError,
)

_MAX_RECENT_BYTES = 10_000
Offer = tuple[Subscription, Event, int]
"""A notification: its subscription, the event, and 0 for a match or the kind of a transition."""
log = logging.getLogger("tocsin.broker")


class DeliveryPlan:
    """What a batch, or a change of a subscription, delivers and stores.

    `direct` has the events that are delivered at once, with the numbers of their subscriptions.
    `offers` are delivered when `rows`, `notes` and the other changes are on disk. So are `riders`,
    which only keep their order: they are delivered even where the disk refuses the others.
    `deferred` has the transient subscriptions of both, once for each notification.
    """

    __slots__ = (
        "changes", "deferred", "direct", "gone", "keys", "marks", "n_transitions", "notes",
        "offers", "put", "refused", "retained", "riders", "rows", "settled", "waiting",
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
        self.n_transitions = 0
        self.direct: list[tuple[Event, Sequence[int]]] = []
        self.waiting: list[tuple[Publish, Receipt]] = []
        self.settled: list[tuple[Publish, Receipt]] = []
        self.refused: list[tuple[Publish, TocsinError]] = []
        self.put: dict[tuple[str, str], schema.PublicationRow] = {}
        self.gone: dict[tuple[str, str], None] = {}
        self.retained: list[Event] = []

    @property
    def changes_publications(self) -> bool:
        """Whether publications or retained events change."""
        return bool(self.put or self.gone or self.retained)

    def publication_changes(self) -> schema.PublicationChanges:
        """Return the changes of publications and retained events."""
        until = [(event.seq, event.retain_until or 0) for event in self.retained]
        return schema.PublicationChanges(list(self.put.values()), list(self.gone), until)

    def change(self, event: Publication) -> None:
        """Have a publication stored, or removed where it has ended."""
        address = (event.type or "", event.key or "")
        self.put.pop(address, None)
        if event.gone is not None:
            self.gone[address] = None
            return
        self.put[address] = schema.PublicationRow(
            *address, event.seq, event.text, event.extra(), event.valid_until, event.published
        )


class Delivery:
    """Delivers batches. `recent` has the latest small events, for trials of conditions."""

    def __init__(
        self,
        config: Config,
        *,
        storage: Storage,
        metrics: Metrics,
        numbers: SequenceNumbers,
        ingest: IngestQueue,
        publications: PublicationTable,
        subscriptions: SubscriptionTable,
        backlog: Backlog,
        idempotency: Idempotency,
        disk: quota.Disk,
        network: Network | None,
        on_backlog: Callable[[Subscription], None],
    ) -> None:
        self.config = config
        self.recent: deque[Event] = deque(maxlen=config.recent_events)
        self._storage = storage
        self._metrics = metrics
        self._numbers = numbers
        self._ingest = ingest
        self._publications = publications
        self._subscriptions = subscriptions
        self._backlog = backlog
        self._idempotency = idempotency
        self._disk = disk
        self._network = network
        self._on_backlog = on_backlog
        self._retain = round(config.retain_seconds * 1_000_000)
        self._dirty: list[Session] = []

    def deliver(
        self, batch: Sequence[Publish], result: BatchResult
    ) -> asyncio.Future[list[int]] | None:
        """Deliver a batch; return the future that the next batch must wait for, if any.

        Where this raises, nothing of the batch was delivered.
        """
        plan = self._plan(batch, result)
        try:
            return self._begin(plan)
        except Exception as error:  # a bug; what was delivered must not be delivered again
            log.exception("a batch was not delivered whole")
            for publish in batch:
                if not publish.future.done():
                    self.settle(publish, UnknownOutcomeError(f"internal error: {error!r}"))
            return None

    def _begin(self, plan: DeliveryPlan) -> asyncio.Future[list[int]] | None:
        """Deliver what is not stored, and store the rest."""
        for subscription in plan.deferred:
            subscription.n_deferred += 1
        for publish, refusal in plan.refused:
            self._metrics.refused += 1
            self.settle(publish, refusal)
        for event, nos in plan.direct:
            self._fan_out(event, nos, plan)
        for publish, receipt in plan.settled:
            self._publish_done(publish, receipt)
        self._metrics.batches += 1
        future = None
        if (
            plan.waiting
            or plan.notes
            or plan.changes_publications
            or plan.offers
            or plan.riders
            or plan.marks
            or plan.changes
        ):
            future = self._store(plan)
        self.flush()
        return future if plan.changes_publications else None

    def _plan(self, batch: Sequence[Publish], result: BatchResult) -> DeliveryPlan:
        """Number events, and plan their notifications and rows; deliver nothing."""
        plan, now, at = DeliveryPlan(), time.time_ns() // 1000, 0
        for expired in result.expired:
            self._take(expired, [], plan, now)
        for publish in batch:
            matched = result.matches[at : at + len(publish.events)]
            at += len(publish.events)
            refusal = _first_error(matched) or self._overflow(publish, matched, len(batch) == 1)
            if refusal is not None:
                plan.refused.append((publish, refusal))
            else:
                self._plan_publish(publish, matched, plan, now)
        return plan

    def _plan_publish(
        self, publish: Publish, matched: Sequence[MatchResult], plan: DeliveryPlan, now: int
    ) -> None:
        events, n_matches = publish.events, 0
        routes: list[list[int]] = []
        for event, nos in zip(events, matched, strict=True):
            assert isinstance(nos, list)
            if event.valid_until is not None and event.valid_until <= now:
                routes.append([])
                continue
            n_matches += len(nos)
            routes.append(nos if self._network is None else self._with_links(event, nos))
        if not events:
            plan.settled.append((publish, Receipt(0, 0, 0)))
            return
        if self._is_stored(publish, routes):
            for event, nos in zip(events, routes, strict=True):
                n_matches += self._take(event, nos, plan, now)
            if publish.mark is not None:
                plan.marks.append(publish.mark)
            if publish.change is not None:
                plan.changes.append(publish.change)
            receipts = plan.waiting
        else:
            for event, nos in zip(events, routes, strict=True):
                self._numbers.assign(event, now)
                if nos:
                    plan.direct.append((event, nos))
            receipts = plan.settled
        receipt = Receipt(events[0].seq, events[-1].seq, n_matches)
        receipts.append((publish, receipt))
        if receipts is plan.waiting:  # its keys are known after a restart if it is
            plan.keys += [entry.row(receipt) for entry in publish.entries]

    def _with_links(self, event: Event, nos: list[int]) -> list[int]:
        """Return the numbers of the subscriptions and of the peers that get an event."""
        assert self._network is not None
        return [*nos, *self._network.route(event, bool(nos or event.transitions))]

    def _is_stored(self, publish: Publish, routes: Sequence[list[int]]) -> bool:
        """Return whether anything of a publish is stored, so that all of it waits for the disk."""
        if publish.is_keyed or publish.mark is not None or publish.change is not None:
            return True
        if self._retain:
            return True
        durable = self._subscriptions.durable
        if durable:
            for nos in routes:
                if nos and not durable.isdisjoint(nos):
                    return True
        if self._network is not None:  # peers have negative numbers
            by_no = self._subscriptions.by_no
            links = {no for nos in routes for no in nos if no < 0}
            if any(no in by_no and by_no[no].durable for no in links):
                return True
        return self._publications.is_retaining and any(
            e.retain_until is not None for e in publish.events
        )

    def _take(self, event: Event, nos: list[int], plan: DeliveryPlan, now: int) -> int:
        """Number an event and plan what is stored of it; return the number of its transitions."""
        self._numbers.assign(event, now)
        n_notes = len(plan.notes)
        self._note(event, nos, plan)
        n_transitions = self._note_transitions(event, plan, now) if event.transitions else 0
        refs = len(plan.notes) - n_notes
        if self._retain or event.retain_until is not None:
            refs += self._retain_event(event, plan, now)
        if refs:
            plan.rows.append(to_row(event, refs))
        if event.key is not None:
            assert isinstance(event, Publication)
            event.transitions = ()
            plan.change(event)
        plan.n_transitions += n_transitions
        return n_transitions

    def _retain_event(self, event: Event, plan: DeliveryPlan, now: int) -> int:
        """Plan to retain an event; return 1 if it is retained, else 0."""
        if event.key is not None:
            return 0
        if event.retain_until is None:
            event.retain_until = now + self._retain
        if event.valid_until is not None:
            event.retain_until = min(event.retain_until, event.valid_until)
        if event.retain_until <= now:
            return 0
        plan.retained.append(event)
        return 1

    def _overflow(
        self, publish: Publish, matches: Sequence[MatchResult], alone: bool
    ) -> TocsinError | None:
        """Return the refusal of a full disk, or of a subscription that refuses overflow."""
        if self._disk.is_low and self._needs_disk(publish, matches):
            return DiskFullError("the disk is nearly full: what would be stored is refused")
        if not self._subscriptions.n_refusing or (publish.is_keyed and not alone):
            return None
        counts: dict[int, int] = {}
        for event, nos in zip(publish.events, matches, strict=True):
            for no in (
                *(nos if isinstance(nos, list) else ()),
                *(no for no, _ in event.transitions),
            ):
                counts[no] = counts.get(no, 0) + 1
        for no, n in counts.items():
            each = self._subscriptions.by_no.get(no)
            if (
                each is not None
                and not each.is_suspended
                and each.refuses_overflow
                and (
                    each.pending + n > self.config.max_backlog
                    or 0 < self.config.max_backlog_bytes < each.backlog_bytes
                )
            ):
                if publish.is_keyed:
                    self._publications.undo(with_expired=False)
                return LimitError("the backlog of a subscription is full", "max_backlog", 1.0)
        return None

    def _needs_disk(self, publish: Publish, matches: Sequence[MatchResult]) -> bool:
        """Return whether a publish without keys would be stored; others were checked before."""
        by_no = self._subscriptions.by_no
        return not publish.is_keyed and any(
            no in by_no and by_no[no].durable
            for nos in matches
            if isinstance(nos, list)
            for no in nos
        )

    def settle(self, publish: Publish, result: Receipt | TocsinError) -> None:
        """Answer a publish with its receipt or an error."""
        self._ingest.settled()
        for entry in publish.entries:
            self._idempotency.settle(entry, result)
        if publish.span is not None:
            failure = result if isinstance(result, TocsinError) else None
            figures = {} if isinstance(result, TocsinError) else {"tocsin.matches": result.matches}
            telemetry.settle(publish.span, failure, figures)
        if publish.future.done():  # the publisher has gone
            return
        if isinstance(result, Receipt):
            self._metrics.to_acknowledge.observe(time.perf_counter() - publish.at)
            publish.future.set_result(result)
        else:
            publish.future.set_exception(result)

    def _publish_done(self, publish: Publish, receipt: Receipt) -> None:
        """Count a publish, and answer it with its receipt."""
        n = len(publish.events)
        self._metrics.matches += receipt.matches
        self._metrics.events += n
        if n:
            self._metrics.to_notify.observe(time.perf_counter() - publish.at, n)
        for event in publish.events:
            if event.gone is None and len(event.text) <= _MAX_RECENT_BYTES:
                self.recent.append(event)
        self.settle(publish, receipt)

    # To subscribers.

    def _note(self, event: Event, nos: Iterable[int], plan: DeliveryPlan) -> None:
        """Plan the notifications of an event that is stored."""
        by_no, kind = self._subscriptions.by_no, ENTER if event.is_past else 0
        for no in nos:
            subscription = by_no.get(no)
            if subscription is None:  # unsubscribed meanwhile
                continue
            if subscription.durable:
                if subscription.is_suspended:
                    continue
                plan.notes.append((no, event.seq, kind))
            else:
                plan.deferred.append(subscription)
            plan.offers.append((subscription, event, kind))

    def _fan_out(self, event: Event, nos: Iterable[int], plan: DeliveryPlan) -> None:
        """Deliver an event that is not stored; where it must wait for others it rides along."""
        by_no, n = self._subscriptions.by_no, 0
        for no in nos:
            subscription = by_no.get(no)
            if subscription is None:  # unsubscribed meanwhile
                continue
            if subscription.n_deferred:
                subscription.n_deferred += 1
                plan.deferred.append(subscription)
                plan.riders.append((subscription, event, 0))
                continue
            subscription.n_matched += 1
            for session in subscription.listeners:  # as `_notify` does, without a call for each
                outbox = session.outbox
                try:
                    message = session.render(subscription, event, 0, False, outbox.n_dropped)
                except Exception:  # a bug that concerns one notification
                    log.exception("a notification of %r could not be written", subscription.id)
                    continue
                n_dropped = outbox.put(message, True)
                n += 1
                if n_dropped:
                    self._lose(session, n_dropped)
                if not session.is_dirty:
                    session.is_dirty = True
                    self._dirty.append(session)
        self._metrics.notifications += n

    def _note_transitions(self, event: Event, plan: DeliveryPlan, now: int) -> int:
        """Plan the notifications of transitions; return how many."""
        n_before = len(plan.offers)
        for no, kind in event.transitions:
            subscription = self._subscriptions.by_no.get(no)
            if subscription is None or not has(subscription.transition_mask, kind):
                continue
            if subscription.is_suspended:
                continue
            if subscription.spec.valid_until is not None and subscription.spec.valid_until <= now:
                continue
            if subscription.durable:
                plan.notes.append((no, event.seq, kind))
            else:
                plan.deferred.append(subscription)
            plan.offers.append((subscription, event, kind))
        return len(plan.offers) - n_before

    def _notify(
        self, session: Session, subscription: Subscription, event: Event, kind: int
    ) -> None:
        """Put a notification of a transient subscription into an outbox."""
        outbox = session.outbox
        try:
            message = session.render(subscription, event, kind, False, outbox.n_dropped)
        except Exception:  # a bug that concerns one notification
            log.exception("a notification of %r could not be written", subscription.id)
            return
        n_dropped = outbox.put(message, True)
        self._metrics.notifications += 1
        if n_dropped:
            self._lose(session, n_dropped)
        self.touch(session)

    def _lose(self, session: Session, n: int) -> None:
        """Count what a slow subscriber loses; close it where the configuration says so."""
        self._metrics.dropped += n
        if self.config.slow_consumer == "disconnect":
            session.close_slow()

    def touch(self, session: Session) -> None:
        """Have a session flushed at the end of this plan."""
        if not session.is_dirty:
            session.is_dirty = True
            self._dirty.append(session)

    def flush(self) -> None:
        """Flush the sessions that have new messages."""
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            session.is_dirty = False
            session.flush()

    # To disk, and from there on.

    def _store(self, plan: DeliveryPlan) -> asyncio.Future[list[int]]:
        self._count(plan, 1)
        surplus = self._surplus(plan)
        drops = [(subscription.no, n) for subscription, n in surplus]
        for subscription, n in surplus:
            subscription.pending -= n
        publications = plan.publication_changes() if plan.changes_publications else None
        if plan.keys:
            plan.changes.append(partial(schema.add_keys, rows=plan.keys))
        future = self._storage.submit(
            _write, plan.marks, plan.changes, drops, plan.rows, plan.notes, publications
        )
        future.add_done_callback(lambda done: self._stored(done, plan, surplus))
        return future

    def _surplus(self, plan: DeliveryPlan) -> list[tuple[Subscription, int]]:
        """Return the durable subscriptions whose backlogs exceed their bounds, and by how much."""
        durable = {each.no: each for each, _, _ in plan.offers if each.durable}
        surplus = [(each, self._backlog.surplus(each)) for each in durable.values()]
        return [(each, n) for each, n in surplus if n > 0]

    def _count(self, plan: DeliveryPlan, sign: int) -> None:
        for subscription, event, _ in plan.offers:
            if subscription.durable:
                subscription.pending += sign
                if sign > 0:
                    quota.add(subscription, quota.size_of(event))

    def _stored(
        self,
        done: asyncio.Future[list[int]],
        plan: DeliveryPlan,
        surplus: Sequence[tuple[Subscription, int]],
    ) -> None:
        error = done.exception()
        for subscription in plan.deferred:
            subscription.n_deferred -= 1
        for publish, _ in plan.waiting:
            self._idempotency.written(publish.entries)
        if error is None:
            self._retain_all(plan.retained)
            for (subscription, n), dropped in zip(surplus, done.result(), strict=True):
                subscription.pending += n - dropped
                subscription.missed += dropped
                self._metrics.overflowed += dropped
            for publish, receipt in plan.waiting:
                self._publish_done(publish, receipt)
            self._metrics.transitions += plan.n_transitions
            if plan.riders:
                plan.offers += plan.riders
                plan.offers.sort(key=lambda offer: offer[1].seq)
            self._hand_out(plan.offers, counts=True)
        else:
            log.error("a commit failed: %s", error)
            self._count(plan, -1)
            for subscription, n in surplus:
                subscription.pending += n
            if plan.changes_publications:
                self._publications.undo(with_expired=True)
            failure = error if isinstance(error, TocsinError) else UnavailableError(str(error))
            for publish, _ in plan.waiting:
                self.settle(publish, failure)
            self._hand_out(plan.riders, counts=True)
        self.flush()

    def _retain_all(self, events: Sequence[Event]) -> None:
        gone = [seq for event in events for seq in self._publications.retain(event)]
        if gone:
            self._storage.forget(schema.forget_retained, gone)

    def _hand_out(self, offers: Iterable[Offer], counts: bool) -> None:
        """Deliver notifications to sessions; `counts` whether they count as matches."""
        by_no = self._subscriptions.by_no
        for subscription, event, kind in offers:
            subscription.n_matched += counts
            if not subscription.durable:
                if by_no.get(subscription.no) is subscription:  # not unsubscribed meanwhile
                    for session in subscription.listeners:
                        self._notify(session, subscription, event, kind)
                continue
            subscription.last_seq = max(subscription.last_seq, event.seq)
            if subscription.consumer is not None:
                subscription.consumer.offer(event, kind)
            else:
                self._on_backlog(subscription)

    async def revive(self, subscription: Subscription, letters: Sequence[int] | None = None) -> int:
        """Deliver dead letters again, all or those with these numbers; return how many.

        They get new numbers. These are taken and submitted in one step: what is published later has
        higher ones and is written later, so that a reader sees all in the order of their numbers.
        """
        old = await self._storage.submit(schema.dead_numbers, subscription.no, letters)
        if not old:
            return 0
        await self._numbers.ensure(len(old))
        numbers = [(each, self._numbers.take()) for each in old]
        future = self._storage.submit(schema.revive, subscription.no, numbers)

        def revived(done: asyncio.Future[tuple[int, int]]) -> None:
            if done.exception() is None and done.result()[0]:
                n, n_bytes = done.result()
                subscription.pending += n
                subscription.last_seq = max(subscription.last_seq, numbers[-1][1])
                self._backlog.count_dead(subscription, -n, -n_bytes)
                if subscription.consumer is not None:
                    subscription.consumer.look()
                else:
                    self._on_backlog(subscription)

        future.add_done_callback(revived)
        return (await future)[0]

    def deliver_retained(
        self, subscription: Subscription, session: Session, events: Sequence[Event]
    ) -> None:
        """Deliver what a transient subscription matched before its session began to listen."""
        surplus = max(0, len(events) - session.outbox.max_messages)
        session.outbox.n_dropped += surplus
        self._metrics.dropped += surplus
        kind = ENTER if subscription.transition_mask else 0
        for event in events[surplus:]:
            self._notify(session, subscription, event, kind)
        subscription.listeners.append(session)
        self.flush()

    async def deliver_existing(
        self,
        notifications: Sequence[tuple[Subscription, Event, int]],
        change: Callable[..., object],
        *args: object,
    ) -> None:
        """Change the database and deliver what existed before: both or none.

        Notifications of publications get new numbers, one for each publication; retained events
        keep theirs.
        """
        await self._numbers.ensure(len(notifications))
        plan, now = DeliveryPlan(), time.time_ns() // 1000
        copies: dict[int, Event] = {}
        refs: dict[int, int] = {}
        for subscription, event, kind in notifications:
            if subscription.is_suspended:
                continue
            if isinstance(event, Publication):
                copy = copies.get(id(event))
                if copy is None:
                    copy = copies[id(event)] = event.copied()
                    self._numbers.assign(copy, now)
                    copy.published = event.published
                event = copy
            if subscription.durable:
                plan.notes.append((subscription.no, event.seq, kind))
                refs[event.seq] = refs.get(event.seq, 0) + 1
            plan.offers.append((subscription, event, kind))
        self._metrics.transitions += sum(
            bool(subscription.transition_mask) for subscription, _, _ in notifications
        )
        rows = [to_row(event, refs[event.seq]) for event in copies.values() if event.seq in refs]
        self._count(plan, 1)
        try:
            await self._storage.submit(schema.add_existing, rows, plan.notes, change, *args)
        except BaseException:
            self._count(plan, -1)
            raise
        self._hand_out(plan.offers, counts=False)
        self.flush()


def _write(
    connection: sqlite3.Connection,
    marks: Sequence[Mark],
    changes: Sequence[Change],
    drops: Sequence[tuple[int, int]],
    *rows: Any,
) -> list[int]:
    """Store a plan: all or none.

    Returns how many notifications each backlog in `drops` lost.
    """
    schema.add_events(connection, *rows)
    for change in changes:
        change(connection)
    for mark in marks:
        mark.store(connection, mark.peer, mark.seq)
    return [schema.drop_oldest(connection, no, n) for no, n in drops]


def _first_error(matches: Sequence[MatchResult]) -> TocsinError | None:
    for row, nos in enumerate(matches):
        if isinstance(nos, TocsinError):
            if isinstance(nos, EventError):
                return EventError(nos.message, attribute=nos.attribute, row=row)
            return nos
    return None


def to_row(event: Event, refs: int) -> schema.EventRow:
    """Return an event as a row of the database."""
    return schema.EventRow(
        event.seq, event.type, event.text, event.extra(), event.valid_until, event.published, refs
    )
