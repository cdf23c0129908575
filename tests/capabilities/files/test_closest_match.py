"""The most similar lines of a file for a text that is not in it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz

from indusagi.capabilities.files import replace as module
from indusagi.capabilities.files.replace import MAX_SHOWN_LINES, TextSimilarity, find_closest_match

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "".join(f"def function_{n}(value):\n    total = value + {n}\n    return total\n\n" for n in range(200))


def test_the_closest_block_is_shown_with_its_differences() -> None:
    found = find_closest_match(PROGRAM, "def function_77(value):\n\ttotal = value - 77\n\treturn total\n")
    assert found is not None
    assert found.line == 77 * 4 + 1
    assert found.view == (
        "  def·function_77(value):\n"
        "- →total·=·value·-·77\n"
        "- →return·total\n"
        "+ ····total·=·value·+·77\n"
        "+ ····return·total"
    )


def test_a_misspelt_line_is_found_without_an_equal_line() -> None:
    found = find_closest_match(PROGRAM, "totl = valeu + 123")
    assert found is not None
    assert found.line == 123 * 4 + 2


def test_the_more_similar_of_two_blocks_that_share_a_line_is_shown() -> None:
    text = "shared long line of code\nother\nend\n" * 3 + "shared long line of code\nwanted\nend\n"
    found = find_closest_match(text, "shared long line of code\nwanted!\nend")
    assert found is not None
    assert found.line == 10


@pytest.mark.parametrize("wanted", ["", "\n \n", "nothing of the kind anywhere here: zzzzqqqq"])
def test_nothing_is_suggested_without_similar_lines(wanted: str) -> None:
    assert find_closest_match(PROGRAM, wanted) is None
    assert find_closest_match("", "a") is None


def test_a_long_block_is_shown_in_part() -> None:
    lines = [f"line number {n}" for n in range(100)]
    found = find_closest_match("\n".join(lines), "\n".join([*lines[:50], "other", *lines[51:]]))
    assert found is not None
    assert len(found.view.split("\n")) == MAX_SHOWN_LINES


def _count_letters(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the letters that are compared."""
    seen: list[int] = []
    really = TextSimilarity.compare

    def compare(self: TextSimilarity, other: str, at_least: float = 0.0) -> float:
        seen.append(len(other))
        return really(self, other, at_least)

    monkeypatch.setattr(TextSimilarity, "compare", compare)
    return lambda: sum(seen)


@pytest.mark.parametrize(
    "text",
    ["x = 1\n" * 200_000, "".join(f"x = {n}\n" for n in range(200_000)), "y" * 5_000_000, ("z" * 1_000 + "\n") * 5_000],
)
def test_the_work_is_bounded_for_every_file(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_COMPARED_LINES", 10)  # the other half of the bound has a test below
    letters = _count_letters(monkeypatch)
    find_closest_match(text, "\n".join(f"x = {n + 0.5}" for n in range(300)))
    assert letters() <= 3 * (8 * 4_000 + 10 * 200)


def test_the_number_of_compared_lines_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_COMPARED_LINES", 50)
    chance = random.Random(1)
    lines = [f"value = {chance.random()}" for _ in range(100)]
    lines[80] = "a line of its own"
    assert find_closest_match("\n".join(lines), "a line on its own") is None
    lines[20] = "a line of its own"
    assert find_closest_match("\n".join(lines), "a line on its own") is not None


@given(st.text(st.sampled_from("abcé \n")), st.text(st.sampled_from("abcé \n")))
def test_the_similarity_is_that_of_rapidfuzz(one: str, other: str) -> None:
    if one or other:  # rapidfuzz has 100 for two empty texts
        assert TextSimilarity(one).compare(other) == pytest.approx(fuzz.ratio(one, other))


@given(st.lists(st.text(st.sampled_from("ab"), min_size=1), max_size=12, unique=True), st.integers(1, 4))
def test_the_closest_texts_are_those_with_the_highest_similarity(texts: list[str], limit: int) -> None:
    wanted = "abab"
    scores = sorted((fuzz.ratio(wanted, text) for text in texts), reverse=True)
    found = TextSimilarity(wanted).find_closest(texts, limit, 50.0)
    assert [score for score, _ in found] == pytest.approx([score for score in scores if score >= 50.0][:limit])
