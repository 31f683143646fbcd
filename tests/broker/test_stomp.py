"""STOMP: an unmodified client, and frames by hand."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import stomp
from tests.broker.servers import RawStomp, Running, wait_for

from tocsin.broker.protocol import stomp as stomp_codec


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Keeps what comes."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: list[Any] = []

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.append(frame)


def connect(port: int, **more: Any) -> tuple[stomp.Connection12, Listener]:
    client = stomp.Connection12([("127.0.0.1", port)], **more)
    listener = Listener()
    client.set_listener("", listener)
    client.connect(wait=True)
    return client, listener


def sync(client: stomp.Connection12, listener: Listener) -> None:
    """Wait until the broker has handled all frames so far."""
    client.begin("sync")
    client.abort("sync", receipt="synced")
    while listener.receipts.get(timeout=20) != "synced":
        pass


def test_a_selector_is_one_of_messages_unless_its_dialect_is_named(broker: Running) -> None:
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/D1", id="1", headers={"selector": "n = 0x10 OR NOT s = 'a'"})
    headers = {"selector": "s ILIKE 'A%'", "dialect": "sql"}
    client.subscribe("/topic/D1", id="2", headers=headers)
    sync(client, listener)
    for event in ({"n": 16}, {"s": 5}, {"s": "ab"}, {"s": "a"}):
        client.send("/topic/D1", json.dumps(event))
    messages = [listener.messages.get(timeout=20) for _ in range(5)]
    came = sorted((frame.headers["subscription"], frame.body) for frame in messages)
    assert came == [
        ("1", '{"n": 16}'),
        ("1", '{"s": "ab"}'),
        ("1", '{"s": 5}'),
        ("2", '{"s": "a"}'),
        ("2", '{"s": "ab"}'),
    ]
    client.disconnect()
    assert not listener.errors


def test_stomp_py_gets_what_its_selector_asks_for(broker: Running) -> None:
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/S1", id="1", headers={"selector": "price > 5 AND firm = 'IBM'"})
    sync(client, listener)
    for price, firm in ((4, "IBM"), (6, "SAP"), (7, "IBM")):
        client.send("/topic/S1", json.dumps({"price": price, "firm": firm}))
    client.send("/topic/S1", "plain text", headers={"price": "8.5", "firm": "IBM"})
    first, second = (listener.messages.get(timeout=20) for _ in range(2))
    assert json.loads(first.body) == {"price": 7, "firm": "IBM"}
    assert first.headers["destination"] == "/topic/S1"
    assert second.body == "plain text"
    assert second.headers["price"] == "8.5"
    client.disconnect()
    assert listener.messages.empty()
    assert not listener.errors


def test_a_number_in_a_header_compares_with_numbers_and_with_texts(broker: Running) -> None:
    with RawStomp(broker.stomp_port) as client:
        conditions = ["x > 5", "x = '10'", "x = 10 AND y = '7'", "x < 5", "x = 'a'", "x <> '11'"]
        for id, selector in enumerate(conditions):
            client.call(
                "SUBSCRIBE", {"id": str(id), "destination": "/topic/N", "selector": selector}
            )
        client.call("SEND", {"destination": "/topic/N", "x": "10", "y": "7"})
        client.call("DISCONNECT", {})
        found = [frame.headers["subscription"] for frame in client.frames]
    assert sorted(found) == ["0", "1", "2", "5"]


def test_stomp_py_acknowledges_and_what_is_not_comes_again_marked(broker: Running) -> None:
    headers = {"selector": "k = 1", "durable-subscription-name": "stomp-durable"}
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/S2", id="d", ack="client-individual", headers=headers)
    sync(client, listener)
    for n in range(3):
        client.send("/topic/S2", json.dumps({"k": 1, "n": n}), receipt=f"r{n}")
    frames = [listener.messages.get(timeout=20) for _ in range(3)]
    assert [listener.receipts.get(timeout=20) for _ in range(3)] == ["r0", "r1", "r2"]
    client.ack(frames[1].headers["ack"])
    sync(client, listener)
    client.disconnect()
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/S2", id="d", ack="client", headers=headers)
    again = [listener.messages.get(timeout=20) for _ in range(2)]
    assert [json.loads(frame.body)["n"] for frame in again] == [0, 2]
    assert all(frame.headers["redelivered"] == "true" for frame in again)
    client.ack(again[1].headers["ack"])  # and all before it
    sync(client, listener)
    client.disconnect()
    wait_for(lambda: broker.broker.subscriptions.by_id["stomp-durable"].pending == 0)


def test_stomp_py_reconnects_and_resumes(broker: Running) -> None:
    headers = {"selector": "k = 2", "durable-subscription-name": "stomp-again"}
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/S3", id="d", ack="client-individual", headers=headers)
    sync(client, listener)
    client.transport.disconnect_socket()  # as if the network had failed
    with httpx.Client(base_url=broker.url) as http:
        assert http.post("/events?type=S3", json={"k": 2}).json()["matches"] == 1
    client, listener = connect(broker.stomp_port)
    client.subscribe("/topic/S3", id="d", ack="client-individual", headers=headers)
    frame = listener.messages.get(timeout=20)
    assert json.loads(frame.body) == {"k": 2}
    assert "redelivered" not in frame.headers
    client.disconnect()


def test_a_refused_message_becomes_a_dead_letter(broker: Running, http: httpx.Client) -> None:
    with RawStomp(broker.stomp_port) as client:
        headers = {"id": "1", "destination": "/topic/S4", "durable-subscription-name": "nacked"}
        client.call("SUBSCRIBE", {**headers, "ack": "client-individual"})
        client.call("SEND", {"destination": "/topic/S4"}, b'{"n":1}')
        message = client.next()
        client.call("NACK", {"id": message.headers["ack"]})
        wait_for(lambda: http.get("/subscriptions/nacked/dead").json()["dead"])
        (letter,) = http.get("/subscriptions/nacked/dead").json()["dead"]
        assert letter["event"] == {"n": 1}
        assert http.post("/subscriptions/nacked/revive").json() == {"revived": 1}
        again = client.next()
        assert again.headers["redelivered"] == "true"
        client.call("ACK", {"id": again.headers["ack"]})
        gone = {"id": "1", "durable-subscription-name": "nacked"}
        assert client.call("UNSUBSCRIBE", gone).command == "RECEIPT"
    assert http.get("/subscriptions/nacked").status_code == 404


def test_what_is_revived_while_a_page_is_read_comes_without_reconnecting(
    broker: Running, http: httpx.Client
) -> None:
    wanted = {"id": "paged", "where": "pg >= 0", "durable": True, "window": 2}
    assert http.post("/subscriptions", json=wanted).status_code == 201
    http.post("/events", json=[{"pg": n} for n in range(4)])
    held = threading.Event()

    async def hold() -> None:
        """Keep the thread that reads from disk waiting."""
        broker.broker.storage._reading.submit(held.wait, 20)

    with RawStomp(broker.stomp_port) as client:
        headers = {"id": "1", "destination": "/events", "selector": "pg >= 0"}
        headers |= {"durable-subscription-name": "paged", "ack": "client-individual"}
        client.call("SUBSCRIBE", headers)
        first, second = client.next(), client.next()
        broker.call(hold())
        client.call("NACK", {"id": first.headers["ack"]})  # the next page is asked for, and waits
        assert http.post("/subscriptions/paged/revive").json() == {"revived": 1}
        held.set()
        client.call("ACK", {"id": second.headers["ack"]})
        found = []
        for _ in range(3):
            frame = client.next()
            found.append((json.loads(frame.body)["pg"], frame.headers.get("redelivered")))
            client.call("ACK", {"id": frame.headers["ack"]})
        assert sorted(found) == [(0, "true"), (2, None), (3, None)]
        wait_for(lambda: http.get("/subscriptions/paged").json()["pending"] == 0)
        assert not client.frames


def test_what_is_acknowledged_while_letters_are_revived_does_not_come_again(
    broker: Running, http: httpx.Client
) -> None:
    headers = {"id": "1", "destination": "/topic/S8", "durable-subscription-name": "beside"}
    held, storage = threading.Event(), broker.broker.storage

    async def hold() -> None:
        """Keep the thread that writes to disk waiting."""
        storage.forget(lambda _: held.wait(20))

    with RawStomp(broker.stomp_port) as client, ThreadPoolExecutor(1) as other:
        client.call("SUBSCRIBE", {**headers, "ack": "client-individual"})
        for n in range(2):
            client.call("SEND", {"destination": "/topic/S8"}, f'{{"n":{n}}}'.encode())
        first, second = client.next(), client.next()
        client.call("NACK", {"id": first.headers["ack"]})
        broker.call(hold())
        wait_for(lambda: storage.n_waiting == 0)
        revived = other.submit(http.post, "/subscriptions/beside/revive")
        wait_for(lambda: storage.n_waiting == 1)
        client.send("ACK", {"id": second.headers["ack"]})
        wait_for(lambda: storage.n_waiting == 2)
        held.set()
        assert revived.result().json() == {"revived": 1}
        again = client.next()
        assert json.loads(again.body) == {"n": 0}
        client.call("ACK", {"id": again.headers["ack"]})
        assert http.get("/subscriptions/beside").json()["pending"] == 0
        assert not client.frames


def test_an_acknowledgement_covers_what_came_before_it_and_nothing_revived_since(
    broker: Running, http: httpx.Client
) -> None:
    headers = {"id": "1", "destination": "/topic/S7", "durable-subscription-name": "since"}
    with RawStomp(broker.stomp_port) as client:
        client.call("SUBSCRIBE", {**headers, "ack": "client"})
        for n in range(3):
            client.call("SEND", {"destination": "/topic/S7"}, f'{{"n":{n}}}'.encode())
        frames = [client.next() for _ in range(3)]
        client.call("NACK", {"id": frames[0].headers["ack"]})
        assert http.post("/subscriptions/since/revive").json() == {"revived": 1}
        again = client.next()
        assert json.loads(again.body) == {"n": 0}
        client.call("ACK", {"id": frames[2].headers["ack"]})
        wait_for(lambda: http.get("/subscriptions/since").json()["pending"] == 1)
        client.call("ACK", {"id": again.headers["ack"]})
        wait_for(lambda: http.get("/subscriptions/since").json()["pending"] == 0)
        assert not client.frames


def test_a_transaction_is_published_whole_or_not_at_all(broker: Running) -> None:
    with RawStomp(broker.stomp_port) as client:
        client.call("SUBSCRIBE", {"id": "1", "destination": "/topic/S5"})
        for name, end in (("t1", "ABORT"), ("t2", "COMMIT")):
            client.call("BEGIN", {"transaction": name})
            for n in range(2):
                sent = {"destination": "/topic/S5", "transaction": name}
                client.call("SEND", sent, f'{{"t":"{name}{n}"}}'.encode())
            client.call(end, {"transaction": name})
        assert [client.next().body for _ in range(2)] == [b'{"t":"t20"}', b'{"t":"t21"}']
        client.call("BEGIN", {"transaction": "t3"})
        sent = {"destination": "/topic/S5", "transaction": "t3"}
        client.call("SEND", sent, b'{"ok":1}')
        client.call("SEND", {**sent, "destination": "/nowhere"}, b"{}")
        error = client.call("COMMIT", {"transaction": "t3"})
        assert error.command == "ERROR"
        assert not client.frames


def test_an_event_of_http_reaches_stomp_and_the_other_way_round(
    broker: Running, http: httpx.Client
) -> None:
    http.post("/subscriptions", json={"id": "cross", "where": "c = 1", "durable": True})
    with RawStomp(broker.stomp_port) as client:
        client.call("SUBSCRIBE", {"id": "1", "destination": "/events", "selector": "c = 1"})
        http.post("/events", json={"c": 1, "from": "http"})
        assert json.loads(client.next().body) == {"c": 1, "from": "http"}
        client.call("SEND", {"destination": "/events", "from": "stomp"}, b'{"c":1}')
    from tests.broker.servers import read_messages

    with http.stream("GET", "/subscriptions/cross/stream") as stream:
        events = [each["event"] for each in read_messages(stream, 2)]
    assert events == [{"c": 1, "from": "http"}, {"c": 1, "from": "stomp"}]


@pytest.mark.slow
def test_heart_beats_come_and_silence_ends_a_connection(broker: Running) -> None:
    with RawStomp(broker.stomp_port, heart_beat="100,1000") as client:
        beats = b""
        with contextlib.suppress(ConnectionError):
            while data := client.socket.recv(100):
                beats += data
        assert beats.strip() == b""
        assert beats.count(b"\n") >= 1


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([("SEND", {"destination": "/events"})], "protocol"),
        ([("CONNECT", {"accept-version": "2.0,3.0"})], None),
        ([("CONNECT", {"accept-version": "1.2"})] * 2, "protocol"),
        ([("CONNECT", {"accept-version": "1.2", "heart-beat": "x"})], "protocol"),
    ],
)
def test_a_connection_that_begins_wrong_is_told_so(
    broker: Running, frames: list[Any], code: str | None
) -> None:
    with RawStomp(broker.stomp_port, connect=False) as client:
        for command, headers in frames:
            client.send(command, headers)
        while (frame := client.next()).command == "CONNECTED":
            pass
        assert frame.command == "ERROR"
        assert frame.headers.get("code") == code
        with pytest.raises(EOFError):
            client.next()


@pytest.mark.parametrize(
    ("command", "headers", "body", "code"),
    [
        ("SEND", {}, b"", "protocol"),
        ("SEND", {"destination": "/queue/x"}, b"", "protocol"),
        ("SEND", {"destination": "/events", "content-type": "text/json"}, b"{bad", "event"),
        ("SEND", {"destination": "/events", "valid-until": "noon"}, b"", "event"),
        ("SEND", {"destination": "/topic/Quote"}, b'{"price":"x"}', "event"),
        ("SEND", {"destination": "/events", "transaction": "none"}, b"", "protocol"),
        ("SUBSCRIBE", {"destination": "/events"}, b"", "protocol"),
        ("SUBSCRIBE", {"id": "1", "destination": "/events", "selector": "x <"}, b"", "syntax"),
        ("SUBSCRIBE", {"id": "1", "destination": "/events", "ack": "maybe"}, b"", "protocol"),
        ("UNSUBSCRIBE", {"id": "1"}, b"", "unknown-id"),
        ("ACK", {"id": "x"}, b"", "protocol"),
        ("ACK", {"id": "1-²"}, b"", "protocol"),
        ("COMMIT", {"transaction": "none"}, b"", "protocol"),
        ("MESSAGE", {}, b"", "protocol"),
    ],
)
def test_a_frame_that_cannot_be_served_is_an_error_with_a_code(
    broker: Running, command: str, headers: dict[str, str], body: bytes, code: str
) -> None:
    with RawStomp(broker.stomp_port) as client:
        error = client.call(command, headers, body)
        assert error.command == "ERROR"
        assert error.headers["code"] == code
        assert error.headers["receipt-id"] == "r"
        with pytest.raises(EOFError):
            client.next()


def test_what_a_connection_subscribed_goes_with_it(broker: Running) -> None:
    before = len(broker.broker.subscriptions.by_id)
    with RawStomp(broker.stomp_port) as client:
        for n in range(5):
            client.call("SUBSCRIBE", {"id": str(n), "destination": "/topic/S6"})
        assert len(broker.broker.subscriptions.by_id) == before + 5
        client.socket.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: len(broker.broker.subscriptions.by_id) == before)


VERSIONS = {
    "1.0": stomp.Connection10,
    "1.1": stomp.Connection11,
    "1.2": stomp.Connection12,
    "the default of stomp.py": stomp.Connection,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_clients_of_every_version_publish_subscribe_and_acknowledge(
    broker: Running, version: str
) -> None:
    name = f"versions-{version[:3]}"
    destination = f"/topic/V{version[:3]}"
    client = VERSIONS[version]([("127.0.0.1", broker.stomp_port)])
    listener = Listener()
    client.set_listener("", listener)
    client.connect(wait=True)
    headers = {"selector": "n > 1", "durable-subscription-name": name}
    client.subscribe(destination, id="1", ack="client", headers=headers)
    sync(client, listener)
    odd = "a:b" if version == "1.0" else "a: b\\c\\n"  # stomp.py undoes escapes in 1.0 too
    client.begin("t")
    for n in range(1, 4):
        client.send(destination, json.dumps({"n": n}), headers={"odd": odd, "transaction": "t"})
    client.commit("t")
    first, second = (listener.messages.get(timeout=20) for _ in range(2))
    assert [json.loads(each.body)["n"] for each in (first, second)] == [2, 3]
    assert first.headers["odd"] == odd
    assert first.headers["subscription"] == "1"
    if version == "1.0":
        client.ack(first.headers["message-id"])
    elif isinstance(client, stomp.Connection12):
        client.ack(first.headers["ack"])
    else:
        client.ack(first.headers["message-id"], "1")
    sync(client, listener)
    with broker.client() as http:
        wait_for(lambda: http.get(f"/subscriptions/{name}").json()["pending"] == 1)
        if version != "1.0":
            if isinstance(client, stomp.Connection12):
                client.nack(second.headers["ack"])
            else:
                client.nack(second.headers["message-id"], "1")
            wait_for(lambda: http.get(f"/subscriptions/{name}").json()["dead"] == 1)
        client.unsubscribe("1")
        sync(client, listener)
        http.delete(f"/subscriptions/{name}")
    client.disconnect()
    assert not listener.errors


def test_a_client_of_version_1_0_subscribes_without_an_id(broker: Running) -> None:
    """Spaces around a value do not count there, and there are no escapes."""
    with RawStomp(broker.stomp_port, connect=False) as client:
        client.parser.dialect = stomp_codec.V10
        client.socket.sendall(b"CONNECT\n\n\0")
        connected = client.next()
        assert (connected.command, connected.headers["version"]) == ("CONNECTED", "1.0")
        client.socket.sendall(b"SUBSCRIBE\ndestination: /topic/V10\nselector: a = 1 \n\n\0")
        client.socket.sendall(b'SEND\ndestination:/topic/V10\nc:\\d:e\nreceipt:r\n\n{"a": 1}\0')
        frames = {frame.command: frame for frame in (client.next(), client.next())}
        assert set(frames) == {"RECEIPT", "MESSAGE"}
        assert "subscription" not in frames["MESSAGE"].headers
        assert frames["MESSAGE"].headers["c"] == "\\d:e"
        client.socket.sendall(b"UNSUBSCRIBE\ndestination:/topic/V10\nreceipt:u\n\n\0")
        assert client.next().headers["receipt-id"] == "u"


def test_a_message_is_written_for_the_version_of_each_reader(broker: Running) -> None:
    readers = []
    for dialect in stomp_codec.DIALECTS.values():
        reader = RawStomp(broker.stomp_port, connect=False)
        reader.send("CONNECT", {"accept-version": dialect.version})
        assert reader.next().headers["version"] == dialect.version
        reader.parser.dialect = dialect
        reader.send("SUBSCRIBE", {"id": "1", "destination": "/topic/VX", "receipt": "r"})
        assert reader.next().command == "RECEIPT"
        readers.append(reader)
    with RawStomp(broker.stomp_port) as sender:
        headers = {"destination": "/topic/VX", "x": "a:b\\c", "y:z": "1"}
        assert sender.call("SEND", headers, b"text").command == "RECEIPT"
    received = [reader.next().headers for reader in readers]
    assert [each["x"] for each in received] == ["a:b\\c"] * 3
    assert ["y:z" in received[0], "y:z" in received[1], "y%3Az" in received[2]] == [True] * 3
    for reader in readers:
        reader.socket.close()
