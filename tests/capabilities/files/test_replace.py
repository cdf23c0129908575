"""Replacements keep every other byte of a file, in any encoding."""

from __future__ import annotations

import subprocess
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indusagi.capabilities.files import replace as module
from indusagi.capabilities.files.match import MatchStrategy, TextMatch, find_match
from indusagi.capabilities.files.plan import TextChange, edit_text, overwrite_text
from indusagi.capabilities.files.replace import EditRefusal, Replacement, splice

if TYPE_CHECKING:
    from pathlib import Path


def apply_edit(data: bytes, old: str, new: str, *, every: bool = False) -> bytes:
    change = edit_text(data, [Replacement(old, new, every)], "a.txt")
    assert isinstance(change, TextChange), change
    return change.after


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_an_ascii_edit_keeps_every_other_byte(left: bytes, right: bytes) -> None:
    left, right = left.replace(b"\0", b""), right.replace(b"\0", b"")
    data = left + b"<MARK>" + right
    change = edit_text(data, [Replacement("<MARK>", "<other>")], "a.txt")
    if isinstance(change, EditRefusal):
        # Only bytes before it that begin a UTF-16 file make a mark unreadable.
        assert data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"<MARK>" in left + right
        return
    assert change.after == left + b"<other>" + right


_FEW_LETTERS = st.text("ab\n\r", max_size=6)


@given(_FEW_LETTERS, _FEW_LETTERS.filter(bool), _FEW_LETTERS)
def test_replacing_all_at_once_equals_replacing_each_place(text: str, old: str, new: str) -> None:
    found = find_match(text, old, new, every=True)
    at_once = module._replacement_for_all(text, old, new)
    if isinstance(found, TextMatch) and found.strategy is MatchStrategy.EXACT and at_once is not None:
        assert text.replace(old, at_once) == splice(text, found, old, new)
    if isinstance(found, TextMatch) and old in text and at_once is not None:
        assert found.strategy is MatchStrategy.EXACT


_FEW_SIGNS = st.text('ab\n\r\t "\u201c', max_size=9)


@example(text='\u201c\r\u201c\t " ', old='\r\r"', new=' b\r\n"\n', every=False)
@example(text='x "', old='"\r\r\n', new="\r\nb", every=True)
@given(text=_FEW_SIGNS, old=_FEW_SIGNS.filter(bool), new=_FEW_SIGNS, every=st.booleans())
def test_letters_outside_of_the_old_text_stay(text: str, old: str, new: str, *, every: bool) -> None:
    change = edit_text(text.encode(), [Replacement(old, new, every)], "a.txt")
    if isinstance(change, TextChange):
        gone = Counter(old) if not every else Counter({letter: len(text) for letter in old})
        assert not _letters(text) - _letters(change.text) - gone


def _letters(text: str) -> Counter[str]:
    """Count what is never ignored in comparing."""
    return Counter(letter for letter in text if letter in "ab")


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("data", [b"a\nb\n", b"a", b"\xff\xfea\0\n\0"])
def test_an_absent_carriage_return_is_not_found(data: bytes, *, every: bool) -> None:
    refused = edit_text(data, [Replacement("\r", "x", every)], "a.txt")
    assert isinstance(refused, EditRefusal)
    assert refused.code == "no_match"


def test_carriage_returns_can_be_removed() -> None:
    assert apply_edit(b"a\r\nb\r\n", "\r", "", every=True) == b"a\nb\n"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("new", ["c", "c\nd", "c\r"])
def test_half_a_line_ending_is_not_replaced(new: str, *, every: bool) -> None:
    after = apply_edit(b"a\r\nb\r\n", "b\r", new, every=every)
    assert after == b"a\r\n" + new.removesuffix("\r").replace("\n", "\r\n").encode() + b"\r\n"


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_line_with_an_ending_matches_before_a_last_line_without_one(ending: bytes, *, every: bool) -> None:
    after = apply_edit(ending.join([b"a", b"b", b"a"]), "a\n", "c\n", every=every)
    assert after == ending.join([b"c", b"b", b"a"])
    assert apply_edit(ending.join([b"b", b"a"]), "a\n", "c", every=every).endswith(b"c")


