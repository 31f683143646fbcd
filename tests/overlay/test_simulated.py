"""Routers in simulated networks: whatever happens, events find their subscribers, once."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.overlay.networks import (
    SMALL,
    TYPES,
    check_delivery,
    check_events,
    check_quiet,
    form,
    random_event,
    random_form,
    tree,
)

from tocsin.broker.overlay.grades import GRADES, Grading
from tocsin_lab.simulator import Simulator

MANY = int(os.environ.get("TOCSIN_OVERLAY_EXAMPLES", "15"))
SEEDS = st.integers(0, 1 << 30)
GRADINGS = [Grading(grade, bound=3, max_pieces=2) for grade in GRADES]


class Life:
    """Random subscriptions, updates, events, failures and recoveries."""

    def __init__(self, network: Simulator, rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.subscriptions: dict[str, tuple[str, str | None]] = {}
        self.n = 0

    def subscribe(self) -> None:
        up = [name for name, broker in self.network.brokers.items() if broker.is_up]
        id, at, topic = f"s{self.n}", self.rng.choice(up), self.rng.choice(TYPES)
        self.n += 1
        self.subscriptions[id] = (at, topic)
        keep = self.rng.random() < 0.5
        self.network.subscribe(at, id, random_form(self.rng), topic, keep=keep)

    def change(self) -> None:
        live = [id for id, (at, _) in self.subscriptions.items() if self.network.brokers[at].is_up]
        if not live:
            return
        id = self.rng.choice(live)
        at, topic = self.subscriptions[id]
        if self.rng.random() < 0.3:
            del self.subscriptions[id]
            self.network.unsubscribe(at, id)
        else:
            keep = self.rng.random() < 0.5
            self.network.subscribe(at, id, random_form(self.rng), topic, keep=keep)

    def publish(self) -> None:
        up = [name for name, broker in self.network.brokers.items() if broker.is_up]
        self.network.publish(self.rng.choice(up), random_event(self.rng), self.rng.choice(TYPES))

    def fail(self) -> None:
        network = self.network
        wire = self.rng.choice(list(network.wires.values()))
        if self.rng.random() < 0.5:
            (network.mend if wire.is_cut else network.cut)(*wire.ends)
            return
        down = [name for name, broker in network.brokers.items() if not broker.is_up]
        if down and self.rng.random() < 0.6:
            network.start(self.rng.choice(down))
        elif len(network.brokers) - len(down) > 1:
            up = [name for name in network.brokers if name not in down]
            network.crash(self.rng.choice(up))

    def withdraw(self) -> None:
        broker = self.rng.choice(list(self.network.brokers.values()))
        if broker.is_up and broker.router.types:
            type = self.rng.choice(sorted(broker.router.types, key=str))
            self.network.withdraw(broker.name, type)

    def live(self, steps: int, failing: bool = True) -> None:
        choices = [self.subscribe] * 3 + [self.change] * 4 + [self.publish] * 4 + [self.withdraw]
        choices += [self.fail] * 3 if failing else []
        for _ in range(steps):
            self.rng.choice(choices)()
            self.network.run(self.network.now + self.rng.choice([0, 0.001, 0.02, 0.2]))

    def recover(self) -> None:
        for name, broker in self.network.brokers.items():
            if not broker.is_up:
                self.network.start(name)
        for wire in self.network.wires.values():
            self.network.mend(*wire.ends)
        self.network.run()


@given(seed=SEEDS, grading=st.sampled_from(GRADINGS), levels=st.sampled_from([0, 0, 1, 4]))
@settings(max_examples=MANY)
def test_after_failures_and_recoveries_each_event_finds_its_subscribers_once(
    seed: int, grading: Grading, levels: int
) -> None:
    rng = random.Random(seed)
    n = rng.randrange(2, 9)
    network = tree(rng, n, extra=rng.choice([0, 1, 3, 6]), grading=grading, levels=levels)
    life = Life(network, rng)
    life.live(40)
    life.recover()
    check_quiet(network)
    check_events(network, rng, 6)


@given(seed=SEEDS, grading=st.sampled_from(GRADINGS), levels=st.sampled_from([0, 0, 1, 4]))
@settings(max_examples=MANY)
def test_what_must_not_be_lost_comes_once_whatever_fails_meanwhile(
    seed: int, grading: Grading, levels: int
) -> None:
    rng = random.Random(seed)
    network = tree(rng, rng.randrange(2, 8), grading=grading, levels=levels)
    names = list(network.brokers)
    for i in range(6):
        network.subscribe(rng.choice(names), f"d{i}", random_form(rng), "Quote", keep=True)
    for i in range(3):
        network.subscribe(rng.choice(names), f"t{i}", random_form(rng), "Quote")
    network.run()
    life = Life(network, rng)
    published = []
    for _ in range(40):
        if rng.random() < 0.3:
            life.fail()
        up = [name for name in names if network.brokers[name].is_up]
        published.append(network.publish(rng.choice(up), random_event(rng), "Quote"))
        network.run(network.now + rng.choice([0, 0.01, 0.1]))
    life.recover()
    check_quiet(network)
    for happening in published:
        got = network.got(happening)
        wanted = {id for id in network.matching(happening) if id.startswith("d")}
        assert {id: n for id, n in got.items() if id.startswith("d")} == dict.fromkeys(wanted, 1)
        assert all(n == 1 for n in got.values())


def test_a_redundant_link_stands_by_and_takes_over() -> None:
    network = Simulator(3, SMALL)
    network.add("a", "b", "c")
    for pair in (("a", "b"), ("a", "c"), ("b", "c")):
        network.link(*pair)
    network.run()
    check_quiet(network)
    assert not network.brokers["b"].router.links["c"].is_active
    network.subscribe("c", "s", form("price > 1"))
    network.run()
    for cut in (None, ("a", "c")):
        if cut is not None:
            network.cut(*cut)
            network.run()
            assert network.brokers["b"].router.links["c"].is_active
        happening = network.publish("a", {"price": 2})
        network.run()
        assert network.got(happening) == {"s": 1}
    network.mend("a", "c")
    network.run()
    check_quiet(network)


@pytest.mark.parametrize("grading", GRADINGS, ids=GRADES)
def test_conditions_on_computed_values_and_lists_are_decided_at_their_broker(
    grading: Grading,
) -> None:
    network = Simulator(5, grading)
    network.add("edge", "core", "feed")
    network.link("edge", "core")
    network.link("core", "feed")
    wheres = [
        "price * volume > 10",
        "price < volume AND firm = 'IBM'",
        "ANY(tags) = 'x' AND price > 1",
        "firm ILIKE 'i%'",
        "NOT matches(firm, 'sun') AND price < 3",
        "exists(tags, t -> t = firm)",
    ]
    for at, where in enumerate(wheres):
        network.subscribe("edge", f"s{at}", form(where))
    network.run()
    for event in (
        {"price": 2, "volume": 6, "firm": "IBM", "tags": ["x"]},
        {"price": 2, "volume": 1, "firm": "SUN", "tags": ["SUN"]},
        {"price": 9, "volume": 1, "firm": "SUN"},
    ):
        happening = network.publish("feed", event)
        network.run()
        check_delivery(network, happening)
    check_quiet(network)


def test_an_update_within_the_bound_sends_nothing_upstream() -> None:
    network = Simulator(4, SMALL)
    network.add("edge", "core", "feed")
    network.link("edge", "core")
    network.link("core", "feed")
    network.subscribe("edge", "wide", form("price BETWEEN 0 AND 100"))
    network.subscribe("edge", "moving", form("price BETWEEN 10 AND 20"))
    network.publish("feed", {"price": -1})
    network.run()
    before = network.traffic.messages.total()
    for low in range(11, 60):
        network.subscribe("edge", "moving", form("price BETWEEN :a AND :b", a=low, b=low + 10))
        network.run()
    assert network.traffic.messages.total() == before
    assert network.brokers["edge"].router.counts.stopped >= 49
    network.subscribe("edge", "moving", form("price BETWEEN 90 AND 101"))
    network.run()
    assert network.traffic.messages.total() == before + 2  # one UPD a link
    assert network.traffic.messages["UPD"] >= 2


def test_of_a_set_of_strings_the_difference_is_sent() -> None:
    network = Simulator(5, SMALL)
    network.add("edge", "feed")
    network.link("edge", "feed")
    firms = [f"F{i:03d}" for i in range(200)]
    for firm in firms:
        network.subscribe("edge", firm, form("firm = :f", f=firm))
    network.publish("feed", {"firm": "none"})
    network.run()
    whole = network.traffic.n_bytes["SUB"]
    network.subscribe("edge", "F000", form("firm = 'G'"))
    network.run()
    assert network.traffic.messages["UPD"] == 1
    assert network.traffic.n_bytes["UPD"] * 20 < whole
    got = network.publish("feed", {"firm": "G"})
    gone = network.publish("feed", {"firm": "F000"})
    network.run()
    assert network.got(got) == {"F000": 1}
    assert network.got(gone) == {}
    assert network.spurious == 1  # the first event, before anything was known


def test_nothing_is_told_where_nothing_is_published() -> None:
    rng = random.Random(6)
    network = tree(rng, 6)
    for i, name in enumerate(network.brokers):
        network.subscribe(name, f"s{i}", random_form(rng), "Quote")
    network.run()
    assert not {"SUB", "UNSUB", "UPD", "ADV"} & set(network.traffic.messages)
    for broker in network.brokers.values():
        assert not any(link.outgoing for link in broker.router.links.values())


def test_a_forgotten_neighbour_leaves_nothing_behind() -> None:
    network = Simulator(7, SMALL)
    network.add("a", "b", "c")
    network.link("a", "b")
    network.link("b", "c")
    network.subscribe("a", "s", form("price > 1"), keep=True)
    network.publish("c", {"price": 0})
    network.run()
    network.crash("a")
    network.run()
    assert network.brokers["c"].router.links["b"].interests  # it waits for a
    network.forget("b", "a")
    network.run()
    assert not network.brokers["c"].router.links["b"].interests
    assert list(network.brokers["b"].router.links) == ["c"]


@pytest.mark.slow
def test_hundreds_of_brokers_agree() -> None:
    rng = random.Random(8)
    n = int(os.environ.get("TOCSIN_OVERLAY_BROKERS", "100"))
    network = tree(rng, n, extra=n // 20)
    life = Life(network, rng)
    for _ in range(10 * n):
        life.subscribe()
    life.live(40)
    life.recover()
    check_quiet(network)
    check_events(network, rng, 10)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [0, 4])
def test_a_core_that_matches_by_an_index_misses_nothing(levels: int) -> None:
    rng = random.Random(9)
    network = Simulator(9, Grading("exact"), levels=levels)
    network.add("feed", "core", *(f"edge{i}" for i in range(3)))
    network.link("feed", "core")
    for i in range(3):
        network.link("core", f"edge{i}")
    forms = {}
    for i in range(300):
        low = rng.randrange(10_000)
        forms[i] = form(f"a BETWEEN {low} AND {low + 50} AND b > {rng.randrange(10_000)}")
        network.subscribe(f"edge{i % 3}", f"s{i}", forms[i])
    network.publish("feed", {"a": -1, "b": 0})
    network.run()
    for link in network.brokers["core"].router.links.values():
        assert link.peer == "feed" or len(link.interests[None].slots) > 48
    before = network.spurious
    for _ in range(150):
        happening = network.publish(
            "feed", {"a": rng.randrange(10_000), "b": rng.randrange(10_000)}
        )
        network.run()
        assert network.got(happening) == dict.fromkeys(network.matching(happening), 1)
    network.subscribe("edge0", "s0", form("a = 20000"))
    network.unsubscribe("edge1", "s1")
    network.run()
    happening = network.publish("feed", {"a": 20000, "b": 0})
    network.run()
    assert network.got(happening) == {"s0": 1}
    assert (network.spurious > before) is (levels > 0)
