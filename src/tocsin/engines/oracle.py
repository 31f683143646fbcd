"""The oracle: evaluates every subscription's expression on every event.

Enters and leaves: see `protocol`. Slow and obvious; it uses neither normal forms nor cells, so that
the other engines can be held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines.protocol import Engine, Expressions
from tocsin.engines.ragged import RaggedIds
from tocsin.language.computed import canonical, negate
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import Distinct, Expression, Predicate, Truth, map_predicates
from tocsin.language.names import is_elements
from tocsin.language.printer import name_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call
from tocsin.normalize.table import ConjunctionTable


def _computed(predicate: Predicate) -> Expression:
    """Write IS DISTINCT FROM as a computed value, which says whether a text is a timestamp in it.

    Other predicates are unknown of a text that is read as a timestamp though it should not be.
    """
    if not isinstance(predicate, Distinct) or is_elements(predicate.attribute):
        return predicate
    arguments = (term_of(predicate.attribute), predicate.operand)
    name = name_of(canonical(Call("is distinct from", arguments)))
    return negate(Truth(name), predicate.negated)


class OracleEngine(Engine):
    """Keeps expressions by dense id."""

    def __init__(self, expressions: Expressions) -> None:
        self._source = expressions
        self._expressions: dict[int, Expression | None] = {}

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions; their expressions are looked up when they are first needed."""
        self._expressions.update(dict.fromkeys(ids.tolist()))

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Remove subscriptions."""
        for dense in ids.tolist():
            del self._expressions[dense]

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Evaluate every expression on every event."""
        offsets = np.zeros(len(events) + 1, np.int64)
        ids: list[int] = []
        for row, event in enumerate(events.events()):
            ids.extend(self.match_one(event))
            offsets[row + 1] = len(ids)
        return RaggedIds(offsets, np.array(ids, np.int32))

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Evaluate every expression on one event."""
        value_of = partial(read_value, event)
        return [
            dense
            for dense in self._expressions
            if evaluate(self._expression(dense), value_of, value_of) is True
        ]

    def _expression(self, dense: int) -> Expression:
        expression = self._expressions[dense]
        if expression is None:
            expression = map_predicates(self._source.expression(dense), _computed)
            self._expressions[dense] = expression
        return expression

    def explain(self, dense: int) -> str:
        """Say how a subscription is found."""
        return "evaluated on every event"

    def describe(self) -> str:
        """Say that there is no index."""
        return "no index: every subscription is evaluated on every event"
