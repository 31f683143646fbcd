"""What was set up with a token stops with the token, and can be removed with it."""

from __future__ import annotations

import contextlib
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, Running, running, wait_for
from typer.testing import CliRunner

from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import Rights, Tokens, create, id_of, read_rights, revoke, rotate
from tocsin.cli.app import app
from tocsin.errors import NotAllowedError

_LOCAL: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8", "::1/128"), "auth": True}


def make(data: Path, expires: int | None = None, **rights: Any) -> str:
    with contextlib.closing(open_folder(data)) as connection:
        return create(connection, "test", Rights(**rights), expires)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["token", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def is_suspended(broker: Running, id: str) -> bool:
    return broker.broker.subscriptions.by_id[id].is_suspended


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[str, str]:
    """Return the token of a subscriber and that of an admin."""
    spy = make(tmp_path, subscribe=("*",), publish=("*",))
    return spy, make(tmp_path, publish=("*",), subscribe=("*",), admin=True)


@pytest.mark.slow
def test_a_revoked_token_gets_no_webhooks_and_no_backlog(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, admin = tokens
    with (
        hooked() as hook,
        running(tmp_path, **_LOCAL) as broker,
        broker.client(headers=bearer(admin)) as http,
    ):
        for wanted in (
            {"id": "hook", "where": "a > 0", "webhook": {"url": hook.url}},
            {"id": "queue", "where": "a > 0", "durable": True},
            {"id": "full", "where": "a > 0", "durable": True, "overflow": "refuse"},
        ):
            http.post("/subscriptions", json=wanted, headers=bearer(spy)).raise_for_status()
        mine = {"id": "mine", "where": "a > 0", "durable": True}
        http.post("/subscriptions", json=mine).raise_for_status()
        http.post("/events", json={"a": 1})
        wait_for(lambda: len(hook.got) == 1)
        said = command("revoke", id_of(spy), "--data", tmp_path)
        assert "3 subscriptions" in said
        assert "STAY" in said
        assert "--with-subscriptions" in said
        wait_for(lambda: is_suspended(broker, "hook"))
        http.post("/events", json={"a": 2})
        wait_for(lambda: http.get("/subscriptions/mine").json()["pending"] == 2)
        queue = http.get("/subscriptions/queue").json()
        assert (queue["pending"], queue["suspended"], queue["owner"]) == (1, True, id_of(spy))
        assert http.get("/subscriptions/hook").json()["pending"] == 0
        assert [json.loads(body)["a"] for _, body in hook.got] == [1]
        assert "suspended" not in http.get("/subscriptions/mine").json()


@pytest.mark.slow
def test_a_suspended_subscription_that_refuses_stops_no_publisher(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, admin = tokens
    with (
        running(tmp_path, auth=True, max_backlog=1) as broker,
        broker.client(headers=bearer(admin)) as http,
    ):
        wanted = {"id": "full", "where": "a > 0", "durable": True, "overflow": "refuse"}
        http.post("/subscriptions", json=wanted, headers=bearer(spy)).raise_for_status()
        assert http.post("/events", json={"a": 1}).status_code == 200
        assert http.post("/events", json={"a": 2}).status_code == 429
        command("revoke", id_of(spy), "--data", tmp_path)
        wait_for(lambda: is_suspended(broker, "full"))
        assert http.post("/events", json={"a": 3}).status_code == 200


@pytest.mark.slow
def test_an_expired_token_that_is_rotated_goes_on_where_it_was(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    _, admin = tokens
    short = make(tmp_path, time.time_ns() // 1000 + 1_500_000, subscribe=("*",))
    with (
        hooked() as hook,
        running(tmp_path, **_LOCAL) as broker,
        broker.client(headers=bearer(admin)) as http,
    ):
        wanted = {"id": "hook", "where": "a > 0", "webhook": {"url": hook.url}}
        http.post("/subscriptions", json=wanted, headers=bearer(short)).raise_for_status()
        wait_for(lambda: is_suspended(broker, "hook"))
        http.post("/events", json={"a": 1})  # never delivered
        new = command("rotate", id_of(short), "--days", "1", "--data", tmp_path).split("\n")[0]
        wait_for(lambda: not is_suspended(broker, "hook"))
        http.post("/events", json={"a": 2})
        wait_for(lambda: hook.got)
        assert [json.loads(body)["a"] for _, body in hook.got] == [2]
        assert http.get("/subscriptions", headers=bearer(short)).status_code == 401
        assert http.get("/subscriptions/hook", headers=bearer(new)).status_code == 200


@pytest.mark.slow
def test_webhooks_of_revoked_tokens_stay_silent_when_a_broker_starts(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, admin = tokens
    with hooked() as hook:
        hook.answers = [500] * 20
        with running(tmp_path, **_LOCAL) as broker, broker.client(headers=bearer(admin)) as http:
            wanted = {"id": "hook", "where": "a > 0", "webhook": {"url": hook.url}}
            http.post("/subscriptions", json=wanted, headers=bearer(spy)).raise_for_status()
            http.post("/events", json={"a": 1})
            wait_for(lambda: hook.got)
        with contextlib.closing(open_folder(tmp_path)) as connection:
            assert revoke(connection, id_of(spy))
        n = len(hook.got)
        with running(tmp_path, **_LOCAL) as broker:
            assert is_suspended(broker, "hook")
            assert not broker.broker.webhooks._tasks
        assert len(hook.got) == n


@pytest.mark.slow
def test_a_running_broker_removes_the_subscriptions_of_a_revoked_token(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, admin = tokens
    with running(tmp_path, auth=True) as broker, broker.client(headers=bearer(admin)) as http:
        for n in range(3):
            wanted = {"id": f"s{n}", "where": "a > 0", "durable": True}
            http.post("/subscriptions", json=wanted, headers=bearer(spy)).raise_for_status()
        http.post("/subscriptions", json={"id": "mine", "where": "a > 0"}).raise_for_status()
        http.post("/events", json={"a": 1})
        listed = http.get("/subscriptions", params={"owner": id_of(spy)}).json()
        assert [each["id"] for each in listed["subscriptions"]] == ["s0", "s1", "s2"]
        assert f"{id_of(spy)}  test" in command("list", "--data", tmp_path)
        assert "3 subscriptions" in command("list", "--data", tmp_path)
        said = command("revoke", id_of(spy), "--with-subscriptions", "--data", tmp_path)
        assert "has removed 3 subscriptions" in said
        left = http.get("/subscriptions").json()["subscriptions"]
        assert [each["id"] for each in left] == ["mine"]
        assert broker.broker.storage._reader.execute("SELECT count(*) FROM events").fetchone() == (
            0,
        )


def test_subscriptions_of_a_revoked_token_are_removed_where_no_broker_runs(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, _ = tokens
    row = "(1, 's', NULL, 'a > 0', '{}', 1, NULL, ?, '{}', 0, 0)"
    with contextlib.closing(open_folder(tmp_path)) as connection:
        connection.execute(f"INSERT INTO subscriptions VALUES {row}", (id_of(spy),))
        command("revoke", id_of(spy), "--data", tmp_path)
        assert "revoked; 1 subscription left" in command("list", "--data", tmp_path)
        again = CliRunner().invoke(app, ["token", "revoke", id_of(spy), "--data", str(tmp_path)])
        assert again.exit_code == 2
        assert "--with-subscriptions" in again.output
        said = command("revoke", id_of(spy), "--with-subscriptions", "--data", tmp_path)
        assert "removed 1 subscription\n" in said
        assert connection.execute("SELECT count(*) FROM subscriptions").fetchone() == (0,)
        assert connection.execute("SELECT * FROM meta WHERE name LIKE 'revoked%'").fetchall() == []


@pytest.mark.slow
def test_a_suspended_subscription_draws_nothing_from_other_brokers(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    _, admin = tokens
    short = make(tmp_path, time.time_ns() // 1000 + 1_500_000, subscribe=("*",))
    with (
        running(tmp_path, auth=True, name="here") as broker,
        broker.client(headers=bearer(admin)) as http,
    ):
        hub, subscriptions = broker.server.hub, broker.broker.subscriptions
        assert hub is not None
        for id in ("a", "b"):
            wanted = {"id": id, "where": "a > 0", "durable": True} | (
                {"notify": "both"} if id == "b" else {}
            )
            http.post("/subscriptions", json=wanted, headers=bearer(short)).raise_for_status()
        nos = {subscriptions.by_id[id].no for id in ("a", "b")}
        assert nos <= hub.router._topic_of.keys()
        wait_for(lambda: is_suspended(broker, "a"))
        assert not nos & hub.router._topic_of.keys()
        http.patch("/subscriptions/a", json={"where": "a > 1"}).raise_for_status()
        assert not nos & hub.router._topic_of.keys()
        command("rotate", id_of(short), "--days", "0", "--data", tmp_path)
        wait_for(lambda: not is_suspended(broker, "a"))
        assert nos <= hub.router._topic_of.keys()
        command("revoke", id_of(short), "--data", tmp_path)
        wait_for(lambda: is_suspended(broker, "a"))
        for id in ("a", "b"):
            http.delete(f"/subscriptions/{id}").raise_for_status()
        assert not subscriptions.owners()


@pytest.mark.slow
def test_a_rotated_token_closes_the_connections_of_its_old_secret(
    tmp_path: Path, tokens: tuple[str, str]
) -> None:
    spy, _ = tokens
    with running(tmp_path, auth=True) as broker:
        with RawStomp(broker.stomp_port, passcode=spy) as client:
            with contextlib.closing(open_folder(tmp_path)) as connection:
                new = rotate(connection, id_of(spy), None)
            assert client.next().command == "ERROR"
        assert new is not None
        with RawStomp(broker.stomp_port, passcode=new) as client:
            assert client.call("SEND", {"destination": "/events"}, b"{}").command == "RECEIPT"


def test_a_link_token_names_the_only_broker_that_may_link_with_it(tmp_path: Path) -> None:
    link, all_rights = make(tmp_path, link="edge1"), make(tmp_path, publish=("*",), admin=True)
    found = Tokens(lambda: open_folder(tmp_path))
    try:
        assert found.authenticate(link).may_link("edge1")
        assert not found.authenticate(link).may_link("edge2")
        assert not found.authenticate(link).may_link("")
        assert not found.authenticate(all_rights).may_link("edge1")
        assert not found.authenticate(all_rights).may_link("")
        with pytest.raises(NotAllowedError, match="tocsin token create NAME --link BROKER"):
            found.authenticate(all_rights).must_be_link("edge1")
        with pytest.raises(NotAllowedError):
            found.authenticate(link).may_publish("Quote")
    finally:
        found.close()
    assert Tokens(None).authenticate(None).may_link("any")


def test_tokens_of_older_versions_have_no_right_to_link() -> None:
    assert read_rights('{"publish": ["*"], "subscribe": ["*"], "admin": true}').link == ""


def test_the_token_commands_make_private_files_and_look_for_the_right_folder(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    command("create", "edge", "--link", "edge1", "--data", data)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in data.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    (line,) = command("list", "--json", "--data", data).splitlines()
    assert json.loads(line)["link"] == "edge1"
    wrong = CliRunner().invoke(app, ["token", "list", "--data", str(tmp_path / "no")])
    assert wrong.exit_code == 2
    assert not (tmp_path / "no").exists()
