"""Texts → predicates or shapes, compiled: the lexer of bulk loads.

Enters: the UTF-8 bytes of many texts. Leaves, for a text of conjunctions joined by OR, its
predicates (attribute, operator, literals), and for any other text its *shape* (a hash of all but
its literals) and its literals. A text that fits neither is left to the parser, which either takes
it or says what is wrong with it: these kernels never judge, they only recognise.

"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any
"""A truth value or a machine integer of some width, which Python's type checkers cannot tell."""

EQ, NE, LT, LE, GT, GE = 0, 1, 2, 3, 4, 5
BETWEEN, NOT_BETWEEN, IN, NOT_IN, LIKE, NOT_LIKE, IS_NULL, NOT_NULL = 6, 7, 8, 9, 10, 11, 12, 13
IS_TRUE = 14

INTEGER, FLOAT, LONG_FLOAT, STRING, QUOTED_STRING, TIMESTAMP, TRUE, FALSE, NULL = (
    0, 1, 2, 3, 4, 5, 6, 7, 8,
)  # fmt: skip
"""Classes of literal: a float too long to be read exactly here; a string with doubled quotes."""

MOST_DISJUNCTS = 64
"""Texts with more disjuncts are left to the parser, which simplifies while it goes."""

_INT64_MAX = np.uint64(2**63 - 1)
_POWERS = np.array([10.0**i for i in range(23)])
_SEED = np.uint64(14695981039346656037)
_PRIME = np.uint64(1099511628211)


# What is found is written to two int64 arrays, a row each; few arrays cross calls, since each costs
# as much as reading a short literal.
LITERAL_CLASS, LITERAL_BITS, LITERAL_START, LITERAL_END = 0, 1, 2, 3
NAME_START, NAME_END, OP, FIRST_LITERAL, N_LITERALS = 0, 1, 2, 3, 4


@inner
def _is_name_start(c: Scalar) -> Scalar:
    return (c >= 97 and c <= 122) or (c >= 65 and c <= 90) or c == 95


@inner
def _is_digit(c: Scalar) -> Scalar:
    return c >= 48 and c <= 57


@inner
def _is_name_part(c: Scalar) -> Scalar:
    return _is_name_start(c) or _is_digit(c) or c == 36


