"""The network over HTTP: links that peers open, and the state of the network.

Enters: WebSockets of peers, requests of operators. Leaves: links, JSON.
"""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from tocsin.broker.http.requests import (
    JsonResponse,
    broker_of,
    principal_of,
    record,
    source_of,
)
from tocsin.broker.overlay.hub import Hub
from tocsin.broker.overlay.wire import Wire, run_link
from tocsin.errors import NotAllowedError, UnavailableError


def _hub_of(request: Request | WebSocket) -> Hub:
    network = broker_of(request).network
    if not isinstance(network, Hub):
        raise UnavailableError("this broker is in no network: start it with --name or --link")
    return network


async def get_overlay(request: Request) -> Response:
    """Return the network as this broker sees it."""
    principal_of(request).must_be_admin()
    network = broker_of(request).network
    alone: dict[str, Any] = {"name": None, "brokers": [], "links": []}
    return JsonResponse(alone if network is None else network.describe())


async def delete_link(request: Request) -> Response:
    """Remove a peer and its backlog."""
    principal = principal_of(request)
    principal.must_be_admin()
    await _hub_of(request).forget(request.path_params["name"])
    record(request, principal, "link.forget", peer=request.path_params["name"])
    return Response(status_code=204)


async def websocket(socket: WebSocket) -> None:
    """Serve a link that a peer opened."""
    try:
        principal = principal_of(socket)
        if not principal.is_local and not principal.rights.link:
            raise NotAllowedError("a link needs a token made with --link", known=True)
        hub = _hub_of(socket)
    except (NotAllowedError, UnavailableError) as error:
        if isinstance(error, NotAllowedError) and error.known:
            broker_of(socket).audit.refuse("link", source_of(socket))
        await socket.close(1008)
        return
    await socket.accept()
    wire = Wire(hub, socket.send_bytes, is_dialer=False, principal=principal)

    async def read() -> bytes | None:
        with contextlib.suppress(WebSocketDisconnect):
            received = await socket.receive()
            if received["type"] == "websocket.receive":
                text = received.get("text")
                return text.encode() if text is not None else bytes(received["bytes"])
        return None

    broker = hub.broker
    broker.connections.opened()
    try:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await run_link(wire.run(read), principal.name)
            await socket.close(1000)
    finally:
        broker.connections.closed()
