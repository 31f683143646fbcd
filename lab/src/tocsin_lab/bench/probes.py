"""Events that tell whether two forms of a subscription mean the same.

Enters: the predicate rows of one subscription and its event type. Leaves: an event that
satisfies it and events that differ from that one in a single attribute: absent, on a bound, just
beyond a bound. Random events would not do: hardly any satisfies even one of the subscriptions of W0
or T.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tocsin.model import EventType, Kind

Event = dict[str, object]


def probes(rows: Sequence[Mapping[str, object]], event_type: EventType) -> Iterator[Event]:
    """Yield events near the bounds of a conjunction; the first satisfies it.

    `rows` are rows of `Workload.subscription_rows` that belong to one subscription.
    """
    bounds = [(str(r["attribute"]), str(r["op"]), _literal(r, event_type)) for r in rows]
    satisfying: Event = {}
    for attribute, op, literal in bounds:
        satisfying.setdefault(attribute, _inside(op, literal))
    yield satisfying
    for attribute in satisfying:
        yield {name: value for name, value in satisfying.items() if name != attribute}
    for attribute, _, literal in bounds:
        for value in (_step(literal, -1), literal, _step(literal, 1)):
            yield {**satisfying, attribute: value}


def _literal(row: Mapping[str, object], event_type: EventType) -> object:
    literal = row.get("value")
    if literal is None:
        literal = row["number"] if row["text"] is None else row["text"]
    is_integer = event_type.kind_of(str(row["attribute"])) is Kind.INTEGER
    return int(literal) if is_integer and isinstance(literal, float) else literal


def _inside(op: str, literal: object) -> object:
    return _step(literal, {"<": -1, ">": 1}.get(op, 0))


def _step(literal: object, direction: int) -> object:
    """Return the neighbour of a value: the next integer or float, or another string."""
    if not direction:
        return literal
    if isinstance(literal, int):
        return literal + direction
    if isinstance(literal, float):
        return math.nextafter(literal, direction * math.inf)
    return f"{literal}!" if direction > 0 else str(literal)[:-1]
