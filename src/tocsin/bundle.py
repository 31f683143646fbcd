"""Parts: what something is taken apart into to be written, and put together from again.

Nothing but names. The book and the engines give and take parts; `store` writes and reads them, and
knows nothing of what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class Parts:
    """Facts that JSON can hold, arrays, and Arrow columns in canonical types, all by name."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    columns: dict[str, pa.Array] = field(default_factory=dict)
