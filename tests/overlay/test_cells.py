"""What travels as cells: nothing that is wanted is lost, and both ends mean the same."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.overlay.networks import SMALL, form, random_event, random_form

from tocsin.broker.overlay.cells import (
    Grid,
    choose,
    code,
    decode,
    grids_of_plain,
    grids_to_plain,
    rounded,
)
from tocsin.broker.overlay.coding import code_range
from tocsin.broker.overlay.grades import Grading
from tocsin.broker.overlay.messages import (
    Cells,
    Codebook,
    State,
    Sub,
    Types,
    Upd,
    of_plain,
    to_plain,
)
from tocsin.broker.overlay.rounding import Rounding
from tocsin.broker.overlay.router import Router
from tocsin.errors import ArgumentError, ProtocolError
from tocsin.normalize import domains
from tocsin.normalize.condition import on_domain
from tocsin.normalize.domains import Domain
from tocsin_lab.simulator import Simulator

ODD = [0, 0.5, -0.0, 5e-324, -5e-324, 1e-300, 2**53 + 1, 2**63 - 1, -(2**63), 1e300, -1.5e308]
NUMBERS = st.one_of(
    st.sampled_from(ODD),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-100, 100),
    st.floats(allow_nan=False),
    st.floats(-100, 100),
)
MOMENTS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def intervals(draw: st.DrawFn, domain: Domain) -> domains.Intervals:
    values = draw(st.lists(NUMBERS if domain is Domain.NUMBER else MOMENTS, min_size=2, max_size=6))
    cuts = [
        draw(st.sampled_from([domains.cut_before, domains.cut_after]))(domain, v) for v in values
    ]
    if draw(st.booleans()):
        cuts.append(domains.LOW[domain])
    if draw(st.booleans()):
        cuts.append(domains.HIGH[domain])
    cuts = sorted(set(cuts))
    return domains.unite(tuple(zip(cuts[::2], cuts[1::2], strict=False)), ())


@given(
    domain=st.sampled_from([Domain.NUMBER, Domain.TIMESTAMP]),
    levels=st.integers(1, 30),
    data=st.data(),
)
@settings(max_examples=300)
def test_rounded_ranges_hold_all_that_they_held_and_survive_the_link(
    domain: Domain, levels: int, data: st.DataObject
) -> None:
    keys = NUMBERS.filter(math.isfinite) if domain is Domain.NUMBER else MOMENTS
    low, high = sorted((domains.to_key(data.draw(keys)), domains.to_key(data.draw(keys))))
    grid = choose(domain, low, high, levels)
    if grid is None:
        return
    assert grid.fits(low, high)
    (grid,) = grids_of_plain(json.loads(json.dumps(grids_to_plain({"x": grid})))).values()
    held = on_domain(domain, data.draw(intervals(domain)))
    outer = rounded(held, grid)
    assert domains.contains(outer.intervals[domain], held.intervals[domain])
    assert rounded(outer, grid) == outer
    coded = code(outer, grid)
    if coded is not None:
        assert decode(coded, grid) == outer
    else:
        assert outer == held  # nothing at all, or single values


def test_cells_are_as_fine_as_was_asked() -> None:
    for low, high in ((0, 100), (99.5, 100), (-1e-9, 1e-9), (1_700_000_000, 1_700_000_060)):
        grid = choose(Domain.NUMBER, low, high, 8)
        assert grid is not None
        assert (high - low) / 512 <= 2.0**grid.exponent <= (high - low) / 256
    assert choose(Domain.NUMBER, 2**62, 2**62 + 1, 8) is None  # no float is so fine there
    assert choose(Domain.NUMBER, -1.5e308, 1.5e308, 8) is None


def values() -> list[Any]:
    at = dt.datetime(2026, 1, 1, 12)
    return [
        None, True, "a", math.nan, math.inf, -math.inf, -0.0, 0, 1, 2, 2.5, 10, 20, 21, 99.99, 100,
        2**53 + 1, 2**63 - 1, 10**30, at, at + dt.timedelta(seconds=90), [1],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "where",
    [
        "x > 2", "x >= 2 AND x < 99.99", "x <> 10", "x = 10", "x IN (1, 2.5)",
        "x BETWEEN 10 AND 20", "x < 0", "x <= 0", "x > 9007199254740992",
        "x BETWEEN 1 AND 2 OR x > 20", "x IS NULL",
        "x IS NOT NULL", "NOT (x BETWEEN 2 AND 20)", "x > 'A'", "x = TRUE", "x <= 1e30",
        "x >= TIMESTAMP '2026-01-01 12:00:30'", "x < TIMESTAMP '2026-01-01 12:00:00.000001'",
        "x > 2 OR x = 'a' OR x < TIMESTAMP '2026-01-01 12:01:00'",
    ],
)  # fmt: skip
def test_every_value_that_is_wanted_is_wanted_at_the_other_end(where: str) -> None:
    wanted = form(where)
    told, heard, rounding = Codebook(), Codebook(), Rounding(2)
    slots = rounding.slots(dict(enumerate(wanted)))
    for message in (Cells("T", rounding.take_new_grids()), Sub("T", slots)):
        arrived = of_plain(json.loads(json.dumps(to_plain(message, told))), heard)
        assert arrived == message
    assert told.n_coded == heard.n_coded
    assert isinstance(arrived, Sub)
    for value in values():
        event = {} if value is None else {"x": value}
        if wanted.holds(event):
            assert any(
                all(held.holds(event.get(name)) for name, held in conjunction.items())
                for conjunction in arrived.slots.values()
            ), value


@given(seed=st.integers(0, 1 << 30), levels=st.integers(1, 6))
@settings(max_examples=40)
def test_changes_of_rounded_slots_lead_to_the_same_at_both_ends(seed: int, levels: int) -> None:
    rng = random.Random(seed)
    grading = Grading(rng.choice(["lub", "disjunction", "exact"]), bound=3)
    here, there = (Router(name, grading, levels=levels) for name in ("here", "there"))
    told, heard = Codebook(), Codebook()
    here.link_up("there", levels)
    there.link_up("here", levels)
    there.advertise("T")
    for _ in range(3):  # who is linked, what is published
        for a, b in ((here, there), (there, here)):
            for _, message in a.take():
                b.receive(a.name, message)
    forms: dict[int, Any] = {}
    for _ in range(25):
        member = rng.randrange(5)
        if member in forms and rng.random() < 0.3:
            del forms[member]
            here.unsubscribe(member)
        else:
            forms[member] = random_form(rng)
            here.subscribe(member, "T", forms[member])
        for _, message in here.take():
            plain = json.loads(json.dumps(to_plain(message, told)))
            there.receive("here", of_plain(plain, heard))
        want = there.links["here"].interests.get("T")
        assert (want.slots if want else {}) == here.links["there"].outgoing["T"].sent
        for event in (random_event(rng) for _ in range(5)):
            if any(each.holds(event) for each in forms.values()):
                assert [peer for peer, _ in there.route("T", event)] == ["here"]


def moving(levels: int, grade: str = "lub") -> Simulator:
    network = Simulator(4, Grading(grade), levels=levels)
    network.add("edge", "core", "feed")
    network.link("edge", "core")
    network.link("core", "feed")
    network.subscribe("edge", "wide", form("price BETWEEN 0 AND 1000 AND firm = 'IBM'"))
    network.subscribe("edge", "moving", form("price BETWEEN 900 AND 1010 AND firm = 'IBM'"))
    network.publish("feed", {"price": -1, "firm": "IBM"})
    network.run()
    for i in range(100):
        moved = form("price BETWEEN :a AND :b AND firm = 'IBM'", a=900 + i / 10, b=1010 + i / 50)
        network.subscribe("edge", "moving", moved)
        network.run()
    return network


@pytest.mark.parametrize("grade", ["lub", "exact"])
def test_a_bound_that_moves_within_its_cell_costs_nothing(grade: str) -> None:
    plain, coded = moving(0, grade), moving(4, grade)
    assert plain.traffic.messages["UPD"] >= 198
    assert coded.traffic.messages["UPD"] < 20
    assert coded.traffic.messages["CELLS"] == 2  # one a link
    happening = coded.publish("feed", {"price": 1011.5, "firm": "IBM"})
    coded.run()
    assert coded.got(happening) == {"moving": 1}


def test_bounds_that_outgrow_their_cells_get_others() -> None:
    network = moving(4)
    for price in (1e4, 1e9, 1e18, 4e307, 1e-3):
        network.subscribe(
            "edge", "moving", form("price BETWEEN 0 AND :p AND firm = 'IBM'", p=price)
        )
        network.run()
        for value in (price, price * 2):
            happening = network.publish("feed", {"price": value, "firm": "IBM"})
            network.run()
            assert network.got(happening) == dict.fromkeys(network.matching(happening), 1)
    assert network.traffic.messages["CELLS"] > 6
    assert network.spurious <= 2  # the first event, and at most one more


def test_a_bound_far_from_many_others_is_rounded_no_more_than_its_distance_asks() -> None:
    rounding, where = Rounding(4), "x > :a AND x < :b"
    slots = {i: form(where, a=i + 0.3, b=i + 1.6).conjunctions[0] for i in range(20)}
    rounding.slots(slots)
    slots = slots | {20: form(where, a=1e6, b=2e6).conjunctions[0]}
    slots |= {21: form(where, a=7.3, b=8.6).conjunctions[0]}
    ((low, high),) = rounding.slots(slots)[20]["x"].intervals[Domain.NUMBER]
    assert 9e5 < low[0] < high[0] < 2.1e6
    coarse = rounding.slots(slots)[21]["x"]
    assert coarse.holds(100)
    del slots[20]  # and when it is gone, the others become fine again
    for i in range(30):
        slots = slots | {22: form(where, a=i, b=i + 0.5).conjunctions[0]}
        found = rounding.slots(slots)
    assert not found[21]["x"].holds(10)
    assert found[21]["x"].holds(8.5)


@pytest.mark.parametrize("levels", [{"edge": 0, "core": 4}, {"edge": 4, "core": 0}])
def test_one_end_without_levels_is_told_in_plain_form(levels: dict[str, int]) -> None:
    network = Simulator(5, SMALL, levels=levels)
    network.add("edge", "core")
    network.link("edge", "core")
    network.subscribe("edge", "s", form("price BETWEEN 10.3 AND 20.7"))
    network.publish("core", {"price": 0})
    network.run()
    assert network.traffic.messages["SUB"] > 0
    assert network.traffic.messages["CELLS"] == 0
    (held,) = network.brokers["core"].router.links["edge"].interests[None].slots.values()
    assert held == form("price BETWEEN 10.3 AND 20.7").conjunctions[0]


GRID = ["CELLS", "T", {"x": [0, 0, 0, 4]}]


@pytest.mark.parametrize(
    "grids",
    [
        None, [], {"x": 1}, {"x": [0, 0, 0]}, {"x": [0, 0, 0, 0]}, {"x": [0, 0, 0, 31]},
        {"x": [1, 0, 0, 4]}, {"x": [3, 0, -1, 4]}, {"x": [0, 2**53, 0, 4]}, {"x": [0, 0, 960, 4]},
        {"x": [0, 0, -1000.0, 4]}, {"x": [True, 0, 0, 4]}, {"x": [0, "0", 0, 4]},
        {"x": [0, 0, -1001, 4]}, {"x": [0, -(2**53), 0, 4]},
    ],
)  # fmt: skip
def test_cells_that_are_none_are_refused(grids: object) -> None:
    with pytest.raises(ProtocolError):
        of_plain(["CELLS", "T", grids])


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "A", "Cw", "////", "CBAA",  # no base64, no length, cut off
        "CAA", "Cxfg",  # half a pair, finer than the grid
        "CQuA", "CgSA",  # beyond the level, at either end
        "é",
    ],
)  # fmt: skip
def test_corrupt_codes_are_refused(text: str) -> None:
    heard = Codebook()
    of_plain(GRID, heard)
    with pytest.raises(ProtocolError, match="coded"):
        of_plain(["SUB", "T", [[0, {"x": text}]], 0], heard)


def test_codes_of_moments_that_never_are_are_refused() -> None:
    heard = Codebook()
    of_plain(["CELLS", "T", {"x": [3, 2**52, 900, 4]}], heard)
    coded = base64.b64encode(code_range(3, 4, 4)).decode()
    with pytest.raises(ProtocolError, match="holds nothing"):
        of_plain(["SUB", "T", [[0, {"x": coded.rstrip("=")}]], 0], heard)


def test_codes_without_cells_are_refused() -> None:
    coded = code(on_domain(Domain.NUMBER, (((2, 0), (5, 0)),)), Grid(0, 0, 0, 4))
    heard = Codebook()
    of_plain(GRID, heard)
    assert of_plain(["SUB", "T", [[0, {"x": coded}]], 0], heard) == Sub(
        "T", {0: {"x": on_domain(Domain.NUMBER, (((2, 0), (5, 0)),))}}
    )
    for topic, name in (("U", "x"), ("T", "y")):
        with pytest.raises(ProtocolError, match="has no cells"):
            of_plain(["SUB", topic, [[0, {name: coded}]], 0], heard)
    with pytest.raises(ProtocolError, match="has no cells"):
        of_plain(["UPD", "T", {"changed": [[0, {"put": {"y": coded}}]]}, 0], heard)


@given(st.binary(max_size=40))
@settings(max_examples=300)
def test_no_bytes_are_more_than_refused(data: bytes) -> None:
    for grid in (Grid(0, -8, -3, 4), Grid(3, 2**52, 900, 30), Grid(0, -(2**52), -999, 30)):
        text = base64.b64encode(data).rstrip(b"=").decode()
        try:
            found = decode(text, grid)
        except ProtocolError:
            continue
        again = code(found, grid)
        assert again is not None
        assert decode(again, grid) == found


def test_an_update_names_cells_only_when_they_are_new() -> None:
    router = Router("edge", levels=4)
    router.link_up("core", 4)
    router.take()
    router.receive("core", State("core", 1, ("edge",)))
    router.receive("core", Types(("T",)))
    router.subscribe(1, "T", form("price > 5 AND price < 9"))
    kinds = [type(message) for _, message in router.take() if not isinstance(message, State)]
    assert kinds[-2:] == [Cells, Sub]
    router.subscribe(1, "T", form("price > 5.5 AND price < 9"))
    (message,) = [message for _, message in router.take()]
    assert isinstance(message, Upd)


@pytest.mark.parametrize("levels", [-1, 31])
def test_impossible_levels_are_refused(levels: int) -> None:
    with pytest.raises(ArgumentError, match="levels"):
        Router("a", levels=levels)
