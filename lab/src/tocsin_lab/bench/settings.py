"""Settings: what each benchmark can be asked to measure.

A class is one command of `tocsin bench`: its docstring is the command's help, its fields are the
options, and a field without a help text is not on the command line. Only the standard library is
needed here, so that `tocsin bench --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tocsin.engines import names
from tocsin.errors import ArgumentError

_DEFAULT_EVENTS = {
    "W0": 200_000,
    "W1": 200_000,
    "W2": 200_000,
    "T": 40_000,
    "TW": 10_000,
    "L": 200_000,
    "R": 100_000,
    "P": 200_000,
}
_OTHER_EVENTS = 20_000


def _option(
    default: Any, help: str, *, least: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Return a field that is an option; `least` is its smallest value."""
    return field(default=default, metadata={"help": help, "least": least, "choices": choices})


def _workload() -> Any:
    return _option("W0", "W0, W1, W2, T, TW, M, G, H, K, C, CA, L, X, R or P.")


def _engine() -> Any:
    return _option("auto", f"The matching algorithm: {', '.join(names())}.")


def _subscriptions(default: int = 100_000) -> Any:
    return _option(default, "Number of subscriptions.", least=1)


def _events(default: int) -> Any:
    return _option(default, "Number of events.", least=1)


def _seed() -> Any:
    return _option(0, "The seed of the generated data.", least=0)


def _repeats(default: int = 3) -> Any:
    return _option(default, "Number of times that each is timed.", least=1)


@dataclass(frozen=True)
class ParseSetting:
    """Time how subscriptions become normal forms: texts, templates and rows."""

    subscriptions: int = _option(1_000_000, "Number of conditions.", least=1)
    seed: int = _seed()
    repeats: int = _repeats()


@dataclass(frozen=True)
class PatternsSetting:
    """Time event patterns, the same rules in SQL, and Event Ruler."""

    rules: int = _option(100_000, "Number of rules.", least=10)
    events: int = _events(20_000)
    ruler_events: int = _option(20_000, "Events for Event Ruler, the first ones.", least=1)
    against: str | None = _option(None, "event-ruler, where it is installed.")
    seed: int = _seed()
    repeats: int = _repeats()


@dataclass(frozen=True)
class MatchSetting:
    """Time how many events a second are matched, against joins in DuckDB."""

    workload: str = _workload()
    subscriptions: int = _subscriptions()
    events: int | None = _option(
        None, "Number of events; by default as suits the workload.", least=1
    )
    engine: str = _engine()
    baseline: str = _option(
        "duckdb",
        "What to compare with; lucene (its Monitor, fetched by Maven) with workload X.",
        choices=("duckdb", "lucene", "none"),
    )
    threads: int = _option(1, "Threads; each matches a part of a batch.", least=1)
    seed: int = _seed()
    repeats: int = _repeats()
    load: str = _option("rows", "How subscriptions are loaded.", choices=("rows", "texts"))

    @property
    def n_events(self) -> int:
        """The number of events, by default as suits the workload."""
        return self.events or _DEFAULT_EVENTS.get(self.workload, _OTHER_EVENTS)


@dataclass(frozen=True)
class LatencySetting:
    """Time single events: a mapping in, ids out."""

    workload: str = _workload()
    subscriptions: int = _subscriptions()
    events: int = _events(20_000)
    engine: str = _engine()
    seed: int = _seed()


@dataclass(frozen=True)
class ScaleSetting:
    """Time matching with growing numbers of subscriptions, each in a process of its own."""

    workload: str = _workload()
    subscriptions: tuple[int, ...] = _option(
        (100_000, 1_000_000, 6_000_000), "Numbers of subscriptions."
    )
    events: int | None = _option(
        None, "Number of events; by default as suits the workload.", least=1
    )
    engine: str = _engine()
    baseline: str = _option("none", "What to compare with.", choices=("duckdb", "none"))
    seed: int = _seed()
    repeats: int = _repeats()

    def of_size(self, n: int) -> MatchSetting:
        """Return the setting of one size."""
        return MatchSetting(
            self.workload,
            n,
            self.events,
            self.engine,
            self.baseline,
            seed=self.seed,
            repeats=self.repeats,
        )


