"""G: many attributes of few values, some of them far more popular than others.

Aguilera et al., "Matching Events in a Content-Based Subscription System", the simulations in its
last section: equality tests only; the likelihood that a subscription tests an attribute decays
geometrically from one attribute to the next; the values tested follow Zipf's law; events have
every attribute, with uniform values.

Deviations: the numbers (30 attributes of 5 values, the first tested by 98 % of the subscriptions,
a degradation factor of 0.85, exponent 1) are ours, as the text we follow gives none. A subscription
that would test nothing (one in 140,000) tests the first attribute. About 6.5 tests a subscription
are expected, and some 750 matches an event at a million subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType, Kind
from tocsin.workloads.base import Ids, Workload, row_columns, text_table
from tocsin.workloads.draws import Units, below, by_steps, zipf_steps
from tocsin.workloads.text import Choice, StringTable, glue


class _Drawn(NamedTuple):
    tested: NDArray[np.bool_]
    value: NDArray[np.int64]


@dataclass(frozen=True)
class Popularity(Workload):
    """Equalities on attributes that are tested with decaying likelihood."""

    n_attributes: int = 30
    n_values: int = 5
    likelihood: float = 0.98
    degradation: float = 0.85
    exponent: float = 1.0

    @cached_property
    def event_type(self) -> EventType:
        """Integer attributes a0, a1, …"""
        return EventType(self.name, dict.fromkeys(self._names, Kind.INTEGER))

    @cached_property
    def likelihoods(self) -> NDArray[np.float64]:
        """How likely a subscription tests each attribute."""
        return self.likelihood * np.power(self.degradation, np.arange(self.n_attributes))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(f"a{i}" for i in range(self.n_attributes))

    @cached_property
    def _steps(self) -> NDArray[np.float64]:
        return zipf_steps(self.n_values, self.exponent)

    @cached_property
    def _fragments(self) -> tuple[StringTable, ...]:
        """For each attribute: nothing, its tests as the first of a text, its tests further on."""
        values = range(1, self.n_values + 1)
        tests = [[f"{name} = {v}" for v in values] for name in self._names]
        return tuple(StringTable.of(["", *own, *(f" AND {test}" for test in own)]) for own in tests)

    @property
    def _event_draws(self) -> int:
        return self.n_attributes

    @property
    def _subscription_draws(self) -> int:
        return 2 * self.n_attributes

    def _events(self, units: Units) -> pa.Table:
        values = np.ascontiguousarray(below(units, self.n_values).T) + 1
        return pa.table(dict(zip(self._names, values, strict=True)))

    def _draw(self, units: Units) -> _Drawn:
        tested = units[:, : self.n_attributes] < self.likelihoods
        tested[~tested.any(axis=1), 0] = True
        return _Drawn(tested, by_steps(units[:, self.n_attributes :], self._steps) + 1)

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        choices: list[Choice] = []
        started = np.zeros(len(ids), np.bool_)
        for j, fragments in enumerate(self._fragments):
            tested = drawn.tested[:, j]
            test = drawn.value[:, j] + np.where(started, self.n_values, 0)
            choices.append((fragments, np.where(tested, test, 0)))
            started |= tested
        return text_table(ids, glue(len(ids), choices))

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        k = self.n_attributes
        columns = row_columns(ids, self._names, np.arange(k), ("=",) * k, drawn.tested)
        return pa.table({**columns, "value": pa.array(drawn.value[drawn.tested])})
