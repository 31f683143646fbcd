"""Cuts as integers: the flat form of `domains`.

A cut is a pair (key, offset) of 64 and 16 bits, ordered lexicographically, in every domain:

========= ============================================ ==========================================
domain    key                                          offset
========= ============================================ ==========================================
number    bits of the greatest float at or below the   twice the distance from that float to the
          value, mapped to keep their order            value, plus the side
string    rank in the table's sorted vocabulary        side
boolean   0 or 1                                       0
timestamp microseconds                                 0
========= ============================================ ==========================================

The distance is zero except for integers beyond 2^53, which lie between floats; so integers and
floats are ordered together exactly. LOW and HIGH, the ends of a domain, are the same pairs in all
of them.

Enters: NumPy arrays of values, or Python cuts. Leaves: keys and offsets, and back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import HIGH, LOW, Cut, Domain

LOW_CUT = (INT64_MIN, 0)
HIGH_CUT = (INT64_MAX, 1)
_EXACT = 2**53


def float_keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map floats to integers of the same order; −0.0 and 0.0 become one."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits >= 0, bits, bits ^ np.int64(INT64_MAX))


def floats_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the floats of keys; inverse of `float_keys`."""
    return np.where(keys >= 0, keys, keys ^ np.int64(INT64_MAX)).view(np.float64)


def integer_keys(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Return the keys of integers, and the offsets just before them."""
    floats = values.astype(np.float64)
    offsets = np.zeros(len(values), np.int16)
    large = np.flatnonzero((values > _EXACT) | (values < -_EXACT))
    if len(large):
        exact = values[large]
        below = np.minimum(floats[large], np.nextafter(2.0**63, 0.0))
        above = below.astype(np.int64) > exact
        below[above] = np.nextafter(below[above], -np.inf)
        floats[large] = below
        offsets[large] = 2 * (exact - below.astype(np.int64))
    return float_keys(floats), offsets


def key_of_number(value: int | float) -> tuple[int, int]:
    """Return key and offset just before a number."""
    if isinstance(value, int):
        below = float(value)
        if below > value:
            below = float(np.nextafter(below, -np.inf))
        return key_of_number(below)[0], 2 * (value - int(below))
    (bits,) = struct.unpack("<q", struct.pack("<d", value + 0.0))
    return (bits if bits >= 0 else bits ^ INT64_MAX), 0


def number_of_key(key: int, offset: int) -> int | float:
    """Return the number just before which, or just after which, a cut lies."""
    bits = key if key >= 0 else key ^ INT64_MAX
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    number = float(value)
    if number.is_integer() and INT64_MIN <= number <= INT64_MAX:
        return int(number) + (offset >> 1)
    return number


def flatten_cut(domain: Domain, cut: Cut, rank_of: Callable[[str], int]) -> tuple[int, int]:
    """Turn a Python cut into its flat pair."""
    if cut == LOW[domain]:
        return LOW_CUT
    if cut == HIGH[domain]:
        return HIGH_CUT
    value, side = cut
    if domain is Domain.NUMBER:
        key, offset = key_of_number(value)
        return key, offset + side
    if domain is Domain.STRING:
        return rank_of(value), side
    return int(value), side


def unflatten_cut(domain: Domain, key: int, offset: int, string_of: Callable[[int], str]) -> Cut:
    """Turn a flat pair into its Python cut."""
    if (key, offset) == LOW_CUT:
        return LOW[domain]
    if (key, offset) == HIGH_CUT:
        return HIGH[domain]
    value: Any
    if domain is Domain.NUMBER:
        value = number_of_key(key, offset)
    elif domain is Domain.STRING:
        value = string_of(key)
    else:
        value = key
    return value, offset & 1
