"""Event files: what is in them comes out, whatever is odd about them is said."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.encode.readers import BadLine, EventFile, Hints, read_events
from tocsin.errors import ArgumentError, FileFormatError
from tocsin.model import EventType

MOMENT = dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def rows_of(file: EventFile) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for chunk in file:
        found += chunk.events if isinstance(chunk.events, list) else chunk.events.to_pylist()
    return found


def places_of(file: EventFile) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for chunk in file:
        assert chunk.lines is not None
        found += zip(chunk.rows.tolist(), chunk.lines.tolist(), strict=True)
    return found


def read_back(path: Path, event_type: EventType | None = None, **options: object) -> EventFile:
    return read_events(path, event_type, on_error="quarantine", **options)  # type: ignore[arg-type]


def reasons(file: EventFile) -> list[tuple[int, str]]:
    list(file)
    return [(bad.line, bad.reason) for bad in file.bad]


# --- JSON Lines ---


def test_json_values_keep_their_kinds_row_by_row(tmp_path: Path) -> None:
    lines = ['{"a": 9007199254740993, "b": {"c": 1.0}}', '{"a": "x", "b": null}', '{"a": true}']
    path = write(tmp_path, "e.jsonl", "\n".join(lines))
    found = rows_of(read_events(path))
    assert found == [{"a": 2**53 + 1, "b": {"c": 1.0}}, {"a": "x", "b": None}, {"a": True}]
    assert [type(row["a"]) for row in found] == [int, str, bool]


def test_json_text_that_looks_like_a_moment_stays_text_unless_declared(tmp_path: Path) -> None:
    path = write(
        tmp_path, "e.ndjson", '{"t": "2024-01-01T10:00:00", "x": {"t": "2024-01-01 10:00"}}'
    )
    assert rows_of(read_events(path))[0]["t"] == "2024-01-01T10:00:00"
    typed = EventType("E", {"t": "timestamp", "x.t": "timestamp"})
    assert rows_of(read_events(path, typed)) == [{"t": MOMENT, "x": {"t": MOMENT}}]


def test_json_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "e.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert places_of(read_events(path)) == [(0, 1), (1, 4)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not JSON: Expecting value (column 1)"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter (column 8)"),
        (b'{"a": 1} {"a": 2}', "not JSON: more text after the first value (column 9)"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"a": 9223372036854775808}', "an integer beyond 64 bits"),
        (b'{"a": [-9223372036854775809]}', "an integer beyond 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "an integer beyond 64 bits"),
        (b'{"a": 1e999}', "a number beyond the range of 64-bit floats"),
        (b'{"a": NaN}', "not JSON: NaN"),
        (b'{"a": "\\ud800"}', "a string is not valid Unicode (half a surrogate pair)"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_bad_json_line_is_reported_with_its_number(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = write(tmp_path, "e.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    file = read_back(path)
    assert places_of(file) == [(0, 1), (2, 3)]
    assert file.bad == [BadLine(2, reason, line.decode(errors="replace"))]
    with pytest.raises(FileFormatError) as caught:
        list(read_events(path))
    assert (caught.value.line, caught.value.message) == (2, reason)


def test_the_limits_of_64_bits_are_read_exactly(tmp_path: Path) -> None:
    row = {"low": -(2**63), "high": 2**63 - 1, "x": 0.1, "y": 1.7976931348623157e308}
    path = write(tmp_path, "e.jsonl", json.dumps(row))
    assert rows_of(read_events(path)) == [row]


def test_json_values_of_another_kind_than_declared_are_bad_rows(tmp_path: Path) -> None:
    typed = EventType("E", n=int, x=float, t="timestamp")
    lines = ['{"n": 2.0, "x": 3}', '{"n": 2.5}', '{"n": true}', '{"x": "1"}', '{"t": "soon"}']
    file = read_back(write(tmp_path, "e.jsonl", "\n".join(lines)), typed)
    assert rows_of(file) == [{"n": 2, "x": 3}]
    assert [(bad.line, bad.reason) for bad in file.bad] == [
        (2, "attribute 'n' is declared integer, not float"),
        (3, "attribute 'n' is declared integer, not boolean"),
        (4, "attribute 'x' is declared float, not string"),
        (5, "attribute 't': 'soon' is not of kind timestamp"),
    ]


def test_chunks_are_bounded_and_do_not_change_the_rows(tmp_path: Path) -> None:
    rows = [{"a": i, "b": "x" * (i % 7)} for i in range(500)]
    path = write(tmp_path, "e.jsonl", "\n".join(map(json.dumps, rows)))
    file = read_events(path, chunk_bytes=100)
    assert rows_of(file) == rows
    assert len(list(file)) > 50
    assert file.fraction == 1.0


# --- CSV ---


def test_csv_kinds_are_found_over_the_whole_file(tmp_path: Path) -> None:
    text = "i,f,b,s,e,late\n" + "1,2,true,x,,1\n" * 40 + "-2,2.5,FALSE,7,,no\n" * 5
    path = write(tmp_path, "e.csv", text)
    for chunk_bytes in (1, 50, 1 << 20):
        file = read_events(path, chunk_bytes=chunk_bytes)
        types = {str(chunk.events.schema.types) for chunk in file}
        kinds = [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.string(), pa.string()]
        assert types == {str(kinds)}
        last = {"i": -2, "f": 2.5, "b": False, "s": "7", "e": None, "late": "no"}
        assert rows_of(file)[-1] == last
        assert rows_of(file)[0] == {"i": 1, "f": 2.0, "b": True, "s": "x", "e": None, "late": "1"}


def test_csv_never_infers_timestamps_but_takes_declared_ones(tmp_path: Path) -> None:
    texts = ["2024-01-01 10:00:00", "2024-01-01T12:00:00+02:00", "2024-01-01", " ", ""]
    path = write(tmp_path, "e.csv", "t,n\n" + "".join(f"{text},1\n" for text in texts))
    assert rows_of(read_events(path))[0]["t"] == texts[0]
    file = read_back(path, EventType("E", t="timestamp"))
    midnight = MOMENT.replace(hour=0)
    assert [row["t"] for row in rows_of(file)] == [MOMENT, MOMENT, midnight, None]
    assert reasons(file)[0] == (5, "attribute 't': ' ' is not of kind timestamp")


def test_declared_kinds_win_over_what_csv_values_look_like(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "code,x\n007,1\n42,2\n")
    assert rows_of(read_events(path)) == [{"code": 7, "x": 1}, {"code": 42, "x": 2}]
    typed = EventType("E", code=str, x=float)
    assert rows_of(read_events(path, typed)) == [
        {"code": "007", "x": 1.0},
        {"code": "42", "x": 2.0},
    ]


def test_quotes_line_breaks_and_blank_lines_in_csv(tmp_path: Path) -> None:
    text = 'a,"b ""c"""\r\n1,"x, ""y""\nz"\r\n\r\n2,""\r\n3,plain\r\n'
    file = read_events(write(tmp_path, "e.csv", text))
    assert rows_of(file) == [
        {"a": 1, 'b "c"': 'x, "y"\nz'},
        {"a": 2, 'b "c"': None},
        {"a": 3, 'b "c"': "plain"},
    ]
    assert places_of(file) == [(0, 2), (1, 5), (2, 6)]


