"""Parametric updates: new values of parameters → the bounds that they move.

Enters: ids of subscriptions, and new values of some of their parameters. Leaves: the same matcher,
in which those subscriptions have their new bounds. Follows Jayaram et al. (Beretta), section 5.4:
an update names the constraints whose bounds change, and the rest of the condition is not read.

Bounds are moved where a condition is a conjunction of predicates on distinct attributes, and the
parameters are operands of `=`, `<`, `<=`, `>`, `>=` or BETWEEN on numbers or timestamps. Other
updates go through `Matcher.update`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tocsin.arguments import to_params
from tocsin.catalog.sources import OneSource, to_expression
from tocsin.errors import ArgumentError, SubscriptionError
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Expression,
    Predicate,
    parameter_names,
)
from tocsin.matcher import Matcher
from tocsin.model import EventType, SubscriptionId, check_id
from tocsin.normalize import bind
from tocsin.normalize.condition import check_kind, condition_of
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import flatten_cut
from tocsin_lab.engines.fastint import FastintEngine, Move

_MAX_PLANS = 1024
_MOVABLE = (Domain.NUMBER, Domain.TIMESTAMP)

_Plan = tuple[tuple[Predicate, tuple[str, ...]], ...] | None
"""The predicates that parameters are operands of, each with all of its parameters."""


class ParametricUpdates:
    """Updates of the subscriptions of a matcher by FASTINT's own interface.

    For one thread, while no other uses the matcher.
    """

    def __init__(self, matcher: Matcher) -> None:
        """Raises ArgumentError for a matcher with another engine."""
        if not isinstance(matcher.index, FastintEngine):
            raise ArgumentError(f"bounds are moved by the engine fastint, not by {matcher.engine}")
        self._matcher = matcher
        self._plans: dict[tuple[int | str, tuple[str, ...]], tuple[object, _Plan]] = {}

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
        moves = []
        for predicate, names in plan:
            move = _move_of(predicate, {n: merged[n] for n in names}, self._matcher.event_type)
            if move is None:
                return False
            moves.append(move)
        if not engine.move(old, catalog.next_dense, moves):
            return False
        catalog.remove(np.array([old]))
        catalog.add(id, OneSource(source.where, merged))
        return True

    def _plan(self, where: str | Expression, names: tuple[str, ...]) -> _Plan:
        key = (where if isinstance(where, str) else id(where), names)
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            # The expression is kept, so that no other one gets its identity.
            known = self._plans[key] = where, _plan_of(to_expression(where), names)
        return known[1]


def _plan_of(expression: Expression, names: tuple[str, ...]) -> _Plan:
    parts = expression.operands if isinstance(expression, And) else (expression,)
    predicates = [part for part in parts if isinstance(part, Predicate)]
    n_attributes = len({predicate.attribute for predicate in predicates})
    if not len(parts) == len(predicates) == n_attributes:
        return None
    touched = [
        (predicate, tuple(parameter_names(predicate)))
        for predicate in predicates
        if not set(names).isdisjoint(parameter_names(predicate))
    ]
    if not all(_is_interval(predicate) for predicate, _ in touched):
        return None
    used = {name for _, own in touched for name in own}
    return tuple(touched) if used.issuperset(names) else None


def _is_interval(predicate: Predicate) -> bool:
    if isinstance(predicate, Comparison):
        return predicate.op != "<>"
    return isinstance(predicate, Between) and not predicate.negated


def _move_of(
    predicate: Predicate, params: Mapping[str, object], event_type: EventType | None
) -> Move | None:
    """Return the bounds that a predicate has now; None where they are not those of one interval."""
    name = predicate.attribute
    declared = None if event_type is None else event_type.kind_of(name)
    try:
        bound = bind(predicate, params)
        assert isinstance(bound, Comparison | Between)
        if declared is not None:
            check_kind(bound, declared)
    except SubscriptionError:
        return None  # which is raised where the condition is brought into normal form
    condition = condition_of(bound, False, declared)
    for domain in _MOVABLE:
        pieces = condition.intervals[domain]
        if len(pieces) == 1 and not condition.other:
            low, high = (flatten_cut(domain, cut, _no_rank) for cut in pieces[0])
            return Move(name, domain, low, high)
    return None


def _no_rank(text: str) -> int:
    raise AssertionError(f"{text!r} is no number")
