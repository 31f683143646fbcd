"""Tokens: authentication and rights.

Enters: a secret that a client shows. Leaves: a `Principal` with its rights, or an error. A token is
`tocsin_ID.SECRET`; the database has the id and the SHA-256 of the secret, which is 32 random bytes,
so that nothing slower is needed to keep it from being guessed. Hashes are compared in constant
time. Changes made by `tocsin token` are seen after `_FRESH` seconds at most.

A token's id is also the owner of the subscriptions made with it, and is never used twice. Where
subscriptions are to be removed with their token, a row of the table `meta` (`REMOVAL` and the id)
says so until the broker has removed them, in memory too.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tocsin.broker import schema
from tocsin.errors import ArgumentError, LimitError, NotAllowedError, UnavailableError

_FRESH = 1.0
PREFIX = "tocsin_"
REMOVAL = "revoked:"
"""The prefix of rows in `meta` that have an owner's subscriptions removed."""


@dataclass(frozen=True)
class Rights:
    """The rights of a token: event types to publish and to subscribe to (`*`: all), and admin.

    `link` is the name of the one broker that may open a link with it; empty: none may.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    link: str = ""

    def to_json(self) -> str:
        """Return the rights as they are stored."""
        stored = {"publish": self.publish, "subscribe": self.subscribe, "admin": self.admin}
        return json.dumps({**stored, "link": self.link} if self.link else stored)


ALL = Rights(("*",), ("*",), True)


class Bucket:
    """A token bucket: a rate per second, with a burst of one second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._left = max(rate, 1.0)
        self._at = time.monotonic()

    def take(self, n: int) -> None:
        """Take n, or say when there will be enough."""
        if not self.rate:
            return
        now = time.monotonic()
        self._left = min(max(self.rate, 1.0), self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left <= 0:
            raise LimitError(
                "too many events a second", "events_per_second", -self._left / self.rate + 0.1
            )
        self._left -= n  # a burst may overdraw once, and is paid for by waiting


@dataclass
class Principal:
    """A client with its token, or any client where no tokens are required."""

    id: str
    name: str
    rights: Rights
    expires: int | None = None
    bucket: Bucket = field(default_factory=lambda: Bucket(0))
    digest: bytes = field(default=b"", repr=False)
    """The hash of the secret that was shown."""
    is_local: bool = False
    """Whether this is any client of a broker that requires no tokens."""

    def may_publish(self, type: str | None) -> None:
        """Raise NotAllowedError where this client may not publish events of a type."""
        if not _allows(self.rights.publish, type):
            raise NotAllowedError(
                f"no right to publish {type or 'events without a type'}", known=True
            )

    def may_subscribe(self, type: str | None) -> None:
        """Raise NotAllowedError where this client may not subscribe to a type; None: to all."""
        if not _allows(self.rights.subscribe, type):
            raise NotAllowedError(f"no right to subscribe to {type or 'every type'}", known=True)

    def may_link(self, name: str) -> bool:
        """Return whether this client may open a link as a broker of this name."""
        return self.is_local or (bool(name) and self.rights.link == name)

    def must_be_link(self, name: str) -> None:
        """Raise NotAllowedError where this client may not link as a broker of this name."""
        if not self.may_link(name):
            raise NotAllowedError(
                f"this token may not link as {name!r}: links need a token of their own, made "
                "where the link ends with: tocsin token create NAME --link BROKER",
                known=True,
            )

    def may_see(self, owner: str) -> bool:
        """Return whether this client may see subscriptions of an owner."""
        return self.rights.admin or owner == self.id

    def must_be_admin(self) -> None:
        """Raise NotAllowedError where this client is no admin."""
        if not self.rights.admin:
            raise NotAllowedError("this needs the right admin", known=True)


def _allows(patterns: tuple[str, ...], type: str | None) -> bool:
    return "*" in patterns or (type is not None and type in patterns)


class Tokens:
    """The tokens of a broker, cached for a second."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection] | None,
        events_per_second: float = 0,
        on_refused: Callable[[str, str | None], None] = lambda reason, source: None,
    ) -> None:
        self._connection = connect() if connect is not None else None
        self._rate = events_per_second
        self._known: dict[str, tuple[bytes, Principal]] = {}
        self._until = 0.0
        self.anybody = Principal(
            "", "anybody", ALL, bucket=Bucket(events_per_second), is_local=True
        )
        self._on_refused = on_refused

    @property
    def are_needed(self) -> bool:
        """Whether clients must show a token."""
        return self._connection is not None

    def authenticate(self, token: str | None, source: str | None = None) -> Principal:
        """Return the client of a token; `source` is its address, for the audit log."""
        if self._connection is None:
            return self.anybody
        if not token:
            raise self._refusal("missing", "a token is needed", source)
        id, _, secret = token.removeprefix(PREFIX).partition(".")
        digest, principal = self._read().get(id, (b"\0" * 32, None))
        shown = hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
        if not hmac.compare_digest(shown, digest) or principal is None:
            raise self._refusal("unknown", "the token is not known", source)
        if _has_expired(principal):
            raise self._refusal("expired", "the token has expired", source)
        return principal

    def _refusal(self, reason: str, text: str, source: str | None) -> NotAllowedError:
        self._on_refused(reason, source)
        return NotAllowedError(text)

    def is_valid(self, principal: Principal) -> bool:
        """Return whether a client that was authenticated before would be now, with its secret."""
        if self._connection is None:
            return True
        digest, now = self._read().get(principal.id, (b"", None))
        return now is not None and digest == principal.digest and not _has_expired(now)

    def is_owner(self, owner: str) -> bool:
        """Return whether the token of a subscription is valid, or none was required."""
        if self._connection is None or not owner:
            return True
        _, principal = self._read().get(owner, (b"", None))
        return principal is not None and not _has_expired(principal)

    def refresh(self) -> None:
        """Read the tokens from the database on next use."""
        self._until = 0.0

    def _read(self) -> dict[str, tuple[bytes, Principal]]:
        now = time.monotonic()
        if now >= self._until:
            assert self._connection is not None
            try:
                rows = self._connection.execute(
                    "SELECT id, name, hash, rights, expires FROM tokens"
                ).fetchall()
            except sqlite3.Error as error:
                raise UnavailableError(f"the tokens cannot be read: {error}") from None
            known = {}
            for id, name, digest, rights, expires in rows:
                before = self._known.get(id)
                bucket = before[1].bucket if before else Bucket(self._rate)
                principal = Principal(id, name, read_rights(rights), expires, bucket, digest)
                known[id] = (digest, principal)
            self._known, self._until = known, now + _FRESH
        return self._known

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _has_expired(principal: Principal) -> bool:
    return principal.expires is not None and principal.expires <= time.time_ns() // 1000


def read_rights(text: str) -> Rights:
    """Return rights as they were stored."""
    stored: dict[str, Any] = json.loads(text)
    return Rights(
        tuple(stored["publish"]),
        tuple(stored["subscribe"]),
        bool(stored["admin"]),
        str(stored.get("link", "")),
    )


def create(
    connection: sqlite3.Connection, name: str, rights: Rights, expires: int | None = None
) -> str:
    """Store a new token and return it; it can never be shown again."""
    if not name or len(name) > 100 or not name.isprintable():
        raise ArgumentError("a token's name is a text of 1 to 100 printable characters")
    if len(rights.link) > 100 or not rights.link.isprintable():
        raise ArgumentError("a broker's name is a text of at most 100 printable characters")
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    connection.execute(
        "INSERT INTO tokens VALUES (?,?,?,?,?,?)",
        (id, name, _hash(secret), rights.to_json(), expires, time.time_ns() // 1000),
    )
    return f"{PREFIX}{id}.{secret}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def id_of(token: str) -> str:
    """Return the id in a token."""
    return token.removeprefix(PREFIX).partition(".")[0]


def find(connection: sqlite3.Connection, id: str) -> dict[str, Any] | None:
    """Return a token without its secret, or None where there is no such token."""
    return next((each for each in listing(connection) if each["id"] == id), None)


def rotate(connection: sqlite3.Connection, id: str, expires: int | None) -> str | None:
    """Give a token a new secret and end; return it, or None where there is no such token.

    Rights and subscriptions stay. The old secret becomes invalid.
    """
    secret = secrets.token_urlsafe(32)
    changed = connection.execute(
        "UPDATE tokens SET hash=?, expires=? WHERE id=?", (_hash(secret), expires, id)
    )
    return f"{PREFIX}{id}.{secret}" if changed.rowcount else None


def revoke(connection: sqlite3.Connection, id: str, with_subscriptions: bool = False) -> bool:
    """Delete a token; return whether there was one.

    With its subscriptions, those are to be removed even if the token was deleted before.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        is_known = connection.execute("DELETE FROM tokens WHERE id=?", (id,)).rowcount > 0
        if with_subscriptions:
            row = (REMOVAL + id, time.time_ns() // 1000)
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", row)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return is_known


def removals(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the owners whose subscriptions are to be removed, with the time of the request."""
    rows = connection.execute(
        "SELECT name, value FROM meta WHERE name >= ? AND name < ?", (REMOVAL, REMOVAL[:-1] + ";")
    ).fetchall()
    return {name[len(REMOVAL) :]: at for name, at in rows}


def remove_owned(connection: sqlite3.Connection, owner: str) -> None:
    """Remove an owner's stored subscriptions, where no broker runs."""
    rows = connection.execute("SELECT no FROM subscriptions WHERE owner=?", (owner,)).fetchall()
    connection.execute("BEGIN IMMEDIATE")
    try:
        schema.remove_subscriptions(connection, [no for (no,) in rows])
        end_removal(connection, owner)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def end_removal(connection: sqlite3.Connection, owner: str) -> None:
    """Record that an owner's subscriptions are removed."""
    connection.execute("DELETE FROM meta WHERE name=?", (REMOVAL + owner,))


def owned(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many stored subscriptions each owner has."""
    rows = connection.execute("SELECT owner, count(*) FROM subscriptions GROUP BY owner")
    return dict(rows.fetchall())


def listing(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return all tokens without their secrets, with the number of subscriptions each owns."""
    rows = connection.execute(
        "SELECT id, name, rights, expires, created FROM tokens ORDER BY created"
    ).fetchall()
    counts = owned(connection)
    return [
        {
            "id": id,
            "name": name,
            **json.loads(rights),
            "expires": expires,
            "created": created,
            "subscriptions": counts.get(id, 0),
        }
        for id, name, rights, expires, created in rows
    ]


def orphans(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the owners that have subscriptions and no token any more, and how many."""
    known = {id for (id,) in connection.execute("SELECT id FROM tokens").fetchall()}
    return {owner: n for owner, n in owned(connection).items() if owner and owner not in known}
