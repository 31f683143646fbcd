"""What all commands share: errors and interruptions become exit codes; progress on a terminal.

Enters: a command's function. Leaves: the same, with our errors as messages on standard error.
Anything that is not our error is a bug and keeps its traceback.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec

import typer

from tocsin.errors import TocsinError
from tocsin.extras import explain_missing

OK = 0
BAD_ROWS = 1
BAD_INPUT = 2
INTERRUPTED = 130

P = ParamSpec("P")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Run a command that returns its exit code; turn what stops it into an exit code too."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except TocsinError as error:
            say(f"error: {error}")
            code = BAD_INPUT
        except ModuleNotFoundError as error:
            missing = explain_missing(error, f"tocsin {command.__name__.strip('_')}")
            if missing is error:
                raise
            say(f"error: {missing}")
            code = BAD_INPUT
        except KeyboardInterrupt:
            say("interrupted")
            code = INTERRUPTED
        except BrokenPipeError:  # the reader of the output closed it
            _silence_stdout()
            code = OK
        raise typer.Exit(code)

    # Typer reads the options from these; the exit code is ours.
    run.__annotations__ = {**command.__annotations__, "return": None}
    return run


def _silence_stdout() -> None:
    """Let the interpreter flush its standard output at exit without another error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def say(text: str) -> None:
    """Write to standard error."""
    typer.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Replace characters that could steer a terminal; line breaks and tabs stay."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


class Progress:
    """Progress bars on standard error, when it is a terminal; otherwise nothing."""

    def __init__(self) -> None:
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            self.bars = Bars(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def show(self, label: str, done: float, total: float | None = 1.0, note: str = "") -> None:
        """Show the progress of the task `label`; `total` is None if it is unknown."""
        if self.bars is None:
            return
        if label not in self.tasks:
            self.tasks[label] = self.bars.add_task(label, total=total, note=note)
        self.bars.update(self.tasks[label], completed=done, total=total, note=note)
