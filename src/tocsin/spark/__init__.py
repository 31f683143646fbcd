"""Tocsin on Spark: DataFrames in, DataFrames out, batch and streaming.

>>> from tocsin import spark as ts
>>> ts.match(quotes, "path/to/store", keep=["firm", "price"])  # doctest: +SKIP

The names are loaded when they are first used, so that a Python worker imports what it runs and
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin.spark.drift import SchemaDriftWarning, Silenced, silenced
    from tocsin.spark.matching import match, matched

_HOMES = {
    "SchemaDriftWarning": "tocsin.spark.drift",
    "Silenced": "tocsin.spark.drift",
    "match": "tocsin.spark.matching",
    "matched": "tocsin.spark.matching",
    "silenced": "tocsin.spark.drift",
}

__all__ = ["SchemaDriftWarning", "Silenced", "match", "matched", "silenced"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tocsin.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
