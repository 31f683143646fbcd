"""Progress of a benchmark: the current step, and how far the work has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the current step, the steps done and the steps in all."""


class Steps:
    """Reports the current step, and how far the work has come, to a callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._done = 0
        self._total = total
        self._what = ""

    def start(self, what: str) -> None:
        """Begin a step, or several of one name."""
        self._what = what
        self._show()

    def finish(self) -> None:
        """End a step."""
        self._done += 1
        self._show()

    def _show(self) -> None:
        if self._progress:
            self._progress(self._what, self._done, self._total)
