"""Values and ranges → cells, dimension by dimension.

Enters: what publications say, one at a time as mappings or many as columns. Leaves: cells
(`places`). A dimension is an attribute of a space, so that spaces share nothing; dimension 0 is the
space itself. A LIKE pattern that is no interval becomes a dimension of its own, which is true or
false of a publication's string: so the index knows nothing of patterns. Of a range of strings such
a pattern is taken to hold wherever its prefix allows it.
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
from tocsin.normalize import domains as lines
from tocsin.normalize.domains import HIGH, LINE_OF_KIND, LOW, Line
from tocsin.normalize.keys import (
    flatten_cut,
    float_keys,
    integer_keys,
    key_of_number,
    unflatten_cut,
)
from tocsin.normalize.patterns import Pattern
from tocsin.subjects.model import Range
from tocsin.subjects.places import (
    ABSENT,
    FIRST_LINE,
    OTHER,
    OTHER_ZONE,
    PRESENT,
    STRING_ZONE,
    Cell,
    Crowded,
    Labels,
    Words,
    cell,
    cut_of,
    place,
    point,
    points,
)

SPACE = 0
"""The dimension of spaces."""
_BOOLEAN = FIRST_LINE + Line.BOOLEAN
_TIMESTAMP = FIRST_LINE + Line.TIMESTAMP
_FALSE, _TRUE = point(_BOOLEAN, 0), point(_BOOLEAN, 1)
_EITHER = (_FALSE[0], _TRUE[1], (_FALSE[2] & ~0xFFFF) | (_TRUE[2] & 0xFFFF))

_MOST_KNOWN = 1 << 16
_PLAIN_NUMBERS: dict[Kind | None, tuple[type, ...]] = {
    Kind.INTEGER: (int,),
    Kind.FLOAT: (int, float),
    None: (int, float),
}

Relabelled = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]


@dataclass
class Axis:
    """One dimension; `pattern` is set where it says whether the strings of `of` fit one."""

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
        """The types of numbers that are taken as they are."""


def to_truth(pattern: Pattern, text: str) -> Cell:
    """Return the cell that says whether a string fits a pattern."""
    return _TRUE if pattern.matches(text) else _FALSE


def truth(is_true: bool) -> Cell:
    """Return the cell of a truth value."""
    return _TRUE if is_true else _FALSE


class Axes:
    """All dimensions of some spaces. `relabelled` is told when the labels of one are exchanged."""

    def __init__(self, spaces: Sequence[EventType], missing: str = "absent") -> None:
        self.spaces = tuple(spaces)
        self.missing = ABSENT if missing == "absent" else PRESENT
        self.axes = [Axis(SPACE, -1, "")]
        self._number: list[dict[str, int]] = [{} for _ in spaces]
        """The dimensions of attributes by name, space by space."""
        self._pattern: dict[tuple[int, Pattern], int] = {}
        self._dims: dict[int, tuple[int, list[int]]] = {}
        self._known: dict[int | float, Cell] = {}
        self._number_of_space = {space.name: at for at, space in enumerate(spaces)}
        self.relabelled: Relabelled = lambda dim, old, new: None
        if len(self._number_of_space) < len(spaces):
            raise ArgumentError("two spaces have one name")
        for at, space in enumerate(spaces):
            for attribute in space.attributes:
                self.dim(at, attribute)

    def __len__(self) -> int:
        return len(self.axes)

    def space(self, name: str | None) -> int:
        """Return the number of a space by its name; the first one where there is none."""
        if name is None:
            return 0
        if name not in self._number_of_space:
            known = ", ".join(repr(space.name) for space in self.spaces)
            raise ArgumentError(f"there is no space {name!r}; there are {known}")
        return self._number_of_space[name]

    def dim(self, space: int, attribute: str) -> int:
        """Return the dimension of an attribute; it may be a new one."""
        number = self._number[space].get(attribute)
        if number is None:
            number = len(self.axes)
            declared = self.spaces[space].kind_of(attribute)
            self.axes.append(Axis(number, space, attribute, declared))
            self._number[space][attribute] = number
        return number

    def pattern_dim(self, of: int, pattern: Pattern) -> int:
        """Return the dimension of a pattern on a dimension; it may be a new one."""
        number = self._pattern.get((of, pattern))
        if number is None:
            number = len(self.axes)
            self.axes.append(Axis(number, self.axes[of].space, "", None, pattern, of))
            self.axes[of].patterns.append(number)
            self.axes[of].plain = ()
            self._pattern[of, pattern] = number
        return number

    def dims_of(self, space: int) -> list[int]:
        """Return the dimensions of a space, those of patterns among them."""
        n, known = self._dims.get(space, (0, []))
        if n != len(self.axes):
            known = [axis.number for axis in self.axes if axis.space == space]
            self._dims[space] = len(self.axes), known
        return known

    # Strings.

    def learn(self, dim: int, texts: Iterable[str]) -> None:
        """Give strings their labels, before any of them is encoded."""
        labels = self.axes[dim].labels
        new = [text for text in texts if text not in labels.label_of]
        if not new:
            return
        try:
            if len(new) > 64 and len(new) > len(labels.strings) // 16:
                raise Crowded  # spreading all is cheaper
            for text in new:
                if text not in labels.label_of:
                    labels.add(text)
        except Crowded:
            old, spread = labels.spread(new)
            if len(old):
                self.relabelled(dim, old, spread)

    # One value.

    def flatten(self, space: int, values: Mapping[str, Any]) -> dict[int, Any]:
        """Return values by dimension; nested ones under their dotted paths."""
        found: dict[int, Any] = {}
        self._flatten(space, "", values, found)
        return found

    def _flatten(
        self, space: int, prefix: str, values: Mapping[str, Any], found: dict[int, Any]
    ) -> None:
        for name, value in values.items():
            if type(name) is not str or not name:
                raise EventError(f"an attribute must have a name, not {name!r}")
            path = prefix + name
            if isinstance(value, Mapping):
                found[self.dim(space, path)] = _STRUCT
                self._flatten(space, path + ".", value, found)
            else:
                found[self.dim(space, path)] = value
                if value is None:
                    for inner, dim in self._number[space].items():
                        if inner.startswith(path + "."):
                            found.setdefault(dim, None)

    def encode(self, space: int, values: Mapping[str, Any]) -> dict[int, Cell]:
        """Return the cells of a publication's values by dimension, those of patterns too.

        The cells of numbers that were met before are remembered.
        """
        cells: dict[int, Cell] = {}
        rest = {}
        known, number, axes = self._known, self._number[space], self.axes
        for name, value in values.items():
            kind = type(value)
            if (
                (kind is int or kind is float)
                and (words := known.get(value)) is not None
                and (dim := number.get(name)) is not None
                and kind in axes[dim].plain
            ):
                cells[dim] = words
            else:
                rest[name] = value
        return {**cells, **self._encode_rest(space, rest)} if rest else cells

    def _encode_rest(self, space: int, values: Mapping[str, Any]) -> dict[int, Cell]:
        given = self.flatten(space, values)
        checked = {dim: self._check(dim, value) for dim, value in given.items()}
        for dim, value in checked.items():
            if isinstance(value, str | Range):
                ends = (value.low, value.high) if isinstance(value, Range) else (value,)
                self.learn(dim, [text for text in ends if isinstance(text, str)])
        cells: dict[int, Cell] = {}
        for dim, value in checked.items():
            cells[dim] = self._cell(dim, value)
            for derived in self.axes[dim].patterns:
                cells[derived] = self._fits(derived, value)
        return cells

    def _check(self, dim: int, value: Any) -> Any:
        axis = self.axes[dim]
        if type(value) is float and axis.declared is Kind.FLOAT:
            return value  # as most are
        if value is _STRUCT:
            if axis.declared is not None:
                raise EventError("an object where a value is declared", attribute=axis.attribute)
            return value
        if not isinstance(value, Range):
            return check_value(value, axis.attribute, axis.declared)
        declared = Kind.FLOAT if axis.declared is Kind.INTEGER else axis.declared
        low, high = (check_value(end, axis.attribute, declared) for end in (value.low, value.high))
        for end in (low, high):
            kind = kind_of(end)
            if end is not None and (kind is None or (kind is Kind.FLOAT and math.isnan(end))):  # type: ignore[arg-type]
                raise EventError(f"{end!r} is no end of a range", attribute=axis.attribute)
        if low is not None and low == high and kind_of(low) is kind_of(high):
            if value.low_open or value.high_open:
                raise EventError("the range holds no value", attribute=axis.attribute)
            return check_value(low, axis.attribute, axis.declared)
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
            return point(STRING_ZONE, self.axes[dim].labels.label_of[value])
        if isinstance(value, dt.datetime):
            return point(_TIMESTAMP, to_microseconds(value))
        return OTHER

    def _number_cell(self, value: int | float) -> Cell:
        words = point(FIRST_LINE, *key_of_number(value))
        if type(value) in (int, float):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[value] = words
        return words

    def _range(self, dim: int, given: Range) -> Cell:
        axis = self.axes[dim]
        ends = [end for end in (given.low, given.high) if end is not None]
        if not ends:
            return PRESENT
        found = {LINE_OF_KIND[kind] for end in ends if (kind := kind_of(end)) is not None}
        if len(found) > 1:
            raise EventError("the ends of a range are of two kinds", attribute=axis.attribute)
        line = found.pop()
        low, high = LOW[line], HIGH[line]
        if given.low is not None:
            low = (lines.cut_after if given.low_open else lines.cut_before)(line, given.low)
        if given.high is not None:
            high = (lines.cut_before if given.high_open else lines.cut_after)(line, given.high)
        if axis.declared is Kind.INTEGER:
            low, high = lines.tighten(low), lines.tighten(high)
        if not low < high:
            raise EventError("the range holds no value", attribute=axis.attribute)
        if line is Line.STRING:
            self.learn(dim, [key for key, _ in (low, high) if isinstance(key, str)])
        label_of = axis.labels.label_of.__getitem__
        zone = FIRST_LINE + line
        return cell(
            place(zone, *flatten_cut(line, low, label_of)),
            place(zone, *flatten_cut(line, high, label_of)),
        )

    def _fits(self, derived: int, value: Any) -> Cell:
        pattern = self.axes[derived].pattern
        assert pattern is not None
        if isinstance(value, str):
            return to_truth(pattern, value)
        is_any = isinstance(value, Range) or (value is None and self.missing == PRESENT)
        return _EITHER if is_any else ABSENT

    def fits(self, derived: int, cells: Words) -> Words:
        """Return the cells of a pattern for the cells of its dimension."""
        axis = self.axes[derived]
        labels = self.axes[axis.of].labels
        text_of = dict(zip(labels.labels, labels.strings, strict=True))
        found = np.empty_like(cells)
        known: dict[Cell, Cell] = {}
        for at, (low, high, ends) in enumerate(cells.tolist()):
            key = (low, high, ends)
            if key not in known:
                known[key] = self._fits(derived, self._string_in(key, text_of))
            found[at] = known[key]
        return found

    def _string_in(self, key: Cell, text_of: Mapping[int, str]) -> Any:
        """Return the string that a cell holds; where it holds many, a range of no matter what."""
        zone, label, tail = cut_of(key[0], key[2] >> 16)
        if zone == STRING_ZONE and key == point(zone, label, tail) and label in text_of:
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
            cells[here] = self._part_cells(dim, part.line, part.values)[here]
        if column.other is not None:
            cells[column.other] = np.array(OTHER, np.uint64)
        return cells

    def _part_cells(self, dim: int, line: Line, values: Any) -> Words:
        zone = FIRST_LINE + line
        if line is Line.STRING:
            encoded = values.dictionary_encode()
            texts = encoded.dictionary.to_pylist()
            self.learn(dim, texts)
            label_of = self.axes[dim].labels.label_of
            labels = np.array([*(label_of[text] for text in texts), 0], np.int64)
            at = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            return points(zone, labels[at], np.zeros(len(at), np.int64))
        if line is not Line.NUMBER:
            return points(zone, values.astype(np.int64), np.zeros(len(values), np.int64))
        if values.dtype.kind == "f":
            return points(zone, float_keys(values), np.zeros(len(values), np.int64))
        return points(zone, *integer_keys(values))

    # And back.

    def decode(self, dim: int, words: Cell) -> Any:
        """Return the value or range that a cell stands for; an object of no line as a list."""
        if words == ABSENT:
            return None
        if words == OTHER:
            return []
        if words == PRESENT:
            return Range()
        axis = self.axes[dim]
        (zone, low, low_tail) = cut_of(words[0], words[2] >> 16)
        (_, high, high_tail) = cut_of(words[1], words[2] & 0xFFFF)
        line = Line(zone - FIRST_LINE)
        text_of = dict(zip(axis.labels.labels, axis.labels.strings, strict=True)).__getitem__
        low_cut = unflatten_cut(line, low, low_tail, text_of)
        if words == point(zone, low, low_tail):
            return self._value(axis, line, low_cut[0])
        high_cut = unflatten_cut(line, high, high_tail, text_of)
        is_low, is_high = low_cut == LOW[line], high_cut == HIGH[line]
        return Range(
            None if is_low else self._value(axis, line, low_cut[0]),
            None if is_high else self._value(axis, line, high_cut[0]),
            low_cut[1] == 1 and not is_low,
            high_cut[1] == 0 and not is_high,
        )

    def _value(self, axis: Axis, line: Line, key: Any) -> Any:
        if line is Line.BOOLEAN:
            return bool(key)
        if line is Line.TIMESTAMP:
            return from_microseconds(min(key, INT64_MAX))
        return float(key) if axis.declared is Kind.FLOAT else key


_STRUCT: list[Any] = []
"""Stands for a present value of no line."""


def is_ranges(column: pa.DataType) -> bool:
    """Whether an Arrow column holds ranges: a struct of low and high, perhaps open."""
    if not pa.types.is_struct(column):
        return False
    names = {column.field(i).name for i in range(column.num_fields)}
    return {"low", "high"} <= names <= {"low", "high", "low_open", "high_open"}
