"""One connection to a peer: handshake, messages, events, acknowledgements.

Enters: bytes of a WebSocket, whichever end opened it. Leaves: events published here, messages heard
by the hub, bytes. A line is a JSON array; a WebSocket message is any part of the stream of lines.

    ["HELLO", 1, name, instance, declared types]   first, both ways; among the types, under "",
                                                    with how many levels the sender matches
    ["PUB", …]                                      an event (`event_lines.py`)
    ["ACK", number]                                 all up to this number are on disk here
    ["ADV", …], ["SUB", …], …                       routing (`messages.py`)

Events that are read together are published together. What must not be lost is acknowledged when it
is on disk with the number of the last, in one transaction: an event that comes again, because the
acknowledgement was lost, is known by its number.

A peer may be wrong or lie: every field is checked (`fields.py`), a line and what waits to be
read are bounded, long messages are processed in parts so that other links need not wait, and a
peer is who its token says it is. A message that is ill-formed ends the link; an event that
cannot be taken is refused, counted and acknowledged, or it would come again for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.broker.events import Event
from tocsin.broker.network import Mark
from tocsin.broker.overlay import rows
from tocsin.broker.overlay.cells import DEEPEST
from tocsin.broker.overlay.event_lines import of_line, to_line
from tocsin.broker.overlay.fields import shown, to_instance, to_name, to_number
from tocsin.broker.overlay.hub import Hub, Peer
from tocsin.broker.overlay.messages import Codebook, Message, Sub, Upd, of_plain
from tocsin.broker.protocol import json_text
from tocsin.broker.sessions import StreamSession
from tocsin.broker.subscription import Subscription
from tocsin.broker.tokens import Principal
from tocsin.errors import (
    EventError,
    LimitError,
    ProtocolError,
    TocsinError,
    UnavailableError,
)

VERSION = 1
_OFFERS = ""
"""No type has this name. Brokers that know nothing of levels pass over it, as over other types."""
_FRAME = 1 << 18
_MOST_EVENTS = 1_000
_MOST_WAITING = 16 << 20
_LONGEST_GREETING = 1 << 20
_LONGEST_LINE = 32 << 20
_LONG = 1 << 14
"""A line from which on a message is read in a thread of its own."""
_PART = 100
"""Slots that are taken in at a time."""
_SLICE = 0.01
"""Seconds of work after which others get their turn."""
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
log = logging.getLogger("tocsin.network")


class Lines:
    """Lines out of the parts of a stream, each no longer than a limit."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._rest: list[bytes] = []
        self._n_rest = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that a part of the stream ends."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._n_rest = [], 0
        if rest:
            self._rest.append(rest)
            self._n_rest += len(rest)
        if max([self._n_rest, *map(len, lines)]) > self.longest:
            raise ProtocolError(f"a line of more than {self.longest} bytes")
        return lines


