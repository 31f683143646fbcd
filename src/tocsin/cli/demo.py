"""`tocsin demo`: a generated market (workload M) → matches, and a summary to read.

Enters: how many subscriptions and events, a seed, an engine. Leaves: figures, the firms with the
most matches, one notification with its condition in words, and what to try next.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.cli.console import OK, Progress
from tocsin.language import parse
from tocsin.matcher import Matcher
from tocsin.normalize.describe import describe
from tocsin.normalize.normal import normalize
from tocsin.workloads import Workload, workload

SAMPLE = 100
SUBSCRIPTION_CHUNK = 20_000
EVENT_CHUNK = 2_000


@dataclass
class Figures:
    """What the demonstration found."""

    subscriptions: int = 0
    events: int = 0
    matches: int = 0
    matched_events: int = 0
    seconds_compiling: float = 0.0
    seconds_loading: float = 0.0
    seconds_preparing: float = 0.0
    seconds_matching: float = 0.0
    top_firms: dict[str, int] = field(default_factory=dict)
    sample: dict[str, Any] | None = None


def run(subscriptions: int, events: int, seed: int, engine: str, as_json: bool) -> int:
    """Run the demonstration and print its results."""
    market = workload("M")
    matcher = Matcher(market.event_type, engine=engine)
    figures = Figures()
    with Progress() as progress:
        figures.seconds_compiling = _compile(market, engine, progress)
        _load(matcher, market, subscriptions, seed, figures, progress)
        _match(matcher, market, events, seed, figures, progress)
    if as_json:
        import typer

        typer.echo(json.dumps(asdict(figures), default=str))
    else:
        _print(figures)
    return OK


def _compile(market: Workload, engine: str, progress: Progress) -> float:
    """Compile what the rest needs, unless an earlier run has; return the seconds it took."""
    start = time.perf_counter()
    progress.show("compiling", 0, None, "only the first time")
    matcher = Matcher(market.event_type, engine=engine)
    matcher.subscribe_many(market.subscription_texts(SAMPLE))
    matcher.match_batch(market.events(SAMPLE))
    progress.show("compiling", 1, 1)
    return time.perf_counter() - start


def _load(
    matcher: Matcher, market: Workload, n: int, seed: int, figures: Figures, progress: Progress
) -> None:
    for first in range(0, n, SUBSCRIPTION_CHUNK):
        table = market.subscription_texts(min(SUBSCRIPTION_CHUNK, n - first), seed, first)
        start = time.perf_counter()
        matcher.subscribe_many(table)
        figures.seconds_loading += time.perf_counter() - start
        figures.subscriptions = len(matcher)
        progress.show("subscriptions", figures.subscriptions, n, f"{len(matcher):,}")


def _match(
    matcher: Matcher, market: Workload, n: int, seed: int, figures: Figures, progress: Progress
) -> None:
    start = time.perf_counter()
    matcher.match_batch(market.events(1, seed, n))  # builds the index
    figures.seconds_preparing = time.perf_counter() - start
    firms: Counter[str] = Counter()
    for first in range(0, n, EVENT_CHUNK):
        events = market.events(min(EVENT_CHUNK, n - first), seed, first)
        start = time.perf_counter()
        matches = matcher.match_batch(events)
        figures.seconds_matching += time.perf_counter() - start
        counts = np.diff(matches.offsets)
        figures.events += len(matches)
        figures.matches += int(counts.sum())
        figures.matched_events += int(np.count_nonzero(counts))
        _count_firms(firms, events, counts)
        if figures.sample is None and counts.any():
            at = int(np.flatnonzero(counts)[0])
            figures.sample = _sample(market, events, at, matches[at], seed)
        progress.show("events", figures.events, n, f"{figures.matches:,} matches")
    figures.top_firms = dict(firms.most_common(5))


def _count_firms(firms: Counter[str], events: pa.Table, counts: np.ndarray[Any, Any]) -> None:
    codes = events["firm"].combine_chunks().dictionary_encode()
    sums = np.bincount(codes.indices.to_numpy(), weights=counts)
    for firm, total in zip(codes.dictionary.to_pylist(), sums, strict=True):
        firms[firm] += int(total)


def _sample(
    market: Workload, events: pa.Table, at: int, matched: list[Any], seed: int
) -> dict[str, Any]:
    """Return one event, one of the subscriptions it matches, and that one's condition in words."""
    subscription = matched[0]
    text = market.subscription_texts(1, seed, subscription)["where"][0].as_py()
    form = normalize(parse(text), market.event_type)
    return {
        "event": events.slice(at, 1).to_pylist()[0],
        "subscriptions": len(matched),
        "subscription": subscription,
        "where": text,
        "in_words": describe(form, market.event_type),
    }


def _print(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_column()
    for row in _facts(figures):
        facts.add_row(*row)
    console.print("\n[bold]A market, matched[/bold]")
    console.print(facts)
    firms = ", ".join(f"{firm} {count:,}" for firm, count in figures.top_firms.items())
    console.print(f"\n[bold]Most matches[/bold]\n{firms}")
    if figures.sample:
        sample = figures.sample
        event = ", ".join(f"{name} {value}" for name, value in sample["event"].items())
        console.print("\n[bold]One notification[/bold]")
        console.print(f"event         {event}", markup=False)
        others = f" and {sample['subscriptions'] - 1:,} more" if sample["subscriptions"] > 1 else ""
        console.print(f"goes to       subscription {sample['subscription']}{others}", markup=False)
        console.print(f"asked for     {sample['where']}", markup=False)
        console.print(f"in words      {' or '.join(sample['in_words'])}", markup=False)
    console.print("\n[bold]Try next[/bold]")
    console.print('tocsin check "price < 10 AND price > 20"', markup=False)
    console.print("tocsin match --subscriptions FILE --events FILE", markup=False)
    console.print("tocsin demo match --subscriptions 1000000 --events 5000", markup=False)


def _facts(figures: Figures) -> list[tuple[str, str, str]]:
    loading = figures.subscriptions / max(figures.seconds_loading, 1e-9)
    matching = figures.events / max(figures.seconds_matching, 1e-9)
    matches = figures.matches / max(figures.seconds_matching, 1e-9)
    average = figures.matches / max(1, figures.events)
    return [
        ("kernels", f"{figures.seconds_compiling:.2f} s", "compiled once, then kept on disk"),
        ("subscriptions", f"{figures.subscriptions:,}", f"loaded at {loading:,.0f}/s"),
        ("index", f"{figures.seconds_preparing:.2f} s", "built once, before the first event"),
        ("events", f"{figures.events:,}", f"matched at {matching:,.0f}/s"),
        ("matches", f"{figures.matches:,}", f"found at {matches:,.0f}/s"),
        ("per event", f"{average:,.1f}", f"{figures.matched_events:,} events matched something"),
    ]
