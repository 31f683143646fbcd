"""Subscriptions of a broker, the table of them, and what they need of connections.

Enters: the specification of a client (`SubscriptionSpec`). Leaves: a `Subscription` with its
counts, and its listeners if it is transient or its one reader if it is durable. Used within the
event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tocsin.broker import schema
from tocsin.broker.events import Event, to_timestamp
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import json_text
from tocsin.broker.transitions import to_notify
from tocsin.errors import ArgumentError, UnknownSubscriptionError
from tocsin.language.dialects import read
from tocsin.normalize import NormalForm


class Session(Protocol):
    """A connection that gets notifications."""

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

        `kind` is 0 for a match; `delivery_count` is 0 where deliveries are not counted.
        """

    def flush(self) -> None:
        """Write waiting messages as far as the connection takes them."""

    def close_slow(self) -> None:
        """Close a connection that does not keep up."""


class Reader(Protocol):
    """The reader of a durable subscription (`durable.Consumer`)."""

    on_replaced: Callable[[], None]

    def offer(self, event: Event, kind: int) -> None:
        """Send a notification that has just been committed, or leave it on disk."""

    def resume(self) -> None:
        """Continue reading if there is capacity."""

    def look(self) -> None:
        """Read from disk notifications that were not offered."""

    def configure(self) -> None:
        """Apply changed terms of redelivery."""

    def put_off(self, seqs: Sequence[int], seconds: float) -> None:
        """Send notifications in flight again later."""

    def forget(self, seqs: Iterable[int]) -> None:
        """Remove notifications from flight that were acknowledged without it."""

    def forget_upto(self, seq: int) -> None:
        """Remove notifications from flight up to a number."""

    def detach(self) -> None:
        """Stop."""


@dataclass(frozen=True)
class SubscriptionSpec:
    """A subscription as a client specifies it."""

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
    def transition_mask(self) -> int:
        """Which transitions are asked for: 1 ENTER, 2 LEAVE, 3 both; 0 for every match."""
        return int(self.options.get("transitions", 0))

    @property
    def linger(self) -> float | None:
        """The seconds without a listener after which a transient subscription ends."""
        return self.options.get("linger")

    @property
    def n_bytes(self) -> int:
        """The size of parameters and options as JSON, in bytes."""
        if not self.params and not self.options:
            return 0
        return len(json_text.write(_to_json(self.params))) + len(json_text.write(self.options))


class WebhookFailures(NamedTuple):
    """The requests to a webhook that failed since the start: how many, and the last one.

    `in_a_row` is 0 when one has succeeded since; `at` is in microseconds since 1970.
    """

    n: int
    in_a_row: int
    reason: str
    at: int


class Subscription:
    """A live subscription.

    `n_deferred` counts notifications that wait for the disk. `quarantine` is why a stored condition
    could not be loaded: the subscription then matches nothing until it is changed.
    """

    __slots__ = (
        "consumer", "created", "dead", "dead_bytes", "durable", "form", "high_sent", "id",
        "is_suspended", "is_trimming", "json_id", "last_seq", "listeners", "mean_bytes", "missed",
        "n_deferred", "n_matched", "no", "pending", "quarantine", "spec", "stomp_head",
        "transition_mask", "webhook_failures",
    )  # fmt: skip

    def __init__(self, no: int, spec: SubscriptionSpec, created: int) -> None:
        self.no = no
        self.spec = spec
        self.id = spec.id
        self.durable = spec.durable
        self.is_suspended = False
        self.transition_mask = spec.transition_mask
        self.json_id = json_text.write(spec.id)
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
        self.webhook_failures: WebhookFailures | None = None
        self.form: NormalForm | None = None
        """The normal form of a new condition, until the network has it."""

    @property
    def refuses_overflow(self) -> bool:
        """Whether a publish is refused where this backlog is full."""
        return bool(self.spec.options.get("overflow") == "refuse")

    @property
    def backlog_bytes(self) -> int:
        """An estimate of the bytes of unacknowledged notifications."""
        return int(self.pending * self.mean_bytes)

    def row(self) -> schema.SubscriptionRow:
        """Return the subscription as a row of the database."""
        spec = self.spec
        return schema.SubscriptionRow(
            self.no,
            self.id,
            spec.type,
            spec.where,
            json_text.write(_to_json(spec.params)).decode(),
            int(spec.durable),
            spec.valid_until,
            spec.owner,
            json_text.write(spec.options).decode(),
            self.missed,
            self.created,
        )

    def describe(self) -> dict[str, Any]:
        """Return the subscription as clients see it."""
        spec = self.spec
        where, dialect = read(spec.where)
        shown = {k: v for k, v in spec.options.items() if k != "secret"}
        shown.pop("transitions", None)  # as the database names it
        if self.transition_mask:
            shown["notify"] = to_notify(self.transition_mask)
        if self.is_suspended:
            shown["suspended"] = True
        if self.quarantine is not None:
            shown["quarantined"] = self.quarantine
        if self.webhook_failures is not None:
            shown["webhook_failures"] = self.webhook_failures._asdict()
        return {
            "id": self.id,
            "type": spec.type,
            "where": where,
            "dialect": dialect,
            "params": _to_json(spec.params),
            "durable": spec.durable,
            "valid_until": spec.valid_until,
            "owner": spec.owner,
            "created": self.created,
            "matched": self.n_matched,
            "pending": self.pending,
            "missed": self.missed,
            "dead": self.dead,
            "dead_bytes": self.dead_bytes,
            "listeners": len(self.listeners) + (self.consumer is not None),
            **shown,
        }


