"""The registry: subscriptions as the broker knows them.

Enters: what a client asks for, checked by its shape. Leaves: `Subscription` objects by id and by
number, conditions in the matchers, rows in the database; or an error and nothing changed. Parsing
and indexing run in a thread of their own, one change at a time. A subscription that asks for
transitions, or that retained events may be for, has its place among the publishes: what it finds is
stored with it.
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.keyed import ENTER, LEAVE
from tocsin.broker.network import Network
from tocsin.broker.past import Past
from tocsin.broker.protocol import json_text
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription, Wanted, to_params
from tocsin.broker.topics import Topics
from tocsin.errors import (
    DuplicateSubscriptionError,
    LimitError,
    SubscriptionError,
    TooManyConjunctionsError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.language.expression import parameter_names
from tocsin.matcher import Matcher
from tocsin.normalize import bind, normalize

T = TypeVar("T")
Told = list[tuple[Subscription, Event, int]]
MAX_ID = 200
_MANY = 1_000
_MAY_BRANCH = re.compile(r"\b(or|not|in)\b", re.IGNORECASE).search


class Teller(Protocol):
    """What the registry needs of the core."""

    async def in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something between two batches."""

    async def tell(self, told: Told, change: Callable[..., object], *args: object) -> None:
        """Make a change to the database, and tell of the past what goes with it."""

    def bound(self, found: Subscription) -> None:
        """Keep a backlog within its bound."""


