"""Computed values that differ only in their constants → shapes, with the constants in columns.

Enters: names of computed values, such as `distance(lat, lon, 52.1, 4.3)`. Leaves: for each group of
names with one shape its term, in which the k-th constant is the attribute `constant_name(k)`, and
the constants as columns. Most names are read without being parsed: one of each spelling is, and
the literals of the others stand in the same places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.language.computed import parts_of
from tocsin.language.functions import COMPARISONS
from tocsin.language.names import COMPUTED, LITERAL, is_computed
from tocsin.language.places import known_polygon
from tocsin.language.printer import print_attribute, print_string, print_term
from tocsin.language.term_names import term_of
from tocsin.language.terms import (
    Attribute,
    Call,
    Cast,
    Interval,
    Literal,
    Parameter,
    Term,
    walk,
)
from tocsin.model import INT64_MAX, INT64_MIN, Kind, Value, is_unicode, to_microseconds

_CONSTANT = "\0c"
_FIXED = frozenset(("extract", "date_trunc"))
"""Functions of which the first constant says what they are."""

_NO_CALLS = tuple(COMPUTED + begin for begin in ("(ANY(", "(ALL(", "exists(", "forall(", "CASE "))
"""How the names of terms begin whose constants stay where they are."""

Constants: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Shape:
    """A term with constants left out, and the constants of some names, by column.

    `names` are places in the list of names that was read. A column holds int64 or float64 numbers,
    microseconds, or Arrow strings.
    """

    term: Term
    kinds: tuple[Kind, ...]
    names: NDArray[np.int64]
    columns: tuple[Any, ...]

    @property
    def text(self) -> str:
        """The term as people write it, with a question mark for each constant."""
        text = print_term(self.term)
        for at in range(len(self.kinds)):
            text = text.replace(print_attribute(constant_name(at)), "?")
        return text


def constant_name(at: int) -> str:
    """Return the attribute that stands for a constant of a shape."""
    return f"{_CONSTANT}{at:02d}"


def is_constant_name(name: str) -> bool:
    """Whether an attribute stands for a constant."""
    return name.startswith(_CONSTANT)


def constant_number(name: str) -> int:
    """Return which constant an attribute stands for."""
    return int(name[len(_CONSTANT) :])


def has_constant(term: Term) -> bool:
    """Whether a term of a shape has a constant that was left out."""
    return any(isinstance(part, Attribute) and is_constant_name(part.name) for part in walk(term))


def has_constants(name: str) -> bool:
    """Whether a name is that of a function with constants of its own, perhaps."""
    if not is_computed(name) or name.startswith(_NO_CALLS):
        return False
    return LITERAL.search(name) is not None


def read_shapes(names: Sequence[str]) -> list[Shape]:
    """Return the shapes of the names of computed values."""
    spellings: dict[tuple[str, ...], list[int]] = {}
    literals: list[list[str]] = []
    for at, name in enumerate(names):
        pieces = LITERAL.split(name)
        literals.append(pieces[1::2])
        kinds = "".join("s" if p[0] == "'" else "i" if p.isdigit() else "f" for p in pieces[1::2])
        spellings.setdefault((*pieces[::2], kinds), []).append(at)
    grouped: dict[tuple[Term, tuple[Kind, ...]], tuple[list[int], list[Constants]]] = {}
    for members in spellings.values():
        for key, places, rows in _of_spelling(names, members, literals):
            known = grouped.setdefault(key, ([], []))
            known[0].extend(places)
            known[1].extend(rows)
    return [
        Shape(term, kinds, np.array(places, np.int64), tuple(_columns(kinds, rows)))
        for (term, kinds), (places, rows) in grouped.items()
    ]


_Key: TypeAlias = tuple[Term, tuple[Kind, ...]]


def _of_spelling(
    names: Sequence[str], members: list[int], literals: list[list[str]]
) -> Iterable[tuple[_Key, list[int], list[Constants]]]:
    """Yield the shapes of names that differ in their literals only."""
    first = members[0]
    term, constants = _without_constants(term_of(names[first]))
    readers = [_reader(*pair) for pair in zip(constants, literals[first], strict=False)]
    if len(constants) != len(literals[first]) or None in readers:
        for at in members:
            term, constants = _without_constants(term_of(names[at]))
            yield (term, _kinds(constants)), [at], [tuple(each.value for each in constants)]
        return
    if not readers:
        rows: list[Constants] = [()] * len(members)
    else:
        by_place = zip(*(literals[at] for at in members), strict=True)
        rows = list(
            zip(
                *(map(read, texts) for read, texts in zip(readers, by_place, strict=True)),
                strict=True,
            )
        )
    yield (term, _kinds(constants)), members, rows


def _kinds(constants: Sequence[Literal]) -> tuple[Kind, ...]:
    return tuple(each.kind or Kind.STRING for each in constants)


def _reader(constant: Literal, text: str) -> Any:
    """Return a function from the text of a literal to its value, or None where there is none.

    A sign is not part of the text.
    """
    if constant.kind is Kind.STRING:
        return _unquoted if _unquoted(text) == constant.value else None
    if constant.kind not in (Kind.INTEGER, Kind.FLOAT) or text[0] == "'":
        return None
    if constant.kind is Kind.INTEGER and not text.isdigit():  # folded from another literal
        return None
    read: Any = int if constant.kind is Kind.INTEGER else float
    if read(text) == constant.value:
        return read
    return (lambda text: -read(text)) if -read(text) == constant.value else None


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _without_constants(term: Term) -> tuple[Term, list[Literal]]:
    """Return a term without the constants of its calls, and these in the order of its text."""
    constants: list[Literal] = []

    def without(part: Term) -> Term:
        if isinstance(part, Literal) and part.kind not in (None, Kind.BOOLEAN):
            constants.append(part)
            return Attribute(constant_name(len(constants) - 1))
        if isinstance(part, Call) and part.function not in _FIXED:
            return Call(part.function, tuple(map(without, part.arguments)))
        return Cast(without(part.term), part.kind) if isinstance(part, Cast) else part

    return without(term), constants


def _columns(kinds: tuple[Kind, ...], rows: list[Constants]) -> Iterable[Any]:
    for kind, values in zip(kinds, zip(*rows, strict=True), strict=True):
        if kind is Kind.STRING:
            yield pa.array(values, STRING)
        elif kind is Kind.TIMESTAMP:
            yield np.array([to_microseconds(value) for value in values], np.int64)
        else:
            yield np.array(values, np.float64 if kind is Kind.FLOAT else np.int64)


class FilledNames(NamedTuple):
    """Names of computed values by row; those of rows that are not `known` say nothing."""

    names: list[str]
    known: NDArray[np.bool_]


def fill_names(name: str, columns: Mapping[str, Sequence[object]]) -> FilledNames:
    """Return a name with its parameters replaced by values, row by row.

    Numbers and texts are; a row with another value is not known. See `is_fillable`.
    """
    pieces = _PARAMETER.split(name)
    n = len(columns[pieces[1]])
    known = np.ones(n, np.bool_)
    polygons = {
        part.arguments[2].name
        for part in walk(term_of(name))
        if isinstance(part, Call)
        and part.function == "inside"
        and isinstance(part.arguments[2], Parameter)
    }
    parts: list[Iterable[str]] = [repeat(pieces[0])]
    for parameter, after in zip(pieces[1::2], pieces[2::2], strict=True):
        texts = [_printed(value) for value in columns[parameter]]
        known &= np.array([text != "" for text in texts], np.bool_)
        if parameter in polygons:
            known &= np.array([known_polygon(str(v)) is not None for v in columns[parameter]])
        parts += [texts, repeat(after)]
    return FilledNames(list(map("".join, zip(*parts, strict=False))), known)


def _printed(value: object) -> str:
    kind = value.__class__
    if kind is float:
        return repr(value) if math.isfinite(value) else ""  # type: ignore[arg-type]
    if kind is int:
        return repr(value) if INT64_MIN <= value <= INT64_MAX else ""  # type: ignore[operator]
    return print_string(value) if kind is str and is_unicode(value) else ""  # type: ignore[arg-type]


def is_fillable(name: str) -> bool:
    """Whether the parameters within a name can be replaced by values in its text.

    They must be arguments of functions that have others too, so that nothing is folded.
    """
    term = term_of(name)
    if _QUOTED.search(name) or not isinstance(term, Call) or term.function in _CONDITIONS:
        return False
    n_parameters = 0
    for part in walk(term):
        if isinstance(part, Call):
            is_parameter = [isinstance(each, Parameter) for each in part.arguments]
            n_parameters += sum(is_parameter)
            if any(is_parameter) and part.function in _CHECKED:
                return False
            if any(is_parameter) and all(map(_is_constant, part.arguments)):
                return False
    return n_parameters == sum(isinstance(part, Parameter) for part in parts_of(name))


def _is_constant(term: Term) -> bool:
    return isinstance(term, Literal | Parameter | Interval)


_PARAMETER = re.compile(r":([^\W\d]\w*)")
_QUOTED = re.compile(r"[\"'`]")
_CONDITIONS = COMPARISONS | {"starts_with", "matches", "like", "ilike", "is distinct from"}
"""Functions that may become other conditions when their arguments are known."""
_CHECKED = _FIXED | {"in_network", "regexp_matches", "matches"}
"""Functions that do not take every value."""
