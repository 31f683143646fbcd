"""Cells → matches: one algorithm a module, one protocol.

`names()` lists the engines, `make()` makes one. Two are the product's own: `auto`, and `oracle`,
which evaluates expressions. More come from other distributions, as entry points of the group
`tocsin.engines`: each names an `EngineSpec`. `register()` adds one to this process only. Modules
are loaded when first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from tocsin.errors import ArgumentError, UnknownEngineError

if TYPE_CHECKING:
    from tocsin.engines.protocol import Engine, Expressions

GROUP = "tocsin.engines"


class EngineSpec(NamedTuple):
    """Where an engine is, and its options with the type of each.

    `location` is `module:name` of a class or function, which is called with the options as keyword
    arguments. Where `options` is None it checks them itself.
    """

    location: str
    options: dict[str, type] | None = {}  # noqa: RUF012 - never changed
    needs_expressions: bool = False
    """Whether it evaluates expressions; then it is called with them, and with no options."""


_OWN = {
    "auto": EngineSpec("tocsin.engines.auto:AutoEngine", {"merges": bool}),
    "oracle": EngineSpec("tocsin.engines.oracle:OracleEngine", needs_expressions=True),
}
_registered: dict[str, EngineSpec] = {}
_KINDS = {int: "a whole number, at least 0", float: "a number, at least 0", bool: "True or False"}


def names() -> tuple[str, ...]:
    """Return the names of the engines: our own, then those of other distributions."""
    return (*_OWN, *sorted({*_plugged_in(), *_registered}))


def register(name: str, spec: EngineSpec) -> None:
    """Add an engine to this process, for tests and notebooks; a distribution has an entry point."""
    if name in _OWN:
        raise ArgumentError(f"the engine {name!r} cannot be replaced")
    _registered[name] = spec


def unregister(name: str) -> None:
    """Remove an engine that was registered."""
    del _registered[name]


@cache
def _plugged_in() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _OWN}


def _spec(name: str) -> EngineSpec:
    if name in _OWN:
        return _OWN[name]
    if name in _registered:
        return _registered[name]
    if name not in _plugged_in():
        raise UnknownEngineError(name, names())
    spec: EngineSpec = _plugged_in()[name].load()
    return spec


def make(name: str, expressions: Expressions, options: dict[str, object]) -> Engine:
    """Make an engine by its name."""
    spec = _spec(name)
    if spec.options is not None:
        unknown = sorted(options.keys() - spec.options.keys())
        if unknown:
            raise ArgumentError(f"engine {name!r} has no option {', '.join(unknown)}")
        for option, value in options.items():
            _check_option(name, option, value, spec.options[option])
    module, _, attribute = spec.location.partition(":")
    factory: Any = getattr(import_module(module), attribute)
    return factory(expressions) if spec.needs_expressions else factory(**options)  # type: ignore[no-any-return]


def _check_option(name: str, option: str, value: object, kind: type) -> None:
    allowed = (int, float) if kind is float else (kind,)
    is_right = isinstance(value, allowed) and isinstance(value, bool) == (kind is bool)
    if not is_right or not value >= 0:  # type: ignore[operator]
        raise ArgumentError(
            f"option {option} of engine {name!r} must be {_KINDS[kind]}, not {value!r}"
        )
