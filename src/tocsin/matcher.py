"""Matcher: subscriptions in, events in, matches out.

Enters: the calls of a user. Leaves: matches by the user's ids, or errors that name the place. A
call either does all it says or changes nothing. Calls from several threads are safe: changes are
made one at a time. With a concurrent engine (`auto`) events are matched at the same time.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin import engines
from tocsin.arguments import (
    UNCHANGED,
    IdsArgument,
    Moment,
    OnError,
    Unchanged,
    check_on_error,
    to_end,
    to_expression,
    to_ids,
    to_params,
    to_written,
)
from tocsin.catalog.blocks import Names
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.records import Subscription
from tocsin.catalog.sources import OneSource
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.drift import Seen, find_issues, report
from tocsin.encode.events import EventBatch, check_event, to_batch
from tocsin.engines.conditions import IndexedConditions, conditions_of
from tocsin.engines.protocol import Engine, Enumerable, Reader, Renumberable, Storable
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    ConditionWarning,
    DuplicateSubscriptionError,
    EventError,
    InvariantError,
    ParameterError,
    SchemaDriftWarning,
)
from tocsin.explain import explain_event, explain_subscription
from tocsin.language.computed import attributes_of, attributes_of_names, parameter_names
from tocsin.language.dialects import SQL
from tocsin.language.evaluate import at_moment
from tocsin.language.expression import Expression
from tocsin.loading import (
    Load,
    LoadReport,
    LoadWarning,
    PreparedCondition,
    find_all,
    has_conditions,
    load_catalog,
    load_params,
    load_table,
    prepare,
    unknown_id,
    written_table,
)
from tocsin.matches import Matches
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.normalize import bind
from tocsin.normalize.budget import Budget
from tocsin.schema_watch import SchemaWatch
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

__all__ = ["LoadReport", "Matcher"]

_FEW = 10_000
"""Up to this number of conditions are parsed again to report drift."""
_SAMPLE = 10_000
"""The number of profiled events kept for an engine that may have to be filled again."""


class Matcher:
    """Says which subscriptions an event matches.

    >>> m = Matcher()
    >>> m.subscribe("bob", "firm = :firm AND price < :limit", {"firm": "IBM", "limit": 90})
    >>> m.match({"firm": "IBM", "price": 89.5})
    ['bob']

    A matcher is a collection of subscriptions: `id in m`, `len(m)` and iteration go by ids.

    Parameters:
        event_type: the attributes with their kinds, optional. Subscriptions and events that do not
            fit a declared attribute are refused.
        engine: one of `tocsin.engines.names()`.
        clock: returns the time in seconds since 1970, for `valid_until`.
        options: options of the engine.

    Raises ArgumentError for a wrong event type or option, UnknownEngineError for an unknown engine.
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
        self._saved_options = options
        self._options = dict(options)
        self._is_part = False
        self._profiled: EventBatch | None = None
        self._clock = clock
        self._catalog = SubscriptionCatalog()
        self._lock = threading.RLock()
        self._use(engines.make(engine, self._catalog, options))
        self._updating = threading.RLock()
        """Taken before the other lock, so that updates are made one after the other."""
        self._is_bounded = True
        self._watch = SchemaWatch(event_type)

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._match_guard: AbstractContextManager[object] = (
            nullcontext() if engine.is_concurrent else self._lock
        )

    # One subscription.

    def subscribe(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | None = None,
        dialect: str = SQL,
    ) -> None:
        """Register a subscription under a new id.

        Parameters:
            id: a string or a 64-bit integer.
            where: the condition.
            params: the values of the parameters `:name` of the condition.
            valid_until: when the subscription ends: a datetime (no zone: UTC), or microseconds
                since 1970.
            dialect: the language of `where`: "sql" (ours), "cesql", "eventbridge", "sns" or "jms".

        Raises DuplicateSubscriptionError where the id is taken, or another SubscriptionError. Warns
        with ConditionWarning where the condition can never match.
        """
        written, until = to_written(where, dialect), to_end(valid_until)
        condition = self._prepare(written, params)
        self.subscribe_prepared(id, condition, until)
        self._warn_of_condition(id, condition, until)

    def update(
        self,
        id: SubscriptionId,
        where: str | Expression | None = None,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | Unchanged | None = UNCHANGED,
        dialect: str = SQL,
    ) -> None:
        """Change a subscription.

        Parameters:
            id: its id.
            where: the new condition.
            params: new values of some parameters. The others keep their values, as far as the
                condition has them.
            valid_until: the new end; None for no end.
            dialect: the language of `where`.

        Raises UnknownSubscriptionError (a KeyError), or another SubscriptionError.
        """
        values = None if params is None else to_params(params)
        if where is None and params is None and isinstance(valid_until, Unchanged):
            raise ArgumentError("update needs where, params or valid_until")
        end = valid_until if isinstance(valid_until, Unchanged) else to_end(valid_until)
        written = to_written(where, dialect)
        with self._updating:
            while (condition := self._update(id, written, values, end)) is None:
                pass
        self._warn_of_condition(id, condition, None if isinstance(end, Unchanged) else end)

    def put(
        self,
        id: SubscriptionId,
        where: str | Expression,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: Moment | None = None,
        dialect: str = SQL,
    ) -> None:
        """Register a subscription, or replace the whole of the one with this id.

        The arguments and errors are those of `subscribe`; an id may be taken.
        """
        condition, name = self._prepare(to_written(where, dialect), params), check_id(id)
        until = to_end(valid_until)
        with self._updating, self._lock:
            self._expire()
            self._make_room()
            self._add_one(name, condition, until, replaced=self._catalog.dense(name))
        self._warn_of_condition(id, condition, until)

    def unsubscribe(self, id: SubscriptionId) -> None:
        """Remove a subscription.

        Raises UnknownSubscriptionError (a KeyError).
        """
        with self._lock:
            self._expire()
            self._remove(np.array([self._dense(id)]))

    # Many subscriptions.

    def subscribe_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
        progress: Callable[[int], None] | None = None,
    ) -> LoadReport:
        """Register many subscriptions from anything Arrow.

        The columns say what the rows are:

        - `id` and `where`: texts; perhaps with `params`, parameters as JSON objects.
        - with the argument `where`: `id` and one column per parameter of that condition.
        - `id`, `attribute`, `op` and `value`: one predicate a row. Rows of one id are ANDed, and
          ORed between values of the optional `disjunct`. Where kinds mix, `number` and `text`
          replace `value`; one of them is null.

        A column `valid_until` is optional, and so is `dialect` where there is `where`.

        Parameters:
            dialect: the language of the conditions that have none in a column `dialect`.
            on_error: "raise" raises BadRowsError, which lists all bad rows, and loads nothing;
                "quarantine" loads the other rows and reports the bad ones.
            progress: called with the number of texts read so far.
        """
        data, condition = written_table(table, dialect), to_written(where, dialect)
        load = load_table(data, condition, self.event_type, progress, is_bounded=self._is_bounded)
        return self.load(load, on_error)

    def update_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
    ) -> LoadReport:
        """Change many subscriptions, all or none.

        The table has new conditions, in the forms of `subscribe_many`; or, without conditions, new
        values of parameters: `id` and one column per parameter, or `params` with JSON objects. With
        a column `valid_until` the ends change too; null removes an end.

        With `on_error="quarantine"` bad rows are set aside and the others are changed.
        """
        check_on_error(on_error)
        data, condition = written_table(table, dialect), to_written(where, dialect)
        with self._updating:
            if has_conditions(data, where):
                load = load_table(data, condition, self.event_type, is_bounded=self._is_bounded)
                return self._update_load(load, on_error)
            while True:
                load, replaced = load_params(data, self._sources, self.event_type)
                with self._lock:
                    if np.array_equal(self._catalog.find(load.ids), replaced):
                        return self._update_load(load, on_error)

    def put_many(
        self,
        table: object,
        where: str | Expression | None = None,
        *,
        dialect: str = SQL,
        on_error: OnError = "raise",
        progress: Callable[[int], None] | None = None,
    ) -> LoadReport:
        """Register many subscriptions; those whose ids are taken replace the ones there are.

        The forms of the table and the errors are those of `subscribe_many`. `replaced` of the
        report says how many there were.
        """
        data, condition = written_table(table, dialect), to_written(where, dialect)
        load = load_table(data, condition, self.event_type, progress, is_bounded=self._is_bounded)
        return self.put_load(load, on_error)

    def unsubscribe_many(self, ids: IdsArgument) -> None:
        """Remove many subscriptions; where one is unknown, none is removed.

        Raises UnknownSubscriptionError (a KeyError) for the first that is unknown.
        """
        names = to_ids(ids)
        with self._lock:
            self._expire()
            self._remove(find_all(self._catalog, names))

    # Reading back.

    def get(self, id: SubscriptionId) -> Subscription:
        """Return a subscription: its id, condition, parameters and end.

        Raises UnknownSubscriptionError (a KeyError).
        """
        with self._lock:
            self._expire()
            return self._catalog.record(self._dense(id))

    def to_table(self) -> pa.Table:
        """Return all subscriptions as columns `id`, `where`, `params` and `valid_until`.

        A column `dialect` follows where a condition is not in our own language. `params` holds JSON
        objects, null for no parameters. `subscribe_many` loads the table again. Ids of two kinds
        become strings.
        """
        with self._lock:
            self._expire()
            snapshot = self._catalog.listing()
        return snapshot.to_table()

    def __iter__(self) -> Iterator[SubscriptionId]:
        """Iterate over the ids of the subscriptions there are now."""
        with self._lock:
            self._expire()
            snapshot = self._catalog.listing()
        return snapshot.ids()

    def __reduce__(self) -> NoReturn:
        """Say how a matcher gets into another process."""
        raise ArgumentError(
            "a Matcher cannot be pickled: save() it, and open() it where it is used"
        )

    def __len__(self) -> int:
        with self._lock:
            self._expire()
            return len(self._catalog)

    def __contains__(self, id: object) -> bool:
        with self._lock:
            self._expire()
            is_id = isinstance(id, str | int) and not isinstance(id, bool)
            return is_id and id in self._catalog

    def __repr__(self) -> str:
        of = f" of {self.event_type.name}" if self.event_type else ""
        return f"<Matcher{of}: {len(self)} subscriptions, engine {self.engine}>"

    # Matching.

    def match(self, event: Mapping[str, object]) -> list[SubscriptionId]:
        """Return the ids of the subscriptions that an event matches, each once.

        An ISO 8601 text is a timestamp where the attribute is declared one, or compared with one.

        Raises EventError. Warns with SchemaDriftWarning, as `match_batch` does.
        """
        checked = check_event(event, self.event_type)
        watch = self._watch
        with self._match_guard:
            names, reader = self._reader(1)
            match = partial(watch.match_one, reader) if watch.reads_events else reader.match_one
            if self._clock is time.time:
                matches = names.of(match(checked))
            else:
                with at_moment(self._clock()):
                    matches = names.of(match(checked))
        if watch.is_open:
            self._warn_of_drift(watch.look_at_mappings([checked]))
        return matches

    def match_batch(self, events: object) -> Matches:
        """Return the matches of many events: anything Arrow, a frame, or a list of mappings.

        Attributes that conditions ask for and that the events do not have, or have with values of
        another kind only, are reported by a SchemaDriftWarning, each once.

        Raises EventError, which names the row and the attribute.
        """
        watch = self._watch
        batch = to_batch(events, self.event_type, watch.moments.names)
        with self._match_guard:
            names, reader = self._reader(len(batch))
            with at_moment(self._clock()):
                matches = Matches(watch.match_batch(reader, batch), names)
        suspects = watch.look_at(batch)
        if suspects:
            self._warn_of_drift(suspects)
        return matches

    def _warn_of_drift(self, suspects: dict[str, Seen]) -> None:
        """Report the conditions that can never hold for what events have, to the caller's caller.

        For an engine that cannot list its conditions they are parsed again, where they are few.
        """
        if not suspects:
            return
        with self._lock:
            if not isinstance(self._engine, Enumerable) and len(self._catalog) > _FEW:
                return
            issues = find_issues(self.conditions(), suspects.get, self._catalog)
            self._watch.set_reported(issue.attribute for issue in issues)
        if issues:
            warnings.warn(report(issues), SchemaDriftWarning, stacklevel=3)

    def _reader(self, n_events: int) -> tuple[Names, Reader]:
        """Return the ids and the index of one moment, to match a number of events with."""
        current: Any = self._engine.current(n_events)
        if current is not None and not self._catalog.has_expiries:
            names = current.names
            if names is not None:
                return names, current
        with self._lock:
            self._expire()
            names, reader = self._catalog.names, self._engine.reader_for(n_events)
            if self._engine.current(n_events) is reader:
                reader.names = names  # type: ignore[attr-defined]
            return names, reader

    def profile(self, events: object) -> None:
        """Learn from a sample of events; parts of the index built from now on are laid out for it.

        Raises EventError.
        """
        batch = to_batch(events, self.event_type, self._watch.moments.names)
        with self._lock:
            self._profile(batch)

    def _profile(self, batch: EventBatch) -> None:
        self._engine.profile(batch)
        if not isinstance(self._engine, Renumberable):
            self._profiled = batch.sample(_SAMPLE)

    def rebuild(self) -> None:
        """Lay out the whole index from scratch, for the events last profiled; return when done."""
        with self._match_guard:
            with self._lock:
                self._expire()
            self._engine.rebuild()
            with self._lock:  # deleted subscriptions are dropped now: a good time to renumber
                is_free = isinstance(self._engine, Renumberable) and not self._is_part
                if is_free and self._catalog.is_sparse():
                    self._renumber()

    def explain(
        self, id: SubscriptionId | None = None, event: Mapping[str, object] | None = None
    ) -> str:
        """Say how a subscription is indexed, or why an event does or does not match it.

        Without an id, describe the index.

        Raises UnknownSubscriptionError (a KeyError), or EventError.
        """
        with self._lock:
            self._expire()
            if id is None:
                if event is not None:
                    raise ArgumentError("explain needs an id to say why an event matches it")
                return self._engine.describe()
            dense = self._dense(id)
            source = self._catalog.source(dense)
            place = self._engine.explain(dense) if event is None else ""
        expression = bind(*source.template())
        if event is not None:
            checked = check_event(event, self.event_type)
            return explain_event(
                expression, self._watch.choices.rows(checked) or [checked], self.event_type
            )
        return explain_subscription(id, expression, self.event_type, place)

    @property
    def nbytes(self) -> int:
        """Bytes of the index, without ids and texts."""
        with self._lock:
            return self._engine.nbytes

    def check(self) -> None:
        """Verify every invariant of the index, and the checksums of what was opened.

        Raises InvariantError where the index is inconsistent, DamagedStoreError for a damaged file.
        """
        with self._lock:
            self._catalog.verify()
            try:
                self._engine.check()
            except AssertionError as error:
                raise InvariantError(f"the index is inconsistent: {error}") from error

    # On disk.

    def save(self, path: str | os.PathLike[str], *, grace: float = GRACE) -> None:
        """Write all subscriptions, and the index where the engine can, into a store.

        An existing store gets a new version, which replaces its contents at once: a process that
        opens it sees the old version or the new one. Earlier versions stay for `grace` seconds, for
        readers that have their number.

        Raises StoreError where the folder holds something else or cannot be written.
        """
        replace_store(to_place(path), self.snapshot(), grace)

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

        Changes to it stay in memory until it is saved.

        Parameters:
            version: by default the newest.
            verify: compare checksums: of all that matching needs now, of the conditions before they
                are first used.

        Raises NoStoreError, DamagedStoreError or another StoreError.
        """
        place = to_place(path)

        def read(chain: VersionChain) -> Matcher:
            parts = chain.base.parts
            matcher = cls.restore(open_parts(place, parts, verify), place, clock)
            with as_damaged_store(place):
                for change, moment in read_changes(place, chain.changes):
                    matcher.apply(change, moment)
            return matcher

        return read_version(place, version, read)

    def close(self) -> None:
        """Release the index and the files that it maps; the matcher is empty then."""
        with self._updating, self._lock:
            self._catalog = SubscriptionCatalog()
            self._profiled = None
            self._watch = SchemaWatch(self.event_type)
            self._use(engines.make(self.engine, self._catalog, self._options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # For the other packages of Tocsin: not part of the public interface.

    def subscribe_prepared(
        self, id: SubscriptionId, condition: PreparedCondition, until: int | None
    ) -> None:
        """Register a condition that was prepared for this event type. Internal."""
        name = check_id(id)
        with self._lock:
            self._expire()
            if name in self._catalog:
                raise DuplicateSubscriptionError(name)
            self._make_room()
            self._add_one(name, condition, until)

    def update_prepared(
        self, id: SubscriptionId, condition: PreparedCondition, until: int | None
    ) -> None:
        """Replace the condition of a subscription by a prepared one, and its end. Internal."""
        with self._updating, self._lock:
            self._expire()
            self._make_room()
            dense = self._dense(id)
            self._add_one(id, condition, until, replaced=dense)

    def load(self, load: Load, on_error: OnError = "raise") -> LoadReport:
        """Register the subscriptions of a table that was read. Internal."""
        check_on_error(on_error)
        with self._lock:
            self._expire()
            self._make_room(len(load))
            bad = load.refuse_taken(self._catalog)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            ids, table = load.numbered(self._catalog.next_dense)
            if len(ids):
                self._engine.insert(ids, table)
                load.enter(self._catalog)
                self._watch.add_table(table)
            return LoadReport(
                len(ids), bad, warnings=load.warnings(self._clock()) if self._is_bounded else ()
            )

    def put_load(self, load: Load, on_error: OnError = "raise") -> LoadReport:
        """Register the subscriptions of a table that was read, or replace them. Internal."""
        check_on_error(on_error)
        with self._updating, self._lock:
            self._expire()
            self._make_room(len(load))
            bad = load.bad
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            old = self._catalog.find(load.ids)
            old = old if load.good is None else old[load.good]
            old = np.sort(old[old >= 0])
            ids, table = load.numbered(self._catalog.next_dense)
            if len(ids):
                self._engine.replace(old, ids, table)
                self._catalog.remove(old)
                load.enter(self._catalog)
                self._watch.add_table(table)
            warnings = self._warnings_of(load)
            return LoadReport(len(ids), bad, warnings=warnings, replaced=len(old))

    def _warnings_of(self, load: Load) -> tuple[LoadWarning, ...]:
        """Return what is suspect about a load, unless it replays a change of a store."""
        return load.warnings(self._clock()) if self._is_bounded else ()

    def apply(self, change: Change, now: float) -> None:
        """Make a change of a store as it was made at a moment. Internal.

        The work that its conditions take is not bounded: they were accepted then.
        """
        with self._updating, self.at(now):
            self._is_bounded = False
            try:
                change.apply(self)
            finally:
                self._is_bounded = True

    @contextmanager
    def at(self, now: float) -> Iterator[None]:
        """Hold the clock at a moment, for the calls made within by the same thread. Internal."""
        with self._updating, self._lock:
            clock, self._clock = self._clock, lambda: now
            try:
                yield
            finally:
                self._clock = clock

    def snapshot(self) -> PartContents:
        """Return the subscriptions as they are now, ready to be written. Internal."""
        with self._lock:
            self._expire()
            catalog, n = self._catalog.parts(), len(self._catalog)
            ids = self._catalog.kinds_of_ids
            index = self._engine.parts() if isinstance(self._engine, Storable) else None
        attributes = None if index is None else attributes_of_names(index.attributes)
        facts = MatcherFacts(self.event_type, self.engine, self._saved_options, n, attributes, ids)
        return part_contents(facts, catalog, index)

    @classmethod
    def restore(
        cls, saved: SavedMatcher, place: Place, clock: Callable[[], float], **options: object
    ) -> Self:
        """Return a matcher of saved parts; `options` override the saved ones. Internal."""
        facts = saved.facts
        with as_damaged_store(place):
            merged = {**facts.options, **options}
            matcher = cls(facts.event_type, engine=facts.engine, clock=clock, **merged)
            matcher._saved_options = dict(facts.options)
            matcher._fill(
                SubscriptionCatalog.from_parts(saved.catalogs, saved.verify), saved, merged
            )
        return matcher

    @classmethod
    def numbered_from(cls, first: int, *args: Any, is_part: bool = False, **options: Any) -> Self:
        """Return an empty matcher whose dense ids begin at `first`. Internal.

        The dense ids of a part of a store never change: other parts have those before and after.
        """
        matcher = cls(*args, **options)
        matcher._catalog = SubscriptionCatalog(first)
        matcher._use(engines.make(matcher.engine, matcher._catalog, matcher._options))
        matcher._is_part = is_part
        return matcher

    def configure_events(self, *, warns: bool, reads_moments: bool) -> None:
        """Say whether drift is reported, and texts compared with timestamps are some. Internal."""
        self._watch.configure(warns=warns, reads_moments=reads_moments)

    @property
    def catalog(self) -> SubscriptionCatalog:
        """The ids, conditions and ends of the subscriptions. Internal, and not synchronised."""
        return self._catalog

    @property
    def index(self) -> Engine:
        """The engine itself. Internal, and not synchronised: for measurements."""
        return self._engine

    def conditions(self) -> Iterable[IndexedConditions]:
        """Return the conditions of all subscriptions as ranges of cells, a group at a time.

        Internal: a schema check reads them. Taken from the index where the engine has them in this
        form; otherwise the conditions are parsed again.
        """
        with self._lock:
            self._expire()
            if isinstance(self._engine, Enumerable):
                return self._engine.conditions()
        return (conditions_of(table) for _, table in load_catalog(self._catalog, self.event_type))

    # Within.

    def _prepare(self, where: object, params: object) -> PreparedCondition:
        """Bring a condition into normal form: before the lock is taken, since it may take long."""
        budget = None if self._is_bounded else Budget.unlimited()
        return prepare(where, params, self.event_type, budget=budget)

    def _warn_of_condition(
        self, id: SubscriptionId, condition: PreparedCondition, until: int | None
    ) -> None:
        """Warn of a condition that can never match, or that misspells a declared attribute.

        Not where a change of a store is replayed.
        """
        if not self._is_bounded:
            return
        if until is not None and until <= self._clock() * 1_000_000:
            text = f"subscription {id!r} has ended already: valid_until is in microseconds"
            warnings.warn(text, ConditionWarning, stacklevel=3)
        if condition.form.is_never:
            text = f"subscription {id!r} can never match: no value satisfies its condition"
            warnings.warn(text, ConditionWarning, stacklevel=3)
        elif self.event_type is not None and not (
            self.event_type.attributes.keys() >= set(condition.table.attributes)
        ):
            names = chain.from_iterable(map(attributes_of, condition.table.attributes))
            for name in dict.fromkeys(names):
                if self.event_type.kind_of(name) is None:
                    reason = self.event_type.undeclared(name)
                    if "did you mean" in reason:
                        text = f"subscription {id!r}: attribute {name!r} is {reason}"
                        warnings.warn(text, ConditionWarning, stacklevel=3)

    def _add_one(
        self,
        name: SubscriptionId,
        condition: PreparedCondition,
        until: int | None,
        replaced: int | None = None,
    ) -> None:
        dense = self._catalog.next_dense
        table = condition.table.renumbered(condition.table.subscription + dense)
        # The engine first: where it fails, it is as it was, and nothing else was changed.
        if replaced is None:
            self._engine.insert(np.array([dense]), table)
        else:
            self._engine.replace(np.array([replaced]), np.array([dense]), table)
            self._catalog.remove(np.array([replaced]))
        self._catalog.add(name, condition.source, until)
        self._watch.add_form(condition.form)

    def _update(
        self,
        id: SubscriptionId,
        where: str | Expression | None,
        values: dict[str, object] | None,
        until: int | Unchanged | None,
    ) -> PreparedCondition | None:
        """Change a subscription and return its condition; None where it was replaced meanwhile.

        Conditions are parsed and brought into normal form without the lock.
        """
        with self._lock:
            self._expire()
            dense = self._dense(id)
            source = self._catalog.source(dense)
        condition = self._changed(id, source, where, values)
        with self._lock:
            self._expire()
            self._make_room()
            if self._dense(id) != dense:
                return None
            if isinstance(until, Unchanged):
                until = self._catalog.valid_until(dense)
            self._add_one(id, condition, until, replaced=dense)
        return condition

    def _changed(
        self,
        id: SubscriptionId,
        source: OneSource,
        where: str | Expression | None,
        values: dict[str, object] | None,
    ) -> PreparedCondition:
        """Prepare a condition with another text, or with other values of some parameters."""
        expression = to_expression(source.where if where is None else where)
        names = set(parameter_names(expression))
        if where is None and values is not None and not names:
            raise ParameterError(f"subscription {id!r} has no parameters", unknown=list(values))
        merged = {k: v for k, v in source.params.items() if k in names} | (values or {})
        condition = self._prepare(expression, merged)
        # Parameters that change once are likely to change again: the condition stays parsed.
        kept = source.where if where is None and values is None else where or expression
        return condition._replace(source=OneSource(kept, merged))

    def _sources(self, ids: IdTable) -> tuple[NDArray[np.int64], list[OneSource | None]]:
        """Return the dense ids and conditions of a column of ids; -1 and None for an unknown id."""
        with self._lock:
            self._expire()
            dense = self._catalog.find(ids)
            known = dense.tolist()
            return dense, [self._catalog.source(each) if each >= 0 else None for each in known]

    def _update_load(self, load: Load, on_error: OnError) -> LoadReport:
        """Replace subscriptions by those of a table that was read."""
        with self._lock:
            self._expire()
            self._make_room(len(load))
            bad = load.refuse_unknown(self._catalog)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            old = self._catalog.find(load.ids)
            old = old if load.good is None else old[load.good]
            ids, table = load.numbered(self._catalog.next_dense)
            if len(ids):
                ends = self._catalog.ends_of(old) if load.until is None else None
                self._engine.replace(np.sort(old), ids, table)
                self._catalog.remove(np.sort(old))
                load.enter(self._catalog, ends)
                self._watch.add_table(table)
            return LoadReport(
                len(ids), bad, warnings=load.warnings(self._clock()) if self._is_bounded else ()
            )

    def _remove(self, dense: NDArray[np.int64]) -> None:
        if len(dense):
            self._catalog.remove(dense)
            self._engine.delete(dense)

    def _dense(self, name: SubscriptionId) -> int:
        dense = self._catalog.dense(check_id(name))
        if dense is None:
            raise unknown_id(self._catalog, name)
        return dense

    def _expire(self) -> None:
        if self._catalog.has_expiries:
            self._remove(self._catalog.due(round(self._clock() * 1_000_000)))

    def _make_room(self, n: int = 1) -> None:
        """Ensure that n dense ids are free, and that not too many belong to removed subscriptions.

        May change the dense ids of all subscriptions.
        """
        if self._catalog.has_room(n):
            return
        if not self._is_part:
            self._renumber()
            if self._catalog.is_full(n):  # tombstones have dense ids until they are dropped
                self._engine.rebuild()
                self._renumber()
        self._catalog.check_room(n)

    def _renumber(self) -> None:
        """Number subscriptions from 0 on; earlier readers keep the old numbers."""
        live = self._catalog.live()
        if isinstance(self._engine, Renumberable):
            kept = np.sort(np.concatenate([live, self._engine.tombstones()]), kind="stable")
            catalog = self._catalog.renumbered(kept)
            self._engine.renumber(kept)
        else:
            catalog = self._catalog.renumbered(live)
            engine = engines.make(self.engine, catalog, self._options)
            for ids, table in load_catalog(catalog, self.event_type):
                engine.insert(ids, table)
            if self._profiled is not None:
                engine.profile(self._profiled)
            self._use(engine)
        self._catalog = catalog

    def _fill(
        self, catalog: SubscriptionCatalog, saved: SavedMatcher, options: dict[str, object]
    ) -> None:
        """Restore a saved index; an engine that cannot is filled from the conditions."""
        self._catalog = catalog
        self._use(engines.make(self.engine, catalog, options))
        if saved.index is not None and isinstance(self._engine, Storable):
            self._engine.restore(saved.index, saved.segments)
            if isinstance(self._engine, Enumerable):
                self._watch.add_groups(self._engine.conditions())
        else:
            for ids, table in load_catalog(catalog, self.event_type):
                self._engine.insert(ids, table)
                self._watch.add_table(table)
        if saved.profile is not None:
            with suppress(EventError):  # statistics are only advice: no reason not to open
                self._profile(saved.profile.reading(self._watch.moments.names))
