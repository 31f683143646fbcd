"""Exactly once, put to the test: a pipeline is killed again and again, then checked row by row.

Enters: how many processes to kill, and whether the pipeline notifies of matches or of transitions.
Leaves: the killed processes and the results of the comparison.

Files of events, some lines of them bad, keep coming into a folder. A pipeline in a process of its
own matches them, one file a batch, while another thread adds, removes and updates subscriptions and
compacts the store. At random moments a process is killed without warning: the driver (its Python
process, its JVM, or both), a Python worker, or an executor of a small cluster. The driver is
started again each time. In the end the output of each batch is compared with a recomputation
outside Spark, with the version and the moment that were pinned for the batch. Of transitions, the
events are publications that come, change, end and expire, and the transitions must add up to what
matches in the end.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tocsin.errors import ArgumentError, PipelineError
from tocsin.store.subscription_store import SubscriptionStore
from tocsin.workloads import workload
from tocsin_lab.bench import recovery_check
from tocsin_lab.bench.killing import descendants, kill, wait_gone
from tocsin_lab.bench.settings import RecoverySetting

Show = Callable[[str, int, int], None]
_BACKLOG = 4
_PATIENCE = 600.0
_GRACE = 60.0
"""Versions are kept for so long; older ones only as far as they are pinned."""
_CLUSTER = "local-cluster[2,1,1024]"


@dataclass
class Run:
    """A run as it goes: the folder, the dice, and what was killed so far."""

    setting: RecoverySetting
    folder: Path
    dice: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    changes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    @property
    def n_killed(self) -> int:
        """How many processes were killed."""
        return sum(self.killed.values())

    @property
    def n_finished(self) -> int:
        """How many batches are finished."""
        return len(list((self.folder / "output" / "metrics").glob("*.json")))

    def last_seconds(self) -> float:
        """Return how long the last batch took: the next one is met at any of its stages."""
        path = max((self.folder / "output" / "metrics").glob("*.json"))
        said = json.loads(path.read_text())
        return float(said["finished"] - said["started"])


def run(setting: RecoverySetting, progress: Show = lambda *_: None) -> dict[str, Any]:
    """Run, kill, and check."""
    if setting.mode not in _MODES:
        raise ArgumentError(f"mode must be one of {', '.join(_MODES)}, not {setting.mode!r}")
    with tempfile.TemporaryDirectory(prefix="tocsin-recovery-") as temporary:
        folder = Path(setting.folder or temporary)
        state = Run(setting, folder, random.Random(setting.seed))
        started = time.perf_counter()
        _prepare(state)
        threads = [threading.Thread(target=_guard, args=(state, do)) for do in (_feed, _change)]
        for thread in threads:
            thread.start()
        try:
            while state.n_killed < setting.kills:
                _session(state, progress)
        finally:
            state.stop.set()
            for thread in threads:
                thread.join()
        if state.failure is not None:
            raise state.failure
        progress("the rest", setting.kills, setting.kills)
        _finish(state)
        verdict = recovery_check.check(folder, _TTL if setting.mode == "transitions" else None)
        return {
            **asdict(setting),
            "killed": dict(state.killed),
            "sessions": state.sessions + 1,
            "changes": state.changes,
            "seconds": round(time.perf_counter() - started, 1),
            **verdict,
        }


def _guard(state: Run, do: Callable[[Run], None]) -> None:
    try:
        do(state)
    except BaseException as error:
        state.failure = error
        state.stop.set()


# Input.


def _prepare(state: Run) -> None:
    market = workload("M")
    setting = state.setting
    store = SubscriptionStore.create(state.folder / "store")
    store.subscribe_many(market.subscription_texts(setting.subscriptions, setting.seed))
    store.compact()
    (state.folder / "events").mkdir()
    for name, master in (("local", "local[2,4]"), ("cluster", _CLUSTER)):
        mode = _MODES[setting.mode]
        config = _CONFIG.format(master=master, mode=setting.mode, more=mode)
        (state.folder / f"{name}.toml").write_text(config)
    _write_file(state, 0)


_CONFIG = """\
[pipeline]
subscriptions = "store"
output = "output"
retain = 1000000
mode = "{mode}"
[event.attributes]
event = "integer"
firm = "string"
price = "float"
volume = "integer"
publication = "integer"
gone = "boolean"
[source]
format = "json"
path = "events"
batch_files = 1
{more}
[spark]
master = "{master}"
[spark.conf]
"spark.executor.memory" = "512m"
"spark.sql.streaming.minBatchesToRetain" = "100000"
"""


_TTL = 20.0
_MODES = {
    "matches": """\
