"""The tables of a broker's database, and the statements that change them.

Enters: a connection and rows. Leaves: changes within the caller's transaction. An event is stored
once; `refs` counts its references (notifications, dead letters, retention), and it is deleted with
the last one. A notification has a kind: 0 for a match, 1 for ENTER, -1 for LEAVE. Where its
subscription counts deliveries, `deliveries` counts from when it was made or revived, `earlier`
before that; `due` is when a postponed one is delivered again (0: not postponed). A publication is
stored under its type (empty for none) and key, apart from the events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tocsin.errors import StoreError

VERSION = 3

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
_DELIVERIES = """
ALTER TABLE notifications ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notifications ADD COLUMN earlier INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notifications ADD COLUMN due INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE dead ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX dead_by_time ON dead (at);
CREATE TABLE idempotency (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  digest BLOB NOT NULL,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL,
  matches INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (owner, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_by_time ON idempotency (at);
"""
_DEAD_BYTES = """
UPDATE dead SET bytes = (
  SELECT length(text) + coalesce(length(extra), 0) FROM events e WHERE e.seq = dead.seq
) WHERE seq IN (SELECT seq FROM events);
"""
_UPGRADES = {
    1: f"""
ALTER TABLE notifications ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
{_PAST}""",
    2: _DELIVERIES + _DEAD_BYTES,
}
"""The statements that upgrade a format to the next one."""


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


class Letter(NamedTuple):
    """A notification that becomes a dead letter: its number, why, and how often it was sent."""

    seq: int
    reason: str
    deliveries: int = 0


class KeyRow(NamedTuple):
    """An idempotency key as it is stored: whose, of what content, with the answer it got."""

    owner: str
    key: str
    digest: bytes
    first: int
    last: int
    matches: int
    at: int


class PublicationChanges(NamedTuple):
    """Publications to put and to remove, and events to retain with their ends."""

    put: Sequence[PublicationRow] = ()
    gone: Sequence[tuple[str, str]] = ()
    retained: Sequence[tuple[int, int]] = ()


def is_current(connection: sqlite3.Connection, path: str) -> bool:
    """Whether a database has the format of this version; refuse a newer one."""
    return check_version(connection, path) == VERSION


def check_version(connection: sqlite3.Connection, path: str) -> int:
    """Return the format of a database; refuse a newer one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StoreError(path, f"format {version} was written by a newer version of Tocsin")
    return int(version)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables where there are none, change old ones; refuse a newer format."""
    version = check_version(connection, path)
    if version == 0:
        script = f"BEGIN;{_TABLES}{_PAST}{_DELIVERIES}PRAGMA user_version = {VERSION};COMMIT;"
        connection.executescript(script)
        return
    for old in range(version, VERSION):
        script = f"BEGIN;{_UPGRADES[old]}PRAGMA user_version = {old + 1};COMMIT;"
        connection.executescript(script)


def read_meta(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the numbers that the database keeps about itself, by name."""
    return dict(connection.execute("SELECT name, value FROM meta").fetchall())


def write_meta(connection: sqlite3.Connection, **values: int) -> None:
    """Store numbers that the database keeps about itself."""
    connection.executemany("REPLACE INTO meta VALUES (?, ?)", values.items())


def stamp(connection: sqlite3.Connection, number: int) -> None:
    """Store the number of a transaction within it."""
    connection.execute("REPLACE INTO meta VALUES ('commit', ?)", (number,))


def last_stamp(connection: sqlite3.Connection) -> int:
    """Return the number of the last transaction."""
    row = connection.execute("SELECT value FROM meta WHERE name='commit'").fetchone()
    return int(row[0]) if row else 0


def reserve(connection: sqlite3.Connection, upto: int) -> None:
    """Reserve the event numbers below a limit."""
    write_meta(connection, reserved=upto)


def first_free(connection: sqlite3.Connection) -> int:
    """Return the first event number that was never used.

    It is beyond the reserved ones, and beyond any that a row has all the same.
    """
    (last,) = connection.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM events), 0), "
        "coalesce((SELECT max(seq) FROM publications), 0))"
    ).fetchone()
    return max(read_meta(connection).get("reserved", 1), int(last) + 1)


