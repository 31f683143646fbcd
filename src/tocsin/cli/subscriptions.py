"""`tocsin subscriptions …`: change a subscription store, and list it.

Enters: the path or URL of a store, and a command. Leaves: a new version of the store, a report on
standard output, and the exit code. A file is added whole, in one version, or with
`--on-error quarantine` without its bad rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from tocsin.arguments import UNCHANGED
from tocsin.catalog.records import write_json
from tocsin.cli.console import BAD_ROWS, OK, Progress, printable, say
from tocsin.cli.match_files import check_target, replacing
from tocsin.cli.options import to_event_type, to_params
from tocsin.cli.quarantine import Quarantine, load_file
from tocsin.cli.subscription_files import SubscriptionFile
from tocsin.encode.files import open_text
from tocsin.errors import ArgumentError, FileFormatError
from tocsin.language.dialects import SQL
from tocsin.language.timestamps import parse_timestamp
from tocsin.matcher import Matcher
from tocsin.model import INT64_MAX, INT64_MIN, SubscriptionId
from tocsin.storage.changes import AddTable, ChangeBatch
from tocsin.store.subscription_store import SubscriptionStore, open_or_create


@dataclass(frozen=True)
class FileOptions:
    """Which files to take subscriptions from, and what to do with bad rows."""

    files: Sequence[Path]
    types: Sequence[str]
    on_error: str
    quarantine: Path | None
    as_json: bool
    dialect: str = SQL
    """That of the conditions that have none of their own."""


@dataclass(frozen=True)
class OneOptions:
    """A subscription as options give it."""

    id: SubscriptionId
    where: str
    params: Sequence[str]
    valid_until: str | None


@dataclass(frozen=True)
class ExplainOptions:
    """How `tocsin explain` reads an id, or a condition without a store."""

    params: Sequence[str]
    types: Sequence[str]
    is_integer: bool
    dialect: str = SQL


def to_id(text: str, is_integer: bool) -> SubscriptionId:
    """Return a new id: the text itself, or the integer that it writes."""
    if not is_integer:
        return text
    try:
        number = int(text)
    except ValueError:
        number = INT64_MAX + 1
    if not INT64_MIN <= number <= INT64_MAX:
        raise ArgumentError(f"{text!r} is no 64-bit integer")
    return number


def find_id(store: SubscriptionStore, text: str, is_integer: bool) -> SubscriptionId:
    """Return the id of a subscription that a text names: a string, or the integer written so."""
    if is_integer:
        return to_id(text, True)
    try:
        number = to_id(text, True)
    except ArgumentError:
        return text
    if text in store and number in store:
        raise ArgumentError(
            f"there are subscriptions {text!r} (a string) and {number} (an integer); "
            "--integers means the integer"
        )
    return text if text in store or number not in store else number


def list_all(path: str, limit: int | None, as_json: bool) -> int:
    """List the subscriptions of a store."""
    with SubscriptionStore(path) as store:
        n = len(store)
        for facts in islice(_records(store), limit):
            typer.echo(_to_line(facts) if as_json else _to_text(facts))
    if limit is not None and limit < n:
        say(f"{limit:,} of {n:,} subscriptions")
    return OK


def export(path: str, file: Path | None) -> int:
    """Write the subscriptions of a store as JSON lines."""
    with SubscriptionStore(path) as store:
        if file is None or file == Path("-"):
            for facts in _records(store):
                typer.echo(_to_line(facts))
            return OK
        if file.suffix.lower() not in (".jsonl", ".ndjson"):
            raise FileFormatError(str(file), "JSON lines are written: its name must end in .jsonl")
        check_target(file)
        with replacing(file) as stream:
            for facts in _records(store):
                stream.write(_to_line(facts).encode() + b"\n")
        say(f"{file}: {len(store):,} subscriptions")
    return OK


def _records(store: SubscriptionStore) -> Iterator[dict[str, Any]]:
    """Yield the subscriptions of a store; ids keep their kinds."""
    ids = iter(store)
    for batch in store.to_table().to_batches(max_chunksize=10_000):
        for id, row in zip(ids, batch.to_pylist(), strict=False):
            facts = {"id": id, "where": row["where"]}
            if row.get("dialect", SQL) != SQL:
                facts["dialect"] = row["dialect"]
            if row["params"] is not None:
                facts["params"] = json.loads(row["params"])
            if row["valid_until"] is not None:
                facts["valid_until"] = row["valid_until"].isoformat()
            yield facts


def _to_line(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _to_text(facts: Mapping[str, Any]) -> str:
    more = [f"in {facts['dialect']}"] if "dialect" in facts else []
    more += [_to_line(facts["params"])] if "params" in facts else []
    more += [f"until {facts['valid_until']}"] if "valid_until" in facts else []
    return printable("\t".join([str(facts["id"]), facts["where"], *more]).replace("\n", " "))


def show(path: str, id: str, is_integer: bool, as_json: bool) -> int:
    """Show one subscription of a store."""
    with SubscriptionStore(path) as store:
        one = store.get(find_id(store, id, is_integer))
    until = one.valid_until
    facts: dict[str, Any] = {
        "id": one.id,
        "where": one.where,
        "dialect": one.dialect,
        "params": json.loads(write_json(one.params)),
        "valid_until": until.isoformat() if isinstance(until, dt.datetime) else until,
    }
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return OK
    for name, value in facts.items():
        if value not in (None, {}):
            written = json.dumps(value, ensure_ascii=False) if name == "params" else str(value)
            typer.echo(f"{name.replace('_', ' '):<12} {printable(written)}")
    return OK


def explain(
    path: str | None,
    where: str | None,
    id: str | None,
    event: str | None,
    options: ExplainOptions,
) -> int:
    """Say how a condition is read or indexed, or why an event does or does not match it."""
    values = None if event is None else _to_event(event)
    if path is None:
        if where is None or id is not None:
            raise ArgumentError("give a store, or --where with a condition")
        matcher = Matcher(to_event_type(options.types))
        params = to_params(options.params) or None
        matcher.subscribe("--where", where, params, dialect=options.dialect)
        typer.echo(printable(matcher.explain("--where", values)))
        return OK
    if where is not None or options.params or options.types:
        raise ArgumentError("--where, --param and --attribute go without a store")
    with SubscriptionStore(path) as store:
        name = None if id is None else find_id(store, id, options.is_integer)
        with store.matcher(merges=False) as matcher:
            typer.echo(printable(matcher.explain(name, values)))
    return OK


def _to_event(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"--event is not JSON: {error}") from None
    if not isinstance(event, dict):
        raise ArgumentError("--event takes a JSON object")
    return event


def _to_moment(text: str | None) -> dt.datetime | None:
    """Return the end that an option names; `none` means no end."""
    if text is None or text.lower() == "none":
        return None
    moment = parse_timestamp(text)
    if moment is None:
        raise ArgumentError(f"--valid-until takes a timestamp or none, not {text!r}")
    return moment


def add_one(
    path: str, one: OneOptions, types: Sequence[str], as_json: bool, *, replaces: bool
) -> int:
    """Add one subscription, or replace it."""
    store = open_or_create(path, to_event_type(types))
    params, end = to_params(one.params), _to_moment(one.valid_until)
    if not replaces:
        version = store.subscribe(one.id, one.where, params, valid_until=end)
        return _done({"version": version, "added": 1}, as_json)
    n_before = len(store)
    version = store.put(one.id, one.where, params, valid_until=end)
    n_added = len(store) - n_before
    return _done({"version": version, "added": n_added, "replaced": 1 - n_added}, as_json)


def add_files(path: str, options: FileOptions, *, replaces: bool) -> int:
    """Add the subscriptions of files, in one version; or replace those whose ids are taken.

    Replacing takes a version for each kind of ids, and for each template.
    """
    store = open_or_create(path, to_event_type(options.types))
    matcher = store.matcher(merges=False)
    n_before = len(matcher)
    tables, quarantine = _load(matcher, options, replaces=replaces)
    n_added = len(matcher) - n_before
    if not replaces:
        version = _add(store, tables) if n_added else store.newest()
        return _report({"version": version, "added": n_added}, quarantine, options)
    reports = [store.put_many(table, where) for table, where in tables]
    n_replaced = sum(report.loaded for report in reports) - n_added
    facts = {"version": store.newest(), "added": n_added, "replaced": n_replaced}
    return _report(facts, quarantine, options)


def _add(store: SubscriptionStore, tables: Sequence[tuple[pa.Table, str | None]]) -> int:
    return store.apply(ChangeBatch([AddTable(table, where) for table, where in tables]))


def compile_files(path: str, engine: str, options: FileOptions) -> int:
    """Build an index of the subscriptions of files, which replaces the content of the store."""
    matcher = Matcher(to_event_type(options.types), engine=engine)
    _, quarantine = _load(matcher, options)
    matcher.rebuild()
    matcher.save(path)
    version = SubscriptionStore(path).newest()
    facts = {"version": version, "subscriptions": len(matcher), "index_bytes": matcher.nbytes}
    return _report(facts, quarantine, options)


def _load(
    matcher: Matcher, options: FileOptions, *, replaces: bool = False
) -> tuple[list[Any], Quarantine]:
    """Load files into a matcher; return their good rows as tables, and the bad ones."""
    if not options.files:
        raise ArgumentError("give files of subscriptions, or one with --id and --where")
    if options.quarantine is not None:
        check_target(options.quarantine, *options.files)
    tables: list[Any] = []
    warnings: list[str] = []
    with ExitStack() as stack:
        stream = stack.enter_context(replacing(options.quarantine)) if options.quarantine else None
        quarantine = Quarantine(stream)
        with Progress() as progress:
            for path in options.files:
                file = SubscriptionFile(path, options.dialect)
                tables += load_file(
                    matcher, file, quarantine, progress, warnings, replaces=replaces
                )
        if quarantine.n_rows and options.on_error == "raise":
            message = f"{quarantine.n_rows:,} bad rows; nothing was changed"
            named = ", ".join(map(str, options.files))
            raise FileFormatError(named, f"{message}\n{quarantine.listing()}")
    if warnings:
        say("\n".join(f"warning: {text}" for text in warnings))
    return tables, quarantine


def _report(facts: dict[str, Any], quarantine: Quarantine, options: FileOptions) -> int:
    if quarantine.n_rows and options.quarantine is None:
        say(quarantine.listing())
    _done({**facts, "bad_rows": quarantine.n_rows}, options.as_json)
    return BAD_ROWS if quarantine.n_rows else OK


def remove(
    path: str, ids: Sequence[str], file: Path | None, are_integers: bool, as_json: bool
) -> int:
    """Remove subscriptions, given by their ids or by a file with one id a line."""
    texts = list(ids)
    if file is not None:
        with open_text(file) as source:
            while raw := source.read_line():
                text = raw.decode(errors="replace").strip()
                if text:
                    texts.append(text)
    if not texts:
        raise ArgumentError("give ids, or a file of ids")
    with SubscriptionStore(path) as store:
        version = store.unsubscribe_many([find_id(store, text, are_integers) for text in texts])
    return _done({"version": version, "removed": len(texts)}, as_json)


def update(
    path: str,
    id: str,
    where: str | None,
    params: Sequence[str],
    valid_until: str | None,
    is_integer: bool,
    as_json: bool,
) -> int:
    """Change the condition, some parameters or the end of a subscription."""
    values = to_params(params) if params else None
    end = UNCHANGED if valid_until is None else _to_moment(valid_until)
    with SubscriptionStore(path) as store:
        name = find_id(store, id, is_integer)
        version = store.update(name, where, values, valid_until=end)
    return _done({"version": version, "updated": 1}, as_json)


def compact(path: str, grace: float, as_json: bool) -> int:
    """Make one index of the base and all changes since."""
    store = SubscriptionStore(path)
    before = store.describe()
    version = store.compact(grace=grace)
    after = store.describe()
    facts = {
        "version": version,
        "subscriptions": after.n_subscriptions,
        "changes_folded": before.n_changes,
        "bytes_before": before.n_bytes,
        "bytes": after.n_bytes,
    }
    return _done(facts, as_json)


def stats(path: str, version: int | None, as_json: bool) -> int:
    """Say what a version of a store is."""
    state = SubscriptionStore(path).describe(version)
    made = dt.datetime.fromtimestamp(state.made_at / 1e6, dt.UTC)
    facts = {
        "version": state.version,
        "made_at": made.isoformat(timespec="seconds"),
        "subscriptions": state.n_subscriptions,
        "ids": state.ids or "none",
        "engine": state.engine,
        "event_type": state.event_type.name if state.event_type else None,
        "attributes": None if state.attributes is None else len(state.attributes),
        "base": state.base,
        "parts": len(state.parts),
        "changes_since_base": state.n_changes,
        "bytes": state.n_bytes,
    }
    return _done(facts, as_json)


def _done(facts: dict[str, Any], as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            shown = f"{value:,}" if isinstance(value, int) else "-" if value is None else value
            typer.echo(f"{name.replace('_', ' '):<20} {shown}")
    return OK
