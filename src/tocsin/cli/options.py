"""Options given as NAME=VALUE → event types and parameters."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.errors import ArgumentError, ConditionSyntaxError
from tocsin.language import parse
from tocsin.language.expression import Comparison, In, Literal
from tocsin.model import EventType, Kind, Value

_KINDS = {
    **{kind.value: kind for kind in Kind},
    "int": Kind.INTEGER,
    "str": Kind.STRING,
    "bool": Kind.BOOLEAN,
    "datetime": Kind.TIMESTAMP,
}


def to_event_type(declarations: Sequence[str]) -> EventType | None:
    """Return the event type that `name=kind` options declare, or None when there are none."""
    if not declarations:
        return None
    attributes: dict[str, Kind] = {}
    for declaration in declarations:
        name, kind = _split(declaration, "--attribute")
        if kind.lower() not in _KINDS:
            known = ", ".join(each.value for each in Kind)
            raise ArgumentError(
                f"--attribute {declaration}: {kind!r} is not a kind; choose {known}"
            )
        if name in attributes:
            raise ArgumentError(f"--attribute {declaration}: {name!r} is declared twice")
        attributes[name] = _KINDS[kind.lower()]
    return EventType("--attribute", attributes)


def to_params(assignments: Sequence[str]) -> dict[str, Value | list[Value]]:
    """Return the parameters that `name=value` options give.

    A value is a literal of the language (`90.5`, `'90'`, `TRUE`, `TIMESTAMP '…'`), or a list of
    them in parentheses; any other text is a string.
    """
    params: dict[str, Value | list[Value]] = {}
    for assignment in assignments:
        name, text = _split(assignment, "--param")
        params[name.removeprefix(":")] = _to_value(text)
    return params


def _to_value(text: str) -> Value | list[Value]:
    is_list = text.startswith("(")
    try:
        parsed = parse(f"x {'IN' if is_list else '='} {text}")
    except ConditionSyntaxError:
        return text
    if isinstance(parsed, Comparison) and isinstance(parsed.operand, Literal):
        return parsed.operand.value
    if isinstance(parsed, In) and not parsed.negated:
        values = [each.value for each in parsed.operands if isinstance(each, Literal)]
        return values if len(values) == len(parsed.operands) else text
    return text


def _split(option: str, flag: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals or not name.strip():
        raise ArgumentError(f"{flag} takes NAME=VALUE, not {option!r}")
    return name.strip(), value.strip()
