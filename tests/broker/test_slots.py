"""Slots by owner, look-ups with threads of their own, and webhooks with one deadline."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.hooks import hooked
from tests.broker.servers import running, wait_for

from tocsin.broker import resolver as resolving
from tocsin.broker.resolver import Resolver
from tocsin.broker.slots import Slots

_LOCAL: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8", "::1/128")}


def test_an_owner_has_no_more_than_its_share_and_the_others_come_in_turn() -> None:
    async def work() -> list[str]:
        slots, order = Slots(3, 2), []

        async def one(owner: str) -> None:
            await slots.acquire(owner)
            order.append(owner)

        tasks = [asyncio.create_task(one("a")) for _ in range(5)]
        await asyncio.sleep(0)
        assert (order, slots.n_free) == (["a", "a"], 1)
        tasks += [asyncio.create_task(one(owner)) for owner in "bbc"]
        await asyncio.sleep(0)
        assert order == ["a", "a", "b"]
        for owner in "aabab":
            slots.release(owner)
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(work()) == ["a", "a", "b", "a", "b", "c", "a", "a"]


def test_who_gives_up_waiting_takes_no_slot_away() -> None:
    async def work() -> None:
        slots = Slots(1, 1)
        await slots.acquire("a")
        waiting = [asyncio.create_task(slots.acquire(owner)) for owner in "bcd"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        slots.release("a")  # to b, which gives up in the same turn, or to the next
        waiting[1].cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        await asyncio.wait_for(waiting[2], 20)
        slots.release("d")
        assert slots.n_free == 1

    asyncio.run(work())


def test_slow_names_use_up_the_share_of_their_owner_only() -> None:
    stop = threading.Event()
    slow: list[str] = []

    def look_up(host: str, port: int) -> list[str]:
        if host.startswith("slow"):
            slow.append(host)
            stop.wait(60)
        return ["192.0.2.7"]

    async def work() -> None:
        found = Resolver(look_up)
        for n in range(2 * resolving._MOST_AT_ONCE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await found.resolve(f"slow{n}", 80, "evil")
        async with asyncio.timeout(30):
            assert await found.resolve("good", 80, "victim") == ["192.0.2.7"]
            assert await found.resolve("::1", 80, "evil") == ["::1"]
        assert len(slow) == resolving._MOST_EACH
        stop.set()
        async with asyncio.timeout(30):
            assert await found.resolve("good", 80, "evil") == ["192.0.2.7"]

    asyncio.run(work())


def test_an_error_of_the_resolver_reaches_all_that_wait_for_the_name() -> None:
    n_calls = 0

    def look_up(host: str, port: int) -> list[str]:
        nonlocal n_calls
        n_calls += 1
        time.sleep(0.05)
        raise socket.gaierror(-2, "no such name")

    async def work() -> None:
        found = Resolver(look_up)
        tasks = [found.resolve("none", 80, "a") for _ in range(5)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, socket.gaierror) for each in errors)

    asyncio.run(work())
    assert n_calls == 1


@contextlib.contextmanager
def dripping() -> Iterator[int]:
    """A receiver that never finishes the head of its answer."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(10_000)
            client.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not stop.wait(0.05):
                client.sendall(b"a")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=drip, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        listening.close()


@pytest.mark.slow
def test_a_receiver_that_drips_its_answer_is_given_up_in_time(tmp_path: Path) -> None:
    settings = {**_LOCAL, "webhook_seconds": 0.3, "webhook_attempts": 1, "webhook_slots": 1}
    with (
        dripping() as port,
        hooked() as hook,
        running(tmp_path, **settings) as broker,
        broker.client() as http,
    ):
        for id, url, where in (
            ("evil", f"http://localhost:{port}/", "a = 1"),
            ("victim", hook.url, "a = 2"),
        ):
            wanted = {"id": id, "where": where, "webhook": {"url": url}}
            http.post("/subscriptions", json=wanted).raise_for_status()
        http.post("/events", json=[{"a": 1}, {"a": 2}])
        wait_for(lambda: hook.got)
        wait_for(lambda: http.get("/subscriptions/evil/dead").json()["dead"])
        (letter,) = http.get("/subscriptions/evil/dead").json()["dead"]
        assert letter["reason"] == "no answer within 0.3 s"
