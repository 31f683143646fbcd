"""The kernels of `tama`: cells of values, entries of the matching table, counting; compiled.

Enters and leaves: flat arrays. Zhao and Wu (TAMA), algorithms 1 and 2. A cell of a level is a node
of a heap: cell c of level i has the number 2^i + c, so that its halves are twice that number and
the next.

The table has buckets of words, and in each bucket runs: a header with a tag, 24 bits of the key's
hash that the bucket does not use, and how many follow, then as many conjunctions. What is read of
the table comes from memory, so that its size decides. It is packed from entries of two
words, a conjunction and its tag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel, lowest_bit, prefetch_row
from tocsin_lab.engines.intervals.arrays import ABSENT, PRESENT, Events

DEEPEST = 30
"""The last level there can be; leaves are cells of this level."""
COUNT, FILL, REMOVE = 0, 1, 2
"""What `enter` does: count the entries of each bucket, fill them, or strike out of the runs."""
_STRUCK = 0xFFFFFFFF
"""Stands where a conjunction was."""
_LONGEST = 255
"""How many conjunctions a run has at most; a key may have several runs."""
NO_LEVEL = -1
"""Stands for the level of a key that is no cell."""
ABSENT_KEYS, PRESENT_KEYS, POINT_KEYS, UNIT_KEYS = 4, 5, 6, 7
"""What keys of an attribute are of, besides its four lines."""
_MOST_KEYS = 40
_MET = 512
"""How many counters are fetched ahead."""
_AHEAD = 24
"""How many buckets are fetched ahead."""
_LINE = 16
"""How many words make a cache line."""
_MIX = 0x9E3779B97F4A7C15
_MIX_2 = 0xBF58476D1CE4E5B9
_MIX_3 = 0x94D049BB133111EB


@inlined
def _hash(tree: Any, key: Any) -> Any:
    """Mix a tree and a key into 64 bits."""
    h = np.uint64(key) + np.uint64(tree) * np.uint64(_MIX)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(_MIX_2)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(_MIX_3)
    return h ^ (h >> np.uint64(31))


@inlined
def _leaf(xs: Any, shares: Any, first: Any, last: Any, x: Any) -> Any:
    """Return the leaf of a value: how many events lie before it, out of 2^30.

    Between two marks it grows evenly, and never falls: each step is clipped to its marks.
    """
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if xs[middle] <= x:
            low = middle + 1
        else:
            high = middle
    if low == first:
        return np.int64(0)
    if low == last:
        return np.int64((1 << DEEPEST) - 1)
    before, after = xs[low - 1], xs[low]
    if after - before < np.inf:
        part = (x - before) / (after - before)
    else:
        part = (0.5 * x - 0.5 * before) / (0.5 * after - 0.5 * before)
    share = min(shares[low - 1] + part * (shares[low] - shares[low - 1]), shares[low])
    return min(np.int64(share * (1 << DEEPEST)), np.int64((1 << DEEPEST) - 1))


@kernel
def find_leaves(
    xs: NDArray[np.float64],
    shares: NDArray[np.float64],
    start: NDArray[np.int64],
    tree: NDArray[np.int64],
    values: NDArray[np.float64],
    leaves: NDArray[np.int64],
) -> None:
    """Write the leaves of values, each in a tree."""
    for i in range(len(values)):
        leaves[i] = _leaf(xs, shares, start[tree[i]], start[tree[i] + 1], values[i])


@inlined
def _put(
    offsets: Any, entries: Any, words: Any, mask: Any, tree: Any, key: Any, slot: Any, mode: Any
) -> Any:
    """Count, fill in or strike out one entry."""
    h = _hash(tree, key)
    bucket, tag = np.int64(h & mask), h >> np.uint64(40)
    if mode == COUNT:
        offsets[bucket + 2] += 1
    elif mode == FILL:
        place = np.int64(offsets[bucket + 1])
        entries[place, 0], entries[place, 1] = slot, np.int32(tag)
        offsets[bucket + 1] = place + 1
    else:
        place = np.int64(offsets[bucket])
        while place < offsets[bucket + 1]:
            n = np.int64(words[place] & np.uint32(_LONGEST))
            if words[place] >> np.uint32(8) == tag:
                for at in range(place + 1, place + 1 + n):
                    if words[at] == np.uint32(slot):
                        words[at] = np.uint32(_STRUCK)
            place += 1 + n


@kernel
def pack(
    offsets: NDArray[np.int32],
    entries: NDArray[np.int32],
    n_buckets: int,
    is_filling: bool,
    starts: NDArray[np.int32],
    words: NDArray[np.uint32],
) -> None:
    """Make runs of entries with the same bucket and tag; first only count the words.

    A bucket of the new table takes the entries of every `n_buckets`-th old one. Counting, the words
    of a bucket are written to the place after its own; filling, they go where `starts` says. A tag
    that was looked at is written as its complement, which is undone by the second pass.
    """
    for bucket in range(n_buckets):
        at = np.int64(starts[bucket]) if is_filling else np.int64(0)
        for old in range(bucket, len(offsets) - 2, n_buckets):
            end = np.int64(offsets[old + 1])
            for i in range(np.int64(offsets[old]), end):
                tag = entries[i, 1]
                if (tag < 0) != is_filling:
                    continue
                n, header = np.int64(0), at
                for k in range(i, end):
                    if entries[k, 1] != tag:
                        continue
                    entries[k, 1] = ~tag
                    if n % _LONGEST == 0:
                        header = at
                        at += 1
                        if is_filling:
                            words[header] = np.uint32(~tag) << np.uint32(8)
                    if is_filling:
                        words[header] += np.uint32(1)
                        words[at] = np.uint32(entries[k, 0])
                    at += 1
                    n += 1
        if not is_filling:
            starts[bucket + 1] = at


@kernel
def count_entries(words: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Count the entries of each conjunction."""
    place = np.int64(0)
    while place < len(words):
        n = np.int64(words[place] & np.uint32(_LONGEST))
        for at in range(place + 1, place + 1 + n):
            if words[at] != np.uint32(_STRUCK):
                counts[np.int64(words[at])] += 1
        place += 1 + n


