"""Filters: which sets of regions are enough.

Enters: a filter as a user writes it, and the names of the regions it is about. Leaves: numbers for
the kernels: how many regions must be hit, or terms, each of which regions must be hit and which
must not (the disjunctive normal form of an expression).

A filter that holds where nothing is hit is refused: such a subscription would be in relation with
every publication that there is. So whatever is in relation overlaps somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.language.expression import Truth, attribute_names, predicates
from tocsin.model import EventType, Kind
from tocsin.normalize import normalize
from tocsin.subjects.model import AtLeast, Filter


class FilterTerms(NamedTuple):
    """A filter as numbers; where `least` is 0, one of the terms must hold."""

    least: int
    terms: tuple[tuple[int, int], ...] = ()

    def holds(self, hits: int) -> bool:
        """Whether a set of regions, as bits, is enough."""
        if self.least:
            return hits.bit_count() >= self.least
        return any(hits & must == must and not hits & must_not for must, must_not in self.terms)


ONE = FilterTerms(1)
"""The filter of what has one region."""


def to_terms(given: Filter, names: Sequence[str]) -> FilterTerms:
    """Return a filter over some regions as numbers, or refuse it."""
    if isinstance(given, AtLeast):
        if isinstance(given.count, bool) or not isinstance(given.count, int):
            raise ArgumentError(f"AtLeast takes a number, not {given.count!r}")
        if not 1 <= given.count <= len(names):
            raise ArgumentError(f"AtLeast({given.count}) of {len(names)} regions")
        return FilterTerms(given.count)
    if not isinstance(given, str):
        raise ArgumentError(f"a filter is a text or AtLeast, not {given!r}")
    if given in ("all", "any"):
        return FilterTerms(len(names) if given == "all" else 1)
    return _expression_terms(given, names)


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
    found = FilterTerms(0, tuple(terms))
    if found.holds(0):
        raise ArgumentError(f"the filter {text!r} holds where no region is hit")
    if not terms:
        raise ArgumentError(f"the filter {text!r} never holds")
    return found
