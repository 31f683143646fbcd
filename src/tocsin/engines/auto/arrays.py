"""The flat arrays of a segment, by name: what the builders write and the matching kernels read.

Nothing but names: types that kernels take as arguments, and the flags of an entry.

An *entry* stands for a conjunction under one key, in two 64-bit words: 16 bits each of attribute,
low and width of its first residual condition and the attribute of its second; then low and width of
the second, and the conjunction's number with a flag on top. A code c satisfies a residual condition
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
Cells: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any

IS_OPEN = np.uint32(1 << 31)
"""Flag of a number: what was looked at does not say all, the conditions have to be checked."""
OPEN_AT_ENDS = np.uint32(1 << 30)
"""Flag of an entry: it is open where a code is an end of the first range."""
OPEN_AT_ENDS2 = np.uint32(1 << 29)
"""The same for the second range."""
NUMBER = np.uint32((1 << 29) - 1)
"""The bits of a conjunction's number."""

MANY = 0xFFFF
"""So many conditions of a conjunction, or more, are not counted in one word of the stream."""

N_BANDS = 64
"""How many bands the cells of an attribute fall into in a bitmap."""


class Conditions(NamedTuple):
    """The conditions of conjunctions: by conjunction, as half-open ranges of cells."""

    start: Integers
    attribute: Cells
    range_start: Integers
    low: Cells
    high: Cells


class Stream(NamedTuple):
    """The same in few bytes: the words of conjunction c begin at `start[c]`.

    They are the number of conditions (`MANY` of them or more: that, and the number in two words),
    and for each condition a word with its form in the top two bits and its attribute below, then: a
    cell (form 0), a low and a high (form 1), the same in two words each (form 2), or (form 3) in
    two words each the attribute, the number of ranges, and their bounds.
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
    """The keys of access tables: families of tables share the leading attributes of their keys.

    A family's keys are numbered (digits of the prefix, member, digit of the member's attribute).
    A member without an attribute (-1) has one digit; `member_digit` is where the digits of its
    attribute's codes stand. What is kept under key k is at `start[k] : start[k + 1]`.
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


class Columns(NamedTuple):
    """What is kept in tables whose conjunctions have the same two residual attributes.

    Per member the attribute whose lower bounds order a cluster (`window`) and another or -1. Per
    conjunction the bounds of its window, the greatest upper bound up to it in its cluster, and low
    and width of the other range: cells, not codes, so they and the key say it all.
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
    """For a family whose keys are met by groups of events: an entry's place below its prefix.

    `of_entry` is that place; `low` and `high` are where the codes of each place begin and end among
    the codes of all attributes, those of attribute a starting at `first[a]`.
    """

    of_entry: Codes
    low: Numbers
    high: Numbers
    first: Numbers


class GroupCosts(NamedTuple):
    """What it costs to meet events with entries in groups, in nanoseconds.

    `probe`: an event's look into a table, and `far` what is added as entries get too many for the
    cache; `check`: an entry against an event. By masks: `few` and `many` for an entry against up to
    64 events and up to 512, `mark` for an attribute of an event, and `code` for a code of a mask.
    """

    probe: float
    far: float
    check: float
    few: float
    many: float
    mark: float
    code: float


class Bitmaps(NamedTuple):
    """Conjunctions in words of 64: for each word and attribute, which of them a band admits.

    Word w has the attributes `attribute[start[w] : start[w + 1]]`; for the i-th of them
    `admitted[i * N_BANDS + band]` are the bits; `number[64 * w + bit]` is a conjunction, open where
    the ranges of the first eight attributes do not say all: `first[8 * w]` and on are those, or 0,
    and `low[8 * (64 * w + bit)]` and on their ranges.
    """

    start: Integers
    attribute: Integers
    admitted: Words
    number: Numbers
    first: Cells
    low: Numbers
    width: Numbers


class Clusters(NamedTuple):
    """The clusters that an event finds: first entry, end, and the member of each."""

    start: Integers
    end: Integers
    member: Integers


class Block(NamedTuple):
    """Some events of a batch: as bits which attributes they have, and codes by attribute.

    `begin` and `end` say where their values stand, by attribute, among those that are present.
    """

    bits: Numbers
    codes: Codes
    begin: Integers
    end: Integers


class Chains(NamedTuple):
    """What is recent: entries under prefixes, in chains of blocks that grow at their ends.

    A prefix p has two: the chain 2 p of points, entries whose two conditions are of one code each,
    and 2 p + 1 of ranges, all others. Chain c begins with block `head[c]`, and b is followed by
    `following[b]`; -1 is none. A block has `IN_BLOCK` entries. `number[IN_BLOCK * b + i]` is the
    conjunction of the i-th, or `NO_NUMBER`; `bounds[4 * IN_BLOCK * b]` and on are, among the codes
    of all attributes (see `Slots`), two for each point, and four for two ranges, where each begins
    and ends. Only what is written later ever changes for a reader: a number that it does not know,
    or a block of such.
    """

    head: Cells
    following: Cells
    bounds: Codes
    number: Numbers


IN_BLOCK = 16
"""How many entries a block of a chain has."""
NO_NUMBER = np.uint32(0xFFFFFFFF)
