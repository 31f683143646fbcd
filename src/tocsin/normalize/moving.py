"""Parametric updates: new values of parameters → the bounds that they move.

Enters: a condition with parameters, and values for them, some of them new. Leaves: for each
attribute that the new ones touch its one interval, as flat cuts; or None, where an update is more
than that and the condition is to be brought into normal form again. Follows Jayaram et al.
(Beretta), section 5.4: an update names the constraints whose bounds change, and nothing else.

Bounds can be moved where a condition is a conjunction of predicates on distinct attributes, and
what is touched compares a number or a moment by `=`, `<`, `<=`, `>`, `>=` or BETWEEN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import NamedTuple

from tocsin.errors import KindClashError, ParameterError
from tocsin.language import parse
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Expression,
    Literal,
    Operand,
    Parameter,
    Predicate,
    map_operands,
    operands,
)
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind
from tocsin.normalize.bind import to_literal
from tocsin.normalize.condition import check_kind, condition_of
from tocsin.normalize.domains import Line
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, flatten_cut, key_of_number

_MOST = 1024
_MOVABLE = (Line.NUMBER, Line.TIMESTAMP)
_Plan = tuple[list[Predicate], bool]


class Move(NamedTuple):
    """The interval that a subscription asks of an attribute from now on: keys and tails."""

    attribute: str
    line: Line
    low: tuple[int, int]
    high: tuple[int, int]


class Moves:
    """Finds the bounds that updates move; what it learned of a condition it keeps for a while."""

    def __init__(self, event_type: EventType | None) -> None:
        self._type = event_type
        self._known: dict[tuple[str | int, tuple[str, ...]], tuple[object, _Plan | None]] = {}

    def of(
        self,
        where: str | Expression,
        new: Mapping[str, object],
        old: Callable[[], Mapping[str, object]],
    ) -> list[Move] | None:
        """Return the moves that new values of some parameters make; `old` gives what all were."""
        plan = self._plan(where, tuple(new))
        if plan is None:
            return None
        predicates, beside = plan
        params = {**old(), **new} if beside else new
        found = []
        for predicate in predicates:
            move = self._moved(predicate, params)
            if move is None:
                return None
            found.append(move)
        return found

    def knows(self, where: str | Expression, names: Iterable[str]) -> bool:
        """Whether `of` has looked at a condition before, so that it need not parse it."""
        return _key(where, names) in self._known

    def learn(self, where: str | Expression, names: Iterable[str]) -> None:
        """Look at a condition, so that `of` need not parse it."""
        self._plan(where, tuple(names))

    def _plan(self, where: str | Expression, names: tuple[str, ...]) -> _Plan | None:
        """Return the predicates that some parameters touch, and whether these need others."""
        asked = _key(where, names)
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            expression = parse(where) if isinstance(where, str) else where
            known = self._known[asked] = where, _plan_of(expression, names)
        return known[1]

    def _moved(self, predicate: Predicate, params: Mapping[str, object]) -> Move | None:
        name, event_type = predicate.attribute, self._type
        declared = None if event_type is None else event_type.kind_of(name)
        if declared is None or declared in (Kind.FLOAT, Kind.INTEGER):
            move = _number_move(predicate, params, declared is Kind.INTEGER)
            if move is not None:
                return move

        def fill(operand: Operand) -> Operand:
            if isinstance(operand, Parameter):
                return to_literal(params[str(operand.name)], str(operand.name))
            return operand

        try:
            bound = map_operands(predicate, fill)
            assert isinstance(bound, Comparison | Between)
            if declared is not None:
                check_kind(bound, declared)
        except (KindClashError, ParameterError):
            return None  # which is told where the condition is brought into normal form
        condition = condition_of(bound, False, declared)
        for line in _MOVABLE:
            pieces = condition.lines[line]
            if len(pieces) == 1 and not condition.other:
                low, high = (flatten_cut(line, cut, _no_rank) for cut in pieces[0])
                return Move(name, line, low, high)
        return None


def _key(where: str | Expression, names: Iterable[str]) -> tuple[str | int, tuple[str, ...]]:
    return (where if isinstance(where, str) else id(where), tuple(names))


def _number_move(predicate: Predicate, params: Mapping[str, object], is_whole: bool) -> Move | None:
    """Return what most updates are, a comparison with numbers, without going by way of conditions.

    None says that it is to be looked at more closely. Of a whole attribute, the integers in an
    interval are what counts, and its ends lie before integers.
    """
    values = []
    for operand in operands(predicate):
        value = operand.value if isinstance(operand, Literal) else params[str(operand.name)]
        if type(value) is float:
            if is_whole or not isfinite(value):
                return None
        elif type(value) is not int or not INT64_MIN < value < INT64_MAX:
            return None
        values.append(value)
    low, high = LOW_CUT, HIGH_CUT
    op = predicate.op if isinstance(predicate, Comparison) else "between"
    if op in (">", ">=", "=", "between"):
        low = _cut(values[0], op == ">", is_whole)
    if op in ("<", "<=", "=", "between"):
        high = _cut(values[-1], op != "<", is_whole)
    return Move(predicate.attribute, Line.NUMBER, low, high) if low < high else None


def _cut(value: int | float, is_after: bool, is_whole: bool) -> tuple[int, int]:
    """Return the flat cut before or after a number."""
    if is_after and is_whole:
        return key_of_number(value + 1)
    key, tail = key_of_number(value)
    return key, tail + is_after


def _no_rank(text: str) -> int:
    raise AssertionError(f"{text!r} is no number")


def _plan_of(expression: Expression, names: tuple[str, ...]) -> _Plan | None:
    parts = expression.operands if isinstance(expression, And) else (expression,)
    conjoined = [part for part in parts if isinstance(part, Predicate)]
    attributes = {predicate.attribute for predicate in conjoined}
    if not len(parts) == len(conjoined) == len(attributes):
        return None
    touched: list[Predicate] = []
    used: set[str] = set()
    for predicate in conjoined:
        own = {str(o.name) for o in operands(predicate) if isinstance(o, Parameter)}
        if own.isdisjoint(names):
            continue
        if not _is_plain(predicate):
            return None
        touched.append(predicate)
        used |= own
    return (touched, not used <= {*names}) if used >= {*names} else None


def _is_plain(predicate: Predicate) -> bool:
    if isinstance(predicate, Comparison):
        return predicate.op != "<>"
    return isinstance(predicate, Between) and not predicate.negated
