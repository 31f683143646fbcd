"""Subscription files → tables that `Matcher.subscribe_many` takes.

Enters: a path; `-` is standard input. `.txt` and `.conditions` hold one condition a line, its id
being the line's number (blank lines and lines that start with # are skipped); `.jsonl` an object a
line with `id`, `where` and optionally `params`, `valid_until` and `dialect`; `.csv`, `.tsv` and
`.parquet` columns `id`, `where` and optionally `valid_until` and `dialect`. The text formats may
end in `.gz` as well. Leaves: tables of columns `id`, `where` and `valid_until`, or `id` and
parameters of a shared template, with the place of every row; and the bad rows. Conditions are
written with their dialects, and are not parsed here, except to bind their parameters.

In CSV, ids are integers when all of them are written as integers are, otherwise strings.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.encode.csv_files import CsvRecords
from tocsin.encode.dialects import SAMPLE_BYTES, find_dialect
from tocsin.encode.files import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    BadLine,
    Input,
    Numbers,
    check_content,
    fail,
    format_of,
    guess_format,
    open_text,
    to_numbers,
)
from tocsin.encode.json_lines import parse_json_object
from tocsin.errors import DuplicateSubscriptionError, SubscriptionError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.dialects import SQL, check, write
from tocsin.language.timestamps import parse_timestamp
from tocsin.loading import written_table
from tocsin.model import INT64_MAX, INT64_MIN, Kind, SubscriptionId, check_id, kind_of
from tocsin.normalize.bind import bind

MIN_GROUP = 8
"""Fewer subscriptions with one template have their parameters written into their texts."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_COLUMNS = ("id", "where", "valid_until", "dialect")
_RESERVED = frozenset(_COLUMNS)


class SubscriptionChunk(NamedTuple):
    """Some subscriptions of a file; `places` are lines from 1, or for Parquet rows from 0."""

    table: pa.Table
    places: Numbers
    where: str | None = None


