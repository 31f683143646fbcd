"""Expression → text, such that parsing the text again gives the same expression.

Enters: an expression, or a term of one. Leaves: its text in the native language. Infinite floats,
which only a parameter can bring in, have no literal; they are written as products.
"""

from __future__ import annotations

import datetime as dt
import math
import re

from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    Distinct,
    Expression,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Truth,
)
from tocsin.language.functions import COMPARISONS, print_interval
from tocsin.language.names import COMPUTED, ELEMENTS, HAS, element_name, is_each, paths_of
from tocsin.language.term_names import keep, term_of
from tocsin.language.terms import (
    Attribute,
    Call,
    Cast,
    Exists,
    Interval,
    Literal,
    Parameter,
    Term,
    Test,
)
from tocsin.language.tokens import KEYWORDS, TERM_WORDS

_PLAIN_PART = re.compile(r"[^\W\d][\w$]*")
_LEVELS = {"||": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "neg": 6}
_COMPARISON_LEVEL = 2


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
    if isinstance(expression, Truth):
        return print_attribute(expression.attribute)
    name = print_subject(expression.attribute)
    if isinstance(expression, Comparison):
        return f"{name} {expression.op} {print_operand(expression.operand)}"
    if isinstance(expression, IsNull):
        return f"{name} IS {'NOT ' * expression.negated}NULL"
    if isinstance(expression, Distinct):
        operand = print_operand(expression.operand)
        return f"{name} IS {'NOT ' * expression.negated}DISTINCT FROM {operand}"
    return name + " NOT" * expression.negated + _tail(expression)


def _tail(predicate: Between | In | Like) -> str:
    if isinstance(predicate, Between):
        return f" BETWEEN {print_operand(predicate.low)} AND {print_operand(predicate.high)}"
    if isinstance(predicate, In):
        return f" IN ({', '.join(print_operand(o) for o in predicate.operands)})"
    escape = "" if predicate.escape is None else f" ESCAPE {print_string(predicate.escape)}"
    like = "ILIKE" if predicate.ignore_case else "LIKE"
    return f" {like} {print_operand(predicate.pattern)}{escape}"


def _inside(expression: Expression, *looser: type) -> str:
    text = print_expression(expression)
    return f"({text})" if isinstance(expression, looser) else text


def name_of(term: Term) -> str:
    """Return the name by which a predicate knows a term, which must be in canonical form."""
    if isinstance(term, Attribute):
        return term.name
    name = COMPUTED + print_term(term)
    keep(name, term)
    return name


def print_subject(name: str) -> str:
    """Write what stands before an operator: a comparison is in parentheses there."""
    text = print_attribute(name)
    if not name.startswith(COMPUTED):
        return text
    return f"({text})" if _level(term_of(name)) <= _COMPARISON_LEVEL else text


def print_attribute(name: str) -> str:
    """Write an attribute's name, quoted where it must be, or the computed value that it names."""
    if name.startswith(COMPUTED):
        return name[len(COMPUTED) :]
    if name.startswith(ELEMENTS):
        of = element_name(name)
        return f"{of.quantifier.upper()}({print_attribute(of.list)})"
    if is_each(name):
        function = "HAS" if name.startswith(HAS) else "EACH"
        return f"{function}({', '.join(map(print_attribute, paths_of(name)))})"
    first, *rest = name.split(".")
    plain = first.upper() not in KEYWORDS and all(map(_PLAIN_PART.fullmatch, (first, *rest)))
    if plain and not rest and first.upper() in TERM_WORDS:
        plain = False
    return name if plain else '"' + name.replace('"', '""') + '"'


def print_operand(operand: Literal | Parameter) -> str:
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
    if isinstance(value, float) and not math.isfinite(value):  # there is no such literal
        return "(1e308 * 10 - 1e308 * 10)" if value != value else f"({'-' * (value < 0)}1e308 * 10)"
    return repr(value)


def print_string(value: str) -> str:
    """Write a string literal."""
    return "'" + value.replace("'", "''") + "'"


_LONG = 500
_MOST_KEPT = 4_000_000
_kept: dict[int, tuple[Term, str]] = {}
"""The texts of recent long terms: a term is written again with each that it is a part of."""


def print_term(term: Term) -> str:
    """Write a term as text."""
    kept = _kept.get(id(term))
    if kept is not None and kept[0] is term:
        return kept[1]
    text = _print_term(term)
    if len(text) > _LONG:
        if len(_kept) * len(text) > _MOST_KEPT:
            _kept.clear()
        _kept[id(term)] = term, text
    return text


def _print_term(term: Term) -> str:
    if isinstance(term, Literal | Parameter):
        return print_operand(term)
    if isinstance(term, Attribute):
        return print_attribute(term.name)
    if isinstance(term, Interval):
        return f"INTERVAL '{print_interval(term.months, term.microseconds)}'"
    if isinstance(term, Call):
        return _print_call(term)
    if isinstance(term, Cast):
        return f"CAST({print_term(term.term)} AS {term.kind.value})"
    if isinstance(term, Test):
        return f"({print_expression(term.condition)})"
    if isinstance(term, Exists):
        name = "forall" if term.every else "exists"
        condition = print_expression(term.condition)
        return f"{name}({print_term(term.list)}, {term.variable} -> {condition})"
    branches = "".join(
        f"WHEN {print_expression(condition)} THEN {print_term(value)} "
        for condition, value in term.branches
    )
    return f"CASE {branches}ELSE {print_term(term.otherwise)} END"


def _print_call(term: Call) -> str:
    name, level = term.function, _level(term)
    if name == "neg":
        inner = _operand(term.arguments[0], level)
        # A sign before a number would be read as part of it, two signs as a comment.
        return f"-({inner})" if inner[0] in "-0123456789." else f"-{inner}"
    if name in ("like", "ilike"):
        left, pattern = (_operand(part, _COMPARISON_LEVEL + 1) for part in term.arguments[:2])
        escape = term.arguments[2]
        assert isinstance(escape, Literal)
        tail = "" if escape.value is None else f" ESCAPE {print_operand(escape)}"
        return f"{left} {name.upper()} {pattern}{tail}"
    if name == "is distinct from":
        left, right = (_operand(part, _COMPARISON_LEVEL + 1) for part in term.arguments)
        return f"{left} IS DISTINCT FROM {right}"
    if name in _LEVELS or name in COMPARISONS:
        left = _operand(term.arguments[0], level + (level == _COMPARISON_LEVEL))
        return f"{left} {name} {_operand(term.arguments[1], level + 1)}"
    if name == "extract":
        field, moment = term.arguments
        assert isinstance(field, Literal)
        return f"extract({field.value} FROM {_operand(moment, _COMPARISON_LEVEL + 1)})"
    return f"{name}({', '.join(map(_argument, term.arguments))})"


def _argument(term: Term) -> str:
    return print_expression(term.condition) if isinstance(term, Test) else print_term(term)


def _operand(term: Term, least: int) -> str:
    text = print_term(term)
    return f"({text})" if _level(term) < least else text


def _level(term: Term) -> int:
    """Return how tightly a term binds; what binds less tightly is put in parentheses."""
    if not isinstance(term, Call):
        return 7
    if term.function in COMPARISONS or term.function in ("is distinct from", "like", "ilike"):
        return _COMPARISON_LEVEL
    return _LEVELS.get(term.function, 7)
