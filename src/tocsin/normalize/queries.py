"""Text queries given by parameter: shapes with `matches(text, :query)` → shapes with words.

Enters: an expression, and the queries that stand for one of its parameters. Leaves: for queries
that are nothing but words and prefixes, by how many and which, the expression with a condition on
each word, so that a million searches are read without a million parses.
"""

from __future__ import annotations

from typing import NamedTuple

from tocsin.language.expression import (
    Comparison,
    Expression,
    Like,
    Predicate,
    Truth,
    conjoin,
    map_predicates,
    predicates,
)
from tocsin.language.names import ElementName, is_computed
from tocsin.language.printer import name_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call, Parameter, Term


class Query(NamedTuple):
    """A predicate `matches(text, :parameter)`: its name, the list of words, the parameter."""

    attribute: str
    words: str
    parameter: str


def query_of(expression: Expression) -> Query | None:
    """Return the query of an expression that has one, given by a parameter."""
    queries = {query for each in predicates(expression) if (query := _read(each)) is not None}
    return queries.pop() if len(queries) == 1 else None


def _read(predicate: Predicate) -> Query | None:
    if not isinstance(predicate, Truth) or not is_computed(predicate.attribute):
        return None
    term: Term = term_of(predicate.attribute)
    if not isinstance(term, Call) or term.function != "matches":
        return None
    subject, query = term.arguments
    if not isinstance(query, Parameter):
        return None
    words = ElementName("any", name_of(Call("words", (subject,)))).name
    return Query(predicate.attribute, words, str(query.name))


def with_words(
    expression: Expression, query: Query, is_prefix: tuple[bool, ...], first: int
) -> Expression:
    """Replace a query by conditions on words, parameters numbered from `first` on."""
    conditions: list[Expression] = []
    for number, is_start in enumerate(is_prefix, first):
        word = Parameter(number)
        conditions.append(
            Like(query.words, word) if is_start else Comparison(query.words, "=", word)
        )
    condition = conjoin(conditions)

    def replaced(predicate: Predicate) -> Expression:
        return condition if predicate.attribute == query.attribute else predicate

    return map_predicates(expression, replaced)
