"""`tocsin convert` and `tocsin import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.language.test_json_patterns import good
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.errors import ArgumentError
from tocsin.language import dialects, parse
from tocsin.language.dialects import eventbridge
from tocsin.normalize import normalize

run = CliRunner().invoke


def test_a_pattern_is_written_in_sql() -> None:
    result = run(app, ["convert", '{"a": [{"prefix": "x"}], "b": {"c": [{"exists": false}]}}'])
    assert result.exit_code == 0
    assert result.stdout == "EACH(a) LIKE 'x%' ESCAPE '\\' AND NOT HAS(b.c)\n"


def test_lines_of_the_input_are_converted_and_errors_named() -> None:
    lines = "price > 5 AND price <= 9\nprice + 1 = 2\n"
    result = run(app, ["convert", "--from", "sql", "--to", "eventbridge", "--json"], input=lines)
    assert result.exit_code == 2
    first, second = map(json.loads, result.stdout.splitlines())
    assert json.loads(first["where"]) == {"price": [{"numeric": [">", 5, "<=", 9]}]}
    assert second["error"]["message"] == "an event pattern cannot say: price + 1 = 2"


@pytest.mark.parametrize("dialect", ["eventbridge", "sns"])
def test_a_pattern_that_is_written_again_means_the_same(dialect: str) -> None:
    n = 0
    for one in good(dialect):
        expression = dialects.parse(one["pattern"], dialect)
        try:
            again = eventbridge.print_expression(expression)
        except (ArgumentError, AssertionError):
            assert "$or" in one["pattern"] or "00000" in one["pattern"] or one["pattern"] == "{}"
            continue
        n += 1
        read = dialects.parse(again, "eventbridge")
        assert repr(normalize(read)) == repr(normalize(expression)), (one["pattern"], again)
    assert n > 10


@pytest.mark.parametrize(
    ("where", "pattern"),
    [
        ("a.b = 'x' OR a.b = 'y'", {"a": {"b": ["x", "y"]}}),
        (
            "a <> 5 AND b NOT IN ('x', 'y')",
            {"a": [{"anything-but": 5}], "b": [{"anything-but": ["x", "y"]}]},
        ),
        ("a IS NULL OR b = 1", {"$or": [{"a": [{"exists": False}]}, {"b": [1]}]}),
        ("x AND NOT y", {"x": [True], "y": [False]}),
        (
            "a ILIKE 'ab%' AND b LIKE '%x%'",
            {"a": [{"prefix": {"equals-ignore-case": "ab"}}], "b": [{"wildcard": "*x*"}]},
        ),
        (
            "a NOT LIKE 'x%' AND a NOT LIKE '%y'",
            {"a": [{"anything-but": {"wildcard": ["x*", "*y"]}}]},
        ),
        (
            "lower(a) IN ('x', 'y')",
            {"a": [{"equals-ignore-case": "x"}, {"equals-ignore-case": "y"}]},
        ),
    ],
)
def test_sql_is_written_as_a_pattern(where: str, pattern: dict[str, Any]) -> None:
    assert json.loads(eventbridge.print_expression(parse(where))) == pattern


@pytest.mark.parametrize(
    "where",
    [
        "a LIKE 'a_b'",
        "a + 1 = 2",
        "a > 'x'",
        "(a = 1 OR b = 2) AND (c = 3 OR d = 4)",
        "ANY(a) = 1",
        "a = :p",
    ],
)
def test_what_patterns_cannot_say_is_refused(where: str) -> None:
    with pytest.raises(ArgumentError, match="event pattern cannot"):
        eventbridge.print_expression(parse(where))


def test_exports_become_rows_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    rules = {
        "Rules": [
            {"Name": "one", "EventPattern": '{"source": ["a"]}', "EventBusName": "default"},
            {"Name": "two", "ScheduleExpression": "rate(1 day)"},
            {"Name": "3", "EventPattern": '{"a": [1]}', "State": "DISABLED", "EventBusName": "b"},
            {"Name": "four", "EventPattern": '{"a": 1}'},
            {"Name": "one", "EventPattern": '{"source": ["b"]}'},
        ]
    }
    attributes = {"SubscriptionArn": "arn", "FilterPolicy": '{"a": ["x"]}'}
    body = {**attributes, "SubscriptionArn": "body", "FilterPolicyScope": "MessageBody"}
    exports = [rules, {"Attributes": attributes}, body, {"SubscriptionArn": "all"}]
    path = tmp_path / "exports.json"
    path.write_text(json.dumps(exports))
    result = run(app, ["import", str(path)])
    assert result.exit_code == 2
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["id"], row["dialect"]) for row in rows] == [
        ("one", "eventbridge"),
        ("arn", "sns"),
        ("body", "sns"),
        ("all", "sns"),
    ]
    assert rows[0]["where"] == '{"source": ["a"]}'
    assert json.loads(rows[2]["where"])["FilterPolicyScope"] == "MessageBody"
    for name, reason in (("two", "no event pattern"), ("b/3", "disabled"), ("four", "$.a")):
        assert any(name in line and reason in line for line in result.stderr.splitlines())
    again = run(app, ["import", "--all", str(path)])
    assert '"b/3"' in again.stdout


def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ('{"x": 1}', "[", '{"Rules": [{"Arn": "x"}]}', '{"Attributes": {"Endpoint": "x"}}'):
        path.write_text(text)
        result = run(app, ["import", str(path)])
        assert result.exit_code != 0
        assert "x.json" in result.stderr
