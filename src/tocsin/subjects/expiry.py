"""Times to live → moments of expiry, in microseconds since 1970."""

from __future__ import annotations

import datetime as dt
import math

from tocsin.errors import ArgumentError

Seconds = float | int | dt.timedelta
LATEST = 253_402_300_799_999_999
"""The last microsecond of the year 9999; a later expiry means never."""


def to_expiry(now: int, ttl: Seconds | None) -> int | None:
    """Return the moment `ttl` seconds after `now`, or None for a publication that never expires."""
    if ttl is None:
        return None
    if isinstance(ttl, dt.timedelta):
        length = ttl // dt.timedelta(microseconds=1)
    elif type(ttl) not in (int, float) or not math.isfinite(ttl):
        raise ArgumentError(f"ttl must be a number of seconds or a timedelta, not {ttl!r}")
    else:
        length = round(ttl * 1_000_000)
    if length <= 0:
        raise ArgumentError(f"ttl must be positive, not {ttl!r}")
    if now + length > LATEST:
        raise ArgumentError(f"ttl {ttl!r} ends after the year 9999; use None for no expiry")
    return now + length
