"""Topics: the matchers, one for each event type and one for subscriptions to every type.

Enters: subscriptions by their numbers, and batches of events of any types. Leaves: for each event
the numbers of the subscriptions it matches, for each publication the transitions that it brings
about. An event meets the matcher of its type and that of the subscriptions without a type;
subscriptions that ask for transitions have matchers of their own, which events without a key do not
meet.

A number in a STOMP header compares as a number with numbers and as a text with texts, but a value
in a matcher is one of the two. So an attribute that conditions compare with both has two *faces*:
its own name stands for what it was compared with first, a second attribute of the matcher for the
other, and each predicate reads the face that its literal compares with. Other values have the same
value in both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tocsin.broker.events import Event
from tocsin.encode.events import lookup
from tocsin.errors import BadRowsError, TocsinError
from tocsin.language import parse
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Predicate,
    conjoin,
    disjoin,
    operands,
)
from tocsin.loading import PreparedCondition
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import EventType, Kind, kind_of, to_plain

_FEW = 8
_MANY = 50
_Moves = list[tuple[int, int]]
_LITERAL = re.compile(r"'(?:[^']|'')*'|(?<![\w.])[+-]?\d[\w.]*")


_FACES = {Kind.INTEGER: "number", Kind.FLOAT: "number", Kind.STRING: "text"}


class Faces:
    """Which attributes are compared with numbers, which with texts, and which with both.

    Attributes that the event type declares have one kind, and one face.
    """

    def __init__(self, event_type: EventType | None) -> None:
        self._event_type = event_type
        self._first: dict[str, str] = {}
        self._second: dict[str, str] = {}
        self._shapes: dict[str, bool] = {}

    def read(self, where: str, params: Mapping[str, object]) -> Expression | None:
        """Take note of a condition; return it with the faces that it reads.

        None where every attribute in it goes by its own name.
        """
        shape = None
        if not params:
            shape = _LITERAL.sub(lambda found: (found.group()[0] == "'" and "'") or "0", where)
            if self._shapes.get(shape) is False:
                return None
        expression = parse(where)
        faced = self._faced(expression, params)
        is_faced = faced != expression
        if shape is not None and len(self._shapes) < 10_000:
            self._shapes[shape] = is_faced
        return faced if is_faced else None

    def _faced(self, expression: Expression, params: Mapping[str, object]) -> Expression:
        if isinstance(expression, And | Or):
            return type(expression)(tuple(self._faced(e, params) for e in expression.operands))
        if isinstance(expression, Not):
            return Not(self._faced(expression.operand, params))
        if not isinstance(expression, Comparison | Between | In | Like):
            return expression
        names = [self._name(expression, each, params) for each in operands(expression)]
        if len(set(names)) == 1:
            return replace(expression, attribute=names[0])
        return _divided(expression, names)

    def _name(self, predicate: Predicate, operand: Operand, params: Mapping[str, object]) -> str:
        """Return the name under which an operand's predicate finds its attribute."""
        name = predicate.attribute
        kind = (
            operand.kind
            if isinstance(operand, Literal)
            else kind_of(to_plain(params.get(str(operand.name))))
        )
        face = None if kind is None else _FACES.get(kind)
        if face is None or (self._event_type and self._event_type.kind_of(name) is not None):
            return name
        if self._first.setdefault(name, face) == face:
            return name
        return self._second.setdefault(name, f"\0{face}\0{name}")

    def row(self, event: Event) -> dict[str, Any]:
        """Return the attributes of an event, with every face that it has."""
        numbers: Mapping[str, Any] = event.numbers or {}
        if not numbers and not self._second:
            return event.attributes
        first = self._first
        row = event.attributes | {n: v for n, v in numbers.items() if first.get(n) == "number"}
        for name, second in tuple(self._second.items()):
            if name in numbers and first[name] == "text":
                row[second] = numbers[name]
            else:
                row[second] = lookup(event.attributes, name)
        return row


def _divided(predicate: Predicate, names: Sequence[str]) -> Expression:
    """Return a predicate whose operands find their attribute under different names."""
    if isinstance(predicate, Between):
        low = Comparison(names[0], ">=", predicate.low)
        both = conjoin([low, Comparison(names[1], "<=", predicate.high)])
        return Not(both) if predicate.negated else both
    assert isinstance(predicate, In)
    parts: list[Expression] = []
    for name in dict.fromkeys(names):
        own = [o for o, of in zip(predicate.operands, names, strict=True) if of == name]
        parts.append(In(name, tuple(own), predicate.negated))
    return conjoin(parts) if predicate.negated else disjoin(parts)


