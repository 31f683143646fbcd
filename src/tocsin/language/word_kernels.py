"""Texts → words, and strings → codes, compiled.

Enters: the UTF-8 bytes of many texts in lower case; a hash table of strings that somebody asks for.
Leaves: the words of each text, or the codes of the ones in the table; the words of queries
that are nothing but words and prefixes. All of it is linear in the bytes.

A word is a run of letters, marks and digits. Those of ASCII are known here, others by a bit map
over all code points. A hash begins with a number that the table was given, so that strings which
collide cannot be prepared.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel

Octets: TypeAlias = NDArray[np.uint8]
Starts: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int32]
Scalar: TypeAlias = Any

MOST_IN_QUERY = 16
"""Queries of more words are left to the parser."""
_PRIME = np.uint64(0x9E3779B97F4A7C15)


class HashTable(NamedTuple):
    """Strings by their hashes: open addressing; a slot has the number of a string plus one."""

    seed: Scalar
    slots: Codes
    hashes: NDArray[np.uint64]
    start: Starts
    octets: Octets
    codes: Codes


@inner
def _mix(value: Scalar, octet: Scalar) -> Scalar:
    value = (value ^ np.uint64(octet)) * _PRIME
    return value ^ (value >> np.uint64(29))


@inner
def _is_ascii_word(c: Scalar) -> Scalar:
    return (c >= 97 and c <= 122) or (c >= 48 and c <= 57) or (c >= 65 and c <= 90)


@inner
def _next(octets: Octets, at: Scalar, end: Scalar, letters: Octets) -> tuple[Scalar, Scalar]:
    """Return whether a letter, mark or digit is here, and where the next character begins."""
    c = np.int64(octets[at])
    if c < 128:
        return _is_ascii_word(c), at + 1
    size: Scalar = 4 if c >= 240 else 3 if c >= 224 else 2
    code: Scalar = c & (127 >> size)
    if at + size > end:
        return False, end
    for i in range(at + 1, at + size):
        code = code << 6 | np.int64(octets[i] & 63)
    return (letters[code >> 3] >> (code & 7)) & 1 == 1, at + size


@kernel
def count_words(octets: Octets, start: Starts, letters: Octets) -> Any:
    """Return how many words all texts have."""
    n = 0
    for text in range(len(start) - 1):
        at, end = start[text], start[text + 1]
        is_inside: Scalar = False
        while at < end:
            is_letter, at = _next(octets, at, end, letters)
            n += is_letter and not is_inside
            is_inside = is_letter
    return n


@kernel
def cut_words(
    octets: Octets,
    start: Starts,
    letters: Octets,
    out: Octets,
    word_start: Starts,
    first_word: Starts,
) -> None:
    """Copy the words of texts, one after the other; also write where each and each text's begin."""
    n, size = 0, 0
    word_start[0] = 0
    first_word[0] = 0
    for text in range(len(start) - 1):
        at, end = start[text], start[text + 1]
        is_inside: Scalar = False
        while at < end:
            before = at
            is_letter, at = _next(octets, at, end, letters)
            if is_letter:
                for i in range(before, at):
                    out[size] = octets[i]
                    size += 1
            elif is_inside:
                n += 1
                word_start[n] = size
            is_inside = is_letter
        if is_inside:
            n += 1
            word_start[n] = size
        first_word[text + 1] = n


@kernel
def fill_table(table: HashTable) -> None:
    """Enter all strings of a table, each once."""
    mask = np.uint64(len(table.slots) - 1)
    for number in range(len(table.hashes)):
        value = np.uint64(table.seed)
        for at in range(table.start[number], table.start[number + 1]):
            value = _mix(value, table.octets[at])
        table.hashes[number] = value
        slot = value & mask
        while table.slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        table.slots[slot] = number + 1


