"""`tocsin subscriptions`: a store changed from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tocsin
from tocsin.cli.app import app


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["subscriptions", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.output


def facts(*args: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json", code=code).splitlines()[-1])
    return found


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "alerts.store")


def match(store: str, event: dict[str, Any]) -> list[Any]:
    return sorted(tocsin.Matcher.open(store).match(event), key=str)


def test_a_store_is_made_filled_changed_and_looked_at(store: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.jsonl"
    rules.write_text(
        '{"id": "a", "where": "price < 100"}\n'
        '{"id": "b", "where": "price < :limit", "params": {"limit": 90}}\n'
    )
    assert facts("add", store, str(rules)) == {"version": 2, "added": 2, "bad_rows": 0}
    assert facts("add", store, "--id", "c", "--where", "price = :p", "--param", "p=89.5") == {
        "version": 3,
        "added": 1,
    }
    assert match(store, {"price": 89.5}) == ["a", "b", "c"]
    assert facts("update", store, "b", "--where", "price > 90") == {"version": 4, "updated": 1}
    assert facts("update", store, "c", "--param", "p=91") == {"version": 5, "updated": 1}
    assert facts("remove", store, "a") == {"version": 6, "removed": 1}
    assert match(store, {"price": 91}) == ["b", "c"]
    said = facts("stats", store)
    assert (said["version"], said["subscriptions"], said["changes_since_base"]) == (6, 2, 5)
    assert facts("stats", store, "--version", "3")["subscriptions"] == 3
    compacted = facts("compact", store)
    assert (compacted["version"], compacted["changes_folded"]) == (7, 5)
    assert match(store, {"price": 91}) == ["b", "c"]
    assert "subscriptions        2" in run("stats", store)


def test_a_file_with_bad_rows_changes_nothing_unless_they_are_set_aside(
    store: str, tmp_path: Path
) -> None:
    rules, aside = tmp_path / "rules.txt", tmp_path / "aside.jsonl"
    rules.write_text("price < 100\nprice <\nprice > 5\n")
    said = run("add", store, str(rules), code=2)
    assert "1 bad rows; nothing was changed" in said
    assert "line 2" in said
    assert facts("stats", store)["version"] == 1
    more = ["--on-error", "quarantine", "--quarantine", str(aside)]
    found = facts("add", store, str(rules), *more, code=1)
    assert found == {"version": 2, "added": 2, "bad_rows": 1}
    assert json.loads(aside.read_text())["line"] == 2
    assert match(store, {"price": 7}) == [1, 3]
    assert facts("remove", store, "1", "--integers")["version"] == 3
    ids = tmp_path / "ids.txt"
    ids.write_text("3\n\n")
    assert facts("remove", store, "--ids", str(ids), "--integers")["removed"] == 1
    assert facts("stats", store)["subscriptions"] == 0


def test_compile_builds_an_index_of_files_and_replaces_what_was_there(
    store: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text("id,where\n1,x = 1\n2,x > 0\n")
    assert facts("compile", store, str(rules), "--attribute", "x=integer")["subscriptions"] == 2
    rules.write_text("id,where\n7,x = 1\n")
    assert facts("compile", store, str(rules))["version"] == 2
    assert match(store, {"x": 1}) == [7]
    assert facts("stats", store)["changes_since_base"] == 0


def test_what_makes_no_sense_is_refused(store: str, tmp_path: Path) -> None:
    assert "there is no such folder" in run("stats", store, code=2)
    assert "give files" in run("add", store, code=2)
    assert "give files" in run("add", store, "--id", "a", code=2)
    assert "^" in run("add", store, "--id", "a", "--where", "x <", code=2)
    run("add", store, "--id", "a", "--where", "x = 1")
    assert "'a'" in run("add", store, "--id", "a", "--where", "x = 1", code=2)
    assert "nobody" in run("remove", store, "nobody", code=2)
    assert "give ids" in run("remove", store, code=2)
    assert "no 64-bit integer" in run("remove", store, "x", "--integers", code=2)
    assert "needs where, params or valid_until" in run("update", store, "a", code=2)
    assert facts("stats", store)["version"] == 2


def test_subscriptions_have_dialects(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    rules = tmp_path / "rules.jsonl"
    lines = [{"id": "b", "where": "EXISTS s", "dialect": "cesql"}, {"id": "c", "where": "n = 7L"}]
    rules.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("add", store, "--id", "a", "--where", "n IN (1)", "--dialect", "jms")
    run("add", store, str(rules), "--dialect", "jms")
    run("update", store, "a", "--where", "n = 0x10", "--dialect", "jms")
    listed = run("list", store, "--json").splitlines()
    assert [json.loads(line) for line in listed] == [
        {"id": "b", "where": "EXISTS s", "dialect": "cesql"},
        {"id": "c", "where": "n = 7L", "dialect": "jms"},
        {"id": "a", "where": "n = 0x10", "dialect": "jms"},
    ]
    table = tmp_path / "rules.csv"
    table.write_text("id,where,dialect\nd,EXISTS s,cesql\ne,n = 7L,\n")
    run("add", store, str(table), "--dialect", "jms")
    with tocsin.SubscriptionStore(store) as opened, opened.matcher() as matcher:
        assert sorted(map(str, matcher.match({"n": 7, "s": 1}))) == ["b", "c", "d", "e"]
        assert matcher.match({"n": 16}) == ["a"]


def test_subscriptions_are_listed_and_shown(store: str) -> None:
    run("add", store, "--id", "a", "--where", "x = :v", "--param", "v=1")
    run("add", store, "--id", "b", "--where", "x = 2", "--valid-until", "2099-01-01T00:00Z")
    assert run("list", store).splitlines() == [
        'a\tx = :v\t{"v": 1}',
        "b\tx = 2\tuntil 2099-01-01T00:00:00+00:00",
    ]
    assert json.loads(run("list", store, "--json", "--limit", "1").splitlines()[0]) == {
        "id": "a",
        "where": "x = :v",
        "params": {"v": 1},
    }
    assert facts("show", store, "a") == {
        "id": "a",
        "where": "x = :v",
        "params": {"v": 1},
        "dialect": "sql",
        "valid_until": None,
    }
    run("update", store, "b", "--valid-until", "none")
    assert facts("show", store, "b")["valid_until"] is None
    assert "there is no subscription with id 'c'" in run("show", store, "c", code=2)


def test_an_id_that_looks_like_an_integer_is_found_either_way(store: str) -> None:
    run("add", store, "--id", "7", "--where", "x = 1", "--integers")
    run("add", store, "--id", "8", "--where", "x = 1")
    assert facts("show", store, "7")["id"] == 7
    assert facts("show", store, "8")["id"] == "8"
    run("add", store, "--id", "7", "--where", "x = 1")
    assert "--integers means the integer" in run("remove", store, "7", code=2)
    run("remove", store, "7", "--integers")
    assert match(store, {"x": 1}) == ["7", "8"]


def test_what_is_exported_can_be_added_again_and_replaced(store: str, tmp_path: Path) -> None:
    lines = [
        {"id": "a", "where": "x IN :ids", "params": {"ids": [1, 2]}},
        {"id": 7, "where": "x = 7", "valid_until": "2099-01-01T00:00:00+00:00"},
        {"id": "7", "where": "x = 8 AND name = 'é'"},
    ]
    rules, out = tmp_path / "rules.jsonl", tmp_path / "out.jsonl"
    rules.write_text("\n".join(map(json.dumps, lines)))
    run("add", store, str(rules))
    assert "3 subscriptions" in run("export", store, str(out))
    exported = [json.loads(line) for line in out.read_text().splitlines()]
    assert run("export", store).splitlines() == out.read_text().splitlines()
    assert {(type(row["id"]), row["id"]) for row in exported} == {(str, "a"), (int, 7), (str, "7")}
    assert run("list", store, "--json").splitlines() == out.read_text().splitlines()
    again = str(tmp_path / "again.store")
    run("add", again, str(out))
    assert match(again, {"x": 7}) == [7]
    assert match(again, {"x": 2}) == ["a"]
    assert "exists already" in run("add", again, str(out), code=2)
    out.write_text('{"id": "a", "where": "x = 9"}\n{"id": "new", "where": "x = 9"}\n')
    replaced = facts("add", again, str(out), "--replace")
    assert (replaced["added"], replaced["replaced"]) == (1, 1)
    assert match(again, {"x": 9}) == ["a", "new"]
    one = ["--id", "a", "--where", "x IN :ids", "--param", "ids=(4, 5)", "--replace"]
    assert facts("add", again, *one)["replaced"] == 1
    assert facts("show", again, "a")["params"] == {"ids": [4, 5]}
    assert match(again, {"x": 5}) == ["a"]
    assert "must end in .jsonl" in run("export", store, str(tmp_path / "out.csv"), code=2)


def test_conditions_and_subscriptions_are_explained(store: str, tmp_path: Path) -> None:
    run("add", store, "--id", "a", "--where", "x > 1")
    explain = ["explain", store, "a", "--event", '{"x": 0}']
    result = CliRunner().invoke(app, explain)
    assert (result.exit_code, result.output.startswith("no match")) == (0, True)
    options = ["--where", "x > :v", "--param", "v=1", "-e", '{"x": 2}']
    result = CliRunner().invoke(app, ["explain", *options])
    assert (result.exit_code, result.output.startswith("match")) == (0, True)
    assert CliRunner().invoke(app, ["explain", store]).exit_code == 0
    assert CliRunner().invoke(app, ["explain"]).exit_code == 2
    events = tmp_path / "events.jsonl"
    events.write_text('{"x": 5}\n{"x": 0}\n')
    result = CliRunner().invoke(app, ["match", "--store", store, "--events", str(events)])
    assert result.exit_code == 0, result.output
    assert "2 events against 1 subscriptions: 1 matches" in result.output
    assert CliRunner().invoke(app, ["match", "--events", str(events)]).exit_code == 2
