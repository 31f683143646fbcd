"""Expressions: the syntax tree of a subscription's condition.

Enters: nothing but its parts. Leaves: immutable trees that `parse` makes, `print_expression` writes
and `normalize` reads. An operand is a literal or a parameter; every predicate has exactly one
attribute. And and Or are n-ary and never directly hold a node of their own class, so that an
expression has one shape however it was parenthesised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tocsin.model import Kind, Value


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. The kind keeps 1, 1.0 and TRUE apart; NULL has none."""

    value: Value
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named hole (`:name`), or a literal lifted out of a text, named by its number."""

    name: str | int


Operand: TypeAlias = Literal | Parameter


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
    """`attribute [NOT] LIKE pattern [ESCAPE escape]`."""

    attribute: str
    pattern: Operand
    escape: str | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """`attribute IS [NOT] NULL`."""

    attribute: str
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


Predicate: TypeAlias = Comparison | Between | In | Like | IsNull | Truth
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
    if isinstance(predicate, Comparison):
        return (predicate.operand,)
    if isinstance(predicate, Between):
        return (predicate.low, predicate.high)
    if isinstance(predicate, In):
        return predicate.operands
    if isinstance(predicate, Like):
        return (predicate.pattern,)
    return ()


def parameter_names(expression: Expression) -> tuple[str, ...]:
    """Return the names of the `:name` parameters in order of first use."""
    names: dict[str, None] = {}
    for predicate in predicates(expression):
        for operand in operands(predicate):
            if isinstance(operand, Parameter) and isinstance(operand.name, str):
                names[operand.name] = None
    return tuple(names)


def attribute_names(expression: Expression) -> tuple[str, ...]:
    """Return the attributes that an expression mentions, in order of first use."""
    return tuple(dict.fromkeys(predicate.attribute for predicate in predicates(expression)))


def map_operands(expression: Expression, change: Callable[[Operand], Operand]) -> Expression:
    """Return the expression with every operand changed, visited in the order of the text."""
    if isinstance(expression, And | Or):
        return type(expression)(tuple(map_operands(e, change) for e in expression.operands))
    if isinstance(expression, Not):
        return Not(map_operands(expression.operand, change))
    if isinstance(expression, Comparison):
        return Comparison(expression.attribute, expression.op, change(expression.operand))
    if isinstance(expression, Between):
        low, high = change(expression.low), change(expression.high)
        return Between(expression.attribute, low, high, expression.negated)
    if isinstance(expression, In):
        changed = tuple(map(change, expression.operands))
        return In(expression.attribute, changed, expression.negated)
    if isinstance(expression, Like):
        pattern = change(expression.pattern)
        return Like(expression.attribute, pattern, expression.escape, expression.negated)
    return expression
