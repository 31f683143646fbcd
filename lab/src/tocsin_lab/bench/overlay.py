"""What a network of brokers carries: throughput, delays, bytes; against doing without its parts.

Enters: a workload (trading or highway), subscribers, edges, how often they change what they want.
Leaves: a dictionary ready for JSON. A core broker, where events come in, has links to the edges,
where the subscribers are. The brokers are simulated, their work is done: a broker is busy for as
long as its routing takes on this machine (processor time), and queues build up behind it
(`broker.overlay.simulator`). So brokers that would run side by side are measured one by one.

Variants, after the paper's tables 1 and 2 (Jayaram et al., Beretta, section 6):

============= ==================================================================
lub           approximate summaries, parametric updates: Beretta
disjunction   summaries of a limited number of conjunctions
exact         no approximation: every conjunction that no other covers
resubscribe   approximate summaries; an update is an unsubscription and a new one
flooding      no summaries: every event goes everywhere
coded         as lub, and ranges travel coded (Zhao and Wu, section III-E.2)
coded-exact   as exact, coded
============= ==================================================================

*Initial* are the bytes of the first subscriptions, *control* the bytes of later changes to them.
*Throughput* is events over the time that the busiest broker is busy. *Latency* is from publish to
delivery, *update delay* from an update until the last broker that has to know it does. *Spurious*
is the share of events on links that match no subscription at the receiving end. Times are noisy:
variants take turns, and the best of each counts. Subscribers are with the edge of their firm or
road (`placement` home), or anywhere (spread).
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, quantiles
from time import process_time
from typing import Any

import numpy as np

from tocsin.broker.overlay.grades import Grading
from tocsin.broker.overlay.messages import Adv, Message, State, Types
from tocsin.broker.overlay.table import Index
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.normalize import NormalForm, bind, normalize
from tocsin.workloads import Market, workload
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import OverlaySetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.simulator import Happening, Local, Simulator
from tocsin_lab.workloads import Highway

_GRADES = {
    "lub": "lub",
    "disjunction": "disjunction",
    "exact": "exact",
    "resubscribe": "lub",
    "flooding": "flood",
    "coded": "lub",
    "coded-exact": "exact",
}
VARIANTS = tuple(_GRADES)
WORKLOADS = {"trading": "M", "highway": "H"}
_CORE = "core"
_ENGINE = "fastint"
"""The paper's own: bounds move in place."""
_HOME = {"trading": "firm", "highway": "road"}


class IndexLocal(Local):
    """The subscriptions of a broker's clients in an engine, as a real broker has them."""

    def __init__(self, on_put: Callable[[str], None]) -> None:
        super().__init__()
        self._index = Index(engine=_ENGINE)
        self._on_put = on_put

    def put(self, id: str, topic: str | None, form: NormalForm, keep: bool) -> None:
        """Register a subscription, or change it."""
        self._on_put(id)
        super().put(id, topic, form, keep)
        self._index.fill(id, dict(enumerate(form)))

    def drop(self, id: str) -> None:
        """Remove a subscription."""
        super().drop(id)
        self._index.fill(id, {})

    def match(self, type: str | None, event: Mapping[str, Any]) -> list[str]:
        """Return the subscriptions that an event matches now."""
        return list(self._index.match(event))


@dataclass
class Subscriber:
    """A subscription and its parameters, as they move."""

    id: str
    edge: str
    where: str
    params: dict[str, Any]
    number: int
    tick: int = 0


class Load:
    """Subscribers, events and updates of a setting: the same for every variant."""

    def __init__(self, setting: OverlaySetting) -> None:
        self.setting = setting
        chosen = workload(WORKLOADS[setting.workload])
        assert isinstance(chosen, Market | Highway)
        self.workload = chosen
        self.event_type = chosen.event_type
        self.type = chosen.event_type.name
        self._expressions = [parse(where) for where in chosen.templates]
        self.edges = [f"edge{i:02d}" for i in range(setting.edges)]
        self.subscribers = list(self._subscribers())
        self.events = chosen.events(setting.events, setting.seed).to_pylist()
        self._random = np.random.Generator(np.random.Philox(setting.seed))
        n_updates = round(setting.updates * setting.events)
        self.chosen = self._random.integers(0, len(self.subscribers), n_updates).tolist()
        self.shifts = self._random.uniform(-0.01, 0.01, n_updates).tolist()

    def _subscribers(self) -> Iterator[Subscriber]:
        setting, home = self.setting, _HOME[self.setting.workload]
        tables = self.workload.subscription_params(setting.subscribers, setting.seed)
        names = self.workload.firms if home == "firm" else self.workload.roads  # type: ignore[union-attr]
        place = {name: at for at, name in enumerate(names)}
        for where, table in zip(self.workload.templates, tables, strict=True):
            for row in table.to_pylist():
                number = row.pop("id")
                at = place[row[home]] if setting.placement == "home" else number
                yield Subscriber(f"s{number}", self.edges[at % setting.edges], where, row, number)

    def form(self, subscriber: Subscriber) -> NormalForm:
        """Return what a subscriber wants now."""
        at = self.workload.templates.index(subscriber.where)
        return normalize(bind(self._expressions[at], subscriber.params), self.event_type)

    def move(self, subscriber: Subscriber, shift: float) -> None:
        """Let a trader follow the price, a driver drive."""
        params = subscriber.params
        if isinstance(self.workload, Highway):
            subscriber.tick += 1
            ids = np.array([subscriber.number])
            low, high = self.workload.ahead(ids, subscriber.tick, self.setting.seed)
            params |= {"low": low[0], "high": high[0]}
        else:
            for name in ("low", "high"):
                params[name] = round(params[name] * (1 + shift), 2)


