"""Bytes as text and back: no byte is lost, and iconv agrees about what they say."""

from __future__ import annotations

import errno
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.files.text.codec import (
    SAMPLE_BYTES,
    TextForm,
    decode_lossless,
    digest_bytes,
    encode,
    encode_piece,
    guess_encoding,
    is_text,
    new_digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.files.text.codec import LineEnding

RUSSIAN = "Настройки хранятся в файле. Если он не найден, берутся значения по умолчанию.\n"
GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n"
JAPANESE = "設定はファイルに保存されます。見つからない場合は既定値を使用します。\n"


def iconv(data: bytes, encoding: str) -> str:
    done = subprocess.run(
        ["iconv", "-f", encoding, "-t", "UTF-8"], input=data, capture_output=True, check=True, timeout=20
    )
    return done.stdout.decode("utf-8")


def _saying(guess: dict[str, object]) -> Callable[[bytes], dict[str, object]]:
    def detect(_sample: bytes) -> dict[str, object]:
        return guess

    return detect


@given(st.binary(max_size=400))
def test_the_way_back_gives_the_same_bytes_whatever_they_were(data: bytes) -> None:
    text, form = decode_lossless(data)
    assert encode(text, form) == data


@given(st.text(max_size=200), st.sampled_from(["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]))
def test_a_mark_tells_the_encoding_and_is_no_part_of_the_text(text: str, name: str) -> None:
    mark = "" if name == "utf-8-sig" else "\ufeff"
    try:
        data = (mark + text).encode(name)
    except UnicodeEncodeError:
        return
    found, form = decode_lossless(data)
    if form.encoding == "utf-32-le" and name == "utf-16-le":
        return  # a text that begins with NUL reads like the longer mark
    assert (found, form.encoding) == (text, name.removesuffix("-sig"))
    assert encode(found, form) == data


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        (RUSSIAN * 5, "KOI8-R", "koi8-r"),
        (RUSSIAN * 5, "CP1251", "cp1251"),
        (JAPANESE * 5, "SHIFT_JIS", "shift_jis"),
        (JAPANESE * 5, "EUC-JP", "euc_jp"),
        ("朱镕基总理的讲话。中文文本文件测试。堃喆\n", "GBK", "gb18030"),
        (GERMAN, "ISO-8859-1", "latin-1"),
        ("“Naïve” café, “déjà vu”\n", "WINDOWS-1252", "cp1252"),
        (GERMAN, "UTF-8", "utf-8"),
        ("\ufeff" + JAPANESE, "UTF-16LE", "utf-16-le"),
        ("\ufeff" + JAPANESE, "UTF-16BE", "utf-16-be"),
        ("\ufeff" + JAPANESE, "UTF-32LE", "utf-32-le"),
    ],
)
def test_iconv_reads_the_same_text(text: str, encoding: str, name: str) -> None:
    made = subprocess.run(
        ["iconv", "-f", "UTF-8", "-t", encoding],
        input=text.encode("utf-8"),
        capture_output=True,
        check=True,
        timeout=20,
    ).stdout
    found, form = decode_lossless(made)
    assert form.encoding == name
    assert found == iconv(made, encoding).removeprefix("\ufeff")
    assert form.guessed is (name not in {"utf-8", "utf-16-le", "utf-16-be", "utf-32-le"})


def test_a_few_broken_bytes_do_not_make_utf_8_another_encoding() -> None:
    data = GERMAN.encode() + b"\xff\xfe broken\n" + RUSSIAN.encode()
    text, form = decode_lossless(data)
    assert (form.encoding, form.damaged, form.guessed) == ("utf-8", True, False)
    assert text.startswith(GERMAN)
    assert text.endswith(RUSSIAN)
    assert encode(text, form) == data


def test_the_first_odd_byte_far_into_a_file_is_what_the_guess_is_made_from() -> None:
    data = b"plain ascii\n" * 50_000 + (RUSSIAN * 5).encode("koi8-r")
    text, form = decode_lossless(data)
    assert form.encoding == "koi8-r"
    assert text.endswith(RUSSIAN)


def test_a_long_row_of_letters_does_not_hold_up_the_guess() -> None:
    """A sequence of bases or amino acids; each of these would take a minute of one regex."""
    row = b"ACGTTGCA" * (SAMPLE_BYTES // 8)
    for name, text in {"shift_jis": JAPANESE, "koi8-r": RUSSIAN}.items():
        assert guess_encoding(text.encode(name) + row) == name


def test_bytes_for_which_the_guess_has_no_letter_survive() -> None:
    data = (RUSSIAN * 5).encode("cp1251") + b"\x98\n"  # not a letter in windows-1251
    text, form = decode_lossless(data)
    assert (form.encoding, form.damaged) == ("cp1251", True)
    assert encode(text, form) == data


def test_an_encoding_with_two_ways_to_write_a_letter_is_not_used_where_one_would_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chardet.detect", _saying({"encoding": "cp932", "confidence": 1.0}))
    data = b"\xfa\x4a\n"  # the same as \x87\x54, which is the one that is written
    text, form = decode_lossless(data)
    assert (form.encoding, form.guessed) == ("latin-1", True)
    assert encode(text, form) == data


@pytest.mark.parametrize("data", [b"\xff\xfea\0b", b"\0\0\xfe\xff\0\0\0a\0\0", b"\xff\xfe\0\0\xff\xff\xff\xff"])
def test_a_wide_file_that_ends_inside_a_character_is_bytes(data: bytes) -> None:
    text, form = decode_lossless(data)
    assert form.encoding == "latin-1"
    assert not is_text(text)
    assert encode(text, form) == data


def test_half_a_surrogate_pair_in_utf_16_survives() -> None:
    data = b"\xff\xfea\0\x00\xd8b\0"
    text, form = decode_lossless(data)
    assert (text, form.encoding, form.damaged) == ("a\ud800b", "utf-16-le", True)
    assert encode(text, form) == data


@pytest.mark.parametrize(
    ("sample", "name"), [(b"caf\xe9", "latin-1"), (b"\x93quoted\x94 \xa4\xa5\xa6 \x80", "cp1252"), (b"\xe9", "latin-1")]
)
def test_a_guess_is_an_encoding_that_python_knows_and_that_leaves_ascii_alone(sample: bytes, name: str) -> None:
    found = guess_encoding(sample)
    assert found in {name, "latin-1", "cp1252"}
    assert b"abc\r\n".decode(found) == "abc\r\n"


@pytest.mark.parametrize(
    ("guess", "found"),
    [
        ({"encoding": None, "confidence": 0.0}, "latin-1"),
        ({"encoding": "EUC-TW", "confidence": 0.99}, "latin-1"),  # unknown to Python
        ({"encoding": "cp037", "confidence": 0.99}, "latin-1"),  # ASCII is something else there
        ({"encoding": "utf-16-le", "confidence": 0.99}, "latin-1"),
        ({"encoding": "TIS-620", "confidence": 0.3}, "latin-1"),
        ({"encoding": "TIS-620", "confidence": 0.9}, "tis-620"),
    ],
)
def test_a_guess_that_is_of_no_use_is_not_followed(
    guess: dict[str, object], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chardet.detect", _saying(guess))
    assert guess_encoding(b"caf\xe9") == found


@pytest.mark.parametrize(
    ("data", "ending", "final", "newline"),
    [
        (b"", "none", False, "\n"),
        (b"a", "none", False, "\n"),
        (b"a\nb\n", "lf", True, "\n"),
        (b"a\r\nb", "crlf", False, "\r\n"),
        (b"a\rb\r", "cr", True, "\r"),
        (b"a\r\nb\n", "mixed", True, "\n"),
        (b"a\r\rb\n", "mixed", True, "\n"),
    ],
)
def test_the_form_knows_the_line_endings(data: bytes, ending: LineEnding, final: bool, newline: str) -> None:
    form = decode_lossless(data)[1]
    assert (form.line_ending, form.final_newline, form.newline) == (ending, final, newline)


def test_line_endings_of_a_wide_file_are_characters_too() -> None:
    form = decode_lossless("\ufeffa\r\nb\r\n".encode("utf-16-le"))[1]
    assert (form.line_ending, form.final_newline, form.wide) == ("crlf", True, True)


def test_text_that_the_encoding_cannot_hold_is_refused_by_name() -> None:
    form = decode_lossless(GERMAN.encode("latin-1"))[1]
    for refuse in (encode, encode_piece):
        with pytest.raises(OSError, match=r"'€' \(U\+20AC\) cannot be written in latin-1") as caught:
            refuse("5 €", form)
        assert caught.value.errno == errno.EILSEQ


def test_half_a_surrogate_pair_is_no_text_for_any_file() -> None:
    for form in (TextForm(), TextForm(encoding="utf-16-le"), TextForm(damaged=True)):
        with pytest.raises(OSError, match=r"U\+DC80 is half a surrogate pair"):
            encode_piece("\udc80", form)


def test_a_piece_has_no_mark() -> None:
    form = TextForm(encoding="utf-16-be", bom=b"\xfe\xff")
    assert encode_piece("a", form) == b"\0a"
    assert encode("a", form) == b"\xfe\xff\0a"


def test_only_text_has_no_nul() -> None:
    assert is_text(decode_lossless(b"a\n")[0])
    assert not is_text(decode_lossless(b"a\0b")[0])


def test_a_digest_is_that_of_sha256sum_in_one_piece_or_in_many() -> None:
    data = bytes(range(256)) * 5_000
    done = subprocess.run(["sha256sum"], input=data, capture_output=True, check=True, timeout=20).stdout.decode()
    assert digest_bytes(data) == done.split()[0]
    pieces = new_digest()
    for start in range(0, len(data), 999):
        pieces.update(data[start : start + 999])
    assert pieces.hexdigest() == digest_bytes(data)