@kernel
def enter(
    slot: NDArray[np.int64],
    tree: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    level: NDArray[np.int64],
    mode: int,
    mask: Any,
    offsets: NDArray[np.int32],
    entries: NDArray[np.int32],
    words: NDArray[np.uint32],
    used: NDArray[np.int64],
) -> Any:
    """Enter ranges of cells and single keys into a table; return how many entries they are.

    A range, from cell `low` to cell `high` of its level, is taken apart into the largest cells that
    make it up: two of a level at most (algorithm 1). `used` gets a bit for each level of a tree.
    """
    n = np.int64(0)
    for i in range(len(slot)):
        if level[i] == NO_LEVEL:
            _put(offsets, entries, words, mask, tree[i], low[i], slot[i], mode)
            n += 1
            continue
        at = level[i]
        a, b = (np.int64(1) << at) + low[i], (np.int64(1) << at) + high[i] + 1
        while a < b:
            if a & 1:
                _put(offsets, entries, words, mask, tree[i], a, slot[i], mode)
                used[tree[i]] |= np.int64(1) << at
                a += 1
                n += 1
            if b & 1:
                b -= 1
                _put(offsets, entries, words, mask, tree[i], b, slot[i], mode)
                used[tree[i]] |= np.int64(1) << at
                n += 1
            a >>= 1
            b >>= 1
            at -= 1
    return n