class Wire(StreamSession):
    """A connection to a peer. `send` writes bytes; lines come by `feed`."""

    def __init__(
        self,
        hub: Hub,
        send: Callable[[bytes], Awaitable[None]],
        is_dialer: bool,
        principal: Principal | None = None,
    ) -> None:
        config = hub.broker.config
        super().__init__(config.outbox_messages, config.outbox_bytes, False, principal)
        self.hub = hub
        self.is_dialer = is_dialer
        self.peer: Peer | None = None
        self.sent_codes, self.received_codes = Codebook(), Codebook()
        self._send = send
        self.expected_name = ""
        """The name that the peer must have; empty: any that its token allows."""
        self._gathered = Lines(_LONGEST_GREETING)
        self._lines: deque[bytes] = deque()
        self._n_waiting = 0
        self._came = asyncio.Event()
        self._last_received = 0

    def render(
        self,
        subscription: Subscription,
        event: Event,
        kind: int,
        redelivered: bool,
        missed: int,
        delivery_count: int = 0,
    ) -> bytes:
        """Return an event as a line; what is durable has a number, what is past has a kind."""
        peer = self.peer
        assert peer is not None
        peer.counts["events_out"] += 1
        with_key = event.key is not None and self.hub.watches(peer.name, event.type)
        number = event.seq if subscription.durable else 0
        return to_line(event, number, self.hub.instance, with_key, is_past=kind != 0)

    def close_slow(self) -> None:
        """Keep the link: a slow peer loses transient events only."""

    def hello(self) -> bytes:
        """Return the first line."""
        hub = self.hub
        types: dict[str, dict[str, Any]] = {
            name: {attribute: kind.value for attribute, kind in each.attributes.items()}
            for name, each in hub.broker.matcher.types.items()
        }
        if hub.router.levels:
            types[_OFFERS] = {"levels": hub.router.levels}
        return json_text.write(["HELLO", VERSION, hub.name, hub.instance, types]) + b"\n"

    async def feed(self, data: bytes) -> None:
        """Take in bytes; wait where too much waits already."""
        lines = self._gathered.feed(data)
        self._lines += lines
        self._n_waiting += len(data)
        if self.peer is not None:
            self.peer.counts["bytes_in"] += len(data)
        self._came.set()
        while self._n_waiting > _MOST_WAITING and self.closed is None:
            self._has_capacity.clear()
            await self._has_capacity.wait()

    async def run(self, read: Callable[[], Awaitable[bytes | None]]) -> None:
        """Serve until either side closes. `read` returns None at the end."""
        hub = self.hub
        hub.broker.connections.streams.add(self)
        tasks = [asyncio.create_task(self._read(read)), asyncio.create_task(self._greet())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]
        finally:
            self.close("gone")
            if self.peer is not None:
                hub.disconnect(self.peer, self)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            hub.broker.connections.streams.discard(self)

    async def _read(self, read: Callable[[], Awaitable[bytes | None]]) -> None:
        while (data := await read()) is not None:
            await self.feed(data)

    async def _greet(self) -> None:
        """Shake hands, then write and work until something ends it."""
        await self._send(self.hello())
        async with asyncio.timeout(self.hub.broker.config.limits.connect_seconds):
            while not self._lines:
                self._came.clear()
                await self._came.wait()
        name, instance, levels = self._check(json_text.read(self._next()))
        opened_by = self.hub.name if self.is_dialer else name
        self.peer = peer = await self.hub.connect(name, instance, self, opened_by, levels)
        self._gathered.longest = _LONGEST_LINE
        if peer.busy is not None:  # of the connection before
            await asyncio.wait([peer.busy])
        self._last_received = peer.last_received
        tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._work())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self, plain: Any) -> tuple[str, str, int]:
        if not isinstance(plain, list) or len(plain) != 5 or plain[0] != "HELLO":
            raise ProtocolError("a link begins with HELLO")
        _, version, name, instance, types = plain
        if version != VERSION:
            raise ProtocolError(f"the peer speaks version {shown(version)}, not {VERSION}")
        name, instance = to_name(name), to_instance(instance)
        if self.expected_name and name != self.expected_name:
            raise ProtocolError(f"this link is for {self.expected_name!r}, not for {name!r}")
        if self.principal is not None:
            self.principal.must_be_link(name)
        if not isinstance(types, dict):
            raise ProtocolError("HELLO has an object of declared types")
        for each, declared in self.hub.broker.matcher.types.items():
            own = {attribute: kind.value for attribute, kind in declared.attributes.items()}
            if types.get(each, own) != own:
                raise ProtocolError(f"{name} declares the type {each} otherwise")
        offers = types.get(_OFFERS)
        levels = offers.get("levels") if isinstance(offers, dict) else 0
        if type(levels) is not int or not 0 <= levels <= DEEPEST:
            raise ProtocolError(f"{shown(levels)} is no number of levels")
        return name, instance, levels

    async def _write(self) -> None:
        while self.closed is None:
            messages = await self.take(self.hub.broker.config.heart_beat_ms / 1000)
            data = b"".join(messages)
            for at in range(0, len(data), _FRAME):
                await self._send(data[at : at + _FRAME])
            assert self.peer is not None
            self.peer.counts["bytes_out"] += len(data)
            if messages and self.peer.consumer is not None:
                self.peer.consumer.resume()

    def _next(self) -> bytes:
        line = self._lines.popleft()
        self._n_waiting -= len(line) + 1
        self._has_capacity.set()
        return line

    async def _work(self) -> None:
        """Take lines as they come: events together, the rest one by one."""
        events: list[tuple[int, Event | None]] = []
        clock = asyncio.get_running_loop().time
        while True:
            while not self._lines and not events:
                self._came.clear()
                await self._came.wait()
            began = clock()
            while self._lines and len(events) < _MOST_EVENTS and clock() - began < _SLICE:
                line = self._next()
                if line.startswith(b'["PUB"'):
                    self._receive_event(json_text.read(line), events)
                else:
                    await self._receive(line)
            self.hub.flush()
            if events:
                await self._publish(events)
                events = []
            else:
                await asyncio.sleep(0)

    async def _receive(self, line: bytes) -> None:
        """Apply an acknowledgement or a routing message."""
        peer = self.peer
        assert peer is not None
        if len(line) < _LONG:
            plain = json_text.read(line)
            if isinstance(plain, list) and plain[:1] == ["ACK"]:
                self._acknowledged(plain)
                return
            if isinstance(plain, list) and plain[:1] == ["PUB"]:
                raise ProtocolError('an event is a line that begins with ["PUB"')
            message = of_plain(plain, self.received_codes)
        else:
            message = await asyncio.to_thread(self._read_long, line)
        if peer.connection is not self:
            return
        if isinstance(message, Sub | Upd):
            slots = message.slots if isinstance(message, Sub) else message.change.new
            if len(slots) > _PART:
                await self._grow(message, list(slots.items()))
        self.hub.receive(peer, message)

    def _read_long(self, line: bytes) -> Message:
        return of_plain(json_text.read(line), self.received_codes)

    async def _grow(self, message: Sub | Upd, slots: list[tuple[int, Any]]) -> None:
        """Apply the slots of a long message in parts, yielding to other tasks between them."""
        peer = self.peer
        assert peer is not None
        for at in range(0, len(slots), _PART):
            self.hub.router.grow(
                peer.name, message.topic, dict(slots[at : at + _PART]), message.keep
            )
            await asyncio.sleep(0)
            if peer.connection is not self:
                raise ProtocolError("the link was replaced")

    def _receive_event(self, plain: list[Any], events: list[tuple[int, Event | None]]) -> None:
        """Accept an event, unless it is a repetition."""
        assert self.peer is not None
        self.peer.counts["events_in"] += 1
        number = to_number(plain[1] if len(plain) > 1 else None, "number of an event")
        if number and number <= self._last_received:
            self.hub.repeated += 1
            self._acknowledge(number)
            return
        self._last_received = max(self._last_received, number)
        try:
            event = of_line(plain, self.hub.broker.matcher.types)
        except EventError as error:
            self._refuse(error)
            if number:
                events.append((number, None))
            return
        event.source = self.peer.name
        events.append((number, event))

    def _refuse(self, error: TocsinError) -> None:
        assert self.peer is not None
        self.peer.counts["refused"] += 1
        self.hub.broker.metrics.refused += 1
        log.warning("an event of %s is refused: %s", self.peer.name, error)

    async def _publish(self, events: list[tuple[int, Event | None]]) -> None:
        """Have events matched and sent on; acknowledge them when they are on disk.

        None stands for an event that was refused: its number is acknowledged with the others.
        """
        last = max(number for number, _ in events)
        pause = _PAUSE
        while self.closed is None:
            await self.hub.broker.ingest.capacity()
            try:
                await self._offer([event for _, event in events if event is not None], last)
                break
            except (UnavailableError, LimitError) as error:
                log.info("events have to wait: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except TocsinError as error:
                if len(events) > 1:
                    for each in events:
                        await self._publish([each])
                    return
                self._refuse(error)
                break
        if last and self.closed is None:
            self._acknowledge(last)

    async def _offer(self, events: list[Event], last: int) -> None:
        """Offer events to the core; that they are taken counts even if this link ends meanwhile."""
        peer, seen = self.peer, self.hub.duplicates
        assert peer is not None
        new = [event for event in events if self._is_new(event)]
        self.hub.repeated += len(events) - len(new)  # they came another way before
        if not new:
            return
        mark = Mark(rows.mark, peer.name, last) if last else None
        future = peer.busy = self.hub.broker.offer(new, mark)

        def settled(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                peer.last_received = max(peer.last_received, last)
                return
            for event in new:
                if event.origin is not None:
                    seen.forget(*event.origin)

        future.add_done_callback(settled)
        await asyncio.shield(future)

    def _is_new(self, event: Event) -> bool:
        assert event.origin is not None
        is_own = event.origin[0] == self.hub.instance
        return not is_own and self.hub.duplicates.is_new(*event.origin)

    def _acknowledge(self, number: int) -> None:
        self.outbox.put(b'["ACK",%d]\n' % number, False)
        self.flush()

    def _acknowledged(self, plain: list[Any]) -> None:
        number = to_number(plain[1] if len(plain) == 2 else None, "number to acknowledge")
        assert self.peer is not None
        if self.peer.consumer is not None:
            self.peer.consumer.acknowledge_upto(number)


async def run_link(running: Awaitable[None], where: str) -> str | None:
    """Run a link until it ends; return why, where that was no plain end."""
    try:
        await running
    except TocsinError as error:
        log.warning("link %s: %s", where, shown(str(error)) if len(str(error)) > 500 else error)
        return str(error)
    except TimeoutError:
        return "no handshake in time"
    return None
