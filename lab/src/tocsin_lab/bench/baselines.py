"""The baselines: DuckDB matches the same events by batch joins, in the same run.

Enters: a workload, how many of its subscriptions, events. Leaves: how many pairs match, and how
fast. There are two baselines, see `tocsin_lab.bench.joins`: the best plain join, which a competent
user writes, and the best keyed one, an index built by hand in SQL. What is fastest depends on the
workload and the size, so every formulation is tried in every run.

DuckDB only counts the matches, while a matcher writes them. The tables of subscriptions are made
beforehand and not timed; the query is, from the same Arrow events that the matcher takes, on as
many of them as take it some seconds. A join may be so slow that this is a single event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.workloads import Workload
from tocsin_lab.bench.joins import Formulation, Ints, Kind, formulations, subscriptions
from tocsin_lab.bench.timing import Timing, measure

_ENOUGH_SECONDS = 3.0
"""Each query rebuilds its hash tables; on few events that would be all it does."""
_MOST_SECONDS = 30.0
"""The repeats of one formulation take no longer, or there is one only."""
_GROWTH = 16


@dataclass(frozen=True)
class Measured:
    """The fastest formulation of a kind, how many events it was timed on, and the timing.

    `tried` has the events a second of every formulation of the kind, each timed once.
    """

    formulation: Formulation
    events: int
    timing: Timing
    tried: dict[str, float]

    @property
    def events_per_s(self) -> float:
        """The rate of the median repeat."""
        return self.events / self.timing.median

    @property
    def join(self) -> str:
        """The formulation in words."""
        return f"{self.formulation.name}: {self.formulation.how}"


class DuckDB:
    """A database in memory that holds the subscriptions of a workload, on a number of threads."""

    def __init__(self, chosen: Workload, n: int, seed: int, threads: int = 1) -> None:
        try:
            import duckdb
        except ImportError:
            raise ArgumentError("the baseline needs DuckDB: pip install duckdb") from None
        self.formulations = formulations(chosen, n)
        self._database = duckdb.connect(config={"threads": threads})
        self._database.register("given", subscriptions(chosen, n, seed))
        self._database.execute("CREATE TABLE subscriptions AS FROM given")
        self._database.unregister("given")
        for formulation in self.formulations:
            for statement in formulation.prepare:
                self._database.execute(statement)

    def count(self, formulation: Formulation, events: pa.Table) -> int:
        """Return how many pairs of event and subscription match."""
        self._database.register("events", events)
        [(count,)] = self._database.execute(formulation.query).fetchall()
        return int(count)

    def close(self) -> None:
        """Free the memory."""
        self._database.close()


def measure_best(
    database: DuckDB,
    kind: Kind,
    timed: tuple[pa.Table, Ints],
    repeats: int,
    done: Callable[[], None],
) -> Measured | None:
    """Time every formulation of a kind; return the fastest, or None where there is none.

    `timed` are events and the matches of each; where DuckDB counts otherwise, AssertionError is
    raised. `done` is called after each formulation, and after each repeat of the fastest.
    """
    events, counts = timed
    ways = [each for each in database.formulations if each.kind == kind]
    grown: dict[str, tuple[int, float]] = {}
    for way in ways:
        grown[way.name] = _grow(database, way, events, counts)
        done()
    if not ways:
        return None
    tried = {name: round(n / seconds, 2) for name, (n, seconds) in grown.items()}
    best = max(ways, key=lambda each: tried[each.name])
    n, seconds = grown[best.name]
    some = events.slice(0, n)
    affordable = max(1, min(repeats, int(_MOST_SECONDS / seconds)))
    timing = measure(lambda: database.count(best, some), affordable, done)
    for _ in range(repeats - affordable):
        done()
    return Measured(best, n, timing, tried)


def _grow(
    database: DuckDB, formulation: Formulation, events: pa.Table, counts: Ints
) -> tuple[int, float]:
    """Take more and more events until the query takes long enough; return events and seconds."""
    n = 1
    while True:
        some = events.slice(0, n)
        started = perf_counter()
        count = database.count(formulation, some)
        seconds = perf_counter() - started
        _check_count(formulation, count, counts[:n])
        if seconds >= _ENOUGH_SECONDS or n == len(events):
            return n, seconds
        enough = int(1.2 * n * _ENOUGH_SECONDS / seconds)
        n = min(max(enough, 2 * n), _GROWTH * n, len(events))


def check_counts(database: DuckDB, events: pa.Table, counts: Ints) -> None:
    """Compare what every formulation counts with the matches of each event."""
    for formulation in database.formulations:
        _check_count(formulation, database.count(formulation, events), counts)


def _check_count(formulation: Formulation, count: int, counts: Ints) -> None:
    if count != counts.sum():
        raise AssertionError(
            f"DuckDB ({formulation.name}) counts {count} matches, the matcher {counts.sum()}"
        )
