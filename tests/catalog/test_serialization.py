"""A catalog taken apart, written to files, and opened again: nothing changes its meaning."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.catalog.catalogs import ONE, add_many, find_many, read, reopened, write

from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import Ids
from tocsin.catalog.sources import OneSource, RuleSource, TemplateSource, read_params, write_params
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.language import parse
from tocsin.language.expression import Comparison, Literal, Or
from tocsin.model import Kind
from tocsin.normalize.rows import held_rules, read_rows

NOON = dt.datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=dt.UTC)
VALUES: list[Any] = [1, -(2**63), 2.5, -0.0, math.inf, 1e300, "", "a'\"\0é😀", True, None, NOON]


def test_parameters_keep_their_values_and_kinds() -> None:
    params = {f"p{i}": value for i, value in enumerate(VALUES)}
    again = read_params(write_params(params))
    assert again == params
    assert [type(value) for value in again.values()] == [type(value) for value in VALUES]
    assert math.isnan(read_params(write_params({"x": math.nan}))["x"])  # type: ignore[arg-type]


def test_parameters_of_other_classes_are_written_as_what_they_mean() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    given = {
        "a": np.int32(5),
        "b": np.float32(0.5),
        "c": np.datetime64("2026-07-01T12:00:00.000005"),
        "d": dt.datetime(2026, 7, 1, 14, 0, 0, 5, tzinfo=zone),
        "e": dt.datetime(2026, 7, 1, 12, 0, 0, 5),
    }
    expected = {"a": 5, "b": 0.5, "c": NOON, "d": NOON, "e": NOON}
    assert read_params(write_params(given)) == expected


def rules() -> RuleSource:
    n = 300
    table = {
        "id": [i // 2 for i in range(n)],
        "disjunct": [i % 3 // 2 for i in range(n)],
        "attribute": ["x" if i % 2 else "y z" for i in range(n)],
        "op": ["IS NULL" if i % 7 == 0 else "<=" for i in range(n)],
        "number": [None if i % 7 == 0 or i % 5 == 0 else i for i in range(n)],
        "text": [None if i % 7 == 0 or i % 5 else f"t{i}" for i in range(n)],
    }
    order = np.random.default_rng(3).permutation(n)
    return RuleSource(held_rules(read_rows(pa.table(table).take(order))))


def filled() -> SubscriptionCatalog:
    """Return a catalog with something of every kind, some of it gone."""
    catalog = SubscriptionCatalog()
    for i, value in enumerate(VALUES):
        catalog.add(f"one{i}", OneSource("x = :v OR y <> :v", {"v": value}), i if i % 2 else None)
        catalog.add(i, OneSource(parse(f"x LIKE 'a{i}%'"), {}))
    infinite = Comparison("x", "<", Literal(math.inf, Kind.FLOAT))
    catalog.add("infinite", OneSource(Or((infinite, parse("y = :v1"))), {"v1": 3}))
    add_many(catalog, [f"t{i}" for i in range(500)], np.arange(500) + 1_000)
    n = 400
    columns = {
        "a": pa.array([None if i % 9 == 0 else i for i in range(n)]),
        "b": pa.array([f"s{i % 4}" for i in range(n)], pa.large_string()),
        "c": pa.array([NOON] * n, pa.timestamp("us", "UTC")),
        "d": pa.nulls(n),
    }
    template = TemplateSource(parse("x = :a AND y = :b AND z < :c OR w = :d"), columns, {})
    catalog.add_many(IdTable(Ids(np.arange(n) + 1_000)), template)
    catalog.add_many(IdTable(Ids(np.arange(n) + 2_000)), template, np.arange(0, n, 2))
    catalog.add_many(IdTable(Ids(np.arange(150) + 5_000)), rules())
    catalog.add("last", ONE)
    catalog.remove(np.arange(0, 1_270, 11))
    return catalog


def meaning(catalog: SubscriptionCatalog) -> dict[Any, Any]:
    """Return all that a catalog says of its subscriptions."""
    said = {}
    for dense in range(catalog._first + len(catalog._names)):
        if catalog.are_live(np.array([dense]))[0]:
            name = catalog.names[dense]
            assert catalog.dense(name) == dense
            said[name] = (dense, catalog.expression(dense), catalog.valid_until(dense))
    assert len(said) == len(catalog)
    return said


def test_a_catalog_from_files_says_what_it_said(tmp_path: Path) -> None:
    catalog = filled()
    before = meaning(catalog)
    opened = reopened(catalog, tmp_path / "a")
    assert meaning(opened) == before
    assert meaning(catalog) == before
    again = reopened(opened, tmp_path / "b")
    assert meaning(again) == before
    assert opened.due(1_100).tolist() == catalog.due(1_100).tolist()
    assert again.add("new", ONE) == catalog.add("new", ONE)


def test_an_empty_catalog_is_opened_empty(tmp_path: Path) -> None:
    opened = reopened(SubscriptionCatalog(), tmp_path / "a")
    assert len(opened) == 0
    assert opened.dense("a") is None
    assert opened.add("a", ONE) == 0


def test_what_was_opened_can_be_changed_and_its_files_are_not(tmp_path: Path) -> None:
    catalog = filled()
    write(catalog.parts(), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    opened = SubscriptionCatalog.from_parts([read(tmp_path)])
    said = meaning(opened)
    names = [name for name in said if isinstance(name, str)]
    gone = find_many(opened, names)
    opened.remove(np.array(gone))
    dense = add_many(opened, names)
    assert find_many(opened, names) == dense.tolist()
    for i in range(3_000):
        opened.add(f"more{i}", ONE)
    kept = {name: said[name] for name in said if isinstance(name, int)}
    assert {name: found for name, found in meaning(opened).items() if name in kept} == kept
    assert len(opened) == len(said) + 3_000
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert meaning(SubscriptionCatalog.from_parts([read(tmp_path)])) == said


def test_parts_are_not_changed_by_what_the_catalog_does_later() -> None:
    catalog = filled()
    before = meaning(catalog)
    parts = catalog.parts()
    add_many(catalog, [f"later{i}" for i in range(400)])
    catalog.remove(np.array([found[0] for found in list(before.values())[::2]]))
    assert meaning(SubscriptionCatalog.from_parts([parts])) == before


def test_the_description_is_json_and_arrays_are_flat() -> None:
    parts = filled().parts()
    assert json.loads(json.dumps(parts.facts)) == parts.facts
    assert all(array.ndim == 1 for array in parts.arrays.values())
    assert all(isinstance(column, pa.Array) for column in parts.columns.values())


def test_single_subscriptions_are_written_together() -> None:
    catalog = SubscriptionCatalog()
    for i in range(5_000):
        catalog.add(i, OneSource("x = :v", {"v": i}))
    parts = catalog.parts()
    assert len(parts.facts["blocks"]) == 1
    assert len(parts.arrays) + len(parts.columns) < 10


@pytest.mark.slow
def test_a_large_catalog_is_opened_without_a_look_at_its_ids(tmp_path: Path) -> None:
    """Opening makes no object per id: what it allocates does not depend on their number."""
    import tracemalloc

    catalog = SubscriptionCatalog()
    n = 1_000_000
    source = TemplateSource(parse("x = :v"), {"v": pa.array(np.arange(n))}, {})
    catalog.add_many(IdTable(Ids(np.arange(n) * 3)), source)
    texts = pa.array(np.arange(n)).cast(pa.large_string())
    catalog.add_many(IdTable(Ids(None, texts)), source)
    write(catalog.parts(), tmp_path)
    parts = read(tmp_path)
    tracemalloc.start()
    opened = SubscriptionCatalog.from_parts([parts])
    opened.add("new", ONE)
    assert opened.dense("77") == n + 77
    assert opened.dense(3 * 77) == 77
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(opened) == 2 * n + 1
