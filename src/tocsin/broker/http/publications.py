"""`/publications`: list, get, put, update and retract publications.

Enters: keys in paths, `type` in the query, JSON. Leaves: publications as JSON, receipts. `PUT` and
`PATCH` do what `POST /events` does with `key`, without and with `merge`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from tocsin.broker.protocol import json_text
from tocsin.broker.quota import LIST
from tocsin.broker.terms import check_key, retraction, to_terms
from tocsin.errors import EventError, UnknownPublicationError


def _address(request: Request) -> tuple[str | None, str]:
    return check_type(request.query_params.get("type")), check_key(request.path_params["key"])


def _to_json(publication: Publication) -> dict[str, Any]:
    return {
        "key": publication.key,
        "type": publication.type,
        "id": publication.seq,
        "published": publication.published,
        "valid_until": publication.valid_until,
    }


def _existing(request: Request) -> Publication:
    address = _address(request)
    publication = broker_of(request).publications.by_address.get(address)
    if publication is None:
        raise UnknownPublicationError(address[1])
    return publication


async def get_publications(request: Request) -> Response:
    """List publications of a type (without one: of all types, for who may see them)."""
    query = request.query_params
    type, search = check_type(query.get("type")), query.get("search", "")
    broker, principal = broker_of(request), principal_of(request)
    principal.may_subscribe(type)
    broker.rates.take(principal.id, LIST)
    every = list(broker.publications.by_address.values())
    text = await asyncio.get_running_loop().run_in_executor(
        None, _list, every, type, search, query.get("after", ""), limit_of(request),
        broker.config.limits.max_page_bytes,
    )  # fmt: skip
    return Response(text, media_type="application/json")


def _list(
    every: Sequence[Publication], type: str | None, search: str, after: str, limit: int, most: int
) -> bytes:
    """Return a page of publications, in the order of their keys, as JSON."""
    selected = [
        each
        for each in every
        if (type is None or each.type == type)
        and search in (each.key or "")
        and (each.key or "") > after
    ]
    first = take_first(selected, limit, lambda each: each.address[1])
    page, is_cut = fill_page(map(_write, first), most)
    more = b',"more":true' if is_cut or len(selected) > len(first) else b""
    return b'{"publications":[%s],"found":%d%s}' % (b",".join(page), len(selected), more)


def _write(publication: Publication) -> bytes:
    """Return a publication as JSON; its text is JSON already."""
    head = json_text.write(_to_json(publication))
    return b'%s,"event":%s}' % (head[:-1], publication.text)


async def get_publication(request: Request) -> Response:
    """Return a publication."""
    principal_of(request).may_subscribe(_address(request)[0])
    return Response(_write(_existing(request)), media_type="application/json")


async def put_publication(request: Request) -> Response:
    """Publish under a key; `PATCH` changes only the fields in the body."""
    principal = principal_of(request)
    merge = {"merge": True} if request.method == "PATCH" else {}
    terms = to_terms({**request.query_params, "key": _address(request)[1], **merge})
    events, idempotency = await read_published(request, terms)
    if len(events) != 1:
        raise EventError("the body is one event")
    receipt = await publish(request, events, idempotency)
    act = "publication.change" if merge else "publication.put"
    if not receipt.replayed:
        record(request, principal, act, key=events[0].key, type=events[0].type)
    return answer(events, receipt)


async def delete_publication(request: Request) -> Response:
    """Retract a publication."""
    type, key = _address(request)
    principal = principal_of(request)
    principal.may_publish(type)
    idempotency = key_of(request, b"")
    if idempotency is None or not broker_of(request).is_known(idempotency):
        _existing(request)  # a repeat of the retraction is answered though it is gone
    event = retraction(type, key)
    receipt = await publish(request, [event], idempotency)
    if not receipt.replayed:
        record(request, principal, "publication.remove", key=key, type=type)
    return answer([event], receipt)


_ONE: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "GET": get_publication,
    "PUT": put_publication,
    "PATCH": put_publication,
    "DELETE": delete_publication,
}


async def serve_one(request: Request) -> Response:
    """Serve a call about one publication."""
    return await _ONE["GET" if request.method == "HEAD" else request.method](request)
