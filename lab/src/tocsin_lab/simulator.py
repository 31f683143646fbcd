"""A discrete-event simulator: many routers, links with delays, failures; one seed, one outcome.

Enters: brokers, links, subscriptions, events, failures. Leaves: which subscriber got which event
how often, and what went over the links. The routers are those of real brokers. Around them a
`Broker` does what a real one does with sockets and SQLite: it matches local subscriptions with
their current conditions, keeps what must not be lost until the neighbour acknowledges it, and takes
its state over a restart. Messages cross links as the JSON that they would be.

Time is made up. With a `timer`, what a broker does takes as long as it takes here; then queues
build up before busy brokers, and throughput and delays can be read off.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.broker.overlay.duplicates import DuplicateFilter
from tocsin.broker.overlay.grades import PLAIN, Grading
from tocsin.broker.overlay.messages import Codebook, Message, Topic, of_plain, to_plain
from tocsin.broker.overlay.router import Router
from tocsin.normalize.normal import NormalForm


@dataclass(frozen=True)
class Happening:
    """An event on its way: where it was published, its number there, what it says."""

    origin: str
    number: int
    type: Topic
    event: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others."""
        return (self.origin, self.number)

    def to_plain(self, at: int) -> list[Any]:
        """Return it as JSON has it; `at` is its number on the link, 0 where none is needed."""
        return ["PUB", at, self.origin, self.number, self.type, self.event]


class Local:
    """The subscriptions of a broker's own clients, tried one by one."""

    def __init__(self) -> None:
        self.forms: dict[str, tuple[Topic, NormalForm, bool]] = {}

    def put(self, id: str, topic: Topic, form: NormalForm, keep: bool) -> None:
        """Register a subscription, or change it."""
        self.forms[id] = (topic, form, keep)

    def drop(self, id: str) -> None:
        """Remove a subscription."""
        del self.forms[id]

    def match(self, type: Topic, event: Mapping[str, Any]) -> list[str]:
        """Return the subscriptions that an event matches now."""
        return [
            id
            for id, (topic, form, _) in self.forms.items()
            if topic in (None, type) and form.holds(event)
        ]


@dataclass
class Traffic:
    """What went over links."""

    messages: Counter[str] = field(default_factory=Counter)
    n_bytes: Counter[str] = field(default_factory=Counter)

    def count(self, raw: bytes, kind: str) -> None:
        """Take note of a message."""
        self.messages[kind] += 1
        self.n_bytes[kind] += len(raw)

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.n_bytes.values())


class Broker:
    """A simulated broker."""

    def __init__(self, name: str, make: Callable[[str], Router], local: Local) -> None:
        self.name = name
        self.make = make
        self.local = local
        self.router = make(name)
        self.is_up = True
        self.duplicates = DuplicateFilter()
        self.next = 1
        self.queues: dict[str, dict[int, Happening]] = {}
        self.received: dict[str, int] = {}
        self.numbered: dict[str, int] = {}
        self.spurious = 0
        self.busy = 0.0
        self.inbox: deque[Callable[[], None]] = deque()
        self.is_scheduled = False
        self.free_at = 0.0

    def restart(self) -> None:
        """Restart from the stored state."""
        state = json.loads(json.dumps(self.router.to_state()))
        self.router = self.make(self.name)
        self.router.restore(state)
        for id, (topic, form, keep) in self.local.forms.items():
            self.router.subscribe(id, topic, form, keep=keep)
        self.router.take()
        self.inbox.clear()
        self.is_up = True


@dataclass
class Wire:
    """A link between two brokers; `life` grows each time that it comes up or goes down."""

    ends: tuple[str, str]
    delay: float
    is_up: bool = False
    is_cut: bool = False
    life: int = 0
    last: dict[str, float] = field(default_factory=dict)
    sent: dict[str, Codebook] = field(default_factory=dict)
    """The codebook of messages sent to each end."""
    heard: dict[str, Codebook] = field(default_factory=dict)

    def begin(self) -> None:
        """Come up: nothing is said yet."""
        self.is_up = True
        self.life += 1
        self.last.clear()
        self.sent = {end: Codebook() for end in self.ends}
        self.heard = {end: Codebook() for end in self.ends}


