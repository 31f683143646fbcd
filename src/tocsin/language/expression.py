"""Expressions: the syntax tree of a subscription's condition.

Enters: nothing but its parts. Leaves: immutable trees that `parse` makes, `print_expression` writes
and `normalize` reads. An operand is a literal or a parameter; every predicate has exactly one
attribute, which is a path, or a name that `computed` makes: of a computed value
(`price * volume > 1000` is a predicate on `price * volume`) or of the elements of a list. And and
Or are n-ary and never directly hold a node of their own class, so that an expression has one shape
however it was parenthesised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tocsin.language.terms import Literal, Operand, Parameter
from tocsin.model import FIRST_MOMENT, Kind

__all__ = ["Literal", "Operand", "Parameter"]


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL as a condition."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`attribute op operand`; op is one of = <> < <= > >=."""

    attribute: str
    op: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class Between:
    """`attribute [NOT] BETWEEN low AND high`."""

    attribute: str
    low: Operand
    high: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    """`attribute [NOT] IN (operand, …)`."""

    attribute: str
    operands: tuple[Operand, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """`attribute [NOT] LIKE pattern [ESCAPE escape]`, or ILIKE, which ignores case."""

    attribute: str
    pattern: Operand
    escape: str | None = None
    negated: bool = False
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """`attribute IS [NOT] NULL`."""

    attribute: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Distinct:
    """`attribute IS DISTINCT FROM operand`, or negated `IS NOT DISTINCT FROM`; never unknown.

    `x IS TRUE` is `x IS NOT DISTINCT FROM TRUE`.
    """

    attribute: str
    operand: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean attribute used as a condition by itself."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT operand`."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    """`a AND b AND …`, at least two."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """`a OR b OR …`, at least two."""

    operands: tuple[Expression, ...]


Predicate: TypeAlias = Comparison | Between | In | Like | IsNull | Distinct | Truth
Expression: TypeAlias = Constant | Predicate | Not | And | Or


def conjoin(operands: list[Expression]) -> Expression:
    """Return the conjunction of expressions, flattened."""
    if len(operands) == 1:
        return operands[0]
    flat: list[Expression] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, And) else (operand,))
    return And(tuple(flat))


def disjoin(operands: list[Expression]) -> Expression:
    """Return the disjunction of expressions, flattened."""
    if len(operands) == 1:
        return operands[0]
    flat: list[Expression] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, Or) else (operand,))
    return Or(tuple(flat))


def no_text(name: str) -> list[Expression]:
    """Return the conditions that a value is of another kind than a text, one for each kind."""
    zero = Literal(0, Kind.INTEGER)
    truths = Literal(False, Kind.BOOLEAN), Literal(True, Kind.BOOLEAN)
    return [
        Comparison(name, "<", zero),
        Comparison(name, ">=", zero),
        In(name, truths),
        Comparison(name, ">=", Literal(FIRST_MOMENT, Kind.TIMESTAMP)),
    ]


def predicates(expression: Expression) -> Iterator[Predicate]:
    """Yield the predicates of an expression from left to right."""
    if isinstance(expression, And | Or):
        for operand in expression.operands:
            yield from predicates(operand)
    elif isinstance(expression, Not):
        yield from predicates(expression.operand)
    elif not isinstance(expression, Constant):
        yield expression


def operands(predicate: Predicate) -> tuple[Operand, ...]:
    """Return the operands of a predicate from left to right."""
    if isinstance(predicate, Comparison | Distinct):
        return (predicate.operand,)
    if isinstance(predicate, Between):
        return (predicate.low, predicate.high)
    if isinstance(predicate, In):
        return predicate.operands
    if isinstance(predicate, Like):
        return (predicate.pattern,)
    return ()


def map_predicates(expression: Expression, change: Callable[[Predicate], Expression]) -> Expression:
    """Return the expression with every predicate changed, visited in the order of the text."""
    if isinstance(expression, And | Or):
        parts = [map_predicates(part, change) for part in expression.operands]
        return conjoin(parts) if isinstance(expression, And) else disjoin(parts)
    if isinstance(expression, Not):
        return Not(map_predicates(expression.operand, change))
    return expression if isinstance(expression, Constant) else change(expression)


def map_operands(expression: Expression, change: Callable[[Operand], Operand]) -> Expression:
    """Return the expression with every operand changed, visited in the order of the text.

    Operands within computed values are not changed: `computed.bind_names` does that.
    """
    return map_predicates(expression, lambda predicate: with_operands(predicate, change))


def with_operands(predicate: Predicate, change: Callable[[Operand], Operand]) -> Predicate:
    """Return a predicate with its operands changed."""
    if isinstance(predicate, Comparison):
        return Comparison(predicate.attribute, predicate.op, change(predicate.operand))
    if isinstance(predicate, Between):
        low, high = change(predicate.low), change(predicate.high)
        return Between(predicate.attribute, low, high, predicate.negated)
    if isinstance(predicate, In):
        changed = tuple(map(change, predicate.operands))
        return In(predicate.attribute, changed, predicate.negated)
    if isinstance(predicate, Like):
        return replace(predicate, pattern=change(predicate.pattern))
    if isinstance(predicate, Distinct):
        return replace(predicate, operand=change(predicate.operand))
    return predicate
