"""`tocsin check`: a condition's text → its parsed form, its normal form, and warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from tocsin.cli.console import BAD_INPUT, OK, printable, say
from tocsin.cli.options import to_event_type, to_params
from tocsin.errors import ArgumentError, ConditionSyntaxError, SubscriptionError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.dialects import read
from tocsin.language.expression import Expression
from tocsin.model import EventType
from tocsin.normalize.bind import bind
from tocsin.normalize.describe import describe, to_json
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.normal import check_kinds, normalize


def check(
    texts: Sequence[str], types: Sequence[str], assignments: Sequence[str], as_json: bool
) -> int:
    """Check every written text; return the exit code: bad input if one of them has an error."""
    event_type, params = to_event_type(types), to_params(assignments)
    used: set[str] = set()
    code = OK
    for at, text in enumerate(texts):
        try:
            expression = parse(text)
            names = parameter_names(expression)
            used.update(names)
            values = {name: params[name] for name in names if name in params}
            report = _report(text, expression, values, event_type)
        except SubscriptionError as error:
            code = BAD_INPUT
            if as_json:
                typer.echo(json.dumps(_error_to_json(text, error), ensure_ascii=False))
            else:
                say(f"error: {error}")
            continue
        typer.echo(
            json.dumps(report, ensure_ascii=False, allow_nan=False)
            if as_json
            else "\n" * (at > 0) + printable(_to_text(report))
        )
    unused = [name for name in params if name not in used]
    if unused and code == OK:
        raise ArgumentError(f"no condition has a parameter {', '.join(':' + n for n in unused)}")
    return code


def _report(
    text: str, expression: Expression, params: Mapping[str, object], event_type: EventType | None
) -> dict[str, Any]:
    """Return what there is to say; without values for its parameters, only the parsed form."""
    names = parameter_names(expression)
    report: dict[str, Any] = {
        "text": read(text)[0],
        "parsed": print_expression(expression),
        "parameters": list(names),
        "normal_form": None,
        "in_words": None,
        "warnings": [],
    }
    if names and not params:
        check_kinds(expression, event_type)
        return report
    bound = bind(expression, params)
    form = normalize(bound, event_type)
    report["normal_form"] = to_json(form, event_type)
    report["in_words"] = describe(form, event_type)
    report["warnings"] = [
        {"code": warning.code, "message": warning.message, "parts": list(warning.parts)}
        for warning in diagnose(bound, event_type)
    ]
    return report


def _to_text(report: Mapping[str, Any]) -> str:
    lines = [f"condition    {report['parsed']}"]
    if report["in_words"] is None:
        names = ", ".join(":" + name for name in report["parameters"])
        lines.append(f"normal form  needs values for {names}: give them with --param NAME=VALUE")
    else:
        marks = ["normal form  ", *["          or "] * (len(report["in_words"]) - 1)]
        lines += [mark + line for mark, line in zip(marks, report["in_words"], strict=True)]
    lines += [f"warning      {warning['message']}" for warning in report["warnings"]]
    return "\n".join(lines)


def _error_to_json(text: str, error: SubscriptionError) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": error.code, "message": str(error)}
    if isinstance(error, ConditionSyntaxError):
        facts["message"] = error.message
        facts["position"] = error.position
        facts["line"] = error.line
        facts["column"] = error.column
        facts["expected"] = error.expected
    return {"text": read(text)[0], "error": facts}
