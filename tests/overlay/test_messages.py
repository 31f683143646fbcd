"""What brokers tell each other: differences are exact, and what is ill-formed is refused."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.overlay.networks import form, random_event, random_form

from tocsin.broker.overlay.forms import change_of_plain, change_to_plain, difference, widened
from tocsin.broker.overlay.grades import Grading, new_aggregate
from tocsin.broker.overlay.messages import Standby, State, Sub, Types, Upd, of_plain, to_plain
from tocsin.broker.overlay.probes import Probe
from tocsin.errors import ArgumentError, ProtocolError


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_a_difference_leads_from_one_set_of_slots_to_the_other(seed: int) -> None:
    rng = random.Random(seed)
    grade = rng.choice(["lub", "disjunction", "exact"])
    gathered = new_aggregate(Grading(grade, bound=2, max_pieces=2))
    members: dict[int, object] = {}
    before = gathered.slots()
    for _ in range(12):
        member = rng.randrange(6)
        if member in members and rng.random() < 0.4:
            gathered.drop(member)
            del members[member]
        else:
            members[member] = widened(random_form(rng))
            gathered.put(member, members[member])  # type: ignore[arg-type]
        after = gathered.slots()
        change = difference(before, after)
        wire = json.loads(json.dumps(change_to_plain(change)))
        assert change_of_plain(wire).apply(before) == after
        before = after
        probes = [Probe(held) for held in after.values()]
        for event in (random_event(rng) for _ in range(5)):
            wanted = any(each.holds(event) for each in members.values())  # type: ignore[attr-defined]
            passes = any(probe.holds(event) for probe in probes)
            assert passes >= wanted
            assert passes == wanted or grade != "exact"
            assert passes == any(
                probe.may_hold(lambda name, event=event: [event.get(name)])  # type: ignore[misc]
                for probe in probes
            )


def test_messages_survive_json() -> None:
    slots = dict(enumerate(form("firm LIKE 'I%' OR price > 3.5 AND at IS NULL")))
    after = {0: slots[0], 7: dict(form("NOT (firm = 'HP')").conjunctions[0])}
    for message in (
        State("a", 3, ("b",)),
        Standby(),
        Types((None, "Quote")),
        Sub("Quote", slots, True),
        Upd(None, difference(slots, after), False),
    ):
        assert of_plain(json.loads(json.dumps(to_plain(message)))) == message


@pytest.mark.parametrize(
    "given",
    [
        None, [], [[]], ["NO"], ["ADV"], ["ADV", 1], ["SUB", "T", {}, 1],
        ["SUB", "T", [[-1, {}]], 1],
        ["SUB", "T", [[0, {"x": {"numbers": [[[3, 0], [2, 0]]]}}]], 0], ["STATE", "a", "1", []],
        ["UPD", "T", {"other": 1}, 0], ["UPD", "T", {"changed": [[0, {"strings": {"x": []}}]]}, 0],
        ["TYPES", "all"], ["STANDBY", 1], ["UPD", "T", {"gone": 1}, 0],
    ],
)  # fmt: skip
def test_what_is_ill_formed_is_refused(given: object) -> None:
    with pytest.raises(ProtocolError):
        of_plain(given)


def test_a_change_of_what_is_not_there_is_refused() -> None:
    wires: list[object] = [
        {"gone": [3]},
        {"changed": [[0, {"free": ["x"]}]]},
        {"changed": [[1, {"strings": {"firm": [[[["A", 0], ["A", 1]]], []]}}]]},
    ]
    for wire in wires:
        slots = {1: dict(form("firm = 'IBM'").conjunctions[0])}
        with pytest.raises(ProtocolError, match="does not fit"):
            change_of_plain(wire).apply(slots)


def test_a_bounded_disjunction_keeps_its_bound() -> None:
    gathered = new_aggregate(Grading("disjunction", bound=4))
    for i in range(100):
        gathered.put(i, form("firm = :f AND price > :p", f=f"F{i}", p=i))
    assert len(gathered.slots()) <= 4
    for i in range(97):
        gathered.drop(i)
    assert len(gathered.slots()) == 3


def test_unknown_grades_are_refused() -> None:
    with pytest.raises(ArgumentError, match="a grade is"):
        Grading("finest")
    with pytest.raises(ArgumentError, match="at least 1"):
        Grading("lub", bound=0)
