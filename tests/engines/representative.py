"""A run that calls the kernels in all the ways the package does; prints their signatures as JSON.

`python -m tests.engines.representative auto` does so in a process of its own, so that nothing else
has compiled anything before.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import tocsin
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import Ids
from tocsin.catalog.sources import OneSource
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.matcher import Matcher

TYPES = (None, tocsin.EventType("T", x=int, s=str))


def run(engine: str) -> None:
    """Call every public function on data of every kind, cut and chunked in every way."""
    for event_type in TYPES:
        matcher = tocsin.Matcher(event_type, engine=engine)
        _subscribe(matcher)
        _match(matcher)
        _change(matcher)
        _match(matcher)
    odd = tocsin.Matcher(engine=engine)
    _subscribe_odd(odd)
    _match_odd(odd)
    many = tocsin.Matcher(engine=engine)
    _grow(many)
    _name(many)
    if engine == "tree":
        _grow(tocsin.Matcher(engine="tree", successors=True, index_attributes=2))
    if engine == "auto":
        _reopen()
        tocsin.warm_up()


def _reopen() -> None:
    """Have the arrays of opened matchers used, changed and merged, as those of others are."""
    for event_type in TYPES:
        matcher = tocsin.Matcher(event_type)
        _subscribe(matcher)
        _match(opened := _opened(matcher))
        _change(opened)
        _match(opened)
        opened.rebuild()
        _match(opened)
    odd, many = tocsin.Matcher(), tocsin.Matcher()
    _subscribe_odd(odd)
    _match_odd(_opened(odd))
    _grow(many)
    many = _opened(many)
    many.match_batch(pa.table({"x": [i % 60 for i in range(200)], "y": [1.5] * 200}))
    many.rebuild()
    _name(_opened(many))


def _opened(matcher: Matcher) -> Matcher:
    with tempfile.TemporaryDirectory() as folder:
        matcher.save(Path(folder) / "store")
        return tocsin.Matcher.open(Path(folder) / "store")


def _subscribe(matcher: Matcher) -> None:
    matcher.subscribe(1, "x > 3 AND s = 'a'")
    matcher.match({"x": 4, "s": "a"})
    texts = ["x = 1", "s = 'it''s' OR x < 2.5", "s LIKE '%b%'", "NOT (x = 1 OR s = '')"]
    matcher.subscribe_many({"id": [2, 3, 4, 5], "where": texts})
    matcher.subscribe_many({"id": [6, 7], "v": [1, 2]}, where="x = :v")
    matcher.subscribe_many({"id": [8, 9], "v": ["1", "2"]}, where="s = :v OR s LIKE 'a%'")
    matcher.subscribe_many(
        {
            "id": [10, 10, 11],
            "attribute": ["x", "s", "x"],
            "op": ["=", "LIKE", ">"],
            "number": [1, None, 2],
            "text": [None, "a%", None],
        }
    )


def _match(matcher: Matcher) -> None:
    table = pa.table({"x": [1, 2, None], "s": ["a", None, "b"]})
    whole = pa.table({"x": [1.0, 2.0, 3.0], "s": ["", "", ""]})
    encoded = pa.table({"s": pa.array(["a", "b"]).dictionary_encode()})
    for events in (table, table.slice(1), pa.concat_tables([table, table]), whole, encoded):
        matcher.match_batch(events)
        matcher.match_batch(events.to_pylist())
        for event in events.to_pylist():
            matcher.match(event)
    matcher.match_batch([])
    matcher.match_batch([{}])


def _change(matcher: Matcher) -> None:
    matcher.update(1, where="x > 4 OR s > 'b'")
    matcher.update(6, params={"v": 7})
    matcher.unsubscribe_many([2, 7])
    matcher.explain(1)
    matcher.check()


def _subscribe_odd(matcher: Matcher) -> None:
    texts = ["", "x IS NULL", "TRUE", "s = ''"]
    for part in (texts, texts[:1], texts[3:]):
        ids = [f"{len(matcher)}{i}" for i in range(len(part))]
        matcher.subscribe_many({"id": ids, "where": part}, on_error="quarantine")
    none = pa.array([], pa.string())
    matcher.subscribe_many({"id": none, "where": none})
    matcher.subscribe("moments", "t < TIMESTAMP '2026-01-01' AND b")
    matcher.subscribe("far", f"x = {2**60} OR x < -1e300 OR x IN ({-(2**60)}, 0.5)")


def _match_odd(matcher: Matcher) -> None:
    moment = dt.datetime(2025, 1, 1)
    events: list[dict[str, object]] = [
        {"t": moment, "b": True},
        {"x": 2**60},
        {"x": 0.5},
        {"x": "a"},
        {"x": moment},
        {},
    ]
    matcher.match_batch(events)
    for event in events:
        matcher.match(event)
    for column in ([2**60, 1], [0.5, 1.5], [True, False], [moment, moment], ["a", ""]):
        matcher.match_batch(pa.table({"x": column, "t": [moment] * 2, "b": [True] * 2}))


def _grow(matcher: Matcher) -> None:
    n = 3_000
    values = [i % 50 for i in range(n)]
    where = "x = :v AND y BETWEEN :v AND 1000"
    matcher.subscribe_many({"id": range(n), "v": values}, where=where)
    batch = pa.table({"x": [i % 60 for i in range(200)], "y": [float(i) for i in range(200)]})
    matcher.match_batch(batch)
    matcher.unsubscribe_many(list(range(0, n, 2)))
    matcher.subscribe_many({"id": range(n, 2 * n), "v": range(n)}, where="x < :v OR y = :v")
    matcher.match_batch(batch)
    matcher.match_batch(batch.slice(0, 1))
    matcher.check()


def _name(matcher: Matcher) -> None:
    """Have ids of all kinds looked up, in bulk and one by one."""
    n = 200
    condition = {"where": ["x = 1"] * n}
    texts = pa.array([f"a{i}" for i in range(2 * n)])
    matcher.subscribe_many({"id": texts.slice(0, n), **condition})
    matcher.subscribe_many({"id": texts.dictionary_encode().slice(n, n), **condition})
    matcher.subscribe_many(
        {"id": [None if i < 3 else i // 2 + 10**9 for i in range(n)], **condition},
        on_error="quarantine",
    )
    matcher.subscribe_many({"id": ["b", None] * 100, **condition}, on_error="quarantine")
    for i in range(1_100):
        matcher.subscribe(f"c{i}" if i % 2 else i + 10**10, "x = 2")
    matcher.unsubscribe_many(texts.slice(3, 150))
    matcher.unsubscribe_many(np.arange(10**10, 10**10 + 1_100, 2))
    matcher.unsubscribe_many([f"c{i}" for i in range(1, 1_100, 2)])
    catalog = SubscriptionCatalog.from_parts([matcher._catalog.parts()])
    catalog.find(IdTable(Ids.of([f"a{i}" for i in range(2 * n)])))
    catalog.remove(catalog.find(IdTable(Ids(np.arange(6_000 - n, 6_000)))))
    for i in range(1_100):
        catalog.add(i, OneSource("x = 1", {}))


def signatures() -> dict[str, list[str]]:
    """Return the compiled signatures of every kernel that Python may call."""
    found = {}
    for name, module in sys.modules.items():
        if not (name.startswith("tocsin.") and "kernels" in name):
            continue
        for function in vars(module).values():
            inside = getattr(getattr(function, "py_func", None), "__module__", None)
            if inside == name and not function.targetoptions.get("no_cpython_wrapper"):
                key = f"{name}.{function.py_func.__name__}"
                found[key] = [str(signature) for signature in function.signatures]
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(name)
    print(json.dumps(signatures()))
