"""Fixtures of the dialects: each condition's SQL, the events that it matches, or its error.

A fixture is a block of lines as in `test_fixtures`; `matches` and `rejects` are events, one a line.
Every event is matched alone and in a batch, by two engines.

After a wanted change run `python -m tests.language.test_sql_dialects` and read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.language.test_fixtures import Block, read_blocks, write_block

from tocsin import Matcher
from tocsin.errors import TocsinError
from tocsin.language import dialects, print_expression
from tocsin.language import parse as parse_sql

FOLDER = Path(__file__).parent.parent / "fixtures" / "dialects"
DIALECTS = ("cesql", "jms")


def judge(block: Block, dialect: str) -> Block:
    """Return the block as it should be; of events those that do what their word says."""
    found = {"condition": block["condition"]}
    try:
        found["sql"] = print_expression(dialects.parse(block["condition"], dialect))
    except TocsinError as error:
        found["error"] = str(error)
    return found | {word: block[word] for word in ("matches", "rejects") if word in block}


BLOCKS = [
    (block, name)
    for name in DIALECTS
    for block in read_blocks(FOLDER / f"{name}.txt")
    if isinstance(block, dict)
]
CASES = [pytest.param(block, name, id=f"{name}: {block['condition']}") for block, name in BLOCKS]


@pytest.mark.parametrize(("block", "dialect"), CASES)
def test_a_condition_is_read_as_its_fixture_says(block: Block, dialect: str) -> None:
    assert write_block(judge(block, dialect)) == write_block(block)


@pytest.mark.parametrize("engine", ["auto", "oracle"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_conditions_match_the_events_of_their_fixtures(engine: str, dialect: str) -> None:
    matcher = Matcher(engine=engine)
    asked: list[tuple[str, str, bool]] = []
    for block, name in BLOCKS:
        if name != dialect or "error" in block:
            continue
        if block["condition"] not in matcher:
            matcher.subscribe(block["condition"], block["condition"], dialect=dialect)
        for word in ("matches", "rejects"):
            lines = block.get(word, "").splitlines()
            asked += [(block["condition"], line, word == "matches") for line in lines]
    events = [json.loads(line) for _, line, _ in asked]
    batch = list(matcher.match_batch(events))
    wrong = [
        (text, line)
        for (text, line, should), event, ids in zip(asked, events, batch, strict=True)
        if (text in ids) is not should or (text in matcher.match(event)) is not should
    ]
    assert wrong == []


@pytest.mark.parametrize(("block", "dialect"), CASES)
def test_what_a_condition_is_read_as_can_be_written_as_sql(block: Block, dialect: str) -> None:
    if "error" not in block:
        expression = dialects.parse(block["condition"], dialect)
        printed = print_expression(expression)
        assert print_expression(parse_sql(printed)) == printed


def main() -> None:
    for name in DIALECTS:
        path = FOLDER / f"{name}.txt"
        blocks = read_blocks(path)
        written = [b if isinstance(b, str) else write_block(judge(b, name)) for b in blocks]
        path.write_text("\n\n".join(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
