"""Publishes that are repeated: under one key they are taken once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import RawStomp, Running, running, wait_for
from websockets.sync.client import connect as connect_websocket

import tocsin
from tocsin.broker.idempotency import Idempotency, Receipt, to_key
from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import Rights, create
from tocsin.errors import IdempotencyError, RefusedError

REPLAYED = "idempotency-replayed"


def subscribe(http: httpx.Client, id: str, durable: bool = True) -> str:
    wanted = {"id": id, "where": f"to = '{id}'", "durable": durable}
    assert http.post("/subscriptions", json=wanted).status_code == 201
    return f"/subscriptions/{id}"


def post(http: httpx.Client, id: str, key: str, **more: Any) -> httpx.Response:
    return http.post("/events", json={"to": id, **more}, headers={"idempotency-key": key})


@pytest.mark.parametrize("durable", [True, False])
def test_a_repeated_publish_gets_the_first_answer(
    http: httpx.Client, broker: Running, durable: bool
) -> None:
    id = f"repeated-{durable}"
    path = subscribe(http, id, durable)
    first, again, quoted = (post(http, id, key) for key in (id, id, f'"{id}"'))
    assert REPLAYED not in first.headers
    assert again.headers[REPLAYED] == quoted.headers[REPLAYED] == "true"
    assert first.json() == again.json() == quoted.json()
    assert http.get(path).json()["matched"] == 1
    assert post(http, id, id + "2").json()["first"] > first.json()["first"]


def test_a_key_is_for_one_content(http: httpx.Client) -> None:
    path = subscribe(http, "idem-content")
    assert post(http, "idem-content", "c").status_code == 200
    refused = post(http, "idem-content", "c", more=1)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused")
    other = {"json": {"to": "idem-content"}, "headers": {"idempotency-key": "c"}}
    assert http.post("/events?type=Other", **other).status_code == 422  # type: ignore[arg-type]
    assert post(http, "idem-content", "").status_code == 400
    assert post(http, "idem-content", "x" * 256).status_code == 400
    assert http.get(path).json()["matched"] == 1


def test_a_refused_publish_leaves_its_key_free(http: httpx.Client) -> None:
    headers = {"idempotency-key": "free"}
    assert http.post("/events?type=Quote", json={"price": "x"}, headers=headers).status_code == 400
    answer = http.post("/events?type=Quote", json={"price": 1.5}, headers=headers)
    assert (answer.status_code, REPLAYED in answer.headers) == (200, False)


def test_publications_are_put_and_retracted_once(http: httpx.Client) -> None:
    wanted = {"id": "idem-moves", "where": "move = 1", "durable": True, "notify": "both"}
    http.post("/subscriptions", json=wanted)
    place = "/publications/idem"
    put = [http.put(place, json={"move": 1}, headers={"idempotency-key": "put"}) for _ in range(2)]
    gone = [http.delete(place, headers={"idempotency-key": "gone"}) for _ in range(2)]
    assert put[0].json() == put[1].json()
    assert gone[0].json() == gone[1].json()
    assert [REPLAYED in each.headers for each in put + gone] == [False, True, False, True]
    assert http.delete(place).status_code == 404
    assert http.get("/subscriptions/idem-moves").json()["pending"] == 2


def test_a_repeat_waits_for_the_first(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "idem-meanwhile")
    held, storage = threading.Event(), broker.broker.storage

    async def hold() -> None:
        storage.forget(lambda _: held.wait(20))

    with ThreadPoolExecutor(2) as others:
        broker.call(hold())
        wait_for(lambda: storage.n_waiting == 0)
        before = broker.broker.metrics.replayed
        answers = [others.submit(post, http, "idem-meanwhile", "m") for _ in range(2)]
        wait_for(lambda: broker.broker.metrics.replayed == before + 1)
        held.set()
        found = [each.result() for each in answers]
    assert found[0].json() == found[1].json()
    assert sorted(REPLAYED in each.headers for each in found) == [False, True]
    assert http.get(path).json()["pending"] == 1


def test_a_key_outlives_a_restart_with_its_event_and_expires(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        path = subscribe(http, "kept")
        first = post(http, "kept", "k").json()
        post(http, "nobody", "transient")
    with running(tmp_path, idempotency_seconds=600) as broker, broker.client() as http:
        again = post(http, "kept", "k")
        assert (again.json(), again.headers[REPLAYED]) == (first, "true")
        assert http.get(path).json()["pending"] == 1
        assert http.get("/stats").json()["idempotency_keys"] == 1  # the other stored nothing
    with running(tmp_path, idempotency_seconds=0.01) as broker, broker.client() as http:
        assert REPLAYED not in post(http, "kept", "k").headers
        wait_for(lambda: http.get("/stats").json()["idempotency_keys"] == 0)

        def stored() -> Any:
            with closing(sqlite3.connect(tmp_path / "broker.db")) as connection:
                return connection.execute("SELECT count(*) FROM idempotency").fetchone()[0]

        wait_for(lambda: stored() == 0)


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_after_a_failed_commit_the_database_decides(tmp_path: Path, is_on_disk: bool) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        path = subscribe(http, "doubt")
        real = broker.broker.storage._transact

        def fail(group: list[Any]) -> Any:
            broker.broker.storage._transact = real
            if is_on_disk:
                real(group)
            raise sqlite3.OperationalError("disk I/O error")

        broker.broker.storage._transact = fail
        assert post(http, "doubt", "d").status_code == 503
        again = post(http, "doubt", "d")
        assert again.status_code == 200
        assert (REPLAYED in again.headers) is is_on_disk
    with running(tmp_path) as broker, broker.client() as http:
        assert http.get(path).json()["pending"] == 1


def test_keys_belong_to_their_token(tmp_path: Path) -> None:
    with closing(open_folder(tmp_path)) as connection:
        tokens = [create(connection, name, Rights(publish=("*",))) for name in "ab"]
    with running(tmp_path, auth=True) as broker, broker.client() as http:
        answers = []
        for at, token in enumerate(tokens):
            headers = {"authorization": f"Bearer {token}", "idempotency-key": "same"}
            answers.append(http.post("/events", json={"n": at}, headers=headers))
        assert [each.status_code for each in answers] == [200, 200]
        assert not any(REPLAYED in each.headers for each in answers)


def test_keys_are_bounded_for_each_owner() -> None:
    kept = Idempotency(60, 3)
    for n in range(5):
        kept.settle(kept.begin(to_key("a", f"k{n}", b"")), Receipt(n, n, 0))
    kept.settle(kept.begin(to_key("b", "k0", b"")), Receipt(9, 9, 0))
    assert len(kept) == 4
    assert kept.find(to_key("a", "k1", b"")) is None
    with pytest.raises(IdempotencyError):
        kept.find(to_key("a", "k2", b"x"))


def test_a_websocket_publishes_once(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "idem-web")
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as web:

        def call(**asked: Any) -> Any:
            web.send(json.dumps(asked))
            return json.loads(web.recv(20))

        asked = {"op": "publish", "event": {"to": "idem-web"}, "idempotency_key": "w"}
        first, again = call(**asked, ref=1), call(**asked, ref=2)
        assert again == {**first, "ref": 2, "replayed": True}
        assert call(**{**asked, "event": {}})["error"] == "idempotency-key-reused"
    assert http.get(path).json()["pending"] == 1


def test_stomp_publishes_once_also_in_transactions(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "idem-frames")
    sent = {"destination": "/events", "to": "idem-frames"}
    for is_again in (False, True):
        with RawStomp(broker.stomp_port) as client:
            receipt = client.call("SEND", {**sent, "message-id": "one"}, b"{}")
            assert ("replayed" in receipt.headers) is is_again
            client.call("BEGIN", {"transaction": f"t{is_again}"})
            client.call("SEND", {**sent, "transaction": f"t{is_again}"}, b"{}")
            commit = {"transaction": f"t{is_again}", "message-id": "two"}
            assert ("replayed" in client.call("COMMIT", commit).headers) is is_again
    assert http.get(path).json()["pending"] == 2
    with RawStomp(broker.stomp_port) as client:
        error = client.call("SEND", {**sent, "message-id": "one", "n": "2"}, b"{}")
        assert (error.command, error.headers["code"]) == ("ERROR", "idempotency-key-reused")


def test_each_cloudevent_is_taken_once_where_that_is_asked_for(http: httpx.Client) -> None:
    path = subscribe(http, "idem-cloud")

    def send(*ids: str, query: str = "once=true") -> httpx.Response:
        context = {"specversion": "1.0", "type": "t", "source": "/s"}
        batch = [{**context, "id": id, "data": {"to": "idem-cloud"}} for id in ids]
        kind = {"content-type": "application/cloudevents-batch+json"}
        return http.post(f"/events?{query}", content=json.dumps(batch), headers=kind)

    first = send("1", "2", "2").json()
    assert (first["accepted"], first["matches"], first["duplicates"]) == (3, 2, 1)
    second = send("1", "3").json()
    assert (second["matches"], second["duplicates"]) == (1, 1)
    again = send("2", "1")
    assert again.headers[REPLAYED] == "true"
    assert again.json()["first"] == first["first"]
    assert (again.json()["last"], again.json()["duplicates"]) == (first["last"], 2)
    assert http.post("/events?once=true", json={}).status_code == 400
    assert http.get(path).json()["pending"] == 3


class Cutting:
    """Something between a client and a broker that loses the first answer to each publish."""

    def __init__(self, url: str) -> None:
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                key = self.headers.get("idempotency-key")
                headers = {"content-type": "application/json", "idempotency-key": key or ""}
                answer = httpx.post(url + self.path, content=body, headers=headers)
                outer.keys.append(key)
                if outer.keys.count(key) == 1:
                    self.close_connection = True  # without an answer
                    return
                self.send_response(answer.status_code)
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> Cutting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def test_the_clients_repeat_a_publish_without_an_answer_and_it_is_taken_once(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "idem-cut")

    async def publish(url: str) -> None:
        async with tocsin.connect_async(url) as client:
            await client.publish({"to": "idem-cut"})

    with Cutting(broker.url) as proxy:
        with tocsin.connect(proxy.url) as client:
            receipt = client.publish({"to": "idem-cut"})
        asyncio.run(publish(proxy.url))
    assert receipt.matches == 1
    assert len(proxy.keys) == 4
    assert len(set(proxy.keys)) == 2
    assert http.get(path).json()["pending"] == 2


def test_an_application_may_have_a_key_of_its_own(broker: Running, http: httpx.Client) -> None:
    with tocsin.connect(broker.url) as client:
        first = client.publish({"own": 1}, idempotency_key="order 17")
        assert client.publish({"own": 1}, idempotency_key="order 17") == first
        with pytest.raises(RefusedError, match="another publish"):
            client.publish({"own": 2}, idempotency_key="order 17")
