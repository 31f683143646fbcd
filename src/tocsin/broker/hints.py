"""Why a condition may never match: likely mistakes, and what recent events do not have.

Enters: a condition, its event type, and the recent events that it would meet. Leaves: sentences for
its writer, the gravest first. They are advice: an event of tomorrow may have what those of today do
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from tocsin.broker.events import Event
from tocsin.encode.events import lookup
from tocsin.language.expression import Expression
from tocsin.model import EventType, similar_name, to_plain
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.domains import Domain
from tocsin.normalize.normal import NormalForm
from tocsin.schema_watch import ANY, NAMES_OF_DOMAINS, domains_of, mask_of, paths_of, shown

_MOST = 20
"""The number of sentences about one condition, and of attributes that are searched."""
_SAMPLE = 100
"""The events whose attributes are proposed for a misspelt one."""


def hints(
    expression: Expression, form: NormalForm, event_type: EventType | None, recent: Sequence[Event]
) -> list[str]:
    """Return what is suspect about a condition; `recent` are events that it would meet."""
    sentences = [finding.message for finding in diagnose(expression, event_type)]
    sentences += islice(attribute_hints(form, event_type, recent), _MOST)
    return list(dict.fromkeys(sentences))[:_MOST]


def attribute_hints(
    form: NormalForm, event_type: EventType | None, recent: Sequence[Event]
) -> Iterable[str]:
    """Yield the attributes that no recent event has, or has in a kind that does not compare."""
    if not recent:
        return
    masks: dict[str, int] = {}
    for conjunction in form:
        for name, condition in conjunction.items():
            masks[name] = masks.get(name, 0) | mask_of(condition)
    n = "the last event" if len(recent) == 1 else f"none of the last {len(recent)} events"
    verb = "has no" if len(recent) == 1 else "has"
    for name, mask in islice(masks.items(), _MOST):
        if not mask:
            continue  # only asks whether the attribute is absent
        seen, example = _values(name, mask, recent)
        if seen is None:
            near = similar_name(name, _names(recent))
            hint = f"; did you mean {near!r}?" if near else ""
            is_undeclared = event_type is not None and event_type.kind_of(name) is None
            if not (is_undeclared and event_type and event_type.attributes and near is None):
                yield f"{n} {verb} attribute {name!r}{hint}"
        elif not seen & mask:
            kinds = [NAMES_OF_DOMAINS[each] for each in Domain if seen & 1 << each]
            what = kinds[0] if kinds else "of no kind that compares"
            yield (
                f"{name!r}: the values of recent events are {what}, such as {shown(example)}; "
                f"they do not compare with {_asked_for(mask)}"
            )


def type_hint(type: str | None, known: Iterable[str], recent: Sequence[Event]) -> str | None:
    """Say that an event type is neither declared nor published recently, if so."""
    if type is None:
        return None
    names = dict.fromkeys([*known, *(event.type for event in recent if event.type is not None)])
    if type in names or not names:
        return None
    near = similar_name(type, names)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"no event type {type!r} is declared, and no recent event has it{hint}"


def _values(name: str, mask: int, recent: Sequence[Event]) -> tuple[int | None, object]:
    """Return the domains that values of an attribute have, until one fits, and one of them."""
    seen: int | None = None
    example: object = None
    for event in reversed(recent):
        value = to_plain(lookup(event.attributes, name))
        if value is None and event.numbers:
            value = event.numbers.get(name)
        if value is not None:
            kinds = sum(1 << domain for domain in domains_of(value))
            if event.numbers and name in event.numbers:
                kinds |= 1 << Domain.NUMBER
            seen, example = (seen or 0) | kinds, value
            if (seen | ANY) & mask:
                return seen | ANY, example
    return seen, example


def _names(recent: Sequence[Event]) -> list[str]:
    sample = islice(reversed(recent), _SAMPLE)
    return list(dict.fromkeys(chain.from_iterable(paths_of(event.attributes) for event in sample)))


def _asked_for(mask: int) -> str:
    return " or ".join(NAMES_OF_DOMAINS[each] for each in Domain if mask & 1 << each)
