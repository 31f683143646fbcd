"""Webhooks where things go wrong: odd headers, odd hosts, what has expired, what is revived."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, running, wait_for

from tocsin.broker.config import Config
from tocsin.broker.webhooks import check_webhook
from tocsin.errors import ArgumentError

pytestmark = pytest.mark.slow
_LOCAL: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8", "::1/128")}


def test_a_content_type_that_no_header_can_have_stops_no_webhook(tmp_path: Path) -> None:
    with hooked() as hook, running(tmp_path, **_LOCAL) as broker, broker.client() as http:
        wanted = {"id": "w", "where": "TRUE", "webhook": {"url": hook.url}}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        with RawStomp(broker.stomp_port) as client:
            for kind in ("text/é", "text/plain"):
                client.call("SEND", {"destination": "/events", "content-type": kind}, b"x")
        wait_for(lambda: len(hook.got) == 2)
    assert [headers["content-type"] for headers, _ in hook.got] == ["text/%C3%A9", "text/plain"]


def check_signed(headers: dict[str, str], body: bytes, key: bytes) -> None:
    """Verify both signatures as docs/operations.md says."""
    id, at = headers["webhook-id"], headers["webhook-timestamp"]
    given = dict(each.split(",") for each in headers["webhook-signature"].split(" "))
    names = headers["webhook-signed-headers"]
    lines = "".join(f"{name}:{headers[name]}\n" for name in names.split(";"))
    texts = {"v1": f"{id}.{at}.", "v1h": f"{id}.{at}.{names}\n{lines}\n"}
    for version, text in texts.items():
        mac = hmac.digest(key, text.encode() + body, "sha256")
        assert hmac.compare_digest(base64.b64decode(given[version]), mac), version


def test_a_signature_covers_id_time_body_and_headers(tmp_path: Path) -> None:
    key = b"0123456789abcdef01234567"
    secrets = {"plain": "a secret", "standard": "whsec_" + base64.b64encode(key).decode()}
    with hooked() as hook, running(tmp_path, **_LOCAL) as broker, broker.client() as http:
        for id, secret in secrets.items():
            webhook = {"url": hook.url, "secret": secret}
            wanted = {"id": id, "where": "a > 0", "webhook": webhook, "notify": "both"}
            http.post("/subscriptions", json=wanted).raise_for_status()
        http.post("/events?key=k", json={"a": 1}).raise_for_status()
        wait_for(lambda: len(hook.got) == 2)
    for headers, body in hook.got:
        used = key if headers["tocsin-subscription"] == "standard" else b"a secret"
        check_signed(headers, body, used)
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
        signed = headers["webhook-signed-headers"].split(";")
        assert {"ce-id", "content-type", "tocsin-key", "tocsin-transition"} <= set(signed)
        for name, value in (("tocsin-transition", "LEAVE"), ("webhook-timestamp", "1")):
            with pytest.raises(AssertionError):
                check_signed({**headers, name: value}, body, used)
        with pytest.raises(AssertionError):
            check_signed(headers, body + b" ", used)
    assert len({headers["webhook-id"] for headers, _ in hook.got}) == 2


def test_a_secret_that_is_no_base64_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="base64"):
        check_webhook({"url": "http://example.org/", "secret": "whsec_?"}, Config(data=tmp_path))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_a_host_that_is_no_name_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ArgumentError, match="no name of a host"):
        check_webhook({"url": f"http://{host}/"}, Config(data=tmp_path))


def test_a_webhook_does_not_get_what_has_expired(tmp_path: Path) -> None:
    settings = {**_LOCAL, "webhook_attempts": 3, "webhook_back_off": 3}
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        hook.answers = [500]
        wanted = {"id": "w", "where": "TRUE", "webhook": {"url": hook.url}}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        end = time.time_ns() // 1000 + 1_000_000
        assert http.post(f"/events?valid_until={end}", json={"a": 1}).json()["matches"] == 1
        wait_for(lambda: http.get("/subscriptions/w").json()["pending"] == 0)
        assert len(hook.got) <= 1
        assert http.get("/subscriptions/w/dead").json() == {"dead": []}


def test_what_is_revived_while_others_are_sent_is_sent_too(tmp_path: Path) -> None:
    settings = {**_LOCAL, "webhook_attempts": 2, "webhook_back_off": 2}
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        hook.answers = [500, 500, 500]
        wanted = {"id": "w", "where": "TRUE", "webhook": {"url": hook.url}}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        http.post("/events", json=[{"n": 1}, {"n": 2}])
        wait_for(lambda: len(hook.got) == 3)
        wait_for(lambda: http.get("/subscriptions/w/dead").json()["dead"])
        assert http.post("/subscriptions/w/revive").json() == {"revived": 1}
        wait_for(lambda: len(hook.got) == 5)
        assert [json.loads(body)["n"] for _, body in hook.got] == [1, 1, 2, 2, 1]
        wait_for(lambda: http.get("/subscriptions/w").json()["pending"] == 0)


def test_failures_are_on_the_subscription_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**_LOCAL, "webhook_attempts": 4, "webhook_back_off": 0.01}
    caplog.set_level("INFO", "tocsin.webhooks")
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        spec = {"id": "w", "where": "a > 0", "webhook": {"url": hook.url + "?token=secret"}}
        http.post("/subscriptions", json=spec).raise_for_status()
        assert "webhook_failures" not in http.get("/subscriptions/w").json()
        hook.answers = [500, 503, 204]
        http.post("/events", json={"a": 1}).raise_for_status()
        wait_for(lambda: len(hook.got) == 3)
        wait_for(lambda: http.get("/subscriptions/w").json()["pending"] == 0)
        failures = http.get("/subscriptions/w").json()["webhook_failures"]
        assert (failures["n"], failures["in_a_row"], failures["reason"]) == (2, 0, "status 503")
        assert abs(failures["at"] / 1e6 - time.time()) < 60
        hook.answers = [500] * 4
        http.post("/events", json={"a": 2}).raise_for_status()
        wait_for(lambda: http.get("/subscriptions/w").json()["dead"] == 1)
        failures = http.get("/subscriptions/w").json()["webhook_failures"]
        assert (failures["n"], failures["in_a_row"]) == (6, 4)
    lines = [each.getMessage() for each in caplog.records if each.name == "tocsin.webhooks"]
    assert lines == [
        "webhook of 'w' at localhost failed 1 time(s) in a row, now for notification 1: status 500",
        "webhook of 'w' at localhost failed 2 time(s) in a row, now for notification 1: status 503",
        "webhook of 'w' works again",
        "webhook of 'w' at localhost failed 1 time(s) in a row, now for notification 2: status 500",
        "webhook of 'w' at localhost failed 2 time(s) in a row, now for notification 2: status 500",
        "webhook of 'w' at localhost failed 4 time(s) in a row, now for notification 2: status 500",
        "webhook of 'w': notification 2 is a dead letter: status 500",
    ]
