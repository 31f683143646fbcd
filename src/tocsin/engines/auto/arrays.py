"""The flat arrays of a segment: the types that kernels take as arguments, and the flags of entries.

An *entry* is a conjunction under one key, in two 64-bit words: 16 bits each of attribute, low and
width of its first residual condition and the attribute of its second; then low and width of the
second, and the conjunction's number with flags on top. A code c satisfies a residual condition
when `c - low` as an unsigned 16-bit number is at most the width, so one subtraction and one
comparison check both ends, and a miss touches no other cache line.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Codes: TypeAlias = NDArray[np.uint16]
Numbers: TypeAlias = NDArray[np.uint32]
Octets: TypeAlias = NDArray[np.uint8]
Cells: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any

NEEDS_CHECK = np.uint32(1 << 31)
"""Flag of a number: the words compared do not decide; verify against all conditions."""
CHECK_AT_ENDS = np.uint32(1 << 30)
"""Flag of an entry: it needs a check where a code is an end of the first range."""
CHECK_AT_ENDS2 = np.uint32(1 << 29)
"""The same for the second range."""
NUMBER = np.uint32((1 << 29) - 1)
"""The bits of a conjunction's number."""

COUNT_ESCAPE = 0xFFFF
"""Escape value: the number of conditions does not fit 16 bits and follows in two words."""

N_BANDS = 64
"""The number of bands of an attribute in a bitmap."""


class Conditions(NamedTuple):
    """The conditions of conjunctions: by conjunction, as half-open ranges of cells."""

    start: Integers
    attribute: Cells
    range_start: Integers
    low: Cells
    high: Cells


class Stream(NamedTuple):
    """The same in few bytes: the words of conjunction c begin at `start[c]`.

    They are the number of conditions (or `COUNT_ESCAPE`, and the number in two words), and for each
    condition a word with its form in the top two bits and its attribute below, then: a cell (form
    0), a low and a high (form 1), the same in two words each (form 2), or (form 3) in two words
    each the attribute, the number of ranges, and their bounds.
    """

    start: Numbers
    words: Codes


class Coding(NamedTuple):
    """Per attribute how cells become codes (16 bits) and codes become key digits.

    The code of a cell is itself where `is_exact`, else all cells are spread over 16 bits. The digit
    of a code is `digit[first[a] + code]`: where `is_point`, the number of a marked code (-1: not
    marked), else `(code - 2) >> shift` (-1 for the codes of absent and other values).
    """

    n_cells: Integers
    is_exact: Flags
    is_point: Flags
    shift: Integers
    first: Integers
    digit: Cells
    n_digits: Integers


class Keys(NamedTuple):
    """The keys of access tables; the tables of a family share the first attributes of their keys.

    A family's keys are numbered by (digits of the prefix, member, digit of the member's attribute).
    A member without an attribute (-1) has one digit; `member_digit` is where the digits of its
    attribute's codes begin. The rows of key k, its cluster, are `start[k] : start[k + 1]`.
    """

    prefix_start: Integers
    prefix: Integers
    member_start: Integers
    member_attribute: Integers
    member_offset: Integers
    member_digit: Integers
    base: Integers
    stride: Integers
    start: Numbers


class ColumnArrays(NamedTuple):
    """The rows of tables whose conjunctions have the same two residual attributes.

    Per member the attribute whose lower bounds order a cluster (`window`), and another or -1. Per
    row the bounds on the window attribute, the greatest upper bound up to it in its cluster, and
    low and width of the other range: in cells, not codes, so that they and the key decide.
    """

    window: Integers
    other: Integers
    low: Numbers
    high: Numbers
    reach: Numbers
    other_low: Numbers
    other_width: Numbers
    number: Numbers


class Slots(NamedTuple):
    """For the family of `groups`: the slot of each entry, its key below the prefix.

    `low` and `high` are where the codes of each slot begin and end among the codes of all
    attributes; the codes of attribute a begin at `first[a]`.
    """

    of_entry: Codes
    low: Numbers
    high: Numbers
    first: Numbers


