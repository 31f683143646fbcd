"""What to measure, and a matcher loaded for it.

Enters: a setting. Leaves: a matcher that holds the subscriptions of a workload, its index built,
and how long that took. The kernels are compiled on a small matcher first, so that nothing is
charged for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.settings import MatchSetting
from tocsin_lab.bench.steps import Steps
from tocsin_lab.workloads import Searches, Written

_FEW_SUBSCRIPTIONS, _FEW_EVENTS = 1000, 200


@dataclass(frozen=True)
class Loaded:
    """A matcher with its index built, and how long that took."""

    matcher: Matcher
    load_s: float
    build_s: float


def check_setting(setting: MatchSetting) -> None:
    """Refuse what makes no sense."""
    if min(setting.subscriptions, setting.n_events, setting.threads, setting.repeats) < 1:
        raise ArgumentError("this takes at least one subscription, event, thread and repeat")
    if setting.baseline not in ("duckdb", "lucene", "none"):
        raise ArgumentError(
            f"there is no baseline {setting.baseline!r}; choose duckdb, lucene or none"
        )
    if setting.baseline == "lucene" and not isinstance(workload(setting.workload), Searches):
        raise ArgumentError("the baseline lucene is for workload X")
    if setting.load not in ("rows", "texts"):
        raise ArgumentError(f"cannot load {setting.load!r}; choose rows or texts")


def load_matcher(chosen: Workload, setting: MatchSetting, steps: Steps) -> Loaded:
    """Generate and load subscriptions and build the index, after compiling what that takes."""
    n = setting.subscriptions
    steps.start("compile")
    _load_and_build(chosen, min(n, _FEW_SUBSCRIPTIONS), setting, _FEW_EVENTS)
    steps.finish()
    steps.start("load")
    loaded = _load_and_build(chosen, n, setting, 1)
    steps.finish()
    return loaded


def _load_and_build(chosen: Workload, n: int, setting: MatchSetting, n_events: int) -> Loaded:
    matcher = Matcher(chosen.event_type, engine=setting.engine)
    if setting.load == "texts" or isinstance(chosen, Written):
        table = chosen.subscription_texts(n, setting.seed)
        started = perf_counter()
        matcher.subscribe_many(table)
    else:
        table = chosen.subscription_rows(n, setting.seed)
        started = perf_counter()
        matcher.subscribe_many(table)
    load_s = perf_counter() - started
    events = chosen.events(n_events, setting.seed)
    started = perf_counter()
    matcher.match_batch(events)
    build_s = perf_counter() - started
    matcher.match(events.slice(0, 1).to_pylist()[0])
    return Loaded(matcher, load_s, build_s)
