"""OpenTelemetry spans of a broker, collected by the SDK in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, Running, running, wait_for

pytestmark = pytest.mark.slow
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def traced(tmp_path: Path, exporter: InMemorySpanExporter) -> Iterator[Running]:
    exporter.clear()
    allowed = ("127.0.0.0/8", "::1/128")
    with running(tmp_path, telemetry=True, webhook_allow=allowed, webhook_attempts=1) as found:
        yield found


def named(exporter: InMemorySpanExporter, name: str, n: int = 1) -> list[ReadableSpan]:
    """Return the spans of a name, when there are so many."""
    wait_for(lambda: sum(s.name == name for s in exporter.get_finished_spans()) >= n)
    return [span for span in exporter.get_finished_spans() if span.name == name]


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def test_a_publish_is_a_part_of_the_publishers_trace(
    traced: Running, exporter: InMemorySpanExporter
) -> None:
    with traced.client() as http:
        http.post("/subscriptions", json={"where": "a = 1"})
        http.post("/events", json=[{"a": 1}, {"a": 2}], headers={"traceparent": PARENT})
        (publish,) = named(exporter, "tocsin.publish")
        assert trace_id(publish) == PARENT.split("-")[1]
        assert publish.parent is not None
        assert f"{publish.parent.span_id:016x}" == PARENT.split("-")[2]
        assert publish.attributes == {"tocsin.events": 2, "tocsin.matches": 1}
        (batch,) = named(exporter, "tocsin.batch")
        assert batch.parent is None
        assert [link.context for link in batch.links] == [publish.context]
        exporter.clear()
        http.post("/events", json={"a": 1})
        assert trace_id(named(exporter, "tocsin.publish")[0]) != PARENT.split("-")[1]


def test_stomp_frames_carry_a_trace_too(traced: Running, exporter: InMemorySpanExporter) -> None:
    with RawStomp(traced.stomp_port) as stomp:
        stomp.call("SEND", {"destination": "/events", "traceparent": PARENT}, b"{}")
        stomp.call("SEND", {"destination": "/events"}, b"{}")
    first, second = named(exporter, "tocsin.publish", 2)
    assert trace_id(first) == PARENT.split("-")[1] != trace_id(second)


def test_a_publish_that_is_refused_is_an_error_in_its_span(
    traced: Running, exporter: InMemorySpanExporter
) -> None:
    with traced.client() as http:
        big = "x" * (traced.config.limits.max_body - 100)
        assert http.post("/events?key=a", json={"a": big}).status_code == 200
        exporter.clear()
        assert http.post("/events?key=a&merge=true", json={"b": big}).status_code == 413
    (publish,) = named(exporter, "tocsin.publish")
    assert not publish.status.is_ok
    assert publish.status.description is not None
    assert "a publication has at most" in publish.status.description


def test_a_webhooks_receiver_gets_the_trace(
    traced: Running, exporter: InMemorySpanExporter
) -> None:
    with hooked() as hook, traced.client() as http:
        wanted = {"id": "w", "where": "w = 1", "webhook": {"url": hook.url}}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        http.post("/events", json={"w": 1})
        (span,) = named(exporter, "tocsin.webhook")
        ((headers, _),) = hook.got
        assert headers["traceparent"].split("-")[1] == trace_id(span)


def test_no_spans_are_made_unless_they_are_asked_for(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    exporter.clear()
    with running(tmp_path, stomp="") as found, found.client() as http:
        http.post("/events", json={"a": 1}, headers={"traceparent": PARENT})
    assert exporter.get_finished_spans() == ()
