"""Texts that go into headers, paths and log lines of every protocol.

Enters: a text of a client. Leaves: whether it has characters that some protocol takes for its own.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]").search


def has_controls(text: str) -> bool:
    """Whether a text has control characters or line breaks."""
    return _CONTROLS(text) is not None