def test_bad_csv_records_are_reported_with_their_lines(tmp_path: Path) -> None:
    data = b'a,b\n1,x\n2\n3,y,z\n4,\xff\n5\r,6\n7,"ok\nok"\n8,"never closed\n9,x\n'
    file = read_back(write(tmp_path, "e.csv", data))
    assert rows_of(file) == [{"a": 1, "b": "x"}, {"a": 7, "b": "ok\nok"}]
    assert file.bad == [
        BadLine(3, "1 fields where the header names 2", "2"),
        BadLine(4, "3 fields where the header names 2", "3,y,z"),
        BadLine(5, "not UTF-8", "4,�"),
        BadLine(6, "a carriage return outside quotes", "5\r,6"),
        BadLine(9, "a quote is not closed", '8,"never closed\n9,x'),
    ]
    with pytest.raises(FileFormatError, match=r"e\.csv:3: 1 fields"):
        list(read_events(tmp_path / "e.csv"))


def test_csv_numbers_beyond_64_bits_are_bad_rows_not_rounded(tmp_path: Path) -> None:
    path = write(
        tmp_path, "e.csv", "n,x\n9223372036854775807,1.5\n9223372036854775808,2\n3,1e999\n"
    )
    file = read_back(path)
    assert rows_of(file) == [{"n": 2**63 - 1, "x": 1.5}]
    assert [(bad.line, bad.reason) for bad in file.bad] == [
        (3, "attribute 'n': an integer beyond 64 bits"),
        (4, "attribute 'x': a number beyond the range of 64-bit floats"),
    ]


