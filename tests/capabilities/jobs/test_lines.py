"""The ring of lines: what is kept, under which numbers, however the output was torn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.jobs import lines
from indusagi.capabilities.jobs.lines import LineRing


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
def test_pieces_become_lines(pieces: list[bytes], shown: list[str]) -> None:
    assert all_of(ring_of(*pieces)) == shown


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_where_the_output_was_torn_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    torn = ring_of(*(data[start:end] for start, end in pairwise(ends)))
    whole = ring_of(data)
    assert torn.after(0).texts == whole.after(0).texts
    assert torn.total == whole.total


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)))
def test_lines_without_tricks_are_those_that_were_written(texts: list[str]) -> None:
    ring = ring_of("".join(f"{text}\n" for text in texts).encode())
    assert list(ring.after(0).texts) == texts


def test_old_lines_are_dropped_and_the_numbers_stay() -> None:
    ring = ring_of(b"".join(b"%d\n" % n for n in range(1, 5_001)))
    found = ring.after(10)
    assert (found.first, found.last, found.dropped) == (3_001, 5_000, 2_990)
    assert (found.texts[0], found.texts[-1]) == ("3001", "5000")
    assert ring.after(5_000).texts == ()
    assert ring.after(5_000).last == 5_000
    assert ring.last(2).texts == ("4999", "5000")
    assert ring.last(9_999).first == 3_001


@pytest.mark.parametrize("piece", [1000, 64 * 1024])
def test_probe_0_16_a_line_without_end_is_split_and_does_not_fill_the_memory(piece: int) -> None:
    ring = LineRing()
    total = 10_000_000
    for _ in range(total // piece):
        ring.feed(b"x" * piece)
    ring.feed(b"\nend\n")
    found = ring.after(0)
    assert sum(map(len, found.texts)) <= lines.RING_CHARS
    assert found.texts[0].endswith(lines.SPLIT_MARK)
    assert found.texts[-1] == "end"
    assert not found.texts[-2].endswith(lines.SPLIT_MARK)
    written = total // piece * piece
    assert ring.total == -(-written // lines.LINE_CHARS) + 1


def test_a_line_of_just_the_longest_length_is_whole() -> None:
    ring = ring_of(b"x" * lines.LINE_CHARS, b"\n", b"y" * (lines.LINE_CHARS + 1), b"\n")
    assert [len(text) for text in ring.after(0).texts] == [
        lines.LINE_CHARS,
        lines.LINE_CHARS + len(lines.SPLIT_MARK),
        1,
    ]


def test_progress_without_end_does_not_fill_the_memory() -> None:
    ring = LineRing()
    for n in range(10_000):
        ring.feed(b"\r%d%%" % n)
    assert all_of(ring) == ["9999%"]
    assert ring.seen == (0, 5)
