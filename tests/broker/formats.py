"""Databases as older versions wrote them."""

from __future__ import annotations


def to_second_format() -> str:
    """Return what makes a database of format 3 one of format 2."""
    columns = {"notifications": ("deliveries", "earlier", "due"), "dead": ("deliveries", "bytes")}
    dropped = "".join(
        f"ALTER TABLE {table} DROP COLUMN {name};"
        for table, names in columns.items()
        for name in names
    )
    return f"DROP INDEX dead_by_time; DROP TABLE idempotency; {dropped} PRAGMA user_version = 2;"
