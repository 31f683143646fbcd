"""The registry: adds, changes and removes subscriptions.

Enters: specifications of clients. Leaves: live subscriptions in the table, conditions in the
matchers, rows in the database; or an error, and nothing changed. Parsing and indexing run in a
thread of their own, one change at a time. A subscription that asks for transitions, or that
retained events may match, has its place among the publishes: notifications of what it matches
already are stored with it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_type_hints
from weakref import WeakValueDictionary

from tocsin.broker import schema
from tocsin.broker.backlog import Backlog
from tocsin.broker.config import Config
from tocsin.broker.delivery import Delivery, Offer
from tocsin.broker.events import UNADDRESSABLE, Event
from tocsin.broker.ingest import IngestQueue
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.network import Network
from tocsin.broker.protocol import json_text
from tocsin.broker.publications import PublicationTable
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import (
    Subscription,
    SubscriptionSpec,
    SubscriptionTable,
    to_params,
)
from tocsin.broker.transitions import ENTER, LEAVE, has
from tocsin.errors import (
    BadRowsError,
    DuplicateSubscriptionError,
    EventError,
    LimitError,
    SubscriptionError,
    TocsinError,
    TooManyConjunctionsError,
)
from tocsin.language import parse
from tocsin.language.computed import parameter_names
from tocsin.language.dialects import MARK
from tocsin.loading import PreparedCondition, may_be_unindexed, prepare, unindexed_texts
from tocsin.matcher import Matcher
from tocsin.normalize.budget import MAX_STEPS, Budget
from tocsin.normalize.unindexed import is_unindexed

T = TypeVar("T")
MAX_ID = 200
_MANY = 1_000
_STEPS_EACH = 2_000
"""The steps of normalization that each of several subscriptions in one request adds."""
_MAX_TRIALS = 16
"""How many conditions may wait for a trial."""
log = logging.getLogger("tocsin.broker")
_MAY_BRANCH = re.compile(rf"^{MARK}|\b(or|not|in)\b", re.IGNORECASE).search
"""Whether a condition may be several conjunctions; one in a dialect always may."""


KEEP: Any = object()
"""The end of a subscription that a change leaves as it is."""


class SpecEdit(NamedTuple):
    """A change of a subscription.

    Parameters and options are merged with the old ones or, with `is_whole`, replace them; then a
    condition is given too. Without a condition the old one stays.
    """

    where: str | None = None
    params: Mapping[str, object] | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    valid_until: int | None = KEEP
    is_whole: bool = False

    def apply(self, old: SubscriptionSpec) -> SubscriptionSpec:
        """Return a specification with this change; parses the condition if there is one."""
        params = dict(self.params or {})
        options = {**old.options, **self.options}
        if self.is_whole:
            kept = {name: old.options[name] for name in ("transitions",) if name in old.options}
            options = {**kept, **self.options}
        elif self.where is None:
            params = {**old.params, **params}
        else:
            names = set(parameter_names(parse(self.where)))
            params = {k: v for k, v in old.params.items() if k in names} | params
        return replace(
            old,
            where=old.where if self.where is None else self.where,
            params=params,
            options=options,
            valid_until=old.valid_until if self.valid_until is KEEP else self.valid_until,
        )


class _Change(NamedTuple):
    """The new specification, and the conditions after and before where they are prepared."""

    new: SubscriptionSpec
    is_indexed: bool
    """Whether the matcher has to know: the condition, its parameters or the end change."""
    prepared: PreparedCondition | None = None
    before: PreparedCondition | None = None


_KINDS = get_type_hints(schema.SubscriptionRow)


def _unindexed(
    several: Sequence[Subscription], prepared: Mapping[int, PreparedCondition]
) -> set[int]:
    """Return the numbers of the subscriptions that no index helps."""
    rest = [each for each in several if each.no not in prepared]
    plain = [each for each in rest if not each.spec.params]
    unindexed = {plain[at].no for at in unindexed_texts([each.spec.where for each in plain])}
    forms = {no: ready.form for no, ready in prepared.items()}
    for each in rest:
        if each.spec.params and may_be_unindexed(each.spec.where):
            forms[each.no] = prepare(each.spec.where, each.spec.params, None).form
    return unindexed | {no for no, form in forms.items() if is_unindexed(form)}


def _check_kinds(row: schema.SubscriptionRow) -> None:
    """Raise TypeError for a column that has a value of a kind that is never written there."""
    for name, kind in _KINDS.items():
        if not isinstance(getattr(row, name), kind):
            raise TypeError(f"{name} of subscription {row.no} is {getattr(row, name)!r}")


class Registry:
    """Adds, changes and removes subscriptions. Used within the event loop."""

    def __init__(
        self,
        config: Config,
        *,
        storage: Storage,
        matcher: BatchMatcher,
        publications: PublicationTable,
        subscriptions: SubscriptionTable,
        ingest: IngestQueue,
        delivery: Delivery,
        backlog: Backlog,
        network: Network | None,
        on_bulk_load: Callable[[], None],
    ) -> None:
        self.limits = config.limits
        self._storage = storage
        self._matcher = matcher
        self._publications = publications
        self._subscriptions = subscriptions
        self._ingest = ingest
        self._delivery = delivery
        self._backlog = backlog
        self._network = network
        self._on_bulk_load = on_bulk_load
        self._pending_ids: set[str] = set()
        self._next_no = 1
        self._ends: list[tuple[int, int]] = []
        self._changes = ThreadPoolExecutor(1, "tocsin-change")
        self._trials = ThreadPoolExecutor(1, "tocsin-trial")
        self._n_trials = 0
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def restore(self) -> None:
        """Load stored subscriptions, before the broker starts.

        One that cannot be loaded, because its type has been declared since, is quarantined: it
        keeps its backlog but matches nothing.
        """
        rows = self._storage.first(_live_rows)
        stored = [self._restored(row) for row in rows]
        plain: dict[tuple[str | None, bool], list[Subscription]] = {}
        for each in stored:
            if each.quarantine is None and each.spec.params:
                self._try_index(each)
            elif each.quarantine is None:
                plain.setdefault((each.spec.type, bool(each.transition_mask)), []).append(each)
        for several in plain.values():
            self._load(several)
        for each in stored:
            self._add_live(each)
            if each.quarantine is not None:
                log.error("subscription %r is in quarantine: %s", each.id, each.quarantine)
        loaded = [each for each in stored if each.quarantine is None]
        unindexed = _unindexed(loaded, {})
        for each in loaded:
            each.is_unindexed = each.no in unindexed
        for no, n, last in self._storage.first(schema.backlogs):
            if no in self._subscriptions.by_no:
                subscription = self._subscriptions.by_no[no]
                subscription.pending, subscription.last_seq, subscription.high_sent = n, last, last
        self._next_no = max((row.no for row in rows), default=0) + 1

    def _restored(self, row: schema.SubscriptionRow) -> Subscription:
        """Return a stored subscription; one that cannot be read is in quarantine."""
        params: dict[str, object] = {}
        options: dict[str, Any] = {}
        reason = None
        _check_kinds(row)
        try:
            stored = json_text.read(row.options.encode())
            if not isinstance(stored, dict):
                raise EventError("its options are no object")
            options = stored
            params = to_params(json_text.read(row.params.encode()))
        except TocsinError as error:
            reason = f"it cannot be read: {error}"
        spec = SubscriptionSpec(
            row.id, row.condition, row.type, params, bool(row.durable), row.valid_until, row.owner,
            options,
        )  # fmt: skip
        subscription = Subscription(row.no, spec, row.created)
        subscription.missed, subscription.quarantine = row.missed, reason
        return subscription

    def _try_index(self, subscription: Subscription) -> None:
        try:
            self._matcher.subscribe(subscription.no, subscription.spec)
        except TocsinError as error:
            subscription.quarantine = str(error)

    def _load(self, several: Sequence[Subscription]) -> None:
        """Index conditions without parameters, and quarantine the ones that fail."""
        first = several[0]
        try:
            rows = [(each.no, each.spec.where, each.spec.valid_until) for each in several]
            self._matcher.load(first.spec.type, rows, bool(first.transition_mask))
            return
        except BadRowsError as error:
            bad: dict[object, str] = {row.id: row.reason for row in error.rows}
        except TocsinError:
            bad = {}
        for each in several:
            each.quarantine = bad.get(each.no)
        rest = [each for each in several if each.quarantine is None]
        if bad and rest:
            self._load(rest)
        elif rest:  # the error does not say which
            for each in rest:
                self._try_index(each)

    def _add_live(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)
        if subscription.spec.valid_until is not None:
            heapq.heappush(self._ends, (subscription.spec.valid_until, subscription.no))
        if self._draws_events(subscription):
            assert self._network is not None
            self._network.subscribed(subscription)

    def _remove_live(self, subscription: Subscription) -> None:
        draws_events = self._draws_events(subscription)
        self._subscriptions.remove(subscription)
        if draws_events:
            assert self._network is not None
            self._network.unsubscribed(subscription)

    def _draws_events(self, subscription: Subscription) -> bool:
        """Return whether peers send what a subscription matches."""
        is_idle = subscription.is_suspended or subscription.quarantine is not None
        return self._network is not None and not is_idle

    def suspend(self, owner: str) -> list[Subscription]:
        """Deliver nothing to the subscriptions of an owner from now on; return them.

        Their backlogs stay as they are, and they draw no events from other brokers.
        """
        self._subscriptions.suspended.add(owner)
        return self._set_suspended(owner, True)

    def reinstate(self, owner: str) -> list[Subscription]:
        """Deliver to the subscriptions of an owner again from now on; return them."""
        self._subscriptions.suspended.discard(owner)
        return self._set_suspended(owner, False)

    def _set_suspended(self, owner: str, is_suspended: bool) -> list[Subscription]:
        durable = self._subscriptions.durable
        owned = self._subscriptions.owned_by(owner)
        changed = [each for each in owned if each.is_suspended != is_suspended]
        for each in changed:
            each.is_suspended = is_suspended
            if each.durable:
                (durable.discard if is_suspended else durable.add)(each.no)
            if self._network is None or each.quarantine is not None:
                continue
            (self._network.unsubscribed if is_suspended else self._network.subscribed)(each)
        return changed

    async def add(self, specs: Sequence[SubscriptionSpec]) -> list[Subscription]:
        """Register subscriptions: all of them or none."""
        self._check_all(specs)
        loop = asyncio.get_running_loop()
        # Publishes go on meanwhile, even where the subscriptions have their place among them.
        prepared = await loop.run_in_executor(self._changes, self._prepare_all, specs)
        if any(self._publications.is_relevant_to(each) for each in specs):
            return await self._ingest.in_order(lambda: self._add(specs, prepared))
        return await self._add(specs, prepared)

    async def _add(
        self, specs: Sequence[SubscriptionSpec], prepared: Sequence[PreparedCondition | None]
    ) -> list[Subscription]:
        ids = self._check_all(specs)
        self._pending_ids |= ids
        first, self._next_no = self._next_no, self._next_no + len(specs)
        now = time.time_ns() // 1000
        made = [Subscription(first + at, each, now) for at, each in enumerate(specs)]
        conditions = {
            each.no: ready for each, ready in zip(made, prepared, strict=True) if ready is not None
        }
        loop = asyncio.get_running_loop()
        try:
            unindexed = await loop.run_in_executor(self._changes, _unindexed, made, conditions)
            for owner in {each.spec.owner for each in made}:
                n = sum(each.no in unindexed for each in made if each.spec.owner == owner)
                self._check_unindexed(owner, n)
            await loop.run_in_executor(self._changes, self._index, made, conditions)
            rows = [each.row() for each in made if each.spec.stored]
            try:
                existing = await loop.run_in_executor(
                    self._changes, self._existing, made, conditions
                )
                if existing:
                    await self._delivery.deliver_existing(existing, schema.add_subscriptions, rows)
                elif rows:
                    await self._storage.submit(schema.add_subscriptions, rows)
            except BaseException:
                await loop.run_in_executor(self._changes, self._unindex, made)
                raise
        finally:
            self._pending_ids -= ids
        for each in made:
            ready = conditions.get(each.no)
            each.form = None if ready is None else ready.form
            each.is_unindexed = each.no in unindexed
            self._add_live(each)
            if each.pending:
                self._backlog.bound(each)
        if len(made) >= _MANY:
            self._on_bulk_load()
        return made

    def _existing(
        self, made: Sequence[Subscription], prepared: Mapping[int, PreparedCondition]
    ) -> list[Offer]:
        """Return what new durable subscriptions match already.

        Transient ones get it when a session listens.
        """
        by_no = {
            each.no: each
            for each in made
            if each.durable
            and self._publications.is_relevant_to(each.spec)
            and each.transition_mask != 2
        }
        if not by_no:
            return []
        specs = [(no, each.spec) for no, each in by_no.items()]
        existing = self._matcher.existing(specs, prepared)
        existing.sort(key=lambda pair: pair[1].seq)
        return [
            (by_no[no], event, ENTER if by_no[no].transition_mask else 0) for no, event in existing
        ]

    def _check_all(self, specs: Sequence[SubscriptionSpec]) -> set[str]:
        ids: set[str] = set()
        counts: dict[str, int] = {}
        for each in specs:
            if (
                each.id in ids
                or each.id in self._subscriptions.by_id
                or each.id in self._pending_ids
            ):
                raise DuplicateSubscriptionError(each.id)
            if not each.id or len(each.id) > MAX_ID or not each.id.isprintable():
                raise SubscriptionError(f"an id is a text of 1 to {MAX_ID} printable characters")
            if each.id in UNADDRESSABLE:
                raise SubscriptionError(f"an id is not {each.id!r}, which no path can name")
            self._check_size(each)
            if len(each.where) > self.limits.max_condition:
                raise LimitError("the condition is too long", "max_condition")
            ids.add(each.id)
            counts[each.owner] = counts.get(each.owner, 0) + 1
        for owner, n in counts.items():
            if self._subscriptions.n_owned_by(owner) + n > self.limits.max_subscriptions:
                raise LimitError("too many subscriptions", "max_subscriptions")
        return ids

    def _check_unindexed(self, owner: str, n: int) -> None:
        """Refuse more conditions that no index helps than an owner may have."""
        most = self.limits.max_unindexed
        if n and self._subscriptions.n_unindexed(owner) + n > most:
            raise LimitError(
                f"more than {most} conditions of this token are checked on every event: no index "
                "helps them; add a condition on an attribute",
                "max_unindexed",
            )

    def _check_size(self, spec: SubscriptionSpec) -> None:
        """Refuse parameters and options that are too large together."""
        if spec.n_bytes > self.limits.max_subscription_bytes:
            raise LimitError(
                "the parameters and options of a subscription have at most "
                f"{self.limits.max_subscription_bytes} bytes as JSON",
                "max_subscription_bytes",
            )

    def _index(
        self, made: Sequence[Subscription], prepared: Mapping[int, PreparedCondition]
    ) -> None:
        """Index conditions, all or none. Runs in the thread of changes."""
        done: list[Subscription] = []
        bulk = _is_bulk([each.spec for each in made])
        try:
            for each in made if not bulk else ():
                self._matcher.subscribe(each.no, each.spec, prepared.get(each.no))
                done.append(each)
            if bulk:
                self._index_many(made, done)
        except BaseException:
            self._unindex(done)
            raise

    def _index_many(self, made: Sequence[Subscription], done: list[Subscription]) -> None:
        for type in {each.spec.type for each in made}:
            of_type = [each for each in made if each.spec.type == type]
            rows = [(each.no, each.spec.where, each.spec.valid_until) for each in of_type]
            self._matcher.load(type, rows)
            done += of_type

    def _unindex(self, gone: Iterable[Subscription]) -> None:
        by_type: dict[tuple[str | None, bool], list[int]] = {}
        for each in gone:
            by_type.setdefault((each.spec.type, bool(each.transition_mask)), []).append(each.no)
        for (type, transitions), nos in by_type.items():
            self._matcher.unsubscribe(type, nos, transitions)

    def _prepare_all(self, specs: Sequence[SubscriptionSpec]) -> list[PreparedCondition | None]:
        """Return normal forms, within one budget; raise where that costs too much.

        A bulk load brings plain conditions into normal form itself: of those only the ones that may
        branch are checked here, unless a network needs their forms.
        """
        budget = Budget(MAX_STEPS + _STEPS_EACH * len(specs))
        bulk = _is_bulk(specs) and self._network is None and self.limits.max_match_share >= 1
        ready: list[PreparedCondition | None] = []
        for each in specs:
            if bulk and not _MAY_BRANCH(each.where):
                ready.append(None)
            else:
                made = self._prepare(each, budget)
                ready.append(None if bulk else made)
        return ready

    def _prepare(self, spec: SubscriptionSpec, budget: Budget | None = None) -> PreparedCondition:
        """Return a condition in normal form, or raise where that costs too much."""
        event_type, limits = self._matcher.event_type(spec.type), self.limits
        most = limits.max_conjunctions
        try:  # it stops as soon as there are too many
            ready = prepare(spec.where, spec.params, event_type, limit=most, budget=budget)
        except TooManyConjunctionsError:
            raise LimitError(
                "the condition has too many conjunctions", "max_conjunctions"
            ) from None
        if len(ready.table.attributes) > limits.max_attributes:
            raise LimitError("the condition has too many attributes", "max_attributes")
        if limits.max_match_share < 1:
            self._check_share(spec, ready)
        return ready

    def _check_share(self, spec: SubscriptionSpec, ready: PreparedCondition) -> None:
        """Refuse a condition that matches too many of the recent events."""
        type = spec.type
        recent = list(self._delivery.recent)
        sample = [event for event in recent if type is None or event.type == type]
        if len(sample) >= 100:
            trial = Matcher(self._matcher.event_type(type))
            trial.configure_events(warns=False, reads_moments=True)
            trial.subscribe_prepared(0, ready, None)
            n = sum(bool(trial.match(event.attributes)) for event in sample)
            if n > self.limits.max_match_share * len(sample):
                raise LimitError("the condition matches too many events", "max_match_share")

    async def change(self, subscription: Subscription, edit: SpecEdit) -> None:
        """Change a subscription; where this raises, it is as it was."""
        lock = self._locks.setdefault(subscription.no, asyncio.Lock())
        async with lock:  # each change begins with the result of the last one
            change = await self._prepare_change(subscription.spec, edit)
            self._check_changed(subscription, change)
            if subscription.transition_mask and change.is_indexed:
                await self._ingest.in_order(lambda: self._change(subscription, change))
            else:
                await self._change(subscription, change)

    async def check_change(self, subscription: Subscription, edit: SpecEdit) -> None:
        """Refuse a change that cannot be made; change nothing."""
        change = await self._prepare_change(subscription.spec, edit, is_checked=True)
        self._check_changed(subscription, change)
        self._check_size(change.new)

    def _check_changed(self, subscription: Subscription, change: _Change) -> None:
        """Refuse a change to a condition that no index helps where its owner has the most."""
        if change.prepared is not None and not subscription.is_unindexed:
            self._check_unindexed(change.new.owner, int(is_unindexed(change.prepared.form)))

    async def _prepare_change(
        self, old: SubscriptionSpec, edit: SpecEdit, *, is_checked: bool = False
    ) -> _Change:
        """Return a change, with its normal form unless only bounds of a plain condition change."""
        if edit.where is not None and len(edit.where) > self.limits.max_condition:
            raise LimitError("the condition is too long", "max_condition")
        has_new_end = edit.valid_until is not KEEP and edit.valid_until != old.valid_until
        if edit.where is None and not has_new_end and not is_checked:
            is_plain = not _MAY_BRANCH(old.where) and self._network is None
            is_plain = is_plain and not old.transition_mask and self.limits.max_match_share >= 1
            if not edit.params or is_plain:
                return _Change(edit.apply(old), bool(edit.params))

        def ready() -> _Change:
            new = edit.apply(old)
            event_type = self._matcher.event_type(old.type)
            before = prepare(old.where, old.params, event_type) if old.transition_mask else None
            return _Change(new, True, self._prepare(new), before)

        return await asyncio.get_running_loop().run_in_executor(self._changes, ready)

    async def _change(self, subscription: Subscription, change: _Change) -> None:
        old, new, is_indexed = subscription.spec, change.new, change.is_indexed
        self._check_size(new)
        loop = asyncio.get_running_loop()
        offers: list[Offer] = []
        if is_indexed:
            offers = await loop.run_in_executor(
                self._changes, self._reindex, subscription, old, change
            )
        self._subscriptions.change(subscription, new)
        try:
            if offers:
                row = subscription.row()
                stored = (schema.change_subscription, row) if new.stored else (_nothing,)
                await self._delivery.deliver_existing(offers, *stored)
                self._backlog.bound(subscription)
            elif new.stored:
                await self._storage.submit(schema.change_subscription, subscription.row())
        except BaseException:
            self._subscriptions.change(subscription, old)
            if is_indexed and subscription.quarantine is not None:
                await loop.run_in_executor(self._changes, self._unindex, [subscription])
            elif is_indexed:
                back = _Change(old, True, change.before, change.prepared)
                await loop.run_in_executor(self._changes, self._reindex, subscription, new, back)
            raise
        if new.valid_until is not None and new.valid_until != old.valid_until:
            heapq.heappush(self._ends, (new.valid_until, subscription.no))
        if change.prepared is not None:
            subscription.is_unindexed = is_unindexed(change.prepared.form)
        if is_indexed:
            subscription.quarantine = None
        if is_indexed and self._network is not None and not subscription.is_suspended:
            subscription.form = None if change.prepared is None else change.prepared.form
            self._network.subscribed(subscription)

    def _reindex(
        self, subscription: Subscription, old: SubscriptionSpec, change: _Change
    ) -> list[Offer]:
        """Change a condition in the matcher; return the transitions that follow."""
        new, prepared = change.new, change.prepared
        if subscription.quarantine is not None:
            self._matcher.subscribe(subscription.no, new, prepared)
        else:
            self._matcher.update(subscription.no, old, new, prepared)
        mask = subscription.transition_mask
        if not mask:
            return []
        before: dict[int, Event] = {}
        if subscription.quarantine is None:
            before = self._existing_by_identity(old, change.before)
        after = self._existing_by_identity(new, prepared)
        transitions = [(event, LEAVE) for at, event in before.items() if at not in after]
        transitions += [(event, ENTER) for at, event in after.items() if at not in before]
        transitions.sort(key=lambda transition: transition[0].seq)
        return [(subscription, event, kind) for event, kind in transitions if has(mask, kind)]

    def _existing_by_identity(
        self, spec: SubscriptionSpec, prepared: PreparedCondition | None
    ) -> dict[int, Event]:
        conditions = {} if prepared is None else {0: prepared}
        return {id(event): event for _, event in self._matcher.existing([(0, spec)], conditions)}

    async def remove(self, gone: Sequence[Subscription]) -> None:
        """Remove subscriptions and their notifications.

        The disk comes first: where that fails, they stay and get what they match.
        """
        gone = [each for each in gone if self._subscriptions.is_live(each)]
        nos = [each.no for each in gone if each.spec.stored]
        if nos:
            await self._storage.submit(schema.remove_subscriptions, nos)
        gone = [each for each in gone if self._subscriptions.is_live(each)]
        for each in gone:
            self._remove_live(each)
        durable = [each.no for each in gone if each.durable]
        if durable:  # notifications that were on their way to disk
            self._storage.forget(schema.remove_subscriptions, durable)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._changes, self._unindex, gone)

    def due(self) -> list[Subscription]:
        """Return the subscriptions that have reached `valid_until`."""
        now = time.time_ns() // 1000
        due = []
        while self._ends and self._ends[0][0] <= now:
            end, no = heapq.heappop(self._ends)
            subscription = self._subscriptions.by_no.get(no)
            if subscription is not None and subscription.spec.valid_until == end:
                due.append(subscription)
        return due

    async def try_out(self, work: Callable[..., T], *args: object) -> T:
        """Run work that takes long and changes nothing, in a thread, one at a time.

        More threads would contend with the event loop for Python's lock.
        """
        if self._n_trials >= _MAX_TRIALS:
            raise LimitError("too many trials of conditions are waiting", "trials", retry_after=1)
        self._n_trials += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._trials, work, *args)
        finally:
            self._n_trials -= 1

    def close(self) -> None:
        """Wait for the change in progress."""
        self._changes.shutdown()
        self._trials.shutdown(cancel_futures=True)


def _is_bulk(specs: Sequence[SubscriptionSpec]) -> bool:
    """Whether conditions are loaded together: many, without parameters or transitions."""
    return len(specs) > 32 and not any(each.params or each.transition_mask for each in specs)


def _live_rows(connection: sqlite3.Connection) -> list[schema.SubscriptionRow]:
    """Return the stored subscriptions; delete expired ones and stray notifications."""
    schema.remove_strays(connection)
    now = time.time_ns() // 1000
    rows = schema.subscriptions(connection)
    over = [row.no for row in rows if row.valid_until is not None and row.valid_until <= now]
    schema.remove_subscriptions(connection, over)
    gone = set(over)
    return [row for row in rows if row.no not in gone]


def _nothing(connection: object) -> None:
    """Change nothing: for subscriptions that are not stored."""
