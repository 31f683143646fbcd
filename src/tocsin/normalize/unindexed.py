"""Conjunctions that no index can help: they are checked on every event.

Enters: normal forms and tables. Leaves: which conjunctions have nothing but computed booleans, such
as `a < b` or `ALL(words(body)) <> 'x'`. An index has the values of attributes and of other computed
values, and what an element must be; of a boolean it could only say that it is true.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.language.computed import by_spelling, static_kind
from tocsin.language.expression import And, Constant, Not, Or
from tocsin.language.names import elements_of, is_computed
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call, Exists, Literal, Test
from tocsin.model import Kind
from tocsin.normalize.normal import NormalForm
from tocsin.normalize.table import ConjunctionTable

MESSAGE = "no index helps this condition: it is checked on every event"


@by_spelling
def is_indexable(name: str) -> bool:
    """Whether an index can have the conditions on an attribute, a computed value or elements."""
    of = elements_of(name)
    if of is not None:
        return of.quantifier == "any"
    if not is_computed(name):
        return True
    term = term_of(name)
    if isinstance(term, Exists):
        return not term.every
    if isinstance(term, Test):
        condition = term.condition
        if isinstance(condition, And | Or | Not | Constant):
            return False
        of = elements_of(condition.attribute)
        return of is not None and of.quantifier == "any"
    if isinstance(term, Call) and term.function == "inside":  # it implies a box
        return isinstance(term.arguments[2], Literal)
    return static_kind(term) is not Kind.BOOLEAN


def is_unindexed(form: NormalForm) -> bool:
    """Whether a condition has a conjunction that no index can help."""
    return any(conjunction and not any(map(is_indexable, conjunction)) for conjunction in form)


def unindexed_conjunctions(table: ConjunctionTable) -> NDArray[np.bool_]:
    """Return the conjunctions of a table that no index can help."""
    helps = np.array([is_indexable(name) for name in table.attributes], np.bool_)
    counts = np.diff(table.condition_start)
    if helps.all():
        return np.zeros(table.n_conjunctions, np.bool_)
    owner = np.repeat(np.arange(table.n_conjunctions), counts)
    n_helping = np.bincount(owner[helps[table.attribute]], minlength=table.n_conjunctions)
    unindexed: NDArray[np.bool_] = (n_helping == 0) & (counts > 0)
    return unindexed
