"""HTTP: publish, subscriptions, streams, acknowledgements, errors, figures."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.broker.servers import Running, read_messages, wait_for


def subscribe(http: httpx.Client, id: str, where: str, **more: Any) -> dict[str, Any]:
    answer = http.post("/subscriptions", json={"id": id, "where": where, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_durable_subscriber_gets_what_was_published_while_it_was_away(http: httpx.Client) -> None:
    subscribe(http, "away", "a1 > 5", durable=True)
    answer = http.post("/events", json=[{"a1": 6, "n": 1}, {"a1": 5}, {"a1": 7, "n": 2}])
    assert answer.json()["accepted"] == 3
    assert answer.json()["matches"] == 2
    with http.stream("GET", "/subscriptions/away/stream") as stream:
        found = read_messages(stream, 2)
    assert [each["event"]["n"] for each in found] == [1, 2]
    assert not any("redelivered" in each for each in found)
    with http.stream("GET", "/subscriptions/away/stream") as stream:
        again = read_messages(stream, 2)
    assert [each["id"] for each in again] == [each["id"] for each in found]
    assert all(each["redelivered"] for each in again)
    acked = http.post("/subscriptions/away/ack", json={"ids": [found[0]["id"]]})
    assert acked.json() == {"acknowledged": 1}
    with http.stream("GET", "/subscriptions/away/stream") as stream:
        assert [each["event"]["n"] for each in read_messages(stream, 1)] == [2]
    assert http.get("/subscriptions/away").json()["pending"] == 1


def test_the_body_of_an_answer_does_not_wait_for_the_acknowledgement_of_its_head(
    broker: Running,
) -> None:
    port = int(broker.url.rpartition(":")[2])
    request = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    took = []
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(20):
            began, answer = time.perf_counter(), b""
            client.sendall(request)
            while not answer.endswith(b"\r\n\r\nok\n"):
                answer += client.recv(4096)
            took.append(time.perf_counter() - began)
    assert min(took) < 0.03


def test_the_last_event_id_acknowledges_and_resumes(http: httpx.Client) -> None:
    subscribe(http, "resume", "a2 = 1", durable=True)
    for n in range(4):
        http.post("/events", json={"a2": 1, "n": n})
    with http.stream("GET", "/subscriptions/resume/stream") as stream:
        first = read_messages(stream, 2)
    last = {"last-event-id": str(first[-1]["id"])}
    with http.stream("GET", "/subscriptions/resume/stream", headers=last) as stream:
        assert [each["event"]["n"] for each in read_messages(stream, 2)] == [2, 3]
    assert http.get("/subscriptions/resume").json()["pending"] == 2


def test_a_transient_subscriber_gets_what_comes_while_it_listens(
    http: httpx.Client, broker: Running
) -> None:
    subscribe(http, "live", "a3 = 1")
    http.post("/events", json={"a3": 1, "n": 0})
    with http.stream("GET", "/subscriptions/live/stream") as stream:
        wait_for(lambda: broker.broker.subscriptions.by_id["live"].listeners)
        http.post("/events", json={"a3": 1, "n": 1})
        assert [each["event"]["n"] for each in read_messages(stream, 1)] == [1]
    wait_for(lambda: not broker.broker.subscriptions.by_id["live"].listeners)


def test_a_second_stream_of_a_durable_subscription_takes_it_over(http: httpx.Client) -> None:
    subscribe(http, "mine", "a4 = 1", durable=True)
    with http.stream("GET", "/subscriptions/mine/stream") as old:
        with http.stream("GET", "/subscriptions/mine/stream") as new:
            http.post("/events", json={"a4": 1})
            assert len(read_messages(new, 1)) == 1
        assert "replaced" in "".join(old.iter_text())


def test_parameters_and_conditions_are_updated(http: httpx.Client) -> None:
    subscribe(http, "par", "a5 < :limit", params={"limit": 10}, durable=True)
    changed = http.patch("/subscriptions/par", json={"params": {"limit": 5}})
    assert changed.json()["params"] == {"limit": 5}
    assert http.post("/events", json={"a5": 7}).json()["matches"] == 0
    http.patch("/subscriptions/par", json={"where": "a5 > :limit"})
    assert http.post("/events", json={"a5": 7}).json()["matches"] == 1
    assert http.delete("/subscriptions/par").status_code == 204
    assert http.post("/events", json={"a5": 7}).json()["matches"] == 0
    assert http.get("/subscriptions/par").status_code == 404


def test_events_of_a_type_meet_subscriptions_of_the_type_and_of_all(http: httpx.Client) -> None:
    subscribe(http, "quotes", "price < 10", type="Quote", durable=True)
    subscribe(http, "others", "price < 10", type="Other", durable=True)
    subscribe(http, "every", "price < 10 AND a6 IS NULL", durable=True)
    answer = http.post("/events?type=Quote", json={"firm": "IBM", "price": 5})
    assert answer.json()["matches"] == 2
    refused = http.post("/events?type=Quote", json=[{"price": 5}, {"price": "cheap"}])
    assert refused.status_code == 400
    assert (refused.json()["row"], refused.json()["attribute"]) == (1, "price")
    late = subscribe(http, "late", "at > TIMESTAMP '2026-01-01 00:00:00'", type="Quote")
    assert late["type"] == "Quote"
    when = {"at": "2026-07-01T00:00:00Z"}
    assert http.post("/events?type=Quote", json=when).json()["matches"] == 1
    for id in ("quotes", "others", "every", "late"):
        http.delete(f"/subscriptions/{id}")


def test_a_request_is_published_whole_or_not_at_all(http: httpx.Client) -> None:
    subscribe(http, "whole", "a7 = 1", durable=True)
    refused = http.post("/events", json=[{"a7": 1}, 5])
    assert refused.status_code == 400
    assert refused.json()["row"] == 1
    assert http.get("/subscriptions/whole").json()["matched"] == 0
    lines = b'{"a7":1}\n{"a7":1}\n'
    answer = http.post("/events", content=lines, headers={"content-type": "application/x-ndjson"})
    assert answer.json()["accepted"] == 2
    assert http.post("/events", json=[]).json()["accepted"] == 0


def test_requests_of_the_cloudevents_sdk_are_understood(http: httpx.Client) -> None:
    from cloudevents.core.bindings.http import to_binary_event, to_structured_event
    from cloudevents.core.v1.event import CloudEvent

    subscribe(http, "cloud", "price = 5 AND ce.source = '/sdk'", durable=True)
    event = CloudEvent(
        {"id": "1", "type": "quote", "source": "/sdk", "specversion": "1.0",
         "datacontenttype": "application/json"},
        {"price": 5},
    )  # fmt: skip
    for write in (to_structured_event, to_binary_event):
        message = write(event)
        answer = http.post("/events", content=message.body, headers=message.headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["matches"] == 1
    with http.stream("GET", "/subscriptions/cloud/stream") as stream:
        found = read_messages(stream, 2)
    assert all(each["event"]["ce"]["id"] == "1" for each in found)
    assert all(each["type"] == "quote" for each in found)


def test_the_cloudevents_shape_of_a_subscription_is_understood(http: httpx.Client) -> None:
    wanted = {"id": "shape", "types": ["t.a"], "filters": [{"prefix": {"source": "/x"}}]}
    made = http.post("/subscriptions", json=wanted)
    assert made.status_code == 201, made.text
    assert made.json()["filters"] == wanted["filters"]
    event = {"specversion": "1.0", "id": "1", "type": "t.a", "source": "/x/1"}
    kind = {"content-type": "application/cloudevents+json"}
    assert http.post("/events", content=json.dumps(event), headers=kind).json()["matches"] == 1
    event["source"] = "/y"
    assert http.post("/events", content=json.dumps(event), headers=kind).json()["matches"] == 0


def test_a_subscription_keeps_its_dialect(http: httpx.Client) -> None:
    text = "sequence > 5 AND EXISTS subject"
    subscribe(http, "in-cesql", text, dialect="cesql")
    http.put("/subscriptions/in-jms", json={"where": "n IN ('a')", "dialect": "jms"})
    shown = [http.get(f"/subscriptions/{id}").json() for id in ("in-cesql", "in-jms")]
    assert [each["where"] for each in shown] == [text, "n IN ('a')"]
    assert [each["dialect"] for each in shown] == ["cesql", "jms"]
    tried = {"where": text, "dialect": "cesql"}
    assert http.post("/conditions", json=tried).json()["parsed"].startswith("int32(sequence) > 5")
    change = {"where": "NOT n = 'a'", "dialect": "jms"}
    assert http.patch("/subscriptions/in-cesql", json=change).json()["dialect"] == "jms"
    event = {"sequence": "7", "subject": "x", "n": 5}
    assert http.post("/events", json=event).json()["matches"] == 1
    assert http.patch("/subscriptions/in-jms", json={"where": "n = 5"}).json()["dialect"] == "sql"
    assert http.patch("/subscriptions/in-jms", json={"dialect": "jms"}).status_code == 400
    wrong = http.post("/subscriptions", json={"where": "a = 1", "dialect": "mysql"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "argument")
    for id in ("in-cesql", "in-jms"):
        http.delete(f"/subscriptions/{id}")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "bad", "where": "price <"}, "syntax"),
        ({"id": "bad", "where": "COUNT(x) > 1"}, "unsupported"),
        ({"id": "bad", "where": "price < :x"}, "parameter"),
        ({"id": "bad", "where": "firm = 5", "type": "Quote"}, "kind-clash"),
        ({"id": "bad"}, "argument"),
        ({"id": 5, "where": "TRUE"}, "argument"),
        ({"id": "a\n", "where": "TRUE"}, "subscription"),
        ({"id": "bad", "where": "TRUE", "colour": 1}, "argument"),
        ({"id": "bad", "where": "TRUE", "mode": "both"}, "argument"),
        ({"id": "bad", "where": "x = " + "1" * 20000}, "limit"),
        ({"id": "bad", "where": "TRUE", "webhook": {"url": "http://127.0.0.1/x"}}, "argument"),
        ([{"id": "bad", "where": "TRUE"}, {"id": "bad", "where": "TRUE"}], "duplicate-id"),
        ([{"id": f"bad{n}", "where": "x = 1" if n else "x ="} for n in range(50)], "bad-rows"),
        ("no", "argument"),
    ],
)
def test_a_bad_subscription_is_refused_and_leaves_nothing(
    http: httpx.Client, body: Any, code: str
) -> None:
    answer = http.post("/subscriptions", json=body)
    assert answer.status_code in (400, 409, 429), answer.text
    assert answer.json()["code"] == code
    assert http.get("/subscriptions?search=bad").json()["found"] == 0


def test_a_syntax_error_shows_its_place(http: httpx.Client) -> None:
    found = http.post("/conditions", json={"where": "price < AND"}).json()
    assert found["column"] == 9
    assert found["highlight"] == "price < AND\n        ^"


def test_a_condition_is_tried_on_recent_events(http: httpx.Client) -> None:
    http.post("/events", json={"a8": 5, "n": "seen"})
    found = http.post("/conditions", json={"where": "a8 = :x", "params": {"x": 5}}).json()
    assert found["matched"] == 1
    assert found["events"][0]["event"]["n"] == "seen"
    assert found["normal_form"] == ["a8 = 5"]
    assert http.post("/conditions", json={"where": "a8 = :x"}).json()["parameters"] == ["x"]


def test_many_subscriptions_are_made_at_once_and_searched(http: httpx.Client) -> None:
    rows = [{"id": f"many-{n:03}", "where": f"a9 = {n} OR a9 = -{n}"} for n in range(200)]
    assert http.post("/subscriptions", json=rows).json()["created"] == 200
    assert http.post("/events", json={"a9": 7}).json()["matches"] == 1
    page = http.get("/subscriptions?search=many-&limit=10&after=many-100").json()
    assert page["subscriptions"][0]["id"] == "many-101"
    assert page["found"] == 99
    top = http.get("/subscriptions?order=matched&limit=1&search=many-").json()["subscriptions"]
    assert top[0]["id"] == "many-007"


def test_an_expired_subscription_is_gone(http: httpx.Client) -> None:
    subscribe(http, "short", "a10 = 1", valid_until="2020-01-01T00:00:00Z")
    assert http.post("/events", json={"a10": 1}).json()["matches"] == 0
    wait_for(lambda: http.get("/subscriptions/short").status_code == 404)


def test_an_event_that_has_expired_is_delivered_to_nobody(http: httpx.Client) -> None:
    subscribe(http, "fresh", "a11 = 1", durable=True)
    past = {"valid_until": "2020-01-01T00:00:00Z"}
    assert http.post("/events", params=past, json={"a11": 1}).json()["matches"] == 0
    assert http.get("/subscriptions/fresh").json()["pending"] == 0


def test_the_broker_tells_about_itself(http: httpx.Client) -> None:
    assert http.get("/healthz").text == "ok\n"
    assert http.get("/readyz").text == "ready\n"
    metrics = http.get("/metrics").text
    assert "\ntocsin_events_total " in metrics
    assert 'tocsin_publish_to_notify_seconds_bucket{le="+Inf"}' in metrics
    assert http.get("/stats").json()["subscriptions"] > 0
    document = http.get("/openapi.json").json()
    for path, calls in document["paths"].items():
        asked = path.replace("{id}", "nobody")
        if path not in ("/ws", "/stream") and "get" in calls:
            assert http.get(asked).status_code in (200, 404), path


def test_many_subscriptions_share_a_stream(http: httpx.Client, broker: Running) -> None:
    for n in range(3):
        subscribe(http, f"group/{n}", f"g1 > {n}")
    with http.stream("GET", "/stream?prefix=group/") as stream:
        wait_for(lambda: broker.broker.subscriptions.by_id["group/2"].listeners)
        http.post("/events", json={"g1": 2})
        found = read_messages(stream, 2)
    assert sorted(each["subscription"] for each in found) == ["group/0", "group/1"]
    assert http.get("/stream?prefix=nobody").status_code == 404


def test_a_shared_stream_ends_with_the_last_of_its_subscriptions(
    http: httpx.Client, broker: Running
) -> None:
    for n in range(2):
        subscribe(http, f"last/{n}", "l1 = 1")
    with http.stream("GET", "/stream?prefix=last/") as stream:
        wait_for(lambda: broker.broker.subscriptions.by_id["last/1"].listeners)
        assert http.delete("/subscriptions/last/0").status_code == 204
        lines = (line for line in stream.iter_lines() if line)
        told = [next(lines) for _ in range(2)]  # that it is there, and a heart-beat
        assert all(line.startswith(":") for line in told)
        http.post("/events", json={"l1": 1})
        assert '"last/1"' in next(line for line in lines if line.startswith("data"))
        http.delete("/subscriptions/last/1")
        assert "unsubscribed" in next(line for line in lines if line.startswith("data"))


def test_a_page_of_another_site_is_refused(http: httpx.Client) -> None:
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        assert http.post("/events", json={"a": 1}, headers=headers).status_code == 403
    same = {"origin": str(http.base_url).rstrip("/")}
    assert http.post("/events", json={"a": 1}, headers=same).status_code == 200


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="tries the broker with curl, which is not installed"
)
def test_curl_publishes_subscribes_and_streams(broker: Running) -> None:
    def curl(*args: str) -> str:
        command = ["curl", "-sS", "--max-time", "10", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    kind = "content-type: application/json"
    body = '{"id":"curl","where":"a12 = 1","durable":true}'
    assert '"curl"' in curl("-H", kind, "-d", body, f"{broker.url}/subscriptions")
    assert '"matches":1' in curl("-d", '{"a12":1}', f"{broker.url}/events")
    stream = curl("-N", "--max-time", "1", f"{broker.url}/subscriptions/curl/stream")
    assert '"event":{"a12":1}' in stream


@pytest.mark.parametrize("id", ["a/stream", "b/ack", "stream", "c/d/revive", "%2Fstream", "é/ü?#&"])
def test_an_id_may_look_like_a_route(broker: Running, http: httpx.Client, id: str) -> None:
    from urllib.parse import quote

    made = http.post("/subscriptions", json={"id": id, "where": "route = 1", "durable": True})
    place = made.headers["location"]
    assert place == "/subscriptions/" + quote(id, safe="")
    assert http.get(place).json()["id"] == id
    assert http.patch(place, json={"window": 5}).json()["window"] == 5
    http.post("/events", json={"route": 1})
    with http.stream("GET", place + "/stream") as stream:
        (note,) = read_messages(stream, 1)
    assert note["subscription"] == id
    assert http.post(place + "/ack", json={"upto": note["id"]}).json() == {"acknowledged": 1}
    assert http.get(place + "/dead").json() == {"dead": []}
    wrong = http.post(place)
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method-not-allowed")
    assert "PUT" in wrong.headers["allow"]
    assert http.delete(place).status_code == 204
    assert http.get(place).status_code == 404


@pytest.mark.parametrize("transitions", [False, True])
def test_changes_at_the_same_time_all_count(http: httpx.Client, transitions: bool) -> None:
    names = [f"p{n}" for n in range(8)]
    id, where = f"together-{transitions}", " AND ".join(f"x{name} > :{name}" for name in names)
    params = dict.fromkeys(names, 0)
    subscribe(http, id, where, params=params, durable=True, notify="both" if transitions else None)
    with ThreadPoolExecutor(8) as several:
        changes = [{"params": {name: at}} for at, name in enumerate(names)]
        answers = several.map(lambda c: http.patch(f"/subscriptions/{id}", json=c), changes)
        assert [answer.status_code for answer in answers] == [200] * 8
    found = http.get(f"/subscriptions/{id}").json()["params"]
    assert found == {name: at for at, name in enumerate(names)}
    event = {f"x{name}": at + 1 for at, name in enumerate(names)}
    assert http.post(f"/events?key={id}", json=event).json()["matches"] == 1
    low = {**event, "xp7": 7}
    assert http.post(f"/events?key={id}", json=low).json()["matches"] == int(transitions)
    http.delete(f"/subscriptions/{id}")


@pytest.mark.parametrize("wrong", ["9223372036854775808", "99999999999999999999", "1e400"])
def test_a_number_that_does_not_fit_is_refused_among_others(http: httpx.Client, wrong: str) -> None:
    body = f'[{{"a": 1}}, {{"a": 9223372036854775807}}, {{"a": {wrong}}}]'
    answer = http.post("/events", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "event")
    assert http.post("/events", content=body.replace(wrong, "2")).json()["accepted"] == 3


def test_a_subscription_ends_after_its_time_to_live(http: httpx.Client) -> None:
    body = {"id": "ttl", "where": "ttl = 1", "ttl": 100}
    made = http.post("/subscriptions", json=body).json()
    assert abs(made["valid_until"] / 1e6 - time.time() - 100) < 20
    changed = http.patch("/subscriptions/ttl", json={"ttl": 0.2}).json()
    assert changed["valid_until"] < made["valid_until"]
    wait_for(lambda: http.get("/subscriptions/ttl").status_code == 404)
    both = {**body, "valid_until": "2030-01-01"}
    assert "not both" in http.post("/subscriptions", json=both).json()["detail"]
    past = {"where": "x = 1", "valid_until": 1_900_000_000}
    assert "in microseconds" in http.post("/subscriptions", json=past).json()["warnings"][0]


def test_a_subscription_that_lingers_ends_when_its_listener_is_gone(http: httpx.Client) -> None:
    body = {"id": "linger", "where": "linger = 1", "linger": 1}
    http.post("/subscriptions", json=body).raise_for_status()
    with http.stream("GET", "/subscriptions/linger/stream") as stream:
        lines = stream.iter_lines()
        end = time.monotonic() + 3
        next(lines)
        while time.monotonic() < end:
            time.sleep(0.1)
            assert http.get("/subscriptions/linger").json()["listeners"] == 1
    wait_for(lambda: http.get("/subscriptions/linger").status_code == 404)
    for wrong in ({"linger": 0}, {"linger": "1"}, {"durable": True}):
        assert http.post("/subscriptions", json={**body, **wrong}).status_code == 400


def test_json_lines_without_their_content_type_are_refused_with_a_hint(http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    answer = http.post("/events", content=b'{"a": 1}\n{"a": 2}\n', headers=headers)
    assert answer.status_code == 400
    assert "application/x-ndjson" in answer.json()["detail"]
    answer = http.post("/events", content=b'{"a": 1', headers=headers)
    assert "ndjson" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere/at/all", 404, "not-found"),
        ("DELETE", "/events", 405, "method-not-allowed"),
        ("GET", "/subscriptions/none", 404, "unknown-id"),
        ("POST", "/subscriptions", 400, "argument"),
        ("PUT", "/subscriptions/x/ack", 405, "method-not-allowed"),
        ("PATCH", "/conditions", 405, "method-not-allowed"),
        ("GET", "/publications/none", 404, "unknown-key"),
    ],
)
def test_every_refusal_is_problem_details(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path, json=None if method == "GET" else [1])
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
