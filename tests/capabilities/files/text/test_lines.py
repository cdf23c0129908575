"""Lines of a file without loading it: `sed` and `wc` say the same, and little is read or kept."""

from __future__ import annotations

import io
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.files.text import lines as module
from indusagi.capabilities.files.text.codec import CHUNK_BYTES, decode_lossless, digest_bytes
from indusagi.capabilities.files.text.lines import LONGEST_LINE, Scan, Wanted, scan
from indusagi.capabilities.files.text.sniff import HEAD_BYTES

if TYPE_CHECKING:
    from pathlib import Path

PLENTY = 50 * 1024


def going_on() -> bool:
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


def scanned(data: bytes, first: int = 1, count: int = 2_000, most: int = PLENTY) -> Scan:
    file = io.BytesIO(data)
    head = file.read(HEAD_BYTES)
    return scan(file, head, len(data), Wanted(first, count, most), going_on)


def shown(found: Scan) -> list[tuple[int, str]]:
    return [(line.number, line.shown(found.form)) for line in found.lines]


TEXTS = st.lists(
    st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"]), max_size=12), max_size=30
)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@given(
    TEXTS,
    st.booleans(),
    st.sampled_from(ENCODINGS),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(-35, 35),
    st.integers(1, 35),
)
def test_in_every_encoding_the_lines_are_those_of_the_text(
    texts: list[str], ended: bool, encoding: str, newline: str, first: int, count: int
) -> None:
    text = newline.join(texts) + (newline if ended else "")
    wide = encoding.startswith(("utf-16", "utf-32"))
    data = (("\ufeff" if wide else "") + text).encode(encoding)
    expected = text.split(newline)
    expected = expected[:-1] if expected[-1] == "" else expected
    first = first or 1
    start = first - 1 if first > 0 else max(0, len(expected) + first)
    found = scanned(data, first, count)
    assert found.total == len(expected)
    assert found.digest == digest_bytes(data)
    numbered = list(enumerate(expected, start=1))
    assert shown(found) == numbered[start : start + count]


@given(st.binary(max_size=300))
def test_the_form_of_a_file_is_the_same_as_when_it_is_decoded_whole(data: bytes) -> None:
    form, whole = scanned(data).form, decode_lossless(data)[1]
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
def test_sed_shows_the_same_lines_of_a_file_of_many_chunks(seed: int, first: int, tmp_path: Path) -> None:
    data = bulky(seed)
    assert len(data) > 3 * CHUNK_BYTES
    (tmp_path / "f").write_bytes(data)
    start = first if first > 0 else max(1, 9_000 + first + 1)
    done = subprocess.run(
        ["sed", "-n", f"{start},{start + 9}p", str(tmp_path / "f")], capture_output=True, check=True, timeout=20
    )
    found = scanned(data, first, 10)
    assert [text for _, text in shown(found)] == done.stdout.decode().splitlines()
    assert found.lines[0].number == start
    assert found.total == 9_000
    assert found.digest == digest_bytes(data)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("first", [1, 3, -2])
def test_returns_before_the_first_newline_end_no_line(ending: bytes, encoding: str, first: int, tmp_path: Path) -> None:
    text = b"10 %\r" * 100_000 + b"done" + ending + b"".join(b"%d" % n + ending for n in range(9))
    (tmp_path / "f").write_bytes(text)
    start = first if first > 0 else 10 + first + 1
    done = subprocess.run(
        ["sed", "-n", f"{start},{start + 1}p", str(tmp_path / "f")], capture_output=True, check=True, timeout=20
    )
    data = text.decode().encode(encoding)
    found = scanned(data, first, 2)
    lines = [line[:LONGEST_LINE] for line in done.stdout.decode().replace("\r\n", "\n").split("\n")]
    assert [line[:LONGEST_LINE] for _, line in shown(found)] == lines[:-1]
    assert (found.total, found.digest) == (10, digest_bytes(data))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("first", [2, -2])
