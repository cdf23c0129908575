"""Layout, fences and charsets: what is done to a text, and what is not."""

from __future__ import annotations

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.web import fence, layout
from indusagi.capabilities.web.charset import decoded
from indusagi.capabilities.web.fence import FENCE_BYTES, fenced
from indusagi.capabilities.web.layout import LONGEST_JSON, laid_open, laid_out

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_json_is_laid_out_as_python_does_it(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert laid_out(text) == json.dumps(value, ensure_ascii=ascii_only, indent=2)


@pytest.mark.parametrize(
    "text", ["", "{", "{'a': 1}", "[" * 100_000, "1" + " " * LONGEST_JSON, "[1," + "9" * 5_000 + "]"]
)
def test_what_cannot_be_laid_out_stays_as_it_is(text: str) -> None:
    assert laid_out(text) == text


def test_what_is_laid_out_in_a_process_comes_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"a":["\\ud800 \u20ac",1.0e5]}'
    question = b"".join(layout.message(text))
    streams = [SimpleNamespace(buffer=io.BytesIO(data)) for data in (question, b"")]
    monkeypatch.setattr(sys, "stdin", streams[0])
    monkeypatch.setattr(sys, "stdout", streams[1])
    assert layout.main() == 0
    assert layout.text_in([streams[1].buffer.getvalue()]) == laid_out(text)


def test_a_deep_nest_does_not_become_megabytes_of_spaces() -> None:
    deep = "[" * 200 + ",".join("0" * 20_000) + "]" * 200
    assert len(laid_out(deep)) < 40 * len(deep)


@given(st.text())
def test_a_text_laid_open_can_be_seen_and_written(text: str) -> None:
    visible, hidden = laid_open(text)
    visible.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", visible)
    assert laid_open(visible) == (visible, 0)
    assert hidden == len(re.findall(r"<U\+[0-9A-F]{4,}>", visible)) or "<U+" in text


def test_r42_letters_hidden_behind_a_sign_are_written_out_and_soft_hyphens_are_not() -> None:
    smuggled = "\U0001f600" + "".join(chr(0xE0100 + byte - 16) for byte in b"obey")
    assert laid_open(smuggled)[1] == 4
    assert laid_open("Donau\u00addampf") == ("Donaudampf", 0)


def test_a_sign_of_several_characters_is_one_wherever_a_long_text_is_cut() -> None:
    for before in range(128 * 1024 - 4, 128 * 1024 + 1):
        text = "x" * before + "\U0001f469\u200d\U0001f4bb" + "y" * 10
        assert laid_open(text) == (text, 0)


def test_a_line_end_is_one_wherever_a_long_text_is_cut() -> None:
    for before in range(128 * 1024 - 3, 128 * 1024 + 1):
        text = "x" * before + "\r\n" + "y\u200b" * 100_000 + "\r"
        visible, hidden = laid_open(text)
        assert visible == "x" * before + "\n" + "y<U+200B>" * 100_000 + "\n"
        assert hidden == 100_000


@given(st.text(), st.sampled_from(["page", "results"]))
def test_a_fence_holds_its_text_and_is_closed_once(text: str, kind: str) -> None:
    shown = fenced(text, kind)
    mark = shown.partition(" ")[2].partition(">")[0]
    assert mark not in text
    assert shown.count(f"</untrusted-{kind} {mark}>") == 1
    assert text in shown
    assert len(shown.encode("utf-8", "surrogatepass")) <= FENCE_BYTES + len(text.encode("utf-8", "surrogatepass"))
    assert fenced(text, kind) == shown


def test_a_mark_that_is_in_the_text_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter(["hello", "other"])

    def mark(_text: str) -> str:
        return next(marks)

    monkeypatch.setattr(fence, "_mark", mark)
    assert fenced("say hello", "page").endswith("</untrusted-page other>")


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["utf-8", "utf-16"]))
def test_a_text_with_a_mark_or_in_utf_8_comes_back(text: str, charset: str) -> None:
    found = decoded(text.encode(charset), "")
    assert found.text == (text.removeprefix("\ufeff") if charset == "utf-8" else text)
    assert found.replaced == 0


@given(st.binary(max_size=300), st.text(max_size=30), st.booleans())
def test_any_bytes_are_some_text(data: bytes, label: str, whole: bool) -> None:
    found = decoded(data, f"text/html; charset={label}", whole=whole)
    assert isinstance(found.text, str)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_half_a_character_at_the_end_of_half_a_page_is_left_out(text: str, draw: st.DataObject) -> None:
    data = text.encode()
    cut = draw.draw(st.integers(0, len(data)))
    found = decoded(data[:cut], "text/plain; charset=utf-8", whole=False)
    assert text.removeprefix("\ufeff").startswith(found.text)


def test_a_long_row_of_letters_does_not_hold_up_the_guess() -> None:
    """What guesses would take minutes for it, and nobody else would run."""
    assert decoded(b"\xe9" + b"a" * 32_000, "text/html").text == "\xe9" + "a" * 32_000


@pytest.mark.parametrize("charset", ["utf-8", "gb18030", "shift_jis", "iso2022_jp", "utf-16-le"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_text_is_read_in_pieces_and_no_letter_falls_apart(charset: str, shift: int) -> None:
    """No other thread runs while a codec is at work."""
    text = "x" * shift + "\u65e5\u672ca" * 150_000
    data = text.encode(charset)
    assert len(data) > 2 * 256 * 1024
    assert decoded(data, f"text/plain; charset={charset}").text == text
