"""Matcher: subscriptions in, events in, matches out.

Enters: what a user calls. Leaves: matches by the user's ids, or errors that name the place. A call
either does all it says or changes nothing. Calls from several threads are safe: changes are taken
one at a time, and with an engine that can (`auto`) events are matched beside them and each other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin import engines
from tocsin.catalog.blocks import Names
from tocsin.catalog.sources import OneSource
from tocsin.catalog.subscriptions import SubscriptionBook
from tocsin.encode.events import EventBatch, check_event, to_batch
from tocsin.engines.conditions import IndexedConditions, conditions_of
from tocsin.engines.protocol import Engine, Enumerable, Reader, Renumberable, Storable
from tocsin.errors import (
    ArgumentError,
    BadRow,
    BadRowsError,
    DuplicateSubscriptionError,
    EventError,
    ParameterError,
    UnknownSubscriptionError,
)
from tocsin.explain import explain_event, explain_subscription
from tocsin.language.expression import Expression, parameter_names
from tocsin.loading import (
    Load,
    Moment,
    PreparedCondition,
    find_all,
    load_book,
    load_rows,
    load_table,
    prepare,
    to_expression,
    to_ids,
    to_moment,
    to_params,
)
from tocsin.matches import Matches
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.normalize import bind
from tocsin.normalize.budget import Budget
from tocsin.storage.changes import Change, read_changes
from tocsin.storage.folder import GRACE, PartContents, VersionChain, read_version, replace_store
from tocsin.storage.matchers import (
    MatcherFacts,
    SavedMatcher,
    as_damaged_store,
    open_parts,
    part_contents,
)
from tocsin.storage.place import Place, to_place

_WHOLE: Any = object()
"""Stands for no id, where the whole index is meant."""

_SAMPLE = 10_000
"""How many profiled events are kept for an engine that may have to be filled again."""


@dataclass(frozen=True)
class LoadReport:
    """What a bulk load did: how many subscriptions it took in, and the rows it refused."""

    loaded: int
    bad: tuple[BadRow, ...] = ()


class Matcher:
    """Says which subscriptions an event matches.

    >>> m = Matcher()
    >>> m.subscribe("bob", "firm = :firm AND price < :limit", params={"firm": "IBM", "limit": 90})
    >>> m.match({"firm": "IBM", "price": 89.5})
    ['bob']

    `event_type` is optional; where it declares an attribute, subscriptions and events that do not
    fit are refused. `engine` is one of `tocsin.engines.names()`; more keyword arguments are options
    of the engine. `clock` gives the time in seconds since 1970, for `valid_until`.
    """

    def __init__(
        self,
        event_type: EventType | None = None,
        *,
        engine: str = "auto",
        clock: Callable[[], float] = time.time,
        **options: object,
    ) -> None:
        if event_type is not None and not isinstance(event_type, EventType):
            raise ArgumentError(f"event_type must be an EventType, not {event_type!r}")
        self.event_type = event_type
        self.engine = engine
        self._options = options
        self._made_with = dict(options)
        self._is_part = False
        self._profiled: EventBatch | None = None
        self._clock = clock
        self._book = SubscriptionBook()
        self._lock = threading.RLock()
        self._use(engines.make(engine, self._book, options))
        self._updating = threading.RLock()
        """Taken before the other lock; so updates come one after the other, and whole."""
        self._is_bounded = True

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._match_guard: AbstractContextManager[object] = (
            nullcontext() if engine.is_concurrent else self._lock
        )

    def subscribe(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        valid_until: Moment | None = None,
    ) -> None:
        """Register a subscription under a new id.

        `params` fills the `:name` parameters of the condition. From `valid_until` on (a datetime,
        or microseconds since 1970) the subscription is gone.
        """
        self._subscribe(id, self._prepare(where, params), valid_until)

    def _prepare(self, where: object, params: object) -> PreparedCondition:
        """Bring a condition into normal form: before the lock is taken, since it may take long."""
        budget = None if self._is_bounded else Budget.unlimited()
        return prepare(where, params, self.event_type, budget=budget)

    def _subscribe(
        self, id: SubscriptionId, condition: PreparedCondition, valid_until: Moment | None
    ) -> None:
        """Register a condition that was prepared for this matcher's event type."""
        name = check_id(id)
        moment = None if valid_until is None else to_moment(valid_until)
        with self._lock:
            self._expire()
            if name in self._book:
                raise DuplicateSubscriptionError(name)
            self._make_room()
            self._add_one(name, condition, moment)

    def _add_one(
        self,
        name: SubscriptionId,
        condition: PreparedCondition,
        moment: int | None,
        replaced: int | None = None,
    ) -> None:
        dense, table = self._book.next_dense, condition.table
        table = replace(table, subscription=table.subscription + dense)
        # The engine first: where it fails, it is as it was, and nothing else was changed.
        if replaced is None:
            self._engine.insert(np.array([dense]), table)
        else:
            self._engine.replace(np.array([replaced]), np.array([dense]), table)
            self._book.remove(np.array([replaced]))
        self._book.add(name, condition.source, moment)

    def _make_room(self, n: int = 1) -> None:
        """See to it that there are n dense ids to give, and that few were given in vain.

        Changes the dense ids of all subscriptions where that is needed.
        """
        if self._book.has_room(n):
            return
        if not self._is_part:
            self._renumber()
            if self._book.is_full(n):  # what is dead has numbers until it is merged
                self._engine.rebuild()
                self._renumber()
        self._book.check_room(n)

    def _renumber(self) -> None:
        """Number subscriptions from 0 on; readers that were taken before keep the old numbers."""
        live = self._book.live()
        if isinstance(self._engine, Renumberable):
            kept = np.sort(np.concatenate([live, self._engine.tombstones()]), kind="stable")
            book = self._book.renumbered(kept)
            self._engine.renumber(kept)
        else:
            book = self._book.renumbered(live)
            engine = engines.make(self.engine, book, self._made_with)
            for ids, table in load_book(book, self.event_type):
                engine.insert(ids, table)
            if self._profiled is not None:
                engine.profile(self._profiled)
            self._use(engine)
        self._book = book

    def subscribe_many(
        self,
        table: object,
        where: str | None = None,
        *,
        on_error: Literal["raise", "quarantine"] = "raise",
        progress: Callable[[int], None] | None = None,
    ) -> LoadReport:
        """Register many subscriptions from anything Arrow.

        Without `where`, the columns are `id` and `where` (text); with it, `id` and one column per
        parameter. A column `valid_until` is optional. Where rows are bad, nothing is loaded and
        BadRowsError lists them all; with `on_error="quarantine"` the others are loaded and the
        bad ones returned.
        """
        loaded = load_table(table, where, self.event_type, progress, is_bounded=self._is_bounded)
        return self._load(loaded, on_error)

    def subscribe_rows(
        self,
        table: object,
        *,
        on_error: Literal["raise", "quarantine"] = "raise",
    ) -> LoadReport:
        """Register many subscriptions from a table with one predicate a row.

        The columns are `id`, `attribute`, `op` and `value` (or, where kinds mix, `number` and
        `text`, one of them null), optionally `disjunct`. Rows of one id are ANDed, and ORed between
        disjuncts.
        """
        return self._load(load_rows(table, self.event_type), on_error)

    def _load(self, loaded: Load, on_error: str) -> LoadReport:
        if on_error not in ("raise", "quarantine"):
            raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
        with self._lock:
            self._expire()
            self._make_room(len(loaded.table.ids))
            bad = loaded.refuse_taken(self._book)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            ids, table = loaded.add_to(self._book)
            if len(ids):
                try:
                    self._engine.insert(ids, table)
                except BaseException:
                    self._book.remove(ids)
                    raise
            return LoadReport(len(ids), bad)

    def update(
        self,
        id: SubscriptionId,
        *,
        where: str | Expression | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        """Change a subscription: some of its parameters, or its whole condition.

        Parameters that are not given keep their values as far as the condition has them.
        """
        if where is None and params is None:
            raise ArgumentError("update needs where, params or both")
        values = to_params(params)
        with self._updating:
            while not self._update(id, where, values):
                pass

    def _update(
        self, id: SubscriptionId, where: str | Expression | None, values: dict[str, object]
    ) -> bool:
        """Change a subscription; False where it was replaced meanwhile, so that it is another one.

        Conditions are parsed and brought into normal form while matches and other changes go on.
        """
        with self._lock:
            self._expire()
            dense = self._dense(id)
            source = self._book.source(dense)
        condition = self._changed(id, source, where, values)
        with self._lock:
            self._expire()
            self._make_room()
            if self._dense(id) != dense:
                return False
            self._add_one(id, condition, self._book.valid_until(dense), replaced=dense)
        return True

    def _replace(
        self, id: SubscriptionId, condition: PreparedCondition, valid_until: int | None
    ) -> None:
        """Give a subscription another condition, prepared for this matcher's event type."""
        with self._updating, self._lock:
            self._expire()
            self._make_room()
            dense = self._dense(id)
            self._add_one(id, condition, valid_until, replaced=dense)

    def _changed(
        self,
        id: SubscriptionId,
        source: OneSource,
        where: str | Expression | None,
        values: dict[str, object],
    ) -> PreparedCondition:
        """Prepare a condition with another text, or with other values of some parameters."""
        expression = to_expression(source.where if where is None else where)
        names = set(parameter_names(expression))
        if where is None and not names:
            raise ParameterError(f"subscription {id!r} has no parameters", unknown=list(values))
        merged = {k: v for k, v in source.params.items() if k in names} | values
        condition = self._prepare(expression, merged)
        # A condition whose parameters change is likely to change again: it is kept parsed.
        kept = expression if where is None else where
        return condition._replace(source=OneSource(kept, merged))

    def unsubscribe(self, id: SubscriptionId) -> None:
        """Remove a subscription."""
        with self._lock:
            self._expire()
            self._remove(np.array([self._dense(id)]))

    def unsubscribe_many(self, ids: Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray) -> None:
        """Remove many subscriptions; when one is unknown, none is removed."""
        asked = to_ids(ids)
        with self._lock:
            self._expire()
            self._remove(find_all(self._book, asked))

    def _remove(self, dense: NDArray[np.int64]) -> None:
        if len(dense):
            self._book.remove(dense)
            self._engine.delete(dense)

    def _dense(self, name: SubscriptionId) -> int:
        dense = self._book.dense(check_id(name))
        if dense is None:
            raise UnknownSubscriptionError(name)
        return dense

    def _expire(self) -> None:
        if self._book.has_expiries:
            self._remove(self._book.due(round(self._clock() * 1_000_000)))

    def match(self, event: Mapping[str, object]) -> list[SubscriptionId]:
        """Return the ids of the subscriptions that an event matches, each once."""
        checked = check_event(event, self.event_type)
        with self._match_guard:
            names, reader = self._reader()
            return [names[dense] for dense in reader.match_one(checked)]

    def match_batch(self, events: object) -> Matches:
        """Return the matches of many events: anything Arrow, a frame, or a list of mappings."""
        batch = to_batch(events, self.event_type)
        with self._match_guard:
            names, reader = self._reader()
            return Matches(reader.match_batch(batch), names)

    def _reader(self) -> tuple[Names, Reader]:
        """Return the ids and the subscriptions of one moment."""
        with self._lock:
            self._expire()
            return self._book.names, self._engine.reader()

    def profile(self, events: object) -> None:
        """Learn what events look like; the parts of the index built from now on are laid out so."""
        batch = to_batch(events, self.event_type)
        with self._lock:
            self._profile(batch)

    def _profile(self, batch: EventBatch) -> None:
        self._engine.profile(batch)
        if not isinstance(self._engine, Renumberable):
            self._profiled = batch.sample(_SAMPLE)

    def merge(self) -> None:
        """Build the whole index anew, laid out for the events last profiled; returns when done."""
        with self._match_guard:
            with self._lock:
                self._expire()
            self._engine.rebuild()
            with self._lock:  # deleted subscriptions are dropped now: a good time to renumber
                is_free = isinstance(self._engine, Renumberable) and not self._is_part
                if is_free and self._book.is_sparse():
                    self._renumber()

    def explain(
        self, id: SubscriptionId = _WHOLE, event: Mapping[str, object] | None = None
    ) -> str:
        """Say how a subscription is indexed, or, with an event, why it does or does not match.

        Without an id, say what the index is made of.
        """
        with self._lock:
            self._expire()
            if id is _WHOLE:
                if event is not None:
                    raise ArgumentError("explain needs an id to say why an event matches it")
                return self._engine.describe()
            dense = self._dense(id)
            source = self._book.source(dense)
            place = self._engine.explain(dense) if event is None else ""
        expression = bind(*source.template())
        if event is not None:
            return explain_event(expression, check_event(event, self.event_type), self.event_type)
        return explain_subscription(id, expression, self.event_type, place)

    def save(self, path: str | os.PathLike[str], *, grace: float = GRACE) -> None:
        """Write all subscriptions, and the index where the engine can, into a store.

        A store that is there already gets a new version, which takes the place of all that was in
        it, at once: whoever opens it finds the old one or the new one. Versions before it stay for
        `grace` seconds, for readers that have their number. Any other folder that holds something
        is refused.
        """
        replace_store(to_place(path), self._contents(), grace)

    def _contents(self) -> PartContents:
        """Return what is written of the subscriptions as they are now."""
        with self._lock:
            self._expire()
            book, n, ids = self._book.parts(), len(self._book), self._book.kinds_of_ids
            index = self._engine.parts() if isinstance(self._engine, Storable) else None
        attributes = None if index is None else index.attributes
        facts = MatcherFacts(self.event_type, self.engine, self._options, n, attributes, ids)
        return part_contents(facts, book, index)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        clock: Callable[[], float] = time.time,
        verify: bool = True,
    ) -> Matcher:
        """Return the matcher that is in a store, its arrays mapped into memory.

        What is done with it does not change the store until it is saved there. `version` is the
        newest by default. Checksums of all that matching needs are compared now, those of the
        conditions before they are first looked at; with `verify=False` they are not.
        """
        place = to_place(path)

        def read(found: VersionChain) -> Matcher:
            parts = found.base.parts
            matcher = cls._of_parts(open_parts(place, parts, verify), place, clock)
            with as_damaged_store(place):
                for change, moment in read_changes(place, found.changes):
                    matcher._make(change, moment)
            return matcher

        return read_version(place, version, read)

    def _make(self, change: Change, moment: float) -> None:
        """Make a change as it was made at a moment, with what had ended by then.

        It was accepted then, whatever work it takes.
        """
        with self._updating, self._lock:
            clock, self._clock = self._clock, lambda: moment
            self._is_bounded = False
            try:
                change.apply(self)
            finally:
                self._clock, self._is_bounded = clock, True

    @classmethod
    def _of_parts(
        cls, saved: SavedMatcher, place: Place, clock: Callable[[], float], **options: object
    ) -> Matcher:
        """Return a matcher of what was saved; more options take the place of those saved."""
        facts = saved.facts
        with as_damaged_store(place):
            given = {**facts.options, **options}
            matcher = cls(facts.event_type, engine=facts.engine, clock=clock, **given)
            matcher._options = dict(facts.options)
            matcher._fill(SubscriptionBook.from_parts(saved.books, saved.verify), saved, given)
        return matcher

    @classmethod
    def _part_numbered_from(cls, first: int, *args: Any, **options: Any) -> Matcher:
        """Return a new matcher whose dense ids start at a number, and stay as they are.

        It is a part of a store, of which other parts have the numbers before and after.
        """
        matcher = cls._numbered_from(first, *args, **options)
        matcher._is_part = True
        return matcher

    @classmethod
    def _numbered_from(cls, first: int, *args: Any, **options: Any) -> Matcher:
        """Return a new matcher whose dense ids start at a number: tests start near the end."""
        matcher = cls(*args, **options)
        matcher._book = SubscriptionBook(first)
        matcher._use(engines.make(matcher.engine, matcher._book, matcher._made_with))
        return matcher

    def _fill(
        self, book: SubscriptionBook, saved: SavedMatcher, options: dict[str, object]
    ) -> None:
        """Take over what was saved; the engine that cannot is filled anew."""
        self._book = book
        self._use(engines.make(self.engine, book, options))
        if saved.index is not None and isinstance(self._engine, Storable):
            self._engine.restore(saved.index, saved.segments)
        else:
            for ids, table in load_book(book, self.event_type):
                self._engine.insert(ids, table)
        if saved.profile is not None:
            with suppress(EventError):  # statistics are only advice: no reason not to open
                self._profile(saved.profile)

    def conditions(self) -> Iterable[IndexedConditions]:
        """Return the conditions of all subscriptions as ranges of cells, a group at a time.

        Internal: what a schema check reads. Taken from the index where the engine has them in this
        form; otherwise the conditions are parsed again.
        """
        with self._lock:
            self._expire()
            if isinstance(self._engine, Enumerable):
                return self._engine.conditions()
        return (conditions_of(table) for _, table in load_book(self._book, self.event_type))

    def check(self) -> None:
        """Verify every invariant of the index, and the checksums of what was opened."""
        with self._lock:
            self._book.verify()
            self._engine.check()

    @property
    def nbytes(self) -> int:
        """Bytes held by the index, besides ids and texts."""
        with self._lock:
            return self._engine.nbytes

    def __len__(self) -> int:
        with self._lock:
            self._expire()
            return len(self._book)

    def __contains__(self, id: object) -> bool:
        with self._lock:
            self._expire()
            is_id = isinstance(id, str | int) and not isinstance(id, bool)
            return is_id and id in self._book

    def __repr__(self) -> str:
        of = f" of {self.event_type.name}" if self.event_type else ""
        return f"<Matcher{of}: {len(self)} subscriptions, engine {self.engine}>"
