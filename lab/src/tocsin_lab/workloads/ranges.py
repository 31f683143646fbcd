"""T and TW: real attributes in [0, 1] and ranges of one width.

T is after Zhao and Wu, "Towards Approximate Event Processing in a Large-Scale Content-Based
Network" (TAMA), section V, table I and figure 6: 1,000 attributes, 10 ranges of width 0.01 in a
subscription, 100 attributes in an event, uniform values. An event practically never matches (the
chance is 10^-30): T measures how fast a matcher gets rid of subscriptions. TW is ours and the
opposite: 20 attributes, all of them in every event, 5 ranges of width 0.3, so that one subscription
in 412 (0.3^5) matches, about 2,430 of a million.

Deviations: values and bounds lie on a grid of a millionth, so that texts are short, events hit
bounds exactly now and then, and a text and a row hold the same double. A range lies wholly inside
[0, 1]. In T the ranges of a subscription stand in the order in which they were drawn, which makes
every text a shape of its own; in TW they are `ascending` (15,504 shapes).
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

_GRID = 1_000_000
_THOUSAND = 1000


class _Drawn(NamedTuple):
    attribute: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


@dataclass(frozen=True)
class Ranges(Workload):
    """Closed ranges of one width on distinct attributes."""

    n_attributes: int = 1000
    n_present: int = 100
    n_ranges: int = 10
    width: float = 0.01
    ascending: bool = False

    @cached_property
    def event_type(self) -> EventType:
        """Float attributes a0, a1, …"""
        return EventType(self.name, dict.fromkeys(self._names, Kind.FLOAT))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(f"a{i}" for i in range(self.n_attributes))

    @cached_property
    def _openings(self) -> StringTable:
        return StringTable.of([f"{name} BETWEEN " for name in self._names])

    @cached_property
    def _thousandths(self) -> StringTable:
        return StringTable.of([f"{i / _THOUSAND:.3f}" for i in range(_THOUSAND + 1)])

    @cached_property
    def _millionths(self) -> StringTable:
        return StringTable.of([f"{i:03d}" for i in range(_THOUSAND)])

    @property
    def _event_draws(self) -> int:
        return self.n_present if self.n_present == self.n_attributes else 2 * self.n_present

    @property
    def _subscription_draws(self) -> int:
        return 2 * self.n_ranges

    def _events(self, units: Units) -> pa.Table:
        drawn = below(units[:, : self.n_present], _GRID + 1) / _GRID
        if self.n_present == self.n_attributes:
            columns = np.ascontiguousarray(drawn.T)
            return pa.table(dict(zip(self._names, columns, strict=True)))
        present = distinct(units[:, self.n_present :], self.n_attributes)
        rows = np.arange(len(units))[:, None]
        values = np.zeros((self.n_attributes, len(units)))
        values[present, rows] = drawn
        absent = np.ones(values.shape, np.bool_)
        absent[present, rows] = False
        arrays = [pa.array(v, mask=a) for v, a in zip(values, absent, strict=True)]
        return pa.table(arrays, names=list(self._names))

    def _draw(self, units: Units) -> _Drawn:
        attribute = distinct(units[:, : self.n_ranges], self.n_attributes)
        if self.ascending:
            attribute.sort(axis=1)
        width = round(self.width * _GRID)
        low = below(units[:, self.n_ranges :], _GRID - width + 1)
        return _Drawn(attribute, low, low + width)

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        choices: list[Choice] = []
        for j in range(self.n_ranges):
            choices += [" AND "] if j else []
            choices.append((self._openings, drawn.attribute[:, j]))
            choices += [*self._decimal(drawn.low[:, j]), " AND ", *self._decimal(drawn.high[:, j])]
        return text_table(ids, glue(len(ids), choices))

    def _decimal(self, grid: NDArray[np.int64]) -> list[Choice]:
        return [(self._thousandths, grid // _THOUSAND), (self._millionths, grid % _THOUSAND)]

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        attribute = np.repeat(drawn.attribute, 2, axis=1)
        columns = row_columns(ids, self._names, attribute, (">=", "<=") * self.n_ranges)
        # A quotient of two integers is rounded as the decimal text of it is.
        bounds = np.stack([drawn.low, drawn.high], axis=2).ravel() / _GRID
        return pa.table({**columns, "value": pa.array(bounds)})
