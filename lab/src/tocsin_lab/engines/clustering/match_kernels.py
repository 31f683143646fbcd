"""Matching in clusters, compiled: from the predicates that events satisfy to conjunctions.

Enters: clusters as `cluster_kernels` keeps them; for each event of a chunk the predicates that it
satisfies, and the clusters that were found in tables. Leaves: the conjunctions that each event
satisfies (LIKE patterns apart).

What an event costs is waiting for memory, and unpredictable branches. So the clusters of an event
are found while the event before is matched, and the columns of small ones are asked for meanwhile,
one line at a time: a processor forgets what it is asked for when that is too much at once. Small
clusters are taken apart into blocks of a cache line, which one loop goes through, as the end of a
loop for each would be mispredicted. Entries whose first predicate holds wait until there are some,
of however many clusters, and are asked for meanwhile too; then the rest of their predicates is
checked, one of all entries after the other.

Without prefetching nothing of this happens: clusters are read one after the other, and what holds
in a stripe of 512 entries is followed up at once, entry by entry, in a loop that is compiled for
each of one to ten predicates.

Nothing here counts references, which would take longer than to check a small cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tocsin.jit import (
    HAS_WIDE_VECTORS,
    MOST_BITS,
    pass_block,
    prefetch_row,
    uncounted,
    uncounted_inlined,
)
from tocsin_lab.engines.clustering.arrays import (
    BASE,
    CAPACITY,
    COUNT,
    FEW_BLOCKS,
    HEAD,
    N_BLOCKS,
    N_LEFT,
    NEXT,
    PLACE,
    PLACE_BITS,
    STRIPE,
    TRUE,
    UNFOLD,
    WAITING,
    Bits,
    Clustering,
    Integers,
    Numbers,
    Scalar,
    Scratch,
)


class Work(NamedTuple):
    """What there is to do for an event: large clusters, and blocks of small ones.

    The clusters are `n` candidates from `first` on, the blocks `n_blocks` from `start` on;
    `n_checked` is how many conjunctions there are in all.
    """

    first: Scalar
    n: Scalar
    start: Scalar
    n_blocks: Scalar
    n_checked: Scalar


# Entries.


def _rest_check(n: int) -> Callable[..., Any]:
    """Return the check of entries with n predicates, the first of which holds; 0: any number.

    The loop over the predicates unrolls where their number is a constant.
    """

    @uncounted_inlined
    def check_rest(
        pool: Numbers, passed: Any, n_passed: Scalar, capacity: Scalar, n_left: Scalar, bits: Bits,
        out: Numbers, n_out: Scalar,
    ) -> Scalar:  # fmt: skip
        m = np.uint64(n) if n else n_left
        for i in range(n_passed):
            place = passed[i] & np.uint64(PLACE)
            left = m - np.uint64(1)
            while left and bits[np.uint64(pool[place])]:
                place += capacity
                left -= np.uint64(1)
            if not left:
                out[n_out] = pool[place]
                n_out += np.uint64(1)
        return n_out

    return check_rest


_check_any = _rest_check(0)
_check_1, _check_2, _check_3, _check_4 = (_rest_check(n) for n in (1, 2, 3, 4))
_check_5, _check_6, _check_7, _check_8 = (_rest_check(n) for n in (5, 6, 7, 8))
_check_9, _check_10 = _rest_check(9), _rest_check(10)


@uncounted_inlined
def _check_each(
    pool: Numbers, passed: Any, n_passed: Scalar, size: Scalar, n: Scalar, bits: Bits,
    out: Numbers, n_out: Scalar,
) -> Scalar:  # fmt: skip
    """Follow up what passed of a cluster, one entry after the other."""
    if n == 1:
        n_out = _check_1(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 2:
        n_out = _check_2(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 3:
        n_out = _check_3(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 4:
        n_out = _check_4(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 5:
        n_out = _check_5(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 6:
        n_out = _check_6(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 7:
        n_out = _check_7(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 8:
        n_out = _check_8(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 9:
        n_out = _check_9(pool, passed, n_passed, size, n, bits, out, n_out)
    elif n == 10:
        n_out = _check_10(pool, passed, n_passed, size, n, bits, out, n_out)
    else:
        n_out = _check_any(pool, passed, n_passed, size, n, bits, out, n_out)
    return n_out


@uncounted_inlined
def _pass_block(
    pool: Numbers, scratch: Scratch, at: Scalar, end: Scalar, tag: Scalar, n: Scalar
) -> Scalar:
    """Write where the entries of a block go on whose first predicate holds; return the count."""
    passed = scratch.passed
    if HAS_WIDE_VECTORS and len(scratch.bits) <= MOST_BITS:
        many, place, to = min(np.int64(end - at), UNFOLD), np.int64(at), np.int64(n)
        return np.uint64(pass_block(pool, place, many, scratch.words, passed, to, at + tag))
    if at + np.uint64(UNFOLD) <= end:
        for j in range(UNFOLD):
            passed[n] = at + np.uint64(j) + tag
            n += np.uint64(scratch.bits[np.uint64(pool[at + np.uint64(j)])])
    else:
        while at < end:
            passed[n] = at + tag
            n += np.uint64(scratch.bits[np.uint64(pool[at])])
            at += np.uint64(1)
    return n


@uncounted_inlined
def _ask_passed(pool: Numbers, passed: Any, n_asked: Scalar, n: Scalar) -> Scalar:
    """Ask for one more of the entries that passed, where there is one; return how many are."""
    at = min(n_asked, max(n, np.uint64(1)) - np.uint64(1))
    prefetch_row(pool, np.int64(passed[at] & np.uint64(PLACE)))
    return min(n_asked + np.uint64(1), n)


@uncounted_inlined
def _check_together(
    pool: Numbers, clusters: Numbers, passed: Any, n: Scalar, bits: Bits, out: Numbers,
    n_out: Scalar,
) -> Scalar:  # fmt: skip
    """Follow up what passed of some clusters, one predicate of all after the other.

    All that a step reads is asked for before, and there is no branch to guess.
    """
    n_held = np.int32(1)
    while n:
        for i in range(n):
            prefetch_row(pool, np.int64(passed[i] & np.uint64(PLACE)))
        n_kept = np.uint64(0)
        for i in range(n):
            entry = passed[i]
            row, slot = entry >> np.uint64(PLACE_BITS), pool[entry & np.uint64(PLACE)]
            is_left = np.uint64(clusters[row, np.uint64(N_LEFT)] > n_held)
            out[n_out] = slot
            n_out += np.uint64(1) - is_left
            passed[n_kept] = entry + np.uint64(clusters[row, np.uint64(CAPACITY)])
            n_kept += is_left & np.uint64(bits[np.uint64(slot) * is_left])
        n = n_kept
        n_held += np.int32(1)
    return n_out


# Clusters.


@uncounted_inlined
def _match_small(
    pool: Numbers, k: Clustering, scratch: Scratch, mine: Any, following: Any, probe: Scalar,
    out: Numbers, n_out: Scalar,
) -> Any:  # fmt: skip
    """Go through the blocks of small clusters; return how many entries wait, and the new count.

    Asks meanwhile for the blocks of the following event, and for the clusters that tables have for
    the one after it, which are those from `probe` on.
    """
    n_passed, n_asked, passed, blocks = np.uint64(0), np.uint64(0), scratch.passed, scratch.blocks
    step, limit = following.start - mine.start, following.start + following.n_blocks
    for i in range(mine.start, mine.start + mine.n_blocks):
        if i + step < limit:
            place = np.int64(blocks[i + step] & np.uint64(PLACE))
            prefetch_row(pool, place)
            prefetch_row(pool, place + (UNFOLD - 1))
        if probe < np.uint64(len(scratch.probes)):
            prefetch_row(k.clusters, max(np.int64(scratch.probes[probe]), 0))
        probe += np.uint64(1)
        row = k.clusters[blocks[i] >> np.uint64(PLACE_BITS)]
        at = blocks[i] & np.uint64(PLACE)
        end = np.uint64(row[BASE]) + np.uint64(row[COUNT])
        tag = blocks[i] - at + np.uint64(row[CAPACITY])
        n_passed = _pass_block(pool, scratch, at, end, tag, n_passed)
        n_asked = _ask_passed(pool, passed, n_asked, n_passed)
        if n_passed >= np.uint64(WAITING):
            n_out = _check_together(pool, k.clusters, passed, n_passed, scratch.bits, out, n_out)
            n_passed = n_asked = np.uint64(0)
    return n_passed, n_out


@uncounted_inlined
def _pass_stripe(
    pool: Numbers, scratch: Scratch, at: Scalar, end: Scalar, tag: Scalar, n: Scalar
) -> Scalar:
    """Pass a stripe of a cluster, without prefetching; return how many entries wait."""
    while at < end:
        n = _pass_block(pool, scratch, at, end, tag, n)
        at += np.uint64(UNFOLD)
    return n


@uncounted_inlined
def _ask_and_pass_stripe(
    pool: Numbers, scratch: Scratch, at: Scalar, end: Scalar, tag: Scalar, n: Scalar, last: Scalar,
    leap: Scalar, lookahead: Scalar,
) -> Scalar:  # fmt: skip
    """Pass a stripe of a cluster that ends at `last`, with prefetching; return how many wait.

    The column is asked for some entries ahead, and where it ends, the next one, which is `leap`
    from there.
    """
    n_asked = n
    while at < end:
        n = _pass_block(pool, scratch, at, end, tag, n)
        n_asked = _ask_passed(pool, scratch.passed, n_asked, n)
        ahead = np.int64(at + lookahead)
        prefetch_row(pool, ahead + (leap if ahead >= last else 0))
        at += np.uint64(UNFOLD)
    return n


@uncounted_inlined
def _leap(k: Clustering, scratch: Scratch, i: Scalar, mine: Any, following: Any) -> Scalar:
    """Return how far it is from the end of a large cluster to the start of the next one."""
    row, then = k.clusters[np.uint64(scratch.candidates[i])], i
    if i + np.uint64(1) < mine.first + mine.n:
        then = i + np.uint64(1)
    elif following.n:
        then = following.first
    start = k.clusters[np.uint64(scratch.candidates[then]), np.uint64(BASE)]
    return np.int64(start) - np.int64(row[BASE]) - np.int64(row[COUNT])


@uncounted_inlined
def _match_large(
    pool: Numbers, k: Clustering, scratch: Scratch, mine: Any, following: Any, lookahead: Scalar,
    n_passed: Scalar, out: Numbers, n_out: Scalar,
) -> Scalar:  # fmt: skip
    """Write the matches of large clusters, and the entries that wait; return the count."""
    bits, passed = scratch.bits, scratch.passed
    for i in range(mine.first, mine.first + mine.n):
        r = np.uint64(scratch.candidates[i])
        row = k.clusters[r]
        at, size, n_left = np.uint64(row[BASE]), np.uint64(row[CAPACITY]), np.uint64(row[N_LEFT])
        last, tag = at + np.uint64(row[COUNT]), (r << np.uint64(PLACE_BITS)) + size
        leap = _leap(k, scratch, i, mine, following)
        while n_left == 0 and at < last:
            out[n_out] = pool[at]
            n_out += np.uint64(1)
            at += np.uint64(1)
        while at < last:
            end = min(at + np.uint64(STRIPE), last)
            if not lookahead:
                n_passed = _pass_stripe(pool, scratch, at, end, tag, np.uint64(0))
                n_out = _check_each(pool, passed, n_passed, size, n_left, bits, out, n_out)
                n_passed = np.uint64(0)
            else:
                n_passed = _ask_and_pass_stripe(
                    pool, scratch, at, end, tag, n_passed, np.int64(last), leap, lookahead
                )
            if n_passed >= np.uint64(WAITING):
                n_out = _check_together(pool, k.clusters, passed, n_passed, bits, out, n_out)
                n_passed = np.uint64(0)
            at = end
    return _check_together(pool, k.clusters, passed, n_passed, bits, out, n_out)


# Events.


@uncounted_inlined
def _find_candidates(
    k: Clustering, scratch: Scratch, predicates: Numbers, ends: Integers, e: Scalar, probe: Scalar,
    first: Scalar,
) -> Scalar:  # fmt: skip
    """Write the clusters that an event leads to, from `first` on; return how many.

    These are clusters under single predicates, and under the access predicates in tables, from
    `probe` on.
    """
    candidates, n = scratch.candidates, first
    candidates[n] = k.access_of[TRUE]
    n += np.uint64(candidates[n] >= 0)
    for g in range(len(ends)):
        for i in range(np.uint64(ends[g, e]), np.uint64(ends[g, e + 1])):
            candidates[n] = k.access_of[np.uint64(predicates[i])]
            n += np.uint64(candidates[n] >= 0)
    for i in range(first, n):
        candidates[i] = k.access[np.uint64(candidates[i]), np.uint64(HEAD)]
    for t in range(np.uint64(len(k.schemas))):
        candidates[n] = scratch.probes[probe + t]
        n += np.uint64(candidates[n] >= 0)
    i = first
    while i < n:
        following = k.clusters[np.uint64(candidates[i]), np.uint64(NEXT)]
        if following >= 0:
            candidates[n] = following
            n += np.uint64(1)
        i += np.uint64(1)
    return n - first


@uncounted_inlined
def _divide(
    k: Clustering, scratch: Scratch, first: Scalar, n: Scalar, start: Scalar, lookahead: Scalar
) -> Any:
    """Divide candidates into large clusters, which remain, and blocks of small ones.

    Without prefetching all of them are large.
    """
    blocks, n_large, n_blocks, n_checked = scratch.blocks, first, start, np.int64(0)
    most = start + np.uint64(N_BLOCKS - FEW_BLOCKS if lookahead else 0)
    for i in range(first, first + n):
        r = np.uint64(scratch.candidates[i])
        row = k.clusters[r]
        n_checked += row[COUNT]
        if row[COUNT] > FEW_BLOCKS * UNFOLD or not row[N_LEFT] or n_blocks >= most:
            scratch.candidates[n_large] = r
            n_large += np.uint64(1)
        else:
            block = (r << np.uint64(PLACE_BITS)) + np.uint64(row[BASE])
            for j in range(FEW_BLOCKS):
                blocks[n_blocks + np.uint64(j)] = block + np.uint64(j * UNFOLD)
            n_blocks += np.uint64(row[COUNT] + (UNFOLD - 1)) // np.uint64(UNFOLD)
    return Work(first, n_large - first, start, n_blocks - start, n_checked)


@uncounted_inlined
def _set_bits(
    scratch: Scratch, predicates: Numbers, ends: Integers, e: Scalar, is_clean: Scalar
) -> None:
    """Set the bits of what an event satisfies, or clear them."""
    for g in range(len(ends)):
        for i in range(np.uint64(ends[g, e]), np.uint64(ends[g, e + 1])):
            p = np.uint64(predicates[i])
            scratch.bits[p] = not is_clean
            if p < np.uint64(MOST_BITS):
                bit = np.uint32(1) << np.uint32(p & np.uint64(31))
                word = p >> np.uint64(5)
                scratch.words[word] = np.uint32(0) if is_clean else scratch.words[word] | bit


@uncounted
def match(
    pool: Numbers,
    k: Clustering,
    scratch: Scratch,
    predicates: Numbers,
    ends: Integers,
    lookahead: int,
    done: int,
    out: Numbers,
    offsets: Integers,
) -> int:
    """Match the events of a chunk from one on; return how many of them are done.

    `lookahead` is how many entries ahead a column is asked for, 0 for not at all.
    """
    half, ahead = np.uint64(len(scratch.candidates) // 2), np.uint64(lookahead)
    zero, n_tables = np.uint64(0), np.uint64(len(k.schemas))
    following = Work(zero, zero, zero, zero, np.int64(0))
    for e in range(done - 1, len(offsets) - 1):
        mine, which, probe = following, np.uint64(e & 1), np.uint64(e + 1 - done) * n_tables
        if e + 2 < len(offsets):
            first = half * which
            n = _find_candidates(k, scratch, predicates, ends, e + 1, probe, first)
            following = _divide(k, scratch, first, n, np.uint64(N_BLOCKS) * which, ahead)
        if e < done:
            continue
        n_out = np.uint64(offsets[e])
        if np.int64(n_out) + mine.n_checked >= len(out):
            return e
        _set_bits(scratch, predicates, ends, e, False)
        n_passed, n_out = _match_small(
            pool, k, scratch, mine, following, probe + n_tables, out, n_out
        )
        offsets[e + 1] = _match_large(
            pool, k, scratch, mine, following, ahead, n_passed, out, n_out
        )
        _set_bits(scratch, predicates, ends, e, True)
    return len(offsets) - 1
