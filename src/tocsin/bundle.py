"""Parts: the serialized form of a component: facts, arrays and columns by name.

The catalog and the engines make parts and are restored from them; `storage` writes and reads them
without knowing what they mean.
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
