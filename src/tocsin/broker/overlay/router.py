"""The router: which interests a peer gets, and which events. No clock, no sockets.

Enters: local subscriptions and publishers, links that come up and go down, messages of peers.
Leaves: messages to peers (`take`), and for each event the peers that get it (`route`).
After Jayaram et al. (Beretta), algorithms 1-3: types are advertised; interests travel against the
advertisements, one summary for each topic and link; a change is forwarded only if the summary that
was sent does not cover it. Events are replicated downstream and filtered upstream.

Missing knowledge loses nothing: until a peer has answered an advertisement, it gets every event of
the type. Durable interests of a peer count while its link is down (`Link.counts`), so that events
reach this broker and wait here.

Calls are deterministic: the same calls in the same order give the same messages. `to_state` and
`of_state` take a router over a restart; local subscriptions are the caller's to register again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.broker.overlay.cells import DEEPEST
from tocsin.broker.overlay.fields import MAX_SLOTS, MAX_TYPES, MAX_VERSION
from tocsin.broker.overlay.forms import ALWAYS, Slots, difference, widened
from tocsin.broker.overlay.grades import PLAIN, Grading, Member, new_aggregate
from tocsin.broker.overlay.graph import Graph
from tocsin.broker.overlay.links import Interest, Link, OutgoingInterest, in_order, topics_of
from tocsin.broker.overlay.messages import (
    Adv,
    Cells,
    Message,
    Standby,
    State,
    Sub,
    Topic,
    Types,
    Unadv,
    Unsub,
    Upd,
)
from tocsin.broker.overlay.rounding import Rounding
from tocsin.broker.overlay.table import NextHop, RouteTable
from tocsin.errors import ArgumentError, ProtocolError, TocsinError
from tocsin.normalize.normal import NormalForm


@dataclass
class Counts:
    """Counters of a router."""

    sent: int = 0
    updates: int = 0
    """Changes of local subscriptions."""
    stopped: int = 0
    """Changes that a summary absorbed: nothing was sent to a link for them."""


class Router:
    """One broker's part in the network."""

    def __init__(
        self,
        name: str,
        grading: Grading = PLAIN,
        *,
        gradings: Mapping[str, Grading] | None = None,
        levels: int = 0,
        engine: str = "auto",
    ) -> None:
        """`gradings` differ by peer; with `levels`, many slots are matched approximately."""
        if not 0 <= levels <= DEEPEST:
            raise ArgumentError(f"a broker matches with 0 to {DEEPEST} levels, not {levels}")
        self.name = name
        self.graph = Graph(name)
        self.links: dict[str, Link] = {}
        self.counts = Counts()
        self.levels = levels
        self.table = RouteTable(self.links, levels, engine)
        self._grading = grading
        self._gradings = dict(gradings or {})
        self._local: dict[Topic, dict[Member, tuple[NormalForm, bool]]] = {}
        self._topic_of: dict[Member, Topic] = {}
        self._types: set[Topic] = set()
        self._dirty: dict[tuple[str, Topic], None] = {}
        self._waiting: list[tuple[str, Message]] = []

    # Local subscriptions.

    def advertise(self, type: Topic) -> bool:
        """Advertise a type that is published here; return whether it is new."""
        if type in self._types:
            return False
        self._types.add(type)
        self._advertise_types()
        return True

    def unadvertise(self, type: Topic) -> None:
        """Withdraw the advertisement of a type."""
        self._types.discard(type)
        self._advertise_types()

    @property
    def types(self) -> frozenset[Topic]:
        """The types that are published here."""
        return frozenset(self._types)

    def subscribe(self, id: Member, topic: Topic, form: NormalForm, *, keep: bool = False) -> None:
        """Add or change a local subscription; with `keep` it must not lose events."""
        if self._topic_of.get(id, topic) != topic:
            raise ArgumentError("a subscription does not change its event type")
        self._topic_of[id] = topic
        form = widened(form)
        self._local.setdefault(topic, {})[id] = (form, keep)
        self.counts.updates += 1
        self._propagate(None, topic, ("", id), form, keep)

    def unsubscribe(self, id: Member) -> None:
        """Remove a local subscription."""
        topic = self._topic_of.pop(id)
        del self._local[topic][id]
        if not self._local[topic]:
            del self._local[topic]
        self._propagate(None, topic, ("", id), None, False)

    # Links.

    def expect(self, peer: str) -> None:
        """Add a peer that was linked before a restart, unless its state was restored."""
        if peer not in self.links:
            self.links[peer] = Link(peer)
            self._advertise_types()

    def link_up(self, peer: str, levels: int = 0) -> None:
        """Begin to use a link; everything is sent again.

        `levels` is the number of levels that the peer matches with. Where both ends match
        approximately, ranges are sent as cells, at the finer of the two resolutions.
        """
        if peer == self.name:
            raise ArgumentError("a broker is not linked to itself")
        link = self.links.setdefault(peer, Link(peer))
        if link.is_up:
            self.link_down(peer)
        link.is_up = True
        link.levels = max(self.levels, levels) if self.levels and levels else 0
        link.advertised.clear()
        self.graph.link_up(peer)
        self._waiting += [(peer, state) for state in self.graph.states()]
        self._flood(self.graph.own(), peer)
        self._exclude(link)  # until it is active
        self._activate_links()
        if not link.is_active:
            link.forget_interests()
            link.types.clear()
            self._waiting.append((peer, Standby()))

    def link_down(self, peer: str) -> None:
        """Stop using a link; durable interests of the peer stay."""
        link = self.links[peer]
        if not link.is_up:
            return
        if link.is_active:
            self._exclude(link)
        link.is_up = link.is_active = False
        self._clear_sent(link)
        for topic in [topic for topic, interest in link.interests.items() if not interest.keep]:
            del link.interests[topic]
        self._include(link)
        self.graph.link_down(peer)
        self._waiting = [(to, each) for to, each in self._waiting if to != peer]
        self._flood(self.graph.own(), peer)
        self._activate_links()

    def forget(self, peer: str) -> None:
        """Forget a peer that will not come back."""
        if peer in self.links:
            self.link_down(peer)
            link = self.links[peer]
            self._exclude(link)
            del self.links[peer]
            self.table.forget(peer)
            self._advertise_types()

    def _activate_links(self) -> None:
        """Begin to use the links that are in the tree now, and stop using all others."""
        active = self.graph.active()
        for peer, link in self.links.items():
            if link.is_up and link.is_active and peer not in active:
                self._exclude(link)
                link.is_active = False
                self._clear_sent(link)
                link.forget_interests()
                self._waiting.append((peer, Standby()))
            elif link.is_up and not link.is_active and peer in active:
                link.is_active = link.is_new = True
                self._include(link)
        self._advertise_types()

    def _clear_sent(self, link: Link) -> None:
        """Forget the interests that were sent to a peer."""
        link.outgoing.clear()
        for key in [key for key in self._dirty if key[0] == link.peer]:
            del self._dirty[key]

    # Messages of peers.

    def receive(self, peer: str, message: Message) -> None:
        """Take in a message of a peer whose link is up."""
        link = self.links.get(peer)
        if link is None or not link.is_up:
            raise ProtocolError(f"{peer} speaks, but its link is down")
        match message:
            case State():
                news = self.graph.receive(message, peer)
                for state in news:
                    self._flood(state, peer if state.name != self.name else None)
                if news:
                    self._activate_links()
            case Adv(type):
                link.types.add(type)
                if len(link.types) > MAX_TYPES:
                    link.types.discard(type)
                    raise ProtocolError(f"{peer} has more than {MAX_TYPES} event types")
                self._advertise_types()
            case Unadv(type):
                link.types.discard(type)
                self._advertise_types()
            case Types(types):
                link.types = set(types)
                self._advertise_types()
            case Standby():
                self._clear_received(link)
            case Cells():  # for whoever reads what comes next
                pass
            case _:
                self._receive_interest(link, message)

    def _receive_interest(self, link: Link, message: Sub | Unsub | Upd) -> None:
        topic = message.topic
        if topic not in topics_of(link.advertised):  # it crossed the withdrawal of an advertisement
            return
        match message:
            case Sub(_, slots, keep):
                self._set_interest(link, topic, Interest(slots, keep))
            case Unsub():
                self._set_interest(link, topic, None)
            case Upd(_, change, keep):
                interest = link.interests.get(topic)
                if interest is not None:
                    after = change.apply(interest.slots)
                    if len(after) > MAX_SLOTS:
                        raise ProtocolError(f"{link.peer} wants more than {MAX_SLOTS} slots")
                    self._set_interest(link, topic, Interest(after, keep))
                elif topic not in link.pending:
                    raise ProtocolError(f"{link.peer} changes what it never wanted")

    def grow(self, peer: str, topic: Topic, slots: Slots, keep: bool) -> None:
        """Add some of the slots that the next message of a peer has.

        A message with many slots is taken in in parts, with pauses between them. Until it is
        received as a whole, the peer gets every event of the topic.
        """
        link = self.links.get(peer)
        if link is None or not link.is_up or topic not in topics_of(link.advertised):
            return
        self._set_pending(link, topic)
        interest = link.interests.get(topic, Interest({}, keep))
        link.interests[topic] = Interest({**interest.slots, **slots}, interest.keep)
        self.table.changed(peer, topic)
        if link.counts:
            for slot, conjunction in slots.items():
                self._propagate(
                    link, topic, (peer, slot), NormalForm((conjunction,)), interest.keep
                )
        self.table.refresh(topic)

    def _clear_received(self, link: Link) -> None:
        for topic in list(link.interests):
            self._set_interest(link, topic, None)
        link.types.clear()
        link.known.clear()
        if link.is_active:
            for topic in in_order(topics_of(link.advertised)):
                self._set_pending(link, topic)
        self._advertise_types()

    def _set_interest(self, link: Link, topic: Topic, interest: Interest | None) -> None:
        """Replace the interest of a peer in a topic, and propagate the difference."""
        before = link.interests.get(topic)
        if interest is None:
            link.interests.pop(topic, None)
        else:
            link.interests[topic] = interest
        link.known.add(topic)
        self.table.changed(link.peer, topic)
        if topic in link.pending:
            link.pending.discard(topic)
            if link.counts:
                self._propagate(link, topic, (link.peer, -1), None, False)
        if not link.counts:
            return
        old = before.slots if before is not None else {}
        new = interest.slots if interest is not None else {}
        keep = interest is not None and interest.keep
        other_keep = before is not None and before.keep != keep
        for slot in old:
            if slot not in new:
                self._propagate(link, topic, (link.peer, slot), None, False)
        for slot, conjunction in new.items():
            if other_keep or slot not in old or old[slot] is not conjunction:
                self._propagate(link, topic, (link.peer, slot), NormalForm((conjunction,)), keep)

    def _set_pending(self, link: Link, topic: Topic) -> None:
        if topic not in link.pending:
            link.pending.add(topic)
            self.table.changed(link.peer, topic)
            if link.counts:
                self._propagate(link, topic, (link.peer, -1), ALWAYS, True)

    # Propagation.

    def _members(self, topic: Topic, but: Link) -> Iterator[tuple[Member, NormalForm, bool]]:
        """Yield the interests in a topic, local and of all links but one."""
        for id, (form, keep) in self._local.get(topic, {}).items():
            yield ("", id), form, keep
        for link in self.links.values():
            if link is not but and link.counts:
                yield from self._interests_of(link, topic)

    def _interests_of(self, link: Link, topic: Topic) -> Iterator[tuple[Member, NormalForm, bool]]:
        if topic in link.pending:
            yield (link.peer, -1), ALWAYS, True
        interest = link.interests.get(topic)
        if interest is not None:
            for slot, conjunction in interest.slots.items():
                yield (link.peer, slot), NormalForm((conjunction,)), interest.keep

    def _include(self, link: Link) -> None:
        """Add the interests of a peer to the aggregates of the other links."""
        for topic in in_order({*link.interests, *link.pending}):
            self.table.changed(link.peer, topic)
            for member, form, keep in self._interests_of(link, topic):
                self._propagate(link, topic, member, form, keep)

    def _exclude(self, link: Link) -> None:
        """Remove the interests of a peer from the aggregates of the other links."""
        for topic in in_order({*link.interests, *link.pending}):
            self.table.changed(link.peer, topic)
            for member, _, _ in self._interests_of(link, topic):
                self._propagate(link, topic, member, None, False)

    def _propagate(
        self, source: Link | None, topic: Topic, member: Member, form: NormalForm | None, keep: bool
    ) -> None:
        """Add a member to the aggregates of all links but its own, or remove it."""
        for link in self.links.values():
            outgoing = link.outgoing.get(topic)
            if outgoing is None or link is source:
                continue
            if form is None:
                outgoing.aggregate.drop(member)
                outgoing.kept.discard(member)
            else:
                outgoing.aggregate.put(member, form)
                (outgoing.kept.add if keep else outgoing.kept.discard)(member)
            self._dirty[link.peer, topic] = None

    def _advertise_types(self) -> None:
        """Advertise to each peer the types published here and behind the other peers."""
        for link in self.links.values():
            if link.is_up and not link.is_active:
                continue
            types = set(self._types)
            for other in self.links.values():
                if other is not link and other.counts:
                    types |= other.types
            self._advertise(link, types)
        for link in self.links.values():
            self._send_interests(link)

    def _advertise(self, link: Link, types: set[Topic]) -> None:
        before = topics_of(link.advertised)
        if link.is_active and link.is_new:
            self._waiting.append((link.peer, Types(tuple(in_order(types)))))
            link.is_new = False
        elif link.is_active:
            news: list[Message] = [Adv(type) for type in in_order(types - link.advertised)]
            news += [Unadv(type) for type in in_order(link.advertised - types)]
            self._waiting += [(link.peer, each) for each in news]
        link.advertised = set(types)
        now = topics_of(types)
        for topic in in_order(now - before - link.known):
            self._set_pending(link, topic)
        for topic in in_order({*link.interests, *link.pending} - now):
            self._set_interest(link, topic, None)
        link.known &= now

    def _send_interests(self, link: Link) -> None:
        """Begin to send a peer the interests in the topics that it advertises."""
        topics = link.topics
        for topic in [topic for topic in link.outgoing if topic not in topics]:
            del link.outgoing[topic]
            self._dirty.pop((link.peer, topic), None)
        for topic in in_order(topics - set(link.outgoing)):
            grading = self._gradings.get(link.peer, self._grading)
            rounding = Rounding(link.levels) if link.levels else None
            outgoing = link.outgoing[topic] = OutgoingInterest(new_aggregate(grading), rounding)
            for member, form, keep in self._members(topic, link):
                outgoing.aggregate.put(member, form)
                if keep:
                    outgoing.kept.add(member)
            self._dirty[link.peer, topic] = None

    def _flood(self, state: State, but: str | None) -> None:
        for peer, link in self.links.items():
            if link.is_up and peer != but:
                self._waiting.append((peer, state))

    def take(self) -> list[tuple[str, Message]]:
        """Return the queued messages, in order."""
        dirty, self._dirty = self._dirty, {}
        for peer, topic in dirty:
            link = self.links[peer]
            news = _updates(topic, link.outgoing[topic])
            self.counts.stopped += not news
            self._waiting += [(peer, message) for message in news]
        messages, self._waiting = self._waiting, []
        self.counts.sent += len(messages)
        return messages

    # Events.

    def route(
        self,
        type: Topic,
        event: Mapping[str, object],
        source: str | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> list[NextHop]:
        """Return the peers that get an event, but for the one it came from."""
        return [each for each in self.table.route(type, event, numbers) if each.peer != source]

    # Over restarts.

    def to_state(self, *, is_clean: bool = False) -> dict[str, Any]:
        """Return what outlives a restart, as JSON can hold it; `is_clean`: nothing comes after."""
        return {
            "is_clean": is_clean,
            "version": self.graph.version,
            "types": in_order(self._types),
            "links": {peer: link.to_state() for peer, link in self.links.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `to_state` returned.

        After a crash the last messages of peers may not have been stored: until peers send their
        interests again, they get all events. So does a peer whose state cannot be read.
        """
        version = state["version"]
        self.graph.version = version + 1 if 0 <= version < MAX_VERSION >> 1 else 0
        self._types = set(state["types"])
        for peer, stored in state["links"].items():
            try:
                link = Link.of_state(peer, stored)
            except (TocsinError, KeyError, TypeError, ValueError):
                link = Link(peer)
            if not state.get("is_clean"):
                link.known.clear()
            self.links[peer] = link
        self._advertise_types()


def _updates(topic: Topic, outgoing: OutgoingInterest) -> list[Message]:
    """Return the messages that bring a peer up to date on a topic."""
    slots = outgoing.slots()
    keep = bool(outgoing.kept)
    before, before_keep = outgoing.sent, outgoing.sent_keep
    if before is not None and slots == before and keep == before_keep:
        return []
    outgoing.sent, outgoing.sent_keep = slots, keep
    if not slots:
        return [Unsub(topic)] if before is None or before else []
    grids = outgoing.rounding.take_new_grids() if outgoing.rounding is not None else {}
    news: list[Message] = [Cells(topic, grids)] if grids else []
    if not before:
        return [*news, Sub(topic, slots, keep)]
    return [*news, Upd(topic, difference(before, slots), keep)]
