"""The options of the `tree` engine.

Enters: keyword arguments of a matcher. Leaves: `TreeOptions`, or an ArgumentError that says what is
wrong. Each optimisation of Aguilera et al., section 4, has its switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tocsin.errors import ArgumentError

_MAX_INDEX = 8


@dataclass(frozen=True)
class TreeOptions:
    """How the tree is laid out."""

    order: str = "popular"
    """Which attribute comes first: the one that rules out most ("popular"), or as they came."""
    collapse: bool = True
    """Leave out nodes from which only a don't-care edge leads."""
    implied: bool = True
    """Put a test below one that holds wherever it does."""
    successors: bool = False
    """Annotate nodes with where a blocked search goes on."""
    index_attributes: int | None = None
    """How many attributes, from the first on, have a separate tree for each of their values; None:
    as many as copy few conjunctions, more in large trees."""


def read_options(options: Mapping[str, object]) -> TreeOptions:
    """Check the options of the engine."""
    known = [field.name for field in fields(TreeOptions)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ArgumentError(
            f"engine 'tree' has no option {', '.join(unknown)}; it has {', '.join(known)}"
        )
    order = options.get("order", "popular")
    if order not in ("popular", "given"):
        raise ArgumentError(f"order must be 'popular' or 'given', not {order!r}")
    for name in ("collapse", "implied", "successors"):
        if not isinstance(options.get(name, True), bool):
            raise ArgumentError(f"{name} must be True or False, not {options[name]!r}")
    n = options.get("index_attributes")
    if n is not None and (type(n) is not int or not 0 <= n <= _MAX_INDEX):
        raise ArgumentError(f"index_attributes must be 0 to {_MAX_INDEX} or None, not {n!r}")
    return TreeOptions(**options)  # type: ignore[arg-type]
