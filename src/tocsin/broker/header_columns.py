"""Columns of attributes that conditions compare both with numbers and with texts.

Enters: conditions and events. Leaves: expressions over columns, and rows that have these columns.

A number in a STOMP header equals numbers as a number and texts as a text, but a value in a matcher
is one of the two. So an attribute that conditions compare with both has two columns: the first
kind that it was compared with uses its own name, the other kind uses a second attribute of the
matcher, and each predicate reads the column of its literal. Values other than such headers are the
same in both columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tocsin.broker.events import Event
from tocsin.encode.events import lookup
from tocsin.language import parse
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Predicate,
    conjoin,
    disjoin,
    operands,
)
from tocsin.model import EventType, Kind, kind_of, to_plain

_LITERAL = re.compile(r"'(?:[^']|'')*'|(?<![\w.])[+-]?\d[\w.]*")


_COLUMNS = {Kind.INTEGER: "number", Kind.FLOAT: "number", Kind.STRING: "text"}


class HeaderColumns:
    """Which attributes are compared with numbers, with texts, or with both.

    Attributes that the event type declares have one kind, and one column.
    """

    def __init__(self, event_type: EventType | None) -> None:
        self._event_type = event_type
        self._first: dict[str, str] = {}
        self._second: dict[str, str] = {}
        self._shapes: dict[str, bool] = {}

    def rewrite(self, where: str, params: Mapping[str, object]) -> Expression | None:
        """Register a condition; return it over columns, or None where all are attributes."""
        shape = None
        if not params:
            shape = _LITERAL.sub(lambda literal: (literal.group()[0] == "'" and "'") or "0", where)
            if self._shapes.get(shape) is False:
                return None
        expression = parse(where)
        rewritten = self._over_columns(expression, params)
        is_rewritten = rewritten != expression
        if shape is not None and len(self._shapes) < 10_000:
            self._shapes[shape] = is_rewritten
        return rewritten if is_rewritten else None

    def _over_columns(self, expression: Expression, params: Mapping[str, object]) -> Expression:
        if isinstance(expression, And | Or):
            return type(expression)(
                tuple(self._over_columns(e, params) for e in expression.operands)
            )
        if isinstance(expression, Not):
            return Not(self._over_columns(expression.operand, params))
        if not isinstance(expression, Comparison | Between | In | Like):
            return expression
        names = [self._name(expression, each, params) for each in operands(expression)]
        if len(set(names)) == 1:
            return replace(expression, attribute=names[0])
        return _split(expression, names)

    def _name(self, predicate: Predicate, operand: Operand, params: Mapping[str, object]) -> str:
        """Return the column that an operand is compared with."""
        name = predicate.attribute
        kind = (
            operand.kind
            if isinstance(operand, Literal)
            else kind_of(to_plain(params.get(str(operand.name))))
        )
        column = None if kind is None else _COLUMNS.get(kind)
        if column is None or (self._event_type and self._event_type.kind_of(name) is not None):
            return name
        if self._first.setdefault(name, column) == column:
            return name
        return self._second.setdefault(name, f"\0{column}\0{name}")

    def row(self, event: Event) -> dict[str, Any]:
        """Return the attributes of an event, in all their columns."""
        numbers: Mapping[str, Any] = event.numbers or {}
        if not numbers and not self._second:
            return event.attributes
        first = self._first
        row = event.attributes | {n: v for n, v in numbers.items() if first.get(n) == "number"}
        for name, second in tuple(self._second.items()):
            if name in numbers and first[name] == "text":
                row[second] = numbers[name]
            else:
                row[second] = lookup(event.attributes, name)
        return row


def _split(predicate: Predicate, names: Sequence[str]) -> Expression:
    """Return a predicate whose operands are compared with different columns."""
    if isinstance(predicate, Between):
        low = Comparison(names[0], ">=", predicate.low)
        both = conjoin([low, Comparison(names[1], "<=", predicate.high)])
        return Not(both) if predicate.negated else both
    assert isinstance(predicate, In)
    parts: list[Expression] = []
    for name in dict.fromkeys(names):
        own = [o for o, of in zip(predicate.operands, names, strict=True) if of == name]
        parts.append(In(name, tuple(own), predicate.negated))
    return conjoin(parts) if predicate.negated else disjoin(parts)
