"""What every workload offers, and the walk over its rows in chunks.

Enters: how many rows, a seed, the first row. Leaves: Arrow tables. A concrete workload says how
many draws a row takes and how a chunk of draws becomes columns; it keeps no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.model import EventType
from tocsin.workloads.draws import Units, draw

Ids = NDArray[np.int64]

_CHUNK_ROWS = 65_536
_CHUNK_CELLS = 1 << 22
_OPERATORS = pa.array(["=", "<", "<=", ">", ">=", "LIKE"])
_OPERATOR_CODES = {"=": 0, "<": 1, "<=": 2, ">": 3, ">=": 4, "LIKE": 5}


@dataclass(frozen=True)
class Workload(ABC):
    """A family of events and subscriptions. Stateless: safe to share between threads."""

    name: str

    @property
    @abstractmethod
    def event_type(self) -> EventType:
        """The event type of the workload's events."""

    @property
    def templates(self) -> tuple[str, ...]:
        """Conditions with parameters that the subscriptions share; empty when they share none."""
        return ()

    def events(self, n: int, seed: int = 0, first: int = 0) -> pa.Table:
        """Return events first … first + n − 1, a column for each attribute; null is absent."""
        rows = max(1, min(_CHUNK_ROWS, _CHUNK_CELLS // max(1, len(self.event_type.attributes))))
        drawn = self._drawn("events", self._event_draws, n, seed, first, rows)
        return pa.concat_tables(self._events(units) for _, units in drawn).combine_chunks()

    def subscription_texts(self, n: int, seed: int = 0, first: int = 0) -> pa.Table:
        """Return the subscriptions as columns `id` (the row's number) and `where`."""
        return self._subscriptions(self._texts, n, seed, first)

    def subscription_rows(self, n: int, seed: int = 0, first: int = 0) -> pa.Table:
        """Return the same subscriptions with one predicate a row.

        Columns `id`, `attribute`, `op` and `value`; or, where kinds mix, `number` and `text`, one
        of them null. The rows of one subscription stand together.
        """
        return self._subscriptions(self._rows, n, seed, first)

    def subscription_params(self, n: int, seed: int = 0, first: int = 0) -> tuple[pa.Table, ...]:
        """Return the same subscriptions as one table for each of `templates`.

        Columns `id` and one for each parameter of the template. Every subscription is in one of the
        tables.
        """
        drawn = list(self._drawn_subscriptions(n, seed, first))
        return tuple(
            pa.concat_tables(self._params(at, units, ids) for ids, units in drawn)
            for at in range(len(self.templates))
        )

    def _subscriptions(
        self, make: Callable[[Units, Ids], pa.Table], n: int, seed: int, first: int
    ) -> pa.Table:
        drawn = self._drawn_subscriptions(n, seed, first)
        return pa.concat_tables(make(units, ids) for ids, units in drawn)

    def _drawn_subscriptions(self, n: int, seed: int, first: int) -> Iterator[tuple[Ids, Units]]:
        width = self._subscription_draws
        return self._drawn("subscriptions", width, n, seed, first, _CHUNK_ROWS)

    def _drawn(
        self, stream: str, width: int, n: int, seed: int, first: int, chunk_rows: int
    ) -> Iterator[tuple[Ids, Units]]:
        _check_range(n, seed, first)
        # One chunk at least, so that no rows still have columns.
        for start in range(first, max(first + n, first + 1), chunk_rows):
            size = min(chunk_rows, first + n - start)
            ids = np.arange(start, start + size, dtype=np.int64)
            yield ids, draw(seed, f"{self.name}/{stream}", start, size, width)

    @property
    @abstractmethod
    def _event_draws(self) -> int:
        """How many draws an event takes."""

    @property
    @abstractmethod
    def _subscription_draws(self) -> int:
        """How many draws a subscription takes."""

    @abstractmethod
    def _events(self, units: Units) -> pa.Table: ...

    @abstractmethod
    def _texts(self, units: Units, ids: Ids) -> pa.Table: ...

    @abstractmethod
    def _rows(self, units: Units, ids: Ids) -> pa.Table: ...

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        """Only asked of workloads that have templates."""
        raise AssertionError(f"workload {self.name} has no template {template}")


def _check_range(n: int, seed: int, first: int) -> None:
    if n < 0 or first < 0 or first + n > 2**63:
        raise ArgumentError(f"cannot generate {n} rows from row {first}")
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"a seed is an unsigned 64-bit integer, not {seed}")


def text_table(ids: Ids, texts: pa.Array) -> pa.Table:
    """Return the columns `id` and `where`."""
    return pa.table({"id": pa.array(ids), "where": texts})


def row_columns(
    ids: Ids,
    names: Sequence[str],
    attribute: NDArray[np.int64],
    operators: Sequence[str],
    keep: NDArray[np.bool_] | None = None,
) -> dict[str, pa.Array]:
    """Return the columns `id`, `attribute` and `op` of n × k predicates, in row order.

    `attribute` holds indices into `names`, n × k or k of them; `operators` has k; `keep` says which
    of the n × k exist.
    """
    n, k = len(ids), len(operators)
    codes = np.array([_OPERATOR_CODES[op] for op in operators], np.int8)
    flat: list[NDArray[Any]] = [
        np.repeat(ids, k),
        np.broadcast_to(attribute.astype(np.int16), (n, k)).ravel(),
        np.tile(codes, n),
    ]
    if keep is not None:
        flat = [column[keep.ravel()] for column in flat]
    return {
        "id": pa.array(flat[0]),
        "attribute": pa.DictionaryArray.from_arrays(flat[1], pa.array(names, pa.string())),
        "op": pa.DictionaryArray.from_arrays(flat[2], _OPERATORS),
    }
