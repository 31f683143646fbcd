"""The command line: `tocsin`.

Enters: arguments. Leaves: text or JSON, and an exit code. Each command has a module that is
imported only when the command runs, so that `tocsin --help` answers at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys

from tocsin.cli import clock as clock

__all__ = ["main"]

_INTERRUPTED = 130
_TAKE_NO_FRAMES = {"check", "match", "explain", "subscriptions"}
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Imports make many objects, and none of them is garbage."""


class _WithoutPandas:
    """Says that pandas is not installed.

    Arrow imports it with the first array it makes, and that takes as long as all the rest of a
    short command.
    """

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Refuse to find pandas, and leave all others to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError("this command does without pandas", name=name)


def main() -> None:
    """Run the command that the process's arguments name, and exit."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # what is half done is undone, as by Ctrl-C
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    if _TAKE_NO_FRAMES.intersection(sys.argv[1:2]):
        sys.meta_path.insert(0, _WithoutPandas())
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from tocsin.cli.app import app

        app(prog_name="tocsin")
    except KeyboardInterrupt:  # before a command began
        _leave_interrupted()
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:
            _leave_interrupted()
        raise


def _leave_interrupted() -> None:
    """End at once with our exit code.

    An interruption that met a library inside an interpreter call of its own makes Python end by
    the signal when it shuts down, although we caught it.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
