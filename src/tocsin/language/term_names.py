"""The names of computed values → their terms.

Enters: names (see `names`). Leaves: terms. Those of recent names are kept, so that a name is seldom
parsed; `printer.name_of` leads from a term to its name.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.language.names import COMPUTED, is_computed
from tocsin.language.terms import Attribute, Term

MAX_TERMS = 1 << 16
_readers: list[Callable[[str], Term]] = []
_terms: dict[str, Term] = {}
"""The terms of recent names, so that a name is seldom parsed."""


def term_of(name: str) -> Term:
    """Return the term that a name stands for."""
    if not is_computed(name):
        return Attribute(name)
    term = _terms.get(name)
    if term is None:
        assert _readers, "the parser is imported with the package"
        term = _readers[0](name[len(COMPUTED) :])
        keep(name, term)
    return term


def keep(name: str, term: Term) -> None:
    """Keep the term of a name."""
    if name not in _terms:
        if len(_terms) >= MAX_TERMS:
            _terms.clear()
        _terms[name] = term


def read_terms_with(parse: Callable[[str], Term]) -> None:
    """Have the terms of names read by a function; the parser, which knows names, gives its own."""
    _readers[:] = [parse]
