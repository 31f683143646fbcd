"""Seeded generators of the papers' workloads and our own: events and subscriptions as Arrow tables.

Enters: a workload's name, how many rows, a seed and the number of the first row. Leaves: events,
and the same subscriptions as texts, as predicate rows or, where they share templates, as parameter
columns. Row i depends on the seed and on i alone, so any partition of the rows gives the same rows.

==== =================== ====================================================================
name module              from
==== =================== ====================================================================
W0   `equalities`        Fabret et al., section 6.2.1: 5 equalities, 2 of them on fixed names
W1   `equalities`        the same: 4 predicates, one of them ``>``
W2   `equalities`        the same: 9 predicates, five ``<`` and one ``>``
T    `ranges`            Zhao and Wu (TAMA), section V: 10 narrow ranges over 1,000 attributes
TW   `ranges`            ours: few attributes, wide ranges, many matches
M    `market`            ours: quotes of 500 firms, thousands of matches an event
G    `popularity`        Aguilera et al., section "Discussion": attributes of decaying popularity
H    `highway`           ours, after Jayaram et al. (Beretta), section 6: drivers watch the road
==== =================== ====================================================================

>>> workload("W0").subscription_texts(1)["where"][0].as_py()
'a0 = 33 AND a1 = 7 AND a20 = 23 AND a21 = 18 AND a17 = 5'
"""

from __future__ import annotations

from tocsin.errors import ArgumentError
from tocsin.workloads.base import Workload
from tocsin.workloads.equalities import Equalities
from tocsin.workloads.highway import Highway
from tocsin.workloads.market import Market
from tocsin.workloads.popularity import Popularity
from tocsin.workloads.ranges import Ranges

__all__ = [
    "Equalities",
    "Highway",
    "Market",
    "Popularity",
    "Ranges",
    "Workload",
    "names",
    "workload",
]

_WORKLOADS: dict[str, Workload] = {
    each.name: each
    for each in (
        Equalities("W0", equal=(0, 1), n_free=3),
        Equalities("W1", equal=(0, 1), greater=(2,), n_free=1),
        Equalities("W2", equal=(0, 1), less=(2, 3, 4, 5, 6), greater=(7,), n_free=1),
        Ranges("T", n_attributes=1000, n_present=100, n_ranges=10, width=0.01),
        Ranges("TW", n_attributes=20, n_present=20, n_ranges=5, width=0.3, ascending=True),
        Market("M"),
        Popularity("G"),
        Highway("H"),
    )
}


def names() -> tuple[str, ...]:
    """Return the names of all workloads."""
    return tuple(_WORKLOADS)


def workload(name: str) -> Workload:
    """Return a workload by its name."""
    if name not in _WORKLOADS:
        raise ArgumentError(f"no workload is called {name!r}; there are {', '.join(_WORKLOADS)}")
    return _WORKLOADS[name]
