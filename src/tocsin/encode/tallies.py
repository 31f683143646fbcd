"""The kinds of the columns of a text file: how many values of each column fit each kind.

Enters: the columns of a file, block by block, as texts or as values that were already read as a
kind. Leaves: the kind of each column. Which texts fit a kind is said by `texts.TEXTS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.texts import NO_NUMBER, TEXTS
from tocsin.model import Kind

_NUMBERS = (Kind.INTEGER, Kind.FLOAT)
MAX_BAD = 0.1
"""Where fewer values than this share do not fit the kind of the others, they are bad."""


@dataclass(frozen=True)
class Hints:
    """What is known of a file before it is read."""

    separator: str | None = None
    has_header: bool | None = None
    nulls: tuple[str, ...] = ()
    """Texts that mean absent, besides the empty one."""
    attributes: Collection[str] | None = None
    """The attributes that somebody needs; None for all."""

    def needs(self, column: str) -> bool:
        """Whether a column is needed: for itself, or as the beginning of a path."""
        if self.attributes is None or column in self.attributes:
            return True
        return any(name.startswith(f"{column}.") for name in self.attributes)


NO_HINTS = Hints()


@dataclass
class Tally:
    """What the values of one column were so far."""

    name: str
    declared: Kind | None
    is_needed: bool
    n_values: int = 0
    n_fit: Counter[Kind] = field(default_factory=Counter)
    n_finite: int = 0
    """Values that are numbers as written, and not words such as nan and inf."""
    _guess: Kind | None = None

    def __str__(self) -> str:
        if self.kind is None:
            return f"{self.name} (not used)"
        text = f"{self.name} {self.kind.value}"
        n_others = self.n_values - self.n_fit[self.kind]
        if self.declared is None and self.kind is Kind.STRING:
            if n_numbers := self.n_fit[Kind.FLOAT]:
                return f"{text} ({n_numbers:,} of {self.n_values:,} values are numbers)"
            return text if self.n_values else f"{self.name} (empty)"
        return f"{text} ({n_others:,} of {self.n_values:,} do not fit)" if n_others > 0 else text

    @property
    def kind(self) -> Kind | None:
        """The kind of the column; None where it is not needed."""
        if self.declared is not None or not self.is_needed:
            return self.declared
        return self._majority()

    @property
    def expected(self) -> Kind | None:
        """The kind that the next values are likely to have."""
        if self.declared is not None or not self.is_needed:
            return self.declared
        return self._majority() if self.n_values else self._guess or Kind.STRING

    def _majority(self) -> Kind:
        enough = self.n_values * (1 - MAX_BAD)
        if not self.n_values:
            return Kind.STRING
        if self._fits(Kind.BOOLEAN, enough):
            return Kind.BOOLEAN
        if self.n_finite and self._fits(Kind.FLOAT, enough):
            are_whole = self.n_fit[Kind.INTEGER] == self.n_fit[Kind.FLOAT]
            return Kind.INTEGER if are_whole else Kind.FLOAT
        return Kind.STRING

    def _fits(self, kind: Kind, enough: float) -> bool:
        return self.n_fit[kind] == self.n_values or self.n_fit[kind] > enough

    def guess(self, column: pa.Array | None) -> None:
        """Look at the first values, which are added later."""
        if column is not None and self.declared is None and self.is_needed:
            sample = Tally(self.name, None, True)
            sample.add(column)
            self._guess = sample.kind

    def add(self, column: pa.Array | None) -> None:
        """Add values: texts, or values of a kind that was expected."""
        if column is None:
            return
        n = len(column) - column.null_count
        self.n_values += n
        if not n:
            return
        if pa.types.is_string(column.type):
            if self.declared is None:
                self._add_texts(column, n)
            else:
                self.n_fit[self.declared] += n
        elif pa.types.is_boolean(column.type):
            self.n_fit[Kind.BOOLEAN] += n
        elif pa.types.is_integer(column.type):
            self.n_finite += n
            self.n_fit.update({Kind.INTEGER: n, Kind.FLOAT: n})
        else:
            self.n_finite += n - pc.sum(pc.is_nan(column)).as_py()
            self.n_fit[Kind.FLOAT] += n

    def _add_texts(self, column: pa.Array, n: int) -> None:
        self.n_fit[Kind.STRING] += n
        begins = _Begins(column)
        numbers = begins.take(begins.are_numbers | begins.are_words)
        self.n_fit[Kind.INTEGER] += _n_matching(numbers, TEXTS[Kind.INTEGER])
        n_floats = _n_matching(numbers, TEXTS[Kind.FLOAT])
        self.n_fit[Kind.FLOAT] += n_floats
        self.n_finite += n_floats - _n_matching(numbers, rf"^\s*({NO_NUMBER})\s*$")
        self.n_fit[Kind.BOOLEAN] += _n_matching(begins.take(begins.are_words), TEXTS[Kind.BOOLEAN])

    def can_use(self, column: pa.Array | None) -> bool:
        """Whether a column of a block can be brought into the kind of the whole column."""
        kind = self.kind
        if column is None or kind is None or pa.types.is_string(column.type):
            return True
        if pa.types.is_integer(column.type):
            return kind in _NUMBERS
        if pa.types.is_boolean(column.type):
            return kind is Kind.BOOLEAN
        return kind is Kind.FLOAT

    def explain(self, reason: str) -> str:
        """Return why a value is bad, and what could be done where its kind was guessed."""
        if self.declared is not None or self.kind is None:
            return reason
        if self.n_fit[self.kind] == self.n_values:  # such as an integer beyond 64 bits
            return reason
        return (
            f"{reason}, as {self.n_fit[self.kind]:,} of the {self.n_values:,} values are "
            f"(--attribute {self.name}=string takes all as texts, --null TEXT one as absent)"
        )


class _Begins:
    """The first bytes of texts: most texts cannot be numbers, and need no further look."""

    def __init__(self, column: pa.Array) -> None:
        self.column = column
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        octets = np.frombuffer(data, np.uint8) if data is not None and data.size else _NOTHING
        lengths = np.diff(starts)
        last = len(octets) - 1
        first = octets[np.minimum(starts[:-1], last)]
        second = octets[np.minimum(starts[:-1] + 1, last)]
        is_text = lengths > 0
        self.are_numbers: NDArray[Any] = is_text & _MAY_BE_NUMBER[first]
        pairs = (first.astype(np.uint16) << 8 | second) | 0x2020  # in lower case
        self.are_words: NDArray[Any] = (lengths > 1) & np.isin(pairs, _WORDS)
        self.are_words |= is_text & _MAY_PRECEDE_WORD[first]

    def take(self, mask: NDArray[Any]) -> pa.Array:
        """Return the texts that a mask selects."""
        return self.column if mask.all() else self.column.take(pa.array(np.flatnonzero(mask)))


_NOTHING = np.zeros(1, np.uint8)
_MAY_BE_NUMBER = np.isin(np.arange(256), np.frombuffer(b"0123456789+-. \t", np.uint8))
_MAY_PRECEDE_WORD = np.isin(np.arange(256), np.frombuffer(b"+- \t", np.uint8))
_WORDS = np.array([a << 8 | b for a, b in (b"tr", b"fa", b"na", b"in")], np.uint16)


def _n_matching(column: pa.Array, pattern: str) -> int:
    if not len(column):
        return 0
    return int(pc.sum(pc.match_substring_regex(column, pattern), min_count=0).as_py())


def all_match(column: pa.Array, pattern: str) -> bool:
    """Whether all texts of a column fit a pattern; nulls do."""
    fits = pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py()
    return bool(fits)