class SubscriptionFile:
    """A subscription file; iterate over it for its tables. Rows that are none go to `bad`."""

    def __init__(self, path: str | Path, dialect: str = SQL) -> None:
        self.dialect = check(dialect)
        self.source = Input(path)
        self.path = Path(self.source.name)
        self.format = _format_of(self.source)
        self.place = "row" if self.format == "parquet" else "line"
        self.bad: list[BadLine] = []
        self.fraction = 0.0
        self.has_integer_ids = True
        """Whether all ids read so far are integers."""

    def __iter__(self) -> Iterator[SubscriptionChunk]:
        readers = {
            "txt": self._read_conditions,
            "jsonl": self._read_json,
            "csv": self._read_csv,
            "tsv": self._read_csv,
            "parquet": self._read_parquet,
        }
        for part in readers[self.format]():
            self.has_integer_ids &= pa.types.is_integer(part.table["id"].type)
            if self.format == "jsonl":  # each row says its own
                yield part
            else:
                yield part._replace(table=written_table(part.table, self.dialect))
        self.fraction = 1.0

    def _read_conditions(self) -> Iterator[SubscriptionChunk]:
        texts: list[str] = []
        places: list[int] = []
        line = 0
        with open_text(self.source) as source:
            while raw := source.read_line():
                line += 1
                try:
                    text = raw.decode().strip()
                except UnicodeDecodeError:
                    self._refuse(line, "not UTF-8", raw)
                    continue
                if text and not text.startswith("#"):
                    texts.append(text)
                    places.append(line)
                if len(texts) == CHUNK_ROWS:
                    self.fraction = source.fraction
                    yield _text_table(places, texts, to_numbers(places))
                    texts, places = [], []
        if texts:
            yield _text_table(places, texts, to_numbers(places))

    def _refuse(self, line: int, reason: str, raw: bytes) -> None:
        self.bad.append(BadLine(line, reason, raw.decode(errors="replace").rstrip("\r\n")))

    def _read_json(self) -> Iterator[SubscriptionChunk]:
        seen: set[SubscriptionId] = set()
        line = 0
        groups: dict[_Group, list[_Row]] = {}
        n_rows = 0
        with open_text(self.source) as source:
            while raw := source.read_line():
                line += 1
                if raw.isspace():
                    continue
                try:
                    row = _to_row(parse_json_object(raw), line, self.dialect)
                    if row.id in seen:
                        raise DuplicateSubscriptionError(row.id)
                except (ValueError, SubscriptionError) as error:
                    self._refuse(line, str(error), raw)
                    continue
                seen.add(row.id)
                groups.setdefault(_group_of(row), []).append(row)
                n_rows += 1
                if n_rows == CHUNK_ROWS:
                    self.fraction = source.fraction
                    yield from self._to_tables(groups)
                    groups, n_rows = {}, 0
        yield from self._to_tables(groups)

    def _to_tables(self, groups: Mapping[_Group, list[_Row]]) -> Iterator[SubscriptionChunk]:
        """Make tables of rows with one template, and of all rows with plain texts."""
        plain: dict[type, list[_Row]] = {}
        for group, rows in groups.items():
            names = {name for name, _ in group.kinds}
            if not rows[0].params:
                plain.setdefault(group.id_type, []).extend(rows)
            elif (
                len(rows) < MIN_GROUP or names & _RESERVED or not _fits(rows[0]) or group.has_lists
            ):
                plain.setdefault(group.id_type, []).extend(self._write_params(rows))
            else:
                columns = {name: pa.array([row.params[name] for row in rows]) for name in names}
                yield _rows_table(rows, columns, rows[0].where)
        for rows in plain.values():
            if rows:
                yield _rows_table(rows, {"where": pa.array([r.where for r in rows])}, None)

    def _write_params(self, rows: list[_Row]) -> Iterator[_Row]:
        for row in rows:
            try:
                bound = bind(parse(row.where), row.params)
            except SubscriptionError as error:
                self.bad.append(BadLine(row.line, str(error), row.where))
                continue
            yield row._replace(where=print_expression(bound), params={})

    def _read_csv(self) -> Iterator[SubscriptionChunk]:
        self.source.keep()
        with open_text(self.source) as source:
            separator = "\t" if self.format == "tsv" else None
            sample = source.read_block(SAMPLE_BYTES)
            dialect = find_dialect(sample, separator=separator, has_header=True)
        with open_text(self.source) as source:
            records = CsvRecords(source, CHUNK_BYTES, dialect)
            at = self._columns(records.names)
            blocks = []
            for block in records.blocks():
                self.bad.extend(block.bad)
                blocks.append((block.lines, [block.columns[i] for i in at.values()]))
                self.fraction = source.fraction / 2
        integers = all(_are_integers(columns[0]) for _, columns in blocks)
        for lines, columns in blocks:
            table = pa.table(columns, names=list(at))
            for name in ("id", "where"):
                lines, table = self._drop_null(lines, table, name)
            if integers:
                table = table.set_column(0, "id", table["id"].cast(pa.int64()))
            lines, table = self._to_moments(lines, table)
            yield SubscriptionChunk(table, lines)

    def _columns(self, names: list[str]) -> dict[str, int]:
        """Return the positions of the columns that we read."""
        for name in ("id", "where"):
            if name not in names:
                fail(self.path, f"there is no column {name!r} among {', '.join(names)}", None)
        return {name: names.index(name) for name in _COLUMNS if name in names}

    def _drop_null(self, places: Numbers, table: pa.Table, name: str) -> tuple[Numbers, pa.Table]:
        if not table[name].null_count:
            return places, table
        missing = pc.is_null(table[name]).to_numpy()
        self.bad.extend(BadLine(int(p), f"there is no {name}", "") for p in places[missing])
        return places[~missing], table.filter(pa.array(~missing))

    def _to_moments(self, places: Numbers, table: pa.Table) -> tuple[Numbers, pa.Table]:
        """Turn a text column `valid_until` into timestamps."""
        at = table.schema.get_field_index("valid_until")
        if at < 0 or not pa.types.is_string(table.schema.field(at).type):
            return places, table
        texts = table[at].to_pylist()
        moments = [None if text is None else parse_timestamp(text) for text in texts]
        table = table.set_column(at, "valid_until", pa.array(moments, _TIMESTAMP))
        kept = [m is not None or t is None for m, t in zip(moments, texts, strict=True)]
        for place, text, keep in zip(places.tolist(), texts, kept, strict=True):
            if not keep:
                self.bad.append(BadLine(place, f"valid_until {text!r} is not a timestamp", ""))
        mask = pa.array(kept, pa.bool_())
        return places[mask.to_numpy(zero_copy_only=False)], table.filter(mask)

    def _read_parquet(self) -> Iterator[SubscriptionChunk]:
        first = 0
        self.source.keep()
        with self.source.open() as stream, pq.ParquetFile(stream) as file:
            columns = list(self._columns(file.schema_arrow.names))
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=columns):
                end = first + batch.num_rows
                places = to_numbers(range(first, end))
                places, table = self._to_moments(places, pa.Table.from_batches([batch]))
                self.fraction = end / max(1, file.metadata.num_rows)
                yield SubscriptionChunk(table, places)
                first = end


