"""Parameters: an expression and parameter values → an expression without parameters.

Enters: an expression and a mapping of parameter names to values. Leaves: the same expression with
literals instead of parameters. A parameter is a value, never text to be parsed; a list of values
may stand in `IN`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from tocsin.errors import ParameterError
from tocsin.language.computed import bind_names, parameter_names, parameters_of, parts_of
from tocsin.language.expression import (
    Constant,
    Expression,
    In,
    Literal,
    Operand,
    Parameter,
    Predicate,
    map_predicates,
    operands,
    predicates,
)
from tocsin.language.functions import problem_of
from tocsin.language.terms import Call
from tocsin.language.text_query import TextQueryError
from tocsin.model import Kind, Value, is_unicode, kind_of, to_plain


def bind(expression: Expression, params: Mapping[str, object] | None) -> Expression:
    """Replace all parameters by values; raise `ParameterError` if one is missing or unknown."""
    names = dict.fromkeys(parameter_names(expression))
    values = params or {}
    missing = [name for name in names if name not in values]
    unknown = [str(name) for name in values if name not in names]
    if missing:
        raise ParameterError(
            f"no value for parameter {', '.join(':' + name for name in missing)}", missing=missing
        )
    if unknown:
        raise ParameterError(
            f"the condition has no parameter {', '.join(':' + name for name in unknown)}",
            unknown=unknown,
        )
    if not names:
        return expression
    lists = {name for name, value in values.items() if isinstance(value, list | tuple | set)}
    if lists:
        expression = map_predicates(expression, lambda p: _with_list(p, values, lists))
    literals = {name: to_literal(values[name], name) for name in names if name not in lists}

    def fill(operand: Operand) -> Operand:
        return literals[str(operand.name)] if isinstance(operand, Parameter) else operand

    try:
        bound = bind_names(expression, fill)
    except TextQueryError as error:
        raise ParameterError(f"in a text query: {error}") from None
    if any(map(parameters_of, (p.attribute for p in predicates(expression)))):
        _check_calls(bound)
    return bound


def _check_calls(expression: Expression) -> None:
    """Refuse values that a function does not take, such as a text that is no polygon."""
    for predicate in predicates(expression):
        if predicate.attribute.startswith("\0"):
            for part in parts_of(predicate.attribute):
                if isinstance(part, Call):
                    problem = problem_of(part.function, part.arguments)
                    if problem is not None:
                        raise ParameterError(problem)


def _with_list(predicate: Predicate, values: Mapping[str, object], lists: set[str]) -> Expression:
    """Return a predicate with the values of list parameters, which `IN` takes."""
    for operand in operands(predicate):
        if not isinstance(operand, Parameter) or str(operand.name) not in lists:
            continue
        if not isinstance(predicate, In):
            raise ParameterError(f"parameter :{operand.name} is a list, which only IN takes")
    for name in parameters_of(predicate.attribute):
        if name in lists:
            raise ParameterError(f"parameter :{name} is a list, which only IN takes")
    if not isinstance(predicate, In):
        return predicate
    filled: list[Operand] = []
    for operand in predicate.operands:
        if isinstance(operand, Parameter) and str(operand.name) in lists:
            name = str(operand.name)
            filled += [to_literal(value, name) for value in values[name]]  # type: ignore[attr-defined]
        else:
            filled.append(operand)
    if not filled:  # no value is in an empty list
        return Constant(predicate.negated)
    return In(predicate.attribute, tuple(filled), predicate.negated)


def to_literal(value: object, name: str = "") -> Literal:
    """Return the literal for a Python value; NumPy scalars are taken as their Python values."""
    value = to_plain(value)
    if value is None:
        return Literal(None, None)
    kind = kind_of(value)
    if kind is None:
        what = "is an integer beyond 64 bits" if isinstance(value, int) else "has no known kind"
        raise ParameterError(f"the value {value!r} of parameter :{name} {what}")
    plain: Value
    if kind is Kind.TIMESTAMP:
        assert isinstance(value, dt.datetime)
        moment = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
        plain = moment.astimezone(dt.UTC)
    else:
        plain = value  # type: ignore[assignment]
    if isinstance(plain, str) and not is_unicode(plain):
        raise ParameterError(f"the value of parameter :{name} is not valid Unicode")
    return Literal(plain, kind)
