"""The audit log: changes of subscriptions, publications, tokens and links, and refused tokens.

Enters: actions of clients, of operators and of the broker itself. Leaves: one line of JSON for each
in `audit.jsonl` in the broker's folder, readable by its owner only, rotated at `audit_bytes` with
`audit_files` old files (`audit.jsonl.1` is the latest). A thread of its own writes, so that no
request waits for the disk; lines beyond its queue are dropped and counted. JSON escapes all but
printable ASCII, so that no text of a client can forge a line.

Refused tokens are all counted by reason, but only a few a minute are written for each reason, so
that guessing cannot fill the disk.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, cast

from tocsin.broker.config import Config
from tocsin.broker.metrics import Metrics
from tocsin.broker.tokens import Principal

FILE = "audit.jsonl"
_MOST_WAITING = 10_000
_MOST_NAMED = 100
_LONGEST_TEXT = 500
_MOST_REFUSALS, _MINUTE = 10, 60.0
log = logging.getLogger("tocsin.audit")


def line_of(act: str, facts: Mapping[str, Any]) -> str:
    """Return the line of an action; facts that are None are left out, long texts are cut."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    shown = {
        name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in facts.items()
        if value is not None
    }
    return json.dumps({"at": at, "act": act, **shown}, default=str)


def append(folder: Path, act: str, **facts: Any) -> None:
    """Write one line from a process that is not the broker, as `tocsin token` does."""
    opened = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, (line_of(act, facts) + "\n").encode())
    finally:
        os.close(opened)


def names_of(ids: Sequence[str]) -> dict[str, Any]:
    """Return ids as facts: all of a few, the first of many and their number."""
    if len(ids) == 1:
        return {"id": ids[0]}
    return {"n": len(ids), "ids": list(ids[:_MOST_NAMED])}


class _PrivateFile(RotatingFileHandler):
    """A rotating file that only its owner may read."""

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            opened = os.open(path, flags, 0o600)
            os.fchmod(opened, 0o600)  # it may exist with other rights
            return opened

        opened = open(self.baseFilename, self.mode, encoding="utf-8", opener=opener)  # noqa: SIM115
        return cast(TextIOWrapper, opened)


class _Queue(QueueHandler):
    """Queues lines for the writing thread; counts the lines that do not fit."""

    def __init__(self, waiting: queue.Queue[Any], on_full: Callable[[], None]) -> None:
        super().__init__(waiting)
        self._on_full = on_full

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._on_full()


class Audit:
    """The audit log of a running broker. Used within the event loop."""

    def __init__(
        self, config: Config, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._failures = metrics.family(
            "authentication_failures", "Tokens that were refused.", "reason"
        )
        self._failures |= dict.fromkeys(("missing", "unknown", "expired", "link"), 0)
        self._written: dict[str, tuple[float, int, int]] = {}
        self._handler: _Queue | None = None
        self._listener: QueueListener | None = None
        self.n_lost = 0
        metrics.gauges["audit_lost"] = (
            "Lines of the audit log that could not be written.",
            lambda: self.n_lost,
        )
        if config.audit:
            self._open(config)

    def _open(self, config: Config) -> None:
        file = _PrivateFile(
            config.data / FILE,
            maxBytes=config.audit_bytes,
            backupCount=config.audit_files,
            delay=True,
        )
        file.handleError = self._report  # type: ignore[method-assign]
        waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._handler = _Queue(waiting, self._lose)
        self._listener = QueueListener(waiting, file)
        self._listener.start()

    def _lose(self) -> None:
        self.n_lost += 1

    def _report(self, record: logging.LogRecord) -> None:
        """Count a line that the disk did not take. Runs in the writing thread."""
        if not self.n_lost:
            log.exception("the audit log cannot be written")
        self.n_lost += 1

    def note(self, act: str, who: Principal | None = None, /, **facts: Any) -> None:
        """Record an action; without a principal it is the broker's own."""
        if self._handler is None:
            return
        by = {"by": "broker"} if who is None else {"by": who.id or None, "name": who.name}
        text = line_of(act, {**by, **facts})
        self._handler.handle(logging.LogRecord(FILE, logging.INFO, "", 0, text, None, None))

    def refuse(self, reason: str, source: str | None = None, /, **facts: Any) -> None:
        """Count a refused client, and record it where there were few in the last minute."""
        self._failures[reason] = self._failures.get(reason, 0) + 1
        began, n, n_silent = self._written.get(reason, (0.0, 0, 0))
        now = self._clock()
        if not n or now - began >= _MINUTE:
            began, n = now, 0
        if n >= _MOST_REFUSALS:
            self._written[reason] = (began, n, n_silent + 1)
            return
        self._written[reason] = (began, n + 1, 0)
        facts = {"reason": reason, "from": source, "unwritten": n_silent or None, **facts}
        log.info("not let in: %s", json.dumps({k: v for k, v in facts.items() if v is not None}))
        if self._handler is not None:
            self.note("authentication.refused", None, **facts)

    def close(self) -> None:
        """Write all that waits, and close."""
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()
            self._listener = self._handler = None
