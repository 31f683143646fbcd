"""Several cell spaces → one: the cuts of all, and where the cells of each now begin and end.

Enters: cell spaces. Leaves: a space with the cuts of all of them, and for each a `Moved`: the new
number of each attribute and, by attribute, the new bounds of ranges of cells. So segments are
merged by renumbering cells; the conditions they came from are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.cells import FIRST_CELL, CellSpace, LineCells
from tocsin.normalize.lines import Line
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


def join_spaces(spaces: Sequence[CellSpace]) -> tuple[CellSpace, list[Moved]]:
    """Join cell spaces; attributes come in the order in which the spaces first have them."""
    names = tuple(dict.fromkeys(name for space in spaces for name in space.attributes))
    number = {name: at for at, name in enumerate(names)}
    vocabulary = sort_vocabulary(pa.chunked_array([space.vocabulary for space in spaces]))
    ranks = [_ranks(space.vocabulary, vocabulary) for space in spaces]
    lines: list[dict[Line, LineCells]] = []
    where = [{name: at for at, name in enumerate(space.attributes)} for space in spaces]
    for name in names:
        found: dict[Line, LineCells] = {}
        base = FIRST_CELL
        for line in Line:
            parts = [
                _cuts(space, at[name], line, rank)
                for space, at, rank in zip(spaces, where, ranks, strict=True)
                if name in at and line in space.lines[at[name]]
            ]
            if parts:
                keys, tails = _unite(parts)
                found[line] = LineCells(base, keys, tails)
                base += len(keys) + 1
        lines.append(found)
    joined = CellSpace.from_lines(names, vocabulary, lines)
    return joined, [
        _moved(space, joined, number, rank) for space, rank in zip(spaces, ranks, strict=True)
    ]


_Cuts = tuple[NDArray[np.int64], NDArray[np.int16]]


def _ranks(vocabulary: pa.Array, joined: pa.Array) -> NDArray[np.int64]:
    """Return the place of each string in a joined vocabulary."""
    places = pc.index_in(vocabulary, value_set=joined).to_numpy(zero_copy_only=False)
    return np.asarray(places, np.int64)


def _cuts(space: CellSpace, at: int, line: Line, ranks: NDArray[np.int64]) -> _Cuts:
    cells = space.lines[at][line]
    return (ranks[cells.keys] if line is Line.STRING else cells.keys), cells.tails


def _unite(parts: Sequence[_Cuts]) -> _Cuts:
    """Return the distinct cuts of several sorted lists, in order."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part[0] for part in parts])
    tails = np.concatenate([part[1] for part in parts])
    order = np.lexsort((tails, keys)) if tails.any() else np.argsort(keys, kind="stable")
    keys, tails = keys[order], tails[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (keys[1:] != keys[:-1]) | (tails[1:] != tails[:-1])
    return keys[is_new], tails[is_new]


def _moved(
    space: CellSpace, joined: CellSpace, number: dict[str, int], ranks: NDArray[np.int64]
) -> Moved:
    first = np.concatenate([[0], np.cumsum(space.n_cells + 1)]).astype(np.int64)
    low, high = np.empty(first[-1], np.int32), np.empty(first[-1], np.int32)
    attribute = np.array([number[name] for name in space.attributes], np.int32)
    for at in range(len(attribute)):
        new = joined.lines[attribute[at]]
        lows, highs = low[first[at] : first[at + 1]], high[first[at] : first[at + 1]]
        lows[: FIRST_CELL + 1] = highs[: FIRST_CELL + 1] = np.arange(FIRST_CELL + 1)
        for line, cells in space.lines[at].items():
            keys, tails = _cuts(space, at, line, ranks)
            bounds = _places(keys, tails, new[line]) + 1 + new[line].base
            lows[cells.base] = new[line].base
            lows[cells.base + 1 : cells.base + cells.n_cells] = bounds
            highs[cells.base + 1 : cells.base + cells.n_cells] = bounds
            highs[cells.base + cells.n_cells] = new[line].base + new[line].n_cells
    return Moved(attribute, first[:-1], low, high, joined.n_cells[attribute])


def _places(
    keys: NDArray[np.int64], tails: NDArray[np.int16], among: LineCells
) -> NDArray[np.int64]:
    """Return the place of each cut among others that hold it."""
    places = np.searchsorted(among.keys, keys)
    if not among.tails.any():
        return places
    step = np.zeros(len(keys), np.int64)  # cuts of one key follow each other by their tails
    while True:
        is_behind = among.tails[places + step] < tails
        if not is_behind.any():
            return np.asarray(places + step)
        step += is_behind
