"""The OpenAPI 3.1 document of the HTTP interface."""

from __future__ import annotations

from typing import Any

import tocsin
from tocsin.language.dialects import DIALECTS

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_BOOLEAN = {"type": "boolean"}
_AMOUNT = {"type": "number"}
_NUMBERS = {"type": "array", "items": _NUMBER}
_DIALECT = {"enum": list(DIALECTS)}
_TEXTS = {"type": "array", "items": _TEXT}
_REFUSAL = {"ids": _NUMBERS, "delay": _AMOUNT, "reason": _TEXT}


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "object", "properties": properties}
    return call | ({"required": required} if required else {})


_LETTER = _object(
    id=_NUMBER, reason=_TEXT, at=_NUMBER, deliveries=_NUMBER, kind=_TEXT, key=_TEXT,
    event={"type": "object"},
)  # fmt: skip


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {"description": text or "Done.", "content": {"application/json": {"schema": schema}}}


def _call(
    summary: str,
    answers: dict[str, Any],
    body: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
    *,
    needs_body: bool = True,
) -> dict[str, Any]:
    call: dict[str, Any] = {
        "summary": summary,
        "responses": {**answers, "default": {"$ref": "#/components/responses/Problem"}},
    }
    if body is not None:
        call["requestBody"] = {"required": needs_body, "content": body}
    if query:
        call["parameters"] = [
            {"name": name, "in": "query", "schema": _TEXT, "description": text}
            for name, text in query.items()
        ]
    return call


_EVENTS = {"oneOf": [_ref("Event"), {"type": "array", "items": _ref("Event")}]}
_PLAIN = {"application/json": {"schema": _EVENTS}}
_CLOUD = {
    "application/cloudevents+json": {"schema": {"type": "object"}},
    "application/cloudevents-batch+json": {"schema": {"type": "array"}},
    "application/x-ndjson": {"schema": _TEXT},
}
_ID = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
_ONE = {"200": _json(_ref("Subscription"))}


_ADVICE = {"type": "array", "items": _object(id=_TEXT, warnings=_TEXTS)}
_LIST = _object(found=_NUMBER, subscriptions={"type": "array", "items": _ref("Subscription")})
_SPEC = {"application/json": {"schema": _ref("SubscriptionSpec")}}
_STREAM = {"description": "Messages.", "content": {"text/event-stream": {"schema": _TEXT}}}


_TERMS = {
    "type": "The event type.",
    "valid_until": "ISO 8601, or microseconds.",
    "ttl": "Seconds for which the event is valid.",
    "key": "The key of a publication, which stays until it is updated, retracted or expires.",
    "key_of": "The attribute that has the key of each event, as ce.subject.",
    "merge": "true: change only the fields in the body (RFC 7396).",
    "retain": "Seconds for which the event is kept for later subscriptions.",
}


_ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": _TEXT,
    "description": "A repeat under the same key gets the first answer, and Idempotency-Replayed.",
}


