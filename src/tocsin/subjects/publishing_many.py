"""Publications, many at a time.

Enters: Arrow tables. Leaves: transitions, the same as if the rows came one after another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from tocsin.errors import ArgumentError
from tocsin.model import check_id
from tocsin.subjects.arrays import Moves
from tocsin.subjects.axes import SPACE
from tocsin.subjects.batches import Batch, read_batch, rounds
from tocsin.subjects.core import Seconds, end_of
from tocsin.subjects.objects import NO_KEEP
from tocsin.subjects.publishing import Publishing
from tocsin.subjects.state import Changes, join, moves_of
from tocsin.transitions.transition import PublicationKey, Transitions

_CHUNK = 8192


class PublishingMany(Publishing):
    """The calls about many publications."""

    def publish_many(
        self,
        table: object,
        *,
        key: str = "key",
        space: str | None = None,
        ttl: Seconds | None = None,
        quiet: bool = False,
    ) -> Transitions:
        """Publish the rows of anything Arrow, one after another; null is absent.

        With `quiet`, nothing is worked out or told: for what is loaded before anybody listens.
        """
        with self._change() as change:
            number = self._axes.space(space)
            batch, taken = read_batch(table, self._axes, number, key)
            self._state.objects.fit()
            until = end_of(change.now, ttl)
            options = {"key": key, "space": space, "until": until, "quiet": quiet}
            change.record("publish_many", table=taken, **options)
            change.tell(self._publish_batch(batch, number, quiet), batch.keys)
            if until is not None or self._publications.has_ends:
                for name in batch.keys:
                    self._publications.set_until(self._publications.row_of[name], until)
        return change.transitions

    def _publish_batch(self, batch: Batch, space: int, quiet: bool) -> Changes:
        rows = self._rows(batch.keys)
        self._check_plain("publish_many replaces", batch, rows, space)
        numbers = rows.copy()
        new = np.flatnonzero(rows < 0)
        if len(new):  # a new key that stands twice has one number too
            named: dict[PublicationKey, int] = {}
            for at in new.tolist():
                numbers[at] = named.setdefault(batch.keys[at], -1 - len(named))
        parts = []
        for part in rounds(numbers):
            rows = self._rows([batch.keys[at] for at in part.tolist()])
            fresh, there = part[rows < 0], part[rows >= 0]
            parts += [
                self._insert_batch(batch, space, fresh[first : first + _CHUNK], quiet)
                for first in range(0, len(fresh), _CHUNK)
            ]
            if len(there):
                parts.append(self._replace_batch(batch, space, there, rows[rows >= 0], quiet))
        return join(parts)

    def _rows(self, keys: list[PublicationKey]) -> Any:
        row_of = self._publications.row_of
        return np.fromiter((row_of.get(key, -1) for key in keys), np.int64, len(keys))

    def _check_plain(self, does: str, batch: Batch, rows: Any, space: int) -> None:
        """Refuse a batch where the publication of a key has regions or is in another space."""
        several, objects = self._state.several, self._state.objects
        bad = np.zeros(len(rows), np.bool_)
        if several:
            bad |= np.fromiter((row in several for row in rows.tolist()), np.bool_, len(rows))
        if len(self.spaces) > 1:
            here = objects.default_row(space)[SPACE]
            bad |= (rows >= 0) & np.any(objects.cells[rows, SPACE] != here, axis=1)
        if bad.any():
            key = batch.keys[int(np.argmax(bad))]
            where = f"in the space {self.spaces[space].name!r}"
            raise ArgumentError(
                f"{does} publications without regions {where}; {key!r} is none of those"
            )

    def _full(self, batch: Batch, space: int, chosen: Any) -> Any:
        """Return whole rows of cells."""
        row = self._state.objects.default_row(space)
        full = np.empty((len(chosen), *row.shape), np.uint64)
        full[:] = row
        for at, dim in enumerate(batch.dims):
            given = batch.here[at, chosen] > 0
            full[given, dim] = batch.cells[at, chosen[given]]
        return full

    def _insert_batch(self, batch: Batch, space: int, chosen: Any, quiet: bool) -> Changes:
        rows, found = self._state.insert(self._full(batch, space, chosen), quiet)
        for at, row in zip(chosen.tolist(), rows.tolist(), strict=True):
            self._publications.add(batch.keys[at], row)
        return Changes(found.kind, chosen[found.place], found.sub)

    def _replace_batch(
        self, batch: Batch, space: int, chosen: Any, rows: Any, quiet: bool
    ) -> Changes:
        dims = self._axes.dims_of(space)
        fresh = self._full(batch, space, chosen)[:, dims].transpose(1, 0, 2)
        found = self._state.update(moves_of(rows.astype(np.int32), dims, fresh), quiet)
        return Changes(found.kind, chosen[found.place], found.sub)

    def update_many(
        self,
        table: object,
        *,
        key: str = "key",
        space: str | None = None,
        nulls: Literal["absent", "keep"] = "absent",
        quiet: bool = False,
    ) -> Transitions:
        """Update publications by the rows of anything Arrow, one after another.

        Attributes without a column stay as they are, and with `nulls="keep"` so do those where the
        column has none. When a key is unknown, nothing is updated.
        """
        if nulls not in ("absent", "keep"):
            raise ArgumentError(f"nulls is 'absent' or 'keep', not {nulls!r}")
        with self._change() as change:
            number = self._axes.space(space)
            batch, taken = read_batch(table, self._axes, number, key)
            self._state.objects.fit()
            options = {"key": key, "space": space, "nulls": nulls, "quiet": quiet}
            change.record("update_many", table=taken, **options)
            change.tell(self._update_batch(batch, number, nulls == "keep", quiet), batch.keys)
        return change.transitions

    def _update_batch(self, batch: Batch, space: int, keep: bool, quiet: bool) -> Changes:
        rows = self._rows(batch.keys)
        if len(rows) and rows.min() < 0:
            self._publications.row(batch.keys[int(np.argmin(rows))])
        self._check_plain("update_many updates", batch, rows, space)
        dims = np.array(batch.dims, np.int32)
        parts = []
        for part in rounds(rows):
            whole = len(part) == len(rows)
            kept = NO_KEEP
            if keep:
                kept = np.ascontiguousarray((batch.here if whole else batch.here[:, part]) ^ 1)
            fresh = batch.cells if whole else batch.rows(part)
            moves = Moves(rows[part].astype(np.int32), dims, fresh, kept)
            found = self._state.update(moves, quiet)
            parts.append(Changes(found.kind, part[found.place], found.sub))
        return join(parts)

    def retract_many(self, keys: Iterable[PublicationKey]) -> Transitions:
        """Remove many publications; when one is unknown, none is removed."""
        names = [check_id(key) for key in keys]
        with self._change() as change:
            for name in names:
                self._publications.row(name)
            if len(set(names)) < len(names):
                raise ArgumentError("a key stands twice")
            change.record("retract", keys=names)
            parts = [(self._delete(name), at) for at, name in enumerate(names)]
            found = [Changes(c.kind, c.place + at, c.sub) for c, at in parts]
            change.tell(join(found), names)
        return change.transitions
