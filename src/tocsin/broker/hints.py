"""Why a condition may never match: likely mistakes, and what recent events do not have.

Enters: a condition, its event type, and the recent events that it would meet. Leaves: sentences for
its writer, the gravest first. They are advice: an event of tomorrow may have what those of today do
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice

from tocsin.broker.events import Event
from tocsin.language.expression import Expression
from tocsin.language.names import is_path
from tocsin.model import EventType, similar_name, to_plain
from tocsin.normalize.demands import ANY, LIST, list_of, shown_name
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.domains import Domain
from tocsin.normalize.normal import NormalForm
from tocsin.schema_watch import (
    NAMES_OF_DOMAINS,
    demanded_by,
    is_sequence,
    mask_of_value,
    paths_of,
    present_value,
    shown,
)

_MOST = 20
"""The number of sentences about one condition, and of attributes that are searched."""
_DOMAINS = sum(1 << domain for domain in Domain)
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
    n = "the last event" if len(recent) == 1 else f"none of the last {len(recent)} events"
    verb = "has no" if len(recent) == 1 else "has"
    for name, mask in islice(demanded_by(form).items(), _MOST):
        if not mask & (ANY | LIST | _DOMAINS):
            continue  # only asks whether the attribute is absent
        seen, example = _values(name, mask, recent)
        if seen is None and not is_path(name):
            continue  # no event has the list
        if seen is None:
            near = similar_name(name, _names(recent))
            hint = f"; did you mean {near!r}?" if near else ""
            is_undeclared = event_type is not None and event_type.kind_of(name) is None
            if not (is_undeclared and event_type and event_type.attributes and near is None):
                yield f"{n} {verb} attribute {name!r}{hint}"
        elif not seen & mask:
            kinds = [NAMES_OF_DOMAINS[each] for each in Domain if seen & 1 << each]
            what = "lists" if seen & LIST else kinds[0] if kinds else "of no kind that compares"
            whose = "values" if is_path(name) else "elements"
            yield (
                f"{shown_name(name)!r}: the {whose} of recent events are {what}, such as "
                f"{shown(example)}; they do not compare with {_asked_for(mask)}"
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


@lru_cache(256)
def published_type_hint(type: str, known: frozenset[str]) -> str | None:
    """Say that an event type was probably misspelt by who publishes it, if so."""
    near = None if type in known else similar_name(type, sorted(known))
    if near is None:
        return None
    return f"no event type {type!r} is declared or subscribed to; did you mean {near!r}?"


def _values(name: str, mask: int, recent: Sequence[Event]) -> tuple[int | None, object]:
    """Return the domains that values of an attribute have, until one fits, and one of them."""
    seen: int | None = None
    example: object = None
    for event in reversed(recent):
        of = list_of(name)
        value = present_value(event.attributes, name if of is None else of)
        if value is None and event.numbers:
            value = event.numbers.get(name)
        values = [value] if of is None else value if is_sequence(value) else ()
        for each in values:
            if each is None:
                continue
            kinds = mask_of_value(to_plain(each))
            if event.numbers and name in event.numbers:
                kinds |= 1 << Domain.NUMBER
            seen, example = (seen or 0) | kinds, each
            if (seen | ANY) & mask:
                return seen | ANY, example
    return seen, example


def _names(recent: Sequence[Event]) -> list[str]:
    sample = islice(reversed(recent), _SAMPLE)
    return list(dict.fromkeys(chain.from_iterable(paths_of(event.attributes) for event in sample)))


def _asked_for(mask: int) -> str:
    names = [NAMES_OF_DOMAINS[each] for each in Domain if mask & 1 << each]
    return " or ".join([*names, "conditions on elements"] if mask & LIST else names)
