"""The Python client and the command line, against a real broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import Running, running

import tocsin
from tocsin.errors import ArgumentError, RefusedError, UnavailableError

pytestmark = pytest.mark.slow


def test_the_client_publishes_and_gets_notifications(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("c1", "c1 > :x", params={"x": 5}, durable=True)
        receipt = client.publish([{"c1": 4}, {"c1": 6}, {"c1": 7}])
        assert (receipt.accepted, receipt.matches) == (3, 2)
        notes = client.notifications("c1")
        assert [next(notes).event["c1"] for _ in range(2)] == [6, 7]
        client.update("c1", params={"x": 100})
        assert client.publish({"c1": 50}).matches == 0
        client.unsubscribe("c1")
        with pytest.raises(RefusedError) as refused:
            client.subscription("c1")
        assert refused.value.code == "unknown-id"


def test_errors_of_the_broker_are_errors_of_the_client(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        with pytest.raises(RefusedError) as refused:
            client.subscribe("bad", "price <")
        assert (refused.value.status, refused.value.code) == (400, "syntax")
    with pytest.raises(ArgumentError):
        tocsin.connect("stomp://x")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        tocsin.connect("http://127.0.0.1:9", retry_seconds=0.1).publish({"a": 1})


def test_the_asynchronous_client_does_the_same(broker: Running) -> None:
    async def use() -> list[Any]:
        async with tocsin.connect_async(broker.url) as client:
            await client.subscribe("c2", "c2 = 1", durable=True)
            await client.publish([{"c2": 1, "n": 1}, {"c2": 1, "n": 2}])
            found = []
            async for note in client.notifications("c2"):
                found.append(note.event["n"])
                if len(found) == 2:
                    break
            await client.acknowledge("c2", note.id)
            await client.update("c2", where="c2 = 2")
            await client.publish({"c2": 5}, key="c2", ttl=100)
            assert (await client.publication("c2") or {})["event"] == {"c2": 5}
            assert await client.retract("c2")
            assert not await client.retract("c2")
            assert await client.publication("c2") is None
            pending = (await client.subscription("c2"))["pending"]
            await client.unsubscribe("c2")
            return [*found, pending]

    assert asyncio.run(use()) == [1, 2, 0]


def test_the_client_lives_through_a_restart(tmp_path: Path) -> None:
    from tests.broker.processes import free_port

    port = f"127.0.0.1:{free_port()}"
    with running(tmp_path, http=port, stomp="") as first:
        client = tocsin.connect(first.url, retry_seconds=60)
        client.subscribe("r", "r = 1", durable=True)
        client.publish([{"r": 1, "n": 1}, {"r": 1, "n": 2}])
        notes = client.notifications("r")
        assert next(notes).event["n"] == 1
    with running(tmp_path, http=port, stomp=""):
        client.publish({"r": 1, "n": 3})
        # The first was handled but not acknowledged: it comes again and is left out.
        assert [next(notes).event["n"] for _ in range(2)] == [2, 3]


class Cut:
    """A way to a broker that breaks at the first acknowledgement."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.is_cut = False
        self.url = ""

    async def __aenter__(self) -> Cut:
        self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        ways = self._pass_on(reader, forth), self._pass_on(back, writer)
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if b"/ack" in data and not self.is_cut:
                    self.is_cut = True
                    break
                to.write(data)
                await to.drain()
        finally:
            to.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_notifications_go_on_when_an_acknowledgement_is_cut_off(
    broker: Running, is_async: bool
) -> None:
    def use(url: str) -> None:
        with tocsin.connect(url) as client:
            notes = client.notifications("cut")
            assert [next(notes).event["n"] for _ in range(3)] == [0, 1, 2]
            notes.close()  # type: ignore[attr-defined]

    async def use_async(url: str) -> None:
        async with tocsin.connect_async(url) as client:
            notes = client.notifications("cut")
            assert [(await anext(notes)).event["n"] for _ in range(3)] == [0, 1, 2]
            await notes.aclose()  # type: ignore[attr-defined]

    async def through_a_cut() -> bool:
        async with Cut(broker.server.http_port) as way:
            await (use_async(way.url) if is_async else asyncio.to_thread(use, way.url))
            await asyncio.sleep(0.1)
            return way.is_cut

    with tocsin.connect(broker.url) as client:
        client.subscribe("cut", "cut = 1", durable=True)
        client.publish([{"cut": 1, "n": n} for n in range(3)])
        assert asyncio.run(through_a_cut())
        assert client.subscription("cut")["pending"] == 1  # the first was acknowledged after all
        client.unsubscribe("cut")