def test_the_memory_does_not_grow_with_the_number_of_places() -> None:
    data = b"x;" * 100_000
    tracemalloc.start()
    try:
        after = apply_edit(data, ";", ";\n", every=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert after == b"x;\n" * 100_000
    assert peak < 20 * len(data)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "shift_jis", "koi8-r", "gb18030"]
)
def test_the_encoding_of_a_file_is_kept(encoding: str, tmp_path: Path) -> None:
    words = {"shift_jis": "これは日本語です。", "koi8-r": "Привет, мир", "gb18030": "中文字符"}
    letters = words.get(encoding, "café, naïve")
    text = f"{letters}\r\nold line\r\n{letters}\r\n" * 20
    data = text.encode(encoding)
    after = apply_edit(data, "old line", "new line", every=True)
    assert after == text.replace("old line", "new line").encode(encoding)
    (tmp_path / "a").write_bytes(after)
    name = {"utf-8-sig": "utf-8", "latin-1": "latin1"}.get(encoding, encoding)
    done = subprocess.run(
        ["iconv", "-f", name, "-t", "utf-8", tmp_path / "a"],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert "new line" in done.stdout.decode("utf-8")


def test_probe_0_4_an_ascii_edit_of_a_latin_1_file_keeps_its_letters() -> None:
    assert apply_edit(b"caf\xe9\nx = 1\n", "x = 1", "x = 2") == b"caf\xe9\nx = 2\n"


def test_probe_0_3_an_lf_quotation_of_a_crlf_file_leaves_crlf_only() -> None:
    assert apply_edit(b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "ONE\nTWO") == b"ONE\r\nTWO\r\nthree\r\n"


def test_characters_missing_in_the_encoding_are_refused() -> None:
    assert apply_edit("café\nx\n".encode("latin-1"), "x", "né") == "café\nné\n".encode("latin-1")
    refused = edit_text("café\nx\n".encode("latin-1"), [Replacement("x", "→")], "a.txt")
    assert isinstance(refused, EditRefusal)
    assert (refused.code, "→" in refused.message) == ("encoding", True)


@pytest.mark.parametrize("half", [0xD800, 0xDCE9])
def test_half_a_surrogate_pair_is_refused(half: int) -> None:
    new = chr(half)
    for data in (b"x\n", b"\xff\xfex\0\n\0", b"\xe9 x\n"):
        refused = edit_text(data, [Replacement("x", new)], "a.txt")
        assert isinstance(refused, EditRefusal)
        assert refused.code == "encoding"


def test_invalid_bytes_in_a_text_are_kept() -> None:
    data = "süße füße\n".encode() * 20 + b"broken \x80\n" + "näher üben\n".encode() * 2
    data += b"\xff\n" + "größer\n".encode() * 20
    assert apply_edit(data, "üben", "ruhn", every=True) == data.replace("üben".encode(), b"ruhn")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_is_kept_and_never_added(mark: bytes) -> None:
    assert apply_edit(mark + b"a\nb\n", "a\n", "c\n") == mark + b"c\nb\n"
    for content in ("c\n", "\ufeffc\n"):
        change = overwrite_text(mark + b"a\n", content, "a.txt")
        assert isinstance(change, TextChange)
        assert change.after == (mark or (b"\xef\xbb\xbf" if content[0] == "\ufeff" else b"")) + b"c\n"


def test_a_replacement_that_would_make_a_file_too_large_is_refused() -> None:
    refused = edit_text(b"a" * 100_000, [Replacement("a", "b" * 1_000, every=True)], "a.txt")
    assert isinstance(refused, EditRefusal)
    assert refused.code == "too_large"


@pytest.mark.parametrize(
    ("old", "new", "after"), [("a\rb", "a\rc", b"a\rc\rz\r"), ("b", "b\nc", b"a\rb\nc\rz\r"), ("\rz", "", b"a\rb\r")]
)
def test_a_lone_carriage_return_is_an_ordinary_character(old: str, new: str, after: bytes) -> None:
    """Classic Mac OS ended lines so; such a file is one line."""
    data = b"a\rb\rz\r"
    assert apply_edit(data, old, new) == after
    refused = edit_text(data, [Replacement("a\nb", "c")], "a.txt")
    assert isinstance(refused, EditRefusal)
    assert refused.code == "no_match"


@given(st.lists(st.sampled_from([b"a\n", b"b\r\n", b"c  \n", b"\td\r\n", b"\xe9\n"]), max_size=12), st.integers(0, 11))
def test_neighbouring_lines_are_kept_in_a_file_with_mixed_endings(lines: list[bytes], at: int) -> None:
    at = min(at, len(lines))
    for ending in (b"\n", b"\r\n"):
        data = b"".join([*lines[:at], b"  here" + ending, *lines[at:]])
        after = apply_edit(data, "here\n", "one\ntwo\n")
        expected = [*lines[:at], b"  one" + ending, b"two" + ending, *lines[at:]]
        assert after == b"".join(expected)
