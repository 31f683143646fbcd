"""The console in a real browser: Debian's Chromium, driven by Playwright.

`TOCSIN_SCREENSHOTS` names a folder for pictures, to be looked at.
"""

from __future__ import annotations

import os
import shutil
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
    pytest.mark.skipif(
        CHROMIUM is None, reason="tries the console in Chromium, which is not installed"
    ),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("console"), web.FOLDER) as found:
        with found.client() as http:
            for n in range(30):
                where = f"firm = 'F{n % 5}' AND price < {n * 10}"
                wanted = {"id": f"alert-{n:02}", "where": where, "durable": n % 3 == 0}
                http.post("/subscriptions", json=wanted)
            events = [{"firm": f"F{n % 5}", "price": n} for n in range(200)]
            http.post("/events?type=Quote", json=events)
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(params=["light", "dark"])
def page(broker: Running, browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(
        color_scheme=request.param, viewport={"width": 1280, "height": 1300}
    )
    found = context.new_page()
    found.set_default_timeout(30_000)
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    found.goto(broker.url)
    found.wait_for_selector("#figures dd")
    yield found
    folder = os.environ.get("TOCSIN_SCREENSHOTS")
    if folder:
        name = f"{request.node.name.partition('[')[0]}-{request.param}.png"
        found.screenshot(path=str(Path(folder) / name), full_page=True)
    context.close()
    bad_conditions = [e for e in errors if "400" not in e]
    assert not bad_conditions, bad_conditions


def shows(page: Any, where: str, text: str) -> None:
    """Wait until a part of the page has a text; the page's policy forbids to evaluate one there."""
    playwright.expect(page.locator(where)).to_contain_text(text, timeout=30_000)


def test_a_condition_is_tried_live_with_errors_under_the_caret(page: Any) -> None:
    page.fill("#where", "firm = 'F1' AND price <")
    shows(page, "#where-error", "^")
    page.fill("#where", "firm = 'F1' AND price < 50")
    page.wait_for_selector("#try-result h3")
    text = page.inner_text("#try-result")
    assert "Normal form" in text
    assert "firm = 'F1'" in text
    assert "Recent events that match: 10 of" in text
    assert not page.inner_text("#where-error")


def test_what_is_published_is_watched_and_counted(page: Any, broker: Running) -> None:
    page.fill("#watch-where", "firm = 'IBM'")
    page.click("#watch-button")
    shows(page, "#watch-state", "watching")
    page.click("#publish-form button")
    page.wait_for_selector("#watched li")
    assert '"price":89.5' in page.inner_text("#watched")
    assert "1 matches" in page.inner_text("#publish-result")
    page.click("#watch-button")
    shows(page, "#watch-state", "stopped")


def test_transitions_are_watched_and_publications_counted(page: Any, broker: Running) -> None:
    page.fill("#watch-where", "depot = 1")
    page.select_option("#watch-notify", "both")
    page.click("#watch-button")
    shows(page, "#watch-state", "watching")
    page.fill("#publish-key", "lorry 7")
    for depot in (1, 1, 2):
        page.fill("#event", f'{{"depot": {depot}}}')
        page.click("#publish-form button")
        shows(page, "#publish-result", "matches")
        if depot == 1:
            shows(page, "#watched", "ENTER lorry 7")
    shows(page, "#watched", "LEAVE lorry 7")
    assert len(told(page)) == 2
    shows(page, "#figures", "Publications")
    page.click("#watch-button")
    shows(page, "#watch-state", "stopped")
    with broker.client() as http:
        assert http.delete("/publications/lorry 7").status_code == 200


def told(page: Any) -> list[str]:
    found: list[str] = page.locator("#watched li").all_inner_texts()
    return found


def test_subscriptions_are_searched(page: Any) -> None:
    page.fill("#search", "alert-0")
    shows(page, "#found", "10")
    rows = page.inner_text("#subscriptions")
    assert "alert-07" in rows
    assert "alert-17" not in rows


def test_everything_can_be_reached_with_the_keyboard(page: Any) -> None:
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {
        "skip",
        "where",
        "event",
        "watch-where",
        "watch-button",
        "publish-key",
        "search",
        "order",
    } <= reached
    page.focus("#event")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"firm": "keys"}')
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shows(page, "#publish-result", "Published")


def test_a_broker_with_tokens_asks_for_one(tmp_path: Path, browser: Any) -> None:
    import contextlib

    from tocsin.broker.storage import open_folder
    from tocsin.broker.tokens import ALL, create

    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "operator", ALL)
    with running(tmp_path, web.FOLDER, auth=True) as broker:
        page = browser.new_page()
        page.goto(broker.url)
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#figures dd")
        page.fill("#watch-where", "TRUE")
        page.click("#watch-button")
        shows(page, "#watch-state", "watching")
        page.close()


def test_the_network_is_shown_where_there_is_one(tmp_path: Path, browser: Any) -> None:
    with (
        running(tmp_path / "a", web.FOLDER, name="a") as one,
        running(tmp_path / "b", name="b", links=(one.url,)) as other,
    ):
        with other.client() as http:
            wanted = {"id": "s", "where": "price < 10", "type": "Quote", "durable": True}
            http.post("/subscriptions", json=wanted)
        with one.client() as http:
            http.post("/events?type=Quote", json=[{"price": n} for n in range(20)])
        context = browser.new_context()
        page = context.new_page()
        page.goto(one.url)
        shows(page, "#network-state", "a, one of 2 brokers")
        shows(page, "#links", "active")
        shows(page, "#links", "price < 10")
        folder = os.environ.get("TOCSIN_SCREENSHOTS")
        if folder:
            page.screenshot(path=str(Path(folder) / "network.png"), full_page=True)
        context.close()
