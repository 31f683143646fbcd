"""Webhooks: durable notifications pushed as HTTP requests.

Enters: durable subscriptions with a URL. Leaves: one POST for each notification, in order, in
CloudEvents binary mode; an answer of 2xx acknowledges it. Failures are tried again after growing
pauses with jitter; after `webhook_attempts` the notification becomes a dead letter, and the next
one is tried.

A broker sits inside a network that subscribers may not reach, so a webhook must not be a way in: a
host is resolved for every request, every address it has is checked (`addresses.py`), and the
connection is made to the address that was checked. Redirects are not followed. A connection serves
one request: httpx pools connections by address, and would not check the certificate of a second
host on the same address.

A request has `webhook_seconds` in all, from the look-up of its name to the head of its answer, and
a slot of its owner's (`slots.py`): slow receivers hold up their owner's webhooks only. Those
of an owner whose token does not count any more stop; what waits for them stays on disk.

With a secret, requests are signed after Standard Webhooks (`webhook-id`, `webhook-timestamp`,
`webhook-signature`: `v1` for id, time and body), and by a second signature, `v1h`, which covers the
headers that `webhook-signed-headers` names too. `tocsin-signature` is for receivers that know no
better: it covers id and body only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import random
import time
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import httpx

from tocsin.broker import schema
from tocsin.broker.addresses import check_address
from tocsin.broker.backlog import Backlog
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.ingest import IngestQueue
from tocsin.broker.metrics import Metrics
from tocsin.broker.protocol import cloudevents
from tocsin.broker.resolver import Resolver
from tocsin.broker.slots import Slots
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription, SubscriptionTable, WebhookFailures
from tocsin.broker.supervisor import Supervisor
from tocsin.broker.telemetry import Telemetry
from tocsin.broker.transitions import KINDS
from tocsin.errors import ArgumentError, EventError, TocsinError

_LONGEST_PAUSE = 300.0
_WHSEC = "whsec_"
_JITTER = random.Random()
log = logging.getLogger("tocsin.webhooks")


def check_webhook(webhook: object, config: Config) -> dict[str, str]:
    """Return the URL of a webhook; raise ArgumentError where it can never be used."""
    if not isinstance(webhook, Mapping) or not isinstance(webhook.get("url"), str):
        raise ArgumentError("a webhook is an object with url, a text")
    odd = webhook.keys() - {"url", "secret"}
    if odd:
        raise ArgumentError(f"a webhook has no {', '.join(sorted(map(str, odd)))[:100]}")
    url = webhook["url"]
    host, _ = _split(url)
    try:
        host.encode("idna")
    except UnicodeError:
        raise ArgumentError("the host of the webhook's URL is no name of a host") from None
    secret = webhook.get("secret")
    if isinstance(secret, str) and secret.startswith(_WHSEC):
        try:
            base64.b64decode(secret.removeprefix(_WHSEC), validate=True)
        except ValueError:
            raise ArgumentError("a secret that begins with whsec_ goes on in base64") from None
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        pass  # a name, which is looked up later
    else:
        check_address(address, config.webhook_allow, config.webhook_deny)
    if host == "localhost" or host.endswith(".localhost"):
        check_address("127.0.0.1", config.webhook_allow, config.webhook_deny)
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


def _is_over(event: Event) -> bool:
    return event.valid_until is not None and event.valid_until <= time.time_ns() // 1000


def _content_type(event: Event) -> str:
    """Return a content type as a header may have it: publishers send what they like."""
    text = event.content_type or "application/octet-stream"
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=" !#$&'()*+,/:;=?@[]^_`{|}~\"")


def key_of(secret: str) -> bytes:
    """Return the key of a secret: `whsec_` and base64, as Standard Webhooks has it, or any text."""
    if secret.startswith(_WHSEC):
        with contextlib.suppress(ValueError):  # stored before this was checked
            return base64.b64decode(secret.removeprefix(_WHSEC), validate=True)
    return secret.encode()


def sign(
    secret: str, id: str, timestamp: int, headers: Mapping[str, str], body: bytes
) -> dict[str, str]:
    """Return the headers that sign a request after Standard Webhooks, and its other headers."""
    key, start = key_of(secret), f"{id}.{timestamp}."
    signed = sorted(
        name for name in headers if name.startswith(("ce-", "tocsin-")) or name == "content-type"
    )
    names = ";".join(signed)
    lines = "".join(f"{name}:{headers[name]}\n" for name in signed)
    texts = {"v1": start.encode() + body, "v1h": f"{start}{names}\n{lines}\n".encode() + body}
    macs = {name: hmac.digest(key, text, hashlib.sha256) for name, text in texts.items()}
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            f"{name},{base64.b64encode(mac).decode()}" for name, mac in macs.items()
        ),
        "webhook-signed-headers": names,
    }


class Webhooks:
    """Sends notifications to the webhooks of subscriptions. Used within the event loop."""

    def __init__(
        self,
        config: Config,
        *,
        storage: Storage,
        metrics: Metrics,
        subscriptions: SubscriptionTable,
        backlog: Backlog,
        ingest: IngestQueue,
        supervisor: Supervisor,
        telemetry: Telemetry | None,
    ) -> None:
        self._config = config
        self._storage = storage
        self._metrics = metrics
        self._subscriptions = subscriptions
        self._backlog = backlog
        self._ingest = ingest
        self._supervisor = supervisor
        self._telemetry = telemetry
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_stopped = False
        self._again: set[int] = set()
        self._slots = Slots(config.webhook_slots, config.webhook_owner_slots)
        self._resolver = Resolver()
        self._client = httpx.AsyncClient(
            timeout=None,  # there is one for the whole request
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    def start(self) -> None:
        """Send what waits on disk."""
        for subscription in self._subscriptions.by_id.values():
            self.wake(subscription)

    def wake(self, subscription: Subscription) -> None:
        """Send the backlog of a subscription that has a webhook."""
        if "webhook" not in subscription.spec.options or not self._may_go_on(subscription):
            return
        if subscription.no in self._tasks:
            self._again.add(
                subscription.no
            )  # revived letters come after the page that the task reads
        elif subscription.pending:
            task = asyncio.create_task(self._serve(subscription))
            self._tasks[subscription.no] = task
            task.add_done_callback(lambda done: self._ended(subscription, done))

    def suspend(self, subscription: Subscription) -> None:
        """Stop sending at once; unacknowledged notifications stay."""
        task = self._tasks.get(subscription.no)
        if task is not None:
            self._again.discard(subscription.no)
            task.cancel()

    def _ended(self, subscription: Subscription, done: asyncio.Task[None]) -> None:
        self._tasks.pop(subscription.no, None)
        is_asked = subscription.no in self._again
        self._again.discard(subscription.no)
        if done.cancelled():
            if is_asked:  # reinstated just after it was suspended
                self.wake(subscription)
            return
        error = done.exception()
        if error is not None:
            pause = self._supervisor.failed("webhooks", error, subscription.no)
            asyncio.get_running_loop().call_later(pause, self.wake, subscription)
            return
        self._supervisor.recovered("webhooks", subscription.no)
        if is_asked or subscription.last_seq > subscription.high_sent:
            self.wake(subscription)

    def _may_go_on(self, subscription: Subscription) -> bool:
        is_known = self._subscriptions.is_live(subscription)
        return is_known and not subscription.is_suspended and not self._is_stopped

    async def _serve(self, subscription: Subscription) -> None:
        """Deliver until the backlog is empty."""
        cursor = 0
        with contextlib.suppress(TocsinError):  # acknowledgements come before the read
            await self._storage.submit(lambda _: None)
        while self._may_go_on(subscription) and not self._ingest.is_draining:
            rows = await self._storage.read(schema.page, subscription.no, cursor, 64)
            if not rows:
                return
            for *row, kind, deliveries, earlier, _ in rows:
                cursor = row[0]
                try:
                    event = Event.restored(*row)
                except EventError as error:
                    log.error("a notification of %r is a dead letter: %s", subscription.id, error)
                    self._backlog.bury(subscription, cursor, str(error))
                    continue
                await self._deliver(subscription, event, kind, deliveries, earlier)
                if not self._may_go_on(subscription):
                    return

    async def _deliver(
        self, subscription: Subscription, event: Event, kind: int, deliveries: int, earlier: int
    ) -> None:
        config, metrics = self._config, self._metrics
        _, max_deliveries = self._backlog.redelivery(subscription)
        reason = f"not acknowledged after {deliveries} deliveries"
        again = event.seq <= subscription.high_sent or deliveries + earlier > 0
        subscription.high_sent = max(subscription.high_sent, event.seq)
        # A limit of the subscription's own counts across restarts.
        first, most = (
            (deliveries, max_deliveries) if max_deliveries else (0, config.webhook_attempts)
        )
        attempt = first - 1
        for attempt in range(first, most):
            if max_deliveries:
                self._storage.forget(schema.count_deliveries, subscription.no, [event.seq])
            if _is_over(event) and not kind:  # transitions are delivered all the same
                self._backlog.acknowledge(subscription, [event.seq])
                return
            try:
                async with self._slots.slot(subscription.spec.owner):
                    count = earlier + attempt + 1
                    status = await self._send(
                        subscription, event, kind, again or attempt > 0, count
                    )
            except TimeoutError:
                reason = f"no answer within {config.webhook_seconds:g} s"
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ArgumentError) as error:
                reason = f"{type(error).__name__}: {error}"[:300]
            else:
                if 200 <= status < 300:
                    metrics.webhook_sent += 1
                    metrics.notifications += 1
                    self._succeeded(subscription)
                    self._backlog.acknowledge(subscription, [event.seq])
                    return
                reason = f"status {status}"
                if status == 410:  # the receiver is gone for good
                    break
            metrics.webhook_failed += 1
            self._failed(subscription, event, reason)
            if attempt + 1 < most:
                pause = min(_LONGEST_PAUSE, config.webhook_back_off * 2 ** min(attempt, 30))
                await asyncio.sleep(pause * _JITTER.uniform(0.5, 1.0))
            if not self._may_go_on(subscription):
                return
        log.error(
            "webhook of %r: notification %d is a dead letter: %s",
            subscription.id, event.seq, reason,
        )  # fmt: skip
        self._backlog.bury(subscription, event.seq, reason, earlier + attempt + 1)

    def _failed(self, subscription: Subscription, event: Event, reason: str) -> None:
        """Keep a failure with its subscription; log the first in a row, the second, the fourth …"""
        before = subscription.webhook_failures or WebhookFailures(0, 0, "", 0)
        in_a_row = before.in_a_row + 1
        subscription.webhook_failures = WebhookFailures(
            before.n + 1, in_a_row, reason, time.time_ns() // 1000
        )
        if in_a_row & (in_a_row - 1) == 0:
            where = urlsplit(subscription.spec.options["webhook"]["url"])
            log.warning(
                "webhook of %r at %s failed %d time(s) in a row, now for notification %d: %s",
                subscription.id, where.hostname, in_a_row, event.seq, reason,
            )  # fmt: skip

    def _succeeded(self, subscription: Subscription) -> None:
        failures = subscription.webhook_failures
        if failures is not None and failures.in_a_row:
            log.info("webhook of %r works again", subscription.id)
            subscription.webhook_failures = failures._replace(in_a_row=0)

    async def _send(
        self, subscription: Subscription, event: Event, kind: int, again: bool, count: int
    ) -> int:
        url = subscription.spec.options["webhook"]["url"]
        host, port = _split(url)
        headers = self._headers(subscription, event, kind, again, url)
        headers["tocsin-delivery-count"] = str(count)
        traced = self._telemetry
        span = contextlib.nullcontext() if traced is None else traced.webhook(url, headers)
        with span:
            async with asyncio.timeout(self._config.webhook_seconds):
                address = await self._resolve(host, port, subscription.spec.owner)
                target = httpx.URL(url).copy_with(host=address)
                return await self._request(target, host, headers, event)

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
        # The body of the answer is ignored: it may be endless.
        response = await self._client.send(request, stream=True)
        await response.aclose()
        return response.status_code

    async def _resolve(self, host: str, port: int, owner: str) -> str:
        config = self._config
        addresses = await self._resolver.resolve(host, port, owner)
        for address in addresses:
            check_address(address, config.webhook_allow, config.webhook_deny)
        return addresses[0]

    def _headers(
        self, subscription: Subscription, event: Event, kind: int, again: bool, url: str
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
            "tocsin-subscription": cloudevents.to_headers({"x": subscription.id})["ce-x"],
            "tocsin-id": str(event.seq),
        }
        facts = {"transition": KINDS.get(kind), "key": event.key, "gone": event.gone}
        shown = {name: value for name, value in facts.items() if value is not None}
        for name, value in cloudevents.to_headers(shown).items():
            headers[f"tocsin-{name[3:]}"] = value
        if again:
            headers["tocsin-redelivered"] = "true"
        secret = subscription.spec.options.get("secret")
        if secret is not None:
            body = event.text if event.body is None else event.body
            signed = f"{event.seq}.".encode() + body
            mac = hmac.new(str(secret).encode(), signed, hashlib.sha256).hexdigest()
            id, now = f"{event.seq}-{subscription.no}", int(time.time())
            headers |= sign(str(secret), id, now, headers, body)
            headers["tocsin-signature"] = f"sha256={mac}"
        return headers

    async def stop(self) -> None:
        """Stop sending; unacknowledged notifications wait on disk."""
        self._is_stopped = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.aclose()
