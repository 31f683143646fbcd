"""Workload P: positions, and people who want those near a place of theirs.

Ours. Positions and places are uniform over eight degrees of latitude and nine of longitude, as
large as a country; a circle has a radius of 500 to 5,000 metres, uniformly. Every subscription has
its place within the term: `distance(lat, lon, 50.12345, 8.54321) < 2500`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType
from tocsin.workloads.base import Ids, text_table
from tocsin.workloads.draws import Units, below
from tocsin_lab.workloads.written import Written

RADIUS = 6_371_008.8
"""Of the Earth, in metres."""
_DIGITS = 5


@dataclass(frozen=True)
class Circles(Written):
    """Circles, and positions in them."""

    south: float = 47.0
    west: float = 6.0
    height: float = 8.0
    width: float = 9.0
    least: int = 500
    most: int = 5_000

    @cached_property
    def event_type(self) -> EventType:
        """A position."""
        return EventType("Position", {"lat": float, "lon": float})

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition that all subscriptions share."""
        return ("distance(lat, lon, :lat, :lon) < :radius",)

    @property
    def _event_draws(self) -> int:
        return 2

    @property
    def _subscription_draws(self) -> int:
        return 3

    def _places(self, units: Units) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        lat = self.south + self.height * units[:, 0]
        lon = self.west + self.width * units[:, 1]
        return np.round(lat, _DIGITS), np.round(lon, _DIGITS)

    def _events(self, units: Units) -> pa.Table:
        lat, lon = self._places(units)
        return pa.table({"lat": lat, "lon": lon})

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        lat, lon = self._places(units)
        radius = self.least + below(units[:, 2], self.most - self.least + 1)
        return pa.table({"id": ids, "lat": lat, "lon": lon, "radius": radius})

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        of = self._params(0, units, ids)
        rows = zip(*(of[name].to_pylist() for name in ("lat", "lon", "radius")), strict=True)
        texts = [f"distance(lat, lon, {a}, {b}) < {c}" for a, b, c in rows]
        return text_table(ids, pa.array(texts, pa.string()))

    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which circles each position is in."""
        [of] = self.subscription_params(n, seed)
        lat, lon = (np.radians(of[name].to_numpy()) for name in ("lat", "lon"))
        matches = []
        for event in events.to_pylist():
            at, by = np.radians(event["lat"]), np.radians(event["lon"])
            square = np.sin((lat - at) / 2) ** 2
            square += np.cos(lat) * np.cos(at) * np.sin((lon - by) / 2) ** 2
            metres = 2 * RADIUS * np.arcsin(np.sqrt(square))
            matches.append(np.flatnonzero(metres < of["radius"].to_numpy()).tolist())
        return matches

    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return the middle of a circle."""
        [of] = self.subscription_params(1, seed, number)[0].to_pylist()
        return event | {"lat": of["lat"], "lon": of["lon"]}
