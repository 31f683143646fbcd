"""What a computed value or a list asks of the attributes of events: without it, it is absent.

Enters: the name by which conditions know an attribute, and the domains that they compare it in.
Leaves: demands, the attributes of events and what their values must be, as masks: bits of domains,
`ANY` for any value at all, `LIST` for a list. `price * qty > 100` asks for two numbers. What may be
absent (`coalesce(price, 0)`) is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tocsin.language.computed import moments_of, static_kind
from tocsin.language.expression import (
    And,
    Comparison,
    Constant,
    Distinct,
    Expression,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
)
from tocsin.language.functions import COMPARISONS, FUNCTIONS
from tocsin.language.names import (
    HAS,
    element_name,
    is_computed,
    is_each,
    is_elements,
    is_path,
    path_of,
)
from tocsin.language.printer import print_attribute
from tocsin.language.term_names import term_of
from tocsin.language.terms import Attribute, Call, Cast, Exists, Interval, Literal, Term, Test
from tocsin.model import Kind
from tocsin.normalize.domains import DOMAIN_OF_KIND, Domain

NUMBER, TEXT, BOOLEAN, MOMENT = (1 << domain for domain in Domain)
ANY = 16
"""In a mask of domains: any value that is there."""
ABSENT = 32
"""In a mask of domains: conditions ask whether the attribute is absent."""
LIST = 64
"""In a mask of domains: a list."""
ALL = 128
"""Masks are below this number."""

_OF_NUMBERS = frozenset(("*", "/", "%", "neg", "abs", "round", "floor", "ceil", "sqrt", "power"))
_OF_TEXTS = frozenset(
    ("||", "concat", "lower", "upper", "length", "trim", "ltrim", "rtrim", "reverse", "substring",
     "starts_with", "ends_with", "contains", "replace", "position", "regexp_matches", "in_network",
     "ip_address", "words", "matches", "has_phrase")
)  # fmt: skip
_OF_LISTS = frozenset(("cardinality", "lower_each"))
_FIRST_ONLY = frozenset(("substring", "round", "extract", "date_trunc"))
"""Functions whose other arguments are of another kind."""


class Demand(NamedTuple):
    """An attribute of events, or the elements of a list, and what the values must be."""

    attribute: str
    mask: int


@lru_cache(maxsize=1 << 16)
def demands_of(name: str, mask: int) -> tuple[Demand, ...]:
    """Return what a computed value or a list asks for, where it is compared in some domains."""
    if is_path(name):
        return (Demand(name, mask),)
    if is_each(name):
        return () if name.startswith(HAS) else (Demand(path_of(name), ANY),)
    if is_elements(name):
        of = element_name(name)
        needed = demands_of(of.list, LIST)
        if of.quantifier == "any" and is_path(of.list) and mask & ~(ANY | ABSENT):
            return (*needed, Demand(of._replace(slot=0).name, mask))
        return needed
    moments = frozenset(moments_of(name))
    masks: dict[str, int] = {}
    for attribute, need in _of_term(term_of(name), mask):
        if masks.get(attribute, ANY) == ANY:
            masks[attribute] = MOMENT if attribute in moments else need
    return tuple(Demand(*each) for each in masks.items())


@lru_cache(maxsize=1 << 12)
def compared_pair(name: str) -> tuple[str, str] | None:
    """Return the two attributes that a computed value compares, if that is what it does."""
    term = term_of(name) if is_computed(name) else None
    if not isinstance(term, Call) or term.function not in COMPARISONS:
        return None
    names = [p.name for p in term.arguments if isinstance(p, Attribute) and is_path(p.name)]
    return (names[0], names[1]) if len(names) == 2 else None


def list_of(name: str) -> str | None:
    """Return the path of the list whose elements a name stands for; some must meet a condition."""
    of = element_name(name) if is_elements(name) else None
    return of.list if of is not None and of.quantifier == "any" and is_path(of.list) else None


def shown_name(name: str) -> str:
    """Return a name as people write it."""
    return name if is_path(name) else print_attribute(name)


def _of_term(term: Term, mask: int) -> Iterator[tuple[str, int]]:
    if isinstance(term, Attribute):
        yield from demands_of(term.name, mask)
    elif isinstance(term, Cast):
        yield from _of_term(term.term, ANY)
    elif isinstance(term, Test):
        yield from _of_condition(term.condition).items()
    elif isinstance(term, Exists):
        yield from _of_term(term.list, LIST)
        if isinstance(term.list, Attribute) and not term.every:
            element = f"{term.variable}."
            for name, need in _of_condition(term.condition).items():
                if name.startswith(element):
                    yield f"{term.list.name}.{name.removeprefix(element)}", LIST
                elif name != term.variable:
                    yield name, need
    elif isinstance(term, Call):
        known = FUNCTIONS.get(term.function)
        if known is None or known.is_strict:
            for part, need in zip(term.arguments, masks_of_arguments(term, mask), strict=True):
                yield from _of_term(part, need)


def masks_of_arguments(term: Call, mask: int) -> list[int]:
    """Return what the arguments of a function must be for it to have a value."""
    function, parts = term.function, term.arguments
    kinds = [mask_of_kind(static_kind(part)) for part in parts]
    masks = [ANY] * len(parts)
    if function in _OF_NUMBERS:
        masks = [NUMBER] * len(parts)
    elif function in _OF_TEXTS:
        masks = [TEXT] * len(parts)
    elif function in _OF_LISTS:
        masks = [LIST] * len(parts)
    elif function in COMPARISONS:
        masks = kinds[::-1]
    elif function in ("+", "-") and not any(isinstance(part, Interval) for part in parts):
        masks = [NUMBER if NUMBER in (mask, *kinds) else ANY] * len(parts)
    return [*masks[:1], *([ANY] * (len(parts) - 1))] if function in _FIRST_ONLY else masks


def mask_of_kind(kind: Kind | None) -> int:
    """Return the mask of values of a kind; ANY where it is not known."""
    return ANY if kind is None else 1 << DOMAIN_OF_KIND[kind]


def _of_condition(condition: Expression) -> dict[str, int]:
    """Return what a condition cannot be true without."""
    if isinstance(condition, And):
        return {
            name: mask for part in condition.operands for name, mask in _of_condition(part).items()
        }
    if isinstance(condition, Or):
        parts = [_of_condition(part) for part in condition.operands]
        return {n: m for n, m in parts[0].items() if all(part.get(n) == m for part in parts)}
    if isinstance(condition, Not):
        of = condition.operand
        return {} if isinstance(of, And | Or | Not) else _of_condition(of)
    if isinstance(condition, Constant | IsNull | Distinct):
        return {}
    return dict(demands_of(condition.attribute, _mask_of_operand(condition)))


def _mask_of_operand(predicate: Predicate) -> int:
    if isinstance(predicate, Like):
        return TEXT
    if isinstance(predicate, Comparison) and isinstance(predicate.operand, Literal):
        return mask_of_kind(predicate.operand.kind)
    return ANY
