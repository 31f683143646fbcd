"""A neighbour that lies: wrong, hostile and half-right messages of every kind, at every moment.

    python -m tests.overlay.liar --seeds 200

links a liar to a broker that also has an honest neighbour with a durable subscriber. Each seed is a
connection of the liar: junk before HELLO, a HELLO that may be wrong, then messages in which fields
were replaced, left out, repeated or cut off. After each, an event is published. In the end the
subscriber has every event once, nothing was logged as an error, and the broker answers.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.broker.servers import Running, running, wait_for
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import Rights, create

CONDITION = {"price": {"numbers": [[None, [100, 0]]]}, "firm": {"strings": [[["A", 0], ["A", 1]]]}}
HELLO = ["HELLO", 1, "liar", "instance", {"": {"levels": 4}}]
TRUTHS: list[list[Any]] = [
    ["STATE", "liar", 3, ["core"]],
    ["STATE", "core", 9, ["edge", "liar"]],
    ["STATE", "edge", 9, ["core"]],
    ["TYPES", [None, "Quote"]],
    ["ADV", "Quote"],
    ["UNADV", "Quote"],
    ["CELLS", "Quote", {"price": [0, 0, 0, 8]}],
    ["SUB", "Quote", [[0, CONDITION]], 1],
    ["SUB", None, [[0, {}]], 0],
    ["UPD", "Quote", {"gone": [0], "new": [[1, CONDITION]]}, 1],
    ["UPD", "Quote", {"changed": [[0, {"free": ["firm"], "put": CONDITION}]]}, 0],
    ["UPD", "Quote", {"changed": [[0, {"strings": {"firm": [[], []]}}]]}, 0],
    ["UNSUB", "Quote"],
    ["STANDBY"],
    ["ACK", 1],
    ["PUB", 1, "origin", 1, "Quote", None, None, {"price": 1}],
    ["PUB", 2, "origin", 2, None, 1 << 60, {"h": {"a": "1"}, "b": "e30=", "c": ""}, {}],
    ["PUB", 0, "origin", 3, "Quote", None, {"k": "key", "g": None, "p": 1}, {"price": 1}],
    [
        "PUB", 3, "origin", 4, "T", None,
        {"h": {"ce": {"id": "1", "source": "/", "specversion": "1.0", "type": "T"}},
         "b": "e30=", "c": "application/json"}, {},
    ],
]  # fmt: skip
JUNK: list[Any] = [
    None, True, -1, 0, 1, 1 << 31, (1 << 53) - 1, 1 << 53, 1 << 63, 10**40, 1.5, 1e308, -0.0,
    "", "x", "a\nb", "\0", "\x1b[2J", "edge", "core", "*", "x" * 5_000, "😀", "abc", "YWJj",
    [], [[]], [1, 2], [["a"]], {}, {"": ""}, {"h": 1}, {"x": {"numbers": [[1, 2]]}},
    [[0, {"x": "EBVr"}]], {"content-length": "1"}, {"gone": [0] * 3}, {"strings": {"firm": [1, 2]}},
]  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places within a message."""
    items = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def twisted(rng: random.Random, message: list[Any]) -> list[Any]:
    """Return a message with some fields replaced, left out or repeated."""
    message = copy.deepcopy(message)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        *path, last = rng.choice(list(places(message)) or [(0,)])
        inner: Any = message
        for key in path:
            inner = inner[key]
        act = rng.randrange(4)
        if act == 0 and len(inner) > 1:
            del inner[last]
        elif act == 1 and isinstance(inner, list):
            inner.insert(last, copy.deepcopy(rng.choice([inner[last], *JUNK])))
        else:
            inner[last] = copy.deepcopy(rng.choice(JUNK))
    return message


