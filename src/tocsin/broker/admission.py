"""Admission of connections: a budget for unauthenticated ones, and one for each token.

Enters: connections as they open, are authenticated and close. Leaves: an error, or an
unauthenticated connection (a stranger) closed, where a budget is spent. An authenticated connection
does not count against the budget of strangers, so that strangers cannot exhaust what clients need.
When that budget is spent, the oldest stranger is closed, so that a client that sends its token at
once gets in; if all strangers are new, this is a burst of clients, and the newcomer is closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from tocsin.broker.config import Config, Limits
from tocsin.broker.tokens import Principal
from tocsin.errors import LimitError

log = logging.getLogger("tocsin.connections")
_NEW = 1.0
_OTHER_DESCRIPTORS = 256
_PLAIN_REQUESTS = 1_000


class Closable(Protocol):
    """A stream that the broker can end."""

    principal: Principal | None
    is_revoked: bool

    def close(self, reason: str) -> None:
        """End once the outbox is empty."""

    def revoke(self) -> None:
        """End at once: the client has lost its rights."""


class Connections:
    """The open streams, WebSockets, STOMP connections and links. Used within the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.n = 0
        self.streams: set[Closable] = set()
        self._max = limits.max_connections

    def check(self) -> None:
        """Raise LimitError where `max_connections` are open."""
        if self.n >= self._max:
            raise LimitError("too many connections", "max_connections", 1.0)

    def opened(self, stream: Closable | None = None) -> None:
        """Count a connection; a stream is closed when the broker stops."""
        self.n += 1
        if stream is not None:
            self.streams.add(stream)

    def closed(self, stream: Closable | None = None) -> None:
        """Undo `opened`."""
        self.n -= 1
        if stream is not None:
            self.streams.discard(stream)


class _Stranger(NamedTuple):
    address: str
    since: float
    close: Callable[[], object]


class Admission:
    """The connections of a broker. Used within the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[object, _Stranger] = {}  # the oldest first
        self._by_address: dict[str, dict[object, None]] = {}
        self._owners: dict[object, str] = {}
        self._by_owner: Counter[str] = Counter()
        self.n_turned_away = 0

    @property
    def n_strangers(self) -> int:
        """How many connections are not authenticated."""
        return len(self._strangers)

    def enter(self, connection: object, address: str, close: Callable[[], object]) -> bool:
        """Admit a new connection; return whether it may stay. `close` ends it at once."""
        limits, now = self._limits, time.monotonic()
        group = self._by_address.setdefault(address, {})
        for most, oldest in (
            (limits.max_unauthenticated_per_address, group),
            (limits.max_unauthenticated, self._strangers),
        ):
            if len(oldest) < max(1, most):
                continue
            first = next(iter(oldest))
            self.n_turned_away += 1
            if now - self._strangers[first].since < _NEW:
                if not group:
                    del self._by_address[address]
                return False
            stranger = self._strangers[first]
            self.leave(first)
            stranger.close()
        self._by_address.setdefault(address, {})[connection] = None
        self._strangers[connection] = _Stranger(address, now, close)
        return True

    def admit(self, connection: object, owner: str) -> None:
        """Assign a connection to its owner, which is empty where no tokens are required."""
        if connection in self._owners:
            return
        most = self._limits.max_token_connections
        if owner and self._by_owner[owner] >= most:
            raise LimitError(
                f"a token has at most {most} connections", "max_token_connections", 1.0
            )
        self._forget_stranger(connection)
        self._owners[connection] = owner
        self._by_owner[owner] += 1

    def leave(self, connection: object) -> None:
        """Remove a closed connection."""
        self._forget_stranger(connection)
        owner = self._owners.pop(connection, None)
        if owner is not None:
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def _forget_stranger(self, connection: object) -> None:
        stranger = self._strangers.pop(connection, None)
        if stranger is not None:
            group = self._by_address[stranger.address]
            del group[connection]
            if not group:
                del self._by_address[stranger.address]


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of a client; for IPv6 its network of 64 bits."""
    peer = transport.get_extra_info("peername")
    return network_of(str(peer[0])) if isinstance(peer, tuple) and peer else ""


def network_of(host: str) -> str:
    """Return an address; for IPv6 the network of 64 bits, all of which one host can use."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def fit_to_descriptors(config: Config) -> Config:
    """Raise the limit of open files as far as possible; lower `max_connections` to it."""
    limits = config.limits
    needed = limits.max_connections + limits.max_unauthenticated
    needed += _PLAIN_REQUESTS + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return config
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if most >= needed:
        return config
    fitting = _fit(limits, most)
    log.warning(
        "this process may open %d files: max_connections is %d, not %d (raise the limit of open "
        "files, as with LimitNOFILE= of systemd, to at least %d)",
        most, fitting.max_connections, limits.max_connections, needed,
    )  # fmt: skip
    return replace(config, limits=fitting)


def _fit(limits: Limits, descriptors: int) -> Limits:
    """Return limits that need at most a number of open files."""
    spare = min(_OTHER_DESCRIPTORS, descriptors // 4)
    eighth = descriptors // 8
    strangers = max(1, min(limits.max_unauthenticated, eighth))
    left = descriptors - spare - strangers - min(_PLAIN_REQUESTS, eighth)
    return replace(
        limits,
        max_unauthenticated=strangers,
        max_connections=max(1, min(limits.max_connections, left)),
    )
