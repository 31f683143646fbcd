"""The batch loop: the ingest queue → matching in a thread → delivery.

Enters: batches and jobs of the ingest queue. Leaves: settled publishes. Batches follow each other:
one that changes publications or retained events is on disk before the next is matched. While a
batch is matched, the next one gathers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tocsin.broker.delivery import Delivery
from tocsin.broker.events import Event
from tocsin.broker.ingest import IngestQueue, Job, Publish
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.metrics import Metrics
from tocsin.broker.numbers import SequenceNumbers
from tocsin.broker.publications import PublicationTable
from tocsin.broker.subscription import Session, Subscription, SubscriptionTable
from tocsin.broker.telemetry import Telemetry
from tocsin.errors import TocsinError, UnavailableError

log = logging.getLogger("tocsin.broker")


class BatchLoop:
    """Runs batches and jobs one after the other."""

    def __init__(
        self,
        *,
        ingest: IngestQueue,
        matcher: BatchMatcher,
        publications: PublicationTable,
        subscriptions: SubscriptionTable,
        numbers: SequenceNumbers,
        delivery: Delivery,
        metrics: Metrics,
        telemetry: Telemetry | None,
    ) -> None:
        self._ingest = ingest
        self._matcher = matcher
        self._publications = publications
        self._subscriptions = subscriptions
        self._numbers = numbers
        self._delivery = delivery
        self._metrics = metrics
        self._telemetry = telemetry
        self._thread = ThreadPoolExecutor(1, "tocsin-match")

    async def warm_up(self) -> None:
        """Match an event, so that the first one does not wait for compilation."""
        event = Event(None, {}, b"{}")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._matcher.match_events, [event])

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()

    async def run(self) -> None:
        """Run batches and jobs until cancelled."""
        while True:
            batch = await self._ingest.take(self._is_alone)
            if isinstance(batch, Job):
                await self._run_job(batch)
                continue
            try:
                stored = await self._run_batch(batch)
            except Exception as error:
                self._undo()
                if len(batch) == 1 or isinstance(error, UnavailableError):
                    for publish in batch:
                        self._fail(publish, error)
                    continue
                log.exception("a batch failed; its publishes are run one by one")
                stored = await self._run_each(batch)
            if stored is not None:
                await asyncio.wait([stored])

    def _is_alone(self, publish: Publish) -> bool:
        """Return whether a publish may have to be undone after matching."""
        return publish.is_keyed and bool(self._subscriptions.n_refusing)

    async def _run_batch(self, batch: list[Publish]) -> asyncio.Future[list[int]] | None:
        """Match and deliver a batch; where this raises, nothing of it was delivered."""
        n_events = sum(len(publish.events) for publish in batch)
        await self._numbers.prepare(n_events, self._publications.n_ends)
        groups = [publish.events for publish in batch]
        loop = asyncio.get_running_loop()
        with self._span(batch, n_events):
            result = await loop.run_in_executor(self._thread, self._matcher.match, groups)
            return self._delivery.deliver(batch, result)

    def _span(
        self, batch: Sequence[Publish], n_events: int
    ) -> contextlib.AbstractContextManager[None]:
        if self._telemetry is None:
            return contextlib.nullcontext()
        return self._telemetry.batch(n_events, [publish.span for publish in batch])

    async def _run_each(self, batch: list[Publish]) -> asyncio.Future[list[int]] | None:
        """Run the publishes of a batch one by one, so that a bad one fails alone."""
        last = None
        for publish in batch:
            try:
                stored = await self._run_batch([publish])
            except Exception as error:
                self._undo()
                self._fail(publish, error)
                continue
            if stored is not None:
                await asyncio.wait([stored])
                last = stored
        return last

    def _undo(self) -> None:
        try:
            self._publications.undo(with_expired=True)
        except Exception:
            log.exception("the changes of a batch could not be undone")

    def _fail(self, publish: Publish, error: Exception) -> None:
        """Refuse a publish that could not be run."""
        if not isinstance(error, TocsinError):  # a bug, but the broker must not stand still
            log.error("a publish failed", exc_info=error)
            error = UnavailableError(f"internal error: {error!r}")
        self._metrics.refused += 1
        self._delivery.settle(publish, error)

    async def _run_job(self, job: Job) -> None:
        try:
            if not job.future.done():  # the caller may have gone
                result = await job.work()
                if not job.future.done():
                    job.future.set_result(result)
        except Exception as error:
            if not job.future.done():
                job.future.set_exception(error)
        finally:
            self._ingest.settled()

    async def listen(self, subscription: Subscription, session: Session, after: int = 0) -> None:
        """Deliver the notifications of a transient subscription to a session from now on.

        First come ENTER for each publication that matches now, or the retained events with numbers
        beyond `after` that match.
        """
        is_plain = subscription.transition_mask == 2  # LEAVE alone needs nothing that exists
        if is_plain or not self._publications.is_relevant_to(subscription.spec):
            subscription.listeners.append(session)
            return

        async def work() -> None:
            specs = [(subscription.no, subscription.spec)]
            existing = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._matcher.existing, specs
            )
            events = [event for _, event in existing if event.seq > after]
            events.sort(key=lambda event: event.seq)
            self._delivery.deliver_retained(subscription, session, events)

        await self._ingest.in_order(work)
