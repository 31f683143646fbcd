"""Cells → matches: one algorithm a module, one protocol.

`names()` lists the engines, `make()` makes one. Modules are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tocsin.errors import ArgumentError, UnknownEngineError

if TYPE_CHECKING:
    from tocsin.engines.protocol import Engine, Expressions


class _Entry(NamedTuple):
    """Where an engine is, and its options with the type of each; None where it reads its own."""

    module: str
    name: str
    options: dict[str, type] | None = {}  # noqa: RUF012 - never changed


_ENGINES = {
    "auto": _Entry("auto", "AutoEngine", {"merges": bool}),
    "oracle": _Entry("oracle", "OracleEngine"),
    "counting": _Entry("clustering.counting", "CountingEngine"),
    "propagation": _Entry("clustering.propagation", "PropagationEngine"),
    "propagation-prefetch": _Entry("clustering.propagation", "PrefetchingPropagationEngine"),
    "static": _Entry("clustering.static", "StaticEngine", {"max_bytes": int}),
    "dynamic": _Entry(
        "clustering.dynamic",
        "DynamicEngine",
        {"bm_max": float, "b_min": int, "rp_min": int, "s_min": float},
    ),
    "tree": _Entry("tree", "make_tree", None),
    "tama": _Entry(
        "tama", "TamaEngine", {"false_positive_rate": float, "levels": int, "exact": bool}
    ),
    "fastint": _Entry("fastint", "FastintEngine"),
}
_KINDS = {int: "a whole number, at least 0", float: "a number, at least 0", bool: "True or False"}


def names() -> tuple[str, ...]:
    """Return the names of the engines."""
    return tuple(_ENGINES)


def make(name: str, expressions: Expressions, options: dict[str, object]) -> Engine:
    """Make an engine by its name."""
    if name not in _ENGINES:
        raise UnknownEngineError(name, names())
    entry = _ENGINES[name]
    if entry.options is not None:
        unknown = sorted(options.keys() - entry.options.keys())
        if unknown:
            raise ArgumentError(f"engine {name!r} has no option {', '.join(unknown)}")
        for option, value in options.items():
            _check_option(name, option, value, entry.options[option])
    engine: Any = getattr(import_module(f"tocsin.engines.{entry.module}"), entry.name)
    return engine(expressions) if name == "oracle" else engine(**options)  # type: ignore[no-any-return]


def _check_option(name: str, option: str, value: object, kind: type) -> None:
    allowed = (int, float) if kind is float else (kind,)
    is_right = isinstance(value, allowed) and isinstance(value, bool) == (kind is bool)
    if not is_right or not value >= 0:  # type: ignore[operator]
        raise ArgumentError(
            f"option {option} of engine {name!r} must be {_KINDS[kind]}, not {value!r}"
        )
