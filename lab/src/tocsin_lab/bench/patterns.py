"""Event patterns, the same rules in SQL, and Event Ruler: on the same events.

Enters: a setting, and Event Ruler where it is installed. Leaves: patterns and conditions loaded a
second, events matched a second with each: of a table, of texts in JSON that Arrow reads, and of
mappings that are read from such texts one by one; and with Event Ruler, on one thread, of the same
texts. Its matches must be ours. The rules are of ten shapes: exact values, two of them, ranges of
numbers, prefixes, anything-but, and whether a field exists.

Event Ruler is a library in Java: `EVENT_RULER_PATH` is the class path with it and Jackson; without
that it is taken from Maven's own folder (`mvn dependency:get
-Dartifact=software.amazon.event.ruler:event-ruler:2.1.0`).
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json as pj

from tocsin.errors import UnavailableError
from tocsin.language.dialects import write
from tocsin.matcher import Matcher
from tocsin_lab.bench.machine import machine, one_core, versions
from tocsin_lab.bench.settings import PatternsSetting
from tocsin_lab.bench.steps import Progress, Steps

_SOURCE = Path(__file__).parent / "java" / "RulerBench.java"
_WAYS = ("table", "json", "mappings")
_LIBRARIES = ("event-ruler", "jackson-core", "jackson-databind", "jackson-annotations", "jsr305")


def rules(n: int, seed: int) -> tuple[list[str], list[str]]:
    """Return rules of ten shapes, as patterns and as conditions in SQL."""
    draw = random.Random(seed)
    made = [_SHAPES[at % len(_SHAPES)](draw) for at in range(n)]
    return [json.dumps(pattern) for pattern, _ in made], [where for _, where in made]


def _of(draw: random.Random) -> dict[str, Any]:
    count, user = draw.randrange(10_000), draw.randrange(100_000)
    return {
        "s": f"aws.s{draw.randrange(200)}",
        "t": f"type {draw.randrange(100)}",
        "a": f"{draw.randrange(20_000):012d}",
        "st": f"st{draw.randrange(1_000)}",
        "st2": f"st{draw.randrange(1_000)}",
        "i": f"i-{draw.randrange(1 << 20):05x}",
        "r": f"r{draw.randrange(50)}",
        "low": count,
        "high": count + 20,
        "u": f"u{user}",
        "u2": f"u{user + 1}",
    }


_Shape = Callable[[random.Random], tuple[dict[str, Any], str]]


def _shape(pattern: str, where: str) -> _Shape:
    """Return what makes rules of a shape; `$name` stands for a value."""
    names = sorted(_of(random.Random(0)), key=len, reverse=True)

    def make(draw: random.Random) -> tuple[dict[str, Any], str]:
        values, text, condition = _of(draw), pattern, where
        for name in names:
            value = values[name]
            text = text.replace(f"${name}!", json.dumps(value))
            quoted = f"'{value}'" if isinstance(value, str) else str(value)
            condition = condition.replace(f"${name}!", quoted)
        return json.loads(text), condition

    return make


_SHAPES = [
    _shape(
        '{"source": [$s!], "detail": {"state": [$st!, $st2!]}}',
        "source = $s! AND detail.state IN ($st!, $st2!)",
    ),
    _shape(
        '{"detail-type": [$t!], "detail": {"count": [{"numeric": [">", $low!, "<=", $high!]}]}}',
        '"detail-type" = $t! AND detail.count > $low! AND detail.count <= $high!',
    ),
    _shape(
        '{"source": [$s!], "detail": {"instance": [{"prefix": $i!}]}}',
        "source = $s! AND starts_with(detail.instance, $i!)",
    ),
    _shape(
        '{"source": [$s!], "detail-type": [$t!],'
        ' "detail": {"state": [{"anything-but": $st!}], "region": [$r!]}}',
        'source = $s! AND "detail-type" = $t! AND detail.state <> $st! AND detail.region = $r!',
    ),
    _shape('{"account": [$a!], "source": [$s!]}', "account = $a! AND source = $s!"),
    _shape('{"detail": {"user": [$u!]}}', "detail.user = $u!"),
    _shape(
        '{"detail": {"user": [$u!], "error": [{"exists": true}]}}',
        "detail.user = $u! AND detail.error IS NOT NULL",
    ),
    _shape(
        '{"source": [$s!], "detail-type": [$t!],'
        ' "detail": {"count": [{"numeric": [">=", $low!]}], "region": [$r!]}}',
        'source = $s! AND "detail-type" = $t! AND detail.count >= $low! AND detail.region = $r!',
    ),
    _shape(
        '{"source": [$s!], "detail": {"region": [$r!], "user": [$u!, $u2!]}}',
        "source = $s! AND detail.region = $r! AND detail.user IN ($u!, $u2!)",
    ),
    _shape(
        '{"account": [$a!], "detail-type": [$t!], "detail": {"state": [$st!]}}',
        'account = $a! AND "detail-type" = $t! AND detail.state = $st!',
    ),
]


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Return events in the form of EventBridge."""
    draw = random.Random(seed)
    made = []
    for _ in range(n):
        values = _of(draw)
        detail = {
            "state": values["st"],
            "count": values["low"],
            "instance": values["i"] + "abc",
            "region": values["r"],
            "user": values["u"],
        }
        if draw.random() < 0.2:
            detail["error"] = "E1"
        made.append(
            {
                "source": values["s"],
                "detail-type": values["t"],
                "account": values["a"],
                "detail": detail,
            }
        )
    return made