def tocsin_command(*args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tocsin.cli", *args]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_line_publishes_subscribes_and_looks(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("cli", "cli = 1", durable=True)
    lines = '{"cli": 1, "n": 1}\n\n{"cli": 2}\n'
    done = tocsin_command("publish", "--url", broker.url, "--json", given=lines)
    assert json.loads(done.stdout) == {"accepted": 2, "matches": 1}
    got = tocsin_command("subscribe", "--id", "cli", "--count", "1", "--url", broker.url)
    assert json.loads(got.stdout)["event"] == {"cli": 1, "n": 1}
    to = ("--url", broker.url, "--type", "Cli")
    with tocsin.connect(broker.url) as client:
        client.publish({"x": 1, "y": 1}, type="Cli", key="a")
    tocsin_command("publish", *to, "--key", "a", "--merge", "--ttl", "500", '{"y": 2}')
    watch = ("--count", "1", "--notify", "both", "y = 2")
    note = json.loads(tocsin_command("subscribe", *to, *watch).stdout)
    assert (note["kind"], note["key"], note["event"]) == ("ENTER", "a", {"x": 1, "y": 2})
    assert tocsin_command("publish", *to, "--key", "a", "--retract").returncode == 0
    assert "no publication" in tocsin_command("publish", *to, "--key", "a", "--retract").stderr
    bad = tocsin_command("publish", "--url", broker.url, "[1]")
    assert bad.returncode == 2
    assert "JSON object" in bad.stderr
    flags = ("--url", broker.url, "--count", "1", "--seconds", "0.2", "--json")
    found = json.loads(tocsin_command("top", *flags).stdout)
    assert found["subscriptions"] > 0
    assert {"publications", "retained", "transitions_per_second"} <= found.keys()


def test_what_a_handler_puts_off_is_not_acknowledged_and_comes_again(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("hand", "hand = 1", durable=True)
        client.publish([{"hand": 1, "n": n} for n in range(2)])
        seen = []
        for note in client.notifications("hand"):
            seen.append((note.event["n"], note.delivery_count))
            if seen == [(0, None)]:
                client.refuse("hand", note.id, delay=0.2)
            if len(seen) == 3:
                break
        assert seen == [(0, None), (1, None), (0, 2)]


@pytest.mark.slow
def test_the_command_line_lists_revives_and_purges_dead_letters(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("dead-cli", "deadcli = 1", durable=True)
        receipt = client.publish([{"deadcli": 1, "n": n} for n in range(3)])
        for number in range(receipt.first, receipt.last + 1):
            client.refuse("dead-cli", number, reason="no")
        to = ("dead-cli", "--url", broker.url)
        listed = tocsin_command("dead", "list", *to).stdout.splitlines()
        assert [json.loads(line)["event"]["n"] for line in listed] == [0, 1, 2]
        revived = tocsin_command("dead", "revive", *to, "--json", str(receipt.first))
        assert json.loads(revived.stdout) == {"revived": 1}
        assert "2 dead letters purged" in tocsin_command("dead", "purge", *to).stdout
        shown = client.subscription("dead-cli")
        assert (shown["dead"], shown["pending"]) == (0, 1)
