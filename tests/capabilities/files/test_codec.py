"""Text files as bytes and back: no byte is lost, and iconv decodes the same."""

from __future__ import annotations

import errno
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.files.codec import (
    SAMPLE_BYTES,
    TextForm,
    decode_lossless,
    digest_bytes,
    encode,
    encode_piece,
    guess_encoding,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.files.codec import LineEnding

RUSSIAN = "Настройки хранятся в файле. Если он не найден, берутся значения по умолчанию.\n"
GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n"
JAPANESE = "設定はファイルに保存されます。見つからない場合は既定値を使用します。\n"


def iconv(data: bytes, encoding: str) -> str:
    done = subprocess.run(
        ["iconv", "-f", encoding, "-t", "UTF-8"], input=data, capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode("utf-8")


def _detecting(guess: dict[str, object]) -> Callable[[bytes], dict[str, object]]:
    def detect(_sample: bytes) -> dict[str, object]:
        return guess

    return detect


@given(st.binary(max_size=400))
def test_encoding_a_decoded_file_gives_the_same_bytes(data: bytes) -> None:
    text, form = decode_lossless(data)
    assert encode(text, form) == data


@given(st.text(max_size=200), st.sampled_from(["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]))
def test_a_byte_order_mark_names_the_encoding_and_is_removed(text: str, name: str) -> None:
    mark = "" if name == "utf-8-sig" else "\ufeff"
    try:
        data = (mark + text).encode(name)
    except UnicodeEncodeError:
        return
    if name == "utf-16-le" and text.startswith("\0"):
        return  # it reads like the longer mark of UTF-32
    found, form = decode_lossless(data)
    assert (found, form.encoding) == (text, name.removesuffix("-sig"))
    assert encode(found, form) == data


SMALLER = {"cp932": "shift_jis", "koi8-u": "koi8-r"}
"""The encodings that newer versions of chardet name a superset of."""


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
def test_iconv_decodes_the_same_text(text: str, encoding: str, name: str) -> None:
    made = subprocess.run(
        ["iconv", "-f", "UTF-8", "-t", encoding],
        input=text.encode("utf-8"),
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    found, form = decode_lossless(made)
    assert SMALLER.get(form.encoding, form.encoding) == name
    assert found == iconv(made, encoding).removeprefix("\ufeff")
    assert form.guessed is (name not in {"utf-8", "utf-16-le", "utf-16-be", "utf-32-le"})


def test_utf_8_with_a_few_invalid_bytes_stays_utf_8() -> None:
    data = GERMAN.encode() + b"\xff\xfe broken\n" + RUSSIAN.encode()
    text, form = decode_lossless(data)
    assert (form.encoding, form.damaged, form.guessed) == ("utf-8", True, False)
    assert text.startswith(GERMAN)
    assert text.endswith(RUSSIAN)
    assert encode(text, form) == data


def test_the_sample_is_taken_at_the_first_invalid_byte() -> None:
    data = b"plain ascii\n" * 50_000 + (RUSSIAN * 5).encode("koi8-r")
    text, form = decode_lossless(data)
    assert form.encoding == "koi8-r"
    assert text.endswith(RUSSIAN)


def test_a_long_row_of_letters_does_not_slow_the_guess() -> None:
    """A sequence of bases or amino acids; each of these would take a minute of one regex."""
    row = b"ACGTTGCA" * (SAMPLE_BYTES // 8)
    for name, text in {"shift_jis": JAPANESE, "koi8-r": RUSSIAN}.items():
        found = guess_encoding(text.encode(name) + row)
        assert SMALLER.get(found, found) == name


def test_bytes_that_the_guessed_encoding_lacks_are_kept() -> None:
    data = (RUSSIAN * 5).encode("cp1251") + b"\x98\n"  # not a letter in windows-1251
    text, form = decode_lossless(data)
    # chardet 7 prefers an encoding that has a letter there.
    assert (form.encoding, form.damaged) in {("cp1251", True), ("mac-cyrillic", False)}
    assert encode(text, form) == data


def test_an_encoding_that_would_change_bytes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chardet.detect", _detecting({"encoding": "cp932", "confidence": 1.0}))
    data = b"\xfa\x4a\n"  # the same as \x87\x54, which is the one that is written
    text, form = decode_lossless(data)
    assert (form.encoding, form.guessed) == ("latin-1", True)
    assert encode(text, form) == data


@pytest.mark.parametrize("data", [b"\xff\xfea\0b", b"\0\0\xfe\xff\0\0\0a\0\0", b"\xff\xfe\0\0\xff\xff\xff\xff"])
def test_utf_16_that_ends_inside_a_character_is_decoded_as_latin_1(data: bytes) -> None:
    text, form = decode_lossless(data)
    assert form.encoding == "latin-1"
    assert "\0" in text
    assert encode(text, form) == data


def test_half_a_surrogate_pair_in_utf_16_is_kept() -> None:
    data = b"\xff\xfea\0\x00\xd8b\0"
    text, form = decode_lossless(data)
    assert (text, form.encoding, form.damaged) == ("a\ud800b", "utf-16-le", True)
    assert encode(text, form) == data


@pytest.mark.parametrize(
    ("sample", "name"), [(b"caf\xe9", "latin-1"), (b"\x93quoted\x94 \xa4\xa5\xa6 \x80", "cp1252"), (b"\xe9", "latin-1")]
)
def test_a_guess_is_a_superset_of_ascii(sample: bytes, name: str) -> None:
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
def test_an_unusable_guess_is_ignored(guess: dict[str, object], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chardet.detect", _detecting(guess))
    monkeypatch.setattr("chardet.__version__", "5.2.0")
    assert guess_encoding(b"caf\xe9") == found


@pytest.mark.parametrize(
    ("version", "confidence", "found"),
    [("5.2.0", 0.3, "latin-1"), ("7.4.3", 0.3, "tis-620"), ("7.7.0", 0.105, "latin-1")],
)
def test_finding_a5_confidence_is_read_as_each_chardet_means_it(
    version: str, confidence: float, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chardet.detect", _detecting({"encoding": "TIS-620", "confidence": confidence}))
    monkeypatch.setattr("chardet.__version__", version)
    assert guess_encoding(b"caf\xe9") == found


@pytest.mark.parametrize(
    ("data", "ending", "final"),
    [
        (b"", "none", False),
        (b"a", "none", False),
        (b"a\nb\n", "lf", True),
        (b"a\r\nb", "crlf", False),
        (b"a\rb\r", "none", False),
        (b"a\r\nb\n", "mixed", True),
        (b"a\r\rb\n", "lf", True),
    ],
)
def test_the_line_ending_is_lf_or_crlf(data: bytes, ending: LineEnding, final: bool) -> None:
    """A lone carriage return is an ordinary character."""
    form = decode_lossless(data)[1]
    assert (form.line_ending, form.final_newline) == (ending, final)


def test_line_endings_of_utf_16_are_found() -> None:
    form = decode_lossless("\ufeffa\r\nb\r\n".encode("utf-16-le"))[1]
    assert (form.line_ending, form.final_newline, form.wide) == ("crlf", True, True)


def test_a_character_missing_in_the_encoding_is_named() -> None:
    form = decode_lossless(GERMAN.encode("latin-1"))[1]
    for refuse in (encode, encode_piece):
        with pytest.raises(OSError, match=r"'€' \(U\+20AC\) cannot be written in latin-1") as caught:
            refuse("5 €", form)
        assert caught.value.errno == errno.EILSEQ


def test_half_a_surrogate_pair_cannot_be_encoded() -> None:
    for form in (TextForm(), TextForm(encoding="utf-16-le"), TextForm(damaged=True)):
        with pytest.raises(OSError, match=r"U\+DC80 is half a surrogate pair"):
            encode_piece("\udc80", form)


def test_a_piece_is_encoded_without_the_mark() -> None:
    form = TextForm(encoding="utf-16-be", bom=b"\xfe\xff")
    assert encode_piece("a", form) == b"\0a"
    assert encode("a", form) == b"\xfe\xff\0a"


def test_text_contains_no_nul() -> None:
    assert "\0" not in decode_lossless(b"a\n")[0]
    assert "\0" in decode_lossless(b"a\0b")[0]


def test_a_digest_is_that_of_sha256sum() -> None:
    data = bytes(range(256)) * 5_000
    done = subprocess.run(["sha256sum"], input=data, capture_output=True, check=True, timeout=60).stdout.decode()
    assert digest_bytes(data) == done.split()[0]