[match]
keep = ["event"]
unmatched = true""",
    "transitions": f"""\
[transitions]
key = "publication"
order = "event"
retract = "gone"
ttl = "{_TTL} seconds"
buckets = 5""",
}


def _write_file(state: Run, number: int) -> None:
    """Write a file of events, every hundredth line of it bad, and put it there at once.

    Some publications are updated often and some hardly ever; the latter expire.
    """
    n = state.setting.events
    first = number * n
    rows = workload("M").events(n, state.setting.seed, first).to_pylist()
    dice = random.Random(f"{state.setting.seed}-{number}")
    lines = []
    for i, row in enumerate(rows):
        more: dict[str, Any] = {"publication": int(n * dice.random() ** 3)}
        more |= {"gone": True} if dice.random() < 0.05 else {}
        text = json.dumps({"event": first + i, **row, **more})
        lines.append(text if i % 100 != 50 else text[: len(text) // 2])
    draft = state.folder / f"{number}.draft"
    draft.write_text("\n".join(lines) + "\n")
    draft.rename(state.folder / "events" / f"{number:06d}.json")


def _feed(state: Run) -> None:
    """Keep a few files ahead of the pipeline."""
    number = 1
    while not state.stop.wait(0.1):
        if number < state.n_finished + _BACKLOG:
            _write_file(state, number)
            number += 1


def _change(state: Run) -> None:
    """Add, remove and update subscriptions, and compact now and then."""
    dice = random.Random(state.setting.seed + 1)
    store = SubscriptionStore(state.folder / "store")
    market = workload("M")
    n = state.setting.subscriptions
    live = list(range(n))
    fresh = n
    while not state.stop.wait(dice.uniform(0.05, 0.6)):
        what = dice.random()
        if what < 0.4:
            store.subscribe_many(market.subscription_texts(20, state.setting.seed, fresh))
            live += range(fresh, fresh + 20)
            fresh += 20
        elif what < 0.6:
            text = f"volume > {dice.randrange(100, 90_000)}"
            ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=dice.uniform(1, 20))
            store.subscribe(fresh, text, valid_until=ends)
            fresh += 1
        elif what < 0.8:
            gone = [live.pop(dice.randrange(len(live))) for _ in range(10)]
            store.unsubscribe_many(gone)
        elif what < 0.98:
            store.update(dice.choice(live), where=f"volume > {dice.randrange(50_000, 90_000)}")
        else:
            store.compact(grace=_GRACE)
        state.changes += 1


# Kills.


def _session(state: Run, progress: Show) -> None:
    """Start a driver, kill some of its workers or executors, and in the end the driver itself."""
    left = state.setting.kills - state.n_killed
    clusters = state.setting.clusters
    many = max(1, state.setting.kills // 10) if clusters is None else clusters
    name = "cluster" if state.sessions < many and left > 3 else "local"
    driver = _start(state, name)
    state.sessions += 1
    n_before = state.dice.randrange(3) if name == "local" else 3
    try:
        for _ in range(min(n_before, left - 1)):
            _await_batch(state, driver)
            role = "executor" if name == "cluster" else "worker"
            _kill_one(state, driver, role)
            progress(f"killed {role}", state.n_killed, state.setting.kills)
        if state.dice.random() < 0.85:
            _await_batch(state, driver)
        else:  # while it starts
            _sleep(state, driver, state.dice.uniform(0, 10))
        what = _kill_driver(state, driver)
        progress(f"killed {what}", state.n_killed, state.setting.kills)
    finally:
        everyone = [driver.pid, *(each.pid for each in descendants(driver.pid))]
        kill(everyone)
        driver.wait()


def _start(state: Run, name: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tocsin.cli", "pipeline", "run", f"{name}.toml", *more]
    log = (state.folder / "driver.log").open("ab")
    with log:
        return subprocess.Popen(
            command,
            cwd=state.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )


def _python_path() -> str:
    """Workers import the same Tocsin as this process, wherever it lies."""
    import tocsin

    here = str(Path(tocsin.__file__).parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _await_batch(state: Run, driver: subprocess.Popen[bytes]) -> None:
    """Wait until a batch has been finished, and then for a random moment of the next ones."""
    before = state.n_finished
    end = time.monotonic() + _PATIENCE
    while state.n_finished == before:
        _check(state, driver)
        if time.monotonic() > end:
            raise PipelineError(f"no batch in {_PATIENCE:.0f} s:\n{_log(state)}")
        time.sleep(0.05)
    _sleep(state, driver, state.dice.uniform(0, 1.2 * state.last_seconds()))


def _sleep(state: Run, driver: subprocess.Popen[bytes], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _check(state, driver)
        time.sleep(0.02)


def _check(state: Run, driver: subprocess.Popen[bytes]) -> None:
    if state.failure is not None:
        raise state.failure
    if driver.poll() is not None:
        raise PipelineError(f"the pipeline ended by itself ({driver.returncode}):\n{_log(state)}")


def _log(state: Run) -> str:
    return "\n".join((state.folder / "driver.log").read_text(errors="replace").splitlines()[-30:])


def _kill_one(state: Run, driver: subprocess.Popen[bytes], role: str) -> None:
    """Kill one process of a role; where there is none just now, wait for one."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        chosen = [each.pid for each in descendants(driver.pid) if each.role == role]
        if chosen:
            kill([state.dice.choice(chosen)])
            state.killed[role] += 1
            return
        _check(state, driver)
        time.sleep(0.02)
    raise PipelineError(f"there is no {role} to kill:\n{_log(state)}")


