"""Blocks of a Markdown text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from induscode.frontends.terminal.blocks import LIST_LINES, MAX_LINES, MAX_TEXT_CHARS, BlockSplitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.frontends.terminal.blocks import MarkdownBlock

LINES = st.sampled_from(
    [
        *("", "", "word", "two words", "# head", "#no head", "---", "===", "***", "- item", "  - nested", "* star"),
        *("1. one", "2. two", "   more", "> quote", "```", "```python", "~~~", "    code", "a | b", "--|--", "x | y"),
        *("   ```", "\tcode", "[ref]: /x", "<div>", "word\r", "1)", "-", "日本語", "\x1b[2J"),
    ]
)


def split(text: str, cuts: Sequence[int] = ()) -> list[MarkdownBlock]:
    splitter = BlockSplitter()
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    blocks: list[MarkdownBlock] = []
    for start, end in pairwise(places):
        blocks += splitter.feed(text[start:end])
    return [*blocks, *splitter.finish()]


def kinds(text: str) -> list[str]:
    return [f"{block.kind}:{block.text}" for block in split(text)]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("one\ntwo\n\nthree", ["text:one\ntwo", "text:three"]),
        ("# head\nbody", ["text:# head\nbody"]),
        ("head\n====\nbody", ["text:head\n====\nbody"]),
        ("body\n***\nmore", ["text:body\n***\nmore"]),
        ("body\n- - -\nmore", ["text:body\n- - -\nmore"]),
        ("say:\n- a\n  - b\n\n- c\n\nend", ["text:say:", "list:- a\n  - b\n\n- c", "text:end"]),
        ("- a\n1. b", ["list:- a", "list:1. b"]),
        ("in\n2020. It", ["text:in\n2020. It"]),
        ("- a\n  ```\n  x\n\n  y\n  ```\nlazy\n# h", ["list:- a\n  ```\n  x\n\n  y\n  ```\nlazy", "text:# h"]),
        ("> q\nlazy\n\n> r", ["text:> q\nlazy", "text:> r"]),
        ("```py\na\n\n# b\n```\nc", ["fence:a\n\n# b", "text:c"]),
        ("  ```\n  a\n b\n  ```", ["fence:a\nb"]),
        ("~~~\n```\n~~~~", ["fence:```"]),
        ("text\na | b\n--|--\n1 | 2\n\nend", ["text:text", "table:a | b\n--|--\n1 | 2", "text:end"]),
        ("    a\n\n    b\nc", ["text:    a", "text:    b\nc"]),
        ("``` not `a` fence", ["text:``` not `a` fence"]),
        ("a\r\n\r\nb", ["text:a", "text:b"]),
        ("```\nopen", ["fence:open"]),
    ],
)
def test_a_text_is_split_where_the_next_block_begins(text: str, blocks: list[str]) -> None:
    assert kinds(text) == blocks


def test_a_block_is_given_out_as_soon_as_it_has_ended() -> None:
    splitter = BlockSplitter()
    assert [block.text for block in splitter.feed("one\n\ntw")] == ["one"]
    assert splitter.pending_lines() == ["tw"]
    assert [block.text for block in splitter.feed("o\n\n# three\n\n")] == ["two", "# three"]
    assert [block.info for block in splitter.feed("```py x\ncode\n")] == []
    assert splitter.pending_lines() == ["```py x", "code"]
    assert [block.info for block in splitter.feed("```\n")] == ["py x"]
    assert splitter.finish() == []


def test_a_long_fence_is_given_out_in_parts() -> None:
    code = [f"line {number}" for number in range(MAX_LINES * 2 + 5)]
    blocks = split("```c\n" + "\n".join(code) + "\n```\nend")
    assert [(block.kind, block.is_first, block.is_last) for block in blocks] == [
        ("fence", True, False),
        ("fence", False, False),
        ("fence", False, True),
        ("text", True, True),
    ]
    assert "\n".join(block.text for block in blocks[:-1]).split("\n") == code


def test_a_long_paragraph_is_cut_between_words() -> None:
    text = "- word # " * (MAX_TEXT_CHARS // 3)
    blocks = split(text)
    assert len(blocks) > 2
    assert all(block.text.startswith("word") for block in blocks[1:])
    assert " ".join(" ".join(block.text for block in blocks).split()) == text.strip()


def test_a_long_list_is_given_out_between_items_and_keeps_its_numbers() -> None:
    blocks = split("\n".join("1. item" for _ in range(LIST_LINES * 2 + 1)))
    assert [block.text.split(" ")[0] for block in blocks] == ["1.", f"{LIST_LINES + 1}.", f"{LIST_LINES * 2 + 1}."]


def test_each_part_of_a_long_table_has_the_head() -> None:
    blocks = split("a | b\n--|--\n" + "1 | 2\n" * (MAX_LINES + 10))
    assert [block.text[:11] for block in blocks] == ["a | b\n--|--"] * 2
    assert sum(block.text.count("1 | 2") for block in blocks) == MAX_LINES + 10


@given(st.lists(LINES, max_size=12), st.lists(st.integers(0, 400), max_size=8))
def test_blocks_depend_on_the_text_alone(lines: list[str], cuts: list[int]) -> None:
    text = "\n".join(lines)
    assert split(text, cuts) == split(text)


@given(st.lists(LINES, max_size=12), st.integers(1, 3), st.lists(st.integers(0, 60_000), max_size=4))
def test_parts_of_long_blocks_depend_on_the_text_alone(lines: list[str], times: int, cuts: list[int]) -> None:
    text = "\n".join(line * (900 * times) if index % 3 == 2 else line for index, line in enumerate(lines))
    blocks = split(text, cuts)
    assert blocks == split(text)
    letters = "".join((block.info if block.is_first else "") + block.text for block in blocks)
    assert [c for c in text if c.isalpha()] == [c for c in letters if c.isalpha()] or "|" in text


def test_a_paragraph_after_one_that_was_cut_begins_anew() -> None:
    blocks = split("word\n" * MAX_LINES + "\nnext\n")
    assert [(block.text.count("word"), block.is_first) for block in blocks] == [(MAX_LINES, True), (0, True)]
    assert not blocks[0].is_last
