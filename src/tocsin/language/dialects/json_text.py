"""The JSON of a pattern → values with their places, or an error that has the place.

Enters: text. Leaves: `JsonObject`s, lists, texts and numbers in the order of the text. A name may
stand several times in an object; numbers keep their spelling. Where a value is to be replaced by
others of its kind (see `normalize.json_shapes`), texts and numbers carry their number in the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from tocsin.errors import ConditionSyntaxError

OPERATORS = frozenset(("=", "<", "<=", ">", ">="))
"""Texts that are part of the structure: operators of comparisons."""
MAX_DEPTH = 100


class PatternError(ConditionSyntaxError):
    """A pattern in JSON is not in its dialect; `path` is the place, such as `$.detail.state[0]`."""

    def __init__(self, message: str, text: str, path: str, position: int = 0) -> None:
        super().__init__(message, text, position)
        self.path = path

    def __reduce__(self) -> tuple[type, tuple[str, str, str, int]]:
        return (type(self), (self.message, self.text, self.path, self.position))

    def __str__(self) -> str:
        return f"{self.message} (at {self.path})"


class JsonObject(tuple[tuple[str, Any], ...]):
    """The members of an object, in order."""


class Number:
    """A number as it is spelled."""

    __slots__ = ("slot", "text")

    def __init__(self, text: str, slot: int | None = None) -> None:
        self.text = text
        self.slot = slot

    def value(self) -> int | float | None:
        """Return the value: an integer of 64 bits or a float, None where it is neither exactly."""
        try:
            exact = Decimal(self.text)
            number = float(exact)
            if not math.isfinite(number):
                return None
            if exact == exact.to_integral_value() and -(1 << 63) <= exact < 1 << 63:
                return int(exact)
            return number if Decimal(repr(number)) == exact else None
        except (InvalidOperation, OverflowError, ValueError):
            return None


class Text(str):
    """A text that carries its number."""

    slot: int


def read(text: str, *, lift: bool = False) -> tuple[Any, int]:
    """Return the value of a JSON text, and how many texts and numbers were numbered."""
    if not isinstance(text, str):
        raise PatternError("a pattern is a JSON text", str(text), "$")

    def refuse(word: str) -> NoReturn:
        raise PatternError(f"{word} is not JSON", text, "$", max(text.find(word), 0))

    try:
        value = json.loads(
            text,
            object_pairs_hook=JsonObject,
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise PatternError(f"not JSON: {error.msg}", text, place, error.pos) from None
    except RecursionError:
        raise PatternError("nested too deeply", text, "$") from None
    if not _is_unicode(text):
        raise PatternError("a string is not valid Unicode", text, "$")
    counter = iter(range(1 << 30))
    value = _prepared(value, counter if lift else None, text, 0)
    return value, next(counter)


def _is_unicode(text: str) -> bool:
    return "\\ud" not in text.lower() or _decodes(text)


def _decodes(text: str) -> bool:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except (UnicodeEncodeError, ValueError, RecursionError):
        return False
    return True


def _prepared(value: Any, counter: Iterator[int] | None, text: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PatternError(f"nested more than {MAX_DEPTH} deep", text, "$")
    if isinstance(value, JsonObject):
        return JsonObject((n, _prepared(v, counter, text, depth + 1)) for n, v in value)
    if isinstance(value, list):
        return [_prepared(each, counter, text, depth + 1) for each in value]
    if counter is None:
        return value
    if isinstance(value, Number):
        value.slot = next(counter)
    elif isinstance(value, str) and value not in OPERATORS:
        value = Text(value)
        value.slot = next(counter)
    return value
