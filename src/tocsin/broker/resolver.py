"""Names of hosts → addresses, without letting slow name servers hold up anything else.

Enters: a host, a port, whose webhook asks. Leaves: addresses. The system's resolver blocks, has no
limit of time that can be set, and cannot be stopped: each look-up has a thread of its own, and its
owner's slot is taken until the thread is done, even if the request was cancelled.
So one owner's slow names use up that owner's share. Requests for a name that is being looked up
wait for the same answer. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable

from tocsin.broker.slots import Slots

_MOST_AT_ONCE, _MOST_EACH = 32, 4
Lookup = Callable[[str, int], list[str]]


def look_up(host: str, port: int) -> list[str]:
    """Return all addresses of a host, by the system's resolver."""
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Resolver:
    """Looks names up. The caller sets the limit of time."""

    def __init__(self, look_up: Lookup = look_up) -> None:
        self._look_up = look_up
        self._slots = Slots(_MOST_AT_ONCE, _MOST_EACH)
        self._going: dict[tuple[str, str, int], asyncio.Future[list[str]]] = {}

    async def resolve(self, host: str, port: int, owner: str) -> list[str]:
        """Return all addresses of a host."""
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        going = self._going.get((owner, host, port))
        if going is None:
            await self._slots.acquire(owner)
            going = self._going.get((owner, host, port))
            if going is not None:
                self._slots.release(owner)
            else:
                going = self._begin(host, port, owner)
        return await asyncio.shield(going)

    def _begin(self, host: str, port: int, owner: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()
        self._going[owner, host, port] = answer

        def finish(addresses: list[str], error: Exception | None) -> None:
            self._going.pop((owner, host, port), None)
            self._slots.release(owner)
            if error is None:
                answer.set_result(addresses)
            else:
                answer.set_exception(error)
                answer.exception()  # the request may have been cancelled

        def work() -> None:
            addresses: list[str] = []
            error: Exception | None = None
            try:
                addresses = self._look_up(host, port)
            except Exception as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, addresses, error)

        threading.Thread(target=work, name="tocsin-resolve", daemon=True).start()
        return answer
