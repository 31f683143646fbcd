"""Columns of texts → words, and strings → codes: what `text_query.words` is for one text.

Enters: Arrow strings. Leaves: their words as Arrow strings; codes of strings or words that are in a
table; queries that are nothing but words, by their form. No text becomes a Python object.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.language import word_kernels as kernels
from tocsin.language.text_query import LETTERS

Integers = NDArray[np.int64]
_N_CODE_POINTS = 0x110000
_NO_LETTERS = np.zeros(1, np.uint8)
_SURROGATES = range(0xD800, 0xE000)
_AT_ONCE = 1 << 14
"""How many code points are classified at a time."""


class Texts(NamedTuple):
    """Text t is `octets[start[t] : start[t + 1]]`."""

    octets: NDArray[np.uint8]
    start: Integers
    letters: NDArray[np.uint8]
    """Which code points are letters, marks or digits; nothing where all are of ASCII."""


@cache
def _letters() -> NDArray[np.uint8]:
    """Return a bit for each code point: whether words are made of it."""
    is_letter = np.zeros(1 << 21, np.bool_)  # as many as four bytes of UTF-8 can say
    for first in range(0, _N_CODE_POINTS, _AT_ONCE):
        codes = [c for c in range(first, first + _AT_ONCE) if c not in _SURROGATES]
        fits = pc.match_substring_regex(pa.array(map(chr, codes), STRING), LETTERS)
        is_letter[codes] = fits.to_numpy(zero_copy_only=False)
    return np.packbits(is_letter, bitorder="little")


def octets_of(strings: pa.Array) -> tuple[NDArray[np.uint8], Integers]:
    """Return the bytes of strings and where each begins; null ones are empty."""
    strings = strings.cast(STRING)
    if strings.null_count:
        strings = pc.fill_null(strings, "")
    _, offsets, data = strings.buffers()
    start = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    octets = np.frombuffer(data or b"", np.uint8)
    start.flags.writeable = octets.flags.writeable = False
    return octets, start


def lowered(strings: pa.Array) -> Texts:
    """Return texts in lower case."""
    octets, start = octets_of(strings)
    is_ascii = octets[start[0] : start[-1]].max(initial=0) < 128
    octets, start = octets_of((pc.ascii_lower if is_ascii else pc.utf8_lower)(strings.cast(STRING)))
    return Texts(octets, start, _NO_LETTERS if is_ascii else _letters())


def split_words(strings: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the words of texts, and where those of each text begin."""
    texts = lowered(strings)
    n = int(kernels.count_words(*texts[:2], texts.letters))
    out = np.empty(int(texts.start[-1] - texts.start[0]), np.uint8)
    word_start, first_word = np.empty(n + 1, np.int64), np.empty(len(texts.start), np.int64)
    kernels.cut_words(*texts, out, word_start, first_word)
    return first_word, _from_octets(out[: word_start[-1]], word_start)


def _from_octets(octets: NDArray[np.uint8], start: Integers) -> pa.Array:
    buffers = [None, pa.py_buffer(start), pa.py_buffer(octets)]
    return pa.Array.from_buffers(STRING, len(start) - 1, buffers)


class StringCodes:
    """The codes of some different strings."""

    def __init__(self, strings: Sequence[str], codes: NDArray[np.int32]) -> None:
        octets, start = octets_of(pa.array(strings, STRING))
        n = len(strings)
        slots = np.zeros(1 << max(3, (2 * n).bit_length()), np.int32)
        seed = secrets.randbits(62)
        self._table = kernels.HashTable(
            seed, slots, np.empty(n, np.uint64), start, octets, codes.astype(np.int32)
        )
        kernels.fill_table(self._table)

    def of_strings(self, strings: pa.Array) -> NDArray[np.int32]:
        """Return the code of each string, -1 for one that is absent or has none."""
        if pa.types.is_dictionary(strings.type):
            inner = np.append(self.of_strings(strings.dictionary), np.int32(-1))
            places = pc.fill_null(strings.indices.cast(pa.int64()), -1)
            of_places: NDArray[np.int32] = inner[places.to_numpy(zero_copy_only=False)]
            return of_places
        codes = np.empty(len(strings), np.int32)
        kernels.look_up_strings(self._table, *octets_of(strings), codes)
        if strings.null_count:
            codes[strings.is_null().to_numpy(zero_copy_only=False)] = -1
        return codes

    def of_words(self, strings: pa.Array) -> tuple[Integers, NDArray[np.int32]]:
        """Return the codes of the words of texts that have one, and where those of each begin."""
        texts = lowered(strings)
        n, reached = len(strings), 0
        first_code, codes = np.zeros(n + 1, np.int64), np.empty(16 * n + 1024, np.int32)
        while True:
            reached = kernels.look_up_words(self._table, *texts, reached, codes, first_code)
            if reached == n:
                return first_code, codes[: first_code[n]]
            larger = np.empty(4 * len(codes), np.int32)
            larger[: first_code[reached]] = codes[: first_code[reached]]
            codes = larger

    @property
    def nbytes(self) -> int:
        """The bytes of the table."""
        return sum(array.nbytes for array in self._table[1:])


class WordQueries(NamedTuple):
    """Queries of one form: which, whether each of their words is a prefix, and the words."""

    rows: Integers
    is_prefix: tuple[bool, ...]
    words: tuple[pa.Array, ...]
    """Those of a prefix end in `*`."""


def read_word_queries(queries: pa.Array) -> tuple[list[WordQueries], Integers]:
    """Read queries that are words and prefixes; return them by their form, and the other rows."""
    texts, n = lowered(queries), len(queries)
    spans = np.empty((n * kernels.MOST_IN_QUERY, 2), np.int64)
    signatures = np.empty(n, np.int64)
    kernels.read_queries(*texts, spans, signatures)
    has_or = pc.match_substring_regex(queries, r"\bOR\b").fill_null(True)
    signatures[has_or.to_numpy(zero_copy_only=False)] = 0
    of_query = spans.reshape(n, kernels.MOST_IN_QUERY, 2)
    forms = []
    for signature in np.unique(signatures[signatures > 0]).tolist():
        rows = np.flatnonzero(signatures == signature)
        is_prefix = tuple(bit == "1" for bit in reversed(bin(signature)[3:]))
        words = tuple(_cut(texts.octets, of_query[rows, at]) for at in range(len(is_prefix)))
        forms.append(WordQueries(rows, is_prefix, words))
    return forms, np.flatnonzero(signatures == 0)


def _cut(octets: NDArray[np.uint8], spans: Integers) -> pa.Array:
    """Return pieces of texts as strings."""
    lengths = spans[:, 1] - spans[:, 0]
    start = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(lengths, out=start[1:])
    places = np.repeat(spans[:, 0] - start[:-1], lengths) + np.arange(start[-1])
    return _from_octets(octets[places], start)
