"""Workload L: events with tags, and people who want some tags together.

Ours. There are 20,000 tags; tag number n is as popular as `n = u² · 20,000` makes it, for a uniform
u, with events and subscriptions alike. An event has 12 tags, a subscription two to four, all of
which it requires; a tag may be drawn twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType
from tocsin.workloads.base import Ids, text_table
from tocsin.workloads.draws import Units, below
from tocsin.workloads.text import Choice, StringTable, glue
from tocsin_lab.workloads.written import Written

MOST = 4


def squared(units: Units, n: int) -> NDArray[np.int64]:
    """Return integers below n, small ones more often: squares of uniform numbers."""
    return (units * units * n).astype(np.int64)


def chosen(units: Units, n: int) -> NDArray[np.int64]:
    """Return two to four integers below n a row, -1 in the places that are free."""
    rank = squared(units[:, 1 : MOST + 1], n)
    rank[np.arange(MOST) >= 2 + below(units[:, :1], MOST - 1)] = -1
    return rank


def requires(rank: NDArray[np.int64], present: NDArray[np.bool_]) -> list[int]:
    """Return the rows all of whose integers are present; there may be -1 in free places."""
    return np.flatnonzero(np.append(present, True)[rank].all(axis=1)).tolist()


@dataclass(frozen=True)
class Tags(Written):
    """Events with twelve tags, and conjunctions of tags."""

    n_tags: int = 20_000
    n_in_event: int = 12

    @cached_property
    def event_type(self) -> EventType:
        """Events with a list, which need not be declared."""
        return EventType("Tagged", {})

    @cached_property
    def tags(self) -> list[str]:
        """The tags, the most popular first."""
        return [f"tag{number:05d}" for number in range(self.n_tags)]

    @property
    def _event_draws(self) -> int:
        return self.n_in_event

    @property
    def _subscription_draws(self) -> int:
        return 1 + MOST

    def _events(self, units: Units) -> pa.Table:
        rank = squared(units, self.n_tags)
        values = pa.array(self.tags, pa.string()).take(pa.array(rank.ravel()))
        starts = np.arange(len(units) + 1, dtype=np.int32) * self.n_in_event
        return pa.table({"tags": pa.ListArray.from_arrays(pa.array(starts), values)})

    @cached_property
    def _pieces(self) -> list[StringTable]:
        texts = [f"ANY(tags) = '{tag}'" for tag in self.tags]
        return [StringTable.of(texts), StringTable.of([*(f" AND {text}" for text in texts), ""])]

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        rank = chosen(units, self.n_tags)
        choices: list[Choice] = [(self._pieces[at > 0], rank[:, at]) for at in range(MOST)]
        return text_table(ids, glue(len(ids), choices))

    def ranks(self, n: int, seed: int, first: int = 0) -> NDArray[np.int64]:
        """Return the tags of subscriptions, -1 in free places."""
        drawn = self._drawn_subscriptions(n, seed, first)
        return np.concatenate([chosen(units, self.n_tags) for _, units in drawn])

    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which subscriptions each event matches."""
        rank, number = self.ranks(n, seed), {tag: at for at, tag in enumerate(self.tags)}
        matches = []
        for tags in events["tags"].to_pylist():
            present = np.zeros(self.n_tags, np.bool_)
            present[[number[tag] for tag in tags]] = True
            matches.append(requires(rank, present))
        return matches

    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with the tags of a subscription."""
        rank = self.ranks(1, seed, number)[0]
        return event | {"tags": event["tags"] + [self.tags[at] for at in rank[rank >= 0]]}
