"""Publications, one at a time: publish, update, retract, expire.

Enters: keys and values. Leaves: transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tocsin.errors import ArgumentError
from tocsin.model import check_id
from tocsin.subjects.arrays import Moves
from tocsin.subjects.axes import SPACE
from tocsin.subjects.core import Core, Seconds, end_of
from tocsin.subjects.filters import to_terms
from tocsin.subjects.model import ObjectRegion, Publication, check_regions
from tocsin.subjects.objects import NO_KEEP
from tocsin.subjects.places import cut_of, words_of
from tocsin.subjects.state import Changes, chosen, concatenated, moves_of
from tocsin.transitions.transition import PublicationKey, Transitions


class Publishing(Core):
    """The calls about single publications."""

    def publish(
        self,
        key: PublicationKey,
        values: Mapping[str, Any] | Publication,
        ttl: Seconds | None = None,
    ) -> Transitions:
        """Add a publication, or put another in the place of the one under this key.

        A value is a single one or a `Range`. `values` of the first space may be given as they are,
        those of others, or several regions, as a `Publication`. From `ttl` seconds on it is gone.
        """
        name = check_id(key)
        with self._change() as change:
            until = end_of(change.now, ttl)
            is_whole = isinstance(values, Publication)
            if not is_whole and not isinstance(values, Mapping):
                raise ArgumentError(f"values must be a mapping or a Publication, not {values!r}")
            change.record(
                "publish",
                key=name,
                values=None if is_whole else values,
                whole=values if is_whole else None,
                until=until,
            )
            change.tell(self._publish(name, values), [name])
            self._publications.set_until(self._publications.row_of[name], until)
        return change.transitions

    def _publish(self, name: PublicationKey, values: object) -> Changes:
        if isinstance(values, Publication):
            return self._replace(name, lambda: self._insert_several(name, values), values)
        if not isinstance(values, Mapping):
            raise ArgumentError(f"values must be a mapping or a Publication, not {values!r}")
        cells = self._axes.encode(0, values)
        self._state.objects.fit()
        row = self._state.objects.default_row(0)
        if cells:
            row[list(cells)] = words_of(cells.values())
        old = self._publications.row_of.get(name)
        if old is not None and old not in self._state.several and self._space_of(old) == 0:
            dims = self._axes.dims_of(0)
            return self._state.update(moves_of(np.array([old], np.int32), dims, row[dims, None]))
        return self._replace(name, lambda: self._insert_one(name, row), None)

    def _insert_one(self, name: PublicationKey, row: Any) -> Changes:
        rows, changes = self._state.insert(row[None])
        self._publications.add(name, int(rows[0]))
        return changes

    def _insert_several(self, name: PublicationKey, given: Publication) -> Changes:
        rows, terms = self._read_regions(given)
        publication, changes = self._state.insert_several(tuple(given.regions), rows, terms)
        self._publications.add(name, publication)
        self._given[publication] = given.filter
        return changes

    def _read_regions(self, given: Publication) -> tuple[Any, Any]:
        check_regions(given.regions, ObjectRegion)
        terms = to_terms(given.filter, list(given.regions))
        spaces = [self._axes.space(region.space) for region in given.regions.values()]
        for _ in range(2):  # a later region may have spread the labels of an earlier one
            cells = [
                self._axes.encode(space, region.values)
                for space, region in zip(spaces, given.regions.values(), strict=True)
            ]
        self._state.objects.fit()
        rows = np.stack([self._state.objects.default_row(space) for space in spaces])
        for at, by_dim in enumerate(cells):
            for dim, words in by_dim.items():
                rows[at, dim] = words
        return rows, terms

    def _replace(
        self, name: PublicationKey, insert: Callable[[], Changes], given: Publication | None
    ) -> Changes:
        """Add a publication; one that is there already goes, and only the difference is told."""
        if given is not None:
            self._read_regions(given)  # whatever is wrong is found before anything changes
        if name not in self._publications:
            return insert()
        left = self._delete(name)
        entered = insert()
        stays = np.intersect1d(left.sub, entered.sub)
        parts = [chosen(found, ~np.isin(found.sub, stays)) for found in (left, entered)]
        return concatenated(parts)

    def update(
        self, key: PublicationKey, changed: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Transitions:
        """Change some attributes of a publication; the others stay, and so does its end.

        Attributes whose names are no names in Python go in a mapping. None makes one absent.
        """
        values = {**(changed or {}), **more}
        with self._change() as change:
            row = self._publications.row(key)
            if row in self._state.several:
                raise ArgumentError(f"{key!r} has regions; use update_region")
            moves = self._moves(row, self._space_of(row), values)
            change.record("update", key=key, values=values)
            change.tell(self._state.update(moves), [key])
        return change.transitions

    def update_region(
        self, key: PublicationKey, region: str, changed: Mapping[str, Any]
    ) -> Transitions:
        """Change some attributes of one region of a publication."""
        with self._change() as change:
            publication = self._publications.row(key)
            several = self._state.several.get(publication)
            if several is None or region not in several.names:
                raise ArgumentError(f"{key!r} has no region {region!r}")
            row = int(several.rows[several.names.index(region)])
            moves = self._moves(row, self._space_of(row), changed)
            change.record("update_region", key=key, region=region, values=changed)
            change.tell(self._state.rewrite_several(publication, moves), [key])
        return change.transitions

    def _moves(self, row: int, space: int, values: Mapping[str, Any]) -> Moves:
        cells = self._axes.encode(space, values)
        self._state.objects.fit()
        dims = np.fromiter(cells, np.int32, len(cells))
        return Moves(np.array([row], np.int32), dims, words_of(cells.values())[:, None], NO_KEEP)

    def _space_of(self, row: int) -> int:
        """Return the space of a row, by its cell where there are several."""
        if len(self.spaces) == 1:
            return 0
        upper, _, ends = self._state.objects.cells[row, SPACE].tolist()
        return cut_of(upper, ends >> 16)[1]

    def retract(self, key: PublicationKey) -> Transitions:
        """Remove a publication."""
        with self._change() as change:
            self._publications.row(key)
            change.record("retract", keys=[key])
            change.tell(self._delete(key), [key])
        return change.transitions

    def touch(self, key: PublicationKey, ttl: Seconds | None) -> Transitions:
        """Let a publication end so many seconds from now, or (None) never."""
        with self._change() as change:
            row = self._publications.row(key)
            until = end_of(change.now, ttl)
            change.record("touch", key=key, until=until)
            self._publications.set_until(row, until)
        return change.transitions

    def expire(self) -> Transitions:
        """End what is due; every other call does so as well."""
        with self._change() as change:
            if change.has_expired:
                change.record("expire")
        return change.transitions
