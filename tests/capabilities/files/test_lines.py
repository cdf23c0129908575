"""Selected lines of a file: `sed` prints the same, and little is read or kept."""

from __future__ import annotations

import io
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.files import lines as module
from indusagi.capabilities.files.codec import CHUNK_BYTES, HEAD_BYTES, decode_lossless, digest_bytes
from indusagi.capabilities.files.lines import LONGEST_LINE, LineRange, TextScan, scan_lines

if TYPE_CHECKING:
    from pathlib import Path

PLENTY = 50 * 1024


def never_stopped() -> bool:
    return False


class Counted(io.BytesIO):
    """A file that counts what is read of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def scan_bytes(data: bytes, first: int = 1, count: int = 2_000, most: int = PLENTY) -> TextScan:
    file = io.BytesIO(data)
    head = file.read(HEAD_BYTES)
    return scan_lines(file, head, len(data), LineRange(first, count, most), never_stopped)


def format_lines(found: TextScan) -> list[tuple[int, str]]:
    return list(found.lines)


TEXTS = st.lists(
    st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"]), max_size=12), max_size=30
)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@given(
    TEXTS,
    st.booleans(),
    st.sampled_from(ENCODINGS),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(-35, 35),
    st.integers(1, 35),
)
def test_lines_are_those_of_the_text_in_every_encoding(
    texts: list[str], ended: bool, encoding: str, newline: str, first: int, count: int
) -> None:
    text = newline.join(texts) + (newline if ended else "")
    wide = encoding.startswith(("utf-16", "utf-32"))
    data = (("\ufeff" if wide else "") + text).encode(encoding)
    expected = text.split(newline)
    expected = expected[:-1] if expected[-1] == "" else expected
    first = first or 1
    start = first - 1 if first > 0 else max(0, len(expected) + first)
    found = scan_bytes(data, first, count)
    assert found.total == len(expected)
    assert found.digest == digest_bytes(data)
    numbered = list(enumerate(expected, start=1))
    assert format_lines(found) == numbered[start : start + count]


@given(st.binary(max_size=300))
def test_the_form_equals_that_of_decode_lossless(data: bytes) -> None:
    form, whole = scan_bytes(data).form, decode_lossless(data)[1]
    assert (form.bom, form.encoding) == (whole.bom, whole.encoding) or whole.encoding == "latin-1"
    if form.encoding == whole.encoding:
        assert form.line_ending == whole.line_ending
        assert form.final_newline == whole.final_newline


def bulky(seed: int, newline: bytes = b"\n") -> bytes:
    """Make a file of several chunks whose borders fall anywhere."""
    dice = random.Random(seed)
    words = ["plain", "größer", "日本", "🙂", "x" * 900, ""]
    made = [dice.choice(words) + str(n) for n in range(9_000)]
    return newline.join(word.encode() for word in made) + newline


@pytest.mark.process
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("first", [1, 2, 4_321, 8_999, 9_000, -1, -2, -777, -9_000, -20_000])
def test_sed_prints_the_same_lines_of_a_file_of_many_chunks(seed: int, first: int, tmp_path: Path) -> None:
    data = bulky(seed)
    assert len(data) > 3 * CHUNK_BYTES
    (tmp_path / "f").write_bytes(data)
    start = first if first > 0 else max(1, 9_000 + first + 1)
    done = subprocess.run(
        ["sed", "-n", f"{start},{start + 9}p", str(tmp_path / "f")], capture_output=True, check=True, timeout=60
    )
    found = scan_bytes(data, first, 10)
    assert [text for _, text in format_lines(found)] == done.stdout.decode().splitlines()
    assert found.lines[0][0] == start
    assert found.total == 9_000
    assert found.digest == digest_bytes(data)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("first", [1, 3, -2])
def test_lone_carriage_returns_do_not_end_lines(ending: bytes, encoding: str, first: int, tmp_path: Path) -> None:
    text = b"10 %\r" * 100_000 + b"done" + ending + b"".join(b"%d" % n + ending for n in range(9))
    (tmp_path / "f").write_bytes(text)
    start = first if first > 0 else 10 + first + 1
    done = subprocess.run(
        ["sed", "-n", f"{start},{start + 1}p", str(tmp_path / "f")], capture_output=True, check=True, timeout=60
    )
    data = text.decode().encode(encoding)
    found = scan_bytes(data, first, 2)
    lines = [line[:LONGEST_LINE] for line in done.stdout.decode().replace("\r\n", "\n").split("\n")]
    assert [line[:LONGEST_LINE] for _, line in format_lines(found)] == lines[:-1]
    assert (found.total, found.digest) == (10, digest_bytes(data))


@pytest.mark.parametrize("first", [5_000, -100])
def test_line_endings_across_chunks_are_counted_once(first: int) -> None:
    data = bulky(7, b"\r\n")
    found = scan_bytes(data, first, 3)
    assert found.total == 9_000
    assert found.form.line_ending == "crlf"
    start = found.lines[0][0] - 1
    assert [text for _, text in format_lines(found)] == [
        line.decode() for line in data.split(b"\r\n")[start : start + 3]
    ]


def test_a_file_of_carriage_returns_is_one_line() -> None:
    """Classic Mac OS ended lines so."""
    found = scan_bytes(b"a\rb\rc\r")
    assert format_lines(found) == [(1, "a\rb\rc\r")]
    assert (found.total, found.form.line_ending, found.form.final_newline) == (1, "none", False)


@pytest.mark.parametrize("border", range(CHUNK_BYTES + HEAD_BYTES - 3, CHUNK_BYTES + HEAD_BYTES + 2))
@pytest.mark.parametrize("piece", ["é".encode(), b"\r\n", "🙂".encode()])
def test_characters_and_line_endings_across_chunks_stay_whole(border: int, piece: bytes) -> None:
    data = b"a\r\n" + b"x" * (border - 3) + piece + b"\r\nlast\r\n"
    found = scan_bytes(data, 3 + (piece == b"\r\n"), 1)
    assert [text for _, text in format_lines(found)] == ["last"]
    assert (found.form.encoding, found.form.damaged) == ("utf-8", False)
    assert found.form.line_ending == "crlf"


def test_utf_16_of_many_chunks_is_read_from_the_end() -> None:
    text = "".join(f"🙂 line {n}\n" for n in range(40_000))
    data = ("\ufeff" + text).encode("utf-16-le")
    found = scan_bytes(data, -2)
    assert format_lines(found) == [(39_999, "🙂 line 39998"), (40_000, "🙂 line 39999")]
    assert not found.form.damaged


def test_invalid_utf_16_is_shown_with_replacement_characters() -> None:
    found = scan_bytes(b"\xff\xfea\0\n\0\x00\xd8b\0\n\0c")
    assert format_lines(found) == [(1, "a"), (2, "\ufffdb"), (3, "\ufffd")]
    assert found.form.damaged


def test_a_file_that_ends_inside_a_character_is_damaged() -> None:
    found = scan_bytes("größe\n".encode() * 20 + b"\xc3")
    assert (found.form.encoding, found.form.damaged) == ("utf-8", True)
    assert format_lines(found)[-1] == (21, "\\xc3")


def test_only_the_start_of_a_long_line_is_kept() -> None:
    found = scan_bytes(b"x" * 5_000_000 + b"\nshort\n")
    (_, long), (_, short) = format_lines(found)
    assert long == "x" * LONGEST_LINE + "… [+4,998,000 characters]"
    assert short == "short"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("é" * 2_000, ""),
        ("é" * 2_001, "… [+1 characters]"),
        ("🙂" * 2_500, "… [+500 characters]"),
        ("x" * 9_000 + "\r", "… [+7,000 characters]"),
    ],
)
def test_a_cut_line_tells_the_number_of_missing_characters(line: str, said: str) -> None:
    (_, text), _ = format_lines(scan_bytes(f"{line}\nlast\r\n".encode()))
    assert text == line.rstrip("\r")[:2_000] + said


def test_a_cut_line_in_another_encoding_counts_bytes() -> None:
    russian = "Настройки хранятся в файле, если он не найден. " * 400
    found = scan_bytes(russian.encode("cp1251") + b"\n")
    ((_, text),) = format_lines(found)
    assert found.form.encoding == "cp1251"
    assert text == russian[:2_000] + f"… [+{len(russian) - 2_000:,} bytes]"


def test_invalid_bytes_are_shown_as_escapes() -> None:
    found = scan_bytes("größe ä ö ü ß Ä Ö\n".encode() + b"bad \xff\n")
    assert format_lines(found)[1] == (2, "bad \\xff")


@pytest.mark.parametrize("first", [1, 30_000, 60_000])
def test_a_file_is_read_once(first: int) -> None:
    data = b"some line of text\n" * 60_000
    file = Counted(data)
    scan_lines(file, file.read(HEAD_BYTES), len(data), LineRange(first, 10, PLENTY), never_stopped)
    assert file.count <= len(data) + HEAD_BYTES + 2 * CHUNK_BYTES


@pytest.mark.parametrize("cut", range(4))
def test_the_guess_does_not_depend_on_chunk_borders(cut: int) -> None:
    border = CHUNK_BYTES + HEAD_BYTES
    for piece in (b"\xff", b"\xf0\x9f\x99", b"\xe9"):
        data = "größer\n".encode() * 3 + b"x\n" * border
        data = data[: border - cut] + piece + b" tail\n"
        form, whole = scan_bytes(data).form, decode_lossless(data)[1]
        assert (form.encoding, form.damaged) == (whole.encoding, whole.damaged)


def test_a_stopped_scan_reads_no_further() -> None:
    file = Counted(b"some line of text\n" * 100_000)
    head = file.read(HEAD_BYTES)
    scan_lines(file, head, 1_800_000, LineRange(1, 10, PLENTY), lambda: True)
    assert file.count <= HEAD_BYTES + SAMPLE


SAMPLE = 32 * 1024


@pytest.fixture
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_LIMIT_BYTES", 1_000_000)


@pytest.mark.usefixtures("_small_limit")
def test_a_large_file_is_read_up_to_the_last_shown_line() -> None:
    data = b"some line of text\n" * 500_000
    file = Counted(data)
    found = scan_lines(file, file.read(HEAD_BYTES), len(data), LineRange(3, 2, PLENTY), never_stopped)
    assert [number for number, _ in found.lines] == [3, 4]
    assert (found.total, found.digest) == (None, None)
    assert file.count <= HEAD_BYTES + CHUNK_BYTES


@pytest.mark.usefixtures("_small_limit")
@pytest.mark.parametrize("first", [400_000, -1])
@pytest.mark.parametrize("said", [0, 9_000_000])
def test_no_line_is_searched_past_the_limit(first: int, said: int) -> None:
    file = Counted(b"some line of text\n" * 500_000)
    found = scan_lines(file, file.read(HEAD_BYTES), said, LineRange(first, 2, PLENTY), never_stopped)
    assert (list(found.lines), found.total, found.digest) == ([], None, None)
    assert file.count <= 1_000_000 + 2 * CHUNK_BYTES
