"""Computed values: terms in canonical form, the names that stand for them, and back.

Enters: terms. Leaves: names (see `names`), by which predicates, conjunctions and indexes know
them; terms that mean the same by a simple rule have one name: constants are folded, the operands of
`+ * = <>` are ordered, `>` is written as `<`. A comparison with a constant becomes a predicate, so
that it can be indexed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any, TypeVar

from tocsin.language import functions
from tocsin.language.expression import (
    And,
    Comparison,
    Constant,
    Expression,
    Like,
    Not,
    Or,
    Predicate,
    Truth,
    conjoin,
    disjoin,
    map_predicates,
    operands,
    predicates,
    with_operands,
)
from tocsin.language.functions import COMPARISONS, FLIPPED, FUNCTIONS
from tocsin.language.names import (
    ElementName,
    element_name,
    is_computed,
    is_each,
    is_elements,
    is_path,
    paths_of,
    spelling,
)
from tocsin.language.printer import name_of, print_term
from tocsin.language.term_names import MAX_TERMS, term_of
from tocsin.language.terms import (
    Attribute,
    Call,
    Case,
    Cast,
    Exists,
    Interval,
    Literal,
    Operand,
    Parameter,
    Term,
    Test,
    conditions_within,
    map_parts,
    subterms,
)
from tocsin.language.truths import decide
from tocsin.model import Kind, kind_of

_T = TypeVar("_T")
_COMMUTATIVE = frozenset(("+", "*", "=", "<>", "is distinct from"))
_TEXTUAL = frozenset(("matches",))
"""Functions that become conditions once their arguments are constants."""


def canonical(term: Term) -> Term:
    """Return the canonical form of a term whose parts are in canonical form."""
    if isinstance(term, Call):
        return _canonical_call(term)
    if isinstance(term, Test):
        return _canonical_test(term)
    if isinstance(term, Cast) and isinstance(term.term, Literal):
        return to_literal(functions.cast(term.term.value, term.kind))
    if isinstance(term, Case):
        return _canonical_case(term)
    return term


def _canonical_call(term: Call) -> Term:
    name, arguments = term.function, term.arguments
    if name in (">", ">="):
        name, arguments = FLIPPED[name], arguments[::-1]
    if name in _COMMUTATIVE:
        arguments = tuple(sorted(arguments, key=_order))
    if name == "coalesce" and len(arguments) == 1:
        return arguments[0]
    term = Call(name, arguments)
    if name in FUNCTIONS and all(isinstance(part, Literal | Interval) for part in arguments):
        folded = _fold(name, arguments)
        return term if folded is None else folded
    return term


def _order(term: Term) -> tuple[bool, str]:
    """Constants come last."""
    return isinstance(term, Literal | Parameter | Interval), print_term(term)


def _fold(name: str, arguments: tuple[Term, ...]) -> Term | None:
    """Return the value of a function of constants, or None where it has no literal."""
    values = [_constant(part) for part in arguments]
    if any(value is _CALENDAR for value in values):
        if name not in ("+", "-") or len(values) != 2:
            return None
        moment, interval = arguments
        if isinstance(moment, Interval):
            moment, interval = interval, moment
        if not (isinstance(moment, Literal) and isinstance(interval, Interval)):
            return None
        return to_literal(add_interval(moment.value, interval, -1 if name == "-" else 1))
    value = functions.call(name, values)
    if isinstance(value, dt.timedelta):
        return Interval(0, value // functions.MICROSECOND)
    if isinstance(value, float) and value != value:
        return None
    return to_literal(value)


_CALENDAR = object()
"""Stands for an interval of months, which is no length of time."""


def _constant(term: Term) -> object:
    if isinstance(term, Interval):
        return _CALENDAR if term.months else term.microseconds * functions.MICROSECOND
    assert isinstance(term, Literal)
    return term.value


def add_interval(moment: Any, interval: Interval, sign: int) -> dt.datetime | None:
    """Return a moment later by an interval: first its months, then the rest."""
    if not isinstance(moment, dt.datetime):
        return None
    shifted = functions.shift_months(moment, sign * interval.months)
    if shifted is None:
        return None
    return functions.shift(shifted, sign * interval.microseconds * functions.MICROSECOND)


def to_literal(value: Any) -> Literal:
    """Return the literal of a plain value."""
    return Literal(value, kind_of(value))


def _canonical_test(term: Test) -> Term:
    condition = term.condition
    if isinstance(condition, Constant):
        return Literal(condition.value, None if condition.value is None else Kind.BOOLEAN)
    if isinstance(condition, Truth) and is_computed(condition.attribute):
        inner = term_of(condition.attribute)
        if static_kind(inner) is Kind.BOOLEAN:
            return inner
    if isinstance(condition, Comparison) and not is_elements(condition.attribute):
        subject = term_of(condition.attribute)
        return canonical(Call(condition.op, (subject, condition.operand)))
    return term


def _canonical_case(term: Case) -> Term:
    branches: list[tuple[Expression, Term]] = []
    for condition, value in term.branches:
        if isinstance(condition, Constant):
            if condition.value is not True:
                continue
            if not branches:
                return value
            return Case(tuple(branches), value)
        branches.append((condition, value))
    return Case(tuple(branches), term.otherwise) if branches else term.otherwise


def to_condition(term: Term) -> Expression:
    """Return a term that stands as a condition, in the form that an index has most of."""
    if isinstance(term, Test):
        return term.condition
    if isinstance(term, Literal):
        value = term.value
        return Constant(value if isinstance(value, bool) else None)
    if isinstance(term, Call):
        if term.function in COMPARISONS:
            return compare(term.function, *term.arguments)
        if term.function in _TEXTUAL:
            from tocsin.language.text_query import expand

            query = term.arguments[1]
            if isinstance(query, Literal) and not isinstance(query.value, str):
                return Constant(None)
            return expand(term) or Truth(name_of(term))
        if term.function == "starts_with":
            return _as_prefix(term)
    return Truth(name_of(term))


def _as_prefix(term: Call) -> Expression:
    """Write `starts_with(term, constant)` as LIKE, which is an interval."""
    subject, prefix = term.arguments
    if not isinstance(prefix, Literal) or not isinstance(prefix.value, str):
        return Truth(name_of(term))
    escaped = prefix.value.translate({ord(c): f"\\{c}" for c in "%_\\"})
    escape = "\\" if escaped != prefix.value else None
    return Like(name_of(subject), Literal(escaped + "%", Kind.STRING), escape)


def compare(op: str, left: Term, right: Term) -> Expression:
    """Return the comparison of two terms: a predicate where one side is an operand."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Constant(functions.compare(op, left.value, right.value))
    if isinstance(right, Literal | Parameter) and not isinstance(left, Parameter | Interval):
        return Comparison(name_of(left), op, right)
    if isinstance(left, Literal | Parameter) and not isinstance(right, Parameter | Interval):
        return Comparison(name_of(right), FLIPPED[op], left)
    on_elements = _on_elements(op, left, right)
    if on_elements is not None:
        return on_elements
    call = canonical(Call(op, (left, right)))
    return Truth(name_of(call)) if isinstance(call, Call) else to_condition(call)