def _format_of(source: Input) -> str:
    """Return the format that a suffix names, or the first bytes of standard input."""
    if not source.is_stdin:
        return format_of(source.path, ("txt", "jsonl", "csv", "tsv", "parquet"))
    check_content(source)
    name = guess_format(source)
    if name == "csv":
        first = source.peek().partition(b"\n")[0].decode(errors="replace").lower()
        columns = set(re.split(r"[^a-z_]+", first))
        return "csv" if {"id", "where"} <= columns else "txt"
    return name


class _Row(NamedTuple):
    line: int
    id: SubscriptionId
    where: str
    params: Mapping[str, Any]
    valid_until: dt.datetime | None


class _Group(NamedTuple):
    """What rows of one table have in common; a column has one kind."""

    where: str | None
    id_type: type
    kinds: frozenset[tuple[str, Kind | None]]
    has_lists: bool


def _group_of(row: _Row) -> _Group:
    kinds = frozenset((name, kind_of(value)) for name, value in row.params.items())
    has_lists = any(isinstance(value, list) for value in row.params.values())
    return _Group(row.where if row.params else None, type(row.id), kinds, has_lists)


def _to_row(values: Mapping[str, Any], line: int, dialect: str) -> _Row:
    """Check one subscription; ValueError or SubscriptionError says what is wrong with it."""
    where, params, until = (values.get(key) for key in ("where", "params", "valid_until"))
    if values.get("id") is None:
        raise ValueError("there is no id")
    if where is None:
        raise ValueError("there is no where")
    if not isinstance(where, str):
        raise ValueError("where is not a string")
    if not isinstance(params, dict | None):
        raise ValueError("params is not an object")
    for name, value in (params or {}).items():
        each_of = value if isinstance(value, list) else [value]
        if any(each is not None and kind_of(each) is None for each in each_of):
            raise ValueError(f"parameter :{name} is an object, or an array of arrays or objects")
    moment = parse_timestamp(until) if isinstance(until, str) else None
    if until is not None and moment is None:
        raise ValueError(f"valid_until {until!r} is not a timestamp")
    where = write(where, check(values.get("dialect", dialect)))
    return _Row(line, check_id(values["id"]), where, params or {}, moment)


def _fits(row: _Row) -> bool:
    """Whether a row's parameters are those of its template."""
    try:
        return set(parameter_names(parse(row.where))) == set(row.params)
    except SubscriptionError:
        return False


def _rows_table(
    rows: list[_Row], columns: Mapping[str, pa.Array], where: str | None
) -> SubscriptionChunk:
    table = pa.table({"id": pa.array([row.id for row in rows]), **columns})
    if any(row.valid_until is not None for row in rows):
        moments = pa.array([row.valid_until for row in rows], _TIMESTAMP)
        table = table.append_column("valid_until", moments)
    return SubscriptionChunk(table, to_numbers([row.line for row in rows]), where)


def _text_table(ids: list[int], texts: list[str], places: Numbers) -> SubscriptionChunk:
    table = pa.table({"id": pa.array(ids, pa.int64()), "where": pa.array(texts, pa.string())})
    return SubscriptionChunk(table, places)


def _are_integers(ids: pa.Array) -> bool:
    """Whether all ids are 64-bit integers in their usual writing, so that none changes."""
    plain = pc.match_substring_regex(ids, r"^(0|-?[1-9][0-9]{0,18})$")
    if not pc.all(plain, min_count=0).as_py():
        return False
    long = ids.filter(pc.greater(pc.utf8_length(ids), 18))
    return all(INT64_MIN <= int(text) <= INT64_MAX for text in long.to_pylist() if text)
