"""How fast many subscriptions become normal forms, and how fast a matcher takes them.

Enters: how many subscriptions, a seed, how many repeats. Leaves: a dictionary ready for JSON. What
is timed, on one core:

========== =================================================================================
texts      W0 texts: some 24,000 shapes that recur
unique     T texts: ten ranges on random attributes, every text a shape of its own
either     two T texts joined by OR: shapes of their own that are no plain conjunctions
template   M: two templates with parameter columns, strings and numbers among them
rows       W0 predicate rows, one an attribute
range rows T predicate rows, two bounds an attribute
========== =================================================================================

Each is timed twice: into normal form only, and as the whole public call on an empty matcher. Before
that the whole load is run once, which compiles the kernels, and a sample of its normal forms is
compared with the one-by-one path on events on both sides of every bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.matcher import Matcher
from tocsin.model import EventType
from tocsin.normalize import normalize
from tocsin.normalize.bulk import normalize_template, normalize_texts
from tocsin.normalize.fold import BulkForm
from tocsin.normalize.rows import normalize_rows, read_rows
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin_lab.bench.probes import Event, probes
from tocsin_lab.bench.settings import ParseSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.bench.timing import measure

_SAMPLE = 200
_LONG_SHARE = 10
"""A T subscription has ten ranges: a tenth as many of them make loads of about the same size."""
_PARSED_SHARE = 100
"""Texts that go through the parser one by one take longest."""


@dataclass(frozen=True)
class _Part:
    """One bulk call: its subscriptions in their order, and the two ways to make it."""

    ids: NDArray[np.int64]
    text_of: Callable[[int], str]
    to_form: Callable[[], BulkForm]
    subscribe: Callable[[Matcher], object]


@dataclass(frozen=True)
class _Case:
    """What is timed: how to generate it, and how many units it has in the end."""

    name: str
    workload: Workload
    unit: str
    n: int
    make: Callable[[Workload, int, int], tuple[list[_Part], int]]


def run(setting: ParseSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Time all cases and return the figures; raises AssertionError if a normal form is wrong."""
    if setting.subscriptions < _PARSED_SHARE or setting.repeats < 1:
        raise ArgumentError(f"this takes at least {_PARSED_SHARE} subscriptions and one repeat")
    cases = _cases(setting.subscriptions)
    steps = Steps(progress, len(cases) * (2 + 2 * setting.repeats))
    with one_core():
        results = [_run_case(case, setting.seed, setting.repeats, steps) for case in cases]
    return {
        "benchmark": "parse",
        "subscriptions": setting.subscriptions,
        "seed": setting.seed,
        "repeats": setting.repeats,
        "cases": results,
        "peak_rss_mb": peak_rss_mb(),
        "machine": machine(),
        "versions": versions(),
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    lines = [f"{'case':<12}{'workload':<10}{'units':>22}{'normal form/s':>16}{'whole call/s':>16}"]
    for case in result["cases"]:
        units = f"{case['n']:,} {case['unit']}"
        rates = [f"{case[way]['per_second']:,}" for way in ("normalize", "subscribe")]
        lines.append(
            f"{case['name']:<12}{case['workload']:<10}{units:>22}{rates[0]:>16}{rates[1]:>16}"
        )
    facts, used = result["machine"], result["versions"]
    lines.append(
        f"one core of {facts['cpu']}, {facts['memory_gb']} GB; "
        + ", ".join(f"{name} {number}" for name, number in used.items())
    )
    return "\n".join(lines)


def _cases(n: int) -> list[_Case]:
    long, parsed = n // _LONG_SHARE, n // _PARSED_SHARE
    return [
        _Case("texts", workload("W0"), "texts", n, _make_texts),
        _Case("unique", workload("T"), "texts", long, _make_texts),
        _Case("either", workload("T"), "texts", parsed, _make_either),
        _Case("template", workload("M"), "subscriptions", n, _make_template),
        _Case("rows", workload("W0"), "rows", n, _make_rows),
        _Case("range rows", workload("T"), "rows", long, _make_rows),
    ]


def _make_texts(chosen: Workload, n: int, seed: int) -> tuple[list[_Part], int]:
    return [_texts_part(chosen, chosen.subscription_texts(n, seed))], n


def _make_either(chosen: Workload, n: int, seed: int) -> tuple[list[_Part], int]:
    table = chosen.subscription_texts(2 * n, seed).combine_chunks()
    one, other = table.slice(0, n), table.slice(n)
    joined = pc.binary_join_element_wise(one["where"], other["where"], " OR ")
    return [_texts_part(chosen, pa.table({"id": one["id"], "where": joined}))], n


def _texts_part(chosen: Workload, table: pa.Table) -> _Part:
    return _Part(
        table["id"].to_numpy(),
        lambda row: str(table["where"][row]),
        lambda: normalize_texts(table["where"], chosen.event_type),
        lambda matcher: matcher.subscribe_many(table),
    )


def _make_template(chosen: Workload, n: int, seed: int) -> tuple[list[_Part], int]:
    tables = zip(chosen.templates, chosen.subscription_params(n, seed), strict=True)
    return [_template_part(chosen, where, table, seed) for where, table in tables], n


def _template_part(chosen: Workload, where: str, table: pa.Table, seed: int) -> _Part:
    ids = table["id"].to_numpy()
    params = {name: table[name] for name in table.column_names if name != "id"}
    return _Part(
        ids,
        lambda row: _text(chosen, int(ids[row]), seed),
        lambda: normalize_template(where, params, len(table), chosen.event_type),
        lambda matcher: matcher.subscribe_many(table, where=where),
    )


def _make_rows(chosen: Workload, n: int, seed: int) -> tuple[list[_Part], int]:
    table = chosen.subscription_rows(n, seed)
    part = _Part(
        np.arange(n),
        lambda row: _text(chosen, row, seed),
        lambda: normalize_rows(read_rows(table), chosen.event_type),
        lambda matcher: matcher.subscribe_many(table),
    )
    return [part], len(table)


def _run_case(case: _Case, seed: int, repeats: int, steps: Steps) -> dict[str, Any]:
    label = f"{case.name} ({case.workload.name})"
    steps.start(f"{label}: generate")
    parts, n_units = case.make(case.workload, case.n, seed)
    steps.finish()
    steps.start(f"{label}: check")
    n_bytes, checked = _check(case, parts, seed)
    steps.finish()
    steps.start(f"{label}: normal form")
    normalized = measure(lambda: [part.to_form() for part in parts], repeats, steps.finish)
    steps.start(f"{label}: whole call")
    subscribed = measure(lambda: _subscribe(case, parts), repeats, steps.finish)
    return {
        "name": case.name,
        "workload": case.workload.name,
        "subscriptions": case.n,
        "n": n_units,
        "unit": case.unit,
        "checked": checked,
        "bytes_per_subscription": round(n_bytes / case.n, 1),
        "normalize": normalized.to_dict(n_units),
        "subscribe": subscribed.to_dict(n_units),
    }


def _subscribe(case: _Case, parts: list[_Part]) -> Matcher:
    matcher = Matcher(case.workload.event_type)
    for part in parts:
        part.subscribe(matcher)
    return matcher


def _check(case: _Case, parts: list[_Part], seed: int) -> tuple[int, int]:
    """Check a sample of the normal forms and the whole call; return bytes and forms checked."""
    random = np.random.default_rng(seed)
    n_bytes = checked = 0
    for part in parts:
        form = part.to_form()
        if form.bad:
            raise AssertionError(f"{case.name}: {form.bad[0]} was refused")
        sample = random.choice(len(part.ids), min(_SAMPLE, len(part.ids)), replace=False)
        for row in sample.tolist():
            events = _events(case.workload, int(part.ids[row]), seed)
            _check_form(form, row, part.text_of(row), case.workload.event_type, events)
        n_bytes += form.table.nbytes
        checked += len(sample)
    n_taken = len(_subscribe(case, parts))
    if n_taken != case.n:
        raise AssertionError(f"{case.name}: the matcher holds {n_taken} of {case.n} subscriptions")
    return n_bytes, checked


def _check_form(
    form: BulkForm, row: int, text: str, event_type: EventType, events: Iterable[Event]
) -> None:
    """Compare with the one-by-one path on some events, of which the first must match."""
    bulk, single = form.table.form(row), normalize(parse(text), event_type)
    for number, event in enumerate(events):
        holds = single.holds(event)
        if not holds and not number:
            raise AssertionError(f"{text!r} is not satisfied by {event}")
        if bulk.holds(event) is not holds:
            raise AssertionError(f"{text!r} means something else in bulk: {event}")


def _events(chosen: Workload, number: int, seed: int) -> Iterator[Event]:
    rows = chosen.subscription_rows(1, seed, first=number).to_pylist()
    return probes(rows, chosen.event_type)


def _text(chosen: Workload, number: int, seed: int) -> str:
    return str(chosen.subscription_texts(1, seed, first=number)["where"][0])