def _on_elements(op: str, left: Term, right: Term) -> Expression | None:
    """Compare the elements of a list with a term that is no operand."""
    if not (isinstance(left, Attribute) and is_elements(left.name)):
        if isinstance(right, Attribute) and is_elements(right.name):
            return _on_elements(FLIPPED[op], right, left)
        return None
    of = element_name(left.name)
    variable = _unused("element", right)
    condition = compare(op, Attribute(variable), right)
    exists = Exists(term_of(of.list), variable, condition, of.quantifier == "all")
    return Truth(name_of(exists))


def _unused(variable: str, term: Term) -> str:
    """Return a name for an element that no attribute in a term has."""
    names = {
        part.name.partition(".")[0] for part in _all_parts(term) if isinstance(part, Attribute)
    }
    while variable in names:
        variable += "_"
    return variable


def static_kind(
    term: Term, kind_of_name: Callable[[str], Kind | None] | None = None
) -> Kind | None:
    """Return the kind that all values of a term have, or None where that is not known."""
    if isinstance(term, Literal):
        return term.kind
    if isinstance(term, Attribute):
        return kind_of_name(term.name) if kind_of_name else None
    if isinstance(term, Call):
        function = FUNCTIONS.get(term.function)
        if function is None:
            return SPECIAL_KINDS.get(term.function)
        if term.function == "-" and not any(isinstance(p, Interval) for p in term.arguments):
            kind = _common_kind(term.arguments, kind_of_name)
            return None if kind is Kind.TIMESTAMP else kind  # the difference is an interval
        return function.kind or _common_kind(term.arguments, kind_of_name)
    if isinstance(term, Test | Exists):
        return Kind.BOOLEAN
    return term.kind if isinstance(term, Cast) else None


def _common_kind(
    terms: tuple[Term, ...], kind_of_name: Callable[[str], Kind | None] | None
) -> Kind | None:
    """Return the kind of all terms but intervals: that of a function that keeps it."""
    kinds = {static_kind(term, kind_of_name) for term in terms if not isinstance(term, Interval)}
    if kinds <= functions.NUMBERS:
        return Kind.FLOAT if kinds else None
    return kinds.pop() if kinds == {Kind.TIMESTAMP} and len(terms) > 1 else None


