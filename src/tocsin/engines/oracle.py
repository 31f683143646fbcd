"""The oracle: evaluates every subscription's expression on every event.

Enters and leaves: see `protocol`. Slow and obvious; it uses neither normal forms nor cells, so that
the other engines can be held against it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines.protocol import Engine, Expressions
from tocsin.engines.ragged import RaggedIds
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import Expression
from tocsin.normalize.table import ConjunctionTable


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
        return [
            dense
            for dense in self._expressions
            if evaluate(self._expression(dense), lambda name: read_value(event, name)) is True
        ]

    def _expression(self, dense: int) -> Expression:
        expression = self._expressions[dense]
        if expression is None:
            expression = self._expressions[dense] = self._source.expression(dense)
        return expression

    def explain(self, dense: int) -> str:
        """Say how a subscription is found."""
        return "evaluated on every event"

    def describe(self) -> str:
        """Say that there is no index."""
        return "no index: every subscription is evaluated on every event"
