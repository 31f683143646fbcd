from __future__ import annotations

from tocsin.model import EventType
from tocsin_lab.bench.probes import probes

Quote = EventType("Quote", firm=str, price=float, volume=int)
ROWS: list[dict[str, object]] = [
    {"attribute": "firm", "op": "=", "number": None, "text": "IBM"},
    {"attribute": "price", "op": ">=", "number": 1.0, "text": None},
    {"attribute": "volume", "op": ">", "number": 5.0, "text": None},
]


def test_the_first_event_satisfies_every_predicate():
    assert next(probes(ROWS, Quote)) == {"firm": "IBM", "price": 1.0, "volume": 6}


def test_the_others_differ_from_it_in_one_attribute():
    first, *others = probes(ROWS, Quote)
    for event in others:
        assert sum(event.get(name) != value for name, value in first.items()) <= 1
    for absent in first:
        assert any(absent not in event for event in others)
    assert {**first, "volume": 5} in others
    assert {**first, "price": 0.9999999999999999} in others
    assert {**first, "firm": "IBM!"} in others
