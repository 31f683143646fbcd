"""Cells ↔ bits: how discretised ranges and values travel between processes.

Enters: a range of cells of one level, or a leaf. Leaves: bytes (Zhao and Wu, section III-E.2). A
range is its first level, the one or two cells there, and for each level after it two bits: whether
a cell is added on the left, and on the right. A value is its first level, the cell there, and for
each level after it one bit: which half of the cell before it is in.

A byte with the length comes first, as in the paper. Unlike there, a first cell takes as many bits
as its level asks for, and the second cell, which is always the next, takes none.
"""

from __future__ import annotations

from collections.abc import Iterator

from tocsin.errors import ArgumentError

_LEVEL_BITS = 6


def decompose(low: int, high: int, level: int) -> list[tuple[int, int]]:
    """Return the largest cells that make up a range of cells, as levels and cells, coarse first."""
    cells = []
    while low <= high:
        if low & 1:
            cells.append((level, low))
            low += 1
        if not high & 1 and low <= high:
            cells.append((level, high))
            high -= 1
        low, high, level = low >> 1, high >> 1, level - 1
        if level < 0:
            break
    return sorted(cells)


def code_range(low: int, high: int, level: int) -> bytes:
    """Return a range of cells of a level as bits.

    From the last level up: what is added at the ends is taken off, and the rest is halved.
    """
    pairs = n = 0
    while low + (low & 1) < high + (high & 1):
        left, right = low & 1, ~high & 1
        if n or left or right:
            pairs |= (left << 1 | right) << n
            n += 2
        low, high, level = (low + left) >> 1, (high - right) >> 1, level - 1
    bits = _Bits()
    bits.put(level, _LEVEL_BITS)
    bits.put(low, level)
    bits.put(high - low, 1)
    bits.put(pairs, n)
    return bits.to_bytes()


def decode_range(coded: bytes) -> list[tuple[int, int]]:
    """Undo `code_range`: the cells that make up the range, coarse first."""
    bits = _Bits.of(coded)
    first = bits.take(_LEVEL_BITS)
    left = right = bits.take(first)
    cells = [(first, left)]
    if bits.take(1):
        right += 1
        cells.append((first, right))
    at = first
    while bits.left >= 2:
        at += 1
        added = bits.take(2)
        left, right = 2 * left - (added >> 1), 2 * right + 1 + (added & 1)
        if added >> 1:
            cells.append((at, left))
        if added & 1:
            cells.append((at, right))
    return cells


def decode_bounds(coded: bytes) -> tuple[int, int, int]:
    """Undo `code_range`: the first and the last cell, and their level, the last that has any."""
    bits = _Bits.of(coded)
    level = bits.take(_LEVEL_BITS)
    low = bits.take(level)
    high = low + bits.take(1)
    if bits.left & 1:
        raise ArgumentError("these are no coded cells: half a pair is left")
    while bits.left:
        added = bits.take(2)
        low, high, level = 2 * low - (added >> 1), 2 * high + 1 + (added & 1), level + 1
    if low < 0 or high >> level:
        raise ArgumentError("these are no coded cells: they reach beyond the level")
    return low, high, level


def split(coded: bytes) -> Iterator[bytes]:
    """Yield coded ranges that were put one after the other: each begins with its length."""
    at = 0
    while at < len(coded):
        end = at + 1 + -(-coded[at] // 8)
        yield coded[at:end]
        at = end


def code_value(leaf: int, first: int, last: int) -> bytes:
    """Return the cells that a leaf of the last level lies in, from the first level on, as bits."""
    bits = _Bits()
    bits.put(first, 8)
    bits.put(leaf >> (last - first), 32)
    for at in range(first + 1, last + 1):
        bits.put(leaf >> (last - at) & 1, 1)
    return bits.to_bytes()


def decode_value(coded: bytes) -> list[tuple[int, int]]:
    """Undo `code_value`: the levels and cells."""
    bits = _Bits.of(coded)
    at, cell = bits.take(8), bits.take(32)
    cells = [(at, cell)]
    while bits.left:
        at, cell = at + 1, 2 * cell + bits.take(1)
        cells.append((at, cell))
    return cells


class _Bits:
    """A row of bits, with its length before it."""

    def __init__(self, value: int = 0, left: int = 0) -> None:
        self.value = value
        self.left = left

    def put(self, value: int, n: int) -> None:
        self.value = self.value << n | value
        self.left += n

    def take(self, n: int) -> int:
        if n > self.left:
            raise ArgumentError("these are no coded cells: they are cut off")
        self.left -= n
        return self.value >> self.left & ((1 << n) - 1)

    def to_bytes(self) -> bytes:
        n = -(-self.left // 8)
        padded = self.value << (8 * n - self.left)
        return bytes([self.left]) + padded.to_bytes(n, "big")

    @staticmethod
    def of(coded: bytes) -> _Bits:
        if not coded or len(coded) != 1 + -(-coded[0] // 8):
            raise ArgumentError("these are no coded cells: the length is wrong")
        n = coded[0]
        return _Bits(int.from_bytes(coded[1:], "big") >> (8 * (len(coded) - 1) - n), n)
