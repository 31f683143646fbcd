"""CloudEvents 1.0 over HTTP ↔ context and data.

Enters: a content type, headers and a body: structured, batched or binary content mode. Leaves: for
each event its context attributes and its data; and back, in binary mode. Follows the HTTP protocol
binding 1.0.2, section 3, and the JSON format 1.0.2. For conditions, the fields of JSON data are the
event's attributes, and context attributes have `ce.` before their names (`ce.type`, `ce.source`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.text import has_controls
from tocsin.errors import EventError, LimitError

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
_REQUIRED = ("id", "source", "specversion", "type")
_NAME = re.compile(r"[a-z0-9]{1,64}").fullmatch
_IS_JSON = re.compile(r"(application|text)/([\w.-]+\+)?json").fullmatch


class CloudEvent(NamedTuple):
    """One event: its context attributes and its data as bytes, or None where it has none."""

    context: dict[str, Any]
    data: bytes | None


def media_type(content_type: str) -> str:
    """Return a content type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether a content type means JSON."""
    return _IS_JSON(media_type(content_type)) is not None


def is_cloudevent(content_type: str, headers: Mapping[str, str]) -> bool:
    """Whether a request holds CloudEvents in any mode."""
    return media_type(content_type) in (STRUCTURED, BATCHED) or "ce-specversion" in headers


def read(
    content_type: str, headers: Mapping[str, str], body: bytes, most: int | None = None
) -> list[CloudEvent]:
    """Return the events of a request, `most` at most; `headers` have lower-case names."""
    mode = media_type(content_type)
    if mode == STRUCTURED:
        return [_structured(json_text.read(body), None)]
    if mode == BATCHED:
        batch = json_text.read(body)
        if not isinstance(batch, list):
            raise EventError("a batch of CloudEvents is a JSON array")
        if most is not None and len(batch) > most:
            raise LimitError("too many events in one request", "max_events")
        return [_structured(each, row) for row, each in enumerate(batch)]
    return [_binary(content_type, headers.items(), body)]


def _structured(value: object, row: int | None) -> CloudEvent:
    if not isinstance(value, dict):
        raise EventError("a CloudEvent is a JSON object", row=row)
    context = {k: v for k, v in value.items() if k not in ("data", "data_base64")}
    check_context(context, row)
    if "data_base64" in value:
        if "data" in value:
            raise EventError("data and data_base64 exclude each other", row=row)
        try:
            return CloudEvent(context, base64.b64decode(value["data_base64"], validate=True))
        except (binascii.Error, TypeError, ValueError):
            raise EventError("data_base64 is not Base64", row=row) from None
    if value.get("data") is None:
        return CloudEvent(context, None)
    data, kind = value["data"], str(context.get("datacontenttype", "application/json"))
    if isinstance(data, str) and not is_json(kind):
        return CloudEvent(context, data.encode())
    return CloudEvent(context, json_text.write(data))


def _binary(content_type: str, headers: Iterable[tuple[str, str]], body: bytes) -> CloudEvent:
    context: dict[str, Any] = {
        name[3:]: unquote(value) for name, value in headers if name.startswith("ce-")
    }
    if content_type:
        context["datacontenttype"] = content_type
    check_context(context)
    return CloudEvent(context, body or None)


def check_context(context: Mapping[str, Any], row: int | None = None) -> None:
    """Refuse context attributes that the specification does not allow."""
    for name in _REQUIRED:
        if not isinstance(context.get(name), str) or not context[name]:
            raise EventError(f"a CloudEvent needs {name}", attribute=f"ce.{name}", row=row)
    if context["specversion"] != "1.0":
        raise EventError(
            f"CloudEvents {context['specversion']} is not known; 1.0 is",
            attribute="ce.specversion",
            row=row,
        )
    for name, value in context.items():
        if _NAME(name) is None:
            raise EventError(f"no name of a context attribute: {name[:64]!r}", row=row)
        if not isinstance(value, str | bool | int):
            raise EventError("a context attribute is a text, number or boolean", row=row)
        if isinstance(value, str) and has_controls(value):
            raise EventError(
                "a context attribute has no control characters or line breaks",
                attribute=f"ce.{name}",
                row=row,
            )


def to_headers(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an event in binary mode."""
    headers = {
        f"ce-{name}": quote(_to_text(value), safe=" !#$&'()*+,/:;=?@[]^_`{|}~")
        for name, value in context.items()
        if name != "datacontenttype"
    }
    return headers


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
