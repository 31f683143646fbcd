"""Sessions that a coroutine reads: Server-Sent Events and WebSockets.

Enters: notifications. Leaves: messages when the connection can take them. Used within the event
loop.
"""

from __future__ import annotations

import asyncio
import time

from tocsin.broker.events import Event
from tocsin.broker.keyed import NAMES
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import json_text
from tocsin.broker.subscription import Subscription
from tocsin.broker.tokens import Principal

_GRACE = 5.0


def _tail(event: Event) -> bytes:
    """Return what every notification of an event ends with."""
    kind = b"" if event.type is None else b',"type":' + json_text.write(event.type)
    if event.key is not None:
        kind += b',"key":' + json_text.write(event.key)
    if event.gone is not None:
        kind += b',"gone":' + json_text.write(event.gone)
    return b'%s,"published":%d,"event":%s}' % (kind, event.published, event.text)


def _marks(redelivered: bool, missed: int) -> bytes:
    again = b',"redelivered":true' if redelivered else b""
    return again + (b',"missed":%d' % missed if missed else b"")


class StreamSession:
    """A session that a coroutine reads: Server-Sent Events and WebSockets."""

    def __init__(self, max_messages: int, max_bytes: int, as_sse: bool) -> None:
        self.outbox = Outbox(max_messages, max_bytes)
        self.is_dirty = False
        self.closed: str | None = None
        self.principal: Principal | None = None
        self.is_revoked = False
        self.transport: asyncio.Transport | None = None
        self._as_sse = as_sse
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    def render(
        self, subscription: Subscription, event: Event, kind: int, redelivered: bool, missed: int
    ) -> bytes:
        """Return a notification as an SSE message or as JSON."""
        tail = event.json
        if tail is None:
            tail = event.json = _tail(event)
        marks = _marks(redelivered, missed) if redelivered or missed else b""
        if kind:
            marks = b',"transition":"%s"%s' % (NAMES[kind].encode(), marks)
        if self._as_sse:
            return b'id: %d\nevent: notification\ndata: {"subscription":%s,"id":%d%s%s\n\n' % (
                event.seq, subscription.json_id, event.seq, marks, tail,
            )  # fmt: skip
        return b'{"subscription":%s,"id":%d%s%s' % (
            subscription.json_id, event.seq, marks, tail,
        )  # fmt: skip

    def flush(self) -> None:
        """Wake the reader."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close_slow(self) -> None:
        """End the stream."""
        self.close("slow-consumer")

    def close(self, reason: str) -> None:
        """End the stream once what waits is taken."""
        if self.closed is None:
            self.closed = reason
        self.flush()

    @property
    def is_lost(self) -> bool:
        """Whether what was taken last may never have been written."""
        return self.is_revoked or self.closed == "gone"

    def revoke(self) -> None:
        """End the stream without what waits; who does not read is not waited for."""
        self.is_revoked = True
        self.outbox.take()
        self.close("revoked")
        if self.transport is not None:
            asyncio.get_running_loop().call_later(_GRACE, self.transport.abort)

    async def take(self, wait: float) -> list[bytes]:
        """Return what waits; nothing where nothing comes in time."""
        if not len(self.outbox) and self.closed is None:
            self._since = time.monotonic()
            if self._timer is None:
                self._remind(wait)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        return self.outbox.take()

    def _remind(self, wait: float) -> None:
        """Wake a reader that has waited so long; one timer serves many times of waiting."""
        left = self._since + wait - time.monotonic()
        if left > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left, self._remind, wait)
        else:
            self._timer = None
            self.flush()

    def end(self) -> None:
        """Forget the timer: nobody reads any more."""
        if self._timer is not None:
            self._timer.cancel()
