"""ISO 8601 texts → moments.

Enters: a text. Leaves: the UTC moment that it names, if it does.
"""

from __future__ import annotations

import datetime as dt
import re

_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d([T ]([01]\d|2[0-3]):\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII
)


def parse_timestamp(text: str) -> dt.datetime | None:
    """Return the UTC moment that an ISO 8601 text names (no zone: UTC), or None."""
    if _MOMENT.fullmatch(text.strip()) is None:  # Python would read other forms too, some wrongly
        return None
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            return moment.replace(tzinfo=dt.UTC)
        return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None
