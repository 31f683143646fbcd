"""A broker in a process of its own, that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """`tocsin serve` on fixed ports, so that clients can come back."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        self.flags = flags
        self.http, self.stomp = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        self.running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "tocsin.cli", "serve", "--data", str(self.data), "--no-warm",
            "--http", f"127.0.0.1:{self.http}", "--stomp", f"127.0.0.1:{self.stomp}", *self.flags,
        ]  # fmt: skip
        with (self.data.parent / "log").open("a") as log:
            self.running = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ)
            )
        assert self.running.stdout is not None
        line = self.running.stdout.readline()
        assert line, (self.data.parent / "log").read_text()
        assert json.loads(line)["ready"]

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.running is not None
        assert self.running.stdout is not None
        self.running.send_signal(number)
        code = self.running.wait(60)
        self.running.stdout.close()
        self.running = None
        return code

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running is not None:
            self.end()
