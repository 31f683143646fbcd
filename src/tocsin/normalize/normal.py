"""Expression → normal form: a disjunction of conjunctions of conditions.

Enters: an expression whose operands are bound. Leaves: a `NormalForm`: conjunctions that hold at
most one condition per attribute (Jayaram et al., section 4.1), in disjunctive normal form as
Fabret et al. (section 1) take their subscriptions. NOT is pushed down to the predicates, which is
what three-valued logic amounts to when only *true* counts.

The form is made bottom-up and simplified on the way: contradictions vanish, a condition that
always holds is dropped, conjunctions that differ in one attribute become one (so `x = 1 OR x = 2`
is one conjunction), conjunctions that a sibling covers are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tocsin.errors import TooManyConjunctionsError
from tocsin.language.expression import And, Constant, Expression, Not, Or, predicates
from tocsin.model import EventType
from tocsin.normalize.condition import (
    Condition,
    canonical,
    check_kind,
    condition_covers,
    condition_of,
    intersect,
    unite,
)

MAX_CONJUNCTIONS = 4096
"""How many conjunctions a condition may have before it is refused."""

_MAX_PAIRWISE = 256
"""Up to how many conjunctions every pair is tried for covering; beyond, only duplicates go."""

Conjunction: TypeAlias = Mapping[str, Condition]
"""One condition per attribute; an attribute that is not there may be anything."""


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A disjunction of conjunctions. None: never true. An empty one among them: always true."""

    conjunctions: tuple[Conjunction, ...]

    @property
    def is_never(self) -> bool:
        """Whether no event can match."""
        return not self.conjunctions

    @property
    def is_always(self) -> bool:
        """Whether every event matches (sure for one conjunction, sound for more)."""
        return any(not conjunction for conjunction in self.conjunctions)

    def holds(self, event: Mapping[str, object]) -> bool:
        """Whether a flat event satisfies the form."""
        return any(
            all(condition.holds(event.get(name)) for name, condition in conjunction.items())
            for conjunction in self.conjunctions
        )

    def __len__(self) -> int:
        return len(self.conjunctions)

    def __iter__(self) -> Iterator[Conjunction]:
        return iter(self.conjunctions)


def normalize(
    expression: Expression,
    event_type: EventType | None = None,
    *,
    limit: int = MAX_CONJUNCTIONS,
) -> NormalForm:
    """Bring an expression with bound operands into normal form."""
    check_kinds(expression, event_type)
    return NormalForm(tuple(_Normalizer(event_type, limit).form(expression, False)))


def check_kinds(expression: Expression, event_type: EventType | None) -> None:
    """Refuse an expression whose literals do not fit the declared attributes."""
    if event_type is None:
        return
    for predicate in predicates(expression):
        declared = event_type.kind_of(predicate.attribute)
        if declared is not None:
            check_kind(predicate, declared)


def covers(a: NormalForm, b: NormalForm) -> bool:
    """Whether every event that matches b matches a.

    Exact when each is one conjunction without LIKE patterns in the middle of strings; otherwise
    sound: True is always right, False may only mean that it takes several conjunctions together.
    """
    return all(any(conjunction_covers(p, q) for p in a) for q in b)


def conjunction_covers(a: Conjunction, b: Conjunction) -> bool:
    """Whether every event that satisfies b satisfies a."""
    if len(a) > len(b):
        return False
    for name, condition in a.items():
        other = b.get(name)
        if other is None or not condition_covers(condition, other):
            return False
    return True


