"""JSON Lines → chunks of events.

Enters: a file with one JSON object a line. Leaves: chunks of mappings. Values keep their kinds row
by row; an integer that does not fit 64 bits is refused, not rounded; a text becomes a timestamp
only where the event type says so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from tocsin.encode.files import (
    BadLine,
    Chunk,
    EventFile,
    fail,
    open_text,
    to_numbers,
)
from tocsin.encode.texts import parse_text
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind, kind_of


class JsonLinesFile(EventFile):
    """One JSON object a line; nested objects are kept. Chunks are lists of dictionaries."""

    def __iter__(self) -> Iterator[Chunk]:
        declared = declared_paths(self.event_type)
        events: list[dict[str, object]] = []
        rows: list[int] = []
        lines: list[int] = []
        n_bytes = line = n_rows = 0
        with open_text(self.source) as source:
            while raw := source.read_line():
                line += 1
                if raw.isspace():
                    continue
                n_rows += 1
                try:
                    event = parse_json_object(raw)
                    for place in declared:
                        fit(event, *place)
                except ValueError as error:
                    original = raw.decode(errors="replace").rstrip("\r\n")
                    self.refuse(BadLine(line, str(error), original))
                    continue
                events.append(event)
                rows.append(n_rows - 1)
                lines.append(line)
                n_bytes += len(raw)
                if n_bytes >= self.chunk_bytes:
                    self.fraction = source.fraction
                    yield Chunk(events, to_numbers(rows), to_numbers(lines))
                    events, rows, lines, n_bytes = [], [], [], 0
        if not n_rows:
            fail(self.path, "the file is empty")
        self.fraction = 1.0
        if events:
            yield Chunk(events, to_numbers(rows), to_numbers(lines))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
# Only such a line can hold a number beyond 64 bits or half a surrogate pair.
_may_be_inexact = re.compile(rb"\d{19}|[eE]\+?0*[1-9]\d\d|\\u[dD]").search


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parse a line that holds one JSON object; ValueError says what is wrong with it."""
    try:
        text = raw.decode().strip(" \t\r\n")
        value, end = _decode_json(text)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as error:
        known = str(error).startswith("not JSON")
        raise ValueError(str(error) if known else "an integer beyond 64 bits") from None
    if end != len(text):
        raise ValueError(f"not JSON: more text after the first value (column {end + 1})")
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if _may_be_inexact(raw):
        _check_exact(value)
    return value


def _check_exact(value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_exact(key)
            _check_exact(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_exact(inner)
    elif isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError("an integer beyond 64 bits")
    elif isinstance(value, float):
        if math.isinf(value):
            raise ValueError("a number beyond the range of 64-bit floats")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a string is not valid Unicode (half a surrogate pair)") from None


def declared_paths(event_type: EventType | None) -> list[tuple[str, list[str], Kind]]:
    """Return the declared attributes with the parts of their paths."""
    declared = event_type.attributes if event_type else {}
    return [(name, name.split("."), kind) for name, kind in declared.items()]


def fit(event: dict[str, Any], name: str, parts: list[str], declared: Kind) -> None:
    """Check that an event's value is of its declared kind; a text may become a timestamp."""
    place = _locate(event, parts)
    if place is None:
        return
    holder, key = place
    value = holder[key]
    actual = kind_of(value)
    if value is None or actual is declared:
        return
    if declared is Kind.TIMESTAMP and isinstance(value, str):
        holder[key] = parse_text(value, declared, name)
    elif declared is Kind.INTEGER and isinstance(value, float) and value.is_integer():
        holder[key] = int(value)
        if kind_of(holder[key]) is None:
            raise ValueError(f"attribute {name!r}: an integer beyond 64 bits")
    elif not (declared is Kind.FLOAT and actual is Kind.INTEGER):
        what = actual.value if actual else "an array or object"
        raise ValueError(f"attribute {name!r} is declared {declared.value}, not {what}")


def _locate(node: dict[str, Any], parts: list[str]) -> tuple[dict[str, Any], str] | None:
    """Return the object and key that a path leads to; keys may hold dots themselves."""
    for n_used in range(len(parts), 0, -1):
        key = ".".join(parts[:n_used])
        if node.get(key) is None:
            continue
        if n_used == len(parts):
            return node, key
        if isinstance(node[key], dict) and (inner := _locate(node[key], parts[n_used:])):
            return inner
    return None
