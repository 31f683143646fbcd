"""A subscription as the broker knows it, and what it knows of those who listen.

Enters: what a client asked for (`Wanted`). Leaves: a `Subscription` with its counts, its listeners
where it is transient, its one reader where it is durable. Used within the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.broker import schema
from tocsin.broker.events import Event, to_timestamp
from tocsin.broker.keyed import from_wants
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import json_text
from tocsin.errors import ArgumentError


class Session(Protocol):
    """What the core needs of a connection."""

    outbox: Outbox
    is_dirty: bool

    def render(
        self, subscription: Subscription, event: Event, kind: int, redelivered: bool, missed: int
    ) -> bytes:
        """Return a notification as bytes for this connection; a kind is 0, or a transition's."""

    def flush(self) -> None:
        """Let waiting messages go as far as the connection takes them."""

    def close_slow(self) -> None:
        """Close a connection that does not keep up."""


class Reader(Protocol):
    """What the core needs of whoever reads a durable subscription (`durable.Consumer`)."""

    in_flight: dict[int, None]
    on_replaced: Callable[[], None]

    def offer(self, event: Event, kind: int) -> None:
        """Take a notification that has just been committed."""

    def resume(self) -> None:
        """Go on reading where there is room."""

    def rewind(self) -> None:
        """Begin again with the oldest."""

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget what was acknowledged without it."""

    def detach(self) -> None:
        """Stop."""


@dataclass(frozen=True)
class Wanted:
    """A subscription that a client asks for."""

    id: str
    where: str
    type: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    durable: bool = False
    valid_until: int | None = None
    owner: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    stored: bool = True

    @property
    def wants(self) -> int:
        """Which transitions are asked for: 1 ENTER, 2 LEAVE, 3 both; 0 for a plain one."""
        return int(self.options.get("transitions", 0))


class Subscription:
    """A subscription that is live."""

    __slots__ = (
        "consumer", "created", "durable", "high_sent", "id", "json_id", "last_seq", "listeners",
        "missed", "n_matched", "no", "pending", "stomp_head", "wanted",
        "wants",
    )  # fmt: skip

    def __init__(self, no: int, wanted: Wanted, created: int) -> None:
        self.no = no
        self.wanted = wanted
        self.id = wanted.id
        self.durable = wanted.durable
        self.wants = wanted.wants
        self.json_id = json_text.write(wanted.id)
        self.created = created
        self.listeners: list[Session] = []
        self.consumer: Reader | None = None
        self.pending = 0
        self.last_seq = 0
        self.high_sent = 0
        self.missed = 0
        self.n_matched = 0
        self.stomp_head = b""

    def row(self) -> schema.SubscriptionRow:
        """Return the subscription as it is stored."""
        wanted = self.wanted
        return schema.SubscriptionRow(
            self.no,
            self.id,
            wanted.type,
            wanted.where,
            json_text.write(_to_json(wanted.params)).decode(),
            int(wanted.durable),
            wanted.valid_until,
            wanted.owner,
            json_text.write(wanted.options).decode(),
            self.missed,
            self.created,
        )

    def describe(self) -> dict[str, Any]:
        """Return what a client may see."""
        wanted = self.wanted
        shown = {k: v for k, v in wanted.options.items() if k != "secret"}
        if self.wants:
            shown["transitions"] = from_wants(self.wants)
        return {
            "id": self.id,
            "type": wanted.type,
            "where": wanted.where,
            "params": _to_json(wanted.params),
            "durable": wanted.durable,
            "valid_until": wanted.valid_until,
            "owner": wanted.owner,
            "created": self.created,
            "matched": self.n_matched,
            "pending": self.pending,
            "missed": self.missed,
            "listeners": len(self.listeners) + (self.consumer is not None),
            **shown,
        }


def _to_json(params: Mapping[str, object]) -> dict[str, object]:
    return {
        name: {"timestamp": value.isoformat()} if hasattr(value, "isoformat") else value
        for name, value in params.items()
    }


def to_params(found: object) -> dict[str, object]:
    """Return parameters from JSON; a timestamp is `{"timestamp": "…"}`."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentError("params is an object of names and values")
    return {
        name: to_timestamp(value["timestamp"], name)
        if isinstance(value, dict) and set(value) == {"timestamp"}
        else value
        for name, value in found.items()
    }
