"""A client's socket: bytes → frames in order, an outbox, heart-beats, and an end.

Enters: bytes. Leaves: frames for `handle`, one at a time; while one waits, no more are read, nor
while the client does not read its answers. Many frames are handled a few milliseconds at a time, so
that other clients have their turn. A client that is silent, that never finishes a frame or that
does not read is closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, cast

from tocsin.broker.admission import address_of
from tocsin.broker.core import Broker
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import stomp as codec
from tocsin.broker.protocol.stomp import Frame
from tocsin.broker.stomp.transactions import TransactionBudget
from tocsin.broker.tokens import Principal, Tokens
from tocsin.errors import LimitError, NotAllowedError, ProtocolError, TocsinError

TICK = 0.25
_AT_ONCE = 16
_SLICE = 0.02
_STRANGER_HEAD = 8_192


class Owner(Protocol):
    """The listener that a link belongs to."""

    broker: Broker
    tokens: Tokens
    connections: set[Any]
    transactions: TransactionBudget

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it is done."""


class Link(asyncio.Protocol, ABC):
    """The socket of a client, its frames in order, its outbox."""

    def __init__(self, server: Owner) -> None:
        self.server = server
        self.broker = server.broker
        config = self.broker.config
        limits = config.limits
        self.outbox = Outbox(config.outbox_messages, config.outbox_bytes)
        self.is_dirty = False
        self.principal: Principal | None = None
        self.is_revoked = False
        self.sends_every = self.expects_every = 0.0
        self.opened = self.last_received = self.last_sent = time.monotonic()
        head = min(_STRANGER_HEAD, limits.max_header_bytes)
        self._parser = codec.Parser(head, limits.max_headers, max_body=0)
        self.dialect = codec.V12
        self._frames: deque[Frame] = deque()
        self._busy = self._paused = self.is_closing = False
        self._stopped_reading = self._is_continuing = False
        self._n_owed = 0
        self._unread = (0, 0.0)
        self._incomplete_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.transport: asyncio.Transport = cast(Any, None)

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, with little memory until the client is authenticated."""
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self)
        if not self.broker.admission.enter(self, address_of(transport), self.transport.abort):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=256 * 1024)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def admit(self, principal: Principal) -> None:
        """Authenticate the connection; raise LimitError where there are too many."""
        limits = self.broker.config.limits
        self.broker.connections.check()
        self.broker.admission.admit(self, principal.id)
        self.principal = principal
        self.broker.connections.opened()
        self._parser.max_header_bytes = limits.max_header_bytes
        self._parser.max_body = limits.max_body

    def speak(self, dialect: codec.Dialect) -> None:
        """Read and write frames of a version from now on."""
        self.dialect = self._parser.dialect = dialect

    @property
    def source(self) -> str | None:
        """The address that the client has."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the client; its transient subscriptions are removed."""
        self.is_closing = True
        self.server.connections.discard(self)
        self.broker.admission.leave(self)
        if self.principal is not None:
            self.broker.connections.closed()
        self._frames.clear()
        self.lost()

    def data_received(self, data: bytes) -> None:
        """Take bytes; handle the frames that they complete."""
        if self.is_closing:
            return
        self.last_received = time.monotonic()
        self._parser.put(data)
        self._handle_all()

    def pause_writing(self) -> None:
        """The client does not keep up: messages stay in the outbox."""
        self._paused = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._paused = False
        self.flush()
        self._handle_all()

    def flush(self) -> None:
        """Write the outbox, if the client keeps up."""
        if self._paused or self.is_closing or not len(self.outbox):
            return
        self.last_sent = time.monotonic()
        self.transport.write(b"".join(self.outbox.take()))
        self.written()

    def close_slow(self) -> None:
        """Close a client that does not keep up."""
        self.fail(LimitError("the client is too slow", "outbox_messages"))

    def revoke(self) -> None:
        """Close a client whose token is not valid any more; drop its messages."""
        self.is_revoked = True
        self.outbox.take()
        self.fail(NotAllowedError("the token was revoked or has expired"))

    def tick(self, now: float) -> None:
        """Send a heartbeat when it is due; close a client that is silent or stuck."""
        limits = self.broker.config.limits
        if self.is_closing:
            return
        late = self._incomplete_since
        if self.principal is None and now - self.opened > limits.connect_seconds:
            self.fail(LimitError("no CONNECT came in time", "connect_seconds"))
        elif late is not None and not self._stopped_reading and now - late > limits.request_seconds:
            self.fail(LimitError("a frame comes too slowly", "request_seconds"))
        elif self._paused and self._owes_too_much and self._is_stuck(now):
            self.broker.metrics.refused += 1
            self.transport.abort()
        elif (
            self.expects_every
            and not self._stopped_reading
            and now - self.last_received > 2 * self.expects_every + 1
        ):
            self.transport.abort()
        elif (
            self.sends_every
            and not self._paused
            and now - self.last_sent >= self.sends_every - 2 * TICK
        ):
            self.last_sent = now
            self.transport.write(b"\n")

    # Frames.

    @property
    def _owes_too_much(self) -> bool:
        """Whether the answers that the client has not read, or will get, fill its outbox."""
        return self.outbox.is_full_of_answers or self._n_owed > self.outbox.max_bytes

    def _is_stuck(self, now: float) -> bool:
        """Return whether the client has read nothing for `request_seconds`."""
        n_bytes, since = self.transport.get_write_buffer_size(), self._unread[1]
        if n_bytes != self._unread[0]:
            self._unread = (n_bytes, now)
            return False
        return now - since > self.broker.config.limits.request_seconds

    def _handle_all(self) -> None:
        """Handle frames until none is complete, one must wait, or the time slice ends."""
        end = time.monotonic() + _SLICE
        is_out_of_time = False
        frames = self._frames
        while not (self._busy or self.is_closing):
            if (self._paused or self._n_owed) and self._owes_too_much:
                break
            if not frames:
                if time.monotonic() > end:
                    is_out_of_time = True
                    break
                if not self._next_frames():
                    break
            frame = frames.popleft()
            try:
                waiting = self.handle(frame)
            except TocsinError as error:
                self.fail(error, frame)
                return
            if waiting is not None:
                self._wait_for(frame, waiting)
        if is_out_of_time and not self._is_continuing:
            self._is_continuing = True
            asyncio.get_running_loop().call_soon(self._continue)
        self._steer_reading(is_out_of_time)

    def _continue(self) -> None:
        self._is_continuing = False
        self._handle_all()

    def _next_frames(self) -> bool:
        """Parse more frames, one by one before CONNECT; whether there are any."""
        parser = self._parser
        self._frames.extend(parser.feed(b"", 1 if self.principal is None else _AT_ONCE))
        if self._frames:
            self._incomplete_since = None
            return True
        if parser.error is not None:
            self.fail(parser.error)
        elif not parser.waiting:
            self._incomplete_since = None
        elif self._incomplete_since is None:
            self._incomplete_since = self.last_received
        return False

    def _steer_reading(self, is_out_of_time: bool) -> None:
        stop = self._busy or is_out_of_time or self._owes_too_much
        if stop != self._stopped_reading and not self.transport.is_closing():
            self._stopped_reading = stop
            if stop:
                self._unread = (-1, 0.0)
                self.transport.pause_reading()
            else:
                self.last_received = (
                    time.monotonic()
                )  # bytes may have come while reading was paused
                if self._incomplete_since is not None:
                    self._incomplete_since = self.last_received
                self.transport.resume_reading()

    def _wait_for(self, frame: Frame, waiting: Awaitable[None]) -> None:
        self._busy = True

        async def finish() -> None:
            try:
                await waiting
                self._busy = False
            except TocsinError as error:
                self._busy = False
                self.fail(error, frame)
                return
            self._handle_all()

        task = asyncio.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @abstractmethod
    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Handle a frame; return an awaitable where later frames must wait."""

    @abstractmethod
    def lost(self) -> None:
        """Forget the client."""

    @abstractmethod
    def written(self) -> None:
        """Go on where the outbox was full."""

    def need(self, frame: Frame, name: str) -> str:
        """Return a header that a frame must have."""
        value = frame.headers.get(name)
        if not value:
            raise ProtocolError(f"{frame.command} needs {name}")
        return value

    def send_frame(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a frame that is never dropped."""
        self.outbox.answer(codec.encode(command, headers, body, self.dialect))
        self.flush()

    def receipt(self, frame: Frame, warnings: Sequence[str] = ()) -> None:
        """Send the receipt of a frame, if it has one; `warnings` go into a header."""
        receipt = frame.headers.get("receipt")
        if receipt is not None:
            more = {"warning": "; ".join(warnings)[:500]} if warnings else {}
            self.send_frame("RECEIPT", {"receipt-id": receipt, **more})

    def fail(self, error: TocsinError, frame: Frame | None = None) -> None:
        """Send an ERROR and close."""
        if self.is_closing:
            return
        self.broker.metrics.refused += 1
        headers = {"message": str(error).split("\n")[0][:500], "code": error.code}
        headers["content-type"] = "text/plain"
        if frame is not None and "receipt" in frame.headers:
            headers["receipt-id"] = frame.headers["receipt"]
        self._paused = False
        self.outbox.answer(codec.encode("ERROR", headers, str(error).encode(), self.dialect))
        self.flush()
        self.close()

    def close(self) -> None:
        """Close when the outbox is written."""
        self.is_closing = True
        self.transport.close()
        # A client that does not read the rest is cut off.
        asyncio.get_running_loop().call_later(5, self.transport.abort)
