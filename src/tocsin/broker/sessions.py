"""Sessions that a coroutine reads: Server-Sent Events and WebSockets.

Enters: notifications. Leaves: messages when the connection can take them. A transient stream is
written without its coroutine: to wake a thousand of them for a message each costs more than all the
rest. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from tocsin.broker.events import Event
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import json_text
from tocsin.broker.subscription import Subscription
from tocsin.broker.tokens import Principal
from tocsin.broker.transitions import KINDS

_GRACE = 5.0


def _suffix(event: Event) -> bytes:
    """Return the end that all notifications of an event have in common."""
    kind = b"" if event.type is None else b',"type":' + json_text.write(event.type)
    if event.key is not None:
        kind += b',"key":' + json_text.write(event.key)
    if event.gone is not None:
        kind += b',"gone":' + json_text.write(event.gone)
    return b'%s,"published":%d,"event":%s}' % (kind, event.published, event.text)


def _marks(redelivered: bool, missed: int, delivery_count: int) -> bytes:
    again = b',"redelivered":true' if redelivered else b""
    if delivery_count:
        again += b',"delivery_count":%d' % delivery_count
    return again + (b',"missed":%d' % missed if missed else b"")


def _around(event: Event) -> tuple[bytes, bytes]:
    """Return the text before and after the subscription in a plain SSE message."""
    head = b'id: %d\nevent: notification\ndata: {"subscription":' % event.seq
    return head, b',"id":%d%s\n\n' % (event.seq, _suffix(event))


class DirectWriter(Protocol):
    """A connection that is written to without waiting (`http.guarded.Chunks`)."""

    @property
    def is_open(self) -> bool:
        """Whether the client keeps up."""

    def write(self, data: bytes) -> None:
        """Write."""


class StreamSession:
    """A session that a coroutine reads: Server-Sent Events and WebSockets.

    With a `DirectWriter`, messages are written at once; the coroutine wakes for the end only, and
    when nothing was written for long.
    """

    def __init__(
        self,
        max_messages: int,
        max_bytes: int,
        as_sse: bool,
        principal: Principal | None = None,
        transport: asyncio.Transport | None = None,
    ) -> None:
        self.outbox = Outbox(max_messages, max_bytes)
        self.is_dirty = False
        self.closed: str | None = None
        self.principal = principal
        self.is_revoked = False
        self.transport = transport
        self._writer: DirectWriter | None = None
        self._as_sse = as_sse
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._has_capacity = asyncio.Event()

    def render(
        self,
        subscription: Subscription,
        event: Event,
        kind: int,
        redelivered: bool,
        missed: int,
        delivery_count: int = 0,
    ) -> bytes:
        """Return a notification as an SSE message or as JSON."""
        if self._as_sse and not (kind or redelivered or missed or delivery_count):
            ends = event.sse
            if ends is None:
                ends = event.sse = _around(event)
            return b"".join((ends[0], subscription.json_id, ends[1]))
        suffix = event.json
        if suffix is None:
            suffix = event.json = _suffix(event)
        marks = b""
        if redelivered or missed or delivery_count:
            marks = _marks(redelivered, missed, delivery_count)
        if kind:
            marks = b',"kind":"%s"%s' % (KINDS[kind].encode(), marks)
        if self._as_sse:
            return b'id: %d\nevent: notification\ndata: {"subscription":%s,"id":%d%s%s\n\n' % (
                event.seq, subscription.json_id, event.seq, marks, suffix,
            )  # fmt: skip
        return b'{"subscription":%s,"id":%d%s%s' % (
            subscription.json_id, event.seq, marks, suffix,
        )  # fmt: skip

    def write_to(self, writer: DirectWriter) -> None:
        """Write directly from now on, beginning with the messages in the outbox."""
        self._writer = writer
        self.flush()

    def flush(self) -> None:
        """Write, or wake the reader."""
        writer = self._writer
        if writer is None or self.closed is not None:
            self._wake()
        elif writer.is_open and len(self.outbox):
            self._since = time.monotonic()
            writer.write(b"".join(self.outbox.take()))

    async def capacity(self, seconds: float) -> bool:
        """Wait until the outbox takes answers; return False where the client takes none in time."""
        while self.closed is None and self.outbox.is_full_of_answers:
            before = self._n_unread()
            self._has_capacity.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._has_capacity.wait()
            except TimeoutError:
                if self._n_unread() == before:
                    return False
        return True

    def _n_unread(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close_slow(self) -> None:
        """End the stream."""
        self.close("slow-consumer")

    def close(self, reason: str) -> None:
        """End the stream once the outbox is empty."""
        if self.closed is None:
            self.closed = reason
        self._has_capacity.set()
        self._wake()

    @property
    def is_lost(self) -> bool:
        """Whether the messages taken last may never have been written."""
        return self.is_revoked or self.closed == "gone"

    def revoke(self) -> None:
        """End the stream at once, and drop its messages."""
        self.is_revoked = True
        self.outbox.take()
        self.close("revoked")
        if self.transport is not None:
            asyncio.get_running_loop().call_later(_GRACE, self.transport.abort)

    async def take(self, wait: float) -> list[bytes]:
        """Return the messages in the outbox; none where none comes in time."""
        if self.closed is None and (self._writer is not None or not len(self.outbox)):
            self._since = time.monotonic()
            if self._timer is None:
                self._remind(wait)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        if self._writer is not None and self.closed is None:
            return []
        self._has_capacity.set()
        return self.outbox.take()

    def _remind(self, wait: float) -> None:
        """Wake a reader after the time; one timer serves many waits."""
        left = self._since + wait - time.monotonic()
        if left > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left, self._remind, wait)
        else:
            self._timer = None
            self._wake()

    def end(self) -> None:
        """Release the timer and the writer."""
        self._writer = None
        if self._timer is not None:
            self._timer.cancel()
