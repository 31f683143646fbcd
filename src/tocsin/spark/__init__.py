"""Tocsin on Spark: DataFrames in, DataFrames out, batch and streaming.

>>> from tocsin import spark as ts
>>> ts.match(quotes, "path/to/store", keep=["firm", "price"])  # doctest: +SKIP

The names are loaded when they are first used, so that a Python worker imports what it runs and
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tocsin.extras import load

if TYPE_CHECKING:
    from tocsin.spark.compiling import CompileReport, compile
    from tocsin.spark.drift import SchemaDriftWarning, Silenced, silenced
    from tocsin.spark.generating import generate_events, generate_subscriptions
    from tocsin.spark.matching import match, matched
    from tocsin.spark.placing import Placement, placement
    from tocsin.spark.profiling import Profile, profile
    from tocsin.spark.tracking import transitions

_HOMES = {
    "CompileReport": "tocsin.spark.compiling",
    "Placement": "tocsin.spark.placing",
    "Profile": "tocsin.spark.profiling",
    "SchemaDriftWarning": "tocsin.spark.drift",
    "Silenced": "tocsin.spark.drift",
    "compile": "tocsin.spark.compiling",
    "generate_events": "tocsin.spark.generating",
    "generate_subscriptions": "tocsin.spark.generating",
    "match": "tocsin.spark.matching",
    "matched": "tocsin.spark.matching",
    "placement": "tocsin.spark.placing",
    "profile": "tocsin.spark.profiling",
    "silenced": "tocsin.spark.drift",
    "transitions": "tocsin.spark.tracking",
}

__all__ = [
    "CompileReport",
    "Placement",
    "Profile",
    "SchemaDriftWarning",
    "Silenced",
    "compile",
    "generate_events",
    "generate_subscriptions",
    "match",
    "matched",
    "placement",
    "profile",
    "silenced",
    "transitions",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return load(_HOMES[name], name, f"tocsin.spark.{name}")
    raise AttributeError(f"module 'tocsin.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
