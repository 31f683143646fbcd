"""Predicate rows → conditions, compiled: the columnar half of `condition` and `normal`.

Enters: predicates of many conjunctions as rows (attribute, operator, literals). Leaves: the arrays
of a `ConjunctionTable`.

A *piece list* is an int64 array of rows (domain, low key, low offset, high key, high offset),
ordered and disjoint. The kernel marks what the one-by-one path must handle: LIKE patterns that are
no intervals together with other predicates on their attribute, and literals of the wrong kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any
"""A truth value or an integer of any width."""

EQ, NE, LT, LE, GT, GE = 0, 1, 2, 3, 4, 5
BETWEEN, NOT_BETWEEN, IN, NOT_IN, LIKE, NOT_LIKE, IS_NULL, NOT_NULL = 6, 7, 8, 9, 10, 11, 12, 13
IS_TRUE, IS_FALSE, OTHER_THAN, NO_TEXT = 14, 15, 16, 17

KEPT, NEVER, LEFT_OVER, NOT_SIMPLE = 0, 1, 2, 3
"""Outcome of a conjunction: written, contradictory, or for the one-by-one path; of an attribute
also: for the general fold."""

NO_DOMAIN = -1
_NUMBER, _STRING, _BOOLEAN, _TIMESTAMP = 0, 1, 2, 3
_INTEGER_KIND, _FLOAT_KIND = 0, 1
_ABSENT, _PRESENT = 1, 2
_INT64_MIN = np.int64(-(2**63))
_INT64_MAX = np.int64(2**63 - 1)
_MINUS_INFINITY_KEY = np.int64(np.array(-np.inf).view(np.int64) ^ np.int64(2**63 - 1))
_PLUS_INFINITY_KEY = np.int64(np.array(np.inf).view(np.int64))


class PredicateRows(NamedTuple):
    """Predicates by conjunction. `literal_start` of a LIKE row points into the `Likes`."""

    row_start: Integers
    attribute: NDArray[np.int32]
    op: Bytes
    literal_start: Integers
    n_literals: NDArray[np.int32]


class Literals(NamedTuple):
    """Literals by domain: the flat cut just before each. NULL and NaN have domain -1."""

    domain: NDArray[np.int8]
    key: Integers
    offset: NDArray[np.int16]


class Likes(NamedTuple):
    """LIKE patterns: the interval they are or start with, and the number of the pattern.

    Pattern -1: nothing but the interval; -2: no string, so satisfied by nothing; -3: ill-formed.
    """

    low_key: Integers
    low_offset: NDArray[np.int16]
    high_key: Integers
    high_offset: NDArray[np.int16]
    pattern: NDArray[np.int32]


class Declared(NamedTuple):
    """The declared kind (in the order of `model.Kind`) and domain of each attribute, or -1."""

    kind: NDArray[np.int8]
    domain: NDArray[np.int8]


class Conditions(NamedTuple):
    """The output arrays, with capacity for every outcome."""

    condition_end: Integers
    attribute: NDArray[np.int32]
    flags: Bytes
    piece_end: Integers
    domain: Bytes
    low_key: Integers
    low_offset: NDArray[np.int16]
    high_key: Integers
    high_offset: NDArray[np.int16]
    pattern_condition: Integers
    pattern_id: NDArray[np.int32]
    pattern_negated: Bytes


@inner
def _less(a_key: Scalar, a_offset: Scalar, b_key: Scalar, b_offset: Scalar) -> Scalar:
    return a_key < b_key or (a_key == b_key and a_offset < b_offset)


@inner
def _before(domain: Scalar, key: Scalar, offset: Scalar, follows: Scalar) -> tuple[Scalar, Scalar]:
    """The canonical cut just before a literal; `follows` is its string's mark."""
    if domain == _NUMBER:
        if key == _MINUS_INFINITY_KEY:
            return _INT64_MIN, np.int64(0)
        return key, offset
    if domain == _STRING:
        if follows == 1:  # the one before it plus NUL: nothing lies between
            return key - 1, np.int64(1)
        if follows == 2:  # the empty string
            return _INT64_MIN, np.int64(0)
        return key, np.int64(0)
    if domain == _BOOLEAN and key == 0:
        return _INT64_MIN, np.int64(0)
    return key, np.int64(0)


