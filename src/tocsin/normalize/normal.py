"""Expression → normal form: a disjunction of conjunctions of conditions.

Enters: an expression whose operands are bound. Leaves: a `NormalForm`: conjunctions that hold at
most one condition per attribute (Jayaram et al., section 4.1), in disjunctive normal form as
Fabret et al. (section 1) take their subscriptions. NOT is pushed down to the predicates, which is
what three-valued logic amounts to when only *true* counts.

The form is made bottom-up and simplified on the way: contradictions vanish, a condition that
always holds is dropped, conjunctions that differ in one attribute become one (so `x = 1 OR x = 2`
is one conjunction), conjunctions that a sibling covers are dropped.

Conditions on the elements of a list are of two sorts (see `language.names`). What *any* element
satisfies may be united, but not intersected: another element may satisfy the next condition, which
gets a slot of its own. What *all* elements satisfy may be intersected, but not united; and an empty
list satisfies even a condition that no value does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from random import Random
from typing import TypeAlias

from tocsin.errors import ConditionCostError, TooManyConjunctionsError
from tocsin.language.computed import canonical as canonical_term
from tocsin.language.computed import static_kind
from tocsin.language.evaluate import read, read_list
from tocsin.language.expression import (
    And,
    Comparison,
    Constant,
    Distinct,
    Expression,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Truth,
    disjoin,
    no_text,
    predicates,
)
from tocsin.language.functions import fold_case
from tocsin.language.names import (
    ALL_ELEMENTS,
    ElementName,
    element_name,
    elements_of,
    is_computed,
    is_each,
    is_elements,
)
from tocsin.language.printer import name_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call, Exists
from tocsin.model import EventType, Kind
from tocsin.normalize.budget import MAX_STEPS, STEPS_OF_PREDICATE, Budget
from tocsin.normalize.condition import (
    Condition,
    canonical,
    check_kind,
    condition_covers,
    condition_of,
    condition_steps,
    intersect,
    predicate_steps,
    unite,
)
from tocsin.normalize.cost import MAX_FUNCTIONS, cost_of
from tocsin.normalize.reach import reachable

MAX_CONJUNCTIONS = 4096
"""How many conjunctions a condition may have before it is refused."""

_MAX_PAIRWISE = 256
"""Up to how many conjunctions every pair is tried for covering; beyond, only duplicates go."""

_RANDOM = Random()

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
            all(_holds(name, condition, event) for name, condition in conjunction.items())
            for conjunction in self.conjunctions
        )

    def __len__(self) -> int:
        return len(self.conjunctions)

    def __iter__(self) -> Iterator[Conjunction]:
        return iter(self.conjunctions)


def _holds(name: str, condition: Condition, event: Mapping[str, object]) -> bool:
    of = elements_of(name)
    if of is None:
        return condition.holds(read(name, event.get))
    elements = read_list(term_of(of.list), event.get)
    if elements is None:
        return False
    return (all if of.quantifier == "all" else any)(map(condition.holds, elements))


def normalize(
    expression: Expression,
    event_type: EventType | None = None,
    *,
    limit: int = MAX_CONJUNCTIONS,
    budget: Budget | None = None,
) -> NormalForm:
    """Bring an expression with bound operands into normal form.

    What takes more steps than the budget is refused; where none is given, that is
    `budget.MAX_STEPS`, or more for a condition with tens of thousands of predicates.
    """
    check_kinds(expression, event_type)
    if budget is None:
        n_predicates = sum(1 for _ in predicates(expression))
        budget = Budget(max(MAX_STEPS, STEPS_OF_PREDICATE * n_predicates))
    normalizer = _Normalizer(event_type, limit, budget)
    return NormalForm(tuple(normalizer.form(expression, False)))


def check_kinds(expression: Expression, event_type: EventType | None) -> None:
    """Refuse an expression whose literals do not fit the declared attributes."""
    if event_type is None:
        return
    for predicate in predicates(expression):
        name = predicate.attribute
        if is_computed(name):
            declared = static_kind(term_of(name), event_type.kind_of)
        else:
            declared = event_type.kind_of(name)
        if declared is not None:
            check_kind(predicate, declared)


def covers(a: NormalForm, b: NormalForm, budget: Budget | None = None) -> bool:
    """Whether every event that matches b matches a.

    Exact when each is one conjunction without LIKE patterns in the middle of strings; otherwise
    sound: True is always right, False may only mean that it takes several conjunctions together,
    or more steps than a condition's budget to find out. With a budget that is given, that raises
    an error instead.
    """
    spent = budget or Budget()
    try:
        return all(any(_counted_covers(p, q, spent) for p in a) for q in b)
    except ConditionCostError:
        if budget is not None:
            raise
        return False


def conjunction_covers(a: Conjunction, b: Conjunction) -> bool:
    """Whether every event that satisfies b satisfies a."""
    if len(a) > len(b):
        return False
    for name, condition in a.items():
        other = b.get(name)
        if other is None or not condition_covers(condition, other):
            return False
    return True


def _counted_covers(a: Conjunction, b: Conjunction, budget: Budget) -> bool:
    """Do the same within a budget."""
    steps = 2
    covered = len(a) <= len(b)
    if covered:
        for name, condition in a.items():
            other = b.get(name)
            steps += 1
            if other is condition:
                continue
            if other is None:
                covered = False
                break
            if not condition_covers(condition, other, budget):
                covered = False
                break
    budget.spend(steps)
    return covered


def _other_quantifier(of: ElementName) -> ElementName:
    return of._replace(quantifier="any" if of.quantifier == "all" else "all")


def _without_distinct(predicate: Distinct, negated: bool) -> tuple[Expression, bool]:
    """Write IS [NOT] DISTINCT FROM as a predicate that is true where it is, and its negation."""
    name, operand = predicate.attribute, predicate.operand
    is_distinct = predicate.negated is negated
    if negated and is_elements(name):  # not any element satisfies it: all satisfy its negation
        name = _other_quantifier(element_name(name)).name
    if isinstance(operand, Literal) and operand.value is None:
        return IsNull(name, is_distinct), False
    if not is_distinct:
        return Comparison(name, "=", operand), False
    if is_each(name) and isinstance(operand, Literal):
        return _differs(name, operand), False
    if is_elements(name):
        of = element_name(name)
        test = Distinct("element", operand)
        exists = Exists(term_of(of.list), "element", test, of.quantifier == "all")
        return Truth(name_of(exists)), False
    return Truth(name_of(canonical_term(Call("is distinct from", (term_of(name), operand))))), False


def _differs(name: str, operand: Literal) -> Expression:
    """Return the condition that a value in a choice is absent, or any other than a constant.

    Such a value is of one of the domains, so that this is a plain set of values.
    """
    options: list[Expression] = [IsNull(name)]
    if operand.value is not None:
        options.append(Comparison(name, "<>", operand))
    if operand.kind is not Kind.STRING:
        options.append(Comparison(name, ">=", Literal("", Kind.STRING)))
    number, more, truth, moment = no_text(name)
    if operand.kind not in (Kind.INTEGER, Kind.FLOAT):
        options += [number, more]
    if operand.kind is not Kind.BOOLEAN:
        options.append(truth)
    if operand.kind is not Kind.TIMESTAMP:
        options.append(moment)
    return disjoin(options)


def in_lower_case(predicate: Like) -> Like:
    """Write ILIKE as LIKE on the text in lower case, which an index can have."""
    pattern, escape = predicate.pattern, predicate.escape
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        pattern = Literal(fold_case(pattern.value), pattern.kind)
    of = elements_of(predicate.attribute)
    if of is None:
        name = name_of(canonical_term(Call("lower", (term_of(predicate.attribute),))))
    else:
        name = of._replace(list=name_of(Call("lower_each", (term_of(of.list),)))).name
    escape = None if escape is None else fold_case(escape)
    return Like(name, pattern, escape, predicate.negated)


class _Normalizer:
    def __init__(self, event_type: EventType | None, limit: int, budget: Budget) -> None:
        self.event_type = event_type
        self.limit = limit
        self.budget = budget
        self.is_bounded = isfinite(budget.limit)
        self.computed_names: set[str] = set()
        self.n_functions = 0
        self.numbers: dict[int, tuple[Condition, int]] = {}
        self.number_of: dict[object, int] = {}

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
        if isinstance(expression, Distinct):
            return self.form(*_without_distinct(expression, negated))
        if isinstance(expression, Like) and expression.ignore_case:
            expression = in_lower_case(expression)
        declared = self.event_type.kind_of(expression.attribute) if self.event_type else None
        self.budget.spend(predicate_steps(expression))
        condition = condition_of(expression, negated, declared, is_bounded=self.is_bounded)
        if expression.attribute.startswith("\0"):
            self.count_functions(expression.attribute)
            return self.computed(expression.attribute, condition, negated)
        return self.single(expression.attribute, condition)

    def count_functions(self, name: str) -> None:
        """Count what it takes to compute a value for an event, once for each."""
        if name not in self.computed_names and self.is_bounded:
            self.computed_names.add(name)
            self.n_functions += cost_of(name)
            if self.n_functions > MAX_FUNCTIONS:
                raise ConditionCostError("functions", MAX_FUNCTIONS)

    def single(self, name: str, condition: Condition) -> list[Conjunction]:
        if condition.is_empty:
            return []
        return [{}] if condition.is_full else [{name: condition}]

    def computed(self, name: str, condition: Condition, negated: bool) -> list[Conjunction]:
        """Return the form of a condition on a computed value or on the elements of a list."""
        of, condition = elements_of(name), reachable(name, condition)
        if of is None:
            return self.single(name, condition)
        if negated:  # not any element satisfies it: all satisfy its negation
            of = _other_quantifier(of)
        if condition.is_empty and of.quantifier == "any":
            return []
        return [{of.name: condition}]

    def product(self, parts: list[list[Conjunction]]) -> list[Conjunction]:
        """Distribute AND over OR, the short disjunctions first."""
        single = self.conjoin_all([part[0] for part in parts if len(part) == 1])
        if single is None or not all(parts):
            return []
        combined = [single]
        several = self.share([part for part in parts if len(part) > 1])
        if several is None:
            return []
        for part in sorted(several, key=len):
            combined = self.distribute(combined, part)
            if len(combined) > 1:
                combined = self.simplify(combined)
            if not combined:
                return []
        return combined

    def share(self, parts: list[list[Conjunction]]) -> list[list[Conjunction]] | None:
        """Join disjunctions that have a conjunction in common; None: they are never true together.

        `(a OR b) AND (a OR c)` equals `a OR b AND c`, with less to distribute. Each part is joined
        with the parts that have its most frequent conjunction, until no part shares one.
        """
        while len(parts) > 1:
            tagged = [{self.signature(c): c for c in part} for part in parts]
            counts = Counter(tag for part in tagged for tag in part)
            groups: dict[int, list[dict[int, Conjunction]]] = {}
            for part in tagged:
                groups.setdefault(max(part, key=counts.__getitem__), []).append(part)
            if len(groups) == len(parts):
                break
            parts = []
            for tag, members in groups.items():
                common = members[0][tag]
                if len(members) == 1 or not all(self.is_same(common, m[tag]) for m in members):
                    parts += [list(member.values()) for member in members]
                    continue
                rests = [[c for t, c in member.items() if t != tag] for member in members]
                joined = self.simplify([common, *self.product(rests)])
                if not joined:
                    return None
                parts.append(joined)
        return parts

    def signature(self, conjunction: Conjunction) -> int:
        """Return the exclusive or of the hashes of a conjunction's items."""
        self.budget.spend(2 + 2 * len(conjunction))
        signature = 0
        for name, condition in conjunction.items():
            signature ^= self.item_hash(name, condition)
        return signature

    def distribute(self, left: list[Conjunction], right: list[Conjunction]) -> list[Conjunction]:
        """Conjoin each of some conjunctions with each of others.

        One that implies a conjunction of the other side stays as it is: what it would be conjoined
        with besides is absorbed by it. That keeps `(a OR b) AND (a OR c) AND …` small.
        """
        combined: list[Conjunction] = []
        for one in left:
            if one and any(_counted_covers(other, one, self.budget) for other in right):
                combined.append(one)
                continue
            for other in right:
                both = self.conjoin(one, other)
                if both is not None:
                    combined.append(both)
                    if len(combined) > 4 * self.limit:
                        raise TooManyConjunctionsError(self.limit)
        return combined

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
        # Copying a dictionary takes a fraction of what its items cost one by one.
        self.budget.spend(4 + (len(a) >> 2) + 2 * len(b))
        both = dict(a)
        for name, condition in b.items():
            own = both.get(name)
            if own is condition:
                continue
            if own is not None:
                if is_elements(name):
                    self.add_element(both, name, condition)
                    continue
                condition = intersect(own, condition, self.budget)
                if condition.is_empty:
                    return None
            both[name] = condition
        return both

    def add_element(
        self, conjunction: dict[str, Condition], name: str, condition: Condition
    ) -> None:
        """Add a condition on the elements of a list to a conjunction that has some already."""
        of = element_name(name)
        if of.quantifier == "all":
            conjunction[name] = intersect(conjunction[name], condition, self.budget)
            return
        of = of._replace(slot=0)
        while of.name in conjunction:
            self.budget.spend(4)
            if conjunction[of.name] == condition:
                return
            of = of._replace(slot=of.slot + 1)
        conjunction[of.name] = condition

    def simplify(self, conjunctions: list[Conjunction]) -> list[Conjunction]:
        if any(not conjunction for conjunction in conjunctions):
            return [{}]
        if len(conjunctions) < 2:
            return conjunctions
        conjunctions = self.merge(conjunctions)
        if any(not conjunction for conjunction in conjunctions):
            return [{}]
        if len(conjunctions) <= _MAX_PAIRWISE:
            conjunctions = self.drop_covered(conjunctions)
        if len(conjunctions) > self.limit:
            raise TooManyConjunctionsError(self.limit)
        return conjunctions

    def number(self, condition: Condition) -> int:
        """Return a random number that equal conditions share.

        They are identified by their texts: Python's hashes of numbers are known to everybody, so
        that a condition could be written whose parts all have one.
        """
        known = self.numbers.get(id(condition))
        if known is None:
            self.budget.spend(condition_steps(condition))
            text = repr(condition.intervals)
            key = (text, condition.absent, condition.other, condition.patterns)
            number = self.number_of.setdefault(key, _RANDOM.getrandbits(63))
            # The reference to the condition keeps its id from being reused.
            known = self.numbers[id(condition)] = condition, number
        return known[1]

    def merge(self, conjunctions: list[Conjunction]) -> list[Conjunction]:
        """Unite conjunctions that are equal but for their conditions on one attribute.

        A conjunction has a signature, the exclusive or of its items' hashes, so that what it is
        without one of them is found in one step.
        """
        by_place: dict[int, Conjunction] = dict(enumerate(conjunctions))
        hashes: list[dict[str, int]] = []
        signatures: list[int] = []
        places: dict[str, list[int]] = {}
        several: dict[str, int | None] = {}
        for place, conjunction in by_place.items():
            self.budget.spend(2 + 3 * len(conjunction))
            items = {name: self.item_hash(name, c) for name, c in conjunction.items()}
            signature = 0
            for name, item in items.items():
                signature ^= item
                places.setdefault(name, []).append(place)
                if several.setdefault(name, item) != item:
                    several[name] = None
            hashes.append(items)
            signatures.append(signature)
        for name, used in places.items():
            # Where all conditions are one, nothing can be united.
            if several[name] is None and not name.startswith(ALL_ELEMENTS):
                self.merge_on(name, used, by_place, hashes, signatures)
        return self.distinct(by_place, signatures)

    def merge_on(
        self,
        name: str,
        used: list[int],
        by_place: dict[int, Conjunction],
        hashes: list[dict[str, int]],
        signatures: list[int],
    ) -> None:
        """Unite conjunctions that are equal but for one attribute, which some places have."""
        groups: dict[int, list[int]] = {}
        self.budget.spend(2 * len(used))
        for place in used:
            own = by_place.get(place, {}).get(name)
            if own is not None and not own.patterns:
                groups.setdefault(signatures[place] ^ hashes[place][name], []).append(place)
        for rest, group in groups.items():
            if len(group) > 1:
                first = group[0]
                self.merge_group(name, group, by_place)
                united = by_place[first].get(name)
                hashes[first][name] = 0 if united is None else self.item_hash(name, united)
                signatures[first] = rest ^ hashes[first][name]

    def item_hash(self, name: str, condition: Condition) -> int:
        known = self.numbers.get(id(condition))
        return hash((name, self.number(condition) if known is None else known[1]))

    def merge_group(self, name: str, group: list[int], by_place: dict[int, Conjunction]) -> None:
        """Unite conjunctions of one signature on an attribute, in the place of the first."""
        first = by_place[group[0]]
        same = [place for place in group[1:] if self.is_same(first, by_place[place], name)]
        if same:
            by_place[group[0]] = self.unite_on(name, [first, *map(by_place.pop, same)])

    def is_same(self, a: Conjunction, b: Conjunction, ignored: str | None = None) -> bool:
        """Whether two conjunctions are equal, perhaps but for one attribute that both have."""
        if len(a) != len(b):
            return False
        self.budget.spend(len(a))
        for name, condition in a.items():
            other = b.get(name)
            if other is condition or name == ignored:
                continue
            if other is None or self.number(other) != self.number(condition):
                return False
        return True

    def distinct(
        self, by_place: dict[int, Conjunction], signatures: list[int]
    ) -> list[Conjunction]:
        unique: dict[object, Conjunction] = {}
        for place, conjunction in by_place.items():
            known = unique.setdefault(signatures[place], conjunction)
            if known is not conjunction and not self.is_same(known, conjunction):
                unique[signatures[place], place] = conjunction
        return list(unique.values())

    def unite_on(self, name: str, group: list[Conjunction]) -> Conjunction:
        """Return one conjunction for several that differ in one attribute only."""
        united = self.unite_all([conjunction[name] for conjunction in group])
        declared = self.event_type.kind_of(name) if self.event_type else None
        united = canonical(united, declared)
        if united.is_full and not is_elements(name):
            return {k: v for k, v in group[0].items() if k != name}
        return {**group[0], name: united}

    def unite_all(self, conditions: list[Condition]) -> Condition:
        """Unite many conditions pairwise, so that thousands of points cost no square."""
        while len(conditions) > 1:
            paired = []
            for a, b in zip(conditions[::2], conditions[1::2], strict=False):
                self.budget.spend(condition_steps(a) + condition_steps(b))
                united = unite(a, b)
                assert united is not None, "conditions with patterns are not united"
                paired.append(united)
            if len(conditions) % 2:
                paired.append(conditions[-1])
            conditions = paired
        return conditions[0]

    def drop_covered(self, conjunctions: list[Conjunction]) -> list[Conjunction]:
        masks = self.cover_masks(conjunctions)
        budget = self.budget
        uncovered: list[int] = []
        for at, conjunction in enumerate(conjunctions):
            budget.spend(2 + 2 * len(uncovered))
            demands, refusals = masks[at]
            if any(
                not masks[other][0] & refusals
                and _counted_covers(conjunctions[other], conjunction, budget)
                for other in uncovered
            ):
                continue
            uncovered = [
                other
                for other in uncovered
                if demands & masks[other][1]
                or not _counted_covers(conjunction, conjunctions[other], budget)
            ]
            uncovered.append(at)
        return [conjunctions[at] for at in uncovered]

    def cover_masks(self, conjunctions: list[Conjunction]) -> list[tuple[int, int]]:
        """Return for each conjunction what it demands, and what it refuses, as bits.

        One that demands what another refuses does not cover it, so that most pairs are rejected
        by one operation. Bits stand for attributes, for single values and for patterns: who asks
        for any of these covers only those who ask for it as well.
        """
        bits: dict[object, int] = {}
        of_patterns: dict[str, int] = {}
        demands: list[int] = []
        for conjunction in conjunctions:
            self.budget.spend(2 + 3 * len(conjunction))
            mask = 0
            for name, condition in conjunction.items():
                mask |= bits.setdefault(name, 1 << len(bits))
                if condition.patterns:
                    self.budget.spend(2 * len(condition.patterns))
                    own = 0
                    for pattern in condition.patterns:
                        own |= bits.setdefault((name, pattern), 1 << len(bits))
                    of_patterns[name] = of_patterns.get(name, 0) | own
                    mask |= own
                elif condition.is_point:
                    item = self.item_hash(name, condition)
                    mask |= bits.setdefault((name, item), 1 << len(bits))
            demands.append(mask)
        masks = []
        for mask, conjunction in zip(demands, conjunctions, strict=True):
            offers = mask
            for name in of_patterns:
                if name in conjunction and not conjunction[name].patterns:
                    offers |= of_patterns[name]  # its values may fit whatever patterns there are
            masks.append((mask, ~offers))
        return masks
