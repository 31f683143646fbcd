"""What the disk refuses, what a backup brings back, what a damaged or foreign database does."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker import faults
from tests.broker.servers import read_messages, running, wait_for
from typer.testing import CliRunner

from tocsin.broker import epoch, numbers, schema, server, storage
from tocsin.broker.backup import BEFORE, back_up, restore
from tocsin.broker.client import Client
from tocsin.broker.config import Config
from tocsin.broker.core import Broker
from tocsin.broker.events import Event, from_json
from tocsin.broker.sessions import StreamSession
from tocsin.broker.storage import Storage, check, connect, open_folder
from tocsin.broker.subscription import SubscriptionSpec
from tocsin.broker.terms import to_publication
from tocsin.cli.app import app
from tocsin.errors import DamagedStoreError, RefusedError, StoreError, UnavailableError
from tocsin.model import EventType

pytestmark = pytest.mark.slow


def refuse(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def count(folder: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def router_state(folder: Path) -> str:
    """Return what a broker has stored about its links, some milliseconds after it changed."""
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        return str(connection.execute("SELECT state FROM network").fetchone()[0])


# Restoring a backup.


def test_a_restored_broker_loses_nothing_that_comes_afterwards(tmp_path: Path) -> None:
    here, backup = tmp_path / "a", tmp_path / "backup.db"
    with running(tmp_path / "b", name="b") as b, b.client() as far:
        far.post("/subscriptions", json={"id": "far", "where": "n >= 0", "durable": True})

        def pending() -> int:
            return int(far.get("/subscriptions/far").json()["pending"])

        with running(here, name="a", links=(b.url,)) as a, a.client() as http:
            http.post("/subscriptions", json={"id": "s", "where": "n >= 0", "durable": True})
            http.post("/events", json=[{"n": 0}, {"n": 1}])
            wait_for(lambda: pending() == 2)
            wait_for(lambda: '"b"' in router_state(here))
            wait_for(lambda: count(here, "notifications") == 2)  # those for b are acknowledged
            back_up(here, backup)
            last = http.post("/events", json=[{"n": n} for n in range(2, 30)]).json()["last"]
            wait_for(lambda: pending() == 30)
            instance = a.server.hub.instance
        restore(here, backup)
        with running(here, name="a", links=(b.url,)) as a, a.client() as http:
            assert a.server.hub.instance != instance
            first = http.post("/events", json={"n": 100}).json()["first"]
            assert first > last
            wait_for(lambda: pending() == 31)  # the neighbour takes it for news
            old = {"last-event-id": str(last)}
            with http.stream("GET", "/subscriptions/s/stream", headers=old) as stream:
                got = [each["event"]["n"] for each in read_messages(stream, 3)]
            assert got == [0, 1, 100]  # the old number acknowledges nothing
            now = {"last-event-id": str(first)}
            with http.stream("GET", "/subscriptions/s/stream", headers=now):
                wait_for(lambda: http.get("/subscriptions/s").json()["pending"] == 0)
        assert (here / BEFORE).exists()


def numbers_after(folder: Path) -> tuple[int, int]:
    """Return the epoch of the next start, and its first number."""
    opened = Storage(folder)
    try:
        numbers = opened.begin_numbers(10)
        return numbers.epoch, numbers.next
    finally:
        opened.close()


def test_an_epoch_goes_on_across_starts_and_a_crash(tmp_path: Path) -> None:
    first, one = numbers_after(tmp_path)
    again, two = numbers_after(tmp_path)
    assert first == again
    assert (one, two) == (1, 11)
    with contextlib.closing(sqlite3.connect(tmp_path / storage.FILE)) as connection, connection:
        schema.reserve(connection, 500)  # as after a crash before the epoch file was written
    assert numbers_after(tmp_path) == (first, 500)


@pytest.mark.parametrize("how", ["older", "copied", "no file", "whole folder", "broken file"])
def test_a_database_that_may_be_restored_begins_an_epoch(tmp_path: Path, how: str) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    before, _ = numbers_after(data)
    shutil.copytree(data, kept)
    _, used = numbers_after(data)
    if how == "older":  # in place, as `.backup` or `cp` onto the file do
        (data / storage.FILE).write_bytes((kept / storage.FILE).read_bytes())
    elif how == "copied":
        shutil.copy(data / storage.FILE, tmp_path / "new")
        (tmp_path / "new").replace(data / storage.FILE)
    elif how == "no file":
        (data / epoch.FILE).unlink()
    elif how == "broken file":
        (data / epoch.FILE).write_bytes(b"{")
    else:
        shutil.rmtree(data)
        shutil.copytree(kept, data)
    after, next = numbers_after(data)
    assert after != before
    assert next > used + 1_000_000


def test_numbers_of_rows_are_never_given_again_whatever_is_reserved(tmp_path: Path) -> None:
    opened = Storage(tmp_path)
    row = schema.EventRow(900, None, b"{}", None, None, 0, 1)
    opened.first(lambda c: schema.add_events(c, [row], [(1, 900, 0)]))
    opened.close()
    assert numbers_after(tmp_path)[1] > 900


def test_a_clock_that_is_wrong_does_not_bring_numbers_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers_after(tmp_path)
    _, used = numbers_after(tmp_path)
    (tmp_path / epoch.FILE).unlink()
    monkeypatch.setattr("tocsin.broker.epoch.time.time_ns", lambda: 0)
    assert numbers_after(tmp_path)[1] > used


def test_the_command_line_backs_up_a_running_broker_and_restores(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "copy.db"
    use = CliRunner()
    with running(data) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "n >= 0", "durable": True})
        http.post("/events", json={"n": 1})
        assert use.invoke(app, ["backup", str(file), "--data", str(data)]).exit_code == 0
        refused = use.invoke(app, ["restore", str(file), "--data", str(data)])
        assert refused.exit_code == 2
        assert "another broker uses this folder" in refused.output
        http.delete("/subscriptions/s")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert use.invoke(app, ["backup", str(file), "--data", str(data)]).exit_code == 2
    assert use.invoke(app, ["restore", str(file), "--data", str(data)]).exit_code == 0
    with running(data) as broker, broker.client() as http:
        assert http.get("/subscriptions/s").json()["pending"] == 1
    (tmp_path / "text").write_text("no database")
    for wrong in ("text", "nothing"):
        answer = use.invoke(app, ["restore", str(tmp_path / wrong), "--data", str(data)])
        assert answer.exit_code == 2
    before = numbers_after(data)[0]
    assert use.invoke(app, ["restore", "--data", str(data)]).exit_code == 0
    assert numbers_after(data)[0] != before


# Event numbers.


def test_numbers_are_used_only_when_they_are_reserved_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "BLOCK", 8)
    with running(tmp_path / "a") as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        with monkeypatch.context() as fault:
            fault.setattr(schema, "reserve", refuse)
            answers = [http.post("/events", json={"a": 1}) for _ in range(20)]
        taken = [each.json()["last"] for each in answers if each.status_code == 200]
        assert taken == list(range(1, 9))  # then it is refused
        assert {each.status_code for each in answers[8:]} == {503}
        assert http.post("/events", json={"a": 1}).json()["last"] == 9
        assert count(tmp_path / "a", "notifications") == 9


def test_numbers_are_not_given_again_after_a_failed_reservation_and_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "BLOCK", 8)
    with running(tmp_path / "a") as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        reserve = schema.reserve
        calls = iter([refuse])
        monkeypatch.setattr(schema, "reserve", lambda *args: next(calls, reserve)(*args))
        used = [http.post("/events", json={"a": 1}).json()["last"] for _ in range(11)]
        shutil.copytree(tmp_path / "a", tmp_path / "crashed")
    record = epoch.read(tmp_path / "crashed")
    assert record is not None
    inode = (tmp_path / "crashed" / storage.FILE).stat().st_ino
    epoch.write(tmp_path / "crashed", record._replace(inode=inode))
    with running(tmp_path / "crashed") as broker, broker.client() as http:
        again = [http.post("/events", json={"a": 1}).json()["last"] for _ in range(5)]
    assert min(again) > max(used)


# A publish that is refused.


def test_a_refused_publish_takes_nothing_from_a_full_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, max_backlog=10) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        http.post("/events", json=[{"a": 1}] * 10)
        with monkeypatch.context() as fault:
            fault.setattr(schema, "add_events", refuse)
            assert http.post("/events", json=[{"a": 2}] * 5).status_code == 503
        assert count(tmp_path, "notifications") == 10
        shown = http.get("/subscriptions/s").json()
        assert (shown["pending"], shown["missed"], shown["matched"]) == (10, 0, 10)
        assert http.post("/events", json=[{"a": 3}] * 5).status_code == 200
        shown = http.get("/subscriptions/s").json()
        assert (shown["pending"], shown["missed"]) == (10, 5)
        assert count(tmp_path, "notifications") == 10


def test_a_refused_publish_reaches_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "t", "where": "a > 0"})
        http.post("/subscriptions", json={"id": "d", "where": "a > 5", "durable": True})
        with http.stream("GET", "/subscriptions/t/stream") as stream:
            with monkeypatch.context() as fault:
                fault.setattr(schema, "add_events", refuse)
                assert http.post("/events", json=[{"a": 1}, {"a": 6}]).status_code == 503
            assert http.post("/events", json=[{"a": 7}]).status_code == 200
            assert [each["event"]["a"] for each in read_messages(stream, 1)] == [7]
        recent = http.get("/recent").json()["events"]
        assert [each["event"]["a"] for each in recent] == [7]
        assert http.get("/stats").json()["events"] == 1


def use_broker(folder: Path, use: Callable[[Broker], Any], **settings: Any) -> Any:
    """Run a broker without listeners, and a coroutine that uses it."""

    async def run() -> Any:
        broker = Broker(Config(data=folder, http="", stomp="", warm=False, **settings))
        await broker.start()
        try:
            return await use(broker)
        finally:
            await broker.stop()

    return asyncio.run(run())


def test_a_transient_subscriber_gets_events_in_order_though_some_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    async def use(broker: Broker) -> list[int]:
        specs = [SubscriptionSpec("t", "a > 0"), SubscriptionSpec("d", "a = 2", durable=True)]
        transient, _ = await broker.registry.add(specs)
        session = StreamSession(1000, 1 << 20, False)
        await broker.batches.listen(transient, session)
        offered = []
        for n in range(60):
            event = from_json({"a": 2 if n % 3 == 1 else 1, "n": n}, None, None)
            offered.append(broker.offer([event]))
            if n % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*offered)
        await broker.storage.submit(lambda connection: None)
        assert transient.n_deferred == 0
        return [json.loads(each)["event"]["n"] for each in session.outbox.take()]

    assert use_broker(tmp_path, use) == list(range(60))


def test_a_bad_event_fails_alone_and_nothing_is_delivered_twice(tmp_path: Path) -> None:
    async def use(broker: Broker) -> None:
        specs = [SubscriptionSpec("t", "a > 0"), SubscriptionSpec("d", "a > 1", durable=True)]
        transient, durable = await broker.registry.add(specs)
        session = StreamSession(1000, 1 << 20, False)
        await broker.batches.listen(transient, session)
        await broker.publish([to_publication(from_json({"x": 1, "y": 2}, None, None), "k", None)])
        good = [from_json({"a": a, "n": a}, None, None) for a in (1, 2, 3)]
        patch = to_publication(from_json({"x": None}, None, None), "k", None, merges=True)
        bad = from_json({"a": 9}, None, None)
        bad.valid_until = "never"  # type: ignore[assignment]
        batch: list[list[Event]] = [[good[0]], [patch], [bad], [good[1], good[2]]]
        outcomes = await asyncio.gather(
            *(broker.offer(events) for events in batch), return_exceptions=True
        )
        assert [isinstance(each, UnavailableError) for each in outcomes] == [0, 0, 1, 0]
        got = [json.loads(each)["event"]["a"] for each in session.outbox.take()]
        assert got == [1, 2, 3]
        assert durable.pending == 2
        # merged once, onto what was there
        assert broker.publications.by_address[None, "k"].text == b'{"y":2}'

    use_broker(tmp_path, use)


def test_an_unknown_outcome_has_its_own_code_and_stops_the_broker(tmp_path: Path) -> None:
    stopped: list[str] = []
    with faults.injected(), running(tmp_path) as broker, broker.client() as http:
        broker.broker.storage.on_fatal = stopped.append
        http.post("/subscriptions", json={"id": "d", "where": "a > 0", "durable": True})
        http.post("/events", json={"a": 1})
        # COMMIT (after BEGIN, three rows and the client's key), and whatever comes after it
        faults.CALLS.arm(faults.Fault("io", 6, True))
        with Client(broker.url, retry_seconds=60) as client, pytest.raises(RefusedError) as refused:
            client.publish({"a": 2})
        faults.CALLS.disarm()
        assert refused.value.code == "unknown-outcome"
        wait_for(lambda: stopped)
        assert "start the broker again" in stopped[0]
        assert http.post("/events", json={"a": 3}).status_code == 503
        assert http.get("/readyz").status_code == 503


def test_a_broker_whose_disk_does_not_answer_ends_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "set_up_logs", lambda *_: None)
    codes: list[str] = []

    def use(port: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            http.post("/subscriptions", json={"id": "d", "where": "a > 0", "durable": True})
            faults.CALLS.arm(faults.Fault("io", 5, True))
            codes.append(http.post("/events", json={"a": 1}).json()["code"])

    def on_ready(started: server.Server) -> None:
        threading.Thread(target=use, args=(started.http_port,), daemon=True).start()

    config = Config(data=tmp_path, http="127.0.0.1:0", stomp="", warm=False, drain_seconds=2.0)
    thresholds = gc.get_threshold()
    try:
        with faults.injected(), pytest.raises(StoreError, match="start the broker again"):
            server.serve(config, None, on_ready)
    finally:
        faults.CALLS.disarm()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    wait_for(lambda: codes == ["unknown-outcome"])


def test_a_commit_that_only_seems_to_fail_counts(tmp_path: Path) -> None:
    with faults.injected(), running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "d", "where": "a > 0", "durable": True})
        faults.CALLS.arm(faults.Fault("unknown", 1, False))
        assert http.post("/events", json={"a": 1}).status_code == 200
        faults.CALLS.disarm()
        assert (
            http.get("/subscriptions/d").json()["pending"] == count(tmp_path, "notifications") == 1
        )


# Formats, declared types, damage.


def make_format_1(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tables = schema._TABLES.replace(",\n  kind INTEGER NOT NULL DEFAULT 0", "")
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        connection.executescript(f"BEGIN;{tables}PRAGMA user_version=1;COMMIT;")


def format_of(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_format_is_not_changed_under_a_running_broker(tmp_path: Path) -> None:
    make_format_1(tmp_path)
    with (tmp_path / storage.LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another broker uses this folder"):
            Storage(tmp_path)
        listed = CliRunner().invoke(app, ["token", "list", "--data", str(tmp_path)])
        assert listed.exit_code == 2
        assert "stop the broker" in listed.output
        assert format_of(tmp_path) == 1
    open_folder(tmp_path).close()
    assert format_of(tmp_path) == schema.VERSION


def test_a_type_declared_afterwards_puts_what_contradicts_it_into_quarantine(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        for id, where, params in (
            ("text", "price = 'cheap'", {}),
            ("params", "price = :p", {"p": "cheap"}),
            ("fits", "price > 1", {}),
        ):
            body = {"id": id, "where": where, "type": "Quote", "durable": True, "params": params}
            assert http.post("/subscriptions", json=body).status_code == 201
        http.post("/events?type=Quote", json={"price": "cheap"})
        http.post("/events?type=Quote&key=k", json={"price": "cheap"})
    types = {"Quote": EventType("Quote", {"price": "float"})}
    with running(tmp_path, types=types, name="a") as broker, broker.client() as http:
        for id in ("text", "params"):
            shown = http.get(f"/subscriptions/{id}").json()
            assert "declared float" in shown["quarantined"]
            assert shown["pending"] == 2
        assert "quarantined" not in http.get("/subscriptions/fits").json()
        assert http.get("/stats").json()["quarantined"] == 2
        assert http.post("/events?type=Quote", json={"price": 5}).json()["matches"] == 1
        assert http.post("/events?type=Quote&key=k", json={"price": 6}).status_code == 200
        refused = http.patch("/subscriptions/text", json={"where": "price = 'dear'"})
        assert refused.status_code == 400
        assert http.patch("/subscriptions/text", json={"where": "price = 7"}).status_code == 200
        assert "quarantined" not in http.get("/subscriptions/text").json()
        assert http.post("/events?type=Quote", json={"price": 7}).json()["matches"] == 2
        assert http.delete("/subscriptions/params").status_code == 204
        assert http.get("/stats").json()["quarantined"] == 0


def damage(folder: Path) -> None:
    """Overwrite the middle of a database."""
    path = folder / storage.FILE
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2 // 4096 * 4096
    raw[middle : middle + 3 * 4096] = b"\x55" * 3 * 4096
    path.write_bytes(raw)


def test_a_damaged_database_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "set_up_logs", lambda *_: None)  # to streams that are closed later
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        http.post("/events", json=[{"a": 1, "pad": "x" * 300}] * 500)
    damage(tmp_path)
    answer = CliRunner().invoke(app, ["serve", "--data", str(tmp_path), "--no-warm"])
    assert answer.exit_code == 2
    assert "the database is damaged" in answer.output
    assert "tocsin restore" in answer.output
    (tmp_path / storage.FILE).write_bytes(b"no database at all " * 1000)
    with pytest.raises(DamagedStoreError):
        Storage(tmp_path)
    with pytest.raises(DamagedStoreError):
        open_folder(tmp_path)


def change_row(folder: Path, sql: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(folder / storage.FILE)) as connection:
        assert connection.execute(sql, values).rowcount
        connection.commit()


@pytest.mark.parametrize(
    ("column", "value", "rows"),
    [
        ("subscriptions.condition", b"\xff", "subscriptions"),
        ("subscriptions.valid_until", "soon", "subscriptions"),
        ("meta.value", b"\xff", "the sequence numbers"),
        ("events.text", b'{"a":', "retained"),
        ("events.extra", "[]", "retained"),
        ("publications.text", 5, "publications"),
        ("publications.valid_until", b"\xff", "publications"),
        ("idempotency.at", "text", "idempotency"),
    ],
)
def test_a_row_that_cannot_be_read_is_damage_of_the_database(
    tmp_path: Path, column: str, value: object, rows: str
) -> None:
    with running(tmp_path, retain_seconds=600.0) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        http.post("/events", json={"a": 1}, headers={"idempotency-key": "k"})
        http.put("/publications/k", json={"a": 1})
    table, _, name = column.partition(".")
    change_row(tmp_path, f"UPDATE {table} SET {name}=?", value)
    with pytest.raises(DamagedStoreError, match=rows), running(tmp_path):
        pass
    with contextlib.closing(open_folder(tmp_path)):  # the folder is free
        pass


@pytest.mark.parametrize("options", ["7", "[]", "{"])
def test_a_subscription_whose_options_cannot_be_read_is_in_quarantine(
    tmp_path: Path, options: str
) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        for id in ("bad", "good"):
            http.post("/subscriptions", json={"id": id, "where": "a > 0"})
    change_row(tmp_path, "UPDATE subscriptions SET options=? WHERE id='bad'", options)
    with running(tmp_path) as broker, broker.client() as http:
        assert "quarantined" in http.get("/subscriptions/bad").json()
        assert http.post("/events", json={"a": 1}).json()["matches"] == 1


@pytest.mark.parametrize(
    "damage",
    ["events SET extra=x'ff'", "events SET published='x'", "notifications SET kind=x'ff'"],
)
def test_a_notification_that_cannot_be_read_becomes_a_dead_letter_and_the_others_come(
    tmp_path: Path, damage: str
) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        first = http.post("/events", json=[{"a": 1}, {"a": 2}, {"a": 3}]).json()["first"]
    change_row(tmp_path, f"UPDATE {damage} WHERE seq=?", first)
    with running(tmp_path) as broker, broker.client() as http:
        with http.stream("GET", "/subscriptions/s/stream") as stream:
            assert [each["event"]["a"] for each in read_messages(stream, 2)] == [2, 3]
        wait_for(lambda: http.get("/subscriptions/s/dead").json()["dead"])
        (letter,) = http.get("/subscriptions/s/dead").json()["dead"]
        assert "is damaged on disk" in letter["reason"]
        assert http.get("/subscriptions/s").json()["pending"] == 2


def test_a_check_of_a_large_database_ends_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_CHECKED_EVERY", 1)
    with contextlib.closing(open_folder(tmp_path)) as connection:
        assert check(connection, 60) is None
        assert not caplog.records
        assert check(connection, 1e-9) is None
        assert "not checked whole" in caplog.text


def test_a_failed_start_lets_the_folder_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fault:
        fault.setattr(schema, "subscriptions", refuse)
        with pytest.raises(StoreError, match="full"):
            use_broker(tmp_path, lambda broker: asyncio.sleep(0))
    use_broker(tmp_path, lambda broker: asyncio.sleep(0))


# Files.


def test_files_are_private_whatever_the_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / storage.FILE).touch(0o644)
    old = os.umask(0)
    try:
        with running(tmp_path) as broker, broker.client() as http:
            http.post("/subscriptions", json={"id": "s", "where": "a > 0"})
            files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    finally:
        os.umask(old)
    assert {"broker.db", "broker.db-wal", "lock", "epoch"} <= files.keys()
    assert set(files.values()) == {0o600}


def test_only_the_writer_moves_the_log_into_the_database(tmp_path: Path) -> None:
    opened = Storage(tmp_path)

    def pages(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0])

    with contextlib.closing(connect(opened.path)) as other:
        assert (pages(opened._writer), pages(opened._reader), pages(other)) == (1000, 0, 0)
    opened.close()


def test_space_is_given_back(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        for _ in range(20):
            http.post("/events", json=[{"a": 1, "pad": "x" * 5_000}] * 100)
        most = broker.broker.storage.size()
        http.post("/subscriptions/s/ack", json={"upto": 1 << 60})
    assert (tmp_path / storage.FILE).stat().st_size < most / 2


def test_what_is_done_before_the_start_is_done_whole_or_not_at_all(tmp_path: Path) -> None:
    opened = Storage(tmp_path)

    def half(connection: sqlite3.Connection) -> None:
        schema.reserve(connection, 77)
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError, match="disk I/O error"):
        opened.first(half)
    assert opened.first(schema.first_free) == 1
    opened.close()


def test_a_subscription_whose_removal_is_refused_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0", "durable": True})
        http.post("/events", json={"a": 1})
        with monkeypatch.context() as fault:
            fault.setattr(schema, "remove_subscriptions", refuse)
            assert http.delete("/subscriptions/s").status_code == 503
        assert http.post("/events", json={"a": 2}).json()["matches"] == 1
        assert http.get("/subscriptions/s").json()["pending"] == 2
        assert http.delete("/subscriptions/s").status_code == 204
        assert count(tmp_path, "notifications") == count(tmp_path, "events") == 0
