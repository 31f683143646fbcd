"""A table of a TOML file, read key by key, with errors that name the key.

Enters: a mapping. Leaves: values of the requested types. `finish` refuses unknown keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.errors import ConfigError

_MISSING: Any = object()


class Section:
    """One table of a configuration. It remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any], key: str, folder: str, path: str | None) -> None:
        self._values = values
        self._key = key
        self._folder = folder
        self._path = path
        self._known: list[str] = []

    def wrong(self, key: str, reason: str) -> ConfigError:
        """Return an error about one key."""
        return ConfigError(f"{self._key}.{key}" if self._key else key, reason, self._path)

    def names(self) -> list[str]:
        """Return the keys of the table."""
        return list(self._values)

    def peek(self, key: str) -> object:
        """Return a value as it is, or None."""
        self._known.append(key)
        return self._values.get(key)

    def section(self, key: str, *, optional: bool = False) -> Section:
        """Return an inner table; an optional one may be missing, and is empty then."""
        value = self._get(key, {} if optional else _MISSING)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be a table")
        inner = f"{self._key}.{key}" if self._key else key
        return Section(value, inner, self._folder, self._path)

    def sections(self, key: str) -> list[Section]:
        """Return an array of tables; there may be none."""
        value = self._get(key, [])
        if not isinstance(value, Sequence) or not all(isinstance(v, Mapping) for v in value):
            raise self.wrong(key, f"must be tables, each under [[{key}]]")
        return [
            Section(inner, f"{key}[{i}]", self._folder, self._path) for i, inner in enumerate(value)
        ]

    def text(self, key: str, default: str = _MISSING) -> str:
        """Return a string that is not empty."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be a string in quotes, not {value!r}")
        if not value.strip():
            raise self.wrong(key, "must not be empty")
        return value

    def place(self, key: str, default: str = _MISSING) -> str:
        """Return a path: a URL as it is, any other taken from the folder of the file."""
        value = self.text(key, default)
        return value if "://" in value else str(Path(self._folder) / Path(value).expanduser())

    def choice(self, key: str, among: Sequence[str], default: str = _MISSING) -> str:
        """Return one of a few strings."""
        value = self.text(key, default)
        if value not in among:
            raise self.wrong(key, f"{value!r} is not known; choose {', '.join(among)}")
        return value

    def number(self, key: str, default: int, least: int) -> int:
        """Return a whole number, at least `least`."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"must be a whole number, at least {least}, not {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return an array of strings, or the default."""
        value = self._get(key, default)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
            raise self.wrong(key, f"must be an array of strings, not {value!r}")
        twice = [v for i, v in enumerate(value) if v in value[:i]]
        if twice:
            raise self.wrong(key, f"has {twice[0]!r} twice")
        return tuple(value)

    def options(self, key: str) -> dict[str, str]:
        """Return a table of settings for Spark, as strings."""
        inner = self.section(key, optional=True)
        options = {}
        for name in inner.names():
            value = inner.peek(name)
            if isinstance(value, bool):
                options[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                options[name] = str(value)
            else:
                raise inner.wrong(name, f"must be a string, a number, true or false, not {value!r}")
        return options

    def finish(self) -> None:
        """Raise ConfigError for the first unknown key."""
        for name in self._values:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self._known)}"
                raise self.wrong(name, f"is not a key of this table; {hint}")

    def _get(self, key: str, default: Any) -> Any:
        self._known.append(key)
        if key in self._values:
            return self._values[key]
        if default is _MISSING:
            raise self.wrong(key, "is missing")
        return default
