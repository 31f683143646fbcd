"""Expression × event → true, false or unknown: the meaning of the language, as plainly as it goes.

Enters: an expression with bound operands and a function that gives an attribute's value. Leaves:
True, False or None (unknown). This shares no code with `normalize`, so that each can be held
against the other.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Any

from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
)
from tocsin.model import Kind, kind_of, to_microseconds

_NUMBERS = frozenset((Kind.INTEGER, Kind.FLOAT))


def evaluate(expression: Expression, value_of: Callable[[str], object]) -> bool | None:
    """Evaluate an expression under SQL's three-valued logic."""
    if isinstance(expression, And):
        return _all([evaluate(part, value_of) for part in expression.operands])
    if isinstance(expression, Or):
        return _not(_all([_not(evaluate(part, value_of)) for part in expression.operands]))
    if isinstance(expression, Not):
        return _not(evaluate(expression.operand, value_of))
    if isinstance(expression, Constant):
        return expression.value
    value = value_of(expression.attribute)
    if isinstance(expression, IsNull):
        return (value is None) is not expression.negated
    if isinstance(expression, Comparison):
        return compare(expression.op, value, _value(expression.operand))
    if isinstance(expression, Between):
        low, high = _value(expression.low), _value(expression.high)
        inside = _all([compare(">=", value, low), compare("<=", value, high)])
        return _not(inside) if expression.negated else inside
    if isinstance(expression, In):
        equal = [compare("=", value, _value(operand)) for operand in expression.operands]
        outside = _all([_not(each) for each in equal])
        return outside if expression.negated else _not(outside)
    if isinstance(expression, Like):
        fits = like(value, _value(expression.pattern), expression.escape)
        return _not(fits) if expression.negated else fits
    return compare("=", value, True)


def compare(op: str, a: object, b: object) -> bool | None:
    """Compare two values; unknown when one is missing, NaN, or of another kind."""
    a_kind, b_kind = kind_of(a), kind_of(b)
    if a_kind is None or b_kind is None:
        return None
    if a_kind is not b_kind and not (a_kind in _NUMBERS and b_kind in _NUMBERS):
        return None
    if any(isinstance(x, float) and math.isnan(x) for x in (a, b)):
        return None
    x: Any = to_microseconds(a) if isinstance(a, dt.datetime) else a
    y: Any = to_microseconds(b) if isinstance(b, dt.datetime) else b
    less, equal = bool(x < y), bool(x == y)
    return {
        "=": equal,
        "<>": not equal,
        "<": less,
        "<=": less or equal,
        ">": not (less or equal),
        ">=": not less,
    }[op]


def like(value: object, pattern: object, escape: str | None) -> bool | None:
    """Whether a string fits a LIKE pattern; unknown when either is no string."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    pieces = [""]
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            pieces[-1] += re.escape(next(chars, ""))
        elif char == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if char == "_" else re.escape(char)
    head, *others = pieces
    # A piece between two % is best put where it first fits; `(?>…)` keeps the regular expression
    # from trying it elsewhere, which would take it forever.
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    regex = f"{head}{middle}.*{others[-1]}" if others else head
    return re.fullmatch(regex, value, re.DOTALL) is not None


def _value(operand: Operand) -> object:
    assert isinstance(operand, Literal), "operands are bound before evaluation"
    return operand.value


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _all(truths: list[bool | None]) -> bool | None:
    if any(truth is False for truth in truths):
        return False
    return None if any(truth is None for truth in truths) else True
