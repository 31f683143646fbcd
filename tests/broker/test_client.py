"""The Python client and the command line, against a real broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import json
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.broker.servers import Running, running, wait_for

import tocsin
from tocsin.errors import ArgumentError, RefusedError, UnavailableError

pytestmark = pytest.mark.slow


def test_the_client_publishes_and_gets_notifications(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("c1", "c1 > :x", params={"x": 5}, durable=True)
        receipt = client.publish_many([{"c1": 4}, {"c1": 6}, {"c1": 7}])
        assert (receipt.accepted, receipt.matches) == (3, 2)
        notes = client.notifications("c1")
        assert [next(notes).event["c1"] for _ in range(2)] == [6, 7]
        client.update("c1", params={"x": 100})
        assert client.publish({"c1": 50}).matches == 0
        client.unsubscribe("c1")
        with pytest.raises(RefusedError) as refused:
            client.get("c1")
        assert refused.value.code == "unknown-id"


def test_errors_of_the_broker_are_errors_of_the_client(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        with pytest.raises(RefusedError) as refused:
            client.subscribe("bad", "price <")
        assert (refused.value.status, refused.value.code) == (400, "syntax")
    with pytest.raises(ArgumentError):
        tocsin.connect("stomp://x")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        tocsin.connect("http://127.0.0.1:9", retry_seconds=0.1).publish({"a": 1})


def test_the_asynchronous_client_does_the_same(broker: Running) -> None:
    async def use() -> list[Any]:
        async with tocsin.connect_async(broker.url) as client:
            await client.subscribe("c2", "c2 = 1", durable=True)
            await client.publish_many([{"c2": 1, "n": 1}, {"c2": 1, "n": 2}])
            found = []
            async for note in client.notifications("c2"):
                found.append(note.event["n"])
                if len(found) == 2:
                    break
            await client.acknowledge("c2", note.id)
            await client.update("c2", where="c2 = 2")
            await client.publish({"c2": 5}, key="c2", ttl=100)
            assert (await client.publication("c2") or {})["event"] == {"c2": 5}
            assert await client.retract("c2")
            assert not await client.retract("c2")
            assert await client.publication("c2") is None
            pending = (await client.get("c2"))["pending"]
            await client.unsubscribe("c2")
            return [*found, pending]

    assert asyncio.run(use()) == [1, 2, 0]


def test_the_client_lives_through_a_restart(tmp_path: Path) -> None:
    from tests.broker.processes import free_port

    port = f"127.0.0.1:{free_port()}"
    with running(tmp_path, http=port, stomp="") as first:
        client = tocsin.connect(first.url, retry_seconds=60)
        client.subscribe("r", "r = 1", durable=True)
        client.publish_many([{"r": 1, "n": 1}, {"r": 1, "n": 2}])
        notes = client.notifications("r")
        assert next(notes).event["n"] == 1
    with running(tmp_path, http=port, stomp=""):
        client.publish({"r": 1, "n": 3})
        # The first was handled but not acknowledged: it comes again and is left out.
        assert [next(notes).event["n"] for _ in range(2)] == [2, 3]


class Cut:
    """A way to a broker that breaks at the first acknowledgement."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.is_cut = False
        self.url = ""

    async def __aenter__(self) -> Cut:
        self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        ways = self._pass_on(reader, forth), self._pass_on(back, writer)
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if b"/ack" in data and not self.is_cut:
                    self.is_cut = True
                    break
                to.write(data)
                await to.drain()
        finally:
            to.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_notifications_go_on_when_an_acknowledgement_is_cut_off(
    broker: Running, is_async: bool
) -> None:
    def use(url: str) -> None:
        with tocsin.connect(url) as client:
            notes = client.notifications("cut")
            assert [next(notes).event["n"] for _ in range(3)] == [0, 1, 2]
            notes.close()

    async def use_async(url: str) -> None:
        async with tocsin.connect_async(url) as client:
            notes = client.notifications("cut")
            assert [(await anext(notes)).event["n"] for _ in range(3)] == [0, 1, 2]
            await notes.aclose()

    async def through_a_cut() -> bool:
        async with Cut(broker.server.http_port) as way:
            await (use_async(way.url) if is_async else asyncio.to_thread(use, way.url))
            await asyncio.sleep(0.1)
            return way.is_cut

    with tocsin.connect(broker.url) as client:
        client.subscribe("cut", "cut = 1", durable=True)
        client.publish_many([{"cut": 1, "n": n} for n in range(3)])
        assert asyncio.run(through_a_cut())
        assert client.get("cut")["pending"] == 1  # the first was acknowledged after all
        client.unsubscribe("cut")


