"""`tocsin token`: tokens made, listed, given other secrets, and revoked, in a broker's database.

Enters: options, and the folder of a broker that runs or does not. Leaves: rows, which a running
broker sees within two seconds, and lines in the audit log. Files that are made here can be read by
their owner only.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from tocsin.cli.console import OK, printable, say
from tocsin.errors import ArgumentError, StoreError

_DAY = 86_400_000_000
_PATIENCE = 15.0


@contextlib.contextmanager
def _opened(data: Path, *, is_new: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the database of a broker; where it may be new, make it."""
    from tocsin.broker.storage import FILE, open_folder

    if not is_new and not (data / FILE).exists():
        raise ArgumentError(f"there is no broker's database in {data}: say which with --data")
    mask = os.umask(0o077)
    try:
        with contextlib.closing(open_folder(data)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreError(str(data / FILE), str(error)) from None
    finally:
        os.umask(mask)


def _record(data: Path, act: str, **facts: Any) -> None:
    """Write an act into the audit log; one that cannot be written is said, and does not fail."""
    from tocsin.broker.audit import append

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    try:
        append(data, act, by="command", user=user, **facts)
    except OSError as error:
        say(f"the audit log cannot be written: {error.strerror}")


def _end_after(days: int) -> int | None:
    return time.time_ns() // 1000 + days * _DAY if days else None


def run_token_create(
    name: str,
    data: Path,
    publish: Sequence[str],
    subscribe: Sequence[str],
    admin: bool,
    link: str,
    days: int,
) -> int:
    """Make a token."""
    from tocsin.broker.tokens import Rights, create, id_of

    rights = Rights(tuple(publish), tuple(subscribe), admin, link)
    if rights == Rights():
        raise ArgumentError(
            "a token without rights is useless: --publish, --subscribe, --link or --admin"
        )
    with _opened(data, is_new=True) as connection:
        token = create(connection, name, rights, _end_after(days))
        granted = json.loads(rights.to_json())
        _record(data, "token.create", token=id_of(token), name=name, **granted)
    typer.echo(token)
    say("keep it safe: it cannot be shown again")
    return OK


def run_token_list(data: Path, as_json: bool) -> int:
    """List tokens, and the owners of subscriptions that have none any more."""
    from tocsin.broker.tokens import listing, orphans

    with _opened(data) as connection:
        tokens, left = listing(connection), orphans(connection)
    for each in tokens:
        typer.echo(json.dumps(each) if as_json else printable(_describe(each)))
    for owner, n in left.items():
        line = {"id": owner, "revoked": True, "subscriptions": n}
        text = f"{owner}  revoked; {_count(n)} left, suspended"
        typer.echo(json.dumps(line) if as_json else printable(text))
    return OK


def _count(n: int) -> str:
    return f"{n} subscription{'' if n == 1 else 's'}"


def _describe(token: dict[str, Any]) -> str:
    parts = [token["id"], token["name"]]
    rights = f"publish {token['publish']} subscribe {token['subscribe']}"
    rights += " admin" if token["admin"] else ""
    rights += f" link {token['link']!r}" if token.get("link") else ""
    parts += [rights, _count(token["subscriptions"])]
    if token["expires"] is not None:
        end = datetime.fromtimestamp(token["expires"] / 1e6, UTC)
        word = "expired" if end <= datetime.now(UTC) else "until"
        parts.append(f"{word} {end:%Y-%m-%d %H:%M} UTC")
    return "  ".join(parts)


def run_token_rotate(id: str, data: Path, days: int | None) -> int:
    """Give a token another secret, and another end where one is named."""
    from tocsin.broker.tokens import find, rotate

    with _opened(data) as connection:
        known = find(connection, id)
        if known is None:
            raise ArgumentError(f"there is no token {id!r}")
        end = known["expires"] if days is None else _end_after(days)
        if end is not None and end <= time.time_ns() // 1000:
            raise ArgumentError("it has expired: say for how long it counts with --days")
        token = rotate(connection, id, end)
        _record(data, "token.rotate", token=id, name=known["name"], expires=end)
    typer.echo(token)
    say("keep it safe: it cannot be shown again; the old one counts no more")
    return OK


def run_token_revoke(id: str, data: Path, with_subscriptions: bool) -> int:
    """Revoke a token, and remove its subscriptions where that is asked for."""
    from tocsin.broker.tokens import find, owned, revoke

    command = f"tocsin token revoke {id} --with-subscriptions --data {data}"
    with _opened(data) as connection:
        known, n = find(connection, id), owned(connection).get(id, 0)
        if known is None and not (n and with_subscriptions):
            more = f"; {_count(n)} of it left: {command}" if n else ""
            raise ArgumentError(f"there is no token {id!r}{more}")
        revoke(connection, id, with_subscriptions)
        name = None if known is None else known["name"]
        _record(data, "token.revoke", token=id, name=name, with_subscriptions=with_subscriptions)
        typer.echo(f"revoked {id}")
        if with_subscriptions:
            typer.echo(_remove(connection, data, id, n))
        elif n:
            say(
                f"ATTENTION: {_count(n)} of this token STAY, suspended: no webhook is called "
                f"and no backlog grows, but what waits for them is kept. To remove them: {command}"
            )
    return OK


def _remove(connection: sqlite3.Connection, data: Path, owner: str, n: int) -> str:
    """Have an owner's subscriptions removed: by the broker where one runs, else here."""
    from tocsin.broker.storage import lock_folder
    from tocsin.broker.tokens import removals, remove_owned

    lock = lock_folder(data)
    if lock is not None:
        with lock:
            remove_owned(connection, owner)
        return f"removed {_count(n)}"
    end = time.monotonic() + _PATIENCE
    while owner in removals(connection):
        if time.monotonic() > end:
            return (
                f"{_count(n)} to be removed, but the broker that runs has not "
                "done so yet; at the latest it does when it starts again"
            )
        time.sleep(0.1)
    return f"the running broker has removed {_count(n)}"