class SubscriptionTable:
    """The live subscriptions, by id and by number.

    Negative numbers are those of peers: they have no id and no owner.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.by_no: dict[int, Subscription] = {}
        self.durable: set[int] = set()
        """The numbers of durable subscriptions that are not suspended."""
        self.n_refusing = 0
        """How many refuse a publish where their backlog is full."""
        self.suspended: set[str] = set()
        """The owners whose subscriptions are suspended."""
        self._n_owned: dict[str, int] = {}
        self._idle_since: dict[int, float | None] = {}
        """When the last listener left a subscription that lingers, by number."""

    def find(self, id: str) -> Subscription:
        """Return a subscription by its id, or raise UnknownSubscriptionError."""
        subscription = self.by_id.get(id)
        if subscription is None:
            raise UnknownSubscriptionError(id)
        return subscription

    def is_live(self, subscription: Subscription) -> bool:
        """Return whether a subscription has not been removed."""
        return self.by_no.get(subscription.no) is subscription

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; it is suspended if its owner is."""
        owner = subscription.spec.owner
        self.by_id[subscription.id] = self.by_no[subscription.no] = subscription
        self._n_owned[owner] = self._n_owned.get(owner, 0) + 1
        self.n_refusing += subscription.refuses_overflow
        subscription.is_suspended = owner in self.suspended
        if subscription.durable and not subscription.is_suspended:
            self.durable.add(subscription.no)
        if subscription.spec.linger is not None:
            self._idle_since[subscription.no] = None

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        del self.by_id[subscription.id], self.by_no[subscription.no]
        self.durable.discard(subscription.no)
        self._idle_since.pop(subscription.no, None)
        self._n_owned[subscription.spec.owner] -= 1
        self.n_refusing -= subscription.refuses_overflow

    def abandoned(self, now: float) -> list[Subscription]:
        """Return the subscriptions without a listener for longer than they linger."""
        over = []
        for no, since in self._idle_since.items():
            subscription = self.by_no[no]
            if subscription.listeners or since is None:
                self._idle_since[no] = None if subscription.listeners else now
            elif now - since > (subscription.spec.linger or 0):
                over.append(subscription)
        return over

    def change(self, subscription: Subscription, spec: SubscriptionSpec) -> None:
        """Give a subscription another specification."""
        before = subscription.refuses_overflow
        subscription.spec = spec
        self.n_refusing += subscription.refuses_overflow - before

    def owners(self) -> list[str]:
        """Return the owners of subscriptions."""
        return [owner for owner, n in self._n_owned.items() if n]

    def n_owned_by(self, owner: str) -> int:
        """Return how many subscriptions an owner has."""
        return self._n_owned.get(owner, 0)

    def owned_by(self, owner: str) -> list[Subscription]:
        """Return the subscriptions of an owner."""
        return [each for each in self.by_id.values() if each.spec.owner == owner]


def _to_json(params: Mapping[str, object]) -> dict[str, object]:
    return {
        name: {"timestamp": value.isoformat()} if hasattr(value, "isoformat") else value
        for name, value in params.items()
    }


def to_params(value: object) -> dict[str, object]:
    """Return parameters from JSON; a timestamp is `{"timestamp": "…"}`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentError("params is an object of names and values")
    return {
        name: to_timestamp(each["timestamp"], name)
        if isinstance(each, dict) and set(each) == {"timestamp"}
        else each
        for name, each in value.items()
    }


def to_redelivery(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of redelivery in parameters, checked."""
    options: dict[str, Any] = {}
    if "ack_seconds" in parameters:
        seconds = parameters["ack_seconds"]
        if type(seconds) not in (int, float) or not (seconds == 0 or 0.1 <= seconds <= 604_800):
            raise ArgumentError("ack_seconds is a number from 0.1 to 604800 (a week), or 0")
        options["ack_seconds"] = seconds
    if "max_deliveries" in parameters:
        if (
            type(parameters["max_deliveries"]) is not int
            or not 0 <= parameters["max_deliveries"] <= 10_000
        ):
            raise ArgumentError("max_deliveries is a number from 0 to 10000")
        options["max_deliveries"] = parameters["max_deliveries"]
    return options


def to_delay(value: object) -> float | None:
    """Return a delay of redelivery in seconds, checked; None for none."""
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        seconds = -1.0
    if isinstance(value, bool) or not 0 <= seconds <= 604_800:
        raise ArgumentError("delay is a number of seconds from 0 to 604800 (a week)")
    return seconds
