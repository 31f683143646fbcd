"""Filters: which sets of overlapping regions make a match.

Enters: a filter as a user writes it, and the names of the regions. Leaves: numbers for the kernels:
how many regions must overlap, or terms, bit masks of the regions that must overlap and of those
that must not (the disjunctive normal form of an expression).

A filter that holds where no region overlaps is refused: such a subscription would match every
publication. So every match overlaps in some region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.language.computed import attribute_names
from tocsin.language.expression import Truth, predicates
from tocsin.model import EventType, Kind
from tocsin.normalize import normalize
from tocsin.subjects.model import AtLeast, Filter


class FilterTerms(NamedTuple):
    """A filter as numbers; if `least` is 0, one of the terms must hold."""

    least: int
    terms: tuple[tuple[int, int], ...] = ()

    def holds(self, hits: int) -> bool:
        """Whether a bit mask of overlapping regions satisfies the filter."""
        if self.least:
            return hits.bit_count() >= self.least
        return any(hits & must == must and not hits & must_not for must, must_not in self.terms)


ONE = FilterTerms(1)
"""The filter of a single region."""


def to_terms(filter_: Filter, names: Sequence[str]) -> FilterTerms:
    """Return a filter over regions as numbers; raise `ArgumentError` if it is not one."""
    if isinstance(filter_, AtLeast):
        if isinstance(filter_.count, bool) or not isinstance(filter_.count, int):
            raise ArgumentError(f"AtLeast takes an integer, not {filter_.count!r}")
        if not 1 <= filter_.count <= len(names):
            raise ArgumentError(f"AtLeast({filter_.count}) of {len(names)} regions")
        return FilterTerms(filter_.count)
    if not isinstance(filter_, str):
        raise ArgumentError(f"a filter is a text or AtLeast, not {filter_!r}")
    if filter_ in ("all", "any"):
        return FilterTerms(len(names) if filter_ == "all" else 1)
    return _expression_terms(filter_, names)


def _expression_terms(text: str, names: Sequence[str]) -> FilterTerms:
    expression = parse(text)
    unknown = [name for name in attribute_names(expression) if name not in names]
    if unknown:
        raise ArgumentError(f"the filter names {', '.join(unknown)}; regions: {', '.join(names)}")
    if not all(isinstance(predicate, Truth) for predicate in predicates(expression)):
        raise ArgumentError("a filter joins names of regions by AND, OR and NOT only")
    form = normalize(expression, EventType("filter", dict.fromkeys(names, Kind.BOOLEAN)))
    terms = []
    for conjunction in form:
        must = must_not = 0
        for name, condition in conjunction.items():
            bit = 1 << names.index(name)
            if not condition.holds(False):
                must |= bit
            if not condition.holds(True):
                must_not |= bit
        terms.append((must, must_not))
    result = FilterTerms(0, tuple(terms))
    if result.holds(0):
        raise ArgumentError(f"the filter {text!r} holds where no region overlaps")
    if not terms:
        raise ArgumentError(f"the filter {text!r} never holds")
    return result