def _kill_driver(state: Run, driver: subprocess.Popen[bytes]) -> str:
    """Kill the driver: its Python process, its JVM, or all that belongs to it."""
    everyone = descendants(driver.pid)
    machines = [each.pid for each in everyone if each.role == "jvm"]
    what = state.dice.choice(["driver", "jvm", "all"]) if machines else "driver"
    if what == "driver":
        kill([driver.pid])
    elif what == "jvm":
        kill(machines)
    else:
        kill([driver.pid, *(each.pid for each in everyone)])
    state.killed[what] += 1
    # The remaining processes end by themselves, or Spark would have two drivers on one checkpoint.
    kill(wait_gone([each.pid for each in everyone], 15))
    return what


def _finish(state: Run) -> None:
    """Run the pipeline once more until nothing is left to do."""
    driver = _start(state, "local", "--once")
    try:
        driver.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        raise PipelineError(f"the last run does not end:\n{_log(state)}") from None
    finally:
        kill([driver.pid, *(each.pid for each in descendants(driver.pid))])
        driver.wait()
    if driver.returncode not in (0, 1):
        raise PipelineError(f"the last run failed:\n{_log(state)}")


def render(result: Mapping[str, Any]) -> str:
    """Return the figures for people."""
    killed = ", ".join(f"{n} × {role}" for role, n in result["killed"].items()) or "nothing"
    lines = [
        f"killed        {killed}",
        f"sessions      {result['sessions']} of the driver, {result['seconds']} s in all",
        f"changes       {result['changes']} versions made; batches used {result['versions']}",
        f"batches       {result['batches']}; {result['repeated']} were cut off and done again",
        f"events        {result['events_in']:,}, {result['quarantined']:,} of them set aside",
        f"notifications {result['notifications']:,} expected and {result['found']:,} found",
        *_added_up(result),
        "verified      each batch equals its recomputation, row for row"
        if result["verified"]
        else "NOT VERIFIED",
        *(f"  {text}" for text in result["differences"]),
    ]
    return "\n".join(lines)


def _added_up(result: Mapping[str, Any]) -> list[str]:
    if "relation" not in result:
        return []
    return [
        f"in the end    {result['publications']:,} publications match {result['relation']:,} "
        f"subscriptions, which is ENTER minus LEAVE; {result['expired']:,} expired before"
    ]
