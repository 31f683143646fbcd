"""The report: rows become tables and pages; the theory is computed as by hand."""

from __future__ import annotations

import csv
import gc
import json
import re
from html.parser import HTMLParser
from typing import IO, cast

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.workloads import workload
from tocsin_lab.bench.adapt import SCENARIOS
from tocsin_lab.bench.plot import Plot
from tocsin_lab.bench.report import adaptivity, aguilera, papers, submitted
from tocsin_lab.bench.report.outcome import (
    PAPER_SIZE,
    Experiment,
    Figure,
    Finding,
    Outcome,
    Paper,
    Row,
    Scale,
    series,
)
from tocsin_lab.bench.report.page import finding_rows, render_page, to_csv
from tocsin_lab.bench.report.submitted import Generator

ROWS: tuple[Row, ...] = (
    {"engine": "tree", "n": 10, "us": 1.5},
    {"engine": "auto", "n": 10, "us": 1.0, "note": "a <b> & c"},
    {"engine": "tree", "n": 20, "us": 2.5},
)
PLOT = Plot("Time", "n", "µs", series(ROWS, "n", "us", "engine"))
FIGURE = Figure("aguilera-1999-time", "Time & <space>", "Some text.", ROWS, PLOT)
FINDINGS = (
    Finding("it is fast", "2 µs", True),
    Finding("it is small", "9 GB", False, "it keeps everything"),
    Finding("it is flat", "1.1 times", None),
)


def one_outcome(scale: Scale, progress: object) -> Outcome:
    return Outcome((FIGURE,), FINDINGS)


PAPER = Paper("aguilera-1999", "A paper", "Somebody", (Experiment("all", one_outcome),))
SECTIONS = [(PAPER, [one_outcome(Scale(), None)])]


class Reader(HTMLParser):
    """Notes the tags that are open, the ids and the links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.ids += [facts["id"]] if facts.get("id") else []  # type: ignore[list-item]
        self.links += [v for k, v in attrs if k in ("href", "src") and v]
        if tag not in ("meta", "br", "path", "circle", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle", "polygon", "polyline"):
            assert self.open.pop() == tag


def test_lines_are_made_of_the_rows_of_each_name() -> None:
    tree, auto = series(ROWS, "n", "us", "engine")
    assert (tree.name, tree.points) == ("tree", ((10.0, 1.5), (20.0, 2.5)))
    assert (auto.name, auto.points) == ("auto", ((10.0, 1.0),))


def test_rows_become_csv_with_the_columns_of_all() -> None:
    first, second, third = csv.DictReader(to_csv(ROWS).splitlines())
    assert first == {"engine": "tree", "n": "10", "us": "1.5", "note": ""}
    assert second["note"] == "a <b> & c"
    assert third["n"] == "20"


def test_the_page_is_whole_and_needs_nothing_but_the_tables_in_its_folder() -> None:
    page = render_page(SECTIONS, "About <this>.", {"processor": "one"})
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    for link in reader.links:
        assert link == "aguilera-1999-time.csv" or link.removeprefix("#") in reader.ids
    assert "<script" not in page
    assert "<b>" not in page, "what is not ours to mark up is escaped"
    assert page.count("<svg") == 1


def test_the_page_says_what_holds_and_what_does_not() -> None:
    page = render_page(SECTIONS, "", {})
    verdicts = re.findall(r'class="verdict (\w+)">([\w ]+)<', page)
    assert verdicts == [("yes", "holds"), ("no", "does not hold"), ("open", "not judged")]
    assert "it keeps everything" in page
    assert [row["verdict"] for row in finding_rows(SECTIONS)] == [v for _, v in verdicts]


def test_sizes_keep_their_proportions() -> None:
    assert Scale().sizes(1_000_000, PAPER_SIZE) == (1_000_000, PAPER_SIZE)
    assert Scale(600_000).sizes(1_000_000, 100_000) == (10_000, 100_000)
    assert not Scale(600_000).is_full
    assert Scale.quick().size(1) == 50, "never none"


def test_the_report_is_written_with_its_tables(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(papers, "PAPERS", (PAPER,))
    result = papers.run(tmp_path / "deep" / "er", Scale.quick())
    names = sorted(path.name for path in (tmp_path / "deep" / "er").iterdir())
    assert (
        names
        == result["files"]
        == ["aguilera-1999-time.csv", "aguilera-1999-time.svg", "findings.csv", "index.html"]
    )
    assert "it is small" in papers.render(result)
    assert "does not hold" in papers.render(result)


def test_an_unknown_paper_is_refused(tmp_path) -> None:
    with pytest.raises(
        ArgumentError, match="no paper '999' in the report; choose aguilera-1999, fabret-2000"
    ):
        papers.run(tmp_path, Scale.quick(), "999")
    result = CliRunner().invoke(app, ["report", "papers", "--paper", "999", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose aguilera-1999, fabret-2000" in result.output


def test_a_folder_that_cannot_be_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot write to"):
        papers.run(tmp_path / "file", Scale.quick(), "aguilera-1999")


# The theory of the matching tree.


def test_the_bound_counts_nodes_from_the_root_on() -> None:
    """One attribute of two values: a root and its don't-care child, and two children by a test."""
    assert aguilera.bound(2, 1, 2) == 2.0
    assert aguilera.bound(3, 1, 2) == 2.5
    assert aguilera.bound(4, 1, 2) == 3.0
    assert aguilera.bound(100, 1, 2) == 3.0, "there are no more nodes than that"


