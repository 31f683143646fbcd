"""The calls of a broker's clients: one table for the synchronous and the asynchronous client.

Enters: the arguments of a method. Leaves: a `Call`: method, path, body, and how the answer is read.
Each function here is a method of both clients (`client.py`), with its signature and documentation.
"""

from __future__ import annotations

import datetime as dt
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import pyarrow as pa

from tocsin.broker.protocol import json_text
from tocsin.errors import ArgumentError, ConditionWarning, TocsinError
from tocsin.language.dialects import SQL
from tocsin.language.expression import Expression
from tocsin.language.printer import print_expression
from tocsin.model import to_plain

T = TypeVar("T")
Moment = dt.datetime | str | int
"""A datetime, an ISO 8601 text, or microseconds since 1970."""
Row = Mapping[str, object]


class Keep(Enum):
    """The default of arguments that leave a value as it is, where None would remove it."""

    KEEP = "keep"


class Receipt(NamedTuple):
    """The outcome of a publish: how many events, their first and last number, all matches."""

    accepted: int
    first: int
    last: int
    matches: int


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `absent` is the result where the broker answers `absent_code`."""

    method: str
    path: str
    result: Callable[[Any], T]
    body: object = None
    query: Mapping[str, str | list[str]] = field(default_factory=dict)
    key: str | None = None
    """The idempotency key, under which the request may be repeated."""
    absent_code: str = ""
    absent: Any = None
    refuses: tuple[str, int] | None = None
    """The notification that is not acknowledged as handled."""

    def content(self) -> bytes | None:
        """Return the body as JSON; raise ArgumentError for values that JSON does not have."""
        if self.body is None:
            return None
        try:
            return json_text.write(self.body)
        except TypeError as error:
            raise ArgumentError(f"a value cannot be written as JSON: {error}") from None
        except TocsinError as error:
            raise ArgumentError(str(error)) from None

    def headers(self) -> dict[str, str]:
        """Return the headers that go with the body and the idempotency key."""
        headers = {} if self.body is None else {"content-type": "application/json"}
        return headers if self.key is None else {**headers, "idempotency-key": self.key}


def _nothing(answer: object) -> None:
    return None


def _warn(answer: Any) -> None:
    """Repeat what the broker finds suspect about a subscription as Python's warnings."""
    for text in answer.get("warnings", ()) if isinstance(answer, dict) else ():
        warnings.warn(f"subscription {answer.get('id')!r}: {text}", ConditionWarning, stacklevel=2)


def _id_of(answer: Any) -> str:
    id = str(answer["id"])
    _warn(answer)
    return id


def _object(answer: Any) -> dict[str, Any]:
    return dict(answer)


def _count(name: str) -> Callable[[Any], int]:
    return lambda answer: int(answer[name])


def _receipt(answer: Any) -> Receipt:
    for text in answer.get("warnings", ()):
        warnings.warn(text, ConditionWarning, stacklevel=2)
    return Receipt(*(int(answer[name]) for name in Receipt._fields))


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def subscription_path(id: str, rest: str = "") -> str:
    """Return the path of a subscription."""
    return f"/subscriptions/{quote(str(id), safe='')}{rest}"


# Publishing.


def publish(
    event: Row,
    *,
    key: str | int | None = None,
    type: str | None = None,
    valid_until: Moment | None = None,
    ttl: float | None = None,
    merge: bool = False,
    retain: float | None = None,
    idempotency_key: str | None = None,
) -> Call[Receipt]:
    """Publish an event; return when its durable notifications are on disk.

    With `key` it is a publication, which stays until it is updated, retracted or expires; `merge`
    changes only the fields in `event`. `type` is the event type. The event is valid until
    `valid_until`, or for `ttl` seconds; `retain` keeps it for subscriptions of the next seconds.

    A publish that gets no answer is repeated under its idempotency key, so that it is taken once.
    An application that repeats a publish itself, for instance after a crash, gives its own
    `idempotency_key`.

    Raises ArgumentError for values that JSON does not have, RefusedError where the broker refuses
    the event, UnavailableError where it does not answer for `retry_seconds`.
    """
    if not isinstance(event, Mapping):
        raise ArgumentError("publish takes one event, a mapping; publish_many takes several")
    terms = _given(key=key, type=type, valid_until=valid_until, ttl=ttl, retain=retain)
    return _publish([event], {**terms, **({"merge": True} if merge else {})}, idempotency_key)


