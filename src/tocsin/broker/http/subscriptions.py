"""`/subscriptions`: add, list, get, change and remove; acknowledgements and dead letters.

Enters: JSON in our shape (`id`, `where`, `params`, …), an array of such objects, or the shape of
the CloudEvents Subscriptions API (`sink`, `filters`, `types`). Leaves: subscriptions as JSON.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tocsin.arguments import to_written
from tocsin.broker import schema
from tocsin.broker.audit import names_of
from tocsin.broker.core import Broker
from tocsin.broker.events import Event, check_type, to_end, to_seconds
from tocsin.broker.http.requests import (
    JsonResponse,
    acknowledge_ids,
    acknowledged_ids,
    body_of,
    broker_of,
    fill_page,
    json_of,
    limit_of,
    principal_of,
    record,
    take_first,
)
from tocsin.broker.protocol import filters, json_text
from tocsin.broker.quota import CHANGE, LIST, TRY
from tocsin.broker.registry import KEEP, SpecEdit
from tocsin.broker.subscription import (
    Subscription,
    SubscriptionSpec,
    to_delay,
    to_params,
    to_redelivery,
)
from tocsin.broker.terms import to_flag
from tocsin.broker.tokens import Principal
from tocsin.broker.transitions import KINDS, refuse_old_name, to_transition_mask
from tocsin.broker.webhooks import check_webhook
from tocsin.errors import (
    ArgumentError,
    DuplicateSubscriptionError,
    EventError,
    LimitError,
    UnknownSubscriptionError,
)
from tocsin.language.dialects import SQL, read

_KNOWN = {
    "id", "where", "dialect", "type", "params", "durable", "valid_until", "webhook", "overflow",
    "window", "notify", "ack_seconds", "max_deliveries", "ttl", "linger",
}  # fmt: skip
_CHANGEABLE = {
    "where", "dialect", "params", "valid_until", "ttl", "webhook", "overflow", "window",
    "ack_seconds", "max_deliveries",
}  # fmt: skip
_API = {"id", "source", "types", "config", "filters", "sink", "sinkcredential", "protocol",
        "protocolsettings"}  # fmt: skip
_MAX_BULK_BODY = 64 << 20
_MAX_SECRET = 1_000
_MAX_EXAMINED = 20
"""The subscriptions of an array that are examined for mistakes."""


def named(odd: Collection[object]) -> str:
    """Return the first few of some names, for an error."""
    return ", ".join(nsmallest(5, map(str, odd)))[:100]


def to_spec(fields: object, principal: Principal, broker: Broker) -> SubscriptionSpec:
    """Return the specification in a JSON object; raise where the client may not subscribe."""
    if not isinstance(fields, dict):
        raise ArgumentError("a subscription is a JSON object")
    if fields.keys() & {"sink", "filters", "types", "protocol"}:
        fields = _from_api(fields)
    refuse_old_name(fields)
    odd = fields.keys() - _KNOWN - {"api"}
    if odd:
        raise ArgumentError(f"a subscription has no {named(odd)}")
    where = fields.get("where")
    if not isinstance(where, str):
        raise ArgumentError("a subscription needs where, a text")
    id = fields.get("id")
    if id is not None and not isinstance(id, str):
        raise ArgumentError("an id is a text")
    type = check_type(fields.get("type"))
    principal.may_subscribe(type)
    durable = fields.get("durable", "webhook" in fields)
    if not isinstance(durable, bool):
        raise ArgumentError("durable is true or false")
    options = to_options(fields, broker)
    mask = to_transition_mask(fields.get("notify"))
    if mask:
        options["transitions"] = mask
    if "linger" in options and durable:
        raise ArgumentError("a durable subscription does not linger: it stays until it is removed")
    if "webhook" in options and not durable:
        raise ArgumentError("a webhook needs a durable subscription")
    return SubscriptionSpec(
        id=id or secrets.token_hex(8),
        where=to_written(where, fields.get("dialect", SQL)),
        type=type,
        params=to_params(fields.get("params")),
        durable=durable,
        valid_until=_to_end(fields),
        owner=principal.id,
        options=options,
    )


def _to_end(fields: Mapping[str, Any]) -> int | None:
    """Return the end of a subscription: `valid_until`, or `ttl` seconds from now."""
    ttl = to_seconds(fields.get("ttl"), "ttl")
    if ttl is None:
        return to_end(fields.get("valid_until"))
    if fields.get("valid_until") is not None:
        raise ArgumentError("give ttl or valid_until, not both")
    return time.time_ns() // 1000 + ttl


def to_options(fields: Mapping[str, Any], broker: Broker) -> dict[str, Any]:
    """Return the options of a subscription, checked."""
    options: dict[str, Any] = {}
    if fields.get("webhook") is not None:
        options["webhook"] = check_webhook(fields["webhook"], broker.config)
        secret = fields["webhook"].get("secret")
        if secret is not None:
            if not isinstance(secret, str) or not 0 < len(secret) <= _MAX_SECRET:
                raise ArgumentError(f"secret is a text of 1 to {_MAX_SECRET} characters")
            options["secret"] = secret
    if "overflow" in fields:
        if fields["overflow"] not in ("drop-oldest", "refuse"):
            raise ArgumentError("overflow is drop-oldest or refuse")
        options["overflow"] = fields["overflow"]
    if "window" in fields:
        if not isinstance(fields["window"], int) or not 1 <= fields["window"] <= 100_000:
            raise ArgumentError("window is a number from 1 to 100000")
        options["window"] = fields["window"]
    if "linger" in fields:
        if type(fields["linger"]) not in (int, float) or not 1 <= fields["linger"] <= 604_800:
            raise ArgumentError("linger is a number of seconds from 1 to 604800 (a week)")
        options["linger"] = fields["linger"]
    options |= to_redelivery(fields)
    if "api" in fields:
        options["api"] = fields["api"]
    return options


def _from_api(fields: dict[str, Any]) -> dict[str, Any]:
    """Return our shape of a subscription in the CloudEvents shape."""
    odd = fields.keys() - _API
    if odd:
        raise ArgumentError(f"a subscription has no {named(odd)}")
    ours: dict[str, Any] = {"where": filters.to_condition(fields)}
    if fields.get("protocol", "HTTP") != "HTTP":
        raise ArgumentError("the protocol is HTTP")
    for name in ("sinkcredential", "protocolsettings"):
        if fields.get(name):
            raise ArgumentError(f"{name} is not supported: requests to the sink are plain POSTs")
    if fields.get("id"):
        ours["id"] = fields["id"]
    if fields.get("sink") is not None:
        ours["webhook"] = {"url": fields["sink"]}
    shown = ("source", "types", "filters", "sink", "protocol", "config")
    ours["api"] = {name: fields[name] for name in shown if name in fields}
    return ours


def describe(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as JSON, in the shape it was made in."""
    shown = subscription.describe()
    return {**shown, **shown.pop("api", {})}


