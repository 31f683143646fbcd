"""A database whose n-th call fails, and a broker that is run through every n.

`python -m tests.broker.faults` runs all cases (`--list` names the scenarios, arguments choose
some); `test_faults.py` runs a sample. A case is a scenario, a kind of fault, the number of the call
of the database layer that fails, and whether it fails once or from then on. Of each case is
demanded: what was acknowledged is on disk after the next start, what was refused has changed
nothing and reached nobody, counts in memory are those on disk, and the broker works again by itself
or has stopped with a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tocsin.broker import epoch, numbers, storage
from tocsin.broker.config import Config
from tocsin.broker.core import Broker
from tocsin.broker.durable import Consumer
from tocsin.broker.events import from_json
from tocsin.broker.registry import SpecEdit
from tocsin.broker.sessions import StreamSession
from tocsin.broker.subscription import SubscriptionSpec
from tocsin.broker.terms import retraction, to_publication
from tocsin.errors import TocsinError, UnknownOutcomeError

BLOCK = 4
"""Numbers in a block, so that a publish has to reserve some."""
ERRORS = {
    "io": ("disk I/O error", sqlite3.SQLITE_IOERR),
    "full": ("database or disk is full", sqlite3.SQLITE_FULL),
    "locked": ("database is locked", sqlite3.SQLITE_BUSY),
    "unknown": ("disk I/O error", sqlite3.SQLITE_IOERR),
}
"""Kinds of faults; `unknown` is a COMMIT that is carried out and then fails."""


class Fault(NamedTuple):
    """The call that fails, and how."""

    kind: str
    at: int
    lasts: bool


class Calls:
    """Counts the calls of the database layer while it is armed, and lets some of them fail."""

    def __init__(self) -> None:
        self.n = 0
        self.fault: Fault | None = None
        self.is_armed = False
        self.is_hit = False
        self._lock = threading.Lock()

    def arm(self, fault: Fault | None) -> None:
        self.n, self.fault, self.is_armed, self.is_hit = 0, fault, True, False

    def disarm(self) -> None:
        self.is_armed = False

    def fails(self, sql: str) -> bool:
        """Count a call; whether it fails."""
        fault = self.fault
        is_commit = sql == "COMMIT"
        with self._lock:
            if not self.is_armed or (
                fault is not None and fault.kind == "unknown" and not is_commit
            ):
                return False
            self.n += 1
            hit = fault is not None and (self.n == fault.at or (fault.lasts and self.n > fault.at))
            self.is_hit |= hit
        return hit

    def error(self) -> sqlite3.OperationalError:
        assert self.fault is not None
        text, code = ERRORS[self.fault.kind]
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        return error

    def run(self, sql: str, call: Callable[[], Any]) -> Any:
        if not self.fails(sql):
            return call()
        assert self.fault is not None
        if self.fault.kind == "unknown":
            call()
        raise self.error()


CALLS = Calls()


class Faulty(sqlite3.Connection):
    """A connection whose calls may fail."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return CALLS.run(sql, lambda: super(Faulty, self).execute(sql, *args))

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return CALLS.run(sql, lambda: super(Faulty, self).executemany(sql, *args))

    def executescript(self, sql: str) -> sqlite3.Cursor:
        return CALLS.run(sql, lambda: super(Faulty, self).executescript(sql))


class _Sqlite:
    """The module `sqlite3` as the storage sees it: its connections may fail."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        return CALLS.run("open", lambda: sqlite3.connect(path, factory=Faulty, **options))


@contextlib.contextmanager
def injected() -> Iterator[None]:
    """Let the storage's calls go through `CALLS`, with small blocks of numbers and no pauses."""
    write = epoch.write

    def write_or_fail(folder: Path, record: epoch.Record) -> None:
        if CALLS.fails("epoch"):
            raise OSError(errno.EIO, "Input/output error")
        write(folder, record)

    kept: list[tuple[Any, str, Any]] = [
        (storage, "sqlite3", _Sqlite()),
        (storage, "_PAUSES", (0.0, 0.0, 0.0)),
        (epoch, "write", write_or_fail),
        (numbers, "BLOCK", BLOCK),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in kept]
    for module, name, value in kept:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def config(folder: Path) -> Config:
    return Config(data=folder, http="", stomp="", drain_seconds=5.0, max_backlog=6, warm=False)


async def eventually(what: Callable[[], bool]) -> None:
    """Wait until something is true; fail when it never is."""
    for _ in range(2_000):
        if what():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


