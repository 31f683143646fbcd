"""What is run on a disk that fails, and what has to hold whatever fails.

A scenario has an action that is run while one call fails, and a check of the folder afterwards,
when the disk works again. Whatever happens: an action that returned has been done and stays done;
one that raised an error of ours has been done whole or not at all; other errors are a bug; the next
action works, in the same process where that is promised, else after the folder is opened again.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.faults.files import Fault, count_calls, failing

import tocsin
from tocsin.errors import PipelineError, StoreError, TocsinError
from tocsin.spark.pipeline.folders import Folder, open_folder
from tocsin.spark.pipeline.publication_table import BucketFile, PublicationManifest, read_state
from tocsin.spark.publications import State
from tocsin.storage import disk
from tocsin.storage.local import LocalPlace
from tocsin.storage.pins import Pin
from tocsin.store.subscription_store import SubscriptionStore
from tocsin.subjects.space import SubjectSpace


@dataclass(frozen=True)
class Scenario:
    """An action on a folder, made by `prepare`; `check` says what is wrong after it, or nothing."""

    name: str
    prepare: Callable[[Path], Any]
    act: Callable[[Any], object]
    check: Callable[[Path, Any, bool], None]
    """Is given the folder, what was prepared, and whether the action was acknowledged."""
    has_checksums: bool = True
    """Whether a write that the disk lost is noticed; contents of plain files are their users'."""


def _store(path: Path) -> SubscriptionStore:
    store = SubscriptionStore.create(path, engine="oracle")
    store.subscribe("old", "x = 1")
    store.subscribe("older", "x = 1")
    return store


def _ids(path: Path) -> set[Any]:
    return set(SubscriptionStore(path).matcher().match({"x": 1}))


def _check_store(before: set[Any], after: set[Any]) -> Callable[[Path, Any, bool], None]:
    def check(path: Path, store: Any, is_done: bool) -> None:
        present = _ids(path)
        assert present == after or (not is_done and present == before), present
        store.subscribe("next", "x = 1")  # the store that saw the fault goes on
        assert _ids(path) == present | {"next"}
        assert set(store.matcher().match({"x": 1})) == present | {"next"}
        store.compact(grace=0)
        assert _ids(path) == present | {"next"}

    return check


_BOTH = {"old", "older"}


def _pin(store: SubscriptionStore) -> Pin:
    return store.pin("query", 1)


def _check_pin(path: Path, store: Any, is_done: bool) -> None:
    pinned = store.pin("query", 1)
    assert store.pin("query", 1) == pinned
    tocsin.Matcher(engine="oracle").save(path, grace=0)
    assert set(store.matcher(pinned.version).match({"x": 1})) == _BOTH


def _save(store: SubscriptionStore) -> None:
    matcher = tocsin.Matcher(engine="oracle")
    matcher.subscribe("new", "x = 1")
    matcher.save(str(store.place), grace=0)


def _open_store(store: SubscriptionStore) -> None:
    assert set(SubscriptionStore(str(store.place)).matcher().match({"x": 1})) == _BOTH


STORES = [
    Scenario(
        "store: subscribe",
        _store,
        lambda store: store.subscribe("new", "x = 1"),
        _check_store(_BOTH, _BOTH | {"new"}),
    ),
    Scenario(
        "store: update",
        _store,
        lambda store: store.update("old", "x = 2"),
        _check_store(_BOTH, {"older"}),
    ),
    Scenario(
        "store: remove",
        _store,
        lambda store: store.unsubscribe("old"),
        _check_store(_BOTH, {"older"}),
    ),
    Scenario("store: compact", _store, lambda s: s.compact(grace=0), _check_store(_BOTH, _BOTH)),
    Scenario("store: save", _store, _save, _check_store(_BOTH, {"new"})),
    Scenario("store: open", _store, _open_store, _check_store(_BOTH, _BOTH)),
    Scenario("store: pin", _store, _pin, _check_pin),
]


def _space(path: Path) -> SubjectSpace:
    space = SubjectSpace.open(path)
    space.subscribe("s", "x = 1")
    space.publish("old", {"x": 1})
    return space


def _check_space(before: set[Any], after: set[Any]) -> Callable[[Path, Any, bool], None]:
    def check(path: Path, space: SubjectSpace, is_done: bool) -> None:
        try:
            space.close()
        except StoreError:
            assert not is_done
        with SubjectSpace.open(path) as opened:
            present = set(opened.publications_of("s"))
            assert present == after or (not is_done and present == before), present
            opened.publish("next", {"x": 1})
        with SubjectSpace.open(path) as opened:
            assert set(opened.publications_of("s")) == present | {"next"}

    return check


def _compact_and_publish(space: SubjectSpace) -> None:
    """Compact, and publish whether or not that worked: it is the publication that counts."""
    with suppress(TocsinError):
        space.compact()
    space.publish("new", {"x": 1})


def _open_space(space: SubjectSpace) -> None:
    folder = space._journal.log.folder  # type: ignore[union-attr]
    space.close()
    with SubjectSpace.open(folder) as opened:
        assert set(opened.publications_of("s")) == {"old"}


