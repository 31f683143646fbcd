"""Background tasks go on after errors, and /readyz names those that do not."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, running, wait_for

from tocsin.broker import schema
from tocsin.broker.metrics import Metrics
from tocsin.broker.storage import open_folder
from tocsin.broker.supervisor import Supervisor
from tocsin.broker.tokens import Rights, create, id_of, revoke


class Failing:
    """A connection whose next `n` statements fail."""

    def __init__(self, real: sqlite3.Connection, n: int) -> None:
        self.real = real
        self.n = n

    def execute(self, *words: Any) -> Any:
        if self.n > 0:
            self.n -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self.real.execute(*words)

    def close(self) -> None:
        self.real.close()


@pytest.mark.slow
def test_the_check_of_tokens_outlives_an_error_of_the_database(tmp_path: Path) -> None:
    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "x", Rights(("*",), ("*",)))
        with (
            running(tmp_path, auth=True) as broker,
            RawStomp(broker.stomp_port, passcode=token) as c,
        ):
            tokens = broker.server.tokens
            broken: Any = Failing(tokens._connection, 1)
            tokens._connection = broken
            wait_for(lambda: broken.n == 0)
            revoke(connection, id_of(token))
            assert c.next().command == "ERROR"
            assert broker.broker.metrics.families["task_failures"][2]["tokens"] == 1


@pytest.mark.slow
def test_a_broker_whose_tokens_cannot_be_read_is_not_ready_until_they_can(tmp_path: Path) -> None:
    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "x", Rights(admin=True))
    client = {"authorization": f"Bearer {token}"}
    with running(tmp_path, auth=True) as broker, broker.client(headers=client) as http:
        tokens = broker.server.tokens
        with RawStomp(broker.stomp_port, passcode=token):
            broken: Any = Failing(tokens._connection, 1_000_000)
            tokens._connection = broken
            wait_for(lambda: http.get("/readyz").status_code == 503)
            assert http.get("/readyz").text == "tokens keeps failing: UnavailableError\n"
            assert http.get("/stats").status_code == 503  # not 500, and nobody is let in
            assert http.get("/healthz").status_code == 200
            broken.n = 0
            wait_for(lambda: http.get("/readyz").status_code == 200)
        shown = http.get("/metrics").text
        assert 'tocsin_task_failures_total{task="tokens"}' in shown
        assert 'tocsin_task_failures_total{task="sweep"} 0' in shown


@pytest.mark.slow
def test_a_webhook_goes_on_after_an_error_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, n_calls = schema.page, 0

    def page(*words: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls <= 2:
            raise sqlite3.OperationalError("disk I/O error")
        return real(*words)

    monkeypatch.setattr(schema, "page", page)
    local: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8", "::1/128")}
    with hooked() as hook, running(tmp_path, **local) as broker, broker.client() as http:
        wanted = {"id": "w", "where": "TRUE", "webhook": {"url": hook.url}}
        http.post("/subscriptions", json=wanted).raise_for_status()
        http.post("/events", json={"a": 1})
        wait_for(lambda: hook.got)
        assert broker.broker.metrics.families["task_failures"][2]["webhooks"] == 2


def test_a_task_that_fails_or_ends_is_started_again() -> None:
    async def work() -> None:
        supervisor, n_runs = Supervisor(Metrics(), steady=0.1), 0
        done = asyncio.Event()

        async def task() -> None:
            nonlocal n_runs
            n_runs += 1
            if n_runs == 1:
                raise ValueError("once\nand for all")
            if n_runs == 4:
                done.set()
                await asyncio.sleep(60)

        supervisor.keep("it", task)
        await asyncio.wait_for(done.wait(), 30)
        assert supervisor.problems() == ["it keeps failing: UnavailableError"]
        supervisor.recovered("it")
        assert supervisor.problems() == []
        await supervisor.stop()

    asyncio.run(work())


def test_what_has_stopped_or_is_found_wrong_is_named() -> None:
    async def work() -> None:
        supervisor = Supervisor(Metrics())

        async def task() -> None:
            await asyncio.sleep(60)

        supervisor.keep("it", task)
        supervisor.check("that", lambda: "its thread has stopped")
        supervisor.check("this", lambda: None)
        supervisor._tasks["it"].cancel()
        await asyncio.sleep(0.01)
        assert supervisor.problems() == ["it has stopped", "that: its thread has stopped"]
        await supervisor.stop()

    asyncio.run(work())
