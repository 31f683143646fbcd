"""The state of one link.

Enters: what the router learns. Leaves: the record that it keeps for each link. What was received
(`types`, `interests`) and what was sent (`advertised`, `sent`) are kept apart, so that either end
can restart. A link that is down keeps the durable interests of its peer, so that events wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tocsin.broker.overlay.forms import Slots, slots_of_plain, slots_to_plain
from tocsin.broker.overlay.grades import Aggregate
from tocsin.broker.overlay.messages import Topic
from tocsin.broker.overlay.probes import Probe
from tocsin.broker.overlay.rounding import Rounding


@dataclass(frozen=True)
class Interest:
    """The interest of a peer in a topic: numbered conjunctions."""

    slots: Slots
    keep: bool

    @property
    def is_all(self) -> bool:
        """Whether it asks for every event of the topic."""
        return any(not conjunction for conjunction in self.slots.values())


@dataclass
class OutgoingInterest:
    """The interest in a topic that goes to a peer: aggregated, and as last sent."""

    aggregate: Aggregate
    rounding: Rounding | None = None
    """How ranges are rounded where they travel coded."""
    kept: set[object] = field(default_factory=set)
    """The members that must not lose events."""
    sent: Slots | None = None
    sent_keep: bool = False

    def slots(self) -> Slots:
        """Return the conjunctions that the peer should have."""
        gathered = self.aggregate.slots()
        return gathered if self.rounding is None else self.rounding.slots(gathered)


@dataclass
class Link:
    """One peer."""

    peer: str
    levels: int = 0
    """With how many levels ranges travel coded; 0: in plain form."""
    is_up: bool = False
    is_active: bool = False
    """Whether it is part of the tree, as this broker sees it."""
    is_new: bool = False
    """Whether nothing was sent since it became active."""
    types: set[Topic] = field(default_factory=set)
    """Types published behind the peer."""
    interests: dict[Topic, Interest] = field(default_factory=dict)
    """Interests of the peer, by topic."""
    pending: set[Topic] = field(default_factory=set)
    """Topics whose interest is not known yet: the peer gets all events."""
    known: set[Topic] = field(default_factory=set)
    """Topics the peer has sent interests for, including before the last reconnect."""
    advertised: set[Topic] = field(default_factory=set)
    """Types that were advertised to the peer."""
    outgoing: dict[Topic, OutgoingInterest] = field(default_factory=dict)
    probes: dict[Topic, list[Probe]] = field(default_factory=dict)
    """Predicates of the interests, compiled when first used."""

    @property
    def counts(self) -> bool:
        """Whether events may have to go to, or wait for, this peer."""
        return self.is_active or not self.is_up

    @property
    def topics(self) -> set[Topic]:
        """The topics whose interests have to be sent to the peer."""
        return topics_of(self.types) if self.is_active else set()

    def forget_interests(self) -> None:
        """Forget advertisements and interests in both directions."""
        for said in (self.advertised, self.interests, self.pending, self.known):
            said.clear()

    def to_state(self) -> dict[str, Any]:
        """Return the state to store, as JSON."""
        return {
            "types": in_order(self.types),
            "pending": in_order(self.pending),
            "known": in_order(self.known),
            "wants": [
                [topic, slots_to_plain(interest.slots)]
                for topic, interest in self.interests.items()
                if interest.keep
            ],
        }

    @classmethod
    def of_state(cls, peer: str, state: dict[str, Any]) -> Link:
        """Undo `to_state`."""
        wants = state["wants"]
        interests = {topic: Interest(slots_of_plain(slots), True) for topic, slots in wants}
        types, pending, known = (set(state[name]) for name in ("types", "pending", "known"))
        return cls(peer, interests=interests, types=types, pending=pending, known=known)


def in_order(topics: set[Topic]) -> list[Topic]:
    """Return topics in an order that does not depend on chance."""
    return sorted(topics, key=lambda topic: (topic is not None, topic or ""))


def topics_of(types: set[Topic]) -> set[Topic]:
    """Return the topics that events of some types have: each its own, and all of them None."""
    return types | {None} if types else set()