class Rig:
    """A broker, a listener of the transient subscription `t`, a reader of the durable one `d`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transient = StreamSession(1000, 1 << 20, False)
        self.durable = StreamSession(1000, 1 << 20, False)
        self.got: dict[str, list[dict[str, Any]]] = {"t": [], "d": []}

    async def listen(self) -> None:
        by_id = self.broker.subscriptions.by_id
        await self.broker.batches.listen(by_id["t"], self.transient)
        consumer = Consumer(self.broker, by_id["d"], self.durable, lambda: None, window=1000)
        self.consumer = consumer
        consumer.attach()
        await eventually(lambda: len(consumer.in_flight) == by_id["d"].pending)
        await self.quiet()
        self.collect()
        self.got = {"t": [], "d": []}

    async def quiet(self) -> None:
        """Let what is on its way arrive."""
        for _ in range(3):
            await asyncio.sleep(0)
            with contextlib.suppress(TocsinError):
                await self.broker.storage.submit(lambda connection: None)

    def collect(self) -> None:
        for name, session in (("t", self.transient), ("d", self.durable)):
            self.got[name] += [json.loads(each) for each in session.outbox.take()]

    async def publish(self, *events: dict[str, Any], key: str | None = None) -> None:
        made: list[Any] = [from_json(each, None, None) for each in events]
        if key is not None:
            made = [to_publication(each, key, None) for each in made]
        await self.broker.publish(made)


async def _publish_transient(rig: Rig) -> None:
    await rig.publish({"x": 1, "n": 7})


async def _publish_durable(rig: Rig) -> None:
    await rig.publish({"x": 1, "n": 8}, {"a": 1, "x": 1, "n": 9}, {"a": 2, "n": 10})


async def _publish_overflowing(rig: Rig) -> None:
    await rig.publish(*({"a": 1, "n": n} for n in range(20, 26)))


async def _publish_retained(rig: Rig) -> None:
    event = from_json({"x": 1, "n": 11}, None, None)
    event.retain_until = time.time_ns() // 1000 + 3_600_000_000
    await rig.broker.publish([event])


async def _publish_key(rig: Rig) -> None:
    await rig.publish({"a": 5, "w": 1, "n": 12}, key="new")


async def _retract(rig: Rig) -> None:
    await rig.broker.publish([retraction(None, "old")])


async def _subscribe(rig: Rig) -> None:
    await rig.broker.registry.add([SubscriptionSpec("s", "a > 0", durable=True)])


async def _subscribe_watching(rig: Rig) -> None:
    spec = SubscriptionSpec("s", "w > 0", durable=True, options={"transitions": 3})
    await rig.broker.registry.add([spec])


async def _unsubscribe(rig: Rig) -> None:
    await rig.broker.remove([rig.broker.subscriptions.by_id["gone"]])


async def _change(rig: Rig) -> None:
    found = rig.broker.subscriptions.by_id["gone"]
    await rig.broker.registry.change(found, SpecEdit(where="b > 5"))


async def _acknowledge(rig: Rig) -> None:
    found = rig.broker.subscriptions.by_id["d"]
    assert isinstance(found.consumer, Consumer)
    await rig.broker.backlog.acknowledge_ids(found, list(found.consumer.in_flight)[:1])


async def _revive(rig: Rig) -> None:
    await rig.broker.delivery.revive(rig.broker.subscriptions.by_id["gone"])


async def _nothing(rig: Rig) -> None:
    pass


SCENARIOS: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "publish-transient": _publish_transient,
    "publish-durable": _publish_durable,
    "publish-overflowing": _publish_overflowing,
    "publish-retained": _publish_retained,
    "publish-key": _publish_key,
    "retract": _retract,
    "subscribe": _subscribe,
    "subscribe-watching": _subscribe_watching,
    "unsubscribe": _unsubscribe,
    "change": _change,
    "acknowledge": _acknowledge,
    "revive": _revive,
    "start": _nothing,
}


async def _prepare(folder: Path) -> None:
    broker = Broker(config(folder))
    await broker.start()
    options = {"transitions": 3}
    await broker.registry.add(
        [
            SubscriptionSpec("t", "x > 0"),
            SubscriptionSpec("d", "a > 0", durable=True),
            SubscriptionSpec("gone", "b > 0", durable=True),
            SubscriptionSpec("w", "w > 0", durable=True, options=options),
        ]
    )
    rig = Rig(broker)
    await rig.publish({"a": 1, "n": 1}, {"a": 2, "b": 1, "n": 2}, {"b": 2, "n": 3})
    await rig.publish({"w": 1, "n": 4}, key="old")
    found = broker.subscriptions.by_id["gone"]
    consumer = Consumer(broker, found, rig.durable, lambda: None, window=10)
    consumer.attach()
    await eventually(lambda: len(consumer.in_flight) == 2)
    consumer.bury(min(consumer.in_flight), "refused")
    consumer.detach()
    await broker.stop()


def template(folder: Path) -> Path:
    """Make the folder that every case begins with a copy of."""
    asyncio.run(_prepare(folder))
    return folder


def _copy(source: Path, folder: Path) -> None:
    """Copy a folder as if it had always been there."""
    shutil.copytree(source, folder)
    record = epoch.read(folder)
    assert record is not None
    inode = (folder / storage.FILE).stat().st_ino
    epoch.write(folder, record._replace(inode=inode))


def facts(folder: Path) -> dict[str, Any]:
    """Return what a database says, apart from numbers; and look whether it contradicts itself."""
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        rows = connection.execute("SELECT no, id, condition FROM subscriptions").fetchall()
        ids = {no: id for no, id, _ in rows}
        odd = connection.execute(
            "SELECT seq, refs FROM events e WHERE refs != "
            "(SELECT count(*) FROM notifications n WHERE n.seq = e.seq) + "
            "(SELECT count(*) FROM dead d WHERE d.seq = e.seq) + "
            "(SELECT count(*) FROM retained r WHERE r.seq = e.seq)"
        ).fetchall()
        assert not odd, f"events with wrong counts: {odd}"
        for table in ("notifications", "dead", "retained"):
            lost = connection.execute(
                f"SELECT seq FROM {table} WHERE seq NOT IN (SELECT seq FROM events)"
            ).fetchall()
            assert not lost, f"{table} without events: {lost}"
        waiting: dict[str, list[Any]] = {}
        for table in ("notifications", "dead"):
            notes = connection.execute(
                f"SELECT t.no, e.text, t.kind FROM {table} t JOIN events e ON e.seq=t.seq"
            ).fetchall()
            assert all(no in ids for no, _, _ in notes), f"{table} of nobody"
            waiting[table] = sorted((ids[no], bytes(text), kind) for no, text, kind in notes)
        kept = connection.execute("SELECT key, text FROM publications ORDER BY key").fetchall()
        retained = connection.execute(
            "SELECT e.text FROM retained r JOIN events e ON e.seq=r.seq"
        ).fetchall()
        return {
            "subscriptions": sorted((id, condition) for _, id, condition in rows),
            "publications": kept,
            "retained": retained,
            **waiting,
        }


class Run(NamedTuple):
    """What became of a case."""

    outcome: str
    got: dict[str, list[dict[str, Any]]]
    facts: dict[str, Any]
    n_calls: int
    is_hit: bool
    is_probed: bool


def _check_memory(broker: Broker, folder: Path) -> None:
    """Hold what the broker believes against what is on disk."""
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        counts = dict(
            connection.execute("SELECT no, count(*) FROM notifications GROUP BY no").fetchall()
        )
        keys = {key for (key,) in connection.execute("SELECT key FROM publications")}
        nos = {no for (no,) in connection.execute("SELECT no FROM subscriptions")}
    assert {each.no for each in broker.subscriptions.by_id.values()} == nos
    for each in broker.subscriptions.by_id.values():
        assert each.pending == counts.get(each.no, 0), f"{each.id} counts {each.pending}"
        assert each.n_deferred == 0
    assert {key for _, key in broker.publications.by_address} == keys


async def _act(
    folder: Path, act: Callable[[Rig], Awaitable[None]], fault: Fault | None, probes: bool
) -> tuple[str, dict[str, Any], int, bool]:
    """Run a scenario with a fault; return its outcome, what came of it, and if it was probed."""
    is_start = act is _nothing
    if is_start:
        CALLS.arm(fault)
    broker = Broker(config(folder))
    await broker.start()
    if is_start:
        CALLS.disarm()
    rig = Rig(broker)
    try:
        await rig.listen()
        if not is_start:
            CALLS.arm(fault)
        outcome = "done"
        try:
            await asyncio.wait_for(act(rig), 20)
        except UnknownOutcomeError:
            outcome = "unknown"
        except TocsinError:
            outcome = "refused"
        finally:
            CALLS.disarm()
        await rig.quiet()
        if broker.storage.fatal is not None:
            probes = False
            with pytest.raises(TocsinError, match="start the broker again"):
                await rig.publish({"a": 99})
        else:
            _check_memory(broker, folder)
        if probes:
            if broker.metrics.read_failures:  # the reader pauses before it tries again
                await eventually(lambda: rig.consumer._is_live)
            await rig.publish({"a": 99, "x": 99, "b": 9})
            await rig.quiet()
            _check_memory(broker, folder)
        rig.collect()
    finally:
        CALLS.disarm()
        await broker.stop()
    for name, got in rig.got.items():
        numbers = [each["id"] for each in got]
        assert numbers == sorted(set(numbers)), f"{name} got {numbers}"
    return outcome, rig.got, CALLS.n, probes


def run(source: Path, scenario: str, fault: Fault | None, probes: bool = True) -> Run:
    """Run one case on a copy of a folder."""
    folder = Path(tempfile.mkdtemp()) / "data"
    try:
        _copy(source, folder)
        act = SCENARIOS[scenario]
        got: dict[str, list[dict[str, Any]]]
        try:
            outcome, got, n, probed = asyncio.run(_act(folder, act, fault, probes))
        except TocsinError:  # it says why; anything else is a failure
            if scenario != "start":
                raise
            n = CALLS.n
            CALLS.disarm()
            outcome, got, _, probed = asyncio.run(_act(folder, _act_again, None, probes))
            outcome = "stopped"
        is_hit = CALLS.is_hit
        asyncio.run(_restart(folder))
        return Run(outcome, got, facts(folder), n, is_hit or outcome == "stopped", probed)
    finally:
        CALLS.disarm()
        shutil.rmtree(folder.parent)


async def _act_again(rig: Rig) -> None:
    """Do nothing: the start that failed was repeated."""


async def _restart(folder: Path) -> None:
    """Start once more, as after the case: what is there must be loaded."""
    broker = Broker(config(folder))
    await broker.start()
    _check_memory(broker, folder)
    await broker.stop()


class Reference(NamedTuple):
    """A scenario without faults: what is on disk before and after, with the probe and without."""

    before: dict[bool, dict[str, Any]]
    after: dict[bool, Run]


def reference(source: Path, scenario: str) -> Reference:
    before = {probes: run(source, "start", None, probes).facts for probes in (False, True)}
    after = {probes: run(source, scenario, None, probes) for probes in (False, True)}
    return Reference(before, after)


def _events(run: Run, name: str) -> list[str]:
    return [json.dumps(each["event"], sort_keys=True) for each in run.got[name]]


def verify(case: Run, expected: Reference) -> None:
    """Hold what became of a case against what would have, had nothing failed."""
    before, after = expected.before[case.is_probed], expected.after[case.is_probed]
    if case.outcome == "done":
        assert case.facts == after.facts, "what was acknowledged is not on disk"
    elif case.outcome in ("refused", "stopped"):
        assert case.facts == before, "what was refused has changed something"
    else:
        assert case.facts in (before, after.facts), "something half-done is on disk"
    for name in ("t", "d"):
        got = _events(case, name)
        if case.outcome == "done":
            assert got == _events(after, name), f"{name} got {got}"
        else:
            probe = [each for each in _events(after, name) if "99" in each]
            assert got == probe, f"{name} got {got} of what was refused"


def attempt(source: Path, scenario: str, fault: Fault, expected: Reference) -> tuple[str, bool]:
    """Run a case and verify it; return what became of it, and whether the fault was met."""
    try:
        result = run(source, scenario, fault)
        verify(result, expected)
    except AssertionError as error:
        raise AssertionError(f"{scenario} {fault}: {error}") from error
    return result.outcome, result.is_hit


def every_fault() -> Iterator[Iterator[Fault]]:
    """Yield for each kind of fault, met once or for good, the faults of all calls."""
    for kind in ERRORS:
        for lasts in (False, True):
            yield (Fault(kind, at, lasts) for at in itertools.count(1))


def main(names: list[str]) -> int:
    """Run all cases of the named scenarios, or of all; say what fails."""
    if "--list" in names:
        print("\n".join(SCENARIOS))
        return 0
    logging.disable(logging.CRITICAL)  # every case logs the fault that it is about
    n_failed = 0
    with injected(), tempfile.TemporaryDirectory() as place:
        source = template(Path(place) / "template")
        for scenario in names or SCENARIOS:
            expected, outcomes = reference(source, scenario), dict[str, int]()
            began = time.monotonic()
            for faults in every_fault():
                for fault in faults:
                    try:
                        outcome, is_hit = attempt(source, scenario, fault, expected)
                    except AssertionError as error:
                        print(f"FAILED {error}", flush=True)
                        outcome, is_hit = "failed", CALLS.is_hit
                        n_failed += 1
                    if not is_hit:
                        break
                    outcomes[outcome] = outcomes.get(outcome, 0) + 1
            print(f"{scenario}: {outcomes} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
