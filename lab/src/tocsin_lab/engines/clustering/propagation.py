"""The engines `propagation` and `propagation-prefetch`: one equality leads to a cluster.

Fabret et al., section 2 (named in section 6): access predicates are single equalities, conjunctions
stand in columnar clusters by size. With prefetching, the columns are asked for some cache lines
ahead; as in the paper not all of them, but the two that are read most. Without, the check of a
cluster is compiled for each of one to ten predicates, and once for any number.

Deviations: the paper does not say which of several equalities is chosen. We take the one that the
fewest events satisfy, by `profile` or by how many values subscriptions ask of the attribute, and of
equal ones the one that leads to the fewest conjunctions. A conjunction stays where it was put.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin_lab.engines.clustering.clusters import ClusterEngine
from tocsin_lab.engines.clustering.costs import Costs


class PropagationEngine(ClusterEngine):
    """Clusters under single equalities, without prefetching."""

    lookahead = 0

    def __init__(self) -> None:
        super().__init__(Costs(check_predicate=0.0))

    def _add(self, slots: NDArray[np.int32]) -> None:
        self._place(slots)


class PrefetchingPropagationEngine(PropagationEngine):
    """The same with prefetching."""

    lookahead = ClusterEngine.lookahead
