"""Conditions → predicate numbers, and cells → satisfied predicates; compiled.

Enters: conditions as flat arrays; the cells of events. Leaves: the number of each condition's
predicate; for each event the numbers of those it satisfies.

A predicate is defined by a run of words: its attribute and flags, then three for each piece (line
and tails, low key, high key). Equal runs are one predicate, found by hashing.

The index of an attribute is an interval tree over its cells, a binary tree numbered as a heap. A
range of cells stands at the lowest node above all of it; the middle of that node is inside the
range, so a range holds a cell left of the middle if it starts at or before the cell; such ranges
come first in the order of starts. To the right it is the order of ends. A range of one cell stands
at a leaf. So space is linear, and an event pays for the height and for what it satisfies.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]
Scalar: TypeAlias = Any

N_NUMBERS, N_WORDS, FREE, N_FRESH, N_REVIVED = range(5)
"""Places in `Definitions.state`: numbers ever given, words used, the first free number; how many
predicates were new in this call, and how many had been without a use."""


class Conditions(NamedTuple):
    """The conditions of a conjunction table, their attributes and strings numbered by the book."""

    attribute: Numbers
    flags: NDArray[np.uint8]
    piece_start: Integers
    domain: NDArray[np.uint8]
    low_key: Integers
    low_offset: NDArray[np.int16]
    high_key: Integers
    high_offset: NDArray[np.int16]


class Definitions(NamedTuple):
    """The predicates by number; `start` is -1 where a number is free.

    `following` is the next predicate of the same bucket, or the next free number.
    """

    words: Integers
    start: Integers
    n_pieces: Numbers
    uses: Numbers
    following: Numbers
    bucket: Numbers
    state: Integers


class Trees(NamedTuple):
    """The interval trees of some attributes, one after another.

    An attribute's nodes start at `first_node`; its leaves are nodes `n_leaves + cell`. Ranges
    stand at leaves only where `height` is 0. The items of a node stand in both orders.
    """

    first_node: Integers
    n_leaves: Integers
    height: Integers
    node_start: Integers
    by_low: Numbers
    low: Numbers
    by_high: Numbers
    high: Numbers


@inlined
def _bucket_of(d: Definitions, start: Scalar, n_words: Scalar) -> Scalar:
    """Return the bucket of a run of words."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for i in range(start, start + n_words):
        h = (h ^ np.uint64(d.words[i])) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    return np.int64(h & np.uint64(len(d.bucket) - 1))


@inlined
def _are_same(d: Definitions, a: Scalar, b: Scalar, n_words: Scalar) -> Scalar:
    for i in range(n_words):
        if d.words[a + i] != d.words[b + i]:
            return False
    return True


@inlined
def _write_words(d: Definitions, at: Scalar, conditions: Conditions, i: Scalar) -> None:
    d.words[at] = (np.int64(conditions.attribute[i]) << 8) | np.int64(conditions.flags[i])
    at += 1
    for p in range(conditions.piece_start[i], conditions.piece_start[i + 1]):
        offsets = ((np.int64(conditions.low_offset[p]) & 0xFFFF) << 16) | (
            np.int64(conditions.high_offset[p]) & 0xFFFF
        )
        d.words[at] = (np.int64(conditions.domain[p]) << 32) | offsets
        d.words[at + 1] = conditions.low_key[p]
        d.words[at + 2] = conditions.high_key[p]
        at += 3