class Topic:
    """The subscriptions of one event type."""

    def __init__(self, event_type: EventType | None, clock: Callable[[], float]) -> None:
        self.matcher = Matcher(event_type, clock=clock)
        self.faces = Faces(event_type)
        self._faced: set[int] = set()

    def subscribe(
        self,
        no: int,
        where: str,
        params: Mapping[str, object],
        valid_until: int | None = None,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Register a condition under a number; where it was prepared, in its normal form."""
        faced = self.faces.read(where, params)
        if faced is not None:
            self.matcher.subscribe(no, faced, params or None, valid_until)
            self._faced.add(no)
        elif prepared is not None:
            self.matcher._subscribe(no, prepared, valid_until)
        else:
            self.matcher.subscribe(no, where, params or None, valid_until)

    def load(self, rows: Sequence[tuple[int, str, int | None]]) -> None:
        """Register many conditions without parameters."""
        alike: list[tuple[int, str, int | None]] = []
        faced: list[tuple[int, str, int | None]] = []
        for row in rows:
            try:
                is_faced = self.faces.read(row[1], {}) is not None
            except TocsinError:  # the load says which rows are bad
                is_faced = False
            (faced if is_faced else alike).append(row)
        for no, text, end in faced:
            self.subscribe(no, text, {}, end)
        if not alike:
            return
        nos, texts, ends = zip(*alike, strict=True)
        table = {"id": pa.array(nos, pa.int64()), "where": pa.array(texts)}
        if any(end is not None for end in ends):
            table["valid_until"] = pa.array(ends, pa.timestamp("us", "UTC"))
        self.matcher.subscribe_many(pa.table(table))

    def update(
        self,
        no: int,
        where: str | None,
        params: Mapping[str, object] | None,
        whole: tuple[str, Mapping[str, object]],
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Change a condition or its parameters; `whole` is what comes of it, perhaps prepared."""
        faced = self.faces.read(*whole)
        if faced is None and prepared is not None:
            self.matcher._replace(no, prepared)
            self._faced.discard(no)
            return
        if faced is None and no not in self._faced:
            self.matcher.update(no, where=where, params=params)
            return
        self.matcher.update(no, where=whole[0] if faced is None else faced, params=whole[1])
        (self._faced.discard if faced is None else self._faced.add)(no)

    def unsubscribe(self, nos: Iterable[int]) -> None:
        """Remove subscriptions; those that are gone already do not matter."""
        nos = list(nos)
        self.matcher.unsubscribe_many([no for no in nos if no in self.matcher])
        self._faced.difference_update(nos)

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
                found.append(self.matcher.match(self.faces.row(event)))  # type: ignore[arg-type]
            except TocsinError as error:
                found.append(error)
        return found

    def match(self, events: Sequence[Event]) -> list[list[int]]:
        """Return the numbers that each event matches."""
        if not len(self.matcher):
            return [[] for _ in events]
        return self._match_rows([self.faces.row(event) for event in events])

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
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Register a condition under a number; `watching` asks for transitions.

        Where the condition was prepared for its type, its normal form is not made again.
        """
        self.topic(type, watching).subscribe(no, where, params, valid_until, prepared)

    def load(
        self,
        type: str | None,
        rows: Sequence[tuple[int, str, int | None]],
        watching: bool = False,
    ) -> None:
        """Register many conditions without parameters."""
        self.topic(type, watching).load(rows)

    def update(
        self,
        no: int,
        type: str | None,
        where: str | None,
        params: Mapping[str, object] | None,
        whole: tuple[str, Mapping[str, object]],
        watching: bool = False,
        prepared: PreparedCondition | None = None,
    ) -> None:
        """Change a condition or its parameters; `whole` is what comes of it, perhaps prepared."""
        self.topic(type, watching).update(no, where, params, whole, prepared)

    def unsubscribe(self, type: str | None, nos: Iterable[int], watching: bool = False) -> None:
        """Remove subscriptions; those that are gone already do not matter."""
        self.topic(type, watching).unsubscribe(nos)

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
