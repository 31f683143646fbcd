"""Lines of JSON or CSV → columns of the declared kinds, in Spark's tasks.

Enters: Arrow batches with a binary column `text`, and other columns. Leaves: a column for each
declared attribute, the other columns, and `MARKS`, which are null unless the line is not an event
of the declared type.

A block of lines is first parsed by Arrow. If that fails, or could accept more than we do, each line
is parsed by the readers of `tocsin match`. These define what an event is: Arrow's result is used
only where it is the same, so it does not matter how lines are divided into blocks.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from tocsin.encode.csv_files import convert_texts
from tocsin.encode.json_lines import declared_paths, fit, parse_json_object
from tocsin.model import EventType, Kind

MARKS = CODE, REASON, ORIGINAL = "_tocsin_code", "_tocsin_reason", "_tocsin_original"
"""The columns that mark a row that is not an event: a code, a text, and the row itself."""
TEXT = "text"
ARROW_TYPES: dict[Kind, pa.DataType] = {
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
# Texts that Arrow's reader may parse differently: long numbers, large exponents, NaN, escapes.
_ODD_JSON = re.compile(rb"\d{16}|[eE]\+?0*[1-9]\d\d|NaN|Inf|\\u[dD]|\\u0000")
_WHOLE_OBJECT = rb"^[ \t]*\{(?s:.*)\}[ \t]*$"
MAX_ORIGINAL = 100_000


@dataclass(frozen=True)
class LineFormat:
    """The format of lines: `columns` are the fields of a CSV line; without any, it is JSON."""

    event_type: EventType
    required: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    delimiter: str = ","


Bad = dict[int, tuple[str, str]]
"""By line: the code and the reason why it is not an event."""


def parser(form: LineFormat) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark's tasks run over their batches of lines."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield parse_batch(batch, form)

    return run


def parse_batch(batch: pa.RecordBatch, form: LineFormat) -> pa.RecordBatch:
    """Parse one batch of lines."""
    texts = batch.column(TEXT)
    columns, bad = _parse(texts, form)
    for name in form.required:
        for row in pc.indices_nonzero(columns[name].is_null()).to_pylist():
            bad.setdefault(row, ("missing", f"attribute {name!r} is required"))
    if bad:
        columns = {name: _blank(column, bad) for name, column in columns.items()}
    carried = {name: batch.column(name) for name in batch.schema.names if name != TEXT}
    marks: list[list[str | None]] = [[None, None, None] for _ in range(len(texts))] if bad else []
    for row, (code, reason) in bad.items():
        marks[row] = [code, reason, _original(texts[row].as_py())]
    n = len(texts)
    for i, name in enumerate(MARKS):
        values = [mark[i] for mark in marks] if bad else [None] * n
        carried[name] = pa.array(values, pa.string())
    return pa.RecordBatch.from_pydict({**columns, **carried})


def _blank(column: pa.Array, bad: Bad) -> pa.Array:
    """Set the values of bad lines to null."""
    is_good = [True] * len(column)
    for row in bad:
        is_good[row] = False
    return pc.if_else(pa.array(is_good), column, pa.scalar(None, column.type))


def _original(text: bytes | None) -> str | None:
    """Return a line as text; a very long one is cut."""
    if text is None:
        return None
    shown = text[:MAX_ORIGINAL].decode(errors="replace")
    return shown if len(text) <= MAX_ORIGINAL else f"{shown}…"


def _parse(texts: pa.Array, form: LineFormat) -> tuple[dict[str, pa.Array], Bad]:
    if len(texts) == 0:
        return _empty(form.event_type), {}
    if form.columns:
        return _parse_csv(texts, form)
    columns = _parse_plain_json(texts, form.event_type)
    return (columns, {}) if columns is not None else _parse_any_json(texts, form.event_type)


def _empty(event_type: EventType) -> dict[str, pa.Array]:
    return {name: pa.array([], ARROW_TYPES[kind]) for name, kind in event_type.attributes.items()}


# JSON.


def _parse_plain_json(texts: pa.Array, event_type: EventType) -> dict[str, pa.Array] | None:
    """Parse lines that are certainly all good; return None if some may not be."""
    if any("." in name for name in event_type.attributes):
        return None
    if texts.null_count or not pc.all(pc.match_substring_regex(texts, _WHOLE_OBJECT)).as_py():
        return None
    block = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), b"\n")[0].as_py()
    if _ODD_JSON.search(block) is not None:
        return None
    reading = {
        name: pa.string() if kind is Kind.TIMESTAMP else ARROW_TYPES[kind]
        for name, kind in event_type.attributes.items()
    }
    try:
        block.decode()
        table = pa_json.read_json(
            pa.BufferReader(block),
            pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pa_json.ParseOptions(
                explicit_schema=pa.schema(reading), unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    if table.num_rows != len(texts):  # several objects on one line
        return None
    reasons: dict[int, str] = {}
    columns = {
        name: _to_kind(table.column(name).combine_chunks(), name, kind, reasons)
        for name, kind in event_type.attributes.items()
    }
    return None if reasons else columns


def _to_kind(column: pa.Array, name: str, kind: Kind, reasons: dict[int, str]) -> pa.Array:
    if kind is not Kind.TIMESTAMP:
        return column
    return convert_texts(column, name, kind, reasons).cast(ARROW_TYPES[kind])


def _parse_any_json(texts: pa.Array, event_type: EventType) -> tuple[dict[str, pa.Array], Bad]:
    places = declared_paths(event_type)
    values: dict[str, list[object]] = {name: [None] * len(texts) for name in event_type.attributes}
    bad: Bad = {}
    for row, text in enumerate(texts.to_pylist()):
        try:
            event = parse_json_object(text or b"")
            for name, parts, kind in places:
                fit(event, name, parts, kind)
                values[name][row] = _plain(_look_up(event, parts), kind)
        except ValueError as error:
            bad[row] = (_code(str(error)), str(error))
            for column in values.values():
                column[row] = None
    columns = {
        name: pa.array(values[name], ARROW_TYPES[kind])
        for name, kind in event_type.attributes.items()
    }
    return columns, bad


def _look_up(node: Any, parts: Sequence[str]) -> object:
    """Follow a path as `fit` does: the longest name with a value counts."""
    for n_used in range(len(parts), 0, -1):
        key = ".".join(parts[:n_used])
        if not isinstance(node, dict) or node.get(key) is None:
            continue
        if n_used == len(parts):
            return node[key]
        value = _look_up(node[key], parts[n_used:])
        if value is not None:
            return value
    return None


def _plain(value: object, kind: Kind) -> object:
    """Return a value in the type of its column."""
    if kind is Kind.FLOAT and isinstance(value, int):
        return float(value)
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value


def _code(reason: str) -> str:
    if reason.endswith("not an array or object"):
        return "unknown-kind"
    return "kind" if reason.startswith("attribute ") else "syntax"


# CSV.


def _parse_csv(texts: pa.Array, form: LineFormat) -> tuple[dict[str, pa.Array], Bad]:
    plain = _plain_fields(texts, form)
    fields, bad = (plain, {}) if plain is not None else _any_fields(texts, form)
    at = {name: i for i, name in enumerate(form.columns)}
    columns = {}
    for name, kind in form.event_type.attributes.items():
        if name not in at:
            columns[name] = pa.nulls(len(texts), ARROW_TYPES[kind])
            continue
        reasons: dict[int, str] = {}
        column = convert_texts(fields[at[name]], name, kind, reasons)
        columns[name] = column.cast(ARROW_TYPES[kind])
        for row, reason in reasons.items():
            bad.setdefault(row, ("kind", reason))
    return columns, bad


def _plain_fields(texts: pa.Array, form: LineFormat) -> list[pa.Array] | None:
    """Split lines that are certainly all good into fields; return None if some may not be."""
    if texts.null_count:
        return None
    block = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), b"\n")[0].as_py()
    if b"\r" in block or block.count(b'"') % 2:
        return None
    names = [str(i) for i in range(len(form.columns))]
    try:
        block.decode()
        table = pa_csv.read_csv(
            pa.BufferReader(block + b"\n"),
            pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 2),
            pa_csv.ParseOptions(
                delimiter=form.delimiter, newlines_in_values=True, ignore_empty_lines=False
            ),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    if table.num_rows != len(texts):
        return None
    if len(names) == 1 and table.column(0).null_count:  # a blank line is not a record of one field
        return None
    return [column.combine_chunks() for column in table.columns]


def _any_fields(texts: pa.Array, form: LineFormat) -> tuple[list[pa.Array], Bad]:
    n_fields = len(form.columns)
    fields: list[list[str | None]] = [[None] * len(texts) for _ in range(n_fields)]
    bad: Bad = {}
    for row, text in enumerate(texts.to_pylist()):
        try:
            record = _record(text or b"", form.delimiter)
            if len(record) != n_fields:
                raise ValueError(f"{len(record)} fields where there should be {n_fields}")
        except ValueError as error:
            bad[row] = ("syntax", str(error))
            continue
        for at, value in enumerate(record):
            fields[at][row] = value or None
    return [pa.array(column, pa.string()) for column in fields], bad


def _record(text: bytes, delimiter: str) -> list[str]:
    try:
        line = text.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not line.strip():
        raise ValueError("a blank line")
    try:
        reader = csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, strict=True)
        records = list(reader)
    except csv.Error as error:
        reason = "a quote is not closed" if "end of data" in str(error) else str(error)
        raise ValueError(reason) from None
    if len(records) != 1:
        raise ValueError("several records on one line")
    return records[0]
