"""What all requests share: who asks, a bounded body, errors as answers.

Enters: requests and our errors. Leaves: principals, bytes, and problem details (RFC 9457) with our
stable codes.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from tocsin.broker.core import Broker
from tocsin.broker.protocol import json_text
from tocsin.broker.tokens import Principal, Tokens
from tocsin.errors import (
    ArgumentError,
    ConditionSyntaxError,
    DuplicateSubscriptionError,
    EventError,
    LimitError,
    NotAllowedError,
    ProtocolError,
    SubscriptionError,
    TocsinError,
    UnavailableError,
    UnknownPublicationError,
    UnknownSubscriptionError,
)

_TOO_LARGE = {"max_body", "max_events"}
_STATUS: list[tuple[type[TocsinError], int]] = [
    (UnknownSubscriptionError, 404),
    (UnknownPublicationError, 404),
    (DuplicateSubscriptionError, 409),
    (SubscriptionError, 400),
    (EventError, 400),
    (ArgumentError, 400),
    (ProtocolError, 400),
    (UnavailableError, 503),
]


class JsonResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the text of a value."""
        return json_text.write(content)


def broker_of(request: HTTPConnection) -> Broker:
    """Return the broker that a request is for."""
    found: Broker = request.app.state.broker
    return found


def principal_of(request: HTTPConnection) -> Principal:
    """Return who asks: by the bearer token, where tokens are needed."""
    tokens: Tokens = request.app.state.tokens
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return tokens.authenticate(token.strip() if kind.lower() == "bearer" else None)


async def body_of(request: Request, limit: int | None = None) -> bytes:
    """Return the body of a request, or refuse one that is too long or comes too slowly."""
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
    except ClientDisconnect:  # nobody is there to read the answer
        raise ProtocolError("the request was cut off") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def json_of(request: Request, limit: int | None = None) -> Any:
    """Return the JSON value in the body of a request."""
    raw = await body_of(request, limit)
    try:
        return json_text.read(raw)
    except EventError as error:
        raise ArgumentError(f"the body is {error}") from None


def status_of(error: TocsinError) -> int:
    """Return the status of an error."""
    if isinstance(error, NotAllowedError):
        return 403 if error.known else 401
    if isinstance(error, LimitError):
        if error.limit == "request_seconds":
            return 408
        return 413 if error.limit in _TOO_LARGE else 429
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem(error: TocsinError) -> Response:
    """Return an error as an answer."""
    status = status_of(error)
    found: dict[str, Any] = {"code": error.code, "status": status, "detail": str(error)}
    if isinstance(error, ConditionSyntaxError):
        found |= {
            "message": error.message,
            "position": error.position,
            "line": error.line,
            "column": error.column,
            "highlight": error.highlight(),
        }
    if isinstance(error, EventError):
        found |= {"row": error.row, "attribute": error.attribute}
    headers = {}
    if isinstance(error, LimitError):
        found["limit"] = error.limit
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, UnavailableError):
        headers["retry-after"] = "1"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return Response(json_text.write(found), status, headers, media_type="application/problem+json")
