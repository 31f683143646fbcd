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
    from tocsin.spark.compiler import CompileReport, compile
    from tocsin.spark.drift import SchemaDriftWarning, SchemaIssue, schema_issues
    from tocsin.spark.generator import generate_events, generate_subscriptions
    from tocsin.spark.match_plan import match
    from tocsin.spark.placements import Placement, placement
    from tocsin.spark.profiles import Profile, profile
    from tocsin.spark.transition_plan import transitions

_HOMES = {
    "CompileReport": "tocsin.spark.compiler",
    "Placement": "tocsin.spark.placements",
    "Profile": "tocsin.spark.profiles",
    "SchemaDriftWarning": "tocsin.spark.drift",
    "SchemaIssue": "tocsin.spark.drift",
    "compile": "tocsin.spark.compiler",
    "generate_events": "tocsin.spark.generator",
    "generate_subscriptions": "tocsin.spark.generator",
    "match": "tocsin.spark.match_plan",
    "placement": "tocsin.spark.placements",
    "profile": "tocsin.spark.profiles",
    "schema_issues": "tocsin.spark.drift",
    "transitions": "tocsin.spark.transition_plan",
}

__all__ = [
    "CompileReport",
    "Placement",
    "Profile",
    "SchemaDriftWarning",
    "SchemaIssue",
    "compile",
    "generate_events",
    "generate_subscriptions",
    "match",
    "placement",
    "profile",
    "schema_issues",
    "transitions",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return load(_HOMES[name], name, f"tocsin.spark.{name}")
    raise AttributeError(f"module 'tocsin.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
