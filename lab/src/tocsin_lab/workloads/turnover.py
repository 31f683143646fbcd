"""Workloads C and CA: quotes, and people who watch the turnover of one firm.

Ours, after M: the firms, their popularity, price levels and volumes are those of the market. A
subscription of C names a firm in lower case and a range of `price * volume`; its width is 5 % of
its lower end. CA has the same subscriptions on two attributes that events have besides, `symbol`
and `turnover`, so that the cost of computing shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.model import EventType
from tocsin.workloads import Market
from tocsin.workloads.base import Ids, text_table
from tocsin.workloads.draws import Units
from tocsin.workloads.text import Choice, StringTable, glue
from tocsin_lab.workloads.written import Written

_WIDTH = 20
_THOUSAND = 1000


class Watched(NamedTuple):
    """Subscriptions: the number of the firm, and the range of the turnover."""

    firm: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


@dataclass(frozen=True)
class Turnover(Written):
    """Conditions on the firm in lower case and on price times volume."""

    is_computed: bool = True

    @cached_property
    def market(self) -> Market:
        """Where quotes come from."""
        return Market("C")

    @cached_property
    def event_type(self) -> EventType:
        """A quote, with what C computes."""
        return EventType(
            "Quote",
            {"firm": str, "price": float, "volume": int, "symbol": str, "turnover": float},
        )

    @property
    def terms(self) -> tuple[str, str]:
        """What the subscriptions are about."""
        return ("lower(firm)", "price * volume") if self.is_computed else ("symbol", "turnover")

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition that all subscriptions share."""
        symbol, turnover = self.terms
        return (f"{symbol} = :symbol AND {turnover} BETWEEN :low AND :high",)

    @property
    def _event_draws(self) -> int:
        return self.market._event_draws

    @property
    def _subscription_draws(self) -> int:
        return self.market._event_draws

    def _events(self, units: Units) -> pa.Table:
        quotes = self.market._events(units)
        turnover = pc.multiply(quotes["price"], pc.cast(quotes["volume"], pa.float64()))
        symbol = pc.utf8_lower(quotes["firm"])
        return quotes.append_column("symbol", symbol).append_column("turnover", turnover)

    def watched(self, units: Units) -> Watched:
        """Return subscriptions: the turnover of a quote is the lower end of the range."""
        quotes = self.market._events(units)
        firm = pc.index_in(quotes["firm"], pa.array(self.market.firms)).to_numpy()
        low = (quotes["price"].to_numpy() * quotes["volume"].to_numpy()).astype(np.int64)
        return Watched(firm.astype(np.int64), low, low + low // _WIDTH)

    @cached_property
    def _openings(self) -> StringTable:
        symbol, turnover = self.terms
        return StringTable.of(
            [f"{symbol} = '{firm.lower()}' AND {turnover} BETWEEN " for firm in self.market.firms]
        )

    @cached_property
    def _leading(self) -> StringTable:
        return StringTable.of([str(i) if i else "" for i in range(100_000)])

    @cached_property
    def _trailing(self) -> StringTable:
        return StringTable.of(
            [str(i) for i in range(_THOUSAND)] + [f"{i:03d}" for i in range(_THOUSAND)]
        )

    def _number(self, number: NDArray[np.int64]) -> list[tuple[StringTable, NDArray[np.int64]]]:
        first, last = number // _THOUSAND, number % _THOUSAND
        return [(self._leading, first), (self._trailing, last + _THOUSAND * (first > 0))]

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        of = self.watched(units)
        numbers: list[Choice] = [*self._number(of.low), " AND ", *self._number(of.high)]
        return text_table(ids, glue(len(ids), [(self._openings, of.firm), *numbers]))

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        of = self.watched(units)
        symbols = pa.array([firm.lower() for firm in self.market.firms])
        return pa.table(
            {"id": ids, "symbol": symbols.take(pa.array(of.firm)), "low": of.low, "high": of.high}
        )

    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which subscriptions each event matches."""
        [of] = self.subscription_params(n, seed)
        symbols, low, high = (of[name].to_numpy() for name in ("symbol", "low", "high"))
        matches = []
        for event in events.to_pylist():
            turnover = event["price"] * event["volume"]
            fits = (symbols == event["firm"].lower()) & (low <= turnover) & (turnover <= high)
            matches.append(np.flatnonzero(fits).tolist())
        return matches

    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return a quote of the firm, one share for the lowest turnover."""
        [of] = self.subscription_params(1, seed, number)[0].to_pylist()
        low = float(of["low"])
        made = {"firm": of["symbol"].upper(), "symbol": of["symbol"], "turnover": low}
        return event | made | {"price": low, "volume": 1}
