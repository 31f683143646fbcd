"""The tables of a broker's database, and the statements that change them.

Enters: a connection and rows. Leaves: changes within the caller's transaction. An event is stored
once; `refs` counts what needs it (notifications, dead letters, being retained), and the last one
takes it away. A notification has a kind: 0 for a match, 1 for ENTER, -1 for LEAVE. A publication is
stored under its type (empty where it has none) and key, apart from the events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tocsin.errors import StoreError

VERSION = 2

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE subscriptions (
  no INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  type TEXT,
  condition TEXT NOT NULL,
  params TEXT NOT NULL,
  durable INTEGER NOT NULL,
  valid_until INTEGER,
  owner TEXT NOT NULL,
  options TEXT NOT NULL,
  missed INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL
);
CREATE TABLE events (
  seq INTEGER PRIMARY KEY,
  type TEXT,
  text BLOB NOT NULL,
  extra BLOB,
  valid_until INTEGER,
  published INTEGER NOT NULL,
  refs INTEGER NOT NULL
);
CREATE TABLE notifications (
  no INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (no, seq)
) WITHOUT ROWID;
CREATE TABLE dead (
  no INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  reason TEXT NOT NULL,
  at INTEGER NOT NULL,
  kind INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (no, seq)
) WITHOUT ROWID;
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  hash BLOB NOT NULL,
  rights TEXT NOT NULL,
  expires INTEGER,
  created INTEGER NOT NULL
) WITHOUT ROWID;
"""
_PAST = """
CREATE TABLE publications (
  type TEXT NOT NULL,
  key TEXT NOT NULL,
  seq INTEGER NOT NULL,
  text BLOB NOT NULL,
  extra BLOB,
  valid_until INTEGER,
  published INTEGER NOT NULL,
  PRIMARY KEY (type, key)
);
CREATE TABLE retained (seq INTEGER PRIMARY KEY, until INTEGER NOT NULL);
"""
_UPGRADES = {
    1: f"""
ALTER TABLE notifications ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
{_PAST}"""
}
"""What makes the next format of one."""


class SubscriptionRow(NamedTuple):
    """A subscription as it is stored; params and options are JSON."""

    no: int
    id: str
    type: str | None
    condition: str
    params: str
    durable: int
    valid_until: int | None
    owner: str
    options: str
    missed: int
    created: int


class EventRow(NamedTuple):
    """An event as it is stored."""

    seq: int
    type: str | None
    text: bytes
    extra: bytes | None
    valid_until: int | None
    published: int
    refs: int


class PublicationRow(NamedTuple):
    """A publication as it is stored."""

    type: str
    key: str
    seq: int
    text: bytes
    extra: bytes | None
    valid_until: int | None
    published: int


Note = tuple[int, int, int]
"""A notification: the number of its subscription, that of its event, its kind."""


class Kept(NamedTuple):
    """What becomes of publications, and which events are retained until when."""

    put: Sequence[PublicationRow] = ()
    gone: Sequence[tuple[str, str]] = ()
    retained: Sequence[tuple[int, int]] = ()


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables where there are none, change old ones; refuse a newer format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StoreError(path, f"format {version} was written by a newer version of Tocsin")
    if version == 0:
        script = f"BEGIN;{_TABLES}{_PAST}PRAGMA user_version = {VERSION};COMMIT;"
        connection.executescript(script)
        return
    for old in range(version, VERSION):
        script = f"BEGIN;{_UPGRADES[old]}PRAGMA user_version = {old + 1};COMMIT;"
        connection.executescript(script)