@inner
def _skip_space(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    while at < end and (data[at] == 32 or (data[at] >= 9 and data[at] <= 13)):
        at += 1
    return at


@inner
def _is_word(data: Bytes, start: Scalar, end: Scalar, word: Bytes) -> Scalar:
    """Whether a name is a keyword (given in capitals), in any case."""
    if end - start != len(word):
        return False
    for i in range(len(word)):
        c = data[start + i]
        if c >= 97 and c <= 122:
            c -= 32
        if c != word[i]:
            return False
    return True


_AND = np.frombuffer(b"AND", np.uint8)
_OR = np.frombuffer(b"OR", np.uint8)
_NOT = np.frombuffer(b"NOT", np.uint8)
_IN_WORD = np.frombuffer(b"IN", np.uint8)
_BETWEEN_WORD = np.frombuffer(b"BETWEEN", np.uint8)
_LIKE_WORD = np.frombuffer(b"LIKE", np.uint8)
_ESCAPE = np.frombuffer(b"ESCAPE", np.uint8)
_IS = np.frombuffer(b"IS", np.uint8)
_NULL_WORD = np.frombuffer(b"NULL", np.uint8)
_TRUE_WORD = np.frombuffer(b"TRUE", np.uint8)
_FALSE_WORD = np.frombuffer(b"FALSE", np.uint8)
_TIMESTAMP_WORD = np.frombuffer(b"TIMESTAMP", np.uint8)


@inner
def _is_keyword(data: Bytes, start: Scalar, end: Scalar) -> Scalar:
    n = end - start
    if n == 2:
        return (
            _is_word(data, start, end, _OR)
            or _is_word(data, start, end, _IN_WORD)
            or _is_word(data, start, end, _IS)
        )
    if n == 3:
        return _is_word(data, start, end, _AND) or _is_word(data, start, end, _NOT)
    if n == 4:
        return (
            _is_word(data, start, end, _LIKE_WORD)
            or _is_word(data, start, end, _NULL_WORD)
            or _is_word(data, start, end, _TRUE_WORD)
        )
    if n == 5:
        return _is_word(data, start, end, _FALSE_WORD)
    if n == 6:
        return _is_word(data, start, end, _ESCAPE)
    return n == 7 and _is_word(data, start, end, _BETWEEN_WORD)


@inner
def _name_end(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    """Where the name or dotted path that starts here ends."""
    while at < end:
        if _is_name_part(data[at]):
            at += 1
        elif data[at] == 46 and at + 1 < end and _is_name_start(data[at + 1]):
            at += 2
        else:
            break
    return at


@inner
def _string_end(data: Bytes, at: Scalar, end: Scalar) -> tuple[Scalar, bool]:
    """Where the string literal that starts here ends (-1: nowhere), and whether it has quotes."""
    doubled = False
    at += 1
    while at < end:
        if data[at] == 39:
            if at + 1 < end and data[at + 1] == 39:
                doubled = True
                at += 2
                continue
            return at + 1, doubled
        at += 1
    return -1, doubled


@inner
def _number(data: Bytes, at: Scalar, end: Scalar, negative: bool) -> tuple[Scalar, Scalar, Scalar]:
    """Read a number: return where it ends (-1: no number we take), its class and its bits."""
    mantissa, n_digits, scale = np.uint64(0), 0, 0
    is_float, any_digit = False, False
    while at < end and (_is_digit(data[at]) or (data[at] == 46 and not is_float)):
        if data[at] == 46:
            is_float = True
        else:
            any_digit = True
            if n_digits > 0 or data[at] != 48:
                n_digits += 1
            if n_digits <= 19:
                mantissa = mantissa * np.uint64(10) + np.uint64(data[at] - 48)
            if is_float:
                scale -= 1
        at += 1
    if not any_digit:
        return -1, INTEGER, np.int64(0)
    exponent: Scalar = 0
    if at < end and (data[at] == 101 or data[at] == 69):
        is_float = True
        at += 1
        below = at < end and data[at] == 45
        if at < end and (data[at] == 45 or data[at] == 43):
            at += 1
        if at == end or not _is_digit(data[at]):
            return -1, INTEGER, np.int64(0)
        while at < end and _is_digit(data[at]):
            exponent = min(exponent * 10 + np.int64(data[at] - 48), 100000)
            at += 1
        scale += -exponent if below else exponent
    if at < end and (_is_name_part(data[at]) or data[at] >= 128):
        return -1, INTEGER, np.int64(0)
    if not is_float:
        limit = _INT64_MAX + np.uint64(1) if negative else _INT64_MAX
        if n_digits > 19 or mantissa > limit:
            return -1, INTEGER, np.int64(0)
        return at, INTEGER, (-np.int64(mantissa) if negative else np.int64(mantissa))
    if n_digits > 19 or mantissa > np.uint64(2**53) or scale > 22 or scale < -22:
        return at, LONG_FLOAT, np.int64(0)
    value = np.float64(mantissa)
    value = value / _POWERS[-scale] if scale < 0 else value * _POWERS[scale]
    value = -value if negative else value
    return at, FLOAT, np.float64(value).view(np.int64)


@inner
def _literal(data: Bytes, at: Scalar, end: Scalar, literals: Integers, n: Scalar) -> Scalar:
    """Read a literal at a place into row n; return where it ends, or -1."""
    if at >= end:
        return -1
    start = at
    c = data[at]
    bits = np.int64(0)
    if c == 39:
        at, doubled = _string_end(data, at, end)
        kind = QUOTED_STRING if doubled else STRING
    elif _is_digit(c) or c == 45 or c == 43 or c == 46:
        if c == 45 or c == 43:
            at = _skip_space(data, at + 1, end)
            if at >= end or not (_is_digit(data[at]) or data[at] == 46):
                return -1
        at, kind, bits = _number(data, at, end, c == 45)
    elif _is_name_start(c):
        start, at, kind = _word_literal(data, start, _name_end(data, at, end), end)
    else:
        return -1
    if at < 0:
        return -1
    literals[n, LITERAL_CLASS] = kind
    literals[n, LITERAL_BITS] = bits
    literals[n, LITERAL_START] = start
    literals[n, LITERAL_END] = at
    return at


@inner
def _word_literal(
    data: Bytes, start: Scalar, at: Scalar, end: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Read a literal that starts with a word: return its start, its end (-1: none) and class."""
    if _is_word(data, start, at, _TRUE_WORD):
        return start, at, TRUE
    if _is_word(data, start, at, _FALSE_WORD):
        return start, at, FALSE
    if _is_word(data, start, at, _NULL_WORD):
        return start, at, NULL
    if _is_word(data, start, at, _TIMESTAMP_WORD):
        start = _skip_space(data, at, end)
        if start < end and data[start] == 39:
            at, doubled = _string_end(data, start, end)
            return start, (-1 if doubled else at), TIMESTAMP
    return start, -1, NULL


@inner
def _comparison(data: Bytes, at: Scalar, end: Scalar) -> tuple[Scalar, Scalar]:
    """Read a comparison operator: return where it ends (-1: none) and its number."""
    c = data[at]
    following = data[at + 1] if at + 1 < end else np.uint8(0)
    if c == 61:
        return (at + 2 if following == 61 else at + 1), EQ
    if c == 33:
        return (at + 2 if following == 61 else -1), NE
    if c == 60:
        if following == 61:
            if at + 2 < end and data[at + 2] == 62:
                return -1, LE
            return at + 2, LE
        return (at + 2, NE) if following == 62 else (at + 1, LT)
    if c == 62:
        return (at + 2, GE) if following == 61 else (at + 1, GT)
    return -1, EQ


@inner
def _list(
    data: Bytes, at: Scalar, end: Scalar, literals: Integers, n: Scalar
) -> tuple[Scalar, Scalar]:
    """Read `( literal, … )`: return where it ends (-1: not) and the number of literals."""
    first = n
    if at >= end or data[at] != 40:
        return -1, n
    while True:
        at = _skip_space(data, at + 1, end)
        at = _literal(data, at, end, literals, n)
        if at < 0:
            return -1, n
        n += 1
        at = _skip_space(data, at, end)
        if at >= end:
            return -1, n
        if data[at] == 41:
            return at + 1, n - first
        if data[at] != 44:
            return -1, n


@inner
def _word_tail(
    data: Bytes, at: Scalar, end: Scalar, literals: Integers, n_literals: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Read what follows an attribute when it is a word.

    Returns where it ends (-1: not recognised), the operator and the number of literals.
    """
    word_end = _name_end(data, at, end)
    negated = _is_word(data, at, word_end, _NOT)
    if negated:
        at = _skip_space(data, word_end, end)
        word_end = _name_end(data, at, end)
    if _is_word(data, at, word_end, _BETWEEN_WORD):
        at = _literal(data, _skip_space(data, word_end, end), end, literals, n_literals)
        if at < 0:
            return -1, EQ, 0
        at = _skip_space(data, at, end)
        word_end = _name_end(data, at, end)
        if not _is_word(data, at, word_end, _AND):
            return -1, EQ, 0
        at = _skip_space(data, word_end, end)
        at = _literal(data, at, end, literals, n_literals + 1)
        return at, (NOT_BETWEEN if negated else BETWEEN), 2
    if _is_word(data, at, word_end, _IN_WORD):
        at, count = _list(data, _skip_space(data, word_end, end), end, literals, n_literals)
        return at, (NOT_IN if negated else IN), count
    if _is_word(data, at, word_end, _LIKE_WORD):
        at = _skip_space(data, word_end, end)
        if at >= end or data[at] != 39:
            return -1, EQ, 0
        at = _literal(data, at, end, literals, n_literals)
        return at, (NOT_LIKE if negated else LIKE), 1
    if not negated and _is_word(data, at, word_end, _IS):
        at = _skip_space(data, word_end, end)
        word_end = _name_end(data, at, end)
        negated = _is_word(data, at, word_end, _NOT)
        if negated:
            at = _skip_space(data, word_end, end)
            word_end = _name_end(data, at, end)
        if _is_word(data, at, word_end, _NULL_WORD):
            return word_end, (NOT_NULL if negated else IS_NULL), 0
    return -1, EQ, 0


@inner
def _predicate(
    data: Bytes,
    at: Scalar,
    end: Scalar,
    literals: Integers,
    n_literals: Scalar,
    predicates: Integers,
    n: Scalar,
) -> tuple[Scalar, Scalar]:
    """Read one predicate: return where it ends (-1: not recognised) and its literals' number."""
    if at >= end or not _is_name_start(data[at]):
        return -1, 0
    name_start = at
    at = _name_end(data, at, end)
    first_part = name_start
    while first_part < at and data[first_part] != 46:
        first_part += 1
    if _is_keyword(data, name_start, first_part):
        return -1, 0
    predicates[n, NAME_START] = name_start
    predicates[n, NAME_END] = at
    predicates[n, FIRST_LITERAL] = n_literals
    at = _skip_space(data, at, end)
    word_end = _name_end(data, at, end)
    if at == end or _is_word(data, at, word_end, _AND) or _is_word(data, at, word_end, _OR):
        predicates[n, OP] = IS_TRUE
        predicates[n, N_LITERALS] = 0
        return at, 0
    if _is_name_start(data[at]):
        at, op, count = _word_tail(data, at, end, literals, n_literals)
    else:
        at, op = _comparison(data, at, end)
        count = 1
        if at >= 0:
            at = _literal(data, _skip_space(data, at, end), end, literals, n_literals)
    if at >= 0:
        predicates[n, OP] = op
        predicates[n, N_LITERALS] = count
    return at, count


@kernel
def scan_disjunctions(
    data: Bytes,
    starts: Integers,
    literals: Integers,
    predicates: Integers,
    conjunctions: Integers,
    literal_end: Integers,
    conjunction_end: Integers,
    taken: Flags,
) -> None:
    """Recognise the texts that are conjunctions joined by OR without parentheses, and read them.

    `taken[i]` says whether text i is one; `literal_end[i]` and `conjunction_end[i]` are the numbers
    of literals and conjunctions read up to and with it; `conjunctions[k]` is the number of
    predicates up to and with the k-th. A text that only lists alternatives of one predicate each is
    left alone: they may make one set of values together, which is for the caller to see.
    """
    n_literals, n_predicates, n_conjunctions = np.int64(0), np.int64(0), np.int64(0)
    for i in range(len(starts) - 1):
        end = starts[i + 1]
        n, p, c = n_literals, n_predicates, n_conjunctions
        is_long: Scalar = False
        at = _skip_space(data, starts[i], end)
        while True:
            at, count = _predicate(data, at, end, literals, n, predicates, p)
            if at < 0:
                break
            n, p = n + count, p + 1
            at = _skip_space(data, at, end)
            word_end = _name_end(data, at, end)
            is_last = at == end
            if is_last or _is_word(data, at, word_end, _OR):
                before = conjunctions[c - 1] if c > 0 else np.int64(0)
                is_long |= p - before > 1
                conjunctions[c] = p
                c += 1
                if is_last:
                    break
            elif not _is_word(data, at, word_end, _AND):
                at = np.int64(-1)
                break
            at = _skip_space(data, word_end, end)
        several = c - n_conjunctions > 1
        taken[i] = at >= 0 and (is_long or not several) and c - n_conjunctions <= MOST_DISJUNCTS
        if taken[i]:
            n_literals, n_predicates, n_conjunctions = n, p, c
        literal_end[i] = n_literals
        conjunction_end[i] = n_conjunctions


@inner
def _hash_byte(value: Scalar, c: Scalar) -> Scalar:
    return (value ^ np.uint64(c)) * _PRIME


@inner
def _quoted_name_end(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    quote = data[at]
    at += 1
    while at < end:
        if data[at] == quote:
            if at + 1 < end and data[at + 1] == quote:
                at += 2
                continue
            return at + 1
        at += 1
    return -1


@inner
def _hash_piece(
    data: Bytes,
    at: Scalar,
    end: Scalar,
    value: Scalar,
    literals: Integers,
    n: Scalar,
    after_escape: bool,
) -> tuple[Scalar, Scalar, Scalar, bool]:
    """Read one token of a shape: return where it ends (-1: not), the hash, literals, and ESCAPE."""
    c = data[at]
    start = at
    is_fraction = c == 46 and at + 1 < end and _is_digit(data[at + 1])
    if (c == 39 and not after_escape) or _is_digit(c) or c == 45 or c == 43 or is_fraction:
        at = _literal(data, at, end, literals, n)
        if at < 0:
            return -1, value, n, False
        kind = literals[n, LITERAL_CLASS]
        is_text = kind == STRING or kind == QUOTED_STRING
        return at, _hash_byte(value, 1 if is_text else 2), n + 1, False
    if _is_name_start(c):
        at = _name_end(data, at, end)
        if _is_word(data, start, at, _TIMESTAMP_WORD):
            following = _skip_space(data, at, end)
            if following < end and data[following] == 39:
                at = _literal(data, start, end, literals, n)
                return at, _hash_byte(value, 3), n + 1, False
    elif c == 39:
        at, _ = _string_end(data, at, end)
    elif c == 34 or c == 96:
        at = _quoted_name_end(data, at, end)
    elif c >= 128:
        while at < end and (data[at] >= 128 or _is_name_part(data[at])):
            at += 1
    else:
        at += 1
    if at < 0:
        return -1, value, n, False
    for i in range(start, at):
        value = _hash_byte(value, data[i])
    return at, _hash_byte(value, 0), n, _is_word(data, start, at, _ESCAPE)


@kernel
def scan_shapes(
    data: Bytes,
    starts: Integers,
    literals: Integers,
    literal_end: Integers,
    shape: NDArray[np.uint64],
    taken: Flags,
) -> None:
    """Read the literals of texts and hash all else.

    `taken[i]` says whether text i could be read; two texts with the same hash differ, up to a
    collision that the caller rules out, only in white space and literals.
    """
    n_literals = 0
    for i in range(len(starts) - 1):
        at, end = _skip_space(data, starts[i], starts[i + 1]), starts[i + 1]
        value, n, after_escape = _SEED, n_literals, False
        while 0 <= at < end:
            at, value, n, after_escape = _hash_piece(
                data, at, end, value, literals, n, after_escape
            )
            if at >= 0:
                at = _skip_space(data, at, end)
        taken[i] = at >= 0
        if at >= 0:
            n_literals = n
            shape[i] = value
        literal_end[i] = n_literals


@kernel
def same_shape(
    data: Bytes,
    a_start: Scalar,
    a_end: Scalar,
    b_start: Scalar,
    b_end: Scalar,
    literals: Integers,
    room: Scalar,
) -> Scalar:
    """Whether two texts, both read by `scan_shapes`, differ only in white space and literals."""
    a, b = _skip_space(data, a_start, a_end), _skip_space(data, b_start, b_end)
    a_escape, b_escape = False, False
    while a < a_end and b < b_end:
        a_next, a_hash, a_n, a_follows = _hash_piece(
            data, a, a_end, _SEED, literals, room, a_escape
        )
        b_next, b_hash, b_n, b_follows = _hash_piece(
            data, b, b_end, _SEED, literals, room, b_escape
        )
        if a_n != b_n or a_hash != b_hash:
            return False
        if a_n == room:
            if a_next - a != b_next - b:
                return False
            for i in range(a_next - a):
                if data[a + i] != data[b + i]:
                    return False
        a_escape, b_escape = a_follows, b_follows
        a, b = _skip_space(data, a_next, a_end), _skip_space(data, b_next, b_end)
    return a >= a_end and b >= b_end


@kernel
def mark_same_shapes(
    data: Bytes,
    starts: Integers,
    representative: Integers,
    literals: Integers,
    room: Scalar,
    same: Flags,
) -> None:
    """For each text say whether it has the same shape as its representative."""
    for i in range(len(representative)):
        r = representative[i]
        same[i] = r == i or same_shape(
            data, starts[i], starts[i + 1], starts[r], starts[r + 1], literals, room
        )


@kernel
def copy_strings(
    data: Bytes,
    starts: Integers,
    ends: Integers,
    has_quotes: Flags,
    out: Bytes,
    out_start: Integers,
) -> Scalar:
    """Copy string literals without their outer quotes, doubled ones made single."""
    n = 0
    for i in range(len(starts)):
        out_start[i] = n
        at, end = starts[i], ends[i]
        while at < end:
            out[n] = data[at]
            n += 1
            at += 2 if has_quotes[i] and data[at] == 39 else 1
    out_start[len(starts)] = n
    return n


@kernel
def number_names(
    data: Bytes,
    starts: Integers,
    ends: Integers,
    table: NDArray[np.int32],
    firsts: Integers,
    name_of: NDArray[np.int32],
) -> Scalar:
    """Number names by first appearance; return how many there are, or -1 when the table is full.

    `table` is an open-addressing hash table of name numbers plus one; `firsts[k]` is a place where
    the k-th name stands.
    """
    mask = np.uint64(len(table) - 1)
    n = 0
    for i in range(len(starts)):
        value = _SEED
        for at in range(starts[i], ends[i]):
            value = _hash_byte(value, data[at])
        slot = (value ^ (value >> np.uint64(29))) & mask
        while True:
            known = table[slot]
            if known == 0:
                if n == len(firsts):
                    return -1
                firsts[n] = i
                n += 1
                table[slot] = n
                name_of[i] = n - 1
                break
            if _same_name(
                data, starts[i], ends[i], starts[firsts[known - 1]], ends[firsts[known - 1]]
            ):
                name_of[i] = known - 1
                break
            slot = (slot + np.uint64(1)) & mask
    return n


@inner
def _same_name(data: Bytes, a: Scalar, a_end: Scalar, b: Scalar, b_end: Scalar) -> Scalar:
    if a_end - a != b_end - b:
        return False
    for i in range(a_end - a):
        if data[a + i] != data[b + i]:
            return False
    return True
