"""The kernels of the id index: columns of ids → a flat hash table, and look-ups in one.

Enters: ids as 64-bit integers, or as UTF-8 bytes with offsets. Leaves: slots, duplicates, and pairs
of entries whose hashes are equal.

A slot is 64 bits, the hash of an id above and its number below, or EMPTY. The place of a hash in a
table of n slots is `hash * n >> 32`; collisions are resolved by linear probing. So a table is in
the order of hashes but for short runs, and is copied into another or joined with it in one pass
through both, without reading ids. Entries with equal hashes are candidates: callers compare ids.

`hash_number` and `hash_text` of `ids` compute the same hashes as the kernels here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel, prefetch_row

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_SHIFT = np.uint64(29)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_LINE = 8
"""The number of slots in a cache line; tables have a multiple of it."""
_AHEAD = 12
_POLYNOMIAL = 0xEDB88320
_ALL_BITS = np.uint32(0xFFFFFFFF)
_OCTET = np.uint32(0xFF)
_EIGHT = np.uint32(8)


def _remainders() -> NDArray[np.uint32]:
    """Return the tables of CRC-32: the remainder of each octet, with 0 to 7 octets after it."""
    remainders = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        remainders = np.where(
            remainders & 1, remainders >> 1 ^ np.uint32(_POLYNOMIAL), remainders >> 1
        )
    tables = [remainders]
    for _ in range(7):
        tables.append(tables[-1] >> 8 ^ remainders[tables[-1] & 0xFF])
    return np.concatenate(tables).astype(np.uint32)


_CRC = _remainders()


@inlined
def _mix(word: np.uint64) -> np.uint64:
    """Spread a word over 32 bits."""
    word = (word ^ (word >> _HALF)) * _MULTIPLIER
    word = (word ^ (word >> _SHIFT)) * _SECOND_MULTIPLIER
    return word >> _HALF


@inlined
def _hash_octets(data: NDArray[np.uint8], start: np.int64, end: np.int64) -> np.uint64:
    """Hash by CRC-32, which zlib gives for a single text; eight octets at a time."""
    crc, at = _ALL_BITS, start
    while at + 8 <= end:
        crc = (
            _CRC[1792 + (np.uint32(data[at]) ^ (crc & _OCTET))]
            ^ _CRC[1536 + (np.uint32(data[at + 1]) ^ (crc >> _EIGHT & _OCTET))]
            ^ _CRC[1280 + (np.uint32(data[at + 2]) ^ (crc >> np.uint32(16) & _OCTET))]
            ^ _CRC[1024 + (np.uint32(data[at + 3]) ^ (crc >> np.uint32(24)))]
            ^ _CRC[768 + np.uint32(data[at + 4])]
            ^ _CRC[512 + np.uint32(data[at + 5])]
            ^ _CRC[256 + np.uint32(data[at + 6])]
            ^ _CRC[np.uint32(data[at + 7])]
        )
        at += np.int64(8)
    for last in range(at, end):
        crc = _CRC[(crc ^ np.uint32(data[last])) & _OCTET] ^ (crc >> _EIGHT)
    return _mix(np.uint64(crc ^ _ALL_BITS) | np.uint64(end - start) << _HALF)


@inlined
def _put(slots: NDArray[np.uint64], entry: np.uint64) -> None:
    n_slots = np.uint64(len(slots))
    place = (entry >> _HALF) * n_slots >> _HALF
    while slots[place] != EMPTY:
        place += _ONE
        if place == n_slots:
            place = np.uint64(0)
    slots[place] = entry


@kernel
def hash_numbers(numbers: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
    """Hash integers."""
    for at in range(len(numbers)):
        hashes[at] = _mix(np.uint64(numbers[at]))


@kernel
def hash_texts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> None:
    """Hash strings."""
    for at in range(len(hashes)):
        hashes[at] = _hash_octets(data, starts[at], starts[at + 1])


@kernel
def put_numbers(
    numbers: NDArray[np.int64],
    skipped: NDArray[np.bool_],
    slots: NDArray[np.uint64],
    repeated: NDArray[np.bool_],
) -> int:
    """Fill an empty table with the places of integers, and mark repeated ones.

    Places marked in `skipped` (which may be empty) are ignored. Returns the number of entries.
    """
    n_slots, n_put = np.uint64(len(slots)), 0
    lines = slots.reshape((-1, _LINE))
    for at in range(len(numbers)):
        if at + _AHEAD < len(numbers):
            later = _mix(np.uint64(numbers[at + _AHEAD])) * n_slots >> _HALF
            prefetch_row(lines, np.int64(later) // _LINE)
        if len(skipped) and skipped[at]:
            continue
        number = numbers[at]
        hashed = _mix(np.uint64(number))
        place = hashed * n_slots >> _HALF
        is_repeated = False
        while slots[place] != EMPTY:
            entry = slots[place]
            if entry >> _HALF == hashed and numbers[np.int64(entry & _LOW)] == number:
                is_repeated = True
                break
            place += _ONE
            if place == n_slots:
                place = np.uint64(0)
        if is_repeated:
            repeated[at] = True
        else:
            slots[place] = hashed << _HALF | np.uint64(at)
            n_put += 1
    return n_put


@kernel
def put_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    skipped: NDArray[np.bool_],
    slots: NDArray[np.uint64],
    repeated: NDArray[np.bool_],
) -> int:
    """Fill an empty table with the places of strings, as `put_numbers` does."""
    n_slots, n_put = np.uint64(len(slots)), 0
    lines = slots.reshape((-1, _LINE))
    for at in range(len(hashes)):
        if at + _AHEAD < len(hashes):
            prefetch_row(lines, np.int64(hashes[at + _AHEAD] * n_slots >> _HALF) // _LINE)
        if len(skipped) and skipped[at]:
            continue
        start, end = starts[at], starts[at + 1]
        hashed = hashes[at]
        place = hashed * n_slots >> _HALF
        is_repeated = False
        while slots[place] != EMPTY:
            entry = slots[place]
            if entry >> _HALF == hashed:
                other = np.int64(entry & _LOW)
                if _are_equal(data, start, end, data, starts[other], starts[other + 1]):
                    is_repeated = True
                    break
            place += _ONE
            if place == n_slots:
                place = np.uint64(0)
        if is_repeated:
            repeated[at] = True
        else:
            slots[place] = hashed << _HALF | np.uint64(at)
            n_put += 1
    return n_put


@inlined
def _are_equal(
    one: NDArray[np.uint8],
    start: np.int64,
    end: np.int64,
    other: NDArray[np.uint8],
    other_start: np.int64,
    other_end: np.int64,
) -> bool:
    if end - start != other_end - other_start:
        return False
    for step in range(end - start):
        if one[start + step] != other[other_start + step]:
            return False
    return True


@kernel
def compare_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    at: NDArray[np.int64],
    other_data: NDArray[np.uint8],
    other_starts: NDArray[np.int64],
    other_at: NDArray[np.int64],
    equal: NDArray[np.bool_],
) -> None:
    """Compare pairs of strings of two columns."""
    for pair in range(len(at)):
        one, other = at[pair], other_at[pair]
        equal[pair] = _are_equal(
            data,
            starts[one],
            starts[one + 1],
            other_data,
            other_starts[other],
            other_starts[other + 1],
        )


@kernel
def put(slots: NDArray[np.uint64], hashes: NDArray[np.uint64], dense: NDArray[np.int64]) -> None:
    """Add entries to a table with enough capacity."""
    for at in range(len(hashes)):
        _put(slots, hashes[at] << _HALF | np.uint64(dense[at]))


@kernel
def copy_entries(entries: NDArray[np.uint64], slots: NDArray[np.uint64]) -> None:
    """Copy all entries of a table into another with enough capacity."""
    for at in range(len(entries)):
        if entries[at] != EMPTY:
            _put(slots, entries[at])


@kernel
def copy_numbered(
    entries: NDArray[np.uint64], dense: NDArray[np.int64], slots: NDArray[np.uint64]
) -> None:
    """Copy the entries of a table of places into another, with the dense id of each place.

    Places with the dense id -1 are skipped.
    """
    for at in range(len(entries)):
        if entries[at] != EMPTY:
            number = dense[np.int64(entries[at] & _LOW)]
            if number >= 0:
                _put(slots, entries[at] & ~_LOW | np.uint64(number))


@kernel
def pair(
    entries: NDArray[np.uint64],
    first: int,
    slots: NDArray[np.uint64],
    places: NDArray[np.int64],
    dense: NDArray[np.int64],
) -> tuple[int, int]:
    """Join a table of places with one of the id index: write pairs of entries with equal hashes.

    Starts at the slot `first`. Returns the number of pairs written, and the slot to continue from
    when the output is full, or else the number of slots.
    """
    n_slots, n_pairs = np.uint64(len(slots)), 0
    for at in range(first, len(entries)):
        if entries[at] == EMPTY:
            continue
        before = n_pairs
        hashed = entries[at] >> _HALF
        place = hashed * n_slots >> _HALF
        while slots[place] != EMPTY:
            entry = slots[place]
            if entry >> _HALF == hashed:
                if n_pairs == len(places):
                    return before, at
                places[n_pairs] = np.int64(entries[at] & _LOW)
                dense[n_pairs] = np.int64(entry & _LOW)
                n_pairs += 1
            place += _ONE
            if place == n_slots:
                place = np.uint64(0)
    return n_pairs, len(entries)
