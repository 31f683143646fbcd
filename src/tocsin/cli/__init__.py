"""The command line: `tocsin`.

Enters: arguments. Leaves: text or JSON, and an exit code. Each command has a module that is
imported only when the command runs, so that `tocsin --help` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process's arguments name, and exit."""
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
