"""`tocsin demo`: the pipeline on Spark, on a generated market (workload A).

Enters: how many subscriptions, for how long, how many quotes in a batch. Leaves: a folder with the
subscription store, notifications in Parquet, metrics and a report in HTML; a summary to read. While
it runs, the terminal shows rates and latencies, and one more subscription is added to the store,
which matches from the next micro-batch on. Where Spark cannot run, the demonstration in this
process is run instead, and says why.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import typer

from tocsin.cli.console import OK, printable, say
from tocsin.cli.demo_view import DemoView
from tocsin.cli.picture import Mark, Series, draw
from tocsin.errors import PipelineError
from tocsin.matcher import Matcher
from tocsin.spark.pipeline.config import Config, from_mapping
from tocsin.spark.pipeline.metrics import BatchMetrics
from tocsin.spark.pipeline.sessions import check_spark
from tocsin.store.subscription_store import SubscriptionStore
from tocsin.workloads import workload

ADDED = 1_000_000_000
"""The id of the subscription that is added while the pipeline runs."""
ADDED_WHERE = "volume > 10000"
_ADD_AFTER = 0.4
"""After which part of the time it is added."""
_LONGER = 30.0
"""Seconds that a slow machine is waited for until a batch uses the added subscription."""
WORKLOAD = "A"
NEXT = (
    "tocsin demo fleet",
    "tocsin pipeline init",
    """tocsin check "price < 10 AND price > 20" """.strip(),
)
"""What to try after the demonstration."""


@dataclass(frozen=True)
class Demo:
    """What was asked for."""

    subscriptions: int
    seconds: float
    rate: int
    out: Path | None
    seed: int
    as_json: bool


@dataclass
class Story:
    """What happened."""

    folder: str
    seconds_storing: float = 0.0
    seconds_starting: float = 0.0
    batches: list[BatchMetrics] = field(default_factory=list)
    added_at: float | None = None
    added_version: int | None = None
    first_batch: int | None = None
    """The first batch in which the added subscription matched."""
    n_added: int = 0
    sample: dict[str, Any] | None = None
    rows: int = 0


def run(demo: Demo) -> int:
    """Run the demonstration and print its results."""
    try:
        check_spark()
    except PipelineError as error:
        say(f"{error}\nWithout Spark: the same market, matched in this process.\n")
        from tocsin.cli.demo import run as run_here

        return run_here(demo.subscriptions, 30_000, demo.seed, "auto", demo.as_json)
    folder = demo.out or Path(tempfile.mkdtemp(prefix="tocsin-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise PipelineError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(str(folder))
    with DemoView(demo.subscriptions, demo.seconds) as view:
        view.note(f"storing {demo.subscriptions:,} subscriptions")
        store = _store(demo, folder, story)
        _run(demo, folder, store, story, view)
    _look(folder, story)
    (folder / "report.html").write_text(_html(demo, story))
    typer.echo(json.dumps(_facts(story), default=str) if demo.as_json else _report(demo, story))
    return OK


def _store(demo: Demo, folder: Path, story: Story) -> SubscriptionStore:
    """Write the subscriptions, with an index that was planned for such quotes."""
    start = time.perf_counter()
    market = workload(WORKLOAD)
    matcher = Matcher(market.event_type)
    matcher.profile(market.events(5_000, demo.seed + 1))
    matcher.subscribe_many(market.subscription_texts(demo.subscriptions, demo.seed))
    matcher.match_batch(market.events(10, demo.seed))
    matcher.save(folder / "subscriptions")
    story.seconds_storing = time.perf_counter() - start
    return SubscriptionStore(folder / "subscriptions")


def _configure(demo: Demo, folder: Path) -> Config:
    return from_mapping(
        {
            "pipeline": {
                "name": "demo",
                "subscriptions": "subscriptions",
                "output": "output",
                "trigger": "1 second",
            },
            "source": {
                "format": "generated",
                "workload": WORKLOAD,
                "batch_events": demo.rate,
                "seed": demo.seed,
            },
            "match": {"keep": ["event", "firm", "price", "volume"]},
            "sinks": [{"kind": "parquet"}],
            "spark": {"master": "local[2]", "conf": {"spark.driver.memory": "1g"}},
        },
        folder,
    )


def _run(demo: Demo, folder: Path, store: SubscriptionStore, story: Story, view: DemoView) -> None:
    from tocsin.spark.pipeline.run import Pipeline

    start = time.perf_counter()
    first = threading.Event()

    def on_batch(metrics: BatchMetrics) -> None:
        if not story.batches:
            story.seconds_starting = time.perf_counter() - start
        story.batches.append(metrics)
        first.set()
        view.batch(metrics)

    view.note("starting Spark")
    with Pipeline(_configure(demo, folder), on_batch=on_batch) as pipeline:
        view.note("the first batch: workers start and open the index")
        arguments = (demo, store, story, first, view)
        threading.Thread(target=_add_later, args=arguments, daemon=True).start()
        pipeline.start()
        while pipeline.query is not None and pipeline.query.isActive:
            if first.wait(0.1) and _is_over(demo, story):
                break
        pipeline.run(batches=0)


def _is_over(demo: Demo, story: Story) -> bool:
    """Whether the time is up, and a batch used the added subscription where that takes longer."""
    seconds = time.time() - story.batches[0].finished
    if seconds < demo.seconds:
        return False
    version = story.added_version
    is_used = version is not None and story.batches[-1].version >= version
    return is_used or seconds >= demo.seconds + _LONGER


def _add_later(
    demo: Demo, store: SubscriptionStore, story: Story, first: threading.Event, view: DemoView
) -> None:
    """Add one more subscription while the pipeline runs."""
    first.wait()
    time.sleep(demo.seconds * _ADD_AFTER)
    story.added_version = store.subscribe(ADDED, ADDED_WHERE)
    story.added_at = time.time()
    view.added(ADDED_WHERE, story.added_version)


def _look(folder: Path, story: Story) -> None:
    """Read the notifications back, through the manifests."""
    from tocsin.spark.pipeline.tables import read_table

    table = read_table(str(folder / "output" / "notifications"), with_batch=True)
    story.rows = table.num_rows
    if not table.num_rows:
        return
    mine = table.filter(pc.equal(table["subscription"], ADDED))
    story.n_added = mine.num_rows
    if mine.num_rows:
        story.first_batch = pc.min(mine["batch"]).as_py()
        story.sample = mine.slice(0, 1).to_pylist()[0]


def _later(story: Story) -> Sequence[BatchMetrics]:
    """Return the batches after the first, in which Spark and its workers start."""
    return story.batches[1:] or story.batches


def _picture(demo: Demo, story: Story) -> str:
    zero = story.batches[0].finished if story.batches else 0.0
    later = _later(story)
    rates = [(b.finished - zero, b.events / max(b.seconds, 1e-9)) for b in later]
    latencies = [(b.finished - zero, b.seconds) for b in later]
    shares = [(b.finished - zero, b.matches / max(1, b.events)) for b in later]
    marks = []
    if story.added_at is not None:
        marks.append(
            Mark(story.added_at - zero, f"subscription added (version {story.added_version})")
        )
    n = sum(batch.events for batch in story.batches)
    matches = sum(batch.matches for batch in story.batches)
    return draw(
        "Quotes matched on Spark",
        f"{demo.subscriptions:,} subscriptions, {n:,} quotes, {matches:,} notifications; "
        "each dot is a micro-batch",
        [
            Series("throughput while a batch runs", "quotes a second", rates, "#1f6f8b"),
            Series(
                "latency of a batch, first read to last notification",
                "seconds",
                latencies,
                "#5b8c5a",
            ),
            Series("what each quote sends out", "notifications a quote", shares, "#8a5a9e"),
        ],
        marks,
    )


def _facts(story: Story) -> dict[str, Any]:
    return {**asdict(story), "batches": [asdict(batch) for batch in story.batches]}


def _html(demo: Demo, story: Story) -> str:
    """Return a page with the figures, the picture and the commands to try next."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in _rows(demo, story)
    )
    added = "".join(f"<p>{escape(line.strip())}</p>" for line in _added(story))
    commands = "".join(f"<li><code>{escape(command)}</code></li>" for command in NEXT)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Tocsin: a market</title>"
        f"<style>{_STYLE}</style><h1>A market, matched on Spark</h1><table>{rows}</table>"
        f"{_picture(demo, story)}<h2>A rule that was added while it ran</h2>{added}"
        f"<h2>Try next</h2><ul>{commands}</ul></html>\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;"
    "color:#1f2933}th{text-align:left;padding-right:2rem;font-weight:600}svg{max-width:100%;"
    "height:auto}code{background:#f0f2f4;padding:.1rem .3rem}"
)