@inlined
def _keys_of(
    used: Any,
    sorts: Any,
    xs: Any,
    shares: Any,
    start: Any,
    a: Any,
    kind: Any,
    value: Any,
    point: Any,
    unit: Any,
    hashes: Any,
    n: Any,
) -> Any:
    """Write the hashes of all keys under which a value may be found, from n on; return the end."""
    kinds = sorts[a]
    if kind == ABSENT:
        if kinds & (1 << ABSENT_KEYS):
            hashes[n] = _hash(a * 8 + ABSENT_KEYS, np.int64(1))
            n += 1
        return n
    if kinds & (1 << PRESENT_KEYS):
        hashes[n] = _hash(a * 8 + PRESENT_KEYS, np.int64(1))
        n += 1
    if kind == PRESENT:
        return n
    if kinds & (1 << POINT_KEYS):
        hashes[n] = _hash(a * 8 + POINT_KEYS, point)
        n += 1
    if kind == 0 and kinds & (1 << UNIT_KEYS):
        hashes[n] = _hash(a * 8 + UNIT_KEYS, unit)
        n += 1
    levels = used[a * 8 + kind]
    if levels:
        tree = a * 8 + kind
        leaf = _leaf(xs, shares, start[tree], start[tree + 1], value)
        left = np.uint64(levels)
        while left:
            at = lowest_bit(left)
            left &= left - np.uint64(1)
            hashes[n] = _hash(tree, (np.int64(1) << at) + (leaf >> (DEEPEST - at)))
            n += 1
    return n


@inlined
def _count(hits: Any, zero: Any, met: Any, n_met: Any, out: Any, n: Any) -> Any:
    """Count a condition for each conjunction met; write the conjunctions that are complete."""
    for i in range(n_met):
        slot = np.int64(met[i])
        count = max(hits[slot, 0], zero) + np.int32(1)
        hits[slot, 0] = count
        if count == zero + hits[slot, 1]:
            out[n] = slot
            n += 1
    return n


@inlined
def _fetch(offsets: Any, words: Any, bucket: Any) -> None:
    """Ask for the first words of a bucket."""
    place = np.int64(offsets[bucket])
    prefetch_row(words, place)
    prefetch_row(words, place + _LINE)


@inlined
def _meet(
    offsets: Any,
    words: Any,
    mask: Any,
    hashes: Any,
    n_keys: Any,
    hits: Any,
    zero: Any,
    met: Any,
    out: Any,
    n: Any,
) -> Any:
    """Count the entries under the keys of an event; write the matches, from n on."""
    for k in range(min(n_keys, _AHEAD)):
        _fetch(offsets, words, np.int64(hashes[k] & mask))
    n_met = np.int64(0)
    for k in range(n_keys):
        _fetch(offsets, words, np.int64(hashes[k + _AHEAD] & mask))  # or that of an old key
        bucket, tag = np.int64(hashes[k] & mask), hashes[k] >> np.uint64(40)
        place, stop = np.int64(offsets[bucket]), np.int64(offsets[bucket + 1])
        while place < stop:
            n_here = np.int64(words[place] & np.uint32(_LONGEST))
            if words[place] >> np.uint32(8) == tag:
                if n_met + n_here > _MET:
                    n = _count(hits, zero, met, n_met, out, n)
                    n_met = np.int64(0)
                for at in range(place + 1, place + 1 + n_here):
                    met[n_met] = words[at]
                    prefetch_row(hits, np.int64(words[at]))
                    n_met += words[at] != np.uint32(_STRUCK)
            place += 1 + n_here
    return _count(hits, zero, met, n_met, out, n)


@kernel
def match(
    offsets: NDArray[np.int32],
    words: NDArray[np.uint32],
    mask: Any,
    used: NDArray[np.int64],
    sorts: NDArray[np.int64],
    xs: NDArray[np.float64],
    shares: NDArray[np.float64],
    start: NDArray[np.int64],
    events: Events,
    values: NDArray[np.float64],
    points: NDArray[np.int64],
    units: NDArray[np.int64],
    hits: NDArray[np.int32],
    base: int,
    step: int,
    done: int,
    out: NDArray[np.int32],
    ends: NDArray[np.int64],
) -> Any:
    """Count the conditions that each event satisfies; return how many events are done.

    Conjunctions all of whose conditions are counted are written; `hits` has a counter, and how many
    a conjunction has. Counters below an event's base count as zero. It stops before an event when
    `out` has fewer places than there are conjunctions.
    """
    kinds = events.kind
    hashes = np.zeros(kinds.shape[1] * _MOST_KEYS + _AHEAD, np.uint64)
    met = np.empty(_MET + 1, np.uint32)
    n = ends[done]
    for e in range(done, len(kinds)):
        if n + len(hits) > len(out):
            return e
        zero = np.int32(base + e * step)
        n_keys = np.int64(0)
        for a in range(kinds.shape[1]):
            if sorts[a] == 0:
                continue
            kind, k = np.int64(kinds[e, a]), n_keys
            # Loaded whether needed or not: rows that are read in order come by themselves.
            value, point, unit = values[e, a], points[e, a], units[e, a]
            n_keys = _keys_of(
                used, sorts, xs, shares, start, a, kind, value, point, unit, hashes, k
            )
            while k < n_keys:
                prefetch_row(offsets, np.int64(hashes[k] & mask))
                k += 1
        n = _meet(offsets, words, mask, hashes, n_keys, hits, zero, met, out, n)
        ends[e + 1] = n
    return len(kinds)