def renew_instance(connection: sqlite3.Connection, instance: str) -> None:
    """Give the broker another instance id, where it has been in a network."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name='network'").fetchone():
        connection.execute("UPDATE network SET instance=?", (instance,))


def add_events(
    connection: sqlite3.Connection,
    events: Sequence[EventRow],
    notes: Sequence[Note],
    changes: PublicationChanges | None = None,
) -> None:
    """Store events, their notifications, and changes of publications."""
    connection.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", events)
    connection.executemany("INSERT INTO notifications (no, seq, kind) VALUES (?,?,?)", notes)
    if changes is not None:
        connection.executemany("DELETE FROM publications WHERE type=? AND key=?", changes.gone)
        connection.executemany("REPLACE INTO publications VALUES (?,?,?,?,?,?,?)", changes.put)
        connection.executemany("INSERT INTO retained VALUES (?,?)", changes.retained)


def add_existing(
    connection: sqlite3.Connection,
    events: Sequence[EventRow],
    notes: Sequence[Note],
    change: Callable[..., object],
    *args: object,
) -> None:
    """Make a change, and store notifications of new events and of events that are stored."""
    change(connection, *args)
    new = {event.seq for event in events}
    old = [(seq,) for _, seq, _ in notes if seq not in new]
    add_events(connection, events, notes)
    connection.executemany("UPDATE events SET refs=refs+1 WHERE seq=?", old)


def forget_retained(connection: sqlite3.Connection, seqs: Sequence[int]) -> None:
    """Retain events no longer; delete those without notifications."""
    rows = [(seq,) for seq in seqs]
    connection.executemany("DELETE FROM retained WHERE seq=?", rows)
    _release(connection, rows)


def add_subscriptions(connection: sqlite3.Connection, rows: Sequence[SubscriptionRow]) -> None:
    """Store new subscriptions."""
    connection.executemany("INSERT INTO subscriptions VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)


def change_subscription(connection: sqlite3.Connection, row: SubscriptionRow) -> None:
    """Store a changed subscription; `missed` stays."""
    connection.execute(
        "UPDATE subscriptions SET condition=?, params=?, valid_until=?, options=? WHERE no=?",
        (row.condition, row.params, row.valid_until, row.options, row.no),
    )


def remove_subscriptions(connection: sqlite3.Connection, nos: Sequence[int]) -> None:
    """Delete subscriptions and their notifications."""
    for no in nos:
        for table in ("notifications", "dead"):
            gone = connection.execute(f"DELETE FROM {table} WHERE no=? RETURNING seq", (no,))
            _release(connection, gone.fetchall())
        connection.execute("DELETE FROM subscriptions WHERE no=?", (no,))


def remove_strays(connection: sqlite3.Connection) -> None:
    """Delete notifications without a subscription, before its number is used again."""
    strays = connection.execute(
        "SELECT no FROM notifications WHERE no>0 UNION SELECT no FROM dead WHERE no>0 "
        "EXCEPT SELECT no FROM subscriptions"
    )
    remove_subscriptions(connection, [no for (no,) in strays.fetchall()])


def acknowledge(connection: sqlite3.Connection, no: int, seqs: Sequence[int]) -> int:
    """Delete notifications of a subscription; return how many."""
    gone: list[tuple[int]] = []
    for seq in seqs:
        gone += connection.execute(
            "DELETE FROM notifications WHERE no=? AND seq=? RETURNING seq", (no, seq)
        ).fetchall()
    _release(connection, gone)
    return len(gone)


def acknowledge_upto(connection: sqlite3.Connection, no: int, seq: int) -> int:
    """Delete the notifications of a subscription up to a number; return how many.

    Postponed ones stay: the reader is not done with them.
    """
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq<=? AND due=0 RETURNING seq", (no, seq)
    ).fetchall()
    _release(connection, gone)
    return len(gone)


def drop_oldest(connection: sqlite3.Connection, no: int, n: int) -> int:
    """Delete the oldest notifications of a subscription, and count them as missed."""
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq IN "
        "(SELECT seq FROM notifications WHERE no=? ORDER BY seq LIMIT ?) RETURNING seq",
        (no, no, n),
    ).fetchall()
    _release(connection, gone)
    connection.execute("UPDATE subscriptions SET missed=missed+? WHERE no=?", (len(gone), no))
    return len(gone)


def bury(connection: sqlite3.Connection, no: int, letter: Letter, at: int) -> tuple[int, int]:
    """Move a notification to the dead letters; return how many, of how many bytes.

    Its event stays.
    """
    gone = connection.execute(
        "DELETE FROM notifications WHERE no=? AND seq=? RETURNING kind, deliveries + earlier",
        (no, letter.seq),
    ).fetchall()
    n_bytes = 0
    for kind, n_counted in gone:
        (n_bytes,) = connection.execute(
            "SELECT length(text) + coalesce(length(extra), 0) FROM events WHERE seq=?",
            (letter.seq,),
        ).fetchone()
        n_deliveries = max(1, n_counted, letter.deliveries)
        connection.execute(
            "INSERT INTO dead (no, seq, reason, at, kind, deliveries, bytes) "
            "VALUES (?,?,?,?,?,?,?)",
            (no, letter.seq, letter.reason[:500], at, _sound(kind), n_deliveries, n_bytes),
        )
    return len(gone), n_bytes


def _sound(kind: object) -> object:
    """Return the kind of a notification; 0 for a value that was never written."""
    return kind if kind in (-1, 0, 1) else 0


def dead_numbers(connection: sqlite3.Connection, no: int, seqs: Sequence[int] | None) -> list[int]:
    """Return the numbers of the dead letters of a subscription, of all or of those named."""
    rows = connection.execute("SELECT seq FROM dead WHERE no=? ORDER BY seq", (no,)).fetchall()
    named = None if seqs is None else set(seqs)
    return [seq for (seq,) in rows if named is None or seq in named]


def revive(
    connection: sqlite3.Connection, no: int, numbers: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Make notifications of dead letters, under new numbers; return how many, of how many bytes.

    A reader that acknowledges up to a number has not seen letters revived since, so they come after
    everything sent before.
    """
    n = n_bytes = 0
    for old, new in numbers:
        gone = connection.execute(
            "DELETE FROM dead WHERE no=? AND seq=? RETURNING kind, deliveries, bytes", (no, old)
        ).fetchall()
        for kind, n_deliveries, size in gone:
            connection.execute(
                "INSERT INTO events (seq, type, text, extra, valid_until, published, refs) "
                "SELECT ?, type, text, extra, valid_until, published, 1 FROM events WHERE seq=?",
                (new, old),
            )
            connection.execute(
                "INSERT INTO notifications (no, seq, kind, earlier) VALUES (?,?,?,?)",
                (no, new, kind, n_deliveries),
            )
            _release(connection, [(old,)])
            n, n_bytes = n + 1, n_bytes + size
    return n, n_bytes


