"""Plain English: sources and documents use the terms of the field and of docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PHRASES = (
    "what is recent",
    "what is open",
    "what is there",
    "what was looked at",
    "rooms",
    "told",
    "anew",
    "so many",
    "those that",
    "nobody",
    "beside",
)
"""Words of a private dialect; docs/glossary.md has their plain forms."""

NOWHERE = re.compile(r"\b(seed 00\d|DESIGN)\b")
"""References to documents that are not in the repository."""

LOCALS = ("found", "held", "given", "asked", "wanted", "told")
"""Participles that do not say what a variable is."""


def files() -> Iterator[Path]:
    """Yield the sources and documents of the product and the laboratory."""
    for folder in ("src", "lab/src"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    for folder in ("docs", "lab/docs"):
        yield from sorted((ROOT / folder).glob("*.md"))
    yield ROOT / "README.md"


def package_of(path: Path) -> str:
    """Return the package of a source, below its distribution; of a document, its path."""
    parts = path.relative_to(ROOT).parts
    if path.suffix == ".md":
        return "/".join(parts)
    return "/".join(parts[: parts.index("src") + 3])


def offenders(path: Path) -> Iterator[str]:
    """Yield the phrases and names in a file that are not plain, with their places."""
    text = path.read_text()
    place = path.relative_to(ROOT)
    phrase = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
    for pattern in (phrase, NOWHERE):
        for hit in pattern.finditer(text):
            line = text.count("\n", 0, hit.start()) + 1
            yield f"{place}:{line}: {hit[0]!r}"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.arg) and node.arg in LOCALS:
                yield f"{place}:{node.lineno}: a parameter called {node.arg!r}"
            elif (
                isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in LOCALS
            ):
                yield f"{place}:{node.lineno}: a variable called {node.id!r}"


PACKAGES = sorted({package_of(path) for path in files()})


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_written_in_plain_english(package: str) -> None:
    places = [place for path in files() if package_of(path) == package for place in offenders(path)]
    assert not places, "\n".join(places)


def test_the_glossary_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [word.strip() for row in rows for word in row.split(",")]
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words))
    assert len(words) > 60
