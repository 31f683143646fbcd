"""Matchers that are filled step by step, and what an event costs.

Enters: a workload, an engine and its options. Leaves: processor seconds. Processor time is taken,
and the least of some repeats, because other work on a machine adds to both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tocsin.encode.events import to_batch
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin_lab.bench.report.outcome import Scale
from tocsin_lab.engines.clustering.index import CHUNK, Chunk

_CHUNK = 250_000
_MOST_EVENTS = 20_000
_FEW_EVENTS = 50
_FEW_SUBSCRIPTIONS = 500
_GROWTH = 4
MICRO = 1e6


class Source(Protocol):
    """What gives subscriptions and events."""

    def rows(self, n: int, seed: int, first: int = 0) -> pa.Table:
        """Return subscriptions with one predicate a row."""

    def events(self, n: int, seed: int, first: int = 0) -> pa.Table:
        """Return events."""


class Bench:
    """A matcher that is filled with the subscriptions of a source, from the first on."""

    def __init__(
        self, source: Source, kind: EventType, engine: str, scale: Scale, **options: Any
    ) -> None:
        self._source, self._scale = source, scale
        small = Matcher(kind, engine=engine, **options)  # so that kernels are compiled
        small.subscribe_many(source.rows(_FEW_SUBSCRIPTIONS, scale.seed))
        small.match_batch(source.events(_FEW_EVENTS, scale.seed))
        small.unsubscribe_many(range(_FEW_SUBSCRIPTIONS // 2))
        self.events = source.events(_MOST_EVENTS, scale.seed)
        self.matcher = Matcher(kind, engine=engine, **options)
        self.n = 0
        self.load_s = 0.0
        self.fewest = _FEW_EVENTS
        """How many events are timed at least: more where a batch costs much by itself."""
        self._room = np.empty(1 << 22, np.int32)

    @property
    def engine(self) -> Any:
        """The engine, for what only some have."""
        return self.matcher.index

    def fill(self, n: int) -> None:
        """Add subscriptions until there are n, and build the index; `load_s` counts both."""
        while self.n < n:
            more = min(_CHUNK, n - self.n)
            rows = self._source.rows(more, self._scale.seed, first=self.n)
            self.load_s += seconds(lambda: self.matcher.subscribe_many(rows))  # noqa: B023
            self.n += more
        self.load_s += seconds(self.build)

    def build(self) -> None:
        """Do what an engine has left for the first match, merges included."""
        self.matcher.match_batch(self.events.slice(0, 1))
        if self.is_auto:
            self.matcher.rebuild()
        self.matcher.match_batch(self.events.slice(0, 1))

    @property
    def is_auto(self) -> bool:
        """Whether the engine merges segments in the background."""
        return self.matcher.engine == "auto"

    def microseconds(self) -> float:
        """Return what an event of a batch costs."""
        return self.compare([lambda: None])[0]

    def compare(self, ways: Sequence[Callable[[], None]]) -> list[float]:
        """Return what an event costs after each of some switches, timed in turn."""
        batch = self._enough()
        least = [float("inf")] * len(ways)
        for _ in range(self._scale.repeats):
            for at, switch in enumerate(ways):
                switch()
                taken = seconds(lambda: self.matcher.match_batch(batch))
                least[at] = min(least[at], taken)
        return [MICRO * taken / len(batch) for taken in least]

    def _enough(self) -> pa.Table:
        """Return as many events as take long enough to be timed, twice in turn."""
        n = self.fewest
        while n < len(self.events):
            batch = self.events.slice(0, n)
            taken = min(seconds(lambda: self.matcher.match_batch(batch)) for _ in range(2))  # noqa: B023
            if taken >= self._scale.seconds / _GROWTH:
                break
            n *= _GROWTH
        return self.events.slice(0, n)

    def phases(self) -> dict[str, float]:
        """Return what the phases of an engine of Fabret et al. cost for an event.

        `cells_us`: values → cells; `predicates_us`: cells → predicates; `clusters_us`: predicates →
        conjunctions.
        """
        batch, index = self._enough(), self.engine.predicate_index
        least = [float("inf")] * 3
        for _ in range(self._scale.repeats):
            spent = [seconds(lambda: index.encode(to_batch(batch))), 0.0, 0.0]
            cells = index.encode(to_batch(batch))
            for first in range(0, len(batch), CHUNK):
                n = min(CHUNK, len(batch) - first)
                started = process_time()
                satisfied = index.satisfied(cells, first, n)
                between = process_time()
                offsets = np.zeros(n + 1, np.int64)
                self.engine.match_chunk(Chunk(satisfied, 0, self._room, offsets))
                spent[1] += between - started
                spent[2] += process_time() - between
            least = [min(pair) for pair in zip(least, spent, strict=True)]
        names = ("cells_us", "predicates_us", "clusters_us")
        per_event = [round(MICRO * each / len(batch), 3) for each in least]
        return dict(zip(names, per_event, strict=True))

    def matches_per_event(self) -> float:
        """Return how many subscriptions an event matches."""
        matches = self.matcher.match_batch(self.events.slice(0, 1_000))
        return float(np.diff(matches.offsets).mean())


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call; what it returns is freed outside of it."""
    gc.collect()
    started = process_time()
    result = call()
    taken = process_time() - started
    del result
    return taken
