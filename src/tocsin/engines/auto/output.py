"""Output of kernels: buffers that grow, and the result by event.

A kernel writes into arrays of a fixed size. When they are full it says where it stopped, or that
they are too small; the buffer is replaced by a larger one and the kernel goes on. Kernels write in
one of two forms: conjunctions event by event (`by_event`), or pairs of an event and a conjunction,
some of which need a check (`Pairs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import row_kernels, verify_kernels
from tocsin.engines.auto.arrays import Numbers, Stream
from tocsin.engines.auto.batch import OrderedRows
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.ragged import RaggedIds

_MAX_UNVERIFIED = 1 << 14
"""After this many candidates they are verified, while what that reads is still in the cache."""
_MAX_EXPECTED = 1 << 20
"""More matches than these, and than twice those of the last batch, are not expected."""


class MatchRate:
    """How much of a segment the last batch matched: what to expect of the next one."""

    def __init__(self) -> None:
        self._last = (0, 1)  # matches and events: one value, since readers are concurrent

    def update(self, n_matches: int, n_events: int) -> None:
        """Note the matches of a batch."""
        self._last = (n_matches, max(n_events, 1))

    def expected(self, n_events: int) -> int:
        """Return for how many matches to reserve memory; a small batch says little."""
        n_matches, n_last = self._last
        return min(int(1.1 * n_events * n_matches / n_last), max(2 * n_matches, _MAX_EXPECTED))

    def is_at_most(self, per_event: int) -> bool:
        """Whether the last batch had at most this many matches per event."""
        n_matches, n_last = self._last
        return n_matches <= per_event * n_last


class Buffer:
    """Arrays of one length that kernels fill."""

    def __init__(self, pool: BufferPool, n: int, *dtypes: Any) -> None:
        self._pool = pool
        self.arrays: Any = self._acquire(n, dtypes)

    def _acquire(self, n: int, dtypes: Any) -> tuple[NDArray[Any], ...]:
        arrays = [self._pool.acquire(n, dtype) for dtype in dtypes]
        shortest = min(map(len, arrays))
        return tuple(array[:shortest] for array in arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def grow(self, n_used: int, n: int) -> None:
        """Replace the arrays by longer ones, which begin with what is used of these."""
        larger = self._acquire(n, [array.dtype for array in self.arrays])
        for new, old in zip(larger, self.arrays, strict=True):
            new[:n_used] = old[:n_used]
        self.arrays = larger

    def fill(self, kernel: Callable[..., int], *arguments: Any) -> int:
        """Call a kernel that returns how much it wrote, or -1 where the arrays are too short."""
        while (n := kernel(*arguments, *self.arrays)) < 0:
            self.grow(0, 4 * len(self))
        return n


def by_event(
    kernel: Callable[..., int], arguments: Any, n_events: int, buffer: Buffer, step: int
) -> RaggedIds:
    """Return what a kernel writes event by event.

    Its last arguments are the event to go on from, the array to write to, and the offsets of the
    events, of which it sets those up to the event that it returns. `step` is how much a full array
    grows, besides being doubled.
    """
    offsets = np.zeros(n_events + 1, np.int64)
    reached = kernel(*arguments, 0, *buffer.arrays, offsets)
    while reached < n_events:
        buffer.grow(int(offsets[reached]), 2 * len(buffer) + step)
        reached = kernel(*arguments, reached, *buffer.arrays, offsets)
    return RaggedIds(offsets, buffer.arrays[0][: offsets[-1]])


class Pairs:
    """Pairs of an event and a conjunction, found in an ordered batch.

    Kernels write candidates with the position of the event in the order; they are verified soon,
    while what that reads is in the cache, and before the buffer grows.
    """

    def __init__(
        self, ordered: OrderedRows, stream: Stream, need_checks: bool, n: int, pool: BufferPool
    ) -> None:
        self._ordered, self._stream, self._need_checks = ordered, stream, need_checks
        self._pool = pool
        self._buffer = Buffer(pool, n, np.int32, np.uint32)
        self.n = 0

    @property
    def numbers(self) -> Numbers:
        """The conjunctions."""
        numbers: Numbers = self._buffer.arrays[1][: self.n]
        return numbers

    def collect(self, kernel: Callable[..., tuple[int, int]], *arguments: Any) -> None:
        """Add the pairs that a kernel finds.

        Its last arguments are the position in the order to go on from, the number of pairs at which
        to stop, the events and the conjunctions of pairs, and how many there are; it returns their
        new number, and the position that it reached.
        """
        at, end = 0, len(self._ordered.order)
        while at < end:
            stop = self.n + _MAX_UNVERIFIED if self._need_checks else len(self._buffer)
            n, reached = kernel(*arguments, at, stop, *self._buffer.arrays, self.n)
            if self._need_checks:
                (codes, cells), order, _ = self._ordered
                event, number = self._buffer.arrays
                n = verify_kernels.verify_ordered_pairs(
                    self._stream, codes, cells, order, event, number, self.n, n
                )
            self.n = n
            if reached == at or 2 * n > len(self._buffer):
                self._buffer.grow(n, 4 * len(self._buffer))
            at = reached

    def rows(self, n_events: int, base: int) -> RaggedIds:
        """Return the conjunctions by event, each number plus a base."""
        return to_ragged(self._buffer.arrays, self.n, n_events, base, self._pool)


def to_ragged(pairs: Any, n_pairs: int, n_events: int, base: int, pool: BufferPool) -> RaggedIds:
    """Return the conjunctions of pairs by event, each number plus a base."""
    offsets = np.zeros(n_events + 1, np.int64)
    out = pool.acquire(n_pairs, np.uint32)[:n_pairs]
    event, number = pairs
    row_kernels.pairs_to_ragged(event, number, n_pairs, 0, n_events, base, offsets, out)
    return RaggedIds(offsets, out)


def no_rows(n_events: int) -> RaggedIds:
    """Return no conjunctions for each event."""
    return RaggedIds(np.zeros(n_events + 1, np.int64), np.empty(0, np.uint32))


def join(a: RaggedIds, b: RaggedIds, pool: BufferPool) -> RaggedIds:
    """Return the conjunctions of both by event."""
    if not len(a.values) or not len(b.values):
        return a if len(a.values) else b
    offsets, n = np.zeros(len(a.offsets), np.int64), len(a.values) + len(b.values)
    out = pool.acquire(n, np.uint32)[:n]
    row_kernels.join(offsets, *a, *b, out)
    return RaggedIds(offsets, out)
