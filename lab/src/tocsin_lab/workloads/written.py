"""Workloads whose subscriptions are no predicate rows: they are loaded as texts.

Enters: events and the number of subscriptions. Leaves: which subscriptions match, by NumPy, and an
event made to match one; benchmarks check the answers of an engine with both.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.workloads.base import Ids, Workload
from tocsin.workloads.draws import Units


class Written(Workload):
    """A workload of computed values, lists or texts."""

    @abstractmethod
    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which of the first n subscriptions each event matches, ascending."""

    @abstractmethod
    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event changed so that it matches a subscription."""

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        raise ArgumentError(f"the subscriptions of workload {self.name} are no rows: load texts")
