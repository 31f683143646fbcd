"""Expression → conjunctions: one condition per attribute; parameters; covers().

`normalize` takes one expression, `bulk` takes columns of them. Both give normal forms of the same
meaning, one as objects, the other as flat arrays; of a single conjunction it is the same form.
"""

from __future__ import annotations

from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.model import EventType
from tocsin.normalize.bind import bind
from tocsin.normalize.normal import MAX_CONJUNCTIONS, Conjunction, NormalForm, normalize
from tocsin.normalize.normal import covers as _covers

__all__ = ["MAX_CONJUNCTIONS", "Conjunction", "NormalForm", "bind", "covers", "normalize"]


def covers(
    a: str | Expression | NormalForm,
    b: str | Expression | NormalForm,
    event_type: EventType | None = None,
) -> bool:
    """Whether every event that matches b matches a.

    Exact when each is one conjunction without LIKE patterns in the middle of strings; otherwise
    sound: True is always right, False may only mean that it takes several conjunctions together.

    >>> covers("price < 100", "price < 50 AND firm = 'IBM'")
    True
    """
    return _covers(_to_normal_form(a, event_type), _to_normal_form(b, event_type))


def _to_normal_form(
    condition: str | Expression | NormalForm, event_type: EventType | None
) -> NormalForm:
    if isinstance(condition, NormalForm):
        return condition
    return normalize(parse(condition) if isinstance(condition, str) else condition, event_type)