def test_csv_infinities_and_nan_are_floats_beside_numbers_only(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "x,name\n1,nan\n-inf,inf\nNaN,Infinity\n")
    first, second, third = rows_of(read_events(path))
    assert (first["x"], second["x"], first["name"], third["name"]) == (
        1.0,
        -math.inf,
        "nan",
        "Infinity",
    )
    assert isinstance(third["x"], float)
    assert math.isnan(third["x"])


@pytest.mark.parametrize("chunk_bytes", [1, 7, 40, 1 << 20])
def test_random_csv_is_read_alike_however_it_is_cut(tmp_path: Path, chunk_bytes: int) -> None:
    rng = random.Random(chunk_bytes)
    pieces = ["a", "1", ",", '"', '""', "\n", "\r\n", " ", "é", ",,", "x,y\n"]
    for _ in range(30):
        body = "".join(rng.choice(pieces) for _ in range(rng.randrange(40)))
        path = write(tmp_path, "e.csv", "p,q\n" + body)
        whole, cut = read_back(path), read_back(path, chunk_bytes=chunk_bytes)
        assert rows_of(cut) == rows_of(whole)
        assert cut.bad == whole.bad
        assert places_of(cut) == places_of(whole)


PIECES = ['"', '"', '""', ",", ",", "\n", "\r\n", "a", "bc", "é", " ", ',"', '",', '"\n', '\n"']


def python_records(text: str) -> tuple[list[tuple[int, list[str]]], list[tuple[int, str]]]:
    """Read a CSV text whole with Python's reader: rows of two fields, and what is wrong."""
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])
    ended = False

    def feed() -> Iterator[str]:
        nonlocal ended
        yield from lines
        ended = True

    reader, good, bad, line = csv.reader(feed()), [], [], 1
    for record in reader:
        if ended:
            bad.append((line, "a quote is not closed"))
        elif record and len(record) != 2:
            bad.append((line, f"{len(record)} fields where the header names 2"))
        elif record:
            good.append((line, record))
        line = reader.line_num + 1
    return good, bad


def test_csv_is_read_as_pythons_reader_reads_it_wherever_blocks_end(tmp_path: Path) -> None:
    event_type = EventType("E", p=str, q=str)
    choose = random.Random(4)
    n_good = n_bad = 0
    for _ in range(150):
        rows = ["".join(choose.choices(PIECES, k=choose.randint(1, 12))) for _ in range(6)]
        rows += ['5" pipe,ok', 'x,"a\nb"', '"q""r",s'] * choose.randint(0, 1)
        choose.shuffle(rows)
        text = "p,q\n" + "\n".join(rows) + choose.choice(["", "\n"])
        good, bad = python_records(text)
        n_good, n_bad = n_good + len(good), n_bad + len(bad)
        path = write(tmp_path, "e.csv", text)
        for chunk_bytes in (choose.randint(1, 40), choose.randint(1, 40), 1 << 20):
            file = read_back(path, event_type, chunk_bytes=chunk_bytes)
            found = [list(row.values()) for row in rows_of(file)]
            assert found == [[field or None for field in record] for _, record in good[1:]], text
            assert [line for _, line in places_of(read_back(path, event_type))] == [
                line for line, _ in good[1:]
            ]
            assert sorted((each.line, each.reason) for each in file.bad) == bad, text
    assert n_good > 500
    assert n_bad > 100


@pytest.mark.parametrize("first", ["1 pipe,ok\n", '5" pipe,ok\n', 'a" "b,"c" d\n'])
def test_a_quoted_line_break_at_the_end_of_a_block_does_not_cut_its_record(
    tmp_path: Path, first: str
) -> None:
    text = "name,note\n" + first + 'last,"x\nfake,row"\nafter,ok\n'
    path = write(tmp_path, "e.csv", text)
    expected = [[field or None for field in record] for _, record in python_records(text)[0][1:]]
    for chunk_bytes in range(1, len(text) + 1):
        file = read_events(path, chunk_bytes=chunk_bytes)
        assert [list(row.values()) for row in rows_of(file)] == expected


def test_a_quote_that_is_not_closed_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = ("steel pipe,1", '5" pipe,1', '"5"" pipe",1', '5"" pipe,"1"')
    for first, rest in itertools.product(lines, ("", "y,2\n")):
        path = write(tmp_path, "e.csv", f'a,b\n{first}\nx,"unclosed\n{rest}')
        with pytest.raises(FileFormatError, match=r"e\.csv:3: a quote is not closed"):
            list(read_events(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,a\n1,2,3\n", "column 'a' appears twice"),
        ("a,,b\n", "column 2 has no name"),
        ("\na,b\n", "the first line must name the columns"),
        ('"a,b\n1,2\n', "a quote is not closed"),
    ],
)
def test_a_bad_csv_header_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        list(read_back(write(tmp_path, "e.csv", text)))
    assert caught.value.line == 1