def reserve(connection: sqlite3.Connection, upto: int) -> None:
    """Promise that all event numbers in use are below one."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('reserved', ?)", (upto,))


def first_free(connection: sqlite3.Connection) -> int:
    """Return the first event number that was never used."""
    found = connection.execute("SELECT value FROM meta WHERE name = 'reserved'").fetchone()
    return int(found[0]) if found else 1


def add_events(
    connection: sqlite3.Connection,
    events: Sequence[EventRow],
    notes: Sequence[Note],
    kept: Kept | None = None,
) -> None:
    """Store events, the notifications that need them, and what becomes of publications."""
    connection.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", events)
    connection.executemany("INSERT INTO notifications VALUES (?,?,?)", notes)
    if kept is not None:
        connection.executemany("DELETE FROM publications WHERE type=? AND key=?", kept.gone)
        connection.executemany("REPLACE INTO publications VALUES (?,?,?,?,?,?,?)", kept.put)
        connection.executemany("INSERT INTO retained VALUES (?,?)", kept.retained)


def add_past(
    connection: sqlite3.Connection,
    events: Sequence[EventRow],
    notes: Sequence[Note],
    change: Callable[..., object],
    *args: object,
) -> None:
    """Make a change, and store notifications of what came before; some events are there."""
    change(connection, *args)
    new = {event.seq for event in events}
    old = [(seq,) for _, seq, _ in notes if seq not in new]
    add_events(connection, events, notes)
    connection.executemany("UPDATE events SET refs=refs+1 WHERE seq=?", old)


def forget_retained(connection: sqlite3.Connection, seqs: Sequence[int]) -> None:
    """Retain events no longer; they go, unless somebody has yet to get them."""
    rows = [(seq,) for seq in seqs]
    connection.executemany("DELETE FROM retained WHERE seq=?", rows)
    _release(connection, rows)


def add_subscriptions(connection: sqlite3.Connection, rows: Sequence[SubscriptionRow]) -> None:
    """Store new subscriptions."""
    connection.executemany("INSERT INTO subscriptions VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)


def change_subscription(connection: sqlite3.Connection, row: SubscriptionRow) -> None:
    """Store a subscription anew, but for what it missed."""
    connection.execute(
        "UPDATE subscriptions SET condition=?, params=?, valid_until=?, options=? WHERE no=?",
        (row.condition, row.params, row.valid_until, row.options, row.no),
    )


def remove_subscriptions(connection: sqlite3.Connection, nos: Sequence[int]) -> None:
    """Forget subscriptions and all they were to get."""
    for no in nos:
        for table in ("notifications", "dead"):
            gone = connection.execute(f"DELETE FROM {table} WHERE no=? RETURNING seq", (no,))
            _release(connection, gone.fetchall())
        connection.execute("DELETE FROM subscriptions WHERE no=?", (no,))


def remove_strays(connection: sqlite3.Connection) -> None:
    """Forget what belongs to no subscription, before its number is given to another."""
    found = connection.execute(
        "SELECT no FROM notifications WHERE no>0 UNION SELECT no FROM dead WHERE no>0 "
        "EXCEPT SELECT no FROM subscriptions"
    )
    remove_subscriptions(connection, [no for (no,) in found.fetchall()])


def acknowledge(connection: sqlite3.Connection, no: int, seqs: Sequence[int]) -> int:
    """Forget notifications of a subscription; return how many there were."""
    gone: list[tuple[int]] = []
    for seq in seqs:
        gone += connection.execute(
            "DELETE FROM notifications WHERE no=? AND seq=? RETURNING seq", (no, seq)
        ).fetchall()
    _release(connection, gone)
    return len(gone)


def acknowledge_upto(connection: sqlite3.Connection, no: int, seq: int) -> int:
    """Forget the notifications of a subscription up to one; return how many they were."""
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq<=? RETURNING seq", (no, seq)
    ).fetchall()
    _release(connection, gone)
    return len(gone)


def drop_oldest(connection: sqlite3.Connection, no: int, n: int) -> int:
    """Forget the oldest notifications of a subscription, and count them as missed."""
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq IN "
        "(SELECT seq FROM notifications WHERE no=? ORDER BY seq LIMIT ?) RETURNING seq",
        (no, no, n),
    ).fetchall()
    _release(connection, gone)
    connection.execute("UPDATE subscriptions SET missed=missed+? WHERE no=?", (len(gone), no))
    return len(gone)


def bury(connection: sqlite3.Connection, no: int, seq: int, reason: str, at: int) -> int:
    """Move a notification to the dead letters; its event stays."""
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq=? RETURNING kind", (no, seq)
    ).fetchall()
    for (kind,) in gone:
        row = (no, seq, reason[:500], at, kind)
        connection.execute("INSERT INTO dead (no, seq, reason, at, kind) VALUES (?,?,?,?,?)", row)
    return len(gone)


def revive(connection: sqlite3.Connection, no: int) -> int:
    """Move the dead letters of a subscription back; return how many they were."""
    gone = connection.execute("DELETE FROM dead WHERE no=? RETURNING no, seq, kind", (no,))
    notes = gone.fetchall()
    connection.executemany("INSERT INTO notifications VALUES (?,?,?)", notes)
    return len(notes)


def _release(connection: sqlite3.Connection, seqs: Sequence[tuple[int]]) -> None:
    connection.executemany("UPDATE events SET refs=refs-1 WHERE seq=?", seqs)
    connection.executemany("DELETE FROM events WHERE seq=? AND refs<=0", seqs)


_EVENT = "e.seq, e.type, e.text, e.extra, e.valid_until, e.published"


def page(connection: sqlite3.Connection, no: int, after: int, limit: int) -> list[tuple[Any, ...]]:
    """Return the events that a subscription has not acknowledged, in order, and their kinds."""
    return connection.execute(
        f"SELECT {_EVENT}, n.kind FROM notifications n JOIN events e ON e.seq = n.seq "
        "WHERE n.no=? AND n.seq>? ORDER BY n.seq LIMIT ?",
        (no, after, limit),
    ).fetchall()


def dead_letters(connection: sqlite3.Connection, no: int, limit: int) -> list[tuple[Any, ...]]:
    """Return events that could not be delivered, with kinds, reasons, moments."""
    return connection.execute(
        f"SELECT {_EVENT}, d.kind, d.reason, d.at FROM dead d JOIN events e ON e.seq = d.seq "
        "WHERE d.no=? ORDER BY d.seq LIMIT ?",
        (no, limit),
    ).fetchall()


def backlogs(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Return for each subscription with notifications how many, and the last."""
    return connection.execute(
        "SELECT no, count(*), max(seq) FROM notifications GROUP BY no"
    ).fetchall()


def subscriptions(connection: sqlite3.Connection) -> list[SubscriptionRow]:
    """Return all subscriptions in the order of their numbers."""
    rows = connection.execute("SELECT * FROM subscriptions ORDER BY no").fetchall()
    return [SubscriptionRow(*row) for row in rows]


def publications(connection: sqlite3.Connection) -> list[PublicationRow]:
    """Return all publications."""
    rows = connection.execute("SELECT * FROM publications ORDER BY seq").fetchall()
    return [PublicationRow(*row) for row in rows]


def retained(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Return the events that are retained, in order, and until when."""
    return connection.execute(
        f"SELECT {_EVENT}, r.until FROM retained r JOIN events e ON e.seq = r.seq ORDER BY r.seq"
    ).fetchall()
