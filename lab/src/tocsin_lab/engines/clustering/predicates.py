"""Predicates: the distinct conditions of all conjunctions, numbered and counted by use.

Enters: conjunction tables. Leaves: the number of each condition's predicate, and tables of some
predicates, from which `index` is built. Follows Fabret et al., section 2.2.1: a predicate that
occurs in many subscriptions is stored, and tested, once.

In the paper a predicate is an attribute, an operator and a value. Here it is a condition of the
normal form: all that a conjunction asks of one attribute. LIKE patterns are not part of it; they
are verified on candidates.

An *equality* is a predicate that no other of the same *dimension* can hold together with. A
dimension is an attribute with one of two ways to write a single value: between the cuts before and
after it, or, where values are discrete, between the cuts before it and before the next. A number
may satisfy one of either kind (`x = 5`, and `x >= 5 AND x < 6`), but no two of one kind.

Number 0 is the predicate that always holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import floats_of
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.clustering import predicate_kernels as kernels
from tocsin_lab.engines.clustering.arrays import GUESS, TRUE
from tocsin_lab.engines.clustering.predicate_kernels import Conditions, Definitions
from tocsin_lab.engines.clustering.runs import places, positions

NO_DIMENSION = -1
_EXACT_INTEGERS = 2.0**62


class Pieces(NamedTuple):
    """Pieces of predicates, strings by their numbers; see `normalize.table`."""

    domain: NDArray[np.uint8]
    low_key: NDArray[np.int64]
    low_offset: NDArray[np.int16]
    high_key: NDArray[np.int64]
    high_offset: NDArray[np.int16]

    def named_ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Say which lower and which upper ends are strings."""
        is_string = self.domain == Domain.STRING
        low = is_string & ~((self.low_key == INT64_MIN) & (self.low_offset == 0))
        high = is_string & ~((self.high_key == INT64_MAX) & (self.high_offset == 1))
        return low, high