@inner
def _after(domain: Scalar, key: Scalar, offset: Scalar) -> tuple[Scalar, Scalar]:
    """The canonical cut just after a literal."""
    if domain == _NUMBER:
        if key == _PLUS_INFINITY_KEY:
            return _INT64_MAX, np.int64(1)
        return key, offset + 1
    if domain == _STRING:
        return key, np.int64(1)
    if key == _INT64_MAX or (domain == _BOOLEAN and key == 1):
        return _INT64_MAX, np.int64(1)
    return key + 1, np.int64(0)


@inner
def _put(
    pieces: Integers,
    n: Scalar,
    domain: Scalar,
    low_key: Scalar,
    low_offset: Scalar,
    high_key: Scalar,
    high_offset: Scalar,
) -> Scalar:
    """Append an interval unless it is empty."""
    if _less(low_key, low_offset, high_key, high_offset):
        pieces[n, 0] = domain
        pieces[n, 1] = low_key
        pieces[n, 2] = low_offset
        pieces[n, 3] = high_key
        pieces[n, 4] = high_offset
        return n + 1
    return n


@inner
def _mark(string_follows: Bytes, domain: Scalar, key: Scalar) -> Scalar:
    return string_follows[key] if domain == _STRING else np.uint8(0)


@inner
def _put_comparison(
    pieces: Integers,
    n: Scalar,
    op: Scalar,
    domain: Scalar,
    key: Scalar,
    offset: Scalar,
    follows: Scalar,
) -> Scalar:
    """Append what `attribute op literal` allows."""
    b_key, b_offset = _before(domain, key, offset, follows)
    a_key, a_offset = _after(domain, key, offset)
    if op == EQ:
        return _put(pieces, n, domain, b_key, b_offset, a_key, a_offset)
    if op == LT or op == NE:
        n = _put(pieces, n, domain, _INT64_MIN, 0, b_key, b_offset)
    if op == LE:
        n = _put(pieces, n, domain, _INT64_MIN, 0, a_key, a_offset)
    if op == GT or op == NE:
        n = _put(pieces, n, domain, a_key, a_offset, _INT64_MAX, 1)
    if op == GE:
        n = _put(pieces, n, domain, b_key, b_offset, _INT64_MAX, 1)
    return n


@inner
def _sort_and_unite(pieces: Integers, n: Scalar) -> Scalar:
    """Sort pieces and join overlapping and touching ones; return how many remain."""
    gap = 1
    while gap < n:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            j = i
            while j >= gap and _comes_before(pieces, j, j - gap):
                for column in range(5):
                    pieces[j, column], pieces[j - gap, column] = (
                        pieces[j - gap, column],
                        pieces[j, column],
                    )
                j -= gap
        gap //= 3
    n_out = 0
    for i in range(n):
        last = n_out - 1
        if (
            n_out > 0
            and pieces[i, 0] == pieces[last, 0]
            and not _less(pieces[last, 3], pieces[last, 4], pieces[i, 1], pieces[i, 2])
        ):
            if _less(pieces[last, 3], pieces[last, 4], pieces[i, 3], pieces[i, 4]):
                pieces[last, 3] = pieces[i, 3]
                pieces[last, 4] = pieces[i, 4]
        else:
            for column in range(5):
                pieces[n_out, column] = pieces[i, column]
            n_out += 1
    return n_out


@inner
def _comes_before(pieces: Integers, a: Scalar, b: Scalar) -> Scalar:
    for column in range(3):
        if pieces[a, column] != pieces[b, column]:
            return pieces[a, column] < pieces[b, column]
    return False


@inner
def _intersect(a: Integers, n_a: Scalar, b: Integers, n_b: Scalar, out: Integers) -> Scalar:
    """Write what lies in both piece lists."""
    i, j, n = 0, 0, 0
    while i < n_a and j < n_b:
        if a[i, 0] != b[j, 0]:
            if a[i, 0] < b[j, 0]:
                i += 1
            else:
                j += 1
            continue
        low_key, low_offset = a[i, 1], a[i, 2]
        if _less(low_key, low_offset, b[j, 1], b[j, 2]):
            low_key, low_offset = b[j, 1], b[j, 2]
        high_key, high_offset = a[i, 3], a[i, 4]
        a_ends_first = _less(high_key, high_offset, b[j, 3], b[j, 4])
        if not a_ends_first:
            high_key, high_offset = b[j, 3], b[j, 4]
        n = _put(out, n, a[i, 0], low_key, low_offset, high_key, high_offset)
        if a_ends_first:
            i += 1
        else:
            j += 1
    return n


