"""Network namespaces joined by a bridge: a machine for each broker, as far as the network goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator


def ip(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 or not check, done.stderr
    return done.returncode == 0


def missing() -> str | None:
    """Return why there can be no namespaces here, or None."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces take root and the command ip"
    name = f"tocsin-{os.getpid()}"
    if not ip("netns", "add", name, check=False):
        return "ip netns add is not allowed here"
    ip("netns", "del", name)
    return None


class Machines:
    """Namespaces with an address each."""

    def __init__(self, *names: str) -> None:
        self.tag = f"{os.getpid() % 100_000}"
        self.net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.bridge = f"tb{self.tag}"
        self.names = names
        self.has_netem = False

    def space(self, name: str) -> str:
        return f"tocsin-{self.tag}-{name}"

    def address(self, name: str) -> str:
        return f"{self.net}.{10 + self.names.index(name)}"

    def _port(self, name: str) -> str:
        return f"tv{self.tag}{self.names.index(name)}"

    def build(self) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.net}.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for name in self.names:
            space, port = self.space(name), self._port(name)
            ip("netns", "add", space)
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", port, "master", self.bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            self.has_netem = self._disturb(space)

    def _disturb(self, space: str) -> bool:
        """Add delay and loss, where the kernel knows how to."""
        command = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", "root"]
        command += ["netem", "delay", "20ms", "5ms", "loss", "1%"]
        with contextlib.suppress(OSError):
            return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        return False

    def part(self, name: str) -> None:
        """Let packets of a machine vanish."""
        ip("link", "set", self._port(name), "down")

    def join(self, name: str) -> None:
        ip("link", "set", self._port(name), "up")

    def remove(self) -> None:
        for name in self.names:
            ip("netns", "del", self.space(name), check=False)
        ip("link", "del", self.bridge, check=False)


@contextlib.contextmanager
def machines(*names: str) -> Iterator[Machines]:
    found = Machines(*names)
    try:
        found.build()
        yield found
    finally:
        found.remove()
