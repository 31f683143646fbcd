"""Necessary conditions: what a condition on a computed value says of the attributes in it.

Enters: a term and the values that it must have. Leaves: conditions on attributes, one for each,
without which the term cannot have such a value: for `abs(price - 5) < 2` an interval of `price`.
The normal form has them besides the condition itself, so that an index finds the few events for
which the term is worth computing. They need not be tight, but they must hold; intervals are
widened by what rounding may lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tocsin.language.terms import Attribute, Call, Literal, Term
from tocsin.normalize.condition import Condition, on_domain
from tocsin.normalize.domains import Domain, cut_after, cut_before

Range: TypeAlias = tuple[float, float]
Bounds: TypeAlias = Mapping[str, Condition]

_SLACK = 1e-9
"""More than what a few operations on floats lose, relative to their size."""


def implied_by(term: Term, condition: Condition) -> Bounds:
    """Return the conditions that attributes must satisfy where a term satisfies one."""
    if not implies_conditions(term) or condition.absent or condition.other:
        return {}
    assert isinstance(term, Call)
    numbers, *others = condition.intervals
    if any(others) or not numbers:
        return {}
    low, high = float(numbers[0][0][0]), float(numbers[-1][1][0])
    if low == -math.inf and high == math.inf:
        return {}
    return _ranges(term, (low, high))


def implies_conditions(term: Term) -> bool:
    """Whether conditions on a term may imply some on attributes."""
    return isinstance(term, Call) and term.function in _BACKWARDS and _has_one_attribute(term)


def _has_one_attribute(term: Term) -> bool:
    if isinstance(term, Attribute):
        return True
    if not isinstance(term, Call) or term.function not in _BACKWARDS:
        return False
    parts = [part for part in term.arguments if not isinstance(part, Literal)]
    return len(parts) == 1 and _has_one_attribute(parts[0])


def _ranges(term: Term, within: Range) -> Bounds:
    """Return the ranges of the attributes of a term whose value is within a range."""
    if isinstance(term, Attribute):
        return {term.name: _between(within)}
    assert isinstance(term, Call)
    inner = _BACKWARDS[term.function](term.arguments, within)
    if inner is None:
        return {}
    part, (low, high) = inner
    if math.isnan(low) or math.isnan(high):
        return {}
    return _ranges(part, (low, high))


def _between(within: Range) -> Condition:
    """Return the condition of the numbers in a range; the empty one if there are none."""
    low, high = within
    if low > high:
        return Condition()
    line = Domain.NUMBER
    return on_domain(line, ((cut_before(line, low), cut_after(line, high)),))


_Inner: TypeAlias = tuple[Term, Range] | None


def _widened(low: float, high: float, *sizes: float) -> Range:
    finite = [abs(size) for size in (low, high, *sizes) if math.isfinite(size)]
    slack = _SLACK * max(finite, default=0.0)
    return low - slack, high + slack


def _split(arguments: tuple[Term, ...]) -> tuple[Term, float, bool] | None:
    """Return the part that is no constant, the constant, and whether the constant is first."""
    left, right = arguments
    constant, part = (left, right) if isinstance(left, Literal) else (right, left)
    value = constant.value if isinstance(constant, Literal) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return part, float(value), constant is left


def _of_sum(arguments: tuple[Term, ...], within: Range) -> _Inner:
    split = _split(arguments)
    if split is None:
        return None
    part, c, _ = split
    return part, _widened(within[0] - c, within[1] - c, c, *within)


def _of_difference(arguments: tuple[Term, ...], within: Range) -> _Inner:
    split = _split(arguments)
    if split is None:
        return None
    part, c, is_first = split
    low, high = within
    if is_first:
        return part, _widened(c - high, c - low, c, *within)
    return part, _widened(low + c, high + c, c, *within)


def _of_product(arguments: tuple[Term, ...], within: Range) -> _Inner:
    split = _split(arguments)
    if split is None or split[1] == 0 or not math.isfinite(split[1]):
        return None
    part, c, _ = split
    low, high = sorted((within[0] / c, within[1] / c))
    return part, _widened(low, high)


def _of_quotient(arguments: tuple[Term, ...], within: Range) -> _Inner:
    split = _split(arguments)
    if split is None or split[2] or not math.isfinite(split[1]):
        return None
    part, c, _ = split
    low, high = sorted((within[0] * c, within[1] * c))
    return part, _widened(low, high)


def _of_negation(arguments: tuple[Term, ...], within: Range) -> _Inner:
    return arguments[0], (-within[1], -within[0])


def _of_absolute(arguments: tuple[Term, ...], within: Range) -> _Inner:
    return arguments[0], (-within[1], within[1])


_BACKWARDS: dict[str, Callable[[tuple[Term, ...], Range], _Inner]] = {
    "+": _of_sum,
    "-": _of_difference,
    "*": _of_product,
    "/": _of_quotient,
    "neg": _of_negation,
    "abs": _of_absolute,
}
"""How the range of a result leads to the range of the one argument that is no constant."""
