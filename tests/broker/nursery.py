"""Brokers as children of a process that has everything loaded, so that a restart takes little.

Imported by the fork server of `multiprocessing` before any child is made: it loads the broker and
compiles what matching needs. A child is a process like any other: it can be killed.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

from tests.broker.processes import free_port

from tocsin.broker.config import Config
from tocsin.broker.server import Server, serve
from tocsin.matcher import Matcher

_warm = Matcher()
_warm.subscribe(0, "k = 1")
_warm.match_batch([{"k": 1, "n": 2}])


def _serve(config: Config, ready: Connection) -> None:
    def on_ready(server: Server) -> None:
        ready.send(server.http_port)
        ready.close()

    serve(config, None, on_ready)


class Child:
    """A broker on fixed ports, so that clients can come back."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.http, self.stomp = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.broker.nursery"])
        self.process: multiprocessing.process.BaseProcess | None = None

    def config(self) -> Config:
        http, stomp = f"127.0.0.1:{self.http}", f"127.0.0.1:{self.stomp}"
        return Config(data=self.data, http=http, stomp=stomp, warm=False, log="error")

    def start(self) -> None:
        config = self.config()
        mine, theirs = self.context.Pipe()
        self.process = self.context.Process(target=_serve, args=(config, theirs))
        self.process.start()
        theirs.close()
        assert mine.poll(120)
        assert mine.recv() == self.http
        mine.close()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.join()
        self.process.close()
        self.process = None

    def __enter__(self) -> Child:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
