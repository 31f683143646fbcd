"""A segment taken apart: facts, arrays and columns, to be written and opened again.

Enters: a segment. Leaves: `Parts`, whose arrays are those of the segment; and from them, which may
lie in a file that is mapped into memory, a segment that uses them as they are.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.encode.cells import CellSpace
from tocsin.encode.domain_cells import DomainCells
from tocsin.engines.auto.arrays import BitmapArrays, Coding, ColumnArrays, Keys, Slots, Stream
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.content import PatternTable
from tocsin.engines.auto.layout import Layout
from tocsin.engines.auto.segment import Segment
from tocsin.normalize.domains import Domain
from tocsin.normalize.patterns import Pattern
from tocsin.normalize.table import ConjunctionTable

_PATTERN_COLUMNS = ("conjunction", "attribute", "number", "negated")


def take_apart(segment: Segment) -> Parts:
    """Return all that a segment is."""
    layout, space = segment.layout, segment.space
    cells = [
        (at, domain, of)
        for at, by_domain in enumerate(space.domains)
        for domain, of in by_domain.items()
    ]
    facts = {
        "name": segment.name,
        "attributes": list(space.attributes),
        "lines": [[at, int(domain), of.base, len(of.keys)] for at, domain, of in cells],
        "patterns": [list(pattern.parts) for pattern in segment.patterns.patterns],
        "patterns_ignore_case": np.flatnonzero(segment.patterns.ignore_case).tolist(),
        "prefixes": [list(prefix) for prefix in segment.prefixes],
        "grouped": layout.grouped,
    }
    arrays: dict[str, NDArray[Any]] = {
        "ids": segment.ids,
        "entries": layout.entries,
        "cuts.keys": np.concatenate([np.empty(0, np.int64), *(of.keys for _, _, of in cells)]),
        "cuts.tails": np.concatenate([np.empty(0, np.int16), *(of.offsets for _, _, of in cells)]),
    }
    for name, tuple_of_arrays in (
        ("coding", segment.coding),
        ("stream", layout.stream),
        ("keys", layout.keys),
        ("slots", layout.slots),
        ("column_keys", layout.column_keys),
        ("columns", layout.columns),
        ("bitmaps", layout.bitmaps),
    ):
        arrays.update({f"{name}.{field}": a for field, a in tuple_of_arrays._asdict().items()})
    patterns = segment.patterns._asdict()
    arrays.update({f"patterns.{field}": patterns[field] for field in _PATTERN_COLUMNS})
    arrays["patterns.keys"] = layout.pattern_rows
    return Parts(facts, arrays, {"vocabulary": space.vocabulary})


def put_together(parts: Parts, pool: BufferPool) -> Segment:
    """Return the segment that was taken apart; raises KeyError or ValueError for other parts."""
    facts, arrays = parts.facts, parts.arrays
    domains: list[dict[Domain, DomainCells]] = [{} for _ in facts["attributes"]]
    first = 0
    for at, domain, base, n in facts["lines"]:
        cuts = slice(first, first + n)
        domains[at][Domain(domain)] = DomainCells(
            base, arrays["cuts.keys"][cuts], arrays["cuts.tails"][cuts]
        )
        first += n
    vocabulary = parts.columns["vocabulary"]
    space = CellSpace.from_domains(tuple(facts["attributes"]), vocabulary, domains)
    layout = Layout(
        _read(arrays, "stream", Stream),
        _read(arrays, "keys", Keys),
        arrays["entries"],
        facts["grouped"],
        _read(arrays, "slots", Slots),
        _read(arrays, "column_keys", Keys),
        _read(arrays, "columns", ColumnArrays),
        _read(arrays, "bitmaps", BitmapArrays),
        arrays.get("patterns.keys", np.empty(0, np.int64)),  # written since version 0.2
    )
    texts = tuple(Pattern(tuple(texts)) for texts in facts["patterns"])
    ignore_case = np.zeros(len(texts), np.bool_)
    ignore_case[facts.get("patterns_ignore_case", [])] = True
    columns = {field: arrays[f"patterns.{field}"] for field in _PATTERN_COLUMNS}
    return Segment(
        space,
        arrays["ids"],
        PatternTable(texts, **columns, ignore_case=ignore_case),
        _read(arrays, "coding", Coding),
        tuple(tuple(prefix) for prefix in facts["prefixes"]),
        layout,
        pool,
        facts["name"],
    )


def put_table(table: ConjunctionTable, parts: Parts, name: str = "elements") -> None:
    """Add a conjunction table to parts, under a name."""
    parts.facts[name] = {
        "patterns": [list(pattern.parts) for pattern in table.patterns],
        "n_subscriptions": table.n_subscriptions,
    }
    parts.columns[f"{name}.attributes"] = pa.array(table.attributes, pa.large_string())
    parts.columns[f"{name}.vocabulary"] = table.vocabulary
    for field in _TABLE_ARRAYS:
        parts.arrays[f"{name}.{field}"] = getattr(table, field)


def take_table(parts: Parts, name: str = "elements") -> ConjunctionTable | None:
    """Return the conjunction table that was added to parts under a name, or None."""
    facts = parts.facts.get(name)
    if facts is None:
        return None
    attributes = facts.get("attributes")
    if attributes is None:
        attributes = parts.columns[f"{name}.attributes"].to_pylist()
    return ConjunctionTable(
        attributes=tuple(attributes),
        vocabulary=parts.columns[f"{name}.vocabulary"],
        patterns=tuple(Pattern(tuple(pattern)) for pattern in facts["patterns"]),
        n_subscriptions=facts["n_subscriptions"],
        **{field: parts.arrays[f"{name}.{field}"] for field in _TABLE_ARRAYS},
    )


_TABLE_ARRAYS = [
    field.name
    for field in fields(ConjunctionTable)
    if field.name not in ("attributes", "vocabulary", "patterns", "n_subscriptions")
]


def _read(arrays: dict[str, NDArray[Any]], name: str, kind: Any) -> Any:
    """Return a named tuple of the arrays of its fields."""
    return kind(*(arrays[f"{name}.{field}"] for field in kind._fields))