@dataclass(frozen=True)
class ChurnSetting:
    """Time matching while a second thread subscribes and unsubscribes, half and half."""

    workload: str = _workload()
    subscriptions: int = _subscriptions()
    rate: float = _option(1000.0, "Changes a second.", least=1)
    seconds: float = _option(60.0, "Duration.", least=0.01)
    batch: int = _option(10_000, "Events in a batch.", least=1)
    chunk: int = _option(1, "Changes in a call; from 2 on by the bulk calls.", least=1)
    engine: str = _engine()
    seed: int = _seed()

    @property
    def matching(self) -> MatchSetting:
        """The setting of a batch."""
        return MatchSetting(
            self.workload, self.subscriptions, self.batch, self.engine, seed=self.seed
        )


@dataclass(frozen=True)
class RecoverySetting:
    """Kill a running pipeline again and again, then compare its output with a recomputation."""

    kills: int = _option(30, "Number of processes to kill.", least=0)
    events: int = _option(300, "Events in a file.", least=1)
    subscriptions: int = _subscriptions(2_000)
    seed: int = _seed()
    clusters: int | None = None
    folder: str | None = None
    mode: str = _option("matches", "The mode of the pipeline.", choices=("matches", "transitions"))


@dataclass(frozen=True)
class UpdateSetting:
    """Time parametric updates against unsubscribing and subscribing again."""

    subscriptions: int = _subscriptions()
    updates: int = _option(200, "Number of updates.", least=1)
    engine: str = _engine()
    workload: str = _option("M", "M or H, which have parameters.")
    seed: int = _seed()


@dataclass(frozen=True)
class CalibrateSetting:
    """Measure the cost constants of the planner on this machine; compare them with the current."""

    repeats: int = _repeats(20)


@dataclass(frozen=True)
class SubjectsSetting:
    """Time inserts and updates of publications, after Leung and Jacobsen (2003)."""

    publications: tuple[int, ...] = _option(
        (10, 100, 1_000, 10_000, 100_000), "Numbers of publications."
    )
    subscriptions: tuple[int, ...] = _option(
        (10, 100, 1_000, 10_000, 100_000), "Numbers of subscriptions."
    )
    scale: tuple[int, ...] = _option(
        (10_000, 100_000, 1_000_000),
        "Numbers of subscriptions of the curve on which as many bounds are crossed.",
    )
    missing: str = _option(
        "absent",
        "The value of an attribute that a publication lacks; in the paper, any.",
        choices=("absent", "any"),
    )
    seed: int = _seed()
    plots: str | None = _option(None, "Write the paper's figures into this folder, as SVG.")


@dataclass(frozen=True)
class AdaptSetting:
    """Time matching before, during and after interests or events change."""

    scenario: str = _option(
        "interests",
        "interests: subscriptions turn to other attributes; "
        "skew: an attribute of all subscriptions comes to have two values.",
        choices=("interests", "skew"),
    )
    subscriptions: int = _subscriptions()
    events: int = _events(200_000)
    parts: int = _option(8, "Number of parts in which subscriptions are replaced.", least=1)
    engine: str = _engine()
    seed: int = _seed()
    repeats: int = _repeats()


@dataclass(frozen=True)
class SparkSetting:
    """Measure the processor time of a match on Spark, of moving the events, and of a join."""

    subscriptions: int = _subscriptions(1_000_000)
    events: int | None = _option(
        None, "Number of events: 1,000,000, or 1,000 if partitioned.", least=1
    )
    join_events: int = _option(50_000, "Number of events that are joined.", least=1)
    memory_mb: int = _option(
        500, "Size of the index for the memory of workers; 0: not measured.", least=0
    )
    cores: int = 2
    seed: int = _seed()
    repeats: int = _repeats()
    placement: str = _option(
        "replicated",
        "partitioned: on a cluster of two workers, against replicated.",
        choices=("replicated", "partitioned"),
    )
    parts: int = _option(4, "Number of parts, if partitioned.", least=1)

    @property
    def n_events(self) -> int:
        """The number of events."""
        return self.events or (1_000 if self.placement == "partitioned" else 1_000_000)


