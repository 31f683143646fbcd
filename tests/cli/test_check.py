"""`tocsin check`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app

_FIXTURE = Path(__file__).parent.parent / "fixtures" / "cli" / "check.txt"
run = CliRunner().invoke


def cases() -> list[tuple[str, str]]:
    blocks = re.split(r"^> ", _FIXTURE.read_text(), flags=re.MULTILINE)[1:]
    return [(args, expected.rstrip()) for args, expected in (b.split("\n", 1) for b in blocks)]


@pytest.mark.parametrize(("args", "expected"), cases())
def test_check_prints_what_the_fixture_says(args: str, expected: str) -> None:
    result = run(app, ["check", *shlex.split(args)])
    assert result.exit_code == 0
    assert result.stdout.rstrip() == expected


def test_a_syntax_error_shows_a_caret_on_standard_error() -> None:
    result = run(app, ["check", "price <"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith("price <\n       ^\n")
    assert "expected an attribute, a literal or a parameter (line 1, column 8)" in result.stderr


def test_a_condition_of_a_dialect_is_shown_as_sql() -> None:
    result = run(app, ["check", "--dialect", "jms", "h.priority > 5", "weight BETWEEN 1 AND 0x10"])
    assert result.exit_code == 0
    assert "condition    coalesce(header.priority, 4) > 5" in result.stdout
    assert "condition    weight BETWEEN 1 AND 16" in result.stdout
    result = run(app, ["check", "--dialect", "jms", "--json", "a ="])
    assert json.loads(result.stdout)["text"] == "a ="
    result = run(app, ["check", "--dialect", "mysql", "a = 1"])
    assert result.exit_code == 2
    assert "dialect must be one of" in result.stderr


def test_good_conditions_are_shown_beside_a_bad_one() -> None:
    result = run(app, ["check", "x = 1", "x ==", "y = 2"])
    assert result.exit_code == 2
    assert "x = 1" in result.stdout
    assert "y = 2" in result.stdout


def test_json_is_one_object_a_condition() -> None:
    result = run(app, ["check", "--json", "x > 1 AND x <= 2.5", "x <"])
    assert result.exit_code == 2
    good, bad = map(json.loads, result.stdout.splitlines())
    interval = {"low": 1, "low_closed": False, "high": 2.5, "high_closed": True}
    assert good["normal_form"]["conjunctions"] == [{"x": {"numbers": [interval]}}]
    assert good["in_words"] == ["x in (1, 2.5]"]
    assert good["warnings"] == []
    assert bad["error"]["code"] == "syntax"
    assert (bad["error"]["line"], bad["error"]["column"]) == (1, 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x = 'a'", "--attribute", "x=integer"], "attribute 'x' is declared integer, not string"),
        (["x = 1", "--attribute", "x=number"], "'number' is not a kind"),
        (["x = 1", "--attribute", "x"], "--attribute takes NAME=VALUE"),
        (["x = 1", "--attribute", "x=int", "--attribute", "x=int"], "declared twice"),
        (["x = 1", "--param", "y=1"], "no condition has a parameter :y"),
        (["x = :a OR x = :b", "--param", "a=1"], "no value for parameter :b"),
        (["x = f(1)"], "the function f(…) is not in the subscription language"),
        (["x = :a", "--param", "a=9"], None),
        (["x = :a", "--param", "a=-1.5e3"], None),
    ],
)
def test_bad_options_are_bad_input(args: list[str], message: str | None) -> None:
    result = run(app, ["check", *args])
    assert result.exit_code == (2 if message else 0)
    assert (message or "") in result.stderr


def test_parameters_are_literals_or_else_strings() -> None:
    text = "a = :a AND b = :b AND c = :c AND d = :d AND e = :e"
    params = ["a=1 OR 1=1", "b=TRUE", "c=TIMESTAMP '2024-01-01'", "d=x = 1", "e="]
    result = run(app, ["check", text, *(word for p in params for word in ("--param", p))])
    assert result.exit_code == 0
    assert (
        "a = '1 OR 1=1' and b = TRUE and c = TIMESTAMP '2024-01-01 00:00:00+00:00' "
        "and d = 'x = 1' and e = ''"
    ) in result.stdout


def test_text_that_could_steer_a_terminal_is_shown_escaped() -> None:
    result = run(app, ["check", "x = '\x1b[31m'"])
    assert "\x1b" not in result.stdout
    assert r"\x1b[31m" in result.stdout
