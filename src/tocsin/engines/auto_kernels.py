"""Cells → candidate conjunctions, compiled: the kernels of the `auto` engine.

Enters: the cells of a batch of events and the flat arrays of a segment. Leaves: for each event the
conjunctions it satisfies (LIKE patterns apart). Outputs are written to the room given; a kernel
that runs out of it says at which event it stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel

NOWHERE = -1
"""The access attribute of a conjunction that is tried on every event."""


class Index(NamedTuple):
    """A segment's arrays. A conjunction's conditions stand most selective first.

    `probe_attributes` are the attributes by which conjunctions are found; bucket b of attribute a,
    which is that of the cells c with `c >> shift[a] == b`, holds the conjunctions
    `members[member_start[first_bucket[a] + b] : …]`. `rest` are those tried on every event.
    """

    probe_attributes: NDArray[np.int32]
    first_bucket: NDArray[np.int64]
    shift: NDArray[np.int32]
    member_start: NDArray[np.int64]
    members: NDArray[np.int32]
    rest: NDArray[np.int32]
    condition_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    range_start: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    subscription: NDArray[np.int64]


@kernel
def choose_access(
    condition_start: NDArray[np.int64],
    attribute: NDArray[np.int32],
    range_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    n_cells: NDArray[np.int32],
    most: float,
    order: NDArray[np.int64],
    access: NDArray[np.int32],
    width: NDArray[np.int32],
) -> None:
    """Order each conjunction's conditions by the share of cells they allow, least first.

    `access[c]` becomes the attribute of the first, or NOWHERE when it allows more than `most` of
    the cells or an absent value; `width[c]` the number of cells from its first to its last.
    """
    shares = np.empty(len(order))
    for c in range(len(condition_start) - 1):
        first, last = condition_start[c], condition_start[c + 1]
        for i in range(first, last):
            n = 0
            for r in range(range_start[i], range_start[i + 1]):
                n += high[r] - low[r]
            share = n / n_cells[attribute[i]]
            j = i
            while j > first and shares[j - 1] > share:
                shares[j] = shares[j - 1]
                order[j] = order[j - 1]
                j -= 1
            shares[j] = share
            order[j] = i
        access[c] = NOWHERE
        if last > first and shares[first] <= most:
            best = order[first]
            if low[range_start[best]] > 0:
                access[c] = attribute[best]
                width[c] = high[range_start[best + 1] - 1] - low[range_start[best]]


@kernel
def fill_buckets(
    conjunctions: NDArray[np.int64],
    access: NDArray[np.int32],
    best: NDArray[np.int64],
    range_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    shift: NDArray[np.int32],
    first_bucket: NDArray[np.int64],
    counts: NDArray[np.int64],
    members: NDArray[np.int32],
) -> None:
    """Count the members of each bucket, or (when there is room for them) write them.

    With an empty `members`, `counts[b + 1]` grows by the members of bucket b; else `counts[b]` is
    where the next one goes.
    """
    is_counting = len(members) == 0
    for c in conjunctions:
        a = access[c]
        previous = -1
        for r in range(range_start[best[c]], range_start[best[c] + 1]):
            for b in range(low[r] >> shift[a], ((high[r] - 1) >> shift[a]) + 1):
                if b == previous:
                    continue
                previous = b
                bucket = first_bucket[a] + b
                if is_counting:
                    counts[bucket + 1] += 1
                else:
                    members[counts[bucket]] = c
                    counts[bucket] += 1


@inner
def _holds(
    c: int,
    row: NDArray[np.int32],
    condition_start: NDArray[np.int64],
    attribute: NDArray[np.int32],
    range_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
) -> bool:
    for i in range(condition_start[c], condition_start[c + 1]):
        cell = row[attribute[i]]
        inside = False
        for r in range(range_start[i], range_start[i + 1]):
            if cell < high[r]:
                inside = cell >= low[r]
                break
        if not inside:
            return False
    return True


@kernel
def match(
    index: Index,
    cells: NDArray[np.int32],
    first: int,
    is_live: NDArray[np.bool_],
    out: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> int:
    """Write the conjunctions that events satisfy, from event `first` on; return where it stopped.

    `offsets[first]` says where to write; an event is either done whole or not at all.
    """
    condition_start, attribute = index.condition_start, index.attribute
    range_start, low, high = index.range_start, index.low, index.high
    subscription, members, rest = index.subscription, index.members, index.rest
    n = offsets[first]
    for event in range(first, len(cells)):
        row = cells[event]
        room = len(out) - n
        tried = len(rest)
        for a in index.probe_attributes:
            b = index.first_bucket[a] + (row[a] >> index.shift[a])
            tried += index.member_start[b + 1] - index.member_start[b]
        if tried > room:
            return event
        for c in rest:
            if _holds(c, row, condition_start, attribute, range_start, low, high):
                out[n] = c
                n += is_live[subscription[c]]
        for a in index.probe_attributes:
            b = index.first_bucket[a] + (row[a] >> index.shift[a])
            for m in range(index.member_start[b], index.member_start[b + 1]):
                c = members[m]
                if _holds(c, row, condition_start, attribute, range_start, low, high):
                    out[n] = c
                    n += is_live[subscription[c]]
        offsets[event + 1] = n
    return len(cells)


@kernel
def drop_repeats(
    offsets: NDArray[np.int64], ids: NDArray[np.int64], last_event: NDArray[np.int64], stamp: int
) -> int:
    """Keep each id once per event, in place; return how many are left.

    `last_event[id]` holds a number of the last event that it was seen in; numbers below `stamp`
    are of earlier calls.
    """
    n, start = 0, 0
    for event in range(len(offsets) - 1):
        end = offsets[event + 1]
        for i in range(start, end):
            dense = ids[i]
            if last_event[dense] != stamp + event:
                last_event[dense] = stamp + event
                ids[n] = dense
                n += 1
        start = end
        offsets[event + 1] = n
    return n


@kernel
def interleave(
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    more_offsets: NDArray[np.int64],
    more_ids: NDArray[np.int64],
    out_offsets: NDArray[np.int64],
    out_ids: NDArray[np.int64],
) -> None:
    """Join the matches of two segments, event by event."""
    n = 0
    out_offsets[0] = 0
    for event in range(len(offsets) - 1):
        for i in range(offsets[event], offsets[event + 1]):
            out_ids[n] = ids[i]
            n += 1
        for i in range(more_offsets[event], more_offsets[event + 1]):
            out_ids[n] = more_ids[i]
            n += 1
        out_offsets[event + 1] = n
