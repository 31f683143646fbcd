"""Values as people have them, and conditions on them: the same by every road.

Each case: a Python value of attribute `x`, a condition, and whether it holds.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

UTC = dt.UTC
NOON = dt.datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
LATER = "x > TIMESTAMP '2026-07-01T11:00:00Z'"
EARLIER = "x < TIMESTAMP '2026-07-01T11:00:00Z'"


class Case(NamedTuple):
    """A value, a condition on `x`, and whether the value satisfies it."""

    value: Any
    where: str
    holds: bool


CASES: dict[str, Case] = {
    "an integer": Case(5, "x < 10", True),
    "a float": Case(5.5, "x BETWEEN 5 AND 6", True),
    "a decimal": Case(Decimal("1.5"), "x < 100", True),
    "a decimal that is a whole number": Case(Decimal("100"), "x = 100", True),
    "a decimal that no float holds": Case(Decimal("0.1"), "x = 0.1", True),
    "a large decimal": Case(Decimal(2**53 + 1), f"x = {2**53 + 1}", True),
    "a NumPy integer": Case(np.int32(5), "x = 5", True),
    "a NumPy float": Case(np.float32(0.5), "x = 0.5", True),
    "a NumPy boolean": Case(np.bool_(True), "x = TRUE", True),
    "a NumPy string": Case(np.str_("a"), "x = 'a'", True),
    "a string": Case("IBM", "x = 'IBM'", True),
    "a boolean": Case(False, "x = FALSE", True),
    "a moment with a zone": Case(NOON, LATER, True),
    "a moment without a zone": Case(NOON.replace(tzinfo=None), LATER, True),
    "a moment of pandas": Case(pd.Timestamp(NOON), LATER, True),
    "a moment of NumPy": Case(np.datetime64("2026-07-01T12:00:00"), LATER, True),
    "a moment elsewhere": Case(NOON.astimezone(dt.timezone(dt.timedelta(hours=2))), LATER, True),
    "an earlier moment": Case(NOON - dt.timedelta(hours=2), EARLIER, True),
    "a date": Case(dt.date(2026, 7, 2), LATER, True),
    "an earlier date": Case(dt.date(2026, 7, 1), EARLIER, True),
    "an ISO text": Case("2026-07-01T12:00:00Z", LATER, True),
    "an ISO text with an offset": Case("2026-07-01T14:00:00+02:00", LATER, True),
    "an ISO text with an offset, earlier": Case("2026-07-01T12:00:00+02:00", EARLIER, True),
    "an ISO text without a zone": Case("2026-07-01 12:00:00.5", LATER, True),
    "an ISO date": Case("2026-07-02", LATER, True),
    "an earlier ISO text": Case("2026-07-01T10:59:59Z", LATER, False),
    "an ISO text as a text": Case("2026-07-01", "x LIKE '2026-%'", True),
    "a text that is no moment": Case("soon", LATER, False),
    "a number for a string": Case(5, "x = '5'", False),
    "a string for a number": Case("5", "x = 5", False),
}
"""A date is its midnight in UTC."""
