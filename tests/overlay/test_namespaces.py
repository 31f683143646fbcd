"""Brokers on machines of their own: packets vanish, and durable subscribers lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.broker.servers import wait_for
from tests.overlay.namespaces import Machines, machines, missing

PARTITIONS = int(os.environ.get("TOCSIN_OVERLAY_PARTITIONS", "2"))


@contextlib.contextmanager
def broker(net: Machines, name: str, folder: Path, *links: str) -> Iterator[str]:
    """Run `tocsin serve` on a machine; yield its URL."""
    where = f"{net.address(name)}:8080"
    command = ["ip", "netns", "exec", net.space(name), sys.executable, "-m", "tocsin.cli", "serve"]
    command += ["--data", str(folder / name), "--no-warm", "--http", where, "--stomp", ""]
    command += ["--name", name, "--no-auth", "--insecure"]
    for link in links:
        command += ["--link", f"http://{net.address(link)}:8080"]
    beats = {"TOCSIN_BROKER_HEART_BEAT_MS": "500"}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **beats}
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / f"{name}.log").read_text()
        assert json.loads(line)["ready"]
        yield f"http://{where}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def pending(url: str) -> int:
    found = httpx.get(f"{url}/subscriptions/s", timeout=30).json()
    return int(found["pending"])


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_what_vanishes_on_the_network_is_sent_again(tmp_path: Path) -> None:
    why = missing()
    if why is not None:
        pytest.skip(f"parts brokers in network namespaces: {why}")
    with (
        machines("edge", "core", "feed") as net,
        broker(net, "core", tmp_path) as core,
        broker(net, "edge", tmp_path, "core") as edge,
        broker(net, "feed", tmp_path, "core") as feed,
    ):
        wait_for(lambda: len(httpx.get(f"{feed}/overlay").json()["brokers"]) == 3, 60)
        body = {"id": "s", "where": "n >= 0", "type": "Tick", "durable": True}
        assert httpx.post(f"{edge}/subscriptions", json=body, timeout=120).status_code == 201
        n = 0
        for lost in ["edge", "feed"] * (PARTITIONS // 2 or 1):
            for is_parted in (False, True):
                if is_parted and lost == "edge":
                    net.part("edge")
                for _ in range(5):
                    events = [{"n": n + i} for i in range(4)]
                    httpx.post(
                        f"{feed}/events", json=events, params={"type": "Tick"}, timeout=120
                    ).raise_for_status()
                    n += 4
                if is_parted:
                    if lost == "feed":
                        net.part("feed")
                    time.sleep(1.5)
                    net.join(lost)
            wait_for(lambda wanted=n: pending(edge) == wanted, 90)  # type: ignore[misc]
        shown = httpx.get(f"{core}/overlay").json()
        assert {link["state"] for link in shown["links"]} == {"active"}
        disturbed = "with" if net.has_netem else "without (the kernel has no netem)"
        print(f"{n} events, {disturbed} delay and loss")
