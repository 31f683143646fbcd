"""CONFIG.toml → a checked configuration.

Enters: the text of a file, or a mapping of the same shape. Leaves: frozen dataclasses. Every error
names the key that is wrong; an unknown key is an error too, so that a typo does not go unnoticed.
Relative paths are taken from the folder of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.errors import ArgumentError, ConfigError
from tocsin.model import EventType, Kind
from tocsin.spark.pipeline.sections import Section
from tocsin.spark.publications import Rules

FILE_FORMATS = ("json", "csv", "parquet")
SOURCES = (*FILE_FORMATS, "kafka", "generated", "frame")
SINKS = ("parquet", "delta", "kafka", "console")
OUTPUTS = ("rows", "arrays")
MODES = ("matches", "transitions")
PLACEMENTS = ("auto", "replicated", "partitioned")
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) *(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h)")
_SECONDS = {"m": 60.0, "h": 3600.0, "s": 1.0}


@dataclass(frozen=True)
class Source:
    """The source of events."""

    format: str
    path: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    batch_files: int = 100
    servers: str = ""
    topic: str = ""
    start: str = "earliest"
    batch_events: int = 0
    workload: str = "M"
    events: int = 0
    seed: int = 0
    blocks: int = 2
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sink:
    """A destination of notifications. `name` is unique within a pipeline."""

    kind: str
    name: str
    path: str = ""
    servers: str = ""
    topic: str = ""
    key: str = "subscription"
    rows: int = 20
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tracking:
    """How events become publications, and the number of buckets of these."""

    rules: Rules
    buckets: int = 16


@dataclass(frozen=True)
class Config:
    """A pipeline: source, event type, subscriptions, sinks, and settings of Spark."""

    name: str
    subscriptions: str
    output: str
    checkpoint: str
    source: Source
    sinks: tuple[Sink, ...]
    event_type: EventType | None = None
    required: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    shape: str = "rows"
    placement: str = "auto"
    unmatched: bool = False
    tracking: Tracking | None = None
    trigger: float | None = 0.0
    retain: int = 100
    sample: int = 20_000
    sample_seconds: float = 30.0
    master: str = "local[*]"
    spark: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None

    @property
    def mode(self) -> str:
        """The mode of the pipeline, one of MODES."""
        return "matches" if self.tracking is None else "transitions"

    @property
    def table(self) -> str:
        """The folder of the first Parquet sink, or its default."""
        for sink in self.sinks:
            if sink.kind == "parquet":
                return sink.path
        return f"{self.output}/notifications"


def load(path: str | Path) -> Config:
    """Read a configuration file."""
    file = Path(path)
    try:
        text = file.read_bytes().decode()
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError("", f"cannot be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("", "is not UTF-8", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("", f"is not TOML: {error}", str(path)) from None
    return from_mapping(values, file.resolve().parent, str(path))


def from_mapping(
    values: Mapping[str, Any], folder: str | Path = ".", path: str | None = None
) -> Config:
    """Return the configuration of a mapping in the shape of the file; raise ConfigError."""
    top = Section(values, "", str(Path(folder).resolve()), path)
    whole = top.section("pipeline")
    output = whole.place("output", "output")
    event_type, required = _event(top.section("event", optional=True))
    source = _source(top.section("source"))
    sinks = _sinks(top, output)
    tracking = _tracking(top, whole.choice("mode", MODES, MODES[0]))
    if tracking is not None:
        required = tuple(dict.fromkeys((*required, tracking.rules.key)))
    match = top.section("match", optional=True)
    statistics = top.section("statistics", optional=True)
    spark = top.section("spark", optional=True)
    config = Config(
        name=whole.text("name", "pipeline"),
        subscriptions=whole.place("subscriptions"),
        output=output,
        checkpoint=whole.place("checkpoint", f"{output}/checkpoint"),
        trigger=_trigger(whole),
        retain=whole.number("retain", 100, 1),
        source=source,
        sinks=sinks,
        event_type=event_type,
        required=required,
        keep=match.texts("keep", None),
        shape=match.choice("output", OUTPUTS, "rows"),
        placement=_placement(match),
        unmatched=match.flag("unmatched", False),
        tracking=tracking,
        sample=statistics.number("sample", 20_000, 0),
        sample_seconds=_seconds(statistics, "every", 30.0),
        master=spark.text("master", "local[*]"),
        spark=spark.options("conf"),
        path=path,
    )
    for section in (whole, match, statistics, spark, top):
        section.finish()
    _check(config, top)
    return config


def _tracking(top: Section, mode: str) -> Tracking | None:
    """Return the settings of transitions; None in the mode `matches`."""
    if mode == "matches":
        if top.peek("transitions") is not None:
            raise top.wrong("transitions", 'goes with pipeline.mode = "transitions" only')
        return None
    section = top.section("transitions")
    ttl = _seconds(section, "ttl", 0.0)
    if ttl == 0.0 and section.peek("ttl") is not None:
        raise section.wrong("ttl", "must be more than 0")
    rules = Rules(
        key=section.text("key"),
        order=section.text("order") if section.peek("order") is not None else None,
        retract=section.text("retract") if section.peek("retract") is not None else None,
        ttl=ttl or None,
        partial=section.flag("partial", False),
    )
    if rules.key in ("subscription", "kind"):
        raise section.wrong("key", f"cannot be {rules.key!r}, which is a column of transitions")
    tracking = Tracking(rules, section.number("buckets", 16, 1))
    section.finish()
    return tracking


def _placement(match: Section) -> str:
    mode = match.peek("mode")
    if mode in MODES:
        raise match.wrong("mode", f"is a key of [pipeline]: write pipeline.mode = {mode!r}")
    if mode is not None:
        raise match.wrong("mode", f"is now called placement: write match.placement = {mode!r}")
    return match.choice("placement", PLACEMENTS, "auto")


def _event(section: Section) -> tuple[EventType | None, tuple[str, ...]]:
    attributes: dict[str, Kind] = {}
    inner = section.section("attributes", optional=True)
    for name in inner.names():
        kind = inner.text(name)
        try:
            attributes[name] = EventType("x", {name: kind}).attributes[name]
        except ArgumentError:
            known = ", ".join(sorted(each.value for each in Kind))
            raise inner.wrong(name, f"{kind!r} is not a kind; choose {known}") from None
    required = section.texts("required", ()) or ()
    for name in required:
        if name not in attributes:
            raise section.wrong("required", f"{name!r} is not among event.attributes")
    declared = EventType(section.text("name", "Event"), attributes) if attributes else None
    section.finish()
    return declared, tuple(required)


def _source(section: Section) -> Source:
    form = section.choice("format", SOURCES)
    values: dict[str, Any] = {"format": form, "options": section.options("options")}
    if form in FILE_FORMATS:
        values["path"] = section.place("path")
        values["batch_files"] = section.number("batch_files", 100, 1)
    if form == "csv":
        values["columns"] = section.texts("columns", ()) or ()
        values["delimiter"] = section.text("delimiter", ",")
        if len(values["delimiter"].encode()) != 1:
            raise section.wrong("delimiter", "must be one ASCII character")
    if form == "kafka":
        values["servers"] = section.text("servers")
        values["topic"] = section.text("topic")
        values["start"] = section.choice("start", ("earliest", "latest"), "earliest")
        values["batch_events"] = section.number("batch_events", 0, 0)
    if form == "generated":
        from tocsin.workloads import names

        values["workload"] = section.choice("workload", names(), "M")
        values["batch_events"] = section.number("batch_events", 10_000, 1)
        values["events"] = section.number("events", 0, 0)
        values["seed"] = section.number("seed", 0, 0)
        values["blocks"] = section.number("blocks", 2, 1)
    section.finish()
    return Source(**values)


def _sinks(top: Section, output: str) -> tuple[Sink, ...]:
    sinks: list[Sink] = []
    for section in top.sections("sinks"):
        kind = section.choice("kind", SINKS)
        values: dict[str, Any] = {"kind": kind, "name": section.text("name", kind)}
        if kind in ("parquet", "delta"):
            values["path"] = section.place("path", f"{output}/{_default_folder(values['name'])}")
        if kind == "kafka":
            values["servers"] = section.text("servers")
            values["topic"] = section.text("topic")
            values["key"] = section.text("key", "subscription")
        if kind == "console":
            values["rows"] = section.number("rows", 20, 1)
        if kind in ("parquet", "delta", "kafka"):
            values["options"] = section.options("options")
        if values["name"] in {sink.name for sink in sinks}:
            raise section.wrong(
                "name", f"two sinks are called {values['name']!r}; give each a name"
            )
        section.finish()
        sinks.append(Sink(**values))
    if not sinks:
        return (Sink("parquet", "parquet", f"{output}/notifications"),)
    return tuple(sinks)


def _default_folder(name: str) -> str:
    return "notifications" if name in ("parquet", "delta") else name


def _trigger(section: Section) -> float | None:
    """Return the seconds between micro-batches; None to process all events and stop."""
    if section.peek("trigger") == "once":
        section.text("trigger")
        return None
    return _seconds(section, "trigger", 0.0)


def _seconds(section: Section, key: str, default: float) -> float:
    value = section.peek(key)
    if value is None:
        return default
    text = section.text(key)
    interval = _INTERVAL.fullmatch(text.strip())
    if interval is None:
        more = ', or "once"' if key == "trigger" else ""
        raise section.wrong(key, f'{text!r} is not a time; write "2 seconds", for example{more}')
    unit = interval[2]
    scale = 0.001 if unit.startswith(("ms", "milli")) else _SECONDS[unit[0]]
    return float(interval[1]) * scale


def _check(config: Config, top: Section) -> None:
    """Check keys that depend on each other."""
    typed = config.event_type is not None
    if config.source.format in ("json", "csv", "kafka") and not typed:
        raise top.wrong(
            "event.attributes",
            f"needed: a {config.source.format} source has no types of its own, so declare the "
            'attributes of events and their kinds, such as price = "float"',
        )
    if config.unmatched and config.shape == "arrays":
        raise top.wrong("match.unmatched", 'goes with match.output = "rows" only')
    if config.tracking is not None:
        _check_tracking(config, config.tracking.rules, top)
    declared = config.event_type.attributes if config.event_type else {}
    if config.source.format in ("json", "csv", "kafka"):
        for name in config.keep or ():
            if name not in declared:
                raise top.wrong("match.keep", f"{name!r} is not among event.attributes")


def _check_tracking(config: Config, rules: Rules, top: Section) -> None:
    """Check keys that depend on transitions, and that the attributes of the rules exist."""
    only = 'goes with pipeline.mode = "matches" only'
    if config.keep is not None:
        more = ": a transition has its key, its subscription and its kind"
        raise top.wrong("match.keep", only + more)
    for key, is_used in (
        ("output", config.shape != "rows"),
        ("unmatched", config.unmatched),
        ("placement", config.placement == "partitioned"),
    ):
        if is_used:
            raise top.wrong(f"match.{key}", only)
    declared = config.event_type.attributes if config.event_type else {}
    for role, name in (("key", rules.key), ("order", rules.order), ("retract", rules.retract)):
        if name is not None and name not in declared:
            if config.source.format in ("json", "csv", "kafka"):
                raise top.wrong(f"transitions.{role}", f"{name!r} is not among event.attributes")
        elif role == "retract" and name and declared[name] is not Kind.BOOLEAN:
            raise top.wrong("transitions.retract", f"{name!r} must be boolean")
