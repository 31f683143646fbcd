"""Explanations: how a subscription is indexed, and why an event does or does not match it.

Enters: a subscription's expression, and an event. Leaves: text for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tocsin.encode.events import Reading, elements_in, read_value, satisfies, value_at
from tocsin.encode.moments import holds
from tocsin.language import print_expression
from tocsin.language.computed import moments_of
from tocsin.language.expression import Expression
from tocsin.language.names import elements_of, is_path
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import EventType, SubscriptionId
from tocsin.normalize import Conjunction, NormalForm, normalize
from tocsin.normalize.condition import Condition, domain_of
from tocsin.normalize.demands import ANY, demands_of
from tocsin.normalize.describe import describe, describe_condition
from tocsin.normalize.domains import Domain
from tocsin.normalize.unindexed import MESSAGE, is_unindexed


def explain_subscription(
    id: SubscriptionId, expression: Expression, event_type: EventType | None, place: str
) -> str:
    """Say what a subscription asks, in its normal form, and where the engine keeps it."""
    form = normalize(expression, event_type)
    lines = [f"subscription {id!r}: {print_expression(expression)}"]
    if form.is_never:
        return "\n".join([*lines, "normal form: never true"])
    if is_unindexed(form):
        lines.append(f"  {MESSAGE}")
    places = place.split("\n")
    for at, text in enumerate(describe(form, event_type)):
        lines.append(f"  {text}")
        if at < len(places) and len(places) == len(form):
            lines.append(f"    {places[at]}")
    if len(places) != len(form):
        lines.extend(f"  {each}" for each in places)
    return "\n".join(lines)


def explain_event(
    expression: Expression, choices: Sequence[Mapping[str, object]], event_type: EventType | None
) -> str:
    """Say why an event matches, or which condition of each conjunction fails.

    An event with lists is given by its choices; of these, one that matches, or the first one is
    explained.
    """
    form = normalize(expression, event_type)
    if form.is_never:
        return "no match: the condition can never be true"
    texts = (_explain_choice(form, event, event_type) for event in choices)
    first = next(texts)
    if first.startswith("match"):
        return first
    return next((text for text in texts if text.startswith("match")), first)


def _explain_choice(
    form: NormalForm, event: Mapping[str, object], event_type: EventType | None
) -> str:
    failures = []
    moments = {of for conjunction in form for name in conjunction for of in moments_of(name)}
    if moments:  # a condition says itself which texts count as timestamps
        event = Reading(event, (), frozenset(moments.difference(_declared(event_type))))
    for conjunction in form:
        failed = _failures(conjunction, event, event_type)
        if not failed:
            phrases = [_phrase(name, c, event, event_type) for name, c in conjunction.items()]
            return "match: " + ("; ".join(phrases) or "the condition is always true")
        failures.append("; ".join(failed))
    return "no match: " + " — and ".join(failures)


def _declared(event_type: EventType | None) -> Iterable[str]:
    return event_type.attributes if event_type else ()


def _failures(
    conjunction: Conjunction, event: Mapping[str, object], event_type: EventType | None
) -> list[str]:
    return [
        "not " + _phrase(name, condition, event, event_type)
        for name, condition in conjunction.items()
        if not satisfies(event, name, condition)
    ]


def _phrase(
    name: str, condition: Condition, event: Mapping[str, object], event_type: EventType | None
) -> str:
    declared = event_type.kind_of(name) if event_type else None
    of = elements_of(name)
    value = read_value(event, name) if of is None else elements_in(event, of)
    text = describe_condition(name, condition, declared)
    if value is None:
        needed = [] if is_path(name) or of else demands_of(name, ANY)
        parts = [f"{each} is {_shown(value_at(event, each))}" for each, _ in needed]
        return f"{text} (absent{''.join(f'; {part}' for part in parts)})"
    if of is not None:
        return f"{text} ({value!r})"
    domain = domain_of(value)
    domains = [each for each in Domain if condition.intervals[each]]
    if not domains or condition.other or domain in domains or holds(condition, value):
        return f"{text} ({value!r})"
    if Domain.TIMESTAMP in domains and isinstance(value, str) and parse_timestamp(value):
        return f"{text} ({value!r})"
    kind = "of no kind" if domain is None else f"a {domain.name.lower()}"
    kinds = " or ".join(f"a {each.name.lower()}" for each in domains)
    return f"{text} ({value!r} is {kind}; only {kinds} compares)"


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)
