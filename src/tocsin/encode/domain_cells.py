"""Cuts → cells of one attribute in one domain, and the tables to look values up in.

Enters: the cuts of a domain, in order. Leaves: `DomainCells`, with the least number at or after
each cut, marks over these, or (integers within a small span) a table of cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode import cell_kernels as kernels
from tocsin.jit import LANES
from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import floats_of

_MAX_TABLE = 1 << 16
_PER_MARK = 8
"""The approximate number of bounds between two marks."""


class Marks(NamedTuple):
    """An even grid over sorted bounds, see `cell_kernels.fill_marks`."""

    least: float
    scale: float
    grid: NDArray[np.int32]
    fractions: NDArray[np.uint16]


def mark(bounds: NDArray[Any]) -> Marks:
    """Return marks over sorted bounds, so that a value is compared with few of them."""
    finite = bounds[np.isfinite(bounds)] if bounds.dtype.kind == "f" else bounds
    least, scale, n_marks = 0.0, 0.0, 1
    if len(finite) > 1:
        first, span = float(finite[0]), float(finite[-1]) - float(finite[0])
        if 1e-290 < span < 1e300:
            n_marks = int(np.clip(len(bounds) // _PER_MARK, 1, 1 << 16))
            least, scale = first, n_marks / span
    grid = np.zeros(n_marks + 1, np.int32)
    fractions = np.zeros(len(bounds) + LANES, np.uint16)
    kernels.fill_marks(bounds, least, scale, grid, fractions)
    return Marks(least, scale, grid, fractions)


@dataclass(frozen=True)
class DomainCells:
    """The cells of one attribute in one domain: cell `base + i` starts at the i-th cut before it.

    `keys` and `offsets` are the cuts in order. `integers` and `floats` are the least integer and
    the least float at or after each cut, so that a value's cell is found by one search.
    """

    base: int
    keys: NDArray[np.int64]
    offsets: NDArray[np.int16]

    @property
    def n_cells(self) -> int:
        """Number of cells of the domain."""
        return len(self.keys) + 1

    @cached_property
    def integers(self) -> NDArray[np.int64]:
        """The least integer at or after each cut of numbers, as far as there is one."""
        values = floats_of(self.keys)
        up = np.ceil(values)
        below = np.clip(up, -(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64)
        step = np.where(up == values, (self.offsets >> 1) + (self.offsets & 1), 0).astype(np.int64)
        is_beyond = (up >= 2.0**63) | (below > INT64_MAX - step)
        least = np.where(up < -(2.0**63), INT64_MIN, below + np.where(is_beyond, 0, step))
        return least[: len(least) - np.count_nonzero(is_beyond)]

    @cached_property
    def floats(self) -> NDArray[np.float64]:
        """The least float at or after each cut of numbers."""
        values = floats_of(self.keys)
        with np.errstate(over="ignore"):  # after the greatest float comes infinity
            return np.where(self.offsets > 0, np.nextafter(values, np.inf), values)

    @cached_property
    def integer_table(self) -> tuple[int, NDArray[np.int32]] | None:
        """The cells of all integers from just before the first bound to the last, if few."""
        bounds = self.integers
        if not len(bounds) or int(bounds[-1]) - int(bounds[0]) > _MAX_TABLE:
            return None
        least = int(bounds[0]) - 1
        if least < INT64_MIN + 1:
            return None
        values = least + np.arange(int(bounds[-1]) - least + 1)
        places = np.searchsorted(bounds, values, side="right")
        return least, (places + self.base).astype(np.int32)

    @cached_property
    def table_place(self) -> tuple[int, int, int] | None:
        """The first integer of that table, its address and its length."""
        if self.integer_table is None:
            return None
        least, table = self.integer_table
        return least, int(table.ctypes.data), len(table)

    def bounds_for(self, domain: Domain, key: object) -> list[Any]:
        """Return the bounds that a key is compared with, as Python numbers."""
        if domain is not Domain.NUMBER:
            return self._key_list
        return self._float_list if isinstance(key, float) else self._integer_list

    @cached_property
    def _key_list(self) -> list[int]:
        return [int(key) for key in self.keys]

    @cached_property
    def _integer_list(self) -> list[int]:
        return [int(bound) for bound in self.integers]

    @cached_property
    def _float_list(self) -> list[float]:
        return [float(bound) for bound in self.floats]

    @cached_property
    def float_marks(self) -> Marks:
        """The marks over the bounds of floats."""
        return mark(self.floats)

    @cached_property
    def integer_marks(self) -> Marks:
        """The marks over the bounds of integers."""
        return mark(self.integers)