def _once(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call that publishes, with the header that makes repeating it safe."""
    reused = {"422": {"description": "The idempotency key was used for something else."}}
    return {
        **call,
        "parameters": [*call.get("parameters", []), _ONCE],
        "responses": {**call["responses"], **reused},
    }


def _plain(text: str, status: str = "200") -> dict[str, Any]:
    return {status: {"description": text}}


def _collections() -> dict[str, Any]:
    searched = {
        "search": "A part of the id or the condition.",
        "owner": "The id of the token that made them.",
        "after": "An id.",
        "limit": "At most 1000.",
        "order": "id or matched",
    }
    return {
        "/events": {
            "post": _once(
                _call(
                    "Publish events: all of a request or none",
                    {"200": _json(_ref("Receipt"), "Durable notifications are on disk.")},
                    _PLAIN | _CLOUD,
                    {**_TERMS, "once": "true: take each CloudEvent, by source and id, once."},
                )
            )
        },
        "/subscriptions": {
            "post": _call(
                "Add a subscription, or an array of them",
                {"201": _json(_ref("Subscription"))},
                _SPEC,
            ),
            "put": _call(
                "Add several subscriptions, and replace those whose ids are taken",
                {"200": _json(_object(created=_NUMBER, updated=_NUMBER, warnings=_ADVICE))},
                {
                    "application/json": {
                        "schema": {"type": "array", "items": _ref("SubscriptionSpec")}
                    }
                },
            ),
            "patch": _call(
                "Change several subscriptions: all changes are checked before the first is made",
                {"200": _json(_object(updated=_NUMBER))},
                {"application/json": {"schema": {"type": "array", "items": _ref("Change")}}},
            ),
            "delete": _call(
                "Remove several subscriptions: all or none",
                {"200": _json(_object(removed=_NUMBER))},
                {"application/json": {"schema": _object(["ids"], ids=_TEXTS)}},
            ),
            "get": _call("List subscriptions", {"200": _json(_LIST)}, query=searched),
        },
    }


def _single() -> dict[str, Any]:
    ack = _object(upto=_NUMBER, ids=_NUMBERS)
    one = "/subscriptions/{id}"
    paths = {
        one: {
            "get": _call(
                "Get a subscription",
                _ONE,
                query={"warnings": "true: also why it may match no event, as recent ones are."},
            ),
            "put": _call(
                "Add a subscription, or replace all of it but type, durable and notify",
                {**_ONE, "201": _json(_ref("Subscription"))},
                _SPEC,
            ),
            "patch": _call(
                "Change the condition, parameters, the end or options",
                _ONE,
                {"application/json": {"schema": _ref("Change")}},
            ),
            "delete": _call(
                "Remove a subscription and its notifications", _plain("Removed.", "204")
            ),
        },
        one + "/stream": {
            method: _call(
                "Stream notifications (Server-Sent Events); Last-Event-ID acknowledges",
                {"200": _STREAM},
                query={"ack": "explicit or auto"},
            )
            for method in ("get", "post")
        },
        one + "/ack": {
            "post": _call(
                "Acknowledge notifications",
                {"200": _json(_object(acknowledged=_NUMBER))},
                {"application/json": {"schema": ack}},
            )
        },
        one + "/nack": {
            "post": _call(
                "Refuse notifications: they become dead letters, or come again after a delay",
                {"200": _json(_object(refused=_NUMBER))},
                {"application/json": {"schema": _object(["ids"], **_REFUSAL)}},
            )
        },
    } | _dead_letters(one)
    return {path: {"parameters": _ID, **calls} for path, calls in paths.items()}


def _dead_letters(one: str) -> dict[str, Any]:
    return {
        one + "/dead": {
            "get": _call(
                "List dead letters by pages",
                {"200": _json(_object(dead={"type": "array", "items": _LETTER}, next=_NUMBER))},
                query={"after": "`next` of the page before.", "limit": "At most 1000."},
            ),
            "delete": _call(
                "Remove dead letters, all or those named",
                {"200": _json(_object(purged=_NUMBER))},
                query={"id": "A dead letter; repeatable."},
            ),
        },
        one + "/revive": {
            "post": _call(
                "Deliver dead letters again under new ids, all or those named",
                {"200": _json(_object(revived=_NUMBER))},
                {"application/json": {"schema": _object(ids=_NUMBERS)}},
                needs_body=False,
            )
        },
    }


def _publications() -> dict[str, Any]:
    publication = {"200": _json(_ref("Publication"))}
    receipt = {"200": _json(_ref("Receipt"))}
    query = {"type": "The event type."}
    terms = {name: text for name, text in _TERMS.items() if name not in ("key", "key_of", "merge")}
    every = {"type": "array", "items": _ref("Publication")}
    listed = _object(found=_NUMBER, more=_BOOLEAN, publications=every)
    searched = {
        **query,
        "search": "A part of the key.",
        "limit": "At most 1000.",
        "after": "The last key of the page before.",
    }
    key = [{"name": "key", "in": "path", "required": True, "schema": _TEXT}]
    return {
        "/publications": {
            "get": _call("List publications", {"200": _json(listed)}, query=searched)
        },
        "/publications/{key}": {
            "parameters": key,
            "get": _call("Get a publication", publication, query=query),
            "put": _once(_call("Publish under a key", receipt, _PLAIN | _CLOUD, terms)),
            "patch": _once(
                _call("Change fields of a publication", receipt, _PLAIN | _CLOUD, terms)
            ),
            "delete": _once(_call("Retract a publication", receipt, query=query)),
        },
    }


def _others() -> dict[str, Any]:
    trial = _object(["where"], where=_TEXT, dialect=_DIALECT, type=_TEXT, params=_object())
    body = {"application/json": {"schema": trial}}
    return {
        "/stream": {
            "get": _call(
                "Stream transient subscriptions together",
                {"200": _STREAM},
                query={"prefix": "The prefix of their ids."},
            )
        },
        "/conditions": {
            "post": _call("Try a condition on recent events", {"200": _json(_object())}, body)
        },
        "/recent": {"get": _call("Get the last events (admin)", {"200": _json(_object())})},
        "/stats": {"get": _call("Get the metrics as JSON (admin)", {"200": _json(_object())})},
        "/metrics": {"get": _call("Get the metrics for Prometheus", _plain("Text."))},
        "/healthz": {"get": _call("Whether the process answers", _plain("ok"))},
        "/readyz": {"get": _call("Whether the broker takes work", _plain("ready"))},
        "/ws": {
            "get": _call(
                "WebSocket: publish, retract, subscribe, listen, unsubscribe, ack, nack",
                _plain("Switch.", "101"),
            )
        },
    }


_FIXED = ("id", "type", "durable", "notify")


def _schemas() -> dict[str, Any]:
    spec = {
        "id": _TEXT, "where": _TEXT, "dialect": _DIALECT, "type": _TEXT,
        "params": {"type": "object"},
        "durable": _BOOLEAN, "valid_until": {"type": ["string", "integer"]}, "ttl": _AMOUNT,
        "linger": _AMOUNT,
        "webhook": _object(["url"], url=_TEXT, secret=_TEXT),
        "overflow": {"enum": ["drop-oldest", "refuse"]}, "window": _NUMBER,
        "ack_seconds": _AMOUNT, "max_deliveries": _NUMBER,
        "notify": {"enum": ["enter", "leave", "both"]},
    }  # fmt: skip
    shown = {
        "owner": _TEXT, "created": _NUMBER, "matched": _NUMBER, "pending": _NUMBER,
        "missed": _NUMBER, "dead": _NUMBER, "dead_bytes": _NUMBER, "listeners": _NUMBER,
        "warnings": _TEXTS,
    }  # fmt: skip
    return {
        "Event": {"type": "object"},
        "SubscriptionSpec": _object(["where"], **spec),
        "Subscription": _object(["id", "where"], **spec, **shown),
        "Change": _object(None, id=_TEXT, **{k: v for k, v in spec.items() if k not in _FIXED}),
        "Publication": _object(
            key=_TEXT,
            type=_TEXT,
            id=_NUMBER,
            published=_NUMBER,
            valid_until=_NUMBER,
            event={"type": "object"},
        ),
        "Receipt": _object(
            accepted=_NUMBER,
            first=_NUMBER,
            last=_NUMBER,
            matches=_NUMBER,
            duplicates=_NUMBER,
            warnings=_TEXTS,
        ),
        "Problem": _object(
            ["code", "detail"], title=_TEXT, status=_NUMBER, code=_TEXT, detail=_TEXT
        ),
    }


def document() -> dict[str, Any]:
    """Return the document."""
    problem = {"application/problem+json": {"schema": _ref("Problem")}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tocsin broker", "version": tocsin.__version__},
        "paths": _collections() | _single() | _publications() | _others(),
        "components": {
            "schemas": _schemas(),
            "responses": {"Problem": {"description": "An error.", "content": problem}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }
