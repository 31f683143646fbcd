"""CONFIG.toml: what is accepted, and that every error names its key."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tocsin.errors import ConfigError, PipelineError
from tocsin.model import Kind
from tocsin.spark.pipeline.config import Tracking, from_mapping, load
from tocsin.spark.pipeline.template import TEMPLATE
from tocsin.spark.publications import Rules


def whole(**changes: Any) -> dict[str, Any]:
    """Return a good configuration, with some of its tables replaced; None takes one away."""
    values: dict[str, Any] = {
        "pipeline": {"subscriptions": "store", "output": "out"},
        "event": {"attributes": {"firm": "string", "price": "float"}},
        "source": {"format": "json", "path": "events"},
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def tracking(transitions: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Return the tables of a pipeline of transitions."""
    pipeline = {"subscriptions": "store", "mode": "transitions"}
    return {"pipeline": pipeline, "transitions": transitions, **more}


def test_the_template_is_a_good_configuration(tmp_path: Path) -> None:
    place = tmp_path / "p.toml"
    place.write_text(TEMPLATE)
    config = load(place)
    assert config.name == "quotes"
    assert config.source.path == str(tmp_path / "events")
    assert config.event_type is not None
    assert config.event_type.attributes["volume"] is Kind.INTEGER


def test_what_the_template_shows_as_a_comment_is_known_too(tmp_path: Path) -> None:
    """Take the comment signs off the keys of the tables that are in use."""
    lines = []
    for line in TEMPLATE.split("# Kafka: the value")[0].splitlines():
        is_key = line.startswith("# ") and " = " in line and line[2].islower()
        lines.append(line[2:] if is_key and "csv" not in line else line)
    place = tmp_path / "p.toml"
    place.write_text("\n".join(lines))
    config = load(place)
    assert config.trigger == 2.0
    assert config.required == ("firm",)


def test_the_template_shows_all_that_transitions_take() -> None:
    shown = TEMPLATE.split("# [transitions]")[1].split("\n\n")[0]
    lines = [line.removeprefix("# ") for line in shown.splitlines() if " = " in line]
    keys = tomllib.loads("\n".join(lines))
    attributes = {"firm": "string", "time": "timestamp", "gone": "boolean"}
    config = from_mapping(whole(**tracking(keys, event={"attributes": attributes})))
    assert config.tracking == Tracking(Rules("firm", "time", "gone", 3600.0), 16)
    assert config.mode == "transitions"
    assert config.required == ("firm",)
    assert len(keys) == len(fields(Rules)) + 1


