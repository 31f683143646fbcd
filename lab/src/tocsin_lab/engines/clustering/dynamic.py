"""The `dynamic` engine: tables over several attributes that come and go with the subscriptions.

Fabret et al., section 4. Conjunctions are put where the fewest events lead to them. Three metrics,
in the approximate form that the paper gives, are kept as conjunctions come and go:

- the *benefit margin* of a cluster: the share of events that satisfies its access predicate, times
  its conjunctions. When it rises to `bm_max`, the cluster is redistributed: each conjunction goes
  to the best of the tables there are. A cluster whose margin stays high is a candidate for repair.
- the *benefit* of a table: how many conjunctions it holds. When it falls below `b_min`, the table
  is removed and its conjunctions go elsewhere.
- the *reparation power* of a schema without a table: how many conjunctions of candidate clusters
  would be reached by no more events under it. When it rises to `rp_min`, the table is made, and
  the clusters that spoke for it are redistributed.

Options: `bm_max` (checks an event; default 1), `b_min` (conjunctions; 500), `rp_min` (conjunctions;
2,000; at least `b_min`, else a table would be removed as soon as it is made), `s_min` (checks an
event that a new table must save; 80).

Deviations: metrics are looked at after each call, or every 16,384 conjunctions of a bulk load,
rather than after each conjunction. A cluster that stays a candidate is looked at again when it has
grown by a quarter. A table must also save an event `s_min` checks, as looking into it costs as
much; of several schemas with enough power the one that saves most is taken first. Groups are
limited as `groups` says, tables to 256; where candidates have more than 16,384 conjunctions, some
of each are counted and stand for all. The statistics that an "independent tool" provides are those
of `profile`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin_lab.engines.clustering import cluster_kernels as kernels
from tocsin_lab.engines.clustering.arrays import (
    ACCESS,
    CLUSTER,
    COUNT,
    N_LEFT,
    SEEN,
    SIZE,
    TABLE,
)
from tocsin_lab.engines.clustering.clusters import ClusterEngine
from tocsin_lab.engines.clustering.costs import Costs
from tocsin_lab.engines.clustering.groups import decode, encode, groups_of
from tocsin_lab.engines.clustering.repair import ReparationPower
from tocsin_lab.engines.clustering.runs import positions

_CHUNK = 16_384
_COUNTED = 16_384
_COUNTED_EACH = 8
_GROWTH = 1.25
_MAX_TABLES = 256


class DynamicEngine(ClusterEngine):
    """Clusters under equalities and groups of them, maintained in place.

    `n_created`, `n_removed` and `n_moved` count the tables made and removed, and the conjunctions
    moved, since the beginning.
    """

    def __init__(
        self, bm_max: float = 1.0, b_min: int = 500, rp_min: int = 2_000, s_min: float = 80.0
    ) -> None:
        super().__init__(Costs(check_predicate=0.0))
        if b_min > rp_min:
            raise ArgumentError(f"b_min ({b_min}) must not be greater than rp_min ({rp_min})")
        self._bm_max, self._b_min = bm_max, b_min
        self._rp_min, self._s_min = rp_min, s_min
        self._sizes: dict[int, int] = {}
        self._is_frozen = False
        self.repair = ReparationPower()
        self.n_created = 0
        self.n_removed = 0
        self.n_moved = 0

    def freeze(self) -> None:
        """Make, remove and fill no more tables: the strategy "No Change" of section 6.2.3.

        New conjunctions still go where they are best among the tables there are.
        """
        self._is_frozen = True

    def _add(self, slots: NDArray[np.int32]) -> None:
        for first in range(0, len(slots), _CHUNK):
            self._maintain(self._put(slots[first : first + _CHUNK]))

    def _remove(self, slots: NDArray[np.int32]) -> None:
        self._count(self._arena.conjunctions[slots, CLUSTER], -1)
        super()._remove(slots)
        self._remove_tables()

    def _profiled(self) -> None:
        clusters = np.flatnonzero(self._table_of_clusters() > -2)
        self._clusters[clusters, SEEN] = 0
        self._maintain(clusters)

    # Situation 1: a cluster has an excessive benefit margin.

    def _maintain(self, clusters: NDArray[np.int64]) -> None:
        """Redistribute clusters whose margin is too high; make tables for what stays so."""
        excessive = self._excessive(clusters)
        while len(excessive) and not self._is_frozen:
            touched = self._redistribute(excessive)
            candidates = np.union1d(excessive, touched)
            candidates = candidates[self._margins(candidates) >= self._bm_max]
            self._clusters[candidates, SEEN] = self._clusters[candidates, COUNT]
            self._speak(candidates)
            excessive = self._excessive(self._create_tables())

    def margins(self) -> NDArray[np.float64]:
        """Return the benefit margins of all clusters."""
        return self._margins(np.flatnonzero(self._table_of_clusters() > -2))

    def _margins(self, clusters: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return benefit margins; 0 where there is no cluster any more."""
        counts = np.where(self._clusters[clusters, N_LEFT] >= 0, self._clusters[clusters, COUNT], 0)
        return self.access_shares(clusters) * counts

    def _excessive(self, clusters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clusters whose margin has risen to the limit since they were looked at."""
        rows = self._clusters[clusters]
        has_grown = rows[:, COUNT] >= _GROWTH * rows[:, SEEN] + (rows[:, SEEN] > 0)
        has_grown &= rows[:, N_LEFT] >= 0
        clusters = clusters[has_grown]
        return clusters[self._margins(clusters) >= self._bm_max]

    def _redistribute(self, clusters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move the conjunctions of clusters that are better elsewhere; return where they went."""
        slots = self._slots_in(clusters)
        slots = slots[self._place(slots) < 0]
        self._count(self._arena.conjunctions[slots, CLUSTER], -1)
        kernels.take_out(self._arena, self._clustering(), slots)
        self.n_moved += len(slots)
        return self._put(slots)

    def _put(self, slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """Place conjunctions; return the clusters they are in."""
        touched = self._place(slots)
        self._count(touched, 1)
        return np.unique(touched).astype(np.int64)

    # Situation 2: a table has too few conjunctions.

    def _count(self, clusters: NDArray[np.int32], change: int) -> None:
        """Count conjunctions that come to, or go from, the tables of their clusters."""
        if not self._sizes:
            return
        tables = self._access[self._clusters[clusters, ACCESS], TABLE]
        for table, n in zip(*np.unique(tables[tables >= 0], return_counts=True), strict=True):
            self._sizes[int(table)] += change * int(n)

    def _remove_tables(self) -> None:
        if self._is_frozen:
            return
        poor = [table for table, n in self._sizes.items() if n < self._b_min]
        for table in poor:
            del self._sizes[table]
            self.n_removed += 1
            slots = self._drop_table(table)
            self.n_moved += len(slots)
            self._maintain(self._put(slots))

    # Situation 3: a table that is not there would be worth it.

    def _speak(self, clusters: NDArray[np.int64]) -> None:
        """Let clusters speak for the schemas that would repair them; forget dropped clusters."""
        self.repair.forget([c for c in self.repair.clusters if self._clusters[c, SEEN] <= 0])
        counts = self._clusters[clusters, COUNT]
        step = -(-counts // max(_COUNTED // max(len(clusters), 1), _COUNTED_EACH))
        owner = np.repeat(np.arange(len(clusters)), counts)
        chosen = positions(counts) % step[owner] == 0
        slots, owner = self._slots_in(clusters)[chosen], owner[chosen]
        sizes = self._arena.conjunctions[slots, SIZE]
        groups = groups_of(self._book, self._predicates_of(slots), sizes, has_keys=False)
        owner = owner[groups.conjunction]
        existing = np.array([encode(schema) for schema in self.tables.values()], np.uint64)
        moves = groups.share <= self.access_shares(clusters)[owner]
        moves &= ~np.isin(groups.codes, existing)[groups.schema]
        owner, shares = owner[moves], groups.share[moves]
        weight = step[owner].astype(np.float64)
        saved = weight * (self.access_shares(clusters)[owner] - shares)
        codes = groups.codes[groups.schema[moves]]
        self.repair.speak(clusters, owner, codes, weight, saved)

    def _create_tables(self) -> NDArray[np.int64]:
        """Make the tables whose power suffices; return the clusters that this has filled."""
        touched = [np.empty(0, np.int64)]
        while len(self._sizes) < _MAX_TABLES:
            code = self.repair.best(max(self._rp_min, 1), self._s_min)
            if not code:
                break
            speakers = self.repair.speakers(code)
            self._sizes[self._add_table(decode(code))] = 0
            self.n_created += 1
            touched.append(self._redistribute(speakers))
            left = np.union1d(speakers, touched[-1])
            left = left[self._margins(left) >= self._bm_max]
            self._clusters[speakers, SEEN] = 0
            self._clusters[left, SEEN] = self._clusters[left, COUNT]
            self._speak(left)
        return np.unique(np.concatenate(touched))

    def _check(self, slots: NDArray[np.int64]) -> None:
        super()._check(slots)
        sizes = self.table_sizes()
        assert self._sizes == {t: int(sizes[t]) for t in self.tables}, "sizes are miscounted"
        self.repair.check()
