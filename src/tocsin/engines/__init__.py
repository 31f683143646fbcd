"""Cells → matches: one algorithm a module, one protocol.

`names()` lists the engines, `make()` makes one. Modules are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tocsin.errors import ArgumentError, UnknownEngineError

if TYPE_CHECKING:
    from tocsin.engines.protocol import Engine, Expressions

_NAMES = ("auto", "oracle", "tree")
_OPTIONS: dict[str, dict[str, type]] = {"auto": {"merges": bool}}
"""The options of each engine, with their types; those that read their own are not here."""


def names() -> tuple[str, ...]:
    """Return the names of the engines."""
    return _NAMES


def make(name: str, expressions: Expressions, options: dict[str, object]) -> Engine:
    """Make an engine by its name."""
    if name not in _NAMES:
        raise UnknownEngineError(name, _NAMES)
    if name == "tree":
        from tocsin.engines.tree import TreeEngine
        from tocsin.engines.tree.options import read_options

        return TreeEngine(read_options(options))
    _check_options(name, options)
    if name == "oracle":
        from tocsin.engines.oracle import OracleEngine

        return OracleEngine(expressions)
    from tocsin.engines.auto import AutoEngine

    return AutoEngine(**options)  # type: ignore[arg-type]


def _check_options(name: str, options: dict[str, object]) -> None:
    known = _OPTIONS.get(name, {})
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise ArgumentError(f"engine {name!r} has no option {', '.join(unknown)}")
    for option, value in options.items():
        if not isinstance(value, known[option]) or (
            isinstance(value, bool) and known[option] is not bool
        ):
            raise ArgumentError(f"option {option} of engine {name!r} cannot be {value!r}")
