"""Webhooks: durable notifications pushed as HTTP requests.

Enters: durable subscriptions with a URL. Leaves: one POST for each notification, in order, in
CloudEvents binary mode; an answer of 2xx acknowledges it. Failures are tried again after growing
pauses with jitter; after `webhook_attempts` the notification becomes a dead letter, and the next
one is tried.

A broker sits inside a network that subscribers may not reach, so a webhook must not be a way in: a
host is resolved for every request, every address it has is checked, and the connection is made to
the address that was checked. Only public addresses are allowed, and the networks of
`webhook_allow`. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import random
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpx

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.keyed import NAMES
from tocsin.broker.protocol import cloudevents
from tocsin.broker.subscription import Subscription
from tocsin.errors import ArgumentError, TocsinError

if TYPE_CHECKING:
    from tocsin.broker.core import Broker

_LONGEST_PAUSE = 300.0
_MOST_AT_ONCE = 64
_JITTER = random.Random()
log = logging.getLogger("tocsin.webhooks")


def check_webhook(found: object, config: Config) -> dict[str, str]:
    """Return a webhook's URL, or refuse one that can never be used."""
    if not isinstance(found, Mapping) or not isinstance(found.get("url"), str):
        raise ArgumentError("a webhook is an object with url, a text")
    odd = found.keys() - {"url", "secret"}
    if odd:
        raise ArgumentError(f"a webhook has no {', '.join(sorted(map(str, odd)))[:100]}")
    url = found["url"]
    host, _ = _split(url)
    try:
        host.encode("idna")
    except UnicodeError:
        raise ArgumentError("the host of the webhook's URL is no name of a host") from None
    with contextlib.suppress(ValueError):
        check_address(str(ipaddress.ip_address(host)), config.webhook_allow)
    if host == "localhost" or host.endswith(".localhost"):
        check_address("127.0.0.1", config.webhook_allow)
    return {"url": url}