@inner
def _put_membership(
    pieces: Integers,
    literals: Literals,
    start: Scalar,
    count: Scalar,
    negated: bool,
    string_follows: Bytes,
    points: Integers,
) -> Scalar:
    """Write what IN or NOT IN allows."""
    n = 0
    for at in range(start, start + count):
        domain = np.int64(literals.domain[at])
        if domain < 0 or (negated and n > 0 and domain != points[0, 0]):
            if negated:
                return 0  # unknown for all values, or no value differs from all literals
            continue
        key, offset = literals.key[at], np.int64(literals.offset[at])
        follows = _mark(string_follows, domain, key)
        n = _put_comparison(points, n, EQ, domain, key, offset, follows)
    n = _sort_and_unite(points, n)
    if not negated:
        for i in range(n):
            for column in range(5):
                pieces[i, column] = points[i, column]
        return n
    domain = points[0, 0]
    m = 0
    low_key, low_offset = _INT64_MIN, np.int64(0)
    for i in range(n):
        m = _put(pieces, m, domain, low_key, low_offset, points[i, 1], points[i, 2])
        low_key, low_offset = points[i, 3], points[i, 4]
    return _put(pieces, m, domain, low_key, low_offset, _INT64_MAX, 1)


@inner
def _put_predicate(
    pieces: Integers,
    rows: PredicateRows,
    row: Scalar,
    literals: Literals,
    likes: Likes,
    string_follows: Bytes,
    points: Integers,
) -> Scalar:
    """Write what one predicate allows of present values (IS NULL and NOT NULL apart)."""
    op = np.int64(rows.op[row])
    at = rows.literal_start[row]
    if op == IN or op == NOT_IN:
        return _put_membership(
            pieces, literals, at, rows.n_literals[row], op == NOT_IN, string_follows, points
        )
    if op == LIKE or op == NOT_LIKE:
        return _put_like(pieces, op, at, likes)
    if op == NO_TEXT:
        return _put_domains(pieces, _STRING)
    if op == OTHER_THAN:
        return _put_others(pieces, literals, at, string_follows)
    domain: Scalar = np.int64(_BOOLEAN)
    key: Scalar = np.int64(op == IS_TRUE)
    offset: Scalar = np.int64(0)
    first: Scalar = np.int64(EQ)
    last: Scalar = np.int64(EQ)
    if op < IS_TRUE:
        domain, key, offset = (
            np.int64(literals.domain[at]),
            literals.key[at],
            np.int64(literals.offset[at]),
        )
        first, last = op, op
    if op == BETWEEN:
        if literals.domain[at] != literals.domain[at + 1]:
            return 0
        first, last = GE, LE
    elif op == NOT_BETWEEN:
        first, last = LT, GT
    n = 0
    if domain >= 0:
        n = _put_comparison(
            pieces, n, first, domain, key, offset, _mark(string_follows, domain, key)
        )
    if first == last or (op == BETWEEN and n == 0):
        return n
    domain, key, offset = (
        np.int64(literals.domain[at + 1]),
        literals.key[at + 1],
        np.int64(literals.offset[at + 1]),
    )
    if op == BETWEEN:
        high_key, high_offset = _after(domain, key, offset)
        return _put(pieces, 0, domain, pieces[0, 1], pieces[0, 2], high_key, high_offset)
    if domain >= 0:
        n = _put_comparison(pieces, n, last, domain, key, offset, np.uint8(0))
    return _sort_and_unite(pieces, n)