def test_paths_are_taken_from_the_folder_of_the_file_and_urls_are_left_alone(
    tmp_path: Path,
) -> None:
    pipeline = {"subscriptions": "hdfs://host/store", "output": "out"}
    config = from_mapping(whole(pipeline=pipeline), tmp_path)
    assert config.subscriptions == "hdfs://host/store"
    assert config.output == str(tmp_path / "out")
    assert config.checkpoint == str(tmp_path / "out" / "checkpoint")
    assert config.sinks[0].path == str(tmp_path / "out" / "notifications")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2 seconds", 2.0), ("500ms", 0.5), ("1 minute", 60.0), ("1.5 hours", 5400.0), ("once", None)],
)
def test_triggers_are_times(text: str, seconds: float | None) -> None:
    pipeline = {"subscriptions": "s", "trigger": text}
    assert from_mapping(whole(pipeline=pipeline)).trigger == seconds


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("pipeline", {"pipeline": None}, "is missing"),
    ("pipeline.subscriptions", {"pipeline": {"output": "x"}}, "is missing"),
    ("pipeline.subscriptions", {"pipeline": {"subscriptions": 3}}, "must be a string"),
    ("pipeline.subscriptions", {"pipeline": {"subscriptions": " "}}, "must not be empty"),
    ("pipeline.triger", {"pipeline": {"subscriptions": "s", "triger": "x"}}, "'trigger'?"),
    ("pipeline.trigger", {"pipeline": {"subscriptions": "s", "trigger": "soon"}}, "2 seconds"),
    ("pipeline.retain", {"pipeline": {"subscriptions": "s", "retain": 0}}, "at least 1"),
    ("source.format", {"source": {"format": "xml"}}, "choose json"),
    ("source.path", {"source": {"format": "csv"}}, "is missing"),
    (
        "source.batch_files",
        {"source": {"format": "csv", "path": "x", "batch_files": True}},
        "whole",
    ),
    (
        "source.delimiter",
        {"source": {"format": "csv", "path": "x", "delimiter": "||"}},
        "one ASCII",
    ),
    ("source.servers", {"source": {"format": "kafka", "topic": "t"}}, "is missing"),
    (
        "source.path",
        {"source": {"format": "kafka", "servers": "s", "topic": "t", "path": "x"}},
        "not a key",
    ),
    (
        "source.workload",
        {"source": {"format": "generated", "workload": "Z"}},
        "choose A, C, CA, G, H, K, L, M",
    ),
    (
        "source.options.x",
        {"source": {"format": "json", "path": "x", "options": {"x": [1]}}},
        "string",
    ),
    ("event.attributes.price", {"event": {"attributes": {"price": "money"}}}, "not a kind"),
    ("event.attributes", {"event": None}, "no types of its own"),
    ("event.required", {"event": {"attributes": {"a": "string"}, "required": ["b"]}}, "'b'"),
    ("match.keep", {"match": {"keep": ["nope"]}}, "'nope'"),
    ("match.keep", {"match": {"keep": ["firm", "firm"]}}, "twice"),
    ("match.unmatched", {"match": {"unmatched": "yes"}}, "true or false"),
    ("match.unmatched", {"match": {"unmatched": True, "output": "arrays"}}, "rows"),
    ("match.output", {"match": {"output": "lists"}}, "choose rows"),
    ("sinks", {"sinks": {"kind": "parquet"}}, "[[sinks]]"),
    ("sinks[0].kind", {"sinks": [{}]}, "is missing"),
    ("sinks[1].name", {"sinks": [{"kind": "parquet"}, {"kind": "parquet"}]}, "two sinks"),
    ("sinks[0].topic", {"sinks": [{"kind": "kafka", "servers": "s"}]}, "is missing"),
    ("sinks[0].rows", {"sinks": [{"kind": "console", "rows": 0}]}, "at least 1"),
    ("spark.conf.x", {"spark": {"conf": {"x": {}}}}, "string"),
    ("statistics.every", {"statistics": {"every": "often"}}, "not a time"),
    ("sink", {"sink": []}, "'sinks'?"),
    ("pipeline.mode", {"pipeline": {"subscriptions": "s", "mode": "all"}}, "choose matches"),
    ("match.mode", {"match": {"mode": "transitions"}}, "pipeline.mode"),
    ("match.mode", {"match": {"mode": "partitioned"}}, "match.placement"),
    ("transitions", {"transitions": {"key": "firm"}}, "goes with pipeline.mode"),
    ("transitions", tracking(None), "is missing"),
    ("transitions.key", tracking({}), "is missing"),
    ("transitions.key", tracking({"key": "vehicle"}), "'vehicle' is not among"),
    ("transitions.key", tracking({"key": "kind"}), "a column of transitions"),
    ("transitions.order", tracking({"key": "firm", "order": "time"}), "'time' is not among"),
    ("transitions.retract", tracking({"key": "firm", "retract": "price"}), "must be boolean"),
    ("transitions.ttl", tracking({"key": "firm", "ttl": "0 s"}), "more than 0"),
    ("transitions.ttl", tracking({"key": "firm", "ttl": "long"}), "not a time"),
    ("transitions.buckets", tracking({"key": "firm", "buckets": 0}), "at least 1"),
    ("transitions.keys", tracking({"key": "firm", "keys": "x"}), "'key'?"),
    ("match.keep", tracking({"key": "firm"}, match={"keep": ["firm"]}), "only: a transition has"),
    ("match.output", tracking({"key": "firm"}, match={"output": "arrays"}), "matches"),
    ("match.unmatched", tracking({"key": "firm"}, match={"unmatched": True}), "matches"),
    ("match.placement", tracking({"key": "firm"}, match={"placement": "partitioned"}), "matches"),
]


@pytest.mark.parametrize(
    ("key", "changes", "reason"), WRONG, ids=[f"{k}-{i}" for i, (k, _, _) in enumerate(WRONG)]
)
def test_every_error_names_its_key(key: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(whole(**changes), path="p.toml")
    assert caught.value.key == key
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"p.toml: {key}: ")


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("[pipeline\n")
    with pytest.raises(ConfigError, match=r"not TOML.*line 1"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "bad.toml")


def test_a_template_never_replaces_a_file(tmp_path: Path) -> None:
    from tocsin.spark.pipeline.template import write_template

    place = write_template(tmp_path / "p.toml")
    assert place.read_text() == TEMPLATE
    with pytest.raises(PipelineError, match="exists already"):
        write_template(place)


def test_a_missing_store_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from tocsin.cli.app import app

    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(app, ["pipeline", "init"]).exit_code == 0
    path = next(tmp_path.glob("*.toml"))
    monkeypatch.setattr("tocsin.spark.pipeline.run.Pipeline", None)
    result = runner.invoke(app, ["pipeline", "run", str(path), "--once"])
    assert result.exit_code == 2, result.output
    assert "make one with: tocsin subscriptions add" in result.output
