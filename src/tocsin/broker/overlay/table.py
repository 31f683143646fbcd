"""Events → the peers that get them.

Enters: the interests of peers. Leaves: for an event the peers that may have a match, each once. A
few slots are tested one by one. Where a topic has many (`MANY`), they go into an engine: an exact
one, or, with `levels`, the laboratory's `tama`, as in the core of Zhao and Wu's network (section
III): it lets through a few events without a match, which the edge broker drops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tocsin.broker.overlay.links import Link
from tocsin.broker.overlay.messages import Topic
from tocsin.broker.overlay.probes import Probe
from tocsin.encode.events import lookup
from tocsin.engines import make
from tocsin.engines.protocol import Engine
from tocsin.normalize.layout import from_forms
from tocsin.normalize.normal import Conjunction, NormalForm

MANY = 48


class NextHop(NamedTuple):
    """A peer that gets an event; `keep`: it must not be lost on the way."""

    peer: str
    keep: bool


class _NoExpressions:
    def expression(self, dense: int) -> Any:
        raise AssertionError("the engine evaluates no expressions")


class Index:
    """Conjunctions by owner and slot, in an engine: those of peers that have many."""

    def __init__(self, levels: int = 0, engine: str = "auto") -> None:
        options: dict[str, object] = {"levels": levels} if levels else {}
        self._engine: Engine = make("tama" if levels else engine, _NoExpressions(), options)
        self._dense: dict[str, dict[int, tuple[int, Conjunction]]] = {}
        self._peer_of: dict[int, str] = {}
        self._next = 0

    @property
    def peers(self) -> Iterable[str]:
        """The peers that have slots."""
        return self._dense

    def fill(self, peer: str, slots: Mapping[int, Conjunction]) -> None:
        """Make a peer's slots these."""
        indexed_slots = self._dense.setdefault(peer, {})
        removed = [slot for slot in indexed_slots if slots.get(slot) is not indexed_slots[slot][1]]
        dense = [indexed_slots.pop(slot)[0] for slot in removed]
        if dense:
            self._engine.delete(np.array(dense, np.int64))
            for each in dense:
                del self._peer_of[each]
        new = [
            (slot, conjunction) for slot, conjunction in slots.items() if slot not in indexed_slots
        ]
        if new:
            ids = np.arange(self._next, self._next + len(new), dtype=np.int64)
            self._next += len(new)
            made = from_forms([NormalForm((each,)) for _, each in new])
            self._engine.insert(ids, replace(made, subscription=ids[made.subscription]))
            for (slot, conjunction), each in zip(new, ids.tolist(), strict=True):
                indexed_slots[slot] = (each, conjunction)
                self._peer_of[each] = peer
        if not indexed_slots:
            del self._dense[peer]

    def match(self, event: Mapping[str, object]) -> set[str]:
        """Return the peers that have a slot for an event."""
        return {self._peer_of[each] for each in self._engine.match_one(event)}


class RouteTable:
    """The interests of peers, indexed for events."""

    def __init__(self, links: Mapping[str, Link], levels: int, engine: str) -> None:
        self._links = links
        self._engine = engine
        self._levels = levels
        self._indexes: dict[Topic, Index] = {}
        self._stale: set[tuple[str, Topic]] = set()

    def changed(self, peer: str, topic: Topic) -> None:
        """Mark the interest of a peer in a topic as changed."""
        self._links[peer].probes.pop(topic, None)
        self._stale.add((peer, topic))

    def forget(self, peer: str) -> None:
        """Forget a peer."""
        for index in self._indexes.values():
            index.fill(peer, {})
        self._stale = {each for each in self._stale if each[0] != peer}

    def route(
        self, type: Topic, event: Mapping[str, object], numbers: Mapping[str, Any] | None
    ) -> list[NextHop]:
        """Return the peers that get an event."""
        topics = (None,) if type is None else (None, type)
        hops: dict[str, bool] = {}
        for topic in topics:
            self.refresh(topic)
            index = self._indexes.get(topic)
            indexed = index.match(event) if index is not None and numbers is None else ()
            for link in self._links.values():
                if not link.counts:
                    continue
                if topic in link.pending:
                    hops[link.peer] = True
                    continue
                interest = link.interests.get(topic)
                if interest is None or hops.get(link.peer):
                    continue
                if link.peer in indexed or self._tried(link, topic, event, numbers):
                    hops[link.peer] = interest.keep or hops.get(link.peer, False)
        return [NextHop(peer, keep) for peer, keep in hops.items()]

    def _tried(
        self,
        link: Link,
        topic: Topic,
        event: Mapping[str, object],
        numbers: Mapping[str, Any] | None,
    ) -> bool:
        """Try the slots of a peer one by one, unless an index has them."""
        slots = link.interests[topic].slots
        if len(slots) > MANY and numbers is None:
            return False
        probes = link.probes.get(topic)
        if probes is None:
            probes = link.probes[topic] = [Probe(each) for each in slots.values()]
        if numbers is None:
            return any(probe.holds(event) for probe in probes)

        def values(name: str) -> Sequence[object]:
            text = lookup(event, name)
            return (text, numbers[name]) if name in numbers else (text,)

        return any(probe.may_hold(values) for probe in probes)

    def refresh(self, topic: Topic) -> None:
        """Bring the index of a topic up to date."""
        for peer, stale in [each for each in self._stale if each[1] == topic]:
            self._stale.discard((peer, stale))
            interest = self._links[peer].interests.get(topic) if peer in self._links else None
            many = interest is not None and len(interest.slots) > MANY
            index = self._indexes.get(topic)
            if many and index is None:
                index = self._indexes[topic] = Index(self._levels, self._engine)
            if index is not None and (many or peer in index.peers):
                index.fill(peer, interest.slots if many and interest is not None else {})
