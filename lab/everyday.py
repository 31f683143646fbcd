"""Rules and events as a service has them: one at a time. Prints processor time, in µs.

Usage: python lab/everyday.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import tocsin

N = 150_000
EVENT = {
    "firm": "F7", "price": 500.0, "volume": 10, "bid": 1.5, "ask": 2.5, "venue": "XETR",
    "side": "buy", "open": True, "trader": "t1", "lots": 3,
}  # fmt: skip


def rule(n: int) -> str:
    """Return the condition of subscription n."""
    return f"firm = 'F{n % 1000}' AND price < {n % 90}"


def report(what: str, calls: Sequence[Callable[[], object]], n: int) -> None:
    """Print the processor time of some calls, for each of n."""
    started = time.process_time()
    for call in calls:
        call()
    taken = 1e6 * (time.process_time() - started) / n
    sys.stdout.write(f"{what:<40} {taken:12,.2f}\n")


def main() -> None:
    """Measure."""
    m, numbers = tocsin.Matcher(), iter(range(N, 2 * N))
    m.subscribe_many({"id": range(N), "where": [rule(n) for n in range(N)]})
    m.match_batch([EVENT] * 1000)

    def subscribe() -> None:
        n = next(numbers)
        m.subscribe(n, rule(n))

    def match() -> None:
        m.match(EVENT)

    for _ in range(50):
        subscribe()
        match()
    report("match, a mapping of ten attributes", [match] * 5_000, 5_000)
    report("the same in batches of 10,000", [lambda: m.match_batch([EVENT] * 10_000)] * 5, 50_000)
    report("subscribe and match", [subscribe, match] * 1_500, 1_500)
    service = tocsin.Matcher()
    added = [lambda n=n: service.subscribe(n, rule(n)) for n in range(20_000)]
    report("subscribe, 20,000 one by one", added, 20_000)
    report("first match after them", [lambda: service.match(EVENT)], 1)


if __name__ == "__main__":
    main()
