"""Names of attributes that are no paths: of computed values, and of the elements of lists.

Enters and leaves: names. A predicate, a conjunction and an index know attributes by their names, so
a computed value has one too, which no attribute of an event can have: a NUL, a mark, and the text
of the term. The elements of a list are an attribute with many values for each event. A conjunction
may hold several conditions on them, which different elements may satisfy, so that their names are
numbered by slots.

`EACH(path)` and `HAS(path)` are names too. Where an event has lists on the way to paths, a *choice*
is one element of each list; an event satisfies a condition if one of its choices does. `EACH(path)`
is the value at a path in the choice, `HAS(path)` whether the event has any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

COMPUTED = "\0="
"""How the name of a computed value begins; the text of its term follows."""
ELEMENTS = "\0a"
"""How the names of elements begin."""
ALL_ELEMENTS = "\0all "
"""How the names of elements begin that must all satisfy a condition."""
EACH = "\0each "
"""How the name of the value at a path in a choice begins."""
HAS = "\0has "
"""How the name begins that says whether an event has a value at a path."""
LITERAL = re.compile(r"('(?:[^']|'')*'|(?<![\w$.\"])[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
"""A number or a text in the name of a computed value, apart from names that are quoted."""
_QUOTES = re.compile('["`]')
_QUANTIFIERS = {"\0any ": "any", "\0all ": "all"}


class ElementName(NamedTuple):
    """The elements of a list: of which `any`, or `all`, must satisfy a condition."""

    quantifier: str
    list: str
    """The path of an attribute, or the name of a computed list."""
    slot: int = 0

    @property
    def name(self) -> str:
        """The name that this was read from."""
        slot = f"\0{self.slot}" if self.slot else ""
        return f"\0{self.quantifier} {self.list}{slot}"


def is_computed(name: str) -> bool:
    """Whether a name is that of a computed value."""
    return name.startswith(COMPUTED)


def is_elements(name: str) -> bool:
    """Whether a name is that of the elements of a list."""
    return name.startswith(ELEMENTS)


def is_path(name: str) -> bool:
    """Whether a name is that of an attribute of events."""
    return not name.startswith((COMPUTED, ELEMENTS, EACH, HAS))


def is_each(name: str) -> bool:
    """Whether a name depends on the choice: the value at a path, or whether there is one."""
    return name.startswith((EACH, HAS))


def each_name(path: str) -> str:
    """Return the name of the value at a path in a choice."""
    return EACH + path


def has_name(path: str, others: Sequence[str] = ()) -> str:
    """Return the name that says whether an event has a value at a path.

    With other paths: a value that goes together with those at these in the choice.
    """
    return HAS + "\0".join((path, *others))


def path_of(name: str) -> str:
    """Return the path that a name of either sort is about."""
    return paths_of(name)[0]


@lru_cache(maxsize=1 << 16)
def paths_of(name: str) -> tuple[str, ...]:
    """Return the path that a name of either sort is about, and the other paths."""
    return tuple(name.partition(" ")[2].split("\0"))


def spelling(name: str) -> str:
    """Return what the names of computed values have in common that differ in literals only."""
    return name if _QUOTES.search(name) else LITERAL.sub("?", name)


@lru_cache(maxsize=4096)
def element_name(name: str) -> ElementName:
    """Read the name of the elements of a list."""
    quantifier, rest = _QUANTIFIERS[name[:5]], name[5:]
    of, mark, slot = rest.rpartition("\0")
    if mark and slot.isdigit():
        return ElementName(quantifier, of, int(slot))
    return ElementName(quantifier, rest)


def elements_of(name: str) -> ElementName | None:
    """Return what a name says, where it is one of elements."""
    return element_name(name) if is_elements(name) else None
