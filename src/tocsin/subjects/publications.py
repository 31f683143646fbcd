"""Publications: publish, update and delete them, one at a time or in batches.

Enters: keys and values. Leaves: changes, the pairs that begin or cease to match. A batch gives the
same changes as its rows one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.subjects.arrays import RowUpdates
from tocsin.subjects.batches import Batch, rounds
from tocsin.subjects.dimensions import SPACE, Dimensions
from tocsin.subjects.filters import FilterTerms, to_terms
from tocsin.subjects.model import Filter, ObjectRegion, Publication, check_regions
from tocsin.subjects.object_rows import NO_MASK
from tocsin.subjects.positions import Words, cut_of, words_of
from tocsin.subjects.publication_keys import PublicationKeys
from tocsin.subjects.state import Changes, State, concatenate, join, select, updates_of
from tocsin.transitions.transition import PublicationKey

_CHUNK = 8192


class PublicationTable:
    """The publications of a space: their keys, and the filters of those with several regions."""

    def __init__(self, dimensions: Dimensions, state: State) -> None:
        self.dimensions = dimensions
        self.state = state
        self.keys = PublicationKeys()
        self.filters: dict[int, Filter] = {}

    def get(self, key: PublicationKey) -> dict[str, Any] | Publication:
        """Return the current values of a publication, as `SubjectSpace.get` does."""
        row = self.keys.row(key)
        regions = self.state.multi_region.get(row)
        if regions is None:
            return self._values(row)
        spaces = self.dimensions.spaces
        by_name = {
            name: ObjectRegion(self._values(int(of)), spaces[self._space_of(int(of))].name)
            for name, of in zip(regions.names, regions.rows, strict=True)
        }
        return Publication(by_name, self.filters[row])

    def _values(self, row: int) -> dict[str, Any]:
        cells = self.state.object_rows.cells[row]
        values = {}
        for dim in self.dimensions.dims_of(self._space_of(row)):
            dimension = self.dimensions.entries[dim]
            words = tuple(cells[dim].tolist())
            if dimension.pattern is None and words != self.dimensions.missing:
                values[dimension.attribute] = self.dimensions.decode(dim, words)
        return {name: value for name, value in values.items() if value is not None}

    def _space_of(self, row: int) -> int:
        """Return the number of a row's space, which its cell in dimension `SPACE` has."""
        if len(self.dimensions.spaces) == 1:
            return 0
        upper, _, ends = self.state.object_rows.cells[row, SPACE].tolist()
        return cut_of(upper, ends >> 16)[1]

    def by_key(self, changes: Changes) -> tuple[Changes, list[PublicationKey]]:
        """Return changes whose items are rows as changes whose items index the returned keys."""
        rows, item = np.unique(changes.item, return_inverse=True)
        return changes._replace(item=item.astype(np.int64)), self.keys.keys(rows.tolist())

    # One at a time.

    def publish(self, key: PublicationKey, values: Mapping[str, Any] | Publication) -> Changes:
        """Add a publication, or replace the one under this key."""
        if isinstance(values, Publication):
            self._encode_regions(values)  # raises every error before anything changes
            return self._replace(key, lambda: self._insert_regions(key, values))
        cells = self.dimensions.encode(0, values)
        self.state.object_rows.fit()
        row = self.state.object_rows.default_row(0)
        if cells:
            row[list(cells)] = words_of(cells.values())
        old = self.keys.row_of.get(key)
        if old is not None and old not in self.state.multi_region and self._space_of(old) == 0:
            dims = self.dimensions.dims_of(0)
            return self.state.update(updates_of(np.array([old], np.int32), dims, row[dims, None]))
        return self._replace(key, lambda: self._insert_row(key, row))

    def _insert_row(self, key: PublicationKey, row: Words) -> Changes:
        rows, changes = self.state.insert(row[None])
        self.keys.add(key, int(rows[0]))
        return changes

    def _insert_regions(self, key: PublicationKey, publication: Publication) -> Changes:
        rows, terms = self._encode_regions(publication)
        first_row, changes = self.state.insert_multi_region(tuple(publication.regions), rows, terms)
        self.keys.add(key, first_row)
        self.filters[first_row] = publication.filter
        return changes

    def _encode_regions(self, publication: Publication) -> tuple[Words, FilterTerms]:
        """Return a row of cells for each region, and the filter."""
        check_regions(publication.regions, ObjectRegion)
        terms = to_terms(publication.filter, list(publication.regions))
        regions = publication.regions.values()
        spaces = [self.dimensions.space(region.space) for region in regions]
        for _ in range(2):  # encoding a region may change the labels that an earlier one has
            cells = [
                self.dimensions.encode(space, region.values)
                for space, region in zip(spaces, regions, strict=True)
            ]
        self.state.object_rows.fit()
        rows = np.stack([self.state.object_rows.default_row(space) for space in spaces])
        for at, by_dim in enumerate(cells):
            for dim, words in by_dim.items():
                rows[at, dim] = words
        return rows, terms

    def _replace(self, key: PublicationKey, insert: Callable[[], Changes]) -> Changes:
        """Insert a publication after deleting the one under its key; return the net changes."""
        if key not in self.keys:
            return insert()
        leaves = self.delete(key)
        enters = insert()
        in_both = np.intersect1d(leaves.sub, enters.sub)
        return concatenate(
            [select(changes, ~np.isin(changes.sub, in_both)) for changes in (leaves, enters)]
        )

    def to_update(self, key: PublicationKey, values: Mapping[str, Any]) -> RowUpdates:
        """Return the update that gives a publication of one region new values."""
        row = self.keys.row(key)
        if row in self.state.multi_region:
            raise ArgumentError(f"{key!r} has regions; use update_region")
        return self._to_row_update(row, values)

    def to_region_update(
        self, key: PublicationKey, region: str, values: Mapping[str, Any]
    ) -> tuple[int, RowUpdates]:
        """Return a publication's first row, and the update that gives one region new values."""
        first_row = self.keys.row(key)
        regions = self.state.multi_region.get(first_row)
        if regions is None or region not in regions.names:
            raise ArgumentError(f"{key!r} has no region {region!r}")
        row = int(regions.rows[regions.names.index(region)])
        return first_row, self._to_row_update(row, values)

    def _to_row_update(self, row: int, values: Mapping[str, Any]) -> RowUpdates:
        cells = self.dimensions.encode(self._space_of(row), values)
        self.state.object_rows.fit()
        dims = np.fromiter(cells, np.int32, len(cells))
        words = words_of(cells.values())[:, None]
        return RowUpdates(np.array([row], np.int32), dims, words, NO_MASK)

    def delete(self, key: PublicationKey) -> Changes:
        """Delete a publication; return a LEAVE for each of its matches."""
        row = self.keys.row_of[key]
        if row in self.state.multi_region:
            changes = self.state.delete_multi_region(row)
            self.filters.pop(row, None)
        else:
            changes = self.state.delete(np.array([row], np.int32))
        self.keys.remove(key)
        return changes

    def delete_many(self, keys: list[PublicationKey]) -> Changes:
        """Delete publications; the items of the changes index `keys`."""
        parts = [self.delete(key) for key in keys]
        return join([part._replace(item=part.item + at) for at, part in enumerate(parts)])

    # In batches.

    def publish_batch(self, batch: Batch, space: int, quiet: bool) -> Changes:
        """Publish the rows of a batch in one space; the items of the changes are batch rows."""
        rows = self._rows(batch.keys)
        self._check_single_region("publish_many replaces", batch, rows, space)
        numbers = rows.copy()
        new = np.flatnonzero(rows < 0)
        if len(new):  # equal keys get equal numbers, also where they are new
            number_of: dict[PublicationKey, int] = {}
            for at in new.tolist():
                numbers[at] = number_of.setdefault(batch.keys[at], -1 - len(number_of))
        parts = []
        for items in rounds(numbers):
            rows = self._rows([batch.keys[at] for at in items.tolist()])
            new, old = items[rows < 0], items[rows >= 0]
            parts += [
                self._insert_items(batch, space, new[first : first + _CHUNK], quiet)
                for first in range(0, len(new), _CHUNK)
            ]
            if len(old):
                parts.append(self._replace_items(batch, space, old, rows[rows >= 0], quiet))
        return join(parts)

    def update_batch(self, batch: Batch, space: int, keep_nulls: bool, quiet: bool) -> Changes:
        """Update publications by the rows of a batch; the items of the changes are batch rows.

        With `keep_nulls`, an attribute that is null in the batch keeps its value.
        """
        rows = self._rows(batch.keys)
        if len(rows) and rows.min() < 0:
            self.keys.row(batch.keys[int(np.argmin(rows))])
        self._check_single_region("update_many updates", batch, rows, space)
        dims = np.array(batch.dims, np.int32)
        parts = []
        for items in rounds(rows):
            is_whole = len(items) == len(rows)
            mask = NO_MASK
            if keep_nulls:
                is_valid = batch.is_valid if is_whole else batch.is_valid[:, items]
                mask = np.ascontiguousarray(is_valid ^ 1)
            cells = batch.cells if is_whole else batch.rows(items)
            updates = RowUpdates(rows[items].astype(np.int32), dims, cells, mask)
            changes = self.state.update(updates, quiet)
            parts.append(changes._replace(item=items[changes.item]))
        return join(parts)

    def _rows(self, keys: list[PublicationKey]) -> NDArray[np.int64]:
        """Return the rows of keys, -1 for unknown ones."""
        row_of = self.keys.row_of
        return np.fromiter((row_of.get(key, -1) for key in keys), np.int64, len(keys))

    def _check_single_region(
        self, action: str, batch: Batch, rows: NDArray[np.int64], space: int
    ) -> None:
        """Refuse a batch if the publication of a key has regions or is in another space."""
        multi_region, object_rows = self.state.multi_region, self.state.object_rows
        spaces = self.dimensions.spaces
        is_bad = np.zeros(len(rows), np.bool_)
        if multi_region:
            has_regions = (row in multi_region for row in rows.tolist())
            is_bad |= np.fromiter(has_regions, np.bool_, len(rows))
        if len(spaces) > 1:
            cell = object_rows.default_row(space)[SPACE]
            is_bad |= (rows >= 0) & np.any(object_rows.cells[rows, SPACE] != cell, axis=1)
        if is_bad.any():
            key = batch.keys[int(np.argmax(is_bad))]
            raise ArgumentError(
                f"{action} publications without regions in the space {spaces[space].name!r};"
                f" {key!r} is not one"
            )

    def _whole_rows(self, batch: Batch, space: int, items: NDArray[np.int64]) -> Words:
        """Return rows of cells in all dimensions, absent where the batch has no value."""
        row = self.state.object_rows.default_row(space)
        rows = np.empty((len(items), *row.shape), np.uint64)
        rows[:] = row
        for at, dim in enumerate(batch.dims):
            is_valid = batch.is_valid[at, items] > 0
            rows[is_valid, dim] = batch.cells[at, items[is_valid]]
        return rows

    def _insert_items(
        self, batch: Batch, space: int, items: NDArray[np.int64], quiet: bool
    ) -> Changes:
        rows, changes = self.state.insert(self._whole_rows(batch, space, items), quiet)
        for at, row in zip(items.tolist(), rows.tolist(), strict=True):
            self.keys.add(batch.keys[at], row)
        return changes._replace(item=items[changes.item])

    def _replace_items(
        self,
        batch: Batch,
        space: int,
        items: NDArray[np.int64],
        rows: NDArray[np.int64],
        quiet: bool,
    ) -> Changes:
        dims = self.dimensions.dims_of(space)
        cells = self._whole_rows(batch, space, items)[:, dims].transpose(1, 0, 2)
        changes = self.state.update(updates_of(rows.astype(np.int32), dims, cells), quiet)
        return changes._replace(item=items[changes.item])