def tocsin_command(*args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tocsin.cli", *args]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_line_publishes_subscribes_and_looks(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("cli", "cli = 1", durable=True)
    lines = '{"cli": 1, "n": 1}\n\n{"cli": 2}\n'
    done = tocsin_command("publish", "--url", broker.url, "--json", given=lines)
    assert json.loads(done.stdout) == {"accepted": 2, "matches": 1}
    got = tocsin_command("subscribe", "--id", "cli", "--count", "1", "--url", broker.url)
    assert json.loads(got.stdout)["event"] == {"cli": 1, "n": 1}
    to = ("--url", broker.url, "--type", "Cli")
    with tocsin.connect(broker.url) as client:
        client.publish({"x": 1, "y": 1}, type="Cli", key="a")
    tocsin_command("publish", *to, "--key", "a", "--merge", "--ttl", "500", '{"y": 2}')
    watch = ("--count", "1", "--notify", "both", "y = 2")
    done = tocsin_command("subscribe", *to, *watch)
    note = json.loads(done.stdout)
    assert (note["kind"], note["key"], note["event"]) == ("ENTER", "a", {"x": 1, "y": 2})
    assert tocsin_command("publish", *to, "--key", "a", "--retract").returncode == 0
    assert "no publication" in tocsin_command("publish", *to, "--key", "a", "--retract").stderr
    bad = tocsin_command("publish", "--url", broker.url, "[1]")
    assert bad.returncode == 2
    assert "JSON object" in bad.stderr
    flags = ("--url", broker.url, "--count", "1", "--seconds", "0.2", "--json")
    found = json.loads(tocsin_command("top", *flags).stdout)
    assert found["subscriptions"] > 0
    assert {"publications", "retained", "transitions_per_second"} <= found.keys()


def test_a_subscribe_that_is_ended_leaves_no_subscription(broker: Running) -> None:
    command = [sys.executable, "-m", "tocsin.cli", "subscribe", "--url", broker.url]
    with tocsin.connect(broker.url) as client:
        for number in (signal.SIGTERM, signal.SIGHUP):
            with subprocess.Popen(
                [*command, "--id", "ended", "ended = 1"], stderr=subprocess.PIPE, text=True
            ) as process:
                wait_for(lambda: "ended" in {each["id"] for each in client.subscriptions()})
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
            assert process.returncode == 130
            assert "interrupted" in said
            assert "Traceback" not in said
            assert "ended" not in {each["id"] for each in client.subscriptions()}


def test_what_a_handler_puts_off_is_not_acknowledged_and_comes_again(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("hand", "hand = 1", durable=True)
        client.publish_many([{"hand": 1, "n": n} for n in range(2)])
        seen = []
        for note in client.notifications("hand"):
            seen.append((note.event["n"], note.delivery_count))
            if seen == [(0, None)]:
                client.refuse("hand", note.id, delay=0.2)
            if len(seen) == 3:
                break
        assert seen == [(0, None), (1, None), (0, 2)]


@pytest.mark.slow
def test_the_command_line_lists_revives_and_purges_dead_letters(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("dead-cli", "deadcli = 1", durable=True)
        receipt = client.publish_many([{"deadcli": 1, "n": n} for n in range(3)])
        for number in range(receipt.first, receipt.last + 1):
            client.refuse("dead-cli", number, reason="no")
        to = ("dead-cli", "--url", broker.url)
        listed = tocsin_command("dead", "list", *to).stdout.splitlines()
        assert [json.loads(line)["event"]["n"] for line in listed] == [0, 1, 2]
        revived = tocsin_command("dead", "revive", *to, "--json", str(receipt.first))
        assert json.loads(revived.stdout) == {"revived": 1}
        assert "2 dead letters purged" in tocsin_command("dead", "purge", *to).stdout
        shown = client.get("dead-cli")
        assert (shown["dead"], shown["pending"]) == (0, 1)


# The table of calls.


def test_both_clients_have_the_same_calls_with_the_same_signatures() -> None:
    def public(client: type) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(member).replace(return_annotation=None)
            for name, member in vars(client).items()
            if callable(member) and not name.startswith("_")
        }

    assert public(tocsin.Client) == public(tocsin.AsyncClient)
    parameters = inspect.signature(tocsin.Client.subscribe).parameters
    assert list(parameters)[:5] == ["self", "id", "where", "params", "valid_until"]
    assert "Add a subscription" in (tocsin.Client.subscribe.__doc__ or "")


def test_the_broker_chooses_an_id_where_none_is_given(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        id = client.subscribe(None, "chosen = :x", {"x": 1})
        assert client.get(id)["params"] == {"x": 1}
        client.unsubscribe(id)


def test_put_adds_a_subscription_and_then_replaces_it_but_for_its_backlog(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.put("put", "put = :x", {"x": 1}, durable=True, window=5)
        client.publish({"put": 1})
        client.put("put", "put > 1", durable=True)
        shown = client.get("put")
        assert (shown["where"], shown["params"], shown["pending"]) == ("put > 1", {}, 1)
        assert "window" not in shown
        assert client.publish_many([{"put": 1}, {"put": 2}]).matches == 1
        with pytest.raises(RefusedError, match="durable of a subscription does not change"):
            client.put("put", "put > 1")
        client.unsubscribe("put")


def test_the_end_of_a_subscription_can_be_set_moved_and_removed(broker: Running) -> None:
    def soon(seconds: float) -> dt.datetime:
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)

    with tocsin.connect(broker.url) as client:
        for id in ("end-moved", "end-removed", "end-set"):
            client.subscribe(id, "ending = 1", valid_until=None if id == "end-set" else soon(1.5))
        client.update("end-moved", valid_until=soon(1_000))
        client.update("end-removed", valid_until=None)
        client.update("end-set", valid_until=soon(1.5))
        assert client.get("end-removed")["valid_until"] is None
        assert client.publish({"ending": 1}).matches == 3
        wait_for(lambda: len(list(client.subscriptions(search="end-"))) == 2)
        assert client.publish({"ending": 1}).matches == 2
        assert client.unsubscribe_many(["end-moved", "end-removed"]) == 2


def test_an_end_that_is_moved_holds_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        client.subscribe("s", "x = 1", durable=True, valid_until=1 << 52)
        client.update("s", valid_until=1 << 53)
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        assert client.get("s")["valid_until"] == 1 << 53


def test_many_subscriptions_are_added_changed_listed_and_removed(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        rows = [{"id": f"many-{n:03}", "where": "many = :x", "params": {"x": n}} for n in range(25)]
        assert client.subscribe_many(rows) == 25
        with pytest.raises(RefusedError, match="many-000"):
            client.subscribe_many([{"id": "many-new", "where": "x = 1"}, rows[0]])
        listed = client.subscriptions(search="many-", page_size=10)
        assert [each["id"] for each in listed] == [each["id"] for each in rows]
        first: dict[str, object] = {"id": "many-000", "params": {"x": 24}}
        assert client.update_many([first, {"id": "many-001", "where": "many = 24"}]) == 2
        assert client.publish({"many": 24}).matches == 3
        good = {"id": "many-002", "where": "many = 24"}
        with pytest.raises(RefusedError):
            client.update_many([good, {"id": "many-003", "where": "="}])
        assert client.publish({"many": 24}).matches == 3
        with pytest.raises(RefusedError):
            client.unsubscribe_many(["many-000", "nobody"])
        assert client.unsubscribe_many([str(each["id"]) for each in rows]) == 25
        assert list(client.subscriptions(search="many-")) == []


def test_many_subscriptions_come_from_arrow_and_with_a_template(broker: Running) -> None:
    table = pa.table({"id": ["arrow-1", "arrow-2"], "low": [1, 5]})
    with tocsin.connect(broker.url) as client:
        assert client.subscribe_many(table, where="arrow >= :low") == 2
        assert client.get("arrow-2")["params"] == {"low": 5}
        assert client.publish({"arrow": 3}).matches == 1
        client.unsubscribe_many(["arrow-1", "arrow-2"])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_notifications_end_when_none_comes_in_time(
    broker: Running, is_async: bool, durable: bool
) -> None:
    id = f"time-{is_async}-{durable}"

    async def gather() -> list[Any]:
        async with tocsin.connect_async(broker.url) as client:
            return [note async for note in client.notifications(id, timeout=1.7)]

    with tocsin.connect(broker.url) as client:
        client.subscribe(id, "timed = 1", durable=durable)
        if durable:
            client.publish({"timed": 1})
        began = time.monotonic()
        notes = asyncio.run(gather()) if is_async else list(client.notifications(id, 1.7))
        assert len(notes) == durable
        assert 1.5 < time.monotonic() - began < 4
        assert client.get(id)["pending"] == 0
        client.unsubscribe(id)


def test_values_that_json_does_not_have_are_converted_or_refused(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        client.subscribe(
            "odd", "odd = 1.5 AND at > :at", {"at": moment}, durable=True, type="Quoted"
        )
        event = {"odd": Decimal("1.5"), "at": moment, "n": np.int64(3)}
        client.publish(event, type="Quoted")
        client.publish({"odd": Decimal("1.5")}, key="odd", valid_until=moment.replace(year=2100))
        assert (client.publication("odd") or {})["event"] == {"odd": 1.5}
        for value in (object(), {1}, {1: 2}, 1 << 80):
            with pytest.raises(ArgumentError):
                client.publish({"odd": value})
        with pytest.raises(ArgumentError, match="publish_many"):
            client.publish([{"odd": 1}])  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="publish takes one"):
            client.publish_many({"odd": 1})  # type: ignore[dict-item]
        client.unsubscribe("odd")


def test_only_our_errors_leave_the_client(broker: Running) -> None:
    with pytest.raises(ArgumentError):
        tocsin.connect("http://broker:port").get("x")
    with pytest.raises(ArgumentError):
        tocsin.connect(broker.url, token="tökén ☃").get("x")
    with tocsin.connect(broker.url + "/console-of-something") as client:
        with pytest.raises(RefusedError) as refused:
            client.get("x")
        assert (refused.value.status, refused.value.code) == (404, "not-found")


def test_the_old_name_of_notify_is_refused_with_the_new_one(broker: Running) -> None:
    with broker.client() as http:
        for send in (http.post, http.put):
            path = "/subscriptions" if send == http.post else "/subscriptions/old"
            answer = send(path, json={"where": "a = 1", "transitions": True})
            assert answer.status_code == 400
            assert "notify" in answer.json()["detail"]


def test_routes_that_do_not_exist_answer_with_problem_details(broker: Running) -> None:
    with broker.client() as http:
        missing, wrong = http.get("/nothing"), http.delete("/events")
    for answer, code in ((missing, "not-found"), (wrong, "method-not-allowed")):
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert (problem["code"], problem["status"]) == (code, answer.status_code)
        assert problem["title"]


def test_subscriptions_are_put_and_read_back_as_a_table(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        rows: list[dict[str, Any]] = [
            {"id": f"put{i}", "where": f"put = {i}", "durable": True} for i in range(5)
        ]
        assert client.put_many(rows[:3]) == 3
        assert client.put_many(pa.Table.from_pylist(rows[1:])) == 4
        client.put("put0", "put > :low", {"low": 2}, durable=True)
        assert client.publish({"put": 4}).matches == 2
        table = client.to_table(search="put")
        assert table.column("id").to_pylist() == [f"put{i}" for i in range(5)]
        m = tocsin.Matcher()
        m.subscribe_many(table)
        assert sorted(m.match({"put": 4})) == ["put0", "put4"]
        with pytest.raises(RefusedError, match="type of a subscription does not change"):
            client.put_many([{"id": "put9", "where": "x = 1"}, {**rows[0], "type": "Other"}])
        with pytest.raises(RefusedError, match="an id occurs twice"):
            client.put_many([rows[0], rows[0]])
        with pytest.raises(RefusedError, match="every subscription that is put has an id"):
            client.put_many([{"where": "x = 1"}])
        with pytest.raises(RefusedError):
            client.get("put9")
        assert client.unsubscribe_many([row["id"] for row in rows]) == 5

    async def read() -> int:
        async with tocsin.connect_async(broker.url) as other:
            assert await other.put_many([{"id": "put-a", "where": "x = 1"}]) == 1
            table = await other.to_table(search="put-a")
            await other.unsubscribe("put-a")
            return table.num_rows

    assert asyncio.run(read()) == 1
