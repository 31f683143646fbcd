"""What computed values cost: a bound on the work and memory that an event takes.

Enters: the name of a computed value. Leaves: the number of functions that it counts for, of which a
condition has a limited number.
"""

from __future__ import annotations

from functools import lru_cache

from tocsin.errors import ConditionCostError
from tocsin.language.computed import parts_of
from tocsin.language.expression import Like, predicates
from tocsin.language.functions import MAX_PIECE, like_problem
from tocsin.language.terms import Attribute, Call, Literal, Parameter, Term, conditions_within

MAX_FUNCTIONS = 2_000
"""How many functions a condition may have."""
_OF_REGEXP = 5


@lru_cache(maxsize=1 << 14)
def cost_of(name: str) -> int:
    """Return how many functions a computed value or a list counts for; refuse costly patterns."""
    n = 0
    for part in parts_of(name):
        if isinstance(part, Literal | Parameter | Attribute):
            continue
        n += _OF_REGEXP if isinstance(part, Call) and part.function == "regexp_matches" else 1
        for condition in conditions_within(part):
            _check_patterns([p for p in predicates(condition) if isinstance(p, Like)])
        if isinstance(part, Call) and part.function in ("like", "ilike"):
            _check_pattern(part.arguments[1], part.arguments[2])
    return n


def _check_patterns(likes: list[Like]) -> None:
    for like in likes:
        if isinstance(like.pattern, Literal) and like_problem(like.pattern.value, like.escape):
            raise ConditionCostError("piece", MAX_PIECE)


def _check_pattern(pattern: Term, escape: Term) -> None:
    if isinstance(pattern, Literal) and isinstance(escape, Literal):
        _check_patterns([Like("", pattern, escape.value)])  # type: ignore[arg-type]