def test_the_exponent_of_the_theorem_is_that_of_the_bound() -> None:
    """For many values the number of nodes reached by j tests is near (K V)^j, up to a factor."""
    assert aguilera.theorem(30, 5) == pytest.approx(0.679, abs=0.001)
    assert aguilera.theorem(10, 10) == pytest.approx(0.5)
    sizes = [10.0**k for k in (3, 4, 5, 6, 7)]
    grown = aguilera.exponent(sizes, [aguilera.bound(int(n), 30, 5) for n in sizes])
    assert grown < aguilera.theorem(30, 5)


def test_the_exponent_of_a_power_law_is_found() -> None:
    xs = [10.0, 100.0, 1000.0]
    assert aguilera.exponent(xs, [3 * x**0.6 for x in xs]) == pytest.approx(0.6)
    assert aguilera.exponent([10.0], [1.0]) != aguilera.exponent([10.0], [1.0]), "not a number"


def test_why_a_tree_grows_faster_than_its_visits_is_explained_by_a_visit() -> None:
    columns = ("us_per_event", "visits_per_event", "bytes", "matches_per_event")
    small = dict(zip(columns, (2.0, 80.0, 9e6, 7), strict=True))
    large = dict(zip(columns, (60.0, 1000.0, 5e8, 765), strict=True))
    why = aguilera._why_faster(small, large)
    assert "25 ns with 9 MB, 60 ns with 500 MB" in why
    assert "765 subscriptions match" in why


def test_recovery_is_what_is_left_at_the_end_of_what_was_there_before() -> None:
    rows: list[Row] = [
        {"strategy": strategy, "replaced": at, "us_per_event": taken, "engine_us": taken - 6}
        for strategy, times in (("dynamic", (9, 20, 10)), ("no change", (8, 20, 40)))
        for at, taken in zip((0.0, 0.5, 1.0), times, strict=True)
    ]
    rows.append({"strategy": "fresh", "replaced": 1.1, "us_per_event": 12, "engine_us": 6})
    rows = [{"first_us": 0.3, **row} for row in rows]
    assert adaptivity._recovery(rows, "us_per_event") == (0.9, 0.2, 0.75)
    assert adaptivity._recovery(rows, "engine_us") == (0.75, 2 / 34, 0.5)
    recovers, does_not = adaptivity._findings("skew", Scale(), rows)
    assert (recovers.holds, does_not.holds) == (True, True), "by the system as a whole"
    assert "90% of the system's" in recovers.measured
    assert "the engine alone, in batches of 20,000: 75% (fresh 50%)" in recovers.measured
    assert "56% would be recovered at the most" in recovers.why
    assert "the formula knows looks and checks only" in recovers.why
    assert "20% of the system's" in does_not.measured


