"""The published structures: counters, clusters by size, room that is used again."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from tests.engines.test_protocol import Bench

import tocsin
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError
from tocsin.jit import MOST_BITS
from tocsin_lab.engines.clustering.arrays import COUNT, N_BLOCKS, N_LEFT, STRIPE, WAITING
from tocsin_lab.engines.clustering.clusters import ClusterEngine
from tocsin_lab.engines.clustering.counting import CountingEngine

CLUSTERED = ("propagation", "propagation-prefetch", "static", "dynamic")


def clusters(engine: Any) -> dict[tuple[int, int], int]:
    """Return the number of clusters by predicates left and conjunctions."""
    counts: dict[tuple[int, int], int] = {}
    for row in cast(ClusterEngine, engine)._clusters:
        if row[N_LEFT] >= 0:
            key = int(row[N_LEFT]), int(row[COUNT])
            counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.parametrize("engine", ["propagation", "propagation-prefetch"])
def test_clusters_of_several_stripes_are_checked_to_the_last_entry(engine: str) -> None:
    """What passes waits for more of it, across stripes, where that is prefetched."""
    bench = Bench(engine)
    n = STRIPE + 17
    bench.insert(0, *(f"k = 1 AND x > {i} AND y > {i % 7}" for i in range(n)))
    bench.check([{"k": 1, "x": x, "y": y} for x, y in ((0, 9), (STRIPE, 3), (n, 9))])


@pytest.mark.parametrize("engine", ["propagation", "propagation-prefetch"])
def test_predicates_that_have_no_bit_are_looked_up_by_their_bytes(engine: str) -> None:
    bench = Bench(engine)
    n = MOST_BITS + 100
    bench.insert(0, *(f"k = {i % 9} AND x > {i} AND y > {i % 7}" for i in range(n)))
    bench.check([{"k": k, "x": x, "y": y} for k, x, y in ((0, 50, 9), (1, n - 3, 3), (2, n, 9))])


@pytest.mark.parametrize("engine", CLUSTERED)
def test_more_small_clusters_than_an_event_has_room_for(engine: str) -> None:
    """Those for which there is no room are read like large ones."""
    bench = Bench(engine)
    names = [f"a{i}" for i in range(N_BLOCKS + 20)]
    bench.insert(0, *(f"{name} = 1 AND x > 0 AND y > 0" for name in names))
    both = dict.fromkeys(names, 1) | {"x": 1, "y": 1}
    bench.check([both, both | {"y": 0}, dict.fromkeys(names[:50], 1) | {"x": 1, "y": 1}, {}])


@pytest.mark.parametrize("engine", CLUSTERED)
def test_more_entries_of_small_clusters_than_may_wait(engine: str) -> None:
    bench = Bench(engine)
    texts = [f"a{i % 5} = 1 AND x > 0 AND y > {i} AND z > 0" for i in range(4 * WAITING)]
    bench.insert(0, *texts, "a0 = 1", "a0 = 1 AND x > 0")
    event = {f"a{i}": 1 for i in range(5)} | {"x": 1, "z": 1}
    bench.check(
        [event | {"y": y} for y in (0, 1, WAITING, 9 * WAITING)] + [event, event | {"z": 0}]
    )


def test_events_that_find_no_room_in_the_midst_of_a_chunk_are_matched_again() -> None:
    bench = Bench("dynamic", bm_max=0.1, b_min=1, rp_min=10, s_min=0)
    texts = [f"a = {i % 3} AND b = {i // 3 % 3} AND x > {i}" for i in range(900)]
    bench.insert(0, *texts)
    engine = cast(ClusterEngine, bench.engine)
    assert engine.tables
    engine._out = np.empty(150, np.int32)
    events = [{"a": i % 3, "b": i // 3 % 3, "x": 1_000 * (i % 2)} for i in range(25)]
    bench.check(events)
    assert len(engine._out) > 150


def test_counting_touches_the_counters_of_satisfied_predicates_only() -> None:
    bench = Bench("counting")
    bench.insert(0, "x = 1 AND y = 1", "x = 2 AND y = 1", "x = 2 AND y = 2", "z = 1")
    engine = cast(CountingEngine, bench.engine)
    for _ in range(3):
        before = engine._hits.copy()
        assert engine.match_one({"x": 1, "y": 1}) == [0]
        assert np.flatnonzero(engine._hits != before).tolist() == [0, 1]


def test_counting_goes_on_when_the_counters_are_full() -> None:
    bench = Bench("counting")
    bench.insert(0, "x = 1 AND s = 'ab'", "x > 1 AND s = 'ab'", "TRUE", "x = 2 OR s = 'b'")
    engine = cast(CountingEngine, bench.engine)
    bench.check()
    engine._base = 2**31 - 20
    bench.check()
    assert engine._base < 1000
    bench.check()


@pytest.mark.parametrize("engine", CLUSTERED)
def test_clusters_of_every_size_are_checked_to_the_last_predicate(engine: str) -> None:
    """Without prefetching, one to ten predicates have a check of their own, more one in common."""
    bench = Bench(engine)
    names = [f"a{i}" for i in range(14)]
    texts = [" AND ".join(f"{name} > 0" for name in names[:n]) for n in range(1, 15)]
    bench.insert(0, *texts, *texts)
    everything = dict.fromkeys(names, 1)
    bench.check([everything, *(everything | {name: 0} for name in names)])
    assert clusters(bench.engine) == {(n, 2): 1 for n in range(1, 15)}


def test_propagation_keeps_conjunctions_under_their_rarest_equality_by_size() -> None:
    bench = Bench("propagation")
    bench.insert(0, *(f"kind = 1 AND id = {i} AND x > {i}" for i in range(10)))
    bench.insert(10, "kind = 1", "kind = 1 AND x > 0", "x > 0", "TRUE")
    assert clusters(bench.engine) == {(2, 1): 10, (0, 1): 2, (1, 1): 2}
    assert "kept under (id)" in bench.engine.explain(3)
    assert "kept under (kind)" in bench.engine.explain(11)
    assert "every event" in bench.engine.explain(12)
    bench.check([{"kind": 1, "id": 3, "x": 5}, {"kind": 1, "x": 0}, {"id": 3}, {}])


def test_propagation_takes_the_equality_that_is_rare_in_the_profile() -> None:
    bench = Bench("propagation")
    bench.engine.profile(to_batch([{"a": i % 2, "b": i % 20} for i in range(200)]))
    bench.insert(0, *(f"a = {i % 2} AND b = 1" for i in range(4)))
    assert "kept under (b)" in bench.engine.explain(0), "though fewer values of b are asked for"
    bench.check([{"a": 0, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 2}])


@pytest.mark.parametrize("engine", ["counting", "propagation", "static", "dynamic"])
def test_what_goes_leaves_its_room_to_what_comes(engine: str) -> None:
    bench = Bench(engine)
    sizes = []
    n = 60
    for round in range(12):
        first = n * round
        texts = [f"x = {i % 7} AND s = 'n{i + first}' OR y > {i + first}" for i in range(n)]
        bench.insert(first, *texts)
        bench.engine.match_one({"x": 1, "y": 1e9})
        if round:
            bench.delete(*range(first - n, first))
        sizes.append(bench.engine.nbytes)
    bench.check([{"x": 1, "s": "n661", "y": 10}, {"y": 1e9}])
    assert max(sizes) < 4 * sizes[1], sizes


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("counting", {"max_bytes": 1}, "'counting' has no option max_bytes"),
        ("static", {"maxbytes": 1}, "'static' has no option maxbytes"),
        ("static", {"max_bytes": "1"}, "max_bytes of engine 'static' must be a whole number"),
        ("static", {"max_bytes": 1.5}, "must be a whole number"),
        ("static", {"max_bytes": -1}, "at least 0, not -1"),
        ("dynamic", {"bm_max": True}, "bm_max of engine 'dynamic' must be a number"),
        ("dynamic", {"bm_max": float("nan")}, "must be a number"),
        ("dynamic", {"b_min": 10, "rp_min": 5}, "b_min .10. must not be greater than rp_min .5."),
        ("dynamic", {"rp_min": None}, "must be a whole number"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(
    engine: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        tocsin.Matcher(engine=engine, **options)
