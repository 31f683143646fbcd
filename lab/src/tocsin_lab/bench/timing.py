"""Repeated timing of one call.

Enters: a call and how often to make it. Leaves: a `Timing` with every repeat. The median is what we
report; processor time is given with wall time, because only together do they show that a figure
"on one core" is one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    """Wall and processor seconds of every repeat."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the wall seconds."""
        return median(self.seconds)

    def of_each(self, n: int) -> Timing:
        """Return the timing of one of n rounds that were timed together."""
        return Timing(tuple(s / n for s in self.seconds), tuple(s / n for s in self.cpu_seconds))

    def to_dict(self, n: int) -> dict[str, object]:
        """Return the timing of n units, with their rate, ready for JSON."""
        return {
            "seconds": round(self.median, 6),
            "cpu_seconds": round(median(self.cpu_seconds), 6),
            "all_seconds": [round(s, 6) for s in self.seconds],
            "per_second": round(n / self.median),
        }


def measure(call: Callable[[], object], repeats: int, done: Callable[[], None]) -> Timing:
    """Time a call several times; `done` is called after each, outside the timing.

    What the call returns is freed before the next, again outside the timing.
    """
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(repeats):
        gc.collect()
        started, cpu_started = time.perf_counter(), time.process_time()
        result = call()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
        del result
        done()
    return Timing(tuple(wall), tuple(cpu))


def measure_in_turn(
    one: Callable[[], object], other: Callable[[], object], repeats: int, done: Callable[[], None]
) -> tuple[Timing, Timing]:
    """Time two calls in turn, several times: a machine whose speed drifts is fair to both."""
    pairs = [(measure(one, 1, lambda: None), measure(other, 1, done)) for _ in range(repeats)]
    first, second = (
        Timing(
            tuple(pair[at].seconds[0] for pair in pairs),
            tuple(pair[at].cpu_seconds[0] for pair in pairs),
        )
        for at in (0, 1)
    )
    return first, second