def run(setting: PatternsSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure patterns, the same rules in SQL, and Event Ruler where that is asked for."""
    steps = Steps(progress, 3 + setting.repeats + (setting.against is not None))
    patterns, conditions = rules(setting.rules, setting.seed)
    made = events(setting.events, setting.seed + 1)
    table = pa.Table.from_pylist(made)
    result: dict[str, Any] = {"setting": asdict(setting), "machine": machine()}
    with one_core():
        matchers = {}
        written = {"patterns": [write(p, "eventbridge") for p in patterns], "sql": conditions}
        for name, texts in written.items():
            steps.start(name)
            _load(texts[:1_000], table)
            matchers[name], seconds = _load(texts, table)
            result[name] = {"loaded_per_second": round(len(texts) / seconds)}
        steps.start("check")
        matches = {name: m.match_batch(table) for name, m in matchers.items()}
        ours = [sorted(ids) for ids in matches["patterns"]]
        result["same"] = ours == [sorted(ids) for ids in matches["sql"]]
        lines = [orjson.dumps(event) for event in made]
        best: dict[str, float] = {}
        for _ in range(setting.repeats):
            steps.start("match")
            for name, m in matchers.items():
                _keep(best, f"{name} table", lambda m=m: m.match_batch(table))  # type: ignore[misc]
                _keep(best, f"{name} json", lambda m=m: _from_json(m, lines))  # type: ignore[misc]
                _keep(best, f"{name} mappings", lambda m=m: _from_mappings(m, lines))  # type: ignore[misc]
        for name in matchers:
            for way in _WAYS:
                result[name][way] = round(len(made) / best[f"{name} {way}"])
        result["rate"] = round(best["sql table"] / best["patterns table"], 2)
        if setting.against is not None:
            steps.start("event-ruler")
            result["event-ruler"], theirs = _measure_ruler(setting, patterns, lines)
            result["same"] &= theirs == ours[: len(theirs)]
            rate = result["event-ruler"]["json"]
            result["times"] = {way: round(result["patterns"][way] / rate, 1) for way in _WAYS}
    return result | {"versions": versions("orjson")}


def _load(texts: list[str], table: pa.Table) -> tuple[Matcher, float]:
    matcher = Matcher()
    start = time.process_time()
    matcher.subscribe_many(pa.table({"id": range(len(texts)), "where": texts}))
    seconds = time.process_time() - start
    matcher.profile(table.slice(0, 5_000))
    matcher.rebuild()
    matcher.match_batch(table.slice(0, 1_000))
    return matcher, seconds


def _keep(best: dict[str, float], name: str, call: Callable[[], object]) -> None:
    start = time.perf_counter()
    call()
    best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)


def _from_json(matcher: Matcher, texts: list[bytes]) -> None:
    options = pj.ReadOptions(use_threads=False)
    matcher.match_batch(pj.read_json(io.BytesIO(b"\n".join(texts)), read_options=options))


def _from_mappings(matcher: Matcher, texts: list[bytes]) -> None:
    matcher.match_batch([orjson.loads(text) for text in texts])


def _measure_ruler(
    setting: PatternsSetting, patterns: list[str], texts: list[bytes]
) -> tuple[dict[str, Any], list[list[int]]]:
    """Match the first events with Event Ruler."""
    path = _class_path()
    n = min(len(texts), setting.ruler_events)
    with tempfile.TemporaryDirectory(prefix="tocsin-ruler-") as name:
        folder = Path(name)
        (folder / "patterns").write_text("\n".join(patterns))
        (folder / "events").write_bytes(b"\n".join(texts[:n]))
        files = [str(folder / each) for each in ("patterns", "events", "matches")]
        warm = str(min(n, 5_000))
        command = ["java", "-Xmx2g", "-cp", path, str(_SOURCE), *files, warm]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"Event Ruler failed: {done.stderr[-500:]}")
        loading, matching = map(float, done.stdout.split())
        lines = (folder / "matches").read_text().splitlines()
    figures = {
        "loaded_per_second": round(len(patterns) / loading),
        "json": round(n / matching),
        "events": n,
    }
    return figures, [sorted(map(int, line.split())) for line in lines]


def _class_path() -> str:
    path = os.environ.get("EVENT_RULER_PATH")
    if path is None:
        repository = Path.home() / ".m2" / "repository"
        jars = [sorted(repository.rglob(f"{name}-[0-9]*.jar")) for name in _LIBRARIES]
        more = sorted(repository.rglob("fastdoubleparser*.jar"))
        path = os.pathsep.join(str(each[-1]) for each in (*jars, more) if each)
    if "event-ruler" not in path or shutil.which("java") is None:
        raise UnavailableError("Event Ruler is not installed (set EVENT_RULER_PATH)")
    return path


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    setting = result["setting"]
    lines = [f"{setting['rules']:,} rules of ten shapes, {setting['events']:,} events"]
    for name in ("patterns", "sql"):
        figures = result[name]
        lines.append(
            f"{name}: {figures['loaded_per_second']:,} loaded/s, "
            + ", ".join(f"{figures[way]:,} events/s of {way}" for way in _WAYS)
        )
    lines.append(f"patterns at {result['rate']} of the rate of SQL")
    if "event-ruler" in result:
        figures = result["event-ruler"]
        lines.append(
            f"event-ruler: {figures['loaded_per_second']:,} loaded/s, "
            f"{figures['json']:,} events/s of json"
        )
        times = ", ".join(f"{times} of {way}" for way, times in result["times"].items())
        lines.append(f"times event-ruler: {times}")
    return "\n".join([*lines, f"the same matches: {result['same']}"])
