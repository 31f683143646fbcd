"""M: quotes of firms, and people who watch one firm's price.

Ours, after the stock-trading example that the papers share. A subscription names a firm and a
range of its price; half of them also ask for a volume above some number. Firms are popular by
Zipf's law, with subscribers and publishers alike, so that a quote of the most popular firm matches
several thousand times as many subscriptions as one of the least popular.

Each firm has a price level between 20 and 500, the same for every seed. Quotes are uniform within
`band` (5 %) around the level; a range lies wholly inside that band and its width is uniform up to
`max_width` (2.5 %) of the level. Volumes are hundreds, uniform in their logarithm from 100 to
99,900, in quotes and in conditions. A quote then matches 3,250 of a million subscriptions on
average: a share Σp² = 3.6 % watches the same firm, 12 % of those have a range that holds the
price, and three quarters of those have no condition on the volume or one that holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType
from tocsin.workloads.base import Ids, Workload, row_columns, text_table
from tocsin.workloads.draws import Units, below, by_steps, draw, zipf_steps
from tocsin.workloads.text import StringTable, glue

_LOWEST, _HIGHEST = 20.0, 500.0
_CENTS = 100
_LOT = 100
_N_LOTS = 1000
_ATTRIBUTES = ("firm", "price", "volume")
_PREDICATES = (0, 1, 1, 2)
_OPERATORS = ("=", ">=", "<=", ">")
_PLAIN = "firm = :firm AND price BETWEEN :low AND :high"


class _Drawn(NamedTuple):
    firm: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    lots: NDArray[np.int64]
    has_volume: NDArray[np.bool_]


@dataclass(frozen=True)
class Market(Workload):
    """Prices in cents within a band around each firm's level."""

    n_firms: int = 500
    exponent: float = 1.0
    band: float = 0.05
    max_width: float = 0.025

    @cached_property
    def event_type(self) -> EventType:
        """A quote: firm, price and volume."""
        return EventType("Quote", firm=str, price=float, volume=int)

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition without and with a volume."""
        return (_PLAIN, f"{_PLAIN} AND volume > :volume")

    @cached_property
    def firms(self) -> tuple[str, ...]:
        """The symbols of the firms, the most popular first."""
        return tuple(f"F{i:03d}" for i in range(self.n_firms))

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """The price level of each firm, in cents."""
        share = draw(0, f"{self.name}/levels", 0, self.n_firms, 1)[:, 0]
        levels = _CENTS * _LOWEST * (_HIGHEST / _LOWEST) ** share
        return levels.astype(np.int64)

    @cached_property
    def _popularity(self) -> NDArray[np.float64]:
        return zipf_steps(self.n_firms, self.exponent)

    @cached_property
    def _lots(self) -> NDArray[np.float64]:
        """The cumulative shares of 1, 2, … lots: uniform in the logarithm."""
        logarithms: NDArray[np.float64] = np.log(np.arange(2, _N_LOTS + 1, dtype=np.float64))
        return logarithms / np.float64(np.log(_N_LOTS))

    @property
    def _event_draws(self) -> int:
        return 3

    @property
    def _subscription_draws(self) -> int:
        return 5

    def _events(self, units: Units) -> pa.Table:
        firm = by_steps(units[:, 0], self._popularity)
        level = self.levels[firm]
        half = self._half_band(level)
        price = level - half + below(units[:, 1], 2 * half + 1)
        volume = _LOT * (by_steps(units[:, 2], self._lots) + 1)
        return pa.table({"firm": self._symbols(firm), "price": price / _CENTS, "volume": volume})

    def _half_band(self, level: NDArray[np.int64]) -> NDArray[np.int64]:
        return (level * self.band).astype(np.int64)

    def _symbols(self, firm: NDArray[np.int64]) -> pa.Array:
        return pa.array(self.firms, pa.string()).take(pa.array(firm))

    def _draw(self, units: Units) -> _Drawn:
        firm = by_steps(units[:, 0], self._popularity)
        level = self.levels[firm]
        half = self._half_band(level)
        width = below(units[:, 1], (level * self.max_width).astype(np.int64) + 1)
        low = level - half + below(units[:, 2], 2 * half - width + 1)
        lots = by_steps(units[:, 3], self._lots) + 1
        return _Drawn(firm, low, low + width, lots, units[:, 4] < 0.5)

    @cached_property
    def _openings(self) -> StringTable:
        return StringTable.of([f"firm = '{firm}' AND price BETWEEN " for firm in self.firms])

    @cached_property
    def _wholes(self) -> StringTable:
        return StringTable.of([f"{i}." for i in range(int(_HIGHEST * (1 + self.band)) + 1)])

    @cached_property
    def _hundredths(self) -> StringTable:
        return StringTable.of([f"{i:02d}" for i in range(_CENTS)])

    @cached_property
    def _endings(self) -> StringTable:
        return StringTable.of(["", *(f" AND volume > {_LOT * i}" for i in range(1, _N_LOTS))])

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        texts = glue(
            len(ids),
            [
                (self._openings, drawn.firm),
                (self._wholes, drawn.low // _CENTS),
                (self._hundredths, drawn.low % _CENTS),
                " AND ",
                (self._wholes, drawn.high // _CENTS),
                (self._hundredths, drawn.high % _CENTS),
                (self._endings, np.where(drawn.has_volume, drawn.lots, 0)),
            ],
        )
        return text_table(ids, texts)

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        keep = np.ones((len(ids), len(_PREDICATES)), np.bool_)
        keep[:, 3] = drawn.has_volume
        columns = row_columns(ids, _ATTRIBUTES, np.array(_PREDICATES), _OPERATORS, keep)
        bounds = [drawn.firm, drawn.low / _CENTS, drawn.high / _CENTS, drawn.lots * _LOT]
        values = np.stack(bounds, axis=1, dtype=np.float64)[keep]
        is_text = np.tile([True, False, False, False], (len(ids), 1))[keep]
        firms = pa.array(values.astype(np.int64), mask=~is_text)
        return pa.table(
            {
                **columns,
                "number": pa.array(values, mask=is_text),
                "text": pa.array(self.firms, pa.string()).take(firms),
            }
        )

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        chosen = (units[:, 4] < 0.5) == bool(template)
        drawn = self._draw(units[chosen])
        columns = {
            "id": pa.array(ids[chosen]),
            "firm": self._symbols(drawn.firm),
            "low": pa.array(drawn.low / _CENTS),
            "high": pa.array(drawn.high / _CENTS),
        }
        if template:
            columns["volume"] = pa.array(drawn.lots * _LOT)
        return pa.table(columns)
