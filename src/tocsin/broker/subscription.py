"""A subscription as the broker knows it, and what it knows of those who listen.

Enters: what a client asked for (`Wanted`). Leaves: a `Subscription` with its counts, its listeners
where it is transient, its one reader where it is durable. Used within the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.broker import schema
from tocsin.broker.events import Event, to_timestamp
from tocsin.broker.keyed import from_wants
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import json_text
from tocsin.errors import ArgumentError
from tocsin.normalize import NormalForm


class Session(Protocol):
    """What the core needs of a connection."""

    outbox: Outbox
    is_dirty: bool

    def render(
        self,
        subscription: Subscription,
        event: Event,
        kind: int,
        redelivered: bool,
        missed: int,
        delivery_count: int = 0,
    ) -> bytes:
        """Return a notification as bytes for this connection.

        A kind is 0, or a transition's; a delivery count is 0 where deliveries are not counted.
        """

    def flush(self) -> None:
        """Let waiting messages go as far as the connection takes them."""

    def close_slow(self) -> None:
        """Close a connection that does not keep up."""


class Reader(Protocol):
    """What the core needs of whoever reads a durable subscription (`durable.Consumer`)."""

    on_replaced: Callable[[], None]

    def offer(self, event: Event, kind: int) -> None:
        """Take a notification that has just been committed."""

    def resume(self) -> None:
        """Go on reading where there is room."""

    def look(self) -> None:
        """Read from disk what was put there without being offered."""

    def configure(self) -> None:
        """Take over terms of redelivery that have changed."""

    def put_off(self, seqs: Sequence[int], seconds: float) -> None:
        """Have notifications in flight sent again later."""

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget what was acknowledged without it."""

    def forget_upto(self, seq: int) -> None:
        """Forget what was acknowledged without it, up to a number."""

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

    @property
    def n_bytes(self) -> int:
        """How many bytes the parameters and the options take as JSON."""
        if not self.params and not self.options:
            return 0
        return len(json_text.write(_to_json(self.params))) + len(json_text.write(self.options))


class Subscription:
    """A subscription that is live.

    `n_deferred` counts notifications that wait for the disk, and `quarantine` says why a stored
    condition could not be loaded: the subscription then matches nothing until it is changed.
    """

    __slots__ = (
        "consumer", "created", "dead", "dead_bytes", "durable", "form", "high_sent", "id",
        "is_suspended", "is_trimming", "json_id", "last_seq", "listeners", "mean_bytes", "missed",
        "n_deferred", "n_matched", "no", "pending", "quarantine", "stomp_head", "wanted", "wants",
    )  # fmt: skip

    def __init__(self, no: int, wanted: Wanted, created: int) -> None:
        self.no = no
        self.wanted = wanted
        self.id = wanted.id
        self.durable = wanted.durable
        self.is_suspended = False
        self.wants = wanted.wants
        self.json_id = json_text.write(wanted.id)
        self.created = created
        self.listeners: list[Session] = []
        self.consumer: Reader | None = None
        self.pending = 0
        self.mean_bytes = 0.0
        self.last_seq = 0
        self.high_sent = 0
        self.missed = 0
        self.dead = self.dead_bytes = 0
        self.is_trimming = False
        self.n_matched = 0
        self.n_deferred = 0
        self.quarantine: str | None = None
        self.stomp_head = b""
        self.form: NormalForm | None = None
        """The normal form of a new condition, until the network has taken note of it."""

    @property
    def backlog_bytes(self) -> int:
        """About how many bytes the notifications take that are not acknowledged."""
        return int(self.pending * self.mean_bytes)

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
        if self.is_suspended:
            shown["suspended"] = True
        if self.quarantine is not None:
            shown["quarantined"] = self.quarantine
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
            "dead": self.dead,
            "dead_bytes": self.dead_bytes,
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


def to_redelivery(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return when a notification is delivered again and how often, checked; 0 is off."""
    options: dict[str, Any] = {}
    if "ack_seconds" in found:
        seconds = found["ack_seconds"]
        if type(seconds) not in (int, float) or not (seconds == 0 or 0.1 <= seconds <= 604_800):
            raise ArgumentError("ack_seconds is a number from 0.1 to 604800 (a week), or 0")
        options["ack_seconds"] = seconds
    if "max_deliveries" in found:
        if type(found["max_deliveries"]) is not int or not 0 <= found["max_deliveries"] <= 10_000:
            raise ArgumentError("max_deliveries is a number from 0 to 10000")
        options["max_deliveries"] = found["max_deliveries"]
    return options


def to_delay(value: object) -> float | None:
    """Return the number of seconds that a notification is put off for; None for none."""
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        seconds = -1.0
    if isinstance(value, bool) or not 0 <= seconds <= 604_800:
        raise ArgumentError("delay is a number of seconds from 0 to 604800 (a week)")
    return seconds
