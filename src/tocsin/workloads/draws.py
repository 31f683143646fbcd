"""Random numbers by position: row i of a stream can be drawn without the rows before it.

Enters: a seed, a stream's label and a range of rows. Leaves: doubles in [0, 1), a line of them for
each row. The generator is Philox, which encrypts a counter: the key is made of the seed and the
label, and each row owns its own span of counters. So a row is the same whoever asks for it, in
whatever company, which lets partitions of a cluster generate their parts by themselves.

Only raw bits are taken from NumPy, because those are promised never to change; what is made of
them is arithmetic in this package.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.float64]
"""Doubles in [0, 1): a row of draws for each row of data."""

_DRAWS_PER_COUNT = 4
_BLOCK_ROWS = 1024


def draw(seed: int, label: str, first: int, n: int, width: int) -> Units:
    """Return `width` draws for each of the rows first … first + n − 1 of a stream."""
    stream = int.from_bytes(blake2b(label.encode(), digest_size=8).digest(), "little")
    counts = -(-width // _DRAWS_PER_COUNT)
    bits = np.random.Philox(key=seed | stream << 64, counter=first * counts)
    raw = bits.random_raw(n * counts * _DRAWS_PER_COUNT)
    units = (raw >> np.uint64(11)) * np.float64(2.0**-53)
    return units.reshape(n, counts * _DRAWS_PER_COUNT)[:, :width]


def below(units: Units, limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return integers from 0 to limit − 1, uniformly. (A unit times a limit never rounds to it.)"""
    return (units * limit).astype(np.int64)


def distinct(units: Units, among: int) -> NDArray[np.int64]:
    """Return for each row as many distinct integers below `among` as it has draws, in random order.

    The first steps of a Fisher–Yates shuffle, on a block of rows at once.
    """
    n, k = units.shape
    chosen = np.empty((n, k), np.int64)
    for start in range(0, n, _BLOCK_ROWS):
        block = units[start : start + _BLOCK_ROWS]
        shuffled = np.tile(np.arange(among, dtype=np.int32), len(block))
        rows = np.arange(len(block), dtype=np.int64) * among
        for j in range(k):
            here, there = rows + j, rows + j + below(block[:, j], among - j)
            kept = shuffled[there]
            shuffled[there] = shuffled[here]
            shuffled[here] = kept
        chosen[start : start + _BLOCK_ROWS] = shuffled.reshape(len(block), among)[:, :k]
    return chosen


def zipf_steps(n: int, exponent: float) -> NDArray[np.float64]:
    """Return the cumulative shares of n ranks whose shares fall as 1 / rank^exponent."""
    shares = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    steps = np.cumsum(shares / shares.sum())
    steps[-1] = 1.0
    return steps


def by_steps(units: Units, steps: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return ranks (from 0) drawn by their cumulative shares."""
    return np.searchsorted(steps, units, side="right")
