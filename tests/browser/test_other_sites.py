"""A page of another origin in a real browser: it changes nothing and reads nothing."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import Running, running

from tocsin import web

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="opens pages in Chromium, which is not installed"),
]
TRICKS = {
    "image": "new Image().src = stream",
    "script": "const it = document.createElement('script'); it.src = stream;"
    "document.head.append(it)",
    "fetch": "fetch(stream, {mode: 'no-cors'}).catch(() => 0)",
    "cors": "fetch(stream).catch(() => 0)",
    "events": "new EventSource(stream)",
    "frame": "document.body.append(Object.assign(document.createElement('iframe'), {src: stream}))",
    "window": "window.open(stream)",
    "post": """fetch(url + "/events", {method: "POST", mode: "no-cors", body: '{"csrf": 1}'})
        .catch(() => 0)""",
    "form": """document.body.innerHTML = `<form method=post action="${url}/events" target=_blank
        enctype="text/plain"><input name='{"csrf": 1, "x": "' value='"}'></form>`;
        document.forms[0].submit()""",
    "socket": "new WebSocket(url.replace('http', 'ws') + '/ws').onopen = function () "
    "{ this.send(JSON.stringify({op: 'publish', event: {csrf: 1}})) }",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("other"), web.FOLDER) as found:
        yield found


@pytest.fixture(scope="module")
def other_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a page of another origin."""
    folder = tmp_path_factory.mktemp("site")
    Path(folder / "index.html").write_text("<!doctype html><title>other</title><body></body>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("trick", TRICKS)
def test_a_page_of_another_site_changes_nothing(
    broker: Running, other_site: str, browser: Any, trick: str
) -> None:
    with broker.client() as client:
        wanted = {"id": trick, "where": "csrf = 1", "durable": True}
        assert client.post("/subscriptions", json=wanted).status_code == 201
        client.post("/events", json=[{"csrf": 1}] * 3)
        page = browser.new_page()
        page.goto(other_site)
        stream = f"{broker.url}/subscriptions/{trick}/stream?ack=auto"
        page.evaluate(f"([url, stream]) => {{ {TRICKS[trick]} }}", [broker.url, stream])
        page.wait_for_timeout(700)
        found = client.get(f"/subscriptions/{trick}").json()
        assert (found["pending"], found["listeners"]) == (3, 0)
        client.delete(f"/subscriptions/{trick}")
        page.context.close()


def test_a_page_of_the_same_origin_reads_a_durable_subscription(
    broker: Running, browser: Any
) -> None:
    with broker.client() as client:
        client.post("/subscriptions", json={"id": "own", "where": "own = 1", "durable": True})
        client.post("/events", json={"own": 1})
        page = browser.new_page()
        page.goto(broker.url)
        data = page.evaluate(
            """() => new Promise((done) => {
                const source = new EventSource("/subscriptions/own/stream");
                source.addEventListener("notification", (e) => { source.close(); done(e.data) });
            })"""
        )
        assert '"own":1' in data
        page.context.close()
