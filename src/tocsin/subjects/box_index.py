"""The boxes of subscriptions, indexed by sorted lists of their bounds.

Enters: conjunction tables, filters, dense ids. Leaves: arrays for the kernels. A conjunction is a
*box*: some pieces for each of its dimensions. Boxes are numbered in order of insertion and share
one pool. The lists of bounds (Leung and Jacobsen, section 5.5) are built for runs of boxes, which
are merged by size; the newest boxes are in no list and are scanned. A deleted subscription is
marked; when half of the boxes are deleted, the pool is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.errors import ComputedValueError, SubscriptionError
from tocsin.language.computed import choices_of
from tocsin.language.names import EACH, is_path, path_of
from tocsin.language.printer import print_attribute
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT
from tocsin.normalize.table import ABSENT as ABSENT_FLAG
from tocsin.normalize.table import PRESENT as PRESENT_FLAG
from tocsin.normalize.table import ConjunctionTable
from tocsin.subjects.arrays import AccessLists, BoundLists, Boxes, Subscriptions
from tocsin.subjects.bound_lists import make_bound_lists
from tocsin.subjects.dimensions import SPACE, Dimensions, truth
from tocsin.subjects.filters import ONE, FilterTerms
from tocsin.subjects.positions import (
    ABSENT,
    FIRST_DOMAIN,
    PRESENT,
    Cell,
    Words,
    point,
    positions,
    relabel,
)

MAX_UNINDEXED = 256
"""Number of boxes that may be in no list."""
_LOW = np.uint64(0xFFFF)


class NewBoxes(NamedTuple):
    """New boxes, ordered by subscription: pieces, pieces per box, subscription, region."""

    pieces: Words
    counts: NDArray[np.int64]
    sub: NDArray[np.int64]
    region: NDArray[np.uint8]


def _path(name: str) -> str:
    """Return the attribute of a publication that a name is about; it has no lists, so no choices.

    Raises SubscriptionError for what is computed.
    """
    if name.startswith(EACH):
        return path_of(name)
    if choices_of(name):
        shown = print_attribute(name)
        raise SubscriptionError(f"conditions in a subject space cannot have {shown}")
    if not is_path(name):
        raise ComputedValueError(print_attribute(name))
    return name


def boxes_of(
    table: ConjunctionTable, dimensions: Dimensions, space: int, region: int = 0
) -> NewBoxes:
    """Return the boxes of the conjunctions of a table, in one space."""
    dims = np.array([dimensions.dim(space, _path(name)) for name in table.attributes], np.int64)
    dim_of = dims[table.attribute] if len(dims) else np.empty(0, np.int64)
    n_pieces = np.diff(table.piece_start)
    owner = np.repeat(np.arange(table.n_conditions), n_pieces)
    zone = table.domain.astype(np.int64) + FIRST_DOMAIN
    keys = _label_keys(table, dimensions, dim_of[owner])
    low = positions(zone, keys[0], table.low_offset)
    high = positions(zone, keys[1], table.high_offset)
    conjunction = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    ends = low[1] << np.uint64(16) | high[1]
    parts = [_Pieces(conjunction[owner], dim_of[owner], low[0], high[0], ends)]
    for flag, words in ((ABSENT_FLAG, ABSENT), (PRESENT_FLAG, PRESENT)):
        flagged = np.flatnonzero(table.flags & flag)
        parts.append(_same(conjunction[flagged], dim_of[flagged], words))
    for at, number, is_negated in zip(
        table.pattern_condition.tolist(),
        table.pattern_id.tolist(),
        table.pattern_negated.tolist(),
        strict=True,
    ):
        derived = dimensions.pattern_dim(int(dim_of[at]), table.patterns[number])
        parts.append(_same(conjunction[[at]], np.array([derived]), truth(not is_negated)))
    needs_value = np.zeros(table.n_conjunctions, np.bool_)
    needs_value[conjunction[table.flags & ABSENT_FLAG == 0]] = True
    everywhere = np.flatnonzero(~needs_value)
    parts.append(_same(everywhere, np.full(len(everywhere), SPACE), point(FIRST_DOMAIN, space)))
    pieces, counts = _ordered(parts, table.n_conjunctions)
    regions = np.full(table.n_conjunctions, region, np.uint8)
    return NewBoxes(pieces, counts, table.subscription, regions)


class _Pieces(NamedTuple):
    box: NDArray[np.int64]
    dim: NDArray[np.int64]
    low: Words
    high: Words
    ends: Words


def _same(box: NDArray[np.int64], dim: NDArray[np.int64], words: Cell) -> _Pieces:
    n = len(box)
    low, high, ends = (np.full(n, word, np.uint64) for word in words)
    return _Pieces(box, dim, low, high, ends)


def _ordered(parts: Sequence[_Pieces], n_boxes: int) -> tuple[Words, NDArray[np.int64]]:
    joined = _Pieces(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    order = np.lexsort((joined.ends, joined.low, joined.dim, joined.box))
    pieces = np.empty((len(order), 3), np.uint64)
    pieces[:, 0], pieces[:, 1] = joined.low[order], joined.high[order]
    pieces[:, 2] = joined.ends[order] | joined.dim[order].astype(np.uint64) << np.uint64(32)
    return pieces, np.bincount(joined.box, minlength=n_boxes).astype(np.int64)


def _label_keys(
    table: ConjunctionTable, dimensions: Dimensions, dims: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return lower and upper keys, with labels instead of the ranks of strings."""
    keys = [table.low_key, table.high_key]
    is_string = table.domain == Domain.STRING
    if not is_string.any():
        return keys
    keys = [key.copy() for key in keys]
    cut = [
        is_string & ~((key == end[0]) & (offset == end[1]))
        for key, offset, end in (
            (table.low_key, table.low_offset, LOW_CUT),
            (table.high_key, table.high_offset, HIGH_CUT),
        )
    ]
    for dim in np.unique(dims[is_string]).tolist():
        mask = [side & (dims == dim) for side in cut]
        ranks = np.unique(np.concatenate([keys[side][mask[side]] for side in range(2)]))
        texts = [table.strings[rank] for rank in ranks.tolist()]
        dimensions.add_strings(dim, texts)
        label_of = dimensions.entries[dim].labels.label_of
        labels = np.array([label_of[text] for text in texts], np.int64)
        for side in range(2):
            keys[side][mask[side]] = labels[np.searchsorted(ranks, keys[side][mask[side]])]
    return keys