@inlined
def _decide(
    offsets: Any,
    words: Any,
    mask: Any,
    h: Any,
    hits: Any,
    zero: Any,
    by_slot: Any,
    decided: Any,
    e: Any,
    dynamic: Any,
) -> Any:
    """Count the entries under a key; return how many interfaces are decided by it."""
    bucket, tag = np.int64(h & mask), h >> np.uint64(40)
    place, stop = np.int64(offsets[bucket]), np.int64(offsets[bucket + 1])
    n = np.int64(0)
    while place < stop:
        n_here = np.int64(words[place] & np.uint32(_LONGEST))
        is_ours = words[place] >> np.uint32(8) == tag
        for at in range(place + 1, place + 1 + n_here * is_ours):
            if words[at] == np.uint32(_STRUCK):
                continue
            slot = np.int64(words[at])
            interface = np.int64(by_slot[slot])
            if dynamic and decided[e, interface]:
                continue
            count = max(hits[slot, 0], zero) + np.int32(1)
            hits[slot, 0] = count
            if count == zero + hits[slot, 1] and not decided[e, interface]:
                decided[e, interface] = True
                n += 1
        place += 1 + n_here
    return n


@kernel
def match_interfaces(
    offsets: NDArray[np.int32],
    words: NDArray[np.uint32],
    mask: Any,
    used: NDArray[np.int64],
    sorts: NDArray[np.int64],
    xs: NDArray[np.float64],
    shares: NDArray[np.float64],
    start: NDArray[np.int64],
    events: Events,
    values: NDArray[np.float64],
    points: NDArray[np.int64],
    units: NDArray[np.int64],
    hits: NDArray[np.int32],
    base: int,
    step: int,
    by_slot: NDArray[np.int32],
    decided: NDArray[np.bool_],
    dynamic: bool,
) -> None:
    """Mark the interfaces of what each event matches, the coarse levels first.

    With `dynamic`, conjunctions of interfaces that are decided are passed over, and an event is
    done when all interfaces are decided.
    """
    kinds = events.kind
    n_attributes, n_interfaces = kinds.shape[1], decided.shape[1]
    hashes = np.empty((n_attributes, _MOST_KEYS), np.uint64)
    n_keys = np.empty(n_attributes, np.int64)
    for e in range(len(kinds)):
        zero = np.int32(base + e * step)
        most, left = np.int64(0), np.int64(0)
        for i in range(n_interfaces):
            left += 0 if decided[e, i] else 1
        for a in range(n_attributes):
            kind = np.int64(kinds[e, a])
            value, point, unit = values[e, a], points[e, a], units[e, a]
            n_keys[a] = _keys_of(
                used, sorts, xs, shares, start, a, kind, value, point, unit, hashes[a], np.int64(0)
            )
            most = max(most, n_keys[a])
        for k in range(most):
            if dynamic and left == 0:
                break
            for a in range(n_attributes):
                if k < n_keys[a]:
                    h = hashes[a, k]
                    left -= _decide(
                        offsets, words, mask, h, hits, zero, by_slot, decided, e, dynamic
                    )
