"""JSON texts ↔ values, exactly.

Enters: bytes from the wire. Leaves: values in which no integer has become a float and every string
is Unicode, or an error. orjson reads what is harmless, which is nearly all; a text that may hold an
integer beyond 64 bits, a float beyond the largest, or half a surrogate pair goes the slow way.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import orjson

from tocsin.errors import EventError
from tocsin.model import INT64_MAX, INT64_MIN, is_unicode, to_plain

_SHALLOW = 200
_SHORT = 1 << 16
_may_be_inexact = re.compile(rb"\d{19}|[eE]\+?0*[1-9]\d\d|\\u[dD]").search
_FLAT = bytes.maketrans(b"123456789E", b"000000000e")
_LONG = b"0" * 19


def read(raw: bytes) -> Any:
    """Return the value of a JSON text."""
    try:
        if _is_harmless(raw):
            return orjson.loads(raw)
        value = json.loads(raw.decode(), parse_constant=_refuse)
        check_exact(value)
        return value
    except orjson.JSONDecodeError as error:
        raise EventError(f"not JSON: {error}") from None
    except UnicodeDecodeError:
        raise EventError("not UTF-8") from None
    except RecursionError:
        raise EventError("nested too deep") from None
    except json.JSONDecodeError as error:
        raise EventError(f"not JSON: {error.msg} (column {error.colno})") from None
    except EventError:
        raise
    except ValueError as error:
        known = str(error).startswith("not JSON")
        raise EventError(str(error) if known else "an integer beyond 64 bits") from None


def is_small(raw: bytes) -> bool:
    """Whether no integer of a text can be beyond 64 bits."""
    return _LONG not in raw.translate(_FLAT)


def _is_harmless(raw: bytes) -> bool:
    """Whether orjson reads a text exactly; most are known by a glance at their digits."""
    flat = raw.translate(_FLAT)
    if _LONG not in flat and b"0e" not in flat and b"\\u" not in flat:
        return True
    return _may_be_inexact(raw) is None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


def check_exact(value: object) -> None:
    """Refuse integers and floats that do not fit, and strings that are not Unicode.

    The error names the attribute, and in an array of events the row.
    """
    rows: Iterable[tuple[int | None, object]] = (
        enumerate(value) if isinstance(value, list) else [(None, value)]
    )
    for row, each in rows:
        for path, wrong in _inexact(each, ""):
            raise EventError(wrong, attribute=path or None, row=row)


def _inexact(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield where a value is not exact, and why."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _inexact(key, path)
            yield from _inexact(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _inexact(inner, path)
    elif isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        yield path, "an integer beyond 64 bits"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "a number beyond the largest float"
    elif isinstance(value, str) and not is_unicode(value):
        yield path, "a string is not valid Unicode"


def to_number(text: str | None) -> int | None:
    """Return the number that plain digits mean, where it fits 63 bits; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 18:
        return None
    return int(text)


def write(value: object) -> bytes:
    """Return a JSON text without line breaks; refuse a value that is nested too deep."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME, default=_to_json)
        # A text keeps the memory that it was written into, four kilobytes for a short one.
        return bytes(memoryview(text)) if len(text) < _SHORT else text
    except TypeError as error:  # what orjson reads may be deeper than what it writes
        if "ecursion" not in str(error):
            raise
        raise EventError("nested too deep") from None


def check_depth(raw: bytes, value: object) -> None:
    """Refuse a value that could not be written again."""
    if raw.count(b"{") + raw.count(b"[") > _SHALLOW:
        write(value)


def _to_json(value: object) -> object:
    """Return a value that orjson does not know as one that JSON has."""
    plain = value if isinstance(value, dt.date) else to_plain(value)
    if isinstance(plain, dt.date | dt.time):
        return plain.isoformat()
    if plain is value:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return plain