SPACES = [
    Scenario(
        "space: publish",
        _space,
        lambda space: space.publish("new", {"x": 1}),
        _check_space({"old"}, {"old", "new"}),
    ),
    Scenario(
        "space: retract", _space, lambda space: space.retract("old"), _check_space({"old"}, set())
    ),
    Scenario("space: compact", _space, SubjectSpace.compact, _check_space({"old"}, {"old"})),
    Scenario(
        "space: compact, then publish",
        _space,
        _compact_and_publish,
        _check_space({"old"}, {"old", "new"}),
    ),
    Scenario("space: open", _space, _open_space, _check_space({"old"}, {"old"})),
]


def _folder(path: Path) -> Folder:
    folder = open_folder(str(path / "deep" / "folder"))
    folder.create("manifests/0.json", b"zero")
    return folder


def _check_folder(path: Path, folder: Folder, is_done: bool) -> None:
    content = folder.read("manifests/1.json")
    assert content == b"one" or (not is_done and content is None)
    assert folder.create("manifests/1.json", b"two") is (content is None)
    assert folder.read("manifests/0.json") == b"zero"
    assert set(folder.names("manifests")) == {"0.json", "1.json"}, "no draft is seen"


def _check_replaced(path: Path, folder: Folder, is_done: bool) -> None:
    content = folder.read("manifests/0.json")
    assert content == b"new" or (not is_done and content == b"zero")
    folder.replace("manifests/0.json", b"newer")
    assert folder.read("manifests/0.json") == b"newer"


def _kept_place(path: Path) -> LocalPlace:
    return LocalPlace(path / "publications")


def _keep(place: LocalPlace) -> None:
    """Write the publications of a bucket and the manifest that names them, as a batch does."""
    state = State(pa.table({"key": ["a"], "x": [1]}), Pin(1, 2.0))
    octets = state.to_bytes()
    place.put("q-000000000-00000-abc.arrow", lambda to: disk.write_file(to, [octets]))
    bucket = BucketFile("q-000000000-00000-abc.arrow", 1, zlib.crc32(octets))
    kept = PublicationManifest("q", 0, 1, 2.0, "key", 1, states={"0": bucket})
    place.commit_once("q-000000000.json", kept.to_json())


def _check_kept(path: Path, place: LocalPlace, is_done: bool) -> None:
    try:
        kept = PublicationManifest.from_json(place.read("q-000000000.json"), "kept")
    except FileNotFoundError:
        assert not is_done
        _keep(place)
        kept = PublicationManifest.from_json(place.read("q-000000000.json"), "kept")
    state = read_state(place, kept.states["0"])
    assert state.values.to_pydict() == {"key": ["a"], "x": [1]}


PIPELINES = [
    Scenario(
        "pipeline: create",
        _folder,
        lambda folder: folder.create("manifests/1.json", b"one"),
        _check_folder,
        has_checksums=False,
    ),
    Scenario(
        "pipeline: replace",
        _folder,
        lambda folder: folder.replace("manifests/0.json", b"new"),
        _check_replaced,
        has_checksums=False,
    ),
    Scenario("pipeline: keep", _kept_place, _keep, _check_kept),
]

SCENARIOS = [*STORES, *SPACES, *PIPELINES]
KINDS: list[tuple[Fault, bool]] = [
    ("EIO", False),
    ("EIO", True),
    ("ENOSPC", False),
    ("ENOSPC", True),
    ("short", False),
    ("lost", False),
]
"""Faults, and whether they stay."""


def kinds(scenario: Scenario) -> list[tuple[Fault, bool]]:
    """Return the faults that a scenario has to bear."""
    return [kind for kind in KINDS if kind[0] != "lost" or scenario.has_checksums]


def n_calls(scenario: Scenario, folder: Path) -> int:
    """Return how many calls of the file layer a scenario's action takes."""
    prepared = scenario.prepare(folder)
    n = count_calls(lambda: scenario.act(prepared))
    close = getattr(prepared, "close", None)
    if close is not None:
        close()
    shutil.rmtree(folder, ignore_errors=True)
    return n


def run(scenario: Scenario, folder: Path, n: int, fault: Fault, forever: bool) -> bool:
    """Run a scenario with a fault; return whether the action was acknowledged."""
    prepared = scenario.prepare(folder)
    is_done = False
    with failing(n, fault, forever) as faulty:
        try:
            scenario.act(prepared)
            is_done = True
        except (StoreError, PipelineError):
            pass
        except OSError:
            # The bucket of a pipeline is written by a task: Spark reports its error.
            if scenario.name != "pipeline: keep":
                raise
    if fault == "lost" and faulty.has_failed:
        _check_lost(scenario, folder, prepared)
    else:
        scenario.check(folder, prepared, is_done)
    shutil.rmtree(folder, ignore_errors=True)
    return is_done


def _check_lost(scenario: Scenario, folder: Path, prepared: Any) -> None:
    """After a disk that lied: what is there is right, or an error of ours says that it is not."""
    try:
        scenario.check(folder, prepared, False)
    except (StoreError, PipelineError):
        pass
    finally:
        close = getattr(prepared, "close", None)
        if close is not None:
            close()
