"""Compiling ahead: every kernel that a matcher uses, on subscriptions made for it.

Enters: nothing. Leaves: kernels compiled, and kept on disk for the next process. As a program it is
what `compiling` starts: kernels of matching come first, because loads can do longer without.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from tocsin import compiling
from tocsin.matcher import Matcher


def warm_up() -> None:
    """Compile the kernels that a matcher uses, so that no later call has to wait for them.

    It takes up to half a minute once; after that they are kept on disk and take a second to load.
    """
    compiling.use_from_now_on()
    _warm_matching()
    _warm_changes()
    _warm_tests()
    compiling.set_ready()


def _warm_matching() -> None:
    """Match what was subscribed in every layout that an index has."""
    n = 3000
    group = [
        f"a = {i % 7} AND b = {i // 7 % 7} AND c{i % 3} = {i % 11} AND d = 1" for i in range(n)
    ]
    names = ("a", "b", "c0", "c1", "c2", "d")
    events = pa.table({name: [i % 7 for i in range(n)] for name in names})
    matcher = _match(group, events)
    alone = [i % 7 if i < 7 else 100 for i in range(n)]  # hardly any event has a prefix
    matcher.match_batch(events.set_column(0, "a", pa.array(alone)))
    for i in range(2):
        matcher.subscribe(f"delta {i}", group[i])
        matcher.match_batch(events.slice(0, 1))  # in the write buffer
        matcher.index.reader()
        matcher.match_batch(events)
    wide = [
        f"w{i % 70} = {i} AND w{(i + 1) % 70} > 3" + " AND w7 > 1 AND w8 > 1" * (i % 50 == 5)
        for i in range(700)
    ]
    wide += [f"v > {i}" for i in range(800)]
    _match(wide, pa.table({f"w{i}": [float(i)] * 100 for i in range(70)} | {"v": [400.5] * 100}))
    windows = [f"s = 'x{i % 9}' AND p BETWEEN {i / 10} AND {i / 10 + 5}" for i in range(1000)]
    _match(windows, pa.table({"s": ["x1", "x2"], "p": [3.5, 70.0]}))
    words = [f"t LIKE '%word{i}%' AND t NOT LIKE '%x_{i}' AND n <> {i}" for i in range(200)]
    titles = pa.table({"t": ["a word7", "word8", "word9"], "n": [3, 4, 5]})
    _match(words, titles).match(titles.to_pylist()[0])


def _match(texts: list[str], events: pa.Table) -> Matcher:
    matcher = Matcher()
    for i, text in enumerate(texts):
        matcher.subscribe(i, text)
    matcher.index.reader()  # indexes what is pending
    matcher.match_batch(events)
    return matcher


def _warm_tests() -> None:
    """Compile what terms with constants of their own, and conditions on elements, use."""
    places = [f"distance(y, x, {i}.5, 2) < 1000 AND x > 0" for i in range(20)]
    numbers = [f"abs(x - {i}.5) < 2 AND y > 0" for i in range(20)]
    elements = [f"ANY(tags) = 'a' AND ANY(sizes) > {i}" for i in range(20)]
    elements += [f"exists(items, e -> e.n > {i} AND e.n < 9)" for i in range(20)]
    texts = [*places, *numbers, *elements]
    matcher = Matcher()
    matcher.subscribe_many(pa.table({"id": range(len(texts)), "where": texts}))
    events = [{"x": 3.0, "y": 2.0, "tags": ["a", "b"], "sizes": [5], "items": [{"n": 5}]}] * 2
    matcher.index.reader()
    matcher.match_batch(events)
    matcher.match(events[0])


def _warm_changes() -> None:
    """Compile what single subscriptions, removals and merges use."""
    texts = [
        "x = 1 AND s = 'a' AND y < 2.5",
        "NOT (x = 1 AND y > 2.5)",
        "x < 2 AND y > 1 OR s < 'b'",
    ]
    matcher = Matcher()
    matcher.subscribe_many(pa.table({"id": range(len(texts)), "where": texts}))
    events = pa.table({"x": [1, 10**9], "y": [0.5, 3.5], "s": ["a", "b"]})
    matcher.index.reader()
    matcher.match_batch(events)
    for _ in range(4):
        matcher.subscribe(len(matcher), "x = 1 AND y BETWEEN 0.1 AND 0.9")
        matcher.index.reader()
        matcher.match_batch(events)
    names = [f"warm{i}" for i in range(100)]
    for ids in (names, range(10**6, 10**6 + 100)):
        matcher.subscribe_many({"id": ids, "where": ["x = 1"] * 100})
    matcher.unsubscribe_many(names)
    matcher.unsubscribe(0)
    matcher.subscribe("element", "ANY(tags) = 'a' AND x = 1")
    matcher.match_batch([{"tags": ["a", "b"], "x": 1}])
    matcher.unsubscribe("element")
    matcher.subscribe("pattern", f"s LIKE '%{'a_' * 40}b%'")
    matcher.index.reader()
    matcher.match({"s": "a" * 1_000})
    matcher.match(events.to_pylist()[0])
    matcher.match_batch(events)


if __name__ == "__main__":
    compiling.compile_for(int(sys.argv[1]), warm_up)
