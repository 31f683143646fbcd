"""A failed call changes nothing, and says what is wrong in attributes and across processes."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tocsin
from tocsin import errors
from tocsin.engines import auto, names
from tocsin.engines.auto import AutoEngine
from tocsin.engines.auto.segment import Segment
from tocsin.errors import (
    ArgumentError,
    BadRow,
    BadRowsError,
    BrokerError,
    CapacityError,
    ChangedStoreError,
    ComputedValueError,
    ConditionCostError,
    ConditionSyntaxError,
    ConfigError,
    DamagedStoreError,
    DiskFullError,
    DuplicateSubscriptionError,
    EventError,
    FileFormatError,
    IdempotencyError,
    InvalidIdError,
    InvariantError,
    KindClashError,
    LimitError,
    MissingExtraError,
    NewerStoreError,
    NoJavaError,
    NoStoreError,
    NotAllowedError,
    ParameterError,
    PipelineError,
    ProtocolError,
    RefusedError,
    StoreError,
    SubscriptionError,
    TocsinError,
    TooManyConjunctionsError,
    UnavailableError,
    UndeclaredAttributeError,
    UnknownEngineError,
    UnknownOutcomeError,
    UnknownPublicationError,
    UnknownSubscriptionError,
    UnsupportedSyntaxError,
)
from tocsin.matcher import Matcher

QUOTE = tocsin.EventType("Quote", firm=str, price=float, volume=int)
WIDE = " AND ".join(
    "(" + " OR ".join(f"{letter}{i} = 1" for i in range(130)) + ")" for letter in "ab"
)
EVENTS: list[dict[str, Any]] = [
    {"firm": "IBM", "price": 89.5, "volume": 10},
    {"firm": "SAP", "price": 95.0},
    {"price": 300.0, "other": 1},
    {},
]


def filled(engine: str) -> Matcher:
    m = tocsin.Matcher(QUOTE, engine=engine, clock=lambda: 0.0)
    m.subscribe("alice", "firm = 'IBM' AND price < 100", valid_until=5)
    m.subscribe("bob", "price < :limit", params={"limit": 90.0})
    m.subscribe_many({"id": [1, 2], "where": ["price > 200 OR other = 1", "firm IS NULL"]})
    m.subscribe_many({"id": [3], "v": ["SAP"]}, where="firm = :v")
    m.subscribe_many({"id": [4], "attribute": ["price"], "op": [">"], "value": [1]})
    return m


def state(m: Matcher) -> Any:
    """Return all that can be seen of a matcher."""
    m.check()
    ids: list[str | int] = ["alice", "bob", "carol", 1, 2, 3, 4, 5, 6]
    return (
        len(m),
        [id in m for id in ids],
        [sorted(map(str, m.match(event))) for event in EVENTS],
        [sorted(map(str, found)) for found in m.match_batch(EVENTS)],
        [m.explain(id).splitlines()[0] for id in ids if id in m],
    )


CALLS: dict[str, tuple[type[TocsinError], Callable[[Matcher], object]]] = {
    "syntax": (ConditionSyntaxError, lambda m: m.subscribe("carol", "price <")),
    "unsupported": (UnsupportedSyntaxError, lambda m: m.subscribe("carol", "price ~ 2")),
    "kind clash": (KindClashError, lambda m: m.subscribe("carol", "firm = 3")),
    "too many": (TooManyConjunctionsError, lambda m: m.subscribe("carol", WIDE)),
    "duplicate": (DuplicateSubscriptionError, lambda m: m.subscribe("bob", "price < 3")),
    "bad id": (InvalidIdError, lambda m: m.subscribe(2.5, "price < 3")),  # type: ignore[arg-type]
    "no parameter": (ParameterError, lambda m: m.subscribe("carol", "price < :x")),
    "extra parameter": (
        ParameterError,
        lambda m: m.subscribe("carol", "price < 3", params={"x": 1}),
    ),
    "odd parameter": (
        ParameterError,
        lambda m: m.subscribe("carol", "price < :x", params={"x": [1]}),
    ),
    "huge parameter": (
        ParameterError,
        lambda m: m.subscribe("carol", "price < :x", params={"x": 2**63}),
    ),
    "params no mapping": (
        ArgumentError,
        lambda m: m.subscribe("carol", "price < :x", params=[1]),  # type: ignore[arg-type]
    ),
    "no text": (ArgumentError, lambda m: m.subscribe("carol", b"price < 3")),  # type: ignore[arg-type]
    "odd moment": (
        ArgumentError,
        lambda m: m.subscribe("carol", "price < 3", valid_until="x"),  # type: ignore[arg-type]
    ),
    "update: syntax": (ConditionSyntaxError, lambda m: m.update("alice", where="price <")),
    "update: kind clash": (KindClashError, lambda m: m.update("alice", where="firm = 3")),
    "update: parameter's kind": (KindClashError, lambda m: m.update("bob", params={"limit": "a"})),
    "update: parameter's value": (ParameterError, lambda m: m.update("bob", params={"limit": []})),
    "update: unknown parameter": (ParameterError, lambda m: m.update("bob", params={"x": 1})),
    "update: missing parameter": (ParameterError, lambda m: m.update("bob", where="price < :x")),
    "update: no parameters": (ParameterError, lambda m: m.update("alice", params={"x": 1})),
    "update: too many": (TooManyConjunctionsError, lambda m: m.update("alice", where=WIDE)),
    "update: unknown": (UnknownSubscriptionError, lambda m: m.update("carol", where="price < 3")),
    "update: nothing": (ArgumentError, lambda m: m.update("alice")),
    "update: no text": (ArgumentError, lambda m: m.update("alice", where=3)),  # type: ignore[arg-type]
    "update: params no mapping": (
        ArgumentError,
        lambda m: m.update("bob", params=5),  # type: ignore[arg-type]
    ),
    "unsubscribe: unknown": (UnknownSubscriptionError, lambda m: m.unsubscribe("carol")),
    "unsubscribe: bad id": (InvalidIdError, lambda m: m.unsubscribe(None)),  # type: ignore[arg-type]
    "unsubscribe many: one unknown": (
        UnknownSubscriptionError,
        lambda m: m.unsubscribe_many(["alice", 1, "carol"]),
    ),
    "unsubscribe many: one twice": (
        UnknownSubscriptionError,
        lambda m: m.unsubscribe_many(["alice", 1, "alice"]),
    ),
    "unsubscribe many: one bad": (
        InvalidIdError,
        lambda m: m.unsubscribe_many(pa.array(["alice", None])),
    ),
    "unsubscribe many: a string": (ArgumentError, lambda m: m.unsubscribe_many("bob")),
    "unsubscribe many: no list": (
        ArgumentError,
        lambda m: m.unsubscribe_many(5),
    ),
    "many: bad rows": (
        BadRowsError,
        lambda m: m.subscribe_many({"id": [5, 6], "where": ["price < 3", "price <"]}),
    ),
    "many: taken": (
        BadRowsError,
        lambda m: m.subscribe_many({"id": [5, 1], "where": ["price < 3", "price < 4"]}),
    ),
    "many: no table": (ArgumentError, lambda m: m.subscribe_many(5)),
    "many: on_error": (
        ArgumentError,
        lambda m: m.subscribe_many(
            {"id": [5], "where": ["price < 3"]},
            on_error="ignore",  # type: ignore[arg-type]
        ),
    ),
    "template: missing column": (
        ParameterError,
        lambda m: m.subscribe_many({"id": [5]}, where="price < :x"),
    ),
    "template: clash": (
        BadRowsError,
        lambda m: m.subscribe_many({"id": [5], "x": ["a"]}, where="price < :x"),
    ),
    "rows: bad rows": (
        BadRowsError,
        lambda m: m.subscribe_many(
            {"id": [5, 6], "attribute": ["price", "firm"], "op": ["<", "<"], "value": [1, 2]}
        ),
    ),
    "rows: no table": (ArgumentError, lambda m: m.subscribe_many({"id": [5]})),
    "match: no mapping": (EventError, lambda m: m.match(5)),  # type: ignore[arg-type]
    "match: clash": (EventError, lambda m: m.match({"firm": 3})),
    "match: huge": (EventError, lambda m: m.match({"other": 2**63})),
    "batch: clash": (EventError, lambda m: m.match_batch([{"firm": "a"}, {"firm": 3}])),
    "batch: no mapping": (EventError, lambda m: m.match_batch([{"firm": "a"}, 3])),
    "batch: no batch": (ArgumentError, lambda m: m.match_batch(5)),
    "batch: one event": (ArgumentError, lambda m: m.match_batch({"firm": "a"})),
    "explain: unknown": (UnknownSubscriptionError, lambda m: m.explain("carol")),
    "explain: clash": (EventError, lambda m: m.explain("alice", {"firm": 3})),
}


@pytest.mark.parametrize("engine", names())
@pytest.mark.parametrize("what", CALLS)
def test_a_failed_call_changes_nothing(engine: str, what: str) -> None:
    expected, call = CALLS[what]
    m = filled(engine)
    before = state(m)
    with pytest.raises(TocsinError) as caught:
        call(m)
    assert type(caught.value) is expected
    assert state(m) == before
    m.subscribe("carol", "price < 3")
    assert len(m) == before[0] + 1


@pytest.mark.parametrize("engine", names())
def test_after_many_failed_calls_a_matcher_is_what_it_was(engine: str) -> None:
    m = filled(engine)
    before = state(m)
    for expected, call in CALLS.values():
        with pytest.raises(expected):
            call(m)
    assert state(m) == before


# Facts, codes and pickles.

STORE: dict[str, Any] = {"path": "a/b", "reason": "cut off"}

ERRORS: dict[str, tuple[TocsinError, dict[str, Any], str]] = {
    "StoreError": (StoreError("a/b", "cut off"), STORE, "a/b: cut off"),
    "NoStoreError": (NoStoreError("a/b", "cut off"), STORE, "a/b: cut off"),
    "DamagedStoreError": (DamagedStoreError("a/b", "cut off"), STORE, "a/b: cut off"),
    "ChangedStoreError": (ChangedStoreError("a/b", "cut off"), STORE, "a/b: cut off"),
    "NewerStoreError": (NewerStoreError("a/b", "cut off"), STORE, "a/b: cut off"),
    "ConditionSyntaxError": (
        ConditionSyntaxError("unexpected x", "a\n = x", 5, "a literal"),
        {"text": "a\n = x", "position": 5, "line": 2, "column": 4, "expected": "a literal"},
        "unexpected x; expected a literal (line 2, column 4)\n = x\n   ^",
    ),
    "UnsupportedSyntaxError": (
        UnsupportedSyntaxError("a subquery", "x IN (SELECT 1)", 6),
        {"feature": "a subquery", "position": 6, "line": 1, "column": 7},
        "a subquery is not in the subscription language (line 1, column 7)\n"
        "x IN (SELECT 1)\n      ^",
    ),
    "UndeclaredAttributeError": (
        UndeclaredAttributeError("pirce", "Quote", "price"),
        {"attribute": "pirce", "event_type": "Quote", "near": "price"},
        "attribute 'pirce' is not declared by Quote; did you mean 'price'?",
    ),
    "ComputedValueError": (
        ComputedValueError("a + b"),
        {"value": "a + b"},
        "a subject space takes conditions on attributes only, not on 'a + b': its publications may "
        "be ranges, of which nothing is computed; publish the value as an attribute",
    ),
    "KindClashError": (
        KindClashError("t", "timestamp", "string"),
        {"attribute": "t", "declared": "timestamp", "kind": "string"},
        "attribute 't' is declared timestamp, not string (write TIMESTAMP '…')",
    ),
    "TooManyConjunctionsError": (
        TooManyConjunctionsError(4096),
        {"limit": 4096},
        "the condition's normal form has more than 4096 conjunctions",
    ),
    "ConditionCostError": (
        ConditionCostError("steps", 1_000_000),
        {"limit": "steps", "most": 1_000_000},
        "the condition takes more than 1,000,000 steps to bring into normal form; write it with "
        "fewer ORs within ANDs, or as several subscriptions",
    ),
    "CapacityError": (CapacityError("the index is full"), {}, "the index is full"),
    "DuplicateSubscriptionError": (
        DuplicateSubscriptionError("a"),
        {"subscription": "a"},
        "a subscription with id 'a' exists already",
    ),
    "UnknownSubscriptionError": (
        UnknownSubscriptionError(3),
        {"subscription": 3},
        "there is no subscription with id 3",
    ),
    "UnknownPublicationError": (
        UnknownPublicationError("truck"),
        {"key": "truck"},
        "there is no publication with key 'truck'",
    ),
    "InvalidIdError": (
        InvalidIdError(2.5),
        {"subscription": 2.5},
        "an id must be a string or a 64-bit integer, not 2.5",
    ),
    "ParameterError": (
        ParameterError("no value for parameter :a", missing=["a"], unknown=["b", "c"]),
        {"message": "no value for parameter :a", "missing": ("a",), "unknown": ("b", "c")},
        "no value for parameter :a",
    ),
    "BadRowsError": (
        BadRowsError([BadRow(3, "a", "too odd", "syntax")]),
        {"rows": (BadRow(3, "a", "too odd", "syntax"),)},
        "1 bad row(s); nothing was loaded\n  row 3 (id 'a'): too odd",
    ),
    "EventError": (
        EventError("too odd", attribute="x", row=4),
        {"message": "too odd", "attribute": "x", "row": 4},
        "row 4, attribute 'x': too odd",
    ),
    "FileFormatError": (
        FileFormatError("a.csv", "too odd", 7),
        {"path": "a.csv", "message": "too odd", "line": 7},
        "a.csv:7: too odd",
    ),
    "UnknownEngineError": (
        UnknownEngineError("warp", ["auto", "oracle"]),
        {"name": "warp", "known": ("auto", "oracle")},
        "there is no engine 'warp'; choose one of auto, oracle; "
        "the published ones come with tocsin-lab",
    ),
    "BrokerError": (BrokerError("does not fit"), {}, "does not fit"),
    "ProtocolError": (ProtocolError("does not fit"), {}, "does not fit"),
    "NotAllowedError": (
        NotAllowedError("no token", known=True),
        {"message": "no token"},
        "no token",
    ),
    "LimitError": (
        LimitError("too fast", "rate", 0.5),
        {"message": "too fast", "limit": "rate", "retry_after": 0.5},
        "too fast (limit rate)",
    ),
    "UnavailableError": (UnavailableError("stopping"), {}, "stopping"),
    "DiskFullError": (DiskFullError("no room"), {}, "no room"),
    "UnknownOutcomeError": (UnknownOutcomeError("who knows"), {}, "who knows"),
    "IdempotencyError": (
        IdempotencyError("k"),
        {"key": "k"},
        "the idempotency key 'k' was used for another publish; take a new key for each",
    ),
    "RefusedError": (
        RefusedError(404, "unknown-id", "there is none"),
        {"status": 404, "code": "unknown-id", "message": "there is none"},
        "there is none",
    ),
    "PipelineError": (PipelineError("does not fit"), {}, "does not fit"),
    "ConfigError": (
        ConfigError("source.format", "unknown", "a.toml"),
        {"key": "source.format", "reason": "unknown", "path": "a.toml"},
        "a.toml: source.format: unknown",
    ),
    "NoJavaError": (NoJavaError("no Java"), {}, "no Java"),
    "InvariantError": (InvariantError("ids out of order"), {}, "ids out of order"),
    "MissingExtraError": (
        MissingExtraError("tocsin.connect", "httpx", "broker"),
        {"what": "tocsin.connect", "package": "httpx", "extra": "broker"},
        "tocsin.connect needs the package httpx, which is not installed: "
        "pip install 'tocsin[broker]'",
    ),
    "ArgumentError": (ArgumentError("does not fit"), {}, "does not fit"),
    "SubscriptionError": (SubscriptionError("does not fit"), {}, "does not fit"),
    "TocsinError": (TocsinError("does not fit"), {}, "does not fit"),
}


def error_classes() -> dict[str, type[TocsinError]]:
    return {
        name: found
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, TocsinError)
    }


def test_every_error_class_is_tested_here() -> None:
    assert sorted(ERRORS) == sorted(error_classes())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_carries_its_facts_and_says_them(name: str) -> None:
    error, facts, text = ERRORS[name]
    assert type(error).__name__ == name
    assert {fact: getattr(error, fact) for fact in facts} == facts
    assert str(error) == text


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_survives_pickling(name: str) -> None:
    error, facts, text = ERRORS[name]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert {fact: getattr(again, fact) for fact in facts} == facts
    assert str(again) == text
    assert again.code == error.code


def test_each_error_class_has_a_code_of_its_own() -> None:
    codes = [found.code for found in error_classes().values()]
    assert len(set(codes)) == len(codes)


def test_many_bad_rows_are_counted_rather_than_shown() -> None:
    error = BadRowsError([BadRow(i, i, "too odd", "syntax") for i in range(9)])
    assert str(error).startswith("9 bad row(s)")
    assert str(error).endswith("… and 4 more")


# What an engine cannot take in.


def failing_builds(patch: pytest.MonkeyPatch) -> None:
    """Let no segment be built."""

    def fail(*args: object, **options: object) -> Segment:
        raise MemoryError("no room for a segment")

    patch.setattr(Segment, "build", fail)
    patch.setattr(Segment, "build_beside", fail)


def watched(n: int = 50) -> Matcher:
    """Return a matcher that events were matched by, so that changes are indexed at once."""
    matcher = Matcher()
    matcher.subscribe_many({"id": range(n), "v": [i % 5 for i in range(n)]}, where="x = :v")
    matcher.index.reader()
    return matcher


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.subscribe("new", "x = 1 AND y = 2"),
        lambda m: m.subscribe_many({"id": ["new", "newer"], "where": ["x = 1", "z = 1"]}),
        lambda m: m.update(6, where="x = 1 AND y = 2"),
        lambda m: m.update(6, params={"v": 3}),
    ],
    ids=["subscribe", "subscribe_many", "update", "update params"],
)
def test_a_change_that_cannot_be_indexed_fails_and_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Matcher], object]
) -> None:
    monkeypatch.setattr(auto, "_MAX_SINGLE", -1)  # nothing waits in the write buffer
    matcher = watched()
    expected = list(range(1, 50, 5))
    with monkeypatch.context() as patch:
        failing_builds(patch)
        with pytest.raises(MemoryError, match="no room"):
            change(matcher)
        assert len(matcher) == 50
        assert "new" not in matcher
        assert sorted(map(int, matcher.match({"x": 1, "y": 2}))) == expected
        assert [sorted(map(int, ids)) for ids in matcher.match_batch([{"x": 1}])] == [expected]
    matcher.check()
    assert sorted(map(int, matcher.match({"x": 1, "y": 2}))) == expected
    change(matcher)
    matcher.subscribe("other", "x = 4")
    assert "other" in matcher.match({"x": 4})
    matcher.check()


def test_a_merge_that_fails_does_not_fail_the_change_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_MAX_SINGLE", -1)
    matcher = watched(3)
    with monkeypatch.context() as patch:
        patch.setattr(AutoEngine, "_merged", lambda *args: 1 / 0)
        for i in range(3, 9):
            matcher.subscribe(i, f"x = {i % 5} AND y{i} = 1")
            assert sorted(map(int, matcher.match({"x": i % 5, f"y{i}": 1})))[-1] == i
    with pytest.raises(ZeroDivisionError):
        matcher.check()
    matcher.rebuild()
    matcher.check()
    assert matcher.match({"x": 3, "y8": 1}) == [8]


UNREADABLE: dict[str, object] = {
    "several columns": pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]),
    "a large unsigned integer": pa.table({"x": pa.array([2**64 - 1], pa.uint64())}),
    "a large integer": [{"x": 2**70}],
    "a late moment": pa.table({"x": pa.array([2**62], pa.timestamp("s"))}),
}


@pytest.mark.parametrize("sample", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("engine", ["auto", "tama", "tree", "static", "dynamic", "counting"])
def test_a_profile_that_is_refused_changes_nothing(engine: str, sample: object) -> None:
    matcher = Matcher(engine=engine)
    matcher.subscribe("a", "x = 1")
    assert matcher.match({"x": 1}) == ["a"]
    with pytest.raises(EventError, match="'x'"):
        matcher.profile(sample)
    assert matcher.match({"x": 1}) == ["a"]
    matcher.subscribe("b", "x = 1 AND y = 2")
    matcher.subscribe("c", "z = 1 OR x = 1")
    matcher.rebuild()
    assert sorted(map(str, matcher.match_batch([{"x": 1, "y": 2}])[0])) == ["a", "b", "c"]
    matcher.check()


@pytest.mark.parametrize("engine", tocsin.engines.names())
def test_an_attribute_that_a_sample_cannot_say_anything_of_may_be_mentioned_later(
    engine: str, tmp_path: Path
) -> None:
    matcher = Matcher(engine=engine)
    matcher.subscribe("a", "x = 1")
    matcher.profile(pa.table({"x": [1, 2], "q": pa.array([2**64 - 1, 3], pa.uint64())}))
    matcher.save(tmp_path / "store")
    for one in (matcher, Matcher.open(tmp_path / "store")):
        one.subscribe("b", "q = 1")
        one.subscribe("c", "q = 1 AND x = 1")
        assert sorted(map(str, one.match({"x": 1, "q": 1}))) == ["a", "b", "c"]
        one.rebuild()
        assert sorted(map(str, one.match_batch([{"x": 1, "q": 1}])[0])) == ["a", "b", "c"]


def test_a_store_whose_sample_cannot_be_read_any_more_opens(tmp_path: Path) -> None:
    matcher = Matcher()
    matcher.profile(pa.table({"x": pa.array([2**64 - 1], pa.uint64())}))
    matcher.subscribe("a", "x = 1")
    matcher.save(tmp_path / "store")
    opened = Matcher.open(tmp_path / "store")
    opened.subscribe("b", "x = 1 AND y = 1")
    assert opened.match({"x": 1, "y": 1}) == ["a", "b"]


def test_a_batch_with_more_events_than_can_be_numbered_is_refused() -> None:
    matcher = watched(2)
    with pytest.raises(EventError, match="take fewer at a time"):
        matcher.match_batch(pa.table({"x": pa.nulls(2**31)}))
