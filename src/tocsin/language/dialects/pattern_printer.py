"""Expressions → event patterns, where these can say the same.

Enters: an expression, on attributes or on `EACH(path)`; both become fields. Leaves: a pattern as
JSON, or an ArgumentError that names what patterns have no test for.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tocsin.errors import ArgumentError
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Distinct,
    Expression,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Truth,
    no_text,
)
from tocsin.language.names import EACH, HAS, is_computed, is_path, path_of
from tocsin.language.printer import print_expression as print_sql
from tocsin.language.term_names import term_of
from tocsin.language.terms import Attribute, Call, Literal, Operand
from tocsin.model import FIRST_MOMENT

_Fields = dict[str, list[Any]]
_FLIPPED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def print_expression(expression: Expression) -> str:
    """Return the pattern that says the same as an expression."""
    return json.dumps(_nested(_pattern(expression)), ensure_ascii=False)


def _refuse(expression: Expression) -> NoReturn:
    raise ArgumentError(f"an event pattern cannot say: {print_sql(expression)}")


def _pattern(expression: Expression) -> dict[str, Any]:
    """Return a pattern whose fields are named by their whole paths."""
    if isinstance(expression, And):
        return _all_of(expression)
    if isinstance(expression, Or):
        return _any_of(expression)
    if isinstance(expression, In) and not expression.negated:
        path, function = _path(expression.attribute, expression)
        values = [_constant(operand, expression) for operand in expression.operands]
        if function not in (None, "lower"):
            _refuse(expression)
        return {path: [{"equals-ignore-case": v} for v in values] if function else values}
    path, test = _field(expression)
    return {path: [test]}


def _all_of(expression: And) -> dict[str, Any]:
    parts = [_pattern(part) for part in expression.operands]
    joined: dict[str, Any] = {}
    for part in parts:
        for name, tests in part.items():
            if name not in joined:
                joined[name] = tests
                continue
            both = None if name == "$or" else _both(joined[name], tests)
            if both is None:
                _refuse(expression)
            joined[name] = [both]
    return joined


def _both(one: list[Any], other: list[Any]) -> Any:
    """Return the test that two tests of a field are together, or None."""
    if len(one) != 1 or len(other) != 1:
        return None
    a, b = one[0], other[0]
    if not isinstance(a, dict) or not isinstance(b, dict):
        return None
    if a == {"exists": True}:
        return b
    if b == {"exists": True}:
        return a
    if "cidr-from" in a and "cidr-to" in b:
        return _network(a["cidr-from"], b["cidr-to"])
    if "numeric" in a and "numeric" in b:
        lower, upper = sorted((a["numeric"], b["numeric"]), key=lambda bound: bound[0] < ">")
        lower, upper = (upper, lower) if lower[0][0] == "<" else (lower, upper)
        if len(lower) == len(upper) == 2 and lower[0][0] == ">" and upper[0][0] == "<":
            return {"numeric": [*lower, *upper]} if lower[1] < upper[1] else None
        return None
    if "anything-but" in a and "anything-but" in b:
        return _neither(a["anything-but"], b["anything-but"])
    return None


def _neither(one: Any, other: Any) -> dict[str, Any] | None:
    if isinstance(one, dict) and isinstance(other, dict):
        ((name, values),), ((same, more),) = one.items(), other.items()
        if name != same:
            if not {name, same} <= {"prefix", "suffix", "wildcard"}:
                return None
            values, more = _as_wildcards(name, values), _as_wildcards(same, more)
            name = "wildcard"
        return {"anything-but": {name: [*_listed(values), *_listed(more)]}}
    if isinstance(one, dict) or isinstance(other, dict):
        return None
    values = [*_listed(one), *_listed(other)]
    return {"anything-but": values} if len(set(map(_is_text, values))) == 1 else None


def _as_wildcards(name: str, values: Any) -> list[str]:
    """Return the texts of a test as those of the test `wildcard`."""
    if name == "wildcard":
        return _listed(values)
    escaped = [re.sub(r"([*\\])", r"\\\1", text) for text in _listed(values)]
    return [f"{text}*" if name == "prefix" else f"*{text}" for text in escaped]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _network(first: str, last: str) -> dict[str, str] | None:
    """Return the range of addresses from one to another, as `ip_address` has them."""
    import ipaddress

    low, high = int(first[2:], 16), int(last[2:], 16)
    free = (low ^ high).bit_length()
    if low & ((1 << free) - 1) or high - low != (1 << free) - 1 or first[0] != last[0]:
        return None
    kind = ipaddress.IPv4Address if first[0] == "4" else ipaddress.IPv6Address
    return {"cidr": f"{kind(low)}/{4 * len(first[2:]) - free}"}


def _any_of(expression: Or) -> dict[str, Any]:
    operands = list(expression.operands)
    parts: list[dict[str, Any]] = []
    while operands:
        part = _pattern(operands.pop(0))
        if len(part) == 1:
            ((path, tests),) = part.items()
            for name in (path, EACH + path):
                if operands[:4] == no_text(name) and _is_negated(tests):
                    del operands[:4]
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    paths = {path for part in parts for path in part}
    if len(paths) == 1 and "$or" not in paths:
        (path,) = paths
        return {path: [test for part in parts for test in part[path]]}
    return {"$or": parts}


def _is_negated(tests: list[Any]) -> bool:
    return len(tests) == 1 and isinstance(tests[0], dict) and "anything-but" in tests[0]


def _field(expression: Expression, *, negated: bool = False) -> tuple[str, Any]:
    """Return the field that a predicate is about, and what it asks of it."""
    if isinstance(expression, Not):
        return _field(expression.operand, negated=not negated)
    if isinstance(expression, Truth) and expression.attribute.startswith(HAS):
        return _path(path_of(expression.attribute), expression)[0], {"exists": not negated}
    if isinstance(expression, And | Or) or not hasattr(expression, "attribute"):
        _refuse(expression)
    path, function = _path(expression.attribute, expression)
    if isinstance(expression, Truth):
        return path, not negated
    if isinstance(expression, IsNull):
        return path, {"exists": expression.negated is not negated}
    if isinstance(expression, Distinct):
        if expression.negated is not negated:
            return path, _constant(expression.operand, expression)
        return path, {"anything-but": _constant(expression.operand, expression)}
    if isinstance(expression, Comparison):
        return path, _comparison(expression, negated, function)
    if isinstance(expression, Like):
        return path, _like(expression, expression.negated is not negated, function)
    if isinstance(expression, In):
        values = [_constant(operand, expression) for operand in expression.operands]
        if expression.negated is negated or function not in (None, "lower"):
            _refuse(expression)
        return path, {"anything-but": {"equals-ignore-case": values} if function else values}
    assert isinstance(expression, Between)
    low, high = (_constant(each, expression) for each in (expression.low, expression.high))
    if negated or expression.negated or function or _is_text(low) or _is_text(high) or low >= high:
        _refuse(expression)
    return path, {"numeric": [">=", low, "<=", high]}


def _path(name: str, expression: Expression) -> tuple[str, str | None]:
    """Return the path of a field, and the function that is applied to it."""
    if "$or" in name.split("."):
        raise ArgumentError("an event pattern cannot have a field $or")
    if is_path(name):
        return name, None
    if name.startswith(EACH):
        return _path(path_of(name), expression)
    term = term_of(name) if is_computed(name) else None
    if isinstance(term, Call) and term.function in ("lower", "ip_address"):
        (inner,) = term.arguments
        if isinstance(inner, Attribute):
            return _path(inner.name, expression)[0], term.function
    _refuse(expression)


def _constant(operand: Operand, expression: Expression) -> Any:
    if not isinstance(operand, Literal):
        _refuse(expression)
    if operand.value == FIRST_MOMENT:
        return None
    if not isinstance(operand.value, bool | int | float | str):
        _refuse(expression)
    return operand.value


def _comparison(expression: Comparison, negated: bool, function: str | None) -> Any:
    op = _FLIPPED[expression.op] if negated else expression.op
    value = _constant(expression.operand, expression)
    if function == "ip_address" and op in ("=", ">=", "<="):
        if op == "=":
            return _address(value)
        return {"cidr-from" if op == ">=" else "cidr-to": value}
    if function == "lower" and op in ("=", "<>"):
        test: Any = {"equals-ignore-case": value}
        return test if op == "=" else {"anything-but": test}
    if function is None and op == "=":
        return value
    if function is None and op == "<>":
        return {"anything-but": value}
    if function is None and isinstance(value, int | float) and not isinstance(value, bool):
        return {"numeric": [op, value]}
    _refuse(expression)


def _address(key: str) -> str:
    import ipaddress

    kind = ipaddress.IPv4Address if key[0] == "4" else ipaddress.IPv6Address
    return str(kind(int(key[2:], 16)))


def _like(expression: Like, negated: bool, function: str | None) -> Any:
    """Return the test that LIKE is: prefix, suffix or wildcard."""
    text = _constant(expression.pattern, expression)
    if not isinstance(text, str) or function not in (None, "lower"):
        _refuse(expression)
    escape = expression.escape or ""
    pieces = re.findall(f"{re.escape(escape)}.|." if escape else ".", text, re.DOTALL)
    if "_" in pieces:
        _refuse(expression)
    plain = [piece[len(escape) :] if len(piece) > 1 else piece for piece in pieces]
    is_many = [piece == "%" for piece in pieces]
    n_many, folds = sum(is_many), function == "lower" or expression.ignore_case
    test: Any
    if n_many == 1 and (is_many[0] or is_many[-1]):
        name = "suffix" if is_many[0] else "prefix"
        inner = "".join(plain[1:] if is_many[0] else plain[:-1])
        test = {name: {"equals-ignore-case": inner} if folds else inner}
    elif n_many == 0:
        test = {"equals-ignore-case": "".join(plain)} if folds else "".join(plain)
    else:
        escaped = ["*" if m else re.sub(r"([*\\])", r"\\\1", p) for m, p in zip(is_many, plain)]  # noqa: B905
        test = {"wildcard": re.sub(r"(?<!\\)\*+", "*", "".join(escaped))}
    is_folded_wildcard = folds and isinstance(test, dict) and "wildcard" in test
    if is_folded_wildcard or (negated and folds and n_many):
        _refuse(expression)
    return {"anything-but": test} if negated else test


def _nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a pattern with the paths of its fields as objects within objects."""
    pattern: dict[str, Any] = {}
    for path, tests in fields.items():
        if path == "$or":
            pattern[path] = [_nested(part) for part in tests]
            continue
        for test in tests:
            if isinstance(test, dict) and test.keys() & {"cidr-from", "cidr-to"}:
                raise ArgumentError("an event pattern cannot say a range of addresses as this one")
        *outer, last = path.split(".")
        place = pattern
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ArgumentError(f"an event pattern cannot have a field within {name!r}")
        if last in place:
            raise ArgumentError(f"an event pattern cannot have a field within {last!r}")
        place[last] = tests
    return pattern
