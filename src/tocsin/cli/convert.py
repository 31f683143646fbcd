"""`tocsin convert` and `tocsin import`: conditions of other systems, in one dialect or another.

Enters: texts of conditions; or what Amazon's command line exports: `list-rules` and
`describe-rule` of EventBridge, `get-subscription-attributes` of SNS. Leaves: the conditions in
another dialect; rows of `id`, `where` and `dialect`, as lines of JSON that `subscriptions add`
takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tocsin.cli.console import BAD_INPUT, OK, printable, say
from tocsin.encode.files import Input, fail
from tocsin.errors import ArgumentError, SubscriptionError
from tocsin.language import dialects, print_expression
from tocsin.language.expression import Expression


class Rule(NamedTuple):
    """A rule of an export: its id, its condition and its dialect; or why it is left out."""

    id: str
    where: str | None
    dialect: str
    reason: str | None = None


def convert(texts: Sequence[str], source: str, target: str, as_json: bool) -> int:
    """Write conditions in another dialect; return the exit code: bad input if one has an error."""
    dialects.check(source)
    write = _writer(target)
    code = OK
    for text in texts or [line.rstrip("\n") for line in sys.stdin if line.strip()]:
        try:
            converted = write(dialects.parse(text, source))
        except (SubscriptionError, ArgumentError) as error:
            code = BAD_INPUT
            if as_json:
                facts = {"code": error.code, "message": str(error)}
                typer.echo(json.dumps({"text": text, "error": facts}, ensure_ascii=False))
            else:
                say(f"error: {error}")
            continue
        facts = {"text": text, "where": converted, "dialect": target}
        typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else printable(converted))
    return code


def _writer(target: str) -> Any:
    """Return what writes an expression in a dialect."""
    if dialects.check(target) == dialects.SQL:
        return print_expression
    write = getattr(dialects.module_of(target), "print_expression", None)
    if write is None:
        raise ArgumentError(f"conditions cannot be written in the dialect {target!r}")
    return write


def import_files(paths: Sequence[Path], is_all: bool) -> int:
    """Write the rules of exports as rows; return the exit code: bad input if one is refused."""
    code = OK
    seen: set[str] = set()
    for path in paths:
        for rule in read_rules(_read(path), path):
            reason = rule.reason if not (is_all and rule.where is not None) else None
            if reason is None and rule.id in seen:
                reason = "it came before"
            if reason is None and rule.where is not None:
                try:
                    _check(rule)
                except SubscriptionError as error:
                    reason, code = str(error), BAD_INPUT
            if reason is not None:
                say(f"{printable(rule.id)} is left out: {reason}")
                continue
            seen.add(rule.id)
            row = {"id": rule.id, "where": rule.where, "dialect": rule.dialect}
            typer.echo(json.dumps(row, ensure_ascii=False))
    return code


def _check(rule: Rule) -> Expression:
    assert rule.where is not None
    return dialects.parse(rule.where, rule.dialect)


def _read(path: Path) -> Any:
    with Input(path).open() as stream:
        try:
            return json.loads(stream.read())
        except ValueError as error:
            fail(path, f"not JSON: {error}")


def read_rules(export: Any, path: Path) -> Iterator[Rule]:
    """Yield the rules of an export, or of a list of exports."""
    if isinstance(export, list):
        for each in export:
            yield from read_rules(each, path)
    elif isinstance(export, dict) and isinstance(export.get("Rules"), list):
        for rule in export["Rules"]:
            yield _rule(rule, path)
    elif isinstance(export, dict) and isinstance(export.get("Attributes"), dict):
        yield _subscription(export["Attributes"], path)
    elif isinstance(export, dict) and "SubscriptionArn" in export:
        yield _subscription(export, path)
    elif isinstance(export, dict) and "Name" in export:
        yield _rule(export, path)
    else:
        fail(path, "neither rules of EventBridge nor the attributes of an SNS subscription")


def _rule(rule: Any, path: Path) -> Rule:
    """Return a rule of EventBridge; one on another bus than the default one has its name too."""
    if not isinstance(rule, dict) or not isinstance(rule.get("Name"), str):
        fail(path, "a rule has a Name")
    bus = rule.get("EventBusName") or "default"
    name = rule["Name"] if bus == "default" else f"{bus}/{rule['Name']}"
    pattern = rule.get("EventPattern")
    if not isinstance(pattern, str):
        return Rule(name, None, "eventbridge", "it has no event pattern")
    disabled = "it is disabled" if rule.get("State") == "DISABLED" else None
    return Rule(name, pattern, "eventbridge", disabled)


def _subscription(attributes: dict[str, Any], path: Path) -> Rule:
    """Return a subscription of SNS; without a policy it has the empty one, of every message."""
    name = attributes.get("SubscriptionArn")
    if not isinstance(name, str):
        fail(path, "a subscription has a SubscriptionArn")
    policy = attributes.get("FilterPolicy") or "{}"
    scope = attributes.get("FilterPolicyScope")
    if scope is None:
        return Rule(name, str(policy), "sns")
    where = {"FilterPolicyScope": scope, "FilterPolicy": policy}
    return Rule(name, json.dumps(where, ensure_ascii=False), "sns")
