"""`/subscriptions`: make, look at, change and remove; acknowledgements and dead letters.

Enters: JSON in our shape (`id`, `where`, `params`, …), an array of such objects, or the shape of
the CloudEvents Subscriptions API (`sink`, `filters`, `types`). Leaves: the same, with what became
of it.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker import schema
from tocsin.broker.audit import names_of
from tocsin.broker.core import Broker
from tocsin.broker.events import Event, check_type, to_end
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
from tocsin.broker.keyed import NAMES, to_wants
from tocsin.broker.protocol import filters, json_text
from tocsin.broker.quota import CHANGE, LIST
from tocsin.broker.subscription import (
    Subscription,
    Wanted,
    to_delay,
    to_params,
    to_redelivery,
)
from tocsin.broker.tokens import Principal
from tocsin.broker.webhooks import check_webhook
from tocsin.errors import ArgumentError, LimitError, UnknownSubscriptionError

_KNOWN = {
    "id", "where", "type", "params", "durable", "valid_until", "webhook", "overflow", "window",
    "transitions", "ack_seconds", "max_deliveries",
}  # fmt: skip
_CHANGEABLE = {
    "where", "params", "webhook", "overflow", "window", "ack_seconds", "max_deliveries",
}  # fmt: skip
_API = {"id", "source", "types", "config", "filters", "sink", "sinkcredential", "protocol",
        "protocolsettings"}  # fmt: skip
_BULK_BODY = 64 << 20
_MOST_SECRET = 1_000


def named(odd: Collection[object]) -> str:
    """Return the first of some names for an error; there may be any number of them."""
    return ", ".join(nsmallest(5, map(str, odd)))[:100]


def to_wanted(found: object, principal: Principal, broker: Broker) -> Wanted:
    """Return the subscription that a JSON object asks for."""
    if not isinstance(found, dict):
        raise ArgumentError("a subscription is a JSON object")
    if found.keys() & {"sink", "filters", "types", "protocol"}:
        found = _from_api(found)
    odd = found.keys() - _KNOWN - {"api"}
    if odd:
        raise ArgumentError(f"a subscription has no {named(odd)}")
    where = found.get("where")
    if not isinstance(where, str):
        raise ArgumentError("a subscription needs where, a text")
    id = found.get("id")
    if id is not None and not isinstance(id, str):
        raise ArgumentError("an id is a text")
    type = check_type(found.get("type"))
    principal.may_subscribe(type)
    durable = found.get("durable", "webhook" in found)
    if not isinstance(durable, bool):
        raise ArgumentError("durable is true or false")
    options = to_options(found, broker)
    wants = to_wants(found.get("transitions"))
    if wants:
        options["transitions"] = wants
    if "webhook" in options and not durable:
        raise ArgumentError("a webhook needs a durable subscription")
    return Wanted(
        id=id or secrets.token_hex(8),
        where=where,
        type=type,
        params=to_params(found.get("params")),
        durable=durable,
        valid_until=to_end(found.get("valid_until")),
        owner=principal.id,
        options=options,
    )


def to_options(found: Mapping[str, Any], broker: Broker) -> dict[str, Any]:
    """Return the options of a subscription, checked."""
    options: dict[str, Any] = {}
    if found.get("webhook") is not None:
        options["webhook"] = check_webhook(found["webhook"], broker.config)
        secret = found["webhook"].get("secret")
        if secret is not None:
            if not isinstance(secret, str) or not 0 < len(secret) <= _MOST_SECRET:
                raise ArgumentError(f"secret is a text of 1 to {_MOST_SECRET} characters")
            options["secret"] = secret
    if "overflow" in found:
        if found["overflow"] not in ("drop-oldest", "refuse"):
            raise ArgumentError("overflow is drop-oldest or refuse")
        options["overflow"] = found["overflow"]
    if "window" in found:
        if not isinstance(found["window"], int) or not 1 <= found["window"] <= 100_000:
            raise ArgumentError("window is a number from 1 to 100000")
        options["window"] = found["window"]
    options |= to_redelivery(found)
    if "api" in found:
        options["api"] = found["api"]
    return options


def _from_api(found: dict[str, Any]) -> dict[str, Any]:
    """Return our shape of a subscription in the CloudEvents shape."""
    odd = found.keys() - _API
    if odd:
        raise ArgumentError(f"a subscription has no {named(odd)}")
    ours: dict[str, Any] = {"where": filters.to_condition(found)}
    if found.get("protocol", "HTTP") != "HTTP":
        raise ArgumentError("the protocol is HTTP")
    for name in ("sinkcredential", "protocolsettings"):
        if found.get(name):
            raise ArgumentError(f"{name} is not supported: requests to the sink are plain POSTs")
    if found.get("id"):
        ours["id"] = found["id"]
    if found.get("sink") is not None:
        ours["webhook"] = {"url": found["sink"]}
    shown = ("source", "types", "filters", "sink", "protocol", "config")
    ours["api"] = {name: found[name] for name in shown if name in found}
    return ours


def describe(found: Subscription) -> dict[str, Any]:
    """Return a subscription as JSON, in the shape it was made in."""
    shown = found.describe()
    return {**shown, **shown.pop("api", {})}


def own(request: Request) -> tuple[Broker, Subscription]:
    """Return the subscription that a request names, where it is the asker's own."""
    broker, principal = broker_of(request), principal_of(request)
    id = request.path_params["id"]
    found = broker.registry.find(id)
    if not principal.may_see(found.wanted.owner):
        raise UnknownSubscriptionError(id)
    return broker, found


