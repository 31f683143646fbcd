"""Catalogs for tests: filled, written to files, and opened again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.bundle import Parts
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import Ids
from tocsin.catalog.sources import OneSource, TextSource
from tocsin.catalog.subscriptions import SubscriptionCatalog

ONE = OneSource("x = 1", {})


def ids_of(names: list[Any]) -> Ids:
    return Ids.of(names)


def add_many(catalog: SubscriptionCatalog, names: list[Any], until: Any = None) -> np.ndarray:
    """Add subscriptions in bulk; the i-th asks for x = i."""
    texts = pa.array([f"x = {i}" for i in range(len(names))], pa.large_string())
    return catalog.add_many(IdTable(ids_of(names)), TextSource(texts), None, until)


def find_many(catalog: SubscriptionCatalog, names: list[Any]) -> list[int]:
    return catalog.find(IdTable(ids_of(names))).tolist()


def write(parts: Parts, folder: Path) -> None:
    """Write a catalog's parts to files."""
    (folder / "facts.json").write_text(json.dumps(parts.facts))
    for name, array in parts.arrays.items():
        np.save(folder / f"{name}.npy", array)
    for name, column in parts.columns.items():
        table = pa.table({"column": column})
        path = str(folder / f"{name}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


def read(folder: Path) -> Parts:
    """Map a catalog's parts into memory."""
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    columns = {}
    for path in folder.glob("*.arrow"):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        chunks = table.column("column").chunks
        columns[path.stem] = chunks[0] if chunks else pa.array([], table.schema.field(0).type)
    return Parts(json.loads((folder / "facts.json").read_text()), arrays, columns)


def reopened(catalog: SubscriptionCatalog, folder: Path) -> SubscriptionCatalog:
    folder.mkdir()
    write(catalog.parts(), folder)
    return SubscriptionCatalog.from_parts([read(folder)])
