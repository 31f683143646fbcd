"""Topics: the matchers, one for each event type and one for subscriptions to every type.

Enters: subscriptions by their numbers, and batches of events of any types. Leaves: for each event
the numbers of the subscriptions it matches, for each publication the transitions that it brings
about. An event meets the matcher of its type and that of the subscriptions without a type;
subscriptions that ask for transitions have matchers of their own, which events without a key do not
meet.

A number in a STOMP header compares as a number with numbers and as a text with texts. A matcher
wants one kind of value, so what conditions compare an attribute with is remembered: where it is
only one of the two, the header is that; where it is both, the event is matched in either form and
the answers are united (`MAX_FORMS` forms at most; then numbers win).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tocsin.broker.events import Event
from tocsin.errors import BadRowsError, TocsinError
from tocsin.language import parse
from tocsin.language.expression import Literal, operands, predicates
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import EventType, Kind
from tocsin.normalize import bind

MAX_FORMS = 8
_FEW = 8
_MANY = 50
_Moves = list[tuple[int, int]]
_LITERAL = re.compile(r"'(?:[^']|'')*'|(?<![\w.])[+-]?\d[\w.]*")


class Compared:
    """Which attributes are compared with numbers, and which with texts."""

    def __init__(self) -> None:
        self.numbers: set[str] = set()
        self.texts: set[str] = set()
        self._shapes: set[str] = set()

    def learn(self, where: str, params: Mapping[str, object]) -> None:
        """Take note of a condition."""
        if not params:
            shape = _LITERAL.sub(lambda found: (found.group()[0] == "'" and "'") or "0", where)
            if shape in self._shapes:
                return
            if len(self._shapes) < 10_000:
                self._shapes.add(shape)
        for predicate in predicates(bind(parse(where), params)):
            for operand in operands(predicate):
                if isinstance(operand, Literal):
                    text = operand.kind is Kind.STRING
                    (self.texts if text else self.numbers).add(predicate.attribute)

    def forms(self, event: Event) -> list[dict[str, Any]]:
        """Return the events to match in place of one whose headers may be numbers."""
        assert event.numbers is not None
        mixed = []
        base = dict(event.attributes)
        for name, number in event.numbers.items():
            if name in self.numbers:
                base[name] = number
                if name in self.texts:
                    mixed.append(name)
        if not mixed or 2 ** len(mixed) > MAX_FORMS:
            return [base]
        choices = itertools.product(
            *(((name, base[name]), (name, event.attributes[name])) for name in mixed)
        )
        return [{**base, **dict(choice)} for choice in choices]


class Topic:
    """The subscriptions of one event type."""

    def __init__(self, event_type: EventType | None, clock: Callable[[], float]) -> None:
        self.matcher = Matcher(event_type, clock=clock)
        self.compared = Compared()

    def match_each(self, events: Sequence[Event]) -> list[list[int] | TocsinError]:
        """Return the numbers that each event matches, or why it cannot be matched."""
        if len(events) > _FEW:
            try:
                return list(self.match(events))
            except TocsinError:
                pass
        found: list[list[int] | TocsinError] = []
        for event in events:
            try:
                found.append(
                    self.matcher.match(event.attributes)  # type: ignore[arg-type]
                    if event.numbers is None
                    else self.match([event])[0]
                )
            except TocsinError as error:
                found.append(error)
        return found

    def match(self, events: Sequence[Event]) -> list[list[int]]:
        """Return the numbers that each event matches."""
        if not len(self.matcher):
            return [[] for _ in events]
        if all(event.numbers is None for event in events):
            return self._match_rows([event.attributes for event in events])
        rows: list[Mapping[str, object]] = []
        of: list[int] = []
        for at, event in enumerate(events):
            forms = [event.attributes] if event.numbers is None else self.compared.forms(event)
            rows += forms
            of += [at] * len(forms)
        answers: list[list[int]] = [[] for _ in events]
        for at, ids in zip(of, self.matcher.match_batch(rows), strict=True):
            answers[at] = list({*answers[at], *map(int, ids)})
        return answers

    def _match_rows(self, rows: list[dict[str, Any]]) -> list[list[int]]:
        found = self.matcher.match_batch(rows)
        if len(rows) >= _MANY:
            return to_lists(found)
        return [found[row] for row in range(len(rows))]  # type: ignore[misc]


def to_lists(found: Matches) -> list[list[int]]:
    """Return the numbers of each event, all at once."""
    if not found.n_matches:
        return [[] for _ in range(len(found))]
    column = found.to_table().column("subscription").chunk(0)
    nos = column.dictionary.to_numpy()[column.indices.to_numpy()].tolist()
    return [nos[first:stop] for first, stop in itertools.pairwise(found.offsets.tolist())]


class Topics:
    """All matchers. Changes come from one thread at a time; matching may run beside them."""

    def __init__(self, types: Mapping[str, EventType], clock: Callable[[], float]) -> None:
        self.types = dict(types)
        self._clock = clock
        self._topics: dict[str | None, Topic] = {None: Topic(None, clock)}
        self._watching: dict[str | None, Topic] = {}

    def event_type(self, name: str | None) -> EventType | None:
        """Return the declared type of this name, if there is one."""
        return None if name is None else self.types.get(name)

    def topic(self, name: str | None, watching: bool = False) -> Topic:
        """Return the matcher of a type, made when it is first asked for."""
        topics = self._watching if watching else self._topics
        found = topics.get(name)
        if found is None:
            found = topics[name] = self.trial(name)
        return found

    def trial(self, name: str | None) -> Topic:
        """Return a matcher of a type that nobody else knows."""
        return Topic(self.event_type(name), self._clock)

    def subscribe(
        self,
        no: int,
        type: str | None,
        where: str,
        params: Mapping[str, object],
        valid_until: int | None,
        watching: bool = False,
    ) -> None:
        """Register a condition under a number; `watching` asks for transitions."""
        topic = self.topic(type, watching)
        topic.matcher.subscribe(no, where, params or None, valid_until)
        topic.compared.learn(where, params)

    def load(
        self,
        type: str | None,
        rows: Sequence[tuple[int, str, int | None]],
        watching: bool = False,
    ) -> None:
        """Register many conditions without parameters."""
        topic = self.topic(type, watching)
        nos, texts, ends = zip(*rows, strict=True)
        table = {"id": pa.array(nos, pa.int64()), "where": pa.array(texts)}
        if any(end is not None for end in ends):
            table["valid_until"] = pa.array(ends, pa.timestamp("us", "UTC"))
        topic.matcher.subscribe_many(pa.table(table))
        for text in texts:
            topic.compared.learn(text, {})

    def update(
        self,
        no: int,
        type: str | None,
        where: str | None,
        params: Mapping[str, object] | None,
        whole: tuple[str, Mapping[str, object]],
        watching: bool = False,
    ) -> None:
        """Change a condition or its parameters; `whole` is what comes of it."""
        topic = self.topic(type, watching)
        topic.matcher.update(no, where=where, params=params)
        topic.compared.learn(*whole)

    def unsubscribe(self, type: str | None, nos: Iterable[int], watching: bool = False) -> None:
        """Remove subscriptions; those that are gone already do not matter."""
        matcher = self.topic(type, watching).matcher
        matcher.unsubscribe_many([no for no in nos if no in matcher])

    def match(self, events: Sequence[Event]) -> list[list[int] | TocsinError]:
        """Return for each event the numbers of its subscriptions, or why it cannot be matched."""
        answers: list[list[int] | TocsinError] = [[]] * len(events)
        by_type: dict[str | None, list[int]] = {}
        for at, event in enumerate(events):
            by_type.setdefault(event.type, []).append(at)
        for type, rows in by_type.items():
            topics = [
                self._topics[name] for name in dict.fromkeys((None, type)) if name in self._topics
            ]
            of_type = [events[at] for at in rows]
            try:
                found = [topic.match(of_type) for topic in topics]
            except TocsinError:
                for at in rows:
                    answers[at] = self._match_one(topics, events[at])
                continue
            for row, at in enumerate(rows):
                lists = [each[row] for each in found]
                answers[at] = lists[0] + lists[1] if len(lists) == 2 else lists[0]
        return answers

    def _match_one(self, topics: Sequence[Topic], event: Event) -> list[int] | TocsinError:
        try:
            return [no for topic in topics for no in topic.match([event])[0]]
        except TocsinError as error:
            return error

    def transitions(
        self, pairs: Sequence[tuple[Event | None, Event]]
    ) -> list[_Moves | TocsinError]:
        """Return what publications bring about, given what they take the place of.

        For each, the numbers of subscriptions with -1 for those that it ceases to match, which come
        first, and 1 for those that it begins to match; or why it cannot be matched.
        """
        found: list[Any] = [[] for _ in pairs]
        for name, topic in list(self._watching.items()):
            if len(topic.matcher):
                rows = [at for at, pair in enumerate(pairs) if name in (None, pair[1].type)]
                _add_differences(topic, [pairs[at] for at in rows], [found[at] for at in rows])
        for at, moves in enumerate(found):
            refused = [move for move in moves if isinstance(move, TocsinError)]
            found[at] = refused[0] if refused else sorted(moves, key=_leaves_first)
        return found

    def __len__(self) -> int:
        every = (*self._topics.values(), *self._watching.values())
        return sum(len(topic.matcher) for topic in every)


def _leaves_first(move: tuple[int, int]) -> tuple[int, int]:
    return move[1], move[0]


def _add_differences(
    topic: Topic, pairs: Sequence[tuple[Event | None, Event]], into: Sequence[Any]
) -> None:
    """Add to each list what one matcher says of it: moves, or an error."""
    events = [
        each
        for before, event in pairs
        for each in (before, event if event.gone is None else None)
        if each is not None
    ]
    answers = iter(topic.match_each(events))
    for (before, event), moves in zip(pairs, into, strict=True):
        old = next(answers) if before is not None else []
        new = next(answers) if event.gone is None else []
        if isinstance(new, TocsinError):
            moves.append(new)
            continue
        was = set() if isinstance(old, TocsinError) else set(old)
        moves += [(no, -1) for no in was.difference(new)]
        moves += [(no, 1) for no in new if no not in was]


def first_reason(error: BadRowsError) -> str:
    """Return why the first row of a load was refused."""
    return error.rows[0].reason
