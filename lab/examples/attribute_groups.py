"""An engine in one file: conjunctions are grouped by an attribute that they need.

A conjunction whose condition on `price` does not hold for an absent value needs a price: events
without one are never compared with it. An event is compared with the groups of the attributes that
it has. This is no fast engine; it shows all that an engine has to do.

    $ PYTHONPATH=lab/examples python -m tocsin_lab.conformance attribute_groups:AttributeGroups

A distribution makes it available as `Matcher(engine="groups")` by an entry point:

    [project.entry-points."tocsin.engines"]
    groups = "attribute_groups:SPEC"
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines import EngineSpec
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.normal import Conjunction
from tocsin.normalize.table import ConjunctionTable

SPEC = EngineSpec("attribute_groups:AttributeGroups")


class AttributeGroups(Engine):
    """Conjunctions by attribute and dense id; conjunctions without attributes are under None."""

    def __init__(self) -> None:
        self._groups: dict[str | None, dict[int, list[Conjunction]]] = {None: {}}

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Put each conjunction into the smallest group of an attribute that it needs."""
        for at, dense in enumerate(table.subscription.tolist()):
            conjunction = table.conjunction(at)
            needed = [name for name, condition in conjunction.items() if not condition.holds(None)]
            name = min(needed, key=lambda name: len(self._groups.get(name, ())), default=None)
            self._groups.setdefault(name, {}).setdefault(dense, []).append(conjunction)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Drop all conjunctions of some subscriptions."""
        for group in self._groups.values():
            for dense in ids.tolist():
                group.pop(dense, None)

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match events one by one."""
        matches = [self.match_one(event) for event in events.events()]
        offsets = np.cumsum([0, *map(len, matches)])
        return RaggedIds(offsets, np.array([i for ids in matches for i in ids], np.int32))

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Compare an event with the groups of its attributes."""
        values: dict[str, object] = {}

        def holds(conjunction: Conjunction) -> bool:
            for name, condition in conjunction.items():
                if name not in values:
                    values[name] = read_value(event, name)
                if not condition.holds(values[name]):
                    return False
            return True

        matches: set[int] = set()
        for name, group in self._groups.items():
            if name is None or read_value(event, name) is not None:
                matches.update(dense for dense, some in group.items() if any(map(holds, some)))
        return list(matches)

    def explain(self, dense: int) -> str:
        """Name the groups that a subscription is in."""
        names = [name or "no attribute" for name, group in self._groups.items() if dense in group]
        return f"in the groups of {', '.join(names)}" if names else "in no group: it never matches"

    def describe(self) -> str:
        """Count the groups."""
        return f"{len(self._groups)} groups"