SPECIAL_KINDS = {
    "now": Kind.TIMESTAMP,
    "matches": Kind.BOOLEAN,
    "has_phrase": Kind.BOOLEAN,
    "cardinality": Kind.INTEGER,
}
"""Kinds of the functions that are no simple functions of values."""


def parts_of(name: str) -> Iterator[Term]:
    """Yield all terms within a name, those of conditions within it too."""
    if is_elements(name):
        name = element_name(name).list
    yield from _all_parts(term_of(name))


def _all_parts(term: Term) -> Iterator[Term]:
    yield term
    for part in subterms(term):
        yield from _all_parts(part)
    for condition in conditions_within(term):
        inner = [
            part
            for predicate in predicates(condition)
            for each in (Attribute(predicate.attribute), *_operands(predicate))
            for part in (parts_of(each.name) if isinstance(each, Attribute) else (each,))
        ]
        if isinstance(term, Exists):
            inner = [part for part in inner if not _is_element(part, term.variable)]
        yield from inner


def _operands(predicate: Predicate) -> tuple[Operand, ...]:
    return operands(predicate)


def _is_element(term: Term, variable: str) -> bool:
    return isinstance(term, Attribute) and (
        term.name == variable or term.name.startswith(f"{variable}.")
    )


@lru_cache(maxsize=1 << 12)
def mentions(term: Term, variable: str) -> bool:
    """Whether a term is made of an element of a list, or of a part of it."""
    return any(_is_element(part, variable) for part in _all_parts(term))


