"""Clusters: conjunctions under access predicates, in columns, and the tables that find them.

Enters: slots of conjunctions, and what a check costs. Leaves: for each event the conjunctions that
hold. Follows Fabret et al., sections 2.2 and 3.1: conjunctions with the same access predicate and
the same number of predicates left to check are a cluster, whose columns hold the first, the
second, … predicate of each, and at last its slot. An access predicate is one equality, found
through the predicate index, or one for each dimension of a table's schema, found by hashing what
the event satisfies. Conjunctions without equalities are under the predicate that always holds.

Deviations: the predicate bit vector has a byte for each predicate; a schema has at most four
dimensions (see `predicates`); the columns are ordered by selectivity, which the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import LANES, MOST_BITS
from tocsin_lab.engines.clustering import cluster_kernels as kernels
from tocsin_lab.engines.clustering import match_kernels
from tocsin_lab.engines.clustering.arrays import (
    ACCESS,
    BASE,
    CAPACITY,
    CLUSTER,
    COUNT,
    HEAD,
    MAX_SCHEMA,
    N_ACCESS,
    N_BLOCKS,
    N_CLUSTERS,
    N_KEYS,
    N_LEFT,
    POPULATION,
    POSITION,
    RUN,
    SIZE,
    STRIPE,
    TABLE,
    TRUE,
    WAITING,
    Clustering,
    Scratch,
)
from tocsin_lab.engines.clustering.costs import Costs
from tocsin_lab.engines.clustering.engine import TwoPhaseEngine, grown
from tocsin_lab.engines.clustering.index import CHUNK, Chunk
from tocsin_lab.engines.clustering.runs import places, positions

LOOKAHEAD = 256
"""How many entries ahead the columns of a cluster are asked for."""


class ClusterEngine(TwoPhaseEngine):
    """Clusters under access predicates. The tables are up to the engine that builds on this."""

    lookahead = LOOKAHEAD

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self._costs = costs
        self._clusters = np.full((16, 8), -1, np.int32)
        self._access = np.full((16, MAX_SCHEMA + 4), -1, np.int32)
        self._bucket = np.full(32, -1, np.int32)
        self._access_of = np.full(self._book.room, -1, np.int32)
        self._schemas = np.zeros((0, 1 + MAX_SCHEMA), np.int32)
        self._scratch = Scratch(
            bits=np.zeros(self._book.room, np.uint8),
            words=np.zeros(MOST_BITS // 32, np.uint32),
            point=np.full(0, -1, np.int32),
            order=np.empty(16, np.int32),
            keys=np.empty((N_KEYS, MAX_SCHEMA + 2), np.int32),
            probes=np.empty(0, np.int32),
            candidates=_room_for(self._clusters),
            blocks=np.empty(2 * N_BLOCKS, np.uint64),
            passed=np.zeros(WAITING + STRIPE + LANES, np.uint64),
        )

    # Tables.

    @property
    def tables(self) -> dict[int, tuple[int, ...]]:
        """The schemas of the tables, by number: dimensions in ascending order."""
        schemas = {}
        for t, (n, *dimensions) in enumerate(self._schemas.tolist()):
            if n:
                schemas[t] = tuple(dimensions[:n])
        return schemas

    def schema_names(self, schema: Sequence[int]) -> tuple[str, ...]:
        """Return the attributes of a schema."""
        return tuple(self._book.attributes[dimension // 2] for dimension in schema)

    def _add_table(self, schema: Sequence[int]) -> int:
        row = np.zeros(1 + MAX_SCHEMA, np.int32)
        row[: 1 + len(schema)] = [len(schema), *schema]
        free = np.flatnonzero(self._schemas[:, 0] == 0)
        if len(free):
            self._schemas[free[0]] = row
            return int(free[0])
        self._schemas = np.concatenate([self._schemas, row.reshape(1, -1)])
        probes = np.empty(CHUNK * len(self._schemas), np.int32)
        self._scratch = self._scratch._replace(probes=probes)
        return len(self._schemas) - 1

    def _drop_table(self, table: int) -> NDArray[np.int32]:
        """Remove a table; return the conjunctions that were in it and now are nowhere."""
        slots = self._slots_in(np.flatnonzero(self._table_of_clusters() == table))
        kernels.take_out(self._arena, self._clustering(), slots)
        self._schemas[table] = 0
        return slots

    def _drop_tables(self) -> None:
        """Forget all clusters and tables; every conjunction is nowhere."""
        live = self._arena.conjunctions[:, CLUSTER] >= 0
        kernels.take_out(self._arena, self._clustering(), np.flatnonzero(live).astype(np.int32))
        self._schemas = self._schemas[:0]

    def table_sizes(self) -> NDArray[np.int64]:
        """Return how many conjunctions each table holds."""
        rows = self._access[: self._arena.state[N_ACCESS]]
        inside = (rows[:, HEAD] >= 0) & (rows[:, TABLE] >= 0)
        weights = rows[inside, POPULATION]
        sizes = np.bincount(rows[inside, TABLE], weights, minlength=len(self._schemas))
        return sizes.astype(np.int64)

    def _table_of_clusters(self) -> NDArray[np.int32]:
        """Return the table of each cluster: -1 for single predicates, -2 for no cluster."""
        rows = self._clusters[: self._arena.state[N_CLUSTERS]]
        return np.where(rows[:, N_LEFT] >= 0, self._access[rows[:, ACCESS], TABLE], -2)

    def _slots_in(self, clusters: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the conjunctions of clusters, cluster by cluster."""
        rows = self._clusters[clusters].astype(np.int64)
        line = rows[:, BASE] + rows[:, N_LEFT] * rows[:, CAPACITY]
        slots: NDArray[np.int32] = self._arena.pool[places(line, rows[:, COUNT])]
        return slots

    def access_shares(self, clusters: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of events that satisfies the access predicate of each cluster."""
        keys = self._access[self._clusters[clusters, ACCESS], :MAX_SCHEMA]
        shares = np.where(keys >= 0, self._book.shares(np.maximum(keys, 0)), 1.0)
        return np.asarray(shares.prod(axis=1))

    def expected_checks(self) -> float:
        """Return how many conjunctions an event is expected to be checked against."""
        clusters = np.flatnonzero(self._table_of_clusters() > -2)
        return float((self.access_shares(clusters) * self._clusters[clusters, COUNT]).sum())

    # Conjunctions.

    def _place(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Put conjunctions into their best clusters; return the cluster of each."""
        self._fit_scratch(slots)
        touched = np.empty(len(slots), np.int32)
        costs, done = (self._costs.check, self._costs.check_predicate), 0
        while True:
            done = kernels.place(
                self._arena, self._clustering(), self._scratch, slots, done, *costs, touched
            )
            if done == len(slots):
                return touched
            self._grow()

    def _grow(self) -> None:
        """Make room for more of whatever ran out."""
        if self._arena.state[N_CLUSTERS] == len(self._clusters):
            self._clusters = grown(self._clusters, 2 * len(self._clusters))
            self._scratch = self._scratch._replace(candidates=_room_for(self._clusters))
        elif self._arena.state[N_ACCESS] == len(self._access):
            self._access = grown(self._access, 2 * len(self._access))
            self._bucket = np.full(2 * len(self._bucket), -1, np.int32)
            kernels.rehash(self._arena, self._clustering())
        else:
            self._grow_pool(len(self._arena.pool))

    def _fit_scratch(self, slots: NDArray[np.int32]) -> None:
        room, most = self._book.room, int(self._arena.conjunctions[slots, SIZE].max(initial=0))
        if room > len(self._access_of):
            self._access_of = grown(self._access_of, room)
            self._scratch = self._scratch._replace(bits=np.zeros(room, np.uint8))
        if len(self._book.n_points) > len(self._scratch.point):
            point = np.full(len(self._book.n_points), -1, np.int32)
            self._scratch = self._scratch._replace(point=point)
        if most > len(self._scratch.order):
            self._scratch = self._scratch._replace(order=np.empty(2 * most, np.int32))

    def _remove(self, slots: NDArray[np.int32]) -> None:
        kernels.take_out(self._arena, self._clustering(), slots)

    def _clustering(self) -> Clustering:
        return Clustering(
            self._clusters,
            self._access,
            self._bucket,
            self._access_of,
            self._schemas,
            self._book.dimension,
            self._book.share,
            self._book.n_points,
        )

    def _match(self, chunk: Chunk) -> int:
        clustering = self._clustering()
        if len(self._schemas):
            kernels.look_up(clustering, self._scratch, *chunk.satisfied, chunk.done)
        return match_kernels.match(
            self._arena.pool,
            clustering,
            self._scratch,
            *chunk.satisfied,
            self.lookahead,
            chunk.done,
            chunk.out,
            chunk.offsets,
        )

    # What can be said of it.

    def _explain(self, slot: int) -> str:
        cluster = self._clusters[self._arena.conjunctions[slot, CLUSTER]]
        key = self._access[cluster[ACCESS], :MAX_SCHEMA]
        schema = self._book.dimension[key[key >= 0]]
        inside = f"in a cluster of {cluster[COUNT]:,} with {cluster[N_LEFT]} predicates to check"
        if schema[0] < 0:
            return f"checked on every event, {inside}"
        return f"kept under ({', '.join(self.schema_names(schema.tolist()))}), {inside}"

    def _check(self, slots: NDArray[np.int64]) -> None:
        rows = self._arena.conjunctions
        assert np.all(rows[slots, CLUSTER] >= 0), "a conjunction is in no cluster"
        clusters = np.flatnonzero(self._table_of_clusters() > -2)
        assert np.all(self._clusters[clusters, COUNT] > 0), "a cluster is empty"
        inside = self._slots_in(clusters)
        assert np.array_equal(np.sort(inside), slots), "a conjunction is not in one cluster"
        counts = self._clusters[clusters, COUNT]
        assert np.array_equal(rows[inside, CLUSTER], np.repeat(clusters, counts)), "clusters"
        assert np.array_equal(rows[inside, POSITION], positions(counts)), "positions"
        for slot in slots.tolist():
            self._check_columns(slot)
        populations = np.bincount(self._clusters[clusters, ACCESS], counts, len(self._access))
        actual = np.where(self._access[:, HEAD] >= 0, self._access[:, POPULATION], 0)
        assert np.array_equal(populations, actual), "populations are miscounted"
        assert not self._scratch.bits.any(), "a byte is left over"
        assert not self._scratch.words.any(), "a bit is left over"
        assert np.all(self._scratch.point == -1), "an equality is left over"

    def _check_columns(self, slot: int) -> None:
        """Verify that access predicate and columns are the predicates of a conjunction."""
        row, pool = self._arena.conjunctions[slot].tolist(), self._arena.pool
        cluster = self._clusters[row[CLUSTER]].tolist()
        access = self._access[cluster[ACCESS]].tolist()
        at = cluster[BASE] + row[POSITION]
        left = [int(pool[at + i * cluster[CAPACITY]]) for i in range(cluster[N_LEFT])]
        key = [p for p in access[:MAX_SCHEMA] if p >= 0]
        own = pool[row[RUN] : row[RUN] + row[SIZE]].tolist()
        assert sorted({*left, *key} - {TRUE}) == sorted({*own} - {TRUE}), "columns"
        if access[TABLE] >= 0:
            assert self.tables[access[TABLE]] == tuple(self._book.dimension[key].tolist()), "schema"
        else:
            assert self._access_of[key[0]] == cluster[ACCESS], "an access predicate is not found"

    @property
    def _nbytes(self) -> int:
        return sum(array.nbytes for array in (*self._clustering()[:5], *self._scratch))


def _room_for(clusters: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return room for the clusters of two events; a place behind those may be written too."""
    return np.empty(2 * (len(clusters) + 1), np.int32)