@dataclass(frozen=True)
class PlacementSetting:
    """Compare partitioned with replicated matching on a cluster."""

    subscriptions: int = 3_000_000
    events: int = 1_000
    parts: int = 4
    workers: int = 2
    seed: int = 0
    memory: str = "1g"


@dataclass(frozen=True)
class TransitionsSetting:
    """Measure what an update of a publication costs on Spark, against one key a group."""

    publications: int = _option(100_000, "Number of publications.", least=1)
    subscriptions: int = _subscriptions()
    batch: int = _option(200_000, "Updates in a micro-batch.", least=1)
    batches: int = _option(9, "Number of micro-batches.", least=1)
    baseline: int = _option(10_000, "Updates for the baseline; 0: no baseline.", least=0)
    width: int = 10
    """The width of a range."""
    cores: int = 2
    seed: int = _seed()
    warm_up: int = _option(24, "Micro-batches before the measured ones.", least=0)


@dataclass(frozen=True)
class BrokerSetting:
    """Load a broker with events and notifications, at full and at half rate."""

    subscriptions: int = _subscriptions()
    subscribers: int = _option(100, "Connections that listen.", least=1)
    publishers: int = _option(4, "Connections that publish.", least=1)
    rate: int = _option(20_000, "Events a second, at full load.", least=1)
    seconds: float = _option(10.0, "Duration of each load.", least=0.1)
    batch: int = _option(50, "Events in a request, or between receipts.", least=1)
    protocol: str = _option("http", "http or stomp.")
    seed: int = _seed()
    soak: float = _option(0.0, "Seconds of half load that follow.", least=0)
    against: str | None = _option(
        None, "activemq: STOMP with 5,000 selectors, compared with an installed ActiveMQ."
    )


@dataclass(frozen=True)
class ActiveMQSetting:
    """Load a broker and another one with the same selectors."""

    subscriptions: int = 5_000
    connections: int = 50
    publishers: int = 4
    batch: int = 50
    seconds: float = 10.0
    seed: int = 0


@dataclass(frozen=True)
class OverlaySetting:
    """Load a simulated network of brokers, and the same without its parts."""

    workload: str = _option("trading", "trading or highway.")
    subscribers: int = _option(1_000, "Number of subscribers.", least=1)
    edges: int = _option(10, "Number of brokers that have subscribers.", least=1)
    events: int = _events(2_000)
    updates: float = _option(0.5, "Updates of subscriptions for each event.", least=0)
    rate: float = _option(1_000.0, "Events a second.", least=1)
    placement: str = _option(
        "home", "home: subscribers at the edge of their firm or road; spread: anywhere."
    )
    seed: int = _seed()
    levels: int = _option(4, "Levels of coded ranges.", least=1)
    variants: tuple[str, ...] = _option(
        ("lub", "disjunction", "exact", "resubscribe", "flooding", "coded", "coded-exact"),
        "Variants of the network.",
    )
    vary_subscribers: tuple[int, ...] = _option((), "Other numbers of subscribers.")
    vary_updates: tuple[int, ...] = _option((), "Other numbers of updates, in hundredths.")
    repeats: int = _option(3, "Number of trials, of which the best counts.", least=1)

    def __post_init__(self) -> None:
        """Refuse a network that cannot be."""
        if self.workload not in ("trading", "highway"):
            raise ArgumentError(f"a workload is trading or highway, not {self.workload!r}")
        if self.placement not in ("home", "spread"):
            raise ArgumentError(f"a placement is home or spread, not {self.placement!r}")
        if min(self.subscribers, self.edges, self.events) < 1 or self.updates < 0:
            raise ArgumentError("this takes subscribers, edges and events")
