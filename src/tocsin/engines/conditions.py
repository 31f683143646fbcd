"""Conditions as ranges of cells, to be read apart from matching.

Enters: an engine's index, or a conjunction table. Leaves: groups of conjunctions, each with the
cells that its conditions are ranges of. A schema check reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tocsin.encode.cells import CellSpace
    from tocsin.engines.auto.arrays import Conditions
    from tocsin.normalize.table import ConjunctionTable


class IndexedConditions(NamedTuple):
    """Conjunctions that share a cell space."""

    space: CellSpace
    ids: NDArray[np.int32]
    """The dense id of the subscription of each conjunction."""
    read: Callable[[], Conditions]
    """Returns the conditions, by conjunction."""


def conditions_of(table: ConjunctionTable) -> IndexedConditions:
    """Return the conditions of a conjunction table."""
    from tocsin.engines.auto.content import from_table

    content = from_table(table)
    return IndexedConditions(content.space, content.ids, lambda: content.conditions)
