"""`POST /events`: plain JSON and CloudEvents → a publish.

Enters: a JSON object, an array of them, JSON lines, CloudEvents in structured, batched or binary
mode, or messages as AWS has them. Leaves: the numbers of the events, once durable notifications are
on disk. A request is published whole or not at all. With `key`, or `key_of` for the attribute that
has it, events are publications; `merge` changes only the fields in the body. A request with an
idempotency key, and with `once` each CloudEvent, is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker.core import Broker
from tocsin.broker.events import Event, check_type, from_cloudevent, from_json, from_json_rows
from tocsin.broker.hints import published_type_hint
from tocsin.broker.http.requests import (
    JsonResponse,
    body_of,
    broker_of,
    key_of,
    off_loop,
    principal_of,
)
from tocsin.broker.idempotency import Key, Receipt, to_cloudevent_key
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.protocol import aws, cloudevents, json_text
from tocsin.broker.telemetry import of_sender
from tocsin.broker.terms import Terms, to_flag, to_terms
from tocsin.broker.tokens import Principal
from tocsin.errors import ArgumentError, EventError, LimitError

_LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson")


async def post_events(request: Request) -> Response:
    """Publish."""
    principal_of(request)  # unauthenticated requests are refused before their bodies are read
    events, key = await read_published(request, to_terms(request.query_params))
    if to_flag(request.query_params.get("once", False), "once"):
        return await _publish_each(request, events, key)
    receipt = await publish(request, events, key)
    warnings = type_warnings(broker_of(request).matcher, events)
    return answer(events, receipt, {"warnings": warnings} if warnings else None)


def type_warnings(matcher: BatchMatcher, events: Sequence[Event]) -> list[str]:
    """Return what is suspect about the types of events: they are probably misspelt."""
    types = {event.type for event in events if event.type is not None}
    if types <= matcher.types.keys():
        return []
    known = matcher.known_types()
    hints = (published_type_hint(type, known) for type in sorted(types))
    return [hint for hint in hints if hint is not None]


async def _publish_each(request: Request, events: list[Event], key: Key | None) -> Response:
    """Publish the CloudEvents of a request that were not published before."""
    if key is not None:
        raise ArgumentError("give an Idempotency-Key or once, not both")
    broker, principal = check_rights(request, events)
    keys = [to_cloudevent_key(principal.id, event) for event in events]
    receipt, n_known = await broker.publish_each(events, keys)
    return answer(events, receipt, {"duplicates": n_known})


async def read_published(request: Request, terms: Terms | None) -> tuple[list[Event], Key | None]:
    """Return the events in the body of a request, on the terms it names, and its key."""
    broker, body = broker_of(request), await body_of(request)
    most = broker.config.limits.max_events
    return await off_loop(len(body), _read, request, body, broker.matcher, terms, most)


def _read(
    request: Request, body: bytes, matcher: BatchMatcher, terms: Terms | None, most: int
) -> tuple[list[Event], Key | None]:
    events, key = read_events(request, body, matcher, most), key_of(request, body)
    if terms is None:
        return events, key
    applied = [
        terms.apply(event, matcher.event_type(event.type), None if len(events) == 1 else row)
        for row, event in enumerate(events)
    ]
    return applied, key


def _check_count(events: Sequence[object], most: int) -> None:
    """Refuse too many events before they are converted."""
    if len(events) > most:
        raise LimitError("too many events in one request", "max_events")


async def publish(request: Request, events: list[Event], key: Key | None = None) -> Receipt:
    """Publish events if the client may; once, if there is a key."""
    broker, _ = check_rights(request, events)
    with of_sender(broker.telemetry, request.headers):
        return await broker.publish(events, key)


def check_rights(request: Request, events: list[Event]) -> tuple[Broker, Principal]:
    """Return the broker and the client; raise where the client may not publish the events."""
    broker, principal = broker_of(request), principal_of(request)
    _check_count(events, broker.config.limits.max_events)
    for type in {event.type for event in events}:
        principal.may_publish(type)
    principal.bucket.take(len(events))
    return broker, principal


def answer(
    events: list[Event], receipt: Receipt, more: Mapping[str, object] | None = None
) -> Response:
    """Return the receipt of events; a repeat gets that of the first publish, and a header."""
    receipt_fields = {
        "accepted": len(events),
        "first": receipt.first,
        "last": receipt.last,
        "matches": receipt.matches,
        **(more or {}),
    }
    return JsonResponse(
        receipt_fields, headers={"idempotency-replayed": "true"} if receipt.replayed else {}
    )


def read_events(request: Request, body: bytes, matcher: BatchMatcher, most: int) -> list[Event]:
    """Return the events of a request, `most` of them at most."""
    kind = request.headers.get("content-type", "")
    if cloudevents.is_cloudevent(kind, request.headers):
        several = cloudevents.read(kind, request.headers, body, most)
        single = len(several) == 1
        return [
            from_cloudevent(each, matcher.event_type(each.context["type"]), None if single else row)
            for row, each in enumerate(several)
        ]
    type = check_type(request.query_params.get("type"))
    event_type = matcher.event_type(type)
    if cloudevents.media_type(kind) in _LINES:
        lines = [line for line in body.split(b"\n") if line.strip()]
        _check_count(lines, most)
        return [
            from_json(json_text.read(line), type, event_type, raw=line, row=row)
            for row, line in enumerate(lines)
        ]
    value = _read_json(body)
    if isinstance(value, list):
        _check_count(value, most)
        return from_json_rows(value, type, event_type, json_text.is_small(body))
    of_aws = aws.events_of(value)
    if of_aws is not None:
        _check_count(of_aws, most)
        return from_json_rows(of_aws, type, event_type, is_small=False)
    if not isinstance(value, dict):
        raise EventError("the body is a JSON object or an array of them")
    return [from_json(value, type, event_type, raw=body)]


def _read_json(body: bytes) -> object:
    """Return the JSON value of a body; where it is one object a line, the error says what to do."""
    try:
        return json_text.read(body)
    except EventError as error:
        first, _, rest = body.lstrip().partition(b"\n")
        if rest.strip() and first.lstrip().startswith(b"{") and first.rstrip().endswith(b"}"):
            hint = f"for one object a line, send content-type: {_LINES[0]}"
            raise EventError(f"{error}; {hint}") from None
        raise
