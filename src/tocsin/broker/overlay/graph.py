"""Who is linked to whom, and which links make up the tree.

Enters: links of this broker as they come and go, and what others say of theirs (`State`). Leaves:
states to pass on, and which of the own links carry events. Every broker knows all links of its part
of the network and derives the same tree from them: the links are taken in the order of their ends'
names, and one whose ends are joined already stands by. So a redundant link is no cycle; it takes
over when a link of the tree fails. The paper takes its overlay to be acyclic (Beretta, section
2.1); this makes it so.

Versions of a broker's state only grow. One that has lost its own finds it with its neighbours. What
a broker said is kept when it can no longer be reached: news of links come in any order, and it may
be joined again by what comes next.
"""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.broker.overlay.messages import State


class Graph:
    """The links of one part of a network, as one broker knows them."""

    def __init__(self, name: str, version: int = 0) -> None:
        self.name = name
        self.version = version
        self.up: set[str] = set()
        self._states: dict[str, State] = {}

    def own(self) -> State:
        """Return what this broker says of itself."""
        return State(self.name, self.version, tuple(sorted(self.up)))

    def states(self) -> list[State]:
        """Return all that a new neighbour should know."""
        return [self.own(), *self._states.values()]

    def members(self) -> set[str]:
        """Return the brokers that can be reached, this one among them."""
        return self._reach(self.name, None, None)

    def link_up(self, peer: str) -> None:
        """Take note of a link."""
        self.up.add(peer)
        self.version += 1

    def link_down(self, peer: str) -> None:
        """Take note that a link is gone."""
        self.up.discard(peer)
        self.version += 1

    def hear(self, state: State) -> list[State]:
        """Take in what a broker says of itself; return what is news to others."""
        if state.name == self.name:
            if state.version < self.version or state == self.own():
                return []
            self.version = state.version + 1  # it was told before our last life ended
            return [self.own()]
        known = self._states.get(state.name)
        if known is not None and known.version >= state.version:
            return []
        self._states[state.name] = state
        return [state]

    def _peers(self, name: str) -> Iterable[str]:
        if name == self.name:
            return self.up
        state = self._states.get(name)
        return state.peers if state is not None else ()

    def _is_edge(self, a: str, b: str) -> bool:
        """Whether both ends say that there is a link."""
        return b in self._peers(a) and a in self._peers(b)

    def active(self) -> set[str]:
        """Return the neighbours whose links are in the tree."""
        if len(self.up) < 2:  # a link that nothing could make redundant from here
            return set(self.up)
        return {peer for peer in self.up if not self._is_redundant(peer)}

    def _is_redundant(self, peer: str) -> bool:
        """Whether links that come before this one in the order join its ends already."""
        return peer in self._reach(self.name, _order(self.name, peer), peer)

    def _reach(self, start: str, limit: tuple[str, str] | None, wanted: str | None) -> set[str]:
        """Return whom links before a limit lead to, or as many until one is found."""
        reached = {start}
        todo = [start]
        while todo:
            here = todo.pop()
            for there in self._peers(here):
                if there in reached or (limit is not None and _order(here, there) >= limit):
                    continue
                if self._is_edge(here, there):
                    reached.add(there)
                    if there == wanted:
                        return reached
                    todo.append(there)
        return reached


def _order(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
