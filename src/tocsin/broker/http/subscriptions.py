"""`/subscriptions`: make, look at, change and remove; acknowledgements and dead letters.

Enters: JSON in our shape (`id`, `where`, `params`, …), an array of such objects, or the shape of
the CloudEvents Subscriptions API (`sink`, `filters`, `types`). Leaves: the same, with what became
of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker import schema
from tocsin.broker.core import Broker
from tocsin.broker.events import Event, check_type, to_end
from tocsin.broker.http.requests import JsonResponse, broker_of, json_of, principal_of
from tocsin.broker.keyed import NAMES, to_wants
from tocsin.broker.protocol import filters, json_text
from tocsin.broker.subscription import Subscription, Wanted, to_params
from tocsin.broker.tokens import Principal
from tocsin.broker.webhooks import check_webhook
from tocsin.errors import ArgumentError, LimitError, UnknownSubscriptionError

_KNOWN = {
    "id", "where", "type", "params", "durable", "valid_until", "webhook", "overflow", "window",
    "transitions",
}  # fmt: skip
_API = {"id", "source", "types", "config", "filters", "sink", "sinkcredential", "protocol",
        "protocolsettings"}  # fmt: skip
_BULK_BODY = 64 << 20


def to_wanted(found: object, principal: Principal, broker: Broker) -> Wanted:
    """Return the subscription that a JSON object asks for."""
    if not isinstance(found, dict):
        raise ArgumentError("a subscription is a JSON object")
    if found.keys() & {"sink", "filters", "types", "protocol"}:
        found = _from_api(found)
    odd = found.keys() - _KNOWN - {"api"}
    if odd:
        raise ArgumentError(f"a subscription has no {', '.join(sorted(map(str, odd)))[:100]}")
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
            options["secret"] = str(secret)
    if "overflow" in found:
        if found["overflow"] not in ("drop-oldest", "refuse"):
            raise ArgumentError("overflow is drop-oldest or refuse")
        options["overflow"] = found["overflow"]
    if "window" in found:
        if not isinstance(found["window"], int) or not 1 <= found["window"] <= 100_000:
            raise ArgumentError("window is a number from 1 to 100000")
        options["window"] = found["window"]
    if "api" in found:
        options["api"] = found["api"]
    return options


def _from_api(found: dict[str, Any]) -> dict[str, Any]:
    """Return our shape of a subscription in the CloudEvents shape."""
    odd = found.keys() - _API
    if odd:
        raise ArgumentError(f"a subscription has no {', '.join(sorted(map(str, odd)))[:100]}")
    ours: dict[str, Any] = {"where": filters.to_condition(found)}
    if found.get("protocol", "HTTP") != "HTTP":
        raise ArgumentError("the protocol is HTTP")
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
    if not isinstance(value, list):
        (made,) = await broker.registry.add([to_wanted(value, principal, broker)])
        broker.on_backlog(made)
        place = {"location": f"/subscriptions/{quote(made.id, safe='')}"}
        return JsonResponse(describe(made), 201, place)
    if len(value) > broker.config.limits.max_subscriptions:
        raise LimitError("too many subscriptions", "max_subscriptions")
    all_made = await broker.registry.add([to_wanted(each, principal, broker) for each in value])
    for made in all_made:
        if made.pending:
            broker.on_backlog(made)
    return JsonResponse({"made": len(all_made)}, 201)


async def get_subscriptions(request: Request) -> Response:
    """List subscriptions; `search` is a part of the id or the condition."""
    broker, principal = broker_of(request), principal_of(request)
    query = request.query_params
    search, order = query.get("search", ""), query.get("order", "id")
    asked = json_text.to_number(query.get("limit"))
    limit = 100 if asked is None else min(asked, 1000)
    after = query.get("after", "")
    mine = [
        each
        for each in broker.registry.by_id.values()
        if principal.may_see(each.wanted.owner)
        and (not search or search in each.id or search in each.wanted.where)
        and each.id > after
    ]
    if order == "matched":
        mine.sort(key=lambda each: -each.n_matched)
    else:
        mine.sort(key=lambda each: each.id)
    shown = [describe(each) for each in mine[:limit]]
    return JsonResponse({"subscriptions": shown, "found": len(mine)})


async def get_subscription(request: Request) -> Response:
    """Show one subscription."""
    _, found = own(request)
    return JsonResponse(describe(found))


async def patch_subscription(request: Request) -> Response:
    """Change parameters, the condition, the webhook or the policy of overflow."""
    broker, found = own(request)
    value = await json_of(request)
    if not isinstance(value, dict) or not value:
        raise ArgumentError("a change is a JSON object")
    odd = value.keys() - {"where", "params", "webhook", "overflow", "window"}
    if odd:
        raise ArgumentError(f"{', '.join(sorted(map(str, odd)))[:100]} cannot be changed")
    where = value.get("where")
    if where is not None and not isinstance(where, str):
        raise ArgumentError("where is a text")
    if value.get("webhook") is not None and not found.wanted.durable:
        raise ArgumentError("a webhook needs a durable subscription")
    params = to_params(value["params"]) if "params" in value else None
    await broker.registry.change(found, where, params, to_options(value, broker))
    broker.on_backlog(found)
    return JsonResponse(describe(found))


async def delete_subscription(request: Request) -> Response:
    """Remove a subscription and all it was to get."""
    broker, found = own(request)
    await broker.remove([found])
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
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise ArgumentError('acknowledge with {"upto": number} or {"ids": [numbers]}')
    if len(ids) > 100_000 or any(not 0 <= each < 1 << 63 for each in ids):
        raise ArgumentError("those are no numbers of notifications")
    return JsonResponse({"acknowledged": await broker.acknowledge_ids(found, ids)})


async def get_dead(request: Request) -> Response:
    """List dead letters."""
    broker, found = own(request)
    rows = await broker.storage.read(schema.dead_letters, found.no, 1000)
    letters = []
    for *event, kind, reason, at in rows:
        kept = Event.restored(*event)
        letter = {"id": kept.seq, "reason": reason, "at": at, "event": json_text.read(kept.text)}
        told = {"transition": NAMES[kind], "key": kept.key} if kind else {}
        letters.append({**letter, **told})
    return JsonResponse({"dead": letters})


async def post_revive(request: Request) -> Response:
    """Have dead letters delivered again."""
    broker, found = own(request)
    return JsonResponse({"revived": await broker.revive(found)})
