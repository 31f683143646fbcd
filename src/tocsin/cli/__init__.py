"""The command line: `tocsin`.

Enters: arguments. Leaves: text or JSON, and an exit code. Each command has a module that is
imported only when the command runs, so that `tocsin --help` answers at once.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process's arguments name, and exit."""
    try:
        from tocsin.cli.app import app

        app(prog_name="tocsin")
    except KeyboardInterrupt:  # before a command began
        sys.exit(130)
