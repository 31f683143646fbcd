"""`POST /events`: plain JSON and CloudEvents → a publish.

Enters: a JSON object, an array of them, JSON lines, or CloudEvents in structured, batched or binary
mode. Leaves: the numbers of the events, once durable notifications are on disk. A request is
published whole or not at all.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tocsin.broker.events import Event, check_type, from_cloudevent, from_json, to_end
from tocsin.broker.http.requests import JsonResponse, body_of, broker_of, principal_of
from tocsin.broker.protocol import cloudevents, json_text
from tocsin.broker.topics import Topics
from tocsin.errors import EventError, LimitError

_LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson")


async def post_events(request: Request) -> Response:
    """Publish."""
    broker, principal = broker_of(request), principal_of(request)
    body = await body_of(request)
    events = read_events(request, body, broker.topics)
    if len(events) > broker.config.limits.max_events:
        raise LimitError("too many events in one request", "max_events")
    for type in {event.type for event in events}:
        principal.may_publish(type)
    principal.bucket.take(len(events))
    receipt = await broker.publish(events)
    return JsonResponse(
        {
            "accepted": len(events),
            "first": receipt.first,
            "last": receipt.last,
            "matches": receipt.matches,
        }
    )


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
    until = _end(request.query_params.get("valid_until"))
    event_type = topics.event_type(type)
    if cloudevents.media_type(kind) in _LINES:
        lines = [line for line in body.split(b"\n") if line.strip()]
        return [
            from_json(json_text.read(line), type, event_type, raw=line, row=row, valid_until=until)
            for row, line in enumerate(lines)
        ]
    value = json_text.read(body)
    if isinstance(value, list):
        return [
            from_json(each, type, event_type, row=row, valid_until=until)
            for row, each in enumerate(value)
        ]
    if not isinstance(value, dict):
        raise EventError("the body is a JSON object or an array of them")
    return [from_json(value, type, event_type, raw=body, valid_until=until)]


def _end(text: str | None) -> int | None:
    number = json_text.to_number(text)
    return to_end(text if number is None else number)