def by_spelling(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Keep what is the same for names that differ in literals only."""
    known: dict[str, _T] = {}

    @wraps(function)
    def kept(name: str) -> _T:
        key = spelling(name) if is_computed(name) else name
        result = known.get(key)
        if result is None:
            if len(known) >= MAX_TERMS:
                known.clear()
            result = known[key] = function(name)
        return result

    return kept


@by_spelling
def attributes_of(name: str) -> tuple[str, ...]:
    """Return the attributes of events that a name depends on."""
    if not name.startswith("\0"):
        return (name,)
    if is_each(name):
        return paths_of(name)
    if not is_computed(name) and not is_elements(name):
        return (name,)
    names = [part.name for part in parts_of(name) if isinstance(part, Attribute)]
    return tuple(dict.fromkeys(path for part in names for path in attributes_of(part)))


@lru_cache(maxsize=1 << 17)
def choices_of(name: str) -> tuple[str, ...]:
    """Return the names `EACH(…)` and `HAS(…)` that a name is, or depends on."""
    if is_each(name):
        return (name,)
    if not is_computed(name) and not is_elements(name):
        return ()
    names = [part.name for part in parts_of(name) if isinstance(part, Attribute)]
    return tuple(dict.fromkeys(each for each in names if is_each(each)))


def attributes_of_names(names: Iterable[str]) -> list[str]:
    """Return the attributes of events that names depend on, each once."""
    return sorted({attribute for name in names for attribute in attributes_of(name)})


@by_spelling
def needs_of(name: str) -> tuple[str, ...]:
    """Return the attributes without which a computed value or a list is absent."""
    if is_elements(name):
        return needs_of(element_name(name).list)
    return tuple(dict.fromkeys(_needs(term_of(name)))) if is_computed(name) else (name,)


def _needs(term: Term) -> Iterator[str]:
    if isinstance(term, Attribute):
        yield term.name
    elif isinstance(term, Call):
        function = FUNCTIONS.get(term.function)
        if function is None or function.is_strict:
            for part in term.arguments:
                yield from _needs(part)
    elif isinstance(term, Cast):
        yield from _needs(term.term)
    elif isinstance(term, Exists):
        yield from _needs(term.list)
    elif isinstance(term, Test) and isinstance(term.condition, Comparison | Like | Truth):
        name = term.condition.attribute
        yield from needs_of(element_name(name).list if is_elements(name) else name)


@by_spelling
def moments_of(name: str) -> tuple[str, ...]:
    """Return the attributes that a computed value uses as timestamps."""
    if not is_computed(name):
        return ()
    return tuple(dict.fromkeys(attr for part in parts_of(name) for attr in _moments_in(part)))


def _moments_in(term: Term) -> Iterator[str]:
    for condition in conditions_within(term):
        for predicate in predicates(condition):
            is_own = isinstance(term, Exists) and _is_element(
                Attribute(predicate.attribute), term.variable
            )
            if is_path(predicate.attribute) and not is_own:
                kinds = {each.kind for each in _operands(predicate) if isinstance(each, Literal)}
                if Kind.TIMESTAMP in kinds:
                    yield predicate.attribute
    if isinstance(term, Case):
        values = subterms(term)
        if any(static_kind(value) is Kind.TIMESTAMP for value in values):
            yield from (value.name for value in values if isinstance(value, Attribute))
    if not isinstance(term, Call):
        return
    parts = term.arguments
    is_time = term.function in ("extract", "date_trunc")
    if term.function in COMPARISONS or term.function in _OF_ONE_KIND:
        is_time = any(
            isinstance(part, Interval) or static_kind(part) is Kind.TIMESTAMP for part in parts
        )
        if any(isinstance(part, Interval) for part in parts):  # of the difference of two
            inner = [part for part in parts if isinstance(part, Call)]
            parts = (*parts, *(each for part in inner for each in part.arguments))
    if is_time:
        yield from (part.name for part in parts if isinstance(part, Attribute))


_OF_ONE_KIND = ("+", "-", "is distinct from", "least", "greatest", "coalesce", "nullif")
"""Functions of which an argument is a timestamp where another is."""


def parameters_of(name: str) -> tuple[str, ...]:
    """Return the names of the parameters within a name."""
    if not name.startswith("\0"):
        return ()
    return tuple(
        part.name
        for part in parts_of(name)
        if isinstance(part, Parameter) and isinstance(part.name, str)
    )


def parameter_names(expression: Expression) -> tuple[str, ...]:
    """Return the names of the `:name` parameters in order of first use."""
    names: dict[str, None] = {}
    for predicate in predicates(expression):
        names.update(dict.fromkeys(parameters_of(predicate.attribute)))
        for operand in operands(predicate):
            if isinstance(operand, Parameter) and isinstance(operand.name, str):
                names[operand.name] = None
    return tuple(names)


def attribute_names(expression: Expression) -> tuple[str, ...]:
    """Return the attributes of events that an expression mentions, in order of first use."""
    names: dict[str, None] = {}
    for predicate in predicates(expression):
        names.update(dict.fromkeys(attributes_of(predicate.attribute)))
    return tuple(names)


def bind_names(expression: Expression, change: Callable[[Operand], Operand]) -> Expression:
    """Return the expression with all operands changed, also those within computed values."""

    def changed(predicate: Predicate) -> Expression:
        predicate = with_operands(predicate, change)
        if not predicate.attribute.startswith("\0") or not parameters_of(predicate.attribute):
            return predicate
        return with_subject(predicate, substitute(term_of_any(predicate.attribute), change))

    return map_predicates(expression, changed)


def term_of_any(name: str) -> Term:
    """Return the term of a name; that of elements is an attribute of its own."""
    return Attribute(name) if is_elements(name) else term_of(name)


def substitute(term: Term, change: Callable[[Operand], Operand]) -> Term:
    """Return a term with all operands within it changed, in canonical form."""
    if isinstance(term, Literal | Parameter):
        return change(term)
    if isinstance(term, Attribute) and is_elements(term.name):
        of = element_name(term.name)
        inner = name_of(substitute(term_of(of.list), change))
        return Attribute(ElementName(of.quantifier, inner, of.slot).name)
    return canonical(
        map_parts(
            term,
            lambda part: substitute(part, change),
            lambda condition: bind_names(condition, change),
        )
    )


def with_subject(predicate: Predicate, term: Term) -> Expression:
    """Return a predicate about another term, which may be a constant."""
    if isinstance(predicate, Truth):
        return to_condition(term)
    if isinstance(term, Literal | Interval):
        return _about_constant(predicate, term)
    if isinstance(predicate, Comparison):
        return compare(predicate.op, term, predicate.operand)
    return replace(predicate, attribute=name_of(term))


def _about_constant(predicate: Predicate, term: Literal | Interval) -> Expression:
    """Decide a predicate about a constant."""
    return Constant(decide(predicate, term.value if isinstance(term, Literal) else None))


def negate(expression: Expression, negated: bool) -> Expression:
    """Return an expression or its negation."""
    return Not(expression) if negated else expression


def fold_constants(expression: Expression) -> Expression:
    """Return an expression with the constants in AND, OR and NOT folded away."""
    if isinstance(expression, Not):
        inner = fold_constants(expression.operand)
        if isinstance(inner, Constant):
            return Constant(None if inner.value is None else not inner.value)
        return Not(inner)
    if not isinstance(expression, And | Or):
        return expression
    decisive = isinstance(expression, Or)
    parts: list[Expression] = []
    is_unknown = False
    for part in map(fold_constants, expression.operands):
        if not isinstance(part, Constant):
            parts.append(part)
        elif part.value is decisive:
            return part
        else:
            is_unknown = is_unknown or part.value is None
    if is_unknown:
        parts.append(Constant(None))
    if not parts:
        return Constant(not decisive)
    return disjoin(parts) if decisive else conjoin(parts)
