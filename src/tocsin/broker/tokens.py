"""Tokens: who may do what.

Enters: a secret that a client shows. Leaves: a `Principal` with its rights, or an error. A token is
`tocsin_ID.SECRET`; the database has the id and the SHA-256 of the secret, which is 32 random bytes,
so that nothing slower is needed to keep it from being guessed. Hashes are compared in constant
time. Changes made by `tocsin token` are seen after `_FRESH` seconds at most.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tocsin.errors import ArgumentError, LimitError, NotAllowedError

_FRESH = 1.0
PREFIX = "tocsin_"


@dataclass(frozen=True)
class Rights:
    """What a token allows: event types to publish and to subscribe to (`*`: all), and admin."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False

    def to_json(self) -> str:
        """Return the rights as they are stored."""
        found = {"publish": self.publish, "subscribe": self.subscribe, "admin": self.admin}
        return json.dumps(found)


ALL = Rights(("*",), ("*",), True)


class Bucket:
    """A rate: so many a second, with one second's worth saved up."""

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
    """Somebody with a token, or anybody where no tokens are asked for."""

    id: str
    name: str
    rights: Rights
    expires: int | None = None
    bucket: Bucket = field(default_factory=lambda: Bucket(0))

    def may_publish(self, type: str | None) -> None:
        """Refuse who may not publish events of a type."""
        if not _allows(self.rights.publish, type):
            raise NotAllowedError(
                f"no right to publish {type or 'events without a type'}", known=True
            )

    def may_subscribe(self, type: str | None) -> None:
        """Refuse who may not subscribe to a type; without one, to all."""
        if not _allows(self.rights.subscribe, type):
            raise NotAllowedError(f"no right to subscribe to {type or 'every type'}", known=True)

    def may_see(self, owner: str) -> bool:
        """Whether a subscription is this one's own, or anybody's."""
        return self.rights.admin or owner == self.id

    def must_be_admin(self) -> None:
        """Refuse who is no admin."""
        if not self.rights.admin:
            raise NotAllowedError("this needs the right admin", known=True)


def _allows(patterns: tuple[str, ...], type: str | None) -> bool:
    return "*" in patterns or (type is not None and type in patterns)


class Tokens:
    """The tokens of a broker, read again when they may have changed."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection] | None, events_per_second: float = 0
    ) -> None:
        self._connection = connect() if connect is not None else None
        self._rate = events_per_second
        self._known: dict[str, tuple[bytes, Principal]] = {}
        self._until = 0.0
        self.anybody = Principal("", "anybody", ALL, bucket=Bucket(events_per_second))

    @property
    def are_needed(self) -> bool:
        """Whether clients must show a token."""
        return self._connection is not None

    def authenticate(self, token: str | None) -> Principal:
        """Return whose token it is."""
        if self._connection is None:
            return self.anybody
        if not token:
            raise NotAllowedError("a token is needed")
        id, _, secret = token.removeprefix(PREFIX).partition(".")
        digest, principal = self._read().get(id, (b"\0" * 32, None))
        shown = hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
        if not hmac.compare_digest(shown, digest) or principal is None:
            raise NotAllowedError("the token is not known")
        if principal.expires is not None and principal.expires <= time.time_ns() // 1000:
            raise NotAllowedError("the token has expired")
        return principal

    def is_valid(self, principal: Principal) -> bool:
        """Whether somebody who was let in before would be let in now."""
        if self._connection is None:
            return True
        if principal.expires is not None and principal.expires <= time.time_ns() // 1000:
            return False
        return principal.id in self._read()

    def _read(self) -> dict[str, tuple[bytes, Principal]]:
        now = time.monotonic()
        if now >= self._until:
            assert self._connection is not None
            rows = self._connection.execute(
                "SELECT id, name, hash, rights, expires FROM tokens"
            ).fetchall()
            known = {}
            for id, name, digest, rights, expires in rows:
                before = self._known.get(id)
                bucket = before[1].bucket if before else Bucket(self._rate)
                known[id] = (digest, Principal(id, name, read_rights(rights), expires, bucket))
            self._known, self._until = known, now + _FRESH
        return self._known

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def read_rights(text: str) -> Rights:
    """Return rights as they were stored."""
    found: dict[str, Any] = json.loads(text)
    return Rights(tuple(found["publish"]), tuple(found["subscribe"]), bool(found["admin"]))


def create(
    connection: sqlite3.Connection, name: str, rights: Rights, expires: int | None = None
) -> str:
    """Store a new token and return it; it can never be shown again."""
    if not name or len(name) > 100 or not name.isprintable():
        raise ArgumentError("a token's name is a text of 1 to 100 printable characters")
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    connection.execute(
        "INSERT INTO tokens VALUES (?,?,?,?,?,?)",
        (
            id,
            name,
            hashlib.sha256(secret.encode()).digest(),
            rights.to_json(),
            expires,
            time.time_ns() // 1000,
        ),
    )
    return f"{PREFIX}{id}.{secret}"


def revoke(connection: sqlite3.Connection, id: str) -> bool:
    """Forget a token; whether there was one."""
    return connection.execute("DELETE FROM tokens WHERE id=?", (id,)).rowcount > 0


def listing(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return all tokens without their secrets."""
    rows = connection.execute(
        "SELECT id, name, rights, expires, created FROM tokens ORDER BY created"
    ).fetchall()
    return [
        {"id": id, "name": name, **json.loads(rights), "expires": expires, "created": created}
        for id, name, rights, expires, created in rows
    ]