def _rows(demo: Demo, story: Story) -> list[tuple[str, str]]:
    later = _later(story)
    n = sum(batch.events for batch in story.batches)
    busy = sum(batch.seconds for batch in later)
    rate = sum(batch.events for batch in later) / max(busy, 1e-9)
    times = sorted(batch.seconds for batch in later)
    middle, most = (times[len(times) // 2], times[-1]) if times else (0.0, 0.0)
    each = story.rows / max(1, n)
    return [
        ("subscriptions", f"{demo.subscriptions:,}, indexed in {story.seconds_storing:.1f} s"),
        ("start of Spark", f"{story.seconds_starting:.1f} s to the end of the first batch"),
        ("quotes", f"{n:,} in {len(story.batches)} micro-batches, {rate:,.0f}/s while busy"),
        ("notifications", f"{story.rows:,}, each once, in Parquet: {each:.1f} a quote"),
        ("a batch took", f"{middle:.2f} s (median), {most:.2f} s at most"),
    ]


def _report(demo: Demo, story: Story) -> str:
    lines = ["", "A market, matched on Spark"]
    lines += [f"  {name:<16}{value}" for name, value in _rows(demo, story)]
    if story.added_version is not None:
        lines += ["", *_added(story)]
    lines += [
        "",
        f"Everything is in {story.folder}",
        "  report.html            these figures, throughput and latency over time",
        "  output/notifications   the table; tocsin.spark.pipeline.read_table reads it",
        "  output/metrics         a line of JSON for each batch",
        "",
        "Try next: " + " · ".join(NEXT),
    ]
    return printable("\n".join(lines))


def _added(story: Story) -> list[str]:
    lines = [f"Added while it ran: {ADDED_WHERE}", f"  became version {story.added_version}"]
    new = [batch for batch in story.batches if batch.version >= (story.added_version or 0)]
    if new:
        lines.append(f"  first used by batch {new[0].batch}, the next one to begin; no restart")
    if story.first_batch is not None and story.sample:
        quote = {k: story.sample[k] for k in ("firm", "price", "volume")}
        text = ", ".join(f"{name} {value}" for name, value in quote.items())
        lines.append(f"  first matched in batch {story.first_batch}: {text}")
        lines.append(f"  {story.n_added:,} notifications since")
    return lines
