"""The documents: links lead somewhere, and what the README shows is what happens."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("lab/**/*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are shown on the web."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def run_and_compare(source: str, names: dict[str, Any]) -> int:
    """Run a snippet; compare each expression with the literal in its comment, and count these."""
    lines, n_compared = source.splitlines(), 0
    for statement in ast.parse(source).body:
        comment = lines[(statement.end_lineno or 1) - 1].partition("  # ")[2]
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "<snippet>", "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), "<snippet>", "eval"), names)
        with contextlib.suppress(SyntaxError, ValueError):
            assert value == ast.literal_eval(comment), ast.unparse(statement)
            n_compared += 1
    return n_compared


def test_the_library_in_the_readme_answers_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## First match")[2].partition("## On Spark")[0]
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert sum(run_and_compare(block, names) for block in blocks) == 5
