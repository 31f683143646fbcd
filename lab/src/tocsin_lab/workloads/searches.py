"""Workload X: documents, and saved searches of two to four words.

Ours. A document has 40 words of the language of K, whose popularity falls as 1 / rank. A search
requires two to four of the 20,000 most popular words; word number n is as popular with searches as
`n = u² · 20,000` makes it, for a uniform u; a word may be drawn twice.
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
from tocsin.workloads.draws import Units, by_steps, zipf_steps
from tocsin.workloads.text import Choice, StringTable, glue
from tocsin_lab.workloads.tags import MOST, chosen, requires
from tocsin_lab.workloads.titles import word
from tocsin_lab.workloads.written import Written


@dataclass(frozen=True)
class Searches(Written):
    """Documents, and the words that are searched for in them."""

    n_words: int = 100_000
    n_searched: int = 20_000
    n_in_document: int = 40
    exponent: float = 1.0

    @cached_property
    def event_type(self) -> EventType:
        """Events with a body."""
        return EventType("Document", {"body": "string"})

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition that all subscriptions share."""
        return ("matches(body, :query)",)

    @cached_property
    def words(self) -> list[str]:
        """The words, the most popular first."""
        return [word(rank) for rank in range(self.n_words)]

    @cached_property
    def _steps(self) -> NDArray[np.float64]:
        return zipf_steps(self.n_words, self.exponent)

    @property
    def _event_draws(self) -> int:
        return self.n_in_document

    @property
    def _subscription_draws(self) -> int:
        return 1 + MOST

    def _events(self, units: Units) -> pa.Table:
        rank = by_steps(units, self._steps)
        pieces, spaced = (
            StringTable.of(self.words),
            StringTable.of([f" {word}" for word in self.words]),
        )
        choices: list[Choice] = [
            (spaced if at else pieces, rank[:, at]) for at in range(self.n_in_document)
        ]
        return pa.table({"body": glue(len(units), choices)})

    @cached_property
    def _pieces(self) -> list[StringTable]:
        searched = self.words[: self.n_searched]
        return [StringTable.of(searched), StringTable.of([*(f" {word}" for word in searched), ""])]

    def _queries(self, units: Units, before: str = "", after: str = "") -> pa.Array:
        rank = chosen(units, self.n_searched)
        choices: list[Choice] = [(self._pieces[at > 0], rank[:, at]) for at in range(MOST)]
        return glue(len(units), [before, *choices, after] if before else choices)

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        return text_table(ids, self._queries(units, "matches(body, '", "')"))

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        return pa.table({"id": ids, "query": self._queries(units)})

    def ranks(self, n: int, seed: int, first: int = 0) -> NDArray[np.int64]:
        """Return the words of searches, -1 in free places."""
        drawn = self._drawn_subscriptions(n, seed, first)
        return np.concatenate([chosen(units, self.n_searched) for _, units in drawn])

    def expected(self, events: pa.Table, n: int, seed: int) -> list[list[int]]:
        """Return which searches each document fits."""
        rank, number = self.ranks(n, seed), {word: at for at, word in enumerate(self.words)}
        matches = []
        for body in events["body"].to_pylist():
            present = np.zeros(self.n_words, np.bool_)
            present[[number[word] for word in body.split()]] = True
            matches.append(requires(rank, present))
        return matches

    def made_for(self, number: int, seed: int, event: dict[str, Any]) -> dict[str, Any]:
        """Return the document with the words of a search."""
        rank = self.ranks(1, seed, number)[0]
        added = " ".join(self.words[at] for at in rank[rank >= 0])
        return event | {"body": f"{event['body']} {added}"}