async def post_subscriptions(request: Request) -> Response:
    """Make one subscription, or many."""
    broker, principal = broker_of(request), principal_of(request)
    most = _BULK_BODY if principal.rights.admin else None
    value = await json_of(request, most)
    broker.rates.take(principal.id, CHANGE + (len(value) if isinstance(value, list) else 0) // 100)
    broker.disk.check()
    if not isinstance(value, list):
        (made,) = await broker.registry.add([to_wanted(value, principal, broker)])
        record(request, principal, "subscription.create", **_facts(made))
        broker.on_backlog(made)
        place = {"location": f"/subscriptions/{quote(made.id, safe='')}"}
        return JsonResponse(describe(made), 201, place)
    if len(value) > broker.config.limits.max_subscriptions:
        raise LimitError("too many subscriptions", "max_subscriptions")
    if len(value) > broker.config.limits.max_events and not principal.rights.admin:
        raise LimitError("too many subscriptions in one request", "max_events")
    all_wanted = await asyncio.get_running_loop().run_in_executor(
        None, lambda: [to_wanted(each, principal, broker) for each in value]
    )
    all_made = await broker.registry.add(all_wanted)
    record(request, principal, "subscription.create", **names_of([e.id for e in all_made]))
    for made in all_made:
        if made.pending:
            broker.on_backlog(made)
    return JsonResponse({"made": len(all_made)}, 201)


def _facts(found: Subscription) -> dict[str, Any]:
    """Return what the audit log says of a subscription."""
    hook = found.wanted.options.get("webhook")
    return {
        "id": found.id,
        "owner": found.wanted.owner or None,
        "type": found.wanted.type,
        "where": found.wanted.where,
        "webhook": None if hook is None else hook["url"],
    }


async def get_subscriptions(request: Request) -> Response:
    """List subscriptions; `search` is a part of the id or the condition, `owner` a token's id."""
    broker, principal = broker_of(request), principal_of(request)
    query = request.query_params
    broker.rates.take(principal.id, LIST)
    every = list(broker.registry.by_id.values())
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
    most: int,
) -> bytes:
    """Return a page of the subscriptions that somebody may see, as JSON."""
    search, after, owner = query.get("search", ""), query.get("after", ""), query.get("owner")
    mine = [
        each
        for each in every
        if principal.may_see(each.wanted.owner)
        and (owner is None or each.wanted.owner == owner)
        and (not search or search in each.id or search in each.wanted.where)
        and each.id > after
    ]
    key: Callable[[Subscription], Any] = lambda each: each.id  # noqa: E731
    if query.get("order") == "matched":
        key = lambda each: -each.n_matched  # noqa: E731
    first = take_first(mine, limit, key)
    page, is_cut = fill_page((json_text.write(describe(each)) for each in first), most)
    more = b',"more":true' if is_cut or len(mine) > len(first) else b""
    return b'{"subscriptions":[%s],"found":%d%s}' % (b",".join(page), len(mine), more)


async def get_subscription(request: Request) -> Response:
    """Show one subscription."""
    _, found = own(request)
    return JsonResponse(describe(found))


async def patch_subscription(request: Request) -> Response:
    """Change parameters, the condition, the webhook or the policy of overflow."""
    broker, found = own(request)
    principal = principal_of(request)
    value = await json_of(request)
    if not isinstance(value, dict) or not value:
        raise ArgumentError("a change is a JSON object")
    odd = value.keys() - _CHANGEABLE
    if odd:
        raise ArgumentError(f"{named(odd)} cannot be changed")
    where = value.get("where")
    if where is not None and not isinstance(where, str):
        raise ArgumentError("where is a text")
    if value.get("webhook") is not None and not found.wanted.durable:
        raise ArgumentError("a webhook needs a durable subscription")
    broker.rates.take(principal_of(request).id, CHANGE)
    params = to_params(value["params"]) if "params" in value else None
    await broker.registry.change(found, where, params, to_options(value, broker))
    record(request, principal, "subscription.change", **_facts(found))
    if found.consumer is not None:
        found.consumer.configure()
    broker.on_backlog(found)
    return JsonResponse(describe(found))