def test_the_system_answers_what_another_process_submits(capfd, monkeypatch) -> None:
    before, after = SCENARIOS["skew"]
    matcher = Matcher(before.workload.event_type, engine="dynamic")
    matcher.subscribe_many(before.rows(500, 1))
    events = after.events(200, seed=1, first=7).to_pylist()
    matcher.subscribe(500, " AND ".join(f"{k} = {v}" for k, v in events[102].items()))
    seen: list[list[dict[str, object]]] = []
    batches: list[Matches] = []
    answers: list[bytes] = []
    send = submitted._send

    def note(to: IO[bytes], body: bytes) -> None:
        answers.append(body)
        send(to, body)

    monkeypatch.setattr(submitted, "_send", note)

    class Listening:
        def match_batch(self, batch: list[dict[str, object]]) -> Matches:
            seen.append(batch)
            batches.append(matcher.match_batch(batch))
            return batches[-1]

    with Generator("skew", seed=1, first=7) as generator:
        for _ in range(2):
            assert generator.microseconds(cast(Matcher, Listening()), side=1, n_batches=2) > 0
        generator.microseconds(cast(Matcher, Listening()), side=0, n_batches=1)
        process = generator._process
    assert process.returncode == 0
    assert seen == [events[:100], events[100:]] * 2 + [before.events(100, 1, 7).to_pylist()]
    assert [match.n_matches for match in batches] == [0, 1, 0, 1, 0]
    assert json.loads(answers[2]) == [[], [], [500], *[[]] * 97]
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_no_generator_is_left_when_something_fails(capfd) -> None:
    class Failing:
        def match_batch(self, batch: object) -> Matches:
            raise ArgumentError("no")

    with pytest.raises(ArgumentError), Generator("skew", seed=1, first=0) as generator:
        generator.microseconds(cast(Matcher, Failing()), side=0, n_batches=50)
    assert generator._process.returncode is not None
    with pytest.raises(EOFError), Generator("nothing", seed=1, first=0) as generator:
        generator.microseconds(Matcher(), side=0, n_batches=1)
    assert generator._process.returncode is not None
    assert "KeyError: 'nothing'" in capfd.readouterr().err


def test_what_can_be_recovered_follows_from_the_checks_of_w0() -> None:
    n, tables = 20_000, 9
    rows = workload("W0").subscription_rows(n, 1)
    of, attributes = rows["id"].to_numpy(), rows["attribute"].to_pylist()
    chosen = {f"a{i}" for i in range(2, 2 + tables)}
    inside = set(of[[attribute in chosen for attribute in attributes]].tolist())
    counted = len(inside) / 35**3 + (n - len(inside)) / 35**2
    assert adaptivity._checks(n, 35**2, tables) == pytest.approx(counted, rel=0.03)
    assert adaptivity.possible(3_000_000, 300.0) == pytest.approx(0.51, abs=0.01)
    assert adaptivity.possible(3_000_000, 1e6) > 0.99, "a slow first phase hides the second"


# All of it.


@pytest.mark.slow
@pytest.mark.parametrize("number", [paper.key for paper in papers.PAPERS])
def test_every_experiment_runs_and_draws(number: str, tmp_path) -> None:
    steps: list[tuple[str, int, int]] = []
    scale = Scale(largest=2_000, seconds=0.0001, repeats=1)
    gc.collect()
    gc.freeze()  # a timing collects first, which would look at all that other tests left
    try:
        result = papers.run(tmp_path, scale, number, progress=lambda *step: steps.append(step))
    finally:
        gc.unfreeze()
    (paper,) = papers.chosen_papers(number)
    assert len({what.partition(":")[0] for what, _, _ in steps}) == len(paper.experiments)
    assert all(done <= total for _, done, total in steps)
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == sum(name.endswith(".svg") for name in result["files"])
    assert {row["paper"] for row in result["findings"]} == {number}
    for name in result["files"]:
        if name.endswith(".csv"):
            assert len((tmp_path / name).read_text().splitlines()) > 1
