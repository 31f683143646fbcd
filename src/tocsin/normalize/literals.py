"""Literals by the column: the flat cuts of many literals, and the vocabulary of their strings.

Enters: literals read from texts (class, bits, place), Arrow columns of parameters or of rule
tables, single values. Leaves: `Literals` (line, key, tail), the sorted vocabulary that string keys
rank in, and `Likes`, the patterns of LIKE predicates as intervals.

Strings get their ranks last, when all of them are known: until then a string's key is its number
in the order of arrival.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING as STRING_TYPE
from tocsin.arrow import (
    ArrowColumn,
    decimal_numbers,
    decoded,
    kind_of_type,
    to_array,
    to_canonical,
)
from tocsin.errors import ArgumentError, SubscriptionError
from tocsin.language.text_kernels import (
    FALSE,
    FLOAT,
    INTEGER,
    LITERAL_BITS,
    LITERAL_CLASS,
    LITERAL_END,
    LITERAL_START,
    LONG_FLOAT,
    NULL,
    QUOTED_STRING,
    STRING,
    TIMESTAMP,
    TRUE,
    copy_strings,
)
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import Kind, to_microseconds
from tocsin.normalize.domains import DOMAIN_OF_KIND, Cut, Domain
from tocsin.normalize.fold_kernels import NO_DOMAIN, Likes, Literals
from tocsin.normalize.keys import flatten_cut, float_keys, integer_keys
from tocsin.normalize.patterns import Pattern, interval_of, parse_pattern, prefix_interval

_FIRST_MOMENT = to_microseconds(dt.datetime.min)
_LAST_MOMENT = to_microseconds(dt.datetime.max)

NULL_LITERAL, FALSE_LITERAL, TRUE_LITERAL = 0, 1, 2
"""Places of the constants, which every column of literals starts with."""


class LiteralColumn:
    """Literals that arrive in parts; starts with NULL, FALSE and TRUE."""

    def __init__(self) -> None:
        self._domains = [np.array([NO_DOMAIN, Domain.BOOLEAN, Domain.BOOLEAN], np.int8)]
        self._keys = [np.array([0, 0, 1], np.int64)]
        self._offsets = [np.zeros(3, np.int16)]
        self._strings: list[pa.Array] = []
        self._n_strings = 0
        self.n = 3

    def add(self, part: Literals) -> int:
        """Append literals; return the number of the first."""
        self._domains.append(part.domain)
        self._keys.append(part.key)
        self._offsets.append(part.offset)
        self.n += len(part.domain)
        return self.n - len(part.domain)

    def take_over(self, part: Literals) -> int:
        """Take literals in as the only ones, with no copy; their first places are for constants.

        Returns the number of the first that is no constant.
        """
        n = self.n
        assert len(self._keys) == 1, "nothing but the constants is there yet"
        part.domain[:n], part.key[:n], part.offset[:n] = (
            self._domains[0],
            self._keys[0],
            self._offsets[0],
        )
        self._domains, self._keys, self._offsets = [part.domain], [part.key], [part.offset]
        self.n = len(part.domain)
        return n

    def add_strings(self, strings: pa.Array) -> NDArray[np.int64]:
        """Take strings (no nulls) in; return their numbers, to stand as keys for now."""
        self._strings.append(strings.cast(STRING_TYPE))
        self._n_strings += len(strings)
        return np.arange(self._n_strings - len(strings), self._n_strings)

    def strings_at(self, literal: NDArray[np.int64]) -> pa.Array:
        """Return the strings of some literals, null where a literal is no string."""
        domain, key = np.concatenate(self._domains)[literal], np.concatenate(self._keys)[literal]
        number = pa.array(key, mask=domain != Domain.STRING)
        return to_array(pa.chunked_array(self._strings, STRING_TYPE)).take(number)

    def finish(self, more: Sequence[str] = ()) -> tuple[Literals, pa.Array]:
        """Rank the strings, and some more: return the literals and the vocabulary."""
        domain, key, offset = _joined(self._domains), _joined(self._keys), _joined(self._offsets)
        arrived = pa.chunked_array([*self._strings, pa.array(more, STRING_TYPE)], STRING_TYPE)
        encoded = _with_predecessors(to_array(arrived).dictionary_encode())
        order = pc.sort_indices(encoded.dictionary)
        rank = np.empty(len(order), np.int64)
        rank[order.to_numpy()] = np.arange(len(order))
        is_string = domain == Domain.STRING
        key[is_string] = rank[encoded.indices.to_numpy()[key[is_string]]]
        vocabulary = encoded.dictionary.take(order)
        return Literals(domain, key, offset), vocabulary


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _with_predecessors(strings: pa.DictionaryArray) -> pa.DictionaryArray:
    """Add to a dictionary what a string that ends with NUL is without it.

    The cut before `s + NUL` is written "after s" (see `lines`), so s has to be there.
    """
    distinct = strings.dictionary
    ending = distinct.filter(pc.ends_with(distinct, "\0"))
    if not len(ending):
        return strings
    known = set(distinct.to_pylist())
    new = sorted({text[:-1] for text in ending.to_pylist()} - known)
    joined = pa.concat_arrays([distinct, pa.array(new, STRING_TYPE)])
    return pa.DictionaryArray.from_arrays(strings.indices, joined)


def string_follows(vocabulary: pa.Array) -> NDArray[np.uint8]:
    """Mark strings that are their predecessor plus NUL (1), and the empty string (2)."""
    marks = np.zeros(len(vocabulary) + 1, np.uint8)
    if len(vocabulary) and vocabulary[0].as_py() == "":
        marks[0] = 2
    for rank in np.flatnonzero(pc.ends_with(vocabulary, "\0").to_numpy(zero_copy_only=False)):
        if rank and vocabulary[rank].as_py() == vocabulary[rank - 1].as_py() + "\0":
            marks[rank] = 1
    return marks


def read_literals(
    data: NDArray[np.uint8], spans: NDArray[np.int64], column: LiteralColumn
) -> tuple[Literals, NDArray[np.bool_]]:
    """Turn the literals found in texts into flat cuts; also say which cannot be taken."""
    n = len(spans)
    classes = spans[:, LITERAL_CLASS]
    bits = spans[:, LITERAL_BITS]
    domain = np.full(n, Domain.NUMBER, np.int8)
    key = np.zeros(n, np.int64)
    offset = np.zeros(n, np.int16)
    bad = np.zeros(n, np.bool_)
    counts = np.bincount(classes, minlength=NULL + 1)
    if counts[INTEGER]:
        at = classes == INTEGER
        key[at], offset[at] = integer_keys(bits[at])
    if counts[FLOAT]:
        at = classes == FLOAT
        key[at] = float_keys(bits[at].view(np.float64))
    if counts[LONG_FLOAT]:
        at = classes == LONG_FLOAT
        floats = _read_floats(data, spans[at, LITERAL_START], spans[at, LITERAL_END])
        key[at] = float_keys(floats)
        bad[at] = np.isinf(floats)
    if counts[STRING] + counts[QUOTED_STRING]:
        at = (classes == STRING) | (classes == QUOTED_STRING)
        starts, ends = spans[at, LITERAL_START] + 1, spans[at, LITERAL_END] - 1
        strings = _copy(data, starts, ends, classes[at] == QUOTED_STRING)
        domain[at] = Domain.STRING
        key[at] = column.add_strings(strings)
    if counts[TIMESTAMP]:
        at = classes == TIMESTAMP
        starts, ends = spans[at, LITERAL_START] + 1, spans[at, LITERAL_END] - 1
        domain[at] = Domain.TIMESTAMP
        key[at], bad[at] = _read_timestamps(_copy(data, starts, ends, np.zeros(len(starts), bool)))
    if counts[TRUE] + counts[FALSE]:
        domain[(classes == TRUE) | (classes == FALSE)] = Domain.BOOLEAN
        key[classes == TRUE] = 1
    domain[classes == NULL] = NO_DOMAIN
    return Literals(domain, key, offset), bad


def _copy(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    has_quotes: NDArray[np.bool_],
) -> pa.Array:
    out = np.empty(max(int((ends - starts).sum()), 1), np.uint8)
    out_start = np.empty(len(starts) + 1, np.int64)
    copy_strings(data, starts, ends, has_quotes, out, out_start)
    buffers = [None, pa.py_buffer(out_start), pa.py_buffer(out)]
    return pa.Array.from_buffers(STRING_TYPE, len(starts), buffers)


def copy_texts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.Array:
    """Return the texts between some places of others."""
    has_quotes = np.zeros(len(starts), np.bool_)
    return _copy(data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), has_quotes)


def _read_floats(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    texts = _copy(data, starts, ends, np.zeros(len(starts), bool))
    texts = pc.replace_substring_regex(texts, r"^\+?\s*|\s+", "")
    texts = pc.replace_substring_regex(texts, r"\.(e|E|$)", r"\1")
    return pc.cast(texts, pa.float64()).to_numpy()  # type: ignore[no-any-return]


def _read_timestamps(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    encoded = texts.dictionary_encode()
    moments = [parse_timestamp(text) for text in encoded.dictionary.to_pylist()]
    keys = np.array([0 if m is None else to_microseconds(m) for m in moments], np.int64)
    bad = np.array([m is None for m in moments], np.bool_)
    indices = encoded.indices.to_numpy()
    return keys[indices], bad[indices]


def column_literals(values: pa.Array | pa.ChunkedArray, column: LiteralColumn) -> Literals:
    """Turn an Arrow column into flat cuts; nulls and NaN have no line."""
    if pa.types.is_dictionary(values.type):
        return _dictionary_literals(to_array(values), column)
    n = len(values)
    literals = Literals(
        np.full(n, NO_DOMAIN, np.int8), np.zeros(n, np.int64), np.zeros(n, np.int16)
    )
    if values.null_count == n:
        return literals
    array = canonical_values("", values)
    kind = kind_of_type(array.type)
    assert kind is not None
    here = array.is_valid().to_numpy(zero_copy_only=False)
    present = array.drop_null()
    literals.domain[here] = DOMAIN_OF_KIND[kind]
    if kind is Kind.STRING:
        literals.key[here] = column.add_strings(present)
    elif pa.types.is_decimal(present.type):
        numbers = decimal_numbers(present)
        keys, offsets = float_keys(numbers.floats), np.zeros(len(present), np.int16)
        large = numbers.is_large
        keys[large], offsets[large] = integer_keys(numbers.integers[large])
        literals.key[here], literals.offset[here] = keys, offsets
    elif kind is Kind.FLOAT:
        floats = present.to_numpy()
        literals.key[here] = float_keys(floats)
        literals.domain[np.flatnonzero(here)[np.isnan(floats)]] = NO_DOMAIN
    elif kind is Kind.INTEGER:
        literals.key[here], literals.offset[here] = integer_keys(present.to_numpy())
    elif kind is Kind.BOOLEAN:
        literals.key[here] = present.to_numpy(zero_copy_only=False)
    else:
        literals.key[here] = present.view(pa.int64()).to_numpy()
    return literals


def canonical_values(name: str, values: ArrowColumn) -> pa.Array:
    """Return a column of operands in the Arrow type of its kind, or refuse it.

    Decimals stay decimals where neither integers nor floats hold all of them.
    """
    if kind_of_type(values.type) is Kind.FLOAT:
        array = decoded(to_array(values))
        if pa.types.is_decimal(array.type):
            return decimal_numbers(array).to_operands(array)
    try:
        canonical = to_canonical(values)
    except pa.ArrowInvalid:
        raise ArgumentError(f"the column {name} holds values beyond 64 bits") from None
    if canonical is None:
        raise ArgumentError(f"the column {name} of type {values.type} holds no known kind")
    array, kind = canonical
    if kind is Kind.TIMESTAMP and array.null_count < len(array):
        ends = pc.min_max(array.view(pa.int64()))
        if ends["min"].as_py() < _FIRST_MOMENT or ends["max"].as_py() > _LAST_MOMENT:
            raise ArgumentError(f"the column {name} holds moments beyond the years 1 to 9999")
    return array


def _dictionary_literals(values: pa.DictionaryArray, column: LiteralColumn) -> Literals:
    inner = column_literals(values.dictionary, column)
    indices = pc.fill_null(values.indices.cast(pa.int64()), -1).to_numpy()
    return Literals(
        np.append(inner.domain, np.int8(NO_DOMAIN))[indices],
        np.append(inner.key, 0)[indices],
        np.append(inner.offset, np.int16(0))[indices],
    )


class LikeTable(NamedTuple):
    """The LIKE patterns of a bulk load, before their bounds are ranked."""

    cuts: list[tuple[Cut, Cut] | None]
    pattern_ids: list[int]
    patterns: tuple[Pattern, ...]

    def bound_strings(self) -> list[str]:
        """The strings that the bounds need in the vocabulary."""
        pairs = (pair for pair in self.cuts if pair is not None)
        return [key for pair in pairs for key, _ in pair if isinstance(key, str)]

    def ranked(self, vocabulary: pa.Array) -> Likes:
        """Return the patterns with their bounds as ranks."""
        bounds = self.bound_strings()
        places = pc.index_in(pa.array(bounds, STRING_TYPE), value_set=vocabulary).to_pylist()
        rank_of = dict(zip(bounds, places, strict=True)).__getitem__
        rows = []
        for pair in self.cuts:
            if pair is None:
                rows.append((0, 0, 0, 0))
            else:
                low = flatten_cut(Domain.STRING, pair[0], rank_of)
                rows.append((*low, *flatten_cut(Domain.STRING, pair[1], rank_of)))
        array = np.array(rows, np.int64).reshape(-1, 4)
        return Likes(
            np.ascontiguousarray(array[:, 0]),
            array[:, 1].astype(np.int16),
            np.ascontiguousarray(array[:, 2]),
            array[:, 3].astype(np.int16),
            np.array(self.pattern_ids, np.int32),
        )


def make_likes(
    texts: Sequence[str | None], escapes: Sequence[str | None], *, is_bounded: bool = True
) -> LikeTable:
    """Read LIKE patterns (None: the operand was no string); a bad one is left to be refused."""
    cuts: list[tuple[Cut, Cut] | None] = []
    ids: list[int] = []
    patterns: dict[Pattern, int] = {}
    for text, escape in zip(texts, escapes, strict=True):
        if text is None:
            cuts.append(None)
            ids.append(-2)
            continue
        try:
            pattern = parse_pattern(text, escape, is_bounded=is_bounded)
        except SubscriptionError:
            cuts.append(None)
            ids.append(-3)
            continue
        interval = interval_of(pattern)
        cuts.append(interval or prefix_interval(pattern))
        ids.append(-1 if interval else patterns.setdefault(pattern, len(patterns)))
    return LikeTable(cuts, ids, tuple(patterns))
