"""A matcher that was saved and opened is the matcher that it was."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.stores import EVENTS, QUOTE, TEXTS, files, filled, seen

import tocsin
from tocsin.errors import DuplicateSubscriptionError, UnknownSubscriptionError
from tocsin.matcher import Matcher


def reopened(matcher: Matcher, path: Path, **options: Any) -> Matcher:
    matcher.save(path)
    return tocsin.Matcher.open(path, clock=lambda: 1_000.0, **options)


@pytest.mark.parametrize(
    ("engine", "event_type"),
    [("auto", None), ("auto", QUOTE), ("tree", None), ("oracle", QUOTE)],
    ids=["auto", "auto with types", "tree", "oracle"],
)
def test_an_opened_matcher_looks_as_it_did(
    engine: str, event_type: tocsin.EventType | None, tmp_path: Path
) -> None:
    events = [e for e in EVENTS if not isinstance(e.get("x"), str)]
    matcher = filled(event_type, engine=engine)
    opened = reopened(matcher, tmp_path / "store")
    expected = seen(matcher, events)
    assert any(expected["matches"])
    assert seen(opened, events) == expected
    assert seen(reopened(opened, tmp_path / "again"), events) == expected


@pytest.mark.parametrize("engine", ["auto", "tree"])
def test_an_opened_matcher_is_changed_as_any_other(engine: str, tmp_path: Path) -> None:
    matcher = filled(engine=engine)
    opened = reopened(matcher, tmp_path / "store")
    for each in (matcher, opened):
        with pytest.raises(DuplicateSubscriptionError):
            each.subscribe("t1", "x = 1")
        with pytest.raises(UnknownSubscriptionError):
            each.unsubscribe(1_003)
        each.update(-1, params={"v": 150})
        each.update(1_010, params={"a": 150})
        each.unsubscribe_many([f"t{i}" for i in range(10, 110)])
        each.subscribe("t11", "x = 150")
        each.subscribe_many({"id": range(9_000, 9_200), "where": [TEXTS[3]] * 200})
    expected = seen(matcher)
    assert seen(opened) == expected
    assert "'t11'" in expected["matches"][7]
    for each in (matcher, opened):
        each.rebuild()
    assert seen(opened)["matches"] == expected["matches"]
    assert seen(reopened(opened, tmp_path / "store"))["matches"] == expected["matches"]


def test_what_ends_still_ends(tmp_path: Path) -> None:
    filled().save(tmp_path / "store")
    now = 1_000.0
    matcher = tocsin.Matcher.open(tmp_path / "store", clock=lambda: now)
    n = len(matcher)
    now = 1_500.0
    assert n - 40 <= len(matcher) < n
    assert "t0" not in matcher
    n = len(matcher)
    now = 2_000.0
    assert len(matcher) == n - 3
    matcher.check()


def test_what_has_ended_is_not_saved(tmp_path: Path) -> None:
    now = 1_000.0
    matcher = tocsin.Matcher(clock=lambda: now)
    matcher.subscribe("a", "x = 1", valid_until=1_500_000_000)
    matcher.subscribe("b", "x = 1")
    now = 2_000.0
    matcher.save(tmp_path / "store")
    assert tocsin.Matcher.open(tmp_path / "store", clock=lambda: 0.0).match({"x": 1}) == ["b"]


def test_an_empty_matcher_is_opened_empty(tmp_path: Path) -> None:
    for engine in ("auto", "tree", "oracle"):
        opened = reopened(tocsin.Matcher(engine=engine), tmp_path / engine)
        assert opened.match({"x": 1}) == []
        opened.subscribe("a", "x = 1")
        assert opened.match({"x": 1}) == ["a"]


def test_several_segments_are_opened_as_several(tmp_path: Path) -> None:
    matcher = tocsin.Matcher(merges=False)
    for i in range(5):
        matcher.subscribe_many({"id": range(i * 100, i * 100 + 100), "v": range(100)}, "x = :v")
        matcher.match({"x": 1})
    matcher.unsubscribe_many([1, 202, 301, 302])
    matcher.save(tmp_path / "store")
    assert len(list((tmp_path / "store").glob("segment-*"))) == 5
    opened = tocsin.Matcher.open(tmp_path / "store")
    assert sorted(opened.match({"x": 1})) == [101, 201, 401]
    assert sorted(opened.match({"x": 2})) == [2, 102, 402]
    opened.subscribe(999, "x = 2")
    opened.check()
    opened.rebuild()
    assert sorted(opened.match({"x": 2})) == [2, 102, 402, 999]
    assert opened.explain(2) == opened.explain(2)
    opened.check()


def test_options_of_an_engine_are_kept(tmp_path: Path) -> None:
    matcher = tocsin.Matcher(engine="tree", successors=True, index_attributes=2)
    matcher.subscribe("a", "x = 1 AND y = 2")
    opened = reopened(matcher, tmp_path / "tree")
    assert opened._options == {"successors": True, "index_attributes": 2}
    assert opened.match({"x": 1, "y": 2}) == ["a"]


@pytest.mark.parametrize(
    "events",
    [
        [{"a": i % 2, "b": i} for i in range(300)],
        pa.table({"a": [1] * 300, "b": range(300), "c": [{"d": [1]}] * 300}),
    ],
    ids=["mappings", "table"],
)
def test_what_was_learned_of_events_is_kept(events: Any, tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    matcher.profile(events)
    opened = reopened(matcher, tmp_path / "store")
    plain = tocsin.Matcher()
    texts = [f"a = 1 AND b = {i} AND e = {i % 30}" for i in range(300)]
    for each in (matcher, opened, plain):
        each.subscribe_many({"id": range(300), "where": texts})
    assert opened.explain(7) == matcher.explain(7) != plain.explain(7)


def test_a_profile_that_fits_no_table_is_dropped(tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    matcher.profile([{"a": 1}, {"a": "text"}, {"a": [1]}])
    matcher.subscribe("a", "a = 1")
    assert reopened(matcher, tmp_path / "store").match({"a": 1}) == ["a"]
    assert not list((tmp_path / "store").glob("profile-*"))


def test_an_opened_matcher_does_not_change_its_files(tmp_path: Path) -> None:
    opened = reopened(filled(), tmp_path / "store")
    before = {path: path.read_bytes() for path in files(tmp_path / "store")}
    opened.unsubscribe_many([f"t{i}" for i in range(10, 110)])
    opened.rebuild()
    opened.match_batch(EVENTS)
    assert {path: path.read_bytes() for path in files(tmp_path / "store")} == before


def test_saving_does_not_change_a_matcher(tmp_path: Path) -> None:
    matcher, other = filled(), filled()
    matcher.save(tmp_path / "store")
    assert seen(matcher) == seen(other)


def test_columns_of_every_form_are_kept(tmp_path: Path) -> None:
    """Slices, dictionaries, nulls: however a column came, the conditions are the same."""
    n = 100
    texts = pa.array(["IBM", None, "", "ÄÖ"] * 50)
    flags = pa.array([True, None, False] * 100).slice(5, n)
    table = pa.table(
        {
            "id": pa.array([f"i{i}" for i in range(300)]).slice(13, n),
            "a": texts.slice(3, n),
            "b": flags,
            "c": pa.nulls(n),
            "d": pa.array(np.arange(n) / 3),
            "e": pa.array([dt if dt else None for dt in range(n)], pa.timestamp("ms")),
        }
    )
    matcher = tocsin.Matcher()
    where = "s = :a OR t = :b OR u = :c OR v < :d OR w = :e"
    matcher.subscribe_many(table, where)
    rules = {
        "id": pa.array(np.arange(2 * n) // 2).cast(pa.int32()),
        "attribute": pa.array(["s", "v"] * n).dictionary_encode(),
        "op": pa.array(["<>", "="] * n).dictionary_encode(),
        "text": pa.array(["a", None, "b", None] * 50).dictionary_encode(),
        "number": pa.array([None, 0.5] * n),
    }
    matcher.subscribe_many(rules)
    events = [
        {"s": s, "t": t, "v": v} for s in ("IBM", "", "a") for t in (True, None) for v in (0.5, 9)
    ]
    assert seen(reopened(matcher, tmp_path / "store"), events) == seen(matcher, events)


@pytest.mark.slow
def test_another_process_opens_it(tmp_path: Path) -> None:
    matcher = filled(QUOTE)
    matcher.save(tmp_path / "store")
    script = (
        "import json, sys, tocsin\n"
        "m = tocsin.Matcher.open(sys.argv[1], clock=lambda: 1000.0)\n"
        "e = {'firm': 'IBM', 'price': 89.5, 'volume': 100}\n"
        "print(json.dumps([sorted(map(repr, m.match(e))), len(m), repr(m.event_type)]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    expected = sorted(map(repr, matcher.match({"firm": "IBM", "price": 89.5, "volume": 100})))
    assert json.loads(result.stdout) == [expected, len(matcher), repr(QUOTE)]


def test_a_store_holds_one_moment_while_others_change_the_matcher(tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    stopped = threading.Event()

    def write() -> None:
        i = 0
        while not stopped.is_set():
            matcher.subscribe_many({"id": range(10 * i, 10 * i + 10), "where": ["x = 1"] * 10})
            if i % 3 == 2:
                matcher.unsubscribe_many(range(10 * i - 10, 10 * i))
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            matcher.save(tmp_path / "store")
            opened = tocsin.Matcher.open(tmp_path / "store")
            found = opened.match({"x": 1})
            assert len(found) == len(set(found)) == len(opened)
            assert len(opened) % 10 == 0
            opened.check()
    finally:
        stopped.set()
        writer.join()
