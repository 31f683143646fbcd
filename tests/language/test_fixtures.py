"""Golden fixtures: what each condition prints as, what its normal form is, or how it is refused.

A fixture is a block of lines, each a word and its content; further lines of a content are indented:

    condition  price < 100.0 AND price > 50
    prints     price < 100.0 AND price > 50
    normal     price in (50, 100)

`types` before it declares attributes, `params` gives parameters their values. Instead of `prints`
and `normal` there may be an `error`, with its text and caret; a condition that can be parsed but
not normalized has `prints` and `error`. Lines that start with # are comments.

After a wanted change run `python -m tests.language.test_fixtures` and read the difference.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tocsin.errors import ConditionSyntaxError, TocsinError
from tocsin.language import parse, print_expression
from tocsin.model import EventType
from tocsin.normalize import bind, normalize
from tocsin.normalize.describe import describe

FOLDER = Path(__file__).parent.parent / "fixtures" / "language"
DOCS = Path(__file__).parent.parent.parent / "docs" / "language.md"
FILES = sorted(FOLDER.glob("*.txt"))
Block = dict[str, str]
_INDENT = 11
_GIVEN = ("types", "params", "condition")


def read_blocks(path: Path) -> list[Block | str]:
    """Return the blocks of a file; comments are strings."""
    blocks: list[Block | str] = []
    for piece in re.split(r"\n{2,}", path.read_text(encoding="utf-8").strip("\n")):
        if piece.startswith("#"):
            blocks.append(piece)
            continue
        block: Block = {}
        for line in piece.split("\n"):
            word, content = line[:_INDENT].strip(), line[_INDENT:]
            if word:
                block[word] = content
            else:
                last = next(reversed(block))
                block[last] += "\n" + content
        blocks.append(block)
    return blocks


def write_block(block: Block) -> str:
    return "\n".join(
        f"{word if first else '':{_INDENT}}{line}".rstrip()
        for word, content in block.items()
        for first, line in ((i == 0, line) for i, line in enumerate(content.split("\n")))
    )


def judge(block: Block) -> Block:
    """Return the block as it should be."""
    found = {word: block[word] for word in _GIVEN if word in block}
    try:
        expression = parse(block["condition"])
        found["prints"] = print_expression(expression)
        event_type = _event_type(block)
        form = normalize(bind(expression, _params(block)), event_type)
        found["normal"] = "\n".join(describe(form, event_type))
    except TocsinError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def _event_type(block: Block) -> EventType | None:
    if "types" not in block:
        return None
    declared: dict[str, object] = {}
    for pair in block["types"].split(", "):
        name, kind = pair.rsplit(" ", 1)
        declared[name] = kind
    return EventType("Fixture", declared)


def _params(block: Block) -> dict[str, Any] | None:
    return ast.literal_eval(block["params"]) if "params" in block else None


CASES = [
    pytest.param(block, id=f"{path.stem}: {block['condition']}")
    for path in FILES
    for block in read_blocks(path)
    if isinstance(block, dict)
]


@pytest.mark.parametrize("block", CASES)
def test_a_condition_means_what_its_fixture_says(block: Block) -> None:
    assert write_block(judge(block)) == write_block(block)


def test_there_are_fixtures_for_every_part_of_the_language() -> None:
    assert [path.stem for path in FILES] == [
        "comparisons",
        "constants",
        "declared",
        "errors",
        "like",
        "lists",
        "literals",
        "logic",
        "names",
        "normal_form",
        "parameters",
        "refused",
        "sets_and_ranges",
        "terms",
        "text",
    ]
    assert len(CASES) > 300


def test_the_specification_shows_true_normal_forms() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## The normal form")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) >= 10
    for condition, shown in rows:
        phrases = describe(normalize(parse(condition)))
        assert ", *or* ".join(phrase.split(":")[0] for phrase in phrases) == shown


def test_the_specification_shows_a_true_error() -> None:
    shown = DOCS.read_text(encoding="utf-8").split("```text\n")[1].split("\n```")[0]
    with pytest.raises(ConditionSyntaxError) as caught:
        parse(shown.split("\n")[1])
    assert str(caught.value) == shown


def rewrite() -> None:
    """Write all fixtures as they now are."""
    for path in FILES:
        pieces = [b if isinstance(b, str) else write_block(judge(b)) for b in read_blocks(path)]
        path.write_text("\n\n".join(pieces) + "\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
