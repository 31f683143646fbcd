"""Helpers of all requests: authentication, bounded bodies, errors as problem details.

Enters: requests and our errors. Leaves: principals, bytes, and problem details (RFC 9457) with our
stable codes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from tocsin.broker.config import Limits
from tocsin.broker.core import Broker
from tocsin.broker.idempotency import Key, to_key
from tocsin.broker.protocol import json_text
from tocsin.broker.subscription import Subscription
from tocsin.broker.tokens import Principal, Tokens
from tocsin.errors import (
    ArgumentError,
    ConditionSyntaxError,
    DiskFullError,
    DuplicateSubscriptionError,
    EventError,
    IdempotencyError,
    LimitError,
    NotAllowedError,
    ProtocolError,
    SubscriptionError,
    TocsinError,
    UnavailableError,
    UnknownPublicationError,
    UnknownSubscriptionError,
)

T = TypeVar("T")
_LARGE = 1 << 16
_MAX_LISTED = 1_000
_ACKNOWLEDGED_AT_ONCE = 1_000
_TOO_LARGE = {"max_body", "max_events", "max_acknowledged", "max_subscription_bytes"}
_STATUS: list[tuple[type[TocsinError], int]] = [
    (UnknownSubscriptionError, 404),
    (UnknownPublicationError, 404),
    (DuplicateSubscriptionError, 409),
    (SubscriptionError, 400),
    (EventError, 400),
    (ArgumentError, 400),
    (ProtocolError, 400),
    (DiskFullError, 507),
    (IdempotencyError, 422),
    (UnavailableError, 503),
]


class JsonResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the text of a value."""
        return json_text.write(content)


def broker_of(request: HTTPConnection) -> Broker:
    """Return the broker that serves a request."""
    broker: Broker = request.app.state.broker
    return broker


def principal_of(request: HTTPConnection) -> Principal:
    """Return the client, by its bearer token where tokens are needed."""
    tokens: Tokens = request.app.state.tokens
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    shown = token.strip() if kind.lower() == "bearer" else None
    principal = tokens.authenticate(shown, source_of(request))
    admit(request, principal)
    return principal


def admit(request: HTTPConnection, principal: Principal) -> None:
    """Count a connection for its token; raise LimitError where that has too many."""
    known = request.scope.get("state", {}).get("admit")
    if known is not None:
        known(principal.id)


def source_of(request: HTTPConnection) -> str | None:
    """Return the address that a request comes from."""
    return None if request.client is None else request.client.host


def record(request: HTTPConnection, principal: Principal, act: str, **facts: Any) -> None:
    """Write an action of a client into the audit log."""
    broker_of(request).audit.note(act, principal, **{"from": source_of(request)}, **facts)


