"""Expression → text, such that parsing the text again gives the same expression.

Enters: an expression. Leaves: its text in the native language. Infinite floats, which only a
parameter can bring in, have no literal; they are written as `1e999`, for people to read.
"""

from __future__ import annotations

import datetime as dt
import re

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
    Truth,
)
from tocsin.language.tokens import KEYWORDS

_PLAIN_PART = re.compile(r"[^\W\d][\w$]*")


def print_expression(expression: Expression) -> str:
    """Write an expression as text."""
    if isinstance(expression, Or):
        return " OR ".join(print_expression(part) for part in expression.operands)
    if isinstance(expression, And):
        return " AND ".join(_inside(part, Or) for part in expression.operands)
    if isinstance(expression, Not):
        return f"NOT {_inside(expression.operand, Or, And)}"
    if isinstance(expression, Constant):
        return {True: "TRUE", False: "FALSE", None: "NULL"}[expression.value]
    name = print_attribute(expression.attribute)
    if isinstance(expression, Truth):
        return name
    if isinstance(expression, Comparison):
        return f"{name} {expression.op} {print_operand(expression.operand)}"
    if isinstance(expression, IsNull):
        return f"{name} IS {'NOT ' * expression.negated}NULL"
    return name + " NOT" * expression.negated + _tail(expression)


def _tail(predicate: Between | In | Like) -> str:
    if isinstance(predicate, Between):
        return f" BETWEEN {print_operand(predicate.low)} AND {print_operand(predicate.high)}"
    if isinstance(predicate, In):
        return f" IN ({', '.join(print_operand(o) for o in predicate.operands)})"
    escape = "" if predicate.escape is None else f" ESCAPE {print_string(predicate.escape)}"
    return f" LIKE {print_operand(predicate.pattern)}{escape}"


def _inside(expression: Expression, *looser: type) -> str:
    text = print_expression(expression)
    return f"({text})" if isinstance(expression, looser) else text


def print_attribute(name: str) -> str:
    """Write an attribute's name, quoted where it must be."""
    first, *rest = name.split(".")
    plain = first.upper() not in KEYWORDS and all(map(_PLAIN_PART.fullmatch, (first, *rest)))
    return name if plain else '"' + name.replace('"', '""') + '"'


def print_operand(operand: Operand) -> str:
    """Write a literal or a parameter."""
    if not isinstance(operand, Literal):
        return f":{operand.name}"
    value = operand.value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return print_string(value)
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    return repr(value).replace("inf", "1e999")


def print_string(value: str) -> str:
    """Write a string literal."""
    return "'" + value.replace("'", "''") + "'"