def lines(rng: random.Random) -> Iterator[bytes]:
    """Yield what one connection of the liar sends."""
    if rng.random() < 0.2:
        yield rng.choice([b"\n", b"[]\n", b"\xff\n", b"[" * 5_000 + b"\n", b"x" * 2_000_000])
    hello = HELLO if rng.random() < 0.7 else twisted(rng, HELLO)
    yield json.dumps(hello).encode() + b"\n"
    for _ in range(rng.randrange(1, 12)):
        message = twisted(rng, rng.choice(TRUTHS))
        line = json.dumps(message).encode()
        if rng.random() < 0.05:
            line = line[: rng.randrange(len(line))]
        if rng.random() < 0.03:
            slots = [[i, CONDITION] for i in range(3_000)]
            line = json.dumps(["SUB", "Quote", slots, 1]).encode()
        yield line + b"\n"
        if rng.random() < 0.3:
            time.sleep(0.01)


def lie(url: str, token: str, seed: int) -> None:
    """Open one connection, and send until it is closed."""
    rng = random.Random(seed)
    headers = {"authorization": f"Bearer {token}"}
    with (
        contextlib.suppress(WebSocketException, OSError, TimeoutError),
        connect(url, additional_headers=headers, max_size=None) as socket,
    ):
        for line in lines(rng):
            socket.send(line)
        with contextlib.suppress(TimeoutError):
            while True:
                socket.recv(timeout=0.05)


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@contextlib.contextmanager
def honest_network(folder: Path) -> Iterator[tuple[Running, Running, str]]:
    """Run `core` and its neighbour `edge`; yield them and the liar's token."""
    with contextlib.closing(open_folder(folder / "core")) as connection:
        edge_token, liar_token = (
            create(connection, name, Rights(link=name)) for name in ("edge", "liar")
        )
        publisher = create(connection, "publisher", Rights(("*",), ("*",), True))
    with (
        running(folder / "core", name="core", auth=True) as core,
        running(
            folder / "edge", name="edge", links=(f"core={core.url}",), link_token=edge_token
        ) as edge,
    ):
        core.headers = {"authorization": f"Bearer {publisher}"}  # type: ignore[attr-defined]
        with edge.client() as http:
            body = {"id": "all", "where": "n >= 0", "durable": True}
            assert http.post("/subscriptions", json=body).status_code == 201
        yield core, edge, liar_token


def check(folder: Path, seeds: range) -> None:
    """Let the liar lie with each seed, and see that nobody else suffers."""
    errors = _Errors()
    logging.getLogger("tocsin").addHandler(errors)
    try:
        with honest_network(folder) as (core, edge, token), core.client() as http:
            url = core.url.replace("http", "ws") + "/overlay/ws"
            hub = core.server.hub
            assert hub is not None
            wait_for(lambda: "edge" in hub.peers)
            http.headers.update(core.headers)  # type: ignore[attr-defined]
            for n, seed in enumerate(seeds):
                lie(url, token, seed)
                answer = http.post("/events", json={"n": n})
                assert answer.status_code == 200, (seed, answer.text)
            wait_for(lambda: pending(edge) == len(seeds), 60)
            events = [event["event"]["n"] for event in read(edge, len(seeds))]
            assert events == list(range(len(seeds))), "in order, each once"
            assert set(hub.peers) <= {"edge", "liar"}
    finally:
        logging.getLogger("tocsin").removeHandler(errors)
    assert not errors.records, errors.records[:3]


def pending(broker: Running) -> int:
    """Return how many notifications wait for the subscriber."""
    with broker.client() as http:
        return int(http.get("/subscriptions/all").json()["pending"])


def read(broker: Running, n: int) -> list[dict[str, Any]]:
    """Return the subscriber's notifications."""
    from tests.broker.servers import read_messages

    with broker.client() as http, http.stream("GET", "/subscriptions/all/stream") as stream:
        return read_messages(stream, n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), range(options.first, options.first + options.seeds))
    print(f"{options.seeds} connections that lie: nothing was lost, doubled or logged as an error")


if __name__ == "__main__":
    main()