async def delete_subscription(request: Request) -> Response:
    """Remove a subscription and all it was to get."""
    broker, found = own(request)
    principal = principal_of(request)
    broker.rates.take(principal.id, CHANGE)
    await broker.remove([found])
    record(request, principal, "subscription.remove", **_facts(found))
    return Response(status_code=204)


async def post_ack(request: Request) -> Response:
    """Acknowledge notifications: `{"ids": […]}` or `{"upto": n}`."""
    broker, found = own(request)
    value = await json_of(request)
    if not found.wanted.durable:
        raise ArgumentError("only durable subscriptions are acknowledged")
    if not isinstance(value, dict):
        raise ArgumentError("an acknowledgement is a JSON object")
    upto, ids = value.get("upto"), value.get("ids")
    if isinstance(upto, int) and not isinstance(upto, bool) and 0 <= upto < 1 << 63:
        return JsonResponse({"acknowledged": await broker.acknowledge_upto(found, upto)})
    checked = acknowledged_ids(ids, broker.config.limits)
    return JsonResponse({"acknowledged": await acknowledge_ids(broker, found, checked)})


async def post_nack(request: Request) -> Response:
    """Refuse notifications: `{"ids": […]}`, for good or, with `delay`, for some seconds."""
    broker, found = own(request)
    return JsonResponse({"refused": await refuse(broker, found, await json_of(request))})


async def refuse(broker: Broker, found: Subscription, value: object) -> int:
    """Make dead letters of notifications, or put them off; return how many there were."""
    if not found.wanted.durable:
        raise ArgumentError("only notifications of durable subscriptions are refused")
    if not isinstance(value, dict):
        raise ArgumentError("a refusal is a JSON object")
    seqs = acknowledged_ids(value.get("ids"), broker.config.limits)
    delay, reason = to_delay(value.get("delay")), value.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise ArgumentError("reason is a text")
    if delay is not None:
        return await broker.put_off(found, seqs, delay)
    return await broker.bury_all(found, seqs, reason or "refused by the subscriber")


async def get_dead(request: Request) -> Response:
    """List dead letters, a page at a time: `next` is the `after` of the page that follows."""
    broker, found = own(request)
    query = request.query_params
    after, limit = json_text.to_number(query.get("after")), json_text.to_number(query.get("limit"))
    most = 100 if limit is None else max(1, min(limit, 1000))
    page, is_more = await broker.storage.read(
        _dead_page, found.no, after or 0, most, broker.config.limits.max_body
    )
    rest = b',"next":%d' % page[-1][0] if is_more else b""
    text = b'{"dead":[%s]%s}' % (b",".join(letter for _, letter in page), rest)
    return Response(text, media_type="application/json")


def _dead_page(connection: sqlite3.Connection, *asked: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Return numbers and texts of dead letters. Runs in the thread that reads."""
    rows, is_more = schema.dead_letters(connection, *asked)
    return [_to_letter(*row) for row in rows], is_more


def _to_letter(*row: Any) -> tuple[int, bytes]:
    *event, kind, reason, at, deliveries = row
    kept = Event.restored(*event)
    letter = {"id": kept.seq, "reason": reason, "at": at, "deliveries": deliveries}
    if kind:
        letter |= {"transition": NAMES[kind], "key": kept.key}
    return kept.seq, b'%s,"event":%s}' % (json_text.write(letter)[:-1], kept.text)


async def delete_dead(request: Request) -> Response:
    """Forget dead letters: all, or those that `id` names, repeated."""
    broker, found = own(request)
    ids = [json_text.to_number(each) for each in request.query_params.getlist("id")]
    seqs = acknowledged_ids(ids, broker.config.limits) if ids else None
    return JsonResponse({"purged": await broker.purge(found, seqs)})


async def post_revive(request: Request) -> Response:
    """Have dead letters delivered again, under new numbers: all, or `{"ids": […]}`."""
    broker, found = own(request)
    principal = principal_of(request)
    raw = await body_of(request)
    value = json_text.read(raw) if raw else {}
    if not isinstance(value, dict) or value.keys() - {"ids"}:
        raise ArgumentError('revive all, or with {"ids": [numbers]}')
    seqs = acknowledged_ids(value["ids"], broker.config.limits) if "ids" in value else None
    revived = await broker.revive(found, seqs)
    record(request, principal, "subscription.revive", id=found.id, n=revived)
    return JsonResponse({"revived": revived})