@inner
def _code(table: HashTable, octets: Octets, begin: Scalar, end: Scalar, value: Scalar) -> Scalar:
    """Return the code of a string with a hash, or -1."""
    mask = np.uint64(len(table.slots) - 1)
    slot = value & mask
    while True:
        number = np.int64(table.slots[slot]) - 1
        if number < 0:
            return -1
        if table.hashes[number] == value:
            first = table.start[number]
            if table.start[number + 1] - first == end - begin:
                same = True
                for i in range(end - begin):
                    if table.octets[first + i] != octets[begin + i]:
                        same = False
                        break
                if same:
                    return np.int64(table.codes[number])
        slot = (slot + np.uint64(1)) & mask


@kernel
def look_up_strings(table: HashTable, octets: Octets, start: Starts, codes: Codes) -> None:
    """Write the code of each string; -1 for one that is not in the table."""
    for text in range(len(start) - 1):
        value = np.uint64(table.seed)
        for at in range(start[text], start[text + 1]):
            value = _mix(value, octets[at])
        codes[text] = _code(table, octets, start[text], start[text + 1], value)


@kernel
def look_up_words(
    table: HashTable,
    octets: Octets,
    start: Starts,
    letters: Octets,
    first: Scalar,
    codes: Codes,
    first_code: Starts,
) -> Any:
    """Write the codes of the words of each text that are in the table, from text `first` on.

    Returns the text reached: the next one has more than there is space for.
    """
    n = first_code[first]
    for text in range(first, len(start) - 1):
        at, end = start[text], start[text + 1]
        begin = at
        is_inside: Scalar = False
        value = np.uint64(table.seed)
        while True:
            before = at
            is_letter: Scalar = False
            if at < end:
                is_letter, at = _next(octets, at, end, letters)
            if is_letter:
                if not is_inside:
                    begin = before
                    value = np.uint64(table.seed)
                for i in range(before, at):
                    value = _mix(value, octets[i])
            elif is_inside:
                code = _code(table, octets, begin, before, value)
                if code >= 0:
                    if n == len(codes):
                        return text
                    codes[n] = code
                    n += 1
            is_inside = is_letter
            if not is_letter and before >= end:
                break
        first_code[text + 1] = n
    return len(start) - 1


@inner
def _is_space(c: Scalar) -> Scalar:
    return c == 32 or (c >= 9 and c <= 13)


@inner
def _is_known(octets: Octets, spans: Starts, first: Scalar, n: Scalar) -> Scalar:
    """Whether the span after some others is the same string as one of them."""
    length = spans[first + n, 1] - spans[first + n, 0]
    for other in range(first, first + n):
        if spans[other, 1] - spans[other, 0] != length:
            continue
        same = True
        for i in range(length):
            if octets[spans[other, 0] + i] != octets[spans[first + n, 0] + i]:
                same = False
                break
        if same:
            return True
    return False


@kernel
def read_queries(
    octets: Octets, start: Starts, letters: Octets, spans: Starts, signatures: Starts
) -> None:
    """Read queries that are words and prefixes, joined by white space.

    `spans` has `MOST_IN_QUERY` rows for each query, where its words are, each once; the `*` of a
    prefix is part of it. A signature has a bit for each word: 1 for a prefix, and a bit 1 above
    all. It is 0 for a query of another form.
    """
    for text in range(len(start) - 1):
        at, end = start[text], start[text + 1]
        first, n = text * MOST_IN_QUERY, 0
        signature: Scalar = 0
        while True:
            while at < end and _is_space(octets[at]):
                at += 1
            if at == end:
                break
            if n == MOST_IN_QUERY:
                n = 0
                break
            begin = at
            is_letter: Scalar = True
            while at < end and is_letter:
                is_letter, after = _next(octets, at, end, letters)
                if is_letter:
                    at = after
            is_prefix = at > begin and at < end and octets[at] == 42
            at += is_prefix
            if at == begin or (at < end and not _is_space(octets[at])):
                n = 0
                break
            spans[first + n, 0] = begin
            spans[first + n, 1] = at
            if not _is_known(octets, spans, first, n):
                signature |= np.int64(is_prefix) << n
                n += 1
        signatures[text] = (1 << n) | signature if n > 0 else 0
