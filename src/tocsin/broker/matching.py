"""Matching: batches of publishes, the subscriptions they match, the transitions they bring about.

Enters: subscriptions by their numbers; the publishes of a batch, in order. Leaves: for each event
the numbers of the subscriptions it matches, for each publication its transitions; and the
publications or retained events that a new subscription matches (Fabret et al., 2001, section 1: a
new subscription is evaluated against the events that are still valid).

An event meets the matcher of its type and that of the subscriptions without a type. Subscriptions
that ask for transitions have matchers of their own, which only publications meet: transitions are
the difference between what a publication matched before and what it matches now. Changes of
subscriptions come from one thread at a time, batches from another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from tocsin.broker.events import Event, Publication
from tocsin.broker.header_columns import HeaderColumns
from tocsin.broker.publications import Address, PublicationTable
from tocsin.broker.subscription import SubscriptionSpec
from tocsin.errors import TocsinError
from tocsin.loading import PreparedCondition, prepare
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import EventType

MatchResult = list[int] | TocsinError
"""The numbers of the subscriptions that an event matches, or why it cannot be matched."""
_FEW = 8
_MANY = 50
_CHUNK = 4_096
_NOT_PREPARED: Mapping[int, PreparedCondition] = MappingProxyType({})
_Pair = tuple[Publication | None, Publication]


class BatchResult(NamedTuple):
    """Publications that have expired, and for each event of a batch what it matches."""

    expired: list[Publication]
    matches: list[MatchResult]


class TypeMatcher:
    """The subscriptions to one event type."""

    def __init__(self, event_type: EventType | None, clock: Callable[[], float]) -> None:
        self.matcher = Matcher(event_type, clock=clock)
        self.matcher.configure_events(warns=False, reads_moments=True)
        self.columns = HeaderColumns(event_type)
        self._rewritten: set[int] = set()

    def subscribe(
        self,
        no: int,
        where: str,
        params: Mapping[str, object],
        valid_until: int | None = None,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Register a condition under a number; `prepared` is its normal form, if there is one."""
        rewritten = self.columns.rewrite(where, params)
        if rewritten is not None:
            self.matcher.subscribe(no, rewritten, params or None, valid_until=valid_until)
            self._rewritten.add(no)
        elif prepared is not None:
            self.matcher.subscribe_prepared(no, prepared, valid_until)
        else:
            self.matcher.subscribe(no, where, params or None, valid_until=valid_until)

    def load(self, rows: Sequence[tuple[int, str, int | None]]) -> None:
        """Register many conditions without parameters."""
        plain: list[tuple[int, str, int | None]] = []
        for row in rows:
            try:
                needs_columns = self.columns.rewrite(row[1], {}) is not None
            except TocsinError:  # the load names the bad rows
                needs_columns = False
            if needs_columns:
                self.subscribe(row[0], row[1], {}, row[2])
            else:
                plain.append(row)
        if not plain:
            return
        nos, texts, ends = zip(*plain, strict=True)
        table = {"id": pa.array(nos, pa.int64()), "where": pa.array(texts)}
        if any(end is not None for end in ends):
            table["valid_until"] = pa.array(ends, pa.timestamp("us", "UTC"))
        self.matcher.subscribe_many(pa.table(table))

    def update(
        self,
        no: int,
        old: SubscriptionSpec,
        new: SubscriptionSpec,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Change a subscription; `prepared` is the normal form of the new condition, if any."""
        rewritten = self.columns.rewrite(new.where, new.params)
        where = new.where if rewritten is None else rewritten
        if rewritten is not None:
            prepared = None
        if prepared is None and new.valid_until != old.valid_until:
            prepared = prepare(where, new.params, self.matcher.event_type)
        if prepared is not None:
            self.matcher.update_prepared(no, prepared, new.valid_until)
        elif rewritten is not None or no in self._rewritten or new.where != old.where:
            self.matcher.update(no, where=where, params=new.params)
        else:
            self.matcher.update(no, where=None if new.params else where, params=new.params or None)
        (self._rewritten.discard if rewritten is None else self._rewritten.add)(no)

    def unsubscribe(self, nos: Iterable[int]) -> None:
        """Remove subscriptions; numbers that are not registered are ignored."""
        nos = list(nos)
        self.matcher.unsubscribe_many([no for no in nos if no in self.matcher])
        self._rewritten.difference_update(nos)

    def match_each(self, events: Sequence[Event]) -> list[MatchResult]:
        """Return what each event matches, or its own error."""
        if len(events) > _FEW:
            try:
                return list(self.match(events))
            except TocsinError:
                pass
        results: list[MatchResult] = []
        for event in events:
            try:
                results.append(self.matcher.match(self.columns.row(event)))  # type: ignore[arg-type]
            except TocsinError as error:
                results.append(error)
        return results

    def match(self, events: Sequence[Event]) -> list[list[int]]:
        """Return the numbers that each event matches."""
        if not len(self.matcher):
            return [[] for _ in events]
        rows = [self.columns.row(event) for event in events]
        matches = self.matcher.match_batch(rows)
        if len(rows) >= _MANY:
            return to_lists(matches)
        return [matches[row] for row in range(len(rows))]  # type: ignore[misc]


def to_lists(matches: Matches) -> list[list[int]]:
    """Return the numbers of each event, converted together."""
    if not matches.n_matches:
        return [[] for _ in range(len(matches))]
    column = matches.to_table().column("subscription").chunk(0)
    nos = column.dictionary.to_numpy()[column.indices.to_numpy()].tolist()
    return [nos[first:stop] for first, stop in itertools.pairwise(matches.offsets.tolist())]


class BatchMatcher:
    """A matcher for each event type, and the table of publications that batches change."""

    def __init__(
        self,
        types: Mapping[str, EventType],
        clock: Callable[[], float],
        publications: PublicationTable,
    ) -> None:
        self.types = dict(types)
        self._clock = clock
        self._publications = publications
        self._by_type: dict[str | None, TypeMatcher] = {None: TypeMatcher(None, clock)}
        self._for_transitions: dict[str | None, TypeMatcher] = {}

    def event_type(self, name: str | None) -> EventType | None:
        """Return the declared type of this name, if there is one."""
        return None if name is None else self.types.get(name)

    def __len__(self) -> int:
        every = (*self._by_type.values(), *self._for_transitions.values())
        return sum(len(each.matcher) for each in every)

    # Subscriptions.

    def _matcher(self, type: str | None, transitions: bool) -> TypeMatcher:
        matchers = self._for_transitions if transitions else self._by_type
        matcher = matchers.get(type)
        if matcher is None:
            matcher = matchers[type] = TypeMatcher(self.event_type(type), self._clock)
        return matcher

    def subscribe(
        self,
        no: int,
        spec: SubscriptionSpec,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Register a subscription under a number; `prepared` is its normal form, if known."""
        self._matcher(spec.type, bool(spec.transition_mask)).subscribe(
            no, spec.where, spec.params, spec.valid_until, prepared
        )

    def load(
        self,
        type: str | None,
        rows: Sequence[tuple[int, str, int | None]],
        transitions: bool = False,
    ) -> None:
        """Register many conditions without parameters: rows of number, text and end."""
        self._matcher(type, transitions).load(rows)

    def update(
        self,
        no: int,
        old: SubscriptionSpec,
        new: SubscriptionSpec,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Change the condition, the parameters or the end of a subscription."""
        self._matcher(new.type, bool(new.transition_mask)).update(no, old, new, prepared)

    def unsubscribe(self, type: str | None, nos: Iterable[int], transitions: bool = False) -> None:
        """Remove subscriptions; numbers that are not registered are ignored."""
        self._matcher(type, transitions).unsubscribe(nos)

    # Batches. One thread at a time.

    def match(self, groups: Sequence[Sequence[Event]]) -> BatchResult:
        """Return what the events of some publishes match, and apply them to the publications.

        A publish is applied whole or, where one of its events cannot be matched, not at all.
        """
        table = self._publications
        now = table.begin_batch()
        expired = self._expire(now)
        if all(event.key is None for group in groups for event in group):
            events = [event for group in groups for event in group]
            return BatchResult(expired, self.match_events(events))
        results: list[MatchResult] = []
        for run in _runs(groups):
            results += self._match_run(run, now)
        return BatchResult(expired, results)

    def _expire(self, now: int) -> list[Publication]:
        """Take publications whose time is over out of the table; return them with transitions."""
        expired = self._publications.expire(now)
        if expired:
            pairs: list[_Pair] = [(each, each) for each in expired]
            for each, transitions in zip(expired, self.transitions(pairs), strict=True):
                each.transitions = transitions if isinstance(transitions, list) else ()
        return expired

    def _match_run(self, run: Sequence[Sequence[Event]], now: int) -> list[MatchResult]:
        """Match publishes that have no key in common."""
        staged: dict[Address, Publication | None] = {}
        results: dict[int, MatchResult] = {}
        pairs: list[_Pair] = []
        for group in run:
            for event in group:
                if isinstance(event, Publication):
                    try:
                        pairs.append((self._publications.stage(event, staged, now), event))
                    except TocsinError as error:
                        results[id(event)] = error
                        break
        events = [event for group in run for event in group]
        plain = [
            event
            for event in events
            if id(event) not in results and event.gone is None and not event.is_past
        ]
        for event, matches in zip(plain, self.match_events(plain), strict=True):
            results[id(event)] = matches
        for (_, event), transitions in zip(pairs, self.transitions(pairs), strict=True):
            if isinstance(transitions, TocsinError):
                results[id(event)] = transitions
            else:
                event.transitions = transitions
        for group in run:
            if not any(isinstance(results.get(id(event)), TocsinError) for event in group):
                self._publications.accept(
                    [event for event in group if isinstance(event, Publication)]
                )
        return [results.get(id(event), []) for event in events]

    def match_events(self, events: Sequence[Event]) -> list[MatchResult]:
        """Return for each event the numbers it matches, or why it cannot be matched."""
        results: list[MatchResult] = [[]] * len(events)
        by_type: dict[str | None, list[int]] = {}
        for row, event in enumerate(events):
            by_type.setdefault(event.type, []).append(row)
        for type, rows in by_type.items():
            names = dict.fromkeys((None, type))
            matchers = [self._by_type[name] for name in names if name in self._by_type]
            of_type = [events[row] for row in rows]
            try:
                columns = [matcher.match(of_type) for matcher in matchers]
            except TocsinError:
                for row in rows:
                    results[row] = _match_one(matchers, events[row])
                continue
            for at, row in enumerate(rows):
                lists = [column[at] for column in columns]
                results[row] = lists[0] + lists[1] if len(lists) == 2 else lists[0]
        return results

    def transitions(self, pairs: Sequence[_Pair]) -> list[list[tuple[int, int]] | TocsinError]:
        """Return the transitions of publications, given what each replaces.

        For each, pairs of a subscription's number and LEAVE or ENTER, LEAVE first; or why it cannot
        be matched.
        """
        results: list[Any] = [[] for _ in pairs]
        for name, matcher in list(self._for_transitions.items()):
            if len(matcher.matcher):
                rows = [row for row, pair in enumerate(pairs) if name in (None, pair[1].type)]
                _add_transitions(
                    matcher, [pairs[row] for row in rows], [results[row] for row in rows]
                )
        for row, transitions in enumerate(results):
            errors = [each for each in transitions if isinstance(each, TocsinError)]
            results[row] = errors[0] if errors else sorted(transitions, key=_leave_first)
        return results

    # New subscriptions.

    def existing(
        self,
        specs: Sequence[tuple[int, SubscriptionSpec]],
        prepared: Mapping[int, PreparedCondition] = _NOT_PREPARED,
    ) -> list[tuple[int, Event]]:
        """Return numbers and what each matches already, in the order of publishing.

        That is publications where a subscription asks for transitions, else retained events.
        `prepared` has normal forms by number.
        """
        results: list[tuple[int, Event]] = []
        for transitions in (False, True):
            of_kind = [each for each in specs if bool(each[1].transition_mask) is transitions]
            for type in {spec.type for _, spec in of_kind}:
                of_type = [(no, spec) for no, spec in of_kind if spec.type == type]
                events = self._publications.valid(type, retained=not transitions)
                results += self._match_existing(type, of_type, events, prepared)
        return results

    def _match_existing(
        self,
        type: str | None,
        specs: Sequence[tuple[int, SubscriptionSpec]],
        events: Sequence[Event],
        prepared: Mapping[int, PreparedCondition],
    ) -> Iterator[tuple[int, Event]]:
        if not events:
            return
        trial = TypeMatcher(self.event_type(type), self._clock)
        for no, spec in specs:
            trial.subscribe(no, spec.where, spec.params, prepared=prepared.get(no))
        for first in range(0, len(events), _CHUNK):
            chunk = events[first : first + _CHUNK]
            for event, nos in zip(chunk, trial.match_each(chunk), strict=True):
                for no in nos if isinstance(nos, list) else ():
                    yield no, event


def _match_one(matchers: Sequence[TypeMatcher], event: Event) -> MatchResult:
    try:
        return [no for matcher in matchers for no in matcher.match([event])[0]]
    except TocsinError as error:
        return error


def _leave_first(transition: tuple[int, int]) -> tuple[int, int]:
    return transition[1], transition[0]


def _add_transitions(
    matcher: TypeMatcher, pairs: Sequence[_Pair], results: Sequence[list[Any]]
) -> None:
    """Append to each result the transitions of one matcher's subscriptions, or an error."""
    events = [
        each
        for before, event in pairs
        for each in (before, event if event.gone is None else None)
        if each is not None
    ]
    matches = iter(matcher.match_each(events))
    for (before, event), transitions in zip(pairs, results, strict=True):
        old = next(matches) if before is not None else []
        new = next(matches) if event.gone is None else []
        if isinstance(new, TocsinError):
            transitions.append(new)
            continue
        matched = set() if isinstance(old, TocsinError) else set(old)
        transitions += [(no, -1) for no in matched.difference(new)]
        transitions += [(no, 1) for no in new if no not in matched]


def _runs(groups: Sequence[Sequence[Event]]) -> Iterator[list[Sequence[Event]]]:
    """Yield runs of publishes in which no key occurs in two publishes."""
    run: list[Sequence[Event]] = []
    keys: set[Address] = set()
    for group in groups:
        own = {event.address for event in group if isinstance(event, Publication)}
        if own & keys:
            yield run
            run, keys = [], set()
        run.append(group)
        keys |= own
    if run:
        yield run
