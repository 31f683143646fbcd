"""The output of a pipeline compared with a recomputation, batch by batch.

Enters: the folder of a recovery run. Leaves: the totals and the differences. Neither Spark
nor the pipeline's own steps are used: the files of a batch come from Spark's log, the version and
the moment from the pin in the store, the matches from a matcher opened at that version. Transitions
are found by sets, one publication and one update at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tocsin.matcher import Matcher
from tocsin.spark.pipeline.metrics import load_metrics
from tocsin.spark.pipeline.tables import read_table
from tocsin.store.subscription_store import SubscriptionStore

Event = dict[str, Any]


def check(folder: Path, ttl: float | None = None) -> dict[str, Any]:
    """Recompute all batches; return the differences and totals.

    With a `ttl` the pipeline wrote transitions, and publications expired after that many seconds.
    """
    output = folder / "output"
    query = json.loads((output / "checkpoint" / "metadata").read_text())["id"]
    files = files_by_batch(output / "checkpoint")
    store = SubscriptionStore(folder / "store")
    pins = store.pins(query)
    expected: Matches | Transitions = Matches() if ttl is None else Transitions(ttl)
    tables = {name: _by_batch(output / name) for name in (*expected.columns, "quarantine")}
    differences: list[str] = []
    totals: Counter[str] = Counter()
    for batch, paths in sorted(files.items()):
        events, bad = _read(paths)
        pin = pins[batch]
        matcher = store.matcher(pin.version, clock=partial(float, pin.now), merges=False)
        outputs = expected.of(matcher, pin.now, events)
        got = {
            name: Counter(tuple(row[c] for c in columns) for row in tables[name].get(batch, []))
            for name, columns in expected.columns.items()
        }
        for name, rows in outputs.items():
            _compare(differences, batch, name, rows, got[name])
        aside = Counter(row["original"] for row in tables["quarantine"].get(batch, []))
        _compare(differences, batch, "quarantine", Counter(bad), aside)
        expected.add(matcher, got["notifications"])
        totals.update(
            events_in=len(events) + len(bad),
            quarantined=len(bad),
            notifications=outputs["notifications"].total(),
            found=got["notifications"].total(),
        )
    differences += expected.differences()
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
        **expected.facts(),
        "differences": differences[:20],
        "verified": not differences and bool(files),
    }


class Matches:
    """What a pipeline of matches should have written."""

    columns: Mapping[str, tuple[str, ...]] = {
        "notifications": ("event", "subscription"),
        "unmatched": ("event",),
    }

    def of(self, matcher: Matcher, now: float, events: list[Event]) -> dict[str, Counter[Any]]:
        """Return the rows of a batch, by table."""
        pairs: Counter[Any] = Counter()
        lonely: Counter[Any] = Counter()
        for event, ids in zip(events, matcher.match_batch(events), strict=True):
            pairs.update((event["event"], id) for id in ids)
            if not ids:
                lonely[(event["event"],)] += 1
        return {"notifications": pairs, "unmatched": lonely}

    def add(self, matcher: Matcher, notifications: Counter[Any]) -> None:
        """Do nothing: matches do not add up to anything."""

    def differences(self) -> list[str]:
        """Return nothing more."""
        return []

    def facts(self) -> dict[str, Any]:
        """Return nothing more."""
        return {}


class Transitions:
    """The transitions that a pipeline should have written, computed by brute force.

    `relation` has what each publication should match, `net` the written transitions, ENTER minus
    LEAVE, without pairs of removed subscriptions.
    """

    columns: Mapping[str, tuple[str, ...]] = {
        "notifications": ("publication", "subscription", "kind")
    }

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._values: dict[int, tuple[Event, float]] = {}
        self.relation: dict[int, set[Any]] = {}
        self.net: Counter[tuple[int, Any]] = Counter()
        self._wrong: list[str] = []
        self._expired = 0

    def of(self, matcher: Matcher, now: float, events: list[Event]) -> dict[str, Counter[Any]]:
        """Return the transitions of a batch: ends, then subscriptions, then updates in order."""
        notifications: Counter[Any] = Counter()
        for key in [key for key, (_, at) in self._values.items() if at + self._ttl <= now]:
            self._become(key, set(), notifications)
            self._expired += 1
            del self._values[key]
        keys = list(self._values)
        for key, ids in zip(
            keys, self._matched(matcher, [self._values[k][0] for k in keys]), strict=True
        ):
            self.relation[key] = {id for id in self.relation[key] if id in matcher}
            self._become(key, ids, notifications)
        events = sorted(events, key=lambda event: int(event["event"]))
        for event, ids in zip(events, self._matched(matcher, events), strict=True):
            key = event["publication"]
            is_end = bool(event.get("gone"))
            self._become(key, set() if is_end else ids, notifications)
            self._values.pop(key, None)
            if not is_end:
                self._values[key] = (event, now)
        return {"notifications": notifications}

    def _matched(self, matcher: Matcher, events: list[Event]) -> list[set[Any]]:
        seen = [{k: v for k, v in event.items() if k != "gone"} for event in events]
        return [set(ids) for ids in matcher.match_batch(seen)] if seen else []

    def _become(self, key: int, ids: set[Any], notifications: Counter[Any]) -> None:
        """Let a publication match these from now on."""
        before = self.relation.get(key, set())
        notifications.update((key, id, "LEAVE") for id in before - ids)
        notifications.update((key, id, "ENTER") for id in ids - before)
        self.relation[key] = ids

    def add(self, matcher: Matcher, notifications: Counter[Any]) -> None:
        """Add up the transitions in the output of a batch."""
        for (key, id, kind), n in notifications.items():
            self.net[key, id] += n if kind == "ENTER" else -n
        for pair in [pair for pair in self.net if pair[1] not in matcher]:
            del self.net[pair]
        self._wrong += [
            f"{pair} has ENTER minus LEAVE = {n}" for pair, n in self.net.items() if n not in (0, 1)
        ]

    def differences(self) -> list[str]:
        """Return where ENTER minus LEAVE is not what matches in the end."""
        notified = {pair for pair, n in self.net.items() if n}
        true = {(key, id) for key, ids in self.relation.items() for id in ids}
        wrong = [f"{pair} matches in the end, and has no ENTER" for pair in true - notified]
        wrong += [f"{pair} has an ENTER, and does not match" for pair in notified - true]
        return self._wrong + wrong

    def facts(self) -> dict[str, Any]:
        """Return what matches in the end."""
        n = sum(len(ids) for ids in self.relation.values())
        return {"publications": len(self._values), "relation": n, "expired": self._expired}


def files_by_batch(checkpoint: Path) -> dict[int, list[Path]]:
    """Return the files of each batch from Spark's logs.

    The log of the file source has numbers of its own: a driver that is killed between writing it
    and writing the offsets of a batch leaves an entry that goes into that batch with the next one.
    """
    entries: dict[int, set[str]] = {}
    for place in _logged(checkpoint / "sources" / "0"):
        for line in place.read_text().splitlines()[1:]:
            entry = json.loads(line)
            entries.setdefault(entry["batchId"], set()).add(entry["path"])
    files: dict[int, list[Path]] = {}
    for place in sorted(_logged(checkpoint / "offsets"), key=lambda place: int(place.name)):
        end = json.loads(place.read_text().splitlines()[-1])["logOffset"]
        paths = [path for number in sorted(entries) if number <= end for path in entries[number]]
        entries = {number: paths for number, paths in entries.items() if number > end}
        files[int(place.name)] = sorted(
            Path("/" + path.removeprefix("file:").lstrip("/")) for path in paths
        )
    return files


def _logged(folder: Path) -> list[Path]:
    return [place for place in folder.iterdir() if not place.name.startswith(".")]


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


def _compare(
    differences: list[str], batch: int, what: str, expected: Counter[Any], actual: Counter[Any]
) -> None:
    if expected != actual:
        missing, more = (expected - actual).total(), (actual - expected).total()
        differences.append(f"batch {batch}: {what}: {missing} missing, {more} too many")
