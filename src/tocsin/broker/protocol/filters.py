"""The filter dialects of the CloudEvents Subscriptions API → a condition's text.

Enters: filters (`exact`, `prefix`, `suffix`, `all`, `any`, `not`, `sql`) over context attributes.
Leaves: a condition of our language over `ce.…`. Follows the Subscriptions API 1.0 working draft,
section 3.2.4 "Filters". There, a filter on an attribute that the event lacks is false, and `not` of
it is true; in SQL it would be unknown. So each predicate is written with its attribute's presence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tocsin.errors import LimitError, SubscriptionError
from tocsin.language import print_expression
from tocsin.language.dialects import cesql

MAX_DEPTH = 20
_NAME = re.compile(r"[a-z0-9]{1,64}").fullmatch


def to_condition(body: Mapping[str, Any]) -> str:
    """Return the condition of a subscription in the API's shape: types, source and filters."""
    parts = []
    types = body.get("types")
    if types is not None:
        parts.append(_is_one_of("type", types))
    if body.get("source") is not None:
        parts.append(_exact("source", body["source"]))
    filters = body.get("filters")
    if filters is not None:
        parts.append(_all(filters, 0, False))
    return " AND ".join(parts) if parts else "TRUE"


def _is_one_of(name: str, values: object) -> str:
    if not isinstance(values, list) or not values:
        raise SubscriptionError(f"{name}s must be an array of texts")
    return f"{_attribute(name)} IN ({', '.join(_literal(value) for value in values)})"


def _filter(condition: object, depth: int, is_negated: bool) -> str:
    if depth > MAX_DEPTH:
        raise LimitError("filters are nested too deep", "filter depth")
    if not isinstance(condition, Mapping) or len(condition) != 1:
        raise SubscriptionError("a filter is an object with one dialect")
    ((dialect, inside),) = condition.items()
    if dialect == "not":
        return f"NOT ({_filter(inside, depth + 1, True)})"
    if dialect == "sql":
        return _sql(inside, is_negated)
    if dialect == "all":
        return _all(inside, depth, is_negated)
    if dialect == "any":
        return _join(" OR ", inside, depth, is_negated)
    if dialect in _DIALECTS:
        if not isinstance(inside, Mapping) or not inside:
            raise SubscriptionError(f"{dialect} takes an object of names and texts")
        write = _DIALECTS[dialect]
        return "(" + " AND ".join(write(name, value) for name, value in inside.items()) + ")"
    raise SubscriptionError(f"the filter dialect {str(dialect)[:40]!r} is not known")


def _sql(text: object, is_negated: bool) -> str:
    """Return a filter of CloudEvents SQL; under `not`, one that is false where it has an error."""
    if not isinstance(text, str):
        raise SubscriptionError("sql takes the text of a CloudEvents SQL filter")
    condition = print_expression(cesql.parse(text, prefix="ce."))
    return f"(({condition}) IS TRUE)" if is_negated else f"({condition})"


def _all(filters: object, depth: int, is_negated: bool) -> str:
    return _join(" AND ", filters, depth, is_negated)


def _join(word: str, filters: object, depth: int, is_negated: bool) -> str:
    if not isinstance(filters, Sequence) or isinstance(filters, str) or not filters:
        raise SubscriptionError("all, any and filters take an array of filters")
    return "(" + word.join(_filter(each, depth + 1, is_negated) for each in filters) + ")"


def _exact(name: str, value: object) -> str:
    return _present(name, f"= {_literal(value)}")


def _prefix(name: str, value: object) -> str:
    return _present(name, f"LIKE {_literal(_plain(value) + '%')} ESCAPE '!'")


def _suffix(name: str, value: object) -> str:
    return _present(name, f"LIKE {_literal('%' + _plain(value))} ESCAPE '!'")


def _present(name: str, test: str) -> str:
    attribute = _attribute(name)
    return f"({attribute} IS NOT NULL AND {attribute} {test})"


def _attribute(name: object) -> str:
    if not isinstance(name, str) or _NAME(name) is None:
        raise SubscriptionError(f"no name of a context attribute: {str(name)[:64]!r}")
    return f'"ce.{name}"'


def _plain(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SubscriptionError("a filter compares with a text that is not empty")
    return re.sub(r"[!%_]", lambda special: "!" + special.group(), value)


def _literal(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SubscriptionError("a filter compares with a text that is not empty")
    return "'" + value.replace("'", "''") + "'"


_DIALECTS: dict[str, Callable[[str, object], str]] = {
    "exact": _exact,
    "prefix": _prefix,
    "suffix": _suffix,
}
