"""The state of a broker: health, metrics, recent events; and trials of conditions.

Enters: requests of operators and the console. Leaves: text for Prometheus, JSON.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import tocsin
from tocsin.arguments import to_written
from tocsin.broker.events import Event, check_type
from tocsin.broker.hints import hints, type_hint
from tocsin.broker.http.openapi import document
from tocsin.broker.http.requests import JsonResponse, broker_of, json_of, principal_of, problem
from tocsin.broker.protocol import json_text
from tocsin.broker.quota import TRY
from tocsin.broker.subscription import to_params
from tocsin.errors import ArgumentError, LimitError, SubscriptionError, TocsinError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.dialects import SQL
from tocsin.loading import prepare
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.normalize.bind import bind
from tocsin.normalize.describe import describe

_MAX_SHOWN = 20


async def get_health(request: Request) -> Response:
    """Answer that the process is alive."""
    return PlainTextResponse("ok\n")


async def get_ready(request: Request) -> Response:
    """Answer whether the broker takes work: loaded, not stopping, able to write, tasks well."""
    broker = broker_of(request)
    wrong = None
    if not broker.is_ready:
        wrong = "not loaded yet"
    elif broker.ingest.is_draining:
        wrong = "stopping"
    elif broker.storage.failure is not None:
        wrong = "the database cannot be written"
    elif broker.disk.is_low:
        wrong = "the disk is nearly full"
    else:
        wrong = "\n".join(broker.supervisor.problems())
    return PlainTextResponse(f"{wrong or 'ready'}\n", 503 if wrong else 200)


async def get_metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    if request.app.state.tokens.are_needed:
        principal_of(request).must_be_admin()
    text = broker_of(request).metrics.render()
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def get_stats(request: Request) -> Response:
    """Return the metrics as JSON."""
    principal_of(request).must_be_admin()
    broker = broker_of(request)
    figures = broker.metrics.snapshot()
    figures |= {
        "version": tocsin.__version__,
        "types": sorted(broker.matcher.types),
        "ready": broker.is_ready and not broker.ingest.is_draining,
    }
    if broker.network is not None:
        figures["overlay"] = broker.network.describe()
    return JsonResponse(figures)


async def get_recent(request: Request) -> Response:
    """Return the last events."""
    principal_of(request).must_be_admin()
    recent = list(broker_of(request).delivery.recent)[-_MAX_SHOWN:]
    return JsonResponse({"events": [_shown(event) for event in reversed(recent)]})


async def get_openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(_openapi(), media_type="application/json")


@cache
def _openapi() -> bytes:
    return json_text.write(document())


async def post_condition(request: Request) -> Response:
    """Explain a condition, and return the recent events that it matches."""
    broker, principal = broker_of(request), principal_of(request)
    broker.rates.take(principal.id, TRY)
    body = await json_of(request)
    if not isinstance(body, dict) or not isinstance(body.get("where"), str):
        raise ArgumentError("a condition is an object with where, a text")
    if len(body["where"]) > broker.config.limits.max_condition:
        raise LimitError("the condition is too long", "max_condition")
    type = check_type(body.get("type"))
    principal.may_subscribe(type)
    recent = broker.recent_of(type)
    try:
        result = await broker.registry.try_out(
            try_condition,
            to_written(body["where"], body.get("dialect", SQL)),
            to_params(body.get("params")),
            broker.matcher.event_type(type),
            recent,
            broker.config.limits.max_conjunctions,
        )
    except SubscriptionError as error:
        return problem(error)
    about_type = type_hint(type, broker.matcher.types, list(broker.delivery.recent))
    if about_type is not None:
        result["warnings"] = [about_type, *result.get("warnings", [])]
    if not principal.rights.admin:  # it may subscribe, but not look back
        result |= {"recent": 0, "matched": 0, "events": []}
    return JsonResponse(result)


def try_condition(
    where: str,
    params: dict[str, object],
    event_type: EventType | None,
    recent: list[Event],
    max_conjunctions: int,
) -> dict[str, Any]:
    """Return a condition's normal form, its place in the index, and its matches."""
    expression = parse(where)
    names = parameter_names(expression)
    result: dict[str, Any] = {"parsed": print_expression(expression), "parameters": list(names)}
    if set(names) - set(params):
        return result
    values = {name: params[name] for name in names}
    prepared = prepare(where, values, event_type, limit=max_conjunctions)
    form, bound = prepared.form, bind(expression, values)
    matcher = Matcher(event_type)
    matcher.configure_events(warns=False, reads_moments=True)
    matcher.subscribe_prepared("it", prepared, None)
    hits = []
    if recent:
        try:
            matched = matcher.match_batch([event.attributes for event in recent])
            hits = [event for event, ids in zip(recent, matched, strict=True) if ids]
        except TocsinError:
            hits = []
    result |= {
        "normal_form": describe(form, event_type),
        "conjunctions": len(form.conjunctions),
        "warnings": hints(bound, form, event_type, recent),
        "plan": matcher.explain("it"),
        "recent": len(recent),
        "matched": len(hits),
        "events": [_shown(event) for event in hits[: -_MAX_SHOWN - 1 : -1]],
    }
    return result


def _shown(event: Event) -> dict[str, Any]:
    return {
        "id": event.seq,
        "type": event.type,
        "published": event.published,
        "event": json_text.read(event.text),
    }