class Trial:
    """One variant under one load."""

    def __init__(self, load: Load, variant: str) -> None:
        self.load = load
        self.variant = variant
        self.network = Simulator(
            load.setting.seed,
            Grading(_GRADES[variant]),
            levels=load.setting.levels if variant.startswith("coded") else 0,
            engine=_ENGINE,
            delays=(0.001, 0.001),
            local=lambda: IndexLocal(self._changed),
            timer=process_time,
        )
        self.network.on_delivery = self._delivered
        self.network.on_work = self._worked
        self.latencies: list[float] = []
        self.delays: list[float] = []
        self.initial_bytes = 0
        self._published: dict[tuple[str, int], float] = {}
        self._asked: dict[str, tuple[str, float]] = {}
        self._begun: dict[str, list[float]] = defaultdict(list)
        self._on_way: dict[str, list[float]] = defaultdict(list)

    def _delivered(self, id: str, happening: Happening) -> None:
        published = self._published.get(happening.key)
        if published is not None:  # not one of those before the measurement
            self.latencies.append(self.network.now - published)

    def _changed(self, id: str) -> None:
        """A broker takes up an update."""
        if id in self._asked:
            edge, begun = self._asked.pop(id)
            self._begun[edge].append(begun)

    def _worked(self, name: str, sent: Sequence[tuple[str, Message]], source: str | None) -> None:
        """Follow updates: an edge that says nothing upstream is done; else the core is, later."""
        now = self.network.brokers[name].free_at
        if name == _CORE:
            if source is not None and self._on_way[source]:
                self.delays += [now - begun for begun in self._on_way.pop(source)]
        elif self._begun[name]:
            begun = self._begun.pop(name)
            is_update = any(not isinstance(each, Adv | Types | State) for _, each in sent)
            if is_update:
                self._on_way[name] += begun
            else:
                self.delays += [now - each for each in begun]

    def run(self) -> dict[str, Any]:
        """Set the network up, load it, and return the figures."""
        network, load = self.network, self.load
        network.add(_CORE, *load.edges)
        for edge in load.edges:
            network.link(_CORE, edge)
        for each in load.subscribers:
            network.subscribe(each.edge, each.id, load.form(each), load.type)
        network.publish(_CORE, {}, load.type)  # advertises
        network.run()
        for event in load.events[:20]:
            network.publish(_CORE, event, load.type)
        network.run()
        return self._measure()

    def _measure(self) -> dict[str, Any]:
        network, load, setting = self.network, self.load, self.load.setting
        self.initial_bytes = sum(network.traffic.n_bytes[kind] for kind in ("CELLS", "SUB", "UPD"))
        network.traffic.messages.clear()
        network.traffic.n_bytes.clear()
        before = network.spurious
        for broker in network.brokers.values():
            broker.busy = 0.0
        self.latencies, self.delays = [], []
        start = network.now + 1.0
        for at, event in enumerate(load.events):
            network.at(start + at / setting.rate, lambda event=event: self._publish(event))  # type: ignore[misc]
        per_update = len(load.events) / max(len(load.chosen), 1) / setting.rate
        for at, (chosen, shift) in enumerate(zip(load.chosen, load.shifts, strict=True)):
            network.at(
                start + at * per_update,
                lambda chosen=chosen, shift=shift: self._update(chosen, shift),  # type: ignore[misc]
            )
        gc.collect()
        gc.disable()
        try:
            network.run()
        finally:
            gc.enable()
        return self._figures(network.spurious - before)

    def _publish(self, event: Mapping[str, Any]) -> None:
        happening = self.network.publish(_CORE, event, self.load.type)
        self._published[happening.key] = self.network.now

    def _update(self, chosen: int, shift: float) -> None:
        each = self.load.subscribers[chosen]
        self.load.move(each, shift)
        form = self.load.form(each)
        if self.variant == "resubscribe":
            self.network.unsubscribe(each.edge, each.id)
        self._asked[each.id] = (each.edge, self.network.now)
        self.network.subscribe(each.edge, each.id, form, self.load.type)

    def _figures(self, spurious: int) -> dict[str, Any]:
        network = self.network
        busiest = max(network.brokers.values(), key=lambda broker: broker.busy)
        crossed = network.traffic.messages["PUB"]
        control = network.traffic.total - network.traffic.n_bytes["PUB"]
        return {
            "throughput": len(self.load.events) / max(busiest.busy, 1e-9),
            "busiest": busiest.name,
            "core_us": network.brokers[_CORE].busy / len(self.load.events) * 1e6,
            "latency_ms": 1000 * mean(self.latencies) if self.latencies else 0.0,
            "update_delay_ms": 1000 * mean(self.delays) if self.delays else 0.0,
            "update_delay_p99_ms": 1000 * quantiles(self.delays, n=100)[98]
            if len(self.delays) > 1
            else 0.0,
            "deliveries": len(self.latencies),
            "events_on_links": crossed,
            "spurious": spurious / max(crossed, 1),
            "bytes": network.traffic.total,
            "initial_bytes": self.initial_bytes,
            "control_bytes": control,
            "control_messages": network.traffic.messages.total() - crossed,
        }


