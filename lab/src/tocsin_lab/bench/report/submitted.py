"""Events that another process submits, as in section 6.1 of Fabret et al.: the system as a whole.

Enters: a matcher, and which events of a scenario are to come. Leaves: the processor time that the
matcher's process takes for an event: receiving and reading it, matching it, and sending the ids of
the subscriptions that match. Events come in hundreds, as JSON (n_Eb of the paper is 100 too); they
are read, and the ids found, as the broker does it.

The workload generator is a process of its own on the same machine, namely this module run as a
program. It makes all batches of a round before it sends the first, and sends them without waiting
for answers, so that the system finds the next batch there. Only the system's processor time counts,
whatever the generator takes and wherever it runs. (The paper takes wall time, in the generator, on
one processor that both share.)

On the wire, either way, is a length of four octets and as many octets of JSON: to the generator
what it is to submit, then an answer for each batch; from it the batches.
"""

from __future__ import annotations

import fcntl
import gc
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from time import process_time
from types import TracebackType
from typing import IO, Any

from tocsin.broker.matching import to_lists
from tocsin.broker.protocol import json_text
from tocsin.matcher import Matcher
from tocsin_lab.bench.adapt import SCENARIOS
from tocsin_lab.bench.report.timing import MICRO

BATCH = 100
"""How many events are submitted at once: n_Eb of the paper."""
_LENGTH = 4
_AHEAD = 1 << 20
"""How many octets may be on their way, where the system allows it."""
_PATIENCE_S = 10.0


class Generator:
    """The workload generator; a context, which ends it."""

    def __init__(self, scenario: str, seed: int, first: int) -> None:
        """Events are those of a scenario from the `first` on."""
        spec = json.dumps({"scenario": scenario, "seed": seed, "first": first})
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._from, fcntl.F_SETPIPE_SZ, _AHEAD)

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # it may be in the midst of a round, and its output has no reader
            self._process.kill()
        with suppress(BrokenPipeError):  # it is gone already
            self._to.close()
        self._from.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def microseconds(self, matcher: Matcher, side: int, n_batches: int) -> float:
        """Return the processor time of the system for an event of a side, over some batches."""
        gc.collect()
        _send(self._to, json.dumps({"side": side, "n": n_batches}).encode())
        started = process_time()
        for _ in range(n_batches):
            events = json_text.read(_receive(self._from))
            _send(self._to, json_text.write(to_lists(matcher.match_batch(events))))
        return MICRO * (process_time() - started) / (n_batches * BATCH)


def _send(to: IO[bytes], body: bytes) -> None:
    to.write(len(body).to_bytes(_LENGTH, "little") + body)
    to.flush()


def _receive(source: IO[bytes]) -> bytes:
    """Return the next text; raises EOFError where there will be none."""
    head = source.read(_LENGTH)
    body = source.read(int.from_bytes(head, "little"))
    if len(head) < _LENGTH or not body:
        raise EOFError("the other process has ended")
    return body


def _batches(spec: Mapping[str, Any], side: int, n: int) -> list[bytes]:
    """Return batches of events as JSON."""
    events = SCENARIOS[spec["scenario"]][side].events(n * BATCH, spec["seed"], spec["first"])
    rows = events.to_pylist()
    return [json_text.write(rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]


def _submit(batches: list[bytes]) -> None:
    with suppress(BrokenPipeError):  # the system has gone; the answers will end too
        for batch in batches:
            _send(sys.stdout.buffer, batch)


def generate(spec: Mapping[str, Any]) -> None:
    """Submit the requested events and take the answers, until the requests end."""
    made: dict[tuple[int, int], list[bytes]] = {}
    while True:
        try:
            request = json.loads(_receive(sys.stdin.buffer))
            key = request["side"], request["n"]
            if key not in made:
                made[key] = _batches(spec, *key)
            sender = Thread(target=_submit, args=(made[key],), daemon=True)
            sender.start()
            for _ in made[key]:
                _receive(sys.stdin.buffer)
            sender.join()
        except EOFError:
            return


if __name__ == "__main__":
    generate(json.loads(sys.argv[1]))
