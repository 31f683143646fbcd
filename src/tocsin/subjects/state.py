"""The rows of publications, the boxes of subscriptions, and the changes between them.

Enters: rows and boxes in arrays. Leaves: changes, pairs of a row and a subscription that begin or
cease to match. These are the operations of Leung and Jacobsen, section 4, on dense numbers; keys,
ids, texts, expiry and the log are handled by the modules above.

A publication is identified by its first row; most have one row. `multi_region` has all rows and the
filter of a publication with several regions. For such a publication the candidate subscriptions are
collected first, and relation M is then evaluated for the whole publication, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.subjects import kernels
from tocsin.subjects.arrays import PairBuffer, RowUpdates
from tocsin.subjects.box_index import BoxIndex, NewBoxes
from tocsin.subjects.dimensions import Dimensions
from tocsin.subjects.filters import FilterTerms
from tocsin.subjects.kernels import ENTER, LEAVE
from tocsin.subjects.object_rows import NO_MASK, ObjectRows
from tocsin.subjects.positions import Words

_CAPACITY = 1 << 14
_MAX_CAPACITY = 1 << 24
"""A larger pair buffer is released after use."""
_BLOCK = 256
"""Rows that go through the lists together."""
_NO_TERMS = np.zeros((0, 2), np.uint64)
_MIN_BULK = 64
"""From this number of new subscriptions on, all rows are matched against them."""


class Changes(NamedTuple):
    """Pairs that begin or cease to match; an item is an index into a batch, or a row."""

    kind: NDArray[np.int8]
    item: NDArray[np.int64]
    sub: NDArray[np.int64]


_Regions: TypeAlias = tuple[Words, FilterTerms]
"""All rows of a publication, and its filter."""
NO_CHANGES = Changes(np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, np.int64))


class MultiRegion(NamedTuple):
    """A publication of several regions."""

    names: tuple[str, ...]
    rows: NDArray[np.int32]
    filter: FilterTerms


def join(parts: Sequence[Changes]) -> Changes:
    """Join changes, ordered by item."""
    parts = [part for part in parts if len(part.kind)]
    if len(parts) <= 1:
        return parts[0] if parts else NO_CHANGES
    joined = concatenate(parts)
    return select(joined, np.argsort(joined.item, kind="stable"))


def concatenate(parts: Sequence[Changes]) -> Changes:
    """Concatenate changes in the given order."""
    return Changes(
        np.concatenate([part.kind for part in parts]),
        np.concatenate([part.item for part in parts]),
        np.concatenate([part.sub for part in parts]),
    )


def select(changes: Changes, which: NDArray[Any]) -> Changes:
    """Return the changes at some indices, or where a mask is true."""
    return Changes(changes.kind[which], changes.item[which], changes.sub[which])


def with_masks(changes: Changes, masks: NDArray[np.uint8]) -> Changes:
    """Return the changes that the transition masks of their subscriptions include."""
    bits = masks[changes.sub]
    return select(changes, np.where(changes.kind > 0, bits & 1, bits & 2) > 0)


def _pair_buffer(n: int) -> PairBuffer:
    return PairBuffer(np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int8))


def _sort(pairs: PairBuffer, n: int) -> None:
    """Sort the first n pairs by row."""
    row = pairs.row[:n]
    if np.any(row[1:] < row[:-1]):
        order = np.argsort(row, kind="stable")
        for array in pairs:
            array[:n] = array[:n][order]


class State:
    """Rows and boxes, and the operations that change them."""

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions = dimensions
        self.box_index = BoxIndex()
        self.object_rows = ObjectRows(dimensions)
        self.multi_region: dict[int, MultiRegion] = {}
        self.owner: dict[int, int] = {}
        """The first row of each row of a publication with several regions."""
        self._stamp = 1
        self._pairs = _pair_buffer(_CAPACITY)
        dimensions.on_relabel = self._relabel

    def _relabel(self, dim: int, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        self.box_index.relabel(dim, old, new)
        self.object_rows.relabel(dim, old, new)

    # Kernels.

    def _run(
        self,
        kernel: Callable[..., tuple[int, int]],
        verify: Callable[..., int],
        n_rows: int,
        front: tuple[Any, ...],
        back: tuple[Any, ...],
        collect: bool,
    ) -> Changes:
        """Run a kernel over rows, growing the pair buffer as needed; verify the candidates."""
        at = n = 0
        boxes, subs = self.box_index.boxes, self.box_index.subs
        while True:
            at, n = kernel(*front, boxes, subs.state, collect, *back, self._pairs, at, n)
            if at == n_rows:
                break
            larger = _pair_buffer(8 * len(self._pairs.row))
            larger.row[:n], larger.sub[:n] = self._pairs.row[:n], self._pairs.sub[:n]
            larger.kind[:n] = self._pairs.kind[:n]
            self._pairs = larger
        if n_rows > 1:
            _sort(self._pairs, n)
        if self.box_index.n_complex and not collect:
            n = verify(*front[:2], boxes, subs, self._stamp, *back, _NO_TERMS, self._pairs, n)
            self._stamp += n_rows
        pairs = self._pairs
        changes = Changes(
            pairs.kind[:n].copy(), pairs.row[:n].astype(np.int64), pairs.sub[:n].astype(np.int64)
        )
        if len(pairs.row) > _MAX_CAPACITY:
            self._pairs = _pair_buffer(_CAPACITY)
        return changes

    def match(
        self,
        table: Words,
        rows: NDArray[np.int32],
        collect: bool = False,
        first_box: int = 0,
    ) -> Changes:
        """Return an ENTER for each match of rows of a table; with `collect`, for each candidate.

        Boxes before `first_box` may be skipped.
        """
        box_index, verify = self.box_index, kernels.verify_rows
        parts = [
            self._run(kernels.match, verify, len(rows), (table, rows, s.access), (), collect)
            for s in box_index.segments
            if s.stop > first_box
        ]
        unindexed = (box_index.n_indexed, box_index.n_boxes)
        if unindexed[0] < unindexed[1]:
            front = table, rows, unindexed
            parts.append(self._run(kernels.match_unindexed, verify, len(rows), front, (), collect))
        return join(parts)

    def cross(self, updates: RowUpdates, collect: bool = False) -> Changes:
        """Return the changes that updates of rows would cause, without applying them."""
        box_index, cells, verify = self.box_index, self.object_rows.cells, kernels.verify_updates
        n = len(updates.rows)
        back = (np.empty((2 * max(1, min(n, _BLOCK)), *cells.shape[1:]), np.uint64),)
        parts = [
            self._run(kernels.cross, verify, n, (cells, updates, s.lists), back, collect)
            for s in box_index.segments
        ]
        unindexed = (box_index.n_indexed, box_index.n_boxes)
        if unindexed[0] < unindexed[1]:
            front = cells, updates, unindexed
            parts.append(self._run(kernels.cross_unindexed, verify, n, front, back, collect))
        return join(parts)

    def _related(
        self, rows: Words, filter_: FilterTerms, subs: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which subscriptions are in relation with a publication of these rows."""
        is_related = np.empty(len(subs), np.bool_)
        terms = np.array(filter_.terms, np.uint64).reshape(-1, 2)
        kernels.relate_all(
            self.box_index.boxes,
            self.box_index.subs,
            subs.astype(np.int32),
            rows,
            filter_.least,
            terms,
            is_related,
        )
        return is_related

    # Publications.

    def insert(self, cells: Words, quiet: bool = False) -> tuple[NDArray[np.int32], Changes]:
        """Add publications of one row each; return their rows, and changes by index."""
        rows = self.object_rows.allocate(len(cells))
        self.object_rows.write(rows, cells)
        return rows, NO_CHANGES if quiet else self.match(self.object_rows.cells, rows)

    def update(self, updates: RowUpdates, quiet: bool = False) -> Changes:
        """Update publications of one row each; no row may occur twice."""
        changes = NO_CHANGES if quiet else self.cross(updates)
        self.object_rows.update(updates)
        return changes

    def delete(self, rows: NDArray[np.int32], quiet: bool = False) -> Changes:
        """Remove publications of one row each."""
        enters = NO_CHANGES if quiet else self.match(self.object_rows.cells, rows)
        self.object_rows.release(rows)
        return Changes(np.full(len(enters.kind), LEAVE, np.int8), enters.item, enters.sub)

    def insert_multi_region(
        self, names: tuple[str, ...], cells: Words, filter_: FilterTerms
    ) -> tuple[int, Changes]:
        """Add a publication of several rows; return its first row and the changes."""
        rows = self.object_rows.allocate(len(cells))
        self.object_rows.write(rows, cells)
        self.multi_region[int(rows[0])] = MultiRegion(names, rows, filter_)
        self.owner.update(dict.fromkeys(rows.tolist(), int(rows[0])))
        return int(rows[0]), self._difference(None, (cells, filter_), self._candidates(rows))

    def update_multi_region(self, publication: int, updates: RowUpdates) -> Changes:
        """Update one row of a publication of several."""
        regions = self.multi_region[publication]
        candidates = np.unique(self.cross(updates, collect=True).sub)
        before = self.object_rows.cells[regions.rows]
        self.object_rows.update(updates)
        after = self.object_rows.cells[regions.rows]
        return self._difference((before, regions.filter), (after, regions.filter), candidates)

    def delete_multi_region(self, publication: int) -> Changes:
        """Remove a publication of several rows."""
        regions = self.multi_region.pop(publication)
        candidates = self._candidates(regions.rows)
        before = self.object_rows.cells[regions.rows], regions.filter
        self.object_rows.release(regions.rows)
        for row in regions.rows.tolist():
            del self.owner[row]
        return self._difference(before, None, candidates)

    def _candidates(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the subscriptions of which some box overlaps one of the rows."""
        return np.unique(self.match(self.object_rows.cells, rows, collect=True).sub)

    def _difference(
        self, before: _Regions | None, after: _Regions | None, subs: NDArray[np.int64]
    ) -> Changes:
        """Return how the matches of a publication with some subscriptions change."""
        nothing = np.zeros(len(subs), np.bool_)
        matched = nothing if before is None else self._related(*before, subs)
        matches = nothing if after is None else self._related(*after, subs)
        changed = np.flatnonzero(matched != matches)
        kind = np.where(matches[changed], ENTER, LEAVE).astype(np.int8)
        return Changes(kind, np.zeros(len(changed), np.int64), subs[changed])

    # Subscriptions.

    def subscribe(
        self,
        dense: NDArray[np.int64],
        new: NewBoxes,
        mask: int | NDArray[np.uint8],
        filters: Sequence[FilterTerms] | None = None,
        quiet: bool = False,
    ) -> Changes:
        """Add subscriptions; the items of the changes are rows."""
        self.object_rows.fit()
        box_index = self.box_index
        box_index.add(dense, new, mask, filters)
        if quiet or not self.object_rows.n_live:
            return NO_CHANGES
        if len(dense) < _MIN_BULK:
            parts = [
                self._changes(int(number), self.publications_of(int(number))) for number in dense
            ]
            return join(parts)
        rows = self.object_rows.live()
        first = box_index.n_boxes - len(new.counts)
        enters = self.match(self.object_rows.cells, rows, bool(self.multi_region), first)
        enters = select(enters, enters.sub >= dense[0])
        enters = enters._replace(item=rows[enters.item].astype(np.int64))
        return self._by_publication(enters) if self.multi_region else enters

    def _by_publication(self, candidates: Changes) -> Changes:
        """Verify candidates by row as matches by publication, where some have several rows."""
        parts = []
        for number in np.unique(candidates.sub).tolist():
            rows = np.unique(candidates.item[candidates.sub == number]).astype(np.int32)
            parts.append(self._changes(number, self._verified(number, rows)))
        return join(parts)

    @staticmethod
    def _changes(number: int, publications: NDArray[np.int64], kind: int = ENTER) -> Changes:
        n = len(publications)
        return Changes(np.full(n, kind, np.int8), publications, np.full(n, number))

    def publications_of(self, number: int) -> NDArray[np.int64]:
        """Return the first rows of the publications that match a subscription."""
        boxes, subs = self.box_index.boxes, self.box_index.subs
        first = int(subs.first[number])
        n_boxes = int(subs.n_boxes[number])
        parts = [
            self.object_rows.rows_overlapping(boxes, box) for box in range(first, first + n_boxes)
        ]
        if not parts:
            return np.empty(0, np.int64)
        rows = parts[0] if n_boxes == 1 else np.unique(np.concatenate(parts))
        return self._verified(number, rows)

    def _verified(self, number: int, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the publications that match, of rows that overlap a box of a subscription."""
        if self.multi_region:
            whole = {self.owner[row] for row in rows.tolist() if row in self.owner}
            rows = np.array([row for row in rows.tolist() if row not in self.owner], np.int32)
        else:
            whole = set()
        if int(self.box_index.subs.state[number]) != kernels.SIMPLE:
            is_related = np.empty(len(rows), np.bool_)
            boxes, subs = self.box_index.boxes, self.box_index.subs
            kernels.relate_rows(
                boxes, subs, number, self.object_rows.cells, rows, _NO_TERMS, is_related
            )
            rows = rows[is_related]
        one = np.array([number])
        related = [
            publication
            for publication in sorted(whole)
            if self._related(
                self.object_rows.cells[self.multi_region[publication].rows],
                self.multi_region[publication].filter,
                one,
            )[0]
        ]
        return np.concatenate([rows.astype(np.int64), np.array(related, np.int64)])

    def replace_subscription(
        self,
        old: int,
        new_number: int,
        new: NewBoxes,
        mask: int,
        filter_: FilterTerms,
    ) -> Changes:
        """Replace a subscription by another; changes have the new number."""
        self.object_rows.fit()
        box_index = self.box_index
        box_index.add(np.array([new_number]), new, mask, [filter_])
        before, after = self._matches_of_both(old, new_number)
        box_index.remove(np.array([old]))
        leaves = self._changes(new_number, np.setdiff1d(before, after), LEAVE)
        enters = self._changes(new_number, np.setdiff1d(after, before))
        return concatenate([leaves, enters])

    def _matches_of_both(self, old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the matches of two subscriptions, at least those in which they differ."""
        subs = self.box_index.subs
        if subs.state[old] == subs.state[new] == kernels.SIMPLE and not self.multi_region:
            boxes = int(subs.first[old]), int(subs.first[new])
            candidates = self.object_rows.rows_between(self.box_index.boxes, *boxes)
            if candidates is not None:
                return self._matching(candidates, boxes[0]), self._matching(candidates, boxes[1])
        return self.publications_of(old), self.publications_of(new)

    def _matching(self, candidates: NDArray[np.int32], box: int) -> NDArray[np.int64]:
        out = np.empty(len(candidates), np.int32)
        cells, boxes = self.object_rows.cells, self.box_index.boxes
        n = kernels.overlapping_rows(cells, boxes, box, candidates, out, 0)
        return out[:n].astype(np.int64)

    def subscriptions_of(self, publication: int) -> NDArray[np.int64]:
        """Return the subscriptions that match a publication."""
        regions = self.multi_region.get(publication)
        if regions is None:
            row = np.array([publication], np.int32)
            return np.sort(self.match(self.object_rows.cells, row).sub)
        candidates = self._candidates(regions.rows)
        rows = self.object_rows.cells[regions.rows]
        return candidates[self._related(rows, regions.filter, candidates)]


def updates_of(rows: NDArray[np.int32], dims: Sequence[int], cells: Words) -> RowUpdates:
    """Return updates of rows in some dimensions, `cells` by dimension and row."""
    return RowUpdates(rows, np.array(dims, np.int32), np.ascontiguousarray(cells), NO_MASK)
