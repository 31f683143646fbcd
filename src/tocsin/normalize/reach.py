"""What a computed value can be: what a condition asks beyond that is never true.

Enters: the name of a computed value or of the elements of a list, and a condition on it. Leaves:
the condition without values that it never has: a text in capitals for `lower(firm)` or a word of a
text; any value where an operand is of a kind that its function does not take, as in `5 || x`.
Such conditions are mistakes, and are reported like other conditions that can never match.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tocsin.language.functions import FUNCTIONS, fold_case
from tocsin.language.names import elements_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call, Interval, Literal, Term
from tocsin.normalize.condition import Condition
from tocsin.normalize.demands import ANY, mask_of_kind, masks_of_arguments
from tocsin.normalize.domains import Domain, point_value

_LOWER, _UPPER = "lower", "upper"


def reachable(name: str, condition: Condition) -> Condition:
    """Return a condition on a computed value, or on elements, without what is never there."""
    of = elements_of(name)
    case = _case(name if of is None else of.list)
    if case is None:
        return condition
    if case == "":
        return Condition(absent=condition.absent)
    texts = condition.intervals[Domain.STRING]
    points = [point_value(interval) for interval in texts]
    kept = tuple(
        interval
        for interval, point in zip(texts, points, strict=True)
        if point is None or fold_case(str(point), upper=case == _UPPER) == point
    )
    if len(kept) == len(texts):
        return condition
    intervals = list(condition.intervals)
    intervals[Domain.STRING] = kept
    return replace(condition, intervals=tuple(intervals))


@lru_cache(maxsize=1 << 12)
def _case(name: str) -> str | None:
    """Return the case of all texts of a computed value; empty where it has no value at all."""
    term = term_of(name)
    if _is_absent(term):
        return ""
    function = term.function if isinstance(term, Call) else None
    if function in (_LOWER, "lower_each", "words"):
        return _LOWER
    return _UPPER if function == _UPPER else None


def _is_absent(term: Term) -> bool:
    """Whether a term never has a value, since an operand is NULL or of another kind."""
    if isinstance(term, Literal):
        return term.kind is None
    known = FUNCTIONS.get(term.function) if isinstance(term, Call) else None
    if not isinstance(term, Call) or known is None or not known.is_strict:
        return False
    for part, need in zip(term.arguments, masks_of_arguments(term, ANY), strict=True):
        if isinstance(part, Interval):
            continue
        if _is_absent(part):
            return True
        if isinstance(part, Literal) and need != ANY and not mask_of_kind(part.kind) & need:
            return True
    return False
