"""Five real brokers under load while links and brokers are killed."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from tests.broker.servers import wait_for
from tests.overlay.fig1 import CORE, EDGES, Network, network

from tocsin.broker.client import Client
from tocsin.errors import BrokerError

KILLS = int(os.environ.get("TOCSIN_OVERLAY_KILLS", "5"))


class Load:
    """Publishers at b4 and b5, durable subscribers at b1 and b2, which live through the kills."""

    def __init__(self, brokers: Network) -> None:
        self.brokers = brokers.brokers
        self.quiet = threading.Event()
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.numbers = iter(range(10**9))
        self.acknowledged: set[int] = set()
        self.got: dict[str, Counter[int]] = {"all": Counter(), "even": Counter()}
        self.unmarked: dict[str, Counter[int]] = {"all": Counter(), "even": Counter()}
        jobs = [(self.publish, "b4"), (self.publish, "b5"), (self.read, "all"), (self.read, "even")]
        self.threads = [
            threading.Thread(target=job, args=(what,), daemon=True) for job, what in jobs
        ]

    def publish(self, at: str) -> None:
        with httpx.Client(base_url=self.brokers[at].url, timeout=10) as client:
            while not self.quiet.wait(0.01):
                with self.lock:
                    several = [next(self.numbers) for _ in range(3)]
                events = [{"n": n, "k": n % 2} for n in several]
                try:
                    answer = client.post("/events", json=events, params={"type": "Tick"})
                except httpx.HTTPError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 200:
                    self.acknowledged.update(several)

    def read(self, id: str) -> None:
        url = self.brokers["b1" if id == "all" else "b2"].url
        while not self.stopping.is_set():
            with contextlib.suppress(BrokerError):
                for note in Client(url, retry_seconds=60).notifications(id):
                    self.got[id][note.event["n"]] += 1
                    self.unmarked[id][note.event["n"]] += not note.redelivered
                    if self.stopping.is_set():
                        return

    def wanted(self, id: str) -> set[int]:
        return {n for n in set(self.acknowledged) if id == "all" or n % 2 == 0}

    @property
    def is_complete(self) -> bool:
        return all(self.wanted(id) <= set(got) for id, got in self.got.items())


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_durable_subscribers_lose_nothing_when_links_and_brokers_are_killed(
    tmp_path: Path,
) -> None:
    rng = random.Random(KILLS)
    with network(tmp_path) as brokers:
        with Client(brokers.brokers["b1"].url, timeout=60) as client:
            client.subscribe("all", "n >= 0", type="Tick", durable=True)
        with Client(brokers.brokers["b2"].url, timeout=60) as client:
            client.subscribe("even", "k = 0", type="Tick", durable=True)
        load = Load(brokers)
        for thread in load.threads:
            thread.start()
        wait_for(lambda: load.got["all"] and load.got["even"], 60)
        for _ in range(KILLS):
            before = len(load.acknowledged)
            wait_for(lambda n=before: len(load.acknowledged) > n + 5, 60)  # type: ignore[misc]
            proxy = brokers.proxies[rng.choice(EDGES)]
            if rng.random() < 0.5:
                proxy.cut()
                time.sleep(rng.uniform(0, 0.3))
                proxy.mend()
            else:
                broker = brokers.brokers[rng.choice([CORE, CORE, *EDGES])]
                broker.kill()
                broker.start()
        load.quiet.set()
        with contextlib.suppress(AssertionError):
            wait_for(lambda: load.is_complete, 90)
        load.stopping.set()
        for id, got in load.got.items():
            lost = sorted(load.wanted(id) - set(got))
            assert not lost, f"{id} lost {len(lost)} of {len(load.acknowledged)}: {lost[:9]}"
            assert all(n <= 1 for n in load.unmarked[id].values()), f"{id} got some twice"
        assert len(load.acknowledged) > KILLS * 5
