"""One LIKE pattern × one text → whether it fits, compiled; in UTF-8, without decoding it.

Enters: texts, and patterns as programs: the bytes of their literals, with `ONE` for `_` and `MANY`
for `%`, two bytes that UTF-8 does not have. Leaves: whether the whole text fits.

The pieces before the first and after the last `%` are anchored; each piece between two `%` is put
where it first fits. It is tried place by place, until that has cost several steps for each byte of
the text; then the search goes on in linear time: D. Knuth, J. Morris and V. Pratt (1977) for a
piece without `_`, R. Baeza-Yates and G. Gonnet (1992), section 5, for one with `_`, 64 places at a
step. So a pattern costs at most the text times its widest piece with `_`, divided by 64.
"""

from __future__ import annotations

import numpy as np

from tocsin.engines.auto.arrays import Octets, Scalar
from tocsin.jit import inlined, inner

ONE = np.uint8(0xFE)
"""In a program: any one code point."""
MANY = np.uint8(0xFF)
"""In a program: any text."""
_TRIES = 8
"""How many steps for each byte of the text are spent on trying places."""


@inlined
def _after(octets: Octets, at: Scalar, end: Scalar) -> Scalar:
    """Return where the code point ends that begins at a place before the end."""
    at += 1
    while at < end and (octets[at] & np.uint8(0xC0)) == np.uint8(0x80):
        at += 1
    return at


@inner
def _find_bytes(
    octets: Octets, begin: Scalar, end: Scalar, program: Octets, first: Scalar, last: Scalar
) -> Scalar:
    """Return where some bytes first end in a text, or -1; in linear time."""
    n = last - first
    shorter = np.zeros(n + 1, np.int32)  # the longest proper border of each prefix
    k = np.int64(0)
    for i in range(1, n):
        while k > 0 and program[first + i] != program[first + k]:
            k = np.int64(shorter[k])
        if program[first + i] == program[first + k]:
            k += 1
        shorter[i + 1] = k
    k = np.int64(0)
    for at in range(begin, end):
        while k > 0 and octets[at] != program[first + k]:
            k = np.int64(shorter[k])
        if octets[at] == program[first + k]:
            k += 1
        if k == n:
            return at + 1
    return np.int64(-1)


@inner
def _find_masked(
    octets: Octets, begin: Scalar, end: Scalar, program: Octets, first: Scalar, last: Scalar
) -> Scalar:
    """Return where bytes and `ONE`s first end in a text, or -1; they begin and end with bytes.

    Bit i of `reached` says that the bytes up to here fit the first i + 1 places. A `ONE` takes the
    first byte of a code point, and stays while its other bytes follow.
    """
    n = last - first
    n_words = (n + 63) >> 6
    one = np.uint64(1)
    masks = np.zeros((256, n_words), np.uint64)
    stays = np.zeros(n_words, np.uint64)
    for i in range(n):
        op, bit = program[first + i], one << np.uint64(i & 63)
        if op == ONE:
            stays[i >> 6] |= bit
            for octet in range(256):
                if (octet & 0xC0) != 0x80:
                    masks[octet, i >> 6] |= bit
        else:
            masks[op, i >> 6] |= bit
    reached = np.zeros(n_words, np.uint64)
    final = one << np.uint64((n - 1) & 63)
    for at in range(begin, end):
        octet = octets[at]
        is_inside = (octet & np.uint8(0xC0)) == np.uint8(0x80)
        carry = one
        for w in range(n_words):
            word = reached[w]
            moved = ((word << one) | carry) & masks[octet, w]
            if is_inside:
                moved |= word & stays[w]
            carry = word >> np.uint64(63)
            reached[w] = moved
        if reached[n_words - 1] & final:
            return at + 1
    return np.int64(-1)


@inner
def _find_piece(
    octets: Octets, begin: Scalar, end: Scalar, program: Octets, first: Scalar, last: Scalar
) -> Scalar:
    """Return where the first fit of a piece without `MANY` ends, or -1."""
    while first < last and program[first] == ONE:
        if begin >= end:
            return np.int64(-1)
        begin = _after(octets, begin, end)
        first += 1
    if first == last:
        return begin
    n_trailing = 0
    while program[last - 1] == ONE:
        last -= 1
        n_trailing += 1
    n, letter = last - first, program[first]
    steps = _TRIES * (end - begin) + 64
    at, stop = begin, np.int64(-1)
    while at + n <= end:
        if octets[at] == letter:
            place, op = at + 1, first + 1
            while op < last and place < end:
                if program[op] == ONE:
                    place = _after(octets, place, end)
                elif program[op] == octets[place]:
                    place += 1
                else:
                    break
                op += 1
            if op == last:
                stop = place
                break
            steps -= op - first
            if steps < 0:
                has_one = False
                for i in range(first, last):
                    has_one |= program[i] == ONE
                if has_one:
                    stop = _find_masked(octets, at + 1, end, program, first, last)
                else:
                    stop = _find_bytes(octets, at + 1, end, program, first, last)
                break
        at += 1
    if stop < 0:
        return stop
    for _ in range(n_trailing):
        if stop >= end:
            return np.int64(-1)
        stop = _after(octets, stop, end)
    return stop


@inner
def fits(
    octets: Octets, begin: Scalar, end: Scalar, program: Octets, first: Scalar, last: Scalar
) -> Scalar:
    """Whether the text `octets[begin:end]` fits the program `program[first:last]`."""
    while first < last and program[first] != MANY:
        if begin >= end:
            return False
        if program[first] == ONE:
            begin = _after(octets, begin, end)
        elif program[first] == octets[begin]:
            begin += 1
        else:
            return False
        first += 1
    if first == last:
        return begin == end
    while program[last - 1] != MANY:  # from the end back to the last %
        if begin >= end:
            return False
        end -= 1
        if program[last - 1] == ONE:
            while end > begin and (octets[end] & np.uint8(0xC0)) == np.uint8(0x80):
                end -= 1
        elif program[last - 1] != octets[end]:
            return False
        last -= 1
    first += 1
    while first < last:
        stop = first
        while program[stop] != MANY:
            stop += 1
        begin = _find_piece(octets, begin, end, program, first, stop)
        if begin < 0:
            return False
        first = stop + 1
    return True
