"""Outcomes → one self-contained HTML page, and tables as CSV files next to it.

Enters: papers with their outcomes, facts about machine and versions. Leaves: texts. The page
follows the reader's preference for light or dark; every plot has its data as a table under it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape

from tocsin_lab.bench.plot import render
from tocsin_lab.bench.report.outcome import Figure, Finding, Outcome, Paper, Row, Value

_VERDICTS = {True: "holds", False: "does not hold", None: "not judged"}
_STYLE = """
:root{color-scheme:light dark;--ink:#222;--ground:#fdfdfc;--rule:#ccc;--soft:#f1f1ee;--link:#14568a;
--yes:#1e6b2d;--no:#a1281c;--dim:#5a5a5a}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--ground:#17181a;--rule:#444;--soft:#222427;
--link:#7cc0ff;--yes:#7fd492;--no:#ff9a8d;--dim:#a5a5a5}}
body{margin:0 auto;max-width:60rem;padding:1rem 1.25rem 4rem;background:var(--ground);
color:var(--ink);font:16px/1.55 system-ui,sans-serif}
h1{font-size:1.7rem;line-height:1.25}h2{margin-top:3rem;border-top:1px solid var(--rule);
padding-top:1.5rem}h3{margin-top:2.25rem}a{color:var(--link)}
figure{margin:1rem 0 2rem}figure svg{width:100%;height:auto;max-width:44rem;display:block}
figcaption{color:var(--dim);max-width:44rem}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;margin:.75rem 0}
caption{text-align:left;color:var(--dim);padding:.25rem 0}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
thead th{background:var(--soft)}.yes{color:var(--yes);font-weight:600}
.no{color:var(--no);font-weight:600}.open{color:var(--dim)}summary{cursor:pointer}
.verdict{white-space:nowrap}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
"""

Section = tuple[Paper, Sequence[Outcome]]


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV; columns are those of all rows, in the order they first appear."""
    written = io.StringIO()
    writer = csv.DictWriter(written, list(_columns(rows)), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def finding_rows(sections: Sequence[Section]) -> list[Row]:
    """Return the findings of all papers as rows."""
    return [
        {
            "paper": paper.key,
            "claim": finding.claim,
            "measured": finding.measured,
            "verdict": _VERDICTS[finding.holds],
            "why": finding.why,
        }
        for paper, outcomes in sections
        for outcome in outcomes
        for finding in outcome.findings
    ]


def _columns(rows: Sequence[Row]) -> dict[str, None]:
    return {name: None for row in rows for name in row}


def render_page(sections: Sequence[Section], about: str, facts: Mapping[str, str]) -> str:
    """Return the page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<title>Tocsin: the papers' figures</title>",
        f"<style>{_STYLE}</style></head><body><header>",
        "<h1>The papers’ figures, measured with Tocsin</h1>",
        f"<p>{escape(about)}</p>",
        _facts(facts),
        _contents(sections),
        "</header><main>",
    ]
    for paper, outcomes in sections:
        parts.append(f'<h2 id="paper-{paper.key}">{escape(paper.title)}</h2>')
        parts.append(f"<p>{escape(paper.authors)}</p>")
        parts.append(_findings([finding for outcome in outcomes for finding in outcome.findings]))
        parts += [_figure(figure) for outcome in outcomes for figure in outcome.figures]
    return "\n".join([*parts, "</main></body></html>\n"])


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    return f"<table><caption>Where this was measured</caption>{rows}</table>"


def _contents(sections: Sequence[Section]) -> str:
    items = []
    for paper, outcomes in sections:
        inside = "".join(
            f'<li><a href="#{figure.name}">{escape(figure.title)}</a></li>'
            for outcome in outcomes
            for figure in outcome.figures
        )
        link = f'<a href="#paper-{paper.key}">{escape(paper.title)}</a>'
        items.append(f"<li>{link}<ul>{inside}</ul></li>")
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    rows = []
    for finding in findings:
        kind = {True: "yes", False: "no", None: "open"}[finding.holds]
        why = f"<br><small>{escape(finding.why)}</small>" if finding.why else ""
        rows.append(
            f"<tr><td>{escape(finding.claim)}</td><td>{escape(finding.measured)}{why}</td>"
            f'<td class="verdict {kind}">{_VERDICTS[finding.holds]}</td></tr>'
        )
    head = '<th scope="col">Claim</th><th scope="col">Measured</th><th scope="col">Verdict</th>'
    return (
        '<div class="wide"><table><caption>Claims and measurements</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(figure: Figure) -> str:
    drawn = "" if figure.plot is None else render(figure.plot)
    table, link = _table(figure), f'<a href="{figure.name}.csv">{figure.name}.csv</a>'
    if figure.plot is not None:
        table = f"<details><summary>The data as a table</summary>{table}</details>"
    return (
        f'<section aria-labelledby="{figure.name}"><h3 id="{figure.name}">{escape(figure.title)}'
        f"</h3><figure>{drawn}<figcaption>{escape(figure.text)} Data: {link}.</figcaption>"
        f"</figure>{table}</section>"
    )


def _table(figure: Figure) -> str:
    columns = _columns(figure.rows)
    numeric = {
        name
        for name in columns
        if all(not isinstance(row.get(name, 0), str) for row in figure.rows)
    }
    head = "".join(
        f'<th scope="col"{_class(name in numeric)}>{escape(name)}</th>' for name in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(name in numeric)}>{_shown(row.get(name, ''))}</td>" for name in columns
        )
        + "</tr>"
        for row in figure.rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(figure.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _shown(value: Value) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:,}"