def _split(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ArgumentError("the URL of the webhook cannot be read") from None
    if parts.scheme not in ("http", "https") or not host or len(url) > 2000:
        raise ArgumentError("a webhook's URL begins with http:// or https:// and has a host")
    if parts.username or parts.password:
        raise ArgumentError("a webhook's URL has no user")
    return host, port or (443 if parts.scheme == "https" else 80)


def check_address(text: str, allowed: tuple[str, ...]) -> None:
    """Refuse an address that is not public, unless it is in an allowed network."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    address = mapped or address
    if any(address in ipaddress.ip_network(network) for network in allowed):
        return
    if not address.is_global or address.is_multicast:
        raise ArgumentError(f"webhooks may not be aimed at {address}")


def _is_over(event: Event) -> bool:
    return event.valid_until is not None and event.valid_until <= time.time_ns() // 1000


def _content_type(event: Event) -> str:
    """Return a content type as a header may have it: publishers send what they like."""
    found = event.content_type or "application/octet-stream"
    if found.isascii() and found.isprintable():
        return found
    return quote(found, safe=" !#$&'()*+,/:;=?@[]^_`{|}~\"")


class Webhooks:
    """Sends what subscriptions with webhooks are to get. Used within the event loop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._client = httpx.AsyncClient(
            timeout=broker.config.webhook_seconds,
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_connections=_MOST_AT_ONCE * 2),
        )
        broker.on_backlog = self.wake

    def start(self) -> None:
        """Take up what was left undone."""
        for found in self.broker.registry.by_id.values():
            self.wake(found)

    def wake(self, found: Subscription) -> None:
        """Send what a subscription has, where it has a webhook."""
        if "webhook" not in found.wanted.options:
            return
        if found.no in self._tasks:
            self._again.add(found.no)  # what was revived is behind what the task has come to
        elif found.pending:
            task = asyncio.create_task(self._serve(found))
            self._tasks[found.no] = task
            task.add_done_callback(lambda done: self._ended(found, done))

    def _ended(self, found: Subscription, done: asyncio.Task[None]) -> None:
        self._tasks.pop(found.no, None)
        is_asked = found.no in self._again
        self._again.discard(found.no)
        if not done.cancelled() and done.exception() is not None:
            log.error("a webhook stopped: %r", done.exception())
        elif not done.cancelled() and (is_asked or found.last_seq > found.high_sent):
            self.wake(found)

    async def _serve(self, found: Subscription) -> None:
        """Deliver until nothing is left."""
        cursor = 0
        with contextlib.suppress(TocsinError):  # so that what was acknowledged is not read again
            await self.broker.storage.submit(lambda _: None)
        while found.no in self.broker.registry.by_no and not self.broker.is_draining:
            rows = await self.broker.storage.read(schema.page, found.no, cursor, 64)
            if not rows:
                return
            for *row, kind in rows:
                event = Event.restored(*row)
                await self._deliver(found, event, kind)
                cursor = event.seq
                if found.no not in self.broker.registry.by_no:
                    return

    async def _deliver(self, found: Subscription, event: Event, kind: int) -> None:
        config, metrics = self.broker.config, self.broker.metrics
        reason = ""
        again = event.seq <= found.high_sent
        found.high_sent = max(found.high_sent, event.seq)
        for attempt in range(config.webhook_attempts):
            if _is_over(event) and not kind:  # a transition is told all the same
                self.broker.acknowledge(found, [event.seq])
                return
            try:
                async with self._slots:
                    status = await self._send(found, event, kind, again or attempt > 0)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ArgumentError) as error:
                reason = f"{type(error).__name__}: {error}"[:300]
            else:
                if 200 <= status < 300:
                    metrics.webhook_sent += 1
                    metrics.notifications += 1
                    self.broker.acknowledge(found, [event.seq])
                    return
                reason = f"status {status}"
                if status == 410:  # gone: nobody will ever want it
                    break
            metrics.webhook_failed += 1
            if attempt + 1 < config.webhook_attempts:
                pause = min(_LONGEST_PAUSE, config.webhook_back_off * 2**attempt)
                await asyncio.sleep(pause * _JITTER.uniform(0.5, 1.0))
            if found.no not in self.broker.registry.by_no:
                return
        self.broker.bury(found, event.seq, reason)

    async def _send(self, found: Subscription, event: Event, kind: int, again: bool) -> int:
        url = found.wanted.options["webhook"]["url"]
        host, port = _split(url)
        address = await self._resolve(host, port)
        headers = self._headers(found, event, kind, again, url)
        traced = self.broker.telemetry
        with contextlib.nullcontext() if traced is None else traced.webhook(url, headers):
            return await self._request(httpx.URL(url).copy_with(host=address), host, headers, event)

    async def _request(
        self, url: httpx.URL, host: str, headers: dict[str, str], event: Event
    ) -> int:
        request = self._client.build_request(
            "POST",
            url,
            content=event.text if event.body is None else event.body,
            headers=headers,
            extensions={"sni_hostname": host},
        )
        # The answer's body is nobody's business, and may be endless.
        response = await self._client.send(request, stream=True)
        await response.aclose()
        return response.status_code

    async def _resolve(self, host: str, port: int) -> str:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found]
        for address in addresses:
            check_address(address, self.broker.config.webhook_allow)
        return addresses[0]

    def _headers(
        self, found: Subscription, event: Event, kind: int, again: bool, url: str
    ) -> dict[str, str]:
        ours = {
            "id": str(event.seq),
            "source": "tocsin",
            "specversion": "1.0",
            "type": event.type or "event",
        }
        context = (event.headers or {}).get("ce")
        headers = cloudevents.to_headers(context if isinstance(context, dict) else ours)
        headers |= {
            "host": urlsplit(url).netloc.encode("idna").decode(),
            "content-type": _content_type(event),
            "user-agent": "tocsin",
            "tocsin-subscription": cloudevents.to_headers({"x": found.id})["ce-x"],
            "tocsin-id": str(event.seq),
        }
        told = {"transition": NAMES.get(kind), "key": event.key, "gone": event.gone}
        shown = {name: value for name, value in told.items() if value is not None}
        for name, value in cloudevents.to_headers(shown).items():
            headers[f"tocsin-{name[3:]}"] = value
        if again:
            headers["tocsin-redelivered"] = "true"
        secret = found.wanted.options.get("secret")
        if secret is not None:
            body = event.text if event.body is None else event.body
            signed = f"{event.seq}.".encode() + body
            mac = hmac.new(str(secret).encode(), signed, hashlib.sha256).hexdigest()
            headers["tocsin-signature"] = f"sha256={mac}"
        return headers

    async def stop(self) -> None:
        """Stop sending; what is not acknowledged waits on disk."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.aclose()
