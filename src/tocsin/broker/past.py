"""What was published before: publications that stay, and events that are retained for a time.

Enters: the publishes of a batch, in order; new subscriptions. Leaves: for each event the numbers of
the subscriptions it matches, for each publication the transitions that it brings about; and what of
the past a new subscription is to get (Fabret et al., seed 001, section 1: a new subscription is
evaluated against the events that are still valid).

A publication's transitions are the difference between what its values before and after match
(`tocsin.transitions` does the same for whole tables). Nothing but the values is kept, so a
publish that is refused, or that the disk does not take, is undone by putting the old ones back. All
changes are made in the broker's order, one batch at a time, in the thread that matches; the event
loop only reads.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tocsin.broker import keyed
from tocsin.broker.config import Config
from tocsin.broker.events import Event, Publication, numbers_of
from tocsin.broker.schema import PublicationRow
from tocsin.broker.subscription import Wanted
from tocsin.broker.topics import Topics
from tocsin.errors import LimitError, TocsinError
from tocsin.loading import PreparedCondition

Place = tuple[str | None, str]
Found = list[int] | TocsinError
Group = Sequence[Event]
_CHUNK = 4_096
log = logging.getLogger("tocsin.broker")
_MORE_ENDS = 1_000


class Answer(NamedTuple):
    """What became of a batch: publications that have ended, and matches for each event."""

    ended: list[Publication]
    matched: list[Found]


class Past:
    """Publications by type and key, and retained events."""

    def __init__(self, config: Config, topics: Topics, clock: Callable[[], float]) -> None:
        self.by_place: dict[Place, Publication] = {}
        self.retained: deque[Event] = deque()
        self.is_retaining = config.retain_seconds > 0
        self.n_bytes = 0
        self.n_retained_bytes = 0
        self._config = config
        self._topics = topics
        self._clock = clock
        self._ends: list[tuple[int, int, Place]] = []
        self._count = itertools.count()  # of two equal ends, the first comes first
        self._undo: list[tuple[Place, Publication | None]] = []
        self._undo_ended: list[tuple[Place, Publication | None]] = []

    def now(self) -> int:
        """Return the moment, in microseconds."""
        return int(self._clock() * 1_000_000)

    # A batch.

    def match(self, groups: Sequence[Group]) -> Answer:
        """Return what the events of some publishes match, each publish whole or not at all."""
        now = self.now()
        self._undo, self._undo_ended = [], []
        ended = self._end_due(now)
        if all(event.key is None for group in groups for event in group):
            return Answer(ended, self._topics.match([event for group in groups for event in group]))
        matched: list[Found] = []
        for run in _runs(groups):
            matched += self._match_run(run, now)
        return Answer(ended, matched)

    def _match_run(self, run: Sequence[Group], now: int) -> list[Found]:
        """Match publishes none of which names a key that another one names."""
        staged: dict[Place, Publication | None] = {}
        answers: dict[int, Found] = {}
        pairs: list[tuple[Publication | None, Publication]] = []
        for group in run:
            own: list[tuple[Publication | None, Publication]] = []
            for event in group:
                if isinstance(event, Publication):
                    try:
                        own.append((self._stage(event, staged, now), event))
                    except TocsinError as error:
                        answers[id(event)] = error
                        break
            pairs += own
        events = [event for group in run for event in group]
        plain = [
            event
            for event in events
            if id(event) not in answers and event.gone is None and not event.is_past
        ]
        for event, found in zip(plain, self._topics.match(plain), strict=True):
            answers[id(event)] = found
        for (_, event), moves in zip(pairs, self._topics.transitions(pairs), strict=True):
            if isinstance(moves, TocsinError):
                answers[id(event)] = moves
            else:
                event.moves = moves
        for group in run:
            if not any(isinstance(answers.get(id(event)), TocsinError) for event in group):
                self._accept([event for event in group if isinstance(event, Publication)])
        return [answers.get(id(event), []) for event in events]

    def _stage(
        self, event: Publication, staged: dict[Place, Publication | None], now: int
    ) -> Publication | None:
        """Work out what a publication says; return the one it takes the place of."""
        place = event.place
        before = staged[place] if place in staged else self.by_place.get(place)
        if event.gone is None and event.valid_until is not None and event.valid_until <= now:
            event.gone = "expired"
        if event.gone is not None:
            if before is not None:
                _become(event, before)
            staged[place] = None
            return before
        limits = self._config.limits
        if before is None and len(self.by_place) + len(staged) >= limits.max_publications:
            n_new = sum(each is not None and at not in self.by_place for at, each in staged.items())
            if len(self.by_place) + n_new >= limits.max_publications:
                raise LimitError("too many publications", "max_publications")
        if self.n_bytes > limits.max_publication_bytes:
            raise LimitError("the publications are too large", "max_publication_bytes")
        if event.merges:
            event.begin_merge()
            event_type = self._topics.event_type(event.type)
            keyed.merge(event, before, event_type, limits.max_body)
        staged[place] = event
        return before

    def _accept(self, events: Sequence[Publication]) -> None:
        for event in events:
            self._undo.append((event.place, self.by_place.get(event.place)))
            self._put(event.place, None if event.gone is not None else event)

    def _put(self, place: Place, event: Publication | None) -> None:
        before = self.by_place.pop(place, None)
        if before is not None:
            self.n_bytes -= len(before.text)
        if event is None:
            return
        self.by_place[place] = event
        self.n_bytes += len(event.text)
        if event.valid_until is None or (before and before.valid_until == event.valid_until):
            return
        heapq.heappush(self._ends, (event.valid_until, next(self._count), place))
        if len(self._ends) > 2 * len(self.by_place) + _MORE_ENDS:
            self._renew_ends()

    def _renew_ends(self) -> None:
        """Forget ends that no publication has any more."""
        ends = [
            (each.valid_until, next(self._count), place)
            for place, each in self.by_place.items()
            if each.valid_until is not None
        ]
        heapq.heapify(ends)
        self._ends = ends

    def forget(self, place: Place) -> None:
        """Know no more of a publication, and tell nobody: it is another broker's."""
        self._put(place, None)

    def _end_due(self, now: int) -> list[Publication]:
        """End the publications whose time is over; return how they are told of."""
        ended: list[Publication] = []
        while self._ends and self._ends[0][0] <= now:
            until, _, place = heapq.heappop(self._ends)
            found = self.by_place.get(place)
            if found is None or found.valid_until != until:
                continue
            told = found.copied(gone="expired")
            self._undo_ended.append((place, found))
            self._put(place, None)
            ended.append(told)
        moves = self._topics.transitions([(told, told) for told in ended])
        for told, brought in zip(ended, moves, strict=True):
            told.moves = brought if isinstance(brought, list) else ()
        return ended

    @property
    def n_ends(self) -> int:
        """How many publications may end with the next batch, at most."""
        return len(self.by_place)

    @property
    def next_end(self) -> int | None:
        """When the next publication ends, at the earliest."""
        first = self._ends[:1]  # in one step: another thread may take it away
        return first[0][0] if first else None

    def undo(self, with_ended: bool) -> None:
        """Put back what the last batch changed; with what had ended, where that is asked for."""
        for place, before in reversed(self._undo):
            self._put(place, before)
        self._undo = []
        if with_ended:
            for place, before in reversed(self._undo_ended):
                self._put(place, before)
            self._undo_ended = []

    # What a subscription finds.

    def has_order(self, wanted: Wanted) -> bool:
        """Whether a subscription must have its place among the publishes."""
        return bool(wanted.wants) or self.is_retaining

    def find(
        self,
        asked: Sequence[tuple[int, Wanted]],
        prepared: Mapping[int, PreparedCondition] = MappingProxyType({}),
    ) -> list[tuple[int, Event]]:
        """Return numbers of subscriptions, and what there is for each: in the order of events.

        Conditions that are prepared, by number, are not brought into normal form again.
        """
        found: list[tuple[int, Event]] = []
        for is_watching in (False, True):
            chosen = [(no, each) for no, each in asked if bool(each.wants) is is_watching]
            for type in {each.type for _, each in chosen}:
                of_type = [(no, each) for no, each in chosen if each.type == type]
                found += self._find(type, of_type, self._candidates(is_watching, type), prepared)
        return found

    def _candidates(self, is_watching: bool, type: str | None) -> list[Event]:
        now = self.now()
        events: Sequence[Event] = tuple(self.by_place.values() if is_watching else self.retained)
        return [
            event
            for event in events
            if (type is None or event.type == type)
            and (event.valid_until is None or event.valid_until > now)
            and (is_watching or (event.retain_until or 0) > now)
        ]

    def _find(
        self,
        type: str | None,
        asked: Sequence[tuple[int, Wanted]],
        events: Sequence[Event],
        prepared: Mapping[int, PreparedCondition],
    ) -> Iterator[tuple[int, Event]]:
        if not events:
            return
        trial = self._topics.trial(type)
        for no, wanted in asked:
            trial.subscribe(no, wanted.where, wanted.params, prepared=prepared.get(no))
        for first in range(0, len(events), _CHUNK):
            chunk = events[first : first + _CHUNK]
            for event, nos in zip(chunk, trial.match_each(chunk), strict=True):
                for no in nos if isinstance(nos, list) else ():
                    yield no, event

    # Retention.

    def retain(self, event: Event) -> list[int]:
        """Keep an event for subscriptions to come; return those that had to go for it."""
        self.retained.append(event)
        self.n_retained_bytes += len(event.text)
        gone = []
        config = self._config
        while self.retained and (
            len(self.retained) > config.retain_events or self.n_retained_bytes > config.retain_bytes
        ):
            gone.append(self._drop_first())
        return gone

    def _drop_first(self) -> int:
        first = self.retained.popleft()
        self.n_retained_bytes -= len(first.text)
        return first.seq

    def retire(self) -> list[int]:
        """Forget retained events whose time is over; return their numbers."""
        now = self.now()
        over = {e.seq for e in self.retained if (e.retain_until or 0) <= now}
        if over:
            kept = [event for event in self.retained if event.seq not in over]
            self.retained = deque(kept)
            self.n_retained_bytes = sum(len(event.text) for event in kept)
        return sorted(over)

    # Restoring.

    def restore(self, rows: Sequence[PublicationRow], retained: Sequence[tuple[Any, ...]]) -> None:
        """Take in what is stored, before the broker starts."""
        for row in rows:
            type = row.type or None
            event = Event.restored(
                row.seq, type, row.text, row.extra, row.valid_until, row.published
            )
            assert isinstance(event, Publication)
            event.attributes = self._attributes(event)
            self._put(event.place, event)
        for *kept, until in retained:
            event = Event.restored(*kept)
            event_type = self._topics.event_type(event.type)
            event.attributes = self._attributes(event)
            event.numbers = numbers_of(event.headers or {}, event_type)
            event.retain_until = until
            self.retained.append(event)
            self.n_retained_bytes += len(event.text)
            self.is_retaining = True

    def _attributes(self, event: Event) -> dict[str, Any]:
        """Return what conditions see of a stored event.

        One that contradicts a type that was declared since is kept, and matches no condition.
        """
        try:
            return keyed.attributes_of(event, self._topics.event_type(event.type))
        except TocsinError as error:
            name = f"publication {event.key!r}" if event.key is not None else f"event {event.seq}"
            log.error("%s of type %r matches nothing: %s", name, event.type, error)
            return keyed.attributes_of(event, None)


def _become(event: Publication, before: Publication) -> None:
    """Let the end of a publication say what it said last."""
    event.attributes, event.text = before.attributes, before.text
    event.headers, event.body = before.headers, before.body
    event.content_type = before.content_type


def _runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield publishes that follow each other and have no key in common."""
    run: list[Group] = []
    taken: set[Place] = set()
    for group in groups:
        own = {event.place for event in group if isinstance(event, Publication)}
        if own & taken:
            yield run
            run, taken = [], set()
        run.append(group)
        taken |= own
    if run:
        yield run
