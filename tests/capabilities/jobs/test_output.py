"""Output of a command: numbered lines, and its text as a model gets it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities import jobs as output
from indusagi.capabilities.files.codec import is_binary
from indusagi.capabilities.jobs import LineRing, RenderedOutput, plain_text, render_output


def ring_of(*pieces: bytes) -> LineRing:
    ring = LineRing()
    for piece in pieces:
        ring.feed(piece)
    return ring


def all_of(ring: LineRing) -> list[str]:
    found = ring.after(0)
    return [*found.texts, found.open_line]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb\n"], ["a", "b", ""]),
        ([b"AA", b"BB\n"], ["AABB", ""]),
        ([b"a\n\n\nb"], ["a", "", "", "b"]),
        ([b"caf\xc3", b"\xa9\n"], ["café", ""]),
        ([b"bad \xff byte\n"], ["bad \ufffd byte", ""]),
        ([b"10%\r50%\r100%\n"], ["100%", ""]),
        ([b"10%\r", b"50%\r", b"100%"], ["100%"]),
        ([b"dos\r\nline\r\n"], ["dos", "line", ""]),
        ([b"dos\r", b"\nline"], ["dos", "line"]),
        ([b"half\r"], ["half"]),
        ([b""], [""]),
    ],
)
def test_pieces_are_joined_to_lines(pieces: list[bytes], shown: list[str]) -> None:
    assert all_of(ring_of(*pieces)) == shown


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_split_of_the_output_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    torn = ring_of(*(data[start:end] for start, end in pairwise(ends)))
    whole = ring_of(data)
    assert torn.after(0).texts == whole.after(0).texts
    assert torn.total == whole.total


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)))
def test_lines_are_kept_as_written(texts: list[str]) -> None:
    ring = ring_of("".join(f"{text}\n" for text in texts).encode())
    assert list(ring.after(0).texts) == texts


def test_dropping_old_lines_keeps_the_numbers() -> None:
    ring = ring_of(b"".join(b"%d\n" % n for n in range(1, 5_001)))
    found = ring.after(10)
    assert (found.first, found.last, found.dropped) == (3_001, 5_000, 2_990)
    assert (found.texts[0], found.texts[-1]) == ("3001", "5000")
    assert ring.after(5_000).texts == ()
    assert ring.after(5_000).last == 5_000
    assert ring.last(2).texts == ("4999", "5000")
    assert ring.last(9_999).first == 3_001


@pytest.mark.parametrize("piece", [1000, 64 * 1024])
def test_probe_0_16_endless_line_is_split_and_memory_is_bounded(piece: int) -> None:
    ring = LineRing()
    total = 10_000_000
    for _ in range(total // piece):
        ring.feed(b"x" * piece)
    ring.feed(b"\nend\n")
    found = ring.after(0)
    assert sum(map(len, found.texts)) <= output.RING_CHARS
    assert found.texts[0].endswith(output.SPLIT_MARK)
    assert found.texts[-1] == "end"
    assert not found.texts[-2].endswith(output.SPLIT_MARK)
    written = total // piece * piece
    assert ring.total == -(-written // output.LINE_CHARS) + 1


def test_line_of_the_longest_length_is_not_split() -> None:
    ring = ring_of(b"x" * output.LINE_CHARS, b"\n", b"y" * (output.LINE_CHARS + 1), b"\n")
    assert [len(text) for text in ring.after(0).texts] == [
        output.LINE_CHARS,
        output.LINE_CHARS + len(output.SPLIT_MARK),
        1,
    ]


def test_endless_progress_does_not_fill_memory() -> None:
    ring = LineRing()
    for n in range(10_000):
        ring.feed(b"\r%d%%" % n)
    assert all_of(ring) == ["9999%"]
    assert ring.progress == (0, 5)


# -- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        (b"\x1b(Bcharset\x1b=", "charset"),
        (b"a\x1b]0;no end\nb\nc\x1bPq\nd", "a\nb\nc\nd"),
        (b"a\x1bPpicture\nof lines\x1b\\b", "ab"),
        (b"a\xc2\x9b31mred\xc2\x9d0;title\xc2\x9cb\xc2\x84c", "aredbc"),
        (b"a\rb\rc\nd\r\n", "c\nd\n"),
        (b"N\x08NA\x08A", "NA"),
        (b"bell\x07 and \x00 nul", "bell and  nul"),
        ("häß \u202e".encode(), "häß \u202e"),
        (b"\xff", "\ufffd"),
    ],
)
def test_plain_text_is_what_a_terminal_shows(data: bytes, shown: str) -> None:
    assert plain_text(data) == shown


@given(st.binary(max_size=500))
def test_plain_text_has_no_control_characters(data: bytes) -> None:
    shown = plain_text(data)
    assert not set(shown) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_plain_text_keeps_ordinary_text(text: str) -> None:
    assert plain_text(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"", False),
        (b"text", False),
        ("日本語".encode() * 100, False),
        (b"\x1b[31m\x1b[0m" * 50, False),
        (b"\x7fELF\0\0", True),
        ("é".encode() * 4095 + b"\xc3", False),
    ],
)
def test_binary_output_is_recognised(data: bytes, binary: bool) -> None:
    assert is_binary(data) is binary


class Written:
    """A command that has written this."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def output_size(self) -> int:
        return len(self.data)

    def read_output(self, start: int = 0, size: int | None = None) -> bytes:
        return self.data[start:] if size is None else self.data[start : start + size]


