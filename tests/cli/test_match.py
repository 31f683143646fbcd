"""`tocsin match`: files in, matches out, in every format."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pty
import random
import signal
import subprocess
import sys
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
    assert result.stderr.endswith(
        "events.csv: comma-separated; firm string, price float, volume integer\n"
    )
    assert match(subscriptions, write_events(tmp_path, ".csv"), "-o", path, "-q").stderr == ""
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
        assert path.read_text() == "event,line,subscription\n"
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


TOCSIN = [sys.executable, "-m", "tocsin.cli", "match"]


def run(*args: object, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Run the command in a process of its own, with something on standard input."""
    result = subprocess.run(
        [*TOCSIN, *map(str, args)], input=stdin, capture_output=True, timeout=60
    )
    return result.returncode, result.stdout, result.stderr.decode()


GZIPPED = gzip.compress(b"firm;price\nIBM;9.5\nSAP;20\n", mtime=0)


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"firm,price\nIBM,9.5\nSAP,20\n", "comma-separated; firm string, price float"),
        (b"firm\tprice\nIBM\t9.5\nSAP\t20\n", "tab-separated; firm string, price float"),
        (b'\n{"firm": "IBM", "price": 9.5}\n{"firm": "SAP", "price": 20}\n', ""),
        (GZIPPED, "semicolon-separated; firm string"),
    ],
)
def test_events_come_from_standard_input(stdin: bytes, said: str) -> None:
    options = ("--where", "price < 10", "-w", "firm = 'SAP'", "-e", "-", "--to", "jsonl")
    code, out, errors = run(*options, stdin=stdin)
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["event"], row["subscription"]) for row in rows] == [(0, 1), (1, 2)]
    assert said in errors
    assert "2 events against 2 subscriptions: 2 matches" in errors
    assert run(*options)[0] == 2


def test_a_parquet_file_goes_through_pipes_both_ways(tmp_path: Path) -> None:
    events = write_events(tmp_path, ".parquet").read_bytes()
    code, out, _ = run("-w", "price < 10", "-e", "-", "-o", "-", "--to", "parquet", stdin=events)
    assert code == 0
    assert pq.read_table(pa.BufferReader(out)).to_pydict() == {
        "event": [0, 3],
        "subscription": [1, 1],
    }


@pytest.mark.parametrize("text", ["# cheap\nprice < 10\n", 'id;where\n2;price < 10\n',
                                  '{"id": 2, "where": "price < 10"}\n'])  # fmt: skip
def test_subscriptions_come_from_standard_input(tmp_path: Path, text: str) -> None:
    events = write_events(tmp_path, ".csv")
    code, out, _ = run("-s", "-", "-e", events, stdin=text.encode())
    assert (code, pairs(out.decode())) == (0, [(0, 2), (3, 2)])
    assert run("-s", "-", "-e", "-", stdin=text.encode())[0] == 2


