"""Who is linked to whom, and which links make up the tree.

Enters: links of this broker as they come and go, and what others say of theirs (`State`). Leaves:
states to pass on, and which of the own links carry events. Every broker knows all links of its part
of the network and derives the same tree from them: the links are taken in the order of their ends'
names, and one whose ends are joined already stands by. So a redundant link is no cycle; it takes
over when a link of the tree fails. The paper takes its overlay to be acyclic (Beretta, section
2.1); this makes it so.

Versions of a broker's state only grow. One that has lost its own finds it with its peers. What
a broker said is kept when it can no longer be reached: news of links come in any order, and it may
be joined again by what comes next.

A peer may be wrong, or lie. What it says of itself counts. What others say of a peer does not, so
no broker can remove a link between two others. A version that leaps is ignored, since its owner
could not outbid it, and the graph is bounded, so that invented brokers do not fill memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from tocsin.broker.overlay.messages import State

MAX_JUMP = 1 << 24
"""How far a version may be ahead of the one that is known: links that go up and down every second
for half a year."""
MAX_BROKERS = 4_000
MAX_ENDS = 20_000
"""Ends of links, over all brokers."""


class Graph:
    """The links of one part of a network, as one broker knows them."""

    def __init__(self, name: str, version: int = 0) -> None:
        self.name = name
        self.version = version
        self.up: set[str] = set()
        self.ignored = 0
        """States that were not believed, or found no room."""
        self._states: dict[str, State] = {}
        self._n_ends = 0

    def own(self) -> State:
        """Return the state of this broker."""
        return State(self.name, self.version, tuple(sorted(self.up)))

    def states(self) -> list[State]:
        """Return all that a new peer should know."""
        return [self.own(), *self._states.values()]

    def link_up(self, peer: str) -> None:
        """Add a link."""
        self.up.add(peer)
        self.version += 1

    def link_down(self, peer: str) -> None:
        """Remove a link."""
        self.up.discard(peer)
        self.version += 1

    def receive(self, state: State, source: str) -> list[State]:
        """Apply a state; return the states to forward."""
        if state.name == self.name:
            return self._receive_own(state)
        known = self._states.get(state.name)
        is_first_hand = state.name == source
        if state == known or (state.name in self.up and not is_first_hand):
            return []
        if known is not None and not is_first_hand:
            if state.version <= known.version:
                return []
            if state.version - known.version > MAX_JUMP:
                self.ignored += 1
                return []
        if not is_first_hand and not self._has_room(state):
            self.ignored += 1
            return []
        self._put(state)
        return [state]

    def _receive_own(self, state: State) -> list[State]:
        """Take a higher version than a state of this broker from before its restart."""
        if state.version < self.version or state == self.own():
            return []
        if state.version - self.version > MAX_JUMP:
            self.ignored += 1
            return []
        self.version = state.version + 1
        return [self.own()]

    def _put(self, state: State) -> None:
        known = self._states.get(state.name)
        self._n_ends += len(state.peers) - (len(known.peers) if known is not None else 0)
        self._states[state.name] = state

    def _has_room(self, state: State) -> bool:
        """Whether a state finds room, if need be in the place of brokers out of reach."""
        if self._would_fit(state):
            return True
        reached = self.members()
        for name in [name for name in self._states if name not in reached]:
            self._n_ends -= len(self._states.pop(name).peers)
        return self._would_fit(state)

    def _would_fit(self, state: State) -> bool:
        is_new = state.name not in self._states
        return (
            len(self._states) + is_new <= MAX_BROKERS
            and self._n_ends + len(state.peers) <= MAX_ENDS
        )

    def members(self) -> set[str]:
        """Return the brokers that can be reached, this one among them."""
        reached = {self.name}
        todo = [self.name]
        while todo:
            here = todo.pop()
            for there in self._ends(here):
                if there not in reached and here in self._ends(there):
                    reached.add(there)
                    todo.append(there)
        return reached

    def _ends(self, name: str) -> Set[str]:
        """Return the peers that a broker names."""
        if name == self.name:
            return self.up
        return self._states[name].ends if name in self._states else frozenset()

    def active(self) -> set[str]:
        """Return the peers whose links are in the tree.

        Links that both ends name join brokers, in the order of the links (Kruskal); a link of this
        broker whose ends are joined already stands by.
        """
        if len(self.up) < 2:  # a link that nothing could make redundant from here
            return set(self.up)
        groups: dict[str, str] = {}

        def group_of(name: str) -> str:
            while (above := groups.get(name, name)) != name:
                groups[name] = name = groups.get(above, above)
            return name

        active = set()
        for a, b in sorted(self._links()):
            group, other = group_of(a), group_of(b)
            if group == other:
                continue
            if self.name in (a, b):
                active.add(b if a == self.name else a)
            if a in self._ends(b) and b in self._ends(a):
                groups[other] = group
        return active

    def _links(self) -> Iterator[tuple[str, str]]:
        """Yield the links of this broker, and those between others that both ends name."""
        for peer in self.up:
            yield _order(self.name, peer)
        for name, state in self._states.items():
            for peer in state.ends:
                if name < peer != self.name and name in self._ends(peer):
                    yield name, peer


def _order(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
