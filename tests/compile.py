"""Compile the kernels that the tests need, while other tests run; see `conftest`."""

from __future__ import annotations

import tocsin
from tocsin.engines import names


def compile_engine(name: str) -> None:
    """Let an engine do a little of everything."""
    matcher = tocsin.Matcher(engine=name)
    matcher.subscribe_many({"id": [1, 2], "where": ["x = 1 AND y > 2", "x = 1 OR y < 3"]})
    matcher.match({"x": 1})
    matcher.match_batch([{"x": 1, "y": 3}])
    matcher.unsubscribe(1)


if __name__ == "__main__":
    tocsin.warm_up()
    for name in names():
        compile_engine(name)