def render(data: bytes, path: str | None = None) -> RenderedOutput:
    """Render what a command has written."""
    process: Any = Written(data)
    return render_output(process, path)


def test_short_output_is_shown_whole() -> None:
    assert render(b"a\x1b[1mb\n") == RenderedOutput("ab\n", whole=True)
    assert render(b"") == RenderedOutput("", whole=True)
    lines = b"x\n" * output.SHOWN_LINES
    assert render(lines).whole
    assert not render(lines + b"x\n").whole


def test_binary_output_is_named_by_its_size() -> None:
    assert render(b"\0" * 1_234) == RenderedOutput("[binary 1,234 bytes]", whole=False)
    assert render(b"\0", "/f").text == "[binary 1 bytes, kept in /f]"


@pytest.mark.parametrize("kept", ["all", "some"])
def test_long_output_is_shown_by_its_ends(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    data = b"".join(b"line %d\n" % number for number in range(60_000))
    if kept == "some":
        monkeypatch.setattr(output, "KEPT_HEAD_BYTES", 10)
        monkeypatch.setattr(output, "KEPT_TAIL_BYTES", len(data) - 11)
    else:
        monkeypatch.setattr(output, "KEPT_HEAD_BYTES", 10)
        monkeypatch.setattr(output, "KEPT_TAIL_BYTES", len(data) - 10)
    for whole_bytes in (len(data), len(data) // 2):
        monkeypatch.setattr(output, "_WHOLE_BYTES", whole_bytes)
        found = render(data, "/f")
        head, note, tail = found.text.partition("\n[…")[0], found.text.split("\n[…")[1].split("]\n")[0], found.text
        assert not found.whole
        assert head.startswith("line 0\nline 1\n")
        assert tail.endswith("line 59998\nline 59999\n")
        assert head.count("\n") + 1 <= output.SHOWN_LINES // 2
        what = "The whole is" if kept == "all" else "Its first and last 32 MiB are"
        assert note.endswith(f"of {len(data):,} bytes left out. {what} in /f: read it with an offset.")
        shown = len(head) + 1 + len(tail.split("]\n", 1)[1])
        assert note.startswith(f" about {len(data) - shown:,} of ")
    assert " in /f" not in render(data).text


def test_a_gap_is_marked_where_it_is() -> None:
    """Both ends of the output are short, because the program overwrites its progress."""
    found = render(b"start\n" + b"100%\r" * 300_000 + b"\nend\n").text
    head, _, tail = found.partition("\n[… about ")
    assert head.startswith("start\n100")
    assert tail.partition("]\n")[2] == "100%\nend\n"
