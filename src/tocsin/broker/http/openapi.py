"""The OpenAPI 3.1 document of the HTTP interface."""

from __future__ import annotations

from typing import Any

import tocsin

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_BOOLEAN = {"type": "boolean"}


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": required} if required else {})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {"description": text or "Done.", "content": {"application/json": {"schema": schema}}}


def _call(
    summary: str,
    answers: dict[str, Any],
    body: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {**answers, "default": {"$ref": "#/components/responses/Problem"}},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": body}
    if query:
        found["parameters"] = [
            {"name": name, "in": "query", "schema": _TEXT, "description": text}
            for name, text in query.items()
        ]
    return found


_EVENTS = {"oneOf": [_ref("Event"), {"type": "array", "items": _ref("Event")}]}
_PLAIN = {"application/json": {"schema": _EVENTS}}
_CLOUD = {
    "application/cloudevents+json": {"schema": {"type": "object"}},
    "application/cloudevents-batch+json": {"schema": {"type": "array"}},
    "application/x-ndjson": {"schema": _TEXT},
}
_ID = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
_ONE = {"200": _json(_ref("Subscription"))}


_LIST = _object(found=_NUMBER, subscriptions={"type": "array", "items": _ref("Subscription")})
_WANTED = {"application/json": {"schema": _ref("Wanted")}}
_STREAM = {"description": "Messages.", "content": {"text/event-stream": {"schema": _TEXT}}}


_TERMS = {
    "type": "The event type.",
    "valid_until": "ISO 8601, or microseconds.",
    "ttl": "Valid for so many seconds.",
    "key": "Publish under a key: it stays until it is updated, retracted or expires.",
    "key_of": "The attribute that has the key of each event, as ce.subject.",
    "merge": "true: what stands under the key stays, but for what is named (RFC 7396).",
    "retain": "Keep events so many seconds for subscriptions to come.",
}


def _said(text: str, status: str = "200") -> dict[str, Any]:
    return {status: {"description": text}}


def _collections() -> dict[str, Any]:
    searched = {
        "search": "A part of the id or the condition.",
        "after": "An id.",
        "limit": "At most 1000.",
        "order": "id or matched",
    }
    return {
        "/events": {
            "post": _call(
                "Publish events: all of a request or none",
                {"200": _json(_ref("Receipt"), "Durable notifications are on disk.")},
                _PLAIN | _CLOUD,
                _TERMS,
            )
        },
        "/subscriptions": {
            "post": _call(
                "Make a subscription, or an array", {"201": _json(_ref("Subscription"))}, _WANTED
            ),
            "get": _call("List subscriptions", {"200": _json(_LIST)}, query=searched),
        },
    }


def _single() -> dict[str, Any]:
    ack = _object(upto=_NUMBER, ids={"type": "array", "items": _NUMBER})
    one = "/subscriptions/{id}"
    found = {
        one: {
            "get": _call("Show a subscription", _ONE),
            "patch": _call("Change parameters, condition, webhook, overflow", _ONE, _WANTED),
            "delete": _call("Remove a subscription", _said("Gone.", "204")),
        },
        one + "/stream": {
            "get": _call(
                "Stream notifications (Server-Sent Events); Last-Event-ID acknowledges",
                {"200": _STREAM},
                query={"ack": "explicit or auto"},
            )
        },
        one + "/ack": {
            "post": _call(
                "Acknowledge notifications",
                {"200": _json(_object(acknowledged=_NUMBER))},
                {"application/json": {"schema": ack}},
            )
        },
        one + "/dead": {"get": _call("List dead letters", {"200": _json(_object())})},
        one + "/revive": {
            "post": _call("Deliver dead letters again", {"200": _json(_object(revived=_NUMBER))})
        },
    }
    return {path: {"parameters": _ID, **calls} for path, calls in found.items()}


def _publications() -> dict[str, Any]:
    kept = {"200": _json(_ref("Publication"))}
    receipt = {"200": _json(_ref("Receipt"))}
    query = {"type": "The event type."}
    given = {name: text for name, text in _TERMS.items() if name not in ("key", "key_of", "merge")}
    listed = _object(found=_NUMBER, publications={"type": "array", "items": _ref("Publication")})
    searched = {**query, "search": "A part of the key.", "limit": "At most 1000."}
    key = [{"name": "key", "in": "path", "required": True, "schema": _TEXT}]
    return {
        "/publications": {
            "get": _call("List publications", {"200": _json(listed)}, query=searched)
        },
        "/publications/{key}": {
            "parameters": key,
            "get": _call("Show what stands under a key", kept, query=query),
            "put": _call("Publish under a key", receipt, _PLAIN | _CLOUD, given),
            "patch": _call("Change what is named", receipt, _PLAIN | _CLOUD, given),
            "delete": _call("Retract", receipt, query=query),
        },
    }


def _others() -> dict[str, Any]:
    asked = _object(["where"], where=_TEXT, type=_TEXT, params=_object())
    body = {"application/json": {"schema": asked}}
    return {
        "/stream": {
            "get": _call(
                "Stream transient subscriptions together",
                {"200": _STREAM},
                query={"prefix": "What their ids begin with."},
            )
        },
        "/conditions": {
            "post": _call("Try a condition on recent events", {"200": _json(_object())}, body)
        },
        "/recent": {"get": _call("Show the last events (admin)", {"200": _json(_object())})},
        "/stats": {"get": _call("Figures as JSON (admin)", {"200": _json(_object())})},
        "/metrics": {"get": _call("Figures for Prometheus", _said("Text."))},
        "/healthz": {"get": _call("Whether the process answers", _said("ok"))},
        "/readyz": {"get": _call("Whether the broker takes work", _said("ready"))},
        "/ws": {
            "get": _call(
                "WebSocket: publish, retract, subscribe, listen, unsubscribe, ack",
                _said("Switch.", "101"),
            )
        },
    }


def _schemas() -> dict[str, Any]:
    wanted = {
        "id": _TEXT, "where": _TEXT, "type": _TEXT, "params": {"type": "object"},
        "durable": _BOOLEAN, "valid_until": {"type": ["string", "integer"]},
        "webhook": _object(["url"], url=_TEXT, secret=_TEXT),
        "overflow": {"enum": ["drop-oldest", "refuse"]}, "window": _NUMBER,
        "transitions": {"type": ["boolean", "array"], "items": {"enum": ["ENTER", "LEAVE"]}},
    }  # fmt: skip
    shown = {
        "owner": _TEXT, "created": _NUMBER, "matched": _NUMBER, "pending": _NUMBER,
        "missed": _NUMBER, "listeners": _NUMBER,
    }  # fmt: skip
    return {
        "Event": {"type": "object"},
        "Wanted": _object(["where"], **wanted),
        "Subscription": _object(["id", "where"], **wanted, **shown),
        "Publication": _object(
            key=_TEXT,
            type=_TEXT,
            id=_NUMBER,
            published=_NUMBER,
            valid_until=_NUMBER,
            event={"type": "object"},
        ),
        "Receipt": _object(accepted=_NUMBER, first=_NUMBER, last=_NUMBER, matches=_NUMBER),
        "Problem": _object(["code", "detail"], code=_TEXT, detail=_TEXT, status=_NUMBER),
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