class Registry:
    """All subscriptions. Used within the event loop."""

    teller: Teller

    def __init__(self, config: Config, storage: Storage, topics: Topics, past: Past) -> None:
        self.limits = config.limits
        self.by_id: dict[str, Subscription] = {}
        self.by_no: dict[int, Subscription] = {}
        self.n_refusing = 0
        self.on_many: Callable[[], None] = lambda: None
        self.network: Network | None = None
        self.recent: Sequence[Event] = ()
        self._storage = storage
        self._topics = topics
        self._past = past
        self._owned: dict[str, int] = {}
        self._making: set[str] = set()
        self._sorted: list[str] | None = None
        self._next_no = 1
        self._ends: list[tuple[int, int]] = []
        self._changes = ThreadPoolExecutor(1, "tocsin-change")
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def restore(self) -> None:
        """Load what is stored, before the broker starts."""
        self._storage.first(schema.remove_strays)
        rows = self._storage.first(schema.subscriptions)
        plain: dict[tuple[str | None, bool], list[tuple[int, str, int | None]]] = {}
        now = time.time_ns() // 1000
        for row in rows:
            if row.valid_until is not None and row.valid_until <= now:
                self._storage.first(lambda c, no=row.no: schema.remove_subscriptions(c, [no]))  # type: ignore[misc]
                continue
            params = to_params(json_text.read(row.params.encode()))
            options = json_text.read(row.options.encode())
            wanted = Wanted(
                row.id, row.condition, row.type, params, bool(row.durable), row.valid_until,
                row.owner, options,
            )  # fmt: skip
            watching = bool(wanted.wants)
            if params:
                self._topics.subscribe(
                    row.no, row.type, row.condition, params, row.valid_until, watching
                )
            else:
                condition = (row.no, row.condition, row.valid_until)
                plain.setdefault((row.type, watching), []).append(condition)
            found = Subscription(row.no, wanted, row.created)
            found.missed = row.missed
            self._take_in(found)
        for (type, watching), conditions in plain.items():
            self._topics.load(type, conditions, watching)
        for no, n, last in self._storage.first(schema.backlogs):
            if no in self.by_no:
                found = self.by_no[no]
                found.pending, found.last_seq, found.high_sent = n, last, last
        self._next_no = max((row.no for row in rows), default=0) + 1

    def _take_in(self, found: Subscription) -> None:
        self.by_id[found.id] = found
        self._sorted = None
        self.by_no[found.no] = found
        owner = found.wanted.owner
        self._owned[owner] = self._owned.get(owner, 0) + 1
        self.n_refusing += found.wanted.options.get("overflow") == "refuse"
        if found.wanted.valid_until is not None:
            heapq.heappush(self._ends, (found.wanted.valid_until, found.no))
        if self.network is not None:
            self.network.subscribed(found)

    def _let_go(self, found: Subscription) -> None:
        del self.by_id[found.id], self.by_no[found.no]
        self._sorted = None
        self._owned[found.wanted.owner] -= 1
        self.n_refusing -= found.wanted.options.get("overflow") == "refuse"
        if self.network is not None:
            self.network.unsubscribed(found)

    def find(self, id: str) -> Subscription:
        """Return a subscription by its id."""
        found = self.by_id.get(id)
        if found is None:
            raise UnknownSubscriptionError(id)
        return found

    def beginning(self, prefix: str) -> list[Subscription]:
        """Return the subscriptions whose ids begin so, in their order."""
        if self._sorted is None:
            self._sorted = sorted(self.by_id)
        found = []
        for at in range(bisect.bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[at].startswith(prefix):
                break
            found.append(self.by_id[self._sorted[at]])
        return found

    async def add(self, wanted: Sequence[Wanted]) -> list[Subscription]:
        """Register subscriptions: all of them or none."""
        if any(self._past.has_order(each) for each in wanted):
            return await self.teller.in_order(lambda: self._add(wanted))
        return await self._add(wanted)

    async def _add(self, wanted: Sequence[Wanted]) -> list[Subscription]:
        ids = self._check_all(wanted)
        self._making |= ids
        first, self._next_no = self._next_no, self._next_no + len(wanted)
        now = time.time_ns() // 1000
        made = [Subscription(first + at, each, now) for at, each in enumerate(wanted)]
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._changes, self._index, made)
            rows = [each.row() for each in made if each.wanted.stored]
            try:
                told = await loop.run_in_executor(self._changes, self._find_past, made)
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
            self._take_in(each)
            if each.pending:
                self.teller.bound(each)
        if len(made) >= _MANY:
            self.on_many()
        return made

    def _find_past(self, made: Sequence[Subscription]) -> Told:
        """Return what there is for new durable subscriptions; transient ones find it later."""
        asked = {
            each.no: each
            for each in made
            if each.durable and self._past.has_order(each.wanted) and each.wants != 2
        }
        found = self._past.find([(no, each.wanted) for no, each in asked.items()]) if asked else []
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
            if len(each.where) > self.limits.max_condition:
                raise LimitError("the condition is too long", "max_condition")
            ids.add(each.id)
            counts[each.owner] = counts.get(each.owner, 0) + 1
        for owner, n in counts.items():
            if self._owned.get(owner, 0) + n > self.limits.max_subscriptions:
                raise LimitError("too many subscriptions", "max_subscriptions")
        return ids

    def _index(self, made: Sequence[Subscription]) -> None:
        """Put conditions into the matchers: all of them or none. Runs in the thread of changes."""
        done: list[Subscription] = []
        bulk = len(made) > 32 and not any(each.wanted.params or each.wants for each in made)
        try:
            for each in made:
                wanted = each.wanted
                self._check_cost(wanted.where, wanted.params, wanted.type)
                if not bulk:
                    self._topics.subscribe(
                        each.no, wanted.type, wanted.where, wanted.params, wanted.valid_until,
                        bool(each.wants),
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

    def _check_cost(self, where: str, params: Mapping[str, object], type: str | None) -> None:
        if _MAY_BRANCH(where):
            most, event_type = self.limits.max_conjunctions, self._topics.event_type(type)
            try:  # it stops as soon as there are too many
                form = normalize(bind(parse(where), params), event_type, limit=most)
            except TooManyConjunctionsError:
                form = None
            if form is None or len(form.conjunctions) > most:
                raise LimitError("the condition has too many conjunctions", "max_conjunctions")
        if self.limits.max_match_share < 1:
            sample = [e for e in list(self.recent) if type is None or e.type == type]
            if len(sample) >= 100:
                trial = Matcher(self._topics.event_type(type), engine="oracle")
                trial.subscribe(0, where, params or None)
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
            if found.wants and (where is not None or params):
                await self.teller.in_order(lambda: self._change(found, where, params, options))
            else:
                await self._change(found, where, params, options)

    async def _change(
        self,
        found: Subscription,
        where: str | None,
        params: Mapping[str, object] | None,
        options: Mapping[str, Any],
    ) -> None:
        old, is_new = found.wanted, where is not None or bool(params)
        new = replace(
            old,
            where=old.where if where is None else where,
            params=self._merged(old, where, params or {}),
            options={**old.options, **options},
        )
        loop = asyncio.get_running_loop()
        told: Told = []
        if is_new:
            told = await loop.run_in_executor(self._changes, self._reindex, found, old, new)
        was_refusing = old.options.get("overflow") == "refuse"
        found.wanted = new
        self.n_refusing += (new.options.get("overflow") == "refuse") - was_refusing
        try:
            if told:
                change = (schema.change_subscription, found.row()) if new.stored else (_nothing,)
                await self.teller.tell(told, *change)
                self.teller.bound(found)
            elif new.stored:
                await self._storage.submit(schema.change_subscription, found.row())
        except BaseException:
            found.wanted = old
            self.n_refusing -= (new.options.get("overflow") == "refuse") - was_refusing
            if is_new:
                await loop.run_in_executor(self._changes, self._reindex, found, new, old)
            raise
        if is_new and self.network is not None:
            self.network.subscribed(found)

    def _merged(
        self, old: Wanted, where: str | None, params: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the parameters that a changed condition has."""
        if where is None:
            return {**old.params, **params}
        if len(where) > self.limits.max_condition:
            raise LimitError("the condition is too long", "max_condition")
        names = parameter_names(parse(where))
        return {k: v for k, v in old.params.items() if k in names} | dict(params)

    def _reindex(self, found: Subscription, old: Wanted, new: Wanted) -> Told:
        """Change a condition; return the transitions that this brings about."""
        self._check_cost(new.where, new.params, new.type)
        watching = bool(found.wants)
        where = new.where if new.where != old.where or not new.params else None
        whole = (new.where, new.params)
        self._topics.update(found.no, new.type, where, new.params or None, whole, watching)
        if not watching:
            return []
        before = {id(event): event for _, event in self._past.find([(0, old)])}
        after = {id(event): event for _, event in self._past.find([(0, new)])}
        moves = [(event, LEAVE) for at, event in before.items() if at not in after]
        moves += [(event, ENTER) for at, event in after.items() if at not in before]
        moves.sort(key=lambda move: move[0].seq)
        return [
            (found, event, kind)
            for event, kind in moves
            if found.wants & (1 if kind == ENTER else 2)
        ]

    async def remove(self, gone: Sequence[Subscription]) -> None:
        """Remove subscriptions and all they were to get."""
        gone = [each for each in gone if self.by_no.get(each.no) is each]
        for each in gone:
            self._let_go(each)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._changes, self._unindex, gone)
        nos = [each.no for each in gone if each.wanted.stored]
        if nos:
            await self._storage.submit(schema.remove_subscriptions, nos)

    def due(self) -> list[Subscription]:
        """Return the subscriptions whose time is over."""
        now = time.time_ns() // 1000
        found = []
        while self._ends and self._ends[0][0] <= now:
            _, no = heapq.heappop(self._ends)
            if no in self.by_no:
                found.append(self.by_no[no])
        return found

    def close(self) -> None:
        """Finish the change that is being made."""
        self._changes.shutdown()


def _nothing(connection: object) -> None:
    """Change nothing: for subscriptions that are not stored."""
