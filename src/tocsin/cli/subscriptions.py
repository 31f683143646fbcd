"""`tocsin subscriptions …`: change a subscription store, and look at it.

Enters: the path or URL of a store, and what is to be done. Leaves: a new version of the store, what
was done on standard output, and the exit code. A file is added whole, in one version, or with
`--on-error quarantine` without its bad rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from tocsin.cli.console import BAD_ROWS, OK, Progress, say
from tocsin.cli.match_files import check_target, replacing
from tocsin.cli.options import to_event_type, to_params
from tocsin.cli.quarantine import Quarantine, load_file
from tocsin.cli.subscription_files import SubscriptionFile
from tocsin.encode.files import open_text
from tocsin.errors import ArgumentError, FileFormatError
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


def to_id(text: str, is_integer: bool) -> SubscriptionId:
    """Return an id as it was written: a string, or where integers are asked for, an integer."""
    if not is_integer:
        return text
    try:
        number = int(text)
    except ValueError:
        number = INT64_MAX + 1
    if not INT64_MIN <= number <= INT64_MAX:
        raise ArgumentError(f"{text!r} is no 64-bit integer")
    return number


def add_one(
    path: str,
    id: SubscriptionId,
    where: str,
    params: Sequence[str],
    types: Sequence[str],
    as_json: bool,
) -> int:
    """Add one subscription."""
    store = open_or_create(path, to_event_type(types))
    version = store.subscribe(id, where, to_params(params))
    return _done({"version": version, "added": 1}, as_json)


def add_files(path: str, options: FileOptions) -> int:
    """Add the subscriptions of files, in one version."""
    store = open_or_create(path, to_event_type(options.types))
    matcher = store.matcher(merges=False)
    n_before = len(matcher)
    tables, quarantine = _load(matcher, options)
    n_added = len(matcher) - n_before
    version = _add(store, tables) if n_added else store.newest()
    return _report({"version": version, "added": n_added}, quarantine, options)


def _add(store: SubscriptionStore, tables: Sequence[tuple[pa.Table, str | None]]) -> int:
    return store.apply(ChangeBatch([AddTable(table, where) for table, where in tables]))


def compile_files(path: str, engine: str, options: FileOptions) -> int:
    """Build an index of the subscriptions of files; it takes the place of what the store holds."""
    matcher = Matcher(to_event_type(options.types), engine=engine)
    _, quarantine = _load(matcher, options)
    matcher.merge()
    matcher.save(path)
    version = SubscriptionStore(path).newest()
    facts = {"version": version, "subscriptions": len(matcher), "index_bytes": matcher.nbytes}
    return _report(facts, quarantine, options)


def _load(matcher: Matcher, options: FileOptions) -> tuple[list[Any], Quarantine]:
    """Load files into a matcher; return their good rows as tables, and the bad ones."""
    if not options.files:
        raise ArgumentError("give files of subscriptions, or one with --id and --where")
    if options.quarantine is not None:
        check_target(options.quarantine, *options.files)
    tables: list[Any] = []
    with ExitStack() as stack:
        stream = stack.enter_context(replacing(options.quarantine)) if options.quarantine else None
        quarantine = Quarantine(stream)
        with Progress() as progress:
            for path in options.files:
                tables += load_file(matcher, SubscriptionFile(path), quarantine, progress)
        if quarantine.n_rows and options.on_error == "raise":
            message = f"{quarantine.n_rows:,} bad rows; nothing was changed"
            named = ", ".join(map(str, options.files))
            raise FileFormatError(named, f"{message}\n{quarantine.listing()}")
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
    asked = [to_id(text, are_integers) for text in ids]
    if file is not None:
        with open_text(file) as source:
            while raw := source.read_line():
                text = raw.decode(errors="replace").strip()
                if text:
                    asked.append(to_id(text, are_integers))
    if not asked:
        raise ArgumentError("give ids, or a file of ids")
    version = SubscriptionStore(path).unsubscribe_many(asked)
    return _done({"version": version, "removed": len(asked)}, as_json)


def update(
    path: str, id: SubscriptionId, where: str | None, params: Sequence[str], as_json: bool
) -> int:
    """Change the condition or some parameters of a subscription."""
    given = to_params(params) if params else None
    version = SubscriptionStore(path).update(id, where=where, params=given)
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
