"""Shapes → templates: what a shape asks, as predicate rows with holes for its literals.

Enters: an expression whose literals are lifted out as parameters numbered in the order of the
text. Leaves: a `Template`: rows (attribute, operator, first literal, how many, escape) by
conjunction; or None where the shape is better served one text at a time: very many disjuncts, or
constants as conditions or among the operands of BETWEEN and IN.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.language.computed import parameters_of
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
    Literal,
    Not,
    Operand,
    Or,
    Parameter,
    Predicate,
    Truth,
    disjoin,
    map_operands,
)
from tocsin.language.names import element_name, is_each, is_elements
from tocsin.normalize.fold_kernels import (
    BETWEEN,
    EQ,
    GE,
    GT,
    IN,
    IS_FALSE,
    IS_NULL,
    IS_TRUE,
    LE,
    LIKE,
    LT,
    NE,
    NO_TEXT,
    NOT_BETWEEN,
    NOT_IN,
    NOT_LIKE,
    NOT_NULL,
    OTHER_THAN,
)
from tocsin.normalize.shapes import is_fillable

MAX_TEMPLATE_CONJUNCTIONS = 64
NULL_SLOT, FALSE_SLOT, TRUE_SLOT = -1, -2, -3
"""Slots of the constants, which are the same for every text."""

_OPS = {"=": EQ, "<>": NE, "<": LT, "<=": LE, ">": GT, ">=": GE}
_NEGATED_OPS = {"=": NE, "<>": EQ, "<": GE, "<=": GT, ">": LE, ">=": LT}


@dataclass(frozen=True, slots=True)
class NoText:
    """A value of another kind than a text: what the conditions of `no_text` come to."""

    attribute: str


_Signed: TypeAlias = tuple[Predicate | NoText, bool]


class Row(NamedTuple):
    """One predicate of a template."""

    attribute: str
    op: int
    slot: int
    n_literals: int
    escape: str | None = None


@dataclass(frozen=True)
class Template:
    """The rows of a shape, by conjunction."""

    conjunctions: tuple[tuple[Row, ...], ...]
    n_slots: int

    @property
    def rows(self) -> list[Row]:
        """All rows, conjunction by conjunction."""
        return [row for conjunction in self.conjunctions for row in conjunction]

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """How many rows each conjunction has."""
        return np.array([len(c) for c in self.conjunctions], np.int64)


def _check_present(rows: tuple[Row, ...]) -> None:
    """Refuse IS DISTINCT FROM where the value may be absent: the kernel takes it to be present."""
    present = {row.attribute for row in rows if row.op == NOT_NULL}
    if any(row.op == OTHER_THAN and row.attribute not in present for row in rows):
        raise _NotColumnar


def _with_slots(rows: list[Row]) -> tuple[Row, ...]:
    """Give each condition on the elements of a list a slot: different elements may satisfy them."""
    n_of: dict[str, int] = {}
    slotted = []
    for row in rows:
        if is_elements(row.attribute):
            slot = n_of[row.attribute] = n_of.get(row.attribute, -1) + 1
            row = row._replace(attribute=element_name(row.attribute)._replace(slot=slot).name)
        slotted.append(row)
    return tuple(slotted)


class _NotColumnar(Exception):
    """The shape has to be served one text at a time."""


def make_template(expression: Expression, n_slots: int) -> Template | None:
    """Make the template of a shape, or None."""
    try:
        conjunctions = _disjuncts(expression, False)
        rows = tuple(_with_slots([_row(p, negated) for p, negated in c]) for c in conjunctions)
        for conjunction in rows:
            _check_present(conjunction)
    except _NotColumnar:
        return None
    return Template(rows, n_slots)


def number_operands(expression: Expression) -> tuple[Expression, list[Operand]]:
    """Number all operands but constants in the order of the text; return them too.

    This makes a shape of an expression with named parameters.
    """
    operands: list[Operand] = []

    def number(operand: Operand) -> Operand:
        if _constant_slot(operand) is not None:
            return operand
        operands.append(operand)
        return Parameter(len(operands) - 1)

    return map_operands(expression, number), operands


def _disjuncts(expression: Expression, negated: bool) -> list[list[_Signed]]:
    """Return the disjunctive normal form over predicates, no more than the limit."""
    while isinstance(expression, Not):
        expression, negated = expression.operand, not negated
    if isinstance(expression, NoText):
        return [[(expression, negated)]]
    if isinstance(expression, Constant):
        raise _NotColumnar  # it may cut off predicates that still have to be checked
    if not isinstance(expression, And | Or):
        return [[(expression, negated)]]
    if isinstance(expression, Or) and not negated:
        expression = _join_equalities(expression)
        if not isinstance(expression, Or):
            return [[(expression, False)]]  # type: ignore[list-item]
    parts = [_disjuncts(part, negated) for part in expression.operands]
    if isinstance(expression, And) is negated:
        joined = [conjunction for part in parts for conjunction in part]
        _check_size(len(joined))
        return joined
    joined = [[signed for part in parts if len(part) == 1 for signed in part[0]]]
    for part in parts:
        if len(part) != 1:
            _check_size(len(joined) * len(part))
            joined = [left + right for left in joined for right in part]
    return joined


def _check_size(n: int) -> None:
    if n > MAX_TEMPLATE_CONJUNCTIONS:
        raise _NotColumnar


def _join_equalities(expression: Or) -> Expression:
    """Turn runs of `x = a OR x = b` into `x IN (a, b)`."""
    joined: list[Expression] = []
    for name, run in groupby(expression.operands, _equated):
        parts = list(run)
        if name is None or len(parts) == 1:
            joined += parts
        else:
            joined.append(In(name, tuple(o for part in parts for o in _members(part) or ())))
    return disjoin(joined)


def _equated(expression: Expression) -> str | None:
    """Return the attribute of an equality or IN that can be joined with others."""
    if isinstance(expression, Comparison | In) and _members(expression) is not None:
        return expression.attribute
    return None


def _members(expression: Expression) -> tuple[Operand, ...] | None:
    if isinstance(expression, Comparison) and expression.op == "=":
        operands: tuple[Operand, ...] = (expression.operand,)
    elif isinstance(expression, In) and not expression.negated:
        operands = expression.operands
    else:
        return None
    return operands if all(isinstance(operand, Parameter) for operand in operands) else None


def _row(predicate: Predicate | NoText, negated: bool) -> Row:
    name = predicate.attribute
    if isinstance(predicate, NoText):
        return Row(name, NO_TEXT, 0, 0)
    if isinstance(predicate, Distinct):
        if not is_each(name) or predicate.negated is not negated:
            raise _NotColumnar
        return Row(name, OTHER_THAN, _slot(predicate.operand), 1)
    if parameters_of(name) and not is_fillable(name):
        raise _NotColumnar
    if is_elements(name) and (negated or element_name(name).quantifier == "all"):
        raise _NotColumnar
    if isinstance(predicate, Comparison):
        op = (_NEGATED_OPS if negated else _OPS)[predicate.op]
        return Row(name, op, _slot(predicate.operand), 1)
    if isinstance(predicate, IsNull):
        return Row(name, NOT_NULL if predicate.negated is not negated else IS_NULL, 0, 0)
    if isinstance(predicate, Truth):
        return Row(name, IS_FALSE if negated else IS_TRUE, 0, 0)
    negated = predicate.negated is not negated
    if isinstance(predicate, Like):
        if predicate.ignore_case:
            raise _NotColumnar
        op = NOT_LIKE if negated else LIKE
        return Row(name, op, _slot(predicate.pattern), 1, predicate.escape)
    if isinstance(predicate, Between):
        first = _run((predicate.low, predicate.high))
        return Row(name, NOT_BETWEEN if negated else BETWEEN, first, 2)
    count = len(predicate.operands)
    return Row(name, NOT_IN if negated else IN, _run(predicate.operands), count)


def _run(operands: tuple[Operand, ...]) -> int:
    """Return the first slot of operands that stand in a row."""
    slots = [_slot(operand) for operand in operands]
    if slots[0] < 0 or slots != list(range(slots[0], slots[0] + len(slots))):
        raise _NotColumnar
    return slots[0]


def _slot(operand: Operand) -> int:
    slot = _constant_slot(operand)
    if slot is not None:
        return slot
    if isinstance(operand, Parameter) and isinstance(operand.name, int):
        return operand.name
    raise _NotColumnar


def _constant_slot(operand: Operand) -> int | None:
    if not isinstance(operand, Literal):
        return None
    if operand.value is None:
        return NULL_SLOT
    if isinstance(operand.value, bool):
        return TRUE_SLOT if operand.value else FALSE_SLOT
    return None