def publish_many(
    events: Iterable[Row],
    *,
    key_of: str | None = None,
    type: str | None = None,
    valid_until: Moment | None = None,
    ttl: float | None = None,
    merge: bool = False,
    retain: float | None = None,
    idempotency_key: str | None = None,
) -> Call[Receipt]:
    """Publish several events, all or none; as `publish`.

    `key_of` is the name of the attribute that has the key of each event.
    """
    if isinstance(events, Mapping | str):
        raise ArgumentError("publish_many takes several events; publish takes one")
    terms = _given(key_of=key_of, type=type, valid_until=valid_until, ttl=ttl, retain=retain)
    several = list(events)
    return _publish(several, {**terms, **({"merge": True} if merge else {})}, idempotency_key)


def _publish(events: list[Row], terms: Row, key: str | None) -> Call[Receipt]:
    query: dict[str, str | list[str]] = {name: _text(value) for name, value in terms.items()}
    once = key or secrets.token_hex(16)
    return Call("POST", "/events", _receipt, events, query, once)


def _publication_path(key: str | int) -> str:
    return f"/publications/{quote(str(key), safe='')}"


def _of_type(type: str | None) -> dict[str, str | list[str]]:
    return {} if type is None else {"type": type}


def retract(key: str | int, *, type: str | None = None) -> Call[bool]:
    """Retract a publication; return whether there was one."""
    return Call(
        "DELETE", _publication_path(key), lambda _: True, query=_of_type(type),
        key=secrets.token_hex(16), absent_code="unknown-key", absent=False,
    )  # fmt: skip


def publication(key: str | int, *, type: str | None = None) -> Call[dict[str, Any] | None]:
    """Return a publication, its fields under `event`; None where there is none."""
    return Call(
        "GET", _publication_path(key), _object, query=_of_type(type), absent_code="unknown-key"
    )


# Subscriptions.


