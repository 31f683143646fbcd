"""OpenTelemetry spans of publishes, batches and webhooks.

Enters: work of the broker, and the trace context of a publisher (`traceparent`). Leaves: spans for
the exporter of the process. Off unless the setting `telemetry` is on, which needs
`opentelemetry-api`. When it is off, nothing is imported, and each place costs one comparison with
None.

- `tocsin.publish`: from when a publish is taken until it is settled; a child of the publisher's.
- `tocsin.batch`: a batch is matched and fanned out; linked with its publishes.
- `tocsin.webhook`: one request; the receiver gets its context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tocsin.errors import ArgumentError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer

_MOST_LINKS = 128


class Telemetry:
    """Makes spans."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise ArgumentError(
                'telemetry needs OpenTelemetry: pip install "tocsin[telemetry]"'
            ) from None
        self._tracer: Tracer = trace.get_tracer("tocsin")

    @contextmanager
    def of_sender(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Make publishes in this block a part of the sender's trace."""
        from opentelemetry import context, propagate

        if "traceparent" not in headers:
            yield
            return
        token = context.attach(propagate.extract(headers))
        try:
            yield
        finally:
            context.detach(token)

    def publish(self, n_events: int) -> Span:
        """Begin the span of a publish."""
        return self._tracer.start_span("tocsin.publish", attributes={"tocsin.events": n_events})

    @contextmanager
    def batch(self, n_events: int, publishes: Sequence[Span | None]) -> Iterator[None]:
        """Span the matching and the fan-out of a batch."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link

        spans = [each for each in publishes if each is not None]
        with self._tracer.start_as_current_span(
            "tocsin.batch",
            context=Context(),
            links=[Link(each.get_span_context()) for each in spans[:_MOST_LINKS]],
            attributes={"tocsin.events": n_events, "tocsin.publishes": len(publishes)},
        ):
            yield

    @contextmanager
    def webhook(self, url: str, headers: dict[str, str]) -> Iterator[Span]:
        """Span a request, and give its context to the receiver."""
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        with self._tracer.start_as_current_span(
            "tocsin.webhook", kind=SpanKind.CLIENT, attributes={"url.full": url}
        ) as span:
            propagate.inject(headers)
            yield span


def settle(span: Span | None, failure: Exception | None, attributes: Mapping[str, Any]) -> None:
    """End the span of a publish."""
    if span is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.set_attributes(dict(attributes))
    if failure is not None:
        span.set_status(Status(StatusCode.ERROR, str(failure)[:200]))
    span.end()


def of_sender(
    telemetry: Telemetry | None, headers: Mapping[str, str]
) -> AbstractContextManager[None]:
    """Make publishes in this block a part of the sender's trace, if telemetry is on."""
    return nullcontext() if telemetry is None else telemetry.of_sender(headers)
