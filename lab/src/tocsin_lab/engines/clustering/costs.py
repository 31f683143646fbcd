"""What a clustering costs, in time and in space.

Enters: the constants, and how conjunctions are spread over access predicates. Leaves: nanoseconds
an event and bytes. Follows Fabret et al., sections 3.1.1 and 3.1.2.

Glossary, the paper's symbols on the right:

=================== ====================================== ==============
`table`             retrieving one table                   K_r
`hash`              hashing, whatever the schema           C_h
`hash_attribute`    hashing, for each attribute            K_h
`check`             checking a conjunction                 checking(p, s)
`check_predicate`   the same, for each predicate left
`table_bytes`       an empty table                         init_space
`entry_bytes`       an access predicate in a table         hash_space
`predicate_bytes`   a predicate in a cluster               K_space
=================== ====================================== ==============
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = Any
"""A number, or an array of them."""
Numbers: TypeAlias = Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class Costs:
    """Nanoseconds and bytes, as measured with the kernels of this package."""

    table: float = 4.0
    hash: float = 80.0
    hash_attribute: float = 4.0
    check: float = 0.4
    check_predicate: float = 0.1
    table_bytes: float = 64.0
    entry_bytes: float = 64.0
    predicate_bytes: float = 4.0

    def of_table(self, presence: Number, n_attributes: Number) -> Number:
        """Return what an event pays for a table: `presence` is the share that has its schema."""
        return self.table + presence * (self.hash + self.hash_attribute * n_attributes)

    def of_check(self, n_left: Number) -> Number:
        """Return what checking a conjunction costs, with `n_left` predicates left."""
        return self.check + self.check_predicate * n_left

    def matching(
        self, presence: Numbers, n_attributes: Numbers, share: Numbers, n_left: Numbers
    ) -> float:
        """Return the cost of matching an event: the formula of section 3.1.1.

        `presence` and `n_attributes` are the share of events that has the schema of each table, and
        the size of the schema; `share` and `n_left` are the share of events that satisfies the
        access predicate of each conjunction, and how many predicates are left to check.
        """
        probing = self.of_table(np.asarray(presence), np.asarray(n_attributes)).sum()
        checking = (np.asarray(share) * self.of_check(np.asarray(n_left))).sum()
        return float(probing + checking)

    def space(self, entries: Numbers, n_left: Numbers) -> float:
        """Return the bytes of a clustering: the formula of section 3.1.2.

        `entries` are how many access predicates each table has, `n_left` how many predicates each
        conjunction has left to check; its own number takes as much as one more.
        """
        tables = (self.table_bytes + self.entry_bytes * np.asarray(entries)).sum()
        return float(tables + self.predicate_bytes * (np.asarray(n_left) + 1).sum())
