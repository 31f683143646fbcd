"""Events as lines on a link: what comes out is what went in."""

from __future__ import annotations

import json

from tocsin.broker.events import Event, from_cloudevent, from_json, from_stomp
from tocsin.broker.overlay.event_lines import of_line, to_line
from tocsin.broker.protocol.cloudevents import CloudEvent
from tocsin.broker.terms import retraction, to_publication
from tocsin.model import EventType


def carried(event: Event, types: dict[str, EventType] | None = None) -> Event:
    """Return an event as it comes out at the other end of a link."""
    event.seq = 7
    found = of_line(json.loads(to_line(event, 3, "here", True)), types or {})
    assert found.origin == ("here", 7)
    assert found.__class__ is event.__class__
    for name in ("type", "attributes", "text", "headers", "body", "numbers", "valid_until"):
        assert getattr(found, name) == getattr(event, name), name
    assert (found.key, found.gone) == (event.key, event.gone)
    return found


def cloud_event(**context: str) -> Event:
    needed = {"specversion": "1.0", "id": "1", "source": "/s", "type": "C"}
    return from_cloudevent(CloudEvent({**needed, **context}, b'{"x":1}'), None)


def test_a_cloudevent_keeps_its_end_on_a_link() -> None:
    event = cloud_event()
    event.valid_until = 5_000_000  # by a ttl, say
    assert carried(event).valid_until == 5_000_000
    assert carried(cloud_event()).valid_until is None
    event = cloud_event(expirytime="2030-01-01T00:00:00Z")
    event.valid_until = 5_000_000
    assert carried(to_publication(event, "k", None)).valid_until == 5_000_000


def test_headers_of_a_stomp_publication_stay_numbers_on_a_link() -> None:
    headers = {"speed": "30", "line": "7a", "share": "0.5"}
    plain = from_stomp(headers, b"", "", "S", None)
    assert carried(plain).numbers == {"speed": 30, "share": 0.5}
    found = carried(to_publication(from_stomp(headers, b"", "", "S", None, 9), "bus", None))
    assert found.attributes == {"speed": 30, "line": "7a", "share": 0.5}
    declared = EventType("S", speed=str, line=str, share=float)
    found = carried(
        to_publication(from_stomp(headers, b"", "", "S", declared), "bus", declared),
        {"S": declared},
    )
    assert found.attributes == {"speed": "30", "line": "7a", "share": 0.5}


def test_publications_and_their_ends_cross_a_link() -> None:
    assert carried(to_publication(from_json({"a": [1]}, "J", None), 5, None)).key == "5"
    assert carried(retraction("J", "5")).gone == "retracted"


def test_what_is_past_is_marked_on_a_link() -> None:
    event = to_publication(from_json({"a": 1}, "J", None), "k", None)
    for is_past in (False, True):
        line = to_line(event, 1, "here", True, is_past=is_past)
        assert of_line(json.loads(line), {}).is_past is is_past
    # Who does not watch any more gets nothing but a number to acknowledge.
    found = of_line(json.loads(to_line(event, 1, "here", False, is_past=True)), {})
    assert (found.key, found.valid_until) == (None, 0)