def own(request: Request) -> tuple[Broker, Subscription]:
    """Return the subscription that a request names; raise where it is not the client's."""
    broker, principal = broker_of(request), principal_of(request)
    return broker, find_own(broker, principal, request.path_params["id"])


def find_own(broker: Broker, principal: Principal, id: object) -> Subscription:
    """Return a subscription that a client may see, or raise UnknownSubscriptionError."""
    subscription = broker.subscriptions.find(str(id))
    if not principal.may_see(subscription.spec.owner):
        raise UnknownSubscriptionError(str(id))
    return subscription


async def post_subscriptions(request: Request) -> Response:
    """Add one subscription, or an array of them."""
    broker, principal, value = await _read_change(request)
    broker.disk.check()
    if not isinstance(value, list):
        return await _create(request, broker, to_spec(value, principal, broker))
    if len(value) > broker.config.limits.max_subscriptions:
        raise LimitError("too many subscriptions", "max_subscriptions")
    specs = await asyncio.get_running_loop().run_in_executor(
        None, lambda: [to_spec(each, principal, broker) for each in value]
    )
    made = await broker.registry.add(specs)
    warnings = await _warnings_of_many(broker, made)
    record(request, principal, "subscription.create", **names_of([each.id for each in made]))
    for each in made:
        if each.pending:
            broker.webhooks.wake(each)
    return JsonResponse({"created": len(made), "warnings": warnings}, 201)


