"""Arrays that grow by doubling.

Enters: an array and how many rows are needed. Leaves: it, or a larger copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def grown(array: NDArray[Any], n: int) -> NDArray[Any]:
    """Return an array with room for n rows at least, the new ones as they come."""
    if n <= len(array):
        return array
    larger = np.empty((max(n, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
