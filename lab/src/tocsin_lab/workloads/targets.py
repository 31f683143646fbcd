"""Workload R: quotes, and people who want to know when a price is near a target of theirs.

Ours, after M: the firms, their popularity and price levels are those of the market. A target is the
price of a quote, and near is within 0.02 % of it, to the cent. Every subscription has its target
within the term: `firm = 'F012' AND abs(price - 101.25) < 0.02`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.model import EventType
from tocsin.workloads import Market
from tocsin.workloads.base import Ids, text_table
from tocsin.workloads.draws import Units
from tocsin_lab.workloads.written import Written

_SHARE = 0.0002
_CENT = 0.01


@dataclass(frozen=True)
class Targets(Written):
    """Prices near targets."""

    @cached_property
    def market(self) -> Market:
        """Where quotes come from."""
        return Market("R")

    @cached_property
    def event_type(self) -> EventType:
        """A quote."""
        return self.market.event_type

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition that all subscriptions share."""
        return ("firm = :firm AND abs(price - :target) < :within",)

    @property
    def _event_draws(self) -> int:
        return self.market._event_draws

    @property
    def _subscription_draws(self) -> int:
        return self.market._event_draws

    def _events(self, units: Units) -> pa.Table:
        return self.market._events(units)

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        quotes = self.market._events(units)
        target = quotes["price"].to_numpy().astype(np.float64)
        within = np.maximum(np.round(_SHARE * target, 2), _CENT)
        return pa.table({"id": ids, "firm": quotes["firm"], "target": target, "within": within})

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        of = self._params(0, units, ids)
        rows = zip(*(of[name].to_pylist() for name in ("firm", "target", "within")), strict=True)
        texts = [f"firm = '{a}' AND abs(price - {b}) < {c}" for a, b, c in rows]
        return text_table(ids, pa.array(texts, pa.string()))

    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which targets each quote is near."""
        [of] = self.subscription_params(n, seed)
        firm = of["firm"].to_numpy(zero_copy_only=False)
        target, within = of["target"].to_numpy(), of["within"].to_numpy()
        return [
            np.flatnonzero(
                (firm == event["firm"]) & (np.abs(event["price"] - target) < within)
            ).tolist()
            for event in events.to_pylist()
        ]

    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return a quote at the target."""
        [of] = self.subscription_params(1, seed, number)[0].to_pylist()
        return event | {"firm": of["firm"], "price": of["target"]}
