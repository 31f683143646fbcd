"""`/publications`: what stays under a key: look at it, put it, change it, take it back.

Enters: keys in paths, `type` in the query, JSON. Leaves: publications as JSON, receipts. `PUT` and
`PATCH` do what `POST /events` does with `key`, without and with `merge`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker.events import Publication, check_type
from tocsin.broker.http.events import publish, read_published, shown
from tocsin.broker.http.requests import JsonResponse, broker_of, principal_of
from tocsin.broker.keyed import check_key, retraction, to_terms
from tocsin.broker.protocol import json_text
from tocsin.errors import EventError, UnknownPublicationError


def _place(request: Request) -> tuple[str | None, str]:
    return check_type(request.query_params.get("type")), check_key(request.path_params["key"])


def _describe(found: Publication) -> dict[str, Any]:
    return {
        "key": found.key,
        "type": found.type,
        "id": found.seq,
        "published": found.published,
        "valid_until": found.valid_until,
        "event": json_text.read(found.text),
    }


def _known(request: Request) -> Publication:
    place = _place(request)
    found = broker_of(request).past.by_place.get(place)
    if found is None:
        raise UnknownPublicationError(place[1])
    return found


async def get_publications(request: Request) -> Response:
    """List publications of a type (without one: of all types, for who may see them)."""
    query = request.query_params
    type, search = check_type(query.get("type")), query.get("search", "")
    principal_of(request).may_subscribe(type)
    asked = json_text.to_number(query.get("limit"))
    limit = 100 if asked is None else min(asked, 1000)
    every = list(broker_of(request).past.by_place.values())
    found = [
        each for each in every if (type is None or each.type == type) and search in (each.key or "")
    ]
    found.sort(key=lambda each: each.place[1])
    listed = [_describe(each) for each in islice(found, limit)]
    return JsonResponse({"publications": listed, "found": len(found)})


async def get_publication(request: Request) -> Response:
    """Show what a publication says now."""
    principal_of(request).may_subscribe(_place(request)[0])
    return JsonResponse(_describe(_known(request)))


async def put_publication(request: Request) -> Response:
    """Publish under a key; `PATCH` changes only what is named."""
    principal_of(request)
    merge = {"merge": True} if request.method == "PATCH" else {}
    terms = to_terms({**request.query_params, "key": _place(request)[1], **merge})
    events = await read_published(request, terms)
    if len(events) != 1:
        raise EventError("one event stands under a key")
    return JsonResponse(shown(events, await publish(request, events)))


async def delete_publication(request: Request) -> Response:
    """Take a publication back."""
    type, key = _place(request)
    principal_of(request).may_publish(type)
    _known(request)
    event = retraction(type, key)
    return JsonResponse(shown([event], await publish(request, [event])))