@inner
def _put_others(pieces: Integers, literals: Literals, at: Scalar, string_follows: Bytes) -> Scalar:
    """Write all present values but one."""
    own = np.int64(literals.domain[at])
    n = _put_domains(pieces, own)
    if own >= 0:
        key, offset = literals.key[at], np.int64(literals.offset[at])
        n = _put_comparison(pieces, n, NE, own, key, offset, _mark(string_follows, own, key))
    return _sort_and_unite(pieces, n)


@inner
def _put_domains(pieces: Integers, without: Scalar) -> Scalar:
    """Write all values of all domains but one."""
    n = 0
    for each in range(4):
        if each != without:
            n = _put(pieces, n, np.int64(each), _INT64_MIN, 0, _INT64_MAX, 1)
    return n


@inner
def _put_like(pieces: Integers, op: Scalar, at: Scalar, likes: Likes) -> Scalar:
    if likes.pattern[at] < -1:
        return 0
    low_key, low_offset = likes.low_key[at], np.int64(likes.low_offset[at])
    high_key, high_offset = likes.high_key[at], np.int64(likes.high_offset[at])
    if op == LIKE:
        return _put(pieces, 0, _STRING, low_key, low_offset, high_key, high_offset)
    if likes.pattern[at] >= 0:
        return _put(pieces, 0, _STRING, _INT64_MIN, 0, _INT64_MAX, 1)
    n = _put(pieces, 0, _STRING, _INT64_MIN, 0, low_key, low_offset)
    return _put(pieces, n, _STRING, high_key, high_offset, _INT64_MAX, 1)


@inner
def _integer_cut(key: Scalar, offset: Scalar) -> tuple[Scalar, Scalar]:
    """Move a cut on the number line up to the next integer, as a canonical cut."""
    if key == _INT64_MIN or (key == _INT64_MAX and offset == 1):
        return key, offset
    value = np.int64(key if key >= 0 else key ^ _INT64_MAX).view(np.float64)
    if value >= 9223372036854775808.0:
        return _INT64_MAX, np.int64(1)
    if value < -9223372036854775808.0:
        return _INT64_MIN, np.int64(0)
    up = np.ceil(value)
    integer = np.int64(up)
    if up == value:
        step = (offset >> 1) + (offset & 1)
        if integer > _INT64_MAX - step:
            return _INT64_MAX, np.int64(1)
        integer += step
    if integer == _INT64_MIN:
        return _INT64_MIN, np.int64(0)
    below = min(np.float64(integer), 9223372036854774784.0)
    if np.int64(below) > integer:
        below = np.nextafter(below, -np.inf)
    bits = np.float64(below).view(np.int64)
    return (bits if bits >= 0 else bits ^ _INT64_MAX), 2 * (integer - np.int64(below))


@inner
def _tighten(pieces: Integers, n: Scalar) -> Scalar:
    """Tighten the number pieces of an attribute declared integer."""
    n_out = 0
    for i in range(n):
        low_key, low_offset, high_key, high_offset = (
            pieces[i, 1],
            pieces[i, 2],
            pieces[i, 3],
            pieces[i, 4],
        )
        if pieces[i, 0] == _NUMBER:
            low_key, low_offset = _integer_cut(low_key, low_offset)
            high_key, high_offset = _integer_cut(high_key, high_offset)
        n_out = _put(pieces, n_out, pieces[i, 0], low_key, low_offset, high_key, high_offset)
    return _sort_and_unite(pieces, n_out)


@inner
def _is_whole_domain(pieces: Integers, n: Scalar, domain: Scalar) -> Scalar:
    return (
        n == 1
        and pieces[0, 0] == domain
        and pieces[0, 1] == _INT64_MIN
        and pieces[0, 2] == 0
        and pieces[0, 3] == _INT64_MAX
        and pieces[0, 4] == 1
    )


@inner
def _clashes(
    rows: PredicateRows, row: Scalar, literals: Literals, likes: Likes, declared_domain: Scalar
) -> Scalar:
    """Whether a predicate's literals do not fit the declared line of its attribute."""
    op = rows.op[row]
    if op == IS_NULL or op == NOT_NULL:
        return False
    if op == IS_TRUE or op == IS_FALSE:
        return declared_domain != _BOOLEAN
    if op == LIKE or op == NOT_LIKE:
        return declared_domain != _STRING or likes.pattern[rows.literal_start[row]] == -2
    for at in range(rows.literal_start[row], rows.literal_start[row] + rows.n_literals[row]):
        if literals.domain[at] >= 0 and literals.domain[at] != declared_domain:
            return True
    return False


