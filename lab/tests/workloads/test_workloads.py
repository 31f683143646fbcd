from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tocsin import Matcher
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.model import Kind
from tocsin.normalize import bind, normalize
from tocsin.workloads import base as base_module
from tocsin.workloads import names, workload
from tocsin_lab.bench.probes import probes
from tocsin_lab.workloads import Highway, Written

ARROW_TYPES = {Kind.INTEGER: pa.int64(), Kind.FLOAT: pa.float64(), Kind.STRING: pa.string()}
every_workload = pytest.mark.parametrize("name", names())
WRITTEN = tuple(name for name in names() if isinstance(workload(name), Written))
with_rows = pytest.mark.parametrize("name", [name for name in names() if name not in WRITTEN])


def tables(name, n, seed=0, first=0):
    chosen = workload(name)
    return [
        chosen.events(n, seed, first),
        chosen.subscription_texts(n, seed, first),
        *([] if name in WRITTEN else [chosen.subscription_rows(n, seed, first)]),
        *chosen.subscription_params(n, seed, first),
    ]


def test_the_workloads_of_the_design_are_there():
    assert names() == (
        "A", "C", "CA", "G", "H", "K", "L", "M", "P", "R", "T", "TW", "W0", "W1", "W2", "X",
    )  # fmt: skip


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ArgumentError, match=r"'W9'.*TW, W0, W1"):
        workload("W9")


@pytest.mark.parametrize(
    "arguments", [{"n": -1}, {"n": 1, "first": -1}, {"n": 1, "seed": -1}, {"n": 1, "seed": 2**64}]
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ArgumentError):
        workload("W0").events(**arguments)


@every_workload
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(name):
    for one, again, other in zip(
        tables(name, 40), tables(name, 40), tables(name, 40, seed=1), strict=True
    ):
        assert one.equals(again)
        assert not one.equals(other)


@every_workload
def test_any_split_gives_the_same_rows(name):
    split = [tables(name, n, 3, first) for first, n in ((0, 1), (1, 22), (23, 17))]
    for whole, *parts in zip(tables(name, 40, 3), *split, strict=True):
        assert whole.equals(pa.concat_tables(parts))


@every_workload
def test_chunks_do_not_show_in_the_rows(name, monkeypatch):
    whole = tables(name, 40)
    monkeypatch.setattr(base_module, "_CHUNK_ROWS", 7)
    assert all(a.equals(b) for a, b in zip(whole, tables(name, 40), strict=True))


@every_workload
def test_no_rows_still_have_columns(name):
    for empty, some in zip(tables(name, 0), tables(name, 1), strict=True):
        assert empty.num_rows == 0
        assert empty.schema.equals(some.schema)


@pytest.mark.parametrize("name", [name for name in names() if name != "L"])
def test_events_have_the_columns_of_the_event_type(name):
    chosen = workload(name)
    events = chosen.events(5)
    assert events.num_rows == 5
    assert {f.name: f.type for f in events.schema} == {
        attribute: ARROW_TYPES[kind] for attribute, kind in chosen.event_type.attributes.items()
    }


@with_rows
def test_subscriptions_have_the_columns_that_a_matcher_takes(name):
    chosen = workload(name)
    texts, rows = chosen.subscription_texts(5, first=100), chosen.subscription_rows(5, first=100)
    assert texts.schema.names == ["id", "where"]
    assert texts["id"].to_pylist() == [100, 101, 102, 103, 104]
    assert sorted(set(rows["id"].to_pylist())) == texts["id"].to_pylist()
    mixed = ["number", "text"] if name in ("A", "M", "H", "K") else ["value"]
    assert rows.schema.names == ["id", "attribute", "op", *mixed]
    texts.validate(full=True)
    rows.validate(full=True)


def rows_of(name, n):
    """Yield each subscription's predicate rows."""
    for _, rows in groupby(workload(name).subscription_rows(n).to_pylist(), lambda row: row["id"]):
        yield list(rows)


def as_text(rows):
    """Write predicate rows as a condition."""

    def literal(row):
        value = row["value"] if "value" in row else row["text"] or row["number"]
        return f"'{value}'" if isinstance(value, str) else repr(value)

    return " AND ".join(f"{row['attribute']} {row['op']} {literal(row)}" for row in rows)


@with_rows
def test_rows_describe_the_subscriptions_that_the_texts_describe(name):
    chosen = workload(name)
    texts = chosen.subscription_texts(30)["where"].to_pylist()
    for text, rows in zip(texts, rows_of(name, 30), strict=True):
        from_text = normalize(parse(text), chosen.event_type)
        from_rows = normalize(parse(as_text(rows)), chosen.event_type)
        assert from_text == from_rows
        first, *others = probes(rows, chosen.event_type)
        assert from_text.holds(first)
        assert not all(from_text.holds(event) for event in others)


TEMPLATED = ("A", "C", "CA", "H", "K", "M", "P", "R", "X")


@pytest.mark.parametrize("name", TEMPLATED)
def test_parameters_describe_the_subscriptions_that_the_texts_describe(name):
    chosen = workload(name)
    texts = dict(enumerate(chosen.subscription_texts(60)["where"].to_pylist()))
    for where, table in zip(chosen.templates, chosen.subscription_params(60), strict=True):
        for params in table.to_pylist():
            bound = bind(parse(where), {k: v for k, v in params.items() if k != "id"})
            of_text = normalize(parse(texts.pop(params["id"])), chosen.event_type)
            assert normalize(bound, chosen.event_type) == of_text
    assert not texts


def test_drivers_move_along_their_road():
    highway = workload("H")
    assert isinstance(highway, Highway)
    ids = np.arange(20)
    table = pa.concat_tables(
        t.select(["id", "low", "high"]) for t in highway.subscription_params(20)
    )
    rows = {row["id"]: (row["low"], row["high"]) for row in table.to_pylist()}
    assert dict(zip(ids.tolist(), zip(*highway.ahead(ids, 0), strict=True), strict=True)) == rows
    low, high = highway.ahead(ids, 3)
    for id in ids.tolist():
        before = rows[id]
        assert low[id] == (before[0] + 3 * (1 + id % 2)) % highway.n_segments
        assert high[id] - low[id] == before[1] - before[0]


@pytest.mark.parametrize("name", [name for name in names() if name not in TEMPLATED])
def test_workloads_without_a_template_have_no_parameters(name):
    assert workload(name).templates == ()
    assert workload(name).subscription_params(3) == ()


@pytest.mark.parametrize("name", WRITTEN)
def test_workloads_without_rows_say_what_matches(name):
    chosen: Any = workload(name)
    with pytest.raises(ArgumentError, match="load texts"):
        chosen.subscription_rows(1)
    matcher = Matcher(chosen.event_type)
    matcher.subscribe_many(chosen.subscription_texts(500, 2))
    events = chosen.events(30, 2).to_pylist()
    events += [chosen.made_for(at, 2, event) for at, event in enumerate(events)]
    table = pa.Table.from_pylist(events, schema=chosen.events(0).schema)
    expected = chosen.expected(table, 500, 2)
    assert [sorted(ids) for ids in matcher.match_batch(table)] == expected
    assert all(at in ids for at, ids in enumerate(expected[30:]))
