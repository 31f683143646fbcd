"""Seeded generators of workloads: events and subscriptions as Arrow tables.

Enters: a workload's name, how many rows, a seed and the number of the first row. Leaves: events,
and the same subscriptions as texts, as predicate rows or, where they share templates, as parameter
columns. Row i depends on the seed and on i alone, so any partition of the rows gives the same rows.

`M` (`market`), which the demonstrations use, is ours: quotes of 500 firms, and people who watch
prices. In `A` they wait for a price, a few cents wide, of 5,000 firms: a quote reaches two or three
of a million. More come from other distributions, as entry points of the group `tocsin.workloads`;
the papers' workloads are in the laboratory, `tocsin-lab`.

>>> workload("M").subscription_texts(1).column_names
['id', 'where']
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from tocsin.errors import ArgumentError
from tocsin.workloads.base import Workload
from tocsin.workloads.market import Market

__all__ = ["Market", "Workload", "names", "workload"]

GROUP = "tocsin.workloads"


@cache
def _workloads() -> dict[str, Workload]:
    alerts = Market("A", n_firms=5_000, exponent=0.7, max_width=0.0002)
    by_name: dict[str, Workload] = {"A": alerts, "M": Market("M")}
    for entry in entry_points(group=GROUP):
        by_name.setdefault(entry.name, entry.load())
    return by_name


def names() -> tuple[str, ...]:
    """Return the names of all workloads."""
    return tuple(sorted(_workloads()))


def workload(name: str) -> Workload:
    """Return a workload by its name."""
    known = _workloads()
    if name not in known:
        raise ArgumentError(
            f"no workload is called {name!r}; there are {', '.join(names())}"
            + ("" if len(known) > 1 else "; more come with the package tocsin-lab")
        )
    return known[name]
