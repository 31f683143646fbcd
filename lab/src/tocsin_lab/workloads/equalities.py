"""W0, W1 and W2: integer attributes, mostly equalities, some of them on fixed attributes.

Fabret et al., "Filtering Algorithms and Implementation for Very Fast Publish/Subscribe Systems",
section 6.1 and table 1 (the generator), section 6.2.1 (W0, W1, W2). There are n_t attribute names;
a subscription has predicates on fixed names and on freely chosen other names; values of events and
predicates are uniform over the same interval of integers; an event has every attribute.

Glossary: n_t = `n_attributes`; n_P fixed with =, <, > = `equal`, `less`, `greater`; the rest of
n_P = `n_free`; l = 1 and u = `n_values`.

Deviations: none in the distributions. The paper does not say in which order a subscription lists
its predicates: here the fixed ones come first and the free ones follow in random order, so that
W0 texts have 30 · 29 · 28 = 24,360 shapes.
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
from tocsin.workloads.draws import Units, below, distinct
from tocsin.workloads.text import Choice, StringTable, glue


class _Drawn(NamedTuple):
    attribute: NDArray[np.int64]
    value: NDArray[np.int64]


@dataclass(frozen=True)
class Equalities(Workload):
    """Predicates on fixed attributes, and equalities on freely chosen ones.

    `free` holds the attributes to choose from; None means all that are not fixed.
    """

    n_attributes: int = 32
    n_values: int = 35
    equal: tuple[int, ...] = (0, 1)
    less: tuple[int, ...] = ()
    greater: tuple[int, ...] = ()
    n_free: int = 3
    free: tuple[int, ...] | None = None

    @cached_property
    def event_type(self) -> EventType:
        """Integer attributes a0, a1, …"""
        return EventType(self.name, dict.fromkeys(self._names, Kind.INTEGER))

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators of a subscription's predicates, in their order."""
        fixed = "=" * len(self.equal) + "<" * len(self.less) + ">" * len(self.greater)
        return (*fixed, *"=" * self.n_free)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(f"a{i}" for i in range(self.n_attributes))

    @cached_property
    def _fixed(self) -> tuple[int, ...]:
        return (*self.equal, *self.less, *self.greater)

    @cached_property
    def _free(self) -> NDArray[np.int64]:
        others = sorted(set(range(self.n_attributes)) - set(self._fixed))
        return np.array(others if self.free is None else self.free, np.int64)

    @cached_property
    def _fragments(self) -> dict[str, StringTable]:
        return {
            op: StringTable.of(
                [f"{name} {op} {v}" for name in self._names for v in range(1, self.n_values + 1)]
            )
            for op in set(self.operators)
        }

    @property
    def _event_draws(self) -> int:
        return self.n_attributes

    @property
    def _subscription_draws(self) -> int:
        return len(self.operators) + self.n_free

    def _events(self, units: Units) -> pa.Table:
        values = np.ascontiguousarray(below(units, self.n_values).T) + 1
        return pa.table(dict(zip(self._names, values, strict=True)))

    def _draw(self, units: Units) -> _Drawn:
        k = len(self.operators)
        attribute = np.empty((len(units), k), np.int64)
        attribute[:, : len(self._fixed)] = self._fixed
        chosen = distinct(units[:, k:], len(self._free))
        attribute[:, len(self._fixed) :] = self._free[chosen]
        return _Drawn(attribute, below(units[:, :k], self.n_values) + 1)

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        fragment = drawn.attribute * self.n_values + drawn.value - 1
        choices: list[Choice] = []
        for j, op in enumerate(self.operators):
            choices += [" AND "] if j else []
            choices.append((self._fragments[op], fragment[:, j]))
        return text_table(ids, glue(len(ids), choices))

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        columns = row_columns(ids, self._names, drawn.attribute, self.operators)
        return pa.table({**columns, "value": pa.array(drawn.value.ravel())})
