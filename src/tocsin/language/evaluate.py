"""Expression × event → true, false or unknown: the meaning of the language, as plainly as it goes.

Enters: an expression or a term with bound operands, and a function that gives an attribute's value.
Leaves: True, False or None (unknown); the value of a term, None where it is absent. This shares no
code with `normalize`, so that each can be held against the other. The value of a list is a list of
plain values, or of mappings.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from tocsin.language import functions
from tocsin.language.computed import add_interval, mentions
from tocsin.language.expression import (
    And,
    Constant,
    Expression,
    In,
    Literal,
    Not,
    Or,
)
from tocsin.language.names import element_name, is_computed, is_elements
from tocsin.language.term_names import term_of
from tocsin.language.terms import Attribute, Call, Case, Cast, Exists, Interval, Term, Test
from tocsin.language.truths import conjunction, constant_of, decide, disjunction, negated
from tocsin.model import Kind, from_microseconds, kind_of, to_microseconds

ValueOf = Callable[[str], object]

moment: ContextVar[int | None] = ContextVar("moment", default=None)
"""What `now()` is, in microseconds since 1970, while events are matched; None for the clock."""


@contextmanager
def at_moment(seconds: float) -> Iterator[None]:
    """Let `now()` be a moment, in seconds since 1970, in what is matched within."""
    token = moment.set(round(seconds * 1_000_000))
    try:
        yield
    finally:
        moment.reset(token)


def now() -> int:
    """Return the moment that `now()` stands for."""
    pinned = moment.get()
    return round(time.time() * 1_000_000) if pinned is None else pinned


def evaluate(
    expression: Expression, value_of: ValueOf, compute: ValueOf | None = None
) -> bool | None:
    """Evaluate an expression under SQL's three-valued logic.

    `compute` gives the values of computed names, where they are not computed of `value_of`.
    """
    if isinstance(expression, And):
        return conjunction([evaluate(part, value_of, compute) for part in expression.operands])
    if isinstance(expression, Or):
        return disjunction([evaluate(part, value_of, compute) for part in expression.operands])
    if isinstance(expression, Not):
        return negated(evaluate(expression.operand, value_of, compute))
    if isinstance(expression, Constant):
        return expression.value
    name = expression.attribute
    of = element_name(name).list if is_elements(name) else name
    value = compute(of) if compute is not None and is_computed(of) else read(of, value_of)
    if is_elements(name):
        return _on_elements(expression, element_name(name).quantifier, value)
    return decide(expression, value)


def _on_elements(predicate: Expression, quantifier: str, value: object) -> bool | None:
    if not isinstance(value, list):
        return None
    every = quantifier == "all"
    if isinstance(predicate, In) and len(predicate.operands) > _FEW:
        members = _Members(predicate)
        return _quantify(every, (members.decide(each) for each in value))
    return _quantify(every, (decide(predicate, each) for each in value))


_FEW = 8
"""An IN with more operands is prepared before it is decided for the elements of a list."""


def _key(value: object) -> object:
    return to_microseconds(value) if isinstance(value, dt.datetime) else value


class _Members:
    """The operands of an IN by their kinds, to decide it for many values."""

    def __init__(self, predicate: In) -> None:
        self.negated = predicate.negated
        self.by_kind: dict[Kind, set[object]] = {}
        values = [constant_of(operand) for operand in predicate.operands]
        for value in values:
            kind = self._kind(value)
            if kind is not None:
                self.by_kind.setdefault(kind, set()).add(_key(value))
        self.n_unknown = sum(self._kind(value) is None for value in values)

    @staticmethod
    def _kind(value: object) -> Kind | None:
        """Return the kind that a value is compared with; None where it is equal to nothing."""
        kind = kind_of(value)
        if kind is None or value != value:  # NaN
            return None
        return Kind.FLOAT if kind in functions.NUMBERS else kind

    def decide(self, value: object) -> bool | None:
        kind = self._kind(value)
        if kind is not None and _key(value) in self.by_kind.get(kind, ()):
            return not self.negated
        if kind is None or self.n_unknown or any(other is not kind for other in self.by_kind):
            return None
        return self.negated


def _quantify(every: bool, truths: Iterable[bool | None]) -> bool | None:
    """Whether all are true, or any is, under three-valued logic."""
    listed = list(truths)
    return conjunction(listed) if every else disjunction(listed)


def read(name: str, value_of: ValueOf) -> object:
    """Return the value of a name, which may be that of a computed value."""
    return evaluate_term(term_of(name), value_of) if is_computed(name) else value_of(name)


MAX_PAIRS = 1 << 14
"""How many elements a list in a condition on elements may have, counted once for each of those.

