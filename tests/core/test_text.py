from __future__ import annotations

import re
import sys
import unicodedata
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.malformed import DIRTY

from indusagi.core import text as text_module
from indusagi.core.text import (
    INVISIBLE,
    clean_text,
    common_end,
    common_start,
    cut_text,
    escape_invisible,
    find_invisible_kinds,
    make_visible,
)

UNSEEN = [
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xD800, 0xDFFF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFDD0, 0xFDEF),
    (0xFFF0, 0xFFFB),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0, 0x110000, 0x10000)),
]
"""By hand from the standard: control, direction, halves, tags, noncharacters, and what is ignored
by default."""

any_text = st.text(st.characters())
"""Surrogates included."""
joined_text = st.text(
    st.sampled_from(
        "\u200b\u200c\u200d\ufe00\ufe0e\ufe0f\u061c\u180b\U000e0100"
        "\u00ad\u1820\u0645\u1780\u8fbb\u3164\u2764\U0001f468a1\r\n"
    )
)
hostile_text = st.text(st.sampled_from("\x1b[]P\\\x07;0m A\n\x9b\u202e"))


def test_exactly_the_invisible_characters_are_removed() -> None:
    expected = {chr(code) for first, last in UNSEEN for code in range(first, last + 1)}
    # Parted by a letter: a hieroglyph control belongs to the hieroglyph before it.
    everything = "a".join(map(chr, range(sys.maxunicode + 1))).replace("\x1b", "")
    cleaned, removed = clean_text(everything)
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
        ("a\U000e0141\ufe0fb", "ab"),
        ("\u8fbb\U000e0100\U000e0101", "\u8fbb\U000e0100"),
        ("a\u200cb\u200bc\u200d", "abc"),
        ("", ""),
    ],
)
def test_escape_sequences_are_removed_completely(text: str, cleaned: str) -> None:
    assert clean_text(text) == (cleaned, len(text) - len(cleaned))


def test_r42_text_of_the_malformed_server_is_cleaned() -> None:
    cleaned, removed = clean_text(DIRTY)
    assert removed > 0
    assert all(letter.isprintable() for letter in cleaned)
    assert "obey" not in cleaned
    assert cleaned.startswith("clean red")
    assert cleaned.endswith("end")


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525",
        "1\ufe0f\u20e3",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937",
        "PDF\u200c\u0647\u0627",
        "\u1b13\u1b44\u200c\u1b13",
        "\U00011107\U00011133\u200c\U00011107",
        "\U0001f468\U0001f3fd\u200d\U0001f4bb",
        "\U0001f3f3\ufe0f\u200d\U0001f308",
        "\U00013000\U00013430\U00013001",
        "\u8fbb\U000e0100\u3055\u3093",
        "\u1820\u180b\u1828\u180e\u1820",
        "0\ufe00 \u228a\ufe00",
    ],
)
def test_joiners_of_one_glyph_are_kept(text: str) -> None:
    assert clean_text(text) == (text, 0)
    assert escape_invisible(text) == (text, 0)


KHMER = "\u1781\u17d2\u1789\u17bb\u17c6\u200b2020\u200b\u1786\u17d2\u1793\u17b6\u17c6"


@pytest.mark.parametrize(
    ("text", "visible", "count"),
    [("Donau\u00addampf\u00ad", "Donaudampf<U+00AD>", 1), (KHMER, KHMER.replace("\u200b", ""), 0)],
)
def test_line_break_hints_are_removed_and_not_escaped(text: str, visible: str, count: int) -> None:
    assert make_visible(text) == (visible, count + text.count("\u00ad", 0, -1) + text.count("\u200b"))
    assert len([*find_invisible_kinds(text)]) == count
    assert "\u00ad" not in clean_text(text)[0]
    assert "\u200b" not in clean_text(text)[0]
    # Whoever decides about a command sees all of it.
    assert escape_invisible("rm a\u00adb") == ("rm a<U+00AD>b", 1)


@pytest.mark.parametrize("text", ["\U0001f600\u200da", "\U0001f600\u200c\U0001f600", "1\ufe0f2", "a\ufe0f", "x\ufe00"])
def test_joiner_or_selector_without_a_glyph_is_removed(text: str) -> None:
    assert clean_text(text)[1] == 1


def test_line_endings_are_not_escaped() -> None:
    assert escape_invisible("a\r\nb\r\n") == ("a\r\nb\r\n", 0)
    assert escape_invisible("safe\rrm") == ("safe<U+000D>rm", 1)


@given(any_text | hostile_text | joined_text)
def test_cleaning_is_idempotent(text: str) -> None:
    cleaned, removed = clean_text(text)
    assert clean_text(cleaned) == (cleaned, 0)
    assert removed == len(text) - len(cleaned)


@given(hostile_text)
def test_no_control_character_remains(text: str) -> None:
    cleaned, _ = clean_text(text)
    assert all(letter == "\n" or unicodedata.category(letter) != "Cc" for letter in cleaned)


@given(st.text(st.characters(exclude_categories=("C",)).filter(lambda one: not re.match(f"[{INVISIBLE}]", one))))
def test_letters_that_can_be_seen_are_never_changed(text: str) -> None:
    assert clean_text(text) == (text, 0)


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[", "\x1b[0", "\x1b ", "\x1bP\x1b", "\x1b]\x1b\\", "\x1b", "\x1b[;;;;"])
def test_hostile_text_is_cleaned_in_linear_time(part: str) -> None:
    cleaned, removed = clean_text(part * 100_000)
    assert len(cleaned) + removed == len(part) * 100_000
    assert "\x1b" not in cleaned


@given(st.text(), st.integers(0, 50))
def test_cut_text_keeps_its_start_and_counts_the_rest(text: str, limit: int) -> None:
    cut = cut_text(text, limit)
    if len(text) <= limit:
        assert cut == text
    else:
        assert cut == f"{text[:limit]}… [{len(text) - limit} more characters]"


def test_large_numbers_have_separators() -> None:
    assert cut_text("x" * 5_001, 1) == "x… [5,000 more characters]"


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_common_ends_are_as_long_as_possible(chunk: int, one: str, other: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_module, "_CHUNK", chunk)
        start = common_start(one, other)
        end = common_end(one, other, start)
    assert start == _alike(one, other)
    assert end == _alike(one[start:][::-1], other[start:][::-1])


def _alike(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def test_long_texts_are_compared_to_the_end() -> None:
    text = b"x" * 200_000
    assert common_start(text, text) == 200_000
    assert common_start(text + b"a", text + b"b") == 200_000
    assert common_end(b"a" + text, b"b" + text, 0) == 200_000
    assert common_end(text, text + text, 50_000) == 150_000
