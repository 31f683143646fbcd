"""Server-Sent Events, CloudEvents, filters, JSON, events, outboxes."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

from tocsin.broker.events import from_cloudevent, from_json, from_stomp, to_end
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import cloudevents, json_text, sse
from tocsin.broker.protocol.filters import to_condition
from tocsin.errors import EventError, LimitError, SubscriptionError
from tocsin.matcher import Matcher
from tocsin.model import EventType

STREAM = (
    b'\xef\xbb\xbf: hi\n\nid: 7\nevent: notification\ndata: {"a":1}\n\n'
    b"data: one\r\ndata:two\r\n\r\ndata\rid: 9\r\r"
)
MESSAGES = [
    sse.Message("notification", '{"a":1}', "7"),
    sse.Message("message", "one\ntwo", "7"),
    sse.Message("message", "", "9"),
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_stream_is_read_in_pieces_of_any_size(step: int) -> None:
    parser = sse.Parser()
    raw = STREAM + b": end\n"
    found = [m for at in range(0, len(raw), step) for m in parser.feed(raw[at : at + step])]
    assert found == MESSAGES


def test_a_message_that_is_cut_off_is_not_given() -> None:
    assert sse.Parser().feed(b"data: half") == []
    assert sse.Parser().feed(b"data: half\n") == []
    with pytest.raises(LimitError):
        sse.Parser(max_message=10).feed(b"data: " + b"x" * 20)


def test_what_the_broker_writes_is_read_again() -> None:
    raw = sse.encode("notification", b'{"a":1}', 5)
    assert sse.Parser().feed(raw) == [sse.Message("notification", '{"a":1}', "5")]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"NaN", "not JSON"),
        (b'{"a":1e999}', "beyond the largest"),
        (b"99999999999999999999", "beyond 64 bits"),
        (b"9" * 5000, "beyond 64 bits"),
        (b'"\\ud800"', "Unicode"),
        (b"\xff", "UTF-8|not JSON"),
        (b"[" * 100_000, "deep|not JSON"),
    ],
)
def test_json_that_would_lose_something_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        json_text.read(raw)


def test_json_is_exact() -> None:
    assert json_text.read(b"[9223372036854775807, 9007199254740993]") == [2**63 - 1, 2**53 + 1]
    with pytest.raises(EventError, match="64 bits"):
        from_json({"a": 2**63}, None, None)


CONTEXT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def test_cloudevents_are_the_same_in_every_mode() -> None:
    structured = json.dumps({**CONTEXT, "data": {"price": 5}}).encode()
    headers = {f"ce-{k}": v for k, v in CONTEXT.items()}
    one = cloudevents.read("application/cloudevents+json; charset=utf-8", {}, structured)
    batch = cloudevents.read(
        "application/cloudevents-batch+json", {}, b"[" + structured + b"," + structured + b"]"
    )
    binary = cloudevents.read("application/json", headers, b'{"price":5}')
    for found in (*one, *batch, *binary):
        event = from_cloudevent(found, None)
        assert event.type == "t"
        assert event.attributes["price"] == 5
        assert event.attributes["ce.source"] == "/s"
        assert event.body == b'{"price":5}'


def test_data_of_other_kinds_is_kept_as_it_is() -> None:
    encoded = base64.b64encode(b"\0\1").decode()
    (found,) = cloudevents.read(
        cloudevents.STRUCTURED, {}, json.dumps({**CONTEXT, "data_base64": encoded}).encode()
    )
    assert found.data == b"\0\1"
    text = {**CONTEXT, "datacontenttype": "text/plain", "data": "hi"}
    (found,) = cloudevents.read(cloudevents.STRUCTURED, {}, json.dumps(text).encode())
    assert found.data == b"hi"
    headers = cloudevents.to_headers({**CONTEXT, "subject": "ä %"})
    assert headers["ce-subject"] == "%C3%A4 %25"


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"specversion": "0.3"},
        {"Bad": "x"},
        {"x": []},
        {"data": 1, "data_base64": "AA=="},
        {"data_base64": "!"},
    ],
)
def test_a_cloudevent_that_is_none_is_refused(change: dict[str, Any]) -> None:
    raw = json.dumps({**CONTEXT, **change}).encode()
    with pytest.raises(EventError):
        cloudevents.read(cloudevents.STRUCTURED, {}, raw)


EVENTS = [
    {"ce.type": "com.a.b", "ce.source": "/x", "ce.subject": "50%_off!"},
    {"ce.type": "com.a", "ce.source": "/y"},
    {"ce.type": "org", "ce.source": "/x", "ce.subject": ""},
]
FILTERS: list[tuple[Any, list[int]]] = [
    ([{"exact": {"type": "org"}}], [2]),
    ([{"prefix": {"type": "com."}}], [0, 1]),
    ([{"suffix": {"type": ".b"}}], [0]),
    ([{"prefix": {"subject": "50%_"}}], [0]),
    ([{"suffix": {"subject": "_off!"}}], [0]),
    ([{"prefix": {"subject": "50%%"}}], []),
    ([{"exact": {"type": "org", "source": "/x"}}], [2]),
    ([{"any": [{"exact": {"type": "org"}}, {"suffix": {"type": ".a"}}]}], [1, 2]),
    ([{"all": [{"prefix": {"type": "com"}}, {"exact": {"source": "/y"}}]}], [1]),
    ([{"not": {"exact": {"source": "/x"}}}], [1]),
    # An attribute that is not there: the filter is false, so not of it is true.
    ([{"not": {"exact": {"subject": "z"}}}], [0, 1, 2]),
    ([{"exact": {"type": "org"}}, {"exact": {"source": "/y"}}], []),
    ([{"sql": "type = 'org' XOR source = '/x'"}], [0]),
    # An error makes the filter false, so not of it is true.
    ([{"sql": "subject = 'z'"}], []),
    ([{"not": {"sql": "LENGTH(subject) > 5"}}], [1, 2]),
    ([{"not": {"any": [{"sql": "type = 'org'"}, {"sql": "NOT (type = 'org')"}]}}], []),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_filters_mean_what_the_subscriptions_api_says(filters: Any, expected: list[int]) -> None:
    matcher = Matcher(engine="oracle")
    matcher.subscribe("it", to_condition({"filters": filters}))
    assert [at for at, event in enumerate(EVENTS) if matcher.match(event)] == expected


def test_types_and_sources_are_filters_too() -> None:
    matcher = Matcher(engine="oracle")
    matcher.subscribe("it", to_condition({"types": ["org", "com.a"], "source": "/x"}))
    assert [at for at, event in enumerate(EVENTS) if matcher.match(event)] == [2]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        [],
        [{}],
        [{"exact": {}}],
        [{"exact": {"type": 1}}],
        [{"exact": {"type": ""}}],
        [{"exact": {'a"; DROP': "x"}}],
        [{"sql": 1}],
        [{"sql": "type ="}],
        [{"exact": {"a": "b"}, "not": {}}],
    ],
)
def test_a_filter_that_is_none_is_refused(filters: Any) -> None:
    with pytest.raises(SubscriptionError):
        to_condition({"filters": filters})


def test_filters_nested_too_deep_are_refused() -> None:
    deep: Any = {"exact": {"type": "x"}}
    for _ in range(30):
        deep = {"not": deep}
    with pytest.raises(LimitError):
        to_condition({"filters": [deep]})


def test_headers_and_fields_are_attributes_and_fields_win() -> None:
    event = from_stomp({"price": "10", "firm": "IBM"}, b'{"firm":"SAP"}', "", None, None)
    assert event.attributes == {"price": "10", "firm": "SAP"}
    assert event.numbers == {"price": 10}
    assert json.loads(event.text) == {"price": "10", "firm": "SAP"}
    typed = from_stomp({"price": "10"}, b"", "", "T", EventType("T", price=float, on=bool))
    assert typed.attributes == {"price": 10}
    assert typed.numbers is None


def test_declared_timestamps_are_read_from_texts() -> None:
    moments = EventType("T", {"at": "timestamp"})
    event = from_json({"at": "2026-07-01T12:00:00+02:00"}, "T", moments)
    assert event.attributes["at"].hour == 10
    assert json.loads(event.text) == {"at": "2026-07-01T12:00:00+02:00"}
    with pytest.raises(EventError, match="row 3, attribute 'at': no moment"):
        from_json({"at": "noon"}, "T", moments, row=3)
    assert to_end("1970-01-01T00:00:01Z") == 1_000_000


def test_an_outbox_drops_the_oldest_that_may_be_dropped() -> None:
    outbox = Outbox(3, 100)
    assert [outbox.put(b"%d" % at, at % 2 == 0) for at in range(6)] == [0, 0, 0, 1, 0, 1]
    assert outbox.take() == [b"1", b"3", b"4", b"5"]
    assert outbox.n_dropped == 2
    assert len(outbox) == 0
    assert outbox.n_bytes == 0


def test_an_outbox_is_bounded_by_bytes_too() -> None:
    outbox = Outbox(100, 10)
    assert outbox.put(b"x" * 8, True) == 0
    assert outbox.put(b"y" * 20, True) == 1
    assert not outbox.has_capacity
    assert outbox.take() == [b"y" * 20]
    assert outbox.has_capacity


def test_a_text_takes_no_more_memory_than_it_has_characters() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [json_text.write({"n": n}) for n in range(1000)]
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 200 * len(kept)


def test_what_is_nested_too_deep_is_refused() -> None:
    deep = json_text.read(b'{"a":' * 300 + b"1" + b"}" * 300)
    with pytest.raises(EventError, match="nested too deep"):
        json_text.write(deep)
    with pytest.raises(EventError, match="nested too deep"):
        from_json(deep, None, None, raw=b'{"a":' * 300 + b"1" + b"}" * 300)