class GroupCosts(NamedTuple):
    """The costs of matching events in groups, in nanoseconds.

    `probe`: a lookup of an event in a table, plus `far` as the entries outgrow the cache; `check`:
    an entry against an event. By masks: `few` and `many` for an entry against up to 64 and up to
    512 events, `mark` for an attribute of an event, `code` for a code of a mask.
    """

    probe: float
    far: float
    check: float
    few: float
    many: float
    mark: float
    code: float


class BitmapArrays(NamedTuple):
    """Conjunctions in words of 64: for each word and attribute, which of them a band admits.

    Word w has the attributes `attribute[start[w] : start[w + 1]]`; for the i-th of all,
    `admitted[i * N_BANDS + band]` is a bit mask. `number[64 * w + bit]` is a conjunction, flagged
    where the ranges on the first eight attributes do not decide: `first[8 * w]` and on are those
    attributes, or 0, and `low[8 * (64 * w + bit)]` and on the ranges.
    """

    start: Integers
    attribute: Integers
    admitted: Words
    number: Numbers
    first: Cells
    low: Numbers
    width: Numbers


class Clusters(NamedTuple):
    """The clusters under the keys of an event: first row, end, and the member of each."""

    start: Integers
    end: Integers
    member: Integers


class Block(NamedTuple):
    """Some events of a batch: a bit mask of the attributes of each, and codes by attribute.

    `begin` and `end` are where their values are among the present ones, by attribute.
    """

    bits: Numbers
    codes: Codes
    begin: Integers
    end: Integers


class Chains(NamedTuple):
    """The entries of a delta: under prefixes, in chains of blocks that grow at their ends.

    A prefix p has two chains: 2 p of points, entries whose two conditions are of one code each, and
    2 p + 1 of ranges, all others. Chain c begins with block `head[c]`, and block b is followed by
    `following[b]`, or -1. A block has `BLOCK_SIZE` entries. The conjunction of the i-th is
    `number[BLOCK_SIZE * b + i]`, or `NO_NUMBER`. `bounds[4 * BLOCK_SIZE * b]` and on are positions
    among the codes of all attributes (see `Slots`): two for a point, and four for two ranges, where
    each begins and ends. For a reader only later additions change: conjunctions above its limit,
    and blocks of them.
    """

    head: Cells
    following: Cells
    bounds: Codes
    number: Numbers


class Programs(NamedTuple):
    """LIKE patterns as programs of bytes, see `like_kernels`.

    That of pattern p is `octets[start[p] : start[p + 1]]`.
    """

    start: Integers
    octets: Octets


class Automaton(NamedTuple):
    """The literals of LIKE patterns, to be looked for in a text all at once.

    Literals of fewer than four bytes are in `short`, a hash table of `short_key << 32 | literal`;
    bit k of `short_lengths[byte]` says that one of k bytes begins with a byte. For the others there
    is a trie whose roots are their first four bytes, with the links of Aho and Corasick: `roots` is
    a hash table of `bytes << 32 | node`, `filter` has a bit for the hash of each root. Nodes are
    numbered depth first. Row s of `nodes` is a word with the byte of its first child, which is node
    s + 1, or 256, and a flag for more children; the node of its longest proper suffix, or -1; the
    longest literal that it ends with, or -1. The other children are in `edges`, a hash table of
    `node << 36 | byte << 28 | child`. The literal that a literal ends with is `shorter`, or -1.
    Tables have free places (all bits set), and a power of two of places.

    The patterns of a literal are numbered from `first[l] >> 1` up to `first[l + 1] >> 1`; where
    `first[l]` is odd, a text with the literal fits the first of them.
    """

    short_lengths: Octets
    short: Words
    filter: Words
    roots: Words
    nodes: Cells
    edges: Words
    shorter: Cells
    first: Integers


BLOCK_SIZE = 16
"""The entries of a block of a chain."""
NO_NUMBER = np.uint32(0xFFFFFFFF)
