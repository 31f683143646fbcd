"""`tocsin match`: files in, matches out, in every format."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tocsin
from tocsin.cli.app import app

SUBSCRIPTIONS = "price < 10\n\n# cheap, and many of them\nprice < 10 AND volume > 5\nfirm = 'B'\n"
EVENTS = [
    {"firm": "A", "price": 9.5, "volume": 3},
    {"firm": "B", "price": 20.0, "volume": 9},
    {"firm": "C", "price": 20.0},
    {"firm": "B", "price": 1.0, "volume": 6},
]
EXPECTED = [(0, 1), (1, 5), (3, 1), (3, 4), (3, 5)]


def write_events(folder: Path, suffix: str) -> Path:
    path = folder / f"events{suffix}"
    table = pa.Table.from_pylist(EVENTS)
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, table.column_names)
            writer.writeheader()
            writer.writerows(EVENTS)
    else:
        path.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return path


def write_text(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def match(subscriptions: Path, events: Path, *options: object) -> Any:
    args = ["match", "-s", str(subscriptions), "-e", str(events), *map(str, options)]
    return CliRunner().invoke(app, args)


def pairs(text: str) -> list[tuple[int, int]]:
    return sorted((int(e), int(s)) for e, s in (line.split("\t") for line in text.splitlines()))


@pytest.mark.parametrize("engine", ["auto", "oracle"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_every_event_format_gives_the_same_matches(
    tmp_path: Path, suffix: str, engine: str
) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    result = match(subscriptions, write_events(tmp_path, suffix), "--engine", engine)
    assert result.exit_code == 0
    assert pairs(result.stdout) == EXPECTED
    assert "4 events against 3 subscriptions: 5 matches, 3 events matched" in result.stderr


@pytest.mark.parametrize("out", ["m.jsonl", "m.csv", "m.parquet"])
def test_matches_are_written_in_the_format_of_the_name(tmp_path: Path, out: str) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    path = tmp_path / out
    result = match(subscriptions, write_events(tmp_path, ".csv"), "--out", path)
    assert result.exit_code == 0
    assert "5 matches" in result.stdout
    assert result.stderr == ""
    if out == "m.jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    elif out == "m.csv":
        with path.open(newline="") as stream:
            rows = [{k: int(v) for k, v in row.items()} for row in csv.DictReader(stream)]
    else:
        rows = pq.read_table(path).to_pylist()
    found = sorted((row["event"], row["subscription"]) for row in rows)
    assert found == EXPECTED
    assert all(row["line"] == row["event"] + 2 for row in rows)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.csv", out, "s.txt"]


@pytest.mark.parametrize("out", ["m.jsonl", "m.csv", "m.parquet"])
def test_without_matches_the_file_is_still_of_its_format(tmp_path: Path, out: str) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price > 1000\n")
    path = tmp_path / out
    assert match(subscriptions, write_events(tmp_path, ".csv"), "-o", path).exit_code == 0
    if out == "m.jsonl":
        assert path.read_text() == ""
    elif out == "m.csv":
        assert path.read_text() == "event,subscription\n"
    else:
        assert pq.read_table(path).num_rows == 0


def test_json_gives_matches_and_summary_to_programs(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    events = write_events(tmp_path, ".jsonl")
    result = match(subscriptions, events, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted((row["event"], row["subscription"]) for row in rows) == EXPECTED
    assert rows[0]["line"] == rows[0]["event"] + 1
    summary = json.loads(result.stderr)
    assert (summary["events"], summary["matches"], summary["matched_events"]) == (4, 5, 3)
    assert summary["bad_rows"] == 0
    result = match(subscriptions, events, "--json", "-o", tmp_path / "m.csv")
    assert json.loads(result.stdout)["matches"] == 5


def test_string_and_mixed_ids_are_written_as_strings(tmp_path: Path) -> None:
    ids: list[str | int] = ['say "hi"\t\\', "b", 3, "é"]
    lines = [json.dumps({"id": each, "where": "price < 10"}) for each in ids]
    subscriptions = write_text(tmp_path, "s.jsonl", "\n".join(lines))
    events = write_events(tmp_path, ".parquet")
    result = match(subscriptions, events, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["subscription"] for row in rows} == {str(each) for each in ids}
    assert "line" not in rows[0]
    result = match(subscriptions, events)
    assert '0\tsay "hi"\\t\\\\\n' in result.stdout
    for name in ("m.csv", "m.parquet", "m.jsonl"):
        assert match(subscriptions, events, "-o", tmp_path / name).exit_code == 0
    table = pq.read_table(tmp_path / "m.parquet")
    assert set(table["subscription"].to_pylist()) == {str(each) for each in ids}


def test_templates_with_parameters_match_as_their_texts_do(tmp_path: Path) -> None:
    rows = [
        {"id": i, "where": "firm = :f AND price < :p", "params": {"f": "AB"[i % 2], "p": i * 1.0}}
        for i in range(30)
    ]
    subscriptions = write_text(tmp_path, "s.jsonl", "\n".join(map(json.dumps, rows)))
    result = match(subscriptions, write_events(tmp_path, ".jsonl"))
    matcher = tocsin.Matcher()
    for i in range(30):
        matcher.subscribe(i, f"firm = '{'AB'[i % 2]}' AND price < {i * 1.0}")
    expected = [(e, s) for e, event in enumerate(EVENTS) for s in matcher.match(event)]
    assert pairs(result.stdout) == sorted(expected)


def test_bad_subscriptions_stop_the_run_and_all_are_listed(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price < 10\nprice <\nfirm = 'B'\nfirm LIKE 3\n")
    out = tmp_path / "m.csv"
    result = match(subscriptions, write_events(tmp_path, ".csv"), "-o", out)
    assert result.exit_code == 2
    assert "2 bad rows; nothing was matched" in result.stderr
    assert "line 2: the text ends too early" in result.stderr
    assert "line 4:" in result.stderr
    assert not out.exists()


def test_bad_rows_can_be_set_aside(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price < 10\nprice <\nfirm = 'B'\n")
    events = write_events(tmp_path, ".jsonl")
    events.write_text(events.read_text() + 'nonsense\n{"firm": "B"}\n')
    result = match(subscriptions, events, "--on-error", "quarantine")
    assert result.exit_code == 1
    assert pairs(result.stdout) == [(0, 1), (1, 3), (3, 1), (3, 3), (5, 3)]
    assert "line 2: the text ends too early" in result.stderr
    assert "line 5: not JSON" in result.stderr
    assert "2 bad rows set aside" in result.stderr
    aside = tmp_path / "bad.jsonl"
    result = match(subscriptions, events, "--on-error", "quarantine", "--quarantine", aside)
    assert result.exit_code == 1
    first, second = map(json.loads, aside.read_text().splitlines())
    assert (first["line"], first["original"]) == (2, "price <")
    assert (second["line"], second["original"]) == (5, "nonsense")
    assert second["file"] == str(events)


def test_a_bad_event_stops_the_run_and_leaves_no_file(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    events = write_text(tmp_path, "e.jsonl", '{"price": 1}\n{"price": 1\n')
    result = match(subscriptions, events, "-o", tmp_path / "m.csv")
    assert result.exit_code == 2
    assert "e.jsonl:2: not JSON" in result.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["e.jsonl", "s.txt"]


def test_declared_types_read_timestamps_and_refuse_other_kinds(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "at < TIMESTAMP '2024-06-01' AND n > 1\n")
    events = write_text(tmp_path, "e.csv", "at,n\n2024-01-01,2\n2024-07-01,2\n2024-01-01,x\n")
    types = ("--attribute", "at=timestamp", "--attribute", "n=int")
    result = match(subscriptions, events, *types, "--on-error", "quarantine")
    assert result.exit_code == 1
    assert pairs(result.stdout) == [(0, 1)]
    assert "line 4: attribute 'n': 'x' is not of kind integer" in result.stderr
    bad = write_text(tmp_path, "bad.txt", "n = 'a'\n")
    result = match(bad, events, *types)
    assert result.exit_code == 2
    assert "attribute 'n' is declared integer, not string" in result.stderr


def test_a_parquet_column_of_another_kind_is_refused_with_its_row(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "n = 1\n")
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"n": [1.0, None, 2.5, 1.0]}), path)
    result = match(subscriptions, path, "--attribute", "n=integer")
    assert result.exit_code == 2
    assert "e.parquet: row 2: attribute 'n'" in result.stderr
    result = match(subscriptions, path, "--attribute", "n=integer", "--on-error", "quarantine")
    assert result.exit_code == 1
    assert pairs(result.stdout) == [(0, 1), (3, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "nope"], "there is no engine 'nope'"),
        (["-o", "matches.xml"], "unknown kind of file"),
        (["-o", "nowhere/m.csv"], "there is no directory"),
        (["-o", "events.csv"], "is one of the inputs"),
        (["--quarantine", "s.txt"], "is one of the inputs"),
        (["--attribute", "x"], "--attribute takes NAME=VALUE"),
    ],
)
def test_bad_options_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    events = write_events(tmp_path, ".csv")
    before = events.read_text()
    result = match(subscriptions, Path("events.csv"), *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert events.read_text() == before


def test_missing_files_are_bad_input(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    result = match(subscriptions, tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "none.csv: there is no such file" in result.stderr


def test_many_events_in_slices_agree_with_one_by_one(tmp_path: Path) -> None:
    rng = random.Random(5)
    conditions = [f"x BETWEEN {a} AND {a + rng.randrange(40)}" for a in range(0, 400, 4)]
    subscriptions = write_text(tmp_path, "s.txt", "\n".join(conditions))
    values = [rng.randrange(450) for _ in range(6000)]
    events = write_text(tmp_path, "e.csv", "x\n" + "\n".join(map(str, values)))
    result = match(subscriptions, events)
    matcher = tocsin.Matcher(engine="oracle")
    for i, text in enumerate(conditions):
        matcher.subscribe(i + 1, text)
    by_value = {value: matcher.match({"x": value}) for value in set(values)}
    expected = [(row, s) for row, value in enumerate(values) for s in by_value[value]]
    assert pairs(result.stdout) == sorted(expected)