@kernel
def intern(
    conditions: Conditions, d: Definitions, first: int, numbers: Numbers, fresh: Numbers
) -> int:
    """Write the predicate of each condition from `first` on; return where room ran out.

    The numbers of new predicates are written to `fresh`.
    """
    for i in range(first, len(conditions.attribute)):
        n = conditions.piece_start[i + 1] - conditions.piece_start[i]
        n_words = 1 + 3 * n
        at = d.state[N_WORDS]
        is_full = d.state[FREE] < 0 and d.state[N_NUMBERS] >= len(d.start)
        if is_full or at + n_words > len(d.words):
            return i
        _write_words(d, at, conditions, i)
        b = _bucket_of(d, at, n_words)
        p = np.int64(d.bucket[b])
        while p >= 0 and not (d.n_pieces[p] == n and _are_same(d, d.start[p], at, n_words)):
            p = np.int64(d.following[p])
        if p < 0:
            p = d.state[FREE]
            if p >= 0:
                d.state[FREE] = d.following[p]
            else:
                p = d.state[N_NUMBERS]
                d.state[N_NUMBERS] += 1
            d.start[p], d.n_pieces[p], d.uses[p] = at, n, 0
            d.following[p], d.bucket[b] = d.bucket[b], p
            d.state[N_WORDS] = at + n_words
            fresh[d.state[N_FRESH]] = p
            d.state[N_FRESH] += 1
        elif d.uses[p] == 0:
            d.state[N_REVIVED] += 1
        d.uses[p] += 1
        numbers[i] = p
    return len(conditions.attribute)


@kernel
def release(d: Definitions, predicates: Numbers) -> int:
    """Count one use less of each predicate; return how many are no longer used."""
    n_dead = 0
    for i in range(len(predicates)):
        d.uses[predicates[i]] -= 1
        n_dead += d.uses[predicates[i]] == 0
    return n_dead


@kernel
def drop(d: Definitions, predicates: Numbers) -> int:
    """Forget predicates, so that their numbers are free; return how many words they had."""
    n_gone = 0
    for i in range(len(predicates)):
        p = predicates[i]
        n_words = 1 + 3 * np.int64(d.n_pieces[p])
        b = _bucket_of(d, d.start[p], n_words)
        if d.bucket[b] == p:
            d.bucket[b] = d.following[p]
        else:
            before = d.bucket[b]
            while d.following[before] != p:
                before = d.following[before]
            d.following[before] = d.following[p]
        d.start[p] = -1
        d.following[p] = d.state[FREE]
        d.state[FREE] = p
        n_gone += int(n_words)
    return n_gone


@kernel
def relink(d: Definitions) -> None:
    """Rehash all predicates."""
    d.bucket[:] = -1
    for p in range(d.state[N_NUMBERS]):
        if d.start[p] >= 0:
            b = _bucket_of(d, d.start[p], 1 + 3 * np.int64(d.n_pieces[p]))
            d.following[p], d.bucket[b] = d.bucket[b], p


@inlined
def _stab(trees: Trees, column: Scalar, cell: Scalar, out: Numbers, n_out: Scalar) -> Scalar:
    """Write the predicates of one attribute that hold a cell; return the new count, or -1."""
    place = trees.n_leaves[column] + cell
    base = trees.first_node[column]
    for level in range(trees.height[column] + 1):
        node = base + (place >> level)
        start, end = trees.node_start[node], trees.node_start[node + 1]
        if start == end:
            continue
        if n_out + end - start > len(out):
            return np.int64(-1)
        middle = ((cell >> level) << level) + (1 << level >> 1)
        if level == 0:
            for i in range(start, end):
                out[n_out] = trees.by_low[i]
                n_out += 1
        elif cell < middle:
            for i in range(start, end):
                if trees.low[i] > cell:
                    break
                out[n_out] = trees.by_low[i]
                n_out += 1
        else:
            for i in range(start, end):
                if trees.high[i] <= cell:
                    break
                out[n_out] = trees.by_high[i]
                n_out += 1
    return n_out


@kernel
def find_satisfied(
    trees: Trees, cells: NDArray[np.int32], first: int, ends: Integers, done: int, out: Numbers
) -> int:
    """Write the predicates that events satisfy, from event `first + done` on.

    Those of event `first + k` end at `ends[k + 1]` and start at `ends[k]`. Returns how many of the
    events are done; fewer than there are when the room ran out.
    """
    for k in range(done, len(ends) - 1):
        n_out = ends[k]
        for column in range(len(trees.height)):
            n_out = _stab(trees, column, np.int64(cells[column, first + k]), out, n_out)
            if n_out < 0:
                return k
        ends[k + 1] = n_out
    return len(ends) - 1