def test_returns_end_lines_where_no_newline_is_however_late_the_first_one_comes(encoding: str, first: int) -> None:
    data = ("x" * (HEAD_BYTES + 10) + "\rtwo\rthree").encode(encoding)
    found = scanned(data, first)
    assert shown(found) == [(2, "two"), (3, "three")]
    assert (found.total, found.digest) == (3, digest_bytes(data))


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
@pytest.mark.parametrize("first", [5_000, -100])
def test_line_endings_across_chunks_are_counted_once(newline: bytes, first: int) -> None:
    data = bulky(7, newline)
    found = scanned(data, first, 3)
    assert found.total == 9_000
    assert found.form.line_ending == ("crlf" if newline == b"\r\n" else "cr")
    assert [text for _, text in shown(found)] == [
        line.decode() for line in data.split(newline)[found.lines[0].number - 1 :][:3]
    ]


@pytest.mark.parametrize("ending", [b"\r", b"\r\n"])
def test_a_return_at_the_border_of_a_chunk_ends_a_line_if_no_newline_follows(ending: bytes) -> None:
    border = CHUNK_BYTES + HEAD_BYTES
    data = b"a\r" * (HEAD_BYTES // 2 + 10)
    data += b"x" * (border - 1 - len(data)) + ending + b"y\rz\r"
    found = scanned(data, -2)
    if ending == b"\r":
        assert [text for _, text in shown(found)] == ["y", "z"]
        assert found.lines[0].number == HEAD_BYTES // 2 + 12
    else:
        assert [line.number for line in found.lines] == [1, 2]
        assert shown(found)[1] == (2, "y\rz\r")


@pytest.mark.parametrize("border", range(CHUNK_BYTES + HEAD_BYTES - 3, CHUNK_BYTES + HEAD_BYTES + 2))
@pytest.mark.parametrize("odd", ["é".encode(), b"\r\n", "🙂".encode()])
def test_what_falls_on_the_border_of_a_chunk_is_whole(border: int, odd: bytes) -> None:
    data = b"a\r\n" + b"x" * (border - 3) + odd + b"\r\nlast\r\n"
    found = scanned(data, 3 + (odd == b"\r\n"), 1)
    assert [text for _, text in shown(found)] == ["last"]
    assert (found.form.encoding, found.form.damaged) == ("utf-8", False)
    assert found.form.line_ending == "crlf"


def test_a_wide_file_of_many_chunks_is_read_from_the_end_too() -> None:
    text = "".join(f"🙂 line {n}\n" for n in range(60_000))
    data = ("\ufeff" + text).encode("utf-16-le")
    found = scanned(data, -2)
    assert shown(found) == [(59_999, "🙂 line 59998"), (60_000, "🙂 line 59999")]
    assert not found.form.damaged


def test_a_broken_wide_file_is_shown_with_a_mark_where_it_breaks() -> None:
    found = scanned(b"\xff\xfea\0\n\0\x00\xd8b\0\n\0c")
    assert shown(found) == [(1, "a"), (2, "\ufffdb"), (3, "\ufffd")]
    assert found.form.damaged


def test_a_file_that_ends_inside_a_character_is_damaged() -> None:
    found = scanned("größe\n".encode() * 20 + b"\xc3")
    assert (found.form.encoding, found.form.damaged) == ("utf-8", True)
    assert shown(found)[-1] == (21, "\\xc3")


def test_only_what_is_wanted_is_kept_of_a_long_line() -> None:
    found = scanned(b"x" * 5_000_000 + b"\nshort\n")
    (_, long), (_, short) = shown(found)
    assert long == "x" * LONGEST_LINE + "… [+4,998,000 characters]"
    assert short == "short"
    assert len(found.lines[0].head) <= 4 * LONGEST_LINE


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("é" * 2_000, ""),
        ("é" * 2_001, "… [+1 characters]"),
        ("🙂" * 2_500, "… [+500 characters]"),
        ("x" * 9_000 + "\r", "… [+7,000 characters]"),
    ],
)
def test_a_cut_line_says_how_many_characters_are_missing(line: str, said: str) -> None:
    (_, text), _ = shown(scanned(f"{line}\nlast\r\n".encode()))
    assert text == line.rstrip("\r")[:2_000] + said