def run(setting: OverlaySetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure the setting, and others that differ in subscribers or in updates an event.

    The trials of the variants alternate; of each variant the one that took least counts.
    """
    for variant in setting.variants:
        if variant not in VARIANTS:
            raise ArgumentError(f"a variant is {', '.join(VARIANTS)}, not {variant!r}")
    variants, repeats = setting.variants, setting.repeats
    rates = [each / 100 for each in setting.vary_updates]
    settings = [setting]
    settings += [
        replace(setting, subscribers=n)
        for n in setting.vary_subscribers
        if n != setting.subscribers
    ]
    settings += [replace(setting, updates=rate) for rate in rates if rate != setting.updates]
    steps = Steps(progress, len(settings) * len(variants) * repeats)
    results = []
    Trial(Load(replace(setting, subscribers=50, events=30)), "exact").run()  # compiles
    for each in settings:
        figures: dict[str, dict[str, Any]] = {}
        for variant in [*variants] * repeats:
            steps.start(f"{each.workload} {variant}")
            trial = Trial(Load(each), variant).run()
            best = figures.get(variant, trial)
            figures[variant] = max(best, trial, key=lambda tried: float(tried["throughput"]))
            steps.finish()
        deliveries = {trial["deliveries"] for trial in figures.values()}
        results.append({"setting": asdict(each), "variants": figures, "ratios": _ratios(figures)})
        spread = max(deliveries) - min(deliveries)
        assert spread <= 0.02 * max(deliveries) + 20, f"deliveries differ: {sorted(deliveries)}"
    return {"results": results, "machine": machine(), "versions": versions()}


def _ratios(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how much better approximate summaries with updates are than each other variant."""
    own = figures.get("lub")
    if own is None:
        return {}
    return {
        name: {
            "throughput": own["throughput"] / other["throughput"],
            "latency": other["latency_ms"] / max(own["latency_ms"], 1e-9),
            "update_delay": other["update_delay_ms"] / max(own["update_delay_ms"], 1e-9),
            "spurious": other["spurious"] / max(own["spurious"], 1e-9),
            "bytes": other["bytes"] / own["bytes"],
        }
        for name, other in figures.items()
        if name != "lub"
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = []
    for each in result["results"]:
        s = each["setting"]
        lines += [
            f"{s['workload']}: {s['subscribers']:,} subscribers over {s['edges']} edges "
            f"({s['placement']}), {s['events']:,} events, {s['updates']:g} updates an event",
            f"{'':<13}{'events/s':>10}{'latency':>10}{'upd. delay':>12}{'spurious':>10}"
            f"{'bytes':>12}{'of these control':>18}{'messages':>10}{'initial':>13}",
        ]
        for name, figures in each["variants"].items():
            lines.append(
                f"{name:<13}{figures['throughput']:>10,.0f}{figures['latency_ms']:>7.2f} ms"
                f"{figures['update_delay_ms']:>9.2f} ms{figures['spurious']:>10.1%}"
                f"{figures['bytes']:>12,}{figures['control_bytes']:>18,}"
                f"{figures['control_messages']:>10,}{figures['initial_bytes']:>13,}"
            )
        for name, ratios in each["ratios"].items():
            shown = "  ".join(f"{what} {ratio:.2f}×" for what, ratio in ratios.items())
            lines.append(f"  lub against {name}: {shown}")
        flood = each["variants"].get("flooding")
        for name, of in each["variants"].items() if flood else ():
            if name != "flooding":
                lines.append(f"  bytes: flooding / {name} = {flood['bytes'] / of['bytes']:.1f}")
        lines.append("")
    return "\n".join(lines).rstrip()
