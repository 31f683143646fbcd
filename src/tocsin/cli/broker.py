"""`tocsin serve`, `publish`, `subscribe`, `dead`, `backup`, `restore`: a broker, or its calls."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tocsin.cli.console import OK, say
from tocsin.errors import ArgumentError

if TYPE_CHECKING:
    from tocsin.broker.server import Server


_LINGER = 60.0
"""Seconds for which the broker keeps a subscription whose command was killed."""


def run_serve(path: Path | None, flags: Mapping[str, object]) -> int:
    """Serve until a signal stops the broker."""
    from tocsin import web
    from tocsin.broker.config import load_config
    from tocsin.broker.server import serve, set_up_logs

    warnings: list[str] = []
    config = load_config(path, os.environ, flags, warnings.append)
    set_up_logs(config.log, config.log_json)
    for warning in warnings:
        logging.getLogger("tocsin.config").warning("%s", warning)

    def on_ready(server: Server) -> None:
        listening = {"http": server.http_port, "stomp": server.stomp_port}
        typer.echo(json.dumps({"ready": True, **listening}))
        sys.stdout.flush()

    serve(config, web.FOLDER, on_ready)
    return OK


def run_publish(
    events: Sequence[str],
    key: str | None,
    terms: Mapping[str, Any],
    batch: int,
    url: str,
    token: str | None,
    as_json: bool,
) -> int:
    """Publish the events of the arguments, or of standard input."""
    from tocsin.broker.client import connect

    lines = iter(events) if events else (line for line in sys.stdin if line.strip())
    n = n_matches = 0
    with connect(url, token) as client:
        for group in _groups(lines, batch):
            events_of_group = [_to_event(line) for line in group]
            if key is None:
                receipts = [client.publish_many(events_of_group, **terms)]
            else:
                receipts = [client.publish(event, key=key, **terms) for event in events_of_group]
            n += sum(receipt.accepted for receipt in receipts)
            n_matches += sum(receipt.matches for receipt in receipts)
    result = {"accepted": n, "matches": n_matches}
    typer.echo(json.dumps(result) if as_json else f"{n} events published, {n_matches} matches")
    return OK


def run_retract(key: str, type: str | None, url: str, token: str | None) -> int:
    """Retract a publication."""
    from tocsin.broker.client import connect

    with connect(url, token) as client:
        if not client.retract(key, type=type):
            raise ArgumentError(f"there is no publication {key!r}")
    typer.echo(f"retracted {key}")
    return OK


def _groups(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    source = iter(lines)
    while group := list(islice(source, size)):
        yield group


def _to_event(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"not JSON: {error}: {text[:60]!r}") from None
    if not isinstance(event, dict):
        raise ArgumentError(f"an event is a JSON object, not {text[:60]!r}")
    return event


def run_subscribe(
    where: str | None,
    id: str | None,
    options: Mapping[str, Any],
    count: int,
    url: str,
    token: str | None,
) -> int:
    """Print notifications; a subscription that is made here and not durable ends here.

    Where this process is killed, the broker ends it after a minute.
    """
    from tocsin.broker.client import connect
    from tocsin.errors import RefusedError

    durable = bool(options.get("durable"))
    if where is None and id is None:
        raise ArgumentError("give a condition, or --id of an existing subscription")
    with connect(url, token) as client:
        made = None
        if where is not None:
            try:
                linger = None if durable else _LINGER
                id = made = client.subscribe(id, where, **options, linger=linger)
            except RefusedError as error:
                if error.code != "duplicate-id" or not durable:
                    raise
        assert id is not None
        notes = client.notifications(id)
        try:
            for at, note in enumerate(notes, 1):
                typer.echo(json.dumps(asdict(note), ensure_ascii=False))
                sys.stdout.flush()
                if at == count:
                    if durable:
                        client.acknowledge(id, note.id)
                    break
        finally:
            notes.close()
            if made is not None and not durable:
                with contextlib.suppress(Exception):
                    client.unsubscribe(made)
    return OK


def run_dead_list(id: str, url: str, token: str | None) -> int:
    """Print dead letters."""
    from tocsin.broker.client import connect

    with connect(url, token) as client:
        for letter in client.dead_letters(id):
            typer.echo(json.dumps(letter, ensure_ascii=False))
    return OK


def run_dead(
    act: str, id: str, letters: Sequence[int], url: str, token: str | None, as_json: bool
) -> int:
    """Revive or purge dead letters: those named, or all."""
    from tocsin.broker.client import connect

    with connect(url, token) as client:
        n = (client.revive if act == "revive" else client.purge)(id, letters or None)
    result = {f"{act}d": n}
    typer.echo(json.dumps(result) if as_json else f"{n} dead letters {act}d")
    return OK


def run_backup(file: Path, data: Path) -> int:
    """Copy a broker's database."""
    from tocsin.broker.backup import back_up

    typer.echo(f"{file}: {back_up(data, file)} bytes, checked")
    return OK


def run_restore(file: Path | None, data: Path) -> int:
    """Put a backup in the place of a broker's database."""
    from tocsin.broker.backup import BEFORE, restore

    restore(data, file)
    typer.echo(f"restored {data}; the next start begins a new epoch")
    if file is not None and (data / BEFORE).exists():
        say(f"the database that was there is kept as {data / BEFORE}")
    return OK
