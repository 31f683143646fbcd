"""The registry: subscriptions as the broker knows them.

Enters: what a client asks for, checked by its shape. Leaves: `Subscription` objects by id and by
number, conditions in the matchers, rows in the database; or an error and nothing changed. Parsing
and indexing run in a thread of their own, one change at a time. A subscription that asks for
transitions, or that retained events may be for, has its place among the publishes: what it finds is
stored with it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.events import UNADDRESSABLE, Event
from tocsin.broker.keyed import ENTER, LEAVE
from tocsin.broker.network import Network
from tocsin.broker.past import Past
from tocsin.broker.protocol import json_text
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription, Wanted, to_params
from tocsin.broker.topics import Topics
from tocsin.errors import (
    BadRowsError,
    DuplicateSubscriptionError,
    LimitError,
    SubscriptionError,
    TocsinError,
    TooManyConjunctionsError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.language.expression import parameter_names
from tocsin.loading import PreparedCondition, prepare
from tocsin.matcher import Matcher
from tocsin.normalize.budget import MAX_STEPS, Budget

T = TypeVar("T")
Told = list[tuple[Subscription, Event, int]]
MAX_ID = 200
_MANY = 1_000
_STEPS_EACH = 2_000
"""How many steps more each of several subscriptions that come together may take."""
_MAX_TRIALS = 16
"""How many conditions may wait to be tried out."""
log = logging.getLogger("tocsin.broker")
_MAY_BRANCH = re.compile(r"\b(or|not|in)\b", re.IGNORECASE).search


class Teller(Protocol):
    """What the registry needs of the core."""

    async def in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something between two batches."""

    async def tell(self, told: Told, change: Callable[..., object], *args: object) -> None:
        """Make a change to the database, and tell of the past what goes with it."""

    def bound(self, found: Subscription) -> None:
        """Keep a backlog within its bound."""


class _Change(NamedTuple):
    """What a subscription becomes; its conditions after and before, where they are prepared."""

    new: Wanted
    is_new: bool
    """Whether its condition or its parameters change."""
    prepared: PreparedCondition | None = None
    before: PreparedCondition | None = None


