"""The tables of a network: the instance of this broker, its peers, the state of its router.

Enters: a connection and values. Leaves: changes within the caller's transaction. Events that wait
for a peer are notifications, as those of subscriptions are, under negative numbers.
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import NamedTuple

_TABLES = """
CREATE TABLE IF NOT EXISTS network (
  one INTEGER PRIMARY KEY CHECK (one = 1), instance TEXT NOT NULL, state TEXT
);
CREATE TABLE IF NOT EXISTS neighbours (
  name TEXT PRIMARY KEY, no INTEGER NOT NULL UNIQUE, instance TEXT NOT NULL, taken INTEGER NOT NULL
) WITHOUT ROWID;
"""


class PeerRow(NamedTuple):
    """A peer: its number, the instance of its database, the last sequence number received."""

    name: str
    no: int
    instance: str
    last_received: int


def prepare(connection: sqlite3.Connection) -> tuple[str, str | None]:
    """Make the tables where there are none; return who this broker is, and its router's state."""
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO network VALUES (1, ?, NULL)", (secrets.token_hex(8),))
    instance, state = connection.execute("SELECT instance, state FROM network").fetchone()
    return str(instance), state


def save_state(connection: sqlite3.Connection, state: str) -> None:
    """Store the state of the router."""
    connection.execute("UPDATE network SET state=?", (state,))


def peers(connection: sqlite3.Connection) -> list[PeerRow]:
    """Return all peers."""
    rows = connection.execute("SELECT name, no, instance, taken FROM neighbours").fetchall()
    return [PeerRow(*row) for row in rows]


def set_peer(connection: sqlite3.Connection, row: PeerRow) -> None:
    """Store a peer, or that its database is another one."""
    connection.execute("REPLACE INTO neighbours VALUES (?,?,?,?)", row)


def remove_peer(connection: sqlite3.Connection, name: str) -> None:
    """Forget a peer."""
    connection.execute("DELETE FROM neighbours WHERE name=?", (name,))


def mark(connection: sqlite3.Connection, name: str, seq: int) -> None:
    """Store the last sequence number received from a peer."""
    connection.execute("UPDATE neighbours SET taken=max(taken, ?) WHERE name=?", (seq, name))


def waiting(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Return the numbers of peers with events that wait, how many, and the last."""
    return connection.execute(
        "SELECT no, count(*), max(seq) FROM notifications WHERE no<0 GROUP BY no"
    ).fetchall()
