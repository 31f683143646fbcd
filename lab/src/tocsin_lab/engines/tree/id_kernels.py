"""Conjunctions found → subscriptions, each once an event; compiled.

Enters: for each event the conjunctions it satisfies; some subscriptions have several. Leaves: the
dense ids of their subscriptions.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import kernel

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]


@kernel
def to_ids(
    offsets: Integers,
    conjunctions: Numbers,
    owner: NDArray[np.integer[Any]],
    group: Numbers,
    seen: Integers,
    stamp: int,
    ids: NDArray[np.int32],
    ends: Integers,
) -> None:
    """Write the subscriptions of the conjunctions found, each once an event."""
    n = 0
    for e in range(len(offsets) - 1):
        for i in range(offsets[e], offsets[e + 1]):
            c = conjunctions[i]
            first = group[c]
            if first >= 0:
                if seen[first] == stamp + e:
                    continue
                seen[first] = stamp + e
            ids[n] = owner[c]
            n += 1
        ends[e] = n
