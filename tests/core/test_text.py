from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.malformed import DIRTY

from indusagi.core.text import clean_text, cut_text

UNSEEN = [
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x2064),
    (0x2066, 0x2069),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE007F),
]
"""What is taken out, by hand from the standard: control, zero width, direction, halves, tags."""

any_text = st.text(st.characters())
"""Surrogates included."""
hostile_text = st.text(st.sampled_from("\x1b[]P\\\x07;0m A\n\x9b\u202e"))


def test_exactly_the_characters_that_cannot_be_seen_are_taken_out() -> None:
    expected = {chr(code) for first, last in UNSEEN for code in range(first, last + 1)}
    everything = "".join(map(chr, range(sys.maxunicode + 1))).replace("\x1b", "")
    cleaned, removed = clean_text(everything)
    assert set(everything) - set(cleaned) == expected - {"\x1b"}
    assert removed == len(expected) - 1
    assert cleaned == "".join(letter for letter in everything if letter not in expected)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[?25lhidden\x1b[2 q", "hidden"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]52;c;aGFja2Vk\x1b\\after", "after"),
        ("\x1bP1$tx\x1b\\after", "after"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\after", "after"),
        ("\x1b]0;a title\nthat never ends", ""),
        ("\x1b(Bcharset", "charset"),
        ("\x1bcreset", "reset"),
        ("at the end\x1b", "at the end"),
        ("line\r\nline", "line\nline"),
        ("a\u202eb\u2066c", "abc"),
        ("é ﬁ ½ Å", "é ﬁ ½ Å"),
        ("", ""),
    ],
)
def test_escape_sequences_go_whole_and_the_rest_stays(text: str, cleaned: str) -> None:
    assert clean_text(text) == (cleaned, len(text) - len(cleaned))


def test_r42_the_dirty_text_of_the_malformed_server_is_clean() -> None:
    cleaned, removed = clean_text(DIRTY)
    assert removed > 0
    assert all(letter.isprintable() for letter in cleaned)
    assert "obey" not in cleaned
    assert cleaned.startswith("clean red")
    assert cleaned.endswith("end")


@given(any_text | hostile_text)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    cleaned, removed = clean_text(text)
    assert clean_text(cleaned) == (cleaned, 0)
    assert removed == len(text) - len(cleaned)


@given(hostile_text)
def test_no_control_character_outlives_its_escape(text: str) -> None:
    cleaned, _ = clean_text(text)
    assert all(letter == "\n" or unicodedata.category(letter) != "Cc" for letter in cleaned)


@given(st.text(st.characters(exclude_categories=("C",))))
def test_letters_are_never_changed(text: str) -> None:
    assert clean_text(text) == (text, 0)


@pytest.mark.parametrize(
    "part", ["\x1b]", "\x1b[", "\x1b[0", "\x1b ", "\x1bP\x1b", "\x1b]\x1b\\", "\x1b", "\x1b[;;;;"]
)
def test_hostile_text_is_cleaned_in_no_time(part: str) -> None:
    cleaned, removed = clean_text(part * 100_000)
    assert len(cleaned) + removed == len(part) * 100_000
    assert "\x1b" not in cleaned


@given(st.text(), st.integers(0, 50))
def test_a_cut_text_keeps_its_beginning_and_counts_the_rest(text: str, limit: int) -> None:
    cut = cut_text(text, limit)
    if len(text) <= limit:
        assert cut == text
    else:
        assert cut == f"{text[:limit]}… [{len(text) - limit} more characters]"


def test_large_numbers_are_written_for_people() -> None:
    assert cut_text("x" * 5_001, 1) == "x… [5,000 more characters]"
