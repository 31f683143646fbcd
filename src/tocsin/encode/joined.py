"""Several cell spaces → one: the cuts of all, and where the cells of each now begin and end.

Enters: cell spaces. Leaves: a space with the cuts of all of them, and for each a `Moved`: the new
number of each attribute and, by attribute, the new bounds of ranges of cells. So segments are
merged by renumbering cells; the conditions they came from are not needed. What only dropped
conditions used is dropped too: else a space would hold all the cuts there ever were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.cells import FIRST_CELL, CellSpace
from tocsin.encode.domain_cells import DomainCells
from tocsin.normalize.domains import Domain
from tocsin.normalize.table import sort_vocabulary


class Moved(NamedTuple):
    """Where the cells of a space are in a joined one.

    `attribute[a]` is the new number of attribute a. A range that begins at cell c of a now begins
    at `low[first[a] + c]`, and one that ends before c ends before `high[first[a] + c]`; one that
    begins at the cell of other values holds all present ones, and ends at `end[a]`.
    """

    attribute: NDArray[np.int32]
    first: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    end: NDArray[np.int32]


def used_bounds(
    space: CellSpace,
    attribute: NDArray[np.int32],
    range_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Mark what conditions use of a space: attributes at their cell 0, and bounds of ranges."""
    first = _first_bounds(space)
    used = np.zeros(first[-1], np.bool_)
    used[first[attribute]] = True
    base = np.repeat(first[attribute], np.diff(range_start))
    is_in_domain = low >= FIRST_CELL
    used[(base + low)[is_in_domain]] = True
    used[(base + high)[is_in_domain]] = True
    return used


def join_spaces(
    spaces: Sequence[CellSpace], used: Sequence[NDArray[np.bool_] | None]
) -> tuple[CellSpace, list[Moved]]:
    """Join cell spaces; attributes come in the order in which the spaces first have them.

    Of a space with marks, the joined one has the marked bounds only, and only these can be moved.
    """
    sources = [_Source(*pair) for pair in zip(spaces, used, strict=True)]
    names = tuple(dict.fromkeys(name for source in sources for name in source.at))
    vocabulary = sort_vocabulary(pa.chunked_array([source.strings() for source in sources]))
    for source in sources:
        source.ranks = _ranks(source.space.vocabulary, vocabulary)
    domains: list[dict[Domain, DomainCells]] = []
    for name in names:
        cells: dict[Domain, DomainCells] = {}
        base = FIRST_CELL
        for domain in Domain:
            cuts_of = [s.cuts(s.at[name], domain) for s in sources if name in s.at]
            parts = [cuts for cuts in cuts_of if cuts is not None]
            if parts:
                keys, offsets = _unite(parts)
                cells[domain] = DomainCells(base, keys, offsets)
                base += len(keys) + 1
        domains.append(cells)
    joined = CellSpace.from_domains(names, vocabulary, domains)
    number = {name: at for at, name in enumerate(names)}
    return joined, [_moved(source, joined, number) for source in sources]


_Cuts = tuple[NDArray[np.int64], NDArray[np.int16]]


def _ranks(vocabulary: pa.Array, joined: pa.Array) -> NDArray[np.int64]:
    """Return the rank of each string in a joined vocabulary, or -1."""
    places = pc.index_in(vocabulary, value_set=joined).fill_null(-1)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)


def _first_bounds(space: CellSpace) -> NDArray[np.int64]:
    """Return where the bounds of each attribute begin; an attribute has one more than cells."""
    return np.concatenate([[0], np.cumsum(space.n_cells + 1)]).astype(np.int64)


class _Source:
    """A space to be joined with others: its used bounds, and the new ranks of its strings."""

    def __init__(self, space: CellSpace, used: NDArray[np.bool_] | None) -> None:
        self.space = space
        self.first = _first_bounds(space)
        self.used = np.ones(self.first[-1], np.bool_) if used is None else used
        self.at = {
            name: at for at, name in enumerate(space.attributes) if self.used[self.first[at]]
        }
        self.is_whole = used is None
        self.ranks = np.empty(0, np.int64)

    def used_cuts(self, at: int, domain: Domain) -> NDArray[np.bool_] | None:
        """Return a mask of the used cuts of a domain; None if the domain is unused."""
        cells = self.space.domains[at].get(domain)
        if cells is None:
            return None
        start = self.first[at] + cells.base
        bounds = self.used[start : start + cells.n_cells + 1]
        return bounds[1:-1] if bounds.any() else None

    def cuts(self, at: int, domain: Domain) -> _Cuts | None:
        """Return the used cuts of a domain, strings by their new ranks."""
        mask = self.used_cuts(at, domain)
        if mask is None:
            return None
        cells = self.space.domains[at][domain]
        keys, offsets = cells.keys, cells.offsets
        if not self.is_whole:
            keys, offsets = keys[mask], offsets[mask]
        return (self.ranks[keys] if domain is Domain.STRING else keys), offsets

    def strings(self) -> pa.Array:
        """Return the strings that the used cuts are at."""
        if self.is_whole:
            return self.space.vocabulary
        is_used = np.zeros(len(self.space.vocabulary), np.bool_)
        for at in self.at.values():
            mask = self.used_cuts(at, Domain.STRING)
            if mask is not None:
                is_used[self.space.domains[at][Domain.STRING].keys[mask]] = True
        return self.space.vocabulary.filter(pa.array(is_used))


def _unite(parts: Sequence[_Cuts]) -> _Cuts:
    """Return the distinct cuts of several sorted lists, in order."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part[0] for part in parts])
    offsets = np.concatenate([part[1] for part in parts])
    order = np.lexsort((offsets, keys)) if offsets.any() else np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1])
    return keys[is_new], offsets[is_new]


def _moved(source: _Source, joined: CellSpace, number: dict[str, int]) -> Moved:
    space, first = source.space, source.first
    low, high = np.zeros(first[-1], np.int32), np.zeros(first[-1], np.int32)
    attribute = np.array([number.get(name, -1) for name in space.attributes], np.int32)
    for at in source.at.values():
        new = joined.domains[attribute[at]]
        lows, highs = low[first[at] : first[at + 1]], high[first[at] : first[at + 1]]
        lows[: FIRST_CELL + 1] = highs[: FIRST_CELL + 1] = np.arange(FIRST_CELL + 1)
        for domain, cells in space.domains[at].items():
            mask, cuts = source.used_cuts(at, domain), source.cuts(at, domain)
            if mask is None or cuts is None:
                continue
            inner = cells.base + 1 + np.flatnonzero(mask)
            lows[cells.base] = new[domain].base
            lows[inner] = highs[inner] = _places(*cuts, new[domain]) + 1 + new[domain].base
            highs[cells.base + cells.n_cells] = new[domain].base + new[domain].n_cells
    end = np.append(joined.n_cells, 0)[attribute]
    return Moved(attribute, first[:-1], low, high, end.astype(np.int32))


def _places(
    keys: NDArray[np.int64], offsets: NDArray[np.int16], among: DomainCells
) -> NDArray[np.int64]:
    """Return the index of each cut in a list that contains it."""
    places = np.searchsorted(among.keys, keys)
    if not among.offsets.any():
        return places
    step = np.zeros(len(keys), np.int64)  # cuts of one key are ordered by offset
    while True:
        is_behind = among.offsets[places + step] < offsets
        if not is_behind.any():
            return np.asarray(places + step)
        step += is_behind
