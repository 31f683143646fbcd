"""Networks for the tests: random graphs and conditions, and what holds when all is quiet."""

from __future__ import annotations

import json
import random
from typing import Any

from tocsin.broker.overlay.grades import Grading
from tocsin.broker.overlay.links import topics_of
from tocsin.language import parse
from tocsin.normalize import NormalForm, bind, normalize
from tocsin_lab.simulator import Happening, Simulator

FIRMS = ["IBM", "SUN", "HP", "DEC"]
TYPES = ["Quote", "Trade", None]
SMALL = Grading("lub", max_pieces=1)


def form(where: str, **params: object) -> NormalForm:
    return normalize(bind(parse(where), params))


def random_form(rng: random.Random) -> NormalForm:
    low = rng.randrange(100)
    firm = rng.choice(FIRMS)
    texts = [
        f"firm = '{firm}' AND price BETWEEN {low} AND {low + rng.randrange(40)}",
        f"price < {low}",
        f"firm IN ('{firm}', '{rng.choice(FIRMS)}') AND volume > {low}",
        f"firm LIKE '{firm[0]}%' OR price > {low} AND volume IS NULL",
        f"firm LIKE '%{firm[-1]}' AND price >= {low}",
        f"NOT (firm = '{firm}') AND price <> {low}",
        "price < 1 AND price > 2",
    ]
    return form(rng.choice(texts))


def random_event(rng: random.Random) -> dict[str, Any]:
    event: dict[str, Any] = {"firm": rng.choice(FIRMS), "price": rng.randrange(100)}
    if rng.random() < 0.5:
        event["volume"] = rng.randrange(100)
    return event


def tree(
    rng: random.Random, n: int, extra: int = 0, grading: Grading = SMALL, levels: int = 0
) -> Simulator:
    """Return a random tree of brokers, with some links more, all up and quiet.

    With levels, those of some brokers; others have more, or none.
    """
    names = [f"b{i:03d}" for i in range(n)]
    by_name = {name: rng.choice([levels, 2 * levels, 0]) for name in names} if levels else 0
    network = Simulator(rng.randrange(1 << 30), grading, levels=by_name)
    network.add(*names)
    pairs = [(names[i], names[rng.randrange(i)]) for i in range(1, n)]
    for _ in range(extra):
        a, b = rng.sample(names, 2)
        if (a, b) not in pairs and (b, a) not in pairs:
            pairs.append((a, b))
    for a, b in pairs:
        network.link(a, b)
    network.run()
    return network


def check_quiet(network: Simulator) -> None:
    """Verify what must hold at each broker when nothing is on its way."""
    for wire in network.wires.values():
        for name, peer in (wire.ends, wire.ends[::-1]) if wire.is_up else ():
            here, there = network.brokers[name].router, network.brokers[peer].router
            mine, theirs = here.links[peer], there.links[name]
            assert mine.is_active == theirs.is_active, "the ends disagree about the tree"
            assert not mine.pending, "an advertisement was never answered"
            assert mine.advertised == theirs.types if mine.is_active else not theirs.types
            assert set(mine.outgoing) == mine.topics, "topics without an advertisement"
            assert set(theirs.interests) <= topics_of(theirs.advertised), (
                "an interest without advertisement"
            )
            for topic, outgoing in mine.outgoing.items():
                known = theirs.interests.get(topic)
                assert (known.slots if known else {}) == outgoing.sent
                assert (known.keep if known else False) == bool(outgoing.kept and outgoing.sent)
                kept = {member for member, _, keep in here._members(topic, mine) if keep}
                assert outgoing.kept == kept, "what must not be lost"
        assert not wire.is_up or _is_forest(network)
    for broker in network.brokers.values():
        assert not any(broker.queues.values()), "something was never acknowledged"


def _is_forest(network: Simulator) -> bool:
    """Whether active links join all brokers of a part without a circle."""
    group = {name: name for name in network.brokers}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for wire in network.wires.values():
        a, b = wire.ends
        if wire.is_up and network.brokers[a].router.links[b].is_active:
            assert root(a) != root(b), "a circle"
            group[root(a)] = root(b)
    return all(root(a) == root(b) for (a, b) in (w.ends for w in network.wires.values() if w.is_up))


def check_events(network: Simulator, rng: random.Random, n: int) -> None:
    """Publish events anywhere: exactly those whose condition each satisfies get it, once."""
    for _ in range(n):
        happening = network.publish(
            rng.choice(list(network.brokers)), random_event(rng), rng.choice(TYPES)
        )
        network.run()
        check_delivery(network, happening)


def check_delivery(network: Simulator, happening: Happening) -> None:
    wanted = dict.fromkeys(network.matching(happening), 1)
    assert network.got(happening) == wanted, json.dumps(happening.event)
