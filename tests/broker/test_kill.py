"""kill -9 under load: nothing that was acknowledged is lost; what comes twice is marked."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.broker.nursery import Child
from tests.broker.processes import Process
from tests.broker.servers import RawStomp, wait_for

from tocsin.broker.client import Client
from tocsin.errors import BrokerError

KILLS = 20


class Load:
    """Publishers and durable subscribers over both protocols, which live through the kills."""

    def __init__(self, broker: Child) -> None:
        self.broker = broker
        self.quiet = threading.Event()  # no more publishing
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.numbers = iter(range(10**9))
        self.acknowledged: set[int] = set()
        self.got: dict[str, Counter[int]] = {"http": Counter(), "stomp": Counter()}
        self.unmarked: dict[str, Counter[int]] = {"http": Counter(), "stomp": Counter()}
        self.kept = {"kept-http": 0, "kept-stomp": 0}
        self.moves: dict[str, list[tuple[int, str, str, int, bool]]] = {}
        jobs = (
            self.publish_http, self.publish_stomp, self.read_http, self.read_stomp,
            self.keep_http, self.keep_stomp, self.watch_http, self.watch_stomp,
        )  # fmt: skip
        self.threads = [threading.Thread(target=job, daemon=True) for job in jobs]

    def next(self) -> int:
        with self.lock:
            return next(self.numbers)

    def publish_http(self) -> None:
        with httpx.Client(base_url=self.broker.url, timeout=10) as client:
            while not self.quiet.wait(0.005):
                several = [self.next() for _ in range(3)]
                try:
                    answer = client.post("/events", json=[{"k": 1, "n": n} for n in several])
                except httpx.HTTPError:
                    time.sleep(0.02)
                    continue
                if answer.status_code == 200:
                    self.acknowledged.update(several)

    def publish_stomp(self) -> None:
        self.again_and_again(self.send_all)

    def again_and_again(self, use: Callable[[RawStomp], None]) -> None:
        publishes = use in (self.send_all, self.keep_all)
        while not self.stopping.is_set() and not (self.quiet.is_set() and publishes):
            with (
                contextlib.suppress(OSError, EOFError, AssertionError),
                RawStomp(self.broker.stomp) as client,
            ):
                use(client)
            time.sleep(0.02)

    def send_all(self, client: RawStomp) -> None:
        while not self.quiet.wait(0.005):
            n = self.next()
            answer = client.call("SEND", {"destination": "/events"}, b'{"k":1,"n":%d}' % n)
            assert answer.command == "RECEIPT"
            self.acknowledged.add(n)

    def take(self, by: str, n: int, marked: bool) -> None:
        self.got[by][n] += 1
        if not marked:
            self.unmarked[by][n] += 1

    # Publications: their states alternate; one that may not have been taken is published again.

    def state(self, key: str) -> dict[str, int]:
        return {"x": 1 - self.kept[key] % 2, "n": self.kept[key]}

    def keep_http(self) -> None:
        with httpx.Client(base_url=self.broker.url, timeout=10) as client:
            while not self.quiet.wait(0.005):
                state = self.state("kept-http")
                with contextlib.suppress(httpx.HTTPError):
                    merge = "&merge=true" if state["n"] % 3 else ""
                    answer = client.post(f"/events?key=kept-http{merge}", json=state)
                    self.kept["kept-http"] += answer.status_code == 200

    def keep_stomp(self) -> None:
        self.again_and_again(self.keep_all)

    def keep_all(self, client: RawStomp) -> None:
        while not self.quiet.wait(0.005):
            body = json.dumps(self.state("kept-stomp")).encode()
            headers = {"destination": "/events", "key": "kept-stomp", "ttl": "3600"}
            assert client.call("SEND", headers, body).command == "RECEIPT"
            self.kept["kept-stomp"] += 1

    def watch_http(self) -> None:
        moves = self.moves.setdefault("http", [])
        while not self.stopping.is_set():
            with contextlib.suppress(BrokerError):
                client = Client(self.broker.url, retry_seconds=60)
                for note in client.notifications("watch-http"):
                    told = (note.id, str(note.key), str(note.kind), note.event["n"])
                    moves.append((*told, note.redelivered))
                    if self.stopping.is_set():
                        return

    def watch_stomp(self) -> None:
        self.again_and_again(self.watch_all)

    def watch_all(self, client: RawStomp) -> None:
        moves = self.moves.setdefault("stomp", [])
        headers = {
            "id": "1", "destination": "/events", "selector": "x = 1", "ack": "client",
            "durable-subscription-name": "watch-stomp", "notify": "both",
        }  # fmt: skip
        client.socket.settimeout(1)
        client.send("SUBSCRIBE", headers)
        while not self.stopping.is_set():
            frame = client.next()
            assert frame.command == "MESSAGE"
            found, ack = frame.headers, frame.headers["ack"]
            told = (int(ack.split("-")[1]), found["key"], found["transition"])
            moves.append((*told, json.loads(frame.body)["n"], "redelivered" in found))
            client.send("ACK", {"id": ack})

    def told(self, by: str, key: str) -> list[tuple[str, int]]:
        """Return the transitions of a key in their order, each once."""
        found = {id: (kind, n) for id, of, kind, n, _ in self.moves.get(by, []) if of == key}
        return [found[id] for id in sorted(found)]

    def read_http(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(BrokerError):
                client = Client(self.broker.url, retry_seconds=60)
                for note in client.notifications("by-http"):
                    self.take("http", note.event["n"], note.redelivered)
                    if self.stopping.is_set():
                        return

    def read_stomp(self) -> None:
        self.again_and_again(self.take_all)

    def take_all(self, client: RawStomp) -> None:
        headers = {
            "id": "1", "destination": "/events", "selector": "k = 1", "ack": "client-individual",
            "durable-subscription-name": "by-stomp",
        }  # fmt: skip
        client.socket.settimeout(1)
        client.send("SUBSCRIBE", headers)
        while not self.stopping.is_set():
            frame = client.next()
            assert frame.command == "MESSAGE"
            self.take("stomp", json.loads(frame.body)["n"], "redelivered" in frame.headers)
            client.send("ACK", {"id": frame.headers["ack"]})


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_nothing_acknowledged_is_lost_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    with Child(tmp_path / "data") as broker:
        with Client(broker.url, timeout=120) as client:
            client.subscribe("by-http", "k = 1", durable=True)
            client.subscribe("by-stomp", "k = 1", durable=True)
            client.subscribe("watch-http", "x = 1", durable=True, notify="both")
            client.subscribe("watch-stomp", "x = 1", durable=True, notify="both")
        load = Load(broker)
        for thread in load.threads:
            thread.start()
        for _ in range(KILLS):
            before = len(load.acknowledged)
            wait_for(lambda n=before: len(load.acknowledged) > n + 3, 60)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.2))
            broker.kill()
            broker.start()
        load.quiet.set()
        wait_for(lambda: all(load.acknowledged <= set(got) for got in load.got.values()), 90)
        wait_for(lambda: all(len(moves) >= load.kept[key] for key, moves in all_moves(load)), 90)
        time.sleep(0.3)
        load.stopping.set()
    for by, got in load.got.items():
        assert load.acknowledged <= set(got), f"lost over {by}"
        twice = [n for n, times in got.items() if times > 1]
        assert all(load.unmarked[by][n] <= 1 for n in twice), f"not marked over {by}"
    assert len(load.acknowledged) > KILLS * 4
    for key, moves in all_moves(load):
        # Each state was told once, in order; the last may have been taken without an answer.
        expected = [("LEAVE" if n % 2 else "ENTER", n) for n in range(load.kept[key] + 1)]
        assert moves in (expected, expected[:-1])
        assert load.kept[key] > KILLS
    for by, found in load.moves.items():
        unmarked = Counter(id for id, *_, marked in found if not marked)
        unmarked_twice = [each for each in found if unmarked[each[0]] > 1]
        assert not unmarked_twice, f"not marked over {by}: {unmarked_twice}"


def all_moves(load: Load) -> list[tuple[str, list[tuple[str, int]]]]:
    return [(key, load.told(by, key)) for by in ("http", "stomp") for key in load.kept]


@pytest.mark.slow
def test_a_drained_broker_loses_nothing_and_ends_well(tmp_path: Path) -> None:
    import signal

    with Process(tmp_path / "data") as broker:
        with Client(broker.url, timeout=120) as client:
            client.subscribe("kept", "k = 1", durable=True)
            client.subscribe("with", "k = :v", params={"v": 1}, durable=True)
            first = client.publish_many([{"k": 1}] * 5)
        assert broker.end(signal.SIGTERM) == 0
        broker.start()
        with Client(broker.url, timeout=120) as client:
            assert client.get("kept")["pending"] == 5
            assert client.get("with")["params"] == {"v": 1}
            later = client.publish({"k": 1})
            assert later.first > first.last
            assert later.matches == 2
            note = next(client.notifications("kept"))
            assert note.redelivered
            assert note.id == first.first
