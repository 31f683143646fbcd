"""Catalogs ↔ arrays, columns and a description, to be written and opened again.

Enters: the live blocks of a catalog, the table of its id index, its expiries. Leaves: `Parts`, for
stores to write: `arrays` as they are, `columns` as Arrow, `facts` as JSON. They may be opened from
files mapped into memory, without a copy and without reading ids. Conditions are written as texts,
which are parsed on demand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.bundle import Parts
from tocsin.catalog.blocks import Block
from tocsin.catalog.ids import Ids, read_only
from tocsin.catalog.live_blocks import LiveBlock, LiveBlocks
from tocsin.catalog.sources import (
    OneSource,
    RuleSource,
    Source,
    TemplateSource,
    TextSource,
    read_params,
    write_params,
)
from tocsin.language.computed import parameter_names
from tocsin.language.expression import Expression, Literal, Operand, Parameter, map_operands
from tocsin.language.printer import print_expression
from tocsin.normalize.rows import RuleTable

_RULES = ("row", "row_start", "conjunction_start", "attribute", "op")
_SOURCE = ".source."
"""Part of the names of arrays and columns of conditions."""
_IdSlots: TypeAlias = tuple[NDArray[np.uint64], int]
_Expiries: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


def write_parts(live: LiveBlocks, id_slots: _IdSlots, ends: _Expiries, first: int) -> Parts:
    """Return the parts of a catalog; `first` is the next dense id."""
    slots, n_entries = id_slots
    blocks: list[dict[str, Any]] = []
    parts = Parts({"next": first, "n_entries": n_entries, "blocks": blocks})
    parts.arrays.update({"slots": slots, "end_moment": ends[0], "end_dense": ends[1]})
    for live_block in _joined_singles(list(live)):
        at = _Place(parts, f"block{len(blocks)}.")
        blocks.append(_write_block(at, live_block))
    return parts


def read_parts(parts: Parts) -> tuple[LiveBlocks, _IdSlots, _Expiries, int]:
    """Return the arguments of `write_parts` from its result."""
    facts, arrays = parts.facts, parts.arrays
    blocks = [
        _read_block(_Place(parts, f"block{number}."), of)
        for number, of in enumerate(facts["blocks"])
    ]
    id_slots = (arrays["slots"], facts["n_entries"])
    return LiveBlocks(blocks), id_slots, (arrays["end_moment"], arrays["end_dense"]), facts["next"]


def split(parts: Parts) -> tuple[Parts, Parts]:
    """Divide the parts of a catalog into its ids and expiries, and its conditions.

    The conditions are most of the bytes, and matching does not read them.
    """
    arrays, columns = _divided(parts.arrays), _divided(parts.columns)
    return Parts(parts.facts, arrays[0], columns[0]), Parts({}, arrays[1], columns[1])


def join(rest: Parts, conditions: Parts) -> Parts:
    """Join the results of `split`."""
    arrays, columns = rest.arrays | conditions.arrays, rest.columns | conditions.columns
    return Parts(rest.facts, arrays, columns)


def _divided(named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    rest = {name: value for name, value in named.items() if _SOURCE not in name}
    return rest, {name: value for name, value in named.items() if _SOURCE in name}


@dataclass(frozen=True)
class _Place:
    """The names of the arrays and columns of one block."""

    parts: Parts
    prefix: str

    def put(self, name: str, value: NDArray[Any] | pa.Array | None) -> None:
        if isinstance(value, np.ndarray):
            self.parts.arrays[self.prefix + name] = value
        elif value is not None:
            self.parts.columns[self.prefix + name] = value

    def array(self, name: str) -> NDArray[Any] | None:
        return self.parts.arrays.get(self.prefix + name)

    def column(self, name: str) -> pa.Array | None:
        return self.parts.columns.get(self.prefix + name)


def _write_block(at: _Place, live_block: LiveBlock) -> dict[str, Any]:
    block = live_block.block
    at.put("numbers", block.ids.numbers)
    at.put("texts", block.ids.texts)
    at.put("rows", block.rows)
    at.put("until", block.until)
    at.put("dense", block.dense)
    at.put("live", None if live_block.live is None else live_block.live.copy())
    return {"first": block.first, "stop": block.stop, "source": _write_source(at, block.source)}


def _read_block(at: _Place, of: Mapping[str, Any]) -> LiveBlock:
    ids = Ids(at.array("numbers"), at.column("texts"))
    source = _read_source(at, of["source"])
    rows, until, dense = at.array("rows"), at.array("until"), at.array("dense")
    block = Block(of["first"], of["stop"], ids, source, rows, until, dense)
    live = at.array("live")
    return LiveBlock(block, None if live is None else read_only(live))


def _joined_singles(blocks: list[LiveBlock]) -> list[LiveBlock]:
    """Join neighbours of single subscriptions, as columns of texts and parameters."""
    joined: list[LiveBlock] = []
    run: list[LiveBlock] = []
    for live_block in [*blocks, None]:
        if live_block is not None and live_block.is_small:
            run.append(live_block)
            continue
        if run:
            joined.append(_join(run))
            run = []
        if live_block is not None:
            joined.append(live_block)
    return joined


def _join(run: list[LiveBlock]) -> LiveBlock:
    parts = [(live_block.block, live_block.live_places()) for live_block in run]
    names = [name for block, places in parts for name in block.ids.take(places).to_list()]
    singles = [
        _written(block.source.one(block.row(place)))
        for block, places in parts
        for place in places.tolist()
    ]
    texts = pa.array([text for text, _ in singles], STRING)
    params = pa.array([params for _, params in singles], STRING)
    dense = np.concatenate([block.dense_ids()[places] for block, places in parts])
    until = np.concatenate([block.ends()[places] for block, places in parts])
    source = TextSource(texts, params if params.null_count < len(params) else None)
    first, stop = int(dense[0]), int(dense[-1]) + 1
    return LiveBlock(Block(first, stop, Ids.of(names), source, None, until, dense))


def _written(source: OneSource) -> tuple[str, str | None]:
    text, lifted = to_text(source.where)
    params = {**source.params, **lifted}
    return text, write_params(params) if params else None


def to_text(where: str | Expression) -> tuple[str, dict[str, object]]:
    """Return a condition as a text with the same meaning, and the parameters that it needs.

    Infinite floats and NaN have no literal: they become parameters.
    """
    if isinstance(where, str):
        return where, {}
    taken = set(parameter_names(where))
    lifted: dict[str, object] = {}

    def lift(operand: Operand) -> Operand:
        value = operand.value if isinstance(operand, Literal) else None
        if not isinstance(value, float) or math.isfinite(value):
            return operand
        name = next(n for n in (f"v{i}" for i in range(len(taken) + 1)) if n not in taken)
        taken.add(name)
        lifted[name] = value
        return Parameter(name)

    return print_expression(map_operands(where, lift)), lifted


def _write_source(at: _Place, source: Source) -> dict[str, Any]:
    if isinstance(source, TextSource):
        at.put("source.texts", source.texts)
        at.put("source.params", source.params)
        return {"form": "texts"}
    if isinstance(source, TemplateSource):
        text, lifted = to_text(source.where)
        for number, column in enumerate(source.columns.values()):
            at.put(f"source.column{number}", column)
        fixed = write_params({**source.fixed, **lifted})
        return {"form": "template", "text": text, "fixed": fixed, "names": list(source.columns)}
    assert isinstance(source, RuleSource)
    for name in _RULES:
        at.put(f"source.{name}", getattr(source.rules, name))
    for number, column in enumerate(source.rules.values):
        at.put(f"source.values{number}", column)
    n_values = len(source.rules.values)
    return {"form": "rules", "names": source.rules.names, "n_values": n_values}


def _read_source(at: _Place, of: Mapping[str, Any]) -> Source:
    if of["form"] == "texts":
        return TextSource(at.column("source.texts"), at.column("source.params"))
    if of["form"] == "template":
        columns = {name: at.column(f"source.column{i}") for i, name in enumerate(of["names"])}
        return TemplateSource(of["text"], columns, read_params(of["fixed"]))
    none = np.empty(0, np.int64)
    rules: dict[str, Any] = {name: at.array(f"source.{name}") for name in _RULES}
    return RuleSource(
        RuleTable(
            **rules,
            names=list(of["names"]),
            values=tuple(at.column(f"source.values{i}") for i in range(of["n_values"])),
            ids=pa.nulls(0, STRING),  # pa.array would import pandas first
            first_row=none,
            subscription=none,
            op_texts=pa.nulls(0, STRING),
            problem=np.empty(0, np.bool_),
        )
    )
