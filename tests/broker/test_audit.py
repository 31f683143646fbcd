"""The audit log: who did what, and who was not let in."""

from __future__ import annotations

import contextlib
import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import RawStomp, running, wait_for
from typer.testing import CliRunner
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect as connect_websocket

from tocsin.broker.audit import FILE, Audit, append, names_of
from tocsin.broker.config import Config
from tocsin.broker.metrics import Metrics
from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import Rights, create, id_of
from tocsin.cli.app import app


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


@pytest.mark.slow
def test_acts_are_recorded_with_who_did_them(tmp_path: Path) -> None:
    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "ops", Rights(("*",), ("*",), True))
    headers = {"authorization": f"Bearer {token}"}
    with running(tmp_path, auth=True) as broker, broker.client(headers=headers) as http:
        http.post("/subscriptions", json={"id": "s", "where": "a > 0"}).raise_for_status()
        many = [{"id": f"m{n}", "where": "a > 0"} for n in range(200)]
        http.post("/subscriptions", json=many).raise_for_status()
        http.patch("/subscriptions/s", json={"where": "a > 1"}).raise_for_status()
        http.delete("/subscriptions/s").raise_for_status()
        http.put("/publications/k", json={"a": 1}).raise_for_status()
        http.delete("/publications/k").raise_for_status()
        with RawStomp(broker.stomp_port, passcode=token) as client:
            named = {"id": "1", "durable-subscription-name": "d"}
            client.call("SUBSCRIBE", {**named, "destination": "/events"})
            client.call("UNSUBSCRIBE", named)
            client.call("SUBSCRIBE", {"id": "2", "destination": "/events"})  # ends with it
    lines = lines_of(tmp_path)
    assert [line["act"] for line in lines] == [
        "subscription.create", "subscription.create", "subscription.change",
        "subscription.remove", "publication.put", "publication.remove",
        "subscription.create", "subscription.remove",
    ]  # fmt: skip
    for line in lines:
        assert (line["by"], line["name"], line["from"]) == (id_of(token), "ops", "127.0.0.1")
    assert (lines[1]["n"], len(lines[1]["ids"])) == (200, 100)
    assert (lines[2]["id"], lines[2]["where"]) == ("s", "a > 1")
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert token.partition(".")[2] not in (tmp_path / FILE).read_text()


@pytest.mark.slow
def test_refused_tokens_are_counted_by_reason_and_written_a_few_times(tmp_path: Path) -> None:
    with contextlib.closing(open_folder(tmp_path)) as connection:
        old = create(connection, "old", Rights(admin=True), 1)
        good = create(connection, "good", Rights(admin=True))
    with running(tmp_path, auth=True) as broker, broker.client() as http:

        def ask(token: str | None) -> httpx.Response:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return http.get("/metrics", headers=headers)

        for token in [None, old, *["tocsin_x.guess"] * 50]:
            assert ask(token).status_code == 401
        with pytest.raises(AssertionError):
            RawStomp(broker.stomp_port, passcode="no")
        shown = ask(good).text
    for reason, n in (("missing", 1), ("expired", 1), ("unknown", 51), ("link", 0)):
        assert f'tocsin_authentication_failures_total{{reason="{reason}"}} {n}\n' in shown
    reasons = [line["reason"] for line in lines_of(tmp_path)]
    assert (reasons.count("missing"), reasons.count("unknown")) == (1, 10)


def test_what_was_not_written_is_counted_in_the_next_line(tmp_path: Path) -> None:
    now = [100.0]
    audit = Audit(Config(data=tmp_path), Metrics(), lambda: now[0])
    for _ in range(25):
        audit.refuse("unknown", "192.0.2.1")
    now[0] += 61
    audit.refuse("unknown", "192.0.2.1", name="x\ny\u2028\x1b[2J")
    audit.close()
    text = (tmp_path / FILE).read_text()
    assert text.isascii()
    assert text.count("\n") == 11
    last = lines_of(tmp_path)[-1]
    assert (last["unwritten"], last["name"]) == (15, "x\ny\u2028\x1b[2J")


def test_the_file_is_rotated_and_stays_private(tmp_path: Path) -> None:
    audit = Audit(Config(data=tmp_path, audit_bytes=2_000, audit_files=2), Metrics())
    for n in range(200):
        audit.note("test", None, n=n, text="x" * 10_000)
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [FILE, FILE + ".1", FILE + ".2"]
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert lines_of(tmp_path)[-1]["n"] == 199


def test_an_audit_log_that_cannot_be_written_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    audit = Audit(Config(data=tmp_path), Metrics())
    audit.note("test", None)
    audit.note("test", None)
    audit.close()
    assert audit.n_lost == 2


def test_no_file_is_made_where_the_audit_log_is_off(tmp_path: Path) -> None:
    metrics = Metrics()
    audit = Audit(Config(data=tmp_path, audit=False), metrics)
    audit.note("test", None)
    audit.refuse("unknown")
    audit.close()
    assert list(tmp_path.iterdir()) == []
    assert metrics.families["authentication_failures"][2]["unknown"] == 1


def test_the_token_commands_write_to_the_same_log(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["token", *words, "--data", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    token = run("create", "ops", "--admin").split("\n")[0]
    run("rotate", id_of(token))
    run("revoke", id_of(token))
    append(tmp_path, "test", text="a\nb")
    lines = lines_of(tmp_path)
    acts = ["token.create", "token.rotate", "token.revoke", "test"]
    assert [line["act"] for line in lines] == acts
    assert {line.get("token") for line in lines[:3]} == {id_of(token)}
    assert all(line["by"] == "command" and line["user"] for line in lines[:3])
    assert token.partition(".")[2] not in (tmp_path / FILE).read_text()


def test_many_ids_are_named_in_part() -> None:
    assert names_of(["a"]) == {"id": "a"}
    assert names_of(["a", "b"]) == {"n": 2, "ids": ["a", "b"]}
    assert len(names_of(["a"] * 1000)["ids"]) == 100


@pytest.mark.slow
def test_links_are_recorded_when_they_come_go_and_are_refused(tmp_path: Path) -> None:
    with running(tmp_path / "a", name="a") as a:
        with running(tmp_path / "b", name="b", links=(a.url,)):
            assert a.server.hub is not None
            neighbours = a.server.hub.peers
            wait_for(lambda: "b" in neighbours and neighbours["b"].connection is not None)
        wait_for(lambda: neighbours["b"].connection is None)
    acts = [(line["act"], line["peer"]) for line in lines_of(tmp_path / "a")]
    assert acts == [("link.up", "b"), ("link.down", "b")]
    with contextlib.closing(open_folder(tmp_path / "c")) as connection:
        poor = create(connection, "client", Rights(publish=("Quote",)))
    with running(tmp_path / "c", name="c", auth=True) as c:
        url = c.url.replace("http", "ws") + "/overlay/ws"
        headers = {"authorization": f"Bearer {poor}"}
        with pytest.raises(WebSocketException):
            connect_websocket(url, additional_headers=headers).close()
        assert c.broker.metrics.families["authentication_failures"][2]["link"] == 1
