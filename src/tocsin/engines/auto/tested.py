"""Subscriptions with rare terms: an index of what their tests imply, and the tests.

Enters: a conjunction table, whose subscriptions have terms with constants of their own. Leaves: a
`TestedIndex`: a segment of all other conditions and of what the tests imply, such as the box of a
circle; what it finds is tested. A column for each of the terms would cost every event every
subscription.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.content import from_table
from tocsin.engines.auto.residual import Residuals, marked
from tocsin.engines.auto.segment import Segment
from tocsin.engines.conditions import IndexedConditions, conditions_of
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable, take, without_conditions
from tocsin.normalize.unindexed import unindexed_conjunctions


class TestedIndex:
    """The index of some subscriptions; immutable. `ids` are dense ids by conjunction, ascending."""

    __test__ = False
    """It is no test of pytest's."""

    def __init__(
        self, table: ConjunctionTable, sample: EventBatch | None, pool: BufferPool | None
    ) -> None:
        self.table = table
        self._tested = tested = marked(table)
        tests = Residuals(table, tested)
        narrowed, can_hold = tests.narrowed(without_conditions(table, tested))
        if not can_hold.all():
            rows = np.flatnonzero(can_hold)
            narrowed, possible = take(narrowed, rows), take(table, rows)
            tests = Residuals(possible, tested[_conditions(table, can_hold)])
        self.tests = tests
        self._pool = pool
        self.segment = Segment.build(from_table(narrowed), sample, pool=pool)
        self.ids = self.segment.ids
        self.space = self.segment.space
        self.has_siblings = self.segment.has_siblings
        self.n_subscriptions = self.segment.n_subscriptions
        self._is_unbound = np.diff(narrowed.condition_start) == 0
        self._is_unbound |= unindexed_conjunctions(narrowed)
        self.n_unindexed = int(np.count_nonzero(self._is_unbound))

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the conjunctions that each event satisfies."""
        rows = self.segment.match(PreparedBatch(events, self.space, self._pool))
        return self.tests.keep(events, rows)

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        numbers = self.tests.keep_one(event, self.segment.numbers_of(event))
        ids: NDArray[np.int32] = self.ids[numbers]
        return ids

    def explain(self, dense: int) -> list[str]:
        """Say under which key each conjunction of a subscription is, and what is tested."""
        lines = []
        for conjunction in np.flatnonzero(self.ids == dense).tolist():
            key = self.segment.explain_conjunction(conjunction)
            if self._is_unbound[conjunction]:
                key = "checked on every event"
            tests = self.tests.explain(conjunction)
            lines.append(f"{key}, then tested: {' AND '.join(tests)}" if tests else key)
        return lines

    def describe(self, sample: EventBatch | None) -> list[str]:
        """List the access tables, and what is tested on how many pairs."""
        lines = [report.text(self.space.attributes) for report in self.segment.describe(sample)]
        return lines + self.tests.describe()

    def conditions(self) -> list[IndexedConditions]:
        """Return the conditions that subscriptions have, tests apart."""
        others = without_conditions(self.table, self._tested)
        return [conditions_of(others), self.tests.conditions(self.ids)]

    @property
    def nbytes(self) -> int:
        """The bytes of the index."""
        return int(self.segment.nbytes + self.table.nbytes + self.tests.nbytes)


def _conditions(table: ConjunctionTable, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which conditions are those of some conjunctions."""
    return np.repeat(kept, np.diff(table.condition_start))