class Simulator:
    """A network, and its made-up clock."""

    def __init__(
        self,
        seed: int = 0,
        grading: Grading = PLAIN,
        *,
        levels: int | Mapping[str, int] = 0,
        engine: str = "auto",
        delays: tuple[float, float] = (0.001, 0.05),
        bytes_per_second: float = 0.0,
        local: Callable[[], Local] = Local,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.brokers: dict[str, Broker] = {}
        self.wires: dict[frozenset[str], Wire] = {}
        self.traffic = Traffic()
        self.delivered: Counter[tuple[str, tuple[str, int]]] = Counter()
        self.on_delivery: Callable[[str, Happening], None] = lambda id, happening: None
        self.on_work: Callable[[str, list[tuple[str, Message]], str | None], None] = (
            lambda name, sent, source: None
        )
        self._source: str | None = None
        self._make = lambda name: Router(
            name, grading, levels=levels if isinstance(levels, int) else levels[name], engine=engine
        )
        self._local = local
        self._delays = delays
        self._rate = bytes_per_second
        self._timer = timer
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._n = 0

    # The network.

    def add(self, *names: str) -> None:
        """Add brokers."""
        for name in names:
            self.brokers[name] = Broker(name, self._make, self._local())

    def link(self, a: str, b: str) -> None:
        """Add a link between two brokers, and let it come up."""
        self.wires[frozenset((a, b))] = Wire((a, b), self.random.uniform(*self._delays))
        self.mend(a, b)

    def cut(self, a: str, b: str) -> None:
        """Let a link fail; messages on their way are lost."""
        wire = self.wires[frozenset((a, b))]
        wire.is_cut = True
        self._take_down(wire)

    def mend(self, a: str, b: str) -> None:
        """Let a link come up again, if both ends are up."""
        wire = self.wires[frozenset((a, b))]
        wire.is_cut = False
        if wire.is_up or not all(self.brokers[end].is_up for end in wire.ends):
            return
        wire.begin()
        for end, other in (wire.ends, wire.ends[::-1]):
            broker = self.brokers[end]
            broker.router.link_up(other, self.brokers[other].router.levels)
            self._flush(broker)
            for number, happening in broker.queues.get(other, {}).items():
                self._post(broker, other, happening.to_plain(number))

    def crash(self, name: str) -> None:
        """Kill a broker."""
        broker = self.brokers[name]
        broker.is_up = False
        broker.inbox.clear()
        for wire in self.wires.values():
            if name in wire.ends:
                self._take_down(wire)

    def start(self, name: str) -> None:
        """Start a broker that was killed; its links come up where they can."""
        self.brokers[name].restart()
        for wire in self.wires.values():
            if name in wire.ends and not wire.is_cut:
                self.mend(*wire.ends)

    def _take_down(self, wire: Wire) -> None:
        if not wire.is_up:
            return
        wire.is_up = False
        wire.life += 1
        for end, other in (wire.ends, wire.ends[::-1]):
            broker = self.brokers[end]
            if broker.is_up:
                broker.router.link_down(other)
                self._flush(broker)

    # Clients.

    def subscribe(
        self, at: str, id: str, form: NormalForm, topic: Topic = None, *, keep: bool = False
    ) -> None:
        """Register a subscription at a broker, or change it."""
        self._work(self.brokers[at], lambda: self._put(at, id, form, topic, keep))

    def _put(self, at: str, id: str, form: NormalForm, topic: Topic, keep: bool) -> None:
        broker = self.brokers[at]
        broker.local.put(id, topic, form, keep)
        broker.router.subscribe(id, topic, form, keep=keep)

    def unsubscribe(self, at: str, id: str) -> None:
        """Remove a subscription."""
        self._work(self.brokers[at], lambda: self._drop(at, id))

    def _drop(self, at: str, id: str) -> None:
        self.brokers[at].local.drop(id)
        self.brokers[at].router.unsubscribe(id)

    def withdraw(self, at: str, type: Topic) -> None:
        """Say that a type is no longer published at a broker."""
        broker = self.brokers[at]
        self._work(broker, lambda: broker.router.unadvertise(type))

    def forget(self, at: str, peer: str) -> None:
        """Have a broker forget a neighbour."""
        broker = self.brokers[at]
        self._work(broker, lambda: broker.router.forget(peer))

    def publish(self, at: str, event: Mapping[str, Any], type: Topic = None) -> Happening:
        """Publish an event at a broker."""
        broker = self.brokers[at]
        happening = Happening(at, broker.next, type, event)
        broker.next += 1

        def work() -> None:
            if broker.router.advertise(type):
                self._flush(broker)  # the advertisement goes before the event
            broker.duplicates.is_new(*happening.key)
            self._pass_on(broker, happening, None)

        self._work(broker, work)
        return happening

    # The clock.

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something done at a moment."""
        self._n += 1
        heapq.heappush(self._agenda, (when, self._n, what))

    def run(self, until: float = float("inf")) -> None:
        """Let time pass until nothing is left to do, or until a moment."""
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        if until != float("inf"):
            self.now = max(self.now, until)

    # What brokers do.

    def _work(self, broker: Broker, what: Callable[[], None]) -> None:
        """Have a broker do something, after all that it has to do already."""
        if self._timer is None:
            what()
            self._flush(broker)
            return
        broker.inbox.append(what)
        if not broker.is_scheduled:
            broker.is_scheduled = True
            self.at(max(self.now, broker.free_at), lambda: self._next(broker))

    def _next(self, broker: Broker) -> None:
        assert self._timer is not None
        broker.is_scheduled = False
        if not broker.inbox:
            return
        began, self._source = self._timer(), None
        broker.inbox.popleft()()
        sent = broker.router.take()
        cost = self._timer() - began
        broker.busy += cost
        broker.free_at = self.now + cost
        self.on_work(broker.name, sent, self._source)
        for peer, message in sent:
            self._tell(broker, peer, message)
        if broker.inbox:
            broker.is_scheduled = True
            self.at(broker.free_at, lambda: self._next(broker))

    def _flush(self, broker: Broker) -> None:
        for peer, message in broker.router.take():
            self._tell(broker, peer, message)

    def _tell(self, sender: Broker, to: str, message: Message) -> None:
        wire = self.wires[frozenset((sender.name, to))]
        if wire.is_up:
            self._post(sender, to, to_plain(message, wire.sent[to]))

    def _post(self, sender: Broker, to: str, plain: list[Any]) -> None:
        wire = self.wires[frozenset((sender.name, to))]
        if not wire.is_up:
            return
        raw = json.dumps(plain, separators=(",", ":")).encode()
        self.traffic.count(raw, plain[0])
        leaves = max(self.now, sender.free_at)
        takes = wire.delay + (len(raw) / self._rate if self._rate else 0.0)
        arrives = max(leaves + takes, wire.last.get(to, 0.0))
        wire.last[to] = arrives
        life, source, heard = wire.life, sender.name, wire.heard[to]

        def arrive() -> None:
            if wire.life == life:
                self._work(self.brokers[to], lambda: self._receive(to, source, raw, heard))

        self.at(arrives, arrive)

    def _receive(self, at: str, source: str, raw: bytes, heard: Codebook) -> None:
        broker = self.brokers[at]
        plain = json.loads(raw)
        if plain[0] == "PUB":
            self._take_in(broker, source, plain[1], Happening(*plain[2:]))
        elif plain[0] == "ACK":
            queue = broker.queues.get(source, {})
            for number in [number for number in queue if number <= plain[1]]:
                del queue[number]
        else:
            message = of_plain(plain, heard)
            link = broker.router.links.get(source)
            if link is not None and link.is_up:
                broker.router.receive(source, message)
                self._source = source

    def _take_in(self, broker: Broker, source: str, number: int, happening: Happening) -> None:
        if number:
            self._post(broker, source, ["ACK", number])
            if number <= broker.received.get(source, 0):
                return
            broker.received[source] = number
        if broker.duplicates.is_new(*happening.key):
            self._pass_on(broker, happening, source)

    def _pass_on(self, broker: Broker, happening: Happening, source: str | None) -> None:
        ids = broker.local.match(happening.type, happening.event)
        for id in ids:
            self.delivered[id, happening.key] += 1
            self.on_delivery(id, happening)
        ahead = broker.router.route(happening.type, happening.event, source)
        if source is not None and not ids and not ahead:
            broker.spurious += 1
        for peer, keep in ahead:
            number = 0
            if keep:
                number = broker.numbered[peer] = broker.numbered.get(peer, 0) + 1
                broker.queues.setdefault(peer, {})[number] = happening
            self._post(broker, peer, happening.to_plain(number))

    # Looking.

    @property
    def spurious(self) -> int:
        """Events that a link brought and that matched no subscription there."""
        return sum(broker.spurious for broker in self.brokers.values())

    def matching(self, happening: Happening) -> set[str]:
        """Return the subscriptions that an event matches now, wherever they are."""
        return {
            id
            for broker in self.brokers.values()
            for id in broker.local.match(happening.type, happening.event)
        }

    def got(self, happening: Happening) -> dict[str, int]:
        """Return who got an event, and how often."""
        return {id: n for (id, key), n in self.delivered.items() if key == happening.key}