def is_deliberate(request: HTTPConnection) -> bool:
    """Whether a request cannot be one that a page of another site made a browser send.

    Browsers name the site that a request comes from, or at least themselves. A header that pages of
    other sites may not set shows the same.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    if "authorization" in headers or "tocsin-client" in headers or "origin" in headers:
        return True  # an origin was compared with the host before
    return "mozilla/" not in headers.get("user-agent", "").lower()


async def body_of(request: Request, limit: int | None = None) -> bytes:
    """Return the body of a request; raise LimitError where it is too long or too slow."""
    limits = broker_of(request).config.limits
    most = limits.max_body if limit is None else limit
    length = json_text.to_number(request.headers.get("content-length"))
    if length is not None and length > most:
        raise LimitError(f"a body has at most {most} bytes", "max_body")
    parts: list[bytes] = []
    n = 0
    try:
        async with asyncio.timeout(limits.request_seconds):
            async for part in request.stream():
                n += len(part)
                if n > most:
                    raise LimitError(f"a body has at most {most} bytes", "max_body")
                parts.append(part)
    except TimeoutError:
        raise LimitError("the body comes too slowly", "request_seconds") from None
    except ClientDisconnect:  # no client reads the answer
        raise ProtocolError("the request was cut off") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def off_loop(n_bytes: int, work: Callable[..., T], *args: object) -> T:
    """Run work on many bytes in another thread, so that the event loop goes on."""
    if n_bytes <= _LARGE:
        return work(*args)
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


def key_of(request: Request, body: bytes) -> Key | None:
    """Return the idempotency key of a request, over the whole content of its publish."""
    name = request.headers.get("idempotency-key")
    if name is None:
        return None
    context = sorted(
        f"{header}:{value}"
        for header, value in request.headers.items()
        if header == "content-type" or header.startswith("ce-")
    )
    place = f"{request.method} {request.url.path}?{request.url.query}"
    content = (place.encode(), "\n".join(context).encode(), body)
    return to_key(principal_of(request).id, name, *content)


async def json_of(request: Request, limit: int | None = None) -> Any:
    """Return the JSON value in the body of a request."""
    raw = await body_of(request, limit)
    try:
        return await off_loop(len(raw), json_text.read, raw)
    except EventError as error:
        raise ArgumentError(f"the body is {error}") from None


def limit_of(request: Request) -> int:
    """Return the size of a page."""
    limit = json_text.to_number(request.query_params.get("limit"))
    return 100 if limit is None else min(limit, _MAX_LISTED)


def take_first(every: Iterable[T], limit: int, key: Callable[[T], Any]) -> list[T]:
    """Return the first of a list by an order, without sorting the whole in one go."""
    return nsmallest(limit, every, key=key)


def fill_page(shown: Iterable[bytes], most: int) -> tuple[list[bytes], bool]:
    """Return the first texts that fit a page of `most` bytes, and whether there are more."""
    page: list[bytes] = []
    n = 0
    for text in shown:
        n += len(text)
        if page and n > most:
            return page, True
        page.append(text)
    return page, False


def acknowledged_ids(ids: object, limits: Limits) -> list[int]:
    """Return the numbers of notifications that a client acknowledges."""
    if not isinstance(ids, list):
        raise ArgumentError('acknowledge with {"upto": number} or {"ids": [numbers]}')
    if len(ids) > limits.max_acknowledged:
        raise LimitError(
            f"at most {limits.max_acknowledged} are acknowledged at once", "max_acknowledged"
        )
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in ids):
        raise ArgumentError("ids are the ids of notifications")
    return ids


async def acknowledge_ids(broker: Broker, subscription: Subscription, ids: list[int]) -> int:
    """Acknowledge in parts, so that the changes of others are written in between."""
    n = 0
    for first in range(0, len(ids), _ACKNOWLEDGED_AT_ONCE):
        n += await broker.backlog.acknowledge_ids(
            subscription, ids[first : first + _ACKNOWLEDGED_AT_ONCE]
        )
    return n


def status_of(error: TocsinError) -> int:
    """Return the status of an error."""
    if isinstance(error, NotAllowedError):
        return 403 if error.known else 401
    if isinstance(error, LimitError):
        if error.limit == "request_seconds":
            return 408
        return 413 if error.limit in _TOO_LARGE else 429
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


_CODES = {404: "not-found", 405: "method-not-allowed"}


def http_problem(status: int, headers: Mapping[str, str]) -> Response:
    """Return the problem details of a request that no route or method serves."""
    detail = HTTPStatus(status).description or HTTPStatus(status).phrase
    fields = _problem_fields(status, _CODES.get(status, "http"), detail)
    return Response(json_text.write(fields), status, headers, "application/problem+json")


def _problem_fields(status: int, code: str, detail: str) -> dict[str, Any]:
    title = HTTPStatus(status).phrase
    return {"title": title, "status": status, "code": code, "detail": detail}


def problem(error: TocsinError) -> Response:
    """Return an error as problem details."""
    status = status_of(error)
    fields = _problem_fields(status, error.code, str(error))
    if isinstance(error, ConditionSyntaxError):
        fields |= {
            "message": error.message,
            "position": error.position,
            "line": error.line,
            "column": error.column,
            "highlight": error.highlight(),
        }
    if isinstance(error, EventError):
        fields |= {"row": error.row, "attribute": error.attribute}
    headers = {}
    if isinstance(error, LimitError):
        fields["limit"] = error.limit
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, UnavailableError):
        headers["retry-after"] = "1"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return Response(json_text.write(fields), status, headers, media_type="application/problem+json")
