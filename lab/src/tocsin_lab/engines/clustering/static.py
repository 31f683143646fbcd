"""The `static` engine: tables over several attributes, chosen by a cost formula.

Fabret et al., section 3. It starts from clusters under single equalities, which need no tables of
their own, and adds tables greedily: at each step the schema whose table saves the most time an
event for each byte it takes (sections 3.2.2 and 3.2.3), until none saves anything or the space is
used up. Each conjunction is then kept where checking it costs least.

Option `max_bytes`: the space that tables and clusters may take, by the formula in `costs` (default:
no limit). A table that would not fit is not taken. Clusters under single equalities are kept even
where they alone take more.

Deviations: benefits are computed on a sample of 20,000 conjunctions; entries of older tables that a
new one empties are not counted as saved; groups are limited as `groups` says. Statistics are the
shares that `profile` measures, else guessed from how many values an attribute is compared with. The
clustering is recomputed, at the next match, after `profile` or when half as many conjunctions as it
was made for have come or gone; until then they come and go in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.clustering.arrays import CLUSTER, SIZE, SUBSCRIPTION
from tocsin_lab.engines.clustering.clusters import ClusterEngine
from tocsin_lab.engines.clustering.costs import Costs
from tocsin_lab.engines.clustering.groups import Groups, decode, groups_of

_SAMPLE = 20_000
"""How many conjunctions the tables are chosen by."""


@dataclass(frozen=True)
class Problem:
    """What the greedy algorithm is given.

    `share` and `n_left` are those of each conjunction under its best single equality, `size` its
    number of predicates; `weight` is how many conjunctions each stands for; `presence` the share of
    events that has each schema of the groups.
    """

    groups: Groups
    share: NDArray[np.float64]
    n_left: NDArray[np.int64]
    size: NDArray[np.int64]
    presence: NDArray[np.float64]
    weight: float = 1.0


def choose_tables(
    problem: Problem, costs: Costs, max_bytes: float = math.inf
) -> list[tuple[int, ...]]:
    """Return the schemas of the tables to make, in the order in which they are chosen."""
    groups = problem.groups
    current = problem.share * costs.of_check(problem.n_left)
    n_left = problem.n_left.astype(np.float64)
    lengths = groups.lengths
    group_left = problem.size[groups.conjunction] - lengths[groups.schema]
    group_cost = groups.share * costs.of_check(group_left)
    probing = costs.of_table(problem.presence, lengths)
    used = problem.weight * costs.space([], n_left)
    chosen: list[int] = []
    while len(groups.codes) and used < max_bytes:
        moves = group_cost < current[groups.conjunction]
        saved = np.where(moves, current[groups.conjunction] - group_cost, 0.0)
        benefit = problem.weight * _sum(groups, saved) - probing
        space = _space(problem, costs, moves, n_left[groups.conjunction] - group_left)
        best = _best(benefit, space, max_bytes - used, chosen)
        if best < 0:
            break
        chosen.append(best)
        used += space[best]
        moved = moves & (groups.schema == best)
        current[groups.conjunction[moved]] = group_cost[moved]
        n_left[groups.conjunction[moved]] = group_left[moved]
    return [decode(int(groups.codes[at])) for at in chosen]


def _sum(groups: Groups, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.bincount(groups.schema, values, minlength=len(groups.codes)).astype(np.float64)


def _space(
    problem: Problem, costs: Costs, moves: NDArray[np.bool_], shorter: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the bytes that each schema's table would add; shorter clusters save some."""
    groups = problem.groups
    is_key = np.zeros(len(groups.schema_of_key), np.bool_)
    is_key[groups.key[moves]] = True
    entries = np.bincount(groups.schema_of_key[is_key], minlength=len(groups.codes))
    n_saved = _sum(groups, np.where(moves, shorter, 0.0))
    return costs.table_bytes + problem.weight * (
        costs.entry_bytes * entries - costs.predicate_bytes * n_saved
    )


def _best(
    benefit: NDArray[np.float64], space: NDArray[np.float64], room: float, taken: list[int]
) -> int:
    """Return the schema of the greatest benefit for a byte that fits, or -1."""
    with np.errstate(divide="ignore"):
        per_byte = benefit / np.maximum(space, 0.0)
    possible = (benefit > 0) & (space <= room)
    possible[taken] = False
    at = np.flatnonzero(possible)
    return int(at[np.lexsort((benefit[at], per_byte[at]))[-1]]) if len(at) else -1


class StaticEngine(ClusterEngine):
    """Clusters under equalities and groups of them, planned as a whole."""

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__(Costs())
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._waiting: list[NDArray[np.int32]] = []
        self._n_planned = 0
        self._n_changed = 0
        self._is_stale = False

    def _add(self, slots: NDArray[np.int32]) -> None:
        self._waiting.append(slots)
        self._n_changed += len(slots)

    def _remove(self, slots: NDArray[np.int32]) -> None:
        super()._remove(slots)
        self._n_changed += len(slots)

    def _profiled(self) -> None:
        self._is_stale = True

    def _settle(self) -> None:
        """Replan where much has changed; else put new conjunctions into the existing tables."""
        if self._is_stale or self._n_changed > self._n_planned // 2:
            self._plan()
        elif self._waiting:
            slots = np.unique(np.concatenate(self._waiting))
            rows = self._arena.conjunctions[slots]
            self._place(slots[(rows[:, SUBSCRIPTION] >= 0) & (rows[:, CLUSTER] < 0)])
        self._waiting.clear()

    def _plan(self) -> None:
        slots = np.flatnonzero(self._arena.conjunctions[:, SUBSCRIPTION] >= 0).astype(np.int32)
        self._drop_tables()
        for schema in choose_tables(self._problem(slots), self._costs, self._max_bytes):
            self._add_table(schema)
        self._place(slots)
        self._n_planned, self._n_changed, self._is_stale = len(slots), 0, False

    def _problem(self, slots: NDArray[np.int32]) -> Problem:
        n = min(len(slots), _SAMPLE)
        sample = slots
        if n < len(slots):
            sample = np.random.default_rng(0).choice(slots, n, replace=False)
        sizes = self._arena.conjunctions[sample, SIZE]
        predicates = self._predicates_of(sample)
        groups = groups_of(self._book, predicates, sizes)
        is_point = self._book.dimension[predicates] >= 0
        shares = np.where(is_point, self._book.shares(predicates), 1.0)
        best = np.ones(n)
        np.minimum.at(best, np.repeat(np.arange(n), sizes), shares)
        has_point = np.zeros(n, np.bool_)
        has_point[np.repeat(np.arange(n), sizes)[is_point]] = True
        presence = np.repeat([self._index.presence(name) for name in self._book.attributes], 2)
        size = sizes.astype(np.int64)
        return Problem(
            groups=groups,
            share=best,
            n_left=size - has_point,
            size=size,
            presence=groups.product(presence),
            weight=len(slots) / max(n, 1),
        )
