"""`POST /events`: plain JSON and CloudEvents → a publish.

Enters: a JSON object, an array of them, JSON lines, or CloudEvents in structured, batched or binary
mode. Leaves: the numbers of the events, once durable notifications are on disk. A request is
published whole or not at all. With `key`, or `key_of` for the attribute that has it, events are
publications that stay; `merge` changes only what is named.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker.core import Receipt
from tocsin.broker.events import Event, check_type, from_cloudevent, from_json, from_json_rows
from tocsin.broker.http.requests import JsonResponse, body_of, broker_of, principal_of
from tocsin.broker.keyed import Terms, to_terms
from tocsin.broker.protocol import cloudevents, json_text
from tocsin.broker.telemetry import of_sender
from tocsin.broker.topics import Topics
from tocsin.errors import EventError, LimitError

_LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson")


async def post_events(request: Request) -> Response:
    """Publish."""
    principal_of(request)  # strangers are refused before their bodies are read
    events = await read_published(request, to_terms(request.query_params))
    receipt = await publish(request, events)
    return JsonResponse(shown(events, receipt))


async def read_published(request: Request, terms: Terms | None) -> list[Event]:
    """Return the events in the body of a request, on the terms it names."""
    topics = broker_of(request).topics
    events = read_events(request, await body_of(request), topics)
    if terms is None:
        return events
    return [
        terms.apply(event, topics.event_type(event.type), None if len(events) == 1 else row)
        for row, event in enumerate(events)
    ]


async def publish(request: Request, events: list[Event]) -> Receipt:
    """Publish, where the asker may."""
    broker, principal = broker_of(request), principal_of(request)
    if len(events) > broker.config.limits.max_events:
        raise LimitError("too many events in one request", "max_events")
    for type in {event.type for event in events}:
        principal.may_publish(type)
    principal.bucket.take(len(events))
    with of_sender(broker.telemetry, request.headers):
        return await broker.publish(events)


def shown(events: list[Event], receipt: Receipt) -> dict[str, int]:
    """Return what became of events as JSON."""
    return {
        "accepted": len(events),
        "first": receipt.first,
        "last": receipt.last,
        "matches": receipt.matches,
    }


def read_events(request: Request, body: bytes, topics: Topics) -> list[Event]:
    """Return the events of a request."""
    kind = request.headers.get("content-type", "")
    if cloudevents.is_cloudevent(kind, request.headers):
        found = cloudevents.read(kind, request.headers, body)
        single = len(found) == 1
        return [
            from_cloudevent(each, topics.event_type(each.context["type"]), None if single else row)
            for row, each in enumerate(found)
        ]
    type = check_type(request.query_params.get("type"))
    event_type = topics.event_type(type)
    if cloudevents.media_type(kind) in _LINES:
        lines = [line for line in body.split(b"\n") if line.strip()]
        return [
            from_json(json_text.read(line), type, event_type, raw=line, row=row)
            for row, line in enumerate(lines)
        ]
    value = json_text.read(body)
    if isinstance(value, list):
        return from_json_rows(value, type, event_type, json_text.is_small(body))
    if not isinstance(value, dict):
        raise EventError("the body is a JSON object or an array of them")
    return [from_json(value, type, event_type, raw=body)]
