"""A million rules from a table: loaded by column, saved, and opened again."""

import tempfile
from pathlib import Path

import pyarrow as pa

import tocsin

N = 1_000_000
rules = pa.table(
    {
        "id": range(N),
        "firm": [f"F{i % 5000:04d}" for i in range(N)],
        "limit": [float(20 + i % 480) for i in range(N)],
    }
)
matcher = tocsin.Matcher(tocsin.EventType("Quote", firm=str, price=float))
report = matcher.subscribe_many(rules, where="firm = :firm AND price > :limit")
print(f"{len(matcher):,} rules")

quotes = pa.table({"firm": ["F0001", "F4999", "none"], "price": [22.5, 30.0, 1.0]})
print([len(ids) for ids in matcher.match_batch(quotes)])

with tempfile.TemporaryDirectory() as folder:
    matcher.save(Path(folder) / "rules.store")
    opened = tocsin.Matcher.open(Path(folder) / "rules.store")
    print([len(ids) for ids in opened.match_batch(quotes)])
