"""The delta, compiled: entries under prefixes, in chains of blocks that grow at their ends.

See `delta` and `arrays.Chains`. A chain is compared with up to 64 events of its prefix at a time,
by masks as in `group_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    BLOCK_SIZE,
    NUMBER,
    Cells,
    Chains,
    Codes,
    Integers,
    Numbers,
    Scalar,
    Words,
)
from tocsin.engines.auto.mask_kernels import (
    accumulate_one,
    add_pairs,
    end_of_run,
    mark_one,
    unmark_one,
)
from tocsin.jit import kernel, prefetch_row, uncounted_inlined


@kernel
def add_to_chains(
    start: Numbers,
    entries: Words,
    code_start: Numbers,
    first_number: int,
    chains: Chains,
    tail: Cells,
    used: Cells,
    n_blocks: int,
) -> Any:
    """Append entries to the chains of their prefixes, adding `first_number` to their numbers.

    The entries of prefix p are `start[p] : start[p + 1]`; the codes of attribute a start at
    `code_start[a]`. `tail` is the last block of each chain, `used` how many entries it has. The
    arrays are large enough. Returns the new number of blocks.
    """
    head, following, bounds, number = chains
    n, one = np.int64(n_blocks), np.uint32(1)
    for p in range(len(start) - 1):
        for i in range(np.int64(start[p]), np.int64(start[p + 1])):
            word, rest = entries[i, 0], entries[i, 1]
            width = np.uint32(np.uint16(word >> np.uint64(32)))
            width2 = np.uint32(np.uint16(rest >> np.uint64(16)))
            c = 2 * p + np.int64(width + width2 > 0)
            if tail[c] < 0 or used[c] == BLOCK_SIZE:
                if tail[c] < 0:
                    head[c] = n
                else:
                    following[tail[c]] = n
                tail[c], used[c] = n, 0
                n += 1
            at = np.int64(tail[c]) * BLOCK_SIZE
            low = code_start[word & np.uint64(0xFFFF)] + np.uint32(np.uint16(word >> np.uint64(16)))
            low2 = code_start[word >> np.uint64(48)] + np.uint32(np.uint16(rest))
            if c & 1:
                place = 4 * (at + used[c])
                bounds[place], bounds[place + 1] = low, low + width + one
                bounds[place + 2], bounds[place + 3] = low2, low2 + width2 + one
            else:
                place = 4 * at + 2 * used[c]
                bounds[place], bounds[place + 1] = low, low2
            number[at + used[c]] = np.uint32(rest >> np.uint64(32)) + np.uint32(first_number)
            used[c] += 1
    return n


_BLOCKS_AHEAD = 6
"""How many blocks of a chain are prefetched."""

_BLOCK_BOUNDS = 4 * BLOCK_SIZE
"""The elements of `bounds` that a block has."""


@uncounted_inlined
def _prefetch_chain(chains: Chains, chain: Scalar) -> None:
    """Prefetch the first blocks of a chain."""
    _, following, bounds, _ = chains
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block < 0:
            return
        prefetch_row(bounds, _BLOCK_BOUNDS * block)
        block = np.int64(following[block])


@uncounted_inlined
def _block_ahead(chains: Chains, chain: Scalar) -> Scalar:
    """Return the first block of a chain that `_prefetch_chain` does not prefetch, or -1."""
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block >= 0:
            block = np.int64(chains.following[block])
    return block


@uncounted_inlined
def _scan_points(
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    equal: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Add the pairs of a chain of points and up to 64 events; see `add_pairs`."""
    order, pair_event, pair_number = pairs
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _BLOCK_BOUNDS * ahead)
            ahead = np.int64(following[ahead])
        first = np.uint64(_BLOCK_BOUNDS * block)
        for i in range(np.uint64(BLOCK_SIZE)):
            place = first + i + i
            mask = equal[bounds[place]] & equal[bounds[place + np.uint64(1)]]
            if mask != 0:
                number = numbers[np.uint64(BLOCK_SIZE * block) + i]
                if number & NUMBER < limit and n >= 0:
                    n = add_pairs(order, number, mask, at, pair_event, pair_number, n)
        block = np.int64(following[block])
    return n


@uncounted_inlined
def _scan_ranges(
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    below: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Add the pairs of a chain of ranges and up to 64 events; see `add_pairs`."""
    order, pair_event, pair_number = pairs
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _BLOCK_BOUNDS * ahead)
            prefetch_row(bounds, _BLOCK_BOUNDS * ahead + _BLOCK_BOUNDS // 2)
            ahead = np.int64(following[ahead])
        for i in range(np.uint64(block * BLOCK_SIZE), np.uint64((block + 1) * BLOCK_SIZE)):
            first = np.uint64(4) * i
            mask = below[bounds[first + np.uint64(1)]] ^ below[bounds[first]]
            mask &= below[bounds[first + np.uint64(3)]] ^ below[bounds[first + np.uint64(2)]]
            if mask != 0 and numbers[i] & NUMBER < limit and n >= 0:
                n = add_pairs(order, numbers[i], mask, at, pair_event, pair_number, n)
        block = np.int64(following[block])
    return n


@kernel
def match_chains(
    chains: Chains,
    limit: int,
    code_start: Numbers,
    codes: Codes,
    order: Cells,
    prefix_of: Integers,
    at: int,
    enough: int,
    pair_event: Cells,
    pair_number: Numbers,
    n: int,
) -> Any:
    """Add the pairs of an ordered batch with conjunctions below a limit; see `output.Pairs`.

    The codes of attribute a start at `code_start[a]`. Most entries are points: for them it is
    enough to know which events have a code, not which have a lower one.
    """
    pairs = (order, pair_event, pair_number)
    n_codes = np.int64(code_start[len(code_start) - 1])
    equal, below = np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64)
    while at < len(order) and n < enough:
        prefix, end = prefix_of[at], end_of_run(prefix_of, at)
        if end < len(order) and prefix_of[end] >= 0:
            _prefetch_chain(chains, 2 * prefix_of[end])
            _prefetch_chain(chains, 2 * prefix_of[end] + 1)
        if prefix < 0 or max(chains.head[2 * prefix], chains.head[2 * prefix + 1]) < 0:
            at = end
        while at < end and n < enough:
            stop = min(at + 64, end)
            mark_one(codes, at, stop, code_start, equal)
            following = _scan_points(chains, 2 * prefix, limit, equal, at, pairs, n)
            if chains.head[2 * prefix + 1] < 0:
                unmark_one(codes, at, stop, code_start, equal)
            elif following >= 0:
                accumulate_one(code_start, equal, below)
                following = _scan_ranges(chains, 2 * prefix + 1, limit, below, at, pairs, following)
            if following < 0:
                return n, at
            n = following
            at = stop
    return n, at