class PredicateBook:
    """The predicates by number. `drop` frees a number."""

    def __init__(self) -> None:
        self.attributes: list[str] = []
        self._attribute_number: dict[str, int] = {}
        self._strings: list[str | None] = []
        self._string_number: dict[str, int] = {}
        self._string_uses = np.zeros(0, np.int64)
        self._free_strings: list[int] = []
        self._definitions = _empty_definitions(64, 512)
        self._definitions.state[:] = 1, 0, -1, 0, 0
        self._n_dead_words = 0
        self.fresh: list[NDArray[np.int32]] = []
        self.n_unused = 0
        self.dimension = np.full(64, NO_DIMENSION, np.int32)
        self.share = np.full(64, -1.0)
        self.share[TRUE] = 1.0
        self.n_points = np.zeros(0, np.int64)

    @property
    def room(self) -> int:
        """The least number that no predicate can have yet."""
        return len(self._definitions.start)

    @property
    def uses(self) -> NDArray[np.int32]:
        """How many conjunctions use each predicate."""
        return self._definitions.uses

    def attribute_of(self, predicates: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the attributes of predicates."""
        return self._definitions.words[self._definitions.start[predicates]] >> 8

    def shares(self, predicates: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the share of events that satisfies each predicate, measured or guessed."""
        known = self.share[predicates]
        dimension = self.dimension[predicates]
        guessed = np.where(dimension >= 0, 1.0 / np.maximum(self._points(dimension), 1), GUESS)
        return np.where(known >= 0, known, guessed)

    def _points(self, dimension: NDArray[np.int32]) -> NDArray[np.int64]:
        padded = np.append(self.n_points, 0)  # so that -1 finds something
        return padded[dimension]

    def intern(self, table: ConjunctionTable) -> NDArray[np.int32]:
        """Return the predicates of a table's conditions, each used once more."""
        conditions = self._renumbered(table)
        numbers = np.empty(table.n_conditions, np.int32)
        fresh = np.empty(table.n_conditions, np.int32)
        state = self._definitions.state
        state[kernels.N_FRESH] = state[kernels.N_REVIVED] = done = 0
        while True:
            done = kernels.intern(conditions, self._definitions, done, numbers, fresh)
            if done == len(numbers):
                break
            self._grow()
        state = self._definitions.state
        self.n_unused -= int(state[kernels.N_REVIVED])
        self._enter(fresh[: state[kernels.N_FRESH]].copy())
        return numbers

    def _enter(self, fresh: NDArray[np.int32]) -> None:
        """Take note of new predicates."""
        if not len(fresh):
            return
        self.fresh.append(fresh)
        self.share[fresh] = -1.0
        self.dimension[fresh] = self._dimensions(fresh)
        points = self.dimension[fresh]
        np.add.at(self.n_points, points[points >= 0], 1)
        np.add.at(self._string_uses, self._strings_of(fresh), 1)

    def release(self, predicates: NDArray[np.int32]) -> None:
        """Count one use less of each."""
        self.n_unused += kernels.release(self._definitions, predicates)

    def drop(self, predicates: NDArray[np.int32]) -> None:
        """Forget predicates that no conjunction uses and no index has."""
        if not len(predicates):
            return
        strings = self._strings_of(predicates)
        np.subtract.at(self._string_uses, strings, 1)
        self._free(np.unique(strings))
        points = self.dimension[predicates]
        np.subtract.at(self.n_points, points[points >= 0], 1)
        self._n_dead_words += kernels.drop(self._definitions, predicates)
        self.n_unused -= len(predicates)
        if self._n_dead_words > max(self._definitions.state[kernels.N_WORDS] // 2, 4096):
            self._compact()

    def existing(self) -> NDArray[np.int32]:
        """Return the numbers of all predicates."""
        return np.flatnonzero(self._definitions.start >= 0).astype(np.int32)

    def table_of(self, predicates: NDArray[np.int32]) -> ConjunctionTable:
        """Return a table in which each predicate is a conjunction of one condition."""
        d = self._definitions
        start = d.start[predicates]
        attribute, flags = d.words[start] >> 8, d.words[start] & 0xFF
        used, local = np.unique(attribute, return_inverse=True)
        pieces = self._pieces(predicates)
        low_key, high_key = pieces.low_key, pieces.high_key
        low, high = pieces.named_ends()
        numbers = np.unique(np.concatenate([low_key[low], high_key[high]]))
        texts = [self._strings[i] or "" for i in numbers.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        low_key[low] = rank[np.searchsorted(numbers, low_key[low])]
        high_key[high] = rank[np.searchsorted(numbers, high_key[high])]
        n = len(predicates)
        return ConjunctionTable(
            attributes=tuple(self.attributes[a] for a in used.tolist()),
            vocabulary=pa.array([texts[i] for i in order], pa.large_string()),
            patterns=(),
            n_subscriptions=n,
            subscription=np.arange(n),
            condition_start=np.arange(n + 1),
            attribute=local.astype(np.int32),
            flags=flags.astype(np.uint8),
            piece_start=np.concatenate([[0], np.cumsum(d.n_pieces[predicates], dtype=np.int64)]),
            **pieces._asdict(),
            pattern_condition=np.empty(0, np.int64),
            pattern_id=np.empty(0, np.int32),
            pattern_negated=np.empty(0, np.uint8),
        )

    @property
    def nbytes(self) -> int:
        """Bytes held by the definitions."""
        arrays = (*self._definitions, self.dimension, self.share)
        return sum(array.nbytes for array in arrays)

    def check(self, uses: NDArray[np.int64]) -> None:
        """Verify that each predicate is used as often as `uses` says."""
        known = self.existing()
        expected = np.zeros(max(self.room, len(uses)), np.int64)
        expected[: len(uses)] = uses
        assert np.array_equal(self.uses[known], expected[known]), "uses are miscounted"
        expected[known] = 0
        assert not expected[TRUE + 1 :].any(), "a predicate is lost"
        assert self.n_unused == np.count_nonzero(self.uses[known] == 0), "unused ones miscounted"
        points = self.dimension[known]
        counts = np.bincount(points[points >= 0], minlength=len(self.n_points))
        assert np.array_equal(counts, self.n_points), "equalities are miscounted"
        strings = np.bincount(self._strings_of(known), minlength=len(self._strings))
        assert np.array_equal(strings, self._string_uses[: len(self._strings)]), "strings"

    # Inside.

    def _renumbered(self, table: ConjunctionTable) -> Conditions:
        """Return a table's conditions with the book's numbers of attributes and strings."""
        attributes = np.array([self._attribute(name) for name in table.attributes], np.int32)
        low_key, high_key = table.low_key, table.high_key
        if len(table.vocabulary):
            low_key, high_key = low_key.copy(), high_key.copy()
            pieces = Pieces(table.domain, low_key, table.low_offset, high_key, table.high_offset)
            low, high = pieces.named_ends()
            used = np.unique(np.concatenate([low_key[low], high_key[high]]))
            numbers = np.zeros(len(table.vocabulary), np.int64)
            texts = table.vocabulary.take(pa.array(used)).to_pylist()
            numbers[used] = [self._string(text) for text in texts]
            low_key[low], high_key[high] = numbers[low_key[low]], numbers[high_key[high]]
        return Conditions(
            attributes[table.attribute],
            table.flags,
            table.piece_start,
            table.domain,
            low_key,
            table.low_offset,
            high_key,
            table.high_offset,
        )

    def _attribute(self, name: str) -> int:
        number = self._attribute_number.setdefault(name, len(self.attributes))
        if number == len(self.attributes):
            self.attributes.append(name)
            self.n_points = np.append(self.n_points, [0, 0])
        return number

    def _string(self, text: str) -> int:
        number = self._string_number.get(text)
        if number is None:
            if self._free_strings:
                number = self._free_strings.pop()
                self._strings[number] = text
            else:
                number = len(self._strings)
                self._strings.append(text)
                if number == len(self._string_uses):
                    self._string_uses = np.append(self._string_uses, np.zeros(number + 8, np.int64))
            self._string_number[text] = number
        return number

    def _free(self, strings: NDArray[np.int64]) -> None:
        for number in strings[self._string_uses[strings] == 0].tolist():
            text = self._strings[number]
            assert text is not None
            del self._string_number[text]
            self._strings[number] = None
            self._free_strings.append(number)

    def _pieces(self, predicates: NDArray[np.int32]) -> Pieces:
        """Return all pieces of predicates."""
        d = self._definitions
        counts = d.n_pieces[predicates].astype(np.int64)
        at = np.repeat(d.start[predicates] + 1, counts) + 3 * positions(counts)
        what = d.words[at]
        return Pieces(
            domain=(what >> 32).astype(np.uint8),
            low_key=d.words[at + 1],
            low_offset=(what >> 16).astype(np.int16),
            high_key=d.words[at + 2],
            high_offset=what.astype(np.int16),
        )

    def _strings_of(self, predicates: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the strings that predicates name, with repeats."""
        pieces = self._pieces(predicates)
        low, high = pieces.named_ends()
        return np.concatenate([pieces.low_key[low], pieces.high_key[high]])

    def _dimensions(self, predicates: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the dimensions of predicates that are equalities, else NO_DIMENSION."""
        dimensions = np.full(len(predicates), NO_DIMENSION, np.int32)
        d = self._definitions
        header = d.words[d.start[predicates]]
        single = np.flatnonzero((d.n_pieces[predicates] == 1) & (header & 0xFF == 0))
        pieces = self._pieces(predicates[single])
        domain, low_key, low_offset, high_key, high_offset = pieces
        is_exact = (domain <= Domain.STRING) & (low_offset & 1 == 0) & (low_key == high_key)
        is_exact &= high_offset == low_offset + 1
        is_first = (domain == Domain.STRING) & (low_key == INT64_MIN) & (high_offset == 1)
        is_exact |= is_first & (high_key == self._string_number.get("", INT64_MIN))
        is_next = (domain == Domain.TIMESTAMP) & (low_key + 1 == high_key) & (high_offset == 0)
        is_next |= (domain == Domain.BOOLEAN) & ((low_key != INT64_MIN) | (high_key != INT64_MAX))
        is_next |= (domain == Domain.NUMBER) & _are_neighbours(pieces)
        attribute = (header[single] >> 8).astype(np.int32)
        dimensions[single] = np.where(
            is_exact, 2 * attribute, np.where(is_next, 2 * attribute + 1, NO_DIMENSION)
        )
        return dimensions

    def _grow(self) -> None:
        """Make room for twice as many predicates."""
        old = self._definitions
        size = 2 * len(old.start)
        new = _empty_definitions(size, 2 * len(old.words))
        for name in ("words", "start", "n_pieces", "uses", "following", "state"):
            array = getattr(old, name)
            getattr(new, name)[: len(array)] = array
        self._definitions = new
        kernels.relink(new)
        more = size - len(self.share)
        self.dimension = np.append(self.dimension, np.full(more, NO_DIMENSION, np.int32))
        self.share = np.append(self.share, np.full(more, -1.0))

    def _compact(self) -> None:
        """Move the words of what exists together."""
        d = self._definitions
        kept = self.existing()
        counts = 1 + 3 * d.n_pieces[kept].astype(np.int64)
        words = d.words[places(d.start[kept], counts)]
        d.words[: len(words)] = words
        d.start[kept] = np.cumsum(counts) - counts
        d.state[kernels.N_WORDS] = len(words)
        self._n_dead_words = 0


def _empty_definitions(size: int, n_words: int) -> Definitions:
    return Definitions(
        words=np.empty(n_words, np.int64),
        start=np.full(size, -1, np.int64),
        n_pieces=np.zeros(size, np.int32),
        uses=np.zeros(size, np.int32),
        following=np.full(size, -1, np.int32),
        bucket=np.full(1 << max(size - 1, 1).bit_length(), -1, np.int32),
        state=np.zeros(5, np.int64),
    )


def _are_neighbours(pieces: Pieces) -> NDArray[np.bool_]:
    """Say which pieces of the number line go from before an integer to before the next one."""
    low, high = floats_of(pieces.low_key), floats_of(pieces.high_key)
    low_offset, high_offset = pieces.low_offset, pieces.high_offset
    with np.errstate(invalid="ignore"):
        fit = (np.abs(low) < _EXACT_INTEGERS) & (np.abs(high) < _EXACT_INTEGERS)
    fit &= (low_offset & 1 == 0) & (high_offset & 1 == 0)
    low, high = np.where(fit, low, 0.5), np.where(fit, high, 0.5)
    fit &= (np.floor(low) == low) & (np.floor(high) == high)
    first = low.astype(np.int64) + (low_offset >> 1)
    last = high.astype(np.int64) + (high_offset >> 1)
    adjacent: NDArray[np.bool_] = fit & (last - first == 1)
    return adjacent
