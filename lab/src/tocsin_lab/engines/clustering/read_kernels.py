"""What reads conjunctions and association lists and changes neither, compiled.

Enters: conjunctions by slot, association lists, what events satisfy. Leaves: the conjunctions whose
predicates are all satisfied, by counting hits; slots of subscriptions; dense ids.
"""

from __future__ import annotations

import numpy as np

from tocsin.jit import inlined, kernel
from tocsin_lab.engines.clustering.arrays import (
    BASE,
    COUNT,
    OWNER,
    SIBLING,
    SUBSCRIPTION,
    TRUE,
    Arena,
    Integers,
    Numbers,
    Scalar,
)


@inlined
def _count(
    arena: Arena, lists: Numbers, sizes: Numbers, p: Scalar, base: Scalar, hits: Numbers,
    out: Numbers, n_out: Scalar,
) -> Scalar:  # fmt: skip
    """Count a hit for each conjunction on a list; write the conjunctions that have all."""
    start = np.uint64(lists[p, BASE])
    for j in range(start, start + np.uint64(lists[p, COUNT])):
        c = np.uint64(arena.pool[np.uint64(j)])
        n_hits = max(hits[c], base) + np.int32(1)
        hits[c] = n_hits
        out[n_out] = c
        n_out += n_hits == base + sizes[c]
    return n_out


@kernel
def count_hits(
    arena: Arena,
    lists: Numbers,
    sizes: Numbers,
    predicates: Numbers,
    ends: Integers,
    hits: Numbers,
    base: int,
    step: int,
    done: int,
    out: Numbers,
    offsets: Integers,
) -> int:
    """Count hits for the events of a chunk; return how many events are done.

    A counter below an event's base is one that this event has not touched, and counts from the
    base; the next event's base is `step` higher, which no counter of this one exceeds.
    """
    for e in range(done, len(offsets) - 1):
        now = np.int32(base + e * step)
        n_out = offsets[e]
        n_hits = np.int64(lists[TRUE, COUNT])
        for g in range(len(ends)):
            for i in range(ends[g, e], ends[g, e + 1]):
                n_hits += lists[predicates[i], COUNT]
        if n_out + min(n_hits, len(sizes)) + 1 > len(out):
            return e
        n_out = _count(arena, lists, sizes, TRUE, now, hits, out, n_out)
        for g in range(len(ends)):
            for i in range(ends[g, e], ends[g, e + 1]):
                n_out = _count(arena, lists, sizes, predicates[i], now, hits, out, n_out)
        offsets[e + 1] = n_out
    return len(offsets) - 1


@kernel
def slots_of(arena: Arena, first_of: Numbers, ids: Integers, slots: Numbers) -> int:
    """Write the slots of subscriptions as far as there is room; return how many there are."""
    n = 0
    for i in range(len(ids)):
        c = first_of[ids[i]]
        while c >= 0:
            if n < len(slots):
                slots[n] = c
            n += 1
            c = arena.conjunctions[c, SIBLING]
    return n


@kernel
def to_ids(
    arena: Arena, offsets: Integers, slots: Numbers, seen: Integers, stamp: int, ids: Numbers
) -> None:
    """Turn conjunctions into dense ids, each once for an event; rewrite the offsets."""
    n, start = 0, offsets[0]
    for e in range(len(offsets) - 1):
        end = offsets[e + 1]
        for i in range(start, end):
            row = arena.conjunctions[slots[i]]
            if seen[row[OWNER]] != stamp + e:
                seen[row[OWNER]] = stamp + e
                ids[n] = row[SUBSCRIPTION]
                n += 1
        start = end
        offsets[e + 1] = n
