"""What a broker stores about its network: who it is, its neighbours, what its router knows.

Enters: a connection and values. Leaves: changes within the caller's transaction. Events that wait
for a neighbour are notifications, as those of subscriptions are, under negative numbers.
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


class NeighbourRow(NamedTuple):
    """A neighbour: its number, which life of its database is meant, the last event taken of it."""

    name: str
    no: int
    instance: str
    taken: int


def prepare(connection: sqlite3.Connection) -> tuple[str, str | None]:
    """Make the tables where there are none; return who this broker is, and its router's state."""
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO network VALUES (1, ?, NULL)", (secrets.token_hex(8),))
    instance, state = connection.execute("SELECT instance, state FROM network").fetchone()
    return str(instance), state


def save_state(connection: sqlite3.Connection, state: str) -> None:
    """Store what the router knows."""
    connection.execute("UPDATE network SET state=?", (state,))


def neighbours(connection: sqlite3.Connection) -> list[NeighbourRow]:
    """Return all neighbours."""
    rows = connection.execute("SELECT name, no, instance, taken FROM neighbours").fetchall()
    return [NeighbourRow(*row) for row in rows]


def set_neighbour(connection: sqlite3.Connection, row: NeighbourRow) -> None:
    """Store a neighbour, or that its database is another one."""
    connection.execute("REPLACE INTO neighbours VALUES (?,?,?,?)", row)


def remove_neighbour(connection: sqlite3.Connection, name: str) -> None:
    """Forget a neighbour."""
    connection.execute("DELETE FROM neighbours WHERE name=?", (name,))


def mark(connection: sqlite3.Connection, name: str, seq: int) -> None:
    """Take note of the last event that a neighbour sent."""
    connection.execute("UPDATE neighbours SET taken=max(taken, ?) WHERE name=?", (seq, name))


def waiting(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Return the numbers of neighbours with events that wait, how many, and the last."""
    return connection.execute(
        "SELECT no, count(*), max(seq) FROM notifications WHERE no<0 GROUP BY no"
    ).fetchall()
