"""The application: routes, protection against other sites, errors as problem details.

Enters: a broker and its tokens. Leaves: an ASGI application. A page of another site in the
operator's browser must not reach the broker, least of all where no tokens are required (on
loopback): requests that browsers mark as coming from other sites (`Origin`, `Sec-Fetch-Site`,
`Sec-Fetch-Mode`), or under a foreign host name, are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.broker.config import is_loopback
from tocsin.broker.core import Broker
from tocsin.broker.http import events, info, overlay, publications, streams, subscriptions
from tocsin.broker.http.requests import http_problem, is_deliberate, problem
from tocsin.broker.tokens import Tokens
from tocsin.errors import NotAllowedError, TocsinError

log = logging.getLogger("tocsin.http")

_SAFE = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


_READABLE = frozenset(("/healthz", "/readyz", "/metrics", "/openapi.json"))
"""Paths that may be opened in a browser's window: they change nothing."""
_API = ("/events", "/subscriptions", "/publications", "/stream", "/conditions", "/recent", "/stats",
        "/overlay", "/ws", *_READABLE)  # fmt: skip
_SHIELDS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Gate:
    """Refuses requests of other sites, and adds headers against caching and sniffing."""

    def __init__(self, app: ASGIApp, open_to_all: bool) -> None:
        self.app = app
        self.open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        wrong = self._wrong(HTTPConnection(scope))
        if scope["type"] == "websocket":
            if wrong is None:
                scope[streams.SEND] = send
                await self.app(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return

        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                names = {name for name, _ in headers}
                shields = [each for each in _SHIELDS if each[0] not in names]
                message = {**message, "headers": [*headers, *shields]}
            await send(message)

        if wrong is None:
            scope[streams.SEND] = send
            await self.app(scope, receive, shielded)
        else:
            await problem(NotAllowedError(wrong, known=True))(scope, receive, shielded)

    def _wrong(self, request: HTTPConnection) -> str | None:
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            if origin is not None and urlsplit(origin).netloc != host:
                return "requests from other sites are refused"
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if not self.open_to_all and not is_loopback(name):
            return "the host name is not of this machine"
        site = headers.get("sec-fetch-site")
        if site is not None:
            return _wrong_fetch(request, site)
        if request.scope.get("method", "GET") not in ("GET", "HEAD") and not is_deliberate(request):
            return "this browser does not say from which site the request comes"
        return None


def _wrong_fetch(request: HTTPConnection, site: str) -> str | None:
    """Return why a request of a browser is refused, by its headers; None where it is not."""
    mode, path = request.headers.get("sec-fetch-mode"), request.scope["path"]
    is_read = request.scope.get("method", "GET") in ("GET", "HEAD")
    is_window = is_read and mode == "navigate"
    is_api = any(path == each or path.startswith(each + "/") for each in _API)
    if not is_api and is_window and request.headers.get("sec-fetch-dest") == "document":
        return None  # a link to the console
    if site not in ("same-origin", "none"):
        return "requests from other sites are refused"
    if is_api and (mode == "no-cors" or (mode == "navigate" and path not in _READABLE)):
        return "a page or a window cannot show this: use fetch, EventSource or WebSocket"
    return None


class Console(StaticFiles):
    """The console's files, with headers that keep foreign scripts out."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        """Return a file."""
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers.update(_SAFE)
        return response


_ONE: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {
    "": {
        "GET": subscriptions.get_subscription,
        "PUT": subscriptions.put_subscription,
        "PATCH": subscriptions.patch_subscription,
        "DELETE": subscriptions.delete_subscription,
    },
    "stream": {"GET": streams.get_stream, "POST": streams.get_stream},
    "ack": {"POST": subscriptions.post_ack},
    "nack": {"POST": subscriptions.post_nack},
    "dead": {"GET": subscriptions.get_dead, "DELETE": subscriptions.delete_dead},
    "revive": {"POST": subscriptions.post_revive},
}


async def _one_subscription(request: Request) -> Response:
    """Serve a call about one subscription.

    Its id may have any characters: the path is taken apart as it was sent, so that a slash of the
    id, which is sent as %2F, does not end it. `a/stream` is a stream, `a%2Fstream` an id.
    """
    sent = request.scope["raw_path"].decode("ascii").removeprefix("/subscriptions/")
    head, _, last = sent.rpartition("/")
    verb = last if head and last in _ONE else ""
    handler = _ONE[verb].get(request.method)
    if handler is None:
        raise HTTPException(405, headers={"allow": ", ".join(_ONE[verb])})
    request.path_params["id"] = unquote(head if verb else sent)
    return await handler(request)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TocsinError)
    request.app.state.broker.metrics.refused += 1
    return problem(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses (404, 405) as problem details, like our own errors."""
    assert isinstance(error, HTTPException)
    request.app.state.broker.metrics.refused += 1
    return http_problem(error.status_code, dict(error.headers or {}))


def build_app(broker: Broker, tokens: Tokens, console: Path | None = None) -> ASGIApp:
    """Return the application; `console` is a folder of files served at `/`."""
    publication = "/publications/{key:path}"
    routes: list[BaseRoute] = [
        Route("/events", events.post_events, methods=["POST"]),
        Route(
            "/subscriptions",
            subscriptions.serve_many,
            methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        ),
        Route(
            "/subscriptions/{id:path}",
            _one_subscription,
            methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        ),
        Route("/publications", publications.get_publications, methods=["GET"]),
        Route(publication, publications.serve_one, methods=["GET", "PUT", "PATCH", "DELETE"]),
        Route("/stream", streams.get_streams, methods=["GET"]),
        Route("/conditions", info.post_condition, methods=["POST"]),
        Route("/recent", info.get_recent),
        Route("/stats", info.get_stats),
        Route("/metrics", info.get_metrics),
        Route("/healthz", info.get_health),
        Route("/readyz", info.get_ready),
        Route("/openapi.json", info.get_openapi),
        Route("/overlay", overlay.get_overlay),
        Route("/overlay/links/{name:path}", overlay.delete_link, methods=["DELETE"]),
        WebSocketRoute("/overlay/ws", overlay.websocket),
        WebSocketRoute("/ws", streams.websocket),
    ]
    if console is not None:
        routes.append(Mount("/", Console(directory=console, html=True)))
    handlers = {TocsinError: _on_error, HTTPException: _on_http_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.broker = broker
    app.state.tokens = tokens
    open_to_all = tokens.are_needed or not broker.config.is_local
    return Gate(app, open_to_all)
