"""Subscriptions as records and tables, for users to read back.

Enters: sources of a catalog. Leaves: `Subscription`, and columns of texts and
parameters. Parameters are JSON: an object of names and values. A value that JSON does not have is
an object: `{"timestamp": "2026-07-01T12:30:00+00:00"}`, `{"float": "nan"}`.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING, decoded, to_array
from tocsin.catalog.serialization import to_text
from tocsin.catalog.sources import OneSource, Source, TemplateSource, TextSource
from tocsin.language.dialects import MARK, SQL, read
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import SubscriptionId, to_plain

UNTIL = pa.timestamp("us", tz="UTC")
"""The type of a column `valid_until`."""
_ESCAPED = r'["\\\x00-\x1f]'
"""The characters that a JSON string cannot have as they are."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as it is now.

    `where` is the text of its condition in a `dialect`, `params` the values of its parameters.
    `valid_until` is None for a subscription that never ends, and microseconds since 1970 beyond the
    year 9999.
    """

    id: SubscriptionId
    where: str
    params: Mapping[str, Any] = field(default_factory=dict)
    valid_until: dt.datetime | int | None = None
    dialect: str = SQL


def text_and_params(source: OneSource) -> tuple[str, dict[str, object]]:
    """Return the condition of one subscription as a written text, with its parameters."""
    text, lifted = to_text(source.where)
    return text, {**source.params, **lifted}


def with_dialects(table: pa.Table) -> pa.Table:
    """Return a table of written conditions with a column `dialect`, where there are several."""
    at = table.schema.get_field_index("where")
    texts = table.column(at)
    if not pc.any(pc.starts_with(texts, MARK)).as_py():
        return table
    pairs = [read(text) for text in texts.to_pylist()]
    table = table.set_column(at, "where", pa.array([text for text, _ in pairs], texts.type))
    return table.append_column("dialect", pa.array([dialect for _, dialect in pairs], STRING))


def to_columns(source: Source, rows: NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Return the texts of some subscriptions of a source, and their parameters as JSON or null."""
    if isinstance(source, TextSource) and source.params is None:
        return source.texts.take(pa.array(rows)).cast(STRING), pa.nulls(len(rows), STRING)
    if isinstance(source, TemplateSource):
        text, lifted = to_text(source.where)
        taken = source.take(rows)
        fixed = {**source.fixed, **lifted}
        return _repeated(text, len(rows)), _params_column(taken.columns, fixed, len(rows))
    pairs = [text_and_params(source.one(row)) for row in rows.tolist()]
    params = [write_json(params) if params else None for _, params in pairs]
    return pa.array([text for text, _ in pairs], STRING), pa.array(params, STRING)


def write_json(params: Mapping[str, object]) -> str:
    """Write parameters as a JSON object."""
    return json.dumps({name: _to_json(value) for name, value in params.items()}, ensure_ascii=False)


def read_json(text: str) -> dict[str, Any]:
    """Read what `write_json` wrote; raise ValueError for anything else."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return {name: _from_json(value) for name, value in values.items()}


def _to_json(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    plain = to_plain(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"float": repr(plain)}
    if isinstance(plain, dt.datetime):
        moment = plain if plain.tzinfo else plain.replace(tzinfo=dt.UTC)
        return {"timestamp": moment.astimezone(dt.UTC).isoformat()}
    return plain


def _from_json(value: object) -> object:
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"float"}:
        return float(value["float"])
    moment = parse_timestamp(str(value["timestamp"])) if value.keys() == {"timestamp"} else None
    if moment is None:
        raise ValueError(f"{value!r} is no value of a parameter")
    return moment


def _repeated(text: str, n: int) -> pa.Array:
    return pa.array([text], STRING).take(pa.array(np.zeros(n, np.int64)))


def _params_column(
    columns: Mapping[str, pa.Array], fixed: Mapping[str, object], n: int
) -> pa.Array:
    """Return the parameters of each row as a JSON object, put together column by column."""
    if not columns and not fixed:
        return pa.nulls(n, STRING)
    parts: list[Any] = []
    for name, column in columns.items():
        parts += [_repeated(f"{', ' if parts else '{'}{json.dumps(name)}: ", n), _values(column)]
    rest = ", ".join(f"{json.dumps(name)}: {json.dumps(_to_json(v))}" for name, v in fixed.items())
    parts.append(_repeated(f"{', ' if parts and rest else '' if parts else '{'}{rest}}}", n))
    return pc.binary_join_element_wise(*parts, pa.scalar("", STRING))


def _values(column: pa.Array) -> pa.Array:
    """Return each value of a column as JSON."""
    array = decoded(to_array(column))
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return pc.fill_null(array.cast(STRING), "null")
    if pa.types.is_floating(array.type) and pc.all(pc.is_finite(array), min_count=0).as_py():
        return pc.fill_null(array.cast(STRING), "null")
    texts = array.cast(STRING) if _is_text(array.type) else None
    if texts is not None:
        is_odd = pc.match_substring_regex(texts, _ESCAPED)
        if not pc.any(is_odd, min_count=0).as_py():
            quote = pa.scalar('"', STRING)
            quoted = pc.binary_join_element_wise(quote, texts, quote, pa.scalar("", STRING))
            return pc.fill_null(quoted, "null")
    written = [json.dumps(_to_json(v), ensure_ascii=False) for v in array.to_pylist()]
    return pa.array(written, STRING)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