def test_a_csv_header_alone_has_no_events(tmp_path: Path) -> None:
    for text in ("a,b", "a,b\n", "a,b\r\n\r\n"):
        assert rows_of(read_events(write(tmp_path, "e.csv", text))) == []


@pytest.mark.parametrize("chunk_bytes", [1, 300, 1 << 20])
def test_a_bad_cell_is_a_bad_row_and_not_a_column_of_strings(
    tmp_path: Path, chunk_bytes: int
) -> None:
    prices = [f"{i}.5" for i in range(500)]
    prices[450] = "n/a"
    path = write(tmp_path, "e.csv", "firm,price\n" + "".join(f"A,{p}\n" for p in prices))
    file = read_back(path, chunk_bytes=chunk_bytes)
    rows = rows_of(file)
    assert [row["price"] for row in rows] == [float(p) for p in prices if p != "n/a"]
    (bad,) = file.bad
    assert (bad.line, bad.original) == (452, "A,n/a")
    assert bad.reason.startswith(
        "attribute 'price': 'n/a' is not of kind float, as 499 of the 500 values are"
    )
    with pytest.raises(FileFormatError, match=r"e\.csv:452: attribute 'price'"):
        list(read_events(path, chunk_bytes=chunk_bytes))
    lenient = read_events(path, chunk_bytes=chunk_bytes, hints=Hints(nulls=("n/a",)))
    assert rows_of(lenient)[450] == {"firm": "A", "price": None}
    assert len(rows_of(read_events(path, EventType("E", price=str)))) == 500


@pytest.mark.parametrize("chunk_bytes", [1, 90, 1 << 20])
def test_a_column_that_is_often_text_is_text_and_the_file_says_so(
    tmp_path: Path, chunk_bytes: int
) -> None:
    codes = ["7", "007", "12", "1e3", "K1", "x", "5", "true"]
    path = write(tmp_path, "e.csv", "code,n\n" + "".join(f"{code},1\n" for code in codes))
    file = read_events(path, chunk_bytes=chunk_bytes)
    assert [row["code"] for row in rows_of(file)] == codes
    assert file.describe() == (
        "comma-separated; code string (5 of 8 values are numbers), n integer"
    )


def test_a_first_block_of_integers_is_read_again_as_what_later_values_show(tmp_path: Path) -> None:
    text = "code,x\n" + "007,1\n" * 30 + "A7,2.5\n" * 30
    path = write(tmp_path, "e.csv", text)
    for chunk_bytes in (1, 60, 1 << 20):
        rows = rows_of(read_events(path, chunk_bytes=chunk_bytes))
        assert {row["code"] for row in rows} == {"007", "A7"}
        assert {type(row["x"]) for row in rows} == {float}


def test_a_file_that_is_too_long_to_keep_is_read_twice_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a,b\n" + "".join(f"{i},{'x' if i == 700 else i}\n" for i in range(1000))
    path = write(tmp_path, "e.csv", text)
    once = read_back(path, chunk_bytes=500)
    expected = rows_of(once)
    monkeypatch.setattr("tocsin.encode.csv_files.KEPT_BYTES", 2000)
    twice = read_back(path, chunk_bytes=500)
    assert rows_of(twice) == expected
    assert twice.bad == once.bad != []
    assert twice.fraction == 1.0


