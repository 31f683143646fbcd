"""Predicates on values under SQL's three-valued logic.

Enters: a predicate with bound operands, and a value; or truths. Leaves: True, False or None
(unknown).
"""

from __future__ import annotations

from tocsin.language import functions
from tocsin.language.expression import (
    Between,
    Comparison,
    Distinct,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Operand,
)
from tocsin.language.functions import compare, like


def decide(predicate: Expression, value: object) -> bool | None:
    """Evaluate a predicate on the value of its attribute."""
    if isinstance(predicate, IsNull):
        return (value is None) is not predicate.negated
    if isinstance(predicate, Comparison):
        return compare(predicate.op, value, constant_of(predicate.operand))
    if isinstance(predicate, Between):
        low, high = constant_of(predicate.low), constant_of(predicate.high)
        inside = conjunction([compare(">=", value, low), compare("<=", value, high)])
        return negated(inside) if predicate.negated else inside
    if isinstance(predicate, In):
        equal = [compare("=", value, constant_of(operand)) for operand in predicate.operands]
        inside = disjunction(equal)
        return negated(inside) if predicate.negated else inside
    if isinstance(predicate, Like):
        pattern = constant_of(predicate.pattern)
        fits = like(value, pattern, predicate.escape, ignore_case=predicate.ignore_case)
        return negated(fits) if predicate.negated else fits
    if isinstance(predicate, Distinct):
        differ = functions.is_distinct(value, constant_of(predicate.operand))
        return differ is not predicate.negated
    return compare("=", value, True)


def constant_of(operand: Operand) -> object:
    """Return the value of an operand."""
    assert isinstance(operand, Literal), "operands are bound before evaluation"
    return operand.value


def negated(truth: bool | None) -> bool | None:
    """Return NOT of a truth."""
    return None if truth is None else not truth


def conjunction(truths: list[bool | None]) -> bool | None:
    """Return AND of truths."""
    if any(truth is False for truth in truths):
        return False
    return None if any(truth is None for truth in truths) else True


def disjunction(truths: list[bool | None]) -> bool | None:
    """Return OR of truths."""
    if any(truth is True for truth in truths):
        return True
    return None if any(truth is None for truth in truths) else False
