"""The network of the paper's Fig. 1 as real processes, with links that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
from tests.broker.nursery import Child
from tests.broker.processes import free_port
from tests.broker.servers import wait_for

from tocsin.broker.config import Config

CORE, EDGES = "b3", ("b1", "b2", "b4", "b5")


class Proxy:
    """A TCP connection in two parts, that can be cut."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.target = target
        self.is_cut = False
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                mine, _ = self._listening.accept()
                try:
                    if self.is_cut:
                        raise OSError
                    theirs = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                    theirs.settimeout(None)
                except OSError:
                    mine.close()
                    continue
                self._open += [mine, theirs]
                for a, b in ((mine, theirs), (theirs, mine)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_cut = True
        while self._open:
            each = self._open.pop()
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()
        self._listening.close()


class Linked(Child):
    """A broker of a network."""

    def __init__(self, data: Path, name: str, *links: str, levels: int = 0) -> None:
        super().__init__(data)
        self.name = name
        self.links = links
        self.levels = levels

    def config(self) -> Config:
        config = replace(super().config(), stomp="", name=self.name, links=self.links)
        return replace(
            config, link_grade="exact" if self.levels else "lub", link_levels=self.levels
        )


class Network:
    """b1 and b2 for subscribers, b4 and b5 for publishers, b3 between them."""

    def __init__(self, folder: Path) -> None:
        self.brokers = {CORE: Linked(folder / CORE, CORE)}
        self.proxies: dict[str, Proxy] = {}
        for name in EDGES:
            self.proxies[name] = Proxy(self.brokers[CORE].http)
            url = f"http://127.0.0.1:{self.proxies[name].port}"
            self.brokers[name] = Linked(folder / name, name, url)

    def is_whole(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            for broker in self.brokers.values():
                shown = httpx.get(f"{broker.url}/overlay", timeout=5).json()
                if len(shown["brokers"]) < len(self.brokers):
                    return False
            return True
        return False


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    found = Network(folder)
    with contextlib.ExitStack() as stack:
        for broker in found.brokers.values():
            stack.enter_context(broker)
        for proxy in found.proxies.values():
            stack.callback(proxy.close)
        wait_for(found.is_whole, 60)
        yield found
