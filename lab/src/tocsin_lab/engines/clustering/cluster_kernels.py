"""Conjunctions, association lists and clusters, compiled: what the second phase reads, kept.

Enters: conjunctions as runs of predicate numbers; for each event the predicates that it satisfies.
Leaves: clusters and tables, and the clusters that the tables have for each event. What only reads,
and calls nothing here, is in `read_kernels` and `match_kernels`.

Space in the pool is given out in classes of size, a quarter of a power of two apart, and what is
given back waits in a list for its class. What a block holds is removed by moving the last entry
into its place, so that entries may come and go in time proportional to their predicates.

Kernels that need room stop where it runs out and say so; the caller makes room and goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.jit import inlined, kernel, prefetch_row, uncounted, uncounted_inlined
from tocsin_lab.engines.clustering.arrays import (
    ACCESS,
    BASE,
    CAPACITY,
    CHAIN,
    CLUSTER,
    COUNT,
    FREE_ACCESS,
    FREE_CLUSTER,
    FREE_SLOT,
    GAP,
    GUESS,
    HEAD,
    MAX_SCHEMA,
    N_ACCESS,
    N_CLUSTERS,
    N_KEY,
    N_KEYS,
    N_LEFT,
    N_SLOTS,
    NEXT,
    OWNER,
    POOL_USED,
    POPULATION,
    POSITION,
    RUN,
    SEEN,
    SIBLING,
    SIZE,
    SUBSCRIPTION,
    TABLE,
    TRUE,
    Arena,
    Clustering,
    Integers,
    Numbers,
    Scalar,
    Scratch,
)

# The pool.


@inlined
def _rounded(size: Scalar) -> Any:
    """Return the size that is given out for a size, and the number of its class."""
    shift = np.int64(0)
    while size >> shift > 7:
        shift += 1
    quarters = (size + (1 << shift) - 1) >> shift
    if quarters == 8:
        shift, quarters = shift + 1, np.int64(4)
    return quarters << shift, 4 * shift + quarters


@inlined
def _allocate(arena: Arena, size: Scalar) -> Scalar:
    """Return where a run of this size may be put, or -1 where there is no room."""
    rounded, which = _rounded(size)
    start = arena.free[which]
    if start >= 0:
        arena.free[which] = arena.pool[start]
        return start
    start = arena.state[POOL_USED]
    if start + rounded > len(arena.pool):
        return np.int64(-1)
    arena.state[POOL_USED] = start + rounded
    return start


@inlined
def _release(arena: Arena, start: Scalar, size: Scalar) -> None:
    _, which = _rounded(size)
    arena.pool[start] = arena.free[which]
    arena.free[which] = start


@inlined
def _make_room(arena: Arena, blocks: Numbers, b: Scalar, n_columns: Scalar) -> Scalar:
    """Make room for one more entry of a block; return whether there is."""
    count, capacity = np.int64(blocks[b, COUNT]), np.int64(blocks[b, CAPACITY])
    if count < capacity:
        return True
    size, _ = _rounded(n_columns * (capacity + (capacity >> 1) + 1))
    start = _allocate(arena, size)
    if start < 0:
        return False
    more, old = size // n_columns, np.int64(blocks[b, BASE])
    for i in range(n_columns):
        for j in range(count):
            arena.pool[start + i * more + j] = arena.pool[old + i * capacity + j]
    if capacity:
        _release(arena, old, n_columns * capacity)
    blocks[b, BASE], blocks[b, CAPACITY] = start, more
    return True


# Conjunctions.


@kernel
def store(
    arena: Arena,
    first_of: Numbers,
    subscription: Integers,
    condition_start: Integers,
    predicates: Numbers,
    width: int,
    slots: Numbers,
) -> None:
    """Give each conjunction a slot, with room for `width` numbers a predicate.

    There must be room for all. A conjunction without conditions has the predicate TRUE.
    """
    for i in range(len(subscription)):
        c = arena.state[FREE_SLOT]
        if c >= 0:
            arena.state[FREE_SLOT] = arena.conjunctions[c, SIBLING]
        else:
            c = arena.state[N_SLOTS]
            arena.state[N_SLOTS] = c + 1
        first, last = condition_start[i], condition_start[i + 1]
        n = max(last - first, 1)
        run = _allocate(arena, n * width)
        arena.pool[run] = TRUE
        for k in range(last - first):
            arena.pool[run + k] = predicates[first + k]
        row = arena.conjunctions[c]
        dense = subscription[i]
        row[SUBSCRIPTION], row[SIBLING] = dense, first_of[dense]
        row[OWNER] = c if first_of[dense] < 0 else arena.conjunctions[first_of[dense], OWNER]
        row[RUN], row[SIZE], row[CLUSTER], row[POSITION] = run, n, -1, -1
        first_of[dense] = c
        slots[i] = c


@kernel
def forget(arena: Arena, first_of: Numbers, slots: Numbers, width: int, released: Numbers) -> int:
    """Free slots of whole subscriptions; write the predicates they used, return how many."""
    n = 0
    for i in range(len(slots)):
        row = arena.conjunctions[slots[i]]
        for k in range(row[SIZE]):
            p = arena.pool[np.int64(row[RUN]) + k]
            if p != TRUE:
                released[n] = p
                n += 1
        _release(arena, np.int64(row[RUN]), np.int64(row[SIZE]) * width)
        first_of[row[SUBSCRIPTION]] = -1
        row[SUBSCRIPTION], row[SIBLING] = -1, arena.state[FREE_SLOT]
        arena.state[FREE_SLOT] = slots[i]
    return n


# Counting.


@kernel
def enlist(arena: Arena, lists: Numbers, slots: Numbers, done: int) -> int:
    """Put conjunctions on the lists of their predicates; return how many are done."""
    for i in range(done, len(slots)):
        c = slots[i]
        run, n = np.int64(arena.conjunctions[c, RUN]), np.int64(arena.conjunctions[c, SIZE])
        for k in range(n):
            if not _make_room(arena, lists, np.int64(arena.pool[run + k]), np.int64(2)):
                return i
        for k in range(n):
            row = lists[arena.pool[run + k]]
            place = np.int64(row[BASE]) + row[COUNT]
            arena.pool[place], arena.pool[place + row[CAPACITY]] = c, k
            arena.pool[run + n + k] = row[COUNT]
            row[COUNT] += 1
    return len(slots)


@kernel
def delist(arena: Arena, lists: Numbers, slots: Numbers) -> None:
    """Take conjunctions off the lists of their predicates."""
    for i in range(len(slots)):
        run = np.int64(arena.conjunctions[slots[i], RUN])
        n = np.int64(arena.conjunctions[slots[i], SIZE])
        for k in range(n):
            row = lists[arena.pool[run + k]]
            base, capacity = np.int64(row[BASE]), np.int64(row[CAPACITY])
            at, last = np.int64(arena.pool[run + n + k]), np.int64(row[COUNT]) - 1
            c, which = arena.pool[base + last], arena.pool[base + capacity + last]
            arena.pool[base + at], arena.pool[base + capacity + at] = c, which
            place = np.int64(arena.conjunctions[c, RUN]) + arena.conjunctions[c, SIZE] + which
            arena.pool[place] = at
            row[COUNT] = last
            if last == 0:
                _release(arena, base, 2 * capacity)
                row[CAPACITY] = 0


# Clusters.


@inlined
def _share(k: Clustering, p: Scalar) -> Scalar:
    """Return the share of events that satisfies a predicate."""
    if k.share[p] >= 0:
        return k.share[p]
    dimension = k.dimension[p]
    return GUESS if dimension < 0 else 1.0 / k.n_points[dimension]


@uncounted_inlined
def _bucket_of(k: Clustering, table: Scalar, key: Numbers, n: Scalar) -> Scalar:
    """Return the bucket of an access predicate of a table."""
    h = np.uint64(table) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(n):
        h = (h ^ np.uint64(key[np.uint64(i)])) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    return np.int64(h & np.uint64(len(k.bucket) - 1))


@uncounted_inlined
def _find_access(k: Clustering, table: Scalar, key: Numbers, n: Scalar) -> Scalar:
    """Return the access predicate of a table that is made of a key, or -1."""
    return _follow_chain(k, np.int64(k.bucket[_bucket_of(k, table, key, n)]), table, key, n)


@uncounted_inlined
def _follow_chain(k: Clustering, x: Scalar, table: Scalar, key: Numbers, n: Scalar) -> Scalar:
    """Return the access predicate of a key in a chain, or -1."""
    while x >= 0:
        row = np.uint64(x)
        is_same = k.access[row, np.uint64(TABLE)] == table
        for i in range(np.uint64(n)):
            is_same &= k.access[row, i] == key[i]
        if is_same:
            return x
        x = np.int64(k.access[row, np.uint64(CHAIN)])
    return x


@uncounted_inlined
def _fill_key(schemas: Numbers, table: Scalar, point: Numbers, key: Numbers) -> Scalar:
    """Write the predicates that fill a table's schema; return how many, or 0 where one lacks.

    `point` has the predicates by their dimensions.
    """
    row, lacks = np.uint64(table), False
    n = np.uint64(schemas[row, np.uint64(0)])
    for i in range(n):
        p = point[np.uint64(schemas[row, i + np.uint64(1)])]
        key[i] = p
        lacks |= p < 0
    return np.int64(0) if lacks else np.int64(n)


@inlined
def _choose(
    k: Clustering, pool: Numbers, run: Scalar, n: Scalar, point: Numbers, key: Numbers,
    fixed: Scalar, each: Scalar,
) -> Any:  # fmt: skip
    """Return the table (-1: a single predicate) that makes checking cheapest, the length of the
    key, which is written, and the cost.

    The cost is the share of events that get there times the cost of a check; of equal ones the
    access predicate with the fewest conjunctions is taken.
    """
    best, chosen = fixed + each * n, np.int64(-1)
    fewest = np.int64(1) << 60
    single = np.int64(TRUE)
    for i in range(n):
        p = pool[run + i]
        if k.dimension[p] < 0:
            continue
        point[k.dimension[p]] = p
        cost = _share(k, p) * (fixed + each * (n - 1))
        x = k.access_of[p]
        population = np.int64(0) if x < 0 else np.int64(k.access[x, POPULATION])
        if cost < best or (cost == best and population < fewest):
            best, fewest, single = cost, population, np.int64(p)
    for t in range(len(k.schemas)):
        m = _fill_key(k.schemas, t, point, key)
        if m == 0:
            continue
        cost = fixed + each * (n - m)
        for i in range(m):
            cost *= _share(k, key[i])
        if cost < best:
            best, chosen = cost, np.int64(t)
    m = np.int64(1)
    key[0] = single
    if chosen >= 0:
        m = _fill_key(k.schemas, chosen, point, key)
    for i in range(n):
        if k.dimension[pool[run + i]] >= 0:
            point[k.dimension[pool[run + i]]] = -1
    return chosen, m, best


@inlined
def _cost_now(k: Clustering, r: Scalar, fixed: Scalar, each: Scalar) -> Scalar:
    """Return what checking a conjunction costs in the cluster where it is."""
    cost = fixed + each * k.clusters[r, N_LEFT]
    for i in range(MAX_SCHEMA):
        p = k.access[k.clusters[r, ACCESS], i]
        if p >= 0:
            cost *= _share(k, p)
    return cost


@inlined
def _take_row(rows: Numbers, state: Integers, n_rows: Scalar, free: Scalar, link: Scalar) -> Scalar:
    """Return a free row, or a new one."""
    r = state[free]
    if r >= 0:
        state[free] = rows[r, link]
        return r
    r = state[n_rows]
    state[n_rows] = r + 1
    return r


@inlined
def _access_for(arena: Arena, k: Clustering, table: Scalar, key: Numbers, n: Scalar) -> Scalar:
    """Return the access predicate of a key; make it where it is not there."""
    x = np.int64(k.access_of[key[0]]) if table < 0 else _find_access(k, table, key, n)
    if x >= 0:
        return x
    x = _take_row(k.access, arena.state, N_ACCESS, FREE_ACCESS, CHAIN)
    row = k.access[x]
    for i in range(MAX_SCHEMA):
        row[i] = key[i] if i < n else -1
    row[TABLE], row[HEAD], row[CHAIN], row[POPULATION] = table, -1, -1, 0
    if table < 0:
        k.access_of[key[0]] = x
    else:
        b = _bucket_of(k, table, key, n)
        row[CHAIN], k.bucket[b] = k.bucket[b], x
    return x


@inlined
def _cluster_for(arena: Arena, k: Clustering, x: Scalar, n_left: Scalar) -> Scalar:
    """Return the cluster of a size under an access predicate; make it where it is not there."""
    r = np.int64(k.access[x, HEAD])
    while r >= 0:
        if k.clusters[r, N_LEFT] == n_left:
            return r
        r = np.int64(k.clusters[r, NEXT])
    r = _take_row(k.clusters, arena.state, N_CLUSTERS, FREE_CLUSTER, NEXT)
    row = k.clusters[r]
    row[BASE], row[CAPACITY], row[COUNT], row[SEEN] = 0, 0, 0, 0
    row[N_LEFT], row[ACCESS] = n_left, x
    row[NEXT], k.access[x, HEAD] = k.access[x, HEAD], r
    return r


@inlined
def _order_left(
    k: Clustering, pool: Numbers, run: Scalar, n: Scalar, key: Numbers, m: Scalar, order: Numbers
) -> Scalar:
    """Write the predicates that are left to check, the most selective first."""
    n_left = np.int64(0)
    for i in range(n):
        p = pool[run + i]
        is_key = False
        for j in range(m):
            is_key |= key[j] == p
        if is_key:
            continue
        at = n_left
        while at > 0 and _share(k, order[at - 1]) > _share(k, p):
            order[at] = order[at - 1]
            at -= 1
        order[at] = p
        n_left += 1
    return n_left


@kernel
def place(
    arena: Arena,
    k: Clustering,
    scratch: Scratch,
    slots: Numbers,
    done: int,
    fixed: float,
    each: float,
    touched: Numbers,
) -> int:
    """Put each conjunction into the cluster where checking it is cheapest.

    `fixed` and `each` are what a check costs, and each predicate in it. Writes the cluster of each;
    returns how many conjunctions are done. One that is in a cluster already stays there, and -1 is
    written where another would be cheaper.
    """
    key = np.empty(MAX_SCHEMA, np.int32)
    for i in range(done, len(slots)):
        if arena.state[N_CLUSTERS] == len(k.clusters) or arena.state[N_ACCESS] == len(k.access):
            return i
        row = arena.conjunctions[slots[i]]
        run, n = np.int64(row[RUN]), np.int64(row[SIZE])
        table, m, cost = _choose(k, arena.pool, run, n, scratch.point, key, fixed, each)
        r = np.int64(row[CLUSTER])
        if r >= 0:
            is_better = cost < (1.0 - 1e-9) * _cost_now(k, r, fixed, each)
            touched[i] = -1 if is_better else r
            continue
        n_left = _order_left(k, arena.pool, run, n, key, m, scratch.order)
        x = _access_for(arena, k, table, key, m)
        r = _cluster_for(arena, k, x, n_left)
        if not _make_room(arena, k.clusters, r, n_left + 1):
            return i
        cluster = k.clusters[r]
        at = np.int64(cluster[BASE]) + cluster[COUNT]
        for j in range(n_left):
            arena.pool[at] = scratch.order[j]
            at += cluster[CAPACITY]
        arena.pool[at] = slots[i]
        row[CLUSTER], row[POSITION] = r, cluster[COUNT]
        cluster[COUNT] += 1
        k.access[x, POPULATION] += 1
        touched[i] = r
    return len(slots)


@inlined
def _drop_access(arena: Arena, k: Clustering, x: Scalar) -> None:
    """Forget an access predicate that leads nowhere."""
    row = k.access[x]
    if row[TABLE] < 0:
        k.access_of[row[0]] = -1
    else:
        b = _bucket_of(k, row[TABLE], row, np.int64(k.schemas[row[TABLE], 0]))
        if k.bucket[b] == x:
            k.bucket[b] = row[CHAIN]
        else:
            before = k.bucket[b]
            while k.access[before, CHAIN] != x:
                before = k.access[before, CHAIN]
            k.access[before, CHAIN] = row[CHAIN]
    row[HEAD] = -2
    row[CHAIN] = arena.state[FREE_ACCESS]
    arena.state[FREE_ACCESS] = x


@inlined
def _drop_cluster(arena: Arena, k: Clustering, r: Scalar) -> None:
    """Forget a cluster that is empty, and its access predicate with the last one."""
    cluster = k.clusters[r]
    x = np.int64(cluster[ACCESS])
    _release(arena, np.int64(cluster[BASE]), np.int64(cluster[CAPACITY]) * (cluster[N_LEFT] + 1))
    if k.access[x, HEAD] == r:
        k.access[x, HEAD] = cluster[NEXT]
    else:
        before = k.access[x, HEAD]
        while k.clusters[before, NEXT] != r:
            before = k.clusters[before, NEXT]
        k.clusters[before, NEXT] = cluster[NEXT]
    cluster[CAPACITY], cluster[N_LEFT], cluster[ACCESS], cluster[SEEN] = 0, -1, -1, 0
    cluster[NEXT] = arena.state[FREE_CLUSTER]
    arena.state[FREE_CLUSTER] = r
    if k.access[x, HEAD] < 0:
        _drop_access(arena, k, x)


@kernel
def take_out(arena: Arena, k: Clustering, slots: Numbers) -> None:
    """Take conjunctions out of their clusters."""
    for i in range(len(slots)):
        row = arena.conjunctions[slots[i]]
        r = np.int64(row[CLUSTER])
        if r < 0:
            continue
        cluster = k.clusters[r]
        base, capacity = np.int64(cluster[BASE]), np.int64(cluster[CAPACITY])
        at, last, n_left = np.int64(row[POSITION]), np.int64(cluster[COUNT]) - 1, cluster[N_LEFT]
        for j in range(n_left + 1):
            arena.pool[base + j * capacity + at] = arena.pool[base + j * capacity + last]
        arena.conjunctions[arena.pool[base + n_left * capacity + at], POSITION] = at
        cluster[COUNT] = last
        k.access[cluster[ACCESS], POPULATION] -= 1
        row[CLUSTER], row[POSITION] = -1, -1
        if last == 0:
            _drop_cluster(arena, k, r)


@kernel
def rehash(arena: Arena, k: Clustering) -> None:
    """Rehash the access predicates of all tables."""
    k.bucket[:] = -1
    for x in range(arena.state[N_ACCESS]):
        row = k.access[x]
        if row[TABLE] >= 0 and row[HEAD] != -2:
            b = _bucket_of(k, row[TABLE], row, np.int64(k.schemas[row[TABLE], 0]))
            row[CHAIN], k.bucket[b] = k.bucket[b], x


# Looking into tables.


@uncounted_inlined
def _note_points(
    dimension: Numbers, point: Numbers, predicates: Numbers, ends: Integers, e: Scalar,
    is_clean: Scalar,
) -> None:  # fmt: skip
    """Note the equalities that an event satisfies by their dimensions, or forget them."""
    for g in range(len(ends)):
        for i in range(np.uint64(ends[g, e]), np.uint64(ends[g, e + 1])):
            p = np.uint64(predicates[i])
            at = dimension[p]
            if at >= 0:
                point[np.uint64(at)] = -1 if is_clean else p


@uncounted_inlined
def _ask_bucket(k: Clustering, scratch: Scratch, i: Scalar, table: Scalar) -> None:
    """The first step of a look: make the key, and find its bucket."""
    key = scratch.keys[i % np.uint64(N_KEYS)]
    key[TABLE], n = table, _fill_key(k.schemas, table, scratch.point, key)
    key[N_KEY], scratch.probes[i] = n, -1
    if n:
        bucket = _bucket_of(k, table, key, n)
        scratch.probes[i] = bucket
        prefetch_row(k.bucket, bucket)


@uncounted_inlined
def _ask_access(k: Clustering, scratch: Scratch, i: Scalar) -> None:
    """The second step: from the bucket to an access predicate."""
    if scratch.probes[i] >= 0:
        x = k.bucket[np.uint64(scratch.probes[i])]
        scratch.probes[i] = x
        prefetch_row(k.access, max(np.int64(x), np.int64(0)))


@uncounted_inlined
def _find_head(k: Clustering, scratch: Scratch, i: Scalar) -> None:
    """The last step: the access predicate of the key, and the first cluster under it."""
    x = np.int64(scratch.probes[i])
    if x >= 0:
        key = scratch.keys[i % np.uint64(N_KEYS)]
        x = _follow_chain(k, x, key[TABLE], key, key[N_KEY])
    scratch.probes[i] = k.access[np.uint64(x), np.uint64(HEAD)] if x >= 0 else -1


@uncounted
def look_up(
    k: Clustering, scratch: Scratch, predicates: Numbers, ends: Integers, first: int
) -> None:
    """Look into all tables for the events of a chunk, from one on.

    Writes to `scratch.probes`, event by event, the first cluster that each table has for it, or -1.
    A step asks for what the next one reads, which is some looks later: a processor forgets what it
    is asked for when that is too much at once.
    """
    n_tables, gap = np.uint64(len(k.schemas)), np.uint64(GAP)
    i = np.uint64(0)
    for e in range(first, ends.shape[1] - 1):
        _note_points(k.dimension, scratch.point, predicates, ends, e, False)
        for t in range(n_tables):
            _ask_bucket(k, scratch, i, t)
            if i >= gap:
                _ask_access(k, scratch, i - gap)
            if i >= gap + gap:
                _find_head(k, scratch, i - gap - gap)
            i += np.uint64(1)
        _note_points(k.dimension, scratch.point, predicates, ends, e, True)
    for late in range(max(i, gap) - gap, i):
        _ask_access(k, scratch, np.uint64(late))
    for late in range(max(i, gap + gap) - gap - gap, i):
        _find_head(k, scratch, np.uint64(late))
