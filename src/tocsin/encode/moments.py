"""ISO 8601 texts as timestamps: where an attribute is declared one, or compared with one.

Enters: texts of events, and the attributes whose texts count as timestamps. Leaves: the moments
that they name; a text that names none stays what it is. JSON and CSV have no timestamps, so without
this an event would match by one road and not by another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.columns import Column, Part
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import to_microseconds
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import Domain

_PLAIN = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?)?$"
"""Texts that Arrow reads as we do, without a look at each of them."""


def read_moments(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the microseconds that texts name, and which name any; nulls name none."""
    n = len(texts)
    if n and texts.null_count == 0 and pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
        try:
            moments = pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("us"))
            return moments.view(pa.int64()).to_numpy(), np.ones(n, np.bool_)
        except pa.ArrowInvalid:
            pass  # such as a 31st of June
    values, is_moment = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for at, text in enumerate(texts.to_pylist()):
        moment = None if text is None else parse_timestamp(text)
        if moment is not None:
            values[at], is_moment[at] = to_microseconds(moment), True
    return values, is_moment


def with_moments(column: Column) -> Column:
    """Return a column in which the texts that name a moment are timestamps."""
    parts: list[Part] = []
    for part in column.parts:
        parts.extend(_divided(part) if part.domain is Domain.STRING else [part])
    return Column(tuple(parts), column.other)


def _divided(part: Part) -> list[Part]:
    encoded = part.values.dictionary_encode()
    values, is_moment = read_moments(encoded.dictionary)
    if not is_moment.any():
        return [part]
    indices = encoded.indices.fill_null(len(values)).to_numpy()
    of_row = np.append(values, 0)[indices]
    is_here = np.append(is_moment, False)[indices]
    if part.here is not None:
        is_here &= part.here
    rest = ~is_here if part.here is None else part.here & ~is_here
    moments = Part(Domain.TIMESTAMP, of_row, is_here)
    return [Part(Domain.STRING, part.values, rest), moments] if rest.any() else [moments]


def event_with_moments(
    event: Mapping[str, object], names: Collection[str], lookup: Any
) -> Mapping[str, object]:
    """Return an event whose texts of some attributes are timestamps, itself where none is."""
    changed: dict[str, object] | None = None
    for name in names:
        value = lookup(event, name) if "." in name else event.get(name)
        if isinstance(value, str) and (moment := parse_timestamp(str.__str__(value))) is not None:
            changed = dict(event) if changed is None else changed
            changed[name] = moment  # the longest name counts, so this goes before a nested one
    return event if changed is None else changed


def holds(condition: Condition, value: object) -> bool:
    """Whether a value satisfies a condition; an ISO 8601 text is also the moment that it names."""
    if condition.holds(value):
        return True
    if not isinstance(value, str) or not condition.intervals[Domain.TIMESTAMP]:
        return False
    moment = parse_timestamp(value)
    return moment is not None and condition.holds(moment)
