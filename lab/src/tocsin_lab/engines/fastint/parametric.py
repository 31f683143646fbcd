"""Parametric updates: new values of parameters → the bounds that they move.

Enters: ids of subscriptions, and new values of some of their parameters. Leaves: the same matcher,
in which those subscriptions have their new bounds. Follows Jayaram et al. (Beretta), section 5.4:
an update names the constraints whose bounds change, and the rest of the condition is not read.

Bounds are moved where a condition is a conjunction of predicates on distinct attributes, and the
parameters are numbers that `=`, `<`, `<=`, `>`, `>=` or BETWEEN compares with. Other updates go
through `Matcher.update`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TypeAlias, TypeGuard

import numpy as np

from tocsin.arguments import to_params
from tocsin.catalog.sources import OneSource, to_expression
from tocsin.errors import ArgumentError
from tocsin.language.computed import parameter_names
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Expression,
    Literal,
    Predicate,
    operands,
)
from tocsin.matcher import Matcher
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind, SubscriptionId, check_id
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, key_of_number
from tocsin_lab.engines.fastint import FastintEngine, Move

_MAX_PLANS = 1024
Interval: TypeAlias = Comparison | Between
Plan: TypeAlias = tuple[Interval, ...] | None
"""The predicates that some parameters are operands of."""


class ParametricUpdates:
    """Updates of the subscriptions of a matcher by FASTINT's own interface.

    For one thread, while no other uses the matcher.
    """

    def __init__(self, matcher: Matcher) -> None:
        """Raises ArgumentError for a matcher with another engine."""
        if not isinstance(matcher.index, FastintEngine):
            raise ArgumentError(f"bounds are moved by the engine fastint, not by {matcher.engine}")
        self._matcher = matcher
        self._plans: dict[tuple[int | str, tuple[str, ...]], tuple[object, Plan]] = {}

    def update(self, id: SubscriptionId, params: Mapping[str, object]) -> None:
        """Change values of parameters, as `Matcher.update(id, params=params)` does.

        Raises what that raises.
        """
        values = to_params(params)
        if not self._move(check_id(id), values):
            self._matcher.update(id, params=values)

    def _move(self, id: SubscriptionId, params: Mapping[str, object]) -> bool:
        """Move bounds in place; False, and nothing is changed, where that is not possible."""
        catalog, engine = self._matcher.catalog, self._matcher.index
        assert isinstance(engine, FastintEngine)
        old = catalog.dense(id)
        if old is None or catalog.has_expiries or not catalog.has_room(1):
            return False
        source = catalog.source(old)
        plan = self._plan(source.where, tuple(params))
        if plan is None:
            return False
        merged = {**source.params, **params}
        moves = moves_of(plan, merged, self._matcher.event_type)
        if moves is None or not engine.move(old, catalog.next_dense, moves):
            return False
        catalog.remove(np.array([old]))
        catalog.add(id, OneSource(source.where, merged))
        return True

    def _plan(self, where: str | Expression, names: tuple[str, ...]) -> Plan:
        key = (where if isinstance(where, str) else id(where), names)
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            # The expression is kept, so that no other one gets its identity.
            known = self._plans[key] = where, plan_of(to_expression(where), names)
        return known[1]


def plan_of(expression: Expression, names: tuple[str, ...]) -> Plan:
    """Return the predicates whose bounds some parameters are; None where these cannot be moved."""
    parts = expression.operands if isinstance(expression, And) else (expression,)
    predicates = [part for part in parts if isinstance(part, Predicate)]
    n_attributes = len({predicate.attribute for predicate in predicates})
    if not len(parts) == len(predicates) == n_attributes:
        return None
    touched = [p for p in predicates if not set(names).isdisjoint(parameter_names(p))]
    used = {name for predicate in touched for name in parameter_names(predicate)}
    intervals = tuple(predicate for predicate in touched if _is_interval(predicate))
    return intervals if len(intervals) == len(touched) and used.issuperset(names) else None


def _is_interval(predicate: Predicate) -> TypeGuard[Interval]:
    if isinstance(predicate, Comparison):
        return predicate.op != "<>"
    return isinstance(predicate, Between) and not predicate.negated


def moves_of(
    plan: Sequence[Interval], params: Mapping[str, object], event_type: EventType | None
) -> list[Move] | None:
    """Return the bounds that the predicates of a plan have now; None where one cannot be moved."""
    moves = []
    for predicate in plan:
        move = _move_of(predicate, params, event_type)
        if move is None:
            return None
        moves.append(move)
    return moves


def _move_of(
    predicate: Interval, params: Mapping[str, object], event_type: EventType | None
) -> Move | None:
    """Return the bounds that a predicate has now; None where they are not of numbers, or no value.

    Of an attribute declared integer, the ends of an interval lie before integers.
    """
    declared = None if event_type is None else event_type.kind_of(predicate.attribute)
    if declared not in (None, Kind.INTEGER, Kind.FLOAT):
        return None
    is_integer = declared is Kind.INTEGER
    values: list[int | float] = []
    for operand in operands(predicate):
        value = operand.value if isinstance(operand, Literal) else params[str(operand.name)]
        if type(value) is float:
            if is_integer or not isfinite(value):
                return None
        elif type(value) is not int or not INT64_MIN < value < INT64_MAX:
            return None
        values.append(value)
    op = predicate.op if isinstance(predicate, Comparison) else "BETWEEN"
    low, high = LOW_CUT, HIGH_CUT
    if op not in ("<", "<="):
        low = _cut(values[0], op == ">", is_integer)
    if op not in (">", ">="):
        high = _cut(values[-1], op != "<", is_integer)
    return Move(predicate.attribute, Domain.NUMBER, low, high) if low < high else None


def _cut(value: int | float, is_after: bool, is_integer: bool) -> tuple[int, int]:
    """Return the flat cut before or after a number."""
    if is_after and is_integer:
        return key_of_number(value + 1)
    key, offset = key_of_number(value)
    return key, offset + is_after
