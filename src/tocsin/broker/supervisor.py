"""Background tasks that are restarted after errors, and their health.

Enters: functions that run until they are cancelled. Leaves: tasks that are started again after an
error, with growing pauses; error counts for the metrics; the names of failing tasks for `/readyz`.
A task that returns has failed too. Work with tasks of its own (webhooks) reports its errors by
name. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tocsin.broker.metrics import Metrics
from tocsin.errors import UnavailableError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
_TOO_OFTEN = 3
_STEADY = 5.0
_JITTER = random.Random()
log = logging.getLogger("tocsin.tasks")


class Health:
    """The health of one kind of background work."""

    __slots__ = ("failed_at", "n_in_a_row", "name", "reason", "steady")

    def __init__(self, name: str, steady: float) -> None:
        self.name = name
        self.steady = steady
        self.n_in_a_row = 0
        self.reason = ""
        self.failed_at = 0.0

    def fail(self, error: BaseException) -> float:
        """Count an error; return for how long to pause before the next attempt."""
        now = time.monotonic()
        if now - self.failed_at > self._pause() + self.steady:
            self.n_in_a_row = 0
        self.failed_at = now
        self.n_in_a_row += 1
        self.reason = type(error).__name__  # it is shown to anyone; the log has the text
        return self._pause() * _JITTER.uniform(0.5, 1.0)

    def _pause(self) -> float:
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.n_in_a_row, 20))

    @property
    def is_failing(self) -> bool:
        """Whether it failed several times in a row, and has not run long enough since."""
        is_steady = time.monotonic() - self.failed_at > self._pause() + self.steady
        return self.n_in_a_row >= _TOO_OFTEN and not is_steady


class Supervisor:
    """Runs background tasks and keeps their health."""

    def __init__(self, metrics: Metrics, steady: float = _STEADY) -> None:
        self.steady = steady
        self._failures = metrics.family(
            "task_failures", "Errors of background tasks, which are started again.", "task"
        )
        self._health: dict[tuple[str, int], Health] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[str, Callable[[], str | None]] = {}

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work for as long as the broker lives."""
        self._failures.setdefault(name, 0)
        self._tasks[name] = asyncio.create_task(self._run(name, work), name=name)

    def check(self, name: str, find_problem: Callable[[], str | None]) -> None:
        """Add a check to `problems`; it returns None where all is well."""
        self._checks[name] = find_problem

    async def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
                error: Exception = UnavailableError("it ended")
            except Exception as caught:
                error = caught
            await asyncio.sleep(self.failed(name, error))

    def failed(self, name: str, error: BaseException, no: int = 0) -> float:
        """Count and log an error; return for how long to pause before the next attempt.

        Work of one name that has many parts numbers them: each pauses for its own errors only.
        """
        health = self._health.setdefault((name, no), Health(name, self.steady))
        pause = health.fail(error)
        self._failures[name] = self._failures.get(name, 0) + 1
        shown = repr(str(error))  # its text may be anybody's
        log.error(
            "%s failed (%d in a row) and is started again in %.1f s: %s: %s",
            name, health.n_in_a_row, pause, type(error).__name__, shown,
            exc_info=error if health.n_in_a_row == 1 else None,
        )  # fmt: skip
        return pause

    def recovered(self, name: str, no: int = 0) -> None:
        """Record a success of work that may have failed before."""
        self._health.pop((name, no), None)

    def problems(self) -> list[str]:
        """Return the current problems, a line for each task."""
        failing = {each.name: each.reason for each in self._health.values() if each.is_failing}
        lines = [f"{name} keeps failing: {reason}" for name, reason in failing.items()]
        lines += [f"{name} has stopped" for name, task in self._tasks.items() if task.done()]
        for name, find_problem in self._checks.items():
            problem = find_problem()
            if problem is not None:
                lines.append(f"{name}: {problem}")
        return lines

    async def stop(self, *names: str) -> None:
        """End tasks; without names, all of them."""
        ended = [
            self._tasks.pop(name) for name in names or tuple(self._tasks) if name in self._tasks
        ]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