class Registry:
    """All subscriptions. Used within the event loop."""

    teller: Teller

    def __init__(self, config: Config, storage: Storage, topics: Topics, past: Past) -> None:
        self.limits = config.limits
        self.by_id: dict[str, Subscription] = {}
        self.by_no: dict[int, Subscription] = {}
        self.durable: set[int] = set()
        """The numbers of durable subscriptions that are not suspended."""
        self.n_refusing = 0
        self.suspended: set[str] = set()
        self.on_many: Callable[[], None] = lambda: None
        self.network: Network | None = None
        self.recent: Sequence[Event] = ()
        self._storage = storage
        self._topics = topics
        self._past = past
        self._owned: dict[str, int] = {}
        self._making: set[str] = set()
        self._next_no = 1
        self._ends: list[tuple[int, int]] = []
        self._changes = ThreadPoolExecutor(1, "tocsin-change")
        self._trials = ThreadPoolExecutor(1, "tocsin-trial")
        self._n_trials = 0
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def restore(self) -> None:
        """Load what is stored, before the broker starts.

        A subscription that cannot be loaded, because its type was declared otherwise since, is put
        into quarantine: it is there with its backlog, but matches nothing.
        """
        rows = self._storage.first(_live_rows)
        stored = [self._restored(row) for row in rows]
        plain: dict[tuple[str | None, bool], list[Subscription]] = {}
        for each in stored:
            if each.quarantine is None and each.wanted.params:
                self._try_index(each)
            elif each.quarantine is None:
                plain.setdefault((each.wanted.type, bool(each.wants)), []).append(each)
        for several in plain.values():
            self._load(several)
        for each in stored:
            self._take_in(each)
            if each.quarantine is not None:
                log.error("subscription %r is in quarantine: %s", each.id, each.quarantine)
        for no, n, last in self._storage.first(schema.backlogs):
            if no in self.by_no:
                found = self.by_no[no]
                found.pending, found.last_seq, found.high_sent = n, last, last
        self._next_no = max((row.no for row in rows), default=0) + 1

    def _restored(self, row: schema.SubscriptionRow) -> Subscription:
        """Return a stored subscription; one that cannot be read is in quarantine."""
        params: dict[str, object] = {}
        options: dict[str, Any] = {}
        reason = None
        try:
            options = json_text.read(row.options.encode())
            params = to_params(json_text.read(row.params.encode()))
        except TocsinError as error:
            reason = f"it cannot be read: {error}"
        wanted = Wanted(
            row.id, row.condition, row.type, params, bool(row.durable), row.valid_until, row.owner,
            options,
        )  # fmt: skip
        found = Subscription(row.no, wanted, row.created)
        found.missed, found.quarantine = row.missed, reason
        return found

    def _try_index(self, found: Subscription) -> None:
        wanted = found.wanted
        try:
            self._topics.subscribe(
                found.no, wanted.type, wanted.where, wanted.params, wanted.valid_until,
                bool(found.wants),
            )  # fmt: skip
        except TocsinError as error:
            found.quarantine = str(error)

    def _load(self, several: Sequence[Subscription]) -> None:
        """Put conditions without parameters into a matcher, but for those that do not fit."""
        first = several[0]
        try:
            rows = [(each.no, each.wanted.where, each.wanted.valid_until) for each in several]
            self._topics.load(first.wanted.type, rows, bool(first.wants))
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
        elif rest:  # nothing says which of them it is
            for each in rest:
                self._try_index(each)

    def _take_in(self, found: Subscription) -> None:
        self.by_id[found.id] = found
        self.by_no[found.no] = found
        owner = found.wanted.owner
        self._owned[owner] = self._owned.get(owner, 0) + 1
        self.n_refusing += found.wanted.options.get("overflow") == "refuse"
        if found.wanted.valid_until is not None:
            heapq.heappush(self._ends, (found.wanted.valid_until, found.no))
        found.is_suspended = owner in self.suspended
        if found.durable and not found.is_suspended:
            self.durable.add(found.no)
        if self.network is not None and not found.is_suspended and found.quarantine is None:
            self.network.subscribed(found)

    def _let_go(self, found: Subscription) -> None:
        del self.by_id[found.id], self.by_no[found.no]
        self.durable.discard(found.no)
        self._owned[found.wanted.owner] -= 1
        self.n_refusing -= found.wanted.options.get("overflow") == "refuse"
        if self.network is not None and not found.is_suspended and found.quarantine is None:
            self.network.unsubscribed(found)

    def owners(self) -> list[str]:
        """Return the ids of all tokens that have subscriptions here."""
        return [owner for owner, n in self._owned.items() if n]

    def owned_by(self, owner: str) -> list[Subscription]:
        """Return the subscriptions that were made with a token."""
        return [each for each in self.by_id.values() if each.wanted.owner == owner]

    def suspend(self, owner: str) -> list[Subscription]:
        """Give the subscriptions of an owner nothing from now on; return them.

        Their backlogs stay as they are, and they draw no events from other brokers.
        """
        self.suspended.add(owner)
        return self._set_suspended(owner, True)

    def reinstate(self, owner: str) -> list[Subscription]:
        """Give the subscriptions of an owner what is published from now on; return them."""
        self.suspended.discard(owner)
        return self._set_suspended(owner, False)

    def _set_suspended(self, owner: str, is_suspended: bool) -> list[Subscription]:
        changed = [e for e in self.owned_by(owner) if e.is_suspended != is_suspended]
        for each in changed:
            each.is_suspended = is_suspended
            if each.durable:
                (self.durable.discard if is_suspended else self.durable.add)(each.no)
            if self.network is None or each.quarantine is not None:
                continue
            (self.network.unsubscribed if is_suspended else self.network.subscribed)(each)
        return changed

    def find(self, id: str) -> Subscription:
        """Return a subscription by its id."""
        found = self.by_id.get(id)
        if found is None:
            raise UnknownSubscriptionError(id)
        return found

    async def add(self, wanted: Sequence[Wanted]) -> list[Subscription]:
        """Register subscriptions: all of them or none."""
        self._check_all(wanted)
        loop = asyncio.get_running_loop()
        # Publishes go on meanwhile, also where the subscriptions have their place among them.
        prepared = await loop.run_in_executor(self._changes, self._prepare_all, wanted)
        if any(self._past.has_order(each) for each in wanted):
            return await self.teller.in_order(lambda: self._add(wanted, prepared))
        return await self._add(wanted, prepared)

    async def _add(
        self, wanted: Sequence[Wanted], prepared: Sequence[PreparedCondition | None]
    ) -> list[Subscription]:
        ids = self._check_all(wanted)
        self._making |= ids
        first, self._next_no = self._next_no, self._next_no + len(wanted)
        now = time.time_ns() // 1000
        made = [Subscription(first + at, each, now) for at, each in enumerate(wanted)]
        conditions = {
            each.no: ready for each, ready in zip(made, prepared, strict=True) if ready is not None
        }
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._changes, self._index, made, conditions)
            rows = [each.row() for each in made if each.wanted.stored]
            try:
                told = await loop.run_in_executor(self._changes, self._find_past, made, conditions)
                if told:
                    await self.teller.tell(told, schema.add_subscriptions, rows)
                elif rows:
                    await self._storage.submit(schema.add_subscriptions, rows)
            except BaseException:
                await loop.run_in_executor(self._changes, self._unindex, made)
                raise
        finally:
            self._making -= ids
        for each in made:
            ready = conditions.get(each.no)
            each.form = None if ready is None else ready.form
            self._take_in(each)
            if each.pending:
                self.teller.bound(each)
        if len(made) >= _MANY:
            self.on_many()
        return made

    def _find_past(
        self, made: Sequence[Subscription], prepared: Mapping[int, PreparedCondition]
    ) -> Told:
        """Return what there is for new durable subscriptions; transient ones find it later."""
        asked = {
            each.no: each
            for each in made
            if each.durable and self._past.has_order(each.wanted) and each.wants != 2
        }
        pairs = [(no, each.wanted) for no, each in asked.items()]
        found = self._past.find(pairs, prepared) if asked else []
        found.sort(key=lambda pair: pair[1].seq)
        return [(asked[no], event, ENTER if asked[no].wants else 0) for no, event in found]

    def _check_all(self, wanted: Sequence[Wanted]) -> set[str]:
        ids: set[str] = set()
        counts: dict[str, int] = {}
        for each in wanted:
            if each.id in ids or each.id in self.by_id or each.id in self._making:
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
            if self._owned.get(owner, 0) + n > self.limits.max_subscriptions:
                raise LimitError("too many subscriptions", "max_subscriptions")
        return ids

    def _check_size(self, wanted: Wanted) -> None:
        """Refuse parameters and options that are too large together."""
        if wanted.n_bytes > self.limits.max_subscription_bytes:
            raise LimitError(
                "the parameters and options of a subscription have at most "
                f"{self.limits.max_subscription_bytes} bytes as JSON",
                "max_subscription_bytes",
            )

    def _index(
        self, made: Sequence[Subscription], prepared: Mapping[int, PreparedCondition]
    ) -> None:
        """Put conditions into the matchers: all of them or none. Runs in the thread of changes."""
        done: list[Subscription] = []
        bulk = _is_bulk([each.wanted for each in made])
        try:
            for each in made if not bulk else ():
                wanted = each.wanted
                self._topics.subscribe(
                    each.no, wanted.type, wanted.where, wanted.params, wanted.valid_until,
                    bool(each.wants), prepared.get(each.no),
                )  # fmt: skip
                done.append(each)
            if bulk:
                self._index_many(made, done)
        except BaseException:
            self._unindex(done)
            raise

    def _index_many(self, made: Sequence[Subscription], done: list[Subscription]) -> None:
        for type in {each.wanted.type for each in made}:
            of_type = [each for each in made if each.wanted.type == type]
            rows = [(each.no, each.wanted.where, each.wanted.valid_until) for each in of_type]
            self._topics.load(type, rows)
            done += of_type

    def _unindex(self, gone: Iterable[Subscription]) -> None:
        by_type: dict[tuple[str | None, bool], list[int]] = {}
        for each in gone:
            by_type.setdefault((each.wanted.type, bool(each.wants)), []).append(each.no)
        for (type, watching), nos in by_type.items():
            self._topics.unsubscribe(type, nos, watching)

    def _prepare_all(self, wanted: Sequence[Wanted]) -> list[PreparedCondition | None]:
        """Bring conditions into normal form, within one budget; refuse what costs too much.

        Many plain ones are loaded together by columns, which brings them into normal form by
        itself: of them only what may branch is looked at, or what a network wants to know.
        """
        budget = Budget(MAX_STEPS + _STEPS_EACH * len(wanted))
        bulk = _is_bulk(wanted) and self.network is None and self.limits.max_match_share >= 1
        ready: list[PreparedCondition | None] = []
        for each in wanted:
            if bulk and not _MAY_BRANCH(each.where):
                ready.append(None)
            else:
                made = self._prepare(each, budget)
                ready.append(None if bulk else made)
        return ready

    def _prepare(self, wanted: Wanted, budget: Budget | None = None) -> PreparedCondition:
        """Bring a condition into normal form, or refuse one that costs too much."""
        event_type, limits = self._topics.event_type(wanted.type), self.limits
        most = limits.max_conjunctions
        try:  # it stops as soon as there are too many
            ready = prepare(wanted.where, wanted.params, event_type, limit=most, budget=budget)
        except TooManyConjunctionsError:
            raise LimitError(
                "the condition has too many conjunctions", "max_conjunctions"
            ) from None
        if len(ready.table.attributes) > limits.max_attributes:
            raise LimitError("the condition has too many attributes", "max_attributes")
        if limits.max_match_share < 1:
            self._check_share(wanted, ready)
        return ready

    def _check_share(self, wanted: Wanted, ready: PreparedCondition) -> None:
        """Refuse a condition that matches too many of the recent events."""
        type = wanted.type
        sample = [e for e in list(self.recent) if type is None or e.type == type]
        if len(sample) >= 100:
            trial = Matcher(self._topics.event_type(type))
            trial._subscribe(0, ready, None)
            n = sum(bool(trial.match(event.attributes)) for event in sample)
            if n > self.limits.max_match_share * len(sample):
                raise LimitError("the condition matches too many events", "max_match_share")

    async def change(
        self,
        found: Subscription,
        where: str | None,
        params: Mapping[str, object] | None,
        options: Mapping[str, Any],
    ) -> None:
        """Update parameters, a condition or options of a subscription."""
        lock = self._locks.setdefault(found.no, asyncio.Lock())
        async with lock:  # one after another: each begins with what the last one left
            change = await self._changed(found.wanted, where, params, options)
            if found.wants and change.is_new:
                await self.teller.in_order(lambda: self._change(found, change))
            else:
                await self._change(found, change)

    async def _changed(
        self,
        old: Wanted,
        where: str | None,
        params: Mapping[str, object] | None,
        options: Mapping[str, Any],
    ) -> _Change:
        """Return what a subscription is after a change, prepared where that is more than bounds."""
        new = replace(old, options={**old.options, **options})
        if where is None:
            new = replace(new, params={**old.params, **(params or {})})
            is_plain = not _MAY_BRANCH(old.where) and self.network is None
            is_plain = is_plain and not old.wants and self.limits.max_match_share >= 1
            if not params or is_plain:
                return _Change(new, bool(params))
        elif len(where) > self.limits.max_condition:
            raise LimitError("the condition is too long", "max_condition")

        def ready() -> _Change:
            whole = new if where is None else _rewritten(new, where, params or {})
            event_type = self._topics.event_type(old.type)
            before = prepare(old.where, old.params, event_type) if old.wants else None
            return _Change(whole, True, self._prepare(whole), before)

        return await asyncio.get_running_loop().run_in_executor(self._changes, ready)

    async def _change(self, found: Subscription, change: _Change) -> None:
        old, new, is_new = found.wanted, change.new, change.is_new
        self._check_size(new)
        loop = asyncio.get_running_loop()
        told: Told = []
        if is_new:
            told = await loop.run_in_executor(self._changes, self._reindex, found, old, change)
        was_refusing = old.options.get("overflow") == "refuse"
        found.wanted = new
        self.n_refusing += (new.options.get("overflow") == "refuse") - was_refusing
        try:
            if told:
                stored = (schema.change_subscription, found.row()) if new.stored else (_nothing,)
                await self.teller.tell(told, *stored)
                self.teller.bound(found)
            elif new.stored:
                await self._storage.submit(schema.change_subscription, found.row())
        except BaseException:
            found.wanted = old
            self.n_refusing -= (new.options.get("overflow") == "refuse") - was_refusing
            if is_new and found.quarantine is not None:
                await loop.run_in_executor(self._changes, self._unindex, [found])
            elif is_new:
                back = _Change(old, True, change.before, change.prepared)
                await loop.run_in_executor(self._changes, self._reindex, found, new, back)
            raise
        if is_new:
            found.quarantine = None
        if is_new and self.network is not None and not found.is_suspended:
            found.form = None if change.prepared is None else change.prepared.form
            self.network.subscribed(found)

    def _reindex(self, found: Subscription, old: Wanted, change: _Change) -> Told:
        """Change a condition; return the transitions that this brings about."""
        new, prepared = change.new, change.prepared
        watching = bool(found.wants)
        where = new.where if new.where != old.where or not new.params else None
        whole = (new.where, new.params)
        params = new.params or None
        if found.quarantine is not None:
            self._topics.subscribe(
                found.no, new.type, new.where, new.params, new.valid_until, watching, prepared
            )
        else:
            self._topics.update(found.no, new.type, where, params, whole, watching, prepared)
        if not watching:
            return []
        was = {} if change.before is None else {0: change.before}
        now = {} if prepared is None else {0: prepared}
        before: dict[int, Event] = {}
        if found.quarantine is None:
            before = {id(event): event for _, event in self._past.find([(0, old)], was)}
        after = {id(event): event for _, event in self._past.find([(0, new)], now)}
        moves = [(event, LEAVE) for at, event in before.items() if at not in after]
        moves += [(event, ENTER) for at, event in after.items() if at not in before]
        moves.sort(key=lambda move: move[0].seq)
        return [
            (found, event, kind)
            for event, kind in moves
            if found.wants & (1 if kind == ENTER else 2)
        ]

    async def remove(self, gone: Sequence[Subscription]) -> None:
        """Remove subscriptions and all they were to get.

        From disk first: where that fails, they are still there and get what they match.
        """
        gone = [each for each in gone if self.by_no.get(each.no) is each]
        nos = [each.no for each in gone if each.wanted.stored]
        if nos:
            await self._storage.submit(schema.remove_subscriptions, nos)
        gone = [each for each in gone if self.by_no.get(each.no) is each]
        for each in gone:
            self._let_go(each)
        durable = [each.no for each in gone if each.durable]
        if durable:  # what was on its way to disk meanwhile
            self._storage.forget(schema.remove_subscriptions, durable)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._changes, self._unindex, gone)

    def due(self) -> list[Subscription]:
        """Return the subscriptions whose time is over."""
        now = time.time_ns() // 1000
        found = []
        while self._ends and self._ends[0][0] <= now:
            _, no = heapq.heappop(self._ends)
            if no in self.by_no:
                found.append(self.by_no[no])
        return found

    async def try_out(self, work: Callable[..., T], *args: object) -> T:
        """Do what takes a while and changes nothing, one after the other, in a thread of its own.

        More threads would take Python's lock from the event loop in turn.
        """
        if self._n_trials >= _MAX_TRIALS:
            raise LimitError("too many conditions are being tried out", "trials", retry_after=1)
        self._n_trials += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._trials, work, *args)
        finally:
            self._n_trials -= 1

    def close(self) -> None:
        """Finish the change that is being made."""
        self._changes.shutdown()
        self._trials.shutdown(cancel_futures=True)


def _rewritten(old: Wanted, where: str, params: Mapping[str, object]) -> Wanted:
    """Return a subscription with another text, and the parameters that this has."""
    names = set(parameter_names(parse(where)))
    kept = {name: value for name, value in old.params.items() if name in names}
    return replace(old, where=where, params={**kept, **params})


def _is_bulk(wanted: Sequence[Wanted]) -> bool:
    """Whether conditions are loaded together: many, without parameters or transitions."""
    return len(wanted) > 32 and not any(each.params or each.wants for each in wanted)


def _live_rows(connection: sqlite3.Connection) -> list[schema.SubscriptionRow]:
    """Return the stored subscriptions, without what is over or belongs to none."""
    schema.remove_strays(connection)
    now = time.time_ns() // 1000
    rows = schema.subscriptions(connection)
    over = [row.no for row in rows if row.valid_until is not None and row.valid_until <= now]
    schema.remove_subscriptions(connection, over)
    gone = set(over)
    return [row for row in rows if row.no not in gone]


def _nothing(connection: object) -> None:
    """Change nothing: for subscriptions that are not stored."""
