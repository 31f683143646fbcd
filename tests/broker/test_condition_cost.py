"""Costly conditions at a broker: refused with a reason, prepared once and beside publishes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import running
from tests.normalize.test_budget import absorbing

from tocsin.broker.config import Limits
from tocsin.language.expression import And
from tocsin.normalize import normal

WAIT = 1.0
"""Seconds that a publish may wait here; `python -m tests.broker.cost` measures against 50 ms."""


def product(n: int) -> str:
    """Return a condition whose disjunctions have nothing in common, on few attributes."""
    return " AND ".join(f"(a{i} < {j} OR b{j % 40} > {i})" for i in range(9) for j in range(n))


def pieces(n: int) -> str:
    return "%" + "a_" * n + "b%"


def test_a_condition_that_costs_too_much_is_refused_everywhere(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "old", "where": "q = 1"})
        wide = {"where": "t LIKE :p", "params": {"p": pieces(600)}}
        for answer in (
            http.post("/subscriptions", json={"id": "new", **wide}),
            http.patch("/subscriptions/old", json=wide),
            http.post("/conditions", json=wide),
        ):
            assert (answer.status_code, answer.json()["code"]) == (400, "condition-cost")
        assert http.post("/events", json={"q": 1}).status_code in (200, 202)
        assert http.get("/subscriptions/old").json()["where"] == "q = 1"
        assert http.get("/subscriptions/new").status_code == 404


def test_a_product_without_end_is_refused_soon(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        answer = http.post("/subscriptions", json={"where": product(50)})
        assert (answer.status_code, answer.json()["code"]) in [
            (429, "limit"),
            (400, "condition-cost"),
        ]


def test_many_attributes_are_refused(tmp_path: Path) -> None:
    limits = Limits(max_attributes=20)
    with running(tmp_path, limits=limits) as broker, broker.client() as http:
        many = " AND ".join(f"a{i} = 1" for i in range(21))
        answer = http.post("/subscriptions", json={"where": many})
        assert (answer.status_code, answer.json()["limit"]) == (429, "max_attributes")
        few = many.removesuffix(" AND a20 = 1")
        assert http.post("/subscriptions", json={"where": few}).status_code == 201


def test_subscriptions_that_come_together_share_a_budget(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        strings = ", ".join(f"'{i}'" for i in range(400))
        costly = f"a IN ({strings}) AND " + " AND ".join(f"a NOT LIKE '%x{i}%'" for i in range(100))
        assert http.post("/subscriptions", json={"where": costly}).status_code == 201
        together = [{"id": f"s{i}", "where": costly} for i in range(40)]
        answer = http.post("/subscriptions", json=together)
        assert (answer.status_code, answer.json()["code"]) == (400, "condition-cost")
        plain = [{"id": f"s{i}", "where": f"x = {i} OR y = {i}"} for i in range(200)]
        assert http.post("/subscriptions", json=plain).status_code == 201


@pytest.mark.parametrize("transitions", [False, True])
def test_a_condition_is_brought_into_normal_form_once_in_the_thread_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transitions: bool
) -> None:
    """Also where a network takes note of it, and where publications are searched for it."""
    threads: Counter[str] = Counter()
    form = normal._Normalizer.form

    def counted(self: Any, expression: Any, negated: bool) -> Any:
        if isinstance(expression, And) and len(expression.operands) >= 40:
            threads[threading.current_thread().name.partition("_")[0]] += 1
        return form(self, expression, negated)

    monkeypatch.setattr(normal._Normalizer, "form", counted)
    with running(tmp_path, name="one") as broker, broker.client() as http:
        http.put("/publications/k", json={"a": 1})
        body = {
            "id": "a",
            "where": absorbing(40),
            "durable": True,
            "notify": "both" if transitions else None,
        }
        assert http.post("/subscriptions", json=body).status_code == 201
        del threads["tocsin-trial"]  # where warnings are made
        assert threads == {"tocsin-change": 1}
        new = {"where": absorbing(40) + " AND c = 1"}
        assert http.patch("/subscriptions/a", json=new).status_code == 200
        del threads["tocsin-trial"]
        assert threads == {"tocsin-change": 3 if transitions else 2}  # what was matched before


def test_conditions_are_tried_out_one_after_the_other(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        registry = broker.server.broker.registry
        assert http.post("/conditions", json={"where": "a = 1"}).status_code == 200
        registry._n_trials = 16
        answer = http.post("/conditions", json={"where": "a = 1"})
        assert (answer.status_code, answer.json()["limit"]) == (429, "trials")
        registry._n_trials = 0
        assert http.post("/conditions", json={"where": "a = 1"}).status_code == 200


@pytest.mark.parametrize(
    "where",
    [
        absorbing(220),
        " AND ".join(
            [
                *(f"(p{i} = 1 OR q{i} = 1)" for i in range(6)),
                *(f"(x = 1 OR c{i} = 1)" for i in range(40)),
            ]
        ),
        "t IN (" + ", ".join(str(3 * i) for i in range(2_500)) + ")",
    ],
    ids=["absorbed", "doubled", "listed"],
)
def test_a_publish_does_not_wait_for_a_costly_condition(tmp_path: Path, where: str) -> None:
    """A condition without a budget takes many seconds, so that the bound fits busy machines."""
    with running(tmp_path, warm=True) as broker, broker.client() as http, broker.client() as other:
        http.post("/subscriptions", json={"where": "q = 1"})
        latencies: list[float] = []
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                began = time.perf_counter()
                other.post("/events", json={"q": 1})
                latencies.append(time.perf_counter() - began)

        thread = threading.Thread(target=publish)
        thread.start()
        worst = []
        try:
            for _ in range(6):
                latencies.clear()
                assert http.post("/subscriptions", json={"where": where}).status_code == 201
                time.sleep(0.1)
                worst.append(max(latencies))
        finally:
            is_over.set()
            thread.join()
    assert min(worst) < WAIT, worst


def test_a_publish_does_not_wait_for_an_event_with_a_hostile_text(tmp_path: Path) -> None:
    pattern = "%" + "_a" * 150 + "b%"
    with running(tmp_path, warm=True) as broker, broker.client() as http, broker.client() as other:
        for where in ("q = 1", f"t LIKE '{pattern}'"):
            assert http.post("/subscriptions", json={"where": where}).status_code == 201
        http.post("/events", json={"t": "a" * 400})
        worst = []
        for _ in range(6):
            thread = threading.Thread(
                target=other.post, args=("/events",), kwargs={"json": {"t": "a" * 100_000}}
            )
            thread.start()
            time.sleep(0.005)
            began = time.perf_counter()
            http.post("/events", json={"q": 1})
            worst.append(time.perf_counter() - began)
            thread.join()
    assert min(worst) < WAIT, worst
