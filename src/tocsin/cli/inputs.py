"""The names of files on a command line → paths.

Enters: paths, patterns such as `day-*.csv` that the shell left alone, and `-` for standard input.
Leaves: paths. The folder of a store is distinguished from a file.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from tocsin.encode.files import STDIN
from tocsin.errors import ArgumentError, FileFormatError


def expand(names: Sequence[str]) -> list[str]:
    """Return the paths that names and patterns stand for, patterns in order of the names."""
    paths: list[str] = []
    for name in names:
        if name != STDIN and glob.has_magic(name) and not Path(name).exists():
            matching = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - absolute ones too
            if not matching:
                raise FileFormatError(name, "no file matches this pattern")
            paths += matching
        else:
            paths.append(name)
    if paths.count(STDIN) > 1:
        raise ArgumentError("standard input can be read once only")
    return paths


def is_store(name: str) -> bool:
    """Whether subscriptions come from a store: a folder, or a URL."""
    return "://" in name or Path(name).is_dir()
