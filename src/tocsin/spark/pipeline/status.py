"""The status of a pipeline: whether it runs, and its totals, without Spark.

Enters: a configuration. Leaves: the facts that `tocsin pipeline status` prints.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tocsin.errors import TocsinError
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import open_folder
from tocsin.spark.pipeline.metrics import BatchMetrics, load_metrics
from tocsin.spark.pipeline.tables import Table
from tocsin.store.subscription_store import SubscriptionStore

RUNNING = "running.json"
"""The file in the output folder that names the process of a running pipeline."""
_RECENT = 10


@dataclass(frozen=True)
class Status:
    """The status of a pipeline."""

    name: str
    mode: str
    output: str
    running: bool
    pid: int | None
    newest_version: int | None
    problem: str | None
    batches: int
    events: int
    matches: int
    quarantined: int
    entered: int | None
    left: int | None
    """The numbers of ENTER and LEAVE transitions; None in the mode `matches`."""
    publications: int | None
    """The number of publications after the last batch."""
    rate: float | None
    """Events per second over the last batches."""
    last: BatchMetrics | None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return asdict(self)


def status(config: Config) -> Status:
    """Return the status of a pipeline, from its files."""
    folder = open_folder(config.output)
    content = folder.read(RUNNING)
    runner: dict[str, Any] = json.loads(content) if content else {}
    metrics = load_metrics(config.output)
    newest, problem = None, None
    try:
        newest = SubscriptionStore(config.subscriptions).newest()
    except TocsinError as error:
        problem = str(error)
    return Status(
        name=config.name,
        mode=config.mode,
        output=config.output,
        running=bool(runner) and _is_alive(runner),
        pid=runner.get("pid"),
        newest_version=newest,
        problem=problem,
        batches=len(metrics),
        events=sum(each.events for each in metrics),
        matches=sum(each.matches for each in metrics),
        quarantined=sum(each.quarantined for each in metrics),
        entered=_sum(each.entered for each in metrics),
        left=_sum(each.left for each in metrics),
        publications=metrics[-1].publications if metrics else None,
        rate=rate(metrics[-_RECENT:]),
        last=metrics[-1] if metrics else None,
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the known numbers; None if none is known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def rate(metrics: Iterable[BatchMetrics]) -> float | None:
    """Return the events per second over some batches, with the pauses between them."""
    batches = list(metrics)
    if not batches:
        return None
    seconds = batches[-1].finished - batches[0].started
    return sum(each.events for each in batches) / max(seconds, 1e-9)


def quarantine_reasons(config: Config, most: int = 5) -> list[tuple[str, int]]:
    """Return the most frequent codes of quarantined rows, with their counts."""
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    table = Table(f"{config.output}/quarantine")
    for manifest in table.manifests():
        for path in manifest.files:
            codes = pq.read_table(f"{table.url}/{path}", columns=["code"])["code"]
            for pair in codes.value_counts().to_pylist():
                counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
    return sorted(counts.items(), key=lambda pair: -pair[1])[:most]


def _is_alive(runner: dict[str, Any]) -> bool:
    if runner.get("host") != socket.gethostname():
        return True  # a process of another machine: unknown
    try:
        os.kill(int(runner["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