class _Normalizer:
    def __init__(self, event_type: EventType | None, limit: int) -> None:
        self.event_type = event_type
        self.limit = limit

    def form(self, expression: Expression, negated: bool) -> list[Conjunction]:
        while isinstance(expression, Not):
            expression, negated = expression.operand, not negated
        if isinstance(expression, Constant):
            return [{}] if expression.value is (not negated) else []
        if isinstance(expression, And | Or):
            parts = [self.form(operand, negated) for operand in expression.operands]
            if isinstance(expression, And) is negated:
                return self.simplify([c for part in parts for c in part])
            return self.product(parts)
        declared = self.event_type.kind_of(expression.attribute) if self.event_type else None
        condition = condition_of(expression, negated, declared)
        return self.single(expression.attribute, condition)

    def single(self, name: str, condition: Condition) -> list[Conjunction]:
        if condition.is_empty:
            return []
        return [{}] if condition.is_full else [{name: condition}]

    def product(self, parts: list[list[Conjunction]]) -> list[Conjunction]:
        """Distribute AND over OR, the short disjunctions first."""
        single = self.conjoin_all([part[0] for part in parts if len(part) == 1])
        if single is None or not all(parts):
            return []
        found = [single]
        for part in sorted((part for part in parts if len(part) > 1), key=len):
            combined: list[Conjunction] = []
            for left in found:
                for right in part:
                    both = self.conjoin(left, right)
                    if both is not None:
                        combined.append(both)
                        if len(combined) > 4 * self.limit:
                            raise TooManyConjunctionsError(self.limit)
            found = self.simplify(combined) if len(combined) > 1 else combined
            if not found:
                return []
        return found

    def conjoin_all(self, conjunctions: list[Conjunction]) -> Conjunction | None:
        """Conjoin many conjunctions pairwise, so that thousands of predicates cost no square."""
        while len(conjunctions) > 1:
            paired = []
            for i in range(0, len(conjunctions) - 1, 2):
                both = self.conjoin(conjunctions[i], conjunctions[i + 1])
                if both is None:
                    return None
                paired.append(both)
            if len(conjunctions) % 2:
                paired.append(conjunctions[-1])
            conjunctions = paired
        return conjunctions[0] if conjunctions else {}

    def conjoin(self, a: Conjunction, b: Conjunction) -> Conjunction | None:
        if not a:
            return b
        both = dict(a)
        for name, condition in b.items():
            if name in both:
                condition = intersect(both[name], condition)
                if condition.is_empty:
                    return None
            both[name] = condition
        return both

    def simplify(self, conjunctions: list[Conjunction]) -> list[Conjunction]:
        if any(not conjunction for conjunction in conjunctions):
            return [{}]
        if len(conjunctions) < 2:
            return conjunctions
        conjunctions = self.merge(conjunctions)
        if any(not conjunction for conjunction in conjunctions):
            return [{}]
        if len(conjunctions) <= _MAX_PAIRWISE:
            conjunctions = _drop_covered(conjunctions)
        if len(conjunctions) > self.limit:
            raise TooManyConjunctionsError(self.limit)
        return conjunctions

    def merge(self, conjunctions: list[Conjunction]) -> list[Conjunction]:
        """Unite conjunctions that are equal but for their conditions on one attribute."""
        kept: dict[int, Conjunction] = dict(enumerate(conjunctions))
        places: dict[str, list[int]] = {}
        for place, conjunction in kept.items():
            for name in conjunction:
                places.setdefault(name, []).append(place)
        for name, used in places.items():
            groups: dict[object, list[int]] = {}
            for place in used if len(used) > 1 else ():
                own = kept.get(place, {}).get(name)
                if own is not None and not own.patterns:
                    rest = frozenset((k, v) for k, v in kept[place].items() if k != name)
                    groups.setdefault(rest, []).append(place)
            for first, *others in groups.values():
                if others:
                    kept[first] = self.unite_on(name, [kept[first], *map(kept.pop, others)])
        return list({frozenset(c.items()): c for c in kept.values()}.values())

    def unite_on(self, name: str, group: list[Conjunction]) -> Conjunction:
        """Return one conjunction for several that differ in one attribute only."""
        united = _unite_all([conjunction[name] for conjunction in group])
        declared = self.event_type.kind_of(name) if self.event_type else None
        united = canonical(united, declared)
        if united.is_full:
            return {k: v for k, v in group[0].items() if k != name}
        return {**group[0], name: united}


def _unite_all(conditions: list[Condition]) -> Condition:
    """Unite many conditions pairwise, so that thousands of points cost no square."""
    while len(conditions) > 1:
        paired = []
        for i in range(0, len(conditions) - 1, 2):
            united = unite(conditions[i], conditions[i + 1])
            assert united is not None, "conditions with patterns are kept apart"
            paired.append(united)
        if len(conditions) % 2:
            paired.append(conditions[-1])
        conditions = paired
    return conditions[0]


def _drop_covered(conjunctions: list[Conjunction]) -> list[Conjunction]:
    kept: list[Conjunction] = []
    for conjunction in conjunctions:
        if any(conjunction_covers(other, conjunction) for other in kept):
            continue
        kept = [other for other in kept if not conjunction_covers(conjunction, other)]
        kept.append(conjunction)
    return kept