That is, one which is no part of the element: otherwise three conditions on the elements of one list
of a thousand, one within the other, would be decided a billion times.
"""


def read_list(term: Term, value_of: ValueOf) -> list[object] | None:
    """Return the elements of a list, or None where it is absent, no list, or too long here."""
    if isinstance(value_of, _Scope) and not mentions(term, value_of.variable):
        return value_of.outer_list(term)
    value = evaluate_term(term, value_of)
    return value if isinstance(value, list) else None


def evaluate_term(term: Term, value_of: ValueOf) -> object:
    """Return the value of a term for one event."""
    if isinstance(term, Literal):
        return term.value
    if isinstance(term, Attribute):
        return value_of(term.name)
    if isinstance(term, Call):
        return _call(term, value_of)
    if isinstance(term, Interval):
        return None if term.months else term.microseconds * functions.MICROSECOND
    if isinstance(term, Cast):
        return functions.cast(evaluate_term(term.term, value_of), term.kind)
    if isinstance(term, Test):
        return evaluate(term.condition, value_of)
    if isinstance(term, Exists):
        return _exists(term, value_of)
    assert isinstance(term, Case), "parameters are bound before evaluation"
    for condition, value in term.branches:
        if evaluate(condition, value_of) is True:
            return evaluate_term(value, value_of)
    return evaluate_term(term.otherwise, value_of)


def _call(term: Call, value_of: ValueOf) -> object:
    name = term.function
    special = SPECIAL.get(name)
    if special is not None:
        return special(term, value_of)
    if name in ("+", "-") and any(isinstance(p, Interval) and p.months for p in term.arguments):
        return _shifted(term, value_of)
    return functions.call(name, [evaluate_term(part, value_of) for part in term.arguments])


def _shifted(term: Call, value_of: ValueOf) -> object:
    """Add an interval with months to a timestamp, or subtract it."""
    start, interval = term.arguments
    if isinstance(start, Interval) and term.function == "+":
        start, interval = interval, start
    if not isinstance(interval, Interval):
        return None
    return add_interval(evaluate_term(start, value_of), interval, -1 if term.function == "-" else 1)


def _exists(term: Exists, value_of: ValueOf) -> bool | None:
    elements = read_list(term.list, value_of)
    if elements is None:
        return None
    scope = _Scope(value_of, term.variable, len(elements))
    truths = (evaluate(term.condition, scope.at(element)) for element in elements)
    return _quantify(term.every, truths)


class _Scope:
    """The values of names in a condition on the elements of a list."""

    def __init__(self, outer: ValueOf, variable: str, n_elements: int) -> None:
        self.outer = outer
        self.variable = variable
        self.size: int = n_elements * (outer.size if isinstance(outer, _Scope) else 1)
        """How often the condition is decided for an event."""
        self.element: object = None
        self.lists: dict[Term, list[object] | None] = {}

    def at(self, element: object) -> _Scope:
        """Go to an element."""
        self.element = element
        return self

    def outer_list(self, term: Term) -> list[object] | None:
        """Return a list that is the same for all elements."""
        if term not in self.lists:
            value = read_list(term, self.outer)
            fits = value is not None and len(value) * self.size <= MAX_PAIRS
            self.lists[term] = value if fits else None
        return self.lists[term]

    def __call__(self, name: str) -> object:
        if name == self.variable:
            return self.element
        if name.startswith(f"{self.variable}."):
            return descend(self.element, name[len(self.variable) + 1 :])
        return self.outer(name)


def descend(value: object, path: str) -> object:
    """Return the value at a path within a value; through a list, the list of the values there."""
    if isinstance(value, list):
        return joined_lists([descend(element, path) for element in value])
    if not isinstance(value, Mapping):
        return None
    end = len(path)
    while end > 0:
        if path[:end] in value:
            inner = value[path[:end]]
            return inner if end == len(path) else descend(inner, path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


def joined_lists(values: list[object]) -> list[object]:
    """Return what is at a path in each element of a list, with lists among it as their elements."""
    if not any(isinstance(value, list) for value in values):
        return values
    return [e for value in values for e in (value if isinstance(value, list) else [value])]


def _now(term: Call, value_of: ValueOf) -> dt.datetime:
    return from_microseconds(now())


def _cardinality(term: Call, value_of: ValueOf) -> int | None:
    elements = read_list(term.arguments[0], value_of)
    return None if elements is None else len(elements)


def _lower_each(term: Call, value_of: ValueOf) -> list[object] | None:
    """Return the elements of a list, the texts in lower case and others as absent."""
    elements = read_list(term.arguments[0], value_of)
    if elements is None:
        return None
    return [functions.fold_case(e) if isinstance(e, str) else None for e in elements]


def _words(term: Call, value_of: ValueOf) -> list[str] | None:
    from tocsin.language.text_query import words

    text = evaluate_term(term.arguments[0], value_of)
    return words(text) if isinstance(text, str) else None


def _matches(term: Call, value_of: ValueOf) -> bool | None:
    """Whether a text fits a query that is no constant, or none."""
    from tocsin.language.text_query import TextQueryError, expand

    subject, query = term.arguments
    text = evaluate_term(query, value_of)
    if not isinstance(text, str):
        return None
    try:
        condition = expand(Call("matches", (subject, Literal(text, Kind.STRING))))
    except TextQueryError:
        return None
    assert condition is not None, "the query is a constant"
    return evaluate(condition, value_of)


def _has_phrase(term: Call, value_of: ValueOf) -> bool | None:
    from tocsin.language.text_query import has_phrase, words

    text, phrase = (evaluate_term(part, value_of) for part in term.arguments)
    if not isinstance(text, str) or not isinstance(phrase, str):
        return None
    return has_phrase(words(text), words(phrase))


SPECIAL: dict[str, Callable[[Call, ValueOf], object]] = {
    "now": _now,
    "cardinality": _cardinality,
    "lower_each": _lower_each,
    "words": _words,
    "has_phrase": _has_phrase,
    "matches": _matches,
}
"""Functions that are no functions of plain values."""
