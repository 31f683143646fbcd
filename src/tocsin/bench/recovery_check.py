"""The output of a pipeline held against a recomputation, batch by batch.

Enters: the folder of a recovery run. Leaves: what was compared and where it differs. Neither Spark
nor the pipeline's own steps are used: the files of a batch come from Spark's log, the version and
the moment from the pin in the store, the matches from a matcher opened at that version.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from tocsin.spark.pipeline.metrics import load_metrics
from tocsin.spark.pipeline.tables import read_table
from tocsin.subscription_store import SubscriptionStore


def check(folder: Path) -> dict[str, Any]:
    """Recompute all batches; return what was found."""
    output = folder / "output"
    query = json.loads((output / "checkpoint" / "metadata").read_text())["id"]
    files = files_by_batch(output / "checkpoint")
    store = SubscriptionStore(folder / "store")
    pins = store.pins(query)
    tables = {
        name: _by_batch(output / name) for name in ("notifications", "quarantine", "unmatched")
    }
    differences: list[str] = []
    totals: Counter[str] = Counter()
    for batch, paths in sorted(files.items()):
        events, bad = _read(paths)
        pin = pins[batch]
        matcher = store.matcher(pin.version, clock=partial(float, pin.now), merges=False)
        expected, lonely = _match(matcher, events)
        got = {name: table.get(batch, []) for name, table in tables.items()}
        found = Counter((row["event"], row["subscription"]) for row in got["notifications"])
        _compare(differences, batch, "notifications", expected, found)
        _compare(
            differences, batch, "unmatched", lonely, Counter(r["event"] for r in got["unmatched"])
        )
        aside = Counter(row["original"] for row in got["quarantine"])
        _compare(differences, batch, "quarantine", Counter(bad), aside)
        totals.update(
            events_in=len(events) + len(bad),
            quarantined=len(bad),
            notifications=expected.total(),
            found=found.total(),
        )
    extra = {batch for table in tables.values() for batch in table} - set(files)
    differences += [f"batch {batch} is in the output, but not in Spark's log" for batch in extra]
    finished = {each.batch: each for each in load_metrics(str(output))}
    repeated = sum(finished[batch].started > pins[batch].now for batch in finished)
    left = len(list((output / "notifications" / "data").iterdir())) - len(finished)
    return {
        "batches": len(files),
        "versions": len({pins[batch].version for batch in files}),
        "repeated": repeated,
        "left_behind": left,
        **{name: totals[name] for name in ("events_in", "quarantined", "notifications", "found")},
        "differences": differences[:20],
        "verified": not differences and bool(files),
    }


def files_by_batch(checkpoint: Path) -> dict[int, list[Path]]:
    """Return the files of each batch from the log of Spark's file source."""
    found: dict[int, set[str]] = {}
    for place in (checkpoint / "sources" / "0").iterdir():
        if place.name.startswith("."):
            continue
        for line in place.read_text().splitlines()[1:]:
            entry = json.loads(line)
            found.setdefault(entry["batchId"], set()).add(entry["path"])
    return {
        batch: sorted(Path("/" + path.removeprefix("file:").lstrip("/")) for path in paths)
        for batch, paths in found.items()
    }


def _by_batch(table: Path) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in read_table(str(table), with_batch=True).to_pylist():
        rows.setdefault(row["batch"], []).append(row)
    return rows


def _read(paths: list[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    events, bad = [], []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                bad.append(line)
    return events, bad


def _match(
    matcher: Any, events: list[dict[str, Any]]
) -> tuple[Counter[tuple[int, int]], Counter[int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    lonely: Counter[int] = Counter()
    for event, ids in zip(events, matcher.match_batch(events), strict=True):
        pairs.update((event["event"], id) for id in ids)
        if not ids:
            lonely[event["event"]] += 1
    return pairs, lonely


def _compare(
    differences: list[str], batch: int, what: str, expected: Counter[Any], found: Counter[Any]
) -> None:
    if expected != found:
        missing, more = (expected - found).total(), (found - expected).total()
        differences.append(f"batch {batch}: {what}: {missing} missing, {more} too many")