def _subscription(
    where: str | Expression | None, params: Row | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    fields = _given(**options)
    if where is not None:
        fields["where"] = where if isinstance(where, str) else print_expression(where)
    if params is not None:
        fields["params"] = {name: _parameter(value) for name, value in params.items()}
    return fields


def _parameter(value: object) -> object:
    plain = to_plain(value) if isinstance(value, Decimal | dt.date) else value
    return {"timestamp": plain.isoformat()} if isinstance(plain, dt.datetime) else plain


def subscribe(
    id: str | None,
    where: str | Expression,
    params: Row | None = None,
    *,
    valid_until: Moment | None = None,
    type: str | None = None,
    durable: bool | None = None,
    notify: Literal["enter", "leave", "both"] | None = None,
    overflow: Literal["drop-oldest", "refuse"] | None = None,
    window: int | None = None,
    webhook: Mapping[str, str] | None = None,
    ack_seconds: float | None = None,
    max_deliveries: int | None = None,
    ttl: float | None = None,
    linger: float | None = None,
    dialect: str | None = None,
) -> Call[str]:
    """Add a subscription; return its id, which the broker chooses where `id` is None.

    `params` fills the `:name` parameters of the condition, which is in a `dialect` (see
    `Matcher.subscribe`). With `type` only events of that type
    match. A `durable` subscription gets every match at least once, also those published while no
    client listens. `notify` asks for the transitions of publications instead of every match.
    `overflow` is what happens to a full backlog, `window` how many notifications may be
    unacknowledged, `webhook` (`url`, optionally `secret`) where notifications are sent;
    `ack_seconds` and `max_deliveries` are the terms of redelivery. It ends at `valid_until`, or
    after `ttl` seconds; a transient one also when no client has listened for `linger` seconds.

    Raises RefusedError where the broker refuses the condition or the id.
    """
    fields = _subscription(where, params, _given(
        id=id, valid_until=valid_until, type=type, durable=durable, notify=notify,
        overflow=overflow, window=window, webhook=webhook, ack_seconds=ack_seconds,
        max_deliveries=max_deliveries, ttl=ttl, linger=linger, dialect=dialect,
    ))  # fmt: skip
    return Call("POST", "/subscriptions", _id_of, fields)


def put(
    id: str,
    where: str | Expression,
    params: Row | None = None,
    *,
    valid_until: Moment | None = None,
    type: str | None = None,
    durable: bool | None = None,
    notify: Literal["enter", "leave", "both"] | None = None,
    overflow: Literal["drop-oldest", "refuse"] | None = None,
    window: int | None = None,
    webhook: Mapping[str, str] | None = None,
    ack_seconds: float | None = None,
    max_deliveries: int | None = None,
    dialect: str | None = None,
) -> Call[None]:
    """Add a subscription, or replace the one of this id; arguments as for `subscribe`.

    Its backlog stays. `type`, `durable` and `notify` of a subscription do not change: the broker
    refuses others with RefusedError.
    """
    call = subscribe(
        None, where, params, valid_until=valid_until, type=type, durable=durable, notify=notify,
        overflow=overflow, window=window, webhook=webhook, ack_seconds=ack_seconds,
        max_deliveries=max_deliveries, dialect=dialect,
    )  # fmt: skip
    return Call("PUT", subscription_path(id), _warn, call.body)


def update(
    id: str,
    where: str | Expression | None = None,
    params: Row | None = None,
    *,
    valid_until: Moment | Literal[Keep.KEEP] | None = Keep.KEEP,
    overflow: Literal["drop-oldest", "refuse"] | None = None,
    window: int | None = None,
    webhook: Mapping[str, str] | None = None,
    ack_seconds: float | None = None,
    max_deliveries: int | None = None,
    dialect: str | None = None,
) -> Call[None]:
    """Change the condition, some parameters, the end or options of a subscription.

    Whatever is left out stays; `dialect` is that of `where`. `valid_until=None` removes the end.
    """
    fields = _subscription(where, params, _given(
        overflow=overflow, window=window, webhook=webhook, ack_seconds=ack_seconds,
        max_deliveries=max_deliveries, dialect=dialect,
    ))  # fmt: skip
    if valid_until is not Keep.KEEP:
        fields["valid_until"] = valid_until
    return Call("PATCH", subscription_path(id), _warn, fields)


def unsubscribe(id: str) -> Call[None]:
    """Remove a subscription and its notifications."""
    return Call("DELETE", subscription_path(id), _nothing)


def subscribe_many(
    subscriptions: Iterable[Row], where: str | None = None, *, dialect: str | None = None
) -> Call[int]:
    """Add several subscriptions, all or none; return how many.

    Each is a mapping with the arguments of `subscribe` by name; an Arrow table or a data frame with
    such columns does as well. With `where`, a condition for all, columns other than `id` and
    `valid_until` are its parameters. `dialect` is that of the conditions that name none.
    """
    rows = [_given(dialect=dialect) | _row(each, where) for each in _rows(subscriptions)]
    return Call("POST", "/subscriptions", _count_created, rows)


def put_many(
    subscriptions: Iterable[Row], where: str | None = None, *, dialect: str | None = None
) -> Call[int]:
    """Add several subscriptions, and replace those whose ids are taken; return how many.

    The arguments are those of `subscribe_many`; every subscription has an id. All are checked
    before the first is changed.
    """
    rows = [_given(dialect=dialect) | _row(each, where) for each in _rows(subscriptions)]
    return Call("PUT", "/subscriptions", _count_put, rows)


def _count_put(answer: Any) -> int:
    _warn_of_many(answer)
    return int(answer["created"]) + int(answer["updated"])


def _count_created(answer: Any) -> int:
    _warn_of_many(answer)
    return int(answer["created"])


def _warn_of_many(answer: Any) -> None:
    for each in answer.get("warnings", ()):
        _warn(each)


def update_many(changes: Iterable[Row]) -> Call[int]:
    """Change several subscriptions; return how many.

    Each change is a mapping with `id` and the arguments of `update` by name. All are checked before
    the first is made.
    """
    rows = [_row(each, None) for each in _rows(changes)]
    return Call("PATCH", "/subscriptions", _count("updated"), rows)


def unsubscribe_many(ids: Iterable[str]) -> Call[int]:
    """Remove several subscriptions, all or none; return how many."""
    if isinstance(ids, str):
        raise ArgumentError("unsubscribe_many takes several ids; unsubscribe takes one")
    return Call("DELETE", "/subscriptions", _count("removed"), {"ids": [str(id) for id in ids]})


def _rows(table: Iterable[Row]) -> list[Row]:
    """Return the rows of a table as mappings; an attribute that is null is left out."""
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "to_pandas"):
        from tocsin.arguments import to_table

        table = [_given(**row) for row in to_table(table).to_pylist()]
    rows = list(table)
    if not all(isinstance(row, Mapping) for row in rows):
        raise ArgumentError("each subscription is a mapping of names to values")
    return rows


