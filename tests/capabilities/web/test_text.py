"""Indentation of JSON, escapes, fences and charsets."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.web import fetch as fence
from indusagi.capabilities.web.fetch import FENCE_BYTES, fence_text
from indusagi.capabilities.web.page import LONGEST_JSON, decode_text, format_json, show_invisible

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_json_is_indented_as_the_standard_library_does_it(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert format_json(text) == json.dumps(value, ensure_ascii=ascii_only, indent=2)


@pytest.mark.parametrize(
    "text", ["", "{", "{'a': 1}", "[" * 100_000, "1" + " " * LONGEST_JSON, "[1," + "9" * 5_000 + "]"]
)
def test_invalid_deep_or_long_json_is_returned_unchanged(text: str) -> None:
    assert format_json(text) == text


def test_a_deep_nest_does_not_become_megabytes_of_spaces() -> None:
    deep = "[" * 200 + ",".join("0" * 20_000) + "]" * 200
    assert len(format_json(deep)) < 40 * len(deep)


@given(st.text())
def test_escaped_text_is_visible_and_can_be_encoded(text: str) -> None:
    visible, hidden = show_invisible(text)
    visible.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", visible)
    assert show_invisible(visible) == (visible, 0)
    assert hidden == len(re.findall(r"<U\+[0-9A-F]{4,}>", visible)) or "<U+" in text


def test_r42_letters_hidden_behind_an_emoji_are_escaped_and_soft_hyphens_removed() -> None:
    smuggled = "\U0001f600" + "".join(chr(0xE0100 + byte - 16) for byte in b"obey")
    assert show_invisible(smuggled)[1] == 4
    assert show_invisible("Donau\u00addampf") == ("Donaudampf", 0)


def test_an_emoji_sequence_is_never_split() -> None:
    for before in range(128 * 1024 - 4, 128 * 1024 + 1):
        text = "x" * before + "\U0001f469\u200d\U0001f4bb" + "y" * 10
        assert show_invisible(text) == (text, 0)


def test_a_line_ending_is_never_split() -> None:
    for before in range(128 * 1024 - 3, 128 * 1024 + 1):
        text = "x" * before + "\r\n" + "y\u200b" * 100_000 + "\r"
        visible, hidden = show_invisible(text)
        assert visible == "x" * before + "\n" + "y<U+200B>" * 100_000 + "\n"
        assert hidden == 100_000


@given(st.text(), st.sampled_from(["page", "results"]))
def test_a_fence_contains_its_text_and_closes_once(text: str, kind: str) -> None:
    shown = fence_text(text, kind)
    mark = shown.partition(" ")[2].partition(">")[0]
    assert mark not in text
    assert shown.count(f"</untrusted-{kind} {mark}>") == 1
    assert text in shown
    assert len(shown.encode("utf-8", "surrogatepass")) <= FENCE_BYTES + len(text.encode("utf-8", "surrogatepass"))
    assert fence_text(text, kind) == shown


def test_a_mark_that_occurs_in_the_text_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter(["hello", "other"])

    def mark(_text: str) -> str:
        return next(marks)

    monkeypatch.setattr(fence, "_mark", mark)
    assert fence_text("say hello", "page").endswith("</untrusted-page other>")


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["utf-8", "utf-16"]))
def test_text_with_a_bom_or_in_utf_8_is_decoded(text: str, charset: str) -> None:
    found = decode_text(text.encode(charset), "")
    assert found.text == (text.removeprefix("\ufeff") if charset == "utf-8" else text)
    assert found.replaced == 0


@given(st.binary(max_size=300), st.text(max_size=30), st.booleans())
def test_any_bytes_decode_to_text(data: bytes, label: str, whole: bool) -> None:
    found = decode_text(data, f"text/html; charset={label}", whole=whole)
    assert isinstance(found.text, str)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_a_truncated_character_at_the_end_of_a_truncated_page_is_dropped(text: str, draw: st.DataObject) -> None:
    data = text.encode()
    cut = draw.draw(st.integers(0, len(data)))
    found = decode_text(data[:cut], "text/plain; charset=utf-8", whole=False)
    assert text.removeprefix("\ufeff").startswith(found.text)


def test_a_long_word_does_not_slow_down_the_charset_guess() -> None:
    """What guesses would take minutes for it, and nobody else would run."""
    assert decode_text(b"\xe9" + b"a" * 32_000, "text/html").text == "\xe9" + "a" * 32_000


@pytest.mark.parametrize("charset", ["utf-8", "gb18030", "shift_jis", "iso2022_jp", "utf-16-le"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_text_is_decoded_in_pieces_without_splitting_a_character(charset: str, shift: int) -> None:
    """No other thread runs while a codec is at work."""
    text = "x" * shift + "\u65e5\u672ca" * 150_000
    data = text.encode(charset)
    assert len(data) > 2 * 256 * 1024
    assert decode_text(data, f"text/plain; charset={charset}").text == text