def stack(parts: Sequence[NewBoxes]) -> NewBoxes:
    """Join boxes, ordered by subscription."""
    sub = np.concatenate([part.sub for part in parts])
    order = np.argsort(sub, kind="stable")
    counts = np.concatenate([part.counts for part in parts])
    pieces = np.concatenate([part.pieces for part in parts])
    start = np.cumsum(counts) - counts
    taken = np.repeat(start[order], counts[order]) + _within(counts[order])
    region = np.concatenate([part.region for part in parts])
    return NewBoxes(pieces[taken], counts[order], sub[order], region[order])


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, … for each run of some lengths."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class Segment(NamedTuple):
    """The lists of a run of boxes."""

    first: int
    stop: int
    lists: BoundLists
    access: AccessLists


def grown(array: NDArray[Any], n: int) -> NDArray[Any]:
    """Return an array with capacity for n, new elements zero."""
    if n <= len(array):
        return array
    larger = np.zeros((max(n, 2 * len(array), 16), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _taken(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows of an array, at least one."""
    return grown(array[rows], 1)


class BoxIndex:
    """All subscriptions as boxes, by dense id."""

    def __init__(self) -> None:
        self.boxes = Boxes(
            np.zeros((16, 3), np.uint64),
            np.zeros(16, np.int64),
            np.zeros(16, np.int32),
            np.zeros(16, np.uint8),
        )
        self.subs = Subscriptions(
            state=np.zeros(16, np.uint8),
            first=np.zeros(16, np.int32),
            n_boxes=np.zeros(16, np.int32),
            least=np.zeros(16, np.int32),
            term_start=np.zeros(16, np.int32),
            n_terms=np.zeros(16, np.int32),
            terms=np.zeros((16, 2), np.uint64),
            stamp=np.zeros(16, np.int64),
        )
        self.masks = np.zeros(16, np.uint8)
        """The transition mask of each subscription: 1 ENTER, 2 LEAVE, 3 both."""
        self.has_masks = False
        """Whether some transition mask is not 3."""
        self.n_boxes = 0
        self.n_dead = 0
        self.n_terms = 0
        self.n_complex = 0
        """Upper bound on the subscriptions with several boxes or regions."""
        self.segments: list[Segment] = []

    @property
    def n_indexed(self) -> int:
        """Number of boxes in lists."""
        return self.segments[-1].stop if self.segments else 0

    def add(
        self,
        dense: NDArray[np.int64],
        new: NewBoxes,
        mask: int | NDArray[np.uint8] = 3,
        filters: Sequence[FilterTerms] | None = None,
    ) -> None:
        """Add subscriptions; without filters each has one region."""
        if not len(dense):
            return
        self._add_boxes(new)
        stop = int(dense[-1]) + 1
        fields = self.subs._asdict()
        for name in ("state", "first", "n_boxes", "least", "term_start", "n_terms", "stamp"):
            fields[name] = grown(fields[name], stop)
        self.masks = grown(self.masks, stop)
        self.masks[dense] = mask
        self.has_masks = self.has_masks or bool(np.any(mask != 3))
        first = np.searchsorted(new.sub, dense, "left")
        count = np.searchsorted(new.sub, dense, "right") - first
        fields["first"][dense] = first + self.n_boxes - len(new.counts)
        fields["n_boxes"][dense] = count
        fields["state"][dense] = np.where(count == 1, 1, 2)
        fields["least"][dense] = 1
        for number, terms in zip(dense.tolist(), filters or [], strict=False):
            if terms == ONE:
                continue
            fields["state"][number] = 2
            fields["least"][number] = terms.least
            fields["term_start"][number] = self.n_terms
            fields["n_terms"][number] = len(terms.terms)
            fields["terms"] = grown(fields["terms"], self.n_terms + len(terms.terms))
            for must, must_not in terms.terms:
                fields["terms"][self.n_terms] = must, must_not
                self.n_terms += 1
        self.n_complex += int(np.count_nonzero(fields["state"][dense] > 1))
        self.subs = Subscriptions(**fields)
        self.extend_lists()

    def _add_boxes(self, new: NewBoxes) -> None:
        n, n_new = self.n_boxes, len(new.counts)
        at = int(self.boxes.start[n])
        pieces = grown(self.boxes.pieces, at + len(new.pieces))
        pieces[at : at + len(new.pieces)] = new.pieces
        start = grown(self.boxes.start, n + n_new + 1)
        start[n + 1 : n + n_new + 1] = at + np.cumsum(new.counts)
        sub, region = grown(self.boxes.sub, n + n_new), grown(self.boxes.region, n + n_new)
        sub[n : n + n_new], region[n : n + n_new] = new.sub, new.region
        self.boxes = Boxes(pieces, start, sub, region)
        self.n_boxes += n_new

    def remove(self, dense: NDArray[np.int64]) -> None:
        """Delete subscriptions."""
        self.n_dead += int(self.subs.n_boxes[dense].sum())
        self.n_complex -= int(np.count_nonzero(self.subs.state[dense] > 1))
        self.subs.state[dense] = 0
        if self.n_dead > 1024 and 2 * self.n_dead > self.n_boxes:
            self._compact()

    def extend_lists(self) -> None:
        """Build lists when many boxes are in none; merge them by size."""
        if self.n_boxes - self.n_indexed <= MAX_UNINDEXED:
            return
        first = self.n_indexed
        while self.segments and self.segments[-1].stop - self.segments[-1].first < 2 * (
            self.n_boxes - first
        ):
            first = self.segments.pop().first
        self.segments.append(self._segment(first, self.n_boxes))

    def _segment(self, first: int, stop: int) -> Segment:
        is_live = self.subs.state[self.boxes.sub[first:stop]] > 0
        live_boxes = first + np.flatnonzero(is_live)
        return Segment(first, stop, *make_bound_lists(self.boxes, live_boxes))

    def _compact(self) -> None:
        """Rebuild the pool without deleted boxes."""
        sub = self.boxes.sub[: self.n_boxes].astype(np.int64)
        live = np.flatnonzero(self.subs.state[sub] > 0)
        counts = np.diff(self.boxes.start[: self.n_boxes + 1])[live]
        piece = np.repeat(self.boxes.start[live], counts) + _within(counts)
        new = NewBoxes(self.boxes.pieces[piece], counts, sub[live], self.boxes.region[live])
        self.boxes = Boxes(
            np.zeros((16, 3), np.uint64),
            np.zeros(16, np.int64),
            np.zeros(16, np.int32),
            np.zeros(16, np.uint8),
        )
        self.n_boxes = self.n_dead = 0
        self.segments = []
        self._add_boxes(new)
        starts = np.flatnonzero(np.diff(new.sub, prepend=-1))
        self.subs.first[new.sub[starts]] = starts
        self.extend_lists()

    def renumber(self, live: NDArray[np.int64]) -> None:
        """Renumber subscriptions: `live[i]`, all live ones in order, becomes i."""
        if self.n_dead:
            self._compact()
        by_dense = {n: array for n, array in self.subs._asdict().items() if n != "terms"}
        fields = {name: _taken(array, live) for name, array in by_dense.items()}
        counts = fields["n_terms"][: len(live)].astype(np.int64)
        starts = fields["term_start"][: len(live)].astype(np.int64)
        terms = self.subs.terms[np.repeat(starts, counts) + _within(counts)]
        fields["terms"] = _taken(terms, np.arange(len(terms)))
        fields["term_start"][: len(live)] = np.cumsum(counts) - counts
        sub = self.boxes.sub.copy()
        sub[: self.n_boxes] = np.searchsorted(live, sub[: self.n_boxes])
        self.masks = _taken(self.masks, live)
        self.subs, self.n_terms = Subscriptions(**fields), len(terms)
        self.boxes = self.boxes._replace(sub=sub)
        self.segments = [self._segment(s.first, s.stop) for s in self.segments]

    def relabel(self, dim: int, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Replace the labels of strings in one dimension."""
        pieces = self.boxes.pieces[: int(self.boxes.start[self.n_boxes])]
        of_dim = np.flatnonzero(pieces[:, 2] >> np.uint64(32) == np.uint64(dim))
        ends = pieces[of_dim, 2]
        low, low_end = relabel(pieces[of_dim, 0], ends >> np.uint64(16) & _LOW, old, new)
        high, high_end = relabel(pieces[of_dim, 1], ends & _LOW, old, new)
        pieces[of_dim, 0], pieces[of_dim, 1] = low, high
        upper = ends >> np.uint64(32) << np.uint64(32)
        pieces[of_dim, 2] = upper | low_end << np.uint64(16) | high_end
        self.segments = [self._segment(s.first, s.stop) for s in self.segments]

    @property
    def nbytes(self) -> int:
        """Bytes of boxes and lists."""
        arrays: list[NDArray[Any]] = [*self.boxes, *self.subs, self.masks]
        for segment in self.segments:
            arrays += [*segment.lists, *segment.access]
        return sum(array.nbytes for array in arrays)


__all__ = ["MAX_UNINDEXED", "BoxIndex", "NewBoxes", "boxes_of", "grown", "stack"]
