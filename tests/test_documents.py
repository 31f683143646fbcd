"""The documents: links lead somewhere, and what the README shows is what happens."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tocsin import errors

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


def blocks_of(text: str) -> list[str]:
    """Return the Python snippets of a document."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_blocks(blocks: list[str]) -> int:
    """Run snippets one after the other; return how many values were compared."""
    names: dict[str, Any] = {}
    return sum(run_and_compare(block, names) for block in blocks)


def test_the_library_in_the_readme_answers_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## First match")[2].partition("## On Spark")[0]
    assert run_blocks(blocks_of(section)) == 5


@pytest.mark.filterwarnings("ignore::tocsin.errors.SchemaDriftWarning")
def test_the_tutorial_answers_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(blocks_of((ROOT / "docs" / "tutorial.md").read_text())) == 13


EXAMPLES = {
    "alerts": "after the limit moved: notify ['ann']",
    "saved_searches": "Frame of steel, new: ['steel']",
    "geofences": "at x = 3.0: LEAVE cold chain",
    "routing": "audit: events [0]",
    "rules_from_a_table": "1,000,000 rules",
}


@pytest.mark.slow
def test_each_example_runs_and_says_what_it_should() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES}
    for name, line in EXAMPLES.items():
        example = ROOT / "examples" / f"{name}.py"
        result = subprocess.run(
            [sys.executable, "-W", "error", example], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert line in result.stdout.splitlines(), result.stdout


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_has_a_reference() -> None:
    built = subprocess.run(
        [ROOT / "scripts" / "build-docs"],
        env={**os.environ, "ZENSICAL": str(Path(sys.executable).with_name("zensical"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    reference = (ROOT / "build" / "site" / "reference.html").read_text()
    assert 'id="tocsin.Matcher.match_batch"' in reference


def test_troubleshooting_has_every_code_of_an_error_once() -> None:
    codes = {
        error.code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.TocsinError)
    } - {errors.TocsinError.code}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == sorted(codes)