def test_several_files_and_patterns_are_matched_one_after_the_other(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price < 10\n")
    for name in ("day-2.csv", "day-1.csv"):
        write_text(tmp_path, name, f"price,day\n{name[4]},x\n20,y\n")
    more = write_text(tmp_path, "more.jsonl", '{"price": 3}\n')
    out = tmp_path / "m.csv"
    result = match(subscriptions, tmp_path / "day-*.csv", "-e", more, "-o", out, "-k", "price,day")
    assert result.exit_code == 0, result.output
    assert "5 events against 1 subscriptions: 3 matches" in result.stdout
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(Path(row["file"]).name, row["event"], row["price"], row["day"]) for row in rows] == [
        ("day-1.csv", "0", "1", "x"),
        ("day-2.csv", "0", "2", "x"),
        ("more.jsonl", "0", "3", ""),
    ]
    result = match(subscriptions, tmp_path / "night-*.csv")
    assert (result.exit_code, "no file matches" in result.stderr) == (2, True)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_attributes_of_the_event_are_kept_in_every_format(tmp_path: Path, suffix: str) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price > 10\n")
    events = write_events(tmp_path, suffix)
    options = ("--keep", "volume", "-k", "firm,nothing")
    expected = [("B", 9, None), ("C", None, None)]
    result = match(subscriptions, events, *options, "--to", "jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["firm"], row["volume"], row["nothing"]) for row in rows] == expected
    result = match(subscriptions, events, *options)
    assert result.stdout == "1\t1\t9\tB\t\n2\t1\t\tC\t\n"
    path = tmp_path / "m.parquet"
    assert match(subscriptions, events, *options, "-o", path).exit_code == 0
    rows = pq.read_table(path).to_pylist()
    assert [(row["firm"], row["volume"], row["nothing"]) for row in rows] == expected
    refused = match(subscriptions, events, "--keep", "event")
    assert (refused.exit_code, "there is a column of this name" in refused.stderr) == (2, True)


def test_what_is_kept_is_escaped_as_each_format_asks(tmp_path: Path) -> None:
    at = {"at": "2024-01-01T00:00:00Z"}
    row = {"s": 'a"b\tc\n', "x": {"y": [1, "é"]}, "b": True, "f": 0.1, **at}
    events = write_text(tmp_path, "e.jsonl", json.dumps(row) + "\n")
    subscriptions = write_text(tmp_path, "s.txt", "b = TRUE\n")
    options = ("-k", "s,x.y,b,f,at", "--attribute", "at=timestamp")
    result = match(subscriptions, events, *options, "--to", "jsonl")
    written = json.loads(result.stdout)
    assert (written["s"], written["b"], written["f"]) == (row["s"], True, 0.1)
    assert json.loads(written["x.y"]) == [1, "é"]
    assert written["at"].startswith("2024-01-01T00:00:00")
    result = match(subscriptions, events, "-k", "s", "--to", "tsv")
    assert list(csv.reader(result.stdout.splitlines(keepends=True), delimiter="\t"))[1] == [
        *("0", "1", "1"),
        row["s"],
    ]


def test_dialect_and_missing_values_can_be_laid_down(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "c2 < 10\n")
    events = write_text(tmp_path, "e.dat", "A+9,5+x\nB+n/a+y\nC+7+z\n")
    options = ("--from", "csv", "-d", "+", "--no-header", "--null", "n/a", "--null", "9,5")
    result = match(subscriptions, events, *options)
    assert (result.exit_code, pairs(result.stdout)) == (0, [(2, 1)])
    assert "separated by '+', no header; c1 (not used), c2 integer, c3 (not used)" in result.stderr
    assert match(subscriptions, events, "--from", "csv", "-d", "ab").exit_code == 2


def test_one_bad_cell_does_not_silence_a_column(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "price < 10\n")
    prices = ["5", "20", "7.5"] * 40
    prices[100] = "n/a"
    events = write_text(tmp_path, "e.csv", "price\n" + "\n".join(prices))
    result = match(subscriptions, events)
    assert result.exit_code == 2
    assert "e.csv:102: attribute 'price': 'n/a' is not of kind float" in result.stderr
    result = match(subscriptions, events, "--on-error", "quarantine")
    assert result.exit_code == 1
    assert len(pairs(result.stdout)) == 80
    assert "price float (1 of 120 do not fit)" in result.stderr
    assert "line 102" in result.stderr


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("engine", ["auto", "oracle"])
def test_what_no_row_has_is_said_at_the_end(tmp_path: Path, suffix: str, engine: str) -> None:
    texts = ("pirce < 10", "firm > 5 OR price < 0", "volume IS NULL", "reserved IS NULL",
             "at > TIMESTAMP '2024-01-01'", "price < 5 AND price > 6")  # fmt: skip
    subscriptions = write_text(tmp_path, "s.txt", "\n".join(texts))
    events = write_events(tmp_path, suffix)
    result = match(subscriptions, events, "--engine", engine)
    lines = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert sorted(line.removeprefix("warning: ").split(";")[0] for line in lines) == [
        "at: no row has it",
        "firm: its values are strings, and conditions compare it with numbers",
        "pirce: no row has it",
        "the condition can never match: 1 subscription(s) (6)",
    ]
    assert "did you mean 'price'?" in result.stderr
    summary = json.loads(match(subscriptions, events, "--json").stderr)
    assert len(summary["warnings"]) == 4
    good = write_text(tmp_path, "good.txt", "price < 10\n")
    assert "warning" not in match(good, events).stderr


COMPUTED = (
    "price * volume > 100", "lower(firm) = 'b'", "at > TIMESTAMP '2024-01-01' + INTERVAL '1 day'",
    "matches(firm, 'a')", "coalesce(nothing, volume) = 6", "price < volume",
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_what_computed_values_use_is_read_and_what_no_row_has_is_said(
    tmp_path: Path, suffix: str
) -> None:
    subscriptions = write_text(tmp_path, "s.txt", "\n".join(COMPUTED))
    rows = [{**event, "at": f"2024-01-0{day}"} for day, event in enumerate(EVENTS, 1)]
    if suffix == ".csv":
        columns = ["firm", "price", "volume", "at"]
        lines = [",".join(str(row.get(name, "")) for name in columns) for row in rows]
        events = write_text(tmp_path, "e.csv", "\n".join([",".join(columns), *lines]))
    else:
        events = write_text(tmp_path, "e.jsonl", "\n".join(map(json.dumps, rows)))
    result = match(subscriptions, events)
    assert pairs(result.stdout) == sorted(
        [(0, 4), (1, 1), (1, 2), (2, 3), (3, 2), (3, 3), (3, 5), (3, 6)]
    )
    assert "no row has" not in result.stderr
    wrong = ("pirce * volume > 1", "lower(price) = 'a'", "ANY(firm) = 'A'")
    result = match(write_text(tmp_path, "s.txt", "\n".join(wrong)), events)
    assert "pirce: no row has it; did you mean 'price'?" in result.stderr
    assert "price: its values are numbers, and conditions compare it with strings" in result.stderr
    assert "firm: its values are strings, and conditions ask for elements" in result.stderr


def test_an_attribute_that_only_a_late_row_has_is_no_warning(tmp_path: Path) -> None:
    rows = [{"x": i} for i in range(3000)] + [{"x": 1, "late": "a"}]
    events = write_text(tmp_path, "e.jsonl", "\n".join(map(json.dumps, rows)))
    subscriptions = write_text(tmp_path, "s.txt", "late = 'a' AND x = 1\n")
    result = match(subscriptions, events)
    assert (pairs(result.stdout), "warning" in result.stderr) == ([(3000, 1)], False)


def test_a_store_is_taken_wherever_subscriptions_are(tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "price < 10")
    matcher.save(tmp_path / "store")
    events = write_events(tmp_path, ".csv")
    for flag in ("-s", "--store"):
        args = ["match", flag, str(tmp_path / "store"), "-e", str(events)]
        result = CliRunner().invoke(app, args)
        assert (result.exit_code, result.stdout) == (0, "0\ta\n3\ta\n")
    both = [*args, "--where", "price < 10"]
    assert CliRunner().invoke(app, both).exit_code == 2


def test_the_summary_has_the_whole_time(tmp_path: Path) -> None:
    subscriptions = write_text(tmp_path, "s.txt", SUBSCRIPTIONS)
    result = match(subscriptions, write_events(tmp_path, ".csv"), "--json")
    summary = json.loads(result.stderr)
    parts = ("loading", "reading", "matching", "writing")
    assert sum(summary[f"seconds_{part}"] for part in parts) <= summary["seconds"]
    assert summary["events_per_second"] <= 4 / summary["seconds"] + 0.1
    assert summary["seconds_of_processor"] > 0


def test_an_interruption_leaves_neither_a_file_nor_a_traceback(tmp_path: Path) -> None:
    events, out = tmp_path / "e.jsonl", tmp_path / "m.parquet"
    os.mkfifo(events)
    command = [*TOCSIN, "-w", "x < 10", "-e", str(events), "-o", str(out)]
    screen, terminal = pty.openpty()
    with subprocess.Popen(command, stderr=terminal, stdout=terminal) as process:
        os.close(terminal)
        with events.open("wb", buffering=0) as pipe:
            pipe.write(b'{"x": 1, "y": "' + b"y" * 1000 + b'"}\n')
            shown = b""
            while b"events" not in shown:  # the bars are there before the first event is
                shown += os.read(screen, 1000)
            for _ in range(5000):
                pipe.write(b'{"x": 1, "y": "' + b"y" * 1000 + b'"}\n')
            while b"matches" not in shown:
                shown += os.read(screen, 1000)
            process.send_signal(signal.SIGINT)
            try:
                while chunk := os.read(screen, 1000):
                    shown += chunk
            except OSError:
                pass  # the process has closed its end
            assert process.wait(60) == 130
    os.close(screen)
    assert b"Traceback" not in shown
    assert b"interrupted" in shown
    assert [each.name for each in tmp_path.iterdir()] == ["e.jsonl"]