def purge(connection: sqlite3.Connection, no: int, seqs: Sequence[int] | None) -> tuple[int, int]:
    """Delete dead letters, all or those named; return how many, of how many bytes."""
    if seqs is None:
        gone = connection.execute("DELETE FROM dead WHERE no=? RETURNING seq, bytes", (no,))
        return _forget_dead(connection, gone.fetchall())
    rows: list[tuple[int, int]] = []
    for seq in seqs:
        rows += connection.execute(
            "DELETE FROM dead WHERE no=? AND seq=? RETURNING seq, bytes", (no, seq)
        ).fetchall()
    return _forget_dead(connection, rows)


def drop_dead(
    connection: sqlite3.Connection, no: int, n_surplus: int, surplus_bytes: int
) -> tuple[int, int]:
    """Delete the oldest dead letters until a number of them and of bytes is deleted."""
    rows: list[tuple[int, int]] = []
    left, left_bytes = n_surplus, surplus_bytes
    for seq, size in connection.execute(
        "SELECT seq, bytes FROM dead WHERE no=? ORDER BY seq", (no,)
    ):
        if left <= 0 and left_bytes <= 0:
            break
        rows.append((seq, size))
        left, left_bytes = left - 1, left_bytes - size
    connection.executemany("DELETE FROM dead WHERE no=? AND seq=?", [(no, seq) for seq, _ in rows])
    return _forget_dead(connection, rows)


def expire_dead(
    connection: sqlite3.Connection, before: int, limit: int
) -> list[tuple[int, int, int]]:
    """Delete dead letters older than a time; return their subscriptions, numbers and bytes."""
    gone = connection.execute(
        "DELETE FROM dead WHERE (no, seq) IN "
        "(SELECT no, seq FROM dead WHERE at<? ORDER BY at LIMIT ?) RETURNING no, seq, bytes",
        (before, limit),
    ).fetchall()
    _release(connection, [(seq,) for _, seq, _ in gone])
    return gone


