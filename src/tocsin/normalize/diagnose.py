"""Expression → findings: likely mistakes of its writer.

Enters: an expression with bound operands and, optionally, the event type. Leaves: findings: the
condition can never match or always does; parts of an AND that contradict each other (as few of
them as it takes); parts that always or never hold; parts that a sibling makes superfluous;
attributes that the event type does not declare; conditions that no index can help. Every finding
is certain, but where LIKE patterns or several disjuncts work together some may be missed, and so
may some of a condition that takes many steps to look at: they are bounded.

NOT is pushed down first, so under a NOT, an OR is read as an AND and vice versa.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tocsin.errors import ConditionCostError, TooManyConjunctionsError
from tocsin.language.computed import attribute_names
from tocsin.language.expression import And, Constant, Expression, Not, Or, conjoin, disjoin
from tocsin.language.printer import print_expression
from tocsin.model import EventType
from tocsin.normalize.budget import MAX_STEPS, Budget
from tocsin.normalize.normal import NormalForm, covers, normalize
from tocsin.normalize.unindexed import MESSAGE, is_unindexed

MAX_SIBLINGS = 128
"""Up to this number of siblings, every pair is compared; else only contradictions are found."""


_MAX_HINTS = 20
"""Number of undeclared attributes for which a similar name is searched."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A likely mistake in a condition.

    `code` is one of never, always, unindexed, contradiction, never-part, always-part, covered,
    undeclared; `parts` are the texts of the parts concerned.
    """

    code: str
    message: str
    parts: tuple[str, ...] = ()


def diagnose(expression: Expression, event_type: EventType | None = None) -> list[Finding]:
    """Return the findings of a condition, the gravest first."""
    form = normalize(expression, event_type)
    findings: list[Finding] = []
    if form.is_never:
        findings.append(Finding("never", "the condition can never match"))
    elif form.is_always:
        findings.append(Finding("always", "the condition matches every event"))
    elif is_unindexed(form):
        findings.append(Finding("unindexed", MESSAGE))
    diagnosis = _Diagnosis(event_type, Budget(MAX_STEPS))
    try:
        for finding in diagnosis.walk(_push_down(expression, False), top=True):
            findings.append(finding)
            diagnosis.budget.spend(sum(map(len, finding.parts)))
    except ConditionCostError:
        pass  # the findings so far are certain
    if event_type is not None:
        findings.extend(_undeclared(expression, event_type))
    return list(dict.fromkeys(findings))


def _push_down(expression: Expression, negated: bool) -> Expression:
    """Return an expression that is true of the same events, with NOT on predicates only."""
    if isinstance(expression, Not):
        return _push_down(expression.operand, not negated)
    if isinstance(expression, And | Or):
        conjunctive = isinstance(expression, And) is not negated
        parts = [_push_down(operand, negated) for operand in expression.operands]
        return conjoin(parts) if conjunctive else disjoin(parts)
    return Not(expression) if negated else expression


@dataclass(frozen=True)
class _Diagnosis:
    event_type: EventType | None
    budget: Budget

    def walk(self, part: Expression, *, top: bool = False) -> Iterator[Finding]:
        """Yield the findings of a part from the outside in."""
        if isinstance(part, And | Or):
            yield from self.group(part)
        elif top and isinstance(part, Constant):
            return  # reported for the whole condition
        else:
            form = self.form(part)
            if form is not None and form.is_never:
                text = print_expression(part)
                yield Finding("never-part", f"{text} can never be true", (text,))
            elif form is not None and form.is_always and not top:
                text = print_expression(part)
                yield Finding("always-part", f"{text} always holds", (text,))

    def group(self, group: And | Or) -> Iterator[Finding]:
        dead: list[Expression] = []
        live: list[tuple[Expression, NormalForm | None]] = []
        for operand in group.operands:
            form = self.form(operand)
            if form is not None and form.is_never:
                dead.append(operand)
            else:
                live.append((operand, form))
        for operand in group.operands:
            yield from self.walk(operand)
        if isinstance(group, And):
            cores = list(self.contradictions([operand for operand, _ in live]))
            yield from cores
            if cores or dead:
                return
        yield from self.covered(live, narrow_wins=isinstance(group, And))

    def contradictions(self, parts: list[Expression]) -> Iterator[Finding]:
        """Yield the sets of parts that exclude each other, each as small as can be."""
        while len(parts) > 1 and self.is_never(parts):
            core = self.conflicting_pair(parts) or self.conflicting_few(parts)
            texts = tuple(map(print_expression, core))
            shown = print_expression(And(tuple(core)))
            yield Finding("contradiction", f"{shown} can never be true together", texts)
            parts = [part for part in parts if not any(part is one for one in core)]

    def conflicting_pair(self, parts: list[Expression]) -> list[Expression] | None:
        if len(parts) > MAX_SIBLINGS:
            return None
        names = [set(attribute_names(part)) for part in parts]
        for i, later in enumerate(parts):
            for j in range(i):
                if names[i] & names[j] and self.is_never([parts[j], later]):
                    return [parts[j], later]
        return None

    def conflicting_few(self, parts: list[Expression]) -> list[Expression]:
        """Return a contradictory subset from which no part can be left out.

        The shortest contradictory run from the left ends in a part that is needed. It is set
        aside, and the search goes on before it until the parts set aside contradict each other.
        """
        core: list[Expression] = []
        while not self.is_never(core):
            low, high = 0, len(parts)
            while low < high:
                middle = (low + high) // 2
                if self.is_never([*core, *parts[:middle]]):
                    high = middle
                else:
                    low = middle + 1
            core.append(parts[low - 1])
            parts = parts[: low - 1]
        return core[::-1]

    def covered(
        self, live: Sequence[tuple[Expression, NormalForm | None]], *, narrow_wins: bool
    ) -> Iterator[Finding]:
        """Yield the parts that one of their siblings makes superfluous."""
        known = [(part, form) for part, form in live if form is not None and not form.is_always]
        if len(known) > MAX_SIBLINGS:
            return
        superfluous: set[int] = set()
        for i, (part, form) in enumerate(known):
            for j, (sibling, other) in enumerate(known):
                if i == j or j in superfluous:
                    continue
                wide, narrow = (form, other) if narrow_wins else (other, form)
                # Of two parts that say the same, the later one goes.
                if self.covers(wide, narrow) and (j < i or not self.covers(narrow, wide)):
                    superfluous.add(i)
                    yield self.cover_finding(part, sibling, narrow_wins)
                    break

    def covers(self, wide: NormalForm, narrow: NormalForm) -> bool:
        return covers(wide, narrow, self.budget)

    def cover_finding(self, part: Expression, sibling: Expression, narrow_wins: bool) -> Finding:
        texts = (print_expression(part), print_expression(sibling))
        if part == sibling:
            return Finding("covered", f"{texts[0]} is written twice", texts)
        why = "follows from" if narrow_wins else "is covered by"
        return Finding("covered", f"{texts[0]} {why} {texts[1]} and can be left out", texts)

    def is_never(self, parts: Sequence[Expression]) -> bool:
        form = self.form(conjoin(list(parts))) if parts else None
        return form is not None and form.is_never

    def form(self, part: Expression) -> NormalForm | None:
        """Return a part's normal form, or None when it is too large by itself."""
        try:
            return normalize(part, self.event_type, budget=self.budget)
        except TooManyConjunctionsError:
            return None


def _undeclared(expression: Expression, event_type: EventType) -> Iterator[Finding]:
    hints = _MAX_HINTS
    for name in attribute_names(expression):
        if event_type.kind_of(name) is None:
            hints -= 1
            near = hints >= 0 and difflib.get_close_matches(name, event_type.attributes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            message = f"attribute {name!r} is not declared by {event_type.name}{hint}"
            yield Finding("undeclared", message, (name,))
