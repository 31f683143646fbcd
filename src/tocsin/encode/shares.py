"""Statistics of events: the share of events that each cell holds.

Enters: a cell space, and the cells of sampled events, or nothing. Leaves: for each attribute an
array of shares by cell, for the planner. Without a sample they are guessed from the subscriptions:
if most conditions select single cells, events are assumed to be spread evenly over these cells;
else over the values between the least and the greatest bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import FIRST_CELL, CellSpace
from tocsin.encode.domain_cells import DomainCells
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import floats_of

_OUTSIDE = 0.02
"""The share of values guessed to lie beyond the bounds that subscriptions use, at either end."""


def measured_shares(space: CellSpace, cells: NDArray[np.int32]) -> list[NDArray[np.float64]]:
    """Return the shares of sampled events, never quite zero."""
    n = cells.shape[1] + 1.0
    return [
        np.bincount(cells[a], minlength=count) / n + 0.5 / (n * count)
        for a, count in enumerate(space.n_cells.tolist())
    ]


def guessed_shares(
    space: CellSpace,
    attribute: NDArray[np.int32],
    range_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
) -> list[NDArray[np.float64]]:
    """Guess the shares from conditions: the attribute of each, and its ranges of cells."""
    owner = np.repeat(attribute, np.diff(range_start))
    is_single = high - low == 1
    n_attributes = len(space.n_cells)
    n_single = np.bincount(owner[is_single], minlength=n_attributes)
    is_point = 2 * n_single > np.bincount(owner, minlength=n_attributes)
    is_used = [np.zeros(count, np.bool_) for count in space.n_cells.tolist()]
    first = np.concatenate([[0], np.cumsum(space.n_cells)]).astype(np.int64)
    marked = np.zeros(first[-1], np.bool_)
    marked[first[owner[is_single]] + low[is_single]] = True
    for a in np.flatnonzero(is_point).tolist():
        is_used[a] = marked[first[a] : first[a + 1]]
    return [_even(is_used[a]) if is_point[a] else _by_width(space, a) for a in range(n_attributes)]


def _even(is_used: NDArray[np.bool_]) -> NDArray[np.float64]:
    shares = np.where(is_used, 1.0, 0.01)
    shares[:FIRST_CELL] = 0.0
    shares /= max(float(shares.sum()), 1.0)
    return shares


def _by_width(space: CellSpace, a: int) -> NDArray[np.float64]:
    shares = np.zeros(space.n_cells[a])
    for domain, cells in space.domains[a].items():
        shares[cells.base : cells.base + cells.n_cells] = _widths(domain, cells)
    total = shares.sum()
    return shares / total if total else shares + 1.0 / len(shares)


def _widths(domain: Domain, cells: DomainCells) -> NDArray[np.float64]:
    """Return the widths of a domain's cells; the outer ones get a small share."""
    if len(cells.keys) < 2:
        return np.full(cells.n_cells, 1.0)
    if domain is Domain.NUMBER:
        bounds = np.clip(floats_of(cells.keys), -1e300, 1e300)
        inner = np.diff(bounds)
    elif domain is Domain.TIMESTAMP:
        inner = np.diff(cells.keys.astype(np.float64))
    else:
        inner = np.ones(len(cells.keys) - 1)
    total = max(inner.sum(), 1e-300)
    inner = inner / total + 1e-3 / len(inner)
    return np.concatenate([[_OUTSIDE], inner, [_OUTSIDE]])
