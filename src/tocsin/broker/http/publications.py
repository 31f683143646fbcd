"""`/publications`: what stays under a key: look at it, put it, change it, take it back.

Enters: keys in paths, `type` in the query, JSON. Leaves: publications as JSON, receipts. `PUT` and
`PATCH` do what `POST /events` does with `key`, without and with `merge`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker.events import Publication, check_type
from tocsin.broker.http.events import answer, publish, read_published
from tocsin.broker.http.requests import (
    broker_of,
    fill_page,
    key_of,
    limit_of,
    principal_of,
    record,
    take_first,
)
from tocsin.broker.keyed import check_key, retraction, to_terms
from tocsin.broker.protocol import json_text
from tocsin.broker.quota import LIST
from tocsin.errors import EventError, UnknownPublicationError


def _place(request: Request) -> tuple[str | None, str]:
    return check_type(request.query_params.get("type")), check_key(request.path_params["key"])


def _about(found: Publication) -> dict[str, Any]:
    return {
        "key": found.key,
        "type": found.type,
        "id": found.seq,
        "published": found.published,
        "valid_until": found.valid_until,
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
    broker, principal = broker_of(request), principal_of(request)
    principal.may_subscribe(type)
    broker.rates.take(principal.id, LIST)
    every = list(broker.past.by_place.values())
    text = await asyncio.get_running_loop().run_in_executor(
        None, _list, every, type, search, query.get("after", ""), limit_of(request),
        broker.config.limits.max_page_bytes,
    )  # fmt: skip
    return Response(text, media_type="application/json")


def _list(
    every: Sequence[Publication], type: str | None, search: str, after: str, limit: int, most: int
) -> bytes:
    """Return a page of publications, in the order of their keys, as JSON."""
    found = [
        each
        for each in every
        if (type is None or each.type == type)
        and search in (each.key or "")
        and (each.key or "") > after
    ]
    first = take_first(found, limit, lambda each: each.place[1])
    page, is_cut = fill_page(map(_write, first), most)
    more = b',"more":true' if is_cut or len(found) > len(first) else b""
    return b'{"publications":[%s],"found":%d%s}' % (b",".join(page), len(found), more)


def _write(found: Publication) -> bytes:
    """Return a publication as JSON; its text is JSON already."""
    head = json_text.write(_about(found))
    return b'%s,"event":%s}' % (head[:-1], found.text)


async def get_publication(request: Request) -> Response:
    """Show what a publication says now."""
    principal_of(request).may_subscribe(_place(request)[0])
    return Response(_write(_known(request)), media_type="application/json")


async def put_publication(request: Request) -> Response:
    """Publish under a key; `PATCH` changes only what is named."""
    principal = principal_of(request)
    merge = {"merge": True} if request.method == "PATCH" else {}
    terms = to_terms({**request.query_params, "key": _place(request)[1], **merge})
    events, idempotency = await read_published(request, terms)
    if len(events) != 1:
        raise EventError("one event stands under a key")
    receipt = await publish(request, events, idempotency)
    act = "publication.change" if merge else "publication.put"
    if not receipt.replayed:
        record(request, principal, act, key=events[0].key, type=events[0].type)
    return answer(events, receipt)


async def delete_publication(request: Request) -> Response:
    """Take a publication back."""
    type, key = _place(request)
    principal = principal_of(request)
    principal.may_publish(type)
    idempotency = key_of(request, b"")
    if idempotency is None or not broker_of(request).is_known(idempotency):
        _known(request)  # a repeat finds it gone
    event = retraction(type, key)
    receipt = await publish(request, [event], idempotency)
    if not receipt.replayed:
        record(request, principal, "publication.remove", key=key, type=type)
    return answer([event], receipt)
