"""What is published and what is asked for, and the pairs that begin or cease to match.

Enters: rows and boxes in arrays. Leaves: pairs of a row or publication and a subscription, with
their kind. These are the operations of Leung and Jacobsen, section 4, on dense numbers; keys, ids,
texts, times and logs are for the modules above.

A publication is known by the first of its rows; most have one. Those that have several are in
`several`, with all their rows and their filter; they and the subscriptions that they touch are put
into relation M as a whole, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.subjects import kernels
from tocsin.subjects.arrays import Moves, Pairs
from tocsin.subjects.axes import Axes
from tocsin.subjects.filters import FilterTerms
from tocsin.subjects.interests import Interests, NewBoxes
from tocsin.subjects.kernels import ENTER, LEAVE
from tocsin.subjects.objects import NO_KEEP, Objects
from tocsin.subjects.places import Words

_ROOM = 1 << 14
_LARGE = 1 << 24
_BLOCK = 256
"""How many rows go through the lists together."""
_NO_TERMS = np.zeros((0, 2), np.uint64)
_MANY = 64
"""From how many new subscriptions on all publications are taken to them, not they to those."""


class Changes(NamedTuple):
    """Pairs that begin or cease to match; `place` is a place in a batch, or a publication."""

    kind: NDArray[np.int8]
    place: NDArray[np.int64]
    sub: NDArray[np.int64]


_Whole: TypeAlias = tuple[Words, FilterTerms]
"""All rows of a publication, and its filter."""
NO_CHANGES = Changes(np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, np.int64))


class Several(NamedTuple):
    """A publication of several regions."""

    names: tuple[str, ...]
    rows: NDArray[np.int32]
    filter: FilterTerms


def join(parts: Sequence[Changes]) -> Changes:
    """Put changes together, ordered by place."""
    some = [part for part in parts if len(part.kind)]
    if len(some) <= 1:
        return some[0] if some else NO_CHANGES
    joined = concatenated(some)
    return chosen(joined, np.argsort(joined.place, kind="stable"))


def concatenated(parts: Sequence[Changes]) -> Changes:
    """Put changes one after another."""
    return Changes(
        np.concatenate([part.kind for part in parts]),
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.sub for part in parts]),
    )


def chosen(changes: Changes, which: NDArray[Any]) -> Changes:
    """Return some changes."""
    return Changes(changes.kind[which], changes.place[which], changes.sub[which])


def _room(n: int) -> Pairs:
    return Pairs(np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int8))


def _put_in_order(pairs: Pairs, n: int) -> None:
    """Order pairs by their rows."""
    row = pairs.row[:n]
    if np.any(row[1:] < row[:-1]):
        order = np.argsort(row, kind="stable")
        for array in pairs:
            array[:n] = array[:n][order]


class State:
    """Rows, boxes and what lies between them."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.interests = Interests()
        self.objects = Objects(axes)
        self.several: dict[int, Several] = {}
        self.owner: dict[int, int] = {}
        """The publications of rows that are not the first of theirs, and of those first ones."""
        self._stamp = 1
        self._pairs = _room(_ROOM)
        axes.relabelled = self._relabel

    def _relabel(self, dim: int, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        self.interests.relabel(dim, old, new)
        self.objects.relabel(dim, old, new)

    # Kernels.

    def _run(
        self,
        kernel: Callable[..., tuple[int, int]],
        settle: Callable[..., int],
        n_rows: int,
        front: tuple[Any, ...],
        back: tuple[Any, ...],
        collect: bool,
    ) -> Changes:
        """Run a kernel over rows, with larger buffers where one is full; settle what is touched."""
        at = n = 0
        boxes, subs = self.interests.boxes, self.interests.subs
        while True:
            at, n = kernel(*front, boxes, subs.state, collect, *back, self._pairs, at, n)
            if at == n_rows:
                break
            larger = _room(8 * len(self._pairs.row))  # a block is begun anew, so not many times
            larger.row[:n], larger.sub[:n] = self._pairs.row[:n], self._pairs.sub[:n]
            larger.kind[:n] = self._pairs.kind[:n]
            self._pairs = larger
        if n_rows > 1:
            _put_in_order(self._pairs, n)
        if self.interests.n_complex and not collect:
            n = settle(*front[:2], boxes, subs, self._stamp, *back, _NO_TERMS, self._pairs, n)
            self._stamp += n_rows
        pairs = self._pairs
        found = Changes(
            pairs.kind[:n].copy(), pairs.row[:n].astype(np.int64), pairs.sub[:n].astype(np.int64)
        )
        if len(pairs.row) > _LARGE:  # do not hold on to it
            self._pairs = _room(_ROOM)
        return found

    def meet(
        self,
        table: Words,
        rows: NDArray[np.int32],
        collect: bool = False,
        first_box: int = 0,
    ) -> Changes:
        """Return what rows of a table match, or (`collect`) touch, as an ENTER each.

        Boxes before the first one may be left out.
        """
        interests, settle = self.interests, kernels.settle_rows
        parts = [
            self._run(kernels.meet, settle, len(rows), (table, rows, s.homes), (), collect)
            for s in interests.segments
            if s.stop > first_box
        ]
        recent = (interests.settled, interests.n_boxes)
        if recent[0] < recent[1]:
            front = table, rows, recent
            parts.append(self._run(kernels.meet_recent, settle, len(rows), front, (), collect))
        return join(parts)

    def cross(self, moves: Moves, collect: bool = False) -> Changes:
        """Return what begins or ceases to match when rows move; nothing is moved."""
        interests, cells, settle = self.interests, self.objects.cells, kernels.settle_moves
        n = len(moves.chosen)
        back = (np.empty((2 * max(1, min(n, _BLOCK)), *cells.shape[1:]), np.uint64),)
        parts = [
            self._run(kernels.cross, settle, n, (cells, moves, s.lists), back, collect)
            for s in interests.segments
        ]
        recent = (interests.settled, interests.n_boxes)
        if recent[0] < recent[1]:
            front = cells, moves, recent
            parts.append(self._run(kernels.cross_recent, settle, n, front, back, collect))
        return join(parts)

    def _related(
        self, rows: Words, filter_: FilterTerms, subs: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which subscriptions are in relation with a publication of these rows."""
        found = np.empty(len(subs), np.bool_)
        terms = np.array(filter_.terms, np.uint64).reshape(-1, 2)
        kernels.relate_all(
            self.interests.boxes,
            self.interests.subs,
            subs.astype(np.int32),
            rows,
            filter_.least,
            terms,
            found,
        )
        return found

    # Publications.

    def insert(self, cells: Words, quiet: bool = False) -> tuple[NDArray[np.int32], Changes]:
        """Add publications of one row each; return their rows, and changes by place."""
        rows = self.objects.allocate(len(cells))
        self.objects.write(rows, cells)
        return rows, NO_CHANGES if quiet else self.meet(self.objects.cells, rows)

    def update(self, moves: Moves, quiet: bool = False) -> Changes:
        """Move the rows of publications of one row each, none of them twice."""
        found = NO_CHANGES if quiet else self.cross(moves)
        self.objects.move(moves)
        return found

    def delete(self, rows: NDArray[np.int32], quiet: bool = False) -> Changes:
        """Remove publications of one row each."""
        met = NO_CHANGES if quiet else self.meet(self.objects.cells, rows)
        self.objects.release(rows)
        return Changes(np.full(len(met.kind), LEAVE, np.int8), met.place, met.sub)

    def insert_several(
        self, names: tuple[str, ...], cells: Words, filter_: FilterTerms
    ) -> tuple[int, Changes]:
        """Add a publication of several rows; return it and its changes."""
        rows = self.objects.allocate(len(cells))
        self.objects.write(rows, cells)
        self.several[int(rows[0])] = Several(names, rows, filter_)
        self.owner.update(dict.fromkeys(rows.tolist(), int(rows[0])))
        return int(rows[0]), self._compared(None, (cells, filter_), self._touched(rows))

    def rewrite_several(self, publication: int, moves: Moves) -> Changes:
        """Change one row of a publication of several."""
        several = self.several[publication]
        touched = np.unique(self.cross(moves, collect=True).sub)
        before = self.objects.cells[several.rows]
        self.objects.move(moves)
        after = self.objects.cells[several.rows]
        return self._compared((before, several.filter), (after, several.filter), touched)

    def delete_several(self, publication: int) -> Changes:
        """Remove a publication of several rows."""
        several = self.several.pop(publication)
        touched = self._touched(several.rows)
        before = self.objects.cells[several.rows], several.filter
        self.objects.release(several.rows)
        for row in several.rows.tolist():
            del self.owner[row]
        return self._compared(before, None, touched)

    def _touched(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.unique(self.meet(self.objects.cells, rows, collect=True).sub)

    def _compared(
        self, before: _Whole | None, after: _Whole | None, subs: NDArray[np.int64]
    ) -> Changes:
        """Return how the relation of a publication to some subscriptions changes."""
        nothing = np.zeros(len(subs), np.bool_)
        held = nothing if before is None else self._related(*before, subs)
        holds = nothing if after is None else self._related(*after, subs)
        changed = np.flatnonzero(held != holds)
        kind = np.where(holds[changed], ENTER, LEAVE).astype(np.int8)
        return Changes(kind, np.zeros(len(changed), np.int64), subs[changed])

    # Subscriptions.

    def subscribe(
        self,
        dense: NDArray[np.int64],
        new: NewBoxes,
        wants: int | NDArray[np.uint8],
        filters: Sequence[FilterTerms] | None = None,
        quiet: bool = False,
    ) -> Changes:
        """Add subscriptions; changes are by publication."""
        self.objects.fit()
        interests = self.interests
        interests.add(dense, new, wants, filters)
        if quiet or not self.objects.n_live:
            return NO_CHANGES
        if len(dense) < _MANY:
            parts = [self._entered(int(number), self.matched(int(number))) for number in dense]
            return join(parts)
        rows = self.objects.live()
        first = interests.n_boxes - len(new.counts)
        met = self.meet(self.objects.cells, rows, bool(self.several), first)
        is_new = met.sub >= dense[0]
        found = Changes(met.kind[is_new], rows[met.place[is_new]].astype(np.int64), met.sub[is_new])
        return self._resolve(found) if self.several else found

    def _resolve(self, touched: Changes) -> Changes:
        """Turn what rows touch into what publications match, where some have several rows."""
        parts = []
        for number in np.unique(touched.sub).tolist():
            rows = np.unique(touched.place[touched.sub == number]).astype(np.int32)
            parts.append(self._entered(number, self._confirmed(number, rows)))
        return join(parts)

    @staticmethod
    def _entered(number: int, publications: NDArray[np.int64], kind: int = ENTER) -> Changes:
        n = len(publications)
        return Changes(np.full(n, kind, np.int8), publications, np.full(n, number))

    def matched(self, number: int) -> NDArray[np.int64]:
        """Return the publications that a subscription is in relation with."""
        boxes, subs = self.interests.boxes, self.interests.subs
        first = int(subs.first[number])
        n_boxes = int(subs.n_boxes[number])
        met = [self.objects.met_by(boxes, box) for box in range(first, first + n_boxes)]
        if not met:
            return np.empty(0, np.int64)
        rows = met[0] if n_boxes == 1 else np.unique(np.concatenate(met))
        return self._confirmed(number, rows)

    def _confirmed(self, number: int, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the publications of rows that a box of a subscription meets, if in relation."""
        if self.several:
            whole = {self.owner[row] for row in rows.tolist() if row in self.owner}
            rows = np.array([row for row in rows.tolist() if row not in self.owner], np.int32)
        else:
            whole = set()
        if int(self.interests.subs.state[number]) != kernels.SIMPLE:
            found = np.empty(len(rows), np.bool_)
            boxes, subs = self.interests.boxes, self.interests.subs
            kernels.relate_rows(boxes, subs, number, self.objects.cells, rows, _NO_TERMS, found)
            rows = rows[found]
        one = np.array([number])
        related = [
            publication
            for publication in sorted(whole)
            if self._related(
                self.objects.cells[self.several[publication].rows],
                self.several[publication].filter,
                one,
            )[0]
        ]
        return np.concatenate([rows.astype(np.int64), np.array(related, np.int64)])

    def exchange(
        self,
        old: int,
        new_number: int,
        new: NewBoxes,
        wants: int,
        filter_: FilterTerms,
    ) -> Changes:
        """Put a subscription in the place of another; changes name the new one."""
        self.objects.fit()
        interests = self.interests
        interests.add(np.array([new_number]), new, wants, [filter_])
        before, after = self._two(old, new_number)
        interests.remove(np.array([old]))
        left = np.setdiff1d(before, after)
        entered = np.setdiff1d(after, before)
        leaves = self._entered(new_number, left, LEAVE)
        enters = self._entered(new_number, entered)
        return concatenated([leaves, enters])

    def _two(self, old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what two subscriptions match, at least where they differ."""
        subs = self.interests.subs
        if subs.state[old] == subs.state[new] == kernels.SIMPLE and not self.several:
            boxes = int(subs.first[old]), int(subs.first[new])
            candidates = self.objects.crossed_by(self.interests.boxes, *boxes)
            if candidates is not None:
                return self._met_among(candidates, boxes[0]), self._met_among(candidates, boxes[1])
        return self.matched(old), self.matched(new)

    def _met_among(self, candidates: NDArray[np.int32], box: int) -> NDArray[np.int64]:
        out = np.empty(len(candidates), np.int32)
        cells, boxes = self.objects.cells, self.interests.boxes
        n = kernels.meet_rows(cells, boxes, box, candidates, out, 0)
        return out[:n].astype(np.int64)

    def subscriptions_of(self, publication: int) -> NDArray[np.int64]:
        """Return the subscriptions that a publication is in relation with."""
        several = self.several.get(publication)
        if several is None:
            row = np.array([publication], np.int32)
            return np.sort(self.meet(self.objects.cells, row).sub)
        touched = self._touched(several.rows)
        rows = self.objects.cells[several.rows]
        return touched[self._related(rows, several.filter, touched)]


def moves_of(rows: NDArray[np.int32], dims: Sequence[int], fresh: Words) -> Moves:
    """Return moves of rows in some dimensions."""
    return Moves(rows, np.array(dims, np.int32), np.ascontiguousarray(fresh), NO_KEEP)
