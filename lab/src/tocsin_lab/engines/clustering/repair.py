"""Reparation power: which tables that are not there would take conjunctions off which clusters.

Enters: clusters whose benefit margin is excessive, with the groups of their conjunctions. Leaves:
the best schema, and the clusters that speak for it. Follows Fabret et al., section 4: the
reparation power of a table is how many conjunctions of the candidate clusters would move to it; it
adds up over clusters, and what a cluster adds is taken back when the cluster changes. The number of
checks that an event would save is kept in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_Part = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Schemas by number; a row for each with its conjunctions and the checks saved."""


class ReparationPower:
    """The power of each schema, and what each cluster adds to it; schemas by their codes."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}
        self._codes: list[int] = []
        self._totals = np.zeros((0, 2))
        self._parts: dict[int, _Part] = {}

    @property
    def clusters(self) -> list[int]:
        """The clusters that speak for some schema, or could."""
        return list(self._parts)

    def forget(self, clusters: Iterable[int]) -> None:
        """Take back what clusters added."""
        for cluster in clusters:
            part = self._parts.pop(cluster, None)
            if part is not None:
                self._totals[part[0]] -= part[1]

    def speak(
        self,
        clusters: NDArray[np.int64],
        cluster: NDArray[np.int64],
        code: NDArray[np.uint64],
        weight: NDArray[np.float64],
        saved: NDArray[np.float64],
    ) -> None:
        """Let clusters speak: for each move, the place of its cluster, the schema, how many
        conjunctions it stands for, and how many checks an event it saves.
        """
        codes, schema = np.unique(code, return_inverse=True)
        numbers = self._numbers(codes.tolist())
        pairs, which = np.unique(cluster * len(codes) + schema, return_inverse=True)
        columns = [np.bincount(which, each, minlength=len(pairs)) for each in (weight, saved)]
        totals = np.stack(columns, axis=1).astype(float)
        owner, schema = np.divmod(pairs, max(len(codes), 1))
        bounds = np.searchsorted(owner, np.arange(len(clusters) + 1))
        self.forget(clusters.tolist())
        for at, each in enumerate(clusters.tolist()):
            chosen = slice(bounds[at], bounds[at + 1])
            self._parts[each] = part = numbers[schema[chosen]], totals[chosen]
            self._totals[part[0]] += part[1]

    def _numbers(self, codes: list[int]) -> NDArray[np.int64]:
        numbers = [self._number.setdefault(code, len(self._number)) for code in codes]
        new = len(self._number) - len(self._codes)
        if new:
            self._codes = list(self._number)
            self._totals = np.concatenate([self._totals, np.zeros((new, 2))])
        return np.array(numbers, np.int64)

    def power(self, code: int) -> float:
        """Return the power of a schema."""
        number = self._number.get(code)
        return 0.0 if number is None else float(self._totals[number, 0])

    def best(self, rp_min: float, s_min: float) -> int:
        """Return the schema that saves most, of those with the power and the savings; else 0."""
        power, saved = self._totals.T
        at = np.flatnonzero((power >= rp_min) & (saved >= s_min))
        return self._codes[at[saved[at].argmax()]] if len(at) else 0

    def speakers(self, code: int) -> NDArray[np.int64]:
        """Return the clusters that speak for a schema."""
        number = self._number[code]
        clusters = [c for c, (numbers, _) in self._parts.items() if number in numbers]
        return np.array(clusters, np.int64)

    def check(self) -> None:
        """Verify that powers are the sums of their parts."""
        totals = np.zeros_like(self._totals)
        for numbers, part in self._parts.values():
            totals[numbers] += part
        assert np.allclose(totals, self._totals), "powers are miscounted"