class Scratch(NamedTuple):
    """Room for piece lists while one attribute's predicates are folded."""

    current: Integers
    following: Integers
    spare: Integers
    points: Integers


@inner
def _fold_predicate(
    rows: PredicateRows,
    row: Scalar,
    literals: Literals,
    likes: Likes,
    string_follows: Bytes,
    n: Scalar,
    flags: Scalar,
    scratch: Scratch,
) -> tuple[Scalar, Scalar]:
    """Intersect the set in `scratch.current` with one more predicate; return its n and flags."""
    op = rows.op[row]
    if op == IS_NULL:
        return np.int64(0), flags & _ABSENT
    if op == NOT_NULL:
        return n, flags & _PRESENT
    is_first = flags & _PRESENT
    room = scratch.current if is_first else scratch.following
    m = _put_predicate(room, rows, row, literals, likes, string_follows, scratch.points)
    if is_first:
        return m, np.int64(0)
    n = _intersect(scratch.current, n, scratch.following, m, scratch.spare)
    for i in range(n):
        for column in range(5):
            scratch.current[i, column] = scratch.spare[i, column]
    return n, np.int64(0)


@inner
def _fold_attribute(
    rows: PredicateRows,
    order: Integers,
    i: Scalar,
    j: Scalar,
    literals: Literals,
    likes: Likes,
    declared: Declared,
    string_follows: Bytes,
    scratch: Scratch,
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Fold the predicates of one attribute: return verdict, n, flags and the pattern's row."""
    attribute = rows.attribute[order[i]]
    domain, kind = declared.domain[attribute], declared.kind[attribute]
    n, flags, general = np.int64(0), np.int64(_ABSENT | _PRESENT), np.int64(-1)
    nothing = np.int64(0)
    for k in range(i, j):
        row = order[k]
        if domain >= 0 and _clashes(rows, row, literals, likes, domain):
            return np.int64(LEFT_OVER), nothing, nothing, general
        if rows.op[row] == LIKE or rows.op[row] == NOT_LIKE:
            pattern = likes.pattern[rows.literal_start[row]]
            if pattern == -3:
                return np.int64(LEFT_OVER), nothing, nothing, general
            if pattern >= 0:
                general = row
        n, flags = _fold_predicate(rows, row, literals, likes, string_follows, n, flags, scratch)
    if general >= 0 and j - i > 1:
        return np.int64(LEFT_OVER), nothing, nothing, general
    if kind == _INTEGER_KIND and flags == 0:
        n = _tighten(scratch.current, n)
    if domain >= 0 and general < 0 and kind != _FLOAT_KIND:
        if _is_whole_domain(scratch.current, n, domain):
            flags, n = flags | _PRESENT, nothing
    return np.int64(NEVER if flags == 0 and n == 0 else KEPT), n, flags, general


@inlined
def _write_condition(
    out: Conditions,
    condition: Scalar,
    piece: Scalar,
    attribute: Scalar,
    flags: Scalar,
    current: Integers,
    n: Scalar,
) -> None:
    out.attribute[condition] = attribute
    out.flags[condition] = flags
    for p in range(n):
        out.domain[piece + p] = current[p, 0]
        out.low_key[piece + p] = current[p, 1]
        out.low_offset[piece + p] = current[p, 2]
        out.high_key[piece + p] = current[p, 3]
        out.high_offset[piece + p] = current[p, 4]
    out.piece_end[condition] = piece + n


@inlined
def _interval(
    op: Scalar,
    domain: Scalar,
    key: Scalar,
    offset: Scalar,
    follows: Scalar,
    key2: Scalar,
    tail2: Scalar,
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """The interval that a comparison or BETWEEN is: lower and upper cut (crossed: empty)."""
    low_key, low_offset = _INT64_MIN, np.int64(0)
    high_key, high_offset = _INT64_MAX, np.int64(1)
    if op == EQ or op == GE or op == BETWEEN:
        low_key, low_offset = _before(domain, key, offset, follows)
    elif op == GT:
        low_key, low_offset = _after(domain, key, offset)
    if op == LT:
        high_key, high_offset = _before(domain, key, offset, follows)
    elif op != GE and op != GT:
        high_key, high_offset = _after(domain, key2, tail2)
    return low_key, low_offset, high_key, high_offset


@kernel
def fold(
    rows: PredicateRows,
    literals: Literals,
    likes: Likes,
    declared: Declared,
    string_follows: Bytes,
    status: Bytes,
    out: Conditions,
    scratch: Scratch,
    order: Integers,
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Fold each conjunction's predicates into one condition per attribute.

    Returns the numbers of conjunctions, conditions, pieces and pattern rows written; `status` says
    what became of each conjunction. Written conjunctions stand in their order.

    An attribute whose predicates are all comparisons (but <>) or BETWEEN, the common case, needs no
    piece list: it is written out here, over single arrays, because tuples of arrays that are passed
    on have their references counted.
    """
    row_start, attributes, ops = rows.row_start, rows.attribute, rows.op
    literal_start = rows.literal_start
    domains, keys, offsets = literals.domain, literals.key, literals.offset
    declared_domains, declared_kinds = declared.domain, declared.kind
    out_attribute, out_flags, out_piece_end = out.attribute, out.flags, out.piece_end
    out_domain, out_low_key, out_low_offset = out.domain, out.low_key, out.low_offset
    out_high_key, out_high_offset, out_condition_end = (
        out.high_key,
        out.high_offset,
        out.condition_end,
    )
    n_written, n_conditions, n_pieces, n_patterns = 0, 0, 0, 0
    for c in range(len(row_start) - 1):
        first = row_start[c]
        count = row_start[c + 1] - first
        for start in range(count):  # the row numbers, ordered by attribute, stably
            place, row = start, first + start
            while place > 0 and attributes[order[place - 1]] > attributes[row]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = row
        verdict = np.int64(KEPT)
        condition, piece, pattern = n_conditions, n_pieces, n_patterns
        i: Scalar = np.int64(0)
        while i < count and verdict != LEFT_OVER:  # a contradiction does not excuse a clash
            attribute = attributes[order[i]]
            declared_domain = declared_domains[attribute]
            outcome, domain = np.int64(KEPT), np.int64(-1)
            low_key, low_offset = _INT64_MIN, np.int64(0)
            high_key, high_offset = _INT64_MAX, np.int64(1)
            j = i
            while j < count and attributes[order[j]] == attribute:
                row = order[j]
                j += 1
                if outcome == NOT_SIMPLE or outcome == LEFT_OVER:
                    continue
                op = ops[row]
                if op > BETWEEN or op == NE:
                    outcome = np.int64(NOT_SIMPLE)
                    continue
                at = literal_start[row]
                to = at + 1 if op == BETWEEN else at
                here, there = np.int64(domains[at]), np.int64(domains[to])
                if declared_domain >= 0 and (
                    (here >= 0 and here != declared_domain)
                    or (there >= 0 and there != declared_domain)
                ):
                    outcome = np.int64(LEFT_OVER)
                    continue
                if here < 0 or there != here or (domain >= 0 and here != domain):
                    outcome = np.int64(NEVER)
                    continue
                domain, key = here, keys[at]
                follows = string_follows[key] if domain == _STRING else np.uint8(0)
                a_key, a_offset, b_key, b_offset = _interval(
                    op, domain, key, np.int64(offsets[at]), follows, keys[to], np.int64(offsets[to])
                )
                if _less(low_key, low_offset, a_key, a_offset):
                    low_key, low_offset = a_key, a_offset
                if _less(b_key, b_offset, high_key, high_offset):
                    high_key, high_offset = b_key, b_offset
            if declared_kinds[attribute] == _INTEGER_KIND and domain == _NUMBER:
                low_key, low_offset = _integer_cut(low_key, low_offset)
                high_key, high_offset = _integer_cut(high_key, high_offset)
            if outcome == KEPT:
                if not _less(low_key, low_offset, high_key, high_offset):
                    outcome = np.int64(NEVER)
                elif low_key == _INT64_MIN and high_key == _INT64_MAX:
                    outcome = np.int64(NOT_SIMPLE)  # the whole domain: perhaps every present value
                elif verdict == KEPT:
                    out_attribute[condition] = attribute
                    out_flags[condition] = 0
                    out_domain[piece] = domain
                    out_low_key[piece] = low_key
                    out_low_offset[piece] = low_offset
                    out_high_key[piece] = high_key
                    out_high_offset[piece] = high_offset
                    piece += 1
                    out_piece_end[condition] = piece
                    condition += 1
            if outcome == NOT_SIMPLE:
                outcome, n, flags, general = _fold_attribute(
                    rows, order, i, j, literals, likes, declared, string_follows, scratch
                )
                if verdict == KEPT and outcome == KEPT:
                    _write_condition(out, condition, piece, attribute, flags, scratch.current, n)
                    if general >= 0:
                        out.pattern_condition[pattern] = condition
                        out.pattern_id[pattern] = likes.pattern[literal_start[general]]
                        out.pattern_negated[pattern] = ops[general] == NOT_LIKE
                        pattern += 1
                    condition, piece = condition + 1, piece + n
            verdict = max(verdict, outcome)
            i = j
        status[c] = verdict
        if verdict == KEPT:
            n_conditions, n_pieces, n_patterns = condition, piece, pattern
            out_condition_end[n_written] = n_conditions
            n_written += 1
    return n_written, n_conditions, n_pieces, n_patterns


@inner
def _condition_covers(
    a: Scalar,
    b: Scalar,
    t_flags: Bytes,
    t_start: Integers,
    t_domain: Bytes,
    t_cuts: Integers,
    t_pattern: Integers,
) -> Scalar:
    """Whether condition a of a table allows all that condition b allows (sound)."""
    if t_flags[b] & ~t_flags[a] & (_ABSENT | _PRESENT):
        return False
    if t_pattern[a] >= 0 and t_pattern[a] != t_pattern[b]:
        return False
    if t_flags[a] & _PRESENT:
        return True
    i, end = t_start[a], t_start[a + 1]
    for j in range(t_start[b], t_start[b + 1]):
        while i < end and (
            t_domain[i] < t_domain[j]
            or (
                t_domain[i] == t_domain[j]
                and _less(t_cuts[i, 2], t_cuts[i, 3], t_cuts[j, 2], t_cuts[j, 3])
            )
        ):
            i += 1
        if i == end or t_domain[i] != t_domain[j]:
            return False
        if _less(t_cuts[j, 0], t_cuts[j, 1], t_cuts[i, 0], t_cuts[i, 1]):
            return False
    return True


@inner
def _conjunction_covers(
    a: Scalar,
    b: Scalar,
    c_start: Integers,
    t_attribute: NDArray[np.int32],
    t_flags: Bytes,
    t_start: Integers,
    t_domain: Bytes,
    t_cuts: Integers,
    t_pattern: Integers,
) -> Scalar:
    j, end = c_start[b], c_start[b + 1]
    for i in range(c_start[a], c_start[a + 1]):
        while j < end and t_attribute[j] < t_attribute[i]:
            j += 1
        if j == end or t_attribute[j] != t_attribute[i]:
            return False
        if not _condition_covers(i, j, t_flags, t_start, t_domain, t_cuts, t_pattern):
            return False
    return True


@kernel
def mark_uncovered(
    subscription: Integers,
    c_start: Integers,
    t_attribute: NDArray[np.int32],
    t_flags: Bytes,
    t_start: Integers,
    t_domain: Bytes,
    t_cuts: Integers,
    t_pattern: Integers,
    most: Scalar,
    keep: Flags,
) -> None:
    """Mark for keeping each conjunction that no sibling covers."""
    first = 0
    n = len(subscription)
    while first < n:
        last = first + 1
        while last < n and subscription[last] == subscription[first]:
            last += 1
        if 1 < last - first <= most:
            for b in range(first, last):
                for a in range(first, last):
                    if a == b or not keep[a]:
                        continue
                    if _conjunction_covers(
                        a, b, c_start, t_attribute, t_flags, t_start, t_domain, t_cuts, t_pattern
                    ):
                        keep[b] = False
                        break
        first = last
