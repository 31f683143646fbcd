"""Terms: the syntax tree of computed values.

Enters: nothing but its parts. Leaves: immutable trees that `parse` makes and `computed` names. A
term has a value for each event: an attribute, a constant, a function of other terms. Operators are
functions whose names are their symbols, so that evaluating, printing and folding know one node for
all of them. A condition within a term (`CASE WHEN a > 5 THEN …`) is a `Test`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tocsin.model import Kind, Value

if TYPE_CHECKING:
    from tocsin.language.expression import Expression


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. The kind keeps 1, 1.0 and TRUE apart; NULL has none."""

    value: Value
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named hole (`:name`), or a literal lifted out of a text, named by its number."""

    name: str | int


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of an attribute of the event, by its path."""

    name: str


@dataclass(frozen=True, slots=True)
class Interval:
    """`INTERVAL '…'`: calendar months and exact microseconds."""

    months: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of terms, or an operator by its symbol: `*`, `||`, `<`."""

    function: str
    arguments: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN term … ELSE term END`."""

    branches: tuple[tuple[Expression, Term], ...]
    otherwise: Term


@dataclass(frozen=True, slots=True)
class Cast:
    """`CAST(term AS kind)`; a value that cannot be cast is absent."""

    term: Term
    kind: Kind


@dataclass(frozen=True, slots=True)
class Test:
    """A condition as a value: true, false or absent (unknown)."""

    condition: Expression


@dataclass(frozen=True, slots=True)
class Exists:
    """`exists(list, variable -> condition)`: some element satisfies a condition, or all do.

    In the condition, `variable` and `variable.path` are the element; other names are attributes
    of the event. With `every`, the condition must hold for every element.
    """

    list: Term
    variable: str
    condition: Expression
    every: bool = False


Operand: TypeAlias = Literal | Parameter
Term: TypeAlias = Literal | Parameter | Attribute | Interval | Call | Case | Cast | Test | Exists


def subterms(term: Term) -> tuple[Term, ...]:
    """Return the terms directly within a term, without those of conditions in it."""
    if isinstance(term, Call):
        return term.arguments
    if isinstance(term, Case):
        return (*(value for _, value in term.branches), term.otherwise)
    if isinstance(term, Cast):
        return (term.term,)
    return (term.list,) if isinstance(term, Exists) else ()


def conditions_within(term: Term) -> tuple[Expression, ...]:
    """Return the conditions directly within a term."""
    if isinstance(term, Case):
        return tuple(condition for condition, _ in term.branches)
    return (term.condition,) if isinstance(term, Test | Exists) else ()


def walk(term: Term) -> Iterator[Term]:
    """Yield a term and the terms within it, but not those of conditions in it."""
    yield term
    for part in subterms(term):
        yield from walk(part)


def map_parts(
    term: Term,
    change: Callable[[Term], Term],
    change_condition: Callable[[Expression], Expression],
) -> Term:
    """Return a term with the terms and conditions directly within it changed."""
    if isinstance(term, Call):
        return Call(term.function, tuple(map(change, term.arguments)))
    if isinstance(term, Case):
        branches = tuple((change_condition(c), change(value)) for c, value in term.branches)
        return Case(branches, change(term.otherwise))
    if isinstance(term, Cast):
        return Cast(change(term.term), term.kind)
    if isinstance(term, Test):
        return Test(change_condition(term.condition))
    if isinstance(term, Exists):
        condition = change_condition(term.condition)
        return Exists(change(term.list), term.variable, condition, term.every)
    return term