def _row(row: Row, where: str | None) -> dict[str, Any]:
    if where is None:
        fields = dict(row)
        condition, params = fields.pop("where", None), fields.pop("params", None)
        return {**fields, **_subscription(condition, params, {})}  # type: ignore[arg-type]
    own = {name: row[name] for name in ("id", "valid_until") if name in row}
    return {**own, **_subscription(where, {k: v for k, v in row.items() if k not in own}, {})}


def get(id: str) -> Call[dict[str, Any]]:
    """Return a subscription with its counts; raise RefusedError (404) where there is none."""
    return Call("GET", subscription_path(id), _object)


def subscriptions(
    *, search: str | None = None, owner: str | None = None, page_size: int = 1_000
) -> Pages:
    """Yield the subscriptions in the order of their ids.

    `search` is a part of the id or the condition, `owner` the id of a token.
    """
    query = _given(search=search, owner=owner, limit=str(page_size))

    def page(after: object) -> Call[dict[str, Any]]:
        more = {} if after is None else {"after": str(after)}
        return Call("GET", "/subscriptions", _object, query={**query, **more})

    def next_of(answer: dict[str, Any]) -> object:
        return answer["subscriptions"][-1]["id"] if answer.get("more") else None

    return Pages("subscriptions", page, next_of)


def to_table(described: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return subscriptions as a broker describes them as a table that `Matcher` loads."""
    params = [json_text.write(each["params"]).decode() if each["params"] else None
              for each in described]  # fmt: skip
    dialects = pa.array([each["dialect"] for each in described], pa.string())
    table = pa.table(
        {
            "id": pa.array([each["id"] for each in described], pa.string()),
            "where": pa.array([each["where"] for each in described], pa.string()),
            "params": pa.array(params, pa.string()),
            "valid_until": pa.array(
                [each["valid_until"] for each in described], pa.timestamp("us", "UTC")
            ),
        }
    )
    if set(dialects.to_pylist()) <= {SQL}:
        return table
    return table.append_column("dialect", dialects)


# Notifications and dead letters.


def acknowledge(id: str, notification: int) -> Call[None]:
    """Acknowledge one notification of a durable subscription."""
    return acknowledge_many(id, [notification])


def acknowledge_many(id: str, notifications: Sequence[int]) -> Call[None]:
    """Acknowledge notifications of a durable subscription by their ids."""
    return Call("POST", subscription_path(id, "/ack"), _nothing, {"ids": list(notifications)})


def refuse(
    id: str, notification: int, *, delay: float | None = None, reason: str | None = None
) -> Call[None]:
    """Refuse a notification: it becomes a dead letter, or comes again after `delay` seconds."""
    fields = {"ids": [notification], **_given(delay=delay, reason=reason)}
    return Call(
        "POST", subscription_path(id, "/nack"), _nothing, fields, refuses=(id, notification)
    )


def dead_letters(id: str) -> Pages:
    """Yield the dead letters of a subscription, oldest first."""

    def page(after: object) -> Call[dict[str, Any]]:
        query: dict[str, str | list[str]] = {"after": str(after or 0)}
        return Call("GET", subscription_path(id, "/dead"), _object, query=query)

    return Pages("dead", page, lambda answer: answer.get("next"))


def revive(id: str, letters: Sequence[int] | None = None) -> Call[int]:
    """Deliver dead letters again, all or those with these ids; return how many."""
    body = None if letters is None else {"ids": list(letters)}
    return Call("POST", subscription_path(id, "/revive"), _count("revived"), body)


def purge(id: str, letters: Sequence[int] | None = None) -> Call[int]:
    """Delete dead letters, all or those with these ids; return how many."""
    query: dict[str, str | list[str]] = {}
    if letters is not None:
        if not letters:
            raise ArgumentError("no dead letters are named; leave letters out for all")
        query["id"] = [str(each) for each in letters]
    return Call("DELETE", subscription_path(id, "/dead"), _count("purged"), query=query)


def stats() -> Call[dict[str, Any]]:
    """Return the broker's metrics; needs the right `admin`."""
    return Call("GET", "/stats", _object)


class Pages(NamedTuple):
    """A list that comes by pages: the name of its items, a page after a position, the next one."""

    items: str
    page: Callable[[object], Call[dict[str, Any]]]
    next_of: Callable[[dict[str, Any]], object]