def test_columns_that_nobody_needs_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "a,b.c,d\n1,2,x\n3,4,5\n")
    file = read_events(path, hints=Hints(attributes={"a", "b.c"}))
    assert rows_of(file) == [{"a": 1, "b.c": 2}, {"a": 3, "b.c": 4}]
    assert file.describe() == "comma-separated; a integer, b.c integer, d (not used)"
    assert len(rows_of(read_events(path, hints=Hints(attributes={"z"})))) == 2
    declared = read_back(path, EventType("E", d=int), hints=Hints(attributes={"a"}))
    assert rows_of(declared) == [{"a": 3, "d": 5}]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.csv", "a;b\n1,5;2\n", "semicolon-separated; a string, b integer"),
        ("e.csv", "a\tb\n1\t2\n", "tab-separated; a integer, b integer"),
        ("e.tsv", "a,b\tc\n1\t2\n", "tab-separated; a,b integer, c integer"),
        ("e.csv", "a|b\n1|2\n3|4\n", "bar-separated; a integer, b integer"),
        ("e.csv", 'a,"b;c;d"\n1,2\n', "comma-separated; a integer, b;c;d integer"),
        ("e.csv", "7,x,2.5\n8,y,3.5\n", "comma-separated, no header; "
                                         "c1 integer, c2 string, c3 float"),
        ("e.csv", "IBM,20,25\nA,1,2\nB,3,4\n", "comma-separated, no header; "
                                                      "c1 string, c2 integer, c3 integer"),
        ("e.csv", "id,2024\n1,5\n", "comma-separated; id integer, 2024 integer"),
        ("e.csv", "x,y\nz,w\n", "comma-separated; x string, y string"),
        ("e.csv", "1,2\n", "comma-separated; 1 (empty), 2 (empty)"),
    ],
)  # fmt: skip
def test_a_csv_file_says_what_it_was_taken_for(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    file = read_events(write(tmp_path, name, text))
    list(file)
    assert file.describe() == said


def test_a_dialect_that_is_laid_down_is_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "a;b,1\n5;6,2\n")
    file = read_events(path, hints=Hints(separator=";", has_header=False))
    assert rows_of(file) == [{"c1": "a", "c2": "b,1"}, {"c1": "5", "c2": "6,2"}]
    assert places_of(file) == [(0, 1), (1, 2)]
    years = write(tmp_path, "years.csv", "2024,2025\n1,2\n")
    assert rows_of(read_events(years, hints=Hints(has_header=True))) == [{"2024": 1, "2025": 2}]


def test_a_format_can_be_named_where_the_suffix_does_not_say_it(tmp_path: Path) -> None:
    path = write(tmp_path, "e.log", '{"a": 1}\n')
    assert rows_of(read_events(path, format="jsonl")) == [{"a": 1}]
    with pytest.raises(ArgumentError, match="format of events"):
        read_events(path, format="xml")


# --- Parquet and files in general ---


def test_parquet_comes_in_batches_with_row_numbers(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    table = pa.table({"a": range(100_000), "s": [{"t": str(i % 9)} for i in range(100_000)]})
    pq.write_table(table, path, row_group_size=30_000)
    chunks = list(read_events(path))
    assert len(chunks) > 1
    assert [int(row) for chunk in chunks for row in chunk.rows] == list(range(100_000))
    assert pa.Table.from_batches([chunk.events for chunk in chunks]) == table
    assert chunks[0].lines is None


def test_packed_text_files_are_unpacked(tmp_path: Path) -> None:
    assert rows_of(read_events(write(tmp_path, "e.csv.gz", "a\n1\n"))) == [{"a": 1}]
    assert rows_of(read_events(write(tmp_path, "e.JSONL.gz", '{"a": 1}'))) == [{"a": 1}]


@pytest.mark.parametrize("name", ["e.jsonl", "e.csv", "e.parquet"])
def test_an_empty_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_events(tmp_path / name)
    with pytest.raises(FileFormatError, match="the file is empty"):
        read_events(write(tmp_path, name, ""))
    folder = tmp_path / "folder" / name
    folder.mkdir(parents=True)
    with pytest.raises(FileFormatError, match="Is a directory"):
        read_events(folder)


def test_a_json_file_of_blank_lines_is_empty(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="the file is empty"):
        list(read_events(write(tmp_path, "e.jsonl", "\n \n")))


@pytest.mark.parametrize("name", ["e.xml", "e", "e.gz", "e.parquet.gz", ".jsonl"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match="unknown kind of file"):
        read_events(write(tmp_path, name, "a\n1\n"))


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    pq.write_table(pa.table({"a": range(1000)}), good)
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(good.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="not a readable Parquet file"):
        list(read_events(bad))
    packed = tmp_path / "e.csv.gz"
    packed.write_bytes(gzip.compress(b"a\n" + b"1\n" * 10_000)[:-9])
    with pytest.raises(FileFormatError, match="damaged gzip file"):
        list(read_events(packed))
    packed.write_bytes(b"a\n1\n")
    with pytest.raises(FileFormatError, match="damaged gzip file"):
        list(read_events(packed))


def test_on_error_takes_two_words_only(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="quarantine"):
        read_events(write(tmp_path, "e.csv", "a\n"), on_error="ignore")