async def _warnings_of_many(
    broker: Broker, made: Sequence[Subscription]
) -> list[dict[str, object]]:
    """Return what is suspect about the first of some subscriptions, by id."""
    shown: list[dict[str, object]] = []
    for each in made[:_MAX_EXAMINED]:
        sentences = await broker.warnings(each.spec)
        if sentences:
            shown.append({"id": each.id, "warnings": sentences})
    return shown


async def _read_change(request: Request) -> tuple[Broker, Principal, Any]:
    """Return the broker, the client and the JSON of a change of one or many subscriptions."""
    broker, principal = broker_of(request), principal_of(request)
    value = await json_of(request, _MAX_BULK_BODY if principal.rights.admin else None)
    several = value.get("ids") if isinstance(value, dict) else value
    n = len(several) if isinstance(several, list) else 0
    broker.rates.take(principal.id, CHANGE + n // 100)
    if n > broker.config.limits.max_events and not principal.rights.admin:
        raise LimitError("too many subscriptions in one request", "max_events")
    return broker, principal, value


async def _create(request: Request, broker: Broker, spec: SubscriptionSpec) -> Response:
    (made,) = await broker.registry.add([spec])
    record(request, principal_of(request), "subscription.create", **_facts(made))
    broker.webhooks.wake(made)
    location = {"location": f"/subscriptions/{quote(made.id, safe='')}"}
    return JsonResponse(await _with_warnings(broker, made), 201, location)


async def _with_warnings(broker: Broker, subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as JSON, with what is suspect about it."""
    warnings = await broker.warnings(subscription.spec)
    return {**describe(subscription), "warnings": warnings}


def _facts(subscription: Subscription) -> dict[str, Any]:
    """Return the facts about a subscription for the audit log."""
    spec = subscription.spec
    where, dialect = read(spec.where)
    hook = spec.options.get("webhook")
    return {
        "id": spec.id,
        "owner": spec.owner or None,
        "type": spec.type,
        "where": where,
        "dialect": dialect,
        "webhook": None if hook is None else hook["url"],
    }


async def patch_subscriptions(request: Request) -> Response:
    """Change several subscriptions: all changes are checked before the first is made."""
    broker, principal, value = await _read_change(request)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ArgumentError("the body is an array of objects with id and changes")
    edits = []
    for each in value:
        subscription = find_own(broker, principal, each.pop("id", None))
        edits.append((subscription, to_edit(each, subscription, broker)))
    for subscription, edit in edits:
        await broker.registry.check_change(subscription, edit)
    for subscription, edit in edits:
        await _change(broker, subscription, edit)
    ids = [subscription.id for subscription, _ in edits]
    record(request, principal, "subscription.change", **names_of(ids))
    return JsonResponse({"updated": len(edits)})


async def delete_subscriptions(request: Request) -> Response:
    """Remove the subscriptions with some ids: all or none."""
    broker, principal, value = await _read_change(request)
    ids = value.get("ids") if isinstance(value, dict) else None
    if not isinstance(ids, list) or value.keys() != {"ids"}:
        raise ArgumentError('the body is {"ids": [texts]}')
    gone = [find_own(broker, principal, id) for id in dict.fromkeys(map(str, ids))]
    await broker.remove(gone)
    record(request, principal, "subscription.remove", **names_of([each.id for each in gone]))
    return JsonResponse({"removed": len(gone)})


async def get_subscriptions(request: Request) -> Response:
    """List subscriptions; `search` is a part of the id or the condition, `owner` a token's id."""
    broker, principal = broker_of(request), principal_of(request)
    query = request.query_params
    broker.rates.take(principal.id, LIST)
    every = list(broker.subscriptions.by_id.values())
    text = await asyncio.get_running_loop().run_in_executor(
        None, _list, every, principal, dict(query), limit_of(request),
        broker.config.limits.max_page_bytes,
    )  # fmt: skip
    return Response(text, media_type="application/json")


def _list(
    every: Sequence[Subscription],
    principal: Principal,
    query: Mapping[str, str],
    limit: int,
    max_bytes: int,
) -> bytes:
    """Return a page of the subscriptions that a client may see, as JSON."""
    search, after, owner = query.get("search", ""), query.get("after", ""), query.get("owner")
    selected = [
        each
        for each in every
        if principal.may_see(each.spec.owner)
        and (owner is None or each.spec.owner == owner)
        and (not search or search in each.id or search in each.spec.where)
        and each.id > after
    ]
    key: Callable[[Subscription], Any] = lambda each: each.id  # noqa: E731
    if query.get("order") == "matched":
        key = lambda each: -each.n_matched  # noqa: E731
    first = take_first(selected, limit, key)
    page, is_cut = fill_page((json_text.write(describe(each)) for each in first), max_bytes)
    more = b',"more":true' if is_cut or len(selected) > len(first) else b""
    return b'{"subscriptions":[%s],"found":%d%s}' % (b",".join(page), len(selected), more)


async def get_subscription(request: Request) -> Response:
    """Return one subscription; with `warnings=true`, also what is suspect about it now."""
    broker, subscription = own(request)
    if not to_flag(request.query_params.get("warnings", False), "warnings"):
        return JsonResponse(describe(subscription))
    broker.rates.take(principal_of(request).id, TRY)
    return JsonResponse(await _with_warnings(broker, subscription))


def to_edit(changes: Any, subscription: Subscription, broker: Broker) -> SpecEdit:
    """Return the change of a subscription that a JSON object describes."""
    if not isinstance(changes, dict) or not changes:
        raise ArgumentError("a change is a JSON object")
    refuse_old_name(changes)
    odd = changes.keys() - _CHANGEABLE
    if odd:
        raise ArgumentError(f"{named(odd)} cannot be changed")
    where = changes.get("where")
    if where is not None and not isinstance(where, str):
        raise ArgumentError("where is a text")
    if where is None and "dialect" in changes:
        raise ArgumentError("dialect is that of where, which is missing")
    if changes.get("webhook") is not None and not subscription.durable:
        raise ArgumentError("a webhook needs a durable subscription")
    return SpecEdit(
        where=to_written(where, changes.get("dialect", SQL)),
        params=to_params(changes["params"]) if "params" in changes else None,
        options=to_options(changes, broker),
        valid_until=_to_end(changes) if changes.keys() & {"valid_until", "ttl"} else KEEP,
    )


async def patch_subscription(request: Request) -> Response:
    """Change parts of a subscription."""
    broker, subscription = own(request)
    principal = principal_of(request)
    edit = to_edit(await json_of(request), subscription, broker)
    broker.rates.take(principal.id, CHANGE)
    await _change(broker, subscription, edit)
    record(request, principal, "subscription.change", **_facts(subscription))
    return JsonResponse(await _with_warnings(broker, subscription))


async def _change(broker: Broker, subscription: Subscription, edit: SpecEdit) -> None:
    await broker.registry.change(subscription, edit)
    if subscription.consumer is not None:
        subscription.consumer.configure()
    broker.webhooks.wake(subscription)


async def put_subscription(request: Request) -> Response:
    """Add a subscription, or replace all of it but its type, durability and `notify`."""
    broker, principal, value = await _read_change(request)
    id = request.path_params["id"]
    if not isinstance(value, dict) or value.get("id", id) != id:
        raise ArgumentError("the body is a subscription; its id is that of the path, or left out")
    spec = to_spec({**value, "id": id}, principal, broker)
    broker.disk.check()
    before = _replaced(broker, principal, spec)
    if before is None:
        return await _create(request, broker, spec)
    await _change(broker, before, _whole(spec))
    record(request, principal, "subscription.change", **_facts(before))
    return JsonResponse(await _with_warnings(broker, before))


async def put_subscriptions(request: Request) -> Response:
    """Add several subscriptions, and replace those whose ids are taken: all are checked first."""
    broker, principal, value = await _read_change(request)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ArgumentError("the body is an array of subscriptions")
    if not all(isinstance(each.get("id"), str) for each in value):
        raise ArgumentError("every subscription that is put has an id")
    broker.disk.check()
    specs = [to_spec(each, principal, broker) for each in value]
    if len({spec.id for spec in specs}) < len(specs):
        raise ArgumentError("an id occurs twice")
    pairs = [(_replaced(broker, principal, spec), spec) for spec in specs]
    edits = [(before, _whole(spec)) for before, spec in pairs if before is not None]
    for subscription, edit in edits:
        await broker.registry.check_change(subscription, edit)
    made = await broker.registry.add([spec for before, spec in pairs if before is None])
    for subscription, edit in edits:
        await _change(broker, subscription, edit)
    for each in made:
        if each.pending:
            broker.webhooks.wake(each)
    changed = [subscription for subscription, _ in edits]
    record(request, principal, "subscription.put", **names_of([spec.id for spec in specs]))
    warnings = await _warnings_of_many(broker, [*made, *changed])
    return JsonResponse({"created": len(made), "updated": len(edits), "warnings": warnings})


def _replaced(broker: Broker, principal: Principal, spec: SubscriptionSpec) -> Subscription | None:
    """Return the subscription that a specification replaces; raise where it cannot."""
    before = broker.subscriptions.by_id.get(spec.id)
    if before is None:
        return None
    if not principal.may_see(before.spec.owner):
        raise DuplicateSubscriptionError(spec.id)
    for name in ("type", "durable", "transition_mask"):
        if getattr(spec, name) != getattr(before.spec, name):
            shown = "notify" if name == "transition_mask" else name
            raise ArgumentError(f"{shown} of a subscription does not change: remove it first")
    return before


def _whole(spec: SubscriptionSpec) -> SpecEdit:
    """Return the change of a subscription into all of a specification."""
    options = {name: each for name, each in spec.options.items() if name != "transitions"}
    return SpecEdit(spec.where, spec.params, options, spec.valid_until, is_whole=True)


async def delete_subscription(request: Request) -> Response:
    """Remove a subscription and its notifications."""
    broker, subscription = own(request)
    principal = principal_of(request)
    broker.rates.take(principal.id, CHANGE)
    await broker.remove([subscription])
    record(request, principal, "subscription.remove", **_facts(subscription))
    return Response(status_code=204)


async def post_ack(request: Request) -> Response:
    """Acknowledge notifications: `{"ids": […]}` or `{"upto": n}`."""
    broker, subscription = own(request)
    value = await json_of(request)
    if not subscription.durable:
        raise ArgumentError("only durable subscriptions are acknowledged")
    if not isinstance(value, dict):
        raise ArgumentError("an acknowledgement is a JSON object")
    upto, ids = value.get("upto"), value.get("ids")
    if isinstance(upto, int) and not isinstance(upto, bool) and 0 <= upto < 1 << 63:
        return JsonResponse(
            {"acknowledged": await broker.backlog.acknowledge_upto(subscription, upto)}
        )
    checked = acknowledged_ids(ids, broker.config.limits)
    return JsonResponse({"acknowledged": await acknowledge_ids(broker, subscription, checked)})


async def post_nack(request: Request) -> Response:
    """Refuse notifications: `{"ids": […]}`, for good or, with `delay`, for some seconds."""
    broker, subscription = own(request)
    return JsonResponse({"refused": await refuse(broker, subscription, await json_of(request))})


async def refuse(broker: Broker, subscription: Subscription, value: object) -> int:
    """Make dead letters of notifications, or postpone them; return how many."""
    if not subscription.durable:
        raise ArgumentError("only notifications of durable subscriptions are refused")
    if not isinstance(value, dict):
        raise ArgumentError("a refusal is a JSON object")
    seqs = acknowledged_ids(value.get("ids"), broker.config.limits)
    delay, reason = to_delay(value.get("delay")), value.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise ArgumentError("reason is a text")
    if delay is not None:
        return await broker.backlog.put_off(subscription, seqs, delay)
    return await broker.backlog.bury_all(subscription, seqs, reason or "refused by the subscriber")


async def get_dead(request: Request) -> Response:
    """List dead letters, a page at a time: `next` is the `after` of the page that follows."""
    broker, subscription = own(request)
    query = request.query_params
    after, limit = json_text.to_number(query.get("after")), json_text.to_number(query.get("limit"))
    most = 100 if limit is None else max(1, min(limit, 1000))
    page, is_more = await broker.storage.read(
        _dead_page, subscription.no, after or 0, most, broker.config.limits.max_body
    )
    rest = b',"next":%d' % page[-1][0] if is_more else b""
    text = b'{"dead":[%s]%s}' % (b",".join(letter for _, letter in page), rest)
    return Response(text, media_type="application/json")


def _dead_page(connection: sqlite3.Connection, *page: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Return numbers and texts of dead letters. Runs in the thread that reads."""
    rows, is_more = schema.dead_letters(connection, *page)
    return [_to_letter(*row) for row in rows], is_more


def _to_letter(*row: Any) -> tuple[int, bytes]:
    *event, kind, reason, at, deliveries = row
    letter = {"id": event[0], "reason": reason, "at": at, "deliveries": deliveries}
    try:
        restored = Event.restored(*event)
    except EventError:  # damaged on disk, as the reason says
        return event[0], json_text.write({**letter, "event": None})
    if kind in KINDS:
        letter |= {"kind": KINDS[kind], "key": restored.key}
    return restored.seq, b'%s,"event":%s}' % (json_text.write(letter)[:-1], restored.text)


async def delete_dead(request: Request) -> Response:
    """Delete dead letters: all, or those with the ids in the query."""
    broker, subscription = own(request)
    ids = [json_text.to_number(each) for each in request.query_params.getlist("id")]
    seqs = acknowledged_ids(ids, broker.config.limits) if ids else None
    return JsonResponse({"purged": await broker.backlog.purge(subscription, seqs)})


async def post_revive(request: Request) -> Response:
    """Deliver dead letters again under new ids: all, or `{"ids": […]}`."""
    broker, subscription = own(request)
    principal = principal_of(request)
    raw = await body_of(request)
    value = json_text.read(raw) if raw else {}
    if not isinstance(value, dict) or value.keys() - {"ids"}:
        raise ArgumentError('revive all, or with {"ids": [numbers]}')
    seqs = acknowledged_ids(value["ids"], broker.config.limits) if "ids" in value else None
    revived = await broker.delivery.revive(subscription, seqs)
    record(request, principal, "subscription.revive", id=subscription.id, n=revived)
    return JsonResponse({"revived": revived})


_MANY: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "GET": get_subscriptions,
    "POST": post_subscriptions,
    "PUT": put_subscriptions,
    "PATCH": patch_subscriptions,
    "DELETE": delete_subscriptions,
}


async def serve_many(request: Request) -> Response:
    """Serve a call about several subscriptions."""
    return await _MANY["GET" if request.method == "HEAD" else request.method](request)