def _forget_dead(
    connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    _release(connection, [(seq,) for seq, _ in rows])
    return len(rows), sum(size for _, size in rows)


def count_deliveries(connection: sqlite3.Connection, no: int, seqs: Sequence[int]) -> None:
    """Count one more delivery of notifications; they are no longer postponed."""
    connection.executemany(
        "UPDATE notifications SET deliveries=deliveries+1, due=0 WHERE no=? AND seq=?",
        [(no, seq) for seq in seqs],
    )


def put_off(connection: sqlite3.Connection, no: int, seqs: Sequence[int], due: int) -> int:
    """Postpone notifications until a time; return how many."""
    return sum(
        connection.execute(
            "UPDATE notifications SET due=?, deliveries=max(deliveries, 1) WHERE no=? AND seq=?",
            (due, no, seq),
        ).rowcount
        for seq in seqs
    )


def add_keys(connection: sqlite3.Connection, rows: Sequence[KeyRow]) -> None:
    """Store the idempotency keys of publishes."""
    connection.executemany("REPLACE INTO idempotency VALUES (?,?,?,?,?,?,?)", rows)


def find_key(connection: sqlite3.Connection, owner: str, key: str) -> KeyRow | None:
    """Return an idempotency key, or None where it is not known."""
    row = connection.execute(
        "SELECT * FROM idempotency WHERE owner=? AND key=?", (owner, key)
    ).fetchone()
    return None if row is None else KeyRow(*row)


def keys(connection: sqlite3.Connection, since: int) -> list[KeyRow]:
    """Return the idempotency keys since a time, in order."""
    rows = connection.execute("SELECT * FROM idempotency WHERE at>=? ORDER BY at", (since,))
    return [KeyRow(*row) for row in rows.fetchall()]


def forget_keys(
    connection: sqlite3.Connection, before: int, named: Sequence[tuple[str, str, int]]
) -> None:
    """Delete idempotency keys older than a time, and others by owner, name and time."""
    connection.execute("DELETE FROM idempotency WHERE at<?", (before,))
    connection.executemany("DELETE FROM idempotency WHERE owner=? AND key=? AND at=?", named)


def _release(connection: sqlite3.Connection, seqs: Sequence[tuple[int]]) -> None:
    connection.executemany("UPDATE events SET refs=refs-1 WHERE seq=?", seqs)
    connection.executemany("DELETE FROM events WHERE seq=? AND refs<=0", seqs)


_EVENT = "e.seq, e.type, e.text, e.extra, e.valid_until, e.published"


_NOTE = f"{_EVENT}, n.kind, n.deliveries, n.earlier, n.due"


def page(connection: sqlite3.Connection, no: int, after: int, limit: int) -> list[tuple[Any, ...]]:
    """Return the events that a subscription has not acknowledged, in order.

    With each comes its kind, its deliveries and earlier ones, and when it is due if postponed.
    """
    return connection.execute(
        f"SELECT {_NOTE} FROM notifications n JOIN events e ON e.seq = n.seq "
        "WHERE n.no=? AND n.seq>? ORDER BY n.seq LIMIT ?",
        (no, after, limit),
    ).fetchall()


def notifications(
    connection: sqlite3.Connection, no: int, seqs: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return unacknowledged notifications by their numbers, as `page` does."""
    rows: list[tuple[Any, ...]] = []
    for seq in seqs:
        rows += connection.execute(
            f"SELECT {_NOTE} FROM notifications n JOIN events e ON e.seq = n.seq "
            "WHERE n.no=? AND n.seq=?",
            (no, seq),
        ).fetchall()
    return rows


def dead_letters(
    connection: sqlite3.Connection, no: int, after: int, limit: int, max_bytes: int
) -> tuple[list[tuple[Any, ...]], bool]:
    """Return a page of events that could not be delivered, and whether there are more.

    With each comes its kind, the reason, the moment and the number of deliveries. A page has at
    least one letter and ends where its texts come to more than `max_bytes`.
    """
    rows: list[tuple[Any, ...]] = []
    n_bytes = 0
    for row in connection.execute(
        f"SELECT {_EVENT}, d.kind, d.reason, d.at, d.deliveries "
        "FROM dead d JOIN events e ON e.seq = d.seq WHERE d.no=? AND d.seq>? ORDER BY d.seq",
        (no, after),
    ):
        n_bytes += len(row[2])
        if len(rows) >= limit or (rows and n_bytes > max_bytes):
            return rows, True
        rows.append(row)
    return rows, False


def dead_totals(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Return for each subscription with dead letters how many, and of how many bytes."""
    return connection.execute("SELECT no, count(*), sum(bytes) FROM dead GROUP BY no").fetchall()


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
