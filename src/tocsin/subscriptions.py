"""The book of subscriptions: who is registered, and where each condition came from.

Enters: ids and sources (a text, a column of texts, a template with parameters, a rule table).
Leaves: dense ids, numbered in order of arrival and never used twice, and back from them the user's
ids and bound expressions. Conditions are kept as they came, by the column; nothing is parsed until
it is asked for.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.model import SubscriptionId
from tocsin.normalize.bind import bind
from tocsin.normalize.rows import RuleTable


class Source(Protocol):
    """Where the conditions of one insertion came from."""

    def template(self, at: int) -> tuple[Expression, Mapping[str, object]]:
        """Return the condition of the at-th subscription and its parameters."""


@dataclass(frozen=True)
class OneSource:
    """A single subscription."""

    expression: Expression
    params: Mapping[str, object]

    def template(self, at: int) -> tuple[Expression, Mapping[str, object]]:
        """Return the condition and its parameters."""
        return self.expression, self.params


@dataclass(frozen=True)
class TextSource:
    """A column of texts."""

    texts: pa.Array

    def template(self, at: int) -> tuple[Expression, Mapping[str, object]]:
        """Return one condition."""
        return parse(self.texts[at].as_py()), {}


@dataclass(frozen=True)
class TemplateSource:
    """One condition with columns of parameters."""

    expression: Expression
    columns: Mapping[str, pa.Array]

    def template(self, at: int) -> tuple[Expression, Mapping[str, object]]:
        """Return the condition and one row of parameters."""
        return self.expression, {name: c[at].as_py() for name, c in self.columns.items()}


@dataclass(frozen=True)
class RuleSource:
    """A rule table."""

    rules: RuleTable

    def template(self, at: int) -> tuple[Expression, Mapping[str, object]]:
        """Return one condition, put together from its rows."""
        return self.rules.expression(at), {}


@dataclass(frozen=True)
class _Block:
    first: int
    source: Source
    rows: NDArray[np.int64] | None

    def template(self, dense: int) -> tuple[Expression, Mapping[str, object]]:
        at = dense - self.first
        return self.source.template(at if self.rows is None else int(self.rows[at]))


class SubscriptionBook:
    """The registered subscriptions. `names[dense]` is a user's id, even after it is removed."""

    def __init__(self) -> None:
        self.names: list[SubscriptionId] = []
        self._dense: dict[SubscriptionId, int] = {}
        self._blocks: list[_Block] = []
        self._starts: list[int] = []
        self._valid_until: dict[int, int] = {}
        self._expiries: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._dense)

    def __contains__(self, name: object) -> bool:
        return name in self._dense

    def has_any(self, names: Iterable[object]) -> bool:
        """Whether any of some ids is taken."""
        return not self._dense.keys().isdisjoint(names)

    def dense(self, name: SubscriptionId) -> int | None:
        """Return the dense id of a subscription, or None."""
        return self._dense.get(name)

    def add(
        self,
        names: Sequence[SubscriptionId],
        source: Source,
        rows: NDArray[np.int64] | None = None,
        valid_until: Mapping[int, int] | None = None,
    ) -> NDArray[np.int64]:
        """Register subscriptions under new ids; return their dense ids.

        `rows` are their places in the source (all, in order, when None); `valid_until` gives
        microseconds by place in `names`.
        """
        first = len(self.names)
        self.names.extend(names)
        dense = range(first, len(self.names))
        self._dense.update(zip(names, dense, strict=True))
        self._blocks.append(_Block(first, source, rows))
        self._starts.append(first)
        for at, moment in (valid_until or {}).items():
            self._valid_until[first + at] = moment
            heapq.heappush(self._expiries, (moment, first + at))
        return np.arange(first, len(self.names))

    def remove(self, name: SubscriptionId) -> int:
        """Strike a subscription out; return its dense id."""
        dense = self._dense.pop(name)
        self._valid_until.pop(dense, None)
        return dense

    def valid_until(self, dense: int) -> int | None:
        """Return until when a subscription is valid, in microseconds, or None."""
        return self._valid_until.get(dense)

    @property
    def has_expiries(self) -> bool:
        """Whether any subscription may expire."""
        return bool(self._expiries)

    def due(self, now: int) -> list[SubscriptionId]:
        """Return the ids whose time has come, each once."""
        names = []
        while self._expiries and self._expiries[0][0] <= now:
            moment, dense = heapq.heappop(self._expiries)
            if self._valid_until.get(dense) == moment:
                names.append(self.names[dense])
        return names

    def template(self, dense: int) -> tuple[Expression, Mapping[str, object]]:
        """Return a subscription's condition with its parameters beside it."""
        return self._blocks[bisect_right(self._starts, dense) - 1].template(dense)

    def expression(self, dense: int) -> Expression:
        """Return a subscription's condition with its parameters bound."""
        return bind(*self.template(dense))
