"""Compile the kernels that the tests need, while tests run that need none; see `conftest`.

Two processes share the work: one begins with the kernels of loads, the other with those of
matching. What one of them has compiled the other finds in the cache. Then the first goes on with
the engines that few tests need.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa

import tocsin
from tocsin.engines import names
from tocsin.loading import load_rows, load_table

LOADING, MATCHING, RARE = "loading", "matching", "rare"


def stamp(part: str) -> Path:
    """Return the file that is there when a part of the work is done."""
    return Path(os.environ["NUMBA_CACHE_DIR"]) / f"{part}.done"


def compile_loading() -> None:
    """Read subscriptions in every form, and put none of them into an index."""
    texts = ["x = 1 AND s = 'a' AND y < 2.5", "NOT (x = 1 AND y > 2.5)", "x < 2 OR s < 'b'"] * 40
    for ids in (list(range(120)), [f"id {i}" for i in range(120)]):
        load_table({"id": ids, "where": texts}, None, None, None)
        load_table({"id": ids, "v": ids}, "x = :v AND y > 1", None, None)
    rows = {
        "id": [1, 1, 2],
        "attribute": ["x", "y", "x"],
        "op": ["=", "<", ">"],
        "value": [1, 2, 3],
    }
    load_rows(rows, None)


def compile_matching() -> None:
    """Match what was subscribed one by one, which takes none of the kernels of loads."""
    matcher = tocsin.Matcher()
    for i in range(1500):
        matcher.subscribe(i, f"a = {i % 7} AND b = {i // 7 % 7} AND c{i % 3} = {i % 11} AND d = 1")
    table = {name: [i % 7 for i in range(3000)] for name in ("a", "b", "c0", "c1", "c2", "d")}
    matcher.match_batch(pa.table(table))
    matcher = tocsin.Matcher()
    for i in range(1000):
        matcher.subscribe(i, f"s = 'x{i % 9}' AND p BETWEEN {i / 10} AND {i / 10 + 5}")
    matcher.match_batch(pa.table({"s": ["x1", "x2"], "p": [3.5, 70.0]}))


def compile_engine(name: str) -> None:
    """Let an engine do a little of everything."""
    matcher = tocsin.Matcher(engine=name)
    matcher.subscribe_many({"id": [1, 2], "where": ["x = 1 AND y > 2", "x = 1 OR y < 3"]})
    matcher.match({"x": 1})
    matcher.match_batch([{"x": 1, "y": 3}])
    matcher.unsubscribe(1)


def main(part: str, with_rare: bool) -> None:
    """Do one part of the work; whatever comes of it, nobody waits for it in vain."""
    try:
        (compile_loading if part == LOADING else compile_matching)()
        tocsin.warm_up()
        compile_engine("auto")
    finally:
        stamp(part).touch()
    if part == LOADING and with_rare:
        for name in names():
            compile_engine(name)
        stamp(RARE).touch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "rare")
