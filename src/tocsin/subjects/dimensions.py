"""Values and ranges → cells, dimension by dimension.

Enters: the values of publications, one at a time as mappings or many as columns. Leaves: cells
(`positions`). A dimension is an attribute of a space, so that spaces share nothing; dimension 0 is
the space itself. A LIKE pattern that is no interval gets a boolean dimension of its own, so that
the index knows nothing of patterns. For a range of strings such a pattern is assumed to hold
wherever its prefix allows it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.columns import Column
from tocsin.encode.events import check_value
from tocsin.errors import ArgumentError, EventError
from tocsin.model import INT64_MAX, EventType, Kind, from_microseconds, kind_of, to_microseconds
from tocsin.normalize import domains
from tocsin.normalize.domains import DOMAIN_OF_KIND, HIGH, LOW, Domain
from tocsin.normalize.keys import (
    flatten_cut,
    float_keys,
    integer_keys,
    key_of_number,
    unflatten_cut,
)
from tocsin.normalize.patterns import Pattern
from tocsin.subjects.model import Range
from tocsin.subjects.positions import (
    ABSENT,
    FIRST_DOMAIN,
    OTHER,
    OTHER_ZONE,
    PRESENT,
    STRING_ZONE,
    Cell,
    Labels,
    LabelsExhausted,
    Words,
    cell,
    cut_of,
    point,
    points,
    position,
)

SPACE = 0
"""The dimension of spaces."""
_BOOLEAN = FIRST_DOMAIN + Domain.BOOLEAN
_TIMESTAMP = FIRST_DOMAIN + Domain.TIMESTAMP
_FALSE, _TRUE = point(_BOOLEAN, 0), point(_BOOLEAN, 1)
_EITHER = (_FALSE[0], _TRUE[1], (_FALSE[2] & ~0xFFFF) | (_TRUE[2] & 0xFFFF))

_MOST_KNOWN = 1 << 16
_PLAIN_NUMBERS: dict[Kind | None, tuple[type, ...]] = {
    Kind.INTEGER: (int,),
    Kind.FLOAT: (int, float),
    None: (int, float),
}

OnRelabel = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]


@dataclass
class Dimension:
    """One dimension; with `pattern`, whether the strings of dimension `of` match it."""

    number: int
    space: int
    attribute: str
    declared: Kind | None = None
    pattern: Pattern | None = None
    of: int = -1
    labels: Labels = field(default_factory=Labels)
    patterns: list[int] = field(default_factory=list)
    """The dimensions of patterns on this one."""

    def __post_init__(self) -> None:
        self.plain = _PLAIN_NUMBERS.get(self.declared, ())
        """The types of numbers that need no validation."""


def to_truth(pattern: Pattern, text: str) -> Cell:
    """Return the cell of whether a string matches a pattern."""
    return _TRUE if pattern.matches(text) else _FALSE


def truth(is_true: bool) -> Cell:
    """Return the cell of a truth value."""
    return _TRUE if is_true else _FALSE


class Dimensions:
    """All dimensions of some spaces; `on_relabel` is called when the labels of one change."""

    def __init__(self, spaces: Sequence[EventType], missing: str = "absent") -> None:
        self.spaces = tuple(spaces)
        self.missing = ABSENT if missing == "absent" else PRESENT
        self.entries = [Dimension(SPACE, -1, "")]
        self._number: list[dict[str, int]] = [{} for _ in spaces]
        """Dimensions by attribute name, for each space."""
        self._pattern: dict[tuple[int, Pattern], int] = {}
        self._dims: dict[int, tuple[int, list[int]]] = {}
        self._known: dict[int | float, Cell] = {}
        self._number_of_space = {space.name: at for at, space in enumerate(spaces)}
        self.on_relabel: OnRelabel = lambda dim, old, new: None
        if len(self._number_of_space) < len(spaces):
            raise ArgumentError("two spaces have one name")
        for at, space in enumerate(spaces):
            for attribute in space.attributes:
                self.dim(at, attribute)

    def __len__(self) -> int:
        return len(self.entries)

    def space(self, name: str | None) -> int:
        """Return the number of a space by its name; 0 for None."""
        if name is None:
            return 0
        if name not in self._number_of_space:
            known = ", ".join(repr(space.name) for space in self.spaces)
            raise ArgumentError(f"there is no space {name!r}; known are {known}")
        return self._number_of_space[name]

    def dim(self, space: int, attribute: str) -> int:
        """Return the dimension of an attribute; create it if needed."""
        number = self._number[space].get(attribute)
        if number is None:
            number = len(self.entries)
            declared = self.spaces[space].kind_of(attribute)
            self.entries.append(Dimension(number, space, attribute, declared))
            self._number[space][attribute] = number
        return number

    def pattern_dim(self, of: int, pattern: Pattern) -> int:
        """Return the dimension of a pattern on a dimension; create it if needed."""
        number = self._pattern.get((of, pattern))
        if number is None:
            number = len(self.entries)
            self.entries.append(Dimension(number, self.entries[of].space, "", None, pattern, of))
            self.entries[of].patterns.append(number)
            self.entries[of].plain = ()
            self._pattern[of, pattern] = number
        return number

    def dims_of(self, space: int) -> list[int]:
        """Return the dimensions of a space, including those of patterns."""
        n, known = self._dims.get(space, (0, []))
        if n != len(self.entries):
            known = [dimension.number for dimension in self.entries if dimension.space == space]
            self._dims[space] = len(self.entries), known
        return known

    # Strings.

    def add_strings(self, dim: int, texts: Iterable[str]) -> None:
        """Assign labels to strings, before any of them is encoded."""
        labels = self.entries[dim].labels
        new = [text for text in texts if text not in labels.label_of]
        if not new:
            return
        try:
            if len(new) > 64 and len(new) > len(labels.strings) // 16:
                raise LabelsExhausted  # relabelling all is cheaper
            for text in new:
                if text not in labels.label_of:
                    labels.add(text)
        except LabelsExhausted:
            old, spread = labels.spread(new)
            if len(old):
                self.on_relabel(dim, old, spread)

    # One value.

    def by_dimension(self, space: int, values: Mapping[str, Any]) -> dict[int, Any]:
        """Return values by dimension; nested ones under their dotted paths."""
        by_dim: dict[int, Any] = {}
        self._collect(space, "", values, by_dim)
        return by_dim

    def _collect(
        self, space: int, prefix: str, values: Mapping[str, Any], by_dim: dict[int, Any]
    ) -> None:
        for name, value in values.items():
            if type(name) is not str or not name:
                raise EventError(f"an attribute must have a name, not {name!r}")
            path = prefix + name
            if isinstance(value, Mapping):
                by_dim[self.dim(space, path)] = _STRUCT
                self._collect(space, path + ".", value, by_dim)
            else:
                by_dim[self.dim(space, path)] = value
                if value is None:
                    for inner, dim in self._number[space].items():
                        if inner.startswith(path + "."):
                            by_dim.setdefault(dim, None)

    def encode(self, space: int, values: Mapping[str, Any]) -> dict[int, Cell]:
        """Return the cells of a publication's values by dimension, including those of patterns.

        The cells of numbers are cached.
        """
        cells: dict[int, Cell] = {}
        rest = {}
        known, number, dimensions = self._known, self._number[space], self.entries
        for name, value in values.items():
            kind = type(value)
            if (
                (kind is int or kind is float)
                and (words := known.get(value)) is not None
                and (dim := number.get(name)) is not None
                and kind in dimensions[dim].plain
            ):
                cells[dim] = words
            else:
                rest[name] = value
        return {**cells, **self._encode_rest(space, rest)} if rest else cells

    def _encode_rest(self, space: int, values: Mapping[str, Any]) -> dict[int, Cell]:
        by_dim = self.by_dimension(space, values)
        checked = {dim: self._check(dim, value) for dim, value in by_dim.items()}
        for dim, value in checked.items():
            if isinstance(value, str | Range):
                ends = (value.low, value.high) if isinstance(value, Range) else (value,)
                self.add_strings(dim, [text for text in ends if isinstance(text, str)])
        cells: dict[int, Cell] = {}
        for dim, value in checked.items():
            cells[dim] = self._cell(dim, value)
            for derived in self.entries[dim].patterns:
                cells[derived] = self._fits(derived, value)
        return cells

    def _check(self, dim: int, value: Any) -> Any:
        of = self.entries[dim]
        if type(value) is float and of.declared is Kind.FLOAT:
            return value  # the usual case
        if value is _STRUCT:
            if of.declared is not None:
                raise EventError("an object where a value is declared", attribute=of.attribute)
            return value
        if not isinstance(value, Range):
            return check_value(value, of.attribute, of.declared)
        declared = Kind.FLOAT if of.declared is Kind.INTEGER else of.declared
        low, high = (check_value(end, of.attribute, declared) for end in (value.low, value.high))
        for end in (low, high):
            kind = kind_of(end)
            if end is not None and (kind is None or (kind is Kind.FLOAT and math.isnan(end))):  # type: ignore[arg-type]
                raise EventError(f"{end!r} cannot be an end of a range", attribute=of.attribute)
        if low is not None and low == high and kind_of(low) is kind_of(high):
            if value.low_open or value.high_open:
                raise EventError("the range holds no value", attribute=of.attribute)
            return check_value(low, of.attribute, of.declared)
        return Range(low, high, value.low_open, value.high_open)  # type: ignore[arg-type]

    def _cell(self, dim: int, value: Any) -> Cell:
        if value is None:
            return self.missing
        if isinstance(value, Range):
            return self._range(dim, value)
        if isinstance(value, bool):
            return _TRUE if value else _FALSE
        if isinstance(value, int | float):
            return OTHER if value != value else self._number_cell(value)
        if isinstance(value, str):
            return point(STRING_ZONE, self.entries[dim].labels.label_of[value])
        if isinstance(value, dt.datetime):
            return point(_TIMESTAMP, to_microseconds(value))
        return OTHER

    def _number_cell(self, value: int | float) -> Cell:
        words = point(FIRST_DOMAIN, *key_of_number(value))
        if type(value) in (int, float):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[value] = words
        return words

    def _range(self, dim: int, range_: Range) -> Cell:
        of = self.entries[dim]
        ends = [end for end in (range_.low, range_.high) if end is not None]
        if not ends:
            return PRESENT
        used = {DOMAIN_OF_KIND[kind] for end in ends if (kind := kind_of(end)) is not None}
        if len(used) > 1:
            raise EventError("the ends of a range are of two kinds", attribute=of.attribute)
        domain = used.pop()
        low, high = LOW[domain], HIGH[domain]
        if range_.low is not None:
            low = (domains.cut_after if range_.low_open else domains.cut_before)(domain, range_.low)
        if range_.high is not None:
            high = (domains.cut_before if range_.high_open else domains.cut_after)(
                domain, range_.high
            )
        if of.declared is Kind.INTEGER:
            low, high = domains.tighten(low), domains.tighten(high)
        if not low < high:
            raise EventError("the range holds no value", attribute=of.attribute)
        if domain is Domain.STRING:
            self.add_strings(dim, [key for key, _ in (low, high) if isinstance(key, str)])
        label_of = of.labels.label_of.__getitem__
        zone = FIRST_DOMAIN + domain
        return cell(
            position(zone, *flatten_cut(domain, low, label_of)),
            position(zone, *flatten_cut(domain, high, label_of)),
        )

    def _fits(self, derived: int, value: Any) -> Cell:
        pattern = self.entries[derived].pattern
        assert pattern is not None
        if isinstance(value, str):
            return to_truth(pattern, value)
        is_any = isinstance(value, Range) or (value is None and self.missing == PRESENT)
        return _EITHER if is_any else ABSENT

    def fits(self, derived: int, cells: Words) -> Words:
        """Return the cells of a pattern for the cells of its dimension."""
        dimension = self.entries[derived]
        labels = self.entries[dimension.of].labels
        text_of = dict(zip(labels.labels, labels.strings, strict=True))
        fit_cells = np.empty_like(cells)
        known: dict[Cell, Cell] = {}
        for at, (low, high, ends) in enumerate(cells.tolist()):
            key = (low, high, ends)
            if key not in known:
                known[key] = self._fits(derived, self._string_in(key, text_of))
            fit_cells[at] = known[key]
        return fit_cells

    def _string_in(self, key: Cell, text_of: Mapping[int, str]) -> Any:
        """Return the string of a cell; any range if the cell may have several strings."""
        zone, label, offset = cut_of(key[0], key[2] >> 16)
        if zone == STRING_ZONE and key == point(zone, label, offset) and label in text_of:
            return text_of[label]
        is_string = zone in (STRING_ZONE, OTHER_ZONE) and key != OTHER
        return Range() if is_string else _STRUCT

    # Many values.

    def encode_column(self, dim: int, column: Column, n: int) -> Words:
        """Return the cells of a column of values."""
        cells = np.empty((n, 3), np.uint64)
        cells[:] = np.array(self.missing, np.uint64)
        for part in column.parts:
            here = slice(None) if part.here is None else part.here
            cells[here] = self._part_cells(dim, part.domain, part.values)[here]
        if column.other is not None:
            cells[column.other] = np.array(OTHER, np.uint64)
        return cells

    def _part_cells(self, dim: int, domain: Domain, values: Any) -> Words:
        zone = FIRST_DOMAIN + domain
        if domain is Domain.STRING:
            encoded = values.dictionary_encode()
            texts = encoded.dictionary.to_pylist()
            self.add_strings(dim, texts)
            label_of = self.entries[dim].labels.label_of
            labels = np.array([*(label_of[text] for text in texts), 0], np.int64)
            at = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            return points(zone, labels[at], np.zeros(len(at), np.int64))
        if domain is not Domain.NUMBER:
            return points(zone, values.astype(np.int64), np.zeros(len(values), np.int64))
        if values.dtype.kind == "f":
            return points(zone, float_keys(values), np.zeros(len(values), np.int64))
        return points(zone, *integer_keys(values))

    # Cells to values.

    def decode(self, dim: int, words: Cell) -> Any:
        """Return the value or range of a cell; a list for a value of no domain."""
        if words == ABSENT:
            return None
        if words == OTHER:
            return []
        if words == PRESENT:
            return Range()
        of = self.entries[dim]
        (zone, low, low_offset) = cut_of(words[0], words[2] >> 16)
        (_, high, high_offset) = cut_of(words[1], words[2] & 0xFFFF)
        domain = Domain(zone - FIRST_DOMAIN)
        text_of = dict(zip(of.labels.labels, of.labels.strings, strict=True)).__getitem__
        low_cut = unflatten_cut(domain, low, low_offset, text_of)
        if words == point(zone, low, low_offset):
            return self._value(of, domain, low_cut[0])
        high_cut = unflatten_cut(domain, high, high_offset, text_of)
        is_low, is_high = low_cut == LOW[domain], high_cut == HIGH[domain]
        return Range(
            None if is_low else self._value(of, domain, low_cut[0]),
            None if is_high else self._value(of, domain, high_cut[0]),
            low_cut[1] == 1 and not is_low,
            high_cut[1] == 0 and not is_high,
        )

    def _value(self, dimension: Dimension, domain: Domain, key: Any) -> Any:
        if domain is Domain.BOOLEAN:
            return bool(key)
        if domain is Domain.TIMESTAMP:
            return from_microseconds(min(key, INT64_MAX))
        return float(key) if dimension.declared is Kind.FLOAT else key


_STRUCT: list[Any] = []
"""A present value of no domain."""


def is_ranges(column: pa.DataType) -> bool:
    """Whether an Arrow column holds ranges: a struct of low and high, perhaps open."""
    if not pa.types.is_struct(column):
        return False
    names = {column.field(i).name for i in range(column.num_fields)}
    return {"low", "high"} <= names <= {"low", "high", "low_open", "high_open"}