def test_a_cut_line_in_another_encoding_counts_bytes() -> None:
    russian = "Настройки хранятся в файле, если он не найден. " * 400
    found = scanned(russian.encode("cp1251") + b"\n")
    ((_, text),) = shown(found)
    assert found.form.encoding == "cp1251"
    assert text == russian[:2_000] + f"… [+{len(russian) - 2_000:,} bytes]"


def test_bytes_that_are_no_characters_are_written_out() -> None:
    found = scanned("größe ä ö ü ß Ä Ö\n".encode() + b"bad \xff\n")
    assert shown(found)[1] == (2, "bad \\xff")


@pytest.mark.parametrize("first", [1, 30_000, 60_000])
def test_a_file_is_read_once(first: int) -> None:
    data = b"some line of text\n" * 60_000
    file = Counted(data)
    scan(file, file.read(HEAD_BYTES), len(data), Wanted(first, 10, PLENTY), going_on)
    assert file.count == len(data)


def test_from_the_end_only_the_last_chunk_is_read_again() -> None:
    data = b"some line of text\n" * 100_000
    file = Counted(data)
    scan(file, file.read(HEAD_BYTES), len(data), Wanted(-5, 5, PLENTY), going_on)
    assert file.count <= len(data) + 2 * CHUNK_BYTES


def test_no_more_is_kept_than_can_be_shown() -> None:
    found = scanned(b"y" * 1_000 + b"\n" + b"some line of text\n" * 500_000, 1, 2_000_000, 1_000)
    assert sum(len(line.head) for line in found.lines) <= 4 * 1_000 + 4 * LONGEST_LINE


@pytest.mark.parametrize("cut", range(4))
def test_the_guess_is_the_same_wherever_chunks_end(cut: int) -> None:
    border = CHUNK_BYTES + HEAD_BYTES
    for odd in (b"\xff", b"\xf0\x9f\x99", b"\xe9"):
        data = "größer\n".encode() * 3 + b"x\n" * border
        data = data[: border - cut] + odd + b" tail\n"
        form, whole = scanned(data).form, decode_lossless(data)[1]
        assert (form.encoding, form.damaged) == (whole.encoding, whole.damaged)


def test_nobody_waits_for_the_rest() -> None:
    file = Counted(b"some line of text\n" * 100_000)
    head = file.read(HEAD_BYTES)
    scan(file, head, 1_800_000, Wanted(1, 10, PLENTY), lambda: True)
    assert file.count <= HEAD_BYTES + SAMPLE


SAMPLE = 32 * 1024


@pytest.fixture
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_LIMIT_BYTES", 1_000_000)


@pytest.mark.usefixtures("_small_limit")
def test_a_file_that_is_too_large_is_read_as_far_as_it_is_shown() -> None:
    data = b"some line of text\n" * 500_000
    file = Counted(data)
    found = scan(file, file.read(HEAD_BYTES), len(data), Wanted(3, 2, PLENTY), going_on)
    assert [line.number for line in found.lines] == [3, 4]
    assert (found.total, found.digest) == (None, None)
    assert file.count <= HEAD_BYTES + CHUNK_BYTES


@pytest.mark.usefixtures("_small_limit")
@pytest.mark.parametrize("first", [400_000, -1])
@pytest.mark.parametrize("said", [0, 9_000_000])
def test_no_line_is_looked_for_beyond_the_limit(first: int, said: int) -> None:
    file = Counted(b"some line of text\n" * 500_000)
    found = scan(file, file.read(HEAD_BYTES), said, Wanted(first, 2, PLENTY), going_on)
    assert (list(found.lines), found.total, found.digest) == ([], None, None)
    assert file.count <= 1_000_000 + 2 * CHUNK_BYTES
