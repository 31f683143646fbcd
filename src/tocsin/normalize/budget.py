"""The budget of a condition: the steps that its normal form may take.

Enters: amounts of work, counted where it is done. Leaves: nothing, or a `ConditionCostError` when
more was spent than allowed. A step is about what one dictionary lookup costs; steps, not seconds,
so that a condition that is accepted on one machine is accepted on every machine.

Steps are spent by one thread while others serve events. Python switches threads only after a
while, so the budget yields the interpreter lock every few hundred steps.
"""

from __future__ import annotations

import time
from math import inf

from tocsin.errors import ConditionCostError

MAX_STEPS = 1_100_000
"""Steps that the normal form of one condition may take."""
STEPS_OF_PREDICATE = 64
"""Steps that each predicate of a very long condition may take: linear work is not refused."""

_STEPS_BETWEEN_YIELDS = 2_000


class Budget:
    """The remaining steps for one condition. Used by one thread."""

    __slots__ = ("_next_yield", "limit", "remaining")

    def __init__(self, limit: float = MAX_STEPS) -> None:
        self.limit = limit
        self.remaining = limit
        self._next_yield = max(limit - _STEPS_BETWEEN_YIELDS, 0)

    @staticmethod
    def unlimited() -> Budget:
        """Return a budget for conditions that were accepted before, such as those of a store."""
        return Budget(inf)

    @property
    def spent(self) -> float:
        """Number of steps spent."""
        return self.limit - self.remaining

    def spend(self, steps: int) -> None:
        """Spend steps; raise `ConditionCostError` if too few remain."""
        self.remaining -= steps
        if self.remaining < self._next_yield:
            if self.remaining < 0:
                raise ConditionCostError("steps", int(self.limit))
            self._next_yield = max(self.remaining - _STEPS_BETWEEN_YIELDS, 0)
            time.sleep(0)
