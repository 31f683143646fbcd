"""Workload K: titles, and people who search them for a word.

Ours. A title is eight words of a made-up language, 60 characters on average: words are made of two
to four syllables, and their popularity falls as 1 / rank. A subscriber wants every title that
contains a word, `title LIKE '%word%'`; all words are equally likely to be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType
from tocsin.workloads.base import Ids, Workload, row_columns, text_table
from tocsin.workloads.draws import Units, below, by_steps, zipf_steps
from tocsin.workloads.text import Choice, StringTable, glue

_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
_MIXED = 7_919
"""Words of neighbouring ranks have nothing in common: their numbers are multiples of this."""
_OPERATORS = ("LIKE",)


def word(rank: int) -> str:
    """Return the word of a rank; all words are different."""
    if rank % 100 == 0:
        n_syllables, number = 2, rank // 100
    else:
        n_syllables, number = 3 + (rank % 3 == 0), rank
    number = number * _MIXED % 100**n_syllables
    return "".join(_SYLLABLES[number // 100**at % 100] for at in range(n_syllables))


@dataclass(frozen=True)
class Titles(Workload):
    """Titles, and words that are searched for in them."""

    n_words: int = 100_000
    n_in_title: int = 8
    exponent: float = 1.0

    @cached_property
    def event_type(self) -> EventType:
        """Events with a title."""
        return EventType("Title", {"title": "string"})

    @property
    def templates(self) -> tuple[str, ...]:
        """The condition that all subscriptions share."""
        return ("title LIKE :pattern",)

    @cached_property
    def words(self) -> list[str]:
        """The words, the most popular first."""
        return [word(rank) for rank in range(self.n_words)]

    @cached_property
    def _pieces(self) -> StringTable:
        return StringTable.of(self.words)

    @cached_property
    def _steps(self) -> NDArray[np.float64]:
        return zipf_steps(self.n_words, self.exponent)

    @property
    def _event_draws(self) -> int:
        return self.n_in_title

    @property
    def _subscription_draws(self) -> int:
        return 1

    def _events(self, units: Units) -> pa.Table:
        rank = by_steps(units, self._steps)
        choices: list[Choice] = []
        for at in range(self.n_in_title):
            choices += [" "] if at else []
            choices.append((self._pieces, rank[:, at]))
        return pa.table({"title": glue(len(units), choices)})

    def _glued(self, units: Units, before: str, after: str) -> pa.Array:
        rank = below(units[:, 0], self.n_words)
        return glue(len(units), [before, (self._pieces, rank), after])

    def _texts(self, units: Units, ids: Ids) -> pa.Table:
        return text_table(ids, self._glued(units, "title LIKE '%", "%'"))

    def _rows(self, units: Units, ids: Ids) -> pa.Table:
        title = np.zeros(1, np.int64)
        columns = row_columns(ids, ("title",), title, _OPERATORS)
        columns["number"] = pa.nulls(len(ids), pa.float64())
        return pa.table({**columns, "text": self._glued(units, "%", "%")})

    def _params(self, template: int, units: Units, ids: Ids) -> pa.Table:
        return pa.table({"id": pa.array(ids), "pattern": self._glued(units, "%", "%")})
