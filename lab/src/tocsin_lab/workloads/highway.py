"""Workload H: reports of road segments, and drivers who watch the road before them.

After the highway traffic management benchmark of Jayaram et al. (Beretta, section 6), of which the
paper tells little; the figures here are ours. A report comes from a detector: `road`, `segment` (of
half a kilometre), `lane`, what vehicles of a `class` do there: their mean `speed` in km/h, and the
`occupancy` of the lane in percent. Roads are chosen by popularity. Where it is crowded, it is slow:
speed falls with occupancy.

A subscriber drives. It watches the segments ahead on its road for slow traffic, half of them only
where the road is full besides. As it drives, the segments move (`ahead`): the subscription stays
the same but for its parameters.
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

_CLASSES = ("car", "truck", "bus", "motorcycle")
_SHARES = (0.78, 0.95, 0.97, 1.0)
_ATTRIBUTES = ("road", "segment", "speed", "occupancy")
_PREDICATES = (0, 1, 1, 2, 3)
_OPERATORS = ("=", ">=", "<=", "<", ">")
_PLAIN = "road = :road AND segment BETWEEN :low AND :high AND speed < :speed"
_SLOWEST, _STEP = 20, 5


class _Drawn(NamedTuple):
    road: NDArray[np.int64]
    low: NDArray[np.int64]
    reach: NDArray[np.int64]
    speed: NDArray[np.int64]
    occupancy: NDArray[np.int64]
    has_occupancy: NDArray[np.bool_]


@dataclass(frozen=True)
class Highway(Workload):
    """Reports of detectors on roads of equal length."""

    n_roads: int = 50
    n_segments: int = 400
    n_lanes: int = 3
    most_ahead: int = 20
    exponent: float = 0.6

    @cached_property
    def event_type(self) -> EventType:
        """A report: where, and what vehicles of one class do there."""
        return EventType(
            "Report",
            {
                "road": "string",
                "segment": "integer",
                "lane": "integer",
                "class": "string",
                "speed": "float",
                "occupancy": "float",
            },
        )

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition without and with an occupancy."""
        return (_PLAIN, f"{_PLAIN} AND occupancy > :occupancy")

    @cached_property
    def roads(self) -> tuple[str, ...]:
        """The names of the roads, the busiest first."""
        return tuple(f"A{i:02d}" for i in range(self.n_roads))

    @cached_property
    def _popularity(self) -> NDArray[np.float64]:
        return zipf_steps(self.n_roads, self.exponent)

    @property
    def _event_draws(self) -> int:
        return 6

    @property
    def _subscription_draws(self) -> int:
        return 6

    def _names(self, road: NDArray[np.int64]) -> pa.Array:
        return pa.array(self.roads, pa.string()).take(pa.array(road))

    def _events(self, units: Units) -> pa.Table:
        occupancy = below(units[:, 3] ** 2, 1001)
        slower = 130.0 - 1.1 * (occupancy / 10) + 20.0 * (units[:, 4] - 0.5)
        kind = by_steps(units[:, 5], np.array(_SHARES))
        return pa.table(
            {
                "road": self._names(by_steps(units[:, 0], self._popularity)),
                "segment": below(units[:, 1], self.n_segments),
                "lane": below(units[:, 2], self.n_lanes) + 1,
                "class": pa.array(_CLASSES, pa.string()).take(pa.array(kind)),
                "speed": np.maximum(np.rint(10 * slower) / 10, 0.0),
                "occupancy": occupancy / 10,
            }
        )

    def _draw(self, units: Units) -> _Drawn:
        return _Drawn(
            by_steps(units[:, 0], self._popularity),
            below(units[:, 1], self.n_segments),
            1 + below(units[:, 2], self.most_ahead),
            _SLOWEST + _STEP * below(units[:, 3], 15),
            _STEP * below(units[:, 4], 16),
            units[:, 5] < 0.5,
        )

    def ahead(self, ids: Ids, tick: int, seed: int = 0) -> tuple[list[int], list[int]]:
        """Return the first and the last segment that drivers watch after some ticks.

        A driver passes one segment or two a tick, always the same number, and starts again at the
        end of the road. At tick 0 they are where `subscription_params` has them.
        """
        found_low, found_high = [], []
        for id in ids.tolist():
            units = draw(seed, f"{self.name}/subscriptions", id, 1, self._subscription_draws)
            drawn = self._draw(units)
            low = (int(drawn.low[0]) + (1 + id % 2) * tick) % self.n_segments
            found_low.append(low)
            found_high.append(low + int(drawn.reach[0]))
        return found_low, found_high

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        texts = glue(
            len(ids),
            [
                (self._openings, drawn.road),
                (self._numbers, drawn.low),
                " AND ",
                (self._numbers, drawn.low + drawn.reach),
                " AND speed < ",
                (self._numbers, drawn.speed),
                (self._endings, np.where(drawn.has_occupancy, drawn.occupancy + 1, 0)),
            ],
        )
        return text_table(ids, texts)

    @cached_property
    def _openings(self) -> StringTable:
        return StringTable.of([f"road = '{road}' AND segment BETWEEN " for road in self.roads])

    @cached_property
    def _numbers(self) -> StringTable:
        return StringTable.of([str(i) for i in range(self.n_segments + self.most_ahead + 1)])

    @cached_property
    def _endings(self) -> StringTable:
        return StringTable.of(["", *(f" AND occupancy > {i}" for i in range(100))])

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        drawn = self._draw(units)
        keep = np.ones((len(ids), len(_PREDICATES)), np.bool_)
        keep[:, 4] = drawn.has_occupancy
        columns = row_columns(ids, _ATTRIBUTES, np.array(_PREDICATES), _OPERATORS, keep)
        bounds = [drawn.road, drawn.low, drawn.low + drawn.reach, drawn.speed, drawn.occupancy]
        values = np.stack(bounds, axis=1, dtype=np.float64)[keep]
        is_text = np.tile([True, False, False, False, False], (len(ids), 1))[keep]
        roads = pa.array(values.astype(np.int64), mask=~is_text)
        return pa.table(
            {
                **columns,
                "number": pa.array(values, mask=is_text),
                "text": pa.array(self.roads, pa.string()).take(roads),
            }
        )

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        chosen = (units[:, 5] < 0.5) == bool(template)
        drawn = self._draw(units[chosen])
        columns = {
            "id": pa.array(ids[chosen]),
            "road": self._names(drawn.road),
            "low": pa.array(drawn.low),
            "high": pa.array(drawn.low + drawn.reach),
            "speed": pa.array(drawn.speed),
        }
        if template:
            columns["occupancy"] = pa.array(drawn.occupancy)
        return pa.table(columns)
